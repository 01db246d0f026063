"The shape of the house: data flows one way, every public name is documented, nothing is out of step."
import ast, json, re, shutil, subprocess, sys
from configparser import ConfigParser
from functools import cache
from pathlib import Path
import pytest

import docs, nb as tool # tools/
from conftest import ROOT

NBS = tool.notebooks()
NUMBERED = [p for p in NBS if re.match(r'\d', p.name)]
ORDER = [docs.module_of(p) for p in NUMBERED] # rooms in the order of nbs/rooms.toml, numbers inside: the order of data flow
ROOMS = list(tool.plan()['rooms'])
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
def tree(mod): return ast.parse(tool.module_file(mod).read_text(encoding='utf-8'))
def room_of(mod): return mod.rpartition('.')[0]

def imports(tree):
    "(level, module, names) of every import, wherever it stands"
    for o in ast.walk(tree):
        if isinstance(o, ast.ImportFrom): yield o.level, o.module or '', [a.name for a in o.names]
        if isinstance(o, ast.Import): yield from ((0, a.name, []) for a in o.names)

def own_imports(mod):
    "(module of ours, name or None) of every import of ours, wherever it stands"
    for level,name,names in imports(tree(mod)):
        base = f'winwin.{mod}'.split('.')[:-level] if level else []
        full = '.'.join([*base, *filter(None, name.split('.'))])
        if full.split('.')[0]!='winwin': continue
        full = full.removeprefix('winwin').strip('.')
        for n in names or [None]:
            if n=='__version__': continue
            inner = f'{full}.{n}'.strip('.')
            yield (inner,None) if inner in ORDER else (full,n) # `from winwin.windows import layout` means the module

# --- Modules

@each_module
def test_imports_flow_forward(mod):
    "A room imports only rooms above it; inside a room, lower numbers; from the module that defines a name"
    for dep,name in own_imports(mod):
        assert dep in ORDER, f'{mod} imports {name} from {dep or "winwin"}; import from the module that defines it'
        assert ORDER.index(dep)<ORDER.index(mod), f'{mod} imports the later module {dep}'
        if name: assert name in {n for o in tree(dep).body for n in bound(o)}, f'{mod} imports {name} from {dep}, which does not define it'

def bound(o):
    "Names that a statement at the top of a module defines; imports do not count"
    if isinstance(o, docs.DEFS): return {o.name}
    targets = o.targets if isinstance(o, ast.Assign) else [o.target] if isinstance(o, ast.AnnAssign) else []
    return {x.id for t in targets for x in ast.walk(t) if isinstance(x, ast.Name)}

@each_module
def test_nothing_private_crosses_a_file(mod):
    private = [(dep,name) for dep,name in own_imports(mod) if name and name[0]=='_']
    assert not private, f'{mod} imports {private}: make them public, or methods, or move them'

@each_module
def test_no_import_fills_a_registry(mod):
    "At the top of a module nothing of another module is changed: no `register(...)`, no `studies[...] = ...`"
    theirs = {name for _,name in own_imports(mod) if name}
    for o in tree(mod).body:
        for s in ast.walk(o) if isinstance(o, (ast.For,ast.With,ast.If)) else [o]:
            if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call):
                root = s.value.func
                while isinstance(root, ast.Attribute): root = root.value
                assert getattr(root, 'id', None) not in theirs, f'{mod}, line {s.lineno}: a call that changes another module'
            targets = s.targets if isinstance(s, ast.Assign) else [s.target] if isinstance(s, ast.AugAssign) else []
            for t in targets:
                while isinstance(t, (ast.Attribute,ast.Subscript)): t = t.value
                assert getattr(t, 'id', None) not in theirs or isinstance(t.ctx, ast.Store), f'{mod}, line {s.lineno}: another module is changed'

def test_benches_and_studies_are_found_without_importing_by_hand():
    code = ('from winwin.bench import list_benches; from winwin.experiments import get_study; '
            'assert {"encoder","flow","timm","probes","lab"} <= list_benches().keys(); get_study("resolution"); get_study("temperature-flow")')
    subprocess.run([sys.executable, '-c', code], cwd=ROOT, check=True)

