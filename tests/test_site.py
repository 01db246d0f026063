"The site as a reader meets it: in Chromium, from loopback, without a network."
import json, re
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit
import pytest
from execnb.nbio import mk_cell

import docs, nb as tool # tools/
from conftest import ROOT

NOTEBOOKS = {docs.page_name(p): p for p in tool.notebooks()}
PAGES = [*NOTEBOOKS, *(p for r in tool.plan()['rooms'] if (p := f'{r}/index') not in NOTEBOOKS), *sorted(docs.MADE), 'commands/train', 'commands/predict']
each_page = pytest.mark.parametrize('name', PAGES)
CONTRAST = '''(selector) => { // lowest contrast of text with its background, and where
    const rgb = s => s.match(/[\\d.]+/g).map(Number), lin = v => (v /= 255) <= .03928 ? v/12.92 : ((v+.055)/1.055)**2.4
    const lum = c => .2126*lin(c[0]) + .7152*lin(c[1]) + .0722*lin(c[2])
    const back = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > .5) return c } return [255,255,255] }
    return [...document.querySelectorAll(selector)].filter(e => e.offsetParent && e.textContent.trim()).map(e => {
        const [a, b] = [lum(rgb(getComputedStyle(e).color)), lum(back(e))].sort((x, y) => y - x)
        return [(a+.05)/(b+.05), `${e.className} ${e.textContent.slice(0,30)}`] }).sort((x, y) => x[0] - y[0])[0] }'''

class Links(HTMLParser):
    "Links and anchors of a page"
    def __init__(self, text):
        super().__init__()
        self.links, self.ids = set(), set()
        self.feed(text)
    def handle_starttag(self, tag, attrs):
        for k,v in attrs:
            if k in ('href','src') and v: self.links.add(v)
            if k=='id': self.ids.add(v)

@pytest.fixture(scope='session')
def html(site): return {p.relative_to(site).as_posix(): Links(p.read_text(encoding='utf-8')) for p in site.rglob('*.html')}

@each_page
def test_links_lead_somewhere(name, site, html):
    file = f'{name}.html'
    for link in html[file].links:
        to = urlsplit(link)
        if to.scheme or link.startswith('//'):
            assert to.hostname not in ('localhost','127.0.0.1'), link
            continue
        target = (site/file).parent/unquote(to.path) if to.path else site/file
        assert target.exists(), f'{file} links to {link}'
        rel = target.resolve().relative_to(site.resolve()).as_posix()
        if to.fragment and rel in html: assert to.fragment in html[rel].ids, f'{file} links to {link}'

@pytest.mark.browser
@each_page
def test_page_opens_cleanly(name, url, page):
    page.goto(f'{url}/{name}.html')
    assert re.fullmatch(r'(.+ - )?winwin', page.title())
    assert page.locator('article h1').count()==1
    assert page.locator('h1 + blockquote').count()==1, 'the subtitle stands below the title'
    assert page.evaluate('[...document.images].every(i => i.complete && i.naturalWidth)'), 'a picture is missing'
    assert page.evaluate('document.documentElement.scrollWidth <= innerWidth'), 'the page is wider than the window'
    assert not page.problems and not page.outside

@pytest.mark.browser
def test_sidebar_is_in_reading_order(url, page):
    plan = docs.sidebar(NOTEBOOKS)
    page.goto(f'{url}/index.html')
    assert page.locator('.sidebar-tree .caption').all_text_contents()==list(plan)
    links = lambda where: [o.removesuffix('.html') or 'index' for o in
                           page.eval_on_selector_all(where, 'as => as.map(a => new URL(a.href).pathname.slice(1))')]
    seen = links('.sidebar-tree > ul > li > a.reference')
    assert seen==[n for names in plan.values() for n in names] and len(seen)<=32, 'rooms are closed, and a newcomer sees few lines'
    assert page.locator('.sidebar-tree a.reference:visible').count()==len(seen)
    under = lambda p: f'.sidebar-tree li:has(> a[href="{p}.html"]) > ul > li > a.reference'
    assert links(under('reference'))==[f'{r}/index' for r in tool.plan()['rooms']]
    for room in tool.plan()['rooms']: assert links(under(f'{room}/index'))==docs.public_pages(room, NOTEBOOKS)
    inner = [p for r in tool.plan()['rooms'] for p in docs.internal_pages(r)]
    assert links(under('inside'))==[*docs.hall_pages(), *inner]

