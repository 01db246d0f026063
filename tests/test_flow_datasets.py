"Flow datasets: every layout on a tiny imitation, splits, counts, and what is missing."
import pickle, shutil
import numpy as np, pytest, torch
from PIL import Image
from torch.utils.data import DataLoader
from winwin.data.folders import FlowFolder, FlowPairs
from winwin.data.benchmarks import FlyingChairs, FlyingThings3D, KITTI, Sintel, Spring, TartanAir
from winwin.data.flow_files import write_flow

H,W = 6,10
made = {} # path -> what was written: an image (H,W,3), or (flow, valid)

def frame(path, seed, h=H, w=W):
    path.parent.mkdir(parents=True, exist_ok=True)
    made[path] = np.random.RandomState(seed).randint(0, 256, (h,w,3)).astype(np.uint8)
    Image.fromarray(made[path]).save(path)

def flow(path, seed, h=H, w=W):
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = torch.Generator().manual_seed(seed)
    f,v = (640*torch.randn(2,h,w, generator=rng)).round()/64,torch.rand(h,w, generator=rng)>.2
    write_flow(path, f, v)
    made[path] = torch.where(v, f, 0.),v

def chairs(root):
    for i in range(1, 6):
        for k in (1,2): frame(root/f'data/{i:05d}_img{k}.ppm', 10*i+k)
        flow(root/f'data/{i:05d}_flow.flo', i)
    (root/'chairs_split.txt').write_text('1\n2\n1\n1\n2\n')

def things(root):
    for split,scenes in dict(TRAIN=['A/0000','C/0007'], TEST=['B/0001']).items():
        for s in scenes:
            for side in ('left','right'):
                for i in (6,7,8):
                    frame(root/f'frames_cleanpass/{split}/{s}/{side}/{i:04d}.png', i)
                    frame(root/f'frames_finalpass/{split}/{s}/{side}/{i:04d}.png', 100+i)
                    for way in ('Future','Past'):
                        flow(root/f'optical_flow/{split}/{s}/into_{way.lower()}/{side}/OpticalFlowInto{way}_{i:04d}_{side[0].upper()}.pfm', i)

def sintel(root):
    for s in ('alley_1','temple_2','temple_3'):
        for i in (1,2,3):
            for render in ('clean','final'): frame(root/f'training/{render}/{s}/frame_{i:04d}.png', i)
            if i<3: flow(root/f'training/flow/{s}/frame_{i:04d}.flo', i)
            if i<3:
                (root/f'training/occlusions/{s}').mkdir(parents=True, exist_ok=True)
                p = root/f'training/occlusions/{s}/frame_{i:04d}.png'
                made[p] = np.random.RandomState(i).randint(0, 2, (H,W)).astype(np.uint8)*255
                Image.fromarray(made[p]).save(p)
    for i in (1,2): frame(root/f'test/clean/market_1/frame_{i:04d}.png', i)

def tartan(root):
    for at in ('abandoned/abandoned/Easy/P001','abandoned/abandoned/Hard/P002','ocean/Easy/P000'):
        for i in range(3): frame(root/f'{at}/image_left/{i:06d}_left.png', i)
        for i in range(2):
            flow(root/f'{at}/flow/{i:06d}_{i+1:06d}_flow.npy', i)
            p = root/f'{at}/flow/{i:06d}_{i+1:06d}_mask.npy'
            made[p] = np.random.RandomState(i).choice([0,1,10,100], (H,W)).astype(np.uint8)
            np.save(p, made[p])

def spring(root):
    for split,s in (('train','0001'),('train','0041'),('test','0003')):
        for side in ('left','right'):
            for i in (1,2,3): frame(root/f'{split}/{s}/frame_{side}/frame_{side}_{i:04d}.png', i)
            for way,which in (('FW',(1,2)),('BW',(2,3))):
                for i in which if split=='train' else ():
                    flow(root/f'{split}/{s}/flow_{way}_{side}/flow_{way}_{side}_{i:04d}.flo5', i, 2*H, 2*W)

def kitti(root, frames='image_2'):
    for i in (0,1,189,190,199):
        for k in (10,11): frame(root/f'training/{frames}/{i:06d}_{k}.png', i+k)
        for kind in ('occ','noc'): flow(root/f'training/flow_{kind}/{i:06d}_10.png', i+len(kind)*(kind=='noc'))
    for k in (10,11): frame(root/f'testing/{frames}/000000_{k}.png', k)

