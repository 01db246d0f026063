"Augmentation of pairs: the flow stays right, whatever is drawn."
import pytest, torch
from torch.utils.data import DataLoader
from winwin.data.augment import FlowAugment, fit_to_patches, resize_flow, resize_item
from winwin.data.pictures import warp
from winwin.worlds.datasets import DrivingWorld, LayeredFlow

STILL = dict(scale_p=0, stretch_p=0, flip=0, flip_y=0, jitter_p=0, erase=0)
def gen(seed=0): return torch.Generator().manual_seed(seed)
def only(item, seed=0, **kw): return FlowAugment(**STILL | kw)(item, gen(seed))
@pytest.fixture(scope='module')
def pairs(): return [LayeredFlow((96,128), light=0, noise=0, seed=9)[i] for i in range(6)]
@pytest.fixture(scope='module')
def pair(pairs): return pairs[0]

def agree(o, move=0.):
    back = warp(o['image2'][None], o['flow'][None]+move)[0]
    return (back-o['image']).abs().mean(0)[o['visible'] & o['valid']].mean()
def same(a, b): return a.keys()==b.keys() and all(torch.equal(a[k], b[k]) for k in a)

# The flow stays right

CASES = dict(flip=dict(flip=1), flip_y=dict(flip_y=1), twice=dict(scale=(2,2), scale_p=1), larger=dict(scale=(1.37,1.37), scale_p=1),
             smaller=dict(scale=(.6,.6), scale_p=1), stretch=dict(scale=(1,1), scale_p=1, stretch=(.7,1.5), stretch_p=1), crop=dict(size=(48,80)),
             crop_scaled=dict(size=(64,64), scale=(.8,1.6), scale_p=1, stretch_p=1), larger_crop=dict(size=(200,130)),
             jitter=dict(jitter_p=1, asymmetric=0), erase=dict(erase=1), all={k: 1 for k in STILL})

@pytest.mark.parametrize('case', CASES)
def test_warp_agrees_as_before(pairs, case):
    kw = CASES[case] | dict(asymmetric=0)
    out = [only(o, i, **kw) for i,o in enumerate(pairs)]
    mean = lambda f,x: sum(map(f, x))/len(x)
    before,after,moved = mean(agree, pairs),mean(agree, out),mean(lambda o: agree(o, 1.), out)
    assert after<1.5*before+.004 and after<.5*moved
    for o in out:
        size = kw.get('size', (96,128))
        assert o['image'].shape==o['image2'].shape==(3,*size) and o['flow'].shape==(2,*size) and o['valid'].shape==o['visible'].shape==size
        assert not (o['visible'] & ~o['valid']).any() and (o['flow'][:,~o['valid']]==0).all()
        assert -1e-5<o['image2'].min() and o['image2'].max()<1+1e-5 # resizing rounds

def test_flips_are_exact(pair):
    x,y = only(pair, flip=1),only(pair, flip_y=1)
    assert torch.equal(x['flow'][0], -pair['flow'][0].flip(-1)) and torch.equal(x['flow'][1], pair['flow'][1].flip(-1))
    assert torch.equal(y['flow'][1], -pair['flow'][1].flip(-2)) and torch.equal(y['flow'][0], pair['flow'][0].flip(-2))
    for k in ('image','image2','visible','valid'): assert torch.equal(x[k], pair[k].flip(-1)) and torch.equal(y[k], pair[k].flip(-2))
    assert same(only(x, flip=1), pair) and same(only(y, flip_y=1), pair)

def test_twice_is_exact(pair):
    "Vectors of blocks of equal flow double; places, too"
    flow = torch.randn(2,12,16, generator=gen()).mul(20).repeat_interleave(8, 1).repeat_interleave(8, 2)
    out = only(pair | dict(flow=flow), scale=(2,2), scale_p=1)
    assert any(torch.equal(out['flow'], 2*flow[:,y:y+48,x:x+64].repeat_interleave(2, 1).repeat_interleave(2, 2)) for y in range(49) for x in range(65))

def test_crop_moves_nothing_but_the_frame(pair):
    out = only(pair, 3, size=(40,56))
    y,x = next((y,x) for y in range(57) for x in range(73) if torch.equal(out['image'], pair['image'][:,y:y+40,x:x+56]))
    for k in ('image2','flow','valid'): assert torch.equal(out[k], pair[k][...,y:y+40,x:x+56])
    inside = lambda f: torch.stack([torch.arange(56)+.5+f[0], (torch.arange(40)+.5)[:,None]+f[1]])
    ex,ey = inside(out['flow'])
    want = pair['visible'][y:y+40,x:x+56] & (ex>=0) & (ex<=56) & (ey>=0) & (ey<=40)
    assert torch.equal(out['visible'], want)

