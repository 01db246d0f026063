"Saved models: folders that any tool reads, old ones too, what differs is explained, nothing goes over the network unasked."
import json, os, shutil, socket, subprocess, sys
from pathlib import Path
import pytest, torch
from safetensors import safe_open
from winwin import load_croco as from_package, timm_encoder as timm_from_package
from winwin.models.released import load_croco
from winwin.models.backbones import timm_encoder
from winwin.models.controls import capture, set_layer_tau
from winwin.models.dense import create_model
from winwin.models.hub import HubModel, load_model, push_model, restore_temperatures, save_model, temperature_dict
import winwin.models.hub as pretrained

DATA = Path(__file__).parent/'data'

@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*a, **k): raise AssertionError('network')
    monkeypatch.setattr(socket.socket, 'connect', refuse)

def tiny(**over): return create_model('winwin_seg_micro', **dict(dim=16, depth=2, num_heads=2, head='linear', num_classes=3) | over).eval().requires_grad_(False)
image = torch.linspace(0, 1, 3*24*32).view(1,3,24,32)

def test_names_of_the_contract(): assert load_croco is from_package and timm_encoder is timm_from_package

def test_an_old_folder_still_loads():
    "Written when format 1 was new: weights, temperatures, metrics and numbers"
    model = load_model(DATA/'saved_1').eval()
    assert model.saved['format']==1 and model.saved['metrics']==dict(mIoU=.5) and model.saved['extra']['classes']==['road','sky','car']
    assert temperature_dict(model)=={'encoder.blocks.0.attn': 1.25, 'encoder.blocks.1.attn': [1.,1.5]}
    with torch.no_grad(): got = model(image)[0][0,:,::8,::8].flatten()
    assert torch.allclose(got, torch.tensor(json.loads((DATA/'saved_1'/'expected.json').read_text())), atol=1e-5)

def test_newer_formats_are_refused(tmp_path):
    shutil.copytree(DATA/'saved_1', tmp_path/'m')
    config = json.loads((tmp_path/'m/config.json').read_text())
    for fmt in (2,None):
        (tmp_path/'m/config.json').write_text(json.dumps(config | dict(format=fmt)))
        with pytest.raises(ValueError, match='this version reads 1: update winwin'): load_model(tmp_path/'m')

@pytest.mark.parametrize('name,over', [('winwin_seg_micro',dict(num_classes=3)), ('winwin_depth_micro',{}), ('winwin_flow_micro',dict(head='linear')),
    ('winwin_pretrain_micro',{}), ('vit-tiny:linear',dict(depth=1, num_classes=2))])
def test_every_kind_comes_back(name, over, tmp_path):
    torch.manual_seed(0)
    model = create_model(name, **over)
    again = load_model(save_model(model, tmp_path/'m', dict(score=.25)))
    assert again.config==model.config and again.saved['metrics']==dict(score=.25)
    mine,his = model.state_dict(),again.state_dict()
    assert mine.keys()==his.keys() and all(torch.equal(mine[k], his[k]) for k in mine)
    assert [p.requires_grad for p in model.parameters()]==[p.requires_grad for p in again.parameters()]
    assert torch.equal(model.mean, again.mean) and sorted(os.listdir(tmp_path/'m'))==['README.md','config.json','model.safetensors']

def test_weights_are_plain_safetensors(tmp_path):
    save_model(tiny(), tmp_path/'m')
    with safe_open(tmp_path/'m/model.safetensors', 'pt') as f:
        assert f.metadata()=={'format': 'pt'} and 'encoder.blocks.0.attn.qkv.weight' in f.keys()
    assert (tmp_path/'m/model.safetensors').stat().st_mode==(tmp_path/'m/config.json').stat().st_mode

def test_normalisation_is_kept(tmp_path):
    again = load_model(save_model(tiny(mean=(.5,.5,.5), std=(.25,.25,.25)), tmp_path/'m'))
    assert again.mean.flatten().tolist()==[.5]*3 and again.std.flatten().tolist()==[.25]*3 and again.encoder.mean==(.5,.5,.5)

