"Full images, tiles and small copies: coverage, averages, schemes and files"
import math
import pytest, torch, torch.nn as nn
from hypothesis import given, settings, strategies as st
from winwin import ConvNeXtHead, DPTHead, LinearHead, Windows, create_model, list_models, load_model, parse_scheme, predict, save_model
from winwin.models import DecoupledDPTHead, Head
from winwin.inference import auto_rows, head_reach, predict_bands, tile_offsets, tile_weights

@settings(max_examples=200, deadline=None)
@given(st.integers(1, 400), st.integers(1, 2000), st.sampled_from([0., .25, .5, .7, .9, .99]))
def test_tiles_cover_an_axis(window, length, overlap):
    "Every pixel is covered, the first tile starts and the last one ends at the border, neighbours overlap as asked"
    if window>length:
        with pytest.raises(ValueError, match='smaller tile'): tile_offsets(length, window, overlap)
        return
    starts = tile_offsets(length, window, overlap)
    assert starts[0]==0 and starts[-1]==length-window and starts==sorted(starts)
    steps = [b-a for a,b in zip(starts, starts[1:])]
    assert all(s<=math.ceil((1-overlap)*window) for s in steps) # rounding moves a tile by less than a pixel

class Pointwise(nn.Module):
    "A model that looks at one pixel at a time: every way to read an image must agree on it"
    patch_size = 8
    def forward(self, img, windows=None): return [torch.cat([img*2-1, img[:,:1]**2], 1)]

@pytest.mark.parametrize('size,overlap,tiles', [((16,24), 0., 1), ((16,24), .5, 4), ((32,40), .9, 7)])
def test_tiles_average_to_the_same(size, overlap, tiles):
    img = torch.rand(2,3,45,70)
    want = Pointwise()(img)[0]
    assert torch.allclose(predict(Pointwise(), img, 'tile', size, overlap, tiles=tiles), want, atol=1e-5)
    assert torch.equal(predict(Pointwise(), img), want) # padded to 48x72 and cut back

KINDS = 'uniform','confidence','taper'

class Moody(nn.Module):
    "A model whose scores depend on the whole tile, so that tiles disagree"
    patch_size = 8
    def forward(self, img, windows=None): return [torch.cat([img*4, img.mean((1,2,3), keepdim=True)*5 + img[:,:1]], 1)]

@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('size,overlap,tiles,B', [((16,24), 0., 1, 2), ((16,24), .5, 4, 1), ((24,32), .8, 5, 2)])
def test_tiles_are_a_weighted_mean(kind, size, overlap, tiles, B):
    "Against a loop over pixels of a list of answers"
    img = torch.rand(B,3,29,41, generator=torch.Generator().manual_seed(1))
    num,den = torch.zeros(B,4,29,41, dtype=torch.double),torch.zeros(B,1,29,41, dtype=torch.double)
    for y in tile_offsets(29, size[0], overlap):
        for x in tile_offsets(41, size[1], overlap):
            m = Moody()(img[...,y:y+size[0],x:x+size[1]])[0].double()
            if kind=='uniform': w = torch.ones_like(m[:,:1])
            if kind=='confidence': w = (m.exp()/m.exp().sum(1, keepdim=True)).max(1, keepdim=True).values
            if kind=='taper': w = torch.outer(*(1-torch.cos(2*math.pi*(torch.arange(n)+.5)/n) for n in size)).double().expand_as(m[:,:1])
            num[...,y:y+size[0],x:x+size[1]] += w*m
            den[...,y:y+size[0],x:x+size[1]] += w
    got = predict(Moody(), img, 'tile', size, overlap, weights=kind, tiles=tiles)
    assert got.dtype==img.dtype and torch.allclose(got.double(), num/den, atol=1e-4)

@pytest.mark.parametrize('kind', KINDS)
def test_weightings_agree_where_tiles_do(kind):
    img = torch.rand(2,3,45,70)
    assert torch.allclose(predict(Pointwise(), img, 'tile', (16,24), .7, weights=kind), Pointwise()(img)[0], atol=1e-5)

@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_tapers_survive_half_precision(dtype):
    "The corner of a tile of 512 weighs less than half precision can hold"
    img = torch.rand(1,3,512,520).to(dtype)
    got = predict(Pointwise(), img, 'tile', (512,512), weights='taper')
    assert got.dtype==dtype and torch.allclose(got, Pointwise()(img)[0], atol=1e-2)
    assert tile_weights(got, 'taper').dtype==torch.float32 and tile_weights(got, 'taper').min()<1e-9

