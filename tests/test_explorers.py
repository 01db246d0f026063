"Explorers without a browser: requests, errors, state, files, memory."
import asyncio, gc, json, re, sys, tracemalloc
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
import ipywidgets, matplotlib.pyplot as plt, pytest, torch

from winwin.workbench.widgets import TokenCanvas, boxes_windows, draw_canvas
from winwin.machine import list_devices
from winwin.workbench.explorer import Explorer, Latest
from winwin.windows.guidance import guide_once
from winwin.workbench.guidance import GuidanceExplorer
from winwin.models.dense import create_model
from winwin.windows.schemes import parse_scheme
from winwin.workbench.snapshots import shown_parts
from winwin.windows.schemes import scheme_coverage, scheme_of
from winwin.workbench.windows import WindowExplorer, window_facts
from winwin.windows.sampling import sample_windows
from winwin.worlds.datasets import DrivingWorld, LayeredFlow

IMG = DrivingWorld((96,160))[0]['image']
PAIR = LayeredFlow((96,160), max_motion=30)[0]
MODEL = create_model('winwin_seg_micro', head='linear', dim=32, depth=1, num_heads=2) # quick to count

class Double(Explorer):
    "Shows a number and its double; refuses 13"
    title = 'A double'
    def __init__(self):
        super().__init__()
        self.runs, self.canvas = 0, TokenCanvas(grid=[1,2])
        self.x = self.keep('x', ipywidgets.IntSlider(value=1, min=0, max=20))
        self.name = self.keep('name', ipywidgets.Text('a'), self.rename)
        self.arrange([self.x, self.name], self.canvas)
    def update(self):
        self.runs += 1
        if self.x.value==13: raise ValueError('13 brings <bad> luck')
        self.twice = 2*self.x.value
    def rename(self): self.title = f'A double called {self.name.value}'
    def numbers(self): return {'twice': self.twice, '<b>': 1.}
    def draw(self): return draw_canvas(self.canvas, title=self.title).figure

@pytest.fixture
def windows(): return WindowExplorer(IMG, '2x5', MODEL, patch=8)
@pytest.fixture
def guidance(): return GuidanceExplorer(PAIR, patch=8, scheme='2x4')

# --- Requests

def drive(steps, seconds=.3):
    "Run `steps(latest, ask, log)` with an event loop, as if messages of a browser were handled"
    log = []
    async def main():
        loop, latest = asyncio.get_running_loop(), Latest(lambda: log.append('busy'), lambda e: log.append(('done', e)))
        import winwin.workbench.explorer as m
        old, m._browser_loop = m._browser_loop, lambda: loop
        try:
            await steps(latest, log)
            await asyncio.sleep(seconds)
        finally: m._browser_loop = old
    with ThreadPoolExecutor(1) as thread: thread.submit(asyncio.run, main()).result() # a browser of other tests has a loop in this one
    return log

def test_of_many_requests_the_last_is_carried_out():
    async def steps(latest, log):
        for i in range(50): latest(lambda i=i: log.append(i), 'map')
    log = drive(steps)
    assert [o for o in log if isinstance(o, int)]==[49] and log[-1]==('done', None) and log.count(('done', None))==1

def test_different_work_is_all_done_in_order():
    async def steps(latest, log):
        latest(lambda: log.append(1), 'a'); latest(lambda: log.append(2), 'b'); latest(lambda: log.append(3), 'a')
    assert [o for o in drive(steps) if isinstance(o, int)]==[3, 2]

def test_a_generator_is_dropped_at_its_next_pause():
    async def steps(latest, log):
        def slow():
            for i in range(1000): log.append(i); yield
        latest(slow, 'map')
        await asyncio.sleep(.02)
        latest(lambda: log.append('new'), 'map')
    log = drive(steps)
    assert 0 in log and 999 not in log and log.index('new')>log.index(0) and log[-1]==('done', None)

def test_an_error_does_not_stop_the_rest():
    async def steps(latest, log): latest(lambda: 1/0, 'a'); latest(lambda: log.append('fine'), 'b')
    log = drive(steps)
    assert 'fine' in log and isinstance(log[-1][1], ZeroDivisionError)
    async def again(latest, log): latest(lambda: 1/0, 'a'); latest.flush(); latest(lambda: log.append('fine'), 'a')
    assert drive(again)[-1]==('done', None)

def test_work_may_ask_for_work():
    log = []
    latest = Latest()
    def first():
        log.append('first')
        if len(log)<3: latest(first)
    latest(first)
    assert log==['first']*3 and not latest.todo

