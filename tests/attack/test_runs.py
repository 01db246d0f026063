"A run beside readers and other runs, resumed with other settings, with numbers that are not finite, on a full disk."
import json, os, resource, shutil, socket, subprocess, sys, threading, warnings
from dataclasses import dataclass, make_dataclass, field
import pytest, torch
from winwin.machine import find_folder, write_folder
from winwin.models.dense import create_model
from winwin.models.hub import load_model, save_model
from winwin.tasks.segmentation import SegTask
from winwin.training.checkpoints import find_model, read_state
from winwin.training.log import read_log
from winwin.training.loop import TrainConfig, TrainRun, fit, resume, train_step
from winwin.temperature.checkpoint import open_run
from winwin.training.recipes import change, configured, get_preset, recipe_data, recipe_model, recipe_task, train_recipe
from winwin.worlds.datasets import DrivingWorld
import winwin.machine as machine
from .conftest import limit, tiny
from .test_files import damaged

# --- Readers beside a writer

@pytest.mark.parametrize('swaps', [True, False])
def test_readers_do_not_disturb_a_writer(swaps, saved, tmp_path, attack, monkeypatch):
    "Without the swap, as on file systems that lack it, a folder is replaced by two renames"
    if not swaps: monkeypatch.setattr(machine, '_swap', lambda one, other: False)
    model = load_model(saved)
    errors,done = [],threading.Event()
    def write():
        try:
            for step in range(25): write_folder(tmp_path/'run'/'last', lambda at: save_model(model, at, extra=dict(step=step)))
        except BaseException as error: errors.append(error)
        finally: done.set()
    write_folder(tmp_path/'run'/'last', lambda at: save_model(model, at, extra=dict(step=-1)))
    writer = threading.Thread(target=write)
    with limit(100):
        writer.start()
        read = gone = 0
        while not done.is_set():
            gone += find_folder(tmp_path/'run'/'last') is None
            try: read += len(load_model(find_model(tmp_path/'run')).saved)>0
            except BaseException as error: errors.append(error)
        writer.join()
    attack.case(f'readers, swap {swaps}', not errors and read>0, errors[:3])
    if swaps: attack.case('there at every moment', gone==0, f'{gone} moments without a checkpoint')
    attack.case('the last one stays', load_model(tmp_path/'run'/'last').saved['extra']['step']==24)
    attack.case('nothing is left over', os.listdir(tmp_path/'run')==['last'], os.listdir(tmp_path/'run'))

def test_a_reader_finds_what_a_crash_left(run, tmp_path, attack):
    "Every combination of the three names that a crash can leave; nothing is renamed"
    for names in (['last'], ['last.new'], ['last.old'], ['last','last.new'], ['last','last.old'], ['last.new','last.old'], ['last','last.part'], ['last.old','last.part']):
        out = tmp_path/'-'.join(names)
        for k in names: shutil.copytree(run/'last', out/k)
        load_model(find_model(out))
        read_state(out/'last')
        attack.case(f'{names}', sorted(os.listdir(out))==sorted(names), os.listdir(out))

CRASHES = """
import io, itertools, os, shutil, sys
from pathlib import Path
import winwin.machine as machine
out = Path(sys.argv[1])
if sys.argv[2]=='False': machine._swap = lambda one, other: False
def content(number):
    def write(at):
        for name in ('model','state'): (at/name).write_text(number*9999)
    return write
def seen():
    found = machine.find_folder(out/'last')
    return {(found/k).read_text()[:1] for k in ('model','state')}, {len((found/k).read_text()) for k in ('model','state')}
def deadly(f, count):
    def call(*args, **options):
        if next(count)==0: os.kill(os.getpid(), 9)
        result = f(*args, **options)
        if next(count)==0: os.kill(os.getpid(), 9)
        return result
    return call
for k in itertools.count():
    shutil.rmtree(out, ignore_errors=True)
    machine.write_folder(out/'last', content('1'))
    pid = os.fork()
    if not pid:
        count = itertools.count(-k)
        for name in ('rename','replace','mkdir','unlink','rmdir','fsync','open'): setattr(os, name, deadly(getattr(os, name), count))
        io.open = deadly(io.open, count)
        machine._swap = deadly(machine._swap, count)
        machine.write_folder(out/'last', content('2'))
        os._exit(0)
    died = os.waitstatus_to_exitcode(os.wait()[1])
    numbers,sizes = seen()
    assert len(numbers)==1 and numbers<={'1','2'} and sizes=={9999}, (k, numbers, sizes, os.listdir(out))
    machine.write_folder(out/'last', content('3'))
    assert seen()==({'3'},{9999}) and os.listdir(out)==['last'], (k, os.listdir(out))
    print(k, died, *numbers, flush=True)
    if died==0: break
"""

