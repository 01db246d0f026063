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

@pytest.mark.parametrize('args', [(), ('--help',), ('doctor', '--help'), ('bench', '--help')])
def test_help_works_everywhere(args):
    code, out, _ = winwin(*args)
    assert code == 0 and 'usage: winwin' in out

def test_every_option_is_explained():
    "The comment behind each field is its help text"
    _, out, _ = winwin('bench', '--help')
    for words in ('Benchmarks to run', 'Print JSON', 'Where to run', 'How often each contestant', 'Measure peak memory'): assert words in out

@pytest.mark.parametrize('args,hint', [(('bench', '--jsn'), '--json'), (('bench', 'encodr'), 'choose from encoder'), (('doktor',), 'doctor')])
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

def test_doctor_names_the_cure_of_a_broken_pair(tmp_path):
    "A torch and a torchvision that do not belong together: the message says what to install, the other checks still run"
    (tmp_path/'torchvision').mkdir()
    (tmp_path/'torchvision/__init__.py').write_text('raise RuntimeError("operator torchvision::nms does not exist")')
    code, out, err = winwin('doctor', PYTHONPATH=str(tmp_path))
    assert code == 1 and 'Traceback' not in err
    assert 'FAIL  torch and torchvision' in out and 'torchvision::nms' in out and "pip install --force-reinstall 'torch>=2.14' torchvision" in out
    assert '1 of' in out and 'checks failed' in out
