"""Edit notebooks as plain text and rebuild them with fresh outputs.

    python tools/nb.py text  [NAME...]   nbs/NAME.ipynb -> nbtext/NAME.py   (py:percent, git-ignored)
    python tools/nb.py build [NAME...]   nbtext/NAME.py -> nbs/NAME.ipynb, exported, executed, cleaned
    python tools/nb.py run   [NAME...]   execute nbs/NAME.ipynb in place, cleaned
    python tools/nb.py export            nbdev_export, then the `__init__`s of the package and its rooms from nbs/rooms.toml

NAME is the path under nbs/ without the suffix, such as windows/00_layout. Cells that keep their text keep their id and output,
so building twice changes nothing.
"""
import argparse, ast, base64, hashlib, io, json, re, sys, textwrap, tomllib
from functools import cache
from pathlib import Path

import jupytext, nbformat
from fastcore.basics import AttrDict
from jupytext.combine import combine_inputs_with_outputs
from nbclient import NotebookClient
from nbdev.clean import clean_nb
from nbdev.config import get_config
from nbdev.doclinks import nbdev_export
from nbdev.process import extract_directives
from PIL import Image, ImageChops, ImageStat

ROOT = Path(__file__).resolve().parents[1]
NBS, TEXT, LIB = ROOT/'nbs', ROOT/'nbtext', ROOT/'winwin'
VOLATILE = [(re.compile(re.escape(str(ROOT)) + r'/?'), ''), (re.compile(r'/tmp/ipykernel_\d+/\d+\.py'), '<cell>'),
            (re.compile(r' at 0x[0-9a-f]{6,}'), '')]
WIDGET, PLOTLY = 'application/vnd.jupyter.widget-view+json', 'application/vnd.plotly.v1+json'
FMT = {'extension': '.py', 'format_name': 'percent'}

@cache
def plan():
    "What nbs/rooms.toml says: hall, rooms in order, other pages, names of the front door"
    return tomllib.loads((NBS/'rooms.toml').read_text(encoding='utf-8'))

def module_of(path):
    "Module that a notebook makes, such as 'windows.layout'; none if it makes none"
    cells = json.loads(path.read_text(encoding='utf-8'))['cells']
    return next((m[1] for c in cells if (m := re.match(r'#\|\s*default_exp\s+([\w.]+)', ''.join(c['source'])))), None)

def module_file(mod): return LIB.joinpath(*mod.split('.')).with_suffix('.py')

def rank(path):
    "Where a notebook stands: the first of the hall, the rooms, the rest of the hall, all other pages"
    *folders, file = path.relative_to(NBS).parts
    rooms = list(plan()['rooms'])
    if folders: at = 1+rooms.index(folders[0]) if folders[0] in rooms else 200
    elif not file[0].isdigit(): at = 300
    else: at = 0 if re.sub(r'^\d+_', '', path.stem) in plan()['hall']['first'] else 100
    return at, str(path)

def notebooks(): return sorted((p for p in NBS.rglob('*.ipynb') if '.ipynb_checkpoints' not in p.parts), key=rank)

def name(path): return str(path.relative_to(NBS).with_suffix(''))

def digest(nb): return hashlib.sha256('\0'.join(c.cell_type + c.source for c in nb.cells).encode()).hexdigest()[:16]

def text(name):
    nb = nbformat.read(NBS/f'{name}.ipynb', 4)
    stamp = digest(nb)
    nb.metadata = {'jupytext': {'notebook_metadata_filter': '-all', 'cell_metadata_filter': '-all'}}
    out = TEXT/f'{name}.py'
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(f'# from: {stamp}\n\n' + jupytext.writes(nb, FMT))

def merge(name):
    "Put the text of `name` into its notebook, keeping the ids and outputs of the cells that remain"
    src, path = TEXT/f'{name}.py', NBS/f'{name}.ipynb'
    head, _, body = src.read_text().partition('\n')
    if not head.startswith('# from: '): head, body = '', f'{head}\n{body}'
    nb = jupytext.reads(body.lstrip('\n'), FMT)
    if path.exists():
        old = nbformat.read(path, 4)
        if head.removeprefix('# from: ') != digest(old):
            sys.exit(f'{path}: changed since nbtext/{name}.py was made; run `nb.py text {name}` and redo the edit')
        nb = combine_inputs_with_outputs(nb, old, FMT)
        nb.metadata = old.metadata
    else:
        nb.metadata = {'kernelspec': {'display_name': 'python3', 'language': 'python', 'name': 'python3'}}
        for c in nb.cells: c.metadata = {}
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nb, path)
    src.write_text(f'# from: {digest(nb)}\n\n' + body.lstrip('\n')) # so that a failed run can be edited and built again

