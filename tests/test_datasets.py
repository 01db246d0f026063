"Datasets: items as `DrivingWorld` gives them, every problem named with its file, augmentation that keeps maps aligned."
import os, pickle, re, struct, sys, unicodedata, zlib
import h5py, numpy as np, pytest, scipy.io, torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.transforms import v2
from winwin.data import augment, benchmarks as datasets
from winwin.data.folders import DepthFolder, SegFolder
from winwin.data.benchmarks import BDD100K, NYUv2
from winwin.data.augment import Augment, MapKind, fit_to_patches, resize_item
from winwin.data.images import find_files, read_depth, read_image, read_labels
from winwin.tasks.depth import DepthMetrics, depth_loss
from winwin.windows.layout import Windows
from winwin.worlds.datasets import DrivingWorld

H,W = 32,48
rs = np.random.RandomState(0)
def rgb(h=H, w=W): return rs.randint(0, 256, (h,w,3)).astype(np.uint8)
def ids(n=5, h=H, w=W): return rs.randint(0, n, (h,w)).astype(np.uint8)
def save(path, array, **kw):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array) if path.suffix=='.npy' else Image.fromarray(array).save(path, **kw)
    return array

@pytest.fixture
def seg(tmp_path):
    "A folder with three pairs, one in a sub-folder"
    root = tmp_path/'my rue de l’été 街'
    for n in ('a','b','sub dir/ü c'):
        save(root/'images'/f'{n}.png', rgb())
        save(root/'labels'/f'{n}.png', ids())
    return root

def has(path): return np.array(Image.open(path))

# Folders of classes

def test_items_are_the_files(seg):
    data = SegFolder(seg, num_classes=5)
    assert data.names==['a','b','sub dir/ü c'] and len(data)==3 and data.classes==tuple('01234') and data.palette.shape==(5,3)
    for item,n in zip((data[i] for i in range(3)), data.names):
        assert item.keys()=={'image','labels','name'} and item['name']==n
        assert item['image'].dtype==torch.float32 and item['labels'].dtype==torch.uint8
        assert np.array_equal((item['image']*255).round().byte().permute(1,2,0), has(seg/'images'/f'{n}.png'))
        assert np.array_equal(item['labels'], has(seg/'labels'/f'{n}.png'))
    assert data[-1]['name']==data.names[-1]
    with pytest.raises(IndexError): data[3]
    assert "3 images in 'my rue" in repr(data)

@pytest.mark.parametrize('kind', ['jpg','jpeg','JPG','png','webp','bmp','tif','tiff'])
def test_kinds_of_image(tmp_path, kind):
    x = save(tmp_path/f'images/a.{kind}', np.full((H,W,3), (200,100,50), np.uint8))
    save(tmp_path/'labels/a.png', ids())
    got = SegFolder(tmp_path)[0]['image']
    assert got.shape==(3,H,W) and (got*255-torch.from_numpy(x).permute(2,0,1)).abs().max()<4

@pytest.mark.parametrize('mode,kind', [*((m,'png') for m in ('L','LA','RGBA','P','1')), *((m,'tif') for m in ('L','RGBA','P','1'))])
def test_other_colours_become_rgb(tmp_path, mode, kind):
    x = Image.fromarray(np.repeat(np.repeat(ids(2)[...,None]*255, 3, 2), 1, 0)).convert(mode)
    (tmp_path/'images').mkdir()
    x.save(tmp_path/f'images/a.{kind}')
    save(tmp_path/'labels/a.png', ids())
    want = torch.from_numpy(np.array(x.convert('RGB'))).permute(2,0,1)/255
    assert torch.allclose(SegFolder(tmp_path)[0]['image'], want)

def test_16_bit_images(tmp_path):
    x = save(tmp_path/'images/a.png', rs.randint(0, 65536, (H,W)).astype(np.uint16))
    save(tmp_path/'labels/a.png', ids())
    got = SegFolder(tmp_path)[0]['image']
    assert got.shape==(3,H,W) and np.allclose(got, x/65535)

