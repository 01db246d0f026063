"The explorers of attention and temperature, driven from Python: right numbers, visible errors, no growth."
import datetime, gc, json, re
import pytest, torch
from winwin.workbench.attention import AttentionExplorer
from winwin.workbench.widgets import window_boxes
from winwin.models.dense import create_model
from winwin.models.hub import bundled_model, load_model
from winwin.workbench.snapshots import shown_parts
from winwin.tasks.registry import make_task
from winwin.models.controls import get_temperature, set_temperature
from winwin.temperature.theory import log_ratio
from winwin.workbench.temperature import TemperatureExplorer
from winwin.attention.token_maps import token_panels
from winwin.attention.statistics import attention_rows
from winwin.worlds.datasets import DrivingWorld

SMALL = dict(dim=64, depth=2, num_heads=2)
IMG, IMG2 = (torch.rand(3,64,96, generator=torch.Generator().manual_seed(s)) for s in (0,1)) # 8x12 tokens

@pytest.fixture(scope='module')
def seg():
    torch.manual_seed(0)
    return create_model('winwin_seg_micro', num_classes=14, **SMALL).eval().requires_grad_(False)

@pytest.fixture(scope='module')
def flow():
    torch.manual_seed(0)
    return create_model('winwin_flow_micro', decoder=SMALL, **SMALL).eval().requires_grad_(False)

@pytest.fixture
def ex(seg):
    e = AttentionExplorer(seg, IMG, '2x3')
    yield e
    e.close()

@pytest.fixture(scope='module')
def street(): return DrivingWorld((64,96), length=8)

@pytest.fixture
def warm(seg, street):
    e = TemperatureExplorer(seg, IMG, '2x3', street, make_task('seg', street), images=1)
    yield e
    set_temperature(seg, 1.)
    e.close()

# --- Attention

def test_numbers_are_those_of_the_function(ex):
    for layer,head,tau,tokens in (('encoder.blocks.0.attn',-1,1.3,[]), ('encoder.blocks.1.attn',1,.8,[5])):
        ids = ex.maps.windows[0].index()[0].tolist()
        ex.set_state(dict(layer=layer, head=head, tau=tau, tokens=[ids[3],*(ids[i] for i in tokens)]))
        want = token_panels(ex.maps, layer, ex.choice.tokens, tau, None if head<0 else head)
        for view,(m,n) in want.items():
            assert torch.equal(ex.result[view][0].nan_to_num(-1), m.nan_to_num(-1))
            for k,v in n.items(): assert ex.numbers()[f'{view}: {k}']==pytest.approx(v)
        assert f"entropy {want['windows'][1]['entropy']:.2f}" in ex.canvas['windows'].caption
        tops = {ex.canvas[v].vmax for v in ('windows','full','tau')}
        assert len(tops)==1 and len(ex.canvas['full'].heat)==96 # one scale, a byte per token

@pytest.mark.parametrize('kind', ['ours', 'transformers'])
def test_the_first_map_comes_before_the_full_image(kind):
    "Of six blocks, windows run up to the chosen layer; then they are shown; then the full image, up to that layer; then the small maps"
    if kind=='ours': model = create_model('winwin_seg_micro', **SMALL|dict(depth=6)).eval().requires_grad_(False)
    else: model = dinov2(6)
    ex = AttentionExplorer(model, IMG, '2x3', layer=2)
    ex.maps.drop()
    ex._forget()
    ran = []
    def note(m, args, out):
        x = out[0] if isinstance(out, tuple) else out
        ran.append(x.shape[1])
    blocks = model.encoder.blocks if kind=='ours' else model.encoder.layer
    hooks = [b.register_forward_hook(note) for b in blocks]
    for c in ex.canvas.values(): c.heat = b''
    front = 0 if kind=='ours' else 1
    some = 18 if kind=='ours' else 96+1 # a foreign model has all tokens, and attends among some
    steps = ex.update()
    next(steps)
    assert ran==[some]*2 and len(ex.canvas['windows'].heat)==96 and not ex.canvas['full'].heat # blocks 0 and 1, and the queries of block 2
    assert list(ex.result)==['windows'] and ex.waiting==['full','tau']
    next(steps)
    assert ran==[some]*2+[96+front]*2 and len(ex.canvas['full'].heat)==len(ex.canvas['tau'].heat)==96 and not ex.waiting
    for _ in steps: pass
    assert ran==[some]*2+[96+front]*7 # all layers but the attention of the last
    ran.clear()
    ex.canvas['full'].tokens = [5]
    assert ex.flush().error is None and not ran # all is known
    for hook in hooks: hook.remove()
    ex.close()

