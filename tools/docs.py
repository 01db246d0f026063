"""Build README.md and the site from the notebooks, with pip packages alone and without a network.

    python tools/docs.py     writes README.md, docs/readme/ (its pictures) and _docs/ (the site); _proc/ holds work files

nbdev's processors turn a notebook into a page, Sphinx with myst-nb and furo into HTML. No cell runs: pages show
the outputs saved in the notebooks, and signatures are read from the exported modules. The reference of the command
line is what `winwin COMMAND --help` prints. nbs/rooms.toml has the sidebar ([pages]) and words that the search should
find although a page does not say them ([search]). With a `git_url` in settings.ini, tutorials and how-tos link to Colab.
Warnings are errors.
"""
import ast, base64, hashlib, io, json, os, re, shutil, subprocess, sys, tokenize
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

from execnb.nbio import mk_cell, read_nb, write_nb
from fastcore.basics import AttrDict
from nbdev.processors import FilterDefaults
from nbdev.process import Processor

import nb as tool

ROOT, NBS, LIB = tool.ROOT, tool.NBS, tool.LIB
WORK, OUT, PICTURES = ROOT/'_proc', ROOT/'_docs', ROOT/'docs'/'readme'
SRC, HTML, LIVE = WORK/'src', WORK/'html', ROOT/'_live'
OPTION = re.compile(r'\A#\| *([\w-]+): *(.*)(?:\n|\Z)') # `#| fig-cap: "..."` at the top of a cell
DEFS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

# --- Signatures, docstrings and parameter comments, read from the modules

@cache
def module(mod):
    "Syntax tree, source, and `{line: comment}` of an exported module"
    src = tool.module_file(mod).read_text(encoding='utf-8')
    toks = tokenize.generate_tokens(io.StringIO(src).readline)
    return ast.parse(src), src, {t.start[0]: t.string.lstrip('# ') for t in toks if t.type==tokenize.COMMENT}

def params(node, mod):
    "Rows (name, type, default, comment) of a function's parameters, or of a dataclass's fields"
    _,src,notes = module(mod)
    text = lambda o: '' if o is None else ast.get_source_segment(src, o)
    if isinstance(node, ast.ClassDef):
        if init := find(node, '__init__'): return params(init, mod)
        return [(o.target.id, text(o.annotation), text(o.value), notes.get(o.end_lineno, '')) for o in node.body
                if isinstance(o, ast.AnnAssign) and o.target.id[0]!='_'] if 'dataclass' in ''.join(map(text, node.decorator_list)) else []
    a = node.args
    args = [*a.posonlyargs, *a.args]
    pairs = [*zip(args, [None]*(len(args)-len(a.defaults)) + a.defaults), *zip(a.kwonlyargs, a.kw_defaults)]
    stars = {id(o): s+o.arg for s,o in (('*',a.vararg), ('**',a.kwarg)) if o}
    pairs += [(o,None) for o in (a.vararg, a.kwarg) if o]
    last = node.returns.end_lineno if node.returns else 0 # a comment there is about what is returned
    note = lambda line: '' if line==last else notes.get(line, '')
    return [(stars.get(id(o), o.arg), text(o.annotation), text(d), note((d or o).end_lineno)) for o,d in pairs if o.arg not in ('self','cls')]

def returns(node, mod):
    "Row of what a function returns, if it says"
    if isinstance(node, ast.ClassDef) or node.returns is None: return []
    return [('returns', ast.get_source_segment(module(mod)[1], node.returns).strip('\'"'), '', module(mod)[2].get(node.returns.end_lineno, ''))]

def find(tree, name): return next((o for o in tree.body if isinstance(o, DEFS) and o.name==name), None)

def is_patch(node): return any(getattr(d, 'id', '').startswith('patch') for d in node.decorator_list)

def patched(tree, name):
    "Functions of a module that `@patch` makes methods of a class"
    of = lambda o: o.args.args and o.args.args[0].annotation and ast.unparse(o.args.args[0].annotation)==name
    return [o for o in tree.body if isinstance(o, DEFS[:2]) and is_patch(o) and of(o)]

