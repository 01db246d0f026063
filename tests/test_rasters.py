"Large TIFFs from a shell: what is read, refused, written and resumed"
import json
import numpy as np, pytest, tifffile, torch
from PIL import Image
from winwin import cli
from winwin.data.rasters import RasterFile, RasterFolder
from winwin.inference.predictor import Predictor
from winwin.inference.rasters import RasterJob, predict_raster
from winwin.models.dense import create_model
from winwin.models.hub import save_model
from winwin.training import recipes

RNG = np.random.default_rng(0)
PLACE = [(33550,12,3,(.5,.5,0.),True),(33922,12,6,(0.,0.,0.,4e5,5e6,0.),True)]
SMALL = '--model winwin_seg_nano --head linear --windows 2x4 --batch-size 2 --warmup 0 --workers 0'.split()

def write(path, x, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    how = dict(tile=(64,64), compression='zlib', photometric='rgb' if x.ndim==3 else 'minisblack', extratags=PLACE)
    tifffile.imwrite(path, x, **how | more)

@pytest.fixture
def folder(tmp_path):
    "One raster of 700x900 with two classes"
    labels = RNG.integers(0, 2, (11,15), dtype=np.uint8).repeat(64, 0).repeat(64, 1)[:700,:900]
    x = RNG.integers(0, 200, (700,900,3), dtype=np.uint8)
    x[...,0] += labels*50
    write(tmp_path/'images/a.tif', x)
    write(tmp_path/'labels/a.tif', labels)
    return tmp_path

def shell(capsys, *args):
    with pytest.raises(SystemExit) as done: cli.main([str(o) for o in args])
    return done.value.code, ''.join(capsys.readouterr())

def test_a_run_reads_windows_only_and_predicts_a_raster(folder, capsys, monkeypatch):
    opened = []
    usual = recipes.recipe_data
    monkeypatch.setattr(recipes, 'recipe_data', lambda *a,**k: opened.append(usual(*a, **k)) or opened[-1])
    run = folder/'run'
    code,text = shell(capsys, 'train', 'raster-seg', '--root', folder, '--classes', 'a', 'b', '--region', 256, 256, *SMALL,
                      '--steps', 3, '--valid-share', 0, '--out', run)
    assert code==0, text
    trained = max(opened, key=lambda o: o.rasters[0].bytes_read)
    touched = 3*2*2*4 # steps, images, windows of 64 pixels, blocks of 64 that each touches at most
    assert 0<trained.rasters[0].bytes_read<=1.05*touched*64*64*3
    monkeypatch.setattr('winwin.inference.rasters.RASTER_PIXELS', 600*600)
    code,text = shell(capsys, 'predict', run, folder/'images/a.tif', '-o', folder/'out')
    assert code==0 and 'labels/a.tif' in text, text
    whole = Predictor(run/'last', 'tile', (256,256))(folder/'images/a.tif').classes.numpy()
    found = RasterFile(folder/'out/labels/a.tif')
    assert (found.read(0, 0, 700, 900)[0]==whole).mean()>.9999
    assert found.pages[0].tags[33550].value==(.5,.5,0.) and len(json.loads((folder/'out/classes.json').read_text()))==2
    code,text = shell(capsys, 'predict', run, folder/'images/a.tif', '-o', folder/'out')
    assert code==1 and 'exists already' in text
    code,text = shell(capsys, 'predict', run, folder/'images/a.tif', '-o', folder/'new', '--kinds', 'overlay')
    assert code==1 and '--kinds does not apply' in text

@pytest.mark.parametrize('what,words', [
    ('size','both need one size'), ('windows','too small for the windows'), ('class','no pixel'), ('label','has label 7'),
    ('strips','store it in tiles'), ('bands','all rasters of a folder need the same')])
def test_what_cannot_work_is_refused_before_the_first_step(what, words, folder, capsys):
    args = ['--classes','a','b']
    labels = np.zeros((700,900), np.uint8)
    if what=='size': write(folder/'labels/a.tif', labels[:-1])
    if what=='windows': args += ['--region','40','40']
    if what=='class': write(folder/'labels/a.tif', labels)
    if what=='label': write(folder/'labels/a.tif', labels+7)
    if what=='strips': write(folder/'images/a.tif', np.zeros((4200,4200), np.uint8), tile=None)
    if what=='bands':
        write(folder/'images/b.tif', labels)
        write(folder/'labels/b.tif', labels)
    code,text = shell(capsys, 'train', 'raster-seg', '--root', folder, *args, *SMALL, '--steps', 1000, '--out', folder/'run')
    assert code==1 and words in text, text
    assert not (folder/'run/log.jsonl').exists()

def test_a_large_tiff_in_a_folder_of_images_names_the_way_out(tmp_path, capsys):
    blocks = (np.zeros((1024,1024), np.uint8) for _ in range(64))
    (tmp_path/'images').mkdir()
    tifffile.imwrite(tmp_path/'images/a.tif', blocks, shape=(8192,8192), dtype=np.uint8, tile=(1024,1024), compression='zlib',
                     photometric='minisblack')
    (tmp_path/'labels').mkdir()
    Image.new('L', (64,64)).save(tmp_path/'labels/a.png')
    code,text = shell(capsys, 'train', 'folder-seg', '--root', tmp_path, '--classes', 'a', 'b', '--valid-share', 0, *SMALL, '--out',
                      tmp_path/'run')
    assert code==1 and 'raster-seg' in text, text

def test_depth_trains_and_holes_stay_holes(folder, capsys):
    heights = RNG.uniform(1, 30, (700,900)).astype(np.float32)
    heights[:,:300] = np.nan
    write(folder/'depth/a.tif', heights)
    code,text = shell(capsys, 'train', 'raster-depth', '--root', folder, '--region', 256, 256, *SMALL, '--model', 'winwin_depth_nano',
                      '--steps', 2, '--valid-images', 2, '--scale', .8, 1.3, '--out', folder/'run')
    assert code==0, text

@pytest.mark.parametrize('stop', [1,5,9])
def test_a_run_killed_anywhere_gives_the_same_map(stop, tmp_path, monkeypatch):
    torch.manual_seed(0)
    save_model(create_model('winwin_seg_nano', num_classes=4, head='linear'), tmp_path/'run', extra=dict(task='seg'))
    write(tmp_path/'a.tif', RNG.integers(0, 255, (300,420,3), dtype=np.uint8))
    predictor = Predictor(tmp_path/'run', 'tile', (128,128))
    limit = 4*5*128*200 # three panels
    whole = RasterFile(predict_raster(predictor, tmp_path/'a.tif', tmp_path/'out', progress=False, limit=limit))
    usual = RasterJob.tile
    count = iter(range(1000))
    def stops(job, y, x):
        if next(count)==stop*2: raise OSError('the power is gone')
        return usual(job, y, x)
    monkeypatch.setattr(RasterJob, 'tile', stops)
    with pytest.raises(OSError): predict_raster(predictor, tmp_path/'a.tif', tmp_path/'two', progress=False, limit=limit)
    assert not (tmp_path/'two/labels/a.tif').exists()
    again = RasterFile(predict_raster(predictor, tmp_path/'a.tif', tmp_path/'two', progress=False, limit=limit))
    assert np.array_equal(again.read(0, 0, 300, 420), whole.read(0, 0, 300, 420))

def test_another_model_does_not_resume(tmp_path, monkeypatch):
    write(tmp_path/'a.tif', RNG.integers(0, 255, (300,420,3), dtype=np.uint8))
    maps = []
    for seed in (0,1):
        torch.manual_seed(seed)
        save_model(create_model('winwin_seg_nano', num_classes=4, head='linear'), tmp_path/f'run{seed}', extra=dict(task='seg'))
    usual = RasterJob.tile
    def stops(job, y, x):
        if y>100: raise OSError('stopped')
        return usual(job, y, x)
    monkeypatch.setattr(RasterJob, 'tile', stops)
    with pytest.raises(OSError): predict_raster(Predictor(tmp_path/'run0', 'tile', (128,128)), tmp_path/'a.tif', tmp_path/'out', progress=False)
    monkeypatch.setattr(RasterJob, 'tile', usual)
    other = Predictor(tmp_path/'run1', 'tile', (128,128))
    maps = [RasterFile(predict_raster(other, tmp_path/'a.tif', tmp_path/k, progress=False)).read(0, 0, 300, 420) for k in ('out','new')]
    assert np.array_equal(*maps)

def test_loading_by_workers_reads_the_same(folder):
    data = RasterFolder(folder, region=(256,256), names=['a','b'])
    torch.manual_seed(0)
    here = data[0]['image'].whole()
    loader = torch.utils.data.DataLoader([data.rasters[0]], batch_size=None, num_workers=1)
    assert np.array_equal(next(iter(loader)).read(5, 6, 70, 80), data.rasters[0].read(5, 6, 70, 80))
    assert here.shape==(3,256,256)
