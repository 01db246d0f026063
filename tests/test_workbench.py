"The workbench as a user meets it: `winwin lab`, JupyterLab, Chromium, hands on the explorers."
import json, os, re, signal, socket, subprocess, sys, threading, time, urllib.request, uuid
from functools import cache
import pytest

from conftest import ROOT
from test_site import CONTRAST
from winwin.workbench.lab import explorers, lab_notebook, notebook_cell
from winwin.workbench.contest import _canvas, _drag, _open_notebook, _restart_and_run_all, _run_all, _slider, _token

WAIT = 120 # seconds, for slow machines; nothing waits longer than it must

def until(what, seconds=WAIT, pause=.05):
    "What `what` gives, as soon as it is true"
    end = time.monotonic()+seconds
    while not (seen := what()):
        assert time.monotonic()<end, f'waited {seconds} s'
        time.sleep(pause)
    return seen

class Kernel:
    "Ask the kernel of a notebook, beside the page"
    def __init__(self, lab, name):
        kernel = next(s['kernel']['id'] for s in lab.ask('api/sessions') if s['path']==f'{name}.ipynb')
        self.url = f'{lab.address.replace("http", "ws")}/api/kernels/{kernel}/channels?token={lab.token}'
        self.connect()

    def connect(self):
        from websocket import create_connection
        self.ws = create_connection(self.url, timeout=WAIT)

    def __call__(self, code):
        "Value of an expression, by JSON; the server hangs up on whoever is silent for long, then ask anew"
        from websocket import WebSocketException
        try: return self.ask(code)
        except (OSError,WebSocketException): self.connect()
        return self.ask(code)

    def ask(self, code):
        mark,head = uuid.uuid4().hex,dict(msg_id=uuid.uuid4().hex, msg_type='execute_request', username='', session='test', version='5.3')
        code = f'import json as _j; print("{mark}"+_j.dumps({code}))'
        what = dict(code=code, silent=False, store_history=False, user_expressions={}, allow_stdin=False, stop_on_error=False)
        self.ws.send(json.dumps(dict(header=head, parent_header={}, metadata={}, content=what, channel='shell', buffers=[])))
        text = ''
        while True:
            raw = self.ws.recv()
            if isinstance(raw, bytes): continue # buffers of a widget
            msg = json.loads(raw)
            if msg['parent_header'].get('msg_id')!=head['msg_id']: continue
            if msg['msg_type']=='error': raise AssertionError('\n'.join(msg['content']['traceback']))
            if msg['msg_type']=='stream': text += msg['content']['text']
            if msg['msg_type']=='status' and msg['content']['execution_state']=='idle' and mark in text: return json.loads(text.split(mark)[1])

class Lab:
    "`winwin lab` in a process of its own"
    def __init__(self, tmp, kind='lab', *args):
        self.folder,places = tmp/'my lab',('CONFIG_DIR','DATA_DIR','RUNTIME_DIR')
        env = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1', IPYTHONDIR=str(tmp/'ipython'), PYTHONUNBUFFERED='1',
                   JUPYTERLAB_SETTINGS_DIR=str(tmp/'settings'), JUPYTERLAB_WORKSPACES_DIR=str(tmp/'workspaces'),
                   **{f'JUPYTER_{k}': str(tmp/k.lower()) for k in places})
        cmd = [sys.executable, '-c', 'from winwin.cli import main; main()', kind, '--no-browser', '--folder', str(self.folder), *args]
        self.process = subprocess.Popen(cmd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.text = ''
        threading.Thread(target=self._listen, daemon=True).start()
        m = until(lambda: re.search(r'(http://127\.0\.0\.1:\d+)/\S+token=(\S+)\n', self.text) or self.process.poll())
        assert not isinstance(m, int), f'winwin {kind} ended: {self.text}'
        self.address,self.token = m[1],m[2]

    def _listen(self):
        for line in self.process.stdout: self.text += line
    def url(self, name): return f'{self.address}/lab/tree/{name}.ipynb?token={self.token}'
    def ask(self, path): return json.load(urllib.request.urlopen(f'{self.address}/{path}?token={self.token}', timeout=60))

    def open(self, page, name):
        "Run all cells of a notebook; its kernel, when they are done"
        page.set_default_timeout(1000*WAIT)
        _open_notebook(page, self, name)
        _run_all(page)
        return self.ready(page, name)

    def ready(self, page, name):
        page.locator('.winwin-explorer canvas').first.wait_for()
        kernel = Kernel(self, name)
        page.wait_for_selector('#jp-main-statusbar >> text=/\\| Idle/')
        for k in explorers if name=='workbench' else [name]: assert kernel(f'{k}.error is None')
        page.locator('.winwin-explorer canvas').first.scroll_into_view_if_needed()
        return kernel

    def stop(self):
        "Ctrl-C; the exit code"
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)