def methods(node, tree):
    "Public methods of a class with a docstring, in order, those that grow on it later too"
    own = [*node.body, *patched(tree, node.name)]
    return [o for o in own if isinstance(o, DEFS[:2]) and o.name[0]!='_' and ast.get_docstring(o)]

def signature(name, node, mod):
    args = ', '.join(n if not d else f'{n}={d}' for n,_,d,_ in params(node, mod))
    out = returns(node, mod)
    return f'{name}({args})' + (f' -> {out[0][1]}' if out else '')

@cache
def homes():
    "`{public name: module}` of the functions and classes that have a place on a page; `Class.method` too"
    out = {}
    for mod,names in tool.public_names().items():
        for o in module(mod)[0].body:
            if not isinstance(o, DEFS) or o.name not in names: continue
            out[o.name] = mod
            if not isinstance(o, ast.ClassDef): continue
            own = [*o.body, *patched(module(mod)[0], o.name)]
            out |= {f'{o.name}.{m.name}': mod for m in own if isinstance(m, DEFS) and m.name[0]!='_'}
    return out

# --- From notebook to page

def label(name):
    "Anchor of a name; they are all in lower case, so a class may need to be told from a function (`Plan` and `plan`)"
    home,name = homes()[name],name.split('.')[0]
    twin = name!=name.lower() and homes().get(name.lower())==home
    return f'{home}.{name}'.lower() + ('-class' if twin else '')

def prose(s):
    "A comment or docstring in a table: `code` stays, stars are stars"
    return ''.join(p if i%2 else p.replace('*', r'\*') for i,p in enumerate(re.split(r'(`[^`]*`)', s))).replace('|', r'\|')

def code(s):
    s = s.replace('|', r'\|')
    return f'`{s}`' if s else ''

def table(head, rows):
    "A Markdown table, without its empty columns"
    cols = [c for c in zip(head, *rows) if any(c[1:])]
    lines = [[' '.join(s.split()) for s in r] for r in zip(*cols)]
    lines.insert(1, ['---']*len(cols))
    return '\n'.join('| ' + ' | '.join(r) + ' |' for r in lines)

def box(kind, md): return f':::{{container}} {kind}\n{md}\n:::'

def symbol(name, mod, source):
    "Heading, docstring, signature (unless the `source` follows), parameters and methods of a public name"
    node = find(module(mod)[0], name)
    rows = [(f'**{n}**' if n=='returns' else code(n), code(t), code(d), prose(c)) for n,t,d,c in params(node, mod) + returns(node, mod)]
    parts = [f'({label(name)})=\n### `{name}`', ast.get_docstring(node) or '']
    if not source: parts.append(f'```python\n{signature(name, node, mod)}\n```')
    if any(c or t and n!='**returns**' for n,t,_,c in rows): parts.append(box('params', table(['name', 'type', 'default', 'details'], rows)))
    if isinstance(node, ast.ClassDef) and (ms := methods(node, module(mod)[0])):
        rows = [(code(signature(m.name, m, mod)), prose(ast.get_docstring(m))) for m in ms]
        parts.append(box('methods', table(['method', 'what it does'], rows)))
    return '\n\n'.join(p for p in parts if p)

def pieces(src):
    "Cut a cell's source into (public name or None, its source), so that each source follows its own heading"
    lines, starts = src.splitlines(), []
    for o in ast.parse(src).body:
        if not isinstance(o, DEFS) or o.name not in homes() or is_patch(o): continue
        at = min([o.lineno, *[d.lineno for d in o.decorator_list]]) - 1
        while at and lines[at-1].startswith('#'): at -= 1
        starts.append((at, o.name))
    if not starts or '\n'.join(lines[:starts[0][0]]).strip(): starts.insert(0, (0, None))
    ends = [at for at,_ in starts[1:]] + [len(lines)]
    return [(name, '\n'.join(lines[at:end]).strip('\n')) for (at,name),end in zip(starts, ends)]