def test_confidence_needs_class_scores():
    model = create_model('winwin_depth_micro')
    with pytest.raises(ValueError, match="use 'taper' or 'uniform'"): predict(model, torch.rand(1,3,32,48), 'tile', (16,16), weights='confidence')
    assert model.training # restored after an error too
    assert predict(model, torch.rand(1,3,32,48), 'tile', (16,16), weights='taper').shape==(1,1,32,48)

@pytest.mark.parametrize('head', [ConvNeXtHead(32, 3, hidden=16, depth=3), ConvNeXtHead(32, 3, patch_size=8, hidden=24, depth=2), LinearHead(32, 5)], ids=['convnext', 'convnext8', 'linear'])
def test_bands_by_memory_stay_below_the_limit(head):
    "Widest map of a band as a hook sees it; the result is that of one call"
    head.requires_grad_(False)
    x,seen = torch.randn(2,20*6,32),[]
    for m in head.modules():
        if isinstance(m, nn.Linear): m.register_forward_hook(lambda m,i,o: seen.append(o.numel()*4))
    whole = head(x, Windows.full((20,6), batch=2))[0]
    for share in (.9, .7, .55):
        limit,_ = int(share*max(seen)),seen.clear()
        rows = auto_rows(head, (20,6), batch=2, limit=limit)
        assert 1<=rows<20
        assert torch.allclose(predict_bands(head, x, (20,6), rows), whole, atol=1e-5)
        if rows>head_reach(head): assert max(seen)<=limit
        seen.clear(); head(x, Windows.full((20,6), batch=2))
    assert auto_rows(head, (20,6), batch=2, limit=max(seen)) is None

SMALL = dict(layer_dims=(8,12,16,24), feature_dim=16, last_dim=8)

@pytest.mark.parametrize('grid', [(1,1), (1,6), (2,3), (7,5), (20,6)])
@pytest.mark.parametrize('patch', [8, 14, 16])
@pytest.mark.parametrize('kind', [DPTHead, DecoupledDPTHead])
def test_dpt_in_bands(kind, patch, grid):
    "Odd grids, a single token, patches that are no power of two: bands of any height give the map of one call"
    torch.manual_seed(0)
    head = kind([12,12,16,16], 3, patch, **SMALL).requires_grad_(False)
    x = [torch.randn(2,grid[0]*grid[1],c) for c in (12,12,16,16)]
    whole = head(x, Windows.full(grid, batch=2))[0]
    for rows in {1,2,3,grid[0],grid[0]+5}:
        got = predict_bands(head, x, grid, rows)
        assert got.shape==whole.shape and torch.allclose(got, whole, atol=1e-5)
    assert 'predict' not in vars(head) and 'predict' not in vars(getattr(head, 'dpt', head)) # nothing is left behind

@pytest.mark.parametrize('patch', [8, 16])
def test_dpt_bands_stay_below_the_limit(patch):
    "Every map of the last two steps, as hooks see it; the maps before are smaller"
    head,seen = DPTHead(12, 1, patch, **SMALL).requires_grad_(False),[]
    for m in (head.scratch.refinenet1.out_conv, *head.head): m.register_forward_hook(lambda m,i,o: seen.append(max(i[0].numel(), o.numel())*4))
    x = [torch.randn(2,24*6,12)]*4
    whole = head(x, Windows.full((24,6), batch=2))[0]
    for share in (.9, .5, .3):
        limit,_ = int(share*max(seen)),seen.clear()
        rows = auto_rows(head, (24,6), batch=2, limit=limit)
        assert 1<=rows<24 and torch.allclose(predict_bands(head, x, (24,6), rows), whole, atol=1e-5)
        assert max(seen)<=limit
        seen.clear(); head(x, Windows.full((24,6), batch=2))
    assert auto_rows(head, (24,6), batch=2, limit=max(seen)) is None
    both = DecoupledDPTHead(12, 3, patch, **SMALL)
    assert auto_rows(both, (24,6), limit=limit)==auto_rows(both.dpt, (24,6), 3, limit)

