"Flow losses: golden values, plain numpy references, windows of any layout; finite everywhere, and nothing without an answer."
import math
import numpy as np
import pytest, torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from winwin.tasks.flow_scoring import FLOW_CHANNELS, flow_loss, flow_uncertainty, laplacian_loss, match_loss, match_targets
from winwin.models.heads import LinearHead
from winwin.windows.layout import Windows, crop_windows
from winwin.windows.sampling import sample_windows

P,GRID = 4,(5,7)
KINDS = tuple(FLOW_CHANNELS)

def seeded(seed=0): return torch.Generator().manual_seed(seed)
def close(a, b, tol=1e-6):
    a,b = (float(torch.as_tensor(x).detach()) for x in (a,b))
    assert abs(a-b)<=tol*max(1, abs(b)), (a, b)
def make_maps(w, B, kind, g, dtype=torch.float32):
    return [(torch.randn(B, FLOW_CHANNELS[kind], h*P, k*P, generator=g)*3).to(dtype) for h,k in w.sizes]
def make_flow(B, g, missing=.2, size=None):
    t = torch.randn(B, 2, *(size or (GRID[0]*P,GRID[1]*P)), generator=g)*5
    u = torch.rand(t.shape, generator=g) # a component of its own: one missing number is enough
    for i,v in enumerate((math.inf, -math.inf, math.nan, 1e10)): t[(u>=missing*i/4) & (u<missing*(i+1)/4)] = v
    return t
def answered(flow): return np.isfinite(flow).all(1) & (np.hypot(flow[:,0], flow[:,1])<1e4)

layouts = st.lists(st.tuples(st.integers(1,2), st.integers(1,3)), min_size=1, max_size=3)
problem = dict(sizes=layouts, B=st.integers(1,3), seed=st.integers(0,2**31), extra=st.integers(0,3), share=st.sampled_from([0.,.3,.95,1.]))
few = settings(max_examples=25, deadline=None)

# --- The price of a pixel

@pytest.mark.parametrize('kind,c,scale,loss', [ # with |u-u*| + |v-v*| = 3
    ('bounded',-2.,.697011,3.943139), ('bounded',0.,2.125,2.165537), ('bounded',2.,3.552989,2.112149),
    ('bounded2',-2.,math.exp(-.964538),6.906189), ('bounded2',0.,1.,3.), ('bounded2',2.,math.exp(.964538),2.108016),
    ('laplacian',-2.,math.exp(-2),3*math.exp(2)-2), ('laplacian',0.,1.,3.), ('laplacian',2.,math.exp(2),3*math.exp(-2)+2)])
@pytest.mark.parametrize('error', [(3.,0.), (-1.,2.), (0.,-3.)])
def test_golden(kind, c, scale, loss, error):
    flow = torch.tensor([7.,-5.]).reshape(1,2,1,1).double()
    pred = torch.cat([flow+torch.tensor(error).reshape(1,2,1,1), torch.full((1,1,1,1), c).double()], 1)
    close(laplacian_loss(pred, flow, kind=kind), loss, 5e-7)
    close(flow_uncertainty(pred, kind), scale, 1e-6)

def price(kind, u, v, *more):
    "Plain Python, one pixel"
    e = abs(u)+abs(v)
    if kind=='l1': return e/2
    if kind=='epe': return math.sqrt(u*u+v*v+1e-6) # smooth at 0
    if kind=='mixture':
        w,s = 1/(1+math.exp(-more[0])),min(max(more[1], 0), 10)
        return sum(-math.log(w*math.exp(-abs(x))/2 + (1-w)*math.exp(-abs(x)/math.exp(s))/(2*math.exp(s))) for x in (u,v))/2
    c, = more
    d = dict(bounded=lambda: 3.75/(1+math.exp(-c))+.25, bounded2=lambda: math.exp(6*(1/(1+math.exp(-c/3))-.5)), laplacian=lambda: math.exp(c))[kind]()
    return e/d + math.log(d)