class document_exports(Processor):
    "Replace exported cells by the documentation of their public names; the source of `#| exports` stays"
    def begin(self):
        mod = next((c.directives_['default_exp'][0] for c in self.nb.cells if 'default_exp' in c.directives_), None)
        cells = []
        for c in self.nb.cells:
            d = c.directives_
            if 'default_exp' in d or 'exporti' in d: continue
            if not {'export','exports'} & d.keys() or 'hide' in d: cells.append(c); continue
            for name,src in pieces(c.source):
                if name: cells.append(mk_cell(symbol(name, mod, 'exports' in d), 'markdown'))
                if 'exports' in d: cells.append(mk_cell(src, metadata=AttrDict(tags=['source'])))
            if 'exports' in d: cells[-1].outputs = c.outputs
        self.nb.cells = cells

class Page(FilterDefaults):
    "nbdev's processors, without those that run cells or write Quarto's syntax"
    drop = 'FrontmatterProc insert_warning add_show_docs clean_show_doc exec_show_docs rm_export add_links add_fold mv_exports'.split()
    def base_procs(self): return [document_exports] + [p for p in super().base_procs() if p.__name__ not in self.drop]

def options(cell):
    "Take the `#| key: value` lines off a cell"
    out = {}
    while m := OPTION.match(cell.source):
        out[m[1]] = m[2].strip().strip('"\'')
        cell.source = cell.source[m.end():]
    return out

def read_page(path):
    "A notebook as the reader sees it, options set apart in `cell.options_`; links still as written"
    page = read_nb(path)
    Page()(page)
    for c in page.cells:
        c.options_ = {}
        if c.cell_type!='code': continue
        c.options_ = options(c)
        c.setdefault('execution_count', None); c.setdefault('outputs', [])
        if c.options_.get('output')=='false': c.outputs = []
    page.cells = [c for c in page.cells if c.cell_type!='code' or c.source.strip()]
    page.metadata.pop('widgets', None)
    return page

def page_name(path): return re.sub(r'(^|/)\d+_', r'\1', tool.name(path))

def module_of(path): return tool.module_of(path)

def outside_code(md, f):
    "Apply `f` to the lines of `md` that are neither headings nor code blocks"
    fence, out = '', []
    for line in md.split('\n'):
        mark = re.match(r'`{3,}|~{3,}', line)
        if mark and not fence: fence = mark[0]
        elif mark and line.startswith(fence): fence = ''; out.append(line); continue
        out.append(line if fence or line.startswith(('#','    ')) else f(line))
    return '\n'.join(out)

def link_names(line, where):
    "Backticked public names become links, unless they are part of one"
    def sub(m):
        name = (m[2] or '').removesuffix('()')
        return f'[`{m[2]}`]({where(name)})' if name in homes() else m[0]
    return re.sub(r'(\[[^\]]*\]\([^)]*\))|(?<!`)`([\w.]+(?:\(\))?)`(?!`)', sub, line)

def link_notebooks(line, path, where):
    "Links to notebooks become links to `where(notebook)`"
    def sub(m):
        target = (path.parent/m[1]).resolve()
        if not target.exists(): sys.exit(f'{path.relative_to(ROOT)}: the link to {m[1]} leads nowhere')
        return f']({where(target)}{m[2] or ""})'
    return re.sub(r'\]\(([\w./-]+\.ipynb)(#[\w-]+)?\)', sub, line)

# --- The site

def page_and_label(entry):
    "Page and label of an entry such as 'Own images <tutorials/own_folder>'; without a label the page's title counts"
    m = re.fullmatch(r'(.+?) <([\w/]+)>', entry)
    return (m[2], m[1]) if m else (entry, None)

