"Training: the same weights whatever happens on the way, on one process or two; nothing half-written; mistakes are named."
import json, os, signal, subprocess, sys, time
from dataclasses import replace
from pathlib import Path
import pytest, torch
from conftest import ROOT
from winwin.machine import finish_write, write_folder
from winwin.training.checkpoints import config_differences, pack_state, read_state, unpack_state
from winwin.data.augment import Augment
from winwin.models.dense import create_model
from winwin.models.hub import load_model
from winwin.training.recipes import change, get_preset, paper_variants, presets, recipe_augment, recipe_data, recipe_model, recipe_task, train_recipe
from winwin.training.streams import ItemStream, batches
from winwin.tasks.task import evaluate
from winwin.tasks.segmentation import SegTask
from winwin.tasks.depth import DepthTask
from winwin.tasks.registry import make_task
from winwin.training.log import read_log
from winwin.training.loop import TrainConfig, TrainRun, fit, resume, train_step
from winwin.worlds.datasets import DrivingWorld

SMALL = dict(image_size=(64,96), images=6, valid_images=3, windows='2x3', batch_size=2, warmup=2, log_every=1)
def recipe(**over): return change(get_preset('driving-seg'), **(SMALL | dict(steps=8, save_every=3) | over))
def weights(model): return {k: v.clone() for k,v in model.state_dict().items()}
def same(a, b): return a.keys()==b.keys() and all(torch.equal(a[k], b[k]) for k in a)

# What the child process runs: `recipe` with some fields changed, then it is killed or finishes
CHILD = """
import json, os, signal, sys, torch
torch.set_num_threads(1)
sys.path.insert(0, {tests!r})
from test_train import recipe
from winwin.training.recipes import train_recipe
over,out,die = json.loads(sys.argv[1]),sys.argv[2],int(sys.argv[3])
over = {{k: tuple(v) if isinstance(v, list) else v for k,v in over.items()}}
def watch(line):
    if line['step']==die and 'loss' in line: os.kill(os.getpid(), signal.SIGKILL)
r = train_recipe(recipe(**over), out, resume=True, progress=False, watch=watch)
print(json.dumps(r.scores))
"""

def child(over, out, die=-1, wait=True):
    code = CHILD.format(tests=str(ROOT/'tests'))
    env = os.environ | dict(OMP_NUM_THREADS='1')
    p = subprocess.Popen([sys.executable, '-c', code, json.dumps(over), str(out), str(die)], env=env, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if not wait: return p
    o,e = p.communicate(timeout=300)
    return p.returncode,o,e

# --- kill -9

@pytest.mark.parametrize('over', [dict(), dict(ema=.9, accumulate=2)], ids=['plain','ema and accumulation'])
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path, over):
    code,whole,err = child(over, tmp_path/'whole')
    assert code==0, err
    for die in (1,4,7): # before the first checkpoint, between two, after the last
        code,_,err = child(over, tmp_path/'cut', die)
        assert code==-signal.SIGKILL, err
    code,again,err = child(over, tmp_path/'cut')
    assert code==0, err
    assert json.loads(again)==json.loads(whole)
    a,b = (load_model(tmp_path/k/'last').state_dict() for k in ('whole','cut'))
    assert same(a, b)
    x,y = (pack_state(read_state(tmp_path/k/'last')) for k in ('whole','cut'))
    assert same(x[0], y[0]) and x[1]==y[1] # moments of the optimiser, step, best scores
    drop = lambda o: {k: v for k,v in o.items() if k not in ('time','images_per_s','memory_mb','cpu_s')}
    assert [drop(o) for o in read_log(tmp_path/'whole')]==[drop(o) for o in read_log(tmp_path/'cut')]

def test_a_kill_at_a_random_moment_leaves_a_complete_checkpoint(tmp_path):
    "Checkpoints are written all the time; the kill hits whatever is under way"
    over = dict(steps=400, save_every=1, valid_images=1)
    for i in range(3):
        p = child(over, tmp_path/'run', wait=False)
        begin = time.monotonic()
        before = settled_step(tmp_path/'run')
        while p.poll() is None and settled_step(tmp_path/'run')<=before+3 and time.monotonic()-begin<120: time.sleep(.01)
        time.sleep(.037*i)
        p.kill()
        p.communicate()
        assert read_state(finish_write(tmp_path/'run'/'last'))['step']>before
        load_model(tmp_path/'run'/'last')

