"The `winwin` command as a user meets it: exit codes, help, suggestions, JSON, a broken installation"
import json, os, subprocess, sys
import pytest

def winwin(*args, **env):
    p = subprocess.run([sys.executable, '-c', 'from winwin.cli import main; main()', *args], capture_output=True, text=True,
                       env={**os.environ, 'COLUMNS': '100', **env}, timeout=280)
    return p.returncode, p.stdout, p.stderr

def test_version():
    import winwin as package
    assert winwin('--version') == (0, f'winwin {package.__version__}\n', '')

@pytest.mark.parametrize('args', [(), ('--help',), ('doctor', '--help'), ('bench', '--help'), ('train', '--help'),
                                  ('train', 'driving-depth', '--help'), ('predict', '--help')])
def test_help_works_everywhere(args):
    code, out, _ = winwin(*args)
    assert code == 0 and 'usage: winwin' in out

def test_every_option_is_explained():
    "The comment behind each field is its help text"
    _, out, _ = winwin('bench', '--help')
    for words in ('Benchmarks to run', 'Print JSON', 'Where to run', 'How often each contestant', 'Do not measure peak memory'): assert words in out

@pytest.mark.parametrize('args,hint', [(('bench', '--jsn'), '--json'), (('bench', 'encodr'), 'did you mean encoder'), (('doktor',), 'doctor'),
    (('train', 'driving-seg', '--windws', '2x11'), '--windows'), (('train', 'driving-sg'), 'driving-seg'), (('predict', 'a', 'b'), '--out')])
def test_a_slip_gets_the_right_name(args, hint):
    code, out, err = winwin(*args)
    assert code == 2 and hint in out + err and 'Traceback' not in err

def test_bench_lists_itself():
    code, out, _ = winwin('bench')
    assert code == 0
    for name in ('encoder', 'train', 'train-head', 'embed', 'sample'): assert f'\n{name} ' in '\n' + out

def test_bench_json_is_json_alone():
    code, out, _ = winwin('bench', 'sample', '--json', '--rounds', '1')
    (r,) = json.loads(out)
    assert code == 0 and r['bench'] == 'sample' and r['results']['ms per image'] > 0
    assert r['targets'][0]['target'] == '<= 0.05' and isinstance(r['targets'][0]['met'], bool)

def test_doctor_is_well():
    code, out, _ = winwin('doctor', '--json')
    checks = {c['name']: c for c in json.loads(out)}
    assert code == 0 and all(c['ok'] for c in checks.values())
    for name in ('versions', 'torch and torchvision', 'device', 'bfloat16 on the CPU', 'two windows, training', 'full image, inference'): assert name in checks
    assert 'tokens per second' in checks['full image, inference']['detail'] and 'GB' in checks['memory']['detail']

def test_selftest_of_the_cpu():
    code, out, _ = winwin('selftest', '--device', 'cpu', '--json')
    checks = {c['name']: c for c in json.loads(out)}
    assert code == 0 and all(c['ok'] for c in checks.values())
    for name in ('linear, float32', 'flow, fp16', 'predict, full', 'probe, own', 'training'): assert name in checks

def test_doctor_names_the_cure_of_a_broken_pair(tmp_path):
    "A torch and a torchvision that do not belong together: the message says what to install, the other checks still run"
    (tmp_path/'torchvision').mkdir()
    (tmp_path/'torchvision/__init__.py').write_text('raise RuntimeError("operator torchvision::nms does not exist")')
    code, out, err = winwin('doctor', PYTHONPATH=str(tmp_path))
    assert code == 1 and 'Traceback' not in err
    assert 'FAIL  torch and torchvision' in out and 'torchvision::nms' in out and "pip install --force-reinstall 'torch>=2.14' torchvision" in out
    assert '1 of' in out and 'checks failed' in out

# --- From training to pictures; in this process, which is quicker