@pytest.fixture(scope='module')
def lab(tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp('lab'))
    yield lab
    assert lab.stop()==0 and 'Stopped' in until(lambda: 'Stopped' in lab.text and lab.text), 'Ctrl-C stops it without a traceback'
    with pytest.raises(OSError): urllib.request.urlopen(lab.address, timeout=5) # the server is gone

def clean(page):
    "No error on the page, nothing asked of another machine"
    assert not page.locator('[data-mime-type="application/vnd.jupyter.stderr"]').count(), page.locator('.jp-OutputArea').all_inner_texts()
    assert not page.problems and not page.outside, (page.problems,page.outside)

def paint(canvas):
    "Bytes of what a canvas shows"
    return canvas.evaluate("e => e.toDataURL()")

def complain(page, box, bad, good):
    "A bad text is answered by an error line, a good one takes it away"
    line = page.locator('.winwin-explorer [role=alert].winwin-error')
    box.fill(bad); box.press('Enter')
    line.wait_for()
    text = line.inner_text()
    box.fill(good); box.press('Enter')
    line.wait_for(state='detached')
    return text

def field(page, label): return page.locator(f'.widget-text:has(label:text-is("{label}")) input')
def choose(page, label, what): page.locator(f'.widget-dropdown:has(label:text-is("{label}")) select').select_option(what)

def again(lab, page, name, wanted):
    "A fresh kernel and all cells: as at first"
    _restart_and_run_all(page)
    page.locator('.winwin-explorer canvas').first.wait_for(state='detached')
    kernel = lab.ready(page, name)
    assert kernel(f'{name}.numbers()')==wanted
    clean(page)

def settled(page, canvases):
    "What canvases show once they have stopped changing: pictures are decoded after the first drawing"
    seen = []
    def still():
        seen.append([paint(c) for c in canvases])
        page.wait_for_timeout(250)
        return len(seen)>3 and all(o==seen[-1] for o in seen[-4:])
    until(still)
    return seen[-1]

# --- Windows

