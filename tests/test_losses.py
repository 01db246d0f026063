"Losses: the plain loss on the windows' pixels, whatever the windows, types and devices; finite everywhere."
import math
import numpy as np
import pytest, torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from winwin.tasks.segmentation import SEG_LOSSES, seg_loss
from winwin.tasks.depth import depth_loss
from winwin.models.heads import LinearHead
from winwin.windows.layout import Windows, crop_windows
from winwin.windows.sampling import sample_windows

P,C,GRID = 4,5,(5,7)
KINDS = 'silog','berhu','l1'

def seeded(seed=0): return torch.Generator().manual_seed(seed)
def close(a, b, tol=1e-5): assert abs(float(a)-float(b))<=tol*max(1, abs(float(b))), (float(a), float(b))
def make_maps(w, B, channels, g, dtype=torch.float32, scale=1.):
    return [(torch.randn(B, channels, h*P, k*P, generator=g)*scale).to(dtype) for h,k in w.sizes]
def make_labels(B, g, ignored=.2):
    t = torch.randint(0, C, (B,GRID[0]*P,GRID[1]*P), generator=g)
    t[torch.rand(t.shape, generator=g)<ignored] = 255
    return t
def make_depth(B, g, missing=.2):
    t = torch.rand(B, GRID[0]*P, GRID[1]*P, generator=g)*50 + .5
    u = torch.rand(t.shape, generator=g)
    for i,v in enumerate((math.inf, 0., -1., math.nan)): t[(u>=missing*i/4) & (u<missing*(i+1)/4)] = v
    return t
def leaves(maps): return [m.clone().requires_grad_() for m in maps]

layouts = st.lists(st.tuples(st.integers(1,2), st.integers(1,3)), min_size=1, max_size=3)
problem = dict(sizes=layouts, B=st.integers(1,3), seed=st.integers(0,2**31), extra=st.integers(0,3), share=st.sampled_from([0.,.3,.95,1.]))
few = settings(max_examples=40, deadline=None)

# --- Segmentation

@few
@given(**problem, weighted=st.booleans(), smoothing=st.sampled_from([0.,.1]))
def test_seg_is_cross_entropy_of_all_pixels(sizes, B, seed, extra, share, weighted, smoothing):
    g = seeded(seed)
    w = sample_windows(GRID, sizes, B, g, extra=extra)
    maps,labels = make_maps(w, B, C, g, torch.float64),make_labels(B, g, share)
    weight = torch.rand(C, generator=g).double()+.1 if weighted else None
    got = seg_loss(maps, labels, w, P, weight=weight, label_smoothing=smoothing)
    row = torch.cat([m.flatten(2) for m in maps], 2)
    t = torch.cat([o.flatten(1) for o in crop_windows(labels, w, P)], 1)
    want = F.cross_entropy(row, t, weight, ignore_index=255, label_smoothing=smoothing)
    if (t==255).all(): assert got==0 and want.isnan()
    else: close(got, want, 1e-12)

@few
@given(**problem)
def test_seg_gradient_stays_on_valid_pixels(sizes, B, seed, extra, share):
    g = seeded(seed)
    w = sample_windows(GRID, sizes, B, g, extra=extra)
    maps,labels = leaves(make_maps(w, B, C, g)),make_labels(B, g, share)
    seg_loss(maps, labels, w, P).backward()
    for m,t in zip(maps, crop_windows(labels, w, P)):
        size = m.grad.abs().sum(1)
        assert (size[t==255]==0).all() and (size[t!=255]>0).all()

@pytest.mark.parametrize('dtype', [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64])
def test_labels_of_any_integer_type(dtype):
    g = seeded()
    w,ignore = sample_windows(GRID, [(2,2),(1,3)], 2, g),127
    maps,labels = make_maps(w, 2, C, g),make_labels(2, g)
    close(seg_loss(maps, labels.where(labels<C, ignore).to(dtype), w, P, ignore=ignore), seg_loss(maps, labels, w, P), 0)

@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_maps_are_summed_in_full(dtype):
    "The sum over half a million pixels would overflow 16 bits and lose 8-bit mantissas"
    g,w = seeded(),Windows.full((16,16), 2)
    maps,labels = [torch.randn(2, 3, 512, 512, generator=g).to(dtype)],torch.randint(0, 3, (2,512,512), generator=g)
    want = F.cross_entropy(maps[0].double(), labels)
    got = seg_loss(maps, labels, w, 32)
    assert got.dtype==torch.float32
    close(got, want, 1e-6)
    depth = torch.rand(2, 512, 512, generator=g)+1
    maps = [maps[0][:,:1]]
    for kind in KINDS: close(depth_loss(maps, depth, w, 32, kind), depth_loss([maps[0].double()], depth.double(), w, 32, kind), 1e-5)

