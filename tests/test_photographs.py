"""From a plain pretrained ViT and photographs to a model: weights, CamVid, NYUv2, rare classes, and what goes wrong"""
import numpy as np, pytest, timm, torch
from PIL import Image
from safetensors.torch import save_file
from winwin.cli import main
from winwin.data.benchmarks import CAMVID, CamVid, NYUv2Folder
from winwin.models.dense import create_model
from winwin.models.hub import load_model
from winwin.training.recipes import change, get_preset, recipe_data, recipe_task, train_recipe
from winwin.tasks.segmentation import class_weights
from winwin.models.loading import fill_vit, load_vit, resample_patch_embed

def write(path, x):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(x.astype(np.uint8)).save(path)

def winwin(*args):
    "Exit code of a command"
    with pytest.raises(SystemExit) as e: main([*args])
    return e.value.code

@pytest.fixture(scope='module')
def camvid(tmp_path_factory):
    "As many files as CamVid has, of 32x48 pixels"
    root,rng = tmp_path_factory.mktemp('camvid'),np.random.default_rng(0)
    for split,n in (('train',367),('val',101)):
        for i in range(n):
            labels = rng.choice(12, (32,48), p=[.2,.2,.01,.3,.1,.1,.02,.01,.02,.01,.01,.02])
            write(root/f'images/{split}/{i:04d}.png', np.repeat(labels[...,None]*20, 3, -1))
            write(root/f'labels/{split}/{i:04d}.png', np.where(labels==11, 255, labels))
    return root

@pytest.fixture(scope='module')
def vit(tmp_path_factory):
    "File of a plain ViT, with random weights"
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp('vit')/'vit_tiny.safetensors'
    save_file(timm.create_model('vit_tiny_patch16_224').state_dict(), path)
    return path

def test_camvid_from_the_shell(camvid, vit, tmp_path, capsys):
    "train, eval and predict as the tutorial has them; what was left out of the weights is said"
    small = ['--size', '64', '96', '--windows', '2x2', '--steps', '2', '--batch-size', '2', '--workers', '0', '--valid-images', '3']
    run = tmp_path/'run'
    assert winwin(*['train', 'camvid-seg', '--root', str(camvid), '--weights', str(vit), '--out', str(run), *small])==0
    text = capsys.readouterr().out
    assert 'left out: cls_token, head, pos_embed' in text and 'bicyclist' in text
    model = load_model(run/'last')
    assert model.encoder.pos=='rope' and model.saved['extra']['classes']==list(CAMVID)
    photo = tmp_path/'photo.png'
    write(photo, np.full((50,70,3), 90))
    assert winwin(*['predict', str(run), str(photo), '-o', str(tmp_path/'out')])==0
    assert winwin(*['eval', str(run)])==0

def test_what_is_scored_has_the_size_of_training(camvid):
    r = change(get_preset('camvid-seg'), root=str(camvid), size=(64,96), valid_images=5)
    item = recipe_data(r, 'valid')[0]
    assert item['image'].shape==(3,64,96) and item['labels'].shape==(64,96)
    assert recipe_data(r, 'valid').classes==tuple(CAMVID) and len(recipe_data(r, 'valid'))==5

def test_class_weights_follow_the_counts(camvid):
    r = change(get_preset('camvid-seg'), root=str(camvid))
    weight = dict(zip(CAMVID, recipe_task(r, recipe_data(r), weigh=True).weight))
    assert weight['road']<weight['sign']<weight['pole']<=8 and .2<=weight['road']
    named = recipe_task(change(r, class_weights='pole=3,sign=2'), recipe_data(r), weigh=True)
    assert dict(zip(CAMVID, named.weight))['pole']==3 and named.weight[0]==1
    for bad in ('pole', 'pool=3', 'pole=much'):
        with pytest.raises(ValueError, match='class_weights|did you mean pole'): recipe_task(change(r, class_weights=bad), recipe_data(r), weigh=True)
    every = class_weights(recipe_data(r), 11, limit=50, power=0.)
    assert every==[1.]*11

def test_missing_and_wrong_files_are_named(camvid, tmp_path):
    with pytest.raises(FileNotFoundError, match='University of Cambridge'): CamVid(tmp_path)
    with pytest.raises(ValueError, match='needs root'): recipe_data(get_preset('camvid-seg'))
    for what,x,match in (('labels/train/0000.png', np.full((32,48), 40), '0000.png has label 40'),
                         ('labels/train/0000.png', np.zeros((16,48)), '0000.png is 16x48 pixels'),
                         ('labels/train/0000.png', np.zeros((32,48,3)), '0000.png has channels RGB')):
        keep = (camvid/what).read_bytes()
        try:
            write(camvid/what, x)
            with pytest.raises(ValueError, match=match): CamVid(camvid)[0]
        finally: (camvid/what).write_bytes(keep)
    keep = (camvid/'labels/val/0007.png').read_bytes()
    (camvid/'labels/val/0007.png').unlink()
    try:
        with pytest.raises(FileNotFoundError, match='0007.png has no partner'): CamVid(camvid, 'val')
    finally: (camvid/'labels/val/0007.png').write_bytes(keep)