def settled_step(out):
    for k in ('last','last.new','last.old'):
        try: return json.loads((out/k/'config.json').read_text())['extra']['step']
        except (OSError,ValueError): pass
    return -1

def test_sigterm_and_ctrl_c_leave_a_checkpoint_of_the_last_step(tmp_path):
    for sig in (signal.SIGTERM,signal.SIGINT):
        out = tmp_path/sig.name
        p = child(dict(steps=400, save_every=400), out, wait=False)
        while p.poll() is None and not (out/'log.jsonl').exists(): time.sleep(.05)
        time.sleep(.5)
        p.send_signal(sig)
        _,err = p.communicate(timeout=120)
        assert p.returncode!=0 and 'stopped after step' in err, err
        assert 0<read_state(out/'last')['step']<400

# --- The stream

def test_workers_change_nothing():
    world = DrivingWorld((64,96), length=5)
    draws = ItemStream(world, ('image','labels'), 8, 3, Augment())
    a,b = (list(batches(draws, range(2,5), 2, workers=w)) for w in (0,2))
    for x,y in zip(a, b):
        assert x.keys()==y.keys() and all(torch.equal(x[k], y[k]) for k in x)

def test_a_dataset_with_its_own_random_transform_is_reproducible():
    class Noisy(torch.utils.data.Dataset):
        def __len__(self): return 3
        def __getitem__(self, i): return dict(image=torch.rand(3,16,16), labels=torch.zeros(16,16, dtype=torch.uint8))
    draws = ItemStream(Noisy(), ('image','labels'), 8)
    torch.manual_seed(1); a = draws[4]
    torch.manual_seed(2); b = draws[4]
    assert torch.equal(a['image'], b['image']) and not torch.equal(a['image'], draws[5]['image'])

# --- Several processes

TWO = """
import json, os, sys, torch
torch.set_num_threads(1)
sys.path.insert(0, {tests!r})
from test_train import recipe
from winwin.training.recipes import train_recipe
from winwin.training.streams import derive_seed
r = train_recipe(recipe(windows='full', steps=3, batch_size={batch}, valid_images=5, flip=0.), {out!r}, progress=False)
if int(os.environ.get('RANK', 0))==0: print('SCORES', json.dumps(r.scores))
"""

def launch(tmp_path, n, batch):
    code = TWO.format(tests=str(ROOT/'tests'), out=str(tmp_path/f'run{n}'), batch=batch)
    (tmp_path/f'job{n}.py').write_text(code)
    env = os.environ | dict(OMP_NUM_THREADS='1', ACCELERATE_USE_CPU='true', CUDA_VISIBLE_DEVICES='')
    cmd = [sys.executable, str(tmp_path/f'job{n}.py')] if n==1 else \
          [sys.executable, '-m', 'torch.distributed.run', '--standalone', f'--nproc-per-node={n}', str(tmp_path/f'job{n}.py')]
    p = subprocess.run(cmd, env=env, capture_output=True, text=True, timeout=300)
    assert p.returncode==0, p.stderr[-3000:]
    line = next(o for o in p.stdout.splitlines() if o.startswith('SCORES'))
    return json.loads(line.removeprefix('SCORES ')),load_model(tmp_path/f'run{n}'/'last')

def test_two_processes_train_and_score_like_one(tmp_path):
    "Full windows and no missing labels: the mean of two halves is the mean; five test images over two processes"
    one,a = launch(tmp_path, 1, 4)
    two,b = launch(tmp_path, 2, 2)
    for (k,x),y in zip(a.state_dict().items(), b.state_dict().values()): # summation order differs
        assert torch.allclose(x, y, atol=2e-4), (k, (x-y).abs().max())
    assert abs(one['pixel_acc']-two['pixel_acc'])<.02 and set(one)==set(two)

def test_accumulation_is_a_larger_batch():
    a,b = (train_recipe(recipe(windows='full', steps=3, flip=0., **k), progress=False).model.state_dict()
           for k in (dict(batch_size=4), dict(batch_size=2, accumulate=2)))
    for k in a: assert torch.allclose(a[k], b[k], atol=2e-4), k

def test_metrics_count_every_image_once():
    world = DrivingWorld((64,96), length=5)
    task = SegTask(world.classes)
    truth = iter(range(5))
    def oracle(model, img):
        labels = world[next(truth)]['labels'].long()
        return torch.nn.functional.one_hot(labels, 14).permute(2,0,1)[None].float()
    assert evaluate(create_model('winwin_seg_micro', depth=1), world, task, oracle, progress=False)['mIoU']==1