def sidebar(pages):
    "`{caption: {page: label}}` of nbs/rooms.toml; rooms, internals and commands are behind a page each"
    plan = tool.plan()
    out = {k: dict(map(page_and_label, ps)) for k,ps in plan['pages'].items()}
    listed = {p for ps in out.values() for p in ps} | {page_and_label(o)[0] for ps in plan['behind'].values() for o in ps}
    behind = [*hall_pages(), *(p for r in plan['rooms'] for p in room_pages(r, pages)), *(f'{r}/index' for r in plan['rooms'])]
    if missing := pages.keys() - listed - set(behind):
        sys.exit(f'nbs/rooms.toml does not list {", ".join(sorted(missing))}: put each into a room, or under [pages]')
    return {k: found for k,ps in out.items() if (found := {p: o for p,o in ps.items() if p in pages or p in MADE})}

MADE = {'commands/index', 'reference', 'inside'} # pages without a notebook

def hall_pages():
    "Pages of the hall: the command line in front, the others behind it"
    hall = tool.plan()['hall']
    return [*hall['last'][::-1], *hall['first']]

def internal_pages(room): return [f'{room}/{m}' for m in tool.plan()['rooms'][room].get('internal', [])]

def room_pages(room, pages):
    "Pages of a room in the order of their numbers, internal ones last"
    inner = internal_pages(room)
    listed = [p for p in pages if p.startswith(f'{room}/') and p != f'{room}/index']
    return [*(p for p in listed if p not in inner), *(p for p in inner if p in listed)]

def public_pages(room, pages): return [p for p in room_pages(room, pages) if p not in internal_pages(room)]

def toctree(entries, **options):
    head = ''.join(f':{k}: {v}'.rstrip() + '\n' for k,v in dict(hidden='', **options).items())
    return '```{toctree}\n' + head + '\n' + '\n'.join(entries) + '\n```'

def toctrees(plan):
    entry = lambda p,o: 'Overview <self>' if p=='index' else f'{o} <{p}>' if o else p
    return '\n\n'.join(toctree([entry(*o) for o in ps.items()], caption=k) for k,ps in plan.items())

def subtitle(path):
    "The line below a notebook's title"
    return next(m[1] for c in read_nb(path).cells if c.cell_type=='markdown' and (m := re.match(r'# [^\n]+\n+> ([^\n]+)', c.source)))

def title(path): return next(m[1] for c in read_nb(path).cells if c.cell_type=='markdown' and (m := re.match(r'# ([^\n]+)', c.source)))

def module_table(names, pages):
    row = lambda p: (f'[{title(pages[p])}](/{p}.ipynb)', f'`winwin.{p.replace("/", ".")}`', prose(subtitle(pages[p])))
    return box('modules', table(['page', 'module', 'what it is'], [row(p) for p in names]))

def room_tables(room, pages):
    "What is in a room: an example to copy, a table of its modules, one of its internals, and the tree of its pages"
    mine, inner = public_pages(room, pages), internal_pages(room)
    parts = []
    if code := tool.plan()['rooms'][room].get('example'): parts += ['## In a few lines', f'```python\n{code.strip()}\n```']
    parts += ['## Modules', module_table(mine, pages)]
    if inner: parts += ['## Internals', 'How it is done inside. Import these from their modules; they may change without notice.',
                        module_table(inner, pages)]
    return '\n\n'.join([*parts, toctree([f'/{p}' for p in mine])])

def write_made(name, *parts):
    "A page without a notebook"
    (SRC/name).parent.mkdir(parents=True, exist_ok=True)
    (SRC/f'{name}.md').write_text('\n\n'.join(parts) + '\n', encoding='utf-8')

def write_reference(pages):
    "The page in front of the rooms, and the one in front of what is internal"
    rooms = tool.plan()['rooms']
    rows = [(f'[{o["title"]}](/{r}/index)', f'`winwin.{r}`', prose(o['says'])) for r,o in rooms.items()]
    write_made('reference', '# Reference', '> Every public name, with its source, room by room',
               'The library is a house with rooms; each imports only those above it in this table. A room has a page with an example, and a page per module.',
               box('modules', table(['room', 'import from', 'what it is for'], rows)), toctree([f'/{r}/index' for r in rooms]))
    inner = {r: ps for r in rooms if (ps := internal_pages(r))}
    parts = [p for r,ps in inner.items() for p in (f'## {rooms[r]["title"]}', module_table(ps, pages))]
    write_made('inside', '# Inside', '> Modules that you need to change winwin, not to use it',
               'They are documented like all others, and may change without notice. [Contributing](/contributing.ipynb) explains how.',
               '## The hall', 'The command line, the check of the machine, and what everything else stands on.',
               module_table(hall_pages(), pages), *parts, toctree([f'/{p}' for p in [*hall_pages(), *(p for ps in inner.values() for p in ps)]]))