@pytest.mark.parametrize('swaps', [True, False])
def test_killed_on_both_sides_of_every_file_operation(swaps, tmp_path, attack):
    "A reader sees the folder before or after, whole; the next writer removes what is left"
    p = subprocess.run([sys.executable, '-c', CRASHES, str(tmp_path/'run'), str(swaps)], capture_output=True, text=True, timeout=120)
    rows = [o.split() for o in p.stdout.splitlines()]
    attack.case('all points', p.returncode==0 and rows and rows[-1][1:]==['0','2'], p.stderr[-500:])
    for k,died,number in rows[:-1]: attack.case(f'killed at point {k}', died=='-9')
    attack.case('before and after', len(rows)>20 and {o[2] for o in rows}=={'1','2'}, rows)

def test_an_incomplete_folder_never_replaces_a_complete_one(run, tmp_path, attack):
    for what in ('empty','one file','a file'):
        out = tmp_path/what
        shutil.copytree(run/'last', out/'last')
        if what=='a file': (out/'last.new').write_text('x')
        else: (out/'last.new').mkdir()
        if what=='one file': shutil.copy(run/'last'/'config.json', out/'last.new')
        machine.finish_write(out/'last')
        attack.case(what, (out/'last'/'state.json').exists(), os.listdir(out/'last'))
        with limit(): write_folder(out/'last', lambda at: (at/'x').write_text('x'))

# --- Two processes in one folder

def test_a_second_run_is_refused_and_a_dead_one_taken_over(run, cache, tmp_path, attack, capfd):
    out = shutil.copytree(run, tmp_path/'run')
    recipe = tiny(root=str(cache))
    again = lambda: train_recipe(recipe, out, resume=True, progress=False)
    other = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'], stdin=subprocess.PIPE)
    owner = dict(host=socket.gethostname(), pid=other.pid, birth=machine._birth(other.pid), since='2026-01-01 00:00:00')
    (out/'.lock').write_text(json.dumps(owner))
    name = f'process {other.pid} on {socket.gethostname()}, since 2026-01-01'
    attack.refused('resume beside a run', again, name, '.lock')
    attack.refused('fit beside a run', lambda: fit(create_model('winwin_seg_micro'), None, TrainConfig(), out=out), name)
    other.kill()
    other.wait()
    with limit(): again()
    said = capfd.readouterr().err
    attack.case('a line says so', f'was left by {name}' in said and 'which has ended; taking over' in said, said)
    attack.case('free afterwards', (out/'.lock').read_text()=='')
    (out/'.lock').write_text(json.dumps(owner | dict(host='another-machine')))
    attack.refused('another machine', again, 'another-machine', 'delete')
    for text in ('{', 'null', '[]', '7', '{"host": 1}', '\x00'*9):
        (out/'.lock').write_text(text)
        with limit(): again()
        attack.case(f'lock {text[:9]!r}', True)

def test_the_owner_is_known_while_it_trains(cache, tmp_path, attack):
    "The lock is there from the first line of the log, and a second `fit` of the same process is refused too"
    seen = []
    def watch(line):
        seen.append(json.loads((tmp_path/'run'/'.lock').read_text())['pid'])
        attack.refused('twice in one process', lambda: train_recipe(tiny(root=str(cache)), tmp_path/'run', progress=False), str(os.getpid()))
    train_recipe(tiny(root=str(cache), steps=1), tmp_path/'run', progress=False, watch=watch)
    attack.case('owner', set(seen)=={os.getpid()}, seen)

# --- Resume with other settings

@pytest.mark.parametrize('over', [dict(model='winwin_seg_tiny'), dict(head='linear'), dict(pos='sincos'), dict(local_window=4, global_blocks=(1,)), dict(weights='elsewhere'), dict(image_size=(48,48)), dict(patch_size=4),
                                  dict(windows='full'), dict(lr=.5), dict(seed=3), dict(class_weights='auto'), dict(flip=.1)], ids=lambda o: next(iter(o)))
