"Things a newcomer types wrong: the answer is short, names the flag or the file, and is no traceback"
import numpy as np, pytest
from PIL import Image
from winwin.cli import main
from winwin.guide import in_flags, list_names, list_text, preset_help, read_guide

def png(path, x):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(x, np.uint8)).save(path)

@pytest.fixture(scope='module')
def place(tmp_path_factory):
    "Folders as newcomers have them: a good one, and some that are not"
    at = tmp_path_factory.mktemp('place')
    for i in range(4):
        png(at/f'good/images/{i}.png', np.full((64,96,3), 60*i))
        png(at/f'good/labels/{i}.png', np.full((64,96), i%2))
    png(at/'lonely/images/a.png', np.zeros((64,96,3)))
    (at/'lonely/labels').mkdir()
    for i in range(2):
        png(at/f'colours/images/{i}.png', np.zeros((64,96,3)))
        png(at/f'colours/labels/{i}.png', np.full((64,96,3), 7))
        png(at/f'sizes/images/{i}.png', np.zeros((64,96,3)))
        png(at/f'sizes/labels/{i}.png', np.zeros((32,96)))
    (at/'empty').mkdir()
    (at/'model').mkdir()
    (at/'model/config.json').write_text('{"no": "model"}')
    return at

# What is typed (in the folder above), and what the answer must name; the last word may be a file
MISTAKES = [
    ('trian driving-seg', 'train'),
    ('prdict runs/a x.png', 'predict'),
    ('train drivng-seg', 'driving-seg'),
    ('train folder-segm --root good', 'folder-seg'),
    ('train --root good', 'preset'),
    ('train seg-folder --root good', 'folder-seg'),
    ('train folder-seg', '--root'),
    ('train folder-seg --root nowhere', 'nowhere'),
    ('train folder-seg --root empty', 'empty'),
    ('train folder-seg --root lonely', 'lonely/labels'),
    ('train folder-seg-tiny --root good --classes cat --workers 0', 'labels/1.png'),
    ('train folder-seg --root sizes --classes 2 --valid-share 0.5 --check', 'labels/0.png'),
    ('train folder-seg --root good --images-in photos', 'photos'),
    ('train folder-seg --root good --remap 1=0', '--remap'),
    ('train folder-seg --root good --windows 2x2 --class-weights pole:3 --classes a b', '--class-weights'),
    ('train folder-seg --root good --windows 2x2 --class-weights wal=3 --classes road wall', 'did you mean wall'),
    ('train folder-seg --root good --windows 2x2 --classes road wall pole', "has the class 'pole' (2)"),
    ('train folder-seg --root good --windows 2x2 --classes road wall pole --check', '--remap'),
    ('train folder-seg --root good --windows 2x2 --classes road wall --train lora:1000', 'lora:1 to lora:768'),
    ('train folder-seg --root good --windows 2x2 --classes road wall --train last:13', 'last:1 to last:12'),
    ('train folder-seg --root good --windows 2x2 --classes road wall --seg-loss focl', 'did you mean focal'),
    ('train folder-seg --root good --windows 2x9 --classes road wall', 'take smaller windows (--windows)'),
    ('train folder-seg --data cityscape --root good', 'did you mean cityscapes'),
    ('train driving-seg --model dinov3-small:conv', 'did you mean convnext'),
    ('train folder-depth --root good --depth-scale mm', '--depth-scale'),
    ('train driving-seg --windws 2x11', '--windows'),
    ('train driving-seg --windows 2y4', '--windows'),
    ('train driving-seg --windows 12x8', '--windows'),
    ('train driving-seg --steps 0', '--steps'),
    ('train driving-seg --steps many', '--steps'),
    ('train driving-seg --batch-size 0', '--batch-size'),
    ('train driving-seg --lr -1', '--lr'),
    ('train driving-seg --size 480', '--size'),
    ('train driving-seg --model winwin_seg_bas', '--model'),
    ('train driving-seg --model winwin_depth_micro', '--model'),
    ('train driving-seg --head convnet', '--head'),
    ('train driving-seg --variant fulll', '--variant'),
    ('train driving-seg --data drivin', '--data'),
    ('train driving-seg --precision fp17', '--precision'),
    ('train driving-seg --weights nowhere', 'nowhere'),
    ('predict nowhere x.png -o out', 'nowhere'),
    ('predict model x.png -o out', 'config.json'),
    ('predict model x.png', '--out'),
    ('eval nowhere', 'nowhere'),
    ('export nowhere', 'nowhere'),
    ('temperature nowhere', '--ratio'),
    ('temperature nowhere --ratio', 'nowhere'),
    ('demo --task smell', '--task'),
    ('demo seg', 'seg'),
    ('study windos-seg', 'windows-seg'),
    ('study windows-seg --cases fulll', 'full'),
    ('bench encodr', 'encoder'),
    ('bench --jsn', '--json'),
    ('list model', 'models'),
]

