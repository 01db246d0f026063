"Attention statistics against matrices written out, and what `capture` sees in every family of models."
import gc, math, weakref
import pytest, timm, torch
import winwin
from winwin.attention import statistics as at
from winwin.attention.statistics import (attention_distance, attention_entropy, attention_logits, attention_rows, attention_sums, distance_profile,
                                         self_probability, window_mass)
from winwin.attention.statistics import TauCurve
from winwin.temperature.theory import constant_attention, constant_self_probability, constant_tau
from winwin.models.controls import attention_layers, capture, layer_tau, set_layer_tau, watch
from winwin.models.dense import create_model
from winwin.attention.views import compare_attention
from winwin.temperature.theory import show_discrepancy
from winwin.attention.views import layer_means, make_views
from winwin.models.vit import ViT
from winwin.windows.layout import Windows
from winwin.windows.sampling import sample_tokens, sample_windows

def rng(seed=0): return torch.Generator().manual_seed(seed)

def qk(B=2, heads=3, N=70, D=16, M=None, size=1., seed=0):
    "Queries and keys as models have them: views of a (B,N,heads,D) tensor"
    g = rng(seed)
    return tuple(size*torch.randn(B,n,heads,D, generator=g).transpose(1,2) for n in (N, M or N))

def matrix(q, k, tau=1.):
    "Attention in double precision"
    tau = torch.as_tensor(tau, dtype=torch.float64).reshape(-1,1,1)
    return (tau*q.double()@k.double().mT*q.shape[-1]**-.5).softmax(-1)

shapes = pytest.mark.parametrize('B,heads,N,D', [(1,1,1,4),(2,3,70,16),(1,12,300,64),(3,2,33,20),(1,5,129,8)])
taus = pytest.mark.parametrize('tau', [1.,.7,2.,'per head'])
routes = pytest.mark.parametrize('route', ['fused','chunked'])
def per_head(tau, heads): return torch.linspace(.8, 1.9, heads) if tau=='per head' else tau

# --- Statistics

@shapes
@taus
@routes
def test_statistics_are_exact(B, heads, N, D, tau, route):
    (q,k),tau = qk(B, heads, N, D),per_head(tau, heads)
    P = matrix(q, k, tau)
    close = lambda a,b: torch.testing.assert_close(a.double(), b, atol=1e-5, rtol=1e-5)
    close(self_probability(q, k, tau, route), P.diagonal(dim1=2, dim2=3))
    close(attention_entropy(q, k, tau, route), -torch.special.xlogy(P, P).sum(-1))
    index = [0,N//2,N-1]
    close(attention_rows(q, k, index, tau), P[:,:,index])
    pos = torch.randint(0, 40, (B,N,2), generator=rng())
    d = torch.cdist(pos.double(), pos.double())[:,None]
    close(attention_distance(q, k, pos, tau), (P*d).sum(-1))
    square = attention_distance(q, k, pos, tau, kind='rms', route=route).double().square()
    torch.testing.assert_close(square, (P*d**2).sum(-1), atol=1e-2, rtol=1e-4) # squares of up to 3000 in float32

@routes
def test_cross_attention(route):
    q,k = qk(N=40, M=90)
    P = matrix(q, k, 1.2)
    torch.testing.assert_close(attention_entropy(q, k, 1.2, route).double(), -(P*P.log()).sum(-1), atol=1e-5, rtol=1e-5)
    a,b = (torch.randint(0, 30, (1,n,2), generator=rng()) for n in (40,90))
    d = torch.cdist(a.double(), b.double())[:,None]
    torch.testing.assert_close(attention_distance(q, k, a, 1.2, b).double(), (P*d).sum(-1), atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match='not of the same tokens'): self_probability(q, k)
    curve = TauCurve(q, k)
    torch.testing.assert_close(curve.entropy(1.2).double(), -(P*P.log()).sum(-1), atol=1e-3, rtol=0)
    with pytest.raises(ValueError, match='use the entropy'): curve.self_probability(1.2)

@pytest.mark.parametrize('block', [1,64,10_000])
def test_small_blocks_change_nothing(block, monkeypatch):
    q,k = qk(N=50)
    pos = torch.randint(0, 20, (2,50,2), generator=rng())
    edges = torch.arange(0, 31, 3.)
    want = [f(route) for route in ('fused','chunked') for f in (lambda r: self_probability(q, k, 1.3, r),
            lambda r: attention_entropy(q, k, 1.3, r))] + [attention_distance(q, k, pos), distance_profile(q, k, pos, edges)]
    monkeypatch.setattr(at, '_block', block)
    got = [f(route) for route in ('fused','chunked') for f in (lambda r: self_probability(q, k, 1.3, r),
           lambda r: attention_entropy(q, k, 1.3, r))] + [attention_distance(q, k, pos), distance_profile(q, k, pos, edges)]
    for a,b in zip(got, want): torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)

