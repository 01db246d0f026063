"Files, folders, arrays and tensors to predictions and back"
import numpy as np, pytest, torch, torch.nn as nn
from PIL import Image
from winwin import DepthFolder, DrivingWorld, Predictor, SegFolder, create_model, predict, save_model
from winwin.inference import Prediction
from winwin.tasks import DepthTask, SegTask

CLASSES = ['sky','road','car','tree']
COLOURS = [[70,130,180],[128,64,128],[0,0,142],[107,142,35]]

class ByColour(nn.Module):
    "Class by the brightest channel, class 3 where all are dark: an answer that can be told from the image"
    patch_size = 8
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(10.))
    def forward(self, img, windows=None): return [torch.cat([img, torch.full_like(img[:,:1], .2)], 1)*self.gain]

class ByRed(nn.Module):
    "Depth from 1 to e^5 m by the red channel"
    patch_size = 8
    def forward(self, img, windows=None): return [img[:,:1]*5]

@pytest.fixture(scope='module')
def model():
    torch.manual_seed(0)
    return create_model('winwin_seg_micro', num_classes=4, dim=48, depth=1, num_heads=2)

def photo(h=20, w=28, seed=0): # no two channels of a pixel are equal, and none is 51, a fifth of 255
    return (np.random.default_rng(seed).integers(0, 64, (h,w,3))*4 + (0,1,2)).astype(np.uint8)
def seg(**kw): return Predictor(ByColour(), task='seg', classes=CLASSES, palette=COLOURS, **kw)

def street(root, names=('a','b/c','b/d'), suffix='.png'):
    for i,n in enumerate(names):
        (p := root/'images'/f'{n}{suffix}').parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo(seed=i)).save(p)
    return root/'images'

# --- What goes in

def test_all_kinds_of_input_agree(tmp_path):
    x,p = photo(),seg()
    Image.fromarray(x).save(tmp_path/'some image.png')
    t = torch.from_numpy(x).permute(2,0,1)
    want = torch.where(t.max(0).values>51, t.max(0).indices, 3).byte()
    alpha = np.concatenate([x, x[...,:1]], -1)
    ways = [tmp_path/'some image.png', str(tmp_path/'some image.png'), Image.fromarray(x), x, x/255, x[::-1][::-1], alpha, t, t.float()/255, t.double()/255]
    for o in ways: assert torch.equal(p(o).classes, want)
    assert p(ways[0]).name=='some image' and p(x).name==''
    batch = p(torch.stack([t, t.flip(-1)])/255)
    assert torch.equal(batch[0].classes, want) and torch.equal(batch[1].classes, want.flip(-1))
    assert isinstance(p(t[None]), list) and isinstance(p(t), Prediction)

def test_grey_and_palettes(tmp_path):
    grey,p = photo()[...,0],seg()
    same = p(np.stack([grey]*3, -1)).classes
    assert torch.equal(p(grey).classes, same) and torch.equal(p(Image.fromarray(grey)).classes, same)
    Image.fromarray(photo()).convert('P').save(tmp_path/'p.png')
    assert torch.equal(p(tmp_path/'p.png').classes, p(Image.open(tmp_path/'p.png')).classes)

@pytest.mark.parametrize('bad,text', [
    (np.zeros((8,8,2), np.uint8), r'\(8, 8, 2\) is no image; arrays are'), (np.zeros((3,8,9), np.uint8), 'arrays are'), (np.zeros(8), 'arrays are'),
    (torch.zeros(8,8,3), r'\(8, 8, 3\) is no image; give \(3,height,width\)'), (torch.zeros(1,4,8,8), 'give'), (torch.zeros(3,0,8), 'give'),
    (np.full((8,8,3), 200.), 'from 200 to 200; floats are in'), (torch.full((3,8,8), -1.), 'divide by 255'), (torch.full((3,8,8), torch.nan), 'from nan'),
    (torch.zeros(3,8,8, dtype=torch.long), 'give 8-bit integers'), (np.zeros((8,8,3), np.int32), 'give 8-bit'), (None, 'NoneType is no image'), ([1,2], 'list is no image'),
    (Image.new('I', (8,8)), 'mode I has more than 8 bits')])
