"Every file the library reads: empty, cut, noise, of another type, a folder, a pipe, or lying about its size. An error names it, soon, in little memory."
import json, os, shutil, struct, zipfile, zlib
from pathlib import Path
import h5py, numpy as np, pytest, tifffile, torch
from PIL import Image
from winwin.cli import read_palette
from winwin.data.benchmarks import NYUv2
from winwin.data.catalogue import CocoNotes
from winwin.data.flow_files import read_flow, write_flow
from winwin.data.folders import SegFolder
from winwin.data.images import find_files, image_bands, read_depth, read_image, read_labels, stored_size, turned_text
from winwin.data.rasters import RasterFile
from winwin.experiments.claims import read_results
from winwin.experiments.studies import photo_table, read_study, trained_steps
from winwin.inference.export import Exported
from winwin.inference.readings import read_sums, write_sums
from winwin.machine import resident, write_tensors
from winwin.models.backbones import timm_encoder
from winwin.models.released import load_croco, load_depth_anything
from winwin.models.dense import create_model
from winwin.models.hub import load_model
from winwin.models.loading import load_vit
from winwin.tasks.depth import DepthTask
from winwin.tasks.normals import NormalsTask
from winwin.tasks.registry import check_task_name, make_task
from winwin.tasks.stereo import read_disparity, write_disparity
from winwin.temperature.checkpoint import open_run
from winwin.temperature.search import sweep_temperature
from winwin.training.checkpoints import read_state
from winwin.training.recipes import train_recipe
from winwin.workbench.lab import named_model
from winwin.worlds.datasets import DrivingWorld
from winwin.worlds.textures import Photos
from .conftest import limit, tiny
from .test_code import program

rng = np.random.default_rng(0)
NOISE = rng.integers(0, 256, 3000, np.uint8).tobytes()