def test_stretch_scales_each_axis(pair):
    flat = pair | dict(flow=torch.tensor([4.,-3.]).view(2,1,1).expand(2,96,128))
    out = only(flat, 1, scale=(1,1), scale_p=1, stretch=(1.2,1.8), stretch_p=1)
    u,v = out['flow'].flatten(1).unique(dim=1).T[0].tolist()
    assert 1.15<u/4<1.85 and 1.15<v/-3<1.85 and abs(u/4-v/-3)>.01 and out['flow'].flatten(1).std(1).max()<1e-5

def test_eraser(pair):
    out = only(pair, erase=1)
    lost = (out['image2']!=pair['image2']).any(0)
    assert .005<lost.float().mean()<.15 and torch.equal(out['image'], pair['image']) and torch.equal(out['flow'], pair['flow'])
    y,x = (pair['visible'] & ~out['visible']).nonzero().T
    ex,ey = (x+.5+pair['flow'][0,y,x]),(y+.5+pair['flow'][1,y,x])
    at = lambda e,n: e.floor().long().clamp(0, n-1)
    near = torch.nn.functional.max_pool2d(lost[None].float(), 3, 1, 1)[0]>0
    assert len(y) and near[at(ey,96),at(ex,128)].all()

def test_jitter_symmetric_and_not(pair):
    twin = pair | dict(image2=pair['image'].clone())
    a,b = only(twin, jitter_p=1, asymmetric=0),only(twin, jitter_p=1, asymmetric=1)
    assert torch.equal(a['image'], a['image2']) and not torch.equal(a['image'], pair['image'])
    assert torch.equal(b['image'], a['image']) and not torch.equal(b['image'], b['image2'])

# Sparse flow

@pytest.mark.parametrize('s', [.5,.8,1.3,2.])
def test_sparse_flow_is_never_interpolated(pair, s):
    keep = torch.rand(96,128, generator=gen(1))<.15
    flow = torch.where(keep, torch.randint(-50, 50, (2,96,128), generator=gen(2)).float(), torch.inf)
    for sparse in (pair | dict(flow=flow, valid=keep), {k: v for k,v in pair.items() if k!='valid'} | dict(flow=flow)):
        out = only(sparse, scale=(s,s), scale_p=1)
        assert out['flow'].isfinite().all() and out['valid'].any() and out['valid'].dtype==torch.bool
        got = out['flow'][:,out['valid']]
        base = got/s
        assert ((base-base.round()).abs()<.03*base.abs()+1e-3).float().mean()>.9
        assert (out['flow'][:,~out['valid']]==0).all()
        share = out['valid'].float().mean()/min(1, s*s)
        assert .1<share<.2

def test_valid_that_is_not_finite_is_not_valid(pair):
    flow = pair['flow'].clone()
    flow[:,:20] = torch.nan
    out = only(pair | dict(flow=flow), scale=(1.4,1.4), scale_p=1)
    assert out['flow'].isfinite().all() and not (out['valid'] & (out['flow']==0).all(0)).any()

# resize_flow, resize_item, fit_to_patches

@pytest.mark.parametrize('size', [(96,128), (192,256), (48,64), (61,333), (7,5), (1,1)], ids=str)
def test_resize_pair(pair, size):
    H,W = size
    out = resize_item(pair, size)
    assert out['flow'].shape==(2,H,W) and out['image2'].shape==(3,H,W) and out['visible'].shape==out['valid'].shape==(H,W)
    if size==(96,128): assert torch.equal(out['flow'], pair['flow'])
    flat = torch.tensor([3.,-5.]).view(2,1,1).expand(2,96,128)
    assert torch.allclose(resize_flow(flat, size), flat.new_tensor([3*W/128,-5*H/96]).view(2,1,1).expand(2,H,W), rtol=1e-5)

def test_resized_pair_warps(pairs):
    for size in ((144,192), (64,100)):
        out = [resize_item(o, size) for o in pairs]
        assert sum(map(agree, out))<1.5*sum(map(agree, pairs))+.03 and sum(map(agree, out))<.5*sum(agree(o, 1.) for o in out)

