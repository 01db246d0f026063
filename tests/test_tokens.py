"Tokens: pixels to tokens and back, and only for what the windows show."
import pytest, torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from timm.layers import PatchEmbed as TimmPatchEmbed
from winwin.windows.tokens import PatchEmbed, check_windows, gather_tokens, pad_to_patches, patch_view, patchify, scatter_tokens, unpad, unpatchify
from winwin.windows.layout import Windows, window_mask
from winwin.windows.sampling import sample_tokens, sample_windows

quick = settings(deadline=None, max_examples=30, derandomize=True)
def seeded(seed=0): return torch.Generator().manual_seed(seed)
def image(*shape, seed=0): return torch.randn(*shape, generator=seeded(seed))

# Patches

@quick
@given(st.integers(0,3), st.integers(1,4), st.integers(1,5), st.integers(1,5), st.sampled_from([1,2,7,16]), st.sampled_from([torch.float32,torch.float64,torch.bfloat16,torch.uint8,torch.int64]))
def test_patchify_round_trip(B, C, H, W, P, dtype):
    "Exact for every shape and dtype, and each token holds its patch, channels first"
    x = torch.randint(0, 255, (B,C,H*P,W*P), generator=seeded()).to(dtype)
    t = patchify(x, P)
    assert t.shape==(B,H*W,C*P*P) and t.dtype==dtype
    assert torch.equal(unpatchify(t, (H,W), P), x)
    for i in range(H*W if B else 0):
        y,z = i//W*P,i%W*P
        assert torch.equal(t[0,i], x[0,:,y:y+P,z:z+P].flatten())

def test_patch_view_copies_nothing():
    x = image(2,3,8,12)
    assert patch_view(x, 4).data_ptr()==x.data_ptr() and patch_view(x, 4).shape==(2,2,3,3,4,4)

@pytest.mark.parametrize('grid', [(2,3), [2,3], torch.Size((2,3))], ids=lambda g: type(g).__name__)
def test_unpatchify_grid_of_any_kind(grid):
    x = image(1,3,8,12)
    assert torch.equal(unpatchify(patchify(x, 4), grid, 4), x)