@pytest.mark.browser
@pytest.mark.parametrize('name', ['worlds/raycast', 'temperature/checkpoint', 'paper'])
def test_sidebar_shows_the_current_page(name, url, page):
    page.set_viewport_size(dict(width=1400, height=500))
    page.goto(f'{url}/{name}.html')
    box, here = (page.locator(s).first.bounding_box() for s in ('.sidebar-scroll', '.sidebar-tree .current-page > a'))
    assert box['y']<=here['y'] and here['y']+here['height']<=box['y']+box['height']

def search(page, url, words):
    "Pages that the search finds, best first"
    page.goto(f'{url}/search.html?q={words.replace(" ", "+")}')
    page.wait_for_function("document.querySelector('#search-results p, #search-results .search-summary')?.textContent.match(/found|did not match/i)")
    page.wait_for_timeout(300)
    return [re.sub(r'\.html.*', '', o) for o in page.eval_on_selector_all('#search-results li > a', "as => as.map(a => new URL(a.href).pathname.slice(1))")]

@pytest.mark.browser
@pytest.mark.parametrize('words,fits', {
    'sample_windows': 'windows/sampling', 'finetune': 'howto/finetune', 'lora': 'howto/finetune', 'custom task': 'howto/own_task',
    'custom head': 'howto/own_head', 'multispectral': 'tutorials/five_bands', 'in_chans': 'howto/own_model', 'quickstart': 'howto/quickstart', 'citation': 'paper',
    'deploy': 'howto/deploy', 'multi gpu': 'howto/several_gpus', 'mixed precision': 'howto/several_gpus', 'own dataset': 'howto/own_dataset'}.items())
def test_search_finds(words, fits, url, page):
    found = search(page, url, words)
    assert fits in found[:3], f'{words}: {found[:5]}'
    assert not page.problems and not page.outside

@pytest.mark.browser
def test_phone_shows_the_options_whole(url, page):
    page.set_viewport_size(dict(width=400, height=800))
    page.goto(f'{url}/commands/predict.html')
    assert page.evaluate('document.documentElement.scrollWidth <= innerWidth')
    assert page.evaluate("[...document.querySelectorAll('.flags .table-wrapper')].every(e => e.scrollWidth <= e.clientWidth + 1)"), 'nothing to scroll sideways'

def test_command_line_reference_is_complete(site):
    "Every command, every preset, and every option of `winwin predict`, from their own help"
    from winwin.training.recipes import presets
    _, commands = docs.command_parts()
    assert {'train','predict','eval','export','doctor'}<=set(commands)
    text = {k: (site/f'commands/{k}.html').read_text(encoding='utf-8') for k in commands}
    for name in presets: assert f'>{name}<' in text['train'], name
    options = {o.lstrip('-') for o in re.findall(r'--[\w-]+', docs.help_text('predict'))} - {'help'}
    assert len(options)>10
    for o in options: assert f'--{o}' in text['predict'], o

def test_help_boxes_are_read():
    text = 'usage: x\n\nAbout.\n\n╭─ options ──╮\n│ Words first │\n│ ─────────── │\n│ --a STR  Long text   │\n│          goes on (default: 1)  │\n│ --bee    │\n│          (required)   │\n╰────╯'
    head, boxes = docs.help_boxes(text)
    assert head.startswith('usage: x') and 'About.' in head
    assert boxes=={'options': (['Words first'], {'--a STR': 'Long text goes on (default: 1)', '--bee': '(required)'})}
    assert list(docs.option_rows(boxes['options'][1]))==[('`--a STR`', 'Long text goes on ', '`1`'), ('`--bee`', '', 'required')]