# --- What a run keeps

def test_best_and_last(tmp_path):
    r = train_recipe(recipe(eval_every=2), tmp_path/'run', progress=False)
    scores = [o['eval'] for o in read_log(tmp_path/'run') if 'eval' in o]
    assert len(scores)==4 and r.best['mIoU']==max(o['mIoU'] for o in scores) and r.scores==scores[-1]
    best,last = (load_model(tmp_path/'run'/k) for k in ('best','last'))
    assert best.saved['metrics']['mIoU']==r.best['mIoU'] and last.saved['metrics']==r.scores
    assert last.saved['extra']['classes']==list(DrivingWorld.classes) and last.saved['extra']['recipe']['train']['steps']==8
    assert same(last.state_dict(), weights(r.model))
    valid = recipe_data(recipe(), 'valid')
    assert evaluate(best, valid, make_task('seg', valid), progress=False)['mIoU']==r.best['mIoU']

def test_ema_is_what_is_evaluated_and_kept(tmp_path):
    r = train_recipe(recipe(ema=.5), tmp_path/'run', progress=False)
    state = read_state(tmp_path/'run'/'last')
    assert same(load_model(tmp_path/'run'/'last').state_dict(), weights(r.model))
    assert not same(state['raw'], weights(r.model))

def test_another_config_is_refused_with_the_difference(tmp_path):
    train_recipe(recipe(), tmp_path/'run', progress=False)
    with pytest.raises(ValueError, match=r'(?s)train.lr: 0.001 in the checkpoint, 0.5 now') as e:
        train_recipe(recipe(lr=.5, images=7), tmp_path/'run', resume=True, progress=False)
    assert 'images: 6 in the checkpoint, 7 now' in str(e.value)
    with pytest.raises(ValueError, match='holds a run already'): train_recipe(recipe(), tmp_path/'run', progress=False)
    with pytest.raises(FileNotFoundError, match='no checkpoint'): resume(tmp_path/'nothing', recipe_data(recipe()))

def test_steps_by_hand_are_the_steps_of_fit():
    r = recipe()
    data = recipe_data(r)
    task = recipe_task(r, data)
    transform = recipe_augment(r, task)
    whole = fit(recipe_model(r, task), data, r.train, transform=transform, task=task, progress=False)
    run = TrainRun(recipe_model(r, task), data, r.train, task, transform)
    source = run.batches()
    with torch.random.fork_rng(devices=[]):
        while run.step<r.train.steps: train_step(run, source)
    for (k,a),b in zip(whole.model.state_dict().items(), run.final.state_dict().values()): assert torch.equal(a, b), k

def test_finished_runs_stay_finished(tmp_path):
    a = train_recipe(recipe(), tmp_path/'run', progress=False)
    b = train_recipe(recipe(), tmp_path/'run', resume=True, progress=False)
    assert same(weights(a.model), weights(b.model)) and b.scores['mIoU']==a.scores['mIoU']

def test_loss_that_is_not_finite_stops_and_keeps_the_batch(tmp_path):
    from safetensors.torch import load_file
    class Broken(torch.utils.data.Dataset):
        def __len__(self): return 4
        def __getitem__(self, i):
            return dict(image=torch.full((3,32,32), torch.nan if i==2 else .5), labels=torch.zeros(32,32, dtype=torch.uint8))
    model = create_model('winwin_seg_micro', num_classes=2, depth=1)
    before = weights(model)
    config = TrainConfig(windows='2x2', steps=4, batch_size=2, warmup=0, lr=1e-3)
    with pytest.raises(FloatingPointError, match='not-finite-step') as e:
        fit(model, Broken(), config, out=tmp_path/'run', task=SegTask(['a','b']), progress=False)
    folder, = (tmp_path/'run').glob('not-finite-*')
    report,batch = json.loads((folder/'report.json').read_text()),load_file(folder/'batch.safetensors')
    assert 2 in report['indices'] and str(report['indices']) in str(e.value) and report['weights_not_finite']==[]
    assert batch['image_0'].shape==batch['image_1'].shape==(2,3,16,16) and batch['yx'].tolist()==report['yx']
    assert batch['image_0'].isnan().any() and batch['labels_1'].shape==(2,16,16)
    assert all(v.isfinite().all() for v in model.state_dict().values())