def test_one_layout_for_the_whole_batch():
    g = seeded()
    w = sample_windows(GRID, [(2,2),(1,3)], 1, g)
    each = Windows(w.yx.expand(3,-1,-1), w.sizes, w.grid)
    maps,labels = make_maps(w, 3, C, g),make_labels(3, g)
    assert seg_loss(maps, labels, w, P)==seg_loss(maps, labels, each, P)
    maps,depth = make_maps(w, 3, 1, g),make_depth(3, g)
    assert depth_loss(maps, depth, w, P)==depth_loss(maps, depth, each, P)

def test_gradient_reaches_a_head():
    "From tokens with extra ones: those get exactly no gradient"
    g = seeded()
    w = sample_windows(GRID, [(2,2),(1,3)], 2, g, extra=4)
    x = torch.randn(2, w.num_tokens, 8, generator=g).requires_grad_()
    for loss in (lambda m: seg_loss(m, make_labels(2, g), w, P), lambda m: depth_loss([o[:,:1] for o in m], make_depth(2, g), w, P)):
        grad, = torch.autograd.grad(loss(LinearHead(8, C, P)(x, w)), x)
        assert (grad[:,-4:]==0).all() and (grad[:,:-4].abs().sum(-1)>0).all()

def test_seg_gradcheck():
    g = seeded()
    w = sample_windows((3,4), [(1,1),(1,2)], 2, g)
    labels = torch.randint(0, 3, (2,6,8), generator=g); labels[:,::2] = 255
    maps = [torch.randn(2, 3, h*2, k*2, generator=g, dtype=torch.float64).requires_grad_() for h,k in w.sizes]
    weight = torch.tensor([.5,1,2]).double()
    assert torch.autograd.gradcheck(lambda *m: seg_loss(m, labels, w, 2, weight=weight, label_smoothing=.1), maps)

# --- Depth

def oracle(kind, maps, depth, w, lam=.15, valid=None):
    "Plain numpy, image by image"
    out = []
    for i in range(len(depth)):
        g = []
        for m,(y,x),(h,k) in zip(maps, w.yx[i].tolist(), w.sizes):
            box = slice(y*P, (y+h)*P),slice(x*P, (x+k)*P)
            t,p = depth[i][box].double().numpy(),m[i,0].detach().double().numpy()
            ok = np.isfinite(t) & (t>0) & (True if valid is None else valid[i][box].numpy())
            g.append(p[ok]-np.log(t[ok]))
        g = np.concatenate(g)
        if not len(g): continue
        a,c = np.abs(g),max(.2*np.abs(g).max(), 1e-5)
        out.append(dict(l1=a.mean(), berhu=np.where(a<=c, a, (a**2+c**2)/(2*c)).mean(), silog=np.sqrt(g.var()+lam*g.mean()**2))[kind])
    return np.mean(out) if out else 0.

@pytest.mark.parametrize('kind', KINDS)
@few
@given(**problem, lam=st.sampled_from([0.,.15,1.]), masked=st.booleans())
def test_depth_matches_numpy(kind, sizes, B, seed, extra, share, lam, masked):
    g = seeded(seed)
    w = sample_windows(GRID, sizes, B, g, extra=extra)
    maps,depth = make_maps(w, B, 1, g, torch.float64),make_depth(B, g, share).double()
    valid = torch.rand(depth.shape, generator=g)<.5 if masked else None
    want = oracle(kind, maps, depth, w, lam, valid)
    close(depth_loss(maps, depth, w, P, kind, valid, lam), want, 1e-10)
    close(depth_loss(maps, depth[:,None], w, P, kind, None if valid is None else valid[:,None], lam), want, 1e-10)
    order = torch.randperm(len(w), generator=g).tolist()
    v = Windows(w.yx[:,order], [w.sizes[i] for i in order], w.grid)
    close(depth_loss([maps[i] for i in order], depth, v, P, kind, valid, lam), want, 1e-10)