def test_bad_input(bad, text):
    with pytest.raises(ValueError, match=text): seg()(bad)

def test_bad_paths(tmp_path):
    p = seg()
    (tmp_path/'notes.txt').write_text('no image')
    (tmp_path/'empty').mkdir()
    (tmp_path/'cut.jpg').write_bytes(b'\xff\xd8\xff')
    with pytest.raises(FileNotFoundError, match='there is no file .*none.png'): p(tmp_path/'none.png')
    for bad in ('notes.txt','cut.jpg'):
        with pytest.raises(ValueError, match=f'{bad} cannot be decoded'): p(tmp_path/bad)
    with pytest.raises(ValueError, match='is a folder; use Predictor.folder'): p(tmp_path)
    with pytest.raises(FileNotFoundError, match='nothing in it'): p.folder(tmp_path/'empty', tmp_path/'out')
    with pytest.raises(FileNotFoundError, match='there is no folder'): p.folder(tmp_path/'nowhere', tmp_path/'out')
    assert not (tmp_path/'out').exists()

# --- Models

def test_a_saved_model_says_what_it_is(model, tmp_path):
    save_model(model, tmp_path/'m', extra=dict(task='seg', classes=CLASSES, palette=COLOURS, ignore=255))
    p = Predictor(tmp_path/'m', device='cpu')
    assert (p.task.name, p.task.classes, p.task.palette)==('seg', tuple(CLASSES), COLOURS)
    x = torch.rand(3,37,50) # no multiple of the patch
    got = p(x)
    assert torch.equal(got.scores, predict(model, x[None])[0]) and torch.equal(got.classes.long(), got.scores.argmax(0))
    assert set(got.shares())<=set(CLASSES) and sum(got.shares().values())==pytest.approx(1)
    assert '50x37' in repr(got) and 'classes 4' in repr(p)

def test_without_extras_the_name_tells(model, tmp_path):
    p = Predictor(save_model(model, tmp_path/'m'))
    assert p.task.name=='seg' and p.task.classes==('0','1','2','3') and p.task.colours.shape==(4,3) and len(np.unique(p.task.colours, axis=0))==4
    d = Predictor(create_model('winwin_depth_micro', dim=48, depth=4, num_heads=2))
    assert d.task.name=='depth' and d.task.max_depth is None and d(photo()).depth.shape==(20,28)
    assert Predictor(model, classes=CLASSES).task.classes==CLASSES

def test_extras_of_depth(tmp_path):
    small = create_model('winwin_depth_micro', dim=48, depth=4, num_heads=2)
    save_model(small, tmp_path/'d', extra=dict(task='depth', max_depth=10.))
    x = torch.rand(3,24,32)
    want = predict(small, x[None])[0,0].exp()
    assert Predictor(tmp_path/'d').task.max_depth==10 and Predictor(tmp_path/'d', max_depth=.9).task.max_depth==.9
    for limit in (None, float(want.median())):
        assert torch.allclose(Predictor(small, max_depth=limit)(x).depth, want.clamp(max=limit or 1e9), atol=1e-6)

def test_colours_of_known_classes(): # 14 outputs with the names of the world
    torch.manual_seed(0)
    m = create_model('winwin_seg_micro', num_classes=14, dim=48, depth=1, num_heads=2)
    assert (Predictor(m, classes=DrivingWorld.classes).task.colours==DrivingWorld.palette).all()

@pytest.mark.parametrize('kw,text', [
    (dict(mode='tile'), 'needs size'), (dict(mode='tile', size=(30,30)), 'multiple of the patch'), (dict(mode='whole'), 'use full, tile, resize'),
    (dict(mode='tile', size=(16,16), overlap=1.), 'below 1'), (dict(mode='tile', size=(16,16), weights='best'), 'use uniform, confidence, taper'),
    (dict(rows='many'), "'auto'"), (dict(task='flow'), 'takes one image'), (dict(classes=['a']), 'has 1 outputs, the head of the model 4'),
    (dict(palette=[[0,0,0]]), '1 colours for 4 classes'), (dict(task='depth'), 'has 1 outputs, the head of the model 4'), (dict(max_depth=3.), 'max_depth does not apply to seg')])