def test_the_callers_random_state_is_untouched():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    train_recipe(recipe(steps=1), progress=False)
    assert torch.equal(before, torch.get_rng_state())

def test_tensorboard(tmp_path):
    "A resumed run shows every step once, and the pictures of an evaluation"
    pytest.importorskip('tensorboard', reason='optional')
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    run = tmp_path/'run'
    over = dict(trackers=('tensorboard',), steps=5, save_every=2, eval_every=5)
    def interrupt(line):
        if line['step']==3 and 'loss' in line: os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt): train_recipe(recipe(**over), run, progress=False, watch=interrupt)
    train_recipe(recipe(**over), run, resume=True, progress=False)
    found = EventAccumulator(str(run/'tensorboard'/'winwin')).Reload()
    assert [o.step for o in found.Scalars('loss')]==[1,2,3,4,5]
    assert found.Tags()['images']==['predictions'] and 'eval/mIoU' in found.Tags()['scalars']

WANDB = """
def init(project, **how):
    print('init', project, how['id'], how['resume'], flush=True)
    return Run()
class Run:
    def log(self, values, step=None): print('log', step, *values, flush=True)
    def finish(self): print('finish', flush=True)
class Config:
    def update(self, values, allow_val_change): print('settings', values['windows'], flush=True)
class Image:
    def __init__(self, x): self.shape = x.shape
config = Config()
"""

def test_wandb_continues_its_run(tmp_path):
    "A stand-in with the calls that accelerate makes: one id for a run and its resumption, settings once"
    (tmp_path/'wandb').mkdir()
    (tmp_path/'wandb'/'__init__.py').write_text(WANDB)
    (tmp_path/'wandb-1.dist-info').mkdir()
    (tmp_path/'wandb-1.dist-info'/'METADATA').write_text('Metadata-Version: 2.1\nName: wandb\nVersion: 1\n')
    over = dict(trackers=('wandb',), steps=3, save_every=1, eval_every=3)
    said = []
    for die in (2,-1):
        code = CHILD.format(tests=str(ROOT/'tests'))
        env = os.environ | dict(OMP_NUM_THREADS='1', PYTHONPATH=f'{tmp_path}{os.pathsep}{ROOT}')
        done = subprocess.run([sys.executable, '-c', code, json.dumps(over), str(tmp_path/'run'), str(die)], env=env,
                              text=True, capture_output=True, timeout=300)
        said.append(done.stdout.splitlines())
    assert said[0][0].startswith('init winwin') and said[0][0]==said[1][0], (said, done.stderr)
    assert [o for o in said[0]+said[1] if o.startswith('settings')]==['settings 2x3']
    assert 'log 3 predictions' in said[1] and 'finish' in said[1]

def test_a_tracker_that_is_missing_is_said_first(tmp_path):
    from accelerate.tracking import get_available_trackers
    if 'mlflow' in map(str, get_available_trackers()): pytest.skip('it is there')
    with pytest.raises(ImportError, match='pip install mlflow'):
        train_recipe(recipe(trackers=('mlflow',), data='seg-folder', root=str(tmp_path/'nowhere')), tmp_path/'run')
    with pytest.raises(ValueError, match='did you mean wandb'): recipe(trackers=('wand',))

def test_runs_of_earlier_versions_name_tensorboard():
    "The field was `tensorboard` once"
    from dataclasses import asdict
    from winwin.training.loop import read_config
    old = {k: v for k,v in asdict(TrainConfig()).items() if k not in ('trackers','pictures')}
    assert read_config(old | dict(tensorboard=True)).trackers==('tensorboard',)
    assert read_config(old | dict(tensorboard=False))==TrainConfig()

@pytest.mark.parametrize('task', ['depth','normals','relative'])
def test_pictures_of_every_evaluation(tmp_path, task):
    name = f'driving-{task}'
    over = SMALL | dict(steps=2, eval_every=1, pictures=2)
    train_recipe(change(get_preset(name), **over), tmp_path/'run', progress=False)
    made = sorted((tmp_path/'run'/'pictures').iterdir())
    assert [p.name for p in made]==['step-000001.png','step-000002.png']
    from PIL import Image
    assert Image.open(made[0]).size==(3*100,2*68)
    train_recipe(change(get_preset(name), **(over | dict(pictures=0, steps=1))), tmp_path/'none', progress=False)
    assert not (tmp_path/'none'/'pictures').exists()