# --- The command line, from its own help

def help_text(*words):
    "What `winwin WORDS --help` prints"
    from winwin.cli import main
    out, width = io.TextIOWrapper(io.BytesIO(), 'utf-8'), os.environ.get('COLUMNS') # boxes need an encoding
    os.environ['COLUMNS'] = '120'
    try:
        with redirect_stdout(out): main([*words, '--help'])
    except SystemExit: pass
    finally:
        if width is None: del os.environ['COLUMNS']
        else: os.environ['COLUMNS'] = width
    out.flush()
    return out.buffer.getvalue().decode()

def help_boxes(text):
    "What stands before the boxes of a help text, and `{title: (lines of prose, {option: help})}`"
    head, boxes, rows = [], {}, None
    for line in text.splitlines():
        if m := re.match(r'╭─ (.+?) ─*╮', line):
            rows = boxes[m[1]] = ([], {})
            continue
        if rows is None or not line.startswith('│'):
            if rows is None: head.append(line)
            continue
        line = line[2:-1].rstrip()
        item = re.match(r'( *• |)(\S.*?)(?: {2,}(.*))?$', line)
        if re.fullmatch('─+', line): # what stood above was prose
            rows[0].extend(f'{k} {v}'.strip() for k,v in rows[1].items())
            rows[1].clear()
        elif item and line!='(required)': rows[1][item[2]] = item[3] or ''
        elif rows[1]:
            last = next(reversed(rows[1]))
            rows[1][last] = f'{rows[1][last]} {line.strip()}'.strip()
    return '\n'.join(head), boxes

def plain(s):
    "Words of a help text as Markdown"
    cut = lambda p: re.sub(r'([*_$<>{}\[\]|~])', r'\\\1', p)
    return ''.join(p if i%2 else cut(p) for i,p in enumerate(re.split(r'(`[^`]*`)', s)))

def option_rows(options):
    "Rows (option, help, default) of a box"
    for flag,text in options.items():
        m = re.search(r'\((default: ?(.*?)|required|optional)\)$', text)
        word = '' if m is None else 'required' if m[1]=='required' else code((m[2] or '').strip())
        if flag!='-h, --help': yield code(flag.replace('{None}|', '')), plain(text[:m.start()] if m else text), word if word not in ('`None`','`False`') else ''

def command_parts(*words, level='##'):
    "Usage, description and options of a command as Markdown; its subcommands, if it has any"
    head, boxes = help_boxes(help_text(*words))
    if not boxes: return [f'```text\n{head.strip()}\n```'], {}
    usage, _, about = head.strip().partition('\n')
    usage = re.sub(r'\{[^}]{80,}\}', 'NAME', usage) # a list of names follows below
    parts = [f'```text\n{usage.removeprefix("usage: ")}\n```', *(f'```text\n{o}\n```' if o.startswith(' ') else plain(o) for o in about.strip('\n').split('\n\n') if o.strip())]
    subs = {}
    for name,(text,options) in boxes.items():
        if name.startswith('subcommands'): subs = options; continue
        rows = list(option_rows(options))
        if not rows: continue
        parts += [f'{level} {name[0].upper()+name[1:]}', *map(plain, text), box('flags', table(['option', 'what it does', 'default'], rows))]
    return parts, subs

def task_presets():
    "`{task: preset}`: one that reads your own folder, if there is one"
    from winwin.training.recipes import presets
    out = {}
    for name,r in presets.items():
        if r.train.task not in out or r.data.is_folder and not presets[out[r.train.task]].data.is_folder: out[r.train.task] = name
    return out