SMALL = '--image-size 64 96 --images 4 --valid-images 2 --windows 2x3 --batch-size 2 --warmup 0 --log-every 1'.split()

@pytest.fixture
def call(capsys):
    from winwin.cli import main
    def run(*args):
        with pytest.raises(SystemExit) as e: main([str(a) for a in args])
        got = capsys.readouterr()
        return e.value.code or 0, got.out, got.err
    return run

@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    from winwin.cli import main
    out = tmp_path_factory.mktemp('runs')/'seg'
    with pytest.raises(SystemExit) as e: main(['train', 'driving-seg', *SMALL, '--steps', '2', '--out', str(out)])
    assert not e.value.code
    return out

def test_train_leaves_a_run(trained):
    assert (trained/'log.jsonl').exists() and (trained/'best/model.safetensors').exists() and (trained/'last/state.json').exists()

def test_train_says_what_comes_next_and_refuses_to_overwrite(call, trained):
    code, out, err = call('train', 'driving-seg', *SMALL, '--steps', 2, '--out', trained)
    assert code==1 and 'holds a run already' in err and 'Traceback' not in err
    code, out, err = call('train', 'driving-seg', *SMALL, '--steps', 2, '--out', trained, '--resume')
    assert code==0 and f'winwin predict {trained}' in out
    code, out, err = call('train', 'driving-seg', *SMALL, '--steps', 3, '--out', trained, '--resume')
    assert code==1 and 'train.steps: 2 in the checkpoint, 3 now' in err

def test_a_run_begins_with_the_options_of_another(call, trained, tmp_path):
    "The file of a run alone is enough; flags win over it"
    for words in ([f'--config={trained}'], ['driving-depth', '--config', trained/'last'/'config.json']):
        out = tmp_path/str(len(words))
        code, _, err = call('train', *words, '--steps', 1, '--out', out)
        assert code==0, err
        was,now = (json.loads((o/'last'/'config.json').read_text())['extra']['recipe'] for o in (trained,out))
        assert was['train'].pop('steps')==2 and now['train'].pop('steps')==1 and was==now

@pytest.mark.parametrize('options,hint', [(dict(window='2x5', step=3), ['did you mean windows','did you mean steps']),
                                          (dict(steps='many'), ['steps "many" is not int']), ([1], ['holds a list'])])
def test_a_file_of_options_with_mistakes(call, tmp_path, options, hint):
    (tmp_path/'mine.json').write_text(json.dumps(options))
    code, _, err = call('train', 'driving-seg', '--config', tmp_path/'mine.json')
    assert code==1 and all(o in err for o in hint) and 'Traceback' not in err, err

@pytest.mark.parametrize('kind', ['models','presets','data'])
def test_lists_have_short_names(call, kind): assert call(kind)==call('list', kind) and call(kind)[0]==0

@pytest.mark.parametrize('variant', ['full', 'vit-det', 'crop', '6-windows', 'sincos', 'random-tokens'])
def test_baselines_by_name(call, tmp_path, variant):
    code, out, err = call('train', 'driving-seg', *SMALL, '--steps', 1, '--out', tmp_path/'run', '--variant', variant)
    assert code==0, err
    config = json.loads((tmp_path/'run/last/config.json').read_text())
    windows = config['extra']['train']['windows']
    assert windows==dict(full='full', crop='crop:5').get(variant, windows)
    assert ('local_window' in config['model']['arguments'])==(variant=='vit-det') and (config['model']['arguments'].get('pos')=='sincos')==(variant=='sincos')

def test_eval_agrees_with_the_log(call, trained):
    last = [json.loads(o) for o in (trained/'log.jsonl').read_text().splitlines()][-1]['eval']
    code, out, _ = call('eval', trained, '--json')
    got = json.loads(out)
    assert code==0 and got['images']==2 and got['scores']['mIoU']==pytest.approx(last['mIoU'], abs=1e-6)
    code, out, _ = call('eval', trained/'last', '--mode', 'tile', '--size', 32, 32)
    assert code==0 and 'mode tile' in out and 'road' in out

