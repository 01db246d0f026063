"ViT: the plain model on any set of tokens, against references, timm, compilers and exporters."
import copy, io, pickle, shutil
import pytest, timm, torch
from timm.models.vision_transformer import VisionTransformer
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils import _pytree
import references
from winwin.models.positions import apply_rope, half_to_pairs, rope_table
from winwin.models.layers import Attention, Block, attend, from_tiles, gelu, to_tiles
from winwin.models.vit import ViT, vit_sizes
from winwin.windows.layout import Windows, window_mask
from winwin.windows.sampling import sample_tokens, sample_windows

def seeded(seed=0): return torch.Generator().manual_seed(seed)
def image(*shape, seed=0): return torch.randn(*shape, generator=seeded(seed))

def shake(model, seed=0):
    "Random weights everywhere, so that no bias or norm hides behind its initial 0 or 1"
    g = seeded(seed)
    with torch.no_grad():
        for p in model.parameters(): p.add_(torch.randn(p.shape, generator=g)*(.1 if p.ndim==1 else .05))
    return model.eval()

def tiny(**kw):
    torch.manual_seed(0)
    return shake(ViT(**{**dict(dim=32, depth=3, num_heads=4, patch_size=4), **kw}))

kinds = dict(rope={}, sincos=dict(pos='sincos'), vitdet=dict(local_window=3, global_blocks=(1,)), vitdet_sincos=dict(pos='sincos', local_window=2, global_blocks=(2,)),
             other_rope=dict(rope_base=10_000., rope_scale=.4375), no_bias=dict(qkv_bias=False))
each_kind = pytest.mark.parametrize('kind', list(kinds))
heads_tau = torch.tensor([.5,1.,1.5,3.])
each_tau = pytest.mark.parametrize('tau', [1.,1.3,heads_tau], ids=['1','1.3','per head'])

def with_tau(model, tau):
    for b in model.blocks: b.attn.tau = tau
    return model

def layouts(grid=(5,7)):
    return dict(full=Windows.full(grid, 2), two=sample_windows(grid, [(2,3),(2,3)], 2, seeded(1)), mixed=sample_windows(grid, [(3,2),(1,4),(1,1)], 2, seeded(2)),
                shared=sample_windows(grid, [(3,4),(2,2)], 1, seeded(3)), isolated=sample_tokens(grid, 9, 2, seeded(4)), extra=sample_windows(grid, [(3,3)], 2, seeded(5), extra=6))

def close(a, b, tol=1e-5): assert a.shape==b.shape and (a-b).norm()<=tol*b.norm(), ((a-b).norm()/b.norm()).item()

# What the numbers are

@each_kind
@each_tau
@pytest.mark.parametrize('layout', list(layouts()))
def test_reference(kind, tau, layout):
    "Every block's output equals the plain explicit-softmax, embed-everything reference"
    m,w,x = with_tau(tiny(**kinds[kind]), tau),layouts()[layout],image(2,3,20,28)
    if 'vitdet' in kind and layout=='extra': # isolated tokens have no tile
        with pytest.raises(ValueError, match='no tile'): m(x, w)
        return
    with torch.no_grad(): got,want = m.forward_intermediates(x, w),references.vit_states(m, x, w)
    for a,b in zip(got, want, strict=True): close(a, b, 2e-5)

@each_kind
@each_tau
def test_full_window_is_the_plain_model(kind, tau):
    "No windows, one full window, and one full window per image are the same"
    m,x = with_tau(tiny(**kinds[kind]), tau),image(3,3,20,28)
    plain = m(x)
    for w in (Windows.full((5,7)), Windows.full((5,7), 3), Windows(torch.zeros(3,1,2,dtype=torch.long), [[5,7]], torch.Size((5,7)))): close(m(x, w), plain)
    pieces = Windows(torch.tensor([[[0,0],[0,4],[2,4]]]), [(5,4),(2,3),(3,3)], (5,7)) # the same tokens in another order
    if 'vitdet' not in kind: close(m(x, pieces)[:,pieces.index()[0].argsort()], plain)