# dataset, what makes its imitation, arguments, its pairs there, its pairs in full
CASES = [(FlyingChairs,chairs,dict(split='train'),3,22232), (FlyingChairs,chairs,dict(split='val'),2,640),
         (FlyingThings3D,things,dict(split='train'),8,40302), (FlyingThings3D,things,dict(split='test', render='final', camera='right'),4,7866),
         (Sintel,sintel,dict(),6,1041), (Sintel,sintel,dict(split='subtrain', render='final'),2,943),
         (Sintel,sintel,dict(split='subval'),4,98), (Sintel,sintel,dict(split='test'),1,552),
         (TartanAir,tartan,dict(),6,306268), (Spring,spring,dict(),16,19852), (Spring,spring,dict(split='subtrain'),8,19472),
         (Spring,spring,dict(split='subval', fine=True),8,380), (Spring,spring,dict(split='test'),8,3960),
         (KITTI,kitti,dict(),5,200), (KITTI,kitti,dict(split='subtrain'),3,190), (KITTI,kitti,dict(split='subval'),2,10),
         (KITTI,kitti,dict(split='testing'),1,200)]
each = pytest.mark.parametrize('cls,make,kw,n,full', CASES, ids=[f'{c[0].__name__}-{"-".join(map(str, c[2].values()))}' for c in CASES])

def loose(cls, root, **kw):
    with pytest.warns(UserWarning): return cls(root, strict=False, **kw)

@each
def test_items_are_the_files(tmp_path, cls, make, kw, n, full):
    make(tmp_path)
    data = loose(cls, tmp_path, **kw)
    assert len(data)==n==len(set(data.names)) and isinstance(data, FlowPairs)
    fine = kw.get('fine', False)
    for i in range(n):
        a,b,answer,seen = data.files[i]
        item = data[i]
        keys = {'image','image2','name'} | ({'flow','valid'} if answer else set()) | ({'visible'} if seen else set())
        assert item.keys()==keys and item['name']==data.names[i] and a!=b
        for k,p in (('image',a),('image2',b)): assert np.array_equal((item[k]*255).round().byte().permute(1,2,0), made[p])
        if answer:
            f,v = made[answer]
            if cls is Spring and not fine: f,v = f[:,::2,::2],v[::2,::2]
            assert torch.equal(item['flow'], f) and torch.equal(item['valid'], v) and item['flow'].is_contiguous()
        if seen:
            x = made[seen]
            assert item['visible'].dtype==torch.bool and np.array_equal(item['visible'], x[1] if isinstance(x, tuple) else x==0)
    assert data.check(progress=False)==[] and data.missing==[]

@each
def test_a_partial_download_is_counted(tmp_path, cls, make, kw, n, full):
    make(tmp_path)
    with pytest.raises(FileNotFoundError, match=f'{n} of the {full} pairs of {cls.__name__}, {full-n} are missing.*strict=False'):
        cls(tmp_path, **kw)

@each
def test_a_complete_download_is_fine(tmp_path, cls, make, kw, n, full, monkeypatch, recwarn):
    make(tmp_path)
    counts = {**cls.counts, kw.get('split', next(iter(cls.counts))): n} if cls is not KITTI else {2015: {**cls.counts[2015], kw.get('split', 'training'): n}}
    monkeypatch.setattr(cls, 'counts', counts)
    assert len(cls(tmp_path, **kw))==n and not recwarn.list
    one = {k: v-1 for k,v in counts.items()} if cls is not KITTI else {2015: {k: v-1 for k,v in counts[2015].items()}}
    monkeypatch.setattr(cls, 'counts', one)
    with pytest.raises(FileNotFoundError, match='1 too many; add or remove files'): cls(tmp_path, **kw)