def test_predict_a_file_and_a_folder(call, trained, tmp_path):
    from torchvision.utils import save_image
    from winwin.worlds.datasets import DrivingWorld
    (tmp_path/'in/deep').mkdir(parents=True)
    img = DrivingWorld((70,90), length=1)[0]['image'] # no multiple of the patch
    for name in ('a.png', 'deep/b.png'): save_image(img, tmp_path/'in'/name)
    code, out, err = call('predict', trained, tmp_path/'in/a.png', '-o', tmp_path/'one')
    assert code==0 and (tmp_path/'one/labels/a.png').exists(), err
    (tmp_path/'in/c.png').write_bytes(b'no image')
    code, out, err = call('predict', trained, tmp_path/'in', '-o', tmp_path/'all', '--kinds', 'map')
    assert code==1 and 'c.png' in err and (tmp_path/'all/labels/deep/b.png').exists() and '2 files' in out

@pytest.mark.parametrize('args,words', [
    (('predict', 'nowhere', 'x.png', '-o', 'out'), 'does not exist'), (('eval', 'nowhere'), 'does not exist'),
    (('train', 'bdd100k-seg'), 'needs --root'), (('train', 'driving-seg', '--windows', '2y4'), 'unknown; write 2x22'),
    (('train', 'driving-seg', '--variant', 'fulll'), 'no variant'), (('study', 'windows'), 'did you mean'), (('demo', '--task', 'smell'), 'smell')])
def test_mistakes_are_one_line(call, args, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(*args)
    assert code in (1,2) and words in out + err and 'Traceback' not in err

def test_a_broken_folder_is_listed_in_full(call, tmp_path):
    import numpy as np
    from PIL import Image
    for kind in ('images', 'labels'): (tmp_path/kind).mkdir()
    for i in range(3):
        Image.fromarray(np.zeros((32,32,3), np.uint8)).save(tmp_path/f'images/{i}.png')
        Image.fromarray(np.full((32,32), i*4, np.uint8)).save(tmp_path/f'labels/{i}.png')
    code, _, err = call('train', 'folder-seg', '--root', tmp_path, '--classes', 'a', 'b', '--check', '--out', tmp_path/'run')
    assert code==1 and '1.png has label 4' in err and '2.png has label 8' in err and not (tmp_path/'run').exists()

def test_studies_are_listed(call):
    code, out, _ = call('study')
    assert code==0 and 'windows-seg' in out and 'two windows' in out

def test_flow_from_training_to_files(call, tmp_path):
    "Train on pairs, continue from pretraining, score and predict, all from the shell"
    small = ['--image-size','64','96', '--images','4', '--valid-images','2', '--batch-size','2', '--steps','2', '--root', str(tmp_path/'pairs')]
    code, out, _ = call('train', 'pretrain-driving', *small, '--out', str(tmp_path/'pre'))
    assert code == 0 and 'mse ' in out and '--weights' in out
    code, out, _ = call('train', 'flow-driving', *small, '--windows','2x3', '--windows2','4x2', '--out', str(tmp_path/'run'), '--weights', str(tmp_path/'pre/best'))
    assert code == 0 and 'EPE' in out and 'A.png B.png' in out
    code, out, _ = call('eval', str(tmp_path/'run'), '--json')
    full = json.loads(out)
    assert code == 0 and full['images'] == 2
    logged = [json.loads(o) for o in (tmp_path/'run/log.jsonl').read_text().splitlines()][-1]['eval']
    assert full['scores']['EPE'] == pytest.approx(logged['EPE'], rel=1e-5)
    code, out, _ = call('eval', str(tmp_path/'run'), '--mode', 'tile', '--size', '32', '48')
    assert code == 0 and 'mode tile' in out and 'EPE' in out