@pytest.mark.parametrize('kind', KINDS)
@few
@given(seed=st.integers(0,2**31), B=st.integers(1,3), share=st.sampled_from([0.,.3,.95,1.]), masked=st.booleans())
def test_full_loss_matches_plain_python(kind, seed, B, share, masked):
    g = seeded(seed)
    flow = make_flow(B, g, share, (3,5)).double()
    pred = torch.randn(B, FLOW_CHANNELS[kind], 3, 5, generator=g, dtype=torch.float64)*3
    valid = torch.rand(B, 3, 5, generator=g)<.5 if masked else None
    ok = torch.from_numpy(answered(flow.numpy())) & (True if valid is None else valid)
    want = [price(kind, *(pred[b,:2,y,x]-flow[b,:,y,x]).tolist(), *pred[b,2:,y,x].tolist()) for b,y,x in ok.nonzero().tolist()]
    close(laplacian_loss(pred, flow, valid, kind), np.mean(want) if want else 0., 1e-10)

def test_mixture_weighs_like_a_softmax_and_covers_laplace():
    g = seeded()
    e,w,c = torch.randn(3, 50, generator=g).double()*4
    c = c.clamp(-10, 10) # inside the range of the scale
    pred = torch.stack([e, e, w, c.abs()])[None,:,None]
    alpha = torch.stack([w+2.5,torch.full_like(w, 2.5)]).softmax(0)
    b = c.abs().exp()
    p = alpha[0]*torch.exp(-e.abs())/2 + alpha[1]*torch.exp(-e.abs()/b)/(2*b)
    close(laplacian_loss(pred, torch.zeros(1,2,1,50).double(), kind='mixture'), -p.log().mean(), 1e-12)
    pred[:,2] = 60. # all weight on the component of scale 1
    close(laplacian_loss(pred, torch.zeros(1,2,1,50).double(), kind='mixture'), (e.abs()+math.log(2)).mean(), 1e-12)

def test_mixture_scale_is_clamped():
    p = lambda c: torch.tensor([3.,4.,-1.,c]).reshape(1,4,1,1).double()
    t = torch.zeros(1,2,1,1).double()
    assert laplacian_loss(p(-3.), t, kind='mixture')==laplacian_loss(p(0.), t, kind='mixture')
    assert laplacian_loss(p(30.), t, kind='mixture')==laplacian_loss(p(10.), t, kind='mixture')
    close(flow_uncertainty(p(-3.), 'mixture'), 2) # two components, both of scale 1

@pytest.mark.parametrize('kind', ['laplacian','bounded','bounded2','mixture'])
def test_uncertainty_is_the_error_one_should_expect(kind):
    "Errors drawn from a Laplace distribution: a constant certainty that minimises the loss tells their mean"
    g = seeded()
    u = torch.rand(2, 5000, generator=g, dtype=torch.float64)-.5
    e = -1.3*u.sign()*torch.log1p(-2*u.abs()) # scale 1.3 in u and in v, so 2.6 together
    more = torch.tensor([[0.],[.5]] if kind=='mixture' else [[0.]], dtype=torch.float64, requires_grad=True) # inside the clamp
    opt = torch.optim.LBFGS([more], max_iter=100, line_search_fn='strong_wolfe')
    pred = lambda: torch.cat([e, more.expand(-1,5000)])[None,:,None]
    def closure():
        opt.zero_grad(); loss = laplacian_loss(pred(), torch.zeros(1,2,1,5000).double(), kind=kind); loss.backward(); return loss
    opt.step(closure)
    close(flow_uncertainty(pred().detach(), kind)[0,0,0], e.abs().sum(0).mean(), .02)

# --- On the windows

@pytest.mark.parametrize('kind', KINDS)
@few
@given(**problem, masked=st.booleans())
def test_windows_are_one_row_of_pixels(kind, sizes, B, seed, extra, share, masked):
    g = seeded(seed)
    w = sample_windows(GRID, sizes, B, g, extra=extra)
    maps,flow = make_maps(w, B, kind, g, torch.float64),make_flow(B, g, share).double()
    valid = torch.rand(B, *flow.shape[2:], generator=g)<.5 if masked else None
    row = lambda x: torch.cat([o.flatten(-2) for o in crop_windows(x, w, P)], -1)[...,None,:]
    pred = torch.cat([m.flatten(-2) for m in maps], -1)[...,None,:]
    want = laplacian_loss(pred, row(flow), None if valid is None else row(valid), kind)
    close(flow_loss(maps, flow, w, P, kind, valid), want, 1e-10)
    order = torch.randperm(len(w), generator=g).tolist()
    v = Windows(w.yx[:,order], [w.sizes[i] for i in order], w.grid)
    close(flow_loss([maps[i] for i in order], flow, v, P, kind, valid), want, 1e-10)