@pytest.mark.parametrize('kind', KINDS)
@few
@given(**problem)
def test_depth_gradient_is_finite_and_on_valid_pixels(kind, sizes, B, seed, extra, share):
    "Even where the network's answer at a pixel without truth is NaN"
    g = seeded(seed)
    w = sample_windows(GRID, sizes, B, g, extra=extra)
    depth,maps = make_depth(B, g, share),make_maps(w, B, 1, g)
    cut = [t.isfinite() & (t>0) for t in crop_windows(depth, w, P)]
    for m,ok in zip(maps, cut): m[:,0][~ok] = math.nan
    maps = leaves(maps)
    loss = depth_loss(maps, depth, w, P, kind)
    loss.backward()
    assert loss.isfinite()
    for m,ok in zip(maps, cut): assert m.grad.isfinite().all() and (m.grad[:,0][~ok]==0).all()
    if not any(ok.any() for ok in cut): assert loss==0

@pytest.mark.parametrize('lam', [0.,.15,1.])
def test_silog_gradcheck(lam):
    g = seeded()
    w = sample_windows((3,4), [(1,1),(1,2)], 2, g)
    depth = torch.rand(2, 6, 8, generator=g).double()+.5; depth[:,::3] = math.inf
    maps = [torch.randn(2, 1, h*2, k*2, generator=g, dtype=torch.float64).requires_grad_() for h,k in w.sizes]
    assert torch.autograd.gradcheck(lambda *m: depth_loss(m, depth, w, 2, lam=lam), maps)
    assert torch.autograd.gradcheck(lambda *m: depth_loss(m, depth, w, 2, 'l1'), maps)

def test_berhu_gradient():
    "Sign below c, g/c above; c itself is constant, or the largest error would gain from growing"
    g = torch.tensor([0.,.1,-.15,.5,-1.,.2]).double()
    m = g.reshape(1,1,2,3).clone().requires_grad_()
    depth_loss([m], torch.ones(1,2,3).double(), Windows.full((2,3)), 1, 'berhu').backward()
    assert torch.allclose(m.grad.flatten()*6, torch.tensor([0.,1,-1,2.5,-5,1]).double())

@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('error', [0., 1e-30, 1e-8, 1e-4, 50.])
def test_gradients_at_extreme_errors(kind, error):
    g = seeded()
    m = (torch.randn(2, 1, 8, 8, generator=g)*error).requires_grad_()
    loss = depth_loss([m], torch.ones(2,8,8), Windows.full((2,2), 2), 4, kind)
    loss.backward()
    assert loss.isfinite() and m.grad.isfinite().all()
    if error==0: assert loss==0 and (m.grad==0).all()
    if kind=='silog': assert m.grad.flatten(1).norm(dim=1).max()<=1.01/2/8 # slope of a root mean square: 1/sqrt(n), over 2 images

def test_silog_weighs_scale_against_shape():
    g = seeded()
    w = sample_windows(GRID, [(2,2),(1,3)], 2, g)
    depth = make_depth(2, g, 0.)
    perfect = [t.log()[:,None] for t in crop_windows(depth, w, P)]
    noisy = [m+torch.randn(m.shape, generator=g)*.1 for m in perfect]
    for f in (.5, 3.):
        shift = [m+math.log(f) for m in noisy]
        close(depth_loss(shift, depth, w, P, lam=0.), depth_loss(noisy, depth, w, P, lam=0.))
        close(depth_loss(noisy, depth/f, w, P, lam=0.), depth_loss(noisy, depth, w, P, lam=0.))
        close(depth_loss([m+math.log(f) for m in perfect], depth, w, P), math.sqrt(.15)*abs(math.log(f)))

@pytest.mark.parametrize('kind', KINDS)
def test_depth_is_learned(kind):
    "Gradient descent from a constant finds the truth where there is one"
    g = seeded()
    depth = make_depth(2, g)
    w,m = Windows.full(GRID, 2),torch.zeros(2, 1, GRID[0]*P, GRID[1]*P, requires_grad=True)
    opt = torch.optim.Adam([m], lr=.1)
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 300)
    for _ in range(300):
        opt.zero_grad(); depth_loss([m], depth, w, P, kind).backward(); opt.step(); plan.step()
    ok = depth.isfinite() & (depth>0)
    assert (m[:,0].exp()/depth-1)[ok].abs().max()<.05

# --- Bad inputs

W2 = Windows(torch.tensor([[[0,0],[2,3]]]*2), [(2,2),(1,3)], GRID)
full_labels, full_depth = torch.zeros(2,20,28).long(),torch.ones(2,20,28)
seg_maps = [torch.zeros(2,C,8,8), torch.zeros(2,C,4,12)]
depth_maps = [torch.zeros(2,1,8,8), torch.zeros(2,1,4,12)]

