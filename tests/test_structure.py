"The shape of the project: data flows one way, every public name is documented, nothing is out of step."
import ast, json, re, shutil, subprocess, sys
from configparser import ConfigParser
from functools import cache
from pathlib import Path
import pytest

import docs, nb as tool # tools/
from conftest import ROOT

NBS = tool.notebooks()
NUMBERED = [p for p in NBS if re.match(r'\d', p.name)]
ORDER = [docs.module_of(p) for p in NUMBERED] # number order is data flow
EXPORTED = tool.public_names()
cfg = ConfigParser(delimiters=['='], interpolation=None)
cfg.read(ROOT/'settings.ini', encoding='utf-8')

each_notebook = pytest.mark.parametrize('path', NBS, ids=tool.name)
each_numbered = pytest.mark.parametrize('path', NUMBERED, ids=tool.name)
each_module = pytest.mark.parametrize('mod', ORDER)

@cache
def notebook(path): return json.loads(path.read_text(encoding='utf-8'))
def cells(path, kind=None): return [c for c in notebook(path)['cells'] if kind in (None, c['cell_type'])]
def source(cell): return ''.join(cell['source'])
def outputs(path): return [o for c in cells(path, 'code') for o in c['outputs']]
def is_exported(cell): return bool(re.match(r'#\|\s*exports?\b', source(cell)))
@cache
def tree(mod): return ast.parse((ROOT/'winwin'/f'{mod}.py').read_text(encoding='utf-8'))

def imports(tree):
    "(level, module, names) of every import, wherever it stands"
    for o in ast.walk(tree):
        if isinstance(o, ast.ImportFrom): yield o.level, o.module or '', [a.name for a in o.names]
        if isinstance(o, ast.Import): yield from ((0, a.name, []) for a in o.names)

# --- Modules

@each_module
def test_imports_flow_forward(mod):
    for level,name,names in imports(tree(mod)):
        if not level and name.split('.')[0]!='winwin': continue
        deps = [name.removeprefix('winwin').strip('.').split('.')[0]] if name.removeprefix('winwin') else names
        for dep in deps: # `from . import __version__` is no module
            if dep=='__version__': continue
            assert dep in ORDER, f'{mod} imports {dep}, which no notebook makes; import from the module that defines it'
            assert ORDER.index(dep)<ORDER.index(mod), f'{mod} imports the later module {dep}'

@each_module
def test_imports_only_requirements(mod):
    "The installed package works without an extra; what one of ours brings may be imported inside a function"
    words = lambda k: {re.split('[<>=]', r)[0] for r in cfg['DEFAULT'][k].split()}
    need = words('requirements') | sys.stdlib_module_names | {'winwin'}
    asked = {a.name.split('.')[0] for o in tree(mod).body if isinstance(o, ast.Import) for a in o.names}
    asked |= {o.module.split('.')[0] for o in tree(mod).body if isinstance(o, ast.ImportFrom) and not o.level}
    used = {name.split('.')[0] for level,name,_ in imports(tree(mod)) if not level}
    late = words('lab_requirements') | words('app_requirements') | words('export_requirements')
    assert not asked-need, f'{mod} imports {asked-need}, not in the requirements of settings.ini'
    assert not used-need-late, f'{mod} imports {used-need-late}, in no requirements of settings.ini'

@each_notebook
def test_no_star_imports(path):
    stars = [line for c in cells(path, 'code') for line in source(c).splitlines() if re.match(r'\s*from\s+\S+\s+import\s+\*', line)]
    assert not stars, stars

@pytest.mark.parametrize('mod,name', [(m,n) for m,names in EXPORTED.items() for n in names])
def test_public_names_are_documented(mod, name):
    node = docs.find(tree(mod), name)
    if node is None: return # a constant: its source says what it is, see below
    assert ast.get_docstring(node), f'{mod}.{name} has no docstring'
    bare = [p for p,_,_,comment in docs.params(node, mod) if not comment]
    assert not bare, f'{mod}.{name}: no comment says what {bare} are'

@each_module
def test_constants_show_their_source(mod):
    "A public constant has no docstring, so its cell must be on the page"
    path = NUMBERED[ORDER.index(mod)]
    constants = [n for n in EXPORTED.get(mod, []) if docs.find(tree(mod), n) is None]
    shown = '\n'.join(source(c) for c in cells(path, 'code') if source(c).startswith('#| exports'))
    hidden = [n for n in constants if not re.search(rf'^{n}\b.*=', shown, re.M)]
    assert not hidden, f'{mod}: {hidden} should be in an `#| exports` cell, or private'