def test_detectron2_tiles():
    "ViT-Det as released: 14x14 tiles on a grid that they do not divide, unmasked zeros around it"
    m,x = tiny(depth=2, local_window=14, global_blocks=(1,), patch_size=2),image(1,3,34,60)
    with torch.no_grad(): close(m(x), references.vit_states(m, x, Windows.full((17,30)))[-1], 2e-5)

@pytest.mark.parametrize('scale', [1.,.5])
def test_one_tile_is_global(scale):
    "A tile as large as the grid is attention over everything, at any position scale"
    a,b = tiny(rope_scale=scale),tiny(rope_scale=scale, local_window=5)
    x = image(2,3,20,20)
    close(b(x), a(x))

@pytest.mark.parametrize('h,w,k', [(4,6,2), (5,7,3), (1,1,4), (14,14,14), (3,9,14)])
def test_tiles_inverse(h, w, k):
    x = image(2,h,w,5)
    t = to_tiles(x, k)
    assert t.shape==(2*-(-h//k)*-(-w//k),k*k,5) and torch.equal(from_tiles(t, (h,w), k), x)

@each_tau
def test_attend_is_softmax(tau):
    q,k,v = image(2,4,6,8),image(2,4,9,8,seed=1),image(2,4,9,8,seed=2)
    close(attend(q, k, v, tau), references.softmax_attention(q, k, v, tau))

def test_tau_gradient():
    "A temperature per head can be learned, and becomes part of the state"
    m = tiny()
    for b in m.blocks: b.attn.tau = torch.nn.Parameter(torch.ones(4))
    m(image(1,3,20,28)).square().sum().backward()
    assert all(b.attn.tau.grad.abs().min()>0 for b in m.blocks) and 'blocks.0.attn.tau' in m.state_dict()

def test_attention_takes_positions_or_a_table():
    "Blocks are usable alone: integer positions, float positions or the table"
    a,x,pos = shake(Attention(32, 4)),image(2,12,32),Windows.full((3,4)).positions()
    close(a(x, pos), a(x, rope_table(pos, 8)))
    close(a(x, pos.float()), a(x, pos))
    assert not torch.allclose(a(x), a(x, pos))
    b = shake(Block(32, 4, rope_base=7.))
    assert b(x, pos).shape==x.shape

# What users rely on

@each_kind
def test_permuting_windows_permutes_outputs(kind):
    m,x = tiny(**kinds[kind]),image(2,3,20,28)
    w = sample_windows((5,7), [(3,2),(1,4),(2,2)], 2, seeded())
    p = [2,0,1]
    a = w.split(m(x, w))
    v = Windows(w.yx[:,p], [w.sizes[i] for i in p], w.grid)
    b = v.split(m(x, v))
    for i,j in enumerate(p): close(b[i], a[j], 2e-5)

@pytest.mark.parametrize('kind,moves', [('rope',False), ('other_rope',False), ('vitdet',False), ('sincos',True)])
def test_shift(kind, moves):
    "The same pixels elsewhere in the grid: nothing changes under RoPE, and absolute positions notice"
    m,x = tiny(**kinds[kind]),torch.zeros(2,3,40,48)
    pixels = image(2,3,20,28)
    x[0,:,:20,:28],x[1,:,16:36,20:48] = pixels[0],pixels[0]
    yx = torch.tensor([[0,0],[3,2]])
    w = Windows(torch.stack([yx,yx+torch.tensor([4,5])]), [(2,3),(2,4)], (10,12))
    a,b = m(x, w)
    if moves: assert (a-b).norm()>.05*a.norm()
    else: close(b, a, 3e-5)

@each_kind
@pytest.mark.parametrize('layout', ['two','mixed','shared','isolated'])
def test_outside_never_matters(kind, layout):
    "Change every pixel outside the windows, even to NaN: the output stays the same to the bit"
    m,w,x = tiny(**kinds[kind]),layouts()[layout],image(2,3,20,28)
    seen = window_mask(w).repeat_interleave(4, 1).repeat_interleave(4, 2)[:,None]
    with torch.no_grad(): assert torch.equal(m(x, w), m(torch.where(seen, x, torch.nan), w))

def test_images_do_not_mix():
    m,x = tiny(),image(3,3,20,28)
    w = sample_windows((5,7), [(2,3),(3,2)], 3, seeded())
    for b in range(3): close(m(x, w)[b:b+1], m(x[b:b+1], Windows(w.yx[b:b+1], w.sizes, w.grid)))

def test_intermediates():
    "Ascending, negative indices count from the end, only the last block is normed, and blocks after the last wanted one are not run"
    m,x = tiny(),image(1,3,20,28)
    every = m.forward_intermediates(x)
    assert len(every)==3 and torch.equal(every[-1], m(x))
    for ask,want in (([0],[0]), ([-1],[2]), ([2,0],[0,2]), ((-3,1),[0,1]), (range(3),[0,1,2]), ([1,-2],[1])):
        got = m.forward_intermediates(x, indices=ask)
        assert len(got)==len(want) and all(torch.equal(a, every[i]) for a,i in zip(got, want))
    m.blocks[2].forward = None
    assert torch.equal(m.forward_intermediates(x, None, [1])[0], every[1])

def test_outputs_do_not_share_memory():
    "What is returned is not overwritten by later blocks, with or without gradients"
    m,x = tiny(),image(1,3,20,28)
    with torch.no_grad(): a = m.forward_intermediates(x)
    b = m.forward_intermediates(x)
    for p,q in zip(a, b): close(p, q, 1e-6)
    with torch.inference_mode(): close(m(x), b[-1])

def test_gelu_in_place_only_without_gradient():
    x = image(50)
    y = gelu(x.clone().requires_grad_())
    with torch.no_grad(): close(gelu(x.clone()), y.detach())
    z = x.clone()
    gelu(z)
    assert torch.equal(z, x) # gradients are enabled: the input stays

@each_kind
def test_empty_batch(kind):
    m = tiny(**kinds[kind])
    assert m(torch.zeros(0,3,20,28)).shape==(0,35,32)
    assert m(torch.zeros(0,3,20,28), Windows(torch.zeros(0,2,2,dtype=torch.long)+torch.tensor([[0,0],[2,2]]), [(2,2),(3,2)], (5,7))).shape==(0,10,32)

def test_one_token():
    assert tiny()(image(2,3,4,4)).shape==(2,1,32)
    assert tiny()(image(2,3,20,28), sample_tokens((5,7), 1, 2)).shape==(2,1,32)

def test_double_precision():
    "dtype follows the weights, and float32 agrees with float64"
    for kind in kinds:
        m,x,w = tiny(**kinds[kind]),image(2,3,20,28),layouts()['two']
        d = copy.deepcopy(m).double()(x.double(), w)
        assert d.dtype==torch.float64
        close(m(x, w).double(), d, 1e-5)

def test_memory_format():
    m,x,w = tiny(),image(2,3,20,28),layouts()['mixed']
    close(m(x.to(memory_format=torch.channels_last), w), m(x, w), 1e-6)
    close(copy.deepcopy(m).to(memory_format=torch.channels_last)(x, w), m(x, w), 1e-6)

def test_windows_follow_the_image():
    "Windows on another device are moved to the image's"
    with torch.device('meta'): m = ViT(dim=32, depth=1, num_heads=4, patch_size=4)
    for w in (None, layouts()['mixed'], layouts()['extra']):
        assert m(torch.zeros(2,3,20,28,device='meta'), w).device.type=='meta'

# Gradients

@each_kind
def test_checkpointing(kind):
    "Recomputing gives the same output and the same gradients"
    m,x,w = tiny(**kinds[kind]).train(),image(2,3,20,28),layouts()['two']
    grads = []
    for on in (False,True):
        m.checkpointing = on
        m.zero_grad()
        m(x, w).square().sum().backward()
        grads.append([p.grad.clone() for p in m.parameters()])
    for a,b in zip(*grads, strict=True): torch.testing.assert_close(a, b)
    with torch.no_grad(): assert m(x, w).shape==(2,12,32)

@each_kind
def test_gradient_against_reference(kind):
    "Every parameter, and the image"
    m,x,w = tiny(**kinds[kind]),image(2,3,20,28).requires_grad_(),layouts()['two']
    def grads(y): return torch.autograd.grad((y*torch.linspace(-1, 1, 32)).square().sum(), [x,*m.parameters()])
    for a,b in zip(grads(m(x, w)), grads(references.vit_states(m, x, w)[-1]), strict=True):
        assert (a-b).norm()<1e-4*b.norm()+1e-4 and b.abs().max()>0

# timm

def timm_plain(grid, dim=32, depth=2):
    return shake(VisionTransformer(img_size=tuple(4*o for o in grid), patch_size=4, embed_dim=dim, depth=depth, num_heads=4, class_token=False, global_pool='', num_classes=0))

@pytest.mark.parametrize('grid', [(4,4), (5,7), (1,9)])
def test_timm_plain_vit(grid):
    "timm's ViT with fixed sine-cosine positions: its weights load by name and give the same features"
    ref,m = timm_plain(grid),ViT(32, 2, 4, 4, pos='sincos').eval()
    ref.pos_embed.data = references.absolute(Windows.full(grid).positions(), 32)
    sd = ref.state_dict()
    assert sd.keys()-m.state_dict().keys()=={'pos_embed'} and not m.state_dict().keys()-sd.keys()
    m.load_state_dict({k: v for k,v in sd.items() if k!='pos_embed'})
    x = image(2,3,4*grid[0],4*grid[1])
    close(m(x), ref.forward_features(x))
    for a,b in zip(m.forward_intermediates(x)[:1], ref.forward_intermediates(x, norm=False, output_fmt='NLC', intermediates_only=True)): close(a, b)

def timm_rope(grid, order='ij', **kw):
    "`vit_base_patch16_rope_224` in small, without class token and with layer scale 1"
    ref = timm.create_model('vit_base_patch16_rope_224', embed_dim=32, depth=2, num_heads=4, patch_size=4, img_size=tuple(4*o for o in grid), class_token=False,
                            global_pool='', num_classes=0, rope_grid_indexing=order, **kw)
    shake(ref)
    for n,p in ref.named_parameters():
        if 'gamma' in n: p.data.fill_(1)
    return ref

@pytest.mark.parametrize('grid', [(4,4), (5,7), (3,8), (9,1)])
def test_timm_rope_vit(grid):
    "timm's RoPE ViT: the same names apart from the layer scale, the same features"
    ref,m = timm_rope(grid),ViT(32, 2, 4, 4).eval()
    sd = {k: v for k,v in ref.state_dict().items() if 'gamma' not in k}
    assert sd.keys()==m.state_dict().keys()
    m.load_state_dict(sd)
    x = image(2,3,4*grid[0],4*grid[1])
    close(m(x), ref.forward_features(x), 2e-5)

def test_timm_rope_vit_x_first():
    "The released weights turn the first half of each head by x: swapping the halves of q and k rows makes them ours"
    ref,m = timm_rope((5,5), 'xy'),ViT(32, 2, 4, 4).eval()
    sd = {k: v.clone() for k,v in ref.state_dict().items() if 'gamma' not in k}
    for k,v in sd.items():
        if 'qkv' in k: v[:64] = v[:64].unflatten(0, (2,4,2,-1)).flip(2).flatten(0,3)
    m.load_state_dict(sd)
    x = image(2,3,20,20)
    close(m(x), ref.forward_features(x), 2e-5)

@pytest.mark.parametrize('name,count', [('tiny',5.5e6), ('small',21.6e6), ('base',85_646_592), ('large',303_098_880)])
def test_presets(name, count):
    "The usual sizes; parameter counts of CroCo's encoders"
    with torch.device('meta'): m = ViT.preset(name)
    n = sum(p.numel() for p in m.parameters())
    assert n==count if isinstance(count, int) else abs(n/count-1)<.02
    assert all(getattr(m, k)==v for k,v in vit_sizes[name].items()) and m.patch_size==16
    ref = timm.create_model(f'vit_{name}_patch16_224', class_token=False, global_pool='', num_classes=0) if name=='tiny' else None
    if ref: assert {k: v.shape for k,v in ref.state_dict().items() if k!='pos_embed'}=={k: v.shape for k,v in m.state_dict().items()}

def test_preset_overrides():
    m = ViT.preset('tiny', depth=2, patch_size=8, local_window=14, global_blocks=[1])
    assert len(m.blocks)==2 and [b.local_window for b in m.blocks]==[14,None] and m.patch_size==8

# Compiling, exporting, copying

def compiled(model, backend='aot_eager'):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    return torch.compile(model, backend=counter, fullgraph=True),counter

@pytest.mark.parametrize('kind,sizes,extra', [('rope',[(2,3),(2,3)],0), ('rope',[(3,2),(1,4)],3), ('sincos',[(2,3),(2,3)],0), ('vitdet',[(3,2),(1,4)],0)])
def test_compile(kind, sizes, extra):
    "One graph without breaks, the same numbers and gradients, and no second compilation when the corners move"
    m,x = tiny(depth=2, **{**kinds[kind], 'global_blocks':()}),image(2,3,20,28)
    fast,counter = compiled(m)
    for seed in range(4):
        w = sample_windows((5,7), sizes, 2, seeded(seed), extra)
        y,z = fast(x, w),m(x, w)
        close(y, z)
        a,b = (torch.autograd.grad(o.square().sum(), m.blocks[0].attn.qkv.weight)[0] for o in (y,z))
        close(a, b, 1e-4)
    assert counter.frame_count==1

def test_compile_without_windows_and_without_gradient():
    m,x = tiny(depth=2),image(2,3,20,28)
    fast,counter = compiled(m)
    with torch.no_grad(): close(fast(x), m(x))
    with torch.no_grad(): close(fast(x, Windows.full((5,7), 2)), m(x))

@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, ('g++','clang++','c++'))), reason='inductor needs a C++ compiler')
def test_inductor():
    "The default compiler, on the smallest model"
    torch._dynamo.reset()
    m,x = tiny(depth=1),image(1,3,20,28)
    fast = torch.compile(m, fullgraph=True)
    with torch.no_grad():
        for seed in range(2):
            w = sample_windows((5,7), [(2,3),(2,2)], 1, seeded(seed))
            close(fast(x, w), m(x, w))