class Runner(NotebookClient):
    "Skips the cells `nbdev_test` skips (`#| eval: false` and the `tst_flags` of settings.ini)"
    async def async_execute_cell(self, cell, cell_index, **kw):
        d = extract_directives(AttrDict(source=cell.source), remove=False) if cell.cell_type == 'code' else {}
        if d.get('eval:', [''])[0].lower() == 'false' or set(get_config().tst_flags.split()) & d.keys(): return cell
        return await super().async_execute_cell(cell, cell_index, **kw)

def scrub(x):
    if isinstance(x, str):
        for pat, sub in VOLATILE: x = pat.sub(sub, x)
        return x
    return [scrub(o) for o in x] if isinstance(x, list) else x

def slim(png):
    "A base64 PNG with a palette of 256 colours, if that makes it a good deal smaller and a picture of moderate size is not coarsened"
    out,rgb = io.BytesIO(),Image.open(io.BytesIO(base64.b64decode(png))).convert('RGB')
    few = rgb.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE)
    few.save(out, 'PNG', optimize=True)
    small = base64.b64encode(out.getvalue()).decode()
    error = max(ImageStat.Stat(ImageChops.difference(rgb, few.convert('RGB'))).rms)
    return small if len(small) < .8*len(png) and (error < 3 or len(png) > 80_000) else png

def tidy(nb):
    for cell in nb.cells:
        for out in cell.get('outputs', []):
            if 'text' in out: out['text'] = scrub(out['text'])
            data = out.get('data', {})
            if data.keys() - {WIDGET, 'text/plain'}: data.pop(WIDGET, None) # its model id is random; a static view is there too
            if 'image/png' in data: data['image/png'] = slim(data['image/png'])
            for k in data:
                if k.startswith('text/'): data[k] = scrub(data[k])
            for trace in data.get(PLOTLY, {}).get('data', []): trace.pop('uid', None) # random
        if 'outputs' in cell: cell.outputs = [o for o in cell.outputs if WIDGET not in o.get('data', {})]
    nb.metadata.pop('widgets', None)
    clean_nb(nb)

def run(name):
    path = NBS/f'{name}.ipynb'
    nb = nbformat.read(path, 4)
    Runner(nb, timeout=1800, kernel_name='python3', record_timing=False, store_widget_state=False,
           resources={'metadata': {'path': str(path.parent)}}, extra_arguments=['--IPKernelApp.log_level=40']).execute()
    tidy(nb)
    nbformat.write(nb, path)

def public_names():
    "`{module: [names]}` of every exported notebook, in the order of the house"
    out = {}
    for path in notebooks():
        mod = module_of(path)
        if mod is None: continue
        tree = ast.parse(module_file(mod).read_text(encoding='utf-8'))
        names = next(ast.literal_eval(o.value) for o in tree.body if isinstance(o, ast.Assign) and o.targets[0].id == '__all__')
        if names: out[mod] = names
    return out

HEAD = '''"{says}"
# Made by tools/nb.py from nbs/rooms.toml and the notebooks' public names: edit those, not this file.
from importlib import import_module
from typing import TYPE_CHECKING
'''
BODY = '''
if TYPE_CHECKING:
{imports}

_HOME = {{ # public name -> module, loaded on first use so that an import stays quick
{home}
}}
__all__ = [{first}*_HOME]

def __getattr__(name):
{rooms}    if name not in _HOME: raise AttributeError(f"module {{__name__!r}} has no attribute {{name!r}}")
{find}

def __dir__(): return sorted(set(globals()) | set(__all__))
'''

def lines(start, words, end='', width=100):
    "Words in lines that all begin with `start`"
    out, now = [], []
    for w in words:
        if now and len(start + ' '.join(now+[w]) + end) > width: out.append(now); now = []
        now.append(w)
    return '\n'.join(start + ' '.join(o).rstrip(',') + end for o in out+[now] if o)