def write_commands():
    "A page for every command, and one in front of them"
    _, commands = command_parts()
    row = lambda k: (f'[`winwin {k}`](/commands/{k})', plain(commands[k]))
    write_made('commands/index', '# Command line', '> Every command and every option, as `--help` prints them',
               'Training, scoring and predicting need no line of Python. `winwin COMMAND --help` says the same as these pages.',
               box('modules', table(['command', 'what it does'], [row(k) for k in commands])),
               toctree([f'winwin {k} </commands/{k}>' for k in commands]))
    for k in commands:
        parts, subs = command_parts(k)
        parts = [o for o in parts if o!=plain(commands[k])] # the subtitle says it
        if k=='train': parts = train_parts()
        write_made(f'commands/{k}', f'# winwin {k}', f'> {plain(commands[k]).split(": ")[0].rstrip(".")}', *parts)

def train_parts():
    "The page of `winwin train`: all presets, and the options for each task"
    from winwin.guide import in_flags, option_row, read_guide
    guide = read_guide()
    run = re.search(r'\nrun\n((?:  .*\n)+)', help_text('train', next(iter(guide['presets']))))[1]
    rows = [(code(e['name']), plain(f'{e["about"][0].upper()}{e["about"][1:]}'), plain(e['needs'].rstrip(':')), plain(e['time'])) for e in guide['lists']['presets']]
    parts = ['```text\nwinwin train PRESET [options]\n```', '## Presets', box('flags', table(['preset', 'what it trains', 'needs', 'time'], rows)),
             '## Options of every run', box('flags', table(['option', 'what it does'], [(code(flag), plain(text)) for flag,text in re.findall(r'  (--.*?) {2,}(.*)', run)]))]
    for task,preset in task_presets().items():
        parts.append(f'## Options for {task}, with the values of {code(preset)}')
        if root := guide['presets'][preset]['root']: parts.append(f'```text\n{in_flags(root)}\n```')
        for group,names in guide['presets'][preset]['groups'].items():
            options = dict(option_row(k, *guide['options'][k], guide['presets'][preset]['defaults'].get(k, '')) for k in names)
            if options: parts += [f'### {group[0].upper()}{group[1:]}', box('flags', table(['option', 'what it does', 'default'], list(option_rows(options))))]
    return parts

def live_pages(to):
    "Explorers as pages that need no kernel, in the folder `to`; made again only when the package has changed"
    from winwin.workbench.lab import explorers
    files = sorted(f for f in LIB.rglob('*') if f.is_file() and '__pycache__' not in f.parts)
    now = hashlib.sha256(b''.join(hashlib.sha256(f.read_bytes()).digest() for f in files)).hexdigest()
    LIVE.mkdir(exist_ok=True)
    mark = LIVE/'made-from'
    if not mark.exists() or mark.read_text()!=now:
        for name,(kind,*_) in explorers.items(): make_live(kind, name).save(LIVE/f'{name}.html')
        mark.write_text(now)
    for name in explorers: shutil.copy(LIVE/f'{name}.html', to/f'{name}.html')
    shutil.copytree(LIB/'static'/'gallery', to/'gallery', ignore=shutil.ignore_patterns('*.json'))

def make_live(kind, name):
    "An explorer on built-in data, with all marks on the curve of the temperature"
    import winwin
    ex = getattr(winwin, kind)()
    for work in ('sweep','match','learn') if name=='temperature' else ():
        ex.request(getattr(ex, work))
        ex.request(ex.reset)
    if ex.error is not None: raise ex.error
    return ex

def room_picture(room, which):
    "Markdown of a figure with a caption, such as `00_layout 1`, and its file beside the room's page"
    stem,number = which.split()
    cells = [c for c in read_nb(NBS/room/f'{stem}.ipynb').cells if c.cell_type=='code' and '#| fig-cap' in c.source]
    cell = cells[int(number)]
    png = next(o['data']['image/png'] for o in cell.outputs if 'image/png' in o.get('data', {}))
    (SRC/room/'room.png').write_bytes(base64.b64decode(png))
    caption = re.search(r'#\| fig-cap: *"?(.*?)"? *$', cell.source, re.M)[1]
    return f'![{prose(caption)}](room.png)\n\n*{prose(caption)}*'