def test_a_click_on_any_canvas_chooses_the_token(ex):
    ids = ex.maps.windows[0].index()[0].tolist()
    for v,t in zip(('windows','full','tau','difference'), ids):
        ex.canvas[v].tokens = [t]
        assert ex.choice.tokens==[t] and all(c.tokens==[t] for c in ex.canvas.values())
    ex.canvas['full'].tokens = ids[:3] # shift-click
    assert len(ex.choice.tokens)==3 and '3 tokens' in ex.table.value

def test_a_click_on_a_small_picture_goes_there(ex):
    h,w = ex.step
    ex.tiles.tokens = [(0*h+1)*ex.tiles.grid[1] + 1*w+2]
    assert (ex.layer.value,ex.head.value,ex.tiles.tokens)==('encoder.blocks.0.attn',1,[])
    assert ex.tiles.windows==[[0,w,h-1,w-1]]

def test_a_token_outside_the_windows(ex):
    inside = ex.maps.windows[0].index()[0].tolist()
    ex.canvas['full'].tokens = [next(i for i in range(96) if i not in inside)]
    assert 'windows' not in ex.result and 'outside' in ex.canvas['windows'].message and ex.error is None
    ex.multiples.value = 'windows'
    assert ex.error is None and 'outside' in ex.tiles.caption
    ex.canvas['full'].tokens = inside[:1]
    assert 'windows' in ex.result and ex.canvas['windows'].message==''

def test_windows_are_drawn_and_dragged(ex):
    old = ex.choice.windows
    ex.again.click()
    assert ex.choice.windows!=old and ex.canvas['windows'].windows==ex.choice.windows[0]
    ex.drag.value = True
    assert ex.canvas['windows'].mode=='windows' and ex.canvas['full'].mode=='tokens'
    ex.canvas['windows'].windows = [[0,0,2,2],[4,4,3,3]]
    assert window_boxes(ex.maps.windows[0])==[[0,0,2,2],[4,4,3,3]] and ex.error is None
    ex.drag.value = False
    ex.choice.windows = [[[0,0,4,4],[2,2,4,4]]]
    assert 'overlap' in ex.status.value

def test_errors_are_shown_and_survived(ex):
    before,tokens = ex.numbers(),ex.choice.tokens
    for text,words in (('nonsense','unknown'), ('2x99','cannot fit'), ('crop:3','crops the image')):
        ex.scheme.value = text
        assert words in ex.status.value and 'alert' in ex.status.value
    ex.choice.tokens = []
    assert 'click one' in ex.status.value
    ex.choice.tokens = tokens
    assert ex.status.value=='' and ex.numbers()==before

def test_the_whole_model_or_this_layer(ex, seg):
    ex.tau.value = 1.6
    layer = ex.numbers()['tau: entropy']
    ex.scope.value = 'model'
    assert not ex.tau.continuous_update and ex.numbers()['tau: entropy']!=layer # earlier layers have changed
    assert set(get_temperature(seg).values())=={1.}
    ex.scope.value = 'layer'
    assert ex.numbers()['tau: entropy']==pytest.approx(layer)

@pytest.mark.parametrize('show', ['self', 'entropy'])
def test_all_tokens_at_once(ex, show):
    ex.show.value = show
    kind = 'self-probability' if show=='self' else 'entropy'
    a = ex.numbers()
    assert a[f'tau: mean {kind}']!=a[f'full: mean {kind}'] and len(ex.canvas['tau'].heat)==96
    ex.tau.value = 1.
    assert ex.numbers()[f'tau: mean {kind}']==pytest.approx(a[f'full: mean {kind}'])