@pytest.fixture(scope='session')
def fresh_export(tmp_path_factory):
    "A copy of the project, exported anew"
    to = tmp_path_factory.mktemp('project')
    for f in ('settings.ini', 'tools', 'nbs'):
        if (ROOT/f).is_dir(): shutil.copytree(ROOT/f, to/f, ignore=shutil.ignore_patterns('__pycache__', '.ipynb_checkpoints'))
        else: shutil.copy(ROOT/f, to/f)
    (to/'winwin').mkdir()
    (to/'winwin'/'__init__.py').write_text('__version__ = "0"\n')
    subprocess.run([sys.executable, 'tools/nb.py', 'export'], cwd=to, check=True)
    return to/'winwin'

@pytest.mark.parametrize('mod', [*ORDER, '__init__', '_modidx'])
def test_modules_are_in_step(mod, fresh_export):
    here, fresh = ((d/f'{mod}.py').read_text(encoding='utf-8') for d in (ROOT/'winwin', fresh_export))
    assert here==fresh, f'winwin/{mod}.py differs from its notebook: run `python tools/nb.py export`'

def test_every_module_has_a_notebook():
    assert {p.stem for p in (ROOT/'winwin').glob('*.py')} == {*ORDER, '__init__', '_modidx'}

def test_package_offers_every_public_name():
    import winwin
    names = [n for ns in EXPORTED.values() for n in ns]
    assert len(names)==len(set(names)), f'defined twice: {sorted({n for n in names if names.count(n)>1})}'
    assert set(winwin.__all__)=={'__version__', *names} and winwin.__version__==cfg['DEFAULT']['version']
    for n in names: assert getattr(winwin, n) is not None

# --- Notebooks

@each_numbered
def test_notebook_opens_with_its_name_and_title(path):
    first, second = cells(path)[:2]
    stem = re.sub(r'^\d+[a-z]?_', '', path.stem)
    assert source(first).strip()==f'#| default_exp {stem}'
    assert second['cell_type']=='markdown'

@each_notebook
def test_title_and_subtitle(path):
    text = [source(c) for c in cells(path, 'markdown')]
    assert re.match(r'# [^\n]+\n\n> [^\n]+\n?\Z', text[0]), 'the first text is "# Title" and "> one-line subtitle"'
    assert not any(re.search(r'^# ', re.sub(r'(?s)```.*?```', '', t), re.M) for t in text[1:]), 'one title per page'

@each_notebook
def test_exported_cells_are_short(path):
    lines = lambda c: [o for o in source(c).splitlines() if o.strip() and not o.startswith('#|')]
    long = {lines(c)[0]: len(lines(c)) for c in cells(path, 'code') if is_exported(c) and len(lines(c))>45}
    assert not long, f'more than 45 lines: {long}'

@each_notebook
def test_code_is_at_most_120_columns_wide(path):
    wide = [o for c in cells(path, 'code') for o in source(c).splitlines() if len(o)>120 and not o.startswith('#|')]
    assert not wide, wide

@each_notebook
def test_saved_outputs_are_clean(path):
    text = json.dumps(outputs(path))
    assert not [o['ename'] for o in outputs(path) if o['output_type']=='error']
    assert not [''.join(o['text']) for o in outputs(path) if o.get('name')=='stderr'], 'warnings or progress bars'
    assert 'widget-view+json' not in text and 'widgets' not in notebook(path)['metadata']
    assert not re.findall(r'[\s"\'(](?:/(?:home|root|tmp|opt|usr|var|mnt|Users|work)/|[A-Z]:\\\\)[^\s"\']*', text), 'absolute paths'
    assert not re.findall(r' at 0x[0-9a-f]{6,}', text), 'memory addresses'

@each_notebook
def test_captions_have_figures(path):
    for c in cells(path, 'code'):
        if '#| fig-cap' in source(c): assert any('image/png' in o.get('data', {}) or tool.PLOTLY in o.get('data', {}) for o in c['outputs']), source(c)

@each_notebook
def test_notebook_is_light(path): assert path.stat().st_size < 400_000

@each_notebook
def test_nothing_is_left_to_do(path):
    left = [line for c in cells(path) for line in source(c).splitlines() if re.search(r'\b(TODO|FIXME|XXX|TBD)\b', line)]
    assert not left, left
