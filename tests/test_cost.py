"Counted without values, checked against real runs of small models."
import pytest, torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from winwin.models.backbones import timm_encoder
from winwin.bench.cost import flops, memory, plan, trace_cost
from winwin.models.dense import create_model
from winwin.windows.schemes import parse_scheme
from winwin.models.vit import ViT
from winwin.windows.layout import Windows
from winwin.windows.sampling import sample_windows

small = dict(dim=64, depth=4, num_heads=4)
MODELS = {
    'linear head': ('winwin_seg_micro', small | dict(head='linear')), 'convnext head': ('winwin_seg_micro', small),
    'dpt head': ('winwin_depth_micro', small), 'flow': ('winwin_flow_micro', {}), 'relative flow': ('winwin_flow_micro', dict(relative=True)),
    'decoupled flow': ('winwin_flow_micro', dict(head='decoupled')), 'sincos': ('winwin_seg_micro', small | dict(pos='sincos', head='linear')),
    'tiles': ('winwin_seg_micro', small | dict(head='linear', local_window=3, global_blocks=[1])),
    'completion': ('winwin_pretrain_micro', {}), 'dinov3': ('dinov3-small:linear', dict(depth=2)),
    'eva02': ('eva02-tiny:linear', dict(depth=2)), 'rope mixed': ('rope-mixed-small:linear', dict(depth=2)), 'vit': ('vit-tiny:dpt', {}),
}
LAYOUTS = {'two': lambda: sample_windows((12,20), [(5,6),(4,3)]), 'full': lambda: Windows.full((12,20)),
           'extra': lambda: sample_windows((12,20), [(5,5)]*2, extra=7)}

def inputs(model, w):
    P = model.encoder.patch_size if hasattr(model, 'encoder') else model.patch_size
    img = torch.rand(1, 3, w.grid[0]*P, w.grid[1]*P)
    return (img, img, w, w) if hasattr(model, 'decoder') else (img, w)

def kept(model, args):
    "Bytes that a real run keeps for its backward pass"
    own, seen = {o.untyped_storage()._cdata for o in (*model.parameters(), *model.buffers())}, {}
    def pack(t): seen[t.untyped_storage()._cdata] = t.untyped_storage(); return t
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t): out = model(*args)
    return sum(o.nbytes() for k,o in seen.items() if k not in own), out

CASES = [(n, 'two') for n in MODELS] + [(n, o) for n in ('linear head', 'convnext head', 'dpt head', 'flow') for o in ('full', 'extra')] + [('tiles', 'full')]

@pytest.mark.parametrize('name,layout', CASES)
def test_counts_are_those_of_a_real_run(name, layout):
    torch.manual_seed(0)
    model, w = create_model(MODELS[name][0], **MODELS[name][1]), LAYOUTS[layout]()
    args, cost = inputs(model, w), trace_cost(model, w)
    real, _ = kept(model, args)
    assert cost.activations==real
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        out = model(*args)
        assert counter.get_total_flops()==cost.forward
        sum(o.sum() for o in out).backward()
    if name=='convnext head': return # torch counts the backward pass of depthwise convolutions as if they were full ones
    plain = cost.forward + cost.backward - cost.attention//2 # fused attention recomputes one product of the two
    assert counter.get_total_flops()==plain

@pytest.mark.parametrize('encoder', [lambda: ViT(64, 2, 4), lambda: timm_encoder('dinov3-small', depth=2)])
def test_encoders_alone(encoder):
    enc, w = encoder(), LAYOUTS['two']()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter: enc(*inputs(enc, w))
    assert flops(enc, w)==counter.get_total_flops()

def test_formula_of_a_block():
    a, b = (flops(ViT(64, depth, 4), (8,8)) for depth in (1,2))
    assert b-a==24*64*64**2 + 4*64**2*64

def test_model_on_meta_a_name_and_a_real_model_agree():
    with torch.device('meta'): meta = create_model('winwin_seg_tiny')
    w = sample_windows((14,20), [(6,6)]*2)
    costs = [trace_cost(m, w) for m in (meta, 'winwin_seg_tiny', create_model('winwin_seg_tiny'))]
    assert costs[0]==costs[1]==costs[2]

def test_model_is_left_as_it_was():
    model = create_model('winwin_seg_micro', **small, checkpointing=True)
    before = {k: v.clone() for k,v in model.state_dict().items()}
    plain = trace_cost(create_model('winwin_seg_micro', **small), (6,8))
    assert trace_cost(model, (6,8))==plain and model.encoder.checkpointing and not any(p.is_meta for p in model.parameters())
    assert all((before[k]==v).all() for k,v in model.state_dict().items())

def test_frozen_weights_cost_less():
    model = create_model('winwin_seg_micro', **small)
    all_, model = trace_cost(model, (6,8)), model
    model.encoder.requires_grad_(False)
    some = trace_cost(model, (6,8))
    assert some.activations<all_.activations and some.backward<all_.backward and some.forward==all_.forward and some.trained<all_.trained
    assert some.activations==kept(model, inputs(model, Windows.full((6,8))))[0]

def test_batch_and_training():
    w = Windows.full((6,8))
    assert flops('winwin_seg_micro', w, batch=3)==3*flops('winwin_seg_micro', w) < flops('winwin_seg_micro', w, batch=3, training=True)
    one, four = (memory('winwin_seg_micro', w, batch=b) for b in (1,4))
    assert four.activations==4*one.activations and four.weights==one.weights and one.optimizer==2*one.gradients
    quiet = memory('winwin_seg_micro', w, training=False)
    assert quiet.total==quiet.weights+quiet.outputs
    half = memory('winwin_seg_micro', w, dtype=torch.bfloat16)
    assert .45<half.activations/one.activations<.75 and half.weights==one.weights

def test_flow_frames_may_differ():
    a, b = Windows.full((6,8)), sample_windows((6,8), [(3,3)])
    assert trace_cost('winwin_flow_micro', a, b).tokens==48+9
    assert flops('winwin_flow_micro', a, b)<flops('winwin_flow_micro', a)

@pytest.mark.parametrize('n', [1, 2, 3])
def test_plan_is_the_largest_that_fits(n):
    p = plan(.5, (384,640), 'winwin_seg_tiny', batch=2, n=n)
    side = int(p.scheme.split('x')[1])
    of = lambda s: memory('winwin_seg_tiny', sample_windows(p.grid, [(s,s)]*n), batch=2).total
    assert of(side)==p.memory.total<=.5e9*.85 and parse_scheme(p.scheme).sizes==((side,side),)*n
    assert side==max(s for s in range(1, 25) if (24//s)*(40//s)>=n) or of(side+1)>.5e9*.85

def test_plan_refuses_what_cannot_be():
    with pytest.raises(ValueError, match='smaller model'): plan(.05, (384,640), 'winwin_seg_base')
    with pytest.raises(ValueError, match='no model'): plan(8, (384,640), 'winwin_seg_huge')
    assert str(plan(100, (96,160), 'winwin_seg_tiny'))=='full'
