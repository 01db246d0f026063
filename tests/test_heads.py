"Heads: one map per window, each as if it were alone, and the published architectures to the last weight."
import copy
import pytest, torch
import torch.nn.functional as F
import references
from winwin.models.heads import ConvNeXtHead, DPTHead, FeatureFusion, LinearHead, dpt_hooks
from winwin.models.vit import ViT
from winwin.windows.layout import Windows, crop_windows
from winwin.windows.sampling import sample_windows

def seeded(seed=0): return torch.Generator().manual_seed(seed)
def tokens(*shape, seed=0): return torch.randn(*shape, generator=seeded(seed))
def close(a, b, tol=1e-5): assert a.shape==b.shape and (a-b).norm()<=tol*b.norm(), ((a-b).norm()/b.norm()).item()

def shake(head):
    "Random weights everywhere, biases and norms too"
    g = seeded()
    with torch.no_grad():
        for p in head.parameters(): p.add_(torch.randn(p.shape, generator=g)*.1)
    return head

def linear(patch=4): return shake(LinearHead(16, 3, patch))
def convnext(patch=4, **kw): return shake(ConvNeXtHead(16, 3, patch, **{**dict(hidden=12, depth=2, stride=2), **kw}))
def dpt(patch=4, dims=16): return shake(DPTHead(dims, 3, patch, (4,6,8,10), 12, 8))
heads = dict(linear=linear, convnext=convnext, dpt=dpt)
each_head = pytest.mark.parametrize('name', list(heads))

def inputs(head, *shape): return [tokens(*shape, seed=i) for i in range(head.num_inputs)]

layouts = dict(two=sample_windows((7,9), [(3,4),(3,4)], 2, seeded()), mixed=sample_windows((7,9), [(3,4),(2,2),(3,4),(1,1),(2,2)], 2, seeded()),
               odd=sample_windows((7,9), [(3,3),(5,1)], 2, seeded()), shared=sample_windows((7,9), [(2,3),(2,3)], 1, seeded()),
               extra=sample_windows((7,9), [(2,3),(3,2),(2,3)], 2, seeded(), extra=5), full=Windows.full((7,9), 2))

# One map per window

@each_head
@pytest.mark.parametrize('layout', list(layouts))
def test_each_window_alone(name, layout):
    "Every window gets, in order, what the head gives for it alone; extra tokens are dropped; sizes may mix"
    head,w = heads[name](),layouts[layout]
    x = inputs(head, 2, w.num_tokens, 16)
    got = head(x, w)
    assert len(got)==len(w)
    start = 0
    for m,(h,k) in zip(got, w.sizes):
        alone, = head([t[:,start:start+h*k] for t in x], Windows.full((h,k), 2))
        assert m.shape==(2,3,4*h,4*k)
        close(m, alone)
        start += h*k

@each_head
def test_permuting_windows_permutes_maps(name):
    head,w,p = heads[name](),layouts['mixed'],[3,0,4,2,1]
    x = inputs(head, 2, w.num_tokens, 16)
    v = Windows(w.yx[:,p], [w.sizes[i] for i in p], w.grid)
    y = [torch.cat([w.split(t)[i].flatten(1,2) for i in p], 1) for t in x]
    a,b = head(x, w),head(y, v)
    for i,j in enumerate(p): close(b[i], a[j])

@each_head
def test_windows_of_one_size_are_one_call(name):
    head,calls = heads[name](),[]
    predict = head.predict
    head.predict = lambda *x: calls.append(len(x[0])) or predict(*x)
    head(inputs(head, 2, layouts['mixed'].num_tokens, 16), layouts['mixed'])
    assert calls==[4,4,2] # (3,4) twice, (2,2) twice, (1,1) once, for two images

@each_head
def test_images_do_not_mix(name):
    head,w = heads[name](),layouts['mixed']
    x = inputs(head, 2, w.num_tokens, 16)
    for b in range(2):
        one = head([t[b:b+1] for t in x], Windows(w.yx[b:b+1], w.sizes, w.grid))
        for m,n in zip(head(x, w), one): close(m[b:b+1], n)