@pytest.mark.parametrize('kind,extra', [('rope',0), ('rope',2), ('sincos',0), ('vitdet',0)])
def test_export(kind, extra):
    "An exported program takes the corners as input: it runs on windows it has never seen"
    m,x = tiny(depth=2, **{**kinds[kind], 'global_blocks':()}),image(2,3,20,28)
    draw = lambda seed: sample_windows((5,7), [(3,2),(1,4)], 2, seeded(seed), extra)
    with torch.no_grad():
        program = torch.export.export(m, (x,draw(0)))
        for seed in range(3): close(program.module()(x, draw(seed)), m(x, draw(seed)))

def test_export_save_load():
    "The exported program survives a file"
    m,x = tiny(depth=1),image(2,3,20,28)
    draw = lambda seed: sample_windows((5,7), [(3,2),(1,4)], 2, seeded(seed))
    with torch.no_grad():
        f = io.BytesIO()
        torch.export.save(torch.export.export(m, (x,draw(0))), f)
        f.seek(0)
        program = torch.export.load(f).module()
        for seed in range(2): close(program(x, draw(seed)), m(x, draw(seed)))

@each_kind
def test_copies(kind):
    "deepcopy, pickle and state dict keep the model"
    m,x,w = with_tau(tiny(**kinds[kind]), heads_tau),image(2,3,20,28),layouts()['two']
    for n in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))): assert torch.equal(n(x, w), m(x, w))
    n = ViT(**{**dict(dim=32, depth=3, num_heads=4, patch_size=4), **kinds[kind]})
    n.load_state_dict(m.state_dict())
    assert torch.equal(with_tau(n, heads_tau)(x, w), m(x, w))