def test_precision_follows_the_input():
    q,k = qk()
    assert self_probability(q.half(), k.half()).dtype==torch.float32
    assert self_probability(q.double(), k.double()).dtype==torch.float64
    P = matrix(q, k).diagonal(dim1=2, dim2=3)
    torch.testing.assert_close(self_probability(q.double(), k.double()), P, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(self_probability(q.half(), k.half()).double(), P, atol=3e-3, rtol=2e-2)

def test_no_gradients():
    q,k = (o.requires_grad_() for o in qk())
    for f in (self_probability, attention_entropy): assert not f(q, k).requires_grad
    assert not attention_rows(q, k, 3).requires_grad

@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU')
@taus
def test_cuda(tau):
    (q,k),tau = qk(N=300, D=64),per_head(tau, 3)
    P = matrix(q, k, tau)
    for f,want in ((self_probability,P.diagonal(dim1=2, dim2=3)),(attention_entropy,-(P*P.log()).sum(-1))):
        torch.testing.assert_close(f(q.cuda(), k.cuda(), tau).cpu().double(), want, atol=1e-5, rtol=1e-5)

@pytest.mark.parametrize('where', ['full','windows'])
@pytest.mark.parametrize('prefix', [0,5])
def test_window_mass(where, prefix):
    w = sample_windows((9,11), [(4,4),(3,5),(2,2)], batch=2, generator=rng(), extra=3)
    n = prefix+(99 if where=='full' else w.num_tokens)
    q,k = qk(N=n)
    P = matrix(q, k)
    ids = torch.cat([torch.full((h*v,), i) for i,(h,v) in enumerate(w.sizes)]+[torch.full((3,), 3)]).expand(2,-1)
    if where=='full': ids = torch.full((2,99), 3).scatter_(1, w.index(), ids)
    ids = torch.cat([torch.full((2,prefix), 3),ids], 1)
    same,seen = (ids[:,:,None]==ids[:,None]) & (ids[:,:,None]<3),(ids<3)[:,None].expand(-1,n,-1)
    want = torch.stack([(P*m[:,None]).sum(-1) for m in (same,seen & ~same,~seen)], -1)
    torch.testing.assert_close(window_mass(q, k, w, prefix=prefix).double(), want, atol=1e-5, rtol=0)

def test_window_mass_of_more_windows_than_channels():
    w = sample_tokens((6,10), 45, batch=2, generator=rng())
    q,k = qk(N=45)
    got = window_mass(q, k, w, 1.4)
    P = matrix(q, k, 1.4).diagonal(dim1=2, dim2=3)
    torch.testing.assert_close(got[...,0].double(), P, atol=1e-5, rtol=0) # every token is its own window
    torch.testing.assert_close(got.sum(-1), torch.ones(2,3,45), atol=1e-5, rtol=0)

def test_distance_profile():
    q,k = qk(B=1, N=60)
    pos,edges = Windows.full((6,10)).positions(),torch.tensor([0.,1.5,4.,8.,20.])
    d,P = torch.cdist(pos.double(), pos.double())[0],matrix(q, k)[0]
    want = torch.stack([(P*((d>a) & (d<=b) | (d==0) & (a==0))).sum((1,2)) for a,b in zip(edges, edges[1:])], 1)/60
    torch.testing.assert_close(distance_profile(q, k, pos, edges).double(), want, atol=1e-5, rtol=0)

@pytest.mark.parametrize('call,message', [
    (lambda q,k: self_probability(q[0], k[0]), 'must be'),
    (lambda q,k: self_probability(q, k, torch.ones(2)), '2 temperatures for 3 heads'),
    (lambda q,k: self_probability(q, k, route='slow'), 'use auto, fused or chunked'),
    (lambda q,k: self_probability(q[:,:,:0], k[:,:,:0]), 'no token'),
    (lambda q,k: attention_entropy(q, k[:,:2]), 'must be'),
    (lambda q,k: attention_rows(q, k, [3,70]), 'not all among 70'),
    (lambda q,k: attention_distance(q, k, torch.zeros(2,69,2)), 'do not fit 70 tokens'),
    (lambda q,k: attention_distance(q, k, torch.zeros(2,70,2), kind='max'), "use 'mean' or 'rms'"),
    (lambda q,k: list(attention_sums(q, k, torch.zeros(1,1,70,17))), 'take fewer at a time'),
    (lambda q,k: TauCurve(q, k, 2., 1.), 'need 0 <= lo < hi'),
    (lambda q,k: TauCurve(q, k).entropy(.5), 'leaves'),
    (lambda q,k: window_mass(q, k, Windows.full((6,10))), 'neither the 60')])
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message): call(*qk())