# --- Learning

def test_a_model_learns_what_is_easy():
    "Left and right halves have their own colour; a few steps are enough"
    class Halves(torch.utils.data.Dataset):
        classes = 'dark','light'
        def __len__(self): return 8
        def __getitem__(self, i):
            labels = (torch.arange(48)>=8*(i%4+1)).expand(32, 48).to(torch.uint8)
            return dict(image=(.2+.6*labels.float()).expand(3,-1,-1), labels=labels)
    torch.manual_seed(0)
    model = create_model('winwin_seg_micro', num_classes=2, depth=2, dim=48, num_heads=3)
    r = fit(model, Halves(), TrainConfig(windows='2x2', steps=40, batch_size=8, lr=3e-3, warmup=3, layer_decay=None),
            Halves(), progress=False)
    assert r.scores['mIoU']>.95

def test_depth_learns_and_reports():
    r = train_recipe(change(get_preset('driving-depth'), **(SMALL | dict(steps=25, batch_size=4))), progress=False)
    losses = [o['loss'] for o in r.log if 'loss' in o]
    assert sum(losses[-5:])<sum(losses[:5]) and 0<r.scores['abs_rel']<5

# --- Presets, variants, mistakes

@pytest.mark.parametrize('name', presets)
def test_presets_name_models_that_exist(name):
    r = presets[name]
    with torch.device('meta'): model = create_model(r.model.name)
    assert any(f'_{o}_' in r.model.name for o in (r.train.task,'dense','pair')) and model.patch_size in (8,16) # the last two serve any task

@pytest.mark.parametrize('name', paper_variants((24,40), 256, 6))
def test_variants_fit_their_grid(name):
    v = paper_variants((24,40), 256, 6)[name]
    from winwin.windows.schemes import parse_scheme
    w = parse_scheme(v['windows']).draw((24,40), 4, torch.Generator().manual_seed(0))
    most = 1.25 if name in ('random-budget','random-all') else 1 # these draw the budget too, from 3/4 to 5/4 of it
    assert w.num_tokens<=(960 if v['windows']=='full' else 290*most)
    task = SegTask(['a','b'])
    model = recipe_model(change(presets['driving-seg'], **v), task)
    img = torch.rand(1,3,192,320)
    assert model(img)[0].shape==(1,2,192,320)

def test_folders_of_ones_own(tmp_path):
    import numpy as np
    from PIL import Image
    for split,n in (('train',3),('val',2)):
        for kind in ('images','labels'): (tmp_path/kind/split).mkdir(parents=True)
        for i in range(n):
            Image.fromarray(np.random.randint(0, 255, (50,70,3), np.uint8)).save(tmp_path/'images'/split/f'{i}.png')
            Image.fromarray(np.random.randint(0, 2, (50,70), np.uint8)).save(tmp_path/'labels'/split/f'{i}.png')
    r = change(presets['folder-seg'], model='winwin_seg_micro', root=str(tmp_path), classes=('a','b'), windows='2x3',
               steps=2, batch_size=2, workers=0, warmup=0)
    assert (len(recipe_data(r)),len(recipe_data(r, 'valid')))==(3,2)
    out = train_recipe(r, progress=False)
    assert set(out.scores)>={'IoU/a','IoU/b'}

@pytest.mark.parametrize('over,words', [
    (dict(windows='2x99'), 'fit'), (dict(data='imagenet'), "no data 'imagenet'.*winwin list data"), (dict(model='winwin_depth_micro'), 'task'),
    (dict(head='mlp'), "no head 'mlp'; there are linear"), (dict(steps=-1), 'at least 1'), (dict(layer_decay=2.), 'at most 1')])
def test_mistakes_are_named(over, words):
    with pytest.raises(ValueError, match=words): train_recipe(recipe(**over), progress=False)

def test_state_of_unknown_kinds_is_refused():
    with pytest.raises(ValueError, match='set'): pack_state(dict(a={1,2}))
    state = {'a': [torch.ones(2), (1,None,'x')], 3: {True: 2.5}}
    t,rest = pack_state(state)
    back = unpack_state(t, json.loads(json.dumps(rest)))
    assert torch.equal(back['a'][0], torch.ones(2)) and back['a'][1]==(1,None,'x') and back[3]=={True: 2.5}
