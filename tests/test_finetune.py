"What to train: the frozen rest stays as it is, changes of low rank end in plain weights, and a run resumes exactly."
import pytest, timm, torch
from safetensors.torch import load_file
from winwin.models.controls import set_trainable
from winwin.models.dense import create_model
from winwin.models.hub import load_model, save_model
from winwin.models.layers import LoRALinear
from winwin.training.loop import TrainConfig, fit, resume
from winwin.windows.sampling import sample_windows
from winwin.worlds.datasets import DrivingWorld

OURS = ('winwin_seg_micro', dict(depth=2, head='probe'))
MODELS = {'ours': OURS,
          'dinov3': ('vit_small_patch16_dinov3:probe', dict(depth=2)),
          'dinov2': ('vit_small_patch14_reg4_dinov2:linear', dict(depth=2)),
          'eva': ('eva02_tiny_patch14_336:linear', dict(depth=1)),              # q and v have a bias, k has none
          'dinov3_qkvb': ('vit_small_patch16_dinov3_qkvb:linear', dict(depth=1))}
CONFIG = TrainConfig(windows='2x3', steps=4, batch_size=2, lr=1e-2, warmup=1, log_every=1, save_every=2)

def make(kind):
    torch.manual_seed(0)
    name,args = MODELS[kind]
    return create_model(name, num_classes=14, **args)

@pytest.fixture(scope='module')
def data(): return DrivingWorld((64,96), length=6)

def weights(model): return {k: v.clone() for k,v in model.state_dict().items()}
def config(**over): return TrainConfig(**vars(CONFIG) | over)

def gradients(model, img, windows):
    model.zero_grad()
    sum(m.square().mean() for m in model(img, windows)).backward()
    return {n for n,p in model.named_parameters() if p.grad is not None and p.grad.abs().max()>0}

@pytest.mark.parametrize('kind', MODELS)
def test_every_adapted_layer_learns_and_merges(kind):
    model = set_trainable(make(kind).double(), 'lora:3')
    P = model.patch_size
    img = torch.rand(2,3,4*P,6*P, dtype=torch.float64)
    windows = sample_windows((4,6), [(2,2)]*2, batch=2)
    for m in model.modules():
        if isinstance(m, LoRALinear): torch.nn.init.normal_(m.lora_b, std=.1)
    found = gradients(model, img, windows)
    layers = [n for n,m in model.named_modules() if isinstance(m, LoRALinear)]
    blocks = getattr(model.encoder, 'model', model.encoder).blocks
    assert len(layers)==sum(isinstance(m, torch.nn.Linear) for m in blocks.modules())
    assert all({f'{n}.lora_a',f'{n}.lora_b'} <= found and f'{n}.weight' not in found for n in layers)
    model.eval()
    before = model(img, windows)
    set_trainable(model, 'all')
    assert not any('lora' in n for n in model.state_dict())
    for a,b in zip(model(img, windows), before): torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-8)

def test_the_file_is_plain_and_timm_loads_it(tmp_path, data):
    result = fit(make('dinov3'), data, config(train='lora:4'), out=tmp_path/'run', progress=False)
    again = load_model(tmp_path/'run'/'last')
    for k,v in result.model.state_dict().items(): torch.testing.assert_close(again.state_dict()[k], v)
    part = {k.removeprefix('encoder.model.'): v for k,v in load_file(tmp_path/'run'/'last'/'model.safetensors').items() if k.startswith('encoder.model.')}
    theirs = timm.create_model('vit_small_patch16_dinov3', num_classes=0, depth=2)
    theirs.load_state_dict(part)
    plain = make('dinov3').encoder.model
    moved = [k for k,v in part.items() if not torch.equal(v, plain.state_dict()[k])]
    assert moved and all(k.endswith('.weight') and '.norm' not in k and 'gamma' not in k for k in moved)
    assert all(p.requires_grad for p in result.model.parameters())

@pytest.mark.parametrize('train,ema', [('lora:4',None), ('lora:4',.5), ('last:1',None), ('head',.5)])
def test_a_run_resumes_exactly(tmp_path, data, train, ema):
    cfg = config(train=train, ema=ema)
    whole = fit(make('ours'), data, cfg, progress=False)
    def die(line):
        if line['step']==3: raise RuntimeError('power cut')
    with pytest.raises(RuntimeError, match='power cut'): fit(make('ours'), data, cfg, out=tmp_path, progress=False, watch=die)
    again = resume(tmp_path, data, progress=False)
    a,b = weights(whole.model),weights(again.model)
    assert a.keys()==b.keys() and all(torch.equal(a[k], b[k]) for k in a)

@pytest.mark.parametrize('train,moved', [('head',('head',)), ('last:1',('head','encoder.blocks.1','encoder.norm'))])
def test_the_frozen_rest_stays(data, train, moved):
    model = make('ours')
    before = weights(model)
    after = fit(model, data, config(train=train), progress=False).model.state_dict()
    changed = [k for k in before if not torch.equal(before[k], after[k])]
    assert changed and all(k.startswith(moved) for k in changed)
    assert {o for o in moved if any(k.startswith(o) for k in changed)}==set(moved)

def test_frozen_parts_stay_in_evaluation_mode():
    model = create_model('vit_small_patch16_dinov3:probe', num_classes=3, depth=2, drop_path_rate=.5)
    img = torch.rand(1,3,32,32)
    set_trainable(model, 'head').train()
    assert model.head.norm.training and not any(m.training for m in model.encoder.modules())
    assert torch.equal(model.encoder(img), model.encoder(img)) and not model.encoder(img).requires_grad
    assert set_trainable(model, 'all').train().encoder.training

def test_hand_frozen_weights_stay_frozen(data):
    model = make('ours')
    for p in model.encoder.parameters(): p.requires_grad_(False)
    kept = [p.clone() for p in model.encoder.parameters()]
    fit(model, data, config(steps=1), progress=False)
    assert all(torch.equal(a, b) for a,b in zip(kept, model.encoder.parameters()))

def test_save_model_merges_and_leaves_the_model_alone(tmp_path):
    model = set_trainable(make('ours'), 'lora:2')
    save_model(model, tmp_path)
    assert sum(isinstance(m, LoRALinear) for m in model.modules())==8
    assert not any('lora' in k for k in load_file(tmp_path/'model.safetensors'))

@pytest.mark.parametrize('train,rule', [('last:40','has 2 blocks; take last:1 to last:2'), ('lora:500','lora:1 to lora:192'),
                                        ('lora','write lora:N'), ('last:x','write last:N'), ('heads','did you mean head'), ('lora:0','at least 1')])
def test_mistakes_are_refused_at_the_start(data, train, rule):
    model = make('ours')
    with pytest.raises(ValueError, match=rule): fit(model, data, config(train=train), progress=False)
    assert all(p.requires_grad for p in model.parameters()) and not any(isinstance(m, LoRALinear) for m in model.modules())

def test_a_model_with_changes_of_its_own_needs_the_setting(tmp_path, data):
    with pytest.raises(ValueError, match="train='lora:16'"):
        fit(set_trainable(make('ours'), 'lora:2'), data, CONFIG, out=tmp_path/'run', progress=False)

def test_checkpointing_changes_no_weight(data):
    a,b = (fit(make('ours'), data, config(steps=2, checkpointing=on), progress=False).model for on in (False,True))
    for (k,x),y in zip(a.state_dict().items(), b.state_dict().values()): torch.testing.assert_close(x, y, atol=1e-6, rtol=1e-5, msg=k)
    assert b.encoder.checkpointing and not a.encoder.checkpointing