def test_resume_with_other_settings(over, run, cache, tmp_path, attack):
    out = shutil.copytree(run, tmp_path/'run')
    before = (out/'last'/'config.json').read_bytes()
    attack.refused(f'resume {over}', lambda: train_recipe(tiny(root=str(cache), **over), out, resume=True, progress=False), 'trained differently', f'{next(iter(over))}: ')
    attack.case('unchanged', (out/'last'/'config.json').read_bytes()==before)

def test_resume_where_the_data_moved(run, cache, tmp_path):
    out = shutil.copytree(run, tmp_path/'run')
    moved = shutil.copytree(cache, tmp_path/'moved')
    train_recipe(tiny(root=str(moved), valid_images=2), out, resume=True, progress=False)

def test_resume_after_a_temperature_was_chosen(run, cache, tmp_path, attack):
    out = shutil.copytree(run, tmp_path/'run')
    model = load_model(out/'last')
    model.encoder.blocks[0].attn.tau = 1.3
    save_model(model, out/'last', extra=model.saved['extra'])
    attack.refused('temperature', lambda: train_recipe(tiny(root=str(cache)), out, resume=True, progress=False), 'temperatures', '--undo')

def test_options_from_a_file(run, tmp_path, attack):
    "`--config` takes the options of a run, or a JSON of options"
    recipe = get_preset('driving-seg')
    file = tmp_path/'options.json'
    file.write_text('{"steps": 7}')
    for what,now in damaged(file.read_bytes()):
        file.write_bytes(now)
        attack.refused(f'options {what}', lambda: configured(recipe, file), 'options.json')
    for odd in (dict(colour=1), dict(steps='7'), dict(steps=[]), dict(steps=float('nan')), dict(train=dict(speed=1)), dict(task=[]), dict(task=7), dict(windows={}), dict(extra={}), dict(extra=dict(recipe={})),
                dict(extra=dict(recipe=dict(train=7))), dict(extra=dict(recipe=dict(train=dict(steps='x')))), dict(extra=dict(recipe=dict(model=dict(name=[])))), dict(steps=-1)):
        file.write_text(json.dumps(odd))
        attack.refused(f'options {odd}', lambda: configured(recipe, file))
    attack.case('a run', configured(recipe, run).train.steps==3)

# --- Numbers that are not finite

class Bad(SegTask):
    "The gradient of one step is not finite; the loss is"
    def batch_loss(self, model, batch, patch):
        loss = super().batch_loss(model, batch, patch)
        self.calls = getattr(self, 'calls', 0)+1
        if self.calls!=3: return loss
        weight = next(model.parameters())
        return loss + (weight.flatten()[0]*0).abs().sqrt() # 0, with a gradient of 0*inf

def test_a_gradient_that_is_not_finite_never_reaches_a_checkpoint(tmp_path, attack):
    world = DrivingWorld((32,48), length=4)
    config = TrainConfig(windows='2x2', steps=6, batch_size=2, save_every=1, layer_decay=None)
    model = create_model('winwin_seg_micro', num_classes=len(world.classes), depth=1, dim=32, num_heads=2)
    with pytest.raises(FloatingPointError, match='the norm of its gradient nan'): fit(model, world, config, out=tmp_path/'run', task=Bad(world.classes), progress=False)
    last = load_model(tmp_path/'run'/'last')
    attack.case('last is finite', all(v.isfinite().all() for v in last.state_dict().values()))
    attack.case('last is step 2', read_state(tmp_path/'run'/'last')['step']==2)
    attack.case('the batch is kept', len(list((tmp_path/'run').glob('not-finite-step2*/batch.safetensors')))==1)

def test_weights_that_are_not_finite_are_not_saved(tmp_path, attack):
    world = DrivingWorld((32,48), length=4)
    config = TrainConfig(windows='2x2', steps=4, batch_size=2, layer_decay=None)
    run = TrainRun(create_model('winwin_seg_micro', num_classes=len(world.classes), depth=1, dim=32, num_heads=2), world, config, out=tmp_path/'run')
    run.save()
    with torch.no_grad(): next(run.raw.parameters()).flatten()[0] = torch.inf
    with pytest.raises(FloatingPointError, match='is not finite after step 0'): run.save()
    attack.case('kept', all(v.isfinite().all() for v in load_model(tmp_path/'run'/'last').state_dict().values()))

def test_a_score_that_is_no_number_does_not_stay_best(attack):
    task = SegTask(('a','b'))
    nan = float('nan')
    for new,old,want in ((.5,nan,True), (nan,.5,False), (nan,nan,False), (.5,.4,True), (.4,.5,False)):
        attack.case(f'{new} after {old}', task.better(dict(mIoU=new), dict(mIoU=old)) is want)

