"predict, eval, export, demo and study: told to end, killed, on a full disk, with names and scores that no terminal and no JSON can hold."
import json, os, shutil, signal, subprocess, sys, time, warnings
from pathlib import Path
import numpy as np, pytest, torch
from PIL import Image
import winwin.experiments.demo as demo
import winwin.experiments.studies as studies
import winwin.inference.export as export
import winwin.machine as machine
import winwin.tasks.task as tasks
from winwin.cli import main

def picture(path):
    Image.fromarray(np.zeros((32,48,3), np.uint8)).save(path)
    return path

def called(*args):
    "Exit code of a command"
    with pytest.raises(SystemExit) as end: main([str(o) for o in args])
    return end.value.code or 0

@pytest.fixture
def commands(saved, run, tmp_path, monkeypatch):
    "Words of a command, and the file that it writes last; what takes long is left out"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, 'render_scenes', lambda *args, **options: None)
    monkeypatch.setattr(demo, '_run', lambda *args: ({},'page'))
    monkeypatch.setattr(studies, 'read_study', lambda *args: [{}])
    monkeypatch.setattr(studies, 'report', lambda results: 'table')
    monkeypatch.setattr(torch.export, 'export', lambda *args, **options: None)
    monkeypatch.setattr(torch.export, 'save', lambda program, path, **options: Path(path).write_bytes(b'program'))
    monkeypatch.setattr(export, '_compare', lambda *args: 0.)
    monkeypatch.setattr(export, 'Exported', lambda *args: None)
    picture(tmp_path/'a.png')
    return dict(predict=(['predict', saved, 'a.png', '-o', 'out', '--kinds', 'map'], 'out/labels/a.png'), demo=(['demo', '--out', 'shown'], 'shown/report.html'),
                study=(['study', 'windows-seg', '--report', '--collect', 'results.json'], 'results.json'),
                export=(['export', saved, '--format', 'torch', '--size', '32', '48', '-o', 'm.pt2'], 'm.pt2'), eval=(['eval', run], None))

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}

@pytest.mark.parametrize('number', CODES)
@pytest.mark.parametrize('name', ['predict','eval','export','demo','study'])
def test_signals(name, number, commands, attack, monkeypatch):
    "In the moment before a file gets its name"
    words,file = commands[name]
    ignored = signal.getsignal(number) is signal.SIG_IGN # by nohup, which winwin respects
    if ignored: signal.signal(number, signal.SIG_DFL)
    before = signal.getsignal(number)
    def stop(*args, **options):
        os.kill(os.getpid(), number)
        time.sleep(5)
    if file is None: monkeypatch.setattr(tasks, 'evaluate', stop)
    else: monkeypatch.setattr(os, 'replace', stop)
    attack.case(f'{name} {number.name}: code', called(*words)==CODES[number])
    attack.case(f'{name} {number.name}: no file', file is None or not Path(file).exists())
    left = [str(p) for p in Path().rglob('*') if '.tmp' in p.name or p.name.startswith('.')]
    attack.case(f'{name} {number.name}: nothing left over', not left, left)
    attack.case(f'{name} {number.name}: handler is back', signal.getsignal(number)==before)
    if ignored: signal.signal(number, signal.SIG_IGN)

@pytest.mark.parametrize('name', ['predict','demo','study'])
def test_a_full_disk(name, commands, attack, monkeypatch, capsys):
    "The temporary file is a link to /dev/full; what was there before stays"
    words,file = commands[name]
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    if name!='predict': file.write_text('old') # predict leaves out what is there
    full = file.with_name('.full.tmp')
    full.symlink_to('/dev/full')
    usual = machine.temporary_path
    monkeypatch.setattr(machine, 'temporary_path', lambda path, suffix='': full if path.resolve()==file.resolve() else usual(path, suffix))
    if name=='demo': monkeypatch.setattr(demo, '_clear', lambda out: None)
    attack.case(f'{name}: code', called(*words)==1)
    said = capsys.readouterr().err
    attack.case(f'{name}: the file is named', f'{file} could not be written: No space left on device' in said and 'Traceback' not in said, said)
    attack.case(f'{name}: as before', not file.exists() if name=='predict' else file.read_text()=='old')

def test_a_full_disk_for_an_export(commands, attack, monkeypatch, capsys):
    def full(program, path, **options):
        Path(path).write_bytes(b'half')
        raise RuntimeError('PytorchStreamWriter failed writing file data/0: file write failed')
    monkeypatch.setattr(torch.export, 'save', full)
    attack.case('export: code', called(*commands['export'][0])==1)
    attack.case('export: the file is named', 'm.pt2 could not be written' in capsys.readouterr().err)
    attack.case('export: no file', not [p for p in os.listdir() if p.endswith('.pt2')])

KILLED = """
import os, sys
import torch
torch.set_num_threads(1)
from winwin.cli import main
if not os.fork():
    os.replace = lambda *args: os.kill(os.getpid(), 9)
    main(sys.argv[1:])
print(os.waitstatus_to_exitcode(os.wait()[1]), sorted(os.listdir('out/labels')), flush=True)
main(sys.argv[1:])
"""

