"What is installed: metadata, typed, few requirements, links that work elsewhere"
import email, re, subprocess, sys, tarfile, zipfile
from configparser import ConfigParser
import pytest

from conftest import ROOT

cfg = ConfigParser(delimiters=['='], interpolation=None)
cfg.read(ROOT/'settings.ini', encoding='utf-8')
LAB = 'plotly', 'ipywidgets', 'anywidget', 'traitlets', 'jupyterlab', 'jupyter_core', 'IPython', 'voila'

@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    "The wheel, built from a source distribution, as an index would have it"
    out = tmp_path_factory.mktemp('wheel')
    build = "import setuptools.build_meta as b, sys; print(getattr(b, sys.argv[1])(sys.argv[2]))"
    def make(kind, cwd): return subprocess.run([sys.executable,'-c',build,kind,str(out)], cwd=cwd, check=True, capture_output=True, text=True).stdout.split()[-1]
    src = out/'src'
    subprocess.run(['git','clone','-q',str(ROOT),str(src)], check=True)
    for f in ('settings.ini','setup.py','MANIFEST.in','README.md','CITATION.cff','winwin/py.typed'): (src/f).write_bytes((ROOT/f).read_bytes()) # as they are now
    with tarfile.open(out/make('build_sdist', src)) as t: t.extractall(out/'sdist', filter='data')
    return zipfile.ZipFile(out/make('build_wheel', next((out/'sdist').iterdir())))

def metadata(wheel): return email.message_from_bytes(wheel.read(next(n for n in wheel.namelist() if n.endswith('METADATA'))))

def test_wheel_is_whole(wheel):
    names = set(wheel.namelist())
    assert {'winwin/py.typed', 'winwin/cli.py', 'winwin/windows/layout.py'}<=names
    assert any(n.startswith('winwin/static/') for n in names)
    assert {f'winwin/static/tutorials/{p.name}' for p in (ROOT/'nbs'/'tutorials').glob('*.ipynb')}<=names # for `winwin lab`
    assert b'image/png' not in wheel.read('winwin/static/tutorials/first_model.ipynb')

def test_metadata_has_no_placeholders(wheel):
    text = metadata(wheel).as_string()
    assert not re.search(r'localhost|example\.|noreply|127\.0\.0\.1|UNKNOWN', text)
    m = metadata(wheel)
    assert 'Paper, https://arxiv.org/abs/2310.00632' in m.get_all('Project-URL')
    assert m['Requires-Python']==f">={cfg['DEFAULT']['min_python']}"

def test_readme_works_on_an_index(wheel):
    "No relative links: they would lead nowhere"
    text = metadata(wheel).get_payload()
    assert text.startswith('# winwin')
    assert [t for t in re.findall(r'\]\(([^)\s]+)\)', text) if '://' not in t]==[]

def test_readme_links_to_the_repository_when_it_has_an_address():
    code = (ROOT/'setup.py').read_text(encoding='utf-8')
    scope = dict(cfg=dict(git_url='https://host/winwin/', branch='main'), re=re)
    exec(code[code.index('def portable'):code.index('urls = ')], scope)
    out = scope['portable']('<!-- made -->\n\n![a picture](docs/a.png) [page](nbs/a.ipynb#x) [site](https://x.org)')
    assert out=='![a picture](https://host/winwin/raw/main/docs/a.png) [page](https://host/winwin/blob/main/nbs/a.ipynb#x) [site](https://x.org)'

def test_few_requirements():
    words = {re.split('[<>=]', o)[0] for o in cfg['DEFAULT']['requirements'].split()}
    assert 'Pillow' in words and not words & set(LAB)
    lab = {re.split('[<>=]', o)[0] for o in cfg['DEFAULT']['lab_requirements'].split()}
    assert {'plotly','ipywidgets','anywidget','jupyterlab'}<=lab

BLOCK = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {LAB}: raise ModuleNotFoundError(f'No module named {{name!r}}', name=name.split('.')[0])
sys.meta_path.insert(0, Block())
import winwin
from winwin.cli import main
def run(*words):
    try: main(list(words))
    except SystemExit as e: assert not e.code, (words, e.code)
"""

def alone(code, cwd):
    p = subprocess.run([sys.executable,'-c',BLOCK+code], cwd=cwd, capture_output=True, text=True, timeout=280)
    assert p.returncode==0, p.stderr[-3000:]
    return p.stdout

def test_training_needs_no_widgets(tmp_path):
    "train, eval, predict, temperature, export and the names of the front door, without Jupyter, widgets and plotly"
    alone("""
from winwin.workbench.lab import explorers
widgets = {kind for kind,*_ in explorers.values()}
for n in winwin.__all__:
    if n not in widgets: getattr(winwin, n)
small = '--image-size 96 160 --images 2 --valid-images 1 --windows 2x4 --steps 1 --batch-size 1 --workers 0 --head linear'.split()
run('train', 'driving-seg', *small, '--out', 'run')
run('eval', 'run')
import torch
from torchvision.utils import save_image
save_image(torch.rand(3,64,64), 'a.png')
run('predict', 'run', 'a.png', '-o', 'out')
run('temperature', 'run', '--ratio')
import winwin.experiments.demo, winwin.experiments.studies
""", tmp_path)
    assert (tmp_path/'out').exists()

def test_a_missing_widget_library_is_named(tmp_path):
    said = alone("""
for get in (lambda: winwin.AttentionExplorer, lambda: winwin.workbench.AttentionExplorer):
    try: get()
    except ImportError as e: print(e)
""", tmp_path).splitlines()
    assert len(said)==2 and all("pip install 'winwin[lab]'" in o for o in said)

def test_citation_agrees_with_the_paper_page():
    yaml = pytest.importorskip('yaml')
    cff = yaml.safe_load((ROOT/'CITATION.cff').read_text(encoding='utf-8'))
    paper = cff['preferred-citation']
    assert cff['version']==cfg['DEFAULT']['version'] and paper['url']==cfg['DEFAULT']['paper_url']
    page = (ROOT/'nbs'/'paper.ipynb').read_text(encoding='utf-8')
    assert paper['title'] in page and all(a['family-names'] in page for a in paper['authors']) and str(paper['start']) in page

def test_workflow_is_well_formed():
    "Parsed here, never run here: the versions in its matrix are within the requirements"
    yaml = pytest.importorskip('yaml')
    flow = yaml.safe_load((ROOT/'.github'/'workflows'/'checks.yml').read_text(encoding='utf-8'))
    assert set(flow['jobs'])=={'versions','all'} and flow[True]['pull_request'] is None # YAML reads `on` as true
    floor = lambda v: tuple(int(o) for o in v.split('.')[:2])
    least = re.search(r'torch>=([\d.]+)', cfg['DEFAULT']['requirements'])[1]
    matrix = flow['jobs']['versions']['strategy']['matrix']['include']
    assert min(floor(str(o['python'])) for o in matrix)==floor(cfg['DEFAULT']['min_python'])
    assert min(floor(str(o['torch'])) for o in matrix if o['torch'])==floor(least)
    for f in (ROOT/'tests'/'quick.txt').read_text().split(): assert (ROOT/f).exists(), f