def damaged(data):
    "Name and bytes of a file's damaged versions"
    yield 'empty', b''
    yield 'one byte', data[:1]
    yield 'half', data[:len(data)//2]
    yield 'noise', NOISE
    yield 'zeros', bytes(len(data))
    yield 'head and noise', data[:24]+NOISE
    yield 'text', 'Grüße\n'.encode('latin-1')
    yield 'page', b'<html><body>404</body></html>'

def each_damage(attack, path, read, skip=(), name=None):
    "Damage `path` in every way, and read it"
    path = Path(path)
    data = path.read_bytes()
    words = [name or path.name]
    for what,now in damaged(data):
        if what in skip: continue
        path.write_bytes(now)
        attack.refused(f'{path.name} {what}', read, *words)
    path.unlink()
    if 'missing' not in skip: attack.refused(f'{path.name} missing', read, *words)
    path.mkdir()
    attack.refused(f'{path.name} folder', read, *words)
    path.rmdir()
    os.mkfifo(path)
    attack.refused(f'{path.name} pipe', read, *words)
    path.unlink()
    path.write_bytes(data)

@pytest.fixture(autouse=True)
def little_memory():
    before = resident()[0]
    Path('/proc/self/clear_refs').write_text('5') if os.access('/proc/self/clear_refs', os.W_OK) else None # the peak begins anew
    yield
    grown = resident()[1]-before
    assert grown<2**30, f'{grown/2**30:.1f} GB'

# --- Models and checkpoints

JSON = [b'null', b'[]', b'7', b'"x"', b'{}', b'{"format": 1}', b'{"format": 99}', b'['*100000, b'{"format": 1, "model": 7, "tau": {}, "metrics": {}, "extra": {}}',
        b'{"format": 1, "model": {"name": 3, "arguments": {}}, "tau": {}, "metrics": {}, "extra": {}}', b'{"format": 1, "model": {"name": "x", "arguments": []}, "tau": {}, "metrics": {}, "extra": {}}',
        b'{"format": 1, "model": {"name": "winwin_seg_huge", "arguments": {}}, "tau": {}, "metrics": {}, "extra": {}}', b'{"format": 1, "model": {"name": "hf-hub:a/b:seg", "arguments": {}}, "tau": {}, "metrics": {}, "extra": {}}']

def test_model_folders(saved, tmp_path, attack):
    folder = shutil.copytree(saved, tmp_path/'m')
    for name in ('config.json','model.safetensors'): each_damage(attack, folder/name, lambda: load_model(folder), name=str(folder) if name=='config.json' else name)
    config = json.loads((folder/'config.json').read_text())
    for text in JSON:
        (folder/'config.json').write_bytes(text)
        attack.refused(f'config {text[:70]}', lambda: load_model(folder), str(folder))
    for k,v in [('tau',[]), ('tau',{'encoder.blocks.0.attn': -1.}), ('tau',{'encoder.blocks.0.attn': float('nan')}), ('tau',{'encoder.blocks.0.attn': 'x'}), ('tau',{'encoder.blocks.0.attn': []}),
                ('tau',{'encoder.blocks.0.attn': [1.,2.,3.]}), ('tau',{'encoder.blocks.0.attn': {}}), ('tau',{'no.layer': 1.}), ('tau',{'encoder.blocks.0.attn': True and None}), ('metrics',None), ('extra','x')]:
        (folder/'config.json').write_text(json.dumps(config | {k: v}))
        attack.refused(f'config {k} {v}', lambda: load_model(folder), str(folder))

def lying_safetensors(claim):
    "A file whose header claims more than it holds"
    head = json.dumps({'x': dict(dtype='F32', shape=[claim], data_offsets=[0,4*claim])}).encode()
    return struct.pack('<Q', len(head)) + head + bytes(16)

def test_safetensors_that_lie(saved, tmp_path, attack):
    folder = shutil.copytree(saved, tmp_path/'m')
    for data in (lying_safetensors(10**9), lying_safetensors(2**62), struct.pack('<Q', 2**60)+b'{}', struct.pack('<Q', 2)+b'{}', struct.pack('<Q', 4)+b'null'):
        (folder/'model.safetensors').write_bytes(data)
        attack.refused(f'safetensors {data[:40]}', lambda: load_model(folder), str(folder))

def test_checkpoints(run, cache, tmp_path, attack):
    out = shutil.copytree(run, tmp_path/'run')
    recipe = tiny(root=str(cache))
    for name in ('state.json','state.safetensors'): each_damage(attack, out/'last'/name, lambda: read_state(out/'last'))
    for text in (b'null', b'[]', b'{}', b'{"value": 1}', b'{"dict": 7}', b'{"dict": [["step", {"value": 1}]]}', b'{"tensor": "none"}', b'{"list": [[0, {"list": [[0, {"odd": 1}]]}]]}'):
        (out/'last'/'state.json').write_bytes(text)
        attack.refused(f'state {text[:50]}', lambda: train_recipe(recipe, out, resume=True, progress=False), 'state.json')
    shutil.copy(run/'last'/'state.json', out/'last'/'state.json')
    config = json.loads((out/'last'/'config.json').read_text())
    for change,words in [(dict(step=99), 'two processes'), (dict(recipe=config['extra']['recipe'] | dict(colour=1)), 'newer'), (dict(recipe=config['extra']['recipe'] | dict(train=dict(steps=1, speed=2))), 'newer')]:
        (out/'last'/'config.json').write_text(json.dumps(config | dict(extra=config['extra'] | change)))
        attack.refused(f'resume {words}', lambda: train_recipe(recipe, out, resume=True, progress=False), words)
        if words=='newer': attack.refused(f'open_run {words}', lambda: open_run(out/'last'), words)

def test_a_flipped_bit(run, cache, tmp_path, attack):
    out = shutil.copytree(run, tmp_path/'run')
    for name in ('model.safetensors','state.safetensors'):
        data = (out/'last'/name).read_bytes()
        for at in (-1, -len(data)//3):
            bad = bytearray(data)
            bad[at] ^= 1
            (out/'last'/name).write_bytes(bad)
            attack.refused(f'{name} {at}', lambda: train_recipe(tiny(root=str(cache)), out, resume=True, progress=False), name, 'checksum')
        (out/'last'/name).write_bytes(data)
    state = json.loads((out/'last'/'state.json').read_text())
    del state['checksums'] # as an older version wrote it
    (out/'last'/'state.json').write_text(json.dumps(state))
    with limit(): train_recipe(tiny(root=str(cache)), out, resume=True, progress=False)

@pytest.mark.parametrize('text', ['{"step": 1, "loss": {"a": 1}', '{"step": 1}{"step": 2}', '\udcff\udcfe', '7', '[]', 'null', '{"step": "one"}', '{"loss": 2}', '{"step": 1, "cpu_s": "x"}', '['*10**5])
def test_damaged_logs_do_not_block_a_checkpoint(text, run, cache, tmp_path, attack):
    out = shutil.copytree(run, tmp_path/'run')
    whole = (out/'log.jsonl').read_bytes()
    (out/'log.jsonl').write_bytes(whole + text.encode('utf-8', 'surrogateescape') + b'\n')
    with limit(): train_recipe(tiny(root=str(cache)), out, resume=True, progress=False)
    attack.case(f'log {text[:20]}', (out/'log.jsonl').read_bytes()[:len(whole)-1]==whole[:-1], 'lines were lost')

def test_released_weights(tmp_path, attack):
    vit = create_model('winwin_seg_micro', depth=1, dim=32, num_heads=2).encoder.state_dict()
    croco = {'patch_embed.proj.weight': torch.zeros(64,3,16,16), 'enc_blocks.0.norm1.weight': torch.zeros(64)}
    for name,data in (('vit.pth',vit), ('croco.pth',dict(model=croco))):
        torch.save(data, tmp_path/name)
        for read in (load_vit, load_croco, lambda p: timm_encoder('vit-tiny', checkpoint=p, depth=1)):
            each_damage(attack, tmp_path/name, lambda: read(tmp_path/name))
    odd = [7, [], torch.zeros(2), {}, {1: torch.zeros(1)}, dict(model=7), dict(model={'patch_embed.proj.weight': torch.zeros(3)}), {'patch_embed.proj.weight': torch.zeros(0,3,4,4), 'blocks.0.x': torch.zeros(1)},
           {'patch_embed.proj.weight': torch.zeros(8,3,4,4), 'blocks.x.y': torch.zeros(1)}, {'patch_embed.proj.weight': torch.zeros(8,3,4,4), 'blocks.999999999.y': torch.zeros(1)},
           {'patch_embed.proj.weight': torch.zeros(8,3,4,4), 'blocks.9000.y': torch.zeros(1)}, dict(model=croco | {'enc_blocks.999999999.x': torch.zeros(1)}), dict(model=croco | {'enc_blocks.x': torch.zeros(1)}),
           *(dict(model=croco, croco_kwargs=o) for o in (dict(enc_depth=10**9), dict(enc_embed_dim=-1), dict(enc_num_heads=0), dict(enc_depth='x'), dict(mlp_ratio=float('nan')), dict(pos_embed=3), dict(img_size='x'))),
           dict(model=croco, args=7), dict(model=croco, args=dict(model='CroCoNet(enc_depth=10**9)'))]
    for i,data in enumerate(odd):
        torch.save(data, tmp_path/'odd.pth')
        for read in (load_vit, load_croco): attack.refused(f'odd {i} {read.__name__}', lambda: read(tmp_path/'odd.pth'), 'odd.pth')

def test_programs(program, tmp_path, attack):
    shutil.copy(program, tmp_path/'x.pt2')
    each_damage(attack, tmp_path/'x.pt2', lambda: Exported(tmp_path/'x.pt2'))
    pytest.importorskip('onnxruntime')
    (tmp_path/'x.onnx').write_bytes(NOISE)
    each_damage(attack, tmp_path/'x.onnx', lambda: Exported(tmp_path/'x.onnx'))

# --- Images, class maps, depth, flow

def png(h, w, rows, bits=8, kind=2):
    "A PNG that claims h x w pixels"
    def chunk(name, data): return struct.pack('>I', len(data)) + name + data + struct.pack('>I', zlib.crc32(name+data))
    return b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', w, h, bits, kind, 0, 0, 0)) + chunk(b'IDAT', rows) + chunk(b'IEND', b'')

def bomb(size):
    "`size` packed zeros, made without holding them"
    z = zlib.compressobj()
    return b''.join(z.compress(bytes(min(2**24, size-i))) for i in range(0, size, 2**24)) + z.flush()

def test_images(tmp_path, attack):
    image = Image.fromarray(rng.integers(0, 256, (20,30,3), np.uint8))
    for kind in ('png','jpg','webp','bmp','tif'):
        path = tmp_path/f'a.{kind}'
        image.save(path)
        each_damage(attack, path, lambda: read_image(path), skip=('head and noise',) if kind=='bmp' else ())
    Image.fromarray(np.zeros((8,8), np.uint8)).save(tmp_path/'l.png')
    each_damage(attack, tmp_path/'l.png', lambda: read_labels(tmp_path/'l.png'))

def read_whole(path):
    raster = RasterFile(path)
    return raster.read(0, 0, *raster.shape[1:])

def test_rasters(tmp_path, attack):
    path = tmp_path/'r.tif'
    how = dict(tile=(32,32), compression='zlib', photometric='minisblack', planarconfig='contig')
    tifffile.imwrite(path, rng.integers(0, 256, (64,80,5), np.uint8), **how)
    for read in (read_whole, read_image, read_depth): each_damage(attack, path, lambda: read(path))
    whole = path.read_bytes()
    first = read_whole(path)
    names = {256: 'width', 257: 'height', 322: 'tile width', 323: 'tile height', 258: 'bits', 259: 'compression', 277: 'bands', 324: 'offsets', 325: 'lengths'}
    with tifffile.TiffFile(path) as file: tags = [file.pages[0].tags[code] for code in names]
    for tag in tags:
        at = tag.valueoffset # where its first number, or the list of numbers, stands
        for value in (0, 1, 7, 255, 2**15, 2**16-1):
            path.write_bytes(whole[:at] + struct.pack('<H', value) + whole[at+2:])
            try:
                with limit():
                    raster = RasterFile(path)
                    size = [min(n, 64) for n in raster.shape[1:]]
                    ok,why = raster.read(0, 0, *size).shape[1:]==tuple(size),raster
            except (ValueError,OSError) as error: ok,why = 'r.tif' in str(error),error
            except BaseException as error: ok,why = False,repr(error)
            attack.case(f'raster, {names[tag.code]} {value}', ok, why)
    path.write_bytes(whole)
    attack.case('the raster was good all the time', np.array_equal(read_whole(path), first))

def test_headers_of_pipes(tmp_path, attack):
    for name in ('a.png','a.tif','a.npy'):
        os.mkfifo(tmp_path/name)
        for read,found in ((image_bands,None), (stored_size,None), (turned_text,'')):
            with limit(): attack.case(f'{read.__name__} {name}', read(tmp_path/name)==found)

def test_files_that_claim_more_than_they_hold(tmp_path, attack):
    packed = bomb(3*2**26)
    for h,w in ((2**13,2**13), (2**31-1,1), (1,2**31-1), (30000,30000), (12000,12000)):
        for name,read in (('a.png',read_image), ('b.png',read_labels), ('c.png',read_depth), ('d.png',read_flow)):
            (tmp_path/name).write_bytes(png(h, w, packed, 16 if name=='d.png' else 8, 0 if name in ('b.png','c.png') else 2))
            attack.refused(f'{name} {h}x{w}', lambda: read(tmp_path/name), name)
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (300000, 300000), }".ljust(117)+b'\n'
    (tmp_path/'a.npy').write_bytes(b'\x93NUMPY\x01\x00' + struct.pack('<H', len(head)) + head)
    for read in (read_depth, read_flow): attack.refused(f'npy {read.__name__}', lambda: read(tmp_path/'a.npy'), 'a.npy')
    for name,data in (('a.flo', b'PIEH'+struct.pack('<ii', 2**30, 2**30)), ('b.flo', b'PIEH'+struct.pack('<ii', -1, 5)), ('a.pfm', b'PF\n999999999 999999999\n-1.0\n'), ('b.pfm', b'PF\n2 2\n1.2.3\n'+bytes(48))):
        (tmp_path/name).write_bytes(data)
        attack.refused(name, lambda: read_flow(tmp_path/name), name)

def test_depth(tmp_path, attack):
    np.save(tmp_path/'d.npy', np.ones((8,8), np.float32))
    each_damage(attack, tmp_path/'d.npy', lambda: read_depth(tmp_path/'d.npy'))
    for x in (np.ones((8,8), np.longdouble), np.ones((0,4), np.float32), np.ones((8,8), complex), np.array([['a']]), np.ones(3)):
        np.save(tmp_path/'d.npy', x)
        attack.refused(f'depth {x.dtype} {x.shape}', lambda: read_depth(tmp_path/'d.npy'), 'd.npy')
    np.savez(tmp_path/'z.npz', x=np.ones((8,8)))
    (tmp_path/'z.npz').rename(tmp_path/'d.npy')
    attack.refused('npz named npy', lambda: read_depth(tmp_path/'d.npy'), 'd.npy')

@pytest.mark.parametrize('kind', ['flo','pfm','png','flo5','npy'])
def test_flow(kind, tmp_path, attack):
    path = tmp_path/f'f.{kind}'
    write_flow(path, torch.rand(2,12,16))
    each_damage(attack, path, lambda: read_flow(path))

@pytest.mark.parametrize('kind', ['pfm','png','npy'])
def test_disparity_and_other_maps(kind, tmp_path, attack):
    path = tmp_path/f'd.{kind}'
    write_disparity(path, torch.rand(12,16)+1)
    each_damage(attack, path, lambda: read_disparity(path))
    if kind=='npy': each_damage(attack, path, lambda: DepthTask().read_map(path))
    if kind=='png': each_damage(attack, path, lambda: NormalsTask().read_map(path))
    if kind!='pfm': return
    for header in (b'PF\n16 12\n-1.0\n', b'Pf\n16 12\n1.2.3\n', b'Pf\n999999999 999999999\n-1\n', b'Pf\n0 0\n-1\n'):
        path.write_bytes(header+bytes(4*12*16))
        attack.refused(f'pfm {header}', lambda: read_disparity(path), path.name)
    sums = write_sums(tmp_path/'s.npz', dict(a=torch.arange(9)))
    each_damage(attack, sums, lambda: read_sums(sums))

def test_hdf5_reads_no_other_file(tmp_path, attack):
    secret = tmp_path/'secret'
    secret.write_bytes(bytes(range(256))*64)
    for name,make in dict(
            external=lambda f: f.create_dataset('flow', (4,4,2), 'f4', external=[(str(secret),0,128)]),
            link=lambda f: f.__setitem__('flow', h5py.ExternalLink(str(tmp_path/'other.h5'), 'flow')),
            soft=lambda f: f.__setitem__('flow', h5py.SoftLink('/elsewhere')),
            group=lambda f: f.create_group('flow'),
            virtual=lambda f: f.create_virtual_dataset('flow', h5py.VirtualLayout((4,4,2), 'f4')),
            chunk=lambda f: f.create_dataset('flow', (10**5,10**5,2), 'f4', chunks=(10**4,10**4,2)),
            empty=lambda f: f.create_dataset('flow', (10**6,10**6,2), 'f4', chunks=(64,64,2), compression='gzip'),
            text=lambda f: f.create_dataset('flow', data='x')).items():
        with h5py.File(tmp_path/'a.flo5', 'w') as f: make(f)
        attack.refused(f'flo5 {name}', lambda: read_flow(tmp_path/'a.flo5'), 'a.flo5')
        with h5py.File(tmp_path/'n.mat', 'w') as f:
            make(f)
            f['images'] = np.zeros((2,3,4,4), np.uint8)
            if f.get('flow', getlink=True) is not None: f.move('flow', 'depths')
        attack.refused(f'nyu {name}', lambda: NYUv2(tmp_path/'n.mat', 'all'), 'n.mat')

def test_splits(tmp_path, attack):
    with h5py.File(tmp_path/'n.mat', 'w') as f: f.update(images=np.zeros((4,3,4,4), np.uint8), depths=np.ones((4,4,4), np.float32))
    np.save(tmp_path/'s.npy', np.array([1,2]))
    (tmp_path/'s.txt').write_text('1\n2\n')
    matrix = lambda body: b'MATLAB'.ljust(124)+b'\x00\x01IM'+body
    for name in ('s.npy','s.txt'): each_damage(attack, tmp_path/name, lambda: NYUv2(tmp_path/'n.mat', 'train', tmp_path/name), skip=('one byte','half') if name=='s.txt' else ())
    for i,body in enumerate((b'', struct.pack('<II', 15, 8)+b'notzlib!', struct.pack('<II', 14, 2**31)+b'x', struct.pack('<II', 15, 0), struct.pack('<II', 15, len(b:=bomb(2**26)))+b)):
        (tmp_path/'s.mat').write_bytes(matrix(body))
        attack.refused(f'mat {i}', lambda: NYUv2(tmp_path/'n.mat', 'train', tmp_path/'s.mat'), 's.mat')

# --- JSON and lists that winwin or somebody else wrote

def test_notes_and_palettes(tmp_path, attack):
    coco,colors = tmp_path/'coco.json',tmp_path/'colors.json'
    coco.write_text('{"images": [], "annotations": [], "categories": [{"id": 1, "name": "a"}]}')
    each_damage(attack, coco, lambda: CocoNotes(coco))
    for kinds in ('[7]', '[{"id": 1}]', '[{"name": "a"}]', '[{"id": "x", "name": "a"}]', '[[]]', 'null', '{}'):
        coco.write_text(f'{{"images": [], "annotations": [], "categories": {kinds}}}')
        attack.refused(f'coco {kinds}', lambda: CocoNotes(coco), 'coco.json')
    colors.write_text('[{"color": [1,2,3]}]')
    each_damage(attack, colors, lambda: read_palette(str(colors)))
    for rows in ('[]', '[7]', '[{}]', '[{"color": "x"}]', '[{"color": [1]}]', '[{"color": [256,0,0]}]', '[{"color": [-1,0,0]}]'):
        colors.write_text(rows)
        attack.refused(f'palette {rows}', lambda: read_palette(str(colors)), 'colors.json')

def test_results(run, tmp_path, attack):
    for name,read in {'flow-quiet': lambda: read_results(tmp_path, 'flow-quiet'), 'camvid': lambda: photo_table(tmp_path)}.items():
        (tmp_path/f'{name}.json').write_text('[]')
        each_damage(attack, tmp_path/f'{name}.json', read, skip=('missing',))
        (tmp_path/f'{name}.json').unlink()
    for what,data in damaged(b'[]'):
        (tmp_path/'all.json').write_bytes(data)
        attack.refused(f'study {what}', lambda: read_study('windows-seg', tmp_path/'all.json'), 'all.json')
    out = shutil.copytree(run, tmp_path/'run')
    each_damage(attack, out/'last'/'config.json', lambda: trained_steps(out), skip=('missing',))
    for text in ('{}', '{"extra": 7}', '{"extra": {"step": null}}'):
        (out/'last'/'config.json').write_text(text)
        attack.refused(f'step {text}', lambda: trained_steps(out), 'config.json')

def test_models_of_others(tmp_path, attack):
    (tmp_path/'config.json').write_text('{"model_type": "vit"}')
    each_damage(attack, tmp_path/'config.json', lambda: named_model(str(tmp_path)), skip=('missing',))
    for name in ('model.safetensors','depth.pth'):
        weights = {'pretrained.patch_embed.proj.weight': torch.zeros(2)}
        write_tensors(tmp_path/name, weights) if name.endswith('safetensors') else torch.save(weights, tmp_path/name)
        each_damage(attack, tmp_path/name, lambda: load_depth_anything(tmp_path/name))
        attack.refused(f'odd {name}', lambda: load_depth_anything(tmp_path/name), name)

def test_photographs(tmp_path, attack):
    Image.fromarray(np.zeros((40,40,3), np.uint8)).save(tmp_path/'a.png')
    photos = Photos(tmp_path)
    each_damage(attack, tmp_path/'a.png', lambda: photos.cut(rng, (16,16)))

def test_the_list_of_named_task_files(tmp_path, attack, monkeypatch):
    "Damaged, it names no file; the next one that is named is added"
    monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path))
    (tmp_path/'mine.py').write_text('from winwin.tasks.depth import DepthTask\nclass Mine(DepthTask): name = "mine"\n')
    name = f'{tmp_path}/mine.py:Mine'
    (tmp_path/'winwin').mkdir()
    for i,data in enumerate((b'\xff\xfe\n', NOISE, b'\0'*99)):
        (tmp_path/'winwin'/'task-files.txt').write_bytes(data)
        attack.refused(f'list {i}', lambda: check_task_name(name), 'mine.py')
    make_task(name)
    attack.case('added', check_task_name(name)==name)