# --- The house

def test_rooms_and_folders_agree():
    folders = {p.parent.relative_to(tool.NBS).as_posix() for p in NUMBERED}
    assert folders-{'.'}==set(ROOMS), 'every folder with numbered notebooks is a room of nbs/rooms.toml, and every room a folder'
    hall = tool.plan()['hall']
    assert [m for m in ORDER if '.' not in m]==hall['first']+hall['last']
    for r,o in tool.plan()['rooms'].items():
        assert {f'{r}.{m}' for m in o.get('internal', [])}<=set(ORDER), f'{r}: internal modules that are not there'

@pytest.mark.parametrize('room', ROOMS)
def test_room_is_small_and_in_order(room):
    numbers = [re.match(r'(\d+)_[a-z_]+$', p.stem) for p in NUMBERED if p.parent.name==room]
    assert all(numbers), 'a notebook is NN_module: no letters behind the number'
    assert [int(m[1]) for m in numbers]==list(range(len(numbers))) and len(numbers)<=10, 'numbers from 00 without a gap, at most ten'

def test_front_door_is_small():
    import winwin
    assert len(tool.plan()['front']['names'])<=70 and len(set(tool.plan()['front']['names']))==len(tool.plan()['front']['names'])
    assert set(winwin.__all__)=={'__version__', *tool.plan()['front']['names']}

def test_no_public_name_is_a_room_or_module():
    places = {*ROOMS, *(m.rpartition('.')[2] for m in ORDER)}
    names = {n for ns in EXPORTED.values() for n in ns}
    assert not names & places, f'{sorted(names & places)} would hide a room or a module'

@each_module
def test_imports_only_requirements(mod):
    "The installed package works without an extra; what one of ours brings may be imported inside a function"
    words = lambda k: {re.split('[<>=]', r)[0] for r in cfg['DEFAULT'][k].split()}
    extra = tool.plan()['rooms'].get(room_of(mod), {}).get('extra') # a room may ask for one, and says so when it is missing
    need = words('requirements') | sys.stdlib_module_names | {'winwin'} | (words(f'{extra}_requirements') if extra else set())
    asked = {a.name.split('.')[0] for o in tree(mod).body if isinstance(o, ast.Import) for a in o.names}
    asked |= {o.module.split('.')[0] for o in tree(mod).body if isinstance(o, ast.ImportFrom) and not o.level}
    used = {name.split('.')[0] for level,name,_ in imports(tree(mod)) if not level}
    late = words('lab_requirements') | words('app_requirements') | words('export_requirements') | words('data_requirements')
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

INITS = ['__init__', *(f'{r}.__init__' for r in ROOMS)]

@pytest.mark.parametrize('mod', [*ORDER, *INITS, '_modidx'])
def test_modules_are_in_step(mod, fresh_export):
    file = f'{mod.replace(".", "/")}.py'
    here, fresh = ((d/file).read_text(encoding='utf-8') for d in (ROOT/'winwin', fresh_export))
    assert here==fresh, f'winwin/{file} differs from its notebook: run `python tools/nb.py export`'

def test_every_module_has_a_notebook():
    found = {'.'.join(p.relative_to(ROOT/'winwin').with_suffix('').parts) for p in (ROOT/'winwin').rglob('*.py')}
    assert found == {*ORDER, *INITS, '_modidx'}

def test_doors_offer_every_public_name():
    import winwin
    names = [n for ns in EXPORTED.values() for n in ns]
    assert len(names)==len(set(names)), f'defined twice: {sorted({n for n in names if names.count(n)>1})}'
    assert winwin.__version__==cfg['DEFAULT']['version']
    for n in tool.plan()['front']['names']: assert getattr(winwin, n) is not None
    for room in ROOMS:
        door = getattr(winwin, room)
        inner = tool.plan()['rooms'][room].get('internal', [])
        assert set(door.__all__)=={n for m,ns in EXPORTED.items() if room_of(m)==room and m.split('.')[1] not in inner for n in ns}
        assert door.__doc__==tool.plan()['rooms'][room]['says']
        for n in door.__all__: assert getattr(door, n) is not None