def test_the_page_is_there_before_the_first_result(monkeypatch):
    "In a live notebook; nobody who asks for a result gets one that is not there"
    monkeypatch.setattr('winwin.workbench.explorer._live', lambda: True)
    shown = []
    def display(data, raw, display_id):
        shown.append((data, ex.status.value, bool(ex.canvas.image)))
        return SimpleNamespace(update=lambda data, raw: shown.append((data, ex.status.value, ex.facts)))
    monkeypatch.setitem(sys.modules, 'IPython.display', SimpleNamespace(display=display))
    ex = WindowExplorer(DrivingWorld((96,160))[0]['image'], patch=8, scheme='2x3')
    ex._ipython_display_()
    (first,status,image),(then,after,facts) = shown
    assert 'working' in status and image and 'image/png' not in first
    assert after=='' and facts['tokens']==18 and 'image/png' in then and all(then[k]==v for k,v in first.items())
    with pytest.raises(NotImplementedError): ex._ipython_display_() # nothing is waiting: the usual way
    assert WindowExplorer(DrivingWorld((96,160))[0]['image'], patch=8, scheme='2x3').numbers()['tokens']==18

def test_cells_and_the_browser_in_different_threads():
    "JupyterLab 4.4 and later handles messages of widgets in a thread of their own"
    import random, threading, time
    import winwin.workbench.explorer as m
    log, running, both = [], [], []
    latest = Latest(finished=lambda e: log.append(e))
    def work(): running.append(1); both.append(len(running)); time.sleep(random.random()/500); running.pop()
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    here, old = threading.main_thread(), m._browser_loop
    m._browser_loop = lambda: None if threading.current_thread() is here else loop
    try:
        for i in range(100):
            loop.call_soon_threadsafe(latest, work, f'browser {i%3}')
            latest(work, f'cell {i%2}')
        time.sleep(.1)
    finally: m._browser_loop = old; loop.call_soon_threadsafe(loop.stop)
    assert set(both)=={1} and not latest.todo and not any(log), 'never two at once'

# --- The base

def test_errors_are_shown_and_survived():
    ex = Double()
    ex.x.value = 13
    assert '13 brings &lt;bad&gt; luck' in ex.status.value and 'role="alert"' in ex.status.value and not ex.canvas.busy
    ex.x.value = 4
    assert ex.status.value=='' and ex.error is None and ex.numbers()['twice']==8

def test_state_round_trip_and_refusals():
    ex = Double()
    ex.set_state(dict(x=7, name='b'))
    state = json.loads(json.dumps(ex.state()))
    assert Double().set_state(state).state()==state==dict(x=7, name='b')
    for bad,words in ((dict(y=1), "no control 'y'"), (dict(x=99), 'out of range'), (dict(name='c', x='many'), 'does not fit'), (dict(x=13), 'luck')):
        with pytest.raises(ValueError, match=words): ex.set_state(bad)
        if 'luck' not in words: assert ex.state()==state
    before = ex.runs
    ex.set_state(dict(x=1, name='z'))
    assert ex.runs==before+1 # one computation for many controls

def test_unknown_device():
    assert 'cpu' in list_devices()
    with pytest.raises(ValueError, match='no device'): Explorer('abacus')

def test_an_error_at_the_start_is_raised():
    with pytest.raises(ValueError, match='cannot fit'): WindowExplorer(IMG, '9x9', MODEL, patch=8)

def test_files(tmp_path):
    ex = Double()
    assert ex.save(tmp_path/'a.png').read_bytes()[:4]==b'\x89PNG'
    page = ex.save(tmp_path/'a.html').read_text()
    assert '<b>' not in page and '&lt;b&gt;' in page and 'src="http' not in page and 'createImageBitmap' in page
    with pytest.raises(ValueError, match='cannot be saved'): ex.save(tmp_path/'a.gif')
    sent = []
    ex.download.send = lambda content, buffers: sent.append((content['name'], len(buffers[0])))
    for b in ex.foot.children:
        if isinstance(b, ipywidgets.Button): b.click()
    assert [n for n,_ in sent]==['a_double.png','a_double.html'] and all(k>1000 for _,k in sent) and ex.error is None

def test_a_saved_page_holds_one_state():
    "A change before the click is in the file, a change after it is not"
    import winwin.workbench.explorer as m
    ex, calls, pages = Double(), [], []
    ex.download.send = lambda content, buffers: pages.append(buffers[0].decode())
    class Loop:
        def call_later(self, _, f): calls.append(f); return self
        def cancel(self): calls.clear()
    save = next(b for b in ex.foot.children if isinstance(b, ipywidgets.Button) and 'HTML' in b.description)
    old, m._browser_loop = m._browser_loop, Loop
    try:
        ex.x.value = 5
        save.click()
        ex.x.value = 6
        while calls: calls.pop(0)()
    finally: m._browser_loop = old
    (page,) = pages
    assert '&quot;x&quot;: 5' in page and '<td>twice</td><td>10</td>' in page
    assert ex.numbers()['twice']==12 and ex.status.value==''