def write_png(path, x, bits, palette):
    "A PNG of 1, 2, 4 or 8 bits a pixel, grey or with a palette"
    chunk = lambda k,b: struct.pack('>I', len(b))+k+b+struct.pack('>I', zlib.crc32(k+b))
    ones = (x[...,None]>>np.arange(bits-1, -1, -1))&1
    rows = np.packbits(ones.reshape(len(x), -1), axis=1)
    data = b''.join(b'\0'+o.tobytes() for o in rows)
    head = struct.pack('>IIBBBBB', x.shape[1], x.shape[0], bits, 3 if palette else 0, 0, 0, 0)
    colours = chunk(b'PLTE', rs.randint(0, 256, 3*2**bits).astype(np.uint8).tobytes()) if palette else b''
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b'\x89PNG\r\n\x1a\n'+chunk(b'IHDR', head)+colours+chunk(b'IDAT', zlib.compress(data))+chunk(b'IEND', b''))

@pytest.mark.parametrize('bits', [1,2,4,8])
@pytest.mark.parametrize('palette', [False,True])
def test_label_pngs_of_every_depth(tmp_path, bits, palette):
    "The indices are read, whatever the number of bits and the palette"
    x = ids(2**bits, w=W-3)
    save(tmp_path/'images/a.png', rgb(w=W-3))
    write_png(tmp_path/'labels/a.png', x, bits, palette)
    assert np.array_equal(SegFolder(tmp_path)[0]['labels'], x)

def test_composed_and_decomposed_names_pair(tmp_path):
    nfc,nfd = (unicodedata.normalize(f, 'é') for f in ('NFC','NFD'))
    save(tmp_path/f'images/{nfc}.png', rgb()); save(tmp_path/f'labels/{nfd}.png', ids())
    assert SegFolder(tmp_path).names==[nfc]

def test_names_with_dots_hidden_files_links_and_suffixes(tmp_path):
    x = save(tmp_path/'elsewhere/a.b.c_train_id.png', ids())
    save(tmp_path/'images/x/a.b.c.jpg', rgb())
    save(tmp_path/'labels/.hidden.png', ids()); save(tmp_path/'labels/x/a.b.c_color.png', rgb())
    os.symlink(tmp_path/'elsewhere', tmp_path/'labels/y')
    os.rename(tmp_path/'images/x', tmp_path/'images/y')
    data = SegFolder(tmp_path, suffix='_train_id')
    assert data.names==['y/a.b.c'] and np.array_equal(data[0]['labels'], x)

def test_splits_are_folders_or_lists(seg):
    save(seg/'images/val/z.png', rgb()); save(seg/'labels/val/z.png', ids())
    assert SegFolder(seg, split='val').names==['z']
    (seg/'some.txt').write_text('sub dir/ü c.png\n\na\n', encoding='utf-8')
    assert SegFolder(seg, split='some.txt').names==['sub dir/ü c','a']
    (seg/'some.txt').write_text('a\nnowhere\n')
    with pytest.raises(FileNotFoundError, match='some.txt lists nowhere'): SegFolder(seg, split='some.txt')
    with pytest.raises(FileNotFoundError, match='no list .*none.txt'): SegFolder(seg, split='none.txt')
    (seg/'some.txt').write_text('\n')
    with pytest.raises(FileNotFoundError, match='some.txt is empty'): SegFolder(seg, split='some.txt')

def test_remap_and_ignore(seg):
    x = torch.from_numpy(has(seg/'labels/a.png'))
    got = SegFolder(seg, num_classes=2, remap={3: 0, 4: 1})[0]['labels']
    assert torch.equal(got==0, x==3) and torch.equal(got==1, x==4) and torch.equal(got==255, x<3)
    assert torch.equal(SegFolder(seg, num_classes=4, ignore=4)[0]['labels'], x)
    with pytest.raises(ValueError, match='remap has 300'): SegFolder(seg, remap={300: 0})
    with pytest.raises(ValueError, match='ignore -1 is outside'): SegFolder(seg, ignore=-1)

def test_class_names_and_counts(seg):
    assert SegFolder(seg, names=list('vwxyz')).num_classes==5
    with pytest.raises(ValueError, match='2 names for num_classes=3'): SegFolder(seg, num_classes=3, names='ab')
    with pytest.raises(ValueError, match='outside 1..255'): SegFolder(seg, num_classes=256)
    from winwin.data.pictures import class_palette
    assert len({tuple(c) for c in class_palette(255)})==255

