"""Images of any number of bands, from files through training, prediction, export and explorers."""
import numpy as np, pytest, tifffile, torch
from torchvision.transforms.functional import to_pil_image

from winwin.cli import main
from winwin.data import Augment, FlowFolder, SegFolder, band_statistics, find_images, image_bands, read_image, stored_size
from winwin.inference import Predictor, export_model, predict
from winwin.models import create_model, load_model, save_model
from winwin.training.recipes import change, get_preset, recipe_data, recipe_model, recipe_task
from winwin.windows import rgb_picture

rng = np.random.default_rng(0)
SIZE = 48,64
TINY = ['--model','winwin_seg_nano','--windows','2x2','--steps','2','--batch-size','2','--workers','0','--size','48','64']

def cli(*words):
    with pytest.raises(SystemExit) as end: main([*map(str, words)])
    return end.value.code or 0

def scene(i, bands=5):
    "Reflectance of 16 bits, every band on a level of its own, and the class that decides band 3"
    labels = (np.indices(SIZE).sum(0)//8 + i)%2
    x = np.stack([1000*(k+1) + rng.normal(0, 50*(k+1), SIZE) for k in range(bands)])
    x[min(3, bands-1)] += 3000*labels
    return x.clip(0, 65535).astype(np.uint16),labels.astype(np.uint8)

def write_tif(path, x): tifffile.imwrite(path, np.moveaxis(x, 0, -1), photometric='minisblack', planarconfig='contig')

@pytest.fixture(scope='module')
def fields(tmp_path_factory):
    "Ten five-band TIFFs with labels and heights"
    root = tmp_path_factory.mktemp('fields')
    for part in ('images','labels','depth'): (root/part).mkdir()
    for i in range(10):
        x,labels = scene(i)
        write_tif(root/f'images/{i}.tif', x)
        to_pil_image(torch.from_numpy(labels)).save(root/f'labels/{i}.png')
        np.save(root/f'depth/{i}.npy', 1.+labels)
    return root

@pytest.fixture(scope='module')
def run(fields, tmp_path_factory):
    "A model that the command line trained on them"
    out = tmp_path_factory.mktemp('runs')/'fields'
    assert cli('train', 'folder-seg-tiny', '--root', fields, '--classes', 'soil', 'crop', '--out', out, *TINY)==0
    return out

# reading

@pytest.mark.parametrize('name', ['first.npy','last.npy','contig.tif','separate.tif','pages.tif','square.npy'])
def test_every_layout_of_bands_reads_the_same(tmp_path, name):
    x = scene(0)[0][:,:,:48] if name=='square.npy' else scene(0)[0]
    path = tmp_path/name
    if name in ('first.npy','square.npy'): np.save(path, x)
    elif name=='last.npy': np.save(path, np.moveaxis(x, 0, -1))
    elif name=='contig.tif': write_tif(path, x)
    elif name=='separate.tif': tifffile.imwrite(path, x, photometric='minisblack', planarconfig='separate')
    else: tifffile.imwrite(path, x)
    assert image_bands(path)==5 and stored_size(path)==x.shape[1:]
    torch.testing.assert_close(read_image(path), torch.from_numpy(x.astype(np.float32))/65535)

@pytest.mark.parametrize('dtype,scale', [('uint8',255),('uint16',65535),('int16',1),('float32',1),('float64',1),('>f4',1)])
def test_one_rule_for_values(tmp_path, dtype, scale):
    x = np.arange(2*4*6).reshape(2,4,6).astype(dtype)
    np.save(tmp_path/'a.npy', x)
    assert read_image(tmp_path/'a.npy').dtype==torch.float32
    torch.testing.assert_close(read_image(tmp_path/'a.npy'), torch.arange(48.).view(2,4,6)/scale)

def test_a_grey_png_of_16_bits_keeps_them(tmp_path):
    x = rng.integers(0, 2**16, SIZE).astype(np.uint16)
    to_pil_image(x.astype(np.int32), mode='I').convert('I;16').save(tmp_path/'a.png')
    torch.testing.assert_close(read_image(tmp_path/'a.png')[1], torch.from_numpy(x.astype(np.float32))/65535)

def test_pictures_stay_pictures(tmp_path):
    "Grey is repeated and alpha dropped; a fourth sample that is no alpha is a band"
    x = rng.integers(0, 255, (*SIZE,4), dtype=np.uint8)
    tifffile.imwrite(tmp_path/'rgba.tif', x, photometric='rgb', extrasamples=['unassalpha'])
    tifffile.imwrite(tmp_path/'nir.tif', x, photometric='rgb', extrasamples=['unspecified'])
    tifffile.imwrite(tmp_path/'grey.tif', x[...,0])
    assert [image_bands(tmp_path/f'{n}.tif') for n in ('rgba','nir','grey')]==[None,4,None]
    assert [len(read_image(tmp_path/f'{n}.tif')) for n in ('rgba','nir','grey')]==[3,4,3]

def test_arrays_beside_pictures_are_not_images(tmp_path):
    np.save(tmp_path/'depth.npy', np.ones(SIZE))
    assert list(find_images(tmp_path))==['depth']
    to_pil_image(torch.rand(3,8,8)).save(tmp_path/'a.png')
    assert list(find_images(tmp_path))==['a']

@pytest.mark.parametrize('what,match', [('nan','has no number .* at 7 pixels of band 2'), ('axes',r'has shape \(2, 5, 8, 8\); an image is'),
                                        ('cut','a.tif cannot be decoded'), ('text','a.tif cannot be decoded')])
def test_files_that_are_no_images(tmp_path, what, match):
    x = scene(0)[0].astype(np.float32)
    x[2,0,:7] = np.nan
    path = tmp_path/('a.npy' if what in ('nan','axes') else 'a.tif')
    if what=='nan': np.save(path, x)
    elif what=='axes': np.save(path, np.zeros((2,5,8,8)))
    else:
        write_tif(path, x)
        path.write_bytes(path.read_bytes()[:len(x)] if what=='cut' else b'no image')
    with pytest.raises(ValueError, match=match): read_image(path)

def test_without_tifffile_the_message_says_what_to_install(tmp_path, monkeypatch):
    write_tif(tmp_path/'a.tif', scene(0)[0])
    monkeypatch.setitem(__import__('sys').modules, 'tifffile', None)
    with pytest.raises(ImportError, match=r"a.tif is a TIFF of bands .* pip install 'winwin\[data\]'"): read_image(tmp_path/'a.tif')

# datasets

def test_a_file_with_other_bands_is_named(fields, tmp_path):
    import shutil
    root = shutil.copytree(fields, tmp_path/'copy')
    write_tif(root/'images/7.tif', scene(7, bands=4)[0])
    to_pil_image(torch.rand(3,*SIZE)).save(root/'images/8.png')
    (root/'images/8.tif').unlink()
    data = SegFolder(root, num_classes=2)
    assert data.bands==5 and len(data[0]['image'])==5
    problems = data.check(progress=False)
    assert len(problems)==2 and 'images/7.tif has 4 channels, the first image of the folder 5' in problems[0] and '8.png has 3' in problems[1]

def test_statistics_are_those_of_all_pixels(fields):
    data = SegFolder(fields, num_classes=2)
    every = torch.stack([o['image'] for o in data]).double()
    found = band_statistics(data)
    torch.testing.assert_close(torch.tensor(found['mean']).double(), every.mean((0,2,3)), rtol=1e-4, atol=0)
    torch.testing.assert_close(torch.tensor(found['std']).double(), every.std((0,2,3), correction=0), rtol=1e-3, atol=0)

# training, evaluation, prediction

def test_five_band_files_just_train(run, fields, capsys):
    model = load_model(run/'best')
    args = model.config['arguments']
    assert args['in_chans']==5 and len(args['mean'])==len(args['std'])==5
    data = recipe_data(change(get_preset('folder-seg'), root=str(fields), classes=('a','b')))
    assert args['mean']==band_statistics(data)['mean']
    x = torch.stack([o['image'] for o in data])
    assert model.normalise(x).mean((0,2,3)).abs().max()<1e-3 and (model.normalise(x).std((0,2,3))-1).abs().max()<1e-2
    assert cli('eval', run)==0 and 'all pixels' in capsys.readouterr().out

def test_a_run_on_bands_resumes(run, fields):
    words = ['train','folder-seg-tiny','--root',fields,'--classes','soil','crop','--out',run,'--resume',*TINY]
    assert cli(*words)==0

def test_what_is_said_about_bands(fields, tmp_path, capsys):
    assert cli('train', 'folder-depth-tiny', '--root', fields, '--out', tmp_path/'a', *TINY[2:], '--model', 'winwin_depth_nano')==0
    said = capsys.readouterr().err
    assert '5 bands: mean and std are those of 8 of the 8 training images' in said and 'patch embedding' not in said
    rgb = create_model('winwin_depth_nano', head='upsample')
    save_model(rgb, tmp_path/'rgb')
    words = ['train','folder-depth-tiny','--root',fields,'--out',tmp_path/'b','--weights',tmp_path/'rgb',*TINY[2:],'--model','winwin_depth_nano']
    assert cli(*words)==0
    assert 'weights of 3 channels, repeated band after band and scaled by 3/5' in capsys.readouterr().err

@pytest.mark.parametrize('kind', ['tif','npy'])
def test_predict_folders_of_bands(run, fields, tmp_path, kind):
    src = tmp_path/'src'
    src.mkdir()
    x,_ = scene(3)
    if kind=='tif': write_tif(src/'a.tif', x)
    else: np.save(src/'a.npy', x)
    assert cli('predict', run, src, '-o', tmp_path/'out', '--bands', 4, 3, 0)==0
    assert cli('predict', run, src, '-o', tmp_path/'tiles', '--mode', 'tile', '--size', 32, 32)==0
    overlay = read_image(tmp_path/'out/overlay/a.png')
    assert overlay.shape==(3,*SIZE) and overlay.std()>.05
    p = Predictor(run/'best', bands=(4,3,0))
    assert torch.equal(p(str(next(src.iterdir()))).classes, p(x.transpose(1,2,0)).classes) # 16 bits either way

def test_images_that_do_not_fit_the_model(run, tmp_path, capsys):
    to_pil_image(torch.rand(3,*SIZE)).save(tmp_path/'photo.png')
    p = Predictor(run/'best')
    with pytest.raises(ValueError, match='photo.png has 3 channels, the model takes 5; give images with the bands'): p(tmp_path/'photo.png')
    with pytest.raises(ValueError, match=r'give \(5,height,width\)'): p(torch.rand(3,*SIZE))
    with pytest.raises(ValueError, match='in the training set it was'): p(scene(0)[0].astype(np.float32).transpose(1,2,0)) # not divided
    with pytest.raises(ValueError, match='3 channels, the model takes 5'): predict(p.model, torch.rand(1,3,*SIZE))
    with pytest.raises(ValueError, match='three of 0..4'): Predictor(p.model, bands=(0,1,5))
    np.save(tmp_path/'five.npy', scene(0)[0])
    with pytest.raises(ValueError, match='five.npy has 5 channels, the model takes 3'): Predictor(create_model('winwin_seg_nano'))(tmp_path/'five.npy')

def test_floats_on_any_scale_train(tmp_path):
    "Kelvin, one band: no one asks for [0,1]"
    for part in ('images','depth'): (tmp_path/part).mkdir()
    for i in range(5):
        np.save(tmp_path/f'images/{i}.npy', 290+5*rng.normal(size=SIZE).astype(np.float32))
        np.save(tmp_path/f'depth/{i}.npy', np.ones(SIZE))
    words = ['train','folder-depth-tiny','--root',tmp_path,'--out',tmp_path/'run',*TINY[2:],'--model','winwin_depth_nano','--jitter',1,'--scale',.7,1]
    assert cli(*words)==0
    model = load_model(tmp_path/'run/best')
    assert model.mean.shape==(1,1,1) and abs(model.mean.item()-290)<1
    assert Predictor(model)(tmp_path/'images/0.npy').depth.shape==SIZE

def test_pairs_of_bands(tmp_path):
    "Flow from two five-band frames, with either kind of head; completion predicts all bands"
    (tmp_path/'images').mkdir()
    (tmp_path/'flow').mkdir()
    for i in range(3): np.save(tmp_path/f'images/{i}.npy', scene(i)[0])
    for i in range(2): np.save(tmp_path/f'flow/{i}.npy', np.zeros((*SIZE,2), np.float32))
    data = FlowFolder(tmp_path)
    item = data[0]
    assert data.bands==5 and item['image2'].shape==(5,*SIZE)
    frames = item['image'][None],item['image2'][None]
    for name,more in (('winwin_flow_micro',{}), ('winwin_flow_micro',dict(head='matching'))):
        recipe = change(get_preset('folder-flow'), model=name, **more, **({} if not more else dict(flow_loss='epe')))
        model = recipe_model(recipe, recipe_task(recipe), data)
        assert predict(model, *frames).shape[-2:]==SIZE
    model = create_model('winwin_pretrain_nano', in_chans=5)
    from winwin.windows import sample_tokens
    assert model(*frames, sample_tokens((6,8), 5))[0].shape==(1,5,*SIZE)

# weights

def test_pretrained_patch_embeddings_are_adapted(tmp_path):
    import timm
    from safetensors.torch import save_file
    vit = timm.create_model('vit_tiny_patch16_224', depth=1)
    save_file(vit.state_dict(), tmp_path/'vit.safetensors')
    old = vit.patch_embed.proj.weight
    for name,key in (('winwin_seg_tiny','encoder.patch_embed.proj.weight'), ('vit_tiny_patch16_224:linear','encoder.model.patch_embed.proj.weight')):
        model = create_model(name, tmp_path/'vit.safetensors', depth=1, in_chans=5, num_classes=2)
        new = model.state_dict()[key]
        torch.testing.assert_close(new, old[:,[0,1,2,0,1]]*3/5)
        assert any(getattr(m, 'adapted', None)==(3,5) for m in model.modules()) and model.mean.shape==(5,1,1)

def test_statistics_of_another_number_of_bands_are_refused():
    with pytest.raises(ValueError, match='mean has 3 values for images of 5 channels'): create_model('winwin_seg_nano', in_chans=5, mean=[.5]*3, std=[.2]*3)
    with pytest.raises(ValueError, match='mean and std belong together'): create_model('winwin_seg_nano', in_chans=5, mean=[.5]*5)

def test_large_statistics_survive_a_checkpoint(tmp_path):
    model = create_model('winwin_seg_nano', num_classes=2, in_chans=2, mean=[27315.,-5e4], std=[3e5,2.])
    save_model(model, tmp_path/'m')
    torch.testing.assert_close(load_model(tmp_path/'m').mean, model.mean)

# export, augmentation, pictures, explorers

@pytest.mark.parametrize('kind', ['onnx','pt2'])
def test_exported_five_bands_agree_with_torch(run, tmp_path, kind):
    if kind=='onnx': pytest.importorskip('onnxruntime')
    model = load_model(run/'best')
    file = export_model(model, tmp_path/f'm.{kind}', size=SIZE)
    assert file.info['bands']==5 and file.difference<1e-4
    x = torch.from_numpy(scene(5)[0].astype(np.float32))[None]/65535
    torch.testing.assert_close(file(x), predict(model, x), atol=1e-3, rtol=1e-3)

def test_augmentation_keeps_the_scale_of_bands():
    x = torch.from_numpy(scene(0)[0].astype(np.float32))
    augment = Augment(scale=(.6,.6), jitter_p=1., flip=0.)
    out = augment(dict(image=x, depth=torch.ones(SIZE)), torch.Generator().manual_seed(0))['image']
    assert out.shape==x.shape and out.isfinite().all()
    assert ((out.mean((1,2))-x.mean((1,2))).abs()<x.std((1,2))).all()

def test_pictures_of_bands():
    x = torch.from_numpy(scene(0)[0].astype(np.float32))
    picture = rgb_picture(x, (3,2,1))
    assert picture.shape==(*SIZE,3) and picture.std()>30
    assert np.array_equal(rgb_picture(x*7-100, (3,2,1)), picture) # any scale

def test_explorers_show_three_bands(run, fields):
    from winwin.workbench import AttentionExplorer, TemperatureExplorer, WindowExplorer
    path = fields/'images/0.tif'
    model = load_model(run/'best')
    for explorer,canvas in ((AttentionExplorer(model, path), 'full'), (TemperatureExplorer(model, path), 'image'), (WindowExplorer(path, '2x3', patch=8), None)):
        assert explorer.error is None and explorer.bands==(0,1,2)
        shown = explorer.canvas if canvas is None else explorer.canvas[canvas]
        before = shown.image
        explorer.set_state(dict(red=3))
        assert explorer.bands==(3,1,2) and shown.image!=before
    data = SegFolder(fields, num_classes=2)
    assert TemperatureExplorer(model, data).error is None
    with pytest.raises(ValueError, match='no example with 5 bands'): AttentionExplorer(model)