def test_settings_fail_at_once(model, kw, text):
    with pytest.raises(ValueError, match=text): Predictor(model, **kw)

def test_models_that_are_none(tmp_path):
    with pytest.raises(ValueError, match='Linear is not a dense model'): Predictor(nn.Linear(2, 2))
    with pytest.raises(ValueError, match='nothing says what ByColour predicts; give task='): Predictor(ByColour())
    with pytest.raises(ValueError, match='a class map of 1 outputs'): Predictor(ByRed(), task='seg')
    with pytest.raises(ValueError, match="'taper' or 'uniform'"): Predictor(ByRed(), 'tile', (8,8), weights='confidence', task='depth')
    with pytest.raises(FileNotFoundError, match='no config.json'): Predictor(tmp_path)

def test_ways_of_reading_are_those_of_predict(model):
    x = torch.rand(3,40,64)
    for kw in (dict(mode='tile', size=(24,32), weights='confidence'), dict(mode='resize', size=(24,32)), dict(rows=2), dict(rows='auto')):
        assert torch.equal(Predictor(model, **kw)(x).scores, predict(model, x[None], **kw)[0])

def test_a_depth_model_reads_in_bands():
    small,x = create_model('winwin_depth_micro', dim=48, depth=4, num_heads=2),torch.rand(3,40,64)
    assert torch.allclose(Predictor(small, rows=2)(x).depth, Predictor(small)(x).depth, atol=1e-5)

def test_dtype_and_mode_of_the_model(model):
    "A model in double reads float images; its training flag and its weights stay"
    double = create_model(model.config['name'], **model.config['arguments']).double()
    x = torch.rand(3,24,32)
    assert Predictor(double)(x).scores.dtype==torch.float32 and double.training

# --- Pictures

def test_overlay_by_hand():
    x,p = photo(),seg()
    got = p(x)
    colour = np.array(COLOURS)[got.classes.long()]
    for a in (0., .3, .5, 1.): assert np.abs(got.overlay(a) - (a*colour + (1-a)*x)).max()<=.5 + 1e-3
    assert got.overlay().dtype==np.uint8

def test_depth_is_brighter_when_near_and_comparable_over_images():
    p = Predictor(ByRed(), task='depth', max_depth=50.)
    ramp = torch.zeros(3,8,64); ramp[0] = torch.linspace(0, 1, 64)
    grey = p(ramp).overlay(1).astype(int).sum(-1)[0]
    assert (np.diff(grey)<=0).all() and grey[0]-grey[-1]>400
    assert (p(ramp[...,:8]).overlay(1)==p(ramp).overlay(1)[:,:8]).all() # colours do not depend on the rest of the image
    assert p(ramp).depth.max()==50
    with pytest.raises(ValueError, match='no classes'): p(ramp).shares()

def test_notebooks_show_a_picture():
    import io
    got = seg()(photo(30, 3000))
    img = Image.open(io.BytesIO(got._repr_png_()))
    assert img.size==(1280,13) and img.mode=='RGB'

@pytest.mark.parametrize('p', [seg(), Predictor(ByRed(), task='depth')], ids=['seg', 'depth'])
def test_show(p):
    import matplotlib
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    axs = p(photo()).show()
    assert len(axs)==2 and all(ax.images for ax in axs)
    plt.close('all')

# --- Files

@pytest.mark.parametrize('n', [2, 4, 19, 255])
def test_class_maps_survive_a_file(n, tmp_path):
    "Any number of classes: 8 bits, ids as they are, the palette in the file"
    ids = torch.randint(0, n, (20,28), dtype=torch.uint8)
    colours = np.random.default_rng(0).integers(0, 256, (n,3), dtype=np.uint8)
    p = Prediction(SegTask([str(i) for i in range(n)], colours), (torch.rand(3,20,28),), dict(classes=ids), 'a')
    (tmp_path/'images').mkdir()
    Image.fromarray(photo()).save(tmp_path/'images/a.jpg')
    assert p.save(tmp_path)==[tmp_path/'labels/a.png', tmp_path/'overlay/a.png']
    assert torch.equal(SegFolder(tmp_path, num_classes=n)[0]['labels'], ids)
    img = Image.open(tmp_path/'labels/a.png')
    assert img.mode=='P' and (tmp_path/'labels/a.png').read_bytes()[24]==8 # bits
    assert (np.array(img.convert('RGB'))==colours[ids.long()]).all()