# What is wrong with a folder

def test_no_folder_or_no_files(seg, tmp_path):
    with pytest.raises(FileNotFoundError, match=r'no folder .*frames; .* has images/, labels/'): SegFolder(seg, images='frames')
    with pytest.raises(FileNotFoundError, match=r'no folder .*nowhere/images'): SegFolder(tmp_path/'nowhere')
    (tmp_path/'e/images').mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match='has nothing in it'): SegFolder(tmp_path/'e')
    for i in range(3): (tmp_path/f'e/images/{i}.gif').write_bytes(b'x')
    with pytest.raises(FileNotFoundError, match=r'no \*\.\(jpg\|.*has 3 .gif files'): SegFolder(tmp_path/'e')

def test_missing_partners(seg):
    save(seg/'images/lone.jpg', rgb()); save(seg/'labels/only.png', ids())
    with pytest.raises(FileNotFoundError, match=r'images/lone.jpg has no partner labels/lone.png \(and 1 more\)'): SegFolder(seg)
    with pytest.warns(UserWarning, match='lone.jpg has no partner'): data = SegFolder(seg, strict=False)
    assert len(data)==3 and [o.split()[0] for o in data.check(progress=False)]==['images/lone.jpg','labels/only.png']
    with pytest.raises(FileNotFoundError, match='no pairs'), pytest.warns(UserWarning): SegFolder(seg, suffix='nly', strict=False)

def test_two_files_of_one_name(seg):
    save(seg/'images/a.jpg', rgb())
    with pytest.raises(ValueError, match=r'a.(jpg|png) and .*a.(jpg|png) have the same name'): SegFolder(seg)

