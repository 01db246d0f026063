"RoPE: a rotation that sees only differences, exact in every precision and memory layout."
import pytest, torch
from hypothesis import given, settings, strategies as st
from winwin.models.positions import apply_rope, half_to_pairs, pairs_to_half, rope_table, rotate_pairs, sincos_pos
from winwin.windows.layout import Windows
from winwin.windows.sampling import sample_windows

quick = settings(deadline=None, max_examples=30, derandomize=True)
def seeded(seed=0): return torch.Generator().manual_seed(seed)
def randn(*shape, seed=0, **kw): return torch.randn(*shape, generator=seeded(seed), **kw)
def places(B, N, most=200, seed=0): return torch.randint(0, most+1, (B,N,2), generator=seeded(seed))

def reference(x, pos, base=100., scale=1.):
    "Quarters [uy | vy | ux | vx] of each head vector, one channel at a time, in float64"
    x,out,D = x.double(),torch.empty_like(x, dtype=torch.float64),x.shape[-1]
    for axis in (0,1):
        for j in range(D//4):
            angle = (pos[...,axis].double()*scale/base**(2*j/(D/2)))[:,None]
            a,b = axis*D//2+j,axis*D//2+D//4+j
            out[...,a] = x[...,a]*angle.cos() - x[...,b]*angle.sin()
            out[...,b] = x[...,b]*angle.cos() + x[...,a]*angle.sin()
    return out

def channels(D):
    "For each of our channels, CroCo's"
    return half_to_pairs(torch.arange(D), 1)

def test_golden():
    "Eight channels at y=2, x=3"
    got = apply_rope(torch.arange(1.,9).view(1,1,1,8), torch.tensor([[[2,3]]]))
    want = torch.tensor([-3.144039, 1.165456, -0.339143, 4.317605, -5.937803, 3.367857, -6.224347, 9.415813])
    torch.testing.assert_close(got.flatten(), want, atol=2e-6, rtol=0)

def test_frequencies():
    "16 per axis for 64 channels, from 1 down to 0.013335"
    angle = torch.atan2(*rope_table(torch.tensor([[[1,0]]]), 64)[0,0,:16].flip(-1).unbind(-1))
    torch.testing.assert_close(angle[[0,1,15]], torch.tensor([1., .749894, .013335]), atol=1e-6, rtol=1e-4)

@quick
@given(st.integers(1,3), st.integers(1,3), st.integers(1,9), st.sampled_from([4,8,32,64]), st.sampled_from([100.,10_000.,2.]), st.sampled_from([1.,224/512,3.]), st.integers(0,9))
def test_against_float64(B, heads, N, D, base, scale, seed):
    "Far from the origin, for any base and position scale"
    x,pos = randn(B,heads,N,D, seed=seed),places(B,N,seed=seed)
    torch.testing.assert_close(apply_rope(x, pos, base, scale).double(), reference(x, pos, base, scale), atol=2e-4*max(scale,1), rtol=0)

@quick
@given(st.integers(1,3), st.integers(1,3), st.integers(1,9), st.sampled_from([4,8,32,64]), st.integers(0,9))
def test_pairs_equal_quarters(B, heads, N, D, seed):
    "The fast form gives the same numbers, up to the order of channels"
    x,pos,c = randn(B,heads,N,D, seed=seed),places(B,N,seed=seed),channels(D)
    fast = rotate_pairs(x[...,c], rope_table(pos, D)[:,None])
    torch.testing.assert_close(fast, apply_rope(x, pos)[...,c], atol=1e-5, rtol=0)

def test_length_and_dot_products():
    "A rotation keeps lengths; dot products depend on differences of positions only"
    q,k,pos = randn(2,3,10,32),randn(2,3,10,32, seed=1),places(2,10,60)
    torch.testing.assert_close(apply_rope(q, pos).norm(dim=-1), q.norm(dim=-1))
    def logits(p): return apply_rope(q, p) @ apply_rope(k, p).mT
    for shift in ([0,0],[7,0],[0,-3],[100,41]): torch.testing.assert_close(logits(pos+torch.tensor(shift)), logits(pos), atol=2e-4, rtol=0)
    assert (logits(pos*2)-logits(pos)).abs().max()>.1
    assert torch.equal(apply_rope(q, pos*0), q)

def test_axes():
    "The first half turns with y only, the second with x only"
    x = randn(1,1,1,16)
    y,z = (apply_rope(x, torch.tensor([[p]])) for p in ([5,0],[0,5]))
    assert torch.equal(y[...,8:], x[...,8:]) and torch.equal(z[...,:8], x[...,:8]) and not torch.equal(y[...,:8], x[...,:8])

@pytest.mark.parametrize('dtype,tol', [(torch.bfloat16,.02), (torch.float16,.003)])
@pytest.mark.parametrize('form', ['quarters','pairs'])
def test_table_is_float32(dtype, tol, form):
    "Half precision loses only the rounding of its own numbers, even at position 200, where half-precision angles would be off by a quarter turn"
    x,pos,D = randn(1,2,50,64).to(dtype),places(1,50),64
    assert rope_table(pos, D).dtype==torch.float32 and rope_table(pos.to(torch.int16), D).dtype==torch.float32
    want = reference(x, pos)
    if form=='quarters': got = apply_rope(x, pos)
    else: got,want = rotate_pairs(x[...,channels(D)], rope_table(pos, D)[:,None]),want[...,channels(D)]
    assert got.dtype==dtype and (got.double()-want).abs().max()<tol*want.abs().max()

def test_double_stays_double():
    x,pos = randn(1,2,5,8).double(),places(1,5)
    assert apply_rope(x, pos).dtype==torch.float64 and rotate_pairs(x, rope_table(pos, 8)[:,None]).dtype==torch.float64

@pytest.mark.parametrize('scale', [.4375,2.])
def test_scale_is_scaled_positions(scale):
    "F0 multiplies all positions"
    x,pos = randn(2,2,7,16),places(2,7)
    torch.testing.assert_close(apply_rope(x, pos, scale=scale), apply_rope(x, pos*scale), atol=2e-4, rtol=0)

def layouts(x):
    "The same numbers in other places of memory"
    wide = torch.zeros(*x.shape[:-1], x.shape[-1]+3)
    wide[...,1:-2] = x
    flat = torch.zeros(x.numel()+1)
    flat[1:] = x.flatten()
    return dict(plain=x, transposed=x.transpose(1,2).contiguous().transpose(1,2), odd_stride=wide[...,1:-2], odd_offset=flat[1:].view(x.shape),
                every_other=torch.stack([x,x], -1)[...,0], expanded=x[:1].expand(3,-1,-1,-1))

@pytest.mark.parametrize('kind', list(layouts(randn(1,1,1,4))))
def test_memory_layouts(kind):
    "Views of any stride and offset give the same, forward and backward"
    base,pos = randn(2,3,5,8),places(1,5)
    x = layouts(base)[kind]
    table = rope_table(pos, 8)[:,None]
    y = x.detach().requires_grad_()
    got = rotate_pairs(y, table)
    order = torch.argsort(channels(8))
    ref = reference(x[...,order], pos)[...,channels(8)]
    torch.testing.assert_close(got.double(), ref, atol=2e-4, rtol=0)
    g = randn(*got.shape, seed=3)
    grad, = torch.autograd.grad(got, y, g)
    back = table*torch.tensor([1.,-1.]) # the inverse rotation
    torch.testing.assert_close(grad, rotate_pairs(g, back), atol=1e-5, rtol=0)

def test_complex_and_real_form_agree(monkeypatch):
    "Compilers take the real form; both are the same numbers"
    x,table = randn(2,3,5,16),rope_table(places(1,5), 16)[:,None]
    fast = rotate_pairs(x, table)
    monkeypatch.setattr(torch.compiler, 'is_compiling', lambda: True)
    torch.testing.assert_close(rotate_pairs(x, table), fast, atol=1e-6, rtol=1e-6)

@pytest.mark.parametrize('f', [lambda x,p: apply_rope(x, p), lambda x,p: rotate_pairs(x, rope_table(p, 8)[:,None])], ids=['quarters','pairs'])
def test_gradcheck(f):
    x,pos = randn(1,2,3,8).double().requires_grad_(),places(1,3,9)
    assert torch.autograd.gradcheck(lambda x: f(x, pos), (x,))

@quick
@given(st.integers(1,5), st.sampled_from([4,8,64]), st.booleans())
def test_row_order_inverse(heads, D, bias):
    "Weights and biases go to our channel order and back"
    w = randn(heads*D) if bias else randn(heads*D, 3)
    assert torch.equal(pairs_to_half(half_to_pairs(w, heads), heads), w)
    assert torch.equal(half_to_pairs(pairs_to_half(w, heads), heads), w)

def test_positions_of_one_serve_all():
    x,pos = randn(3,2,6,8),Windows.full((2,3)).positions()
    torch.testing.assert_close(apply_rope(x, pos), apply_rope(x, pos.expand(3,-1,-1)))

@pytest.mark.parametrize('D', [2,6,10,63])
def test_head_dim_refused(D):
    with pytest.raises(ValueError, match=f'head_dim {D} is not divisible by 4.*choose'): apply_rope(randn(1,1,2,D), places(1,2))

def test_positions_refused():
    with pytest.raises(ValueError, match=r'positions have shape \(1, 2, 3\); give \(B,N,2\)'): apply_rope(randn(1,1,2,8), torch.zeros(1,2,3))

# Absolute positions

@pytest.mark.parametrize('grid', [(3,4), (5,5), (7,2)])
def test_sincos_is_mae(grid):
    "x first, then y, sines before cosines, as MAE and CroCo have it"
    got = sincos_pos(Windows.full(grid).positions(), 32)[0]
    n,pos = 8,Windows.full(grid).positions()[0].double()
    omega = 10_000.**(-torch.arange(n, dtype=torch.float64)/n)
    want = torch.cat([f(pos[:,i,None]*omega) for i in (1,0) for f in (torch.sin,torch.cos)], 1)
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=0)
    assert got.dtype==torch.float32

def test_sincos_of_windows():
    "Windows get the rows of the full table"
    w = sample_windows((6,9), [(2,3),(4,2)], 2, seeded())
    full = sincos_pos(Windows.full((6,9)).positions(), 16)[0]
    assert torch.equal(sincos_pos(w.positions(), 16), full[w.index()])

@pytest.mark.parametrize('dim', [2,6,30])
def test_sincos_refuses(dim):
    with pytest.raises(ValueError, match=f'dim {dim} is not divisible by 4'): sincos_pos(places(1,2), dim)