def test_state_and_files(ex, seg, tmp_path):
    ex.set_state(dict(tau=.7, head=1, difference='tau - full', brightness=4., multiples='tau'))
    ex.choice.windows = [[[0,0,3,3],[5,5,3,3]]]
    ex.choice.tokens = [0]
    state = json.loads(json.dumps(ex.state()))
    other = AttentionExplorer(seg, IMG, '2x3').set_state(state)
    assert other.state()==state and other.numbers()==ex.numbers()
    with pytest.raises(ValueError, match='no control'): ex.set_state(dict(colour=1))
    assert ex.save(tmp_path/'a.png').stat().st_size>1000 and 'self-probability' in ex.save(tmp_path/'a.html').read_text()
    assert {'image/png','application/vnd.jupyter.widget-view+json'}<=ex._repr_mimebundle_().keys()

def test_two_frames(flow):
    ex = AttentionExplorer(flow, (IMG,IMG2), '2x3')
    assert ex.maps.kinds[ex.layer.value]=='cross' and ex.canvas['full'].mode=='view' and ex.canvas['frame 1'].mode=='tokens'
    assert ex.canvas['full'].image!=ex.canvas['frame 1'].image
    t = ex.maps.windows[0].index()[0,2].item()
    ex.canvas['frame 1'].tokens = [t]
    want = token_panels(ex.maps, ex.layer.value, [t], ex.tau.value)
    assert ex.numbers()['full: entropy']==pytest.approx(want['full'][1]['entropy'])
    ex.show.value = 'self'
    assert 'attends to itself' in ex.status.value
    ex.layer.value = 'decoder.blocks.0.attn'
    assert ex.error is None and ex.canvas['full'].mode=='tokens' and ex.canvas['full'].image==ex.canvas['frame 1'].image
    ex.close()

def test_opens_without_arguments():
    for e in (AttentionExplorer(), AttentionExplorer(bundled_model('flow-cross'))):
        assert e.error is None and e.numbers()
        e.close()

def test_bad_arguments(seg):
    for over,words in ((dict(layer='head'), 'no layer'), (dict(windows='2x99'), 'cannot fit'), (dict(device='tpu'), 'no device')):
        with pytest.raises(ValueError, match=words): AttentionExplorer(seg, IMG, **over)
    class Bare(torch.utils.data.Dataset): # answers of no kind
        def __len__(self): return 1
        def __getitem__(self, i): return dict(image=IMG)
    with pytest.raises(ValueError, match="there is no 'labels'"): TemperatureExplorer(seg, data=Bare())

# --- Temperature

def test_the_slider_turns_what_is_selected(warm):
    warm.tau.value = 1.4
    assert set(sum(warm.chosen.taus.values(), []))=={1.4}
    warm.scope.value, warm.layer.value = 'layer', 'encoder.blocks.0.attn'
    warm.tau.value = .9
    assert warm.chosen.taus=={'encoder.blocks.0.attn': [.9,.9], 'encoder.blocks.1.attn': [1.4,1.4]}
    warm.grid.tokens = [3]
    assert (warm.scope.value,warm.layer.value,warm.head.value,warm.tau.value)==('head','encoder.blocks.1.attn',1,1.4)
    warm.bell.at = 1.75 # a click on the curve
    assert warm.chosen.taus['encoder.blocks.1.attn']==[1.4,1.75] and warm.error is None
    warm.request(warm.reset)
    assert warm.tau.value==1 and set(sum(warm.chosen.taus.values(), []))=={1.}

def test_data_in_place_of_an_image(seg, street):
    class Labels(torch.utils.data.Dataset): # answers of one kind
        classes = street.classes
        def __len__(self): return len(street)
        def __getitem__(self, i): return {k: street[i][k] for k in ('image','labels')}
    e = TemperatureExplorer(seg, Labels(), images=1)
    assert type(e.loss.task).__name__=='SegTask' and not e.buttons[2].disabled
    torch.testing.assert_close(e.maps.imgs[0][0], street[0]['image'])
    e.close()

