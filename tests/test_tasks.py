"What must hold for every task: training on windows, prediction, colours, files, checkpoints, export, explorers"
import json
import numpy as np, pytest, torch
from winwin import DrivingWorld, Predictor, TrainConfig, Windows, create_model, evaluate, export_model, fit, load_model, parse_scheme, predict, save_model
from winwin.tasks import Task, fit_outputs, list_tasks, make_task, register, task_class, task_of
from winwin.workbench import TemperatureExplorer

TINY = dict(dim=32, depth=2, num_heads=2, head='linear')
DECODER = dict(decoder=dict(dim=32, depth=2, num_heads=2))
TASKS = list(list_tasks())
MAPS = [k for k,kind in list_tasks().items() if kind.predicts]
each_task = pytest.mark.parametrize('name', TASKS)
each_map = pytest.mark.parametrize('name', MAPS)

def world(name, size=(48,64), n=3):
    keys = task_class(name).keys
    kinds = dict(stereo='disparity' in keys, normals='normals' in keys, pair='image2' in keys and 'disparity' not in keys)
    return DrivingWorld(size, length=n, **kinds)

def task_for(name):
    data = world(name)
    return make_task(name, data)

def model_for(name):
    torch.manual_seed(0)
    task = task_for(name)
    if not task.predicts: return create_model('winwin_pretrain_micro', **{k: v for k,v in TINY.items() if k!='head'}, **DECODER)
    if len(task.inputs)==1: return create_model('winwin_dense_micro', num_outputs=task.outputs(), **TINY)
    return create_model('winwin_pair_micro', num_outputs=task.outputs(), scaled=task.motions(), **TINY, **DECODER)

def batch_of(name, n=2):
    task,data = task_for(name),world(name)
    return task,torch.utils.data.default_collate([task.select(data[i]) for i in range(n)])

def scheme_for(task): return parse_scheme('2x2' if task.predicts else 'full')

@each_task
def test_trains_two_steps_and_scores(name, tmp_path):
    task = task_for(name)
    config = TrainConfig(task=name, windows='2x2' if task.predicts else 'full', steps=2, batch_size=2, lr=1e-3)
    result = fit(model_for(name), world(name), config, valid=world(name, n=1), out=tmp_path, task=task, progress=False)
    assert task.score in result.scores and np.isfinite(result.scores[task.score])
    assert task.metrics().table(result.scores)
    again = task_of(load_model(tmp_path/'best')) # the checkpoint knows its task
    assert type(again) is type(task) and again.describe()==task.describe()

@each_map
def test_full_window_is_the_plain_model(name):
    model = model_for(name)
    task,batch = batch_of(name)
    imgs = [batch[k] for k in task.inputs]
    full = Windows.full((6,8), batch=2)
    with torch.no_grad():
        torch.testing.assert_close(model(*imgs, *[full]*len(imgs))[0], model(*imgs)[0], atol=1e-5, rtol=1e-4)
    assert model(*imgs)[0].shape[1]==task.outputs()

@each_map
def test_gradient_is_zero_outside_the_windows(name):
    model = model_for(name)
    task,batch = batch_of(name)
    batch = task.draw_windows(batch, scheme_for(task), 8, torch.Generator().manual_seed(0))
    batch['image'] = batch['image'].requires_grad_()
    task.batch_loss(model, batch, 8).backward()
    seen = torch.zeros(2, 6*8, dtype=torch.bool).scatter(1, batch['windows'].index(), True).view(2,6,8)
    seen = seen.repeat_interleave(8, 1).repeat_interleave(8, 2)
    grad = batch['image'].grad.abs().amax(1)
    assert (grad[~seen]==0).all() and grad[seen].max()>0

@each_map
def test_tiles_equal_the_full_pass_on_a_constant_image(name):
    model = model_for(name)
    task = task_for(name)
    imgs = [torch.full((1,3,48,64), .4)]*len(task.inputs)
    full = predict(model, *imgs, task=task)
    for how in ('uniform','taper'):
        tiled = predict(model, *imgs, mode='tile', size=(32,32), weights=how, task=task)
        torch.testing.assert_close(tiled, full, atol=1e-3, rtol=1e-3)

@each_map
def test_predicts_paints_and_writes_an_odd_size(name, tmp_path):
    task = task_for(name)
    p = Predictor(model_for(name), task=task)
    imgs = [torch.rand(3,37,51) for _ in task.inputs]
    out = p(*imgs)
    assert next(iter(out.values.values())).shape[-2:]==(37,51) and '51x37' in repr(out)
    assert out.color().shape==(37,51,3) and out.color().dtype==np.uint8 and len(out.show())>=2
    files = out.save(tmp_path, name='a')
    assert len(files)==len(task.usual) and all(o.is_file() for o in files)
    back = task.read_map(files[0])
    want = next(iter(out.values.values())).float()
    if name=='stereo': want = want.clamp(min=0)
    torch.testing.assert_close(back.float(), want, atol=1e-3, rtol=1e-3)

