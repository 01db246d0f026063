"The demonstration from end to end at the size of a stamp, and its report as a reader meets it."
import json, math, os, re, signal
from dataclasses import replace
import numpy as np, pytest, torch
from html.parser import HTMLParser

import winwin.experiments.demo as D
from winwin.experiments.demo import demos, fit_budget, get_demo, pick_threads, prediction_modes, render_scenes, run_demo, step_costs
from winwin.experiments.html import HtmlPage, html_bar, html_drawing, html_picture, html_table
from winwin.experiments.panels import Panels
from winwin.tasks import task_class
from winwin.data.pictures import ERROR_STEPS
from winwin.inference.predictor import Predictor
from winwin.models.dense import create_model
from winwin.models.hub import bundled_model, load_model
from winwin.training.recipes import change, recipe_data
from winwin.tasks.registry import make_task
from winwin.worlds.datasets import DrivingWorld, LayeredFlow
from test_site import CONTRAST

TASKS = list(demos)
BAD = '<b>"x" & \'y\'</b>'

def tiny(task, **over):
    d = get_demo(task)
    small = dict(image_size=(48,80), images=4, valid_images=2, batch_size=2, steps=4, windows='2x3', log_every=1)
    if task=='flow': small |= dict(windows2='4x2', motion=12.)
    return replace(d, shown=2, rounds=1, recipe=change(d.recipe, **small|over))

@pytest.fixture(scope='module', params=TASKS)
def ran(request, tmp_path_factory):
    "(task, folder) of a demonstration"
    out = tmp_path_factory.mktemp(request.param)/'demo'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(D, '_memory', quick_memory)
        assert run_demo(tiny(request.param), out, progress=False)==out/'report.html'
    return request.param,out

def quick_memory(recipe, kinds, device):
    "Instead of processes that measure memory, which take seconds to start; they have tests of their own"
    return {k: dict(before=1., peak=2.+i) for i,k in enumerate(kinds)}

@pytest.fixture
def no_memory(monkeypatch): monkeypatch.setattr(D, '_memory', quick_memory)

class Tags(HTMLParser):
    "Every tag with its attributes; tags must be well nested"
    void = 'img','meta','link','br','hr'
    def __init__(self, text):
        super().__init__()
        self.all,self.stack = [],[]
        self.feed(text)
        assert not self.stack
    def handle_starttag(self, tag, attrs):
        self.all.append((tag,dict(attrs)))
        if tag not in self.void: self.stack.append(tag)
    def handle_startendtag(self, tag, attrs): self.all.append((tag,dict(attrs)))
    def handle_endtag(self, tag): assert self.stack.pop()==tag

# --- Pages

def test_text_cannot_break_a_page():
    page = HtmlPage(BAD, BAD, BAD).add(BAD, BAD, html_table([BAD,'n'], [[BAD,'1']], BAD), html_picture(np.zeros((2,2,3), np.uint8), BAD, BAD))
    tags = Tags(str(page))
    assert not [t for t,_ in tags.all if t=='b']
    assert next(a['alt'] for t,a in tags.all if t=='img')==BAD

@pytest.mark.parametrize('share,width', [(0,'0.0'), (.5,'50.0'), (1,'100.0'), (7,'100.0'), (-1,'0.0'), (math.nan,'0.0')])
def test_bars_stay_in_their_column(share, width): assert f'width:{width}%' in html_bar(share)

def test_numbers_are_aligned_and_text_is_not():
    t = html_table(['a','b','c','d'], [['1.5x','12 ms','x1',html_bar(1)], ['-','3,000 MB','2',html_bar(0)]])
    assert re.findall('<th( class="number")?>', t)==[' class="number"',' class="number"','','']

def test_drawings_do_not_disturb_each_other():
    import matplotlib.pyplot as plt
    def one(alt):
        fig,ax = plt.subplots()
        ax.plot([1,2], [3,np.pi])
        return html_drawing(fig, alt)
    a,b = one('first'),one('second')
    ids = [set(re.findall(r'\bid="([^"]+)"', o)) for o in (a,b)]
    assert ids[0] and not ids[0]&ids[1], 'clip paths of one are those of the other'
    assert one('first')==a, 'equal figures are equal text'
    assert 'http' not in re.sub(r'xmlns(:\w+)?="[^"]*"', '', a)

