"What the README shows works when it is copied"
import re, subprocess, sys
from conftest import ROOT

README = (ROOT/'README.md').read_text(encoding='utf-8')

def test_example_runs_as_written(tmp_path):
    "All Python blocks, one after another, in a fresh process elsewhere, give what the page shows"
    *setup, last = [b.rstrip() for b in re.findall(r'```python\n(.*?)```', README, re.S)]
    head, _, value = last.rpartition('\n')
    code = '\n'.join([*setup, head, f'print(({value}))'])
    p = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, capture_output=True, text=True)
    assert p.returncode==0, p.stderr
    assert p.stdout.strip()==re.findall(r'```text\n(.*?)```', README, re.S)[-1].strip()

def test_commands_exist():
    "The two commands, and every `winwin` command the page names"
    from winwin.bench.harness import list_benches
    assert 'pip install -e . && winwin demo' in README and './tests/run' in README and (ROOT/'tests/run').exists()
    from winwin.cli import parse_train
    from winwin.training.recipes import presets
    for words in re.findall(r'^winwin train ([^#\n]+)', README, re.M): assert parse_train(words.split())
    named = set(re.findall(r'`winwin bench ([\w-]+)`', README))
    assert named and named<=list_benches().keys()

def test_pictures_exist():
    pictures = re.findall(r'!\[[^\]]+\]\(([^)]+)\)', README)
    assert pictures and all((ROOT/p).exists() for p in pictures)