@pytest.mark.parametrize('shape', [(1,3,17,16), (1,3,16,15), (1,3,3,16)], ids=str)
def test_not_divisible(shape):
    "The message names the size, the patch and the size that padding gives"
    h,w = -(-shape[2]//4)*4,-(-shape[3]//4)*4
    with pytest.raises(ValueError, match=f'{shape[2]}x{shape[3]} pixels is not divisible into patches of 4; pad_to_patches makes it {h}x{w}'): patchify(torch.zeros(shape), 4)

@pytest.mark.parametrize('shape', [(1,5,48), (1,6,47), (1,6,3)], ids=str)
def test_unpatchify_refuses(shape):
    with pytest.raises(ValueError, match=r'\(2, 3\) grid of 4x4 patches; give 6 tokens with a multiple of 16'): unpatchify(torch.zeros(shape), (2,3), 4)

# Padding

@pytest.mark.parametrize('h,w', [(436,1024), (1080,1920), (37,53), (16,32), (1,1)])
def test_pad_round_trip(h, w):
    "Sintel's 436 rows and full HD's 1080: padded to whole patches, cut back exactly"
    x = image(1,2,h,w)
    y,size = pad_to_patches(x)
    assert size==(h,w) and y.shape[-2]%16==0 and y.shape[-1]%16==0 and y.shape[-2]-h<16 and y.shape[-1]-w<16
    assert torch.equal(unpad(y, size), x)
    assert torch.equal(y, F.pad(x, (0,y.shape[-1]-w,0,y.shape[-2]-h), mode='replicate'))

@pytest.mark.parametrize('dtype', [torch.uint8,torch.int64,torch.float32,torch.bool])
def test_pad_labels(dtype):
    "Labels get a constant, and keep their type"
    x = torch.ones(2,5,6, dtype=dtype)
    y,size = pad_to_patches(x, 4, 'constant', 0 if dtype==torch.bool else 255)
    assert y.dtype==dtype and y.shape==(2,8,8) and torch.equal(unpad(y, size), x)
    assert (y[:,5:]==(0 if dtype==torch.bool else 255)).all() and (y[:,:,6:]==(0 if dtype==torch.bool else 255)).all()

def test_pad_nothing_to_do():
    x = image(1,3,16,32)
    assert pad_to_patches(x)[0] is x

def test_pad_refuses():
    with pytest.raises(ValueError, match="'reflect' is unknown; use 'replicate' or 'constant'"): pad_to_patches(image(1,5,5), 4, 'reflect')

# Gather and scatter

@quick
@given(st.integers(1,3), st.integers(1,6), st.integers(2,6), st.sampled_from([torch.float32,torch.int64,torch.bool]), st.integers(0,9))
def test_gather_scatter_inverse(B, H, W, dtype, seed):
    "Gather keeps what is seen in order; scatter puts it back and fills the rest"
    w = sample_windows((H,W), [(H,1),(1,1)], B, seeded(seed), extra=(H*W-H-1)//2)
    x = torch.randint(0, 100, (B,H*W,3), generator=seeded(seed)).to(dtype)
    t = gather_tokens(x, w)
    for b in range(B): assert torch.equal(t[b], x[b,w.index()[b]])
    y = scatter_tokens(t, w, 1)
    m = window_mask(w).flatten(1)
    assert y.dtype==dtype and torch.equal(y[m], x[m]) and (y[~m]==1).all()
    assert torch.equal(gather_tokens(y, w), t)

def test_gather_scatter_batch_one():
    "One set of windows serves all images"
    w,x = sample_windows((4,5), [(2,2),(1,3)], 1, seeded()),image(3,20,2)
    t = gather_tokens(x, w)
    assert torch.equal(t, x[:,w.index()[0]]) and torch.equal(gather_tokens(scatter_tokens(t, w), w), t)

def test_scatter_gradient():
    w = sample_windows((4,5), [(2,2)], 2, seeded())
    x = image(2,4,3).requires_grad_()
    scatter_tokens(x, w).square().sum().backward()
    assert torch.equal(x.grad, 2*x.detach())

@pytest.mark.parametrize('n', [12,20])
def test_gather_refuses_another_grid(n):
    "Tokens of another grid would be silently the wrong ones"
    with pytest.raises(ValueError, match=str(n)): gather_tokens(image(1,n,3), sample_windows((4,4), [(2,2)], generator=seeded(1)))

def test_scatter_refuses_another_layout():
    with pytest.raises(ValueError, match='5'): scatter_tokens(image(1,5,3), sample_windows((4,4), [(2,2)]))

@pytest.mark.parametrize('f,n', [(gather_tokens,16), (scatter_tokens,4)], ids=['gather','scatter'])
def test_gather_scatter_refuse_another_batch(f, n):
    with pytest.raises(ValueError, match='3'): f(image(2,n,3), sample_windows((4,4), [(2,2)], 3))

# Embedding

layouts = [sample_windows((4,6), [(2,2),(1,3)], 2, seeded()), sample_windows((4,6), [(3,2)], 2, seeded(1), extra=4), sample_tokens((4,6), 7, 2, seeded()),
           sample_windows((4,6), [(2,2),(2,3)], 1, seeded()), Windows.full((4,6), 2), Windows.full((4,6))]
ids = ['two','extra','isolated','shared','full','full shared']

@pytest.mark.parametrize('windows', layouts, ids=ids)
@pytest.mark.parametrize('kind', ['plain','channels_last','strided','offset'])
def test_slice_then_embed(windows, kind):
    "The same as embedding everything and picking: forward bit for bit, gradient of the weights to rounding; for any memory layout of the image"
    torch.manual_seed(0)
    e,img = PatchEmbed(4, 3, 32),image(2,3,16,24)
    x = dict(plain=img, channels_last=img.to(memory_format=torch.channels_last), strided=torch.stack([img,img], -1)[...,0],
             offset=F.pad(img, (1,2,3,0))[:,:,3:,1:-2])[kind]
    assert kind=='plain' or not x.is_contiguous()
    w = windows if windows.batch==2 else Windows(windows.yx.expand(2,-1,-1), windows.sizes, windows.grid)
    some = e(x, windows)
    grad, = torch.autograd.grad((some*torch.arange(32)).square().sum(), e.proj.weight)
    full = gather_tokens(e(img), w)
    want, = torch.autograd.grad((full*torch.arange(32)).square().sum(), e.proj.weight)
    assert some.shape==(2,windows.num_tokens,32) and torch.equal(some, full)
    assert (grad-want).norm()<1e-5*want.norm()

@pytest.mark.parametrize('patch,chans', [(16,3), (14,1), (7,4)])
def test_same_as_convolution(patch, chans):
    "The plain strided convolution, with timm's names"
    a,b = PatchEmbed(patch, chans, 24),TimmPatchEmbed(None, patch, chans, 24)
    assert {k: v.shape for k,v in a.state_dict().items()}=={k: v.shape for k,v in b.state_dict().items()}
    b.load_state_dict(a.state_dict())
    x = image(2,chans,3*patch,2*patch)
    torch.testing.assert_close(a(x), b(x), atol=1e-5, rtol=1e-5)

def test_weights_in_channels_last():
    "A model moved to channels_last gives the same tokens"
    e,x = PatchEmbed(4, 3, 8),image(1,3,16,24)
    want = e(x)
    assert torch.equal(e.to(memory_format=torch.channels_last)(x), want)

def test_image_gradient_stays_in_the_windows():
    "Pixels outside get a gradient of exactly zero"
    w,x = layouts[0],image(2,3,16,24).requires_grad_()
    PatchEmbed(4, 3, 8)(x, w).sum().backward()
    seen = window_mask(w).repeat_interleave(4, 1).repeat_interleave(4, 2)
    assert (x.grad.abs().sum(1)[~seen]==0).all() and (x.grad.abs().sum(1)[seen]>0).all()

def test_empty_batch():
    e = PatchEmbed(4, 3, 8)
    assert e(torch.zeros(0,3,16,24)).shape==(0,24,8)
    assert e(torch.zeros(0,3,16,24), Windows(torch.zeros(0,1,2,dtype=torch.long), [(2,2)], (4,6))).shape==(0,4,8)

@pytest.mark.parametrize('shape,windows,words', [
    ((2,4,16,24), None, r'\(2, 4, 16, 24\); this model takes \(B,3,height,width\)'), ((3,16,24), None, 'this model takes'),
    ((2,3,18,24), None, '18x24 pixels is not divisible'), ((2,3,16,24), Windows.full((6,4)), r'\(6, 4\) grid and the image has \(4, 6\) tokens; draw'),
    ((2,3,16,24), Windows.full((2,3)), 'grid'), ((2,3,16,24), sample_windows((4,6), [(2,2)], 3), '3 sets of windows for 2 images'),
    ((2,3,16,24), Windows.full((4,6), 3), '3 sets of windows for 2 images')], ids=str)
def test_embed_refuses(shape, windows, words):
    "Wrong channels, indivisible size, windows for another grid or another batch"
    with pytest.raises(ValueError, match=words): PatchEmbed(4, 3, 8)(torch.zeros(shape), windows)

def test_check_windows_moves_them():
    assert check_windows(Windows.full((4,6)), torch.zeros(2,3,16,24, device='meta'), (4,6)).device.type=='meta'