def test_windows_travel_in_a_batch():
    "Windows inside a batch dictionary are moved with it"
    batch = dict(img=image(2,3,20,28), windows=layouts()['extra'])
    batch = _pytree.tree_map_only(torch.Tensor, lambda t: t.to('cpu'), batch)
    assert tiny()(batch['img'], batch['windows']).shape==(2,15,32)

def test_half_to_pairs_moves_croco_weights():
    "Weights in CroCo's channel order attend alike once their rows are reordered"
    a,x,pos = shake(Attention(32, 4)),image(2,12,32),Windows.full((3,4)).positions()
    q,k,v = a.qkv(x).view(2,12,3,4,8).permute(2,0,3,1,4)
    want = a.proj(references.softmax_attention(apply_rope(q, pos), apply_rope(k, pos), v).transpose(1,2).reshape(2,12,32))
    b = copy.deepcopy(a)
    for p in (b.qkv.weight,b.qkv.bias): p.data = torch.cat([half_to_pairs(p.data[:32], 4),half_to_pairs(p.data[32:64], 4),p.data[64:]])
    close(b(x, pos), want)

# Refusals

@pytest.mark.parametrize('kw,words', [(dict(num_heads=16), 'head_dim 2 is not divisible by 4.*choose'), (dict(num_heads=5), 'not divisible'), (dict(pos='learned'), "'learned' is unknown; use 'rope' or 'sincos'"),
    (dict(local_window=2, global_blocks=(3,)), r'global_blocks \[3\] do not exist: there are 3 blocks'), (dict(global_blocks=(-1,)), 'global_blocks'),
    (dict(pos='sincos', dim=30, num_heads=2), 'dim 30 is not divisible by 4'), (dict(local_window=0), 'local_window'), (dict(num_heads=0), 'num_heads')], ids=str)