def write_rooms(pages):
    "The front page of every room that has no notebook for it"
    for room,o in tool.plan()['rooms'].items():
        if f'{room}/index' in pages: continue
        (SRC/room).mkdir(parents=True, exist_ok=True)
        parts = [f'# {o["title"]}', f'> {o["says"]}', o['about'], room_picture(room, o['picture']),
                 f'`from winwin.{room} import ...` gives everything in the table.', room_tables(room, pages)]
        text = '\n\n'.join(parts)
        (SRC/room/'index.md').write_text(text + '\n', encoding='utf-8')

def draw_plotly(cell, i, up, loaded=False):
    "Let the bundled plotly.js draw saved plotly figures, with their picture where no script runs; whether the page has the script now"
    from winwin.data.curves import curve_html, plotly_script
    cap = cell.options_.get('fig-cap', '').strip('"') if hasattr(cell, 'options_') else ''
    for o in cell.outputs:
        if not (fig := o.get('data', {}).pop(tool.PLOTLY, None)): continue
        js = SRC/'_static'/'plotly.min.js'
        if not js.exists(): shutil.copy(plotly_script(), js)
        drawn = curve_html(json.loads(json.dumps(fig)), f'figure-{i}', o['data'].pop('image/png', ''), cap.replace('`', ''))
        if not loaded: drawn = f'<script src="{up}_static/plotly.min.js"></script>{drawn}'
        loaded = True
        o['data'] = {'text/html': f'<div class="plotly">{drawn}</div>'}
    return loaded

def write_page(page, path, pages):
    "Save a page as a notebook that myst-nb reads"
    names = {v: k for k,v in pages.items()}
    name = names[path]
    loaded = False
    for i,c in enumerate(page.cells):
        if c.options_.get('made'): continue # links are as Sphinx wants them
        if c.cell_type=='markdown':
            line = lambda s: link_names(link_notebooks(s, path, lambda p: f'/{names[p]}.ipynb'), lambda n: '#' + label(n))
            c.source = outside_code(c.source, line)
        else:
            opt = c.options_
            if opt.get('echo')=='false': c.metadata['tags'] = [*c.metadata.get('tags', []), 'remove-input']
            cap = opt.get('fig-cap')
            if cap: c.metadata['mystnb'] = {'figure': {'caption': link_names(cap, lambda n: '#' + label(n))}}
            if alt := opt.get('fig-alt', cap): c.metadata.setdefault('mystnb', {})['image'] = {'alt': alt}
            loaded = draw_plotly(c, i, '../'*name.count('/'), loaded)
    (SRC/name).parent.mkdir(parents=True, exist_ok=True)
    write_nb(page, SRC/f'{name}.ipynb')

def colab_link(name, path):
    "A cell below the title that opens a tutorial or how-to in Colab, if settings.ini has the address of a GitHub repository"
    from nbdev.config import get_config
    cfg = get_config()
    repo = cfg.git_url.removeprefix('https://github.com/')
    if repo==cfg.git_url or not name.startswith(('tutorials/','howto/')): return []
    at = f'https://colab.research.google.com/github/{repo.strip("/")}/blob/{cfg.branch}/{path.relative_to(ROOT).as_posix()}'
    return [mk_cell(f'[Open in Colab]({at})', 'markdown', options_=dict(made=True))]

def add_search_words(file):
    "Let the search find pages by the words under [search] of nbs/rooms.toml, as Sphinx finds main index entries"
    head, body, tail = re.fullmatch(r'(\w+\.setIndex\()(.*)(\))', file.read_text(encoding='utf-8'), re.S).groups()
    index = json.loads(body)
    for page,words in tool.plan()['search'].items():
        at = [index['docnames'].index(page), '', True]
        for w in words: index['indexentries'].setdefault(w.lower(), []).append(at)
    file.write_text(head + json.dumps(index, separators=(',',':')) + tail, encoding='utf-8')

# --- README.md