@each_map
def test_paints_targets_and_errors(name):
    task,item = task_for(name),world(name)[0]
    truth = task.target_values(item)
    assert task.paint(truth, task.limit(truth)).shape==(48,64,3)
    raw = predict(model_for(name), *(item[k][None] for k in task.inputs), task=task)
    values = {k: v[0] for k,v in task.decode(raw).items()}
    assert task.paint_error(values, item).shape==(48,64,3) and task.legend()
    assert task.difference(raw, raw)[0]==pytest.approx(0, abs=.1) # degrees of an arc cosine

@each_task
def test_saves_and_loads(name, tmp_path):
    model,task = model_for(name),task_for(name)
    save_model(model, tmp_path, extra=task.describe())
    again = load_model(tmp_path)
    assert json.dumps(task_of(again).describe())==json.dumps(task.describe())
    assert all(torch.equal(x, y) for x,y in zip(model.state_dict().values(), again.state_dict().values()))

@each_map
def test_exports(name, tmp_path):
    task = task_for(name)
    model = model_for(name)
    model.saved = dict(extra=task.describe())
    file = export_model(model, tmp_path/'m.pt2', size=(32,40))
    assert file.info['task']==name and file.difference<=1e-4

@each_map
def test_shows_in_the_temperature_explorer(name):
    model,data = model_for(name),world(name, (32,48))
    model.saved = dict(extra=task_for(name).describe())
    explorer = TemperatureExplorer(model, data=data, windows='2x2', images=1)
    try: assert 'change' in explorer.numbers()
    finally: explorer.close()

# --- Tasks that do not fit

def test_outputs_that_do_not_fit():
    with pytest.raises(ValueError, match='normals has 3 outputs, the head of the model 2'): task_of(create_model('winwin_dense_micro', num_outputs=2, **TINY), 'normals')
    with pytest.raises(ValueError, match='takes one image'): task_of(create_model('winwin_dense_micro', num_outputs=2, **TINY), 'stereo')

def test_targets_of_another_size_or_type():
    item = world('normals')[0]
    with pytest.raises(ValueError, match='both need one size'): make_task('normals').select(item | dict(normals=item['normals'][:,:9]))
    full = Windows.full((6,8))
    with pytest.raises(ValueError, match='give floats'): make_task('normals').window_loss([item['normals'][None]], item['normals'][None].long(), full, 8)

# --- A task of one's own

EDGES = '''
from dataclasses import dataclass
import torch, torch.nn.functional as F
from winwin.tasks import MeanMetrics, Task, register, window_pairs

@register
@dataclass
class Edges(Task):
    "Outlines of classes: a share of every pixel's neighbours belongs to another class"
    name = 'edges'
    target = 'edges'
    keys = ('image','edges')
    score = 'error'
    higher = False
    head = 'linear'
    suffix = '.npy'
    def select(self, item):
        labels = item['labels']
        edge = torch.zeros(labels.shape)
        edge[:,1:] += (labels[:,1:]!=labels[:,:-1]).float()
        return Task.select(self, item | dict(edges=edge))
    def outputs(self): return 1
    def window_loss(self, maps, target, windows, patch):
        return sum(F.binary_cross_entropy_with_logits(m[:,0], t) for m,t in window_pairs(maps, target, windows, patch, 1))
    def decode(self, maps): return dict(edges=maps[:,0].sigmoid())
    def metrics(self): return MeanMetrics('error')
    def update(self, metrics, maps, batch): metrics.update((maps[:,0].sigmoid()-batch['edges']).abs().flatten(1).mean(1))
'''

def test_a_task_in_a_file_of_ones_own(tmp_path, monkeypatch, capsys):
    "Train, score and predict from the shell without touching the library"
    from PIL import Image
    from winwin.cli import main
    monkeypatch.chdir(tmp_path)
    (tmp_path/'my_tasks.py').write_text(EDGES)
    def call(*args):
        with pytest.raises(SystemExit) as stop: main([*map(str, args)])
        got = capsys.readouterr()
        assert not stop.value.code, got.err
        return got.out
    out = call('train', 'driving-seg', '--task', 'my_tasks.py:Edges', '--model', 'winwin_dense_micro', '--image-size', 48, 64, '--images', 4,
               '--valid-images', 2, '--steps', 2, '--batch-size', 2, '--windows', '2x2', '--out', 'run')
    assert 'error' in out and 'winwin predict run IMAGES' in out
    assert 'error' in call('eval', 'run')
    (tmp_path/'images').mkdir()
    Image.fromarray(np.zeros((40,48,3), np.uint8)).save(tmp_path/'images/a.png')
    call('predict', 'run', 'images', '-o', 'out')
    assert (tmp_path/'out/edges/a.npy').is_file() and (tmp_path/'out/overlay/a.png').is_file()
    model = load_model('run/best')
    assert type(task_of(model)).__name__=='Edges' and 'edges' in list_tasks()
    explorer = TemperatureExplorer(model, data=DrivingWorld((48,64), 1), windows='2x2', images=1, task=task_of(model))
    try: assert 'change' in explorer.numbers()
    finally: explorer.close()