FIND = "    return getattr(import_module(f'.{_HOME[name]}', __name__), name)"
FIND_EXTRA = '''    try: return getattr(import_module(f'.{_HOME[name]}', __name__), name)
    except ModuleNotFoundError as error:
        if error.name not in %s: raise
        raise ImportError(f"{name} needs {error.name}, which is not installed: "
                          "pip install 'winwin[%s]'") from error'''

def init_body(homes, first='', rooms='', extra=None):
    "Lazy names: `{module: [names]}`, modules as seen from the package; `extra` names what a missing module belongs to"
    find = FIND if extra is None else FIND_EXTRA % (tuple(plan()['extras'][extra]), extra)
    return BODY.format(first=first, rooms=rooms, find=find,
        imports='\n'.join(lines(f'    from .{m} import ', [f'{o},' for o in n]) for m,n in homes.items()),
        home='\n'.join(lines('    ', [f'{o!r}: {m!r},' for o in n], ',') for m,n in homes.items()))

def front(names):
    "`{module: [names]}` of what the package offers, in the order of rooms.toml"
    home, out = {n: m for m,ns in names.items() for n in ns}, {}
    if lost := [n for n in plan()['front']['names'] if n not in home]: sys.exit(f'nbs/rooms.toml: nothing defines {", ".join(lost)}')
    for n in plan()['front']['names']: out.setdefault(home[n], []).append(n)
    return out

def door(room, names):
    "`{module: [names]}` of what a room offers: all public names, those of internal modules apart"
    inner = plan()['rooms'][room].get('internal', [])
    return {m.split('.')[1]: n for m,n in names.items() if m.split('.')[0] == room and '.' in m and m.split('.')[1] not in inner}

def init_texts():
    "`{file: text}` of the `__init__`s"
    cfg, names = get_config(), public_names()
    rooms = list(plan()['rooms'])
    known = lines('    ', [f'{r!r},' for r in rooms], ',')
    top = HEAD.format(says=cfg.description) + f'\n__version__ = "{cfg.version}"\n' + init_body(front(names), "'__version__', ",
        "    if name in _ROOMS: return import_module(f'.{name}', __name__)\n", 'lab').replace('\ndef __getattr__', f'_ROOMS = (\n{known}\n)\n\ndef __getattr__', 1)
    return {LIB/'__init__.py': top} | {LIB/r/'__init__.py': HEAD.format(says=plan()['rooms'][r]['says']) + init_body(door(r, names), extra=plan()['rooms'][r].get('extra')) for r in rooms}

def clear_stale():
    "Remove modules that no notebook makes any more"
    made = {module_file(m) for p in notebooks() if (m := module_of(p))}
    for p in LIB.rglob('*.py'):
        if p not in made and 'AUTOGENERATED' in p.read_text(encoding='utf-8')[:500] and p.name != '_modidx.py': p.unlink()

def narrow(path):
    "Wrap the `__all__` of an exported module at 100 columns"
    src = path.read_text(encoding='utf-8')
    found = re.search(r'^__all__ = \[(.*?)\]$', src, re.M | re.S)
    if found is None: return
    names = ', '.join(o.strip() for o in found[1].split(','))
    text = textwrap.fill(f'__all__ = [{names}]', 100, subsequent_indent=' '*11, break_long_words=False)
    new = src[:found.start()] + text + src[found.end():]
    if new!=src: path.write_text(new, encoding='utf-8')

def export():
    nbdev_export.__wrapped__()
    clear_stale()
    for mod in public_names(): narrow(module_file(mod))
    for path,text in init_texts().items(): path.write_text(text, encoding='utf-8')

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('cmd', choices=['text', 'build', 'run', 'export']); ap.add_argument('names', nargs='*')
    a = ap.parse_args()
    todo = a.names or ([str(p.relative_to(TEXT).with_suffix('')) for p in sorted(TEXT.rglob('*.py'))] if a.cmd == 'build'
                       else [name(p) for p in notebooks()])
    if a.cmd == 'text': return [text(n) for n in todo]
    if a.cmd == 'build':
        for n in todo: merge(n)
    if a.cmd in ('build', 'export'): export()
    if a.cmd != 'export':
        for n in todo: run(n)
    if a.cmd == 'build': [text(n) for n in todo]

if __name__ == '__main__': main()