@pytest.mark.parametrize('kind', KINDS)
@few
@given(**problem)
def test_gradient_stays_on_answered_pixels(kind, sizes, B, seed, extra, share):
    "Even where the network says NaN at a pixel without an answer"
    g = seeded(seed)
    w = sample_windows(GRID, sizes, B, g, extra=extra)
    flow,maps = make_flow(B, g, share),make_maps(w, B, kind, g)
    cut = [torch.from_numpy(answered(t.numpy())) for t in crop_windows(flow, w, P)]
    for m,ok in zip(maps, cut): m.permute(0,2,3,1)[~ok] = math.nan; m.requires_grad_()
    loss = flow_loss(maps, flow, w, P, kind)
    loss.backward()
    assert loss.isfinite()
    for m,ok in zip(maps, cut):
        size = m.grad.abs().sum(1)
        assert m.grad.isfinite().all() and (size[~ok]==0).all() and (size[ok]>0).all()
    if not any(ok.any() for ok in cut): assert loss==0

@pytest.mark.parametrize('kind', KINDS)
def test_gradcheck(kind):
    g = seeded()
    w = sample_windows((3,4), [(1,1),(1,2)], 2, g)
    flow = make_flow(2, g, .2, (6,8)).double()
    maps = [torch.randn(2, FLOW_CHANNELS[kind], h*2, k*2, generator=g, dtype=torch.float64).requires_grad_() for h,k in w.sizes]
    assert torch.autograd.gradcheck(lambda *m: flow_loss(m, flow, w, 2, kind), maps)

@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('kind', KINDS)
def test_half_precision_maps_are_summed_in_full(kind, dtype):
    g = seeded()
    pred,flow = torch.randn(2, FLOW_CHANNELS[kind], 256, 256, generator=g).to(dtype),torch.randn(2, 2, 256, 256, generator=g)*300
    got = laplacian_loss(pred, flow, kind=kind)
    assert got.dtype==torch.float32
    close(got, laplacian_loss(pred.double(), flow.double(), kind=kind), 1e-5)
    close(flow_loss([pred], flow, Windows.full((16,16), 2), 16, kind), got, 1e-5)
    close(laplacian_loss(pred, flow.half(), kind=kind), got, 1e-3) # flow kept in 16 bits: its square would overflow

@pytest.mark.parametrize('kind', ['bounded','bounded2','mixture','l1'])
@pytest.mark.parametrize('size', [0., 1e-30, 1e-4, 1e3])
def test_bounded_kinds_are_finite_at_extremes(kind, size):
    g = seeded()
    pred = torch.randn(1, FLOW_CHANNELS[kind], 8, 8, generator=g)*size
    pred[:,2:] = torch.randn(pred[:,2:].shape, generator=g)*1e3 # certainty pushed far out
    pred.requires_grad_()
    loss = laplacian_loss(pred, torch.zeros(1,2,8,8), kind=kind)
    loss.backward()
    assert loss.isfinite() and pred.grad.isfinite().all()

@pytest.mark.parametrize('kind', KINDS)
def test_flow_is_learned(kind):
    "Gradient descent finds the flow where there is one, and is not moved by outliers that cannot be fitted"
    g = seeded()
    flow = make_flow(2, g)
    ok = torch.from_numpy(answered(flow.numpy()))
    m = torch.zeros(2, FLOW_CHANNELS[kind], *flow.shape[2:]).requires_grad_()
    opt = torch.optim.Adam([m], lr=.3)
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 300)
    for _ in range(300): opt.zero_grad(); flow_loss([m], flow, Windows.full(GRID, 2), P, kind).backward(); opt.step(); plan.step()
    assert (m[:,:2]-flow).abs().amax(1)[ok].max()<.05

def test_gradient_reaches_a_head():
    g = seeded()
    w = sample_windows(GRID, [(2,2),(1,3)], 2, g, extra=4)
    x = torch.randn(2, w.num_tokens, 8, generator=g).requires_grad_()
    grad, = torch.autograd.grad(flow_loss(LinearHead(8, 3, P)(x, w), make_flow(2, g), w, P), x)
    assert (grad[:,-4:]==0).all() and (grad[:,:-4].abs().sum(-1)>0).all()

