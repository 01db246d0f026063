"""Edit notebooks as plain text and rebuild them with fresh outputs.

    python tools/nb.py text  [NAME...]   nbs/NAME.ipynb -> nbtext/NAME.py   (py:percent, git-ignored)
    python tools/nb.py build [NAME...]   nbtext/NAME.py -> nbs/NAME.ipynb, exported, executed, cleaned
    python tools/nb.py run   [NAME...]   execute nbs/NAME.ipynb in place, cleaned
    python tools/nb.py export            nbdev_export, then winwin/__init__.py from the modules' public names

NAME is the path under nbs/ without the suffix. Cells that keep their text keep their id and output,
so building twice changes nothing.
"""
import argparse, ast, base64, hashlib, io, re, sys
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

def notebooks(): return sorted(p for p in NBS.rglob('*.ipynb') if '.ipynb_checkpoints' not in p.parts)

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
    "`{module: [names]}` of every exported notebook, in notebook order"
    out = {}
    for path in notebooks():
        mod = next((m[1] for c in nbformat.read(path, 4).cells if (m := re.match(r'#\|\s*default_exp\s+(\w+)', c.source))), None)
        if mod is None: continue
        tree = ast.parse((LIB/f'{mod}.py').read_text())
        names = next(ast.literal_eval(o.value) for o in tree.body if isinstance(o, ast.Assign) and o.targets[0].id == '__all__')
        if names: out[mod] = names
    return out

INIT = '''"{description}"
# Made by tools/nb.py from the notebooks' public names: edit those, not this file.
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

__version__ = "{version}"

if TYPE_CHECKING:
{imports}

_HOME = {{ # public name -> module, loaded on first use so that `import winwin` stays quick
{home}
}}
__all__ = ['__version__', *_HOME]

def __getattr__(name):
    if name not in _HOME: raise AttributeError(f"module 'winwin' has no attribute {{name!r}}")
    return getattr(import_module(f'.{{_HOME[name]}}', __name__), name)

def __dir__(): return sorted(set(globals()) | set(__all__))

class _Package(ModuleType):
    "`from winwin import predict` is the function, also after the module `winwin.predict` was imported"
    def __setattr__(self, name, value):
        if _HOME.get(name) == name and isinstance(value, ModuleType): value = getattr(value, name)
        super().__setattr__(name, value)

sys.modules[__name__].__class__ = _Package
'''

def init_text():
    mods, cfg = public_names(), get_config()
    return INIT.format(description=cfg.description, version=cfg.version,
        imports='\n'.join(f'    from .{m} import ' + ', '.join(n) for m,n in mods.items()),
        home='\n'.join('    ' + ' '.join(f'{o!r}: {m!r},' for o in n) for m,n in mods.items()))

def export():
    nbdev_export.__wrapped__()
    (LIB/'__init__.py').write_text(init_text())

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