@pytest.mark.parametrize('room', [r for r,o in tool.plan()['rooms'].items() if 'example' in o])
def test_examples_of_rooms_run(room, tmp_path, monkeypatch):
    from PIL import Image
    for kind,mode in (('images','RGB'), ('labels','L')):
        (tmp_path/'my_data'/kind/'train').mkdir(parents=True)
        Image.new(mode, (64,48)).save(tmp_path/f'my_data/{kind}/train/a.png')
    monkeypatch.chdir(tmp_path)
    exec(compile(tool.plan()['rooms'][room]['example'], f'{room} example', 'exec'), {})

def test_tutorials_link_to_colab_when_there_is_a_repository(monkeypatch):
    from nbdev.config import get_config
    path = NOTEBOOKS['tutorials/own_loop']
    assert docs.colab_link('tutorials/own_loop', path)==[] or get_config().git_url
    monkeypatch.setattr(get_config(), 'git_url', 'https://github.com/someone/winwin')
    assert docs.colab_link('windows/layout', NOTEBOOKS['windows/layout'])==[]
    cell, = docs.colab_link('tutorials/own_loop', path)
    assert 'colab.research.google.com/github/someone/winwin/blob/main/nbs/tutorials/own_loop.ipynb' in cell.source

def test_search_words_belong_to_pages():
    assert tool.plan()['search'].keys()<=NOTEBOOKS.keys()

@pytest.mark.browser
@pytest.mark.parametrize('name', ['index', 'windows/layout'])
def test_light_and_dark_are_readable(name, url, page):
    page.emulate_media(color_scheme='light')
    page.goto(f'{url}/{name}.html')
    seen = {}
    for _ in range(3): # the button goes from automatic through the two modes
        back = page.evaluate('getComputedStyle(document.body).backgroundColor')
        seen[back] = {s: page.evaluate(CONTRAST, s) for s in ('article p', 'article .highlight span', '.sidebar-tree a')}
        page.locator('.theme-toggle:visible').first.click()
    assert len(seen)==2, f'one background only: {list(seen)}'
    for back,worst in seen.items():
        for selector,(ratio,where) in worst.items(): assert ratio>4.5, f'{selector} on {back}: {ratio:.1f}, {where}'
    assert page.evaluate("getComputedStyle(document.querySelector('article img')).backgroundColor")=='rgb(255, 255, 255)', 'figures are drawn for white'

@pytest.mark.browser
def test_page_of_an_idea(url, page):
    "Source, parameters and methods stand where a reader looks for them"
    page.goto(f'{url}/windows/sampling.html')
    assert 'def sample_windows(' in page.locator('.tag_source', has_text='def sample_windows').inner_text()
    rows = page.locator('section', has=page.locator('xpath=./h3[contains(., "sample_windows")]')).locator('.params tr').all_inner_texts()
    assert ['grid', 'sizes', 'batch'] == [r.split()[0] for r in rows[1:4]]
    page.goto(f'{url}/windows/layout.html')
    methods = page.locator('.methods').first.inner_text()
    assert all(f'{m}(' in methods for m in ('full', 'index', 'positions', 'split', 'to')) and 'The whole image as one window' in methods
    assert not page.locator('.cell_input', has_text='def show_windows').count(), 'the source of `#| export` cells stays in the notebook'
    assert page.locator('figcaption').count()>=2 and not page.get_by_text('#| fig-cap').count()
    assert not page.get_by_text('from fastcore.test import').count(), 'hidden cells are hidden'