def test_the_slider_is_not_pulled_back(warm):
    "A browser counts 1.03 as 1.0300000000000002; an answer of 1.03 would come late and undo the next step of the hand"
    warm.tau.value = 1.0300000000000002
    assert warm.tau.value==1.0300000000000002 and set(sum(warm.chosen.taus.values(), []))=={1.03}

def test_no_request_is_lost(warm):
    "The slider moves while an older request waits: what the reader did last counts"
    import winwin.workbench.explorer as m
    calls = []
    class Loop:
        def call_later(self, _, f): calls.append(f); return self
        def cancel(self): pass
    old, m._browser_loop = m._browser_loop, Loop
    try:
        warm.grid.tokens = [1]
        for t in (1.1,1.2,1.3): warm.tau.value = t
        while calls: calls.pop(0)()
    finally: m._browser_loop = old
    assert warm.tau.value==1.3 and warm.chosen.taus=={'encoder.blocks.0.attn': [1.,1.3], 'encoder.blocks.1.attn': [1.,1.]} and warm.exact

@pytest.mark.parametrize('kind', ['attention', 'temperature'])
def test_saved_pages(ex, warm, tmp_path, kind):
    e = dict(attention=ex, temperature=warm)[kind]
    before,shown = e.state(),e.numbers()
    page = e.save(tmp_path/'a.html').read_text()
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1])['shown']
    assert e.state()==before and e.numbers()==pytest.approx(shown) and e.error is None and len(page)<900_000
    assert [n for n,_ in e.steps()[1]]==data['names'] and {}in data['frames'] # one is what is shown now
    i = next(i for i,o in enumerate(shown_parts(e.box)) if o is (ex.canvas['tau'] if kind=='attention' else warm.canvas['prediction with tau']))
    assert all(str(i) in f for f in data['frames'] if f), 'every other step looks different'

def test_the_answer_is_that_of_the_model(warm, seg):
    warm.tau.value = 1.5
    with torch.no_grad():
        plain = seg(IMG[None])[0]
        old = set_temperature(seg, 1.5)
        sharp = seg(IMG[None])[0]
        set_temperature(seg, old)
    torch.testing.assert_close(warm.prediction, sharp)
    assert warm.numbers()['change']==pytest.approx((plain.argmax(1)!=sharp.argmax(1)).float().mean().item())
    warm.live.value = False
    warm.tau.value = 1.
    assert not warm.exact and 'alone' in warm.lines.title

def test_ways_to_find_a_temperature(warm, seg):
    for do in (warm.ratio,warm.sweep,warm.match,warm.learn): warm.request(do)
    assert warm.error is None and warm.marks.keys()=={'log-ratio','swept','matched','learned'}
    assert warm.marks['log-ratio']==pytest.approx(log_ratio(18, 96))
    assert len(warm.swept)==12 and warm.bell.lines[0]['y'][0]==pytest.approx(sum(warm.swept[min(warm.swept)]), abs=1e-5)
    assert [m['name'].split()[0] for m in warm.bell.marks]==list(warm.marks)
    assert set(get_temperature(seg).values())=={1.} and not seg.training

def test_apply_and_save(warm, seg, tmp_path):
    warm.tau.value = 1.25
    assert set(get_temperature(seg).values())=={1.} and 'Not applied' in warm.note.value
    warm.request(warm.store)
    assert 'no folder' in warm.status.value
    warm.folder.value = str(tmp_path/'m')
    warm.saver.click()
    assert set(get_temperature(load_model(tmp_path/'m')).values())=={1.25}==set(get_temperature(seg).values())

def test_state_and_files_of_temperatures(warm, seg, tmp_path):
    warm.set_state(dict(scope='head', head=1))
    warm.tau.value = 1.3
    state = json.loads(json.dumps(warm.state()))
    other = TemperatureExplorer(seg, IMG, '2x3').set_state(state)
    assert other.state()==state and other.tau.value==1.3
    assert other.buttons[2].disabled # no targets, no sweep
    other.request(other.sweep)
    assert 'no targets' in other.status.value
    assert warm.save(tmp_path/'t.png').stat().st_size>1000