def test_importing_a_room_loads_no_module():
    code = f"import sys, winwin, {', '.join('winwin.'+r for r in ROOMS)}; assert not {{'torch','matplotlib','timm'}} & {{*sys.modules}}"
    subprocess.run([sys.executable, '-c', code], cwd=ROOT, check=True)

# --- Notebooks

@each_numbered
def test_notebook_opens_with_its_name_and_title(path):
    first, second = cells(path)[:2]
    module = re.sub(r'(^|/)\d+_', r'\1', tool.name(path)).replace('/', '.')
    assert source(first).strip()==f'#| default_exp {module}'
    assert second['cell_type']=='markdown'

@each_notebook
def test_title_and_subtitle(path):
    text = [source(c) for c in cells(path, 'markdown')]
    assert re.match(r'# [^\n]+\n\n> [^\n]+\n?\Z', text[0]), 'the first text is "# Title" and "> one-line subtitle"'
    assert not any(re.search(r'^# ', re.sub(r'(?s)```.*?```', '', t), re.M) for t in text[1:]), 'one title per page'

def code_lines(cell): return [o for o in source(cell).splitlines() if o.strip() and not o.startswith('#|')]

@each_notebook
def test_exported_cells_are_short(path):
    long = {code_lines(c)[0]: len(code_lines(c)) for c in cells(path, 'code') if is_exported(c) and len(code_lines(c))>45}
    assert not long, f'more than 45 lines: {long}'

def test_most_exported_cells_fit_on_a_screen():
    sizes = sorted(len(code_lines(c)) for p in NBS for c in cells(p, 'code') if is_exported(c))
    assert sizes[int(.9*len(sizes))]<=25, f'nine of ten exported cells have at most 25 lines, not {sizes[int(.9*len(sizes))]}'

def asserts(cell):
    "Whether a cell is a lesson: not exported, and able to fail"
    return not is_exported(cell) and bool(re.search(r'\bassert\b|test_\w+\(|expect_fail|allclose', source(cell)))

def thin(cells):
    "What a page lacks: a cell of prose for every exported cell, a lesson that asserts for every two; nothing if it lacks nothing"
    code = [c for c in cells if c['cell_type']=='code']
    exported = sum(map(is_exported, code))
    prose = sum(bool(source(c).strip()) for c in cells if c['cell_type']=='markdown')
    lessons = sum(map(asserts, code))
    if prose>=exported and 2*lessons>=exported: return ''
    return f'{exported} exported cells, {prose} cells of prose, {lessons} lessons that assert'

def page(text):
    "Cells of a page from letters: m markdown, e exported, l a lesson, c other code"
    words = dict(m=('markdown','words'), e=('code','#| export\nassert x'), l=('code','test_eq(1, 1)'), c=('code','print(1)'))
    return [dict(zip(('cell_type','source'), words[k])) for k in text]

@pytest.mark.parametrize('text,ok', [('', True), ('mc', True), ('meml', True), ('memel', True), ('memec', False), ('meel', False), ('mmeeel', False), ('mmmeeell', True)])
def test_thin_pages_are_found(text, ok): assert (thin(page(text))=='')==ok

@each_notebook
def test_page_has_prose_and_lessons(path):
    lacks = thin(cells(path))
    assert not lacks, f'{lacks}; write a sentence for every exported cell and a lesson for every two'

@each_notebook
def test_code_is_at_most_100_columns_wide(path):
    wide = [o for c in cells(path, 'code') for o in source(c).splitlines() if len(o)>100 and not o.startswith('#|')]
    assert not wide, wide

def parallel(o):
    "Whether a statement assigns several values to several names at once; unpacking a shape is not meant"
    return isinstance(o, ast.Assign) and isinstance(o.targets[0], ast.Tuple) and isinstance(o.value, ast.Tuple)