def test_temperatures_of_timm_layers(tmp_path):
    model = create_model('dinov3-small:linear', num_classes=2, depth=2).eval().requires_grad_(False)
    for b in model.encoder.model.blocks: b.gamma_1.fill_(1)
    plain = model(image.repeat(1,1,2,1))[0]
    set_layer_tau(model.encoder.model.blocks[0].attn, torch.linspace(1, 2, 6))
    warm = model(image.repeat(1,1,2,1))[0]
    again = load_model(save_model(model, tmp_path/'m')).eval().requires_grad_(False)
    assert temperature_dict(again).keys()=={'encoder.model.blocks.0.attn'} and torch.equal(again(image.repeat(1,1,2,1))[0], warm)
    assert not torch.equal(plain, warm)
    restore_temperatures(again, {})
    assert torch.equal(again(image.repeat(1,1,2,1))[0], plain) and temperature_dict(again)=={}

def test_capture_on_a_timm_backbone():
    model = create_model('dinov3-small:linear', num_classes=2, depth=2).eval()
    with capture(model, 0) as seen, torch.no_grad(): model(torch.rand(1,3,32,48))
    assert seen[0].q.shape==(1,6,5+6,64)

def test_the_card(tmp_path):
    save_model(tiny(), tmp_path/'m', dict(mIoU=.51234, per_class=[1,2]), dict(classes=['road','sky','car']))
    text = (tmp_path/'m/README.md').read_text()
    assert 'pipeline_tag: image-segmentation' in text and '| mIoU | 0.5123 |' in text and 'road, sky, car' in text
    save_model(tiny(), tmp_path/'m', dict(mIoU=.75)) # the library's own text is made anew
    assert '0.75' in (tmp_path/'m/README.md').read_text()
    (tmp_path/'m/README.md').write_text('# My model')
    save_model(tiny(), tmp_path/'m', dict(mIoU=.8))
    assert (tmp_path/'m/README.md').read_text()=='# My model' and load_model(tmp_path/'m').saved['metrics']==dict(mIoU=.8)

def test_a_save_that_fails_leaves_everything(tmp_path, monkeypatch):
    save_model(tiny(), tmp_path/'m')
    before = {p.name: p.read_bytes() for p in (tmp_path/'m').iterdir()}
    with pytest.raises(TypeError): save_model(tiny(), tmp_path/'m', extra=dict(no=object()))
    def full(*a, **k): raise OSError('disk full')
    monkeypatch.setattr(pretrained, 'write_tensors', full)
    with pytest.raises(OSError): save_model(tiny(), tmp_path/'m')
    assert {p.name: p.read_bytes() for p in (tmp_path/'m').iterdir()}==before

def test_differences_are_explained(tmp_path):
    save_model(tiny(), tmp_path/'m')
    config = json.loads((tmp_path/'m/config.json').read_text())
    def changed(**args):
        new = config | dict(model=dict(name=config['model']['name'], arguments=config['model']['arguments'] | args))
        (tmp_path/'m/config.json').write_text(json.dumps(new))
        return tmp_path/'m'
    with pytest.raises(ValueError, match=r'of another shape: head.proj.weight \(192, 16\) in the file, \(256, 16\) in the model'): load_model(changed(num_classes=4))
    with pytest.raises(ValueError, match='missing: encoder.blocks.2.norm1.weight, .*encoder.blocks.2.mlp.fc2.bias$'): load_model(changed(depth=3))
    with pytest.raises(ValueError, match='unknown: encoder.blocks.1'): load_model(changed(depth=1))
    with pytest.raises(ValueError, match='was written by winwin .* cannot make winwin_seg_micro.*colour'): load_model(changed(colour=3))
    with pytest.raises(FileNotFoundError, match='holds no config.json'): load_model(tmp_path/'user/name') # never looked for elsewhere