def spoil(root):
    "Every fault of a file; {name: what is said}"
    cut = lambda p: p.write_bytes(p.read_bytes()[:-60])
    for n in 'abcdefgh': save(root/f'images/{n}.jpg', rgb()); save(root/f'labels/{n}.png', ids())
    cut(root/'images/a.jpg'); cut(root/'labels/b.png')
    (root/'images/c.jpg').write_bytes(b''); (root/'labels/d.png').write_bytes(b'hello')
    save(root/'labels/e.png', ids(h=H//2)); save(root/'labels/f.png', np.full((H,W), 7, np.uint8))
    save(root/'labels/g.png', rgb()); save(root/'labels/h.png', ids().astype(np.uint16))
    return dict(a='images/a.jpg cannot be decoded', b='labels/b.png cannot be decoded', c=r'images/c.jpg cannot be decoded \(0 bytes',
                d='labels/d.png cannot be decoded', e='labels/e.png is 16x48 pixels, its image images/e.jpg is 32x48',
                f=r'labels/f.png has label 7 \(1536 pixels out of range\); allowed are 0..4 and ignore=255',
                g='labels/g.png has channels RGB', h='labels/h.png has channels I;16')

def test_faults_are_named_one_by_one_and_together(tmp_path):
    faults = spoil(tmp_path)
    data = SegFolder(tmp_path, num_classes=5)
    for i,n in enumerate(data.names):
        with pytest.raises(ValueError, match=faults[n].replace('images/', '.*images/').replace('labels/', '.*labels/')): data[i]
    lines = data.check(progress=False)
    assert len(lines)==8 and all(re.match(faults[n], o) for n,o in zip(data.names, lines))
    (tmp_path/'images/a.jpg').unlink() # after the folder was listed
    with pytest.raises(FileNotFoundError, match='a.jpg'): data[0]
    assert 'a.jpg' in data.check(progress=False)[0]

def test_check_shows_progress_and_leaves_the_transform_out(seg, capsys):
    data = SegFolder(seg, num_classes=5, transform=lambda o: 1/0)
    assert data.check()==[] and '3/3' in capsys.readouterr().err
    assert data.check(progress=False)==[] and not capsys.readouterr().err

# One file

def test_readers_take_paths_and_strings(seg):
    for kind in (str,lambda p: p):
        assert np.array_equal((read_image(kind(seg/'images/a.png'))*255).round().byte().permute(1,2,0), has(seg/'images/a.png'))
        assert np.array_equal(read_labels(kind(seg/'labels/a.png')), has(seg/'labels/a.png'))
        assert list(find_files(kind(seg/'images')))==['a','b','sub dir/ü c']
        with pytest.raises(ValueError, match='give scale'): read_depth(kind(seg/'labels/a.png'))
    lut = torch.arange(256).flip(0).byte()
    assert np.array_equal(read_labels(seg/'labels/a.png', lut=lut), 255-has(seg/'labels/a.png'))

def test_find_files(tmp_path):
    for n in ('x/b_id.png','a_id.PNG','a_color.png','.c_id.png','d_id.npy'): (tmp_path/n).parent.mkdir(exist_ok=True); (tmp_path/n).touch()
    assert {k: v.name for k,v in find_files(tmp_path, ['.png'], '_id').items()}=={'a': 'a_id.PNG', 'x/b': 'b_id.png'}
    with pytest.raises(FileNotFoundError, match=r'no \*_z\.png under'): find_files(tmp_path, ['.png'], '_z')

# Depth

def test_16_bit_png_is_exact(tmp_path):
    x = np.arange(256*256).astype(np.uint16).reshape(256,256)
    save(tmp_path/'images/a.png', rgb(256,256)); save(tmp_path/'depth/a.png', x)
    for scale in (1/256,1/1000,1/5000):
        z = DepthFolder(tmp_path, scale=scale)[0]['depth']
        assert z.dtype==torch.float32 and z[0,0].isinf() and z.isinf().sum()==1 # 0 = not measured
        assert np.array_equal(z.ravel()[1:], (x.ravel()[1:]*scale).astype(np.float32))
        back = (z.double()/scale).round()
        assert np.array_equal(back.ravel()[1:], x.ravel()[1:])

@pytest.mark.parametrize('dtype', ['<f4','>f4','f8','f2','u2','i4'])
def test_npy_depth(tmp_path, dtype):
    x = (rs.rand(H,W)*50+1).astype(dtype)
    save(tmp_path/'images/a.png', rgb()); save(tmp_path/'depth/a.npy', x)
    z = DepthFolder(tmp_path, scale=.5)[0]['depth'] # of integers only
    assert z.dtype==torch.float32 and np.allclose(z, x.astype(float)*(.5 if x.dtype.kind in 'iu' else 1))
    save(tmp_path/'depth/a.npy', x[None])
    assert torch.equal(DepthFolder(tmp_path, scale=.5)[0]['depth'], z)

def test_tif_depth(tmp_path):
    x = rs.randint(1, 65536, (H,W)).astype(np.uint16)
    save(tmp_path/'images/a.png', rgb()); save(tmp_path/'depth/a.tif', x)
    assert np.allclose(DepthFolder(tmp_path, scale=1/256)[0]['depth'], x/256)
    x = save(tmp_path/'depth/a.tif', rs.rand(H,W).astype(np.float32)+1) # floats are metres
    assert np.array_equal(DepthFolder(tmp_path)[0]['depth'], x)
    save(tmp_path/'images/a.png', rgb()); os.rename(tmp_path/'depth/a.tif', tmp_path/'images/a.tif')
    (tmp_path/'images/a.png').unlink(); save(tmp_path/'depth/a.npy', x)
    assert np.array_equal(DepthFolder(tmp_path)[0]['image'][0], x) # an image of floats is one band

def test_invalid_depth_is_infinite_and_counts_nowhere(tmp_path):
    x = np.full((16,16), 3., np.float32)
    x[0,:4] = 0,-1,np.nan,-np.inf
    save(tmp_path/'images/a.png', rgb(16,16)); save(tmp_path/'depth/a.npy', x)
    z = DepthFolder(tmp_path)[0]['depth']
    assert (z[0,:4]==torch.inf).all() and (z.isinf().sum()==4)
    pred = torch.full((1,1,16,16), np.log(3.))
    assert depth_loss([pred], z[None], Windows.full((1,1)))<1e-6
    m = DepthMetrics(); m.update(pred[:,0].exp(), z[None])
    assert m.compute()['abs_rel']<1e-6

def test_faults_of_depth(tmp_path):
    save(tmp_path/'images/a.png', rgb())
    at = tmp_path/'depth/a.npy'
    for x,says in ((np.zeros((H,W,3)),'shape .32, 48, 3.'), (np.zeros((H,W), bool),'shape .32, 48. of bool'), (np.zeros((H,W), int),'give scale'),
                   (np.array([{}]),'cannot be read as an array'), (np.ones((H,W//2)),'32x24 pixels, its image')):
        save(at, x)
        with pytest.raises(ValueError, match=f'a.npy.*{says}'): DepthFolder(tmp_path)[0]
    for junk in (b'', b'hello', b'\x93NUMPY'):
        at.write_bytes(junk)
        with pytest.raises(ValueError, match='a.npy cannot be read'): DepthFolder(tmp_path)[0]
    at.unlink(); save(tmp_path/'depth/a.png', rgb())
    with pytest.raises(ValueError, match='a.png has shape .32, 48, 3. of uint8; depth is one channel'): DepthFolder(tmp_path, scale=1)[0]
    with pytest.raises(ValueError, match='scale 0 is no positive'): DepthFolder(tmp_path, scale=0)

# BDD100K

@pytest.fixture
def bdd(tmp_path, monkeypatch):
    monkeypatch.setattr(BDD100K, 'counts', {'train': 3, 'val': 1})
    for split,n in BDD100K.counts.items():
        for i in range(n):
            save(tmp_path/f'bdd100k/images/10k/{split}/{i:04x}-beef.jpg', rgb())
            save(tmp_path/f'bdd100k/labels/sem_seg/masks/{split}/{i:04x}-beef.png', np.where(ids(3)>1, 255, ids(19)).astype(np.uint8))
    return tmp_path

def test_bdd100k(bdd):
    assert (len(BDD100K(bdd)), len(BDD100K(bdd/'bdd100k', 'val')))==(3,1)
    data = BDD100K(bdd)
    assert len(data.classes)==19 and data.classes[0]=='road' and data.classes[18]=='bicycle' and data.num_classes==19
    assert data.palette.shape==(19,3) and data.palette.dtype==np.uint8 and tuple(data.palette[13])==(0,0,142)
    assert len({tuple(c) for c in data.palette})==19 and data.check(progress=False)==[]
    same = set(data.classes) & set(DrivingWorld.classes)-{'truck'}
    for n in same: assert tuple(data.palette[data.classes.index(n)])==tuple(DrivingWorld.palette[DrivingWorld.classes.index(n)])
    with pytest.raises(ValueError, match="split 'test' is unknown"): BDD100K(bdd, 'test')

def test_bdd100k_counts():
    assert BDD100K.counts=={'train': 7000, 'val': 1000}

def test_partial_bdd100k(bdd):
    for f in ('images/10k/train/0001-beef.jpg','labels/sem_seg/masks/train/0001-beef.png'): (bdd/'bdd100k'/f).unlink()
    with pytest.raises(FileNotFoundError, match='2 of the 3 train images of BDD100K, 1 are missing'): BDD100K(bdd)
    with pytest.warns(UserWarning, match='1 are missing'): assert len(BDD100K(bdd, strict=False))==2
    with pytest.raises(FileNotFoundError, match='no folder .*images/10k/train'): BDD100K(bdd.parent)

# NYUv2

@pytest.fixture
def nyu(tmp_path):
    "A file in MATLAB's order, beside a splits.mat, and what is in them as rows and columns"
    img,z = rs.randint(0, 256, (7,3,H,W)).astype(np.uint8),(rs.rand(7,H,W)*9+.7).astype(np.float32)
    z[0,0,:2] = 0,np.nan
    with h5py.File(tmp_path/'nyu.mat', 'w') as f:
        f['images'],f['depths'],f['rawDepths'] = img.transpose(0,1,3,2),z.transpose(0,2,1),z.transpose(0,2,1)/2
    scipy.io.savemat(tmp_path/'splits.mat', dict(trainNdxs=np.array([[1.],[3],[7]]), testNdxs=np.array([[2.],[4],[5],[6]])))
    return tmp_path/'nyu.mat',img,z

def test_nyu_orientation(nyu):
    path,img,z = nyu
    data = NYUv2(path, 'all')
    assert len(data)==7 and data.names[0]=='0001'
    for i in range(7):
        item = data[i]
        assert item['image'].shape==(3,H,W) and item['depth'].shape==(H,W) and item['depth'].dtype==torch.float32
        assert np.array_equal((item['image']*255).round().byte(), img[i])
        ok = item['depth'].isfinite().numpy()
        assert np.array_equal(item['depth'].numpy()[ok], z[i][ok]) and (~ok).sum()==(2 if i==0 else 0)
    assert torch.equal(NYUv2(path, 'all', raw=True)[1]['depth']*2, data[1]['depth'])
    assert data.check(progress=False)==[]

def test_nyu_splits(nyu, tmp_path):
    path,_,_ = nyu
    assert NYUv2(path).names==['0001','0003','0007'] and NYUv2(path, 'test').names==['0002','0004','0005','0006']
    for compress in (False,True):
        for kind in (float,np.uint8,np.uint16,np.int32):
            scipy.io.savemat(p := tmp_path/'s.mat', dict(testNdxs=np.array([[2],[4]], kind), trainNdxs=np.arange(1, 8, dtype=kind)[:,None]), do_compression=compress)
            assert NYUv2(path, 'test', splits=p).names==['0002','0004'] and len(NYUv2(path, splits=p))==7
    (tmp_path/'s.txt').write_text('5\n2\n'); np.save(tmp_path/'s.npy', [5,2])
    for s in ('s.txt','s.npy'): assert NYUv2(path, 'test', splits=tmp_path/s).names==['0005','0002']
    for bad in ([0,1],[8],[1,1],[],[1.5]):
        with pytest.raises(ValueError, match='numbers from 1 to 7'): NYUv2(path, splits=bad)

def test_a_matlab_file_of_full_size(tmp_path):
    "The customary numbers, as SciPy reads them"
    i = rs.permutation(1449)+1
    scipy.io.savemat(p := tmp_path/'s.mat', dict(readme='text', c=np.array([[1,'a']], object), trainNdxs=i[:795,None].astype(float), testNdxs=i[795:,None].astype(float)))
    got,want = datasets._read_mat5(p),scipy.io.loadmat(p)
    for k in ('trainNdxs','testNdxs'): assert np.array_equal(got[k], want[k].ravel())

def test_nyu_faults(nyu, tmp_path):
    path,img,z = nyu
    with pytest.raises(ValueError, match='use one of train, test, all'): NYUv2(path, 'val')
    with pytest.raises(FileNotFoundError, match='no file .*none.mat'): NYUv2(tmp_path/'none.mat')
    with pytest.raises(FileNotFoundError, match='no file .*none.txt'): NYUv2(path, splits=tmp_path/'none.txt')
    with pytest.raises(ValueError, match='splits.mat .* is no HDF5 file'): NYUv2(tmp_path/'splits.mat')
    with pytest.raises(ValueError, match='no little-endian MATLAB 5'): NYUv2(path, splits=path)
    scipy.io.savemat(tmp_path/'o.mat', dict(other=np.ones(3)))
    with pytest.raises(ValueError, match='has no trainNdxs; it has other'): NYUv2(path, splits=tmp_path/'o.mat')
    (tmp_path/'splits.mat').unlink()
    with pytest.raises(FileNotFoundError, match="'train' is listed in splits.mat, which is not beside"): NYUv2(path)
    with pytest.raises(ValueError, match='eigen is for images of 480x640'): NYUv2(path, 'all', eigen=True)
    with h5py.File(tmp_path/'b.mat', 'w') as f: f['images'] = img
    with pytest.raises(ValueError, match='has no array depths; it has images'): NYUv2(tmp_path/'b.mat', 'all')
    with h5py.File(tmp_path/'b.mat', 'a') as f: f['depths'] = z.transpose(0,2,1)
    with pytest.raises(ValueError, match=r'expected are \(N,3,W,H\)'): NYUv2(tmp_path/'b.mat', 'all')

def test_nyu_without_h5py(nyu, monkeypatch):
    monkeypatch.setitem(sys.modules, 'h5py', None)
    with pytest.raises(ImportError, match='pip install h5py'): NYUv2(nyu[0])

def test_nyu_eigen(tmp_path):
    with h5py.File(tmp_path/'n.mat', 'w') as f: f['images'],f['depths'] = np.zeros((1,3,640,480), np.uint8),np.ones((1,640,480), np.float32)
    ok = NYUv2(tmp_path/'n.mat', 'all', eigen=True)[0]['depth'].isfinite()
    assert ok[45:471,41:601].all() and ok.sum()==426*560

# Workers

def test_workers_read_the_same(seg, nyu):
    nyu = NYUv2(nyu[0], 'all')
    nyu[0] # opens the file in this process
    for data in (SegFolder(seg, num_classes=5), nyu, pickle.loads(pickle.dumps(nyu))):
        a,b = (list(DataLoader(data, batch_size=2, num_workers=n)) for n in (0,2))
        for x,y in zip(a, b):
            assert x['name']==y['name'] and all(torch.equal(x[k], y[k]) for k in x if k!='name')

def test_workers_draw_alike_from_one_seed_and_differ_between_items(seg):
    data = SegFolder(seg, num_classes=5, transform=Augment())
    def run(seed):
        return torch.cat([o['image'] for o in DataLoader(data, num_workers=2, generator=torch.Generator().manual_seed(seed))])
    a,b,c = run(0),run(0),run(1)
    assert torch.equal(a, b) and not torch.equal(a, c)
    same = SegFolder(seg, num_classes=5, transform=lambda _: torch.rand(1))
    assert len({x.item() for x in DataLoader(same, num_workers=2)})==3

# Sizes and augmentation

@pytest.mark.parametrize('size', [(720,1280),(1080,1920),(436,1024),(17,15)])
def test_fit_to_patches(size):
    item = dict(image=torch.rand(3,*size), labels=torch.zeros(size, dtype=torch.uint8), depth=torch.ones(size), name='x')
    fit = fit_to_patches(item, kinds=dict(labels=MapKind(200)))
    (h,w),new = size,fit['image'].shape[1:]
    assert all(n%16==0 and 0<=n-o<16 for n,o in zip(new, size)) and fit['name']=='x'
    for k in ('image','labels','depth'): assert torch.equal(fit[k][...,:h,:w], item[k])
    added = torch.ones(new).bool(); added[:h,:w] = False
    assert (fit['labels'][added]==200).all() and fit['depth'][added].isinf().all()

def test_resize_takes_centres():
    "Threefold reduction keeps the middle pixel of 3x3, enlargement repeats it"
    item = dict(image=torch.rand(3,30,60), labels=torch.from_numpy(ids(9, 30, 60)), depth=torch.rand(30,60))
    item['depth'][:5] = torch.inf
    small = resize_item(item, (10,20))
    for k in ('labels','depth'):
        assert torch.equal(small[k], item[k][1::3,1::3]) and small[k].dtype==item[k].dtype
        assert torch.equal(resize_item(small, (30,60))[k][1::3,1::3], small[k])

def scene(size=(48,80)): return DrivingWorld(size, seed=3)[4]

@pytest.mark.parametrize('labels', [torch.uint8,torch.int64,torch.int32])
def test_frame_and_types_stay(labels):
    item = scene() | dict(name='x')
    item['labels'] = item['labels'].to(labels)
    for i in range(20):
        out = Augment(scale=(.3,4))(item, torch.Generator().manual_seed(i))
        assert {k: (v.shape,v.dtype) for k,v in out.items() if k!='name'}=={k: (v.shape,v.dtype) for k,v in item.items() if k!='name'}
        assert out['name']=='x' and 0<=out['image'].min() and out['image'].max()<=1 and not out['depth'].isnan().any()
        assert set(out['labels'].unique().tolist()) <= set(item['labels'].unique().tolist()) | {255}

@pytest.mark.parametrize('flip', [0,1])
@pytest.mark.parametrize('s', [.4,.75,.9,1,1.3,2,3.7])
def test_maps_stay_aligned(s, flip):
    "Smooth ramps of y and x in image and depth, steps of them in labels: every map says the same place"
    h,w = 60,84
    y,x = torch.meshgrid(torch.arange(h)+.5, torch.arange(w)+.5, indexing='ij')
    item = dict(image=torch.stack([y/h, x/w, 0*x]), labels=(x//4).byte(), depth=1+x/w)
    for i in range(8):
        out = Augment(flip=flip, scale=(s,s), jitter_p=0, fixed_focal=False)(item, torch.Generator().manual_seed(i))
        ok = out['labels']!=255
        assert torch.equal(ok, out['depth'].isfinite()) and abs(ok.float().mean().item()-min(s, 1)**2)<.03
        u = out['image'][1]*w
        step = max(1, 1/s) # source pixels per pixel
        assert ((out['depth']-1)*w-u)[ok].abs().max() <= step/2+.51
        assert (out['labels']*4+2-u)[ok].abs().max() <= 2+step/2+.51
        du = u[:,1:]-u[:,:-1]
        assert abs(du[ok[:,1:] & ok[:,:-1]].median().item()*(1-2*flip)-1/s)<.03/s # magnified, mirrored
        if s<1: assert torch.allclose(out['image'][:,~ok], torch.tensor(augment._MEAN)[:,None].expand(3, int((~ok).sum())))

def test_depth_and_scale():
    item = dict(image=torch.zeros(3,32,32), depth=torch.full((32,32), 6.))
    for s in (.5,1,1.5,3):
        one = lambda **kw: Augment(scale=(s,s), **kw)(item, torch.Generator().manual_seed(0))['depth']
        assert (one()[one().isfinite()]-6/s).abs().max()<1e-5
        assert (one(fixed_focal=False)[one().isfinite()]==6).all()

def test_jitter_is_torchvisions():
    "The same four factors in the same order give torchvision's image"
    x,u,order = torch.rand(1,3,16,16),[.1,.9,.7,.2],[2,0,3,1]
    got,want = augment._jitter(x, (.4,.4,.2,.1), u, order),x
    jit = v2.ColorJitter(.4, .4, .2, .1)
    par = dict(fn_idx=torch.tensor(order), brightness_factor=.6+.8*.1, contrast_factor=.6+.8*.9, saturation_factor=.8+.4*.7, hue_factor=-.1+.2*.2)
    want = jit.transform(x, par)
    assert torch.allclose(got, want, atol=1e-6)
    item = scene()
    out = Augment(flip=0, scale=(1,1), jitter_p=1)(item)
    assert not torch.equal(out['image'], item['image']) and torch.equal(out['labels'], item['labels']) and torch.equal(out['depth'], item['depth'])

def test_determinism_and_input_untouched():
    item,was = scene(),scene()
    draw = lambda seed, **kw: Augment(**kw)(item, torch.Generator().manual_seed(seed))
    for k in item: assert torch.equal(draw(1)[k], draw(1)[k]) and torch.equal(item[k], was[k])
    assert not torch.equal(draw(1)['image'], draw(2)['image'])
    torch.manual_seed(0); a = Augment()(item); torch.manual_seed(0); b = Augment()(item)
    assert torch.equal(a['image'], b['image'])
    state = torch.get_rng_state(); draw(3)
    assert torch.equal(state, torch.get_rng_state()) # a generator leaves the global one alone

def test_how_often():
    item = dict(image=torch.rand(3,8,8))
    rng = torch.Generator().manual_seed(0)
    flips = sum(torch.equal(Augment(flip=.3, scale=(1,1), jitter_p=0)(item, rng)['image'], item['image'].flip(-1)) for _ in range(600))
    assert 140<flips<220

@pytest.mark.parametrize('kw', [dict(flip=2), dict(jitter_p=-1), dict(scale=(0,1)), dict(scale=(2,1)), dict(scale=(1,)), dict(jitter=(1,1,1)), dict(jitter=(1,1,1,.6)), dict(jitter=(-1,0,0,0))])
def test_augment_refuses(kw):
    with pytest.raises(ValueError, match=next(iter(kw))): Augment(**kw)

def test_maps_that_cannot_move_are_refused():
    pair,odd = DrivingWorld((16,32), pair=True)[0],dict(image=torch.zeros(3,16,32), height=torch.zeros(3,16,32))
    with pytest.raises(ValueError, match="'image2' is a map of unknown kind"): Augment()(pair)
    for f in (Augment(), fit_to_patches, lambda o: resize_item(o, (8,8))):
        with pytest.raises(ValueError, match="'height' is a map of unknown kind"): f(odd)
        with pytest.raises(ValueError, match='labels is .8, 8., the image .16, 32.'): f(dict(image=torch.zeros(3,16,32), labels=torch.zeros(8,8)))