def test_one_assignment_per_line():
    every = [o for mod in ORDER for o in ast.walk(tree(mod)) if isinstance(o, ast.stmt)]
    rate = 1000*sum(map(parallel, every))/len(every)
    assert rate<=15, f'{rate:.0f} of 1000 statements assign in parallel; one assignment per line, swaps aside'
    three = [ast.unparse(o) for o in every if parallel(o) and len(o.value.elts)>2]
    assert not three, three

@each_module
def test_lines_need_not_be_solved(mod):
    "No named lambda, no list or condition as a statement, no walrus inside a larger expression, no empty shell around `_x(self)`"
    for o in ast.walk(tree(mod)):
        at = f'{mod}, line {getattr(o, "lineno", 0)}'
        if isinstance(o, ast.Assign): assert not (isinstance(o.value, ast.Lambda) and isinstance(o.targets[0], ast.Name)), f'{at}: a lambda with a name; write a function'
        if isinstance(o, ast.Expr): assert not isinstance(o.value, (ast.List,ast.Tuple,ast.ListComp,ast.BoolOp)), f'{at}: a value that nobody uses'
        if isinstance(o, ast.FunctionDef): assert not forwards(o), f'{at}: {o.name} only calls a private function with self; use @patch'
        for child in ast.iter_child_nodes(o):
            if isinstance(child, ast.NamedExpr):
                alone = isinstance(o, (ast.If,ast.While)) and o.test is child
                assert alone, f'{at}: a walrus inside a larger expression; give it a line of its own'

LETTERS = set('B n N C D H W h w P q k v x y z u t p i j m _'.split()) # the table of nbs/contributing.ipynb

def odd_letters(tree):
    "One-letter names from outside the table with their lines; arguments, variables of comprehensions and fields of classes may be called anything"
    free = [o for c in ast.walk(tree) if isinstance(c, ast.comprehension) for o in ast.walk(c.target)]
    free += [o.target for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for o in c.body if isinstance(o, ast.AnnAssign)]
    free = {id(o) for o in free}
    found = [(o.id,o.lineno) for o in ast.walk(tree) if isinstance(o, ast.Name) and isinstance(o.ctx, ast.Store) and id(o) not in free]
    found += [(o.name,o.lineno) for o in ast.walk(tree) if isinstance(o, (ast.ExceptHandler,ast.FunctionDef)) and o.name]
    return sorted({f'{name} in line {line}' for name,line in found if len(name)==1 and name not in LETTERS})

@pytest.mark.parametrize('code,odd', [
    ('a = 1', ['a in line 1']), ('for c in x: pass', ['c in line 1']), ('with x as f: pass', ['f in line 1']), ('a,(b,n) = x', ['a in line 1','b in line 1']),
    ('try: x\nexcept OSError as e: pass', ['e in line 2']), ('def f(): pass', ['f in line 1']), ('def add(a, b): return a+b', []), ('[a for a in x]', []),
    ('{a: b for a,b in x if a}', []), ('sorted(x, key=lambda o: o)', []), ('import numpy as a', []), ('B,n,C = x.shape\nfor _ in x: pass', []),
    ('class Box:\n    s:int=1', []), ('if (g := 1): pass', ['g in line 1'])])
def test_odd_letters_are_found(code, odd): assert odd_letters(ast.parse(code))==odd

@each_module
def test_one_letter_names_come_from_the_table(mod):
    odd = odd_letters(tree(mod))
    assert not odd, f'{mod}: {odd}; use a word, or a letter of the table in nbs/contributing.ipynb'

def forwards(f):
    "Whether a method is a shell around a private function that takes self"
    body = [s for s in f.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    call = body[0].value if len(body)==1 and isinstance(body[0], (ast.Return,ast.Expr)) else None
    return (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id.startswith('_')
            and bool(call.args) and getattr(call.args[0], 'id', None)=='self')

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