@each_head
def test_no_gradient_same_numbers(name):
    "Inference works in place and still gives the same, twice, without touching its input"
    head,w = heads[name](),layouts['two']
    x = inputs(head, 2, w.num_tokens, 16)
    before = [t.clone() for t in x]
    want = head(x, w)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            for _ in range(2):
                for m,n in zip(head(x, w), want): close(m, n, 1e-6)
    assert all(torch.equal(a, b) for a,b in zip(x, before))

@each_head
def test_every_parameter_gets_a_gradient(name):
    head,w = heads[name](),layouts['mixed']
    sum(m.square().sum() for m in head(inputs(head, 2, w.num_tokens, 16), w)).backward()
    for n,p in head.named_parameters():
        if p.requires_grad: assert p.grad is not None and p.grad.abs().max()>0, n
        else: assert n.startswith('scratch.refinenet4.resConfUnit1')

@each_head
def test_empty_batch(name):
    head = heads[name]()
    w = Windows(torch.zeros(0,2,2,dtype=torch.long)+torch.tensor([[0,0],[3,3]]), [(2,2),(2,2)], (7,9))
    assert [m.shape for m in head(inputs(head, 0, 8, 16), w)]==[(0,3,8,8)]*2

@each_head
def test_tensor_or_list(name):
    "A head that reads one layer takes its tokens with or without a list around them; DPT takes any sequence"
    head,w = heads[name](),layouts['two']
    x = inputs(head, 2, w.num_tokens, 16)
    for y in ([x[0],x] if head.num_inputs==1 else [x,tuple(x)]):
        for m,n in zip(head(y, w), head(x, w)): assert torch.equal(m, n)

@each_head
def test_refuses(name):
    head,w = heads[name](),layouts['two']
    with pytest.raises(ValueError, match=f'{head.num_inputs} layer.*got 3'): head([tokens(2,24,16)]*3, w)
    with pytest.raises(ValueError, match='23 tokens do not match the 24'): head(inputs(head, 2, 23, 16), w)

@each_head
def test_encoder_and_head(name):
    "End to end: maps line up with the pixels that `crop_windows` cuts, and a full window is the plain model"
    head,w = heads[name](),layouts['mixed']
    vit,img = ViT(16, 4, 2, 4),tokens(2,3,28,36)
    def run(w):
        x = vit.forward_intermediates(img, w, dpt_hooks(4) if head.num_inputs==4 else [-1])
        return head(x, w or Windows.full((7,9)))
    for m,c in zip(run(w), crop_windows(img, w, 4)): assert m.shape==c.shape
    close(run(Windows.full((7,9), 2))[0], run(None)[0])

@pytest.mark.parametrize('name', ['convnext','dpt'])
def test_channels_last(name):
    "The same numbers with weights in channels_last, forward and backward"
    head,w = heads[name](),layouts['odd']
    other = copy.deepcopy(head).to(memory_format=torch.channels_last)
    x = inputs(head, 2, w.num_tokens, 16)
    for h in (head,other): sum(m.square().sum() for m in h(x, w)).backward()
    for p,q in zip(head.parameters(), other.parameters()):
        if p.requires_grad: close(q.grad, p.grad, 1e-4)

@each_head
def test_export(name):
    "Heads export at a fixed layout, with the windows as input"
    head,w = heads[name](),layouts['mixed']
    x = inputs(head, 2, w.num_tokens, 16)
    with torch.no_grad():
        program = torch.export.export(head, (x,w)).module()
        for m,n in zip(program(x, layouts['mixed']), head(x, w), strict=True): close(m, n)

# Linear

@pytest.mark.parametrize('patch', [1,8,14,16])
def test_linear(patch):
    "Output channel c, pixel (i,j) of a token is row c*P*P + i*P + j of the projection"
    head = linear(patch)
    x = tokens(2,6,16)
    y, = head(x, Windows.full((2,3), 2))
    v = F.linear(x, head.proj.weight, head.proj.bias).view(2,2,3,3,patch,patch)
    assert y.shape==(2,3,2*patch,3*patch)
    for r in range(2):
        for c in range(3): close(y[:,:,r*patch:(r+1)*patch,c*patch:(c+1)*patch], v[:,r,c])

# ConvNeXt

