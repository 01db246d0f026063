"Flow pictures: Middlebury's colours as torchvision paints them, warping as scipy interpolates, figures that show what they say."
import math
import matplotlib; matplotlib.use('agg')
import matplotlib.pyplot as plt
import numpy as np
import pytest, torch
from hypothesis import given, settings, strategies as st
from scipy.ndimage import map_coordinates
from torchvision.utils import flow_to_image
from winwin.tasks.flow_scoring import FlowMetrics
from winwin.data.pictures import (ERROR_STEPS, flow_error_map, flow_to_color, flow_wheel, show_arrows, show_flow, show_flow_error, show_warp,
                                  show_wheel, warp)
from winwin.worlds.datasets import DrivingWorld

def seeded(seed=0): return torch.Generator().manual_seed(seed)
@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close('all')

# --- Colours

def test_wheel():
    w = flow_wheel()
    assert w.shape==(55,3) and w.min()==0 and w.max()==1
    assert (w.max(1)==1).all() and (w.min(1)==0).all() # pure hues
    assert len(np.unique(w, axis=0))==55
    for i,c in zip((0,15,21,25,36,49), ((1,0,0),(1,1,0),(0,1,0),(0,1,1),(0,0,1),(1,0,1))): assert np.allclose(w[i], c)

@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0,2**31), B=st.integers(1,3))
def test_colours_are_torchvisions(seed, B):
    flow = torch.randn(B, 2, 9, 11, generator=seeded(seed))*7
    flow[0,:,0,0] = 0
    for f in flow: # torchvision scales by the longest vector of the batch
        want = flow_to_image(f).permute(1,2,0).numpy()/255
        inner = (f.norm(dim=0)<.999*f.norm(dim=0).max()).numpy() # at full length its bytes may run over, from -1 to 255
        assert inner.sum()>=90 and np.abs(flow_to_color(f)-want)[inner].max()<2.1/255 # it rounds twice: the wheel, then the colour
    far = flow.norm(dim=1).max().item()
    batch = flow_to_color(flow)
    assert batch.shape==(B,9,11,3) and np.allclose(batch[0], flow_to_color(flow[0], largest=far), atol=1e-6)

def test_colours_of_arrays_and_types():
    f = torch.randn(2, 5, 6, generator=seeded())
    assert np.array_equal(flow_to_color(f), flow_to_color(f.numpy())) and np.array_equal(flow_to_color(f.half()), flow_to_color(f.half().double()))
    assert (flow_to_color(torch.zeros(2,3,3))==1).all()

def test_direction_does_not_depend_on_length():
    f = torch.randn(2, 20, 20, generator=seeded())
    f = f/f.norm(dim=0)
    full = flow_to_color(f, largest=1.001)
    for k in (.1,.5,.9): assert np.allclose((1-flow_to_color(f*k, largest=1.001))/k, 1-full, atol=1e-6)

def test_sign_of_zero_is_no_direction():
    one = lambda u,v: flow_to_color(torch.tensor([u,v]).reshape(2,1,1))
    assert np.array_equal(one(1.,0.), one(1.,-0.)) and np.array_equal(one(0.,1.), one(-0.,1.))

@pytest.mark.parametrize('hole', [math.nan, math.inf, -math.inf, 1e10])
def test_unknown_flow_is_black_and_does_not_set_the_scale(hole):
    f = torch.randn(2, 6, 7, generator=seeded())
    holes,valid = f.clone(),torch.ones(6,7).bool()
    holes[1,2,3] = hole; valid[2,3] = False
    want = flow_to_color(f.where(valid, 0)); want[2,3] = 0
    assert np.allclose(flow_to_color(holes), want) and np.allclose(flow_to_color(f, valid=valid), want) and np.allclose(flow_to_color(f, valid=valid.numpy()), want)
    assert (flow_to_color(torch.full((2,3,3), hole))==0).all()

# --- Warping