# --- Folders

def test_folders_with_loops_and_pipes(saved, tmp_path, attack):
    from winwin.inference.predictor import Predictor
    src = tmp_path/'images'
    (src/'deep'/'deeper').mkdir(parents=True)
    for at in (src, src/'deep'/'deeper'): Image.fromarray(np.zeros((16,16,3), np.uint8)).save(at/'a.png')
    for i,(at,to) in enumerate(((src/'up','..'), (src/'deep'/'self','.'), (src/'deep'/'deeper'/'top','../..'), (src/'deep'/'deeper'/'root','/'), (src/'deep'/'again','../deep/deeper'))): at.symlink_to(to, True)
    with limit(): found = find_files(src)
    attack.case('loops', list(found)==['a','deep/again/a','deep/deeper/a'], list(found))
    os.mkfifo(src/'pipe.png')
    (src/'bomb.png').write_bytes(png(2**14, 2**13, bomb(2**26)))
    (src/'lost.png').symlink_to('nowhere.png')
    with limit(60), pytest.warns(): report = Predictor(load_model(saved)).folder(src, tmp_path/'out', progress=False)
    attack.case('report', set(report.failed)=={'pipe.png','bomb.png','lost.png'} and len(report.written)==6, report)
    labels = shutil.copytree(src, tmp_path/'d'/'labels', symlinks=True, ignore=shutil.ignore_patterns('*.png'))
    (tmp_path/'d'/'images').mkdir()
    for k in ('images','labels'): os.mkfifo(tmp_path/'d'/k/'p.png')
    data = SegFolder(tmp_path/'d', names=['a','b'])
    attack.refused('SegFolder', lambda: data[0], 'p.png')

