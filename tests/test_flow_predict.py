"Optical flow of pairs: full, tiles and copies, files and videos, submissions, the command"
import math
import numpy as np, pytest, torch, torch.nn as nn, torch.nn.functional as F
from winwin import create_model, flow_uncertainty, flow_weights, predict_flow, tile_offsets

@pytest.fixture(scope='module')
def model():
    torch.manual_seed(0)
    return create_model('winwin_flow_micro', relative=True, dim=48, depth=2, num_heads=3, decoder=dict(dim=48, depth=2, num_heads=3)).requires_grad_(False)

def pair(h=40, w=56, B=1, seed=0): return torch.rand(2,B,3,h,w, generator=torch.Generator().manual_seed(seed))

class Pointwise(nn.Module):
    "Flow by the colours of a pixel in both frames, certainty by the third channel: all ways to read must agree"
    patch_size = 8
    def forward(self, a, b, windows1=None, windows2=None): return [torch.cat([10*a[:,:2]-5*b[:,1:], 4*b[:,2:]-2], 1)]

class Moody(nn.Module):
    "An answer that depends on the whole tile, so that tiles disagree; `channels` of certainty"
    patch_size = 8
    def __init__(self, channels=1):
        super().__init__()
        self.channels = channels
    def forward(self, a, b, windows1=None, windows2=None):
        m = a.mean((1,2,3), keepdim=True)
        return [torch.cat([9*(a-b)[:,:2]+30*m, (8*b-6*m)[:,:self.channels]], 1)]

# --- The full pass

@pytest.mark.parametrize('head', ['dpt', 'decoupled', 'convnext', 'linear'])
@pytest.mark.parametrize('h,w', [(40,56), (37,50), (8,8), (9,120)])
def test_full_is_the_models_own_pass(head, h, w):
    "Padded by repeating the border, cut back, in bands of any height; flow_scale included; nothing is left behind"
    torch.manual_seed(0)
    m = create_model('winwin_flow_micro', head=head, flow_scale=3., dim=48, depth=2, num_heads=3, decoder=dict(dim=48, depth=2, num_heads=3)).requires_grad_(False)
    a,b = pair(h, w, B=2)
    pad = lambda x: F.pad(x, (0,-w%8,0,-h%8), mode='replicate')
    want = m(pad(a), pad(b))[0][...,:h,:w]
    for rows in ('auto',None,1,2,100):
        got = predict_flow(m, a, b, rows=rows)
        assert got.shape==(2,3,h,w) and not got.requires_grad and torch.allclose(got, want, atol=1e-5)
    assert m.training and 'predict' not in vars(m.head)

def test_rows_of_sintel_and_full_hd():
    "436 and 1080 rows: whole patches of 16 inside, every row of the frame in the answer"
    for h in (436, 1080):
        a,b = pair(h, 16)
        got = predict_flow(Wide(), a, b)
        assert got.shape==(1,3,h,16) and torch.equal(got[0,0], torch.arange(h).float()[:,None].expand(h,16))

class Wide(nn.Module):
    "The row of every pixel as flow; refuses what is not divisible by 16"
    patch_size = 16
    def forward(self, a, b, windows1=None, windows2=None):
        assert a.shape==b.shape and a.shape[-2]%16==0 and a.shape[-1]%16==0
        return [torch.arange(a.shape[-2]).float()[:,None].expand(len(a),3,*a.shape[-2:])]

def test_the_order_of_frames_counts(model):
    a,b = pair()
    assert not torch.allclose(predict_flow(model, a, b), predict_flow(model, b, a), atol=1e-3)

# --- Tiles

def test_weights_by_hand():
    m = torch.zeros(2,3,4,5)
    m[:,2] = torch.linspace(-8, 8, 40).view(2,4,5)
    for b,s in ((10.,5.), (15.,3.)):
        want = torch.tensor([math.exp(-2*b*(1/(1+math.exp(-c/s))-.5)) for c in m[:,2].flatten().tolist()]).view(2,1,4,5)
        assert torch.allclose(flow_weights(m, b=b, s=s), want, rtol=1e-4)
    assert flow_weights(m.half()).dtype==torch.float32
    four = torch.randn(2,4,4,5)
    want = (-20*((flow_uncertainty(four, 'mixture').log()/5).sigmoid()-.5)).exp()[:,None]
    assert torch.allclose(flow_weights(four), want)
    for C in (2,5):
        with pytest.raises(ValueError, match=f'not {C} channels'): flow_weights(torch.zeros(1,C,2,2))
    with pytest.raises(ValueError, match='use uniform'): flow_weights(m, 'gauss')