def test_temperatures_of_two_frames(flow):
    ex = TemperatureExplorer(flow, (IMG,IMG2), '2x3')
    ex.scope.value = 'cross'
    ex.tau.value = 1.5
    assert {n.split('.')[-1] for n,t in ex.chosen.taus.items() if t!=[1.,1.]}=={'cross_attn'}
    ex.layer.value = 'decoder.blocks.0.cross_attn'
    ex.stat.value = 'self'
    assert 'attends to itself' in ex.status.value
    ex.stat.value = 'entropy'
    assert ex.error is None and ex.canvas['prediction with tau'].image
    ex.close()

# --- Both

@pytest.fixture(scope='module')
def dino():
    import timm
    torch.manual_seed(0)
    model = timm.create_model('vit_small_patch16_dinov3', num_classes=0, dynamic_img_size=True, depth=2)
    return model.eval().requires_grad_(False)

def test_class_and_register_tokens(dino):
    ex = AttentionExplorer(dino, torch.rand(3,96,128, generator=torch.Generator().manual_seed(0)), '2*2x2', layer=1)
    assert [name for name,_ in ex.query.options]==['the clicked token','the class token',*(f'register {i}' for i in range(1,5))]
    look = ex.maps.look('model.blocks.1.attn')
    ex.query.value = -2
    want = attention_rows(look.q, look.k, 1)[0,:,0].mean(0) # of the first register
    torch.testing.assert_close(ex.result['full'][0].flatten(), want[5:])
    assert 'register 1' in ex.table.value and 'full: distance' not in ex.numbers() and ex.canvas['full'].tokens==[]
    ex.multiples.value = 'sinks'
    share = attention_rows(look.q, look.k, range(5, 53))[0].mean(1)[:,:5] # (heads,5) of all image tokens
    got = torch.frombuffer(bytearray(ex.tiles.heat), dtype=torch.uint8).view(*ex.tiles.grid)[1]*ex.tiles.vmax/255
    assert ex.tiles.grid==[2,5*7-1] and ex.error is None
    torch.testing.assert_close(torch.stack([got[i*7:i*7+6] for i in range(5)], 1), share, atol=ex.tiles.vmax/255, rtol=0)
    ex.tiles.tokens = [0*34+2*7+3] # first layer, second register, head 3
    assert (ex.layer.value,ex.head.value)==('model.blocks.0.attn',3)

def test_models_without_a_class_token(ex):
    assert ex.query.disabled and 'no class' in ex.query.tooltip
    ex.multiples.value = 'sinks'
    assert ex.error is None and 'no class or register tokens' in ex.tiles.caption

def test_features(ex, tmp_path):
    name = 'encoder.blocks.1.attn'
    x,small = (ex.maps.features(name, v) for v in ('full','windows'))
    token = ex.choice.tokens[0]
    ex.set_state(dict(layer=name, show='alike', tau=1.))
    want = torch.nn.functional.cosine_similarity(x, x.flatten(0, 1)[token], dim=-1)
    torch.testing.assert_close(ex.result['full'][0], want)
    torch.testing.assert_close(ex.result['tau'][0], want) # a temperature of 1
    assert ex.result['windows'][0].isnan().sum()==96-18
    ex.tau.value = 1.7
    assert (ex.result['tau'][0]-want).abs().max()>1e-4
    ex.show.value = 'norm'
    torch.testing.assert_close(ex.result['full'][0], x.norm(dim=-1))
    photo = ex.canvas['full'].image
    ex.show.value = 'pca'
    moved = 1-torch.nn.functional.cosine_similarity(x, small, dim=-1)
    ex.gap.value = 'full - windows'
    assert f'up to {moved.nan_to_num(0.).max()/ex.bright.value:.2g}' in ex.canvas['difference'].caption
    assert ex.canvas['full'].image!=photo and ex.canvas['full'].heat==b'' and ex.error is None
    assert ex.save(tmp_path/'f.png').stat().st_size>1000 and ex.save(tmp_path/'f.html').stat().st_size>1000
    ex.show.value = 'row'
    assert ex.canvas['full'].image==photo