@pytest.mark.parametrize('patch,stride,size', [(16,4,(3,5)), (4,2,(1,1)), (8,4,(4,2)), (14,2,(2,3)), (4,4,(3,3)), (4,1,(2,2))], ids=str)
def test_convnext_reference(patch, stride, size):
    head,x = convnext(patch, stride=stride),tokens(2,size[0]*size[1],16)
    close(head(x, Windows.full(size, 2))[0], references.convnext_head(head, x.view(2,*size,16), patch))

def test_convnext_count():
    "Published size for ViT-B and 19 classes, and the published names"
    with torch.device('meta'): head = ConvNeXtHead(768, 19)
    assert sum(p.numel() for p in head.parameters())==9_538_195
    assert set(head.state_dict())=={f'{k}.{p}' for k in ('proj_dec','final_layer',*(f'blocks.{i}.{n}' for i in range(4) for n in ('dwconv','norm','pwconv1','pwconv2'))) for p in ('weight','bias')}

def test_convnext_refuses():
    with pytest.raises(ValueError, match='patch_size 14 is not divisible by stride 4'): ConvNeXtHead(16, 3, 14)

# DPT

def reference(head, x, size, patch): return references.dpt_head(head.state_dict(), [t.view(len(t),*size,-1).permute(0,3,1,2) for t in x], patch)

@pytest.mark.parametrize('size', [(2,4), (4,4), (6,2), (3,5), (1,1), (11,11), (1,6), (27,4)], ids=str)
def test_dpt_reference(size):
    "Even grids, and odd ones, where the upsampled map is cut to the finer map's size"
    head = dpt(16, (16,16,20,24))
    x = [tokens(2,size[0]*size[1],d,seed=i) for i,d in enumerate((16,16,20,24))]
    y, = head(x, Windows.full(size, 2))
    assert y.shape==(2,3,16*size[0],16*size[1])
    close(y, reference(head, x, size, 16), 2e-5)

@pytest.mark.parametrize('patch', [4,8,14,16,32])
@pytest.mark.parametrize('size', [(2,2), (3,5)], ids=str)
def test_dpt_patch_sizes(patch, size):
    head = dpt(patch)
    x = inputs(head, 1, size[0]*size[1], 16)
    y, = head(x, Windows.full(size))
    assert y.shape==(1,3,patch*size[0],patch*size[1])
    close(y, reference(head, x, size, patch), 2e-5)

def test_dpt_keeps_the_top_left():
    "An odd map loses the last row and column, not the first"
    f = shake(FeatureFusion(6))
    x,skip = tokens(1,6,4,6),tokens(1,6,3,5,seed=1)
    close(f(x, skip), f(x[:,:,:3,:5], skip))

def test_dpt_count():
    "Published size of CroCo-Flow's head (ViT-B encoder, Base decoder, three outputs)"
    with torch.device('meta'): head = DPTHead((768,)*4, 3)
    assert sum(p.numel() for p in head.parameters())==20_065_987 and len(head.state_dict())==64

def test_dpt_refuses():
    for kw in (dict(dims=(8,8,8)), dict(dims=8, layer_dims=(4,4))):
        with pytest.raises(ValueError, match='four'): DPTHead(num_outputs=2, **kw)

@pytest.mark.parametrize('depths,hooks', [((12,),[2,5,8,11]), ((24,),[5,11,17,23]), ((4,),[0,1,2,3]), ((12,12),[11,15,19,23]), ((24,12),[23,27,31,35]), ((12,8),[10,13,16,19]), ((24,24),[23,31,39,47])])
def test_dpt_hooks(depths, hooks):
    "The published rules"
    assert dpt_hooks(*depths)==hooks

@pytest.mark.parametrize('enc', range(4,30))
@pytest.mark.parametrize('dec', [0,1,3,7,12])
def test_dpt_hooks_any_depth(enc, dec):
    "Four ascending blocks that exist, the last one last"
    h = dpt_hooks(enc, dec)
    assert len(h)==4 and h==sorted(set(h)) and h[0]>=0 and h[-1]==enc+dec-1

@pytest.mark.parametrize('depths', [(3,), (0,), (1,2), (0,8)])
def test_dpt_hooks_refuses(depths):
    with pytest.raises(ValueError, match='too few'): dpt_hooks(*depths)