def test_rows_by_themselves():
    "A limit that is too small for any margin still makes progress; a head that cannot be cut is left whole; nonsense is told"
    head,model = ConvNeXtHead(32, 3, hidden=16, depth=4),create_model('winwin_seg_micro', num_classes=3)
    assert auto_rows(head, (50,50), limit=1)==head_reach(head)==4
    assert auto_rows(Head(), (5000,5000)) is None
    img = torch.rand(1,3,40,48)
    assert torch.equal(predict(model, img, rows='auto'), predict(model, img))
    assert predict(create_model('winwin_depth_micro'), img, rows='auto').shape==(1,1,40,48)
    with pytest.raises(ValueError, match="give a number, 'auto', or None"): predict(model, img, rows='some')
    with pytest.raises(ValueError, match='give at least 1'): predict(model, img, rows=0)
    depth = create_model('winwin_depth_micro')
    assert torch.allclose(predict(depth, img, rows=2), predict(depth, img), atol=1e-5)
    assert 'predict' not in vars(model.head) and 'predict' not in vars(depth.head)

def test_pairs_are_read_elsewhere():
    with pytest.raises(ValueError, match='takes 2 images, not 1'): predict(create_model('winwin_flow_micro'), torch.rand(1,3,32,48))

def test_prediction_records_no_gradient():
    model = create_model('winwin_depth_micro')
    out = predict(model, torch.rand(1,3,32,48))
    assert out.shape==(1,1,32,48) and not out.requires_grad and model.training

@pytest.mark.parametrize('name', [n for n in list_models() if n.endswith(('_micro','_tiny')) and n.startswith(('winwin_seg_','winwin_depth_'))])
def test_models_by_name_survive_a_file(name, tmp_path):
    "Any named model with any argument comes back as the same function"
    model = create_model(name, pos='sincos').eval()
    model.encoder.blocks[0].attn.tau = 1.5
    back = load_model(save_model(model, tmp_path/'a folder')).eval()
    img = torch.rand(1,3,32,48)
    with torch.no_grad(): assert torch.equal(back(img)[0], model(img)[0])
    assert back.config==model.config and not list((tmp_path/'a folder').glob('.*'))

def test_weights_hold_nothing_that_runs(tmp_path):
    "A pickle under the name of the weights is refused, not run"
    import pickle
    class Bomb:
        def __reduce__(self): return (open, (str(tmp_path/'boom'), 'w'))
    save_model(create_model('winwin_seg_micro'), tmp_path/'m')
    (tmp_path/'m'/'model.safetensors').write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(Exception): load_model(tmp_path/'m')
    assert not (tmp_path/'boom').exists()

@settings(max_examples=50, deadline=None)
@given(st.integers(1, 4), st.integers(1, 10), st.integers(0, 30), st.integers(1, 3))
def test_schemes_draw_what_they_say(n, k, extra, batch):
    w = parse_scheme(f'{n}x{k}+{extra}').draw((45,80), batch, torch.Generator().manual_seed(0))
    assert w.sizes==((k,k),)*n and w.num_tokens==n*k*k+extra and w.batch==batch
    assert parse_scheme(f'{n}*{k}x{k+1}').sizes==((k,k+1),)*n

def test_random_scheme_varies():
    s = parse_scheme('random(tokens=100-300, n=1-3, ratio=1.5, aspect=1)')
    g = torch.Generator().manual_seed(0)
    draws = [s.draw((45,80), generator=g) for _ in range(40)]
    assert {len(w) for w in draws}=={1,2,3} and min(w.num_tokens for w in draws)<150 < 250 < max(w.num_tokens for w in draws)

def test_crop_equals_window_for_relative_positions():
    "A crop is a window whose place is forgotten: the same output for RoPE, another one for absolute positions"
    img,s = torch.rand(1,3,64,96),parse_scheme('crop:3x4')
    for pos,same in (('rope',True), ('sincos',False)):
        model = create_model('winwin_seg_micro', num_classes=3, pos=pos).eval().requires_grad_(False)
        w = s.draw((8,12), generator=torch.Generator().manual_seed(1))
        full,x = s.apply(img, patch=8, generator=torch.Generator().manual_seed(1))
        assert full.grid==(3,4) and x.shape==(1,3,24,32) and w.yx.any()
        assert torch.allclose(model(x, full)[0], model(img, w)[0], atol=1e-4)==same

@pytest.mark.parametrize('first', ['import winwin.inference.modes', 'import winwin.inference', 'from winwin import predict', 'import winwin; winwin.predict'])
def test_a_module_does_not_hide_its_function(first):
    "`winwin.predict` is the function, whatever was imported before"
    import subprocess, sys
    code = f'{first}\nimport winwin\nfrom winwin import predict\nfrom winwin.inference.modes import tile_offsets\nassert predict.__name__=="predict" and winwin.predict is predict'
    subprocess.run([sys.executable, '-c', code], check=True)