@pytest.mark.parametrize('change,message', [
    (dict(maps=[]), '0 maps'), (dict(maps=seg_maps[:1]), 'one map per window'), (dict(maps=seg_maps[0]), 'one tensor'),
    (dict(maps=seg_maps[::-1]), r'map 0 has shape \(2, 5, 4, 12\).*needs \(2,C,8,8\)'), (dict(patch=2), 'does not match'),
    (dict(maps=[m[:1] for m in seg_maps]), 'map 0'), (dict(maps=[m[0] for m in seg_maps]), 'map 0'),
    (dict(labels=full_labels[:1]), 'does not match'), (dict(labels=full_labels[0]), 'give integers'), (dict(labels=full_labels.float()), 'give integers'),
    (dict(labels=full_labels-1), 'label -1 is none of the 5 classes'), (dict(labels=full_labels+5), 'label 5'),
    (dict(labels=full_labels+255, ignore=254), 'label 255 .* ignore=254')])
def test_seg_refuses(change, message):
    args = dict(maps=seg_maps, labels=full_labels, windows=W2, patch=P)
    seg_loss(**args)
    with pytest.raises(ValueError, match=message): seg_loss(**args|change)

@pytest.mark.parametrize('change,message', [
    (dict(maps=seg_maps), r'needs \(2,1,8,8\)'), (dict(maps=depth_maps[0]), 'one tensor'), (dict(kind='sig'), "kind 'sig'"), (dict(lam=-.1), 'lam -0.1'),
    (dict(depth=full_depth[0]), r'give \(B,H\*P,W\*P\)'), (dict(depth=full_depth[:,None].expand(2,3,20,28)), 'depth has shape'),
    (dict(depth=full_depth[:,:-1]), 'pad_to_patches'), (dict(valid=full_depth), 'give bool'), (dict(valid=full_depth[:1].bool()), 'shaped like depth')])
def test_depth_refuses(change, message):
    args = dict(maps=depth_maps, depth=full_depth, windows=W2, patch=P)
    depth_loss(**args)
    with pytest.raises(ValueError, match=message): depth_loss(**args|change)

# --- losses of segmentation for rare classes

def seg_case():
    g = torch.Generator().manual_seed(0)
    w = sample_windows((4,6), [(2,2),(1,3)], 2, g)
    labels = torch.randint(0, 4, (2,32,48), generator=g)
    labels[:,:9] = 255
    return [torch.randn(2,4,h*8,w_*8, generator=g, dtype=torch.float64) for h,w_ in w.sizes],labels,w

@pytest.mark.parametrize('weight', [None, torch.tensor([1.,2.,.5,4.])])
def test_focal_and_ohem_and_dice_by_hand(weight):
    maps,labels,w = seg_case()
    t = torch.cat([o.flatten(1) for o in crop_windows(labels, w, 8)], 1).flatten()
    logits = torch.cat([m.flatten(2) for m in maps], 2).movedim(1, -1).reshape(-1, 4)[t!=255]
    t = t[t!=255]
    p = logits.softmax(1)
    mine = p.gather(1, t[:,None])[:,0]
    ws = torch.ones(len(t), dtype=torch.float64) if weight is None else weight.double()[t]
    ce = (ws*-mine.log()).sum()/ws.sum()
    true = torch.nn.functional.one_hot(t, 4)
    dice = (1-(2*(p*true).sum(0)+1)/(p.sum(0)+true.sum(0)+1)).mean()
    hard = (mine<.7) | (mine<=mine.sort().values[len(t)//16])
    wanted = {'ce': ce, 'ce+dice': ce+dice, 'focal': (ws*(1-mine)**2*-mine.log()).sum()/ws.sum(),
              'ohem': ((ws*-mine.log())[hard]).sum()/ws[hard].sum()}
    for kind,value in wanted.items(): torch.testing.assert_close(seg_loss(maps, labels, w, 8, weight=weight, kind=kind), value, atol=1e-9, rtol=1e-6)

@pytest.mark.parametrize('kind', SEG_LOSSES)
def test_no_labels_no_loss(kind):
    maps,labels,w = seg_case()
    for m in maps: m.requires_grad_()
    loss = seg_loss(maps, torch.full_like(labels, 255), w, 8, kind=kind)
    loss.backward()
    assert loss.item()==0 and all(m.grad.isfinite().all() for m in maps)