@pytest.mark.browser
def test_windows(lab, page):
    from winwin.workbench.widgets import boxes_windows
    from winwin.bench.cost import Speed
    from winwin.workbench.windows import window_facts
    ask = lab.open(page, 'windows')
    first,grid,canvas = ask('windows.numbers()'),tuple(ask('windows.canvas.grid')),_canvas(page, 'image with windows')
    boxes = lambda: ask('windows.canvas.windows')
    def right(now):
        speed = ask('windows.speed and vars(windows.speed)')
        facts = window_facts(boxes_windows(now, grid), 'winwin_seg_base', speed=speed and Speed(**speed))
        seen = ask('windows.numbers()')
        assert {k: seen[k] for k in facts}==pytest.approx(facts)
        page.locator('.winwin-explorer table', has_text=f'{facts["fewer_operations"]:.1f} times fewer').wait_for()
        page.locator('.winwin-explorer table', has_text=f'{facts["faster"]:.1f} times faster').wait_for()
    start = boxes()
    right(start)
    (y,x,h,w),other = start
    # by hand to the corner of the image farthest from the other window
    at = 0 if other[0]+other[2]/2>grid[0]/2 else grid[0]-h,0 if other[1]+other[3]/2>grid[1]/2 else grid[1]-w
    middle = lambda b: (b[0]+b[2]//2,b[1]+b[3]//2)
    _drag(page, canvas, middle(start[0]), middle([*at,h,w]), grid)
    moved = until(lambda: (b := boxes())!=start and b)
    assert moved==[[*at,h,w],other]
    right(moved)
    # onto the other window: refused where it can be seen, nothing changes
    _drag(page, canvas, middle(moved[0]), middle(other), grid)
    page.locator('.winwin-readout', has_text='must not overlap').wait_for()
    assert boxes()==moved
    # by its corner
    b = canvas.bounding_box()
    px = lambda y,x: (b['x']+b['width']*x/grid[1]-4,b['y']+b['height']*y/grid[0]-4)
    page.mouse.move(*px(at[0]+h, at[1]+w)); page.mouse.down(); page.mouse.move(*px(at[0]+h-6, at[1]+w-4), steps=5); page.mouse.up()
    small = until(lambda: (o := boxes())!=moved and o)
    assert small==[[*at,h-6,w-4],other]
    right(small)
    assert ask('windows.numbers()["scheme"]')==field(page, 'scheme').input_value()!='2x22'
    # by arrow keys
    key,step = ('ArrowDown',1) if at[0]==0 else ('ArrowUp',-1)
    canvas.press(key)
    right(until(lambda: (o := boxes())[0][0]==at[0]+step and o))
    # by a scheme, good and bad
    assert 'banana' in complain(page, field(page, 'scheme'), 'banana', '3x10')
    right(until(lambda: len(o := boxes())==3 and o))
    page.click('button:text-is("Measure time")')
    page.locator('.winwin-explorer table', has_text='training time per image').wait_for()
    right(boxes())
    page.click('.winwin-copy button')
    page.locator('.winwin-copy button', has_text='Copied').wait_for()
    assert page.locator('.winwin-copy code').inner_text()=='--windows "3x10"'
    page.click('button:text-is("Draw again")')
    assert until(lambda: ask('windows.seed.value'))==1
    again(lab, page, 'windows', first)

# --- Guidance

@pytest.mark.browser
def test_guidance(lab, page):
    from winwin.workbench.widgets import boxes_windows
    from winwin.windows.guidance import guide_once
    from winwin.worlds.datasets import LayeredFlow
    ask = lab.open(page, 'guidance')
    first,grid,canvas = ask('guidance.numbers()'),tuple(ask('guidance.canvas.grid')),_canvas(page, 'frame 1')
    item = LayeredFlow((360,640), max_motion=120)[1] # what it opens with
    boxes = lambda: ask('guidance.canvas.windows')
    def right(now, number=2, stochasticity=.3, seed=0):
        g = guide_once(item['flow'], boxes_windows(now, grid), number, 12, stochasticity, 8, item['visible'], seed=seed)
        assert ask('guidance.numbers()')==pytest.approx(dict(coverage=g.coverage, best=g.best, same=g.same))
        page.locator('.winwin-explorer b', has_text=f'{g.coverage:.1%}').wait_for()
    start = boxes()
    right(start)
    (y,x,h,w),other = start
    at = 0 if other[0]+other[2]/2>grid[0]/2 else grid[0]-h,0 if other[1]+other[3]/2>grid[1]/2 else grid[1]-w
    second = paint(_canvas(page, 'frame 2'))
    _drag(page, canvas, (y+h//2,x+w//2), (at[0]+h//2,at[1]+w//2), grid)
    moved = until(lambda: (o := boxes())!=start and o)
    assert moved==[[*at,h,w],other]
    right(moved)
    until(lambda: paint(_canvas(page, 'frame 2'))!=second)
    key,step = ('ArrowRight',1) if at[1]==0 else ('ArrowLeft',-1)
    canvas.press(key)
    keyed = until(lambda: (o := boxes())[0][1]==at[1]+step and o)
    right(keyed)
    for _ in range(6): _slider(page, 'noise on votes').press('ArrowLeft') # to 0
    until(lambda: ask('guidance.stochasticity.value')<1e-9)
    right(keyed, stochasticity=0.)
    _slider(page, 'windows in frame 2').press('ArrowRight')
    until(lambda: ask('len(guidance.result.chosen)')==3)
    right(keyed, 3, 0.)
    page.click('button:text-is("Reseed")')
    until(lambda: ask('guidance.seed.value')==1)
    # six windows of 40 tokens cannot fit: said, and survived
    _slider(page, 'side, tokens').press('End')
    page.locator('.winwin-explorer .winwin-error', has_text='cannot fit').wait_for()
    _slider(page, 'side, tokens').press('Home')
    page.locator('.winwin-explorer .winwin-error').wait_for(state='detached')
    again(lab, page, 'guidance', first)

# --- Attention

@cache
def seen():
    "Queries and keys of every layer of the shipped model on the image the explorer opens with"
    import torch
    from winwin.workbench.explorer import example_scene
    from winwin.models.controls import capture
    from winwin.models.hub import bundled_model
    model = bundled_model()
    with torch.no_grad(), capture(model, 'encoder') as seen: model(example_scene(model).frames[None])
    return seen

def entropy_of(token, layer=3, tau=1.): # encoder 3 is what the explorer opens with
    from winwin.attention.statistics import attention_entropy
    return attention_entropy(seen()[layer].q, seen()[layer].k, tau)[0,:,token].mean().item()

def caption(canvas): return canvas.locator('xpath=ancestor::*[contains(@class,"winwin-canvas")]').locator('.winwin-caption').inner_text()

@pytest.mark.browser
def test_attention(lab, page, tmp_path):
    ask = lab.open(page, 'attention')
    first,(H,W) = ask('attention.numbers()'),ask('attention.maps.grid')
    full,tau = _canvas(page, 'attention in the full image'),_canvas(page, 'attention in full, with a temperature')
    number = lambda c: float(re.search(r'entropy ([\d.e-]+)', caption(c))[1])
    before = paint(full)
    page.mouse.click(*_token(full, 15, 12, (H,W)))
    page.locator('.winwin-explorer table', has_text='row 15, column 12').wait_for()
    value = lambda: float(ask('attention.tau.value'))
    assert ask('attention.choice.tokens')==[15*W+12] and paint(full)!=before
    assert number(full)==pytest.approx(entropy_of(15*W+12), rel=6e-3)
    assert number(tau)==pytest.approx(entropy_of(15*W+12, tau=value()), rel=6e-3)
    assert ask('attention.numbers()["full: entropy"]')==pytest.approx(entropy_of(15*W+12), rel=1e-3)
    # arrow keys, and a second token
    full.press('ArrowRight'); full.press('ArrowUp')
    page.locator('.winwin-explorer table', has_text='row 14, column 13').wait_for()
    assert number(full)==pytest.approx(entropy_of(14*W+13), rel=6e-3)
    page.keyboard.down('Shift'); page.mouse.click(*_token(full, 3, 3, (H,W))); page.keyboard.up('Shift')
    page.locator('.winwin-explorer table', has_text='2 tokens').wait_for()
    page.mouse.click(*_token(full, 15, 12, (H,W)))
    page.locator('.winwin-explorer table', has_text='row 15, column 12').wait_for()
    # the temperature
    old = value()
    for _ in range(5): _slider(page, 'tau').press('ArrowRight')
    until(lambda: f'tau {old+.05:.2f}' in caption(tau))
    assert value()==pytest.approx(old+.05)
    assert number(tau)==pytest.approx(entropy_of(15*W+12, tau=old+.05), rel=6e-3)
    # another layer
    choose(page, 'layer', 'encoder 2')
    until(lambda: number(full)==pytest.approx(entropy_of(15*W+12, 2), rel=6e-3))
    # a layer and head among the small pictures
    tiles = _canvas(page, 'all layers and heads')
    (h,w),whole = ask('attention.step'),ask('attention.tiles.grid')
    page.mouse.click(*_token(tiles, 4*h+h//2, w+w//2, whole))
    until(lambda: ask('[attention.layer.value, attention.head.value]')==['encoder.blocks.4.attn',1])
    # bad input
    assert 'banana' in complain(page, field(page, 'windows'), 'banana', '2x9')
    assert until(lambda: [b[2:] for b in ask('attention.choice.windows[0]')]==[[9,9]]*2)
    # files to take along; the page opens without a kernel
    saved = []
    page.on('download', lambda d: saved.append(d.suggested_filename))
    for kind in ('PNG','HTML'):
        with page.expect_download() as got: page.click(f'button:text-is("Save {kind}")')
        assert got.value.suggested_filename==f'attention.{kind.lower()}'
        got.value.save_as(tmp_path/f'a.{kind.lower()}')
        page.wait_for_timeout(500) # a second file of the same click would come now
    assert saved==['attention.png','attention.html'], 'one file per click'
    assert (tmp_path/'a.png').read_bytes()[:4]==b'\x89PNG'
    again(lab, page, 'attention', first)
    page.goto((tmp_path/'a.html').as_uri())
    maps = [page.locator('canvas').nth(i) for i in range(3)]
    until(lambda: all(c.evaluate('e => e.width > 1') for c in maps))
    before,said = settled(page, maps),[caption(c) for c in maps]
    page.locator('input[type=range]').press('End')
    page.locator('.winwin-caption', has_text='tau 2.00').wait_for()
    until(lambda: paint(maps[2])!=before[2])
    # the full image has no temperature: its numbers stay, while its colours follow the scale of the three maps
    assert caption(maps[1])==said[1] and 'entropy' in said[1] and caption(maps[2])!=said[2]
    maps[1].hover()
    page.locator('.winwin-readout', has_text='row').wait_for()
    clean(page)

# --- Temperature

def read_at(tau):
    "What the temperature explorer should say of its last layer, from the functions below it"
    from winwin.workbench.explorer import example_scene
    from winwin.attention.recorder import AttentionRecorder
    from winwin.attention.token_maps import LayerCurves, read_with
    from winwin.tasks import task_of
    from winwin.models.hub import bundled_model
    maps = AttentionRecorder(bundled_model(), example_scene(bundled_model()).frames)
    stats,name = LayerCurves(maps),list(maps.layers)[-1]
    (plain,_),(out,now) = (read_with(maps, dict.fromkeys(maps.layers, t), stats.tokens) for t in (1.,tau))
    return {'mean entropy, windows': stats.windows[name]['entropy'].mean().item(), 'mean entropy, full, with tau': now[name]['entropy'].mean().item(),
            'change': task_of(maps.model).difference(plain, out)[0]}

@pytest.mark.browser
def test_temperature(lab, page):
    ask = lab.open(page, 'temperature')
    first = ask('temperature.numbers()')
    answer = _canvas(page, 'prediction with tau')
    before = paint(answer)
    for _ in range(10): _slider(page, 'tau').press('ArrowRight')
    until(lambda: ask('temperature.chosen.taus["encoder.blocks.5.attn"][0]')==1.1)
    until(lambda: ask('temperature.exact and not temperature.latest.todo') and paint(answer)!=before)
    want = read_at(1.1)
    page.locator('.winwin-caption', has_text=f'{want["change"]:.1%} of pixels differ').wait_for()
    assert {k: v for k,v in ask('temperature.numbers()').items() if k in want}==pytest.approx(want, rel=1e-3)
    # a click on the table of temperatures: layer 2, head 1 alone
    table = _canvas(page, 'temperatures by layer')
    page.mouse.click(*_token(table, 2, 1, ask('temperature.grid.grid')))
    until(lambda: ask('temperature.scope.value')=='head')
    for _ in range(5): _slider(page, 'tau').press('ArrowLeft')
    until(lambda: ask('temperature.chosen.taus["encoder.blocks.2.attn"]')==[1.1,1.05,1.1,1.1])
    until(lambda: ask('not temperature.latest.todo'))
    assert ask('__import__("winwin").models.temperature_dict(temperature.maps.model)')=={}, 'the model is as it was'
    page.click('button:text-is("apply to model")')
    assert until(lambda: ask('__import__("winwin").models.temperature_dict(temperature.maps.model)'))['encoder.blocks.2.attn']==pytest.approx([1.1,1.05,1.1,1.1])
    # marks on the curve, and a click on it
    for text in ('log-ratio','sweep','match','learn'): page.click(f'button:text-is("{text}")')
    for text in ('now','log-ratio','swept','matched','learned'): page.locator('.winwin-chart text.mark', has_text=text).wait_for()
    page.locator('.winwin-explorer [role=status]').first.wait_for(state='detached')
    assert ask('temperature.marks').keys()=={'log-ratio','swept','matched','learned'}
    bell = page.locator('.winwin-chart > svg').nth(2)
    b = bell.bounding_box()
    bell.click(position=dict(x=b['width']*.8, y=b['height']/2))
    until(lambda: ask('temperature.bell.at')>1.4 and ask('temperature.tau.value')==ask('temperature.bell.at'))
    # saving without a folder is an error that is shown and survived
    page.click('button:text-is("save")')
    page.locator('.winwin-explorer .winwin-error').wait_for()
    page.click('button:text-is("reset")')
    page.locator('.winwin-explorer .winwin-error').wait_for(state='detached')
    again(lab, page, 'temperature', first)

# --- All on one page, and pages without code

@pytest.mark.browser
def test_all_on_one_page(lab, page):
    ask = lab.open(page, 'workbench')
    assert ask('[type(o).__name__ for o in (windows,guidance,attention,temperature)]')==[o[0] for o in explorers.values()]
    assert page.locator('.winwin-explorer').count()==4
    file = lab.folder/'workbench.ipynb'
    page.keyboard.press('Control+s')
    until(lambda: file.read_text().count('"image/png"')==4)
    assert file.stat().st_size<400_000
    # every canvas says what it is, and how to use it
    for c in page.locator('.winwin-explorer canvas').all():
        assert c.get_attribute('role') in ('img','application') and len(c.get_attribute('aria-label'))>4 and c.get_attribute('tabindex')=='0'
    clean(page)
    # a notebook that nobody has run here is not trusted: pictures, not empty boxes
    nb = json.loads(file.read_text())
    nb['cells'].append(dict(cell_type='markdown', id='new', metadata={}, source='from elsewhere'))
    (lab.folder/'foreign.ipynb').write_text(json.dumps(nb))
    page.goto(lab.url('foreign') + '&reset')
    page.locator('.jp-OutputArea-output img').first.wait_for()
    assert until(lambda: page.eval_on_selector_all('.jp-OutputArea-output img', 'e => e.map(i => i.naturalWidth)'))
    until(lambda: [w>500 for w in page.eval_on_selector_all('.jp-OutputArea-output img', 'e => e.map(i => i.naturalWidth)')]==[True]*4)
    assert not page.locator('.winwin-explorer').count() and 'Error' not in page.locator('.jp-Notebook').inner_text()
    clean(page)

@pytest.mark.browser
def test_cross_attention(lab, page):
    "Click in frame 1, see frame 2"
    import torch
    from winwin.workbench.explorer import example_scene
    from winwin.attention.recorder import AttentionRecorder
    from winwin.models.hub import bundled_model
    from winwin.attention.token_maps import token_panels
    nb = lab_notebook('attention')
    nb['cells'][2]['source'] = ["from winwin import bundled_model\n", "flow = AttentionExplorer(bundled_model('flow-cross'))\n", "flow"]
    (lab.folder/'flow.ipynb').write_text(json.dumps(nb))
    ask = lab.open(page, 'flow')
    (H,W),frame,second = ask('flow.maps.grid'),_canvas(page, 'frame 1'),_canvas(page, 'attention in the full image')
    assert ask('flow.canvas["full"].mode')=='view' and second.get_attribute('role')=='img'
    before,y,x = paint(second),H//2,W//3
    page.mouse.click(*_token(frame, y, x, (H,W)))
    page.locator('.winwin-explorer table', has_text=f'row {y}, column {x}').wait_for()
    until(lambda: paint(second)!=before)
    model = bundled_model('flow-cross')
    maps = AttentionRecorder(model, example_scene(model).frames)
    want = token_panels(maps, ask('flow.layer.value'), [y*W+x], ask('flow.tau.value'))
    seen = ask('flow.numbers()')
    for view in ('full','tau'):
        for k,v in want[view][1].items(): assert seen[f'{view}: {k}']==pytest.approx(v, rel=1e-3)
    clean(page)

@pytest.mark.browser
def test_a_model_of_transformers(lab, page):
    "Click, class token, features: numbers on the page are the kernel's, and the console stays empty"
    pytest.importorskip('transformers')
    code = ("import torch\nfrom transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel\nfrom winwin import AttentionExplorer\ntorch.manual_seed(0)\n"
            "model = Dinov2WithRegistersModel(Dinov2WithRegistersConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=96, patch_size=8)).eval()\n"
            "ours = AttentionExplorer(model, torch.rand(3,96,128), '2x4')\nours")
    nb = lab_notebook('attention')
    nb['cells'] = [notebook_cell('code', code, 0)]
    (lab.folder/'ours.ipynb').write_text(json.dumps(nb))
    ask = lab.open(page, 'ours')
    full = _canvas(page, 'attention in the full image')
    def agrees(key):
        want = ask(f'ours.numbers()["full: {key}"]')
        until(lambda: (m := re.search(r'([\d.e-]+)$', caption(full))) and float(m[1])==pytest.approx(want, rel=.02))
    agrees('entropy')
    page.mouse.click(*_token(full, 3, 5, (12,16)))
    until(lambda: ask('ours.choice.tokens')==[3*16+5])
    agrees('entropy')
    choose(page, 'query', 'the class token')
    until(lambda: ask('ours._tokens()')==[-1])
    agrees('entropy')
    choose(page, 'show', 'features as colours (PCA)')
    until(lambda: 'cosine' in caption(full))
    agrees('cosine with windows')
    clean(page)

@pytest.mark.browser
def test_app_shows_the_same(tmp_path, page):
    app = Lab(tmp_path, 'app', '--explorer', 'windows')
    try:
        page.set_default_timeout(1000*WAIT)
        page.goto(re.search(r'http://\S+', app.text)[0])
        canvas = _canvas(page, 'image with windows')
        canvas.wait_for()
        canvas.focus()
        page.keyboard.press('1')
        page.locator('.winwin-readout', has_text='window 1').first.wait_for()
        assert not page.locator('.jp-CodeCell .jp-InputArea').count(), 'pages have no code'
        assert not page.outside and not page.problems, (page.outside,page.problems)
    finally: assert app.stop()==0

# --- What cannot work is said

def winwin(*args):
    p = subprocess.run([sys.executable, '-c', 'from winwin.cli import main; main()', *args], capture_output=True, text=True)
    return p.returncode,p.stderr

def test_busy_port(tmp_path):
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0)); s.listen()
        port = s.getsockname()[1]
        code,text = winwin('lab', '--no-browser', '--folder', str(tmp_path/'x'), '--port', str(port))
    assert code==1 and f'port {port} is taken' in text and 'Traceback' not in text
    assert not (tmp_path/'x').exists(), 'nothing is written before it can work'

def test_unknown_explorer():
    code,text = winwin('lab', '--explorer', 'window')
    assert code==1 and 'windows, guidance, attention, temperature' in text and 'Traceback' not in text

@pytest.mark.parametrize('kind,module,hint', [('lab', 'jupyterlab', "pip install 'winwin[lab]'"), ('app', 'voila', "pip install 'winwin[app]'")])
def test_missing_program(kind, module, hint, monkeypatch):
    import winwin.workbench.lab as lab
    monkeypatch.setattr(lab, 'find_spec', lambda name: None if name==module else True)
    with pytest.raises(ImportError, match=re.escape(hint)): lab.run_lab(kind=kind)

def test_a_server_that_dies_says_why(tmp_path, monkeypatch):
    import winwin.workbench.lab as lab
    monkeypatch.setattr(lab, '_command', lambda *_: [sys.executable, '-c', 'raise SystemExit("no such thing")'])
    with pytest.raises(OSError, match='no such thing'):
        with lab.LabServer(tmp_path): pass

def test_your_notebooks_stay(tmp_path):
    from winwin.workbench.lab import write_notebooks
    files = write_notebooks(tmp_path)
    files['attention'].write_text('mine')
    assert write_notebooks(tmp_path)['attention'].read_text()=='mine'
    nbformat = pytest.importorskip('nbformat')
    for k,f in files.items():
        if k!='attention': nbformat.validate(nbformat.read(f, 4))

# --- The site

@pytest.mark.browser
@pytest.mark.parametrize('name', ['workbench/index', 'workbench/windows', 'workbench/guidance', 'workbench/attention', 'workbench/temperature', 'tutorials/workbench'])
def test_site_shows_static_versions(name, url, page):
    page.goto(f'{url}/{name}.html')
    sizes = page.eval_on_selector_all('article .cell_output img', 'e => e.map(i => [i.naturalWidth, i.naturalHeight])')
    assert len([s for s in sizes if s[0]>=500])>=(4 if name in ('workbench/index','tutorials/workbench') else 1), sizes
    assert not page.problems and not page.outside

@pytest.mark.browser
@pytest.mark.parametrize('name', explorers)
def test_site_has_live_pages(name, url, page):
    "Saved pages on the site: a slider goes through states, in light and dark"
    page.emulate_media(color_scheme='dark')
    page.goto(f'{url}/_static/workbench/{name}.html')
    shows = lambda: [paint(c) for c in page.locator('canvas').all()]
    until(lambda: page.evaluate("[...document.querySelectorAll('canvas')].every(c => c.width > 1)"))
    page.wait_for_timeout(300)
    before = shows()
    page.locator('input[type=range]').press('End')
    until(lambda: shows()!=before)
    for text in ('.winwin-explorer table td', 'label'):
        if page.locator(text).first.is_visible(): assert page.evaluate(CONTRAST, text)[0]>4.5, text
    page.goto(f'{url}/workbench/index.html')
    assert page.locator(f'a[href$="workbench/{name}.html"]').count()==1
    assert not page.problems and not page.outside

@pytest.mark.browser
@pytest.mark.parametrize('name', ['cat','guidance'])
def test_gallery_pages_live_without_a_kernel(name, page):
    "The slider changes the maps; where states are tokens, so do a click and an arrow key"
    from winwin.workbench.gallery import gallery_cases
    file = ROOT/'winwin'/'static'/'gallery'/f'{name}.html'
    page.goto(file.as_uri())
    until(lambda: page.evaluate("[...document.querySelectorAll('canvas')].every(c => c.width > 1)"))
    page.wait_for_timeout(300)
    assert page.locator('h1').inner_text()==gallery_cases()[name]['title']
    now,maps = (lambda: page.locator('output').inner_text()),(lambda: [paint(c) for c in page.locator('canvas').all()])
    first,shown = now(),maps()
    page.locator('input[type=range]').press('End')
    assert now()!=first and until(lambda: maps()!=shown)
    assert 'drag' not in page.locator('main').inner_text() # there is nobody to tell
    canvas = page.locator('canvas').nth(1)
    if name=='cat':
        box = canvas.bounding_box()
        canvas.click(position=dict(x=box['width']/4, y=box['height']/2))
        token = now()
        canvas.press('ArrowRight')
        row,column = (int(n) for n in re.findall(r'\d+', token))
        assert [int(n) for n in re.findall(r'\d+', now())]==[row,column+3] # the next token that has a frame
    else: assert canvas.get_attribute('role')=='img'
    assert not page.problems and not page.outside

@pytest.mark.browser
def test_a_frame_is_as_high_as_its_page(page):
    "As on the site and in `Gallery`: nothing is cut off"
    from winwin.workbench.gallery import Gallery
    page.set_content(f'<body style="width: 900px">{Gallery("match").page.value}')
    frame = page.frame_locator('iframe')
    frame.locator('canvas').first.wait_for()
    until(lambda: page.locator('iframe').bounding_box()['height']<800) # it was 800
    assert frame.locator('html').evaluate('e => e.scrollHeight <= innerHeight')
    assert not page.problems