@pytest.mark.parametrize('text,words', [('x = 1', 'defines no task'), ('import nowhere_at_all', 'cannot be imported'), (EDGES, 'no task in .* .Borders.')])
def test_task_files_that_hold_no_task(text, words, tmp_path):
    (tmp_path/'mine.py').write_text(text)
    with pytest.raises(ValueError, match=words): make_task(f'{tmp_path}/mine.py:Borders')
    with pytest.raises(FileNotFoundError, match='there is no file'): make_task('nowhere.py:Edges')

# --- Its options, its folder, its package

MINE = '''
from dataclasses import dataclass
import torch, torch.nn.functional as F
from winwin.tasks import MeanMetrics, Task, register, window_pairs

@register
@dataclass
class Height(Task):
    "Height of every pixel"
    power:float=2. # Exponent of the error
    name = 'height'
    target = 'height'
    keys = ('image','height')
    score = 'error'
    higher = False
    head = 'linear'
    def outputs(self): return 1
    def window_loss(self, maps, target, windows, patch):
        return sum((m[:,0]-t).abs().pow(self.power).mean() for m,t in window_pairs(maps, target, windows, patch, 1))
    def decode(self, maps): return dict(height=maps[:,0])
    def metrics(self): return MeanMetrics('error')
    def update(self, metrics, maps, batch): metrics.update((maps[:,0]-batch['height']).abs().flatten(1).mean(1))
'''

def call(capsys, *args):
    from winwin.cli import main
    with pytest.raises(SystemExit) as stop: main([*map(str, args)])
    got = capsys.readouterr()
    return stop.value.code or 0,got.out+got.err

@pytest.fixture
def own(tmp_path, monkeypatch):
    "A folder with images, heights and the file of a task"
    from PIL import Image
    monkeypatch.chdir(tmp_path)
    (tmp_path/'mine.py').write_text(MINE)
    for name in ('images','height'): (tmp_path/'data'/name).mkdir(parents=True)
    for i in range(5):
        Image.fromarray(np.full((40,48,3), 40*i, np.uint8)).save(tmp_path/f'data/images/{i}.png')
        np.save(tmp_path/f'data/height/{i}.npy', np.full((40,48), i/5, np.float32))
    return tmp_path

FOLDER = ['train','folder','--task','mine.py:Height','--root','data','--model','winwin_dense_micro','--steps',2,'--batch-size',2,
          '--windows','2x2','--warmup',0,'--workers',0,'--out','run']

def test_a_folder_for_a_task_of_ones_own_needs_no_dataset(own, capsys):
    code,text = call(capsys, *FOLDER, '--power', 1.5)
    assert code==0 and 'error' in text, text
    saved = json.loads((own/'run/best/config.json').read_text())['extra']['recipe']
    assert saved['power']==1.5 and saved['train']['task']=='mine.py:Height' and 'flow_loss' not in saved
    code,text = call(capsys, 'eval', 'run')
    assert code==0 and 'error' in text
    code,text = call(capsys, *FOLDER, '--resume')
    assert code==1 and 'power: 1.5 in the checkpoint, 2.0 now' in text
    np.save(own/'data/height/3.npy', np.zeros((40,47), np.float32))
    code,text = call(capsys, *FOLDER[:-1], 'other', '--check')
    assert code==1 and 'height/3.npy is 40x47 pixels' in text and 'Traceback' not in text
    (own/'data/height/3.npy').write_bytes(b'no array')
    code,text = call(capsys, *FOLDER[:-1], 'third', '--check')
    assert code==1 and 'height/3.npy cannot be read as an array' in text

def test_help_shows_the_options_of_a_task_of_ones_own(own, capsys):
    code,text = call(capsys, 'train', 'folder', '--task', 'mine.py:Height', '--help')
    assert code==0 and '--power N' in text and 'Exponent of the error (default: 2.0)' in text
    assert '--class-weights' not in text and '--flow-loss' not in text
    code,text = call(capsys, 'train', 'driving-depth', '--flow-loss', 'l1')
    assert code==2 and '--flow-loss' in text # of another task