def test_display_has_a_widget_and_a_picture():
    ex, before = Double(), len(plt.get_fignums())
    bundle = ex._repr_mimebundle_()
    assert {'image/png','application/vnd.jupyter.widget-view+json'}<=bundle.keys() and bundle['text/plain']=='Double()'
    ex.figure()
    assert len(plt.get_fignums())==before # nothing piles up

# --- Windows

def test_window_numbers_are_those_of_the_functions(windows):
    windows.canvas.windows = [[0,0,5,5],[6,10,4,8]]
    w = boxes_windows(windows.canvas.windows, (12,20))
    assert windows.scheme.value==scheme_of(w)=='1*5x5+1*4x8'
    facts = window_facts(w, MODEL)
    assert {k: windows.numbers()[k] for k in facts}==facts and facts['tokens']==57==sum(windows.canvas.seen)
    assert torch.equal(windows.seen, scheme_coverage('1*5x5+1*4x8', (12,20)))
    assert '57' in windows.table.value and '1*5x5+1*4x8' in windows.copy.text

@pytest.mark.parametrize('name', ['2x5', '1*3x4+2*2x2', '2x3+9', 'full', 'tokens:30', 'random(tokens=30-60,n=2-3,min_side=2)', 'crop:6', '6+3'])
def test_every_scheme_can_be_shown(windows, name):
    windows.scheme.value = name
    assert windows.error is None and windows.scheme.value==name
    drawn = parse_scheme(name).draw((12,20), 1, torch.Generator().manual_seed(0))
    assert windows.numbers()['tokens']==drawn.num_tokens
    other = WindowExplorer(IMG, '1x2', MODEL, patch=8).set_state(windows.state())
    assert other.state()==windows.state() and other.numbers()==windows.numbers()

def test_moving_keeps_the_scheme_and_isolated_tokens(windows):
    windows.scheme.value = '2x3+9'
    boxes = windows.canvas.windows
    free = next([y,x,3,3] for y in range(10) for x in range(18) if all(not (y<b+3 and b<y+3 and x<c+3 and c<x+3) for b,c,_,_ in boxes))
    windows.canvas.windows = [free, boxes[1]]
    assert windows.scheme.value=='2x3+9' and 18<=windows.numbers()['tokens']<=27

def test_bad_scheme_then_a_hand(windows):
    windows.scheme.value = 'what'
    assert 'unknown' in windows.status.value
    windows.canvas.windows = [[0,0,5,5],[6,10,5,5]]
    assert windows.error is None and windows.scheme.value=='2x5'

@pytest.mark.parametrize('img', [IMG.numpy(), (255*IMG.permute(1,2,0)).byte().numpy(), IMG[None], torch.rand(3,100,163)])
def test_images_of_users(img):
    if getattr(img, 'ndim', 0)==4: img = img[0]
    assert WindowExplorer(img, '1x3', MODEL, patch=8).canvas.grid==[12,20]

def test_a_path_and_a_picture(tmp_path):
    from torchvision.transforms.functional import to_pil_image
    to_pil_image(IMG).save(tmp_path/'a.png')
    for img in (tmp_path/'a.png', str(tmp_path/'a.png'), to_pil_image(IMG)): assert WindowExplorer(img, '1x3', MODEL, patch=8).canvas.grid==[12,20]
    with pytest.raises(FileNotFoundError): WindowExplorer(tmp_path/'b.png')
    with pytest.raises(ValueError, match='no image'): WindowExplorer(torch.rand(8,8))

def test_time_is_by_operations_until_it_is_measured(windows):
    a = windows.numbers()
    assert a['faster']==a['fewer_operations'] and 'seconds' not in a and 'by operations' in windows.table.value
    windows.timer.click()
    b = windows.numbers()
    facts = window_facts(windows.windows, MODEL, speed=windows.speed)
    assert windows.error is None and {k: b[k] for k in facts}==facts and b['full_seconds']>b['seconds']>0
    assert f"{b['seconds']:.3g} s" in windows.table.value and f"{b['faster']:.1f} times faster" in windows.table.value
    windows.canvas.windows = [[0,0,5,5],[6,10,4,8]] # live: the speed is kept
    assert windows.numbers()['seconds']!=b['seconds']

