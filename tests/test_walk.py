"""The shell commands of the README, the tutorials and the how-tos, as written, one after another in a fresh folder.

Commands are parsed and run as they stand; what they train is capped by a wrapper around `train_recipe` (one step, two images,
the micro model unless a file of weights is named), exported files of a given size are small, and data and weights are tiny imitations. `winwin demo`, `lab` and `app` are
called with a stand-in for the long part, which `test_demo.py` and `test_workbench.py` run; `torchrun` is left off, which
`test_train.py` covers; `pip install` is checked against the extras. What needs a download or a published set is parsed only.
"""
import json, re, shlex, shutil, socket, subprocess, sys
from configparser import ConfigParser
from pathlib import Path
import numpy as np, pytest, torch
from PIL import Image
from torchvision.transforms.functional import to_pil_image

import nb as tool # tools/
from conftest import ROOT

RUN = 'winwin train folder-seg --root my_data --classes road car other' # a run for the pages that speak of one
PAGES = {p: b for p in tool.notebooks() if p.parent.name in ('howto','tutorials') or p.name=='index.ipynb' if (b := [
    line for c in json.loads(p.read_text(encoding='utf-8'))['cells'] if c['cell_type']=='markdown'
    for block in re.findall(r'```sh\n(.*?)```', ''.join(c['source']), re.S) for line in block.strip().splitlines()])}
DINO = ROOT/'nbs/tutorials/dinov3.ipynb' # it has a test of its own
DOWNLOADS = ('--weights timm', 'sintel-flow') # parsed only

def picture(path, size, seed, kind='RGB'):
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = torch.Generator().manual_seed(seed)
    if kind=='RGB': to_pil_image(torch.rand(3,*size, generator=rng)).save(path)
    else: to_pil_image(torch.randint(0, 3, (1,*size), generator=rng, dtype=torch.uint8)).save(path)

def five_bands(tmp_path):
    "The task and files like those that the page on five bands makes"
    import numpy as np, tifffile
    cells = json.loads((ROOT/'nbs/tutorials/five_bands.ipynb').read_text(encoding='utf-8'))['cells']
    task = next(s for s in (''.join(c['source']) for c in cells) if s.startswith('source = """'))
    (tmp_path/'height.py').write_text(task.split('"""')[1])
    for part in ('images','height'): (tmp_path/'fields'/part).mkdir(parents=True)
    for i in range(5):
        bands = np.random.default_rng(i).integers(0, 4000, (96,128,5)).astype(np.uint16)
        tifffile.imwrite(tmp_path/f'fields/images/{i}.tif', bands, photometric='minisblack', planarconfig='contig')
        np.save(tmp_path/f'fields/height/{i}.npy', bands[...,0]/1000+.1)

@pytest.fixture
def fresh(tmp_path, monkeypatch):
    "A folder with what the pages assume: own images with labels, photographs, frames, a file of weights"
    import timm
    from safetensors.torch import save_file
    for root in ('my_data','photos'):
        for split,n in dict(train=2, val=1).items():
            for i in range(n):
                picture(tmp_path/root/f'images/{split}/{i}.png', (224,448), i)
                picture(tmp_path/root/f'labels/{split}/{i}.png', (224,448), i, 'L')
    for i in range(7): picture(tmp_path/f'my_frames/{i:03}.png', (224,448), i)
    for name in ('photos/a.png','a.png','b.png'): picture(tmp_path/name, (96,160), 0)
    picture(tmp_path/'IMAGES'/'a.png', (512,512), 0)
    cells = json.loads((ROOT/'nbs/howto/own_task.ipynb').read_text(encoding='utf-8'))['cells']
    task = next(s for s in (''.join(c['source']) for c in cells) if s.startswith('source = """'))
    (tmp_path/'my_tasks.py').write_text(task.split('"""')[1]) # the files that the page on own tasks shows
    heights = next(s for s in (''.join(c['source']) for c in cells) if 'heights = """' in s)
    (tmp_path/'my_heights.py').write_text(heights.split('"""')[1])
    (tmp_path/'data/height').mkdir(parents=True)
    for i in range(5):
        picture(tmp_path/f'data/images/{i}.png', (224,448), i)
        np.save(tmp_path/f'data/height/{i}.npy', np.zeros((224,448), np.float32))
    five_bands(tmp_path)
    save_file(timm.create_model('vit_tiny_patch16_224').state_dict(), tmp_path/'deit_tiny_patch16_224.safetensors')
    monkeypatch.chdir(tmp_path)
    return tmp_path

@pytest.fixture
def capped(monkeypatch):
    "Short training, and stand-ins for what would take long or serve forever; the list of what was called"
    from winwin.experiments import demo
    from winwin.inference import export
    from winwin.training import recipes
    from winwin.workbench import lab
    real, called = recipes.train_recipe, []
    def short(recipe, out, **kw):
        called.append(out)
        less = dict(steps=1, batch_size=2, workers=0, images=2, valid_images=1, save_every=1)
        if recipe.train.size: less['size'] = (224,448)
        if not recipe.model.weights: less['model'] = re.sub('_(tiny|small|base|large)$', '_micro', recipe.model.name)
        return real(recipes.change(recipe, **less), out, **kw)
    monkeypatch.setattr(recipes, 'train_recipe', short)
    write = export.export_model
    monkeypatch.setattr(export, 'export_model', lambda m, out, kind, size, dynamic: write(m, out, kind, size and (48,80), dynamic))
    monkeypatch.setattr(demo, 'run_demo', lambda *a, **k: called.append('demo') or 'winwin-demo/report.html')
    monkeypatch.setattr(lab, 'run_lab', lambda *a, **k: called.append('lab') or 0)
    return called