def test_one_tile_is_the_full_pass(model):
    a,b = pair(B=2)
    full = predict_flow(model, a, b)
    for k in ('confidence','uniform','taper'): assert torch.allclose(predict_flow(model, a, b, 'tile', (40,56), weights=k), full, atol=1e-5)

@pytest.mark.parametrize('kind', ['confidence', 'uniform', 'taper', 'own'])
@pytest.mark.parametrize('size,overlap,tiles,B', [((16,24), 0., 1, 2), ((16,24), .5, 4, 1), ((24,32), .8, 5, 2)])
def test_tiles_are_a_weighted_mean(kind, size, overlap, tiles, B):
    "Against a loop; both frames are cut at the same place"
    (a,b),m = pair(29, 41, B, seed=1),Moody()
    own = lambda m: (-.5*m[:,2:3]).exp()
    weigh = own if kind=='own' else lambda x: flow_weights(x, kind)
    num,den = torch.zeros(B,3,29,41, dtype=torch.double),torch.zeros(B,1,29,41, dtype=torch.double)
    for y in tile_offsets(29, size[0], overlap):
        for x in tile_offsets(41, size[1], overlap):
            cut = lambda o: o[...,y:y+size[0],x:x+size[1]]
            out = m(cut(a), cut(b))[0]
            cut(num).add_(out.double()*weigh(out).double())
            cut(den).add_(weigh(out).double())
    got = predict_flow(m, a, b, 'tile', size, overlap, own if kind=='own' else kind, tiles=tiles)
    assert torch.allclose(got.double(), num/den, atol=1e-3)

def test_all_ways_agree_on_pointwise_flow():
    a,b = pair(45, 70, 2)
    want = Pointwise()(a, b)[0]
    assert torch.equal(predict_flow(Pointwise(), a, b), want)
    for k in ('confidence','uniform','taper'): assert torch.allclose(predict_flow(Pointwise(), a, b, 'tile', (16,24), .7, k), want, atol=1e-4)

def test_confidence_of_other_losses():
    a,b = pair()
    with pytest.raises(ValueError, match='not 2 channels'): predict_flow(Moody(0), a, b, 'tile', (16,24))
    assert predict_flow(Moody(0), a, b, 'tile', (16,24), weights='taper').shape==(1,2,40,56)
    assert predict_flow(Moody(2), a, b, 'tile', (16,24)).shape==(1,4,40,56)

# --- Small copies

@pytest.mark.parametrize('size', [(8,16), (40,56), (80,32)])
def test_vectors_of_a_copy_are_rescaled(size):
    "A pan by a share of the image is the same share at any size; certainty is left alone"
    class Pan(nn.Module):
        patch_size = 8
        def forward(self, a, b, windows1=None, windows2=None):
            h,w = a.shape[-2:]
            assert (h,w)==size
            return [torch.tensor([.1*w,-.2*h,1.5])[:,None,None].expand(len(a),3,h,w)]
    a,b = pair(B=2)
    got = predict_flow(Pan(), a, b, 'resize', size)
    assert got.shape==(2,3,40,56) and torch.allclose(got, torch.tensor([5.6,-8.,1.5])[:,None,None].expand_as(got), atol=1e-5)

def test_a_copy_is_the_small_pass_enlarged(model):
    a,b = pair(64, 96)
    small = lambda x: F.interpolate(x, size=(32,32), mode='bilinear', antialias=True)
    want = F.interpolate(model(small(a), small(b))[0], size=(64,96), mode='bilinear')*torch.tensor([3.,2.,1.])[:,None,None]
    assert torch.allclose(predict_flow(model, a, b, 'resize', (32,32)), want, atol=1e-5)

# --- Bad input

@pytest.mark.parametrize('kw,text', [
    (dict(mode='whole'), 'use full, tile, resize'), (dict(mode='tile'), 'needs size'), (dict(mode='resize', size=(30,32)), 'multiple of the patch'),
    (dict(mode='tile', size=(80,80)), 'smaller tile'), (dict(mode='tile', size=(16,16), weights='best'), 'use uniform'), (dict(rows='some'), "'auto'"),
    (dict(rows=0), 'at least 1'), (dict(mode='tile', size=(16,16), overlap=1.), 'below 1')])
def test_settings(model, kw, text):
    with pytest.raises(ValueError, match=text): predict_flow(model, *pair(), **kw)
    assert model.training # restored after an error too

def test_frames_that_are_none(model):
    a,b = pair()
    with pytest.raises(ValueError, match=r'\(1, 3, 40, 56\) and \(1, 3, 40, 48\); both need one shape'): predict_flow(model, a, b[...,:48])
    with pytest.raises(ValueError, match=r'give \(B,3,height,width\)'): predict_flow(model, a[0], b[0])
    with pytest.raises(ValueError, match='use predict, or Predictor'): predict_flow(create_model('winwin_depth_micro'), a, b)