def test_depth_survives_a_file(tmp_path):
    "Millimetres, rounded; nothing is 0 but what is too far"
    z = torch.cat([torch.tensor([1e-5, 4e-4, 1e-3, 65.5349, 65.5351, 65.5356, 1e4, torch.inf]), torch.rand(20*28-8)*80]).view(20,28)
    p = Prediction(DepthTask(), (torch.rand(3,20,28),), dict(depth=z), 'deep/a')
    (tmp_path/'images/deep').mkdir(parents=True)
    Image.fromarray(photo()).save(tmp_path/'images/deep/a.png')
    p.save(tmp_path, kinds='map')
    units = (z.double()*1000).round().clamp(min=1)
    want = torch.where(units<=65535, units*(1/1000), torch.inf).float()
    back = DepthFolder(tmp_path, scale=1/1000)[0]['depth']
    assert torch.equal(back, want) and back.view(-1)[:3].tolist()==pytest.approx([.001]*3)
    assert np.array(Image.open(tmp_path/'depth/deep/a.png')).dtype==np.uint16

def test_depth_of_8_bits(tmp_path):
    p = Predictor(ByRed(), task='depth', max_depth=20.)
    src = street(tmp_path, ['a'])
    p.folder(src, tmp_path, bits=8, kinds=('map','color'), progress=False)
    data = DepthFolder(tmp_path, scale=20/255)
    assert (data[0]['depth']-p(src/'a.png').depth).abs().max()<=10/255 + 1e-6
    assert Image.open(tmp_path/'depth/a.png').mode=='L' and Image.open(tmp_path/'color/a.png').mode=='RGB'
    with pytest.raises(ValueError, match='use 16 or 8'): p.folder(src, tmp_path/'x', bits=12, progress=False)
    with pytest.raises(ValueError, match='8 bits need max_depth'): Predictor(ByRed(), task='depth').folder(src, tmp_path/'x', bits=8, progress=False)
    assert not (tmp_path/'x').exists()

def test_nothing_is_replaced_by_accident(tmp_path):
    got = seg()(photo())
    got.save(tmp_path, name='a', kinds='overlay')
    before = (tmp_path/'overlay/a.png').read_bytes()
    with pytest.raises(FileExistsError, match='overwrite=True'): seg()(photo(seed=1)).save(tmp_path, name='a')
    assert (tmp_path/'overlay/a.png').read_bytes()==before and not (tmp_path/'labels').exists()
    seg()(photo(seed=1)).save(tmp_path, name='a', overwrite=True)
    assert (tmp_path/'overlay/a.png').read_bytes()!=before
    with pytest.raises(ValueError, match='has no name'): got.save(tmp_path)
    with pytest.raises(ValueError, match='choose from map, overlay, color'): got.save(tmp_path, name='b', kinds=())

def test_a_file_is_complete_or_not_there(tmp_path, monkeypatch):
    "A disk that fills up leaves no half file, stops the run, and the next run goes on"
    src,save,count = street(tmp_path),Image.Image.save,[]
    def fail(self, fp, *a, **kw):
        count.append(1)
        if len(count)==4: raise OSError(28, 'No space left on device')
        save(self, fp, *a, **kw)
    monkeypatch.setattr(Image.Image, 'save', fail)
    with pytest.raises(OSError, match='No space'): seg().folder(src, tmp_path, progress=False)
    monkeypatch.undo()
    files = [p for p in tmp_path.rglob('*') if p.is_file() and 'images' not in p.parts]
    assert len(files)==3 and all(p.suffix=='.png' for p in files)
    r = seg().folder(src, tmp_path, progress=False)
    assert len(r.written)==3 and r.skipped==['a']

# --- Folders