@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0,2**31), B=st.integers(1,3))
def test_warp_is_bilinear(seed, B):
    g = seeded(seed)
    img,flow = torch.rand(B, 2, 7, 9, generator=g).double(),torch.randn(B, 2, 7, 9, generator=g).double()*3
    got = warp(img, flow, fill=-1.)
    y,x = np.mgrid[:7,:9]
    for b in range(B):
        Y,X = y+flow[b,1].numpy(),x+flow[b,0].numpy()
        inside = (X>=-.5) & (X<=8.5) & (Y>=-.5) & (Y<=6.5)
        for c in range(2):
            want = map_coordinates(img[b,c].numpy(), [Y,X], order=1, mode='nearest')
            assert np.allclose(got[b,c].numpy(), np.where(inside, want, -1), atol=1e-9)

def test_warp_has_gradients_and_holes():
    g = seeded()
    img,flow = torch.rand(1, 1, 5, 6, generator=g).double().requires_grad_(),(torch.rand(1, 2, 5, 6, generator=g).double()*.8+.1)
    flow[0,:,1,1] = torch.tensor([math.nan,0.]); flow[0,:,2,2] = math.inf; flow[0,0,3,3] = 1e10
    out = warp(img, flow, fill=7.)
    assert all(out[0,0,i,i]==7 for i in (1,2,3))
    for i in (1,2,3): flow[0,:,i,i] = .3 # between pixels, where there is a slope
    assert torch.autograd.gradcheck(warp, (img,flow.requires_grad_()))

@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_warp_of_half_precision_places_pixels_exactly(dtype):
    img,flow = torch.rand(1, 3, 8, 600, generator=seeded()).to(dtype),torch.zeros(1,2,8,600)
    flow[:,0] = 3.
    out = warp(img, flow)
    assert out.dtype==dtype and (out[...,:-3].float()-img[...,3:].float()).abs().max()<.01

@pytest.mark.parametrize('i', [1,5,11])
def test_exact_flow_warps_the_second_frame_back(i):
    s = DrivingWorld((96,160), pair=True)[i]
    off = (warp(s['image2'][None], s['flow'][None], fill=math.nan)[0]-s['image']).abs().mean(0)
    seen = s['visible'] & off.isfinite()
    assert seen.sum()>=.99*s['visible'].sum() and off[seen].mean()<.6*(s['image2']-s['image']).abs().mean(0)[seen].mean()
    back = (warp(s['image2'][None], -s['flow'][None], fill=math.nan)[0]-s['image']).abs().mean(0) # the wrong way
    assert off[seen].mean()<.5*back[seen].nanmean()

# --- Errors

@pytest.mark.parametrize('shape', [(2,5,6),(3,2,5,6),(2,3,2,5,6)])
def test_error_map(shape):
    g = seeded()
    p,t = torch.randn(2, *shape, generator=g)*4
    t[...,0,1,1] = math.nan; t[...,1,2,2] = 1e10
    valid = torch.rand(shape[:-3]+shape[-2:], generator=g)<.8
    e = flow_error_map(p, t, valid)
    ok = valid.clone(); ok[...,1,1] = False; ok[...,2,2] = False
    assert e.shape==ok.shape and e.dtype==p.dtype and torch.equal(e.isnan(), ~ok)
    assert torch.allclose(e[ok], (p-t).norm(dim=-3)[ok])
    m = FlowMetrics()
    m.update(p.reshape(-1,2,5,6), t.reshape(-1,2,5,6), valid.reshape(-1,5,6))
    assert abs(e.double().nanmean().item()-m.compute()['EPE'])<1e-6
    p[...,:,1,1] = math.nan # where nothing is known, nothing is asked
    assert torch.equal(flow_error_map(p, t, valid).isnan(), ~ok)

# --- Figures