@pytest.mark.parametrize('cls,make,kw,n,full', [c for c in CASES if c[2].get('split') not in ('testing','test') or c[0] is FlyingThings3D])
def test_each_missing_file_is_named(tmp_path, cls, make, kw, n, full):
    make(tmp_path)
    gone = loose(cls, tmp_path, **kw).files[-1][2] # the last flow
    gone.unlink()
    data = loose(cls, tmp_path, **kw)
    assert len(data)==n-1 and len(data.missing)==1 and data.missing[0].startswith(f'{gone.relative_to(tmp_path)} is missing')
    with pytest.raises(FileNotFoundError, match=f'{n-1} of the {full}.*{gone.name} is missing'): cls(tmp_path, **kw)

@each
def test_a_folder_that_is_not_there(tmp_path, cls, make, kw, n, full):
    (tmp_path/'other').mkdir()
    for strict in (True,False):
        with pytest.raises(FileNotFoundError): cls(tmp_path, strict=strict, **kw)
        with pytest.raises(FileNotFoundError): cls(tmp_path/'none', strict=strict, **kw)

def test_counts_add_up():
    assert Sintel.counts['subtrain']+Sintel.counts['subval']==Sintel.counts['training']
    assert Spring.counts['subtrain']+Spring.counts['subval']==Spring.counts['train']
    assert KITTI.counts[2015]['subtrain']+KITTI.counts[2015]['subval']==KITTI.counts[2015]['training']
    assert sum(FlyingChairs.counts.values())==22872

@pytest.mark.parametrize('cls,kw', [(FlyingChairs,dict(split='test')), (FlyingThings3D,dict(split='val')), (FlyingThings3D,dict(render='x')),
    (FlyingThings3D,dict(camera='both')), (Sintel,dict(split='train')), (Sintel,dict(render='albedo')), (Spring,dict(split='val')),
    (KITTI,dict(split='train')), (KITTI,dict(year=2014)), (KITTI,dict(year=2012, split='subval'))])
def test_unknown_choices(tmp_path, cls, kw):
    with pytest.raises(ValueError, match=f"{list(kw.values())[-1]!r} is unknown; use one of"): cls(tmp_path, **kw)

# Directions and layouts

def test_backward_pairs_start_at_the_later_frame(tmp_path):
    things(tmp_path/'t')
    spring(tmp_path/'s')
    for data in (loose(FlyingThings3D, tmp_path/'t'), loose(Spring, tmp_path/'s')):
        for a,b,f,_ in data.files:
            i,j = int(a.stem[-4:]),int(b.stem[-4:])
            back = 'BW' in f.name or 'Past' in f.name
            assert j-i==(-1 if back else 1) and f'_{i:04d}' in f.name and a.parent==b.parent
    assert loose(Spring, tmp_path/'s').names[:2]==['0001/FW_left_0001','0001/BW_left_0002']

def test_fine_spring_has_four_vectors_a_pixel(tmp_path):
    spring(tmp_path)
    fine,half = loose(Spring, tmp_path, fine=True)[0],loose(Spring, tmp_path)[0]
    assert fine['flow'].shape==(2,2*H,2*W) and fine['valid'].shape==(2*H,2*W) and fine['image'].shape==(3,H,W)
    assert torch.equal(fine['flow'][:,::2,::2], half['flow'])

def test_kitti_2012(tmp_path):
    kitti(tmp_path, 'colored_0')
    assert len(loose(KITTI, tmp_path, year=2012))==5
    with pytest.raises(FileNotFoundError, match='5 of the 194'): KITTI(tmp_path, year=2012)
    with pytest.raises(FileNotFoundError, match='image_2'): KITTI(tmp_path)

def test_what_is_visible_is_optional(tmp_path):
    kitti(tmp_path/'k'); shutil.rmtree(tmp_path/'k/training/flow_noc')
    sintel(tmp_path/'s'); shutil.rmtree(tmp_path/'s/training/occlusions')
    tartan(tmp_path/'t')
    for p in (tmp_path/'t').rglob('*_mask.npy'): p.unlink()
    for data in (loose(KITTI, tmp_path/'k'), loose(Sintel, tmp_path/'s'), loose(TartanAir, tmp_path/'t')):
        assert data[0].keys()=={'image','image2','flow','valid','name'}

def test_folders_that_archives_make(tmp_path):
    chairs(tmp_path/'FlyingChairs_release')
    (tmp_path/'FlyingChairs_release/chairs_split.txt').rename(tmp_path/'FlyingChairs_train_val.txt')
    assert len(loose(FlyingChairs, tmp_path))==3
    spring(tmp_path/'spring')
    assert len(loose(Spring, tmp_path))==16