# --- A full disk

def test_a_full_disk(run, cache, tmp_path, attack):
    "No file may grow beyond a limit, as on a full disk; what was there stays, and is resumed once there is room"
    out = tmp_path/'run'
    recipe = tiny(root=str(cache), steps=4)
    soft,hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    def fill(line):
        if line['step']==2: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000,hard))
    def full():
        try: train_recipe(recipe, out, progress=False, watch=fill)
        finally: resource.setrlimit(resource.RLIMIT_FSIZE, (soft,hard))
    attack.refused('full disk', full, str(out/'last'), 'could not be written')
    attack.case('last stays', read_state(out/'last')['step']==1)
    attack.case('nothing half-written', {o for o in os.listdir(out) if o.endswith(('.part','.new','.old','.tmp'))}==set(), os.listdir(out))
    train_recipe(recipe, out, resume=True, progress=False)
    attack.case('resumed', read_state(out/'last')['step']==4)

def test_a_full_disk_for_a_model(saved, tmp_path, attack):
    folder = shutil.copytree(saved, tmp_path/'m')
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    model = load_model(folder)
    soft,hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    def full():
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000,hard))
        try: save_model(model, folder)
        finally: resource.setrlimit(resource.RLIMIT_FSIZE, (soft,hard))
    attack.refused('full disk', full, 'model.safetensors')
    attack.case('as before', {p.name: p.read_bytes() for p in folder.iterdir()}==before)

# --- Workers that fail

class Dies(DrivingWorld):
    "Item 2 ends the process that loads it; item 3 is damaged"
    what = 'kill'
    def __getitem__(self, i):
        if i==2 and self.what=='kill' and torch.utils.data.get_worker_info(): os.kill(os.getpid(), 9)
        if i==2 and self.what=='error': raise ValueError('images/0002.png cannot be decoded (7 bytes)')
        return super().__getitem__(i)

def test_a_worker_that_is_killed_costs_no_step(tmp_path, attack):
    world = Dies((32,48), length=8)
    config = TrainConfig(windows='2x2', steps=8, batch_size=1, workers=1, save_every=100, log_every=1, layer_decay=None, seed=1)
    model = create_model('winwin_seg_micro', num_classes=len(world.classes), depth=1, dim=32, num_heads=2)
    attack.refused('killed worker', lambda: fit(model, world, config, out=tmp_path/'run', progress=False), 'a process that loads data was killed', 'fewer workers')
    done = [o['step'] for o in read_log(tmp_path/'run')]
    attack.case('saved', not done or read_state(tmp_path/'run'/'last')['step']==done[-1], done)
    world.what = 'error'
    model = create_model('winwin_seg_micro', num_classes=len(world.classes), depth=1, dim=32, num_heads=2)
    attack.refused('damaged image', lambda: fit(model, world, config, out=tmp_path/'bad', progress=False), 'images/0002.png cannot be decoded (7 bytes)')
    try: fit(model, world, config, out=tmp_path/'bad2', progress=False)
    except ValueError as error: attack.case('without a traceback', 'Traceback' not in str(error), error)

# --- Data without targets

UNKNOWN = {'driving-seg': ('labels',255), 'driving-depth': ('depth',0.), 'driving-relative': ('depth',float('inf')), 'driving-normals': ('normals',0.), 'flow-layered': ('valid',False), 'driving-stereo': ('disparity',float('nan'))}

class Lost(torch.utils.data.Dataset):
    "Items whose targets are unknown, but for those of `known`"
    root = 'the/place'
    def __init__(self, data, key, value, known=()): self.data,self.key,self.value,self.known = data,key,value,known
    def __len__(self): return len(self.data)
    def __getitem__(self, i):
        item = dict(self.data[i])
        return item if i in self.known else item | {self.key: torch.full_like(item[self.key], self.value)}

def steps_of(preset, steps, do, known=(), **over):
    "Losses and warnings of some steps of a run of `steps`"
    recipe = change(get_preset(preset), image_size=(32,48), images=4, windows='2x2', batch_size=2, warmup=1, steps=steps, **over)
    if preset in ('flow-layered','driving-stereo'): recipe = change(recipe, windows2='2x2')
    data = recipe_data(recipe)
    task = recipe_task(recipe, data)
    run = TrainRun(recipe_model(recipe, task), Lost(data, *UNKNOWN[preset], known), recipe.train, task)
    source = run.batches()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        losses = [train_step(run, source)['loss'] for _ in range(do)]
    return losses,[str(o.message) for o in said if 'no target at all' in str(o.message)]

