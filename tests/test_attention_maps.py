"Maps and numbers of attention against brute force, for every kind of layer and model."
import pytest, timm, torch
from winwin.attention.statistics import self_probability
from winwin.windows.schemes import usual_windows
from winwin.data.images import fit_image
from winwin.models.controls import tempered
from winwin.attention.recorder import AttentionRecorder
from winwin.models.backbones import timm_encoder
from winwin.attention.token_maps import LayerCurves, read_with, token_stats
from winwin.models.controls import capture
from winwin.models.dense import create_model
from winwin.models.controls import get_temperature, set_temperature
from winwin.attention.token_maps import TokenRows, curve_map, layer_rows, mosaic, tau_curve, token_panels
from winwin.windows.layout import Windows
from winwin.windows.sampling import sample_windows

RNG = torch.Generator().manual_seed(0)
SMALL = dict(dim=64, depth=2, num_heads=2)
IMG, IMG2 = (torch.rand(3,64,96, generator=RNG) for _ in range(2)) # 8x12 tokens of 8 pixels, 4x6 of 16

@pytest.fixture(scope='module')
def seg():
    torch.manual_seed(0)
    return create_model('winwin_seg_micro', num_classes=5, **SMALL).eval().requires_grad_(False)

@pytest.fixture(scope='module')
def flow():
    torch.manual_seed(0)
    return create_model('winwin_flow_micro', decoder=SMALL, **SMALL).eval().requires_grad_(False)

@pytest.mark.parametrize('view', ['windows', 'full', 'tau'])
@pytest.mark.parametrize('head', [None, 1])
def test_rows_and_numbers_are_those_of_the_matrix(seg, view, head):
    w = sample_windows((8,12), [(3,4),(4,3)], generator=torch.Generator().manual_seed(1))
    maps = AttentionRecorder(seg, IMG, w)
    maps.set_taus(dict.fromkeys(maps.layers, 1.4))
    name, tau, ids = 'encoder.blocks.1.attn', 1.7, w.index()[0]
    tokens = ids[[2,14]].tolist()
    with tempered(seg, dict.fromkeys(maps.layers, 1.4 if view=='tau' else 1.)), capture(seg, 1) as seen, torch.no_grad():
        seg(IMG[None], *([w] if view=='windows' else []))
    q, k = seen[0].q, seen[0].k
    at = [2,14] if view=='windows' else tokens
    p = torch.stack([(tau*q[0,:,i,None]@k[0].mT*q.shape[-1]**-.5).softmax(-1)[:,0] for i in at], 1) # (heads,n,M)
    p = p if head is None else p[head:head+1]
    rows = TokenRows(maps.look(name, view), tokens, maps.windows)
    got = rows.map(tau, head)
    want = torch.full((96,), torch.nan)
    want[ids if view=='windows' else torch.arange(96)] = p.mean((0,1))
    torch.testing.assert_close(got.flatten(), want, equal_nan=True, atol=1e-6, rtol=1e-4)
    n = rows.numbers(tau, head)
    own = torch.stack([p[:,j,i] for j,i in enumerate(at)]).mean()
    entropy = -(p*p.log()).sum(-1).mean()
    pos = (w if view=='windows' else Windows.full((8,12))).positions()[0].float()
    far = (p*torch.cdist(pos[at], pos)).sum(-1).mean()
    for a,b in ((n['self-probability'],own),(n['entropy'],entropy),(n['distance'],far)): assert a==pytest.approx(b.item(), rel=1e-4)
    assert n['own window']+n['other windows']+n['elsewhere']==pytest.approx(1, abs=1e-5)
    inside = [set(ids[:12].tolist()), set(ids[12:].tolist())] # the tokens of either window
    places = ids.tolist() if view=='windows' else list(range(96))
    mine = sum(p[:,j,[places.index(t) for t in inside[j]]].sum(-1).mean() for j in range(2))/2
    assert n['own window']==pytest.approx(mine.item(), rel=1e-4)