# --- Parts

@pytest.mark.parametrize('steps,seconds,budget,want', [(400,.1,210,400), (400,.525,210,400), (400,.53,210,390), (400,100,210,10), (5,100,210,5)])
def test_budget(steps, seconds, budget, want): assert fit_budget(steps, seconds, budget)==want

@pytest.mark.parametrize('grid', [(24,40), (6,10), (45,80), (7,7), (3,90)])
@pytest.mark.parametrize('tokens', [4, 242, 968, 5000])
def test_other_ways_have_the_tokens_of_training(grid, tokens):
    _,tile,small = prediction_modes(grid, tokens, 8).values()
    h,w = (n//8 for n in tile['size'])
    assert h==w==min(round(math.sqrt(tokens)), *grid)
    a,b = (n//8 for n in small['size'])
    assert 1<=a<=grid[0] and 1<=b<=grid[1] and (a*b<=h*w or 1 in (a,b))

def test_scenes_are_rendered_once(tmp_path, monkeypatch):
    world = DrivingWorld((16,24), 40, cache=tmp_path)
    world[3]
    monkeypatch.setattr(torch, 'get_num_threads', lambda: 2) # two processes
    assert render_scenes(world, progress=False)==39
    assert len(list(world.cache.glob('*.npz')))==40 and render_scenes(world, progress=False)==0

def test_a_step_on_windows_is_cheaper(tmp_path):
    recipe = change(tiny('seg').recipe, root=str(tmp_path), image_size=(128,192), windows='2x6')
    cost = step_costs(recipe, rounds=3, device='cpu', progress=False)
    assert cost['faster']>1.5 and cost['seconds']['two windows']<cost['seconds']['full images']
    assert cost['memory']['two windows']['peak']<cost['memory']['full images']['peak'] and cost['leaner']>1.2

@pytest.mark.parametrize('times,best', [({1: 1, 2: 9, 4: 9}, 1), ({1: 9, 2: 1, 4: 9}, 2), ({1: 9, 2: 5, 4: 1}, 4), ({1: 10, 2: 9, 4: 9}, 1), ({1: 30, 2: 10, 4: 9}, 2)])
def test_more_threads_are_picked_if_they_help_clearly(times, best, monkeypatch):
    now = [4]
    monkeypatch.setattr(torch, 'get_num_threads', lambda: now[0])
    monkeypatch.setattr(torch, 'set_num_threads', lambda n: now.__setitem__(0, n))
    clock = [0.]
    monkeypatch.setattr(D.time, 'perf_counter', lambda: clock[0])
    assert pick_threads(lambda: clock.__setitem__(0, clock[0]+times[now[0]]))==best and now==[4]

def test_memory_of_a_step_that_fails(tmp_path):
    recipe = change(tiny('seg').recipe, root=str(tmp_path), windows='2x30') # cannot fit
    with pytest.raises(RuntimeError, match='(?s)memory run of two windows failed.*cannot fit'): D._memory(recipe, {'two windows': '2x30'}, 'cpu')

def test_presets_can_be_trained():
    for task,d in demos.items():
        assert d.recipe.train.task==task and recipe_data(d.recipe)[0]['image'].shape==(3,*d.recipe.data.image_size)

# --- From end to end

def test_files(ran):
    task,out = ran
    assert sorted(o.name for o in out.iterdir())==['demo.json','images','report.html','run']
    facts = json.loads((out/'demo.json').read_text(encoding='utf-8'), parse_constant=lambda s: pytest.fail(f'{s} is not JSON'))
    assert facts['task']==task and facts['steps']==facts['planned']==4
    assert (facts['tokens'],facts['grid_tokens'])==((18+16,120) if task=='flow' else (18,60)), 'both frames count'
    assert all(s>0 for s in facts['seconds'].values())
    saved = load_model(out/'run'/'best').saved
    first = next(iter(facts['predictions'].values()))['scores']
    same = lambda a,b: a==b or b is None and math.isnan(a)
    assert all(same(v, first[k]) for k,v in saved['metrics'].items()), 'the report shows the scores of the checkpoint'
    recipe = saved['extra']['recipe']
    assert recipe['train']['steps']==4 and recipe['root']==str(out/'scenes')

def test_checkpoint_reads_the_sample_images(ran, tmp_path):
    task,out = ran
    world = recipe_data(change(tiny(task).recipe, root=str(out/'scenes')), 'valid')
    if task=='flow':
        p = Predictor(out/'run'/'best')
        report = p.folder(out/'images', tmp_path, suffixes=('_a','_b'), progress=False)
        said = p(out/'images'/'scene-1_a.png', out/'images'/'scene-1_b.png')
        assert torch.allclose(said.images[1], world[0]['image2'], atol=1e-6)
    else:
        p = Predictor(out/'run'/'best')
        assert p.task.name==task
        report = p.folder(out/'images', tmp_path, progress=False)
        said = p(out/'images'/'street-1.png')
    assert len(report.written)==4 and not report.failed
    assert torch.allclose(said.image, world[0]['image'], atol=1e-6), 'images are those of the test set'

def test_report_is_one_file_and_true(ran):
    task,out = ran
    text,facts = (out/'report.html').read_text(encoding='utf-8'),json.loads((out/'demo.json').read_text(encoding='utf-8'))
    tags = Tags(text)
    assert not {'iframe','object','embed','video','form'} & {t for t,_ in tags.all}
    assert [a for t,a in tags.all if t=='script']==[{}], 'one script, its own'
    assert all(v.startswith(('data:','#')) for _,a in tags.all for k,v in a.items() if k in ('src','href','xlink:href','srcset','action'))
    assert not re.search(r'url\((?!#)|@import', text)
    images = [a for t,a in tags.all if t=='img']
    assert len(images)==(1+3*4+2*5+8 if task=='flow' else 6+2*4+8) and all(a['alt'] for a in images)
    assert all(a['aria-label'] for t,a in tags.all if t=='svg')
    columns = task_class(task).columns
    for name,r in facts['predictions'].items():
        row = re.search(f'<tr><td>{name}</td>(.*?)</tr>', text)[1]
        want = [format(r['scores'][k], how) + ''.join(unit) for k,(_,how,*unit) in columns.items()]
        assert re.findall('>([^<]+)<', row)==[*want, f"{1e3*r['seconds']:,.0f} ms", f"{r['longer']:.1f}x"]

@pytest.mark.parametrize('task', ['seg','flow'])
def test_windows_in_the_report_are_those_of_training(task, tmp_path):
    recipe = change(tiny(task).recipe, root=str(tmp_path/'scenes'))
    (a,seen),(b,again) = (D.train_demo(recipe, tmp_path/k, keep=3, progress=False) for k in 'ab')
    assert len(seen)==3 and seen[0]['windows'].num_tokens==a.log[0]['tokens']==18
    same = lambda x,y: torch.equal(x, y) if torch.is_tensor(x) else torch.equal(x.yx, y.yx)
    assert all(same(x[k], y[k]) for x,y in zip(seen, again) for k in x)
    assert ('windows2' in seen[0])==(task=='flow')
    assert all(torch.equal(x, y) for x,y in zip(a.model.state_dict().values(), b.model.state_dict().values())), 'the same run again'

def test_report_about_pairs(ran):
    task,out = ran
    text,facts = (out/'report.html').read_text(encoding='utf-8'),json.loads((out/'demo.json').read_text(encoding='utf-8'))
    assert (task=='flow')==('street' not in re.sub('data:image[^"]*', '', text).lower())
    if task!='flow': return
    assert list(facts['step']['seconds'])==['windows','full frames']
    world = recipe_data(change(tiny(task).recipe, root=str(out/'scenes')), 'valid')
    still = torch.stack([world[i]['flow'].norm(dim=0) for i in range(2)]).mean().item()
    assert facts['survey']['EPE']==pytest.approx(still, rel=1e-5) and f'predicting no motion has {still:.2f} px' in text
    row = re.search('<tr><td>EPE, all pixels</td>(.*?)</tr>', text)[1]
    assert re.findall('>([^<]+ px)<', row)==[f"{facts['predictions']['one full pass']['scores']['EPE']:.2f} px", f'{still:.2f} px']
    assert 'moving 40' not in text and 'nan' not in re.sub('data:image[^"]*', '', text), 'groups without pixels are left out'
    assert len(re.findall(r'frame 2: \d+% of them seen', text))==3
    commands = [re.sub(r'&#x27;', "'", o) for o in re.findall('winwin predict [^\n<]*', text)]
    assert len(commands)==2 and commands[0].split()[3:5]==[f'{out}/images/scene-1_{o}.png' for o in 'ab']

def test_pictures_of_flow():
    task,item = make_task('flow'),LayeredFlow((40,64), 1, max_motion=10.)[0]
    item['valid'][:4] = False
    x = Panels(task).pictures(item, item['flow'][None]+torch.tensor([4.,0]).view(1,2,1,1))
    assert {v.shape for v in x.values()}=={(40,64,3)} and (x['target'][:4]==0).all() and (x['prediction'][:4]!=0).any()
    assert len(np.unique(x['wrong'][4:].reshape(-1,3), axis=0))==1, 'all are off by 4 px'
    item['valid'][:] = False # nothing is known, nothing breaks
    assert Panels(task).pictures(item, item['flow'][None])['target'].max()==0

def test_colours_of_the_key_are_those_of_the_errors():
    task,key = make_task('flow'),Panels(make_task('flow')).key()
    shades = [tuple(map(int, o)) for o in re.findall(r'rgb\((\d+),(\d+),(\d+)\)', key)]
    assert len(shades)==len(set(shades))==len(ERROR_STEPS)
    z = torch.zeros(2,8,len(ERROR_STEPS))
    off = z.clone()
    off[0] = torch.tensor(ERROR_STEPS)+.01
    item = dict(image=torch.zeros(3,*z.shape[1:]), image2=torch.zeros(3,*z.shape[1:]), flow=z)
    assert [tuple(o) for o in Panels(task).pictures(item, off[None])['wrong'][4]]==shades

def test_a_slow_machine_makes_fewer_steps(tmp_path, monkeypatch, no_memory):
    real = D.step_costs
    monkeypatch.setattr(D, 'step_costs', lambda *a, **k: real(*a, **k) | dict(wall=15.))
    text = run_demo(tiny('seg', steps=20), tmp_path/'a', progress=False).read_text(encoding='utf-8')
    assert 'On a faster machine there are 20' in text and '10 training steps' in text
    text = run_demo(tiny('seg', steps=20), tmp_path/'b', steps=12, progress=False).read_text(encoding='utf-8')
    assert '12 training steps' in text and 'On a faster machine' not in text, 'steps that were asked for are made'

@pytest.mark.parametrize('task', ['seg','depth'])
def test_the_encoder_comes_from_the_bundled_model(task, tmp_path):
    recipe = change(tiny(task).recipe, root=str(tmp_path/'scenes'), lr=0., weight_decay=0., ema=None) # weights stay as they begin
    begun,fresh = (D.train_demo(recipe, tmp_path/k, keep=1, progress=False, start=start)[0].model for k,start in (('a','seg'),('b',None)))
    theirs = bundled_model('seg')
    same = lambda m,n: all(torch.equal(v, n.state_dict()[k]) for k,v in m.state_dict().items())
    assert same(begun.encoder, theirs.encoder) and not same(fresh.encoder, theirs.encoder)
    assert same(begun.head, fresh.head), 'only the encoder is taken over'

def test_no_scene_was_seen_by_the_encoder():
    assert 'seed=2,' in bundled_model('seg').saved['extra']['scenes']
    for d in (demos['seg'],demos['depth']): assert {recipe_data(d.recipe, k).seed for k in ('train','valid')}=={0,1}

@pytest.mark.parametrize('task,fresh', [('seg',False), ('seg',True), ('depth',False), ('flow',False)])
def test_console_and_report_say_what_it_started_from(task, fresh, tmp_path, no_memory, capsys):
    text = run_demo(tiny(task), tmp_path/'demo', fresh=fresh).read_text(encoding='utf-8')
    line = re.search(r'training: (.*)', capsys.readouterr().err)[1]
    start = json.loads((tmp_path/'demo'/'demo.json').read_text())['start']
    if fresh or task=='flow':
        assert start is None and line=='4 steps from random weights' and 'All weights were random when training began' in text
        return
    known = bundled_model('seg').saved
    assert start==dict(task='seg', scenes=known['extra']['recipe']['images'], steps=known['metrics']['steps'], batch_size=known['extra']['recipe']['train']['batch_size'])
    assert f"has seen {start['scenes']} other streets of this world; the head is new" in line
    assert f"on {start['scenes']} other streets of the same world" in text and 'did not start from nothing' in text
    assert ('trained on the same task' in text)==(task=='seg') and ('trained on another task' in text)==(task=='depth')

def test_an_encoder_of_another_size_is_refused():
    with pytest.raises(ValueError, match='does not fit winwin_seg_micro. Train a model of its size, or use fresh=True'):
        D.start_encoder(create_model('winwin_seg_micro'))

def test_only_its_own_files_are_replaced(tmp_path, no_memory, capsys):
    mine = [tmp_path/'notes.txt', tmp_path/'images'/'mine.png', tmp_path/'run'/'plan.txt']
    for f in mine[:2]: f.parent.mkdir(exist_ok=True); f.write_text('mine')
    run_demo(tiny('seg'), tmp_path, progress=False)
    mine[2].write_text('mine')
    run_demo(tiny('seg'), tmp_path, steps=2, seed=1)
    lines = re.findall(r'\[ +\d+ s\] ([^:]+):', capsys.readouterr().err)
    assert lines==['rendering','cost of a step','training','prediction','references','report']
    assert all(f.read_text()=='mine' for f in mine)
    assert json.loads((tmp_path/'demo.json').read_text())['steps']==2 and load_model(tmp_path/'run'/'last').saved['extra']['train']['seed']==1

def test_a_run_of_somebody_else_is_refused(tmp_path):
    (tmp_path/'run'/'last').mkdir(parents=True)
    with pytest.raises(ValueError, match='no demonstration wrote it; choose another folder'): run_demo(tiny('seg'), tmp_path, progress=False)
    assert (tmp_path/'run'/'last').exists() and not (tmp_path/'demo.json').exists()

def test_control_c_leaves_a_model(tmp_path, monkeypatch, no_memory, capsys):
    real = D.fit
    def stop(line):
        if line['step']==2: os.kill(os.getpid(), signal.SIGINT)
    monkeypatch.setattr(D, 'fit', lambda *a, **k: real(*a, **k, watch=stop))
    with pytest.raises(KeyboardInterrupt): run_demo(tiny('seg'), tmp_path/'demo')
    assert 'the model so far is in' in capsys.readouterr().err
    assert Predictor(tmp_path/'demo'/'run'/'last')(torch.rand(3,48,80)).classes.shape==(48,80)
    monkeypatch.setattr(D, 'fit', real)
    assert run_demo(tiny('seg'), tmp_path/'demo', progress=False).exists(), 'and the next try is not in its way'

def test_scenes_are_removed_unless_they_are_wanted(tmp_path, no_memory):
    run_demo(tiny('seg'), tmp_path/'a', progress=False)
    run_demo(tiny('seg'), tmp_path/'b', progress=False, keep_scenes=True)
    assert not (tmp_path/'a/scenes').exists() and (tmp_path/'b/scenes').is_dir()

def test_numbers_have_references(ran):
    task,out = ran
    facts = json.loads((out/'demo.json').read_text(encoding='utf-8'))
    assert next(iter(facts['references'])).endswith('everywhere')
    same = task!='depth' and bundled_model(task).saved['extra']['recipe']['data']==get_demo(task).recipe.data.name
    assert any('bundled' in k for k in facts['references'])==same, 'where one was trained on the same world'
    text = (out/'report.html').read_text(encoding='utf-8')
    assert all(k in text for k in facts['references']) and f"this run, {facts['steps']} steps" in text

def test_a_stored_comparison_has_date_and_command():
    found = D.stored_comparison('seg')
    assert re.fullmatch(r'\d{4}-\d\d-\d\d', found['date']) and found['command'].startswith('winwin demo --task seg --compare')
    windows,full,equal = found['runs'].values()
    assert windows['windows']!='full' and full['windows']==equal['windows']=='full' and full['steps']==windows['steps']
    assert full['cpu_s']>1.5*windows['cpu_s'] and equal['cpu_s']==pytest.approx(windows['cpu_s'], rel=.1)

def test_unknown_tasks_are_named():
    with pytest.raises(ValueError, match="no demonstration 'pose'; .*There are seg, depth, flow"): run_demo('pose')

# --- In a browser

@pytest.mark.browser
@pytest.mark.parametrize('width', [1280, 390])
@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_report_opens_cleanly(ran, page, scheme, width):
    page.set_viewport_size(dict(width=width, height=900))
    page.emulate_media(color_scheme=scheme)
    page.goto((ran[1]/'report.html').as_uri())
    assert page.locator('h1').count()==1 and page.locator('h2').count()>=8
    assert page.evaluate('[...document.images].every(i => i.complete && i.naturalWidth)'), 'a picture is missing'
    assert page.evaluate('document.documentElement.scrollWidth <= innerWidth'), 'the page is wider than the window'
    dark = page.evaluate('getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number).every(v => v < 60)')
    assert dark==(scheme=='dark')
    for s in ('p','td','th','figcaption','.tiles span','.tiles b','code','li'):
        ratio,where = page.evaluate(CONTRAST, s)
        assert ratio>4.5, f'{s}: {ratio:.1f}, {where}'
    text = page.evaluate("getComputedStyle(document.querySelector('.drawing text')).fill")
    assert text==page.evaluate('getComputedStyle(document.body).color'), 'axes are drawn in the colour of the text'
    assert not page.problems and not page.outside

@pytest.mark.browser
def test_pictures_enlarge_and_flip_and_commands_copy(ran, page):
    page.goto((ran[1]/'report.html').as_uri())
    scene = page.locator('.gallery', has=page.locator('figcaption', has_text='prediction')).first
    scene.locator('img').first.click()
    box = page.locator('dialog.viewer')
    width = box.locator('img').evaluate('o => o.getBoundingClientRect().width')
    assert box.is_visible() and width>scene.locator('img').first.evaluate('o => o.getBoundingClientRect().width')
    box.get_by_role('button', name='target', exact=True).click()
    first = box.locator('img').get_attribute('alt')
    page.keyboard.press('ArrowRight')
    assert first.endswith('target') and box.locator('img').get_attribute('alt').endswith('prediction'), 'flipped in place'
    assert box.locator('img').evaluate('o => o.getBoundingClientRect().width')==width
    page.keyboard.press('Escape')
    assert not box.is_visible()
    copy = page.locator('.copy').last
    copy.click()
    page.wait_for_function("[...document.querySelectorAll('.copy')].at(-1).textContent!='Copy'")
    assert page.evaluate('getSelection().toString()').strip()==page.locator('.code code').last.inner_text().strip()
    assert not page.problems

@pytest.mark.browser
def test_tables_fit_a_phone(ran, page):
    page.set_viewport_size(dict(width=400, height=900))
    page.goto((ran[1]/'report.html').as_uri())
    assert page.evaluate("[...document.querySelectorAll('.wide')].every(o => o.scrollWidth<=o.clientWidth+1)"), 'no table needs scrolling'

@pytest.mark.browser
def test_report_prints_in_light_colours(ran, page):
    page.emulate_media(color_scheme='dark', media='print')
    page.goto((ran[1]/'report.html').as_uri())
    assert page.evaluate('getComputedStyle(document.body).backgroundColor')=='rgb(255, 255, 255)'
    assert len(page.pdf())>10_000