def answer(words, capsys):
    with pytest.raises(SystemExit) as stop: main(words.split())
    got = capsys.readouterr()
    return stop.value.code,got.out+got.err

@pytest.mark.parametrize('words,name', MISTAKES)
def test_the_answer_names_the_flag_or_the_file(words, name, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    code,text = answer(words, capsys)
    assert code in (1,2) and name in text, text
    assert 'Traceback' not in text and len(text)<2000
    if text.startswith('winwin: '): assert text.count('\n')==1, 'one line'
    for python in ('num_classes','batch_size','class_weights','list_models()','strict=','root=','model='): assert python not in text.replace('winwin_', ''), text

def test_there_are_thirty(): assert len(MISTAKES)>=30 and len({w for w,_ in MISTAKES})==len(MISTAKES)

# --- Lists and help

def test_the_guide_is_in_step():
    "winwin/static/guide.json is what the modules say: after a change, run `python tools/guide.py`"
    from winwin import guide as g
    stored = read_guide()
    assert stored['presets']==g.preset_options() and stored['options']==g.all_options()
    assert stored['lists']['data']==[vars(e) for e in g.data_entries()] and stored['lists']['heads']==[vars(e) for e in g.head_entries()]
    from winwin.bench import list_benches
    from winwin.experiments import list_studies
    from winwin.models import list_models
    assert list_names('studies')==list(list_studies()) and list_names('benches')==list(list_benches())
    assert [n for n in list_names('models') if n.startswith('winwin')]==list_models('winwin_*')

@pytest.mark.parametrize('kind', ['models','presets','data','heads','studies','benches'])
def test_lists_say_what_a_thing_needs_and_fit_80_columns(kind, capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '80')
    code,text = answer(f'list {kind}', capsys)
    assert code==0 and max(map(len, text.splitlines()))<=80 and text.strip()==list_text(kind, 80)
    for e in read_guide()['lists'][kind]: assert e['about'] and e['needs'], e['name']
    if kind in ('presets','studies','benches'): assert all(e['time'] for e in read_guide()['lists'][kind])

@pytest.mark.parametrize('preset', list_names('presets'))
def test_help_of_a_preset(preset, capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '80')
    code,text = answer(f'train {preset} --help', capsys)
    assert code==0 and max(map(len, text.splitlines()))<=80 and '`' not in text
    root = read_guide()['presets'][preset]['root']
    assert ('--root PATH [options]' in text)==bool(root)
    for group in ('run','model','data','training'): assert f'\n{group}\n' in text
    alien = dict(seg=('--flow-loss','--depth-loss'), depth=('--flow-loss','--class-weights'), flow=('--depth-loss','--class-weights'),
                 pretrain=('--depth-loss','--class-weights'), stereo=('--depth-loss','--class-weights'),
                 normals=('--depth-loss','--class-weights'), relative=('--flow-loss','--class-weights'))
    task = preset_help(preset).split('--task NAME')[1].split('(default: ')[1].split(')')[0]
    for flag in alien[task]: assert flag not in text

def test_help_is_quick_because_nothing_heavy_is_imported():
    import subprocess, sys
    code = ("import sys\nfrom winwin.cli import main\nfor words in (['train','folder-seg','--help'], ['list','models'], ['--help']):\n"
            "    try: main(words)\n    except SystemExit: pass\nassert not {'torch','matplotlib','numpy','timm'} & {*sys.modules}")
    subprocess.run([sys.executable, '-c', code], check=True, capture_output=True)

def test_switches_say_what_they_do(capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '100')
    assert '--no-fixed-focal' in preset_help('folder-depth') and 'Do not scale depth' in preset_help('folder-depth')
    for words,flag in (('bench --help','--no-memory'), ('lab --help','--no-browser')):
        _,text = answer(words, capsys)
        line = text[text.rindex(flag):][:120]
        assert 'Do not' in line, line

@pytest.mark.parametrize('text', ['the size of the image is 4x4', 'images a.png and b.png differ', 'no data here; windows of 3x3 do not fit', 'a mode of travel'])
def test_english_stays_english(text): assert in_flags(text)==text