def test_stereo_from_a_folder(tmp_path, capsys):
    from PIL import Image
    from winwin.tasks.stereo import write_disparity
    for i in range(5):
        item = DrivingWorld((32,48), length=5, stereo=True)[i]
        for key,name in (('image','images'), ('image2','images2')):
            (tmp_path/name).mkdir(exist_ok=True)
            Image.fromarray((item[key]*255).byte().permute(1,2,0).numpy()).save(tmp_path/f'{name}/{i}.png')
        (tmp_path/'disparity').mkdir(exist_ok=True)
        write_disparity(tmp_path/f'disparity/{i}.pfm', item['disparity'].clamp(min=0))
    code,text = call(capsys, 'train', 'folder', '--task', 'stereo', '--root', tmp_path, '--model', 'winwin_pair_micro', '--head', 'linear', '--flip', 0,
                     '--steps', 1, '--batch-size', 2, '--windows', '2x2', '--warmup', 0, '--workers', 0, '--out', tmp_path/'run')
    assert code==0 and 'bad3' in text, text

@pytest.fixture
def package(tmp_path, monkeypatch):
    "A distribution on sys.path with one good and one broken task"
    (tmp_path/'my_package.py').write_text(MINE.replace("'height'", "'packaged'"))
    info = tmp_path/'my_package-1.0.dist-info'
    info.mkdir()
    (info/'METADATA').write_text('Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n')
    (info/'entry_points.txt').write_text('[winwin.tasks]\nasleep = nowhere_at_all:Task\npackaged = my_package:Height\n')
    monkeypatch.syspath_prepend(tmp_path)
    from winwin.tasks import registry
    monkeypatch.setattr(registry, '_own', {})
    monkeypatch.setattr(registry, '_broken', {})
    return registry

def test_tasks_of_packages(package):
    assert task_class('seg').name=='seg' and not package._own # nothing is imported for a task that is there
    with pytest.warns(UserWarning, match="task 'asleep' is left out: nowhere_at_all:Task cannot be loaded"): kind = task_class('packaged')
    assert kind.__name__=='Height' and make_task('packaged').outputs()==1
    assert {'packaged','seg'}<=list_tasks().keys() and 'asleep' not in list_tasks()
    with pytest.raises(ValueError, match="task 'asleep': nowhere_at_all:Task cannot be loaded: ModuleNotFoundError"): task_class('asleep')
    with pytest.raises(ValueError, match='did you mean packaged'): task_class('packagd')

# --- Disparities, and recipes of earlier versions

@pytest.mark.parametrize('bad', [-3., float('inf')])
def test_disparities_are_finite_and_not_negative(bad, tmp_path):
    from winwin.tasks.stereo import disparity_loss, read_disparity, write_disparity
    x = torch.ones(1,16,16)
    x[0,0,0] = bad
    with pytest.raises(ValueError, match=f'disparity {bad:g} where it is valid; disparities are finite'): disparity_loss([torch.zeros(1,2,16,16)], x, Windows.full((2,2)), 8)
    with pytest.raises(ValueError, match=f'disparity {bad:g} for .*write finite'): write_disparity(tmp_path/'a.pfm', x[0], torch.ones(16,16, dtype=torch.bool))
    np.save(tmp_path/'a.npy', x[0].numpy())
    if bad<0:
        with pytest.raises(ValueError, match='a.npy has disparity -3; disparities are not negative'): read_disparity(tmp_path/'a.npy')
    else: assert not read_disparity(tmp_path/'a.npy')[1][0,0] # unknown

def test_a_run_of_an_earlier_version_resumes(tmp_path):
    "They stored the options of all tasks in one list"
    from winwin.training.recipes import change, get_preset, train_recipe
    r = change(get_preset('driving-normals'), image_size=(48,64), images=4, valid_images=1, steps=2, batch_size=2, windows='2x2', save_every=1)
    whole = train_recipe(r, tmp_path/'run', progress=False)
    for path in (tmp_path/'run').glob('*/config.json'):
        config = json.loads(path.read_text())
        config['extra']['recipe'] |= dict(flow_loss='bounded', depth_loss='silog', windows2=None, mask=.9, class_weights=None, max_depth=None)
        path.write_text(json.dumps(config))
    again = train_recipe(r, tmp_path/'run', resume=True, progress=False)
    assert all(torch.equal(a, b) for a,b in zip(whole.model.state_dict().values(), again.model.state_dict().values()))
    with pytest.raises(ValueError, match='head: upsample in the checkpoint, linear now'):
        train_recipe(change(r, head='linear'), tmp_path/'run', resume=True, progress=False)