def test_one_layout_for_the_whole_batch():
    g = seeded()
    w = sample_windows(GRID, [(2,2),(1,3)], 1, g)
    each = Windows(w.yx.expand(3,-1,-1), w.sizes, w.grid)
    maps,flow = make_maps(w, 3, 'bounded', g),make_flow(3, g)
    assert flow_loss(maps, flow, w, P)==flow_loss(maps, flow, each, P)
    assert torch.equal(match_targets(flow, w, w, P), match_targets(flow, each, each, P))

def test_long_flow_is_no_answer_beyond_max_flow():
    flow = torch.tensor([3.,4.]).reshape(1,2,1,1)
    pred = torch.zeros(1,2,1,1)
    assert laplacian_loss(pred, flow, kind='l1')==3.5 and laplacian_loss(pred, flow, kind='l1', max_flow=5.1)==3.5
    assert laplacian_loss(pred, flow, kind='l1', max_flow=5)==0
    assert flow_loss([pred], flow, Windows.full((1,1)), 1, 'l1', max_flow=5)==0

# --- Matches

def plain_targets(flow, w1, w2, P, valid=None):
    "Token by token, in Python"
    (H,W),out = w1.grid,[]
    inner = w1.num_tokens - (0 if w1.extra is None else w1.extra.shape[1])
    for b in range(len(flow)):
        first,second = (w.positions()[b%w.batch].tolist() for w in (w1,w2))
        row = []
        for i,(y,x) in enumerate(first):
            cy,cx = y*P+P//2,x*P+P//2
            u,v = flow[b,:,cy,cx].tolist()
            ok = math.isfinite(u) and math.isfinite(v) and math.hypot(u, v)<1e4 and i<inner and (valid is None or bool(valid[b,cy,cx]))
            to = [math.floor(y+.5+v/P),math.floor(x+.5+u/P)] if ok else None
            row.append(second.index(to) if to in second else -1)
        out.append(row)
    return torch.tensor(out)

@few
@given(sizes1=layouts, sizes2=layouts, B=st.integers(1,3), seed=st.integers(0,2**31), extra=st.tuples(st.integers(0,3), st.integers(0,3)),
       share=st.sampled_from([0.,.3,1.]), P=st.sampled_from([1,3,4]), masked=st.booleans(), heads=st.integers(0,3))
def test_match_is_plain_cross_entropy(sizes1, sizes2, B, seed, extra, share, P, masked, heads):
    g = seeded(seed)
    w1,w2 = (sample_windows(GRID, s, B, g, extra=e) for s,e in zip((sizes1,sizes2), extra))
    flow = make_flow(B, g, share, (GRID[0]*P,GRID[1]*P)).double()
    valid = torch.rand(B, *flow.shape[2:], generator=g)<.7 if masked else None
    want = plain_targets(flow, w1, w2, P, valid)
    assert torch.equal(match_targets(flow, w1, w2, P, valid), want)
    shape = (B,heads,w1.num_tokens,w2.num_tokens) if heads else (B,w1.num_tokens,w2.num_tokens)
    logits = torch.randn(shape, generator=g, dtype=torch.float64).requires_grad_()
    loss = match_loss(logits, flow, w1, w2, P, valid)
    loss.backward()
    mean = logits.detach().mean(1) if heads else logits.detach()
    rows = [-F.log_softmax(mean[b,i]*max(heads, 1)**.5, 0)[want[b,i]].item() for b,i in (want>=0).nonzero().tolist()]
    close(loss, np.mean(rows) if rows else 0., 1e-10)
    moved = logits.grad.abs().sum(-1) if not heads else logits.grad.abs().sum((1,-1))
    assert logits.grad.isfinite().all() and (moved[want<0]==0).all() # rows without a target are left alone