def walk(line):
    "Run one command of a line"
    from winwin.cli import main, parse_train
    words = shlex.split(line.replace('"$(which winwin)"', 'winwin'), comments=True)
    while words and re.fullmatch(r'[A-Z_]+=\w+', words[0]): del words[0]
    if 'torchrun' in words: words = words[words.index('winwin'):]
    if words[:2]==['pip','install']:
        cfg = ConfigParser(interpolation=None)
        cfg.read(ROOT/'settings.ini', encoding='utf-8')
        for extra in re.findall(r'\.\[(\w+)\]', line): assert f'{extra}_requirements' in cfg['DEFAULT'], line
    elif words[:2]==['git','clone']:
        subprocess.run(['git','clone','-q',str(ROOT),words[3]], check=True)
        assert Path(words[3], 'setup.py').exists()
    elif words[0]=='cd': assert Path(words[1]).is_dir(), line
    elif words[0]=='winwin':
        if any(o in line for o in DOWNLOADS): return parse_train(words[2:])
        with pytest.raises(SystemExit) as end: main(words[1:])
        assert end.value.code in (0,None), line
    else: pytest.fail(f'the walk does not know {line!r}')

def as_typed(line):
    "A line with its placeholders filled in, as a reader would"
    for word,own in (('RUN','runs/folder-seg'), ('car ...','car other')): line = re.sub(rf'(?<!\w){re.escape(word)}(?!\w)', own, line)
    return [part.strip() for part in line.split('&&')]

@pytest.mark.parametrize('page', [p for p in PAGES if p!=DINO], ids=lambda p: p.stem)
def test_commands_of(page, fresh, capped, capsys):
    lines = [o for line in PAGES[page] for o in as_typed(line)]
    first = next((i for i,o in enumerate(lines) if 'runs/folder-seg' in o.split()), None)
    if first is not None and not any(o.startswith(RUN) for o in lines[:first]): walk(RUN) # the page assumes a run
    for line in lines:
        try: walk(line)
        except BaseException as e: raise AssertionError(f'{page.name}: {line}\n{capsys.readouterr().err[-2000:]}') from e

@pytest.mark.slow
@pytest.mark.skipif(not shutil.which('curl'), reason='the last command is curl')
def test_photographs_of_ten_sizes_become_a_served_file(tmp_path, monkeypatch, capsys):
    "At most eight commands, as written but for the steps and the port, on fewer of the page's photographs"
    import timm
    from safetensors.torch import save_file
    from winwin import DrivingWorld
    monkeypatch.chdir(tmp_path)
    cells = [''.join(c['source']) for c in json.loads(DINO.read_text(encoding='utf-8'))['cells']]
    make = next(s for s in cells if 'def write_photographs' in s)
    page = dict(Path=Path, torch=torch, Image=Image, DrivingWorld=DrivingWorld)
    exec(make, page)
    for split,n in dict(train=10, val=4).items(): page['write_photographs'](split, n, seed=n)
    serve = next(s for s in cells if s.startswith('source = """') and 'http.server' in s)
    Path('serve.py').write_text(serve.split('"""')[1])
    save_file(timm.create_model('vit_small_patch16_dinov3').state_dict(), 'dinov3.safetensors')
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = str(s.getsockname()[1])
    assert len(PAGES[DINO])<=8 and all(n in ' '.join(PAGES[DINO]) for n in ('--batch-size 8','--train head','--weights','localhost:8000'))
    server = None
    try:
        for line in PAGES[DINO]:
            words = shlex.split(line.replace('8000', port).replace('--steps 100 --warmup 10', '--steps 2 --warmup 1'))
            if words[0]=='python': server = subprocess.Popen([sys.executable, *words[1:-1]], stderr=subprocess.DEVNULL) # without the &
            elif words[0]=='curl': subprocess.run(words, check=True, timeout=300)
            else: walk(shlex.join(words))
    finally:
        if server: server.kill()
        if server: server.wait()
    served,want = (np.array(Image.open(o)) for o in ('map.png','maps/labels/03.png'))
    assert served.shape==want.shape==page['sizes'][3] and (served==want).mean()>.999

def test_every_page_that_shows_commands_is_walked():
    assert {p.stem for p in PAGES}>={'index','quickstart','deploy','several_gpus','pretrained','full_tiles_resize'}

def test_names_in_passing_exist():
    "Benchmarks, studies and presets that the prose of these pages names"
    from winwin.bench.harness import list_benches
    from winwin.experiments.studies import list_studies
    from winwin.training.recipes import presets
    known = dict(bench=list_benches(), study=list_studies(), train=presets)
    for p in tool.notebooks():
        if p.parent.name not in ('howto','tutorials','results') and p.name not in ('index.ipynb','faq.ipynb'): continue
        text = ''.join(''.join(c['source']) for c in json.loads(p.read_text(encoding='utf-8'))['cells'] if c['cell_type']=='markdown')
        for kind,name in re.findall(r'`winwin (bench|study|train) ([a-z][\w-]+)', text): assert name in known[kind], f'{p.name}: winwin {kind} {name}'