# --- A trained model

@pytest.fixture(scope='module')
def trained():
    "A small model after a little training on street scenes, and four of them"
    world = winwin.DrivingWorld((96,160), length=32)
    torch.manual_seed(0)
    model = create_model('winwin_seg_micro', num_classes=14, dim=96, depth=3, num_heads=3)
    config = winwin.TrainConfig(windows='2x6', steps=60, batch_size=4, lr=2e-3, warmup=10, beta2=.95, layer_decay=None)
    model = winwin.fit(model, world, config, progress=False).model.eval().requires_grad_(False)
    return model,torch.stack([world[i]['image'] for i in range(4)])

def test_sweep_over_temperatures_on_trained_attention(trained):
    "Errors of the polynomial at 25 temperatures between its nodes, for every token, head and layer"
    model,imgs = trained
    with capture(model) as seen: model(imgs)
    assert len(seen)==3
    for s in seen:
        assert self_probability(s.q, s.k).std()>1e-4 # not an untrained layer
        curve = TauCurve(s.q, s.k, .8, 2.)
        for tau in torch.linspace(.8, 2, 25).tolist():
            p,h = self_probability(s.q, s.k, tau),attention_entropy(s.q, s.k, tau)
            assert ((curve.self_probability(tau)/p-1).abs().max())<3e-4
            assert (curve.entropy(tau)-h).abs().max()<3e-3
        tau = torch.tensor([.9,1.3,1.7])
        torch.testing.assert_close(curve.self_probability(tau), self_probability(s.q, s.k, tau), atol=1e-5, rtol=3e-4)

@pytest.mark.parametrize('nodes,limit', [(3,.05),(4,1e-2),(6,3e-4)])
def test_more_nodes_smaller_error(trained, nodes, limit):
    model,imgs = trained
    with capture(model, -1) as seen: model(imgs[:1])
    q,k,*_ = seen[0]
    curve = TauCurve(q, k, .8, 2., nodes)
    error = max((curve.self_probability(t)/self_probability(q, k, t)-1).abs().max().item() for t in (.85,1.1,1.37,1.9))
    assert error<limit

def test_compare_attention(trained):
    model,imgs = trained
    c = compare_attention(model, imgs, '2x6')
    assert c.tokens==(72,240) and len(c.rows())==9
    assert all((c.full['entropy'][n]>c.windows['entropy'][n]).all() for n in attention_layers(model))
    fast = compare_attention(model, imgs, '2x6', distance='rms')
    assert all((fast.full['distance'][n]>=c.full['distance'][n]-1e-4).all() for n in attention_layers(model)) # rms >= mean
    assert 'self-probability' in repr(c)
    assert model.training is False

# --- Models

def ours(name, **kw): return lambda: create_model(name, **kw)
def theirs(name, **kw): return lambda: timm.create_model(name, num_classes=0, depth=2, **kw)
families = {
    'seg': (ours('winwin_seg_micro', depth=2), (64,96)), 'depth': (ours('winwin_depth_micro', depth=4), (64,96)),
    'sincos': (ours('winwin_seg_micro', depth=2, pos='sincos'), (64,96)),
    'relative': (ours('winwin_seg_micro', depth=2, relative=True), (64,96)),
    'vit-det': (ours('winwin_seg_micro', depth=2, local_window=3, global_blocks=(1,)), (64,96)),
    'vit': (lambda: ViT(64, 2, 4), (64,96)),
    'timm vit': (theirs('vit_tiny_patch16_224', img_size=64), (64,64)),
    'timm rope': (theirs('vit_small_patch16_rope_224', img_size=64), (64,64)),
    'timm rope mixed': (theirs('vit_small_patch16_rope_mixed_224', img_size=64), (64,64)),
    'eva02': (theirs('eva02_tiny_patch14_224', img_size=56), (56,56)),
    'dinov3': (theirs('vit_small_patch16_dinov3', img_size=64), (64,64)),
    'qk norm': (theirs('vit_tiny_patch16_224', img_size=64, qk_norm=True), (64,64))}