@pytest.mark.browser
def test_curves_are_drawn_offline_and_are_pictures_without_scripts(page, browser, tmp_path, monkeypatch):
    import matplotlib.pyplot as plt
    from winwin.data.curves import hover
    monkeypatch.setattr(docs, 'SRC', tmp_path)
    (tmp_path/'_static').mkdir()
    fig,ax = plt.subplots()
    ax.plot([1,2,4], [1,3,2], 'o-', label='one')
    ax.plot([1,2,4], [2,1,3], 'o-', label='two')
    ax.set(xlabel='step', ylabel='loss')
    ax.legend()
    data = {k: v for k,v in hover(fig)._repr_mimebundle_().items() if k!='text/plain'}
    parts = []
    loaded = False
    for i in range(2):
        cell = mk_cell('fig', options_={'fig-cap': 'A `curve`'})
        cell.outputs = [dict(output_type='display_data', metadata={}, data=dict(data))]
        loaded = docs.draw_plotly(cell, i, '', loaded)
        parts.append(cell.outputs[0]['data']['text/html'])
    html = ''.join(parts)
    assert loaded and html.count('_static/plotly.min.js')==1 and html.count('alt="A curve"')==2
    file = tmp_path/'page.html'
    file.write_text(f'<!doctype html><meta charset="utf-8">{html}', encoding='utf-8')
    page.goto(file.as_uri())
    for i in range(2): page.wait_for_selector(f'#figure-{i} .main-svg .scatter')
    point = page.locator('#figure-0 .point').nth(1)
    point.hover(force=True)
    page.locator('#figure-0 .hovertext', has_text='step 2').wait_for()
    page.locator('#figure-0 .legendtoggle').first.click()
    page.wait_for_function("document.querySelectorAll('#figure-0 .trace.scatter').length==1")
    assert not page.problems and not page.outside
    still = browser.new_context(java_script_enabled=False).new_page()
    still.goto(file.as_uri())
    assert still.locator('img').count()==2 and still.locator('img').first.bounding_box()['width']>200
    still.context.close()

# --- README.md and the tool

def test_readme_shows_on_a_code_host():
    text = (ROOT/'README.md').read_text(encoding='utf-8')
    targets = [t for t in re.findall(r'\]\(([^)]+)\)', text) if '://' not in t]
    assert any(t.endswith('.png') for t in targets) and any(t.startswith('nbs/') for t in targets)
    for t in targets: assert (ROOT/t.partition('#')[0]).exists(), t
    assert 'plt.figure' not in text, 'the picture shows, its code does not'

def test_a_notebook_without_a_place_is_refused():
    with pytest.raises(SystemExit, match=r'does not list ghost: put each into a room'): docs.sidebar({'index': None, 'ghost': None})

def test_every_room_has_a_page(site):
    for room,o in tool.plan()['rooms'].items():
        text = (site/room/'index.html').read_text(encoding='utf-8')
        assert ('In a few lines' in text)==('example' in o)
        for p in docs.room_pages(room, NOTEBOOKS): assert f'href="{p.split("/")[1]}.html"' in text, f'{room}: no link to {p}'
        assert ('Internals' in text)==bool(o.get('internal'))

def test_names_become_links():
    where = lambda n: f'#{docs.label(n)}'
    assert docs.link_names('see `Windows.full` and `sample_windows()`', where)==\
        'see [`Windows.full`](#windows.layout.windows) and [`sample_windows()`](#windows.sampling.sample_windows)'
    for same in ('`_as_size`', '`no_such_name`', '[`Windows`](elsewhere)', '``Windows``', 'Windows'): assert docs.link_names(same, where)==same
    md = '# `Windows`\n```python\n`Windows`\n```\n`Windows`'
    assert docs.outside_code(md, lambda s: docs.link_names(s, where))==md[:-9]+'[`Windows`](#windows.layout.windows)'

def test_each_source_follows_its_name():
    src = 'import math\n\n# constraint\n@cache\ndef crop_windows(): pass\n\ndef _help(): pass\n\nclass Windows: pass'
    assert docs.pieces(src)==[(None, 'import math'), ('crop_windows', '# constraint\n@cache\ndef crop_windows(): pass\n\ndef _help(): pass'),
                              ('Windows', 'class Windows: pass')]
    assert docs.pieces('def _help(): pass')==[(None, 'def _help(): pass')]

def test_parameters_are_read_from_the_module():
    rows = docs.params(docs.find(docs.module('windows.sampling')[0], 'sample_windows'), 'windows.sampling')
    assert rows[:3]==[('grid', 'tuple[int,int]', '', 'Token grid (H,W)'), ('sizes', 'Sequence[tuple[int,int]]', '', 'One (h,w) per window'),
                      ('batch', 'int', '1', 'Images')]
    assert [r[0] for r in docs.params(docs.find(docs.module('windows.layout')[0], 'Windows'), 'windows.layout')]==['yx', 'sizes', 'grid', 'extra', 'grids', 'packed']