def test_another_image(ex):
    import io
    from PIL import Image
    png = io.BytesIO()
    Image.new('RGB', (64,64), 'red').save(png, 'PNG')
    ex.upload.value = ({'name': 'a.png', 'type': 'image/png', 'size': 1, 'content': png.getvalue(), 'last_modified': datetime.datetime.now()},)
    assert ex.error is None and ex.maps.grid==(8,8) and ex.canvas['full'].grid==[8,8] and ex.result['full'][0].shape==(8,8)

@pytest.mark.browser
def test_maps_stay_side_by_side(dino, page, tmp_path):
    ex = AttentionExplorer(dino, torch.rand(3,96,128, generator=torch.Generator().manual_seed(0)), '2*2x2', layer=1)
    for show in ('row','pca','alike'):
        ex.set_state(dict(show=show, multiples='sinks'))
        for width in (700,1000):
            page.set_viewport_size(dict(width=width, height=900))
            page.goto(ex.save(tmp_path/f'{show}.html').as_uri())
            boxes = [page.locator('canvas').nth(i).bounding_box() for i in range(3)]
            assert len({round(b['y']) for b in boxes})==1 and all(b['width']>150 for b in boxes)
            assert page.evaluate('document.documentElement.scrollWidth')<=width
    labels = page.locator('canvas').evaluate_all('all => all.map(e => e.getAttribute("aria-label"))')
    assert len(labels)==5 and all(labels)
    page.locator('canvas').nth(1).hover()
    page.locator('.winwin-readout', has_text='row').wait_for()
    page.mouse.move(1, 1)
    assert page.locator('.winwin-readout').nth(1).inner_text()=='' # a read-out goes with the mouse
    assert not page.problems

def test_encoders_of_timm():
    import timm
    model = timm.create_model('vit_small_patch16_dinov3', num_classes=0, dynamic_img_size=True, depth=2).eval()
    img = torch.rand(3,96,128, generator=torch.Generator().manual_seed(0))
    ex = AttentionExplorer(model, img, '2*2x2')
    assert ex.error is None and ex.numbers()['full: prefix']>0
    t = TemperatureExplorer(model, img, '2*2x2')
    t.tau.value = 1.4
    assert t.error is None and t.exact and t.prediction is None and set(get_temperature(model).values())=={1.}

def kernel_bytes():
    "Memory of this process that is in use"
    gc.collect()
    return int(open('/proc/self/statm').read().split()[1])*4096

def live_tensors(): return sum(type(o) is torch.Tensor for o in gc.get_objects())

class Foreign(torch.nn.Module):
    "A model that knows nothing of this library"
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Conv2d(3, 32, 8, 8)
        self.blocks = torch.nn.Sequential(*(torch.nn.TransformerEncoderLayer(32, 2, 32, batch_first=True) for _ in range(2)))
    def forward(self, img): return self.blocks(self.embed(img).flatten(2).mT)

def dinov2(depth=2):
    "A model of transformers with a class token"
    T = pytest.importorskip('transformers')
    torch.manual_seed(0)
    config = T.Dinov2Config(hidden_size=32, num_hidden_layers=depth, num_attention_heads=2, image_size=96, patch_size=8)
    return T.Dinov2Model(config).eval().requires_grad_(False)

@pytest.mark.parametrize('kind', ['attention', 'temperature', 'foreign', 'transformers'])
def test_memory_does_not_grow(seg, kind):
    makes = dict(foreign=lambda: Foreign().eval().requires_grad_(False), transformers=dinov2)
    model = makes.get(kind, lambda: seg)()
    ex = (TemperatureExplorer if kind=='temperature' else AttentionExplorer)(model, IMG, '2x3')
    ids = ex.maps.windows[0].index()[0].tolist()
    def poke(i):
        if kind!='temperature': ex.canvas['full'].tokens = [ids[i%18]]
        ex.tau.value = .6+i%100/100
        if i%5==0: ex.layer.value = list(ex.maps.layers)[i//5%2]
    for i in range(40): poke(i)
    before,tensors = kernel_bytes(),live_tensors()
    for i in range(500 if kind=='temperature' else 250): poke(i) # two interactions each in the first
    assert ex.error is None and kernel_bytes()-before<15e6
    assert abs(live_tensors()-tensors)<40