def test_match_of_still_frames_is_the_token_itself():
    flow = torch.zeros(1, 2, 20, 28)
    full = Windows.full(GRID)
    assert torch.equal(match_targets(flow, full, full, P), torch.arange(35)[None])
    for u,v in ((4.,0.),(0.,-8.),(12.,4.)): # whole tokens: a shift of the grid
        flow[:,0],flow[:,1] = u,v
        want = F.pad(torch.arange(35).reshape(1,5,7), (7,7,7,7), value=-1)[:,7+int(v)//P:12+int(v)//P,7+int(u)//P:14+int(u)//P]
        assert torch.equal(match_targets(flow, full, full, P), want.flatten(1))

def test_match_needs_the_middle_to_cross_a_border():
    "The middle of a 4 px token is 2 px from its border: a move of 2 px to the right reaches the next, 1.99 does not"
    full = Windows.full((1,3))
    to = lambda u: match_targets(torch.tensor([u,0.]).reshape(1,2,1,1).expand(1,2,4,12), full, full, 4)[0,1].item()
    assert [to(u) for u in (-2.01,-2.,0.,1.99,2.)]==[0,1,1,1,2]

def test_match_scale():
    g = seeded()
    w,flow = Windows.full(GRID, 2),torch.randn(2, 2, 20, 28, generator=g)*3
    x = torch.randn(2, 4, 35, 35, generator=g)
    close(match_loss(x, flow, w, w, P), match_loss(x.mean(1), flow, w, w, P, scale=2.))
    close(match_loss(x, flow, w, w, P, scale=1.), match_loss(x.mean(1), flow, w, w, P))
    half = match_loss(x.bfloat16(), flow, w, w, P)
    assert half.dtype==torch.float32
    close(half, match_loss(x.bfloat16().float(), flow, w, w, P))

# --- Bad inputs

W2 = Windows(torch.tensor([[[0,0],[2,3]]]*2), [(2,2),(1,3)], GRID)
FLOW,MASK,MAPS = torch.zeros(2,2,20,28),torch.ones(2,20,28).bool(),[torch.zeros(2,3,8,8),torch.zeros(2,3,4,12)]
common = [(dict(kind='l2'), "kind 'l2' is no flow loss"), (dict(flow=FLOW[0]), r'give floats \(B,2,H,W\)'), (dict(flow=FLOW.long()), 'torch.int64'),
          (dict(flow=FLOW[:,:1]), 'x before y'), (dict(valid=MASK.float()), 'torch.float32'), (dict(valid=MASK[:1]), r'give bool \(2, 20, 28\)')]

@pytest.mark.parametrize('change,message', [*common, (dict(maps=MAPS[:1]), 'one map per window'), (dict(maps=MAPS[::-1]), r'needs \(2,3,8,8\)'),
    (dict(kind='l1'), r'needs \(2,2,8,8\)'), (dict(patch=2), 'pad_to_patches'), (dict(flow=FLOW[:1]), 'does not match')])
def test_flow_loss_refuses(change, message):
    args = dict(maps=MAPS, flow=FLOW, windows=W2, patch=P)
    flow_loss(**args)
    with pytest.raises(ValueError, match=message): flow_loss(**args|change)

@pytest.mark.parametrize('change,message', [*common, (dict(pred=FLOW), r"kind 'bounded' needs \(2, 3, 20, 28\)"), (dict(pred=torch.zeros(2,3,20,20)), 'the size of the flow'),
    (dict(kind='mixture'), r'needs \(2, 4, 20, 28\)')])
def test_laplacian_loss_refuses(change, message):
    args = dict(pred=torch.zeros(2,3,20,28), flow=FLOW)
    laplacian_loss(**args)
    with pytest.raises(ValueError, match=message): laplacian_loss(**args|change)

@pytest.mark.parametrize('change,message', [*common[1:], (dict(logits=torch.zeros(2,7,6)), 'queries before keys'), (dict(logits=torch.zeros(7,7)), r'need \(2, 7, 7\)'), (dict(logits=torch.zeros(1,3,7,7)), 'heads'),
    (dict(patch=2), 'does not match'), (dict(windows2=Windows(W2.yx, W2.sizes, (5,8))), 'both frames of a pair'),
    (dict(windows2=sample_windows(GRID, W2.sizes, 3)), 'one flow of 20x28')])
def test_match_loss_refuses(change, message):
    args = dict(logits=torch.zeros(2,3,7,7), flow=FLOW, windows1=W2, windows2=W2, patch=P)
    match_loss(**args)
    with pytest.raises(ValueError, match=message): match_loss(**args|change)

def test_uncertainty_refuses():
    with pytest.raises(ValueError, match='no certainty'): flow_uncertainty(FLOW, 'l1')
    with pytest.raises(ValueError, match=r'needs \(B,4,H,W\)'): flow_uncertainty(FLOW, 'mixture')
    with pytest.raises(ValueError, match='take one of'): flow_uncertainty(FLOW, 'l2')