def test_constructor_refuses(kw, words):
    with pytest.raises(ValueError, match=words): ViT(**{**dict(dim=32, depth=3, num_heads=4, patch_size=4), **kw})

def test_unknown_preset():
    with pytest.raises(ValueError, match="no preset 'huge'; there are tiny, small, base, large"): ViT.preset('huge')

@pytest.mark.parametrize('shape,windows,words', [((2,4,20,28), None, 'this model takes'), ((3,20,28), None, 'this model takes'), ((2,3,21,28), None, '21x28 pixels is not divisible.*pad_to_patches makes it 24x28'),
    ((2,3,20,28), Windows.full((7,5)), r'\(7, 5\) grid and the image has \(5, 7\) tokens'), ((2,3,20,28), sample_windows((5,7), [(2,2)], 3), '3 sets of windows for 2 images'),
    ((2,3,20,28), Windows.full((5,7), 3), '3 sets of windows'), ((2,3,0,28), None, 'at least 1')], ids=str)
def test_forward_refuses(shape, windows, words):
    with pytest.raises(ValueError, match=words): tiny()(torch.zeros(shape), windows)

@pytest.mark.parametrize('indices', [[], [3], [-4], [0,7]])
def test_indices_refused(indices):
    with pytest.raises(ValueError, match='3 blocks.*between -3 and 2|between -3 and 2.*3 blocks'): tiny().forward_intermediates(image(1,3,20,28), None, indices)

def test_tiles_refuse_isolated_tokens():
    with pytest.raises(ValueError, match='extra=0'): tiny(local_window=2)(image(2,3,20,28), layouts()['extra'])
    with pytest.raises(ValueError, match='Windows.full'): Block(32, 4, local_window=2)(image(1,4,32))