def test_kill_9(commands, attack, tmp_path):
    env = os.environ | dict(OMP_NUM_THREADS='1')
    p = subprocess.run([sys.executable, '-c', KILLED, *map(str, commands['predict'][0])], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    first,*rest = p.stdout.splitlines()
    attack.case('killed', first.startswith('-9 ') and "'a.png'" not in first, p)
    attack.case('what it left is removed', os.listdir(tmp_path/'out'/'labels')==['a.png'], os.listdir(tmp_path/'out'/'labels'))
    attack.case('written by the next one', p.returncode==0 and np.array(Image.open(tmp_path/'out'/'labels'/'a.png')).shape==(32,48), p)

def test_names_that_would_change_a_terminal(saved, tmp_path, attack, capsys):
    (tmp_path/'in').mkdir()
    for name in ('\x1b[31mred.png', 'two\rlines.png', '\x9b2Jclear.png'): (tmp_path/'in'/name).write_bytes(b'no picture')
    attack.case('code', called('predict', saved, tmp_path/'in', '-o', tmp_path/'out')==1)
    said = ''.join(capsys.readouterr())
    attack.case('no control characters', 'red.png' in said and all(c.isprintable() or c=='\n' for c in said), said)
    attack.case('in an error', called('predict', saved, tmp_path/'no\x1b[2J.png', '-o', tmp_path/'out')==1 and '\x1b' not in capsys.readouterr().err)

def test_scores_that_are_no_numbers_are_null(run, attack, monkeypatch, capsys):
    monkeypatch.setattr(tasks, 'evaluate', lambda *args, **options: dict(mIoU=float('nan'), accuracy=.5))
    def refuse(constant): raise ValueError(constant)
    attack.case('code', called('eval', run, '--json')==0)
    attack.case('null', json.loads(capsys.readouterr().out, parse_constant=refuse)['scores']==dict(mIoU=None, accuracy=.5))
    log = [json.loads(o, parse_constant=refuse) for o in (run/'log.jsonl').read_text().splitlines()]
    attack.case('log', any('eval' in o for o in log))

def test_too_little_memory(saved, tmp_path, attack, monkeypatch, capsys):
    "On a CPU torch raises a plain RuntimeError; the other images of a folder are predicted"
    from winwin.models.dense import DenseModel
    usual = DenseModel.forward
    def forward(self, img, *args, **options):
        if img.shape[-1]>50: raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")
        return usual(self, img, *args, **options)
    monkeypatch.setattr(DenseModel, 'forward', forward)
    (tmp_path/'in').mkdir()
    picture(tmp_path/'in'/'a.png')
    Image.fromarray(np.zeros((32,96,3), np.uint8)).save(tmp_path/'in'/'wide.png')
    attack.case('folder: code', called('predict', saved, tmp_path/'in', '-o', tmp_path/'out')==1)
    attack.case('folder: the others', (tmp_path/'out'/'labels'/'a.png').exists())
    said = ''.join(capsys.readouterr())
    attack.case('folder: the image is named', 'wide.png' in said and 'too large for the memory' in said, said)
    attack.case('image: code', called('predict', saved, tmp_path/'in'/'wide.png', '-o', tmp_path/'one')==1)
    attack.case('image: one line', 'winwin: too little memory' in ''.join(capsys.readouterr()))

def test_warnings_are_one_line(tmp_path, cache, attack, capsys):
    words = ['train', 'driving-seg', '--root', cache, '--out', tmp_path/'run', '--image-size', '32', '48', '--images', '4', '--valid-images', '1', '--windows', '2x2', '--batch-size', '2', '--steps', '1', '--precision', 'fp16']
    if torch.accelerator.is_available(): pytest.skip('there is a GPU')
    with warnings.catch_warnings(): # as in a shell, not collected by pytest
        warnings.resetwarnings()
        warnings.showwarning = lambda *args, **options: print(warnings.formatwarning(*args[:4]), file=sys.stderr, end='')
        attack.case('code', called(*words)==0)
    said = capsys.readouterr().err
    attack.case('a line', 'winwin: precision fp16 is for GPUs' in said and 'UserWarning: precision' not in said, said)

# --- A temperature, which changes a checkpoint in place

@pytest.mark.parametrize('number', [*CODES, None])
def test_a_temperature_that_is_stopped_changes_nothing(number, run, tmp_path, attack, monkeypatch, capsys):
    "In the moment before a file of the checkpoint gets its name: a signal, or (none) a full disk"
    out = shutil.copytree(run, tmp_path/'run')
    def files(): return {str(p.relative_to(out)): p.read_bytes() for p in out.rglob('*') if p.is_file() and p.name!='.lock'}
    before = files()
    name = number.name if number else 'full disk'
    ignored = number is not None and signal.getsignal(number) is signal.SIG_IGN
    if ignored: signal.signal(number, signal.SIG_DFL)
    usual = os.replace
    def stop(source, to):
        if Path(to).name not in ('model.safetensors','config.json'): return usual(source, to)
        if number is None: raise OSError(28, 'No space left on device', str(to))
        os.kill(os.getpid(), number)
        time.sleep(5)
    monkeypatch.setattr(os, 'replace', stop)
    attack.case(f'temperature {name}: code', called('temperature', out, '--ratio', '--out', tmp_path/'shown')==CODES.get(number, 1))
    monkeypatch.setattr(os, 'replace', usual)
    said = capsys.readouterr().err
    attack.case(f'temperature {name}: as before', files()==before, files().keys()^before.keys())
    attack.case(f'temperature {name}: no traceback', 'Traceback' not in said and (number is not None or 'No space left' in said), said)
    attack.case(f'temperature {name}: free', not (out/'.lock').exists() or (out/'.lock').read_text()=='')
    if ignored: signal.signal(number, signal.SIG_IGN)