def picture(cell, png, k):
    "Save a picture of the front page where a code host finds it; Markdown that shows it"
    PICTURES.mkdir(exist_ok=True)
    file, data = PICTURES/f'{cell.options_.get("label", f"figure-{k}")}.png', base64.b64decode(png)
    if not file.exists() or file.read_bytes()!=data: file.write_bytes(data)
    alt = cell.options_.get('fig-alt', cell.options_.get('fig-cap', ''))
    return file, f'![{alt}]({file.relative_to(ROOT).as_posix()})'

def readme(page):
    "The front page as Markdown: prose, code and saved results, with links to the notebooks"
    path, out, kept = NBS/'index.ipynb', ['<!-- Made from nbs/index.ipynb by tools/docs.py: edit that, not this file. -->'], set()
    source = {m: p for p in tool.notebooks() if (m := module_of(p))}
    here = lambda p: p.relative_to(ROOT).as_posix()
    for c in page.cells:
        if c.cell_type=='markdown':
            line = lambda s: link_names(link_notebooks(s, path, here), lambda n: here(source[homes()[n]]))
            out.append(outside_code(c.source, line)); continue
        if c.options_.get('echo')!='false': out.append(f'```python\n{c.source.strip()}\n```')
        for o in c.outputs:
            data = o.get('data', {})
            if 'image/png' in data:
                file, md = picture(c, data['image/png'], len(kept)+1)
                kept.add(file); out.append(md)
                if 'fig-cap' in c.options_: out.append(f"*{c.options_['fig-cap']}*")
            elif 'text/markdown' in data: out.append(''.join(data['text/markdown']).rstrip())
            elif text := ''.join(o.get('text') or data.get('text/plain', '')): out.append(f'```text\n{text.rstrip()}\n```')
    for p in PICTURES.glob('*.png'):
        if p not in kept: p.unlink()
    (ROOT/'README.md').write_text('\n\n'.join(out) + '\n', encoding='utf-8')

def check(files):
    "Nothing that is published may name this machine or a local host"
    bad = re.compile('https?://(?:localhost|127\\.0\\.0\\.1)|' + re.escape(f'{ROOT}/'))
    found = [f'{f.relative_to(ROOT)}: {m[0]}' for f in files if (m := bad.search(f.read_text(encoding='utf-8')))]
    if found: sys.exit('names of this machine in the output:\n' + '\n'.join(found))

def main():
    tool.export()
    pages = {page_name(p): p for p in tool.notebooks()}
    plan = sidebar(pages)
    shutil.rmtree(WORK, ignore_errors=True)
    shutil.copytree(ROOT/'docs', SRC, ignore=shutil.ignore_patterns('readme', '__pycache__'))
    live_pages(SRC/'_static'/'workbench')
    for name,path in pages.items():
        page = read_page(path)
        if name=='index':
            readme(page)
            page.cells.append(mk_cell(toctrees(plan), 'markdown', options_={}))
        elif mine := tool.plan()['behind'].get(name): page.cells.append(mk_cell(toctree([re.sub('<', '</', o) for o in mine]), 'markdown', options_=dict(made=True)))
        elif name.endswith('/index'): page.cells.append(mk_cell(room_tables(name.split('/')[0], pages), 'markdown', options_=dict(made=True)))
        page.cells[1:1] = colab_link(name, path)
        write_page(page, path, pages)
    write_rooms(pages)
    write_reference(pages)
    write_commands()
    err = subprocess.call([sys.executable, '-m', 'sphinx', '-q', '-W', '--keep-going', '-d', WORK/'doctrees', '-b', 'html', SRC, HTML], cwd=ROOT)
    if err: sys.exit(err)
    add_search_words(HTML/'searchindex.js')
    check([ROOT/'README.md', *HTML.rglob('*.html'), HTML/'searchindex.js'])
    shutil.rmtree(OUT, ignore_errors=True)
    HTML.rename(OUT)
    print(f'README.md and {len(pages)} pages in {OUT.relative_to(ROOT)}/')

if __name__=='__main__': main()