@pytest.mark.parametrize('kind', ['encoder', 'decoder', 'cross'])
def test_every_kind_of_a_flow_model(flow, kind):
    w = tuple(sample_windows((8,12), [(3,3)]*2, generator=torch.Generator().manual_seed(s)) for s in (1,2))
    maps = AttentionRecorder(flow, (IMG,IMG2), w)
    name = [n for n,k in maps.kinds.items() if k==kind][-1]
    token = w[0].index()[0,4].item()
    panels = token_panels(maps, name, token, 1.3)
    assert list(panels)==['windows','full','tau']
    seen = [int((~m.isnan()).sum()) for m,_ in panels.values()]
    assert seen==[18,96,96]
    at = (w[1] if kind=='cross' else w[0]).index()[0].tolist()
    assert panels['windows'][0].flatten().isnan().logical_not().nonzero().flatten().tolist()==sorted(at)
    assert ('self-probability' in panels['full'][1])==(kind!='cross')
    for m,_ in panels.values(): assert m.nansum().item()==pytest.approx(1, abs=1e-4)
    with capture(flow, name) as got, torch.no_grad(): flow(IMG[None], IMG2[None])
    q, k = got[0].q[:1], got[0].k[:1]
    p = (q[0,:,token,None]@k[0].mT*q.shape[-1]**-.5).softmax(-1)[:,0].mean(0)
    torch.testing.assert_close(panels['full'][0].flatten(), p, atol=1e-6, rtol=1e-4)

@pytest.mark.parametrize('name', ['vit_small_patch16_dinov3', 'eva02_tiny_patch14_336', 'vit_tiny_patch16_224'])
def test_timm_models_with_prefix_tokens(name):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=0, dynamic_img_size=True, depth=2, img_size=112 if 'patch14' in name else 64).eval()
    maps = AttentionRecorder(model, torch.rand(3,112,112, generator=RNG), '2*3x3')
    layer = list(maps.layers)[-1]
    token = maps.windows[0].index()[0,4].item()
    panels = token_panels(maps, layer, token)
    look = maps.look(layer)
    assert look.prefix==model.num_prefix_tokens>0
    for m,n in panels.values():
        assert m.nansum().item()+n['prefix']==pytest.approx(1, abs=1e-4)
        assert sum(n[k] for k in ('own window','other windows','elsewhere','prefix'))==pytest.approx(1, abs=1e-4)
    assert panels['full'][1]['self-probability']==pytest.approx(
        self_probability(look.q, look.k)[0,:,token+look.prefix].mean().item(), rel=1e-4)
    encoder = AttentionRecorder(timm_encoder(name, depth=2), torch.rand(3,112,112, generator=RNG))
    assert encoder.look(list(encoder.layers)[0], 'windows').prefix==look.prefix

def test_the_model_keeps_its_temperatures_and_mode(seg):
    old = set_temperature(seg, torch.tensor([1.2,.9]))
    seg.requires_grad_(True).train() # frozen parts stay in evaluation mode
    maps = AttentionRecorder(seg, IMG, '2x3')
    for v in ('windows','full','tau'): maps.look('encoder.blocks.1.attn', v)
    LayerCurves(maps, samples=4)
    read_with(maps, dict.fromkeys(maps.layers, 1.5), [0])
    assert seg.training and all(torch.equal(t, torch.tensor([1.2,.9])) for t in get_temperature(seg).values())
    set_temperature(seg, old)
    seg.eval().requires_grad_(False)

def test_an_error_in_the_model_leaves_it_as_it_was(seg):
    maps = AttentionRecorder(seg, IMG, '2x3')
    set_temperature(seg, 1.5)
    def fail(look): raise RuntimeError('no')
    with pytest.raises(RuntimeError): maps.visit(fail)
    assert set(get_temperature(seg).values())=={1.5}
    assert all('heads' not in m.__dict__ for m in maps.layers.values()) # nobody is watching
    set_temperature(seg, 1.)

def test_memory_is_bounded(seg):
    one = AttentionRecorder(seg, IMG, '2x3').look('encoder.blocks.0.attn').nbytes
    maps = AttentionRecorder(seg, IMG, '2x3', memory=3*one)
    for _ in range(3):
        for v in ('windows','full'):
            for n in maps.layers: assert maps.look(n, v).name==n
        assert sum(o.nbytes for o in maps.kept.values())<=3*one
    tokens = maps.windows[0].index()[0,:1].tolist()
    rows = layer_rows(maps, tokens)
    assert list(rows)==list(maps.layers)