def test_show_flow_and_wheel():
    f = torch.randn(2, 12, 20, generator=seeded())
    ax = show_flow(f, largest=3.)
    assert np.allclose(ax.images[0].get_array(), flow_to_color(f, 3.)) and len(ax.child_axes)==1
    assert ax.child_axes[0].texts[0].get_text()=='3 px'
    assert not show_flow(f, key=False).child_axes
    assert show_flow(torch.full((2,4,4), math.nan)).images # nothing known: all black
    rgba = show_wheel(n=21).images[0].get_array()
    assert rgba[0,0,3]==0 and rgba[10,10,3]==1 and np.allclose(rgba[10,10,:3], 1, atol=.1)
    assert rgba[10,-2,0]>.9 and rgba[10,-2,1:3].max()<.2 # red at the right

def test_arrows_end_where_pixels_go():
    f = torch.randn(2, 12, 20, generator=seeded())*3
    valid = torch.ones(12,20).bool(); valid[2,2] = False; f[0,6,6] = math.nan
    q, = show_arrows(f, torch.rand(3,12,20), step=4, valid=valid).collections
    at = q.get_offsets()
    assert len(at)==3*5-2 and q.scale==1 and q.angles=='xy' and q.scale_units=='xy'
    for (x,y),u,v in zip(at.astype(int), q.U, q.V): assert x%4==2 and y%4==2 and (u,v)==pytest.approx(tuple(f[:,y,x].tolist()))

def test_show_warp_veils_what_is_hidden():
    g = seeded()
    img = torch.rand(3, 8, 10, generator=g)
    visible = torch.ones(8,10).bool(); visible[:,:3] = False
    axs = show_warp(img, img, torch.zeros(2,8,10), visible)
    off = np.ma.filled(axs[2].images[0].get_array(), np.nan)
    assert np.isnan(off[:,:3]).all() and np.abs(off[:,3:]).max()<1e-5
    assert np.allclose(axs[1].images[0].get_array()/255, img.permute(1,2,0), atol=.5/255+1e-6) # shown with 8 bits

@pytest.mark.parametrize('e,i', [(0.,0), (.2,1), (2.9,4), (3.1,5), (47.,8), (100.,9)])
def test_error_colours_change_at_the_steps(e, i):
    ax = show_flow_error(torch.tensor([e,0.]).reshape(2,1,1).expand(2,3,4), torch.zeros(2,3,4))
    im, = ax.images
    assert im.cmap(im.norm(e))==im.cmap(i) and len(ERROR_STEPS)==10
    r,_,b,_ = im.cmap(im.norm(e))
    assert (b>r) if e<3 else (r>b+.3) # cold below 3 px, warm above

Z = torch.zeros(2,4,6)
@pytest.mark.parametrize('call,message', [
    (lambda: flow_to_color(Z[0]), 'x before y'), (lambda: flow_to_color(torch.zeros(3,4,6)), 'x before y'), (lambda: flow_to_color(Z, valid=torch.ones(4,6)), r'give bool \(4, 6\)'),
    (lambda: flow_to_color(Z, valid=torch.ones(4,5).bool()), 'the size of the flow'), (lambda: flow_to_color(Z, largest=-1), 'positive length'), (lambda: show_flow(Z[None]), 'one at a time'),
    (lambda: show_arrows(Z[None]), 'one at a time'), (lambda: show_arrows(Z, step=5), 'take 1 to 4'), (lambda: show_arrows(Z, step=0), 'leaves no arrow'),
    (lambda: warp(torch.zeros(1,3,4,5), Z[None]), r'give floats \(1,C,4,6\)'), (lambda: warp(torch.zeros(1,3,4,6).byte(), Z[None]), 'torch.uint8'), (lambda: warp(torch.zeros(3,4,6), Z), r'give floats \(B,2,H,W\)'),
    (lambda: flow_error_map(Z, Z[:,1:]), 'see unpad'), (lambda: flow_error_map(Z, Z, torch.ones(4,6)), 'give bool'), (lambda: show_flow_error(Z[None], Z[None]), 'one at a time')])
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message): call()
