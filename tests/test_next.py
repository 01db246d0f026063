"Every next step that the program prints is a command that works"
import html, re, shlex, subprocess, sys
import numpy as np, pytest, torch
from PIL import Image
import winwin.experiments.demo as D
from winwin.cli import main
from test_demo import quick_memory, tiny

SMALL = '--image-size 64 96 --images 4 --valid-images 2 --windows 2x3 --batch-size 2 --steps 2 --warmup 0'.split()
PAIRS = [*SMALL, '--windows2', '4x2']

def call(capsys, *words):
    with pytest.raises(SystemExit) as stop: main([str(o) for o in words])
    got = capsys.readouterr()
    assert not stop.value.code, got.err
    return got.out

def next_lines(text): return re.findall(r'^Next: (.+)$', text, re.M)

def photo(path, size=(64,96,3), value=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    Image.fromarray((rng.integers(0, 255, size) if value is None else np.full(size, value)).astype(np.uint8)).save(path)
    return path

@pytest.fixture
def own(tmp_path, monkeypatch):
    "What the words in capitals stand for: a user's images, pair, labelled folder and folder to write to"
    monkeypatch.chdir(tmp_path)
    for i in range(4):
        photo(tmp_path/f'own/images/{i}.png')
        photo(tmp_path/f'own/labels/{i}.png', (64,96), i%3)
        photo(tmp_path/f'pairs/images/{i}.png')
        if i<3: (tmp_path/'pairs/flow').mkdir(exist_ok=True); np.save(tmp_path/f'pairs/flow/{i}.npy', np.zeros((64,96,2), np.float32))
        np.save((tmp_path/'own/depth').mkdir(exist_ok=True) or tmp_path/f'own/depth/{i}.npy', np.full((64,96), 2.+i, np.float32))
    photo(tmp_path/'IMAGES/a.png')
    for name in ('A.png','B.png'): photo(tmp_path/name)
    return tmp_path

def run(capsys, command, extra=()):
    "Run a printed command, here if it is ours"
    program,*words = shlex.split(command)
    if program=='winwin': return call(capsys, *words, *extra)
    assert program=='python'
    return subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True).stdout

@pytest.mark.parametrize('preset,small', [('driving-seg', SMALL), ('driving-depth', SMALL), ('flow-driving', PAIRS)])
def test_after_training(preset, small, own, capsys):
    (then,) = next_lines(call(capsys, 'train', preset, *small, '--out', 'a run'))
    run(capsys, then)
    assert list((own/'OUT').rglob('*.png'))

def test_after_pretraining(own, capsys):
    (then,) = next_lines(call(capsys, 'train', 'pretrain-driving', *SMALL, '--windows', 'full', '--out', 'pre'))
    assert '--root FOLDER' in then
    size = '--model winwin_flow_micro --windows 2x3 --windows2 4x2 --steps 1 --batch-size 2 --workers 0 --out flow'.split()
    assert 'EPE' in run(capsys, then.replace('FOLDER', 'pairs'), [*size, '--relative', '--tied'])

@pytest.mark.parametrize('preset,small', [('driving-seg', SMALL)])
def test_after_temperature_and_export(preset, small, own, capsys):
    call(capsys, 'train', preset, *small, '--out', 'run')
    (then,) = next_lines(call(capsys, 'temperature', 'run', '--ratio'))
    assert 'mean' in run(capsys, then)
    (then,) = next_lines(call(capsys, 'export', 'run', '--format', 'torch', '--size', '64', '96'))
    assert run(capsys, then).strip()

@pytest.mark.parametrize('task', ['seg','depth','flow'])
def test_after_the_demo(task, own, capsys, monkeypatch):
    "The line on the console and every command in the report"
    monkeypatch.setattr(D, '_memory', quick_memory)
    monkeypatch.setattr(D, 'get_demo', lambda name, real=D.get_demo: real(name) if not isinstance(name, str) else tiny(name))
    (then,) = next_lines(call(capsys, 'demo', '--task', task, '--out', 'my demo', '--steps', 2))
    run(capsys, then)
    assert list((own/'my demo/predicted').rglob('*.png'))
    code = re.findall(r'<pre><code>(.*?)</code></pre>', (own/'my demo/report.html').read_text(encoding='utf-8'), re.S)
    commands = [o for block in code for o in html.unescape(block).splitlines() if o.startswith('winwin ') and '--compare' not in o]
    assert sum(o.startswith('winwin predict') for o in commands) and sum(o.startswith('winwin train') for o in commands)==1
    for o in commands:
        if o.startswith('winwin predict'): run(capsys, o, ['--overwrite'])
        else:
            short = '--steps 1 --batch-size 2 --windows 2x2 --workers 0 --valid-images 1 --out own-run'.split()
            size = ['--size', '64', '96'] if task!='flow' else ['--windows2', '2x2']
            run(capsys, o.replace('FOLDER', 'pairs' if task=='flow' else 'own'), [*short, *size])
            assert (own/'own-run/best').is_dir()
    for block in code:
        if 'Predictor' in block:
            text = html.unescape(block).replace('photo.jpg', 'A.png').replace('first.png', 'A.png').replace('second.png', 'B.png')
            exec("import matplotlib; matplotlib.use('agg')\n" + text, {})