@pytest.mark.parametrize('preset', UNKNOWN)
def test_data_without_targets_is_said(preset, attack):
    losses,said = steps_of(preset, 3, 3)
    key = UNKNOWN[preset][0]
    attack.case(f'{preset}: a warning', len(said)==1 and 'Lost in the/place' in said[0] and 'the first 3 steps' in said[0], said)
    attack.case(f'{preset}: what a target is', bool(said) and (key in said[0] or dict(labels='a label is a class', normals='a normal has length 1')[key] in said[0]), said)
    attack.case(f'{preset}: no loss', losses==[0]*3, losses)
    losses,said = steps_of(preset, 3, 3, known=(0,1,2,3))
    attack.case(f'{preset}: no warning', said==[] and losses[0]>0, said)

def test_a_few_targets_are_enough_and_ten_steps_long_enough(attack):
    attack.case('one of four', steps_of('driving-seg', 12, 12, known=(3,))[1]==[])
    attack.case('nine', steps_of('driving-seg', 100, 9)[1]==[])
    said = steps_of('driving-seg', 100, 12)[1]
    attack.case('ten', len(said)==1 and 'the first 10 steps' in said[0], said)

def test_scores_without_targets_are_said(cache, attack):
    world = DrivingWorld((32,48), length=2)
    model = create_model('winwin_seg_micro', num_classes=len(world.classes), depth=1, dim=32, num_heads=2)
    config = TrainConfig(windows='2x2', steps=1, batch_size=2, layer_decay=None)
    with pytest.warns(UserWarning, match='the validation set has no score mIoU'): fit(model, world, config, Lost(world, 'labels', 255), task=SegTask(world.classes), progress=False)
    attack.case('validation', True)

# --- A CPU, and an earlier version

def test_fp16_on_a_cpu_is_said(attack):
    world = DrivingWorld((32,48), length=2)
    model = create_model('winwin_seg_micro', num_classes=len(world.classes), depth=1, dim=32, num_heads=2)
    config = TrainConfig(windows='2x2', steps=1, batch_size=2, layer_decay=None, precision='fp16')
    if torch.accelerator.is_available(): pytest.skip('there is a GPU')
    with pytest.warns(UserWarning, match='fp16 is for GPUs.*float32'): fit(model, world, config, progress=False)
    with warnings.catch_warnings(record=True) as said: fit(model, world, TrainConfig(windows='2x2', steps=1, batch_size=2, layer_decay=None), progress=False)
    attack.case('nothing to say', not [o for o in said if 'fp16' in str(o.message)])

@dataclass
class Turn:
    "An augmentation"
    share:float=.5
    def __call__(self, item): return item

def later(kind, **more):
    "The class of a later version, with more fields"
    new = make_dataclass(kind.__name__, [(k, type(v), field(default=v)) for k,v in more.items()], bases=(kind,))
    new.__qualname__ = kind.__qualname__
    return new

def test_a_field_that_is_new_does_not_block_a_resume(tmp_path, attack):
    world = DrivingWorld((32,48), length=4)
    model = create_model('winwin_seg_micro', num_classes=len(world.classes), depth=1, dim=32, num_heads=2)
    config = TrainConfig(windows='2x2', steps=2, batch_size=2, layer_decay=None)
    fit(model, world, config, out=tmp_path/'run', task=SegTask(world.classes), transform=Turn(), progress=False)
    task,turn = later(SegTask, beta=3),later(Turn, angle=90.)
    def again(task, turn): return resume(tmp_path/'run', world, task=task, transform=turn, progress=False)
    again(task(world.classes), turn())
    attack.refused('another value of a new field', lambda: again(task(world.classes, beta=4), turn()), 'task: ', 'beta=4')
    attack.refused('another value of an old field', lambda: again(task(world.classes, label_smoothing=.1), turn()), 'task: ')
    attack.refused('another augmentation', lambda: again(task(world.classes), turn(angle=45.)), 'transform: ', 'angle=45')