each_family = pytest.mark.parametrize('family', families)

def make(family):
    torch.manual_seed(0)
    build,size = families[family]
    model,g = build().eval().requires_grad_(False),rng(1)
    for p in model.parameters(): p += torch.randn(p.shape, generator=g)*(.1 if p.ndim==1 else .05) # no layer hides
    return model,torch.rand(2,3,*size, generator=g)

def whole(out): return torch.cat([o.flatten() for o in out]) if isinstance(out, (list,tuple)) else out

def state(model):
    "All that hangs on the layers of a model besides its weights"
    return {n: (type(m),{k: v for k,v in vars(m).items() if not isinstance(v, (dict,set))},len(m._forward_hooks),
                len(m._forward_pre_hooks)) for n,m in model.named_modules()}

@each_family
def test_capture_changes_nothing_and_leaves_nothing(family):
    model,x = make(family)
    plain,before = whole(model(x)),state(model)
    with capture(model) as seen: inside = whole(model(x))
    assert torch.equal(inside, plain) and torch.equal(whole(model(x)), plain)
    assert state(model)==before
    assert {s.name for s in seen}==set(attention_layers(model)) and all(s.tau==1 for s in seen)
    ref = weakref.ref(seen[0].q)
    del seen
    gc.collect()
    assert ref() is None

@each_family
def test_capture_sees_what_the_softmax_sees(family):
    "The output of a layer follows from the captured q and k and the layer's own values"
    model,x = make(family)
    layer = [*attention_layers(model).values()][-1]
    with capture(model, layer) as seen: model(x)
    q,k,*_ = seen[0]
    if hasattr(layer, 'fused_attn'): # timm can write its matrix out
        layer.fused_attn,found = False,[]
        hook = layer.attn_drop.register_forward_hook(lambda m,args,out: found.append(out))
        model(x)
        hook.remove()
        torch.testing.assert_close(matrix(q, k).float(), found[0], atol=1e-5, rtol=1e-4)
    else:
        inputs = []
        hook = layer.register_forward_hook(lambda m,args,out: inputs.append((args,out)))
        model(x)
        hook.remove()
        (x,*pos),out = inputs[0]
        if layer.relative: return # values are turned as well; q and k are the same
        v = layer.heads(x, *pos)[2]
        torch.testing.assert_close(layer.proj((matrix(q, k).float()@v).transpose(1,2).flatten(2)), out, atol=1e-5, rtol=1e-4)

@each_family
def test_temperature_of_a_layer_is_not_in_q(family):
    model,x = make(family)
    (name,layer),*_ = attention_layers(model).items()
    plain,before = whole(model(x)),state(model)
    with capture(model, name) as one: model(x)
    for tau in (1.4,torch.linspace(.8, 1.6, layer.num_heads)):
        set_layer_tau(layer, tau)
        assert not torch.allclose(whole(model(x)), plain, atol=1e-6)
        with capture(model, name) as two: model(x)
        torch.testing.assert_close(two[0].q, one[0].q)
        assert torch.equal(torch.as_tensor(two[0].tau), torch.as_tensor(tau))
    set_layer_tau(layer, 1.)
    assert torch.equal(whole(model(x)), plain) and state(model)==before

@pytest.mark.parametrize('family', ['seg','dinov3'])
def test_failed_pass_leaves_nothing(family):
    model,x = make(family)
    before = state(model)
    with pytest.raises(RuntimeError), capture(model): model(x[:,:2])
    assert state(model)==before
    def fail(*_): raise KeyError('on purpose')
    with pytest.raises(KeyError), watch(attention_layers(model), fail): model(x)
    assert state(model)==before
    model(x)

@pytest.mark.parametrize('family', ['seg','dinov3'])
def test_captures_nest(family):
    model,x = make(family)
    before = state(model)
    with capture(model) as outer:
        with capture(model, -1) as inner: model(x)
        model(x)
    assert len(inner)==1 and len(outer)==4
    assert state(model)==before

def test_capture_in_a_flow_model():
    model = create_model('winwin_flow_micro').eval().requires_grad_(False)
    a,b = torch.rand(2,1,3,64,96, generator=rng())
    w1,w2 = (sample_windows((8,12), s, generator=rng()) for s in ([(4,4)]*2,[(3,3)]*3))
    with capture(model) as seen: model(a, b, w1, w2)
    sizes = {k: [(s.q.shape[2],s.k.shape[2]) for s in seen if k in s.name] for k in ('encoder','decoder','cross')}
    assert sizes['encoder']==[(32,32)]*3+[(27,27)]*3 # frame 1, then frame 2
    assert sizes['cross']==[(32,27)]*3
    with capture(model, 'encoder') as seen: model(a, b)
    assert [len(s.q) for s in seen]==[2]*3 # both frames in one batch
    c = compare_attention(model, (a,b), (w1,w2))
    assert set(c.full['entropy'])==set(attention_layers(model)) and 'decoder.blocks.0.cross_attn' not in c.full['self-probability']