def test_resize_mixes_no_motions():
    flow = torch.zeros(2,30,40)
    flow[:,10:20,13:29] = torch.tensor([7.,-4.])[:,None,None]
    for size in ((60,80), (45,60), (20,27)):
        out = resize_flow(flow, size)/torch.tensor([size[1]/40,size[0]/30])[:,None,None]
        assert torch.isclose(out[0], torch.tensor(7.)).logical_or(out[0]==0).all()
    smooth = torch.stack(torch.meshgrid(torch.arange(40.)*.1, torch.arange(30.)*.2, indexing='xy'))
    want = torch.nn.functional.interpolate(smooth[None], (60,80), mode='bilinear')[0]*2
    assert torch.allclose(resize_flow(smooth, (60,80)), want, atol=1e-5)

@pytest.mark.parametrize('valid', [False,True])
def test_padding_has_no_answer(pair, valid):
    item = {k: v[...,:90,:121] for k,v in pair.items() if valid or k!='valid'}
    out = fit_to_patches(item, 16)
    assert out['image2'].shape==(3,96,128) and torch.equal(out['flow'][:,:90,:121], item['flow'])
    for k in ('valid','visible'): assert not out[k][90:].any() and not out[k][:,121:].any()
    assert out['valid'][:90,:121].all() and (out['flow'][:,90:]==0).all() and torch.equal(out['visible'][:90,:121], item['visible'])
    assert torch.equal(out['image2'][:,95,:121], item['image2'][:,89])

def test_sizes_that_differ_are_refused(pair):
    bad = pair | dict(flow=pair['flow'][:,:50])
    for f in (FlowAugment(), fit_to_patches, lambda o: resize_item(o, (8,8))):
        with pytest.raises(ValueError, match='flow is'): f(bad)

# Everything else

def test_streets_with_labels_and_depth():
    item = DrivingWorld((48,80), pair=True)[0]
    out = FlowAugment(scale=(.6,.6), scale_p=1)(item, gen())
    assert out['labels'].dtype==torch.uint8 and (out['labels'][~out['valid']]==255).float().mean()>.5
    assert out.keys()==item.keys() and out['depth'].shape==(48,80)

def test_frames_without_flow(pair):
    out = FlowAugment(size=(32,32))(dict(image=pair['image'], image2=pair['image2'], name='a'), gen())
    assert out.keys()=={'image','image2','name'} and out['image2'].shape==(3,32,32)

def test_the_item_is_left_alone(pair):
    copy = {k: v.clone() for k,v in pair.items()}
    for i in range(8): FlowAugment(scale=(.5,2), flip_y=.5, erase=1)(pair, gen(i))
    assert same(copy, pair)

def test_deterministic(pair):
    a = FlowAugment()
    assert same(a(pair, gen(4)), a(pair, gen(4))) and not same(a(pair, gen(4)), a(pair, gen(5)))
    torch.manual_seed(1); x = a(pair); torch.manual_seed(1); assert same(x, a(pair))
    assert torch.equal(FlowAugment(jitter_p=0, erase=0)(pair, gen(4))['flow'], a(pair, gen(4))['flow'])

def test_shares_are_as_asked(pair):
    small = {k: v[...,:16,:16] for k,v in pair.items()}
    a = FlowAugment(**STILL | dict(flip=.3)); g = gen(0)
    n = sum(torch.equal(a(small, g)['image'], small['image'].flip(-1)) for _ in range(400))
    assert 90<n<150

class Augmented(torch.utils.data.Dataset):
    def __init__(self): self.data,self.augment = LayeredFlow((48,64), length=4),FlowAugment((32,48))
    def __len__(self): return 4
    def __getitem__(self, i): return self.augment(self.data[i], gen(i))

def test_in_workers():
    a,b = (list(DataLoader(Augmented(), 2, num_workers=n)) for n in (0,2))
    assert all(map(same, a, b))

@pytest.mark.parametrize('kw', [dict(scale=(2,1)), dict(scale=(0,1)), dict(stretch=(1,)), dict(flip=2), dict(erase=-1), dict(asymmetric=1.5), dict(jitter=(1,1,1)),
                                dict(jitter=(1,1,1,.6)), dict(size=(0,4)), dict(size=(4,))], ids=str)
def test_bad_arguments(kw):
    with pytest.raises(ValueError, match=next(iter(kw))): FlowAugment(**kw)