def test_a_function_as_transform_is_resumed_by_another_process(tmp_path, attack):
    world = DrivingWorld((32,48), length=4)
    config = TrainConfig(windows='2x2', steps=1, batch_size=2, layer_decay=None)
    def turn(item): return item
    fit(create_model('winwin_seg_micro', num_classes=len(world.classes), depth=1, dim=32, num_heads=2), world, config, out=tmp_path/'run', transform=turn, progress=False)
    first = turn
    def turn(item): return item # at another address, as in a new process
    assert repr(first)!=repr(turn)
    resume(tmp_path/'run', world, transform=turn, progress=False)
    attack.refused('another function', lambda: resume(tmp_path/'run', world, transform=len, progress=False), 'transform: ')

# --- What others left, and what others sent

def test_leftovers_of_killed_processes_are_removed(saved, tmp_path, attack):
    "A process is killed in the moment before its rename; the next writer removes what it left, and nothing of one that lives"
    code = 'import os, sys; from pathlib import Path; from winwin.machine import write_text; os.replace = lambda *args: os.kill(os.getpid(), 9); write_text(Path(sys.argv[1]), "half")'
    for name in ('a.txt','b.txt'): subprocess.run([sys.executable, '-c', code, str(tmp_path/name)], timeout=60)
    left = sorted(p.name for p in tmp_path.iterdir())
    attack.case('left by the second, which removed that of the first', len(left)==1 and left[0].startswith('.b.txt.') and left[0].endswith('.tmp'), left)
    living = machine.temporary_path(tmp_path/'c.txt') # of this process, which lives
    machine._remove_leftovers.cache_clear() # as in a new process
    living.write_text('being written')
    elsewhere = tmp_path/f'.d.txt.{"0"*8}-99999999-{"0"*12}.tmp' # of another machine
    elsewhere.write_text('being written')
    mine = tmp_path/'.notes.tmp'
    mine.write_text('of a user')
    machine.write_text(tmp_path/'e.txt', 'whole')
    attack.case('removed', sorted(p.name for p in tmp_path.iterdir())==sorted([living.name,elsewhere.name,mine.name,'e.txt']), os.listdir(tmp_path))
    folder = shutil.copytree(saved, tmp_path/'m')
    part = machine.temporary_path(folder/'model')
    dead = part.with_name(part.name.replace(f'-{os.getpid()}-', '-99999999-'))
    dead.mkdir()
    (dead/'model.safetensors').write_text('half')
    machine._remove_leftovers.cache_clear()
    save_model(load_model(saved), folder)
    attack.case('of a model', not dead.exists() and not [o for o in os.listdir(folder) if '.tmp' in o], os.listdir(folder))

def test_the_cache_that_a_foreign_checkpoint_names_is_not_written(run, tmp_path, attack):
    out = shutil.copytree(run, tmp_path/'run')
    for at in ('best','last'):
        if not (out/at/'config.json').exists(): continue
        config = json.loads((out/at/'config.json').read_text())
        config['extra']['recipe']['root'] = str(tmp_path/'theirs')
        (out/at/'config.json').write_text(json.dumps(config))
    open_run(out, device='cpu').data[0]
    attack.case('not written', not (tmp_path/'theirs').exists())
    open_run(out, str(tmp_path/'mine'), device='cpu').data[0]
    attack.case('where the user says', any((tmp_path/'mine').rglob('*.npz')))

def test_a_model_folder_that_vanishes_asks_no_network(tmp_path, attack, monkeypatch):
    import huggingface_hub
    def asked(*args, **options): raise AssertionError('the network was asked')
    for k in ('hf_hub_download','snapshot_download'): monkeypatch.setattr(huggingface_hub, k, asked)
    monkeypatch.chdir(tmp_path)
    for name in ('a/last', 'runs/x/last', str(tmp_path/'gone')): attack.refused(name, lambda: load_model(name), name)

def test_what_a_saved_model_says(saved, tmp_path, attack):
    model = load_model(saved)
    extra = dict(classes=['<script>alert(1)</script>', 'a|b', 'c\nd'])
    folder = save_model(model, tmp_path/'m', metrics={'mIoU': float('nan'), '<b>x</b>': 1.}, extra=extra)
    def refuse(constant): raise ValueError(constant)
    attack.case('JSON', json.loads((folder/'config.json').read_text(), parse_constant=refuse)['metrics']['mIoU'] is None)
    text = (folder/'README.md').read_text()
    attack.case('README.md', '<script' not in text and '<b>' not in text, text)
    (folder/'README.md').write_bytes('Grüße'.encode('latin-1'))
    save_model(model, folder)
    attack.case('a README.md of the user', (folder/'README.md').read_bytes()=='Grüße'.encode('latin-1'))