def test_local_attention_has_nothing_to_compare():
    model,x = make('vit-det')
    c = compare_attention(model, x, '2x4')
    assert list(c.full['entropy'])==['encoder.blocks.1.attn'] # the global one

def test_views_of_a_timm_model():
    "A model that knows no windows, trained on crops"
    model = timm.create_model('vit_small_patch16_dinov3', num_classes=0, depth=2, dynamic_img_size=True).eval()
    c = compare_attention(model, torch.rand(1,3,96,128, generator=rng()), 'crop:4')
    assert c.tokens==(16,48)
    for n in c.full['entropy']: assert (c.full['entropy'][n]>c.windows['entropy'][n]).all()

@pytest.mark.parametrize('layer', ['blocks.7.attn',9,'crosswise'])
def test_unknown_layers(layer):
    model,_ = make('seg')
    with pytest.raises(ValueError, match='attention layer|none is of kind'):
        with capture(model, layer): pass

def test_a_bias_is_part_of_the_logits():
    model = timm.create_model('beit_base_patch16_224', num_classes=0, depth=1, img_size=64).eval()
    for k,p in model.named_parameters():
        if 'relative_position_bias_table' in k: p.data.normal_() # fresh, it adds only zeros
    layer,found,x = model.blocks[0].attn,[],torch.rand(1,3,64,64)
    with torch.no_grad(), capture(model) as seen: model(x)
    layer.fused_attn = False
    layer.attn_drop.register_forward_hook(lambda m,args,out: found.append(out))
    with torch.no_grad(): model(x)
    torch.testing.assert_close(attention_rows(seen[0].q, seen[0].k, range(17)), found[0], atol=1e-5, rtol=0)

def test_views_count_tokens():
    model,x = make('seg')
    w = sample_windows((8,12), [(4,4)]*2, batch=2, generator=rng())
    train,full = make_views(model, x, w)
    assert len(train)==1 and torch.equal(full.weights[0].bool().view(2,8,12), winwin.windows.window_mask(w))
    own = lambda layer,q,k,view: self_probability(q, k)
    got = layer_means(model, attention_layers(model, layers=0), train, own)
    with capture(model, 0) as seen: model(x, w)
    want = self_probability(seen[0].q, seen[0].k).double().mean((0,2))
    torch.testing.assert_close(got['encoder.blocks.0.attn'], want)

# --- Constant queries and keys

@pytest.mark.parametrize('scheme,grid,want', [ # heights 4, 8, 12, 16
    ('2x22', (45,80), (1.467,1.208,1.122,1.084)), ('2x16', (27,64), (1.492,1.231,1.148,1.113)),
    ('1x32', (45,80), (1.395,1.161,1.085,1.050))])
def test_constant_tau(scheme, grid, want):
    got = [constant_tau(scheme, grid, s) for s in (4.,8.,12.,16.)]
    assert got==pytest.approx(want, abs=.012) # windows are drawn

def test_constant_attention_sums_to_one():
    w = sample_windows((9,13), [(4,4),(2,6)], batch=3, generator=rng(), extra=5)
    torch.testing.assert_close(constant_attention(w, 11).sum(1), torch.ones(3).double())
    row = constant_attention(w, 11, height=6., tau=1.5)
    torch.testing.assert_close(row[:,11], constant_self_probability(w, 9.)[:,11])
    with pytest.raises(ValueError, match='not among'): constant_attention(w, 40)
    with pytest.raises(ValueError, match='need a grid'): constant_tau('2x4')

@pytest.mark.parametrize('sizes,grid', [([(4,4)]*2,(9,13)),([(5,3)],(6,20)),([(2,2)]*4,(12,12))])
def test_figure_of_the_paper(sizes, grid):
    import matplotlib.pyplot as plt
    fig = show_discrepancy(sample_windows(grid, sizes, generator=rng()), height=5., base=50., head_dim=32)
    assert len(fig.axes)==5
    plt.close(fig)

def test_probes_offer_the_parts():
    from winwin.attention.statistics import attention_rows, self_probability
    assert attention_rows is winwin.attention_rows and self_probability is winwin.self_probability