def test_a_model_of_nowhere(tmp_path):
    with pytest.raises(ValueError, match='make it with create_model'): save_model(torch.nn.Linear(2,2), tmp_path/'x')
    assert not (tmp_path/'x').exists()

def test_hub(tmp_path, monkeypatch):
    "What goes to the hub is the folder, and it comes back from there"
    sent = tmp_path/'hub'
    class Api:
        def __init__(self, token=None): pass
        def create_repo(self, repo_id, **k): return type('R', (), dict(repo_id=repo_id))
        def upload_folder(self, folder_path, repo_id, **k):
            shutil.copytree(folder_path, sent/repo_id)
            return 'commit'
    import huggingface_hub.hub_mixin as mixin
    fetch = lambda repo_id, filename, **k: str(sent/repo_id/filename)
    monkeypatch.setattr(mixin, 'HfApi', Api); monkeypatch.setattr(mixin, 'hf_hub_download', fetch); monkeypatch.setattr(pretrained, 'hf_hub_download', fetch)
    model = tiny()
    assert push_model(model, 'me/streets', dict(mIoU=.5), private=True)=='commit'
    assert sorted(p.name for p in (sent/'me/streets').iterdir())==['README.md','config.json','model.safetensors']
    again = load_model('hf:me/streets').eval()
    with torch.no_grad(): assert torch.equal(again(image)[0], model(image)[0])

def test_mixin_methods(tmp_path):
    model = tiny()
    HubModel(model, dict(a=1)).save_pretrained(tmp_path/'m')
    whole = HubModel.from_pretrained(tmp_path/'m')
    with torch.no_grad(): assert torch.equal(whole.model.eval()(image)[0], model(image)[0]) and whole.config['metrics']==dict(a=1)

def test_one_copy_of_the_weights(tmp_path):
    if not Path('/proc/self/status').exists(): pytest.skip('needs Linux')
    save_model(create_model('winwin_seg_small', head_args=dict(hidden=384)), tmp_path/'m')
    code = f'''
import winwin.models.hub as p
def peak(): return int(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1])/1024
before = peak()
m = p.load_model({str(tmp_path/'m')!r})
total = sum(o.detach().sum().item() for o in m.parameters())
print(peak()-before, sum(o.numel() for o in m.parameters())*4/2**20)'''
    grown,size = map(float, subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout.split())
    assert size>80 and grown<1.3*size+15, (grown,size)

def test_recipes_start_from_files(tmp_path):
    "A run begins with CroCo's weights, or with those of a timm backbone"
    import timm
    from winwin.models.released import to_croco
    from winwin.training.recipes import Recipe, change, recipe_model
    from winwin.tasks.registry import make_task
    task = make_task('seg', classes=['a','b'])
    donor = create_model('winwin_pretrain_tiny', decoder=dict(depth=1))
    torch.save(dict(model=to_croco(donor)), tmp_path/'croco.pth')
    recipe = change(Recipe(), model='winwin_seg_tiny', weights=str(tmp_path/'croco.pth'), head='linear')
    model = recipe_model(recipe, task)
    assert torch.equal(model.encoder.blocks[3].mlp.fc1.weight, donor.encoder.blocks[3].mlp.fc1.weight) and model.loaded['fresh']==['head']
    with pytest.raises(ValueError, match="take model='winwin_seg_tiny'"): recipe_model(change(recipe, model='winwin_seg_small'), task)
    torch.save(timm.create_model('vit_tiny_patch16_224').state_dict(), tmp_path/'vit.pth')
    model = recipe_model(change(recipe, model='vit-tiny:linear', weights=str(tmp_path/'vit.pth'), head=None), task)
    assert model.config==dict(name='vit-tiny:linear', arguments=dict(num_classes=2))
    with pytest.raises(ValueError, match='not made for the task seg'): recipe_model(change(recipe, model='vit-tiny:depth'), task)