def test_seconds_from_operations():
    "Attention is slower here: of the operations, its part takes longer"
    from winwin.bench.cost import Speed, measure_speed, step_seconds, trace_cost
    c = trace_cost(MODEL, (12,20))
    attention = c.attention*7/2
    assert step_seconds(c, Speed(1e9, 1e8))==pytest.approx((c.forward+c.backward-attention)/1e9 + attention/1e8)
    s = measure_speed(tokens=128, dim=64, seconds=.02)
    assert 1e6<s.attention<1e15 and 1e6<s.linear<1e15

def test_own_model(windows):
    ex = WindowExplorer(IMG, '1x3', MODEL)
    assert ex.canvas.grid==[6,10] and ex.model.label=='your model' and ex.numbers()['fewer_operations']>1
    assert json.dumps(ex.state())

# --- Guidance

def test_guidance_numbers_are_those_of_the_function(guidance):
    guidance.set_state(dict(windows=[[0,0,4,4],[5,9,3,6]], stochasticity=.8, number=3, size=3, seed=5))
    w = boxes_windows(guidance.canvas.windows, (12,20))
    direct = guide_once(PAIR['flow'], w, 3, 3, .8, 8, PAIR['visible'], seed=5)
    assert guidance.numbers()['coverage']==direct.coverage and guidance.views['image2'].windows==[[*yx,3,3] for yx in direct.chosen.yx[0].tolist()]
    assert f'{direct.coverage:.1%}' in guidance.words.value

@pytest.mark.parametrize('method', ['greedy','weighted','same','random'])
def test_every_method(guidance, method):
    guidance.method.value = method
    assert guidance.error is None and 0<=guidance.numbers()['coverage']<=1
    if method=='same': assert guidance.views['image2'].windows==guidance.canvas.windows

def test_guidance_refuses_what_does_not_fit():
    a = torch.rand(3,32,48)
    with pytest.raises(ValueError, match='fit together'): GuidanceExplorer((a,a), torch.zeros(2,32,40))
    with pytest.raises(ValueError, match='needs its flow'): GuidanceExplorer((a,a))
    ex = GuidanceExplorer((a,a), torch.zeros(2,32,48), scheme='1x1', patch=8)
    assert ex.numbers()['coverage']==1 # nothing moves

# --- Pages without a kernel

@pytest.mark.parametrize('kind', ['windows','guidance'])
def test_a_saved_page_leads_through_states(kind, windows, guidance, tmp_path):
    ex = dict(windows=windows, guidance=guidance)[kind]
    before, shown, n = ex.state(), ex.numbers(), len(ex.canvases())
    page = ex.save(tmp_path/'a.html').read_text()
    assert ex.state()==before and ex.numbers()==shown and ex.error is None # as it was
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1])
    steps, frames = ex.steps()[1], data['shown']['frames']
    assert data['shown']['names'][-len(steps):]==[name for name,_ in steps] and page.count('data-kind="TokenCanvas"')==n
    assert len(page)<600_000 and len({json.dumps(f) for f in frames})>len(frames)//2
    ex.set_state(steps[3][1]) # what the page shows at a step is what the explorer shows
    i = next(i for i,c in enumerate(shown_parts(ex.box)) if c is (ex.canvas if kind=='windows' else ex.views['image2']))
    frame = frames[data['shown']['names'].index(steps[3][0])].get(str(i), {})
    assert frame.get('windows', data['shown']['base'][i]['windows'])==(ex.canvas if kind=='windows' else ex.views['image2']).windows

# --- Memory

@pytest.mark.parametrize('kind', ['windows','guidance'])
def test_memory_does_not_grow(kind, windows, guidance):
    ex = dict(windows=windows, guidance=guidance)[kind]
    def act(i):
        ex.canvas.windows = [[i%4,i%9,4,4],[8,12+i%5,3+i%2,3]]
        if i%5==0: ex.again.click()
        if i%50==0: ex.figure()
    for i in range(60): act(i)
    gc.collect(); tracemalloc.start(); base = tracemalloc.take_snapshot()
    n = len(ipywidgets.Widget.widgets) if hasattr(ipywidgets.Widget, 'widgets') else 0
    for i in range(500): act(i)
    gc.collect()
    grown = sum(s.size_diff for s in tracemalloc.take_snapshot().compare_to(base, 'filename'))
    tracemalloc.stop()
    assert grown<300_000 and ex.error is None, f'{grown} bytes more after 500 interactions'
    assert not n or len(ipywidgets.Widget.widgets)==n