def test_colours_that_no_class_has_are_named(tmp_path):
    write(tmp_path/'701_StillsRaw_full/0006R0_f00930.png', np.zeros((8,8,3)))
    write(tmp_path/'LabeledApproved_full/0006R0_f00930_L.png', np.full((8,8,3), 7))
    with pytest.warns(UserWarning, match='1 of the 367'): data = CamVid(tmp_path, strict=False)
    with pytest.raises(ValueError, match='_L.png has the colour #070707'): data[0]

def test_nyuv2_from_a_folder(vit, tmp_path):
    for i in range(6):
        write(tmp_path/f'images/{i:04d}.jpg', np.full((480,640,3), 40*i))
        write(tmp_path/f'depth/{i:04d}.png', np.full((480,640), 25+i))
    data = NYUv2Folder(tmp_path, 'val', held_out=2, eigen=True)
    assert data.names==['0004','0005'] and data[0]['depth'].isfinite().sum()==426*560
    assert abs(data[0]['depth'][100,100].item()-29/25.5)<1e-6
    r = change(get_preset('nyuv2-depth'), root=str(tmp_path))
    with pytest.raises(ValueError, match='leave some on both sides'): recipe_data(r)

@pytest.mark.parametrize('patch', [8,14,32])
def test_patches_of_another_size(vit, patch):
    "An image whose brightness rises evenly embeds the same, whatever the size of the patches"
    a,b = load_vit(vit),load_vit(vit, patch_size=patch)
    def ramp(P): # 3x4 tokens
        y,x = (torch.arange(n*P, dtype=torch.float32).add(.5)/P for n in (3,4))
        return (.1*y[:,None] + .2*x).expand(1,3,-1,-1)
    with torch.no_grad(): torch.testing.assert_close(b.patch_embed(ramp(patch)), a.patch_embed(ramp(16)), atol=2e-4, rtol=1e-3)
    with pytest.raises(ValueError, match='cannot become 1'): resample_patch_embed(a.patch_embed.proj.weight, 1)

def test_weights_that_do_not_fit_say_what_differs(vit, tmp_path):
    save_file({'layer1.0.conv1.weight': torch.ones(2)}, tmp_path/'resnet.safetensors')
    with pytest.raises(ValueError, match='resnet.safetensors is no plain vision transformer.*it has layer1'): load_vit(tmp_path/'resnet.safetensors')
    with pytest.raises(ValueError, match='dim 192 in the file, 384 in the model'): create_model('winwin_seg_small', weights=vit)
    with pytest.raises(ValueError, match='depth 12 in the file, 6 in the model'):
        fill_vit(create_model('winwin_seg_tiny', depth=6).encoder, vit)
    sd = timm.create_model('vit_tiny_patch16_224', depth=3).state_dict()
    save_file({k: v for k,v in sd.items() if not k.startswith('blocks.1.')}, tmp_path/'holes.safetensors')
    with pytest.raises(ValueError, match='missing: blocks.1.norm1.weight'): load_vit(tmp_path/'holes.safetensors')
    with pytest.raises(FileNotFoundError, match='is no file'): load_vit(tmp_path/'nothing.pth')

def test_the_file_serves_as_the_papers_baseline_too(vit):
    "Its own absolute positions, interpolated, through timm"
    model = create_model('vit-tiny:linear', weights=vit, num_classes=3).eval()
    with torch.no_grad(): assert model(torch.rand(1,3,64,96))[0].shape==(1,3,64,96)

def test_transformers_names(tmp_path):
    "A ViT as transformers saves it is the same encoder"
    sd = timm.create_model('vit_tiny_patch16_224', depth=2).state_dict()
    out = {'vit.embeddings.cls_token': sd['cls_token'], 'vit.embeddings.position_embeddings': sd['pos_embed']}
    for a,b in (('patch_embed.proj','embeddings.patch_embeddings.projection'), ('norm','layernorm')):
        for k in ('weight','bias'): out[f'vit.{b}.{k}'] = sd[f'{a}.{k}']
    names = {'norm1': 'layernorm_before', 'norm2': 'layernorm_after', 'attn.proj': 'attention.output.dense',
             'mlp.fc1': 'intermediate.dense', 'mlp.fc2': 'output.dense'}
    for i in range(2):
        for k in ('weight','bias'):
            for a,b in names.items(): out[f'vit.encoder.layer.{i}.{b}.{k}'] = sd[f'blocks.{i}.{a}.{k}']
            for n,x in zip(('query','key','value'), sd[f'blocks.{i}.attn.qkv.{k}'].chunk(3)):
                out[f'vit.encoder.layer.{i}.attention.attention.{n}.{k}'] = x.clone()
    out |= {'classifier.weight': torch.ones(10,192)}
    save_file(out, tmp_path/'hf.safetensors')
    save_file(sd, tmp_path/'timm.safetensors')
    a,b = load_vit(tmp_path/'hf.safetensors'),load_vit(tmp_path/'timm.safetensors')
    assert all(torch.equal(x, y) for x,y in zip(a.state_dict().values(), b.state_dict().values()))
    assert a.loaded['left']==['cls_token','head','pos_embed']

def test_windows_that_show_rare_classes_stay_reproducible(camvid):
    r = change(get_preset('camvid-seg'), root=str(camvid), size=(64,96), windows='2x2', layouts=4, steps=1, batch_size=2, workers=0, model='winwin_seg_micro', head='linear')
    a,b = (train_recipe(r, progress=False, score=False) for _ in range(2))
    assert a.log[-1]['loss']==b.log[-1]['loss']