def test_new_windows_and_temperatures_are_recorded_again(seg):
    maps = AttentionRecorder(seg, IMG, '2x3')
    n = 'encoder.blocks.1.attn'
    full, first = maps.look(n), maps.look(n, 'windows')
    assert maps.look(n, 'tau') is full # no temperature, the same look
    maps.set_taus({'encoder.blocks.0.attn': 1.5})
    assert maps.look(n) is full and not torch.equal(maps.look(n, 'tau').q, full.q)
    maps.set_windows('2x4')
    assert maps.look(n, 'windows') is not first and maps.look(n, 'windows').windows.num_tokens==32 and maps.look(n) is full

def test_self_probability_of_all_tokens(seg):
    maps = AttentionRecorder(seg, IMG, '2x3')
    for view in ('windows','full'):
        look = maps.look('encoder.blocks.1.attn', view)
        curve = tau_curve(look)
        for t in (.5,1.,1.33,2.):
            want = look.grid(self_probability(look.q, look.k, t)[0].mean(0), keys=False)
            torch.testing.assert_close(curve_map(look, curve, t), want, equal_nan=True, atol=1e-6, rtol=1e-3)

def test_layer_curves_and_one_pass_agree(seg):
    maps = AttentionRecorder(seg, IMG, '2x3')
    lc = LayerCurves(maps, samples=7)
    taus = {n: torch.tensor([1.2,.8]) if '0' in n else 1. for n in maps.layers}
    out, stats = read_with(maps, taus, lc.tokens)
    first = lc.names[0] # nothing before it: alone or in the model is the same
    for s in ('self','entropy'): torch.testing.assert_close(stats[first][s], lc.at(first, taus[first], s), atol=1e-4, rtol=1e-3)
    look = maps.look(first)
    torch.testing.assert_close(token_stats(look, lc.tokens, 1.3)['self'], self_probability(look.q, look.k, 1.3)[0][:,lc.tokens])
    with tempered(seg, taus), torch.no_grad(): want = seg(IMG[None])[0]
    torch.testing.assert_close(out, want)
    same = LayerCurves(AttentionRecorder(seg, IMG, 'full'), samples=7)
    assert same.gap(1.)==pytest.approx(0, abs=1e-6)

def test_mosaic():
    maps = [torch.rand(3,5,9, generator=RNG) for _ in range(4)]
    maps[0][0] = torch.nan
    m = mosaic(maps)
    assert m.shape==(4*6-1,3*10-1) and m.max()==255 and (m[:5,:9]==0).all() and (m[5]==0).all()
    assert mosaic([torch.rand(2,50,100)], side=40).shape==(17,2*35-1)

@pytest.mark.parametrize('bad,words', [
    (dict(windows='crop:4'), 'crops the image'), (dict(windows='9x9x9'), 'unknown'), (dict(windows='2x50'), 'cannot fit'),
    (dict(windows=Windows.full((3,3))), 'grid'), (dict(img=(IMG,IMG2)), 'one image'), (dict(img=torch.rand(3)), 'no image'),
    (dict(img='nowhere.png'), 'no file')])
def test_bad_input(seg, bad, words):
    with pytest.raises((ValueError,FileNotFoundError), match=words): AttentionRecorder(seg, **dict(img=IMG)|bad)

def test_bad_questions(seg, flow):
    maps = AttentionRecorder(seg, IMG, '2x3')
    for ask,words in ((lambda: maps.look('head'), 'no layer'), (lambda: maps.look(list(maps.layers)[0], 'half'), 'unknown'),
                      (lambda: TokenRows(maps.look(list(maps.layers)[0]), 96), 'not seen'),
                      (lambda: TokenRows(maps.look(list(maps.layers)[0]), []), 'no token')):
        with pytest.raises(ValueError, match=words): ask()
    with pytest.raises(ValueError, match='pair'): AttentionRecorder(flow, IMG)
    with pytest.raises(ValueError, match='different sizes'): AttentionRecorder(flow, (IMG,IMG2[:,:32]))
    local = create_model('winwin_seg_micro', num_classes=5, local_window=3, global_blocks=[1], **SMALL)
    maps = AttentionRecorder(local, IMG, '2x3')
    with pytest.raises(ValueError, match='local'): maps.look('encoder.blocks.0.attn')
    assert maps.look('encoder.blocks.1.attn').heads==2

def test_images_of_any_size():
    assert fit_image(torch.rand(3,700,1300), 16, 100).shape[-2:]==(7*16,13*16)
    assert fit_image(torch.rand(3,7,9), 16).shape[-2:]==(16,16)
    assert usual_windows((1,1))=='2*1x1' and usual_windows((45,80))=='2*22x22'