def test_damaged_scenes_are_made_again(tmp_path, attack):
    scene = DrivingWorld((32,48), length=1, cache=tmp_path)[0]
    (file,) = tmp_path.rglob('*.npz')
    data = file.read_bytes()
    for what,now in [*damaged(data), ('method', data.replace(b'PK\x01\x02', b'PK\x01\x02', 1)[:-40]+bytes([99])*40)]:
        file.write_bytes(now)
        with limit(): again = DrivingWorld((32,48), length=1, cache=tmp_path)[0]
        attack.case(f'scene {what}', torch.equal(again['image'], scene['image']), 'another scene')

def test_a_scene_that_would_fill_the_memory_is_made_again(tmp_path, attack):
    scene = DrivingWorld((32,48), length=1, cache=tmp_path)[0]
    (file,) = tmp_path.rglob('*.npz')
    names = np.load(file).files
    with zipfile.ZipFile(file, 'w', zipfile.ZIP_DEFLATED, compresslevel=1) as z, z.open(f'{names[0]}.npy', 'w', force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(member, dict(descr='|u1', fortran_order=False, shape=(1200,1024,1024)))
        for _ in range(1200): member.write(bytes(2**20))
    with limit(): again = DrivingWorld((32,48), length=1, cache=tmp_path)[0]
    attack.case('scene of 1.2 GB', torch.equal(again['image'], scene['image']))

def test_sweep_files(tmp_path, attack):
    model = create_model('winwin_seg_micro', depth=1, dim=32, num_heads=2)
    (tmp_path/'s.json').write_text('{"kind": "all", "scores": []}')
    each_damage(attack, tmp_path/'s.json', lambda: sweep_temperature(model, lambda m: [1.], [1.,1.1,1.2], path=tmp_path/'s.json', progress=False), skip=('missing',))