def test_a_folder_becomes_a_dataset(tmp_path):
    src,p = street(tmp_path, ['a','b/c','b/d e/ü'], '.PNG'),seg()
    r = p.folder(src, tmp_path, ('map','overlay','color'), progress=False)
    assert len(r.written)==9 and all(o.is_file() for o in r.written) and not r.failed and not r.skipped
    data = SegFolder(tmp_path, names=CLASSES)
    assert data.names==['a','b/c','b/d e/ü']
    for o in data:
        assert torch.equal(o['labels'], p(o['image']).classes)
        assert (np.array(Image.open(tmp_path/'overlay'/f'{o["name"]}.png'))==p(o['image']).overlay()).all()
        assert (np.array(Image.open(tmp_path/'color'/f'{o["name"]}.png'))==p(o['image']).overlay(1)).all()

def test_a_run_can_be_repeated_and_resumed(tmp_path):
    src = street(tmp_path)
    first = seg().folder(src, tmp_path/'out', progress=False)
    (tmp_path/'out/labels/b/c.png').unlink()
    other = Predictor(ByColour(), task='seg', classes=CLASSES[::-1], palette=COLOURS[::-1])
    r = other.folder(src, tmp_path/'out', progress=False)
    assert r.written==[tmp_path/'out/labels/b/c.png'] and r.skipped==['a','b/d']
    kept = (tmp_path/'out/overlay/a.png').read_bytes()
    r = other.folder(src, tmp_path/'out', overwrite=True, progress=False)
    assert set(r.written)==set(first.written) and (tmp_path/'out/overlay/a.png').read_bytes()!=kept

def test_what_cannot_be_read_is_listed(tmp_path):
    "Damaged files, images smaller than a tile, and an image that is too much for the device"
    class Narrow(ByColour):
        def forward(self, img, windows=None):
            if img.shape[-1]>100: raise torch.OutOfMemoryError('out of memory')
            return super().forward(img)
    src = street(tmp_path)
    (src/'b/x.jpg').write_bytes((src/'a.png').read_bytes()[:50])
    (src/'notes.txt').write_text('not an image, not read')
    Image.fromarray(photo(20, 120)).save(src/'wide.png')
    p = Predictor(Narrow(), task='seg', classes=CLASSES)
    with pytest.warns(UserWarning, match='2 of 5 images could not be read'): r = p.folder(src, tmp_path, 'map', progress=False)
    assert list(r.failed)==['b/x.jpg','wide.png'] and len(r.written)==3
    assert 'cannot be decoded' in r.failed['b/x.jpg'] and str(tmp_path) not in r.failed['b/x.jpg']
    assert repr(r).splitlines()[0]=='FolderReport(3 written, 0 skipped, 2 failed)' and 'wide.png: out of memory' in repr(r)
    (src/'b/x.jpg').unlink(); (src/'wide.png').unlink()
    Image.fromarray(photo(8, 8)).save(src/'tiny.png')
    with pytest.warns(UserWarning, match='1 of 4'): r = seg(mode='tile', size=(16,24)).folder(src, tmp_path/'tiles', progress=False)
    assert 'choose a smaller tile' in r.failed['tiny.png']

def test_results_are_never_read_as_images(tmp_path):
    src = street(tmp_path)
    for bad in (src, src/'out'):
        with pytest.raises(ValueError, match='would be read as images'): seg().folder(src, bad, progress=False)
    (tmp_path/'overlay').symlink_to(src, target_is_directory=True)
    with pytest.raises(ValueError, match='would be read as images'): seg().folder(src, tmp_path, progress=False)
    assert seg().folder(src, tmp_path, 'map', progress=False).written

def test_two_images_of_one_name(tmp_path):
    src = street(tmp_path)
    Image.fromarray(photo()).save(src/'a.jpg')
    with pytest.raises(ValueError, match='have the same name'): seg().folder(src, tmp_path/'out', progress=False)

def test_the_bar_can_be_silenced(tmp_path, capsys):
    src = street(tmp_path)
    seg().folder(src, tmp_path/'a', progress=False)
    assert capsys.readouterr().err==''
    seg().folder(src, tmp_path/'b')
    assert '3/3' in capsys.readouterr().err

def test_task_of_a_timm_encoder():
    "The name of such a model holds no task; task_of knows it"
    model = create_model('dinov3-small:convnext', num_classes=3, depth=1)
    assert Predictor(model).task.name=='seg'
    p = Predictor(model, classes=['a','b','c'])(torch.rand(3,32,48))
    assert p.classes.shape==(32,48) and set(p.shares())<={'a','b','c'}