def test_chairs_need_a_split(tmp_path):
    chairs(tmp_path)
    (tmp_path/'chairs_split.txt').write_text('1\n3\n')
    with pytest.raises(ValueError, match="chairs_split.txt has '3'"): FlyingChairs(tmp_path)
    (tmp_path/'chairs_split.txt').unlink()
    with pytest.raises(FileNotFoundError, match='neither chairs_split.txt nor FlyingChairs_train_val.txt'): FlyingChairs(tmp_path)

def test_sizes_that_differ(tmp_path):
    kitti(tmp_path)
    flow(tmp_path/'training/flow_occ/000000_10.png', 0, H+1, W)
    frame(tmp_path/'training/image_2/000001_11.png', 0, H, W+2)
    flow(tmp_path/'training/flow_noc/000189_10.png', 0, H, W-1)
    found = loose(KITTI, tmp_path).check(progress=False)
    assert len(found)==3 and all(' pixels, its image ' in o for o in found)
    for o,name in zip(found, ('flow_occ/000000_10.png is 7x10','image_2/000001_11.png is 6x12','flow_noc/000189_10.png is 6x9')): assert name in o
    spring(tmp_path/'s')
    for p in (tmp_path/'s').rglob('*.flo5'): flow(p, 0) # at the size of the images, as it should not be
    for fine in (True,False):
        with pytest.raises(ValueError, match='its image .* needs'): loose(Spring, tmp_path/'s', fine=fine)[0]

def test_damaged_masks_are_named(tmp_path):
    tartan(tmp_path)
    data = loose(TartanAir, tmp_path)
    data.files[0][3].write_bytes(b'junk')
    np.save(data.files[1][3], np.zeros((H,W,3)))
    found = data.check(progress=False)
    assert len(found)==2 and all('_mask.npy' in o for o in found)

# Own folders

def own(root):
    for s in ('a','b c'):
        for i in (8,9,10,11): frame(root/f'images/{s}/f{i}.png', i)
        for i,kind in zip((8,9,10), ('flo','png','flo5')): flow(root/f'flow/{s}/f{i}.{kind}', i)

def test_own_folder(tmp_path):
    own(tmp_path)
    data = FlowFolder(tmp_path)
    assert data.names==[f'{s}/f{i}' for s in ('a','b c') for i in (8,9,10)]
    assert [(a.stem,b.stem) for a,b,*_ in data.files[:3]]==[('f8','f9'),('f9','f10'),('f10','f11')]
    for i in range(6): assert torch.equal(data[i]['flow'], made[data.files[i][2]][0])

def test_own_folder_with_two_folders_of_frames(tmp_path):
    for n in 'xy':
        frame(tmp_path/f'first/{n}.png', 1); frame(tmp_path/f'second/{n}.jpg', 2); flow(tmp_path/f'f/{n}_flow.npy', 3)
    data = FlowFolder(tmp_path, images='first', images2='second', flow='f', suffix='_flow')
    assert data.names==['x','y'] and data.files[0][1]==tmp_path/'second/x.jpg'

@pytest.mark.parametrize('gone,words', [('flow/a/f9.png','images/a/f9.png has no flow flow/a/f9'), ('images/a/f8.png','has no frame images/a/f8'),
                                        ('images/a/f11.png','flow/a/f10.flo5 has no second frame')])
def test_own_folder_with_gaps(tmp_path, gone, words):
    own(tmp_path)
    (tmp_path/gone).unlink()
    with pytest.raises(FileNotFoundError, match=words): FlowFolder(tmp_path)
    data = loose(FlowFolder, tmp_path)
    assert len(data)==5 and words in data.missing[0]

def test_transform_loader_and_pickle(tmp_path):
    own(tmp_path)
    data = FlowFolder(tmp_path, transform=lambda item: item['name'])
    assert data[-1]=='b c/f10'
    data = pickle.loads(pickle.dumps(FlowFolder(tmp_path)))
    batch = next(iter(DataLoader(data, batch_size=3)))
    assert batch['flow'].shape==(3,2,H,W) and batch['valid'].shape==(3,H,W) and "6 pairs in" in repr(data)
    with pytest.raises(IndexError): data[6]
