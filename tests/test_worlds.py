"Worlds: targets are exact, the same everywhere, and survive a cache."
import numpy as np, pytest, torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from winwin.worlds import raycast
from winwin.worlds.streets import make_street
from winwin.worlds.raycast import camera_rays, street_flow, trace_street
from winwin.worlds.paint import paint_street
from winwin.worlds.datasets import DrivingWorld, color_labels, show_world

SIZE = (96,160)
MOVERS = torch.tensor([DrivingWorld.classes.index(k) for k in ('car','truck','person','bicycle')])
SKY = DrivingWorld.classes.index('sky')

def centres(H, W): return torch.meshgrid(torch.arange(H)+.5, torch.arange(W)+.5, indexing='ij')
def same(a, b): return a.keys()==b.keys() and all(torch.equal(a[k], b[k]) for k in a)

def warp(img, flow):
    y,x = centres(*img.shape[1:])
    grid = torch.stack([(x+flow[0])/img.shape[2], (y+flow[1])/img.shape[1]], -1)*2-1
    return F.grid_sample(img[None], grid[None], padding_mode='border', align_corners=False)[0]

def inner(labels, k=5):
    x = labels[None,None].float()
    return (F.max_pool2d(x, k, 1, k//2)==-F.max_pool2d(-x, k, 1, k//2))[0,0]

# The contract of an item

@pytest.mark.parametrize('size', [(96,160), (8,8), (45,80), (61,33), (40,300)], ids=str)
@pytest.mark.parametrize('pair', [False,True])
def test_shapes_types_and_ranges(size, pair):
    H,W = size
    for i in range(2):
        item = DrivingWorld(size, seed=i, pair=pair)[i]
        want = dict(image=((3,H,W),torch.float32), labels=((H,W),torch.uint8), depth=((H,W),torch.float32))
        if pair: want |= dict(image2=((3,H,W),torch.float32), flow=((2,H,W),torch.float32), visible=((H,W),torch.bool), valid=((H,W),torch.bool))
        assert {k: (tuple(v.shape),v.dtype) for k,v in item.items()}==want
        assert 0<=item['image'].min() and item['image'].max()<=1
        assert item['labels'].max()<len(DrivingWorld.classes)
        assert item['depth'].min()>0 and torch.equal(item['depth'].isinf(), item['labels']==SKY)
        assert item['depth'][item['depth'].isfinite()].max()<=1001
        levels = item['image']*255
        assert (levels-levels.round()).abs().max()<1e-4 # 8 bits, as a camera gives
        if pair:
            assert item['flow'].isfinite().all() and not (item['visible'] & ~item['valid']).any()
            assert (item['flow'][:,~item['valid']]==0).all()
            y,x = centres(H, W)
            x,y = x+item['flow'][0],y+item['flow'][1]
            assert ((x>=0) & (x<=W) & (y>=0) & (y<=H))[item['visible']].all()

def test_palette_has_a_colour_of_its_own_for_every_class():
    assert DrivingWorld.palette.shape==(len(DrivingWorld.classes),3) and DrivingWorld.palette.dtype==np.uint8
    assert len(DrivingWorld.classes)==len(set(DrivingWorld.classes))==len({tuple(c) for c in DrivingWorld.palette})>=12

def test_scenes_have_no_odd_pixels():
    "Images of many scenes are finite, lit, and not all alike"
    world = DrivingWorld((48,80), length=20, seed=11)
    img = torch.stack([world[i]['image'] for i in range(20)])
    assert img.isfinite().all() and (img.flatten(1).std(1)>.04).all() and (img.flatten(1).mean(1)>.08).all()
    assert img.flatten(1).mean(1).std()>.03

# The same everywhere

@pytest.mark.parametrize('pair', [False,True])
def test_alone_as_in_any_batch(pair):
    world = DrivingWorld(SIZE, seed=2, pair=pair)
    batch = world.batch([3,1,np.int64(3),torch.tensor(0)])
    assert batch['image'].shape==(4,3,*SIZE)
    for j,i in enumerate((3,1,3,0)): assert same({k: v[j] for k,v in batch.items()}, DrivingWorld(SIZE, seed=2, pair=pair)[i])

def test_threads_change_nothing():
    threads,world = torch.get_num_threads(),DrivingWorld((192,320), seed=5, pair=True)
    try:
        torch.set_num_threads(1); a = world[1]
        torch.set_num_threads(2); b = world[1]
    finally: torch.set_num_threads(threads)
    assert same(a, b)

def test_first_frame_of_a_pair_is_the_single_frame():
    a,b = DrivingWorld(SIZE, seed=1)[4],DrivingWorld(SIZE, seed=1, pair=True)[4]
    assert same(a, {k: b[k] for k in a})

@pytest.mark.parametrize('seed', range(4))
def test_the_ray_of_a_pixel_does_not_depend_on_the_size(seed):
    small,large = (DrivingWorld((48*k,80*k), seed=seed)[seed] for k in (1,5))
    labels,depth = large['labels'][2::5,2::5],large['depth'][2::5,2::5]
    assert (labels==small['labels']).float().mean()>.998
    assert ((depth/small['depth']-1).abs()<1e-3)[small['depth'].isfinite() & (labels==small['labels'])].float().mean()>.998
    mean = F.avg_pool2d(large['image'][None], 5)[0]
    assert (mean-small['image'])[:,inner(small['labels'])].abs().mean()<.03 # textures finer than a pixel fade to their mean

def test_a_wider_picture_keeps_the_middle():
    "Focal length is in widths: another height shows more or less above and below"
    a,b = (DrivingWorld((h,160), seed=1)[2]['labels'] for h in (96,80))
    assert (a[8:-8]==b).float().mean()>.999

def test_high_resolution_in_little_memory():
    item = DrivingWorld((1080,1920), seed=1)[0]
    small = DrivingWorld((216,384), seed=1)[0]
    assert (item['labels'][2::5,2::5]==small['labels']).float().mean()>.998

# Exact targets

@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('frame', [0,1])
def test_tiles_agree_with_textbook_rays(seed, frame):
    "Every pixel's nearest solid, against each solid intersected by itself"
    sc = make_street(seed, 7, 1.)
    inv,ids,_ = trace_street(sc, frame, SIZE, 'cpu')
    y,x = (o.flatten() for o in centres(*SIZE))
    keep = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:500]
    d = torch.stack([x,y,torch.ones_like(x)], 1)[keep] @ torch.from_numpy(camera_rays(sc, frame, SIZE)[1]).float().T
    slow = torch.stack([raycast._meets(row.expand(500,-1), d) for row in raycast.solid_table(sc, frame, 'cpu')])
    best,who = slow.max(0)
    inv,ids = inv.flatten()[keep],ids.flatten()[keep]
    solid = ids>=raycast.FIRST_SOLID
    assert ((best/inv-1).abs()<2e-3)[solid].float().mean()>.99
    assert (who+raycast.FIRST_SOLID==ids)[solid].float().mean()>.98
    assert (best<=inv*1.001)[~solid].float().mean()>.99

def test_visible_agrees_with_textbook_rays():
    "A point is visible if its ray in the second frame meets nothing nearer, every solid asked"
    sc,world = make_street(4, 2, 1.),DrivingWorld(SIZE, seed=4, pair=True)
    item = world[2]
    inv,ids,_ = trace_street(sc, 0, SIZE, 'cpu')
    y,x = (o.flatten() for o in centres(*SIZE))
    xy,z,_ = raycast._moved(sc, SIZE, x, y, inv.flatten(), ids.flatten())
    ok = (z>raycast._NEAR) & (xy>=0).all(1) & (xy[:,0]<=SIZE[1]) & (xy[:,1]<=SIZE[0])
    keep = ok.nonzero()[:,0][torch.randperm(int(ok.sum()), generator=torch.Generator().manual_seed(0))[:600]]
    d = torch.cat([xy,torch.ones(len(xy),1)], 1)[keep] @ torch.from_numpy(camera_rays(sc, 1, SIZE)[1]).float().T
    best = torch.stack([raycast._meets(row.expand(len(keep),-1), d) for row in raycast.solid_table(sc, 1, 'cpu')]).amax(0)
    own = torch.where(ids.flatten()[keep]==0, 0., 1/z[keep])
    assert ((best<=own*1.002)==item['visible'].flatten()[keep]).float().mean()>.985

@pytest.mark.parametrize('seed', range(4))
def test_depth_and_camera_give_the_flow_of_what_stands_still(seed):
    world = DrivingWorld(SIZE, seed=seed, pair=True)
    item,c = world[seed],world.camera(seed)
    y,x = centres(*SIZE)
    p = torch.stack([x,y,torch.ones_like(x)]).double().view(3,-1)
    depth = item['depth'].double().view(1,-1)
    X = c['K'] @ (c['T'][:3,:3] @ (torch.linalg.inv(c['K'])@p*depth) + c['T'][:3,3:])
    flow = (X[:2]/X[2]-p[:2]).view(2,*SIZE)
    still = item['valid'] & ~torch.isin(item['labels'], MOVERS)
    assert (flow-item['flow'])[:,still & item['depth'].isfinite()].abs().max()<.02
    X = c['K'] @ c['T'][:3,:3] @ torch.linalg.inv(c['K']) @ p # the sky: only the rotation counts
    sky = item['labels']==SKY
    if sky.any(): assert ((X[:2]/X[2]-p[:2]).view(2,*SIZE)-item['flow'])[:,sky].abs().max()<.02

@pytest.mark.parametrize('seed', [0,7])
def test_second_image_read_along_the_flow_is_the_first(seed):
    world,seen,rest,hidden = DrivingWorld((192,320), seed=seed, pair=True),[],[],[]
    for i in range(4):
        item = world[i]
        diff,at = (warp(item['image2'], item['flow'])-item['image']).abs().mean(0),item['visible'] & inner(item['labels'])
        seen.append(diff[at].mean()); hidden.append(diff[item['valid'] & ~item['visible']].mean())
        rest.append((item['image2']-item['image']).abs().mean(0)[at].mean())
    seen,rest,hidden = (torch.stack(o).mean() for o in (seen,rest,hidden))
    assert seen<.025 and seen<.6*rest and seen<.5*hidden

def test_nothing_moves_without_motion():
    world = DrivingWorld(SIZE, seed=3, pair=True, motion=0)
    for i in range(4):
        item = world[i]
        assert item['flow'].abs().max()<1e-3 and item['valid'].all() and item['visible'].float().mean()>.998
        assert (item['image']-item['image2']).abs().mean()<.05 # noise only
        torch.testing.assert_close(world.camera(i)['T'], torch.eye(4, dtype=torch.float64))

def test_the_parts_make_the_whole():
    "The dataset gives what streets, rays and paint give"
    item,sc,grain = DrivingWorld(SIZE, seed=5, pair=True)[3],make_street(5, 3),np.random.default_rng([5,3,1])
    inv,ids,lit = trace_street(sc, 0, SIZE)
    ids2 = trace_street(sc, 1, SIZE)[1]
    flow,visible,valid = street_flow(sc, SIZE, inv, ids, ids2)
    (img,inv1,ids1),(img2,_,_) = (paint_street(sc, k, SIZE, 'cpu', grain) for k in (0,1))
    assert lit.dtype==torch.bool and torch.equal(inv, inv1) and torch.equal(ids, ids1)
    parts = dict(image=img, depth=1/inv, image2=img2, flow=flow, visible=visible, valid=valid)
    assert same(parts, {k: item[k] for k in parts})

@pytest.mark.parametrize('seed,index,n,groups,total', [
    (0,0,404,97,12228.031843423954), (3,4,260,82,12931.30670958496), (7,1,215,58,9372.706195074214)])
def test_streets_stay_as_they_are(seed, index, n, groups, total):
    "Caches outlive a release: another street needs another `_VERSION`, and so another key"
    so = make_street(seed, index).solids
    assert (so.n,len(so.groups))==(n,groups) and so.groups.sum()==pytest.approx(total, rel=1e-9)

def test_keys_stay_as_they_are():
    assert DrivingWorld().key=='1f29fabcbea25a7b' and DrivingWorld((96,160), seed=3, pair=True).key=='8ad0de34b4f721d0'

def test_movers_move():
    world,moved = DrivingWorld(SIZE, seed=3, pair=True),0
    for i in range(6):
        item = world[i]
        moved += int((item['flow'][:,torch.isin(item['labels'], MOVERS)].norm(dim=0)>.5).any())
    assert moved>=4

def test_every_class_occurs():
    world = DrivingWorld((72,120), seed=8)
    counts = sum(torch.bincount(world[i]['labels'].flatten().long(), minlength=len(world.classes)) for i in range(40)).double()
    share = dict(zip(world.classes, (counts/counts.sum()).tolist()))
    assert min(share.values())>0 and share['road']>.2 and share['traffic light']<.005 and share['bicycle']<.01

# Cache

def test_cached_is_rendered(tmp_path):
    plain,kept = (DrivingWorld(SIZE, seed=2, pair=True, cache=c) for c in (None,tmp_path))
    for _ in range(2): assert same(plain[3], kept[3])
    assert [p.name for p in tmp_path.rglob('*') if p.is_file()]==['0000003.npz']

@pytest.mark.parametrize('harm', ['empty','cut','flipped','text','other'])
def test_a_damaged_file_is_made_again(tmp_path, harm):
    world = DrivingWorld((32,48), cache=tmp_path)
    want = world[0]
    file, = tmp_path.rglob('*.npz')
    good = file.read_bytes()
    k = len(good)//2
    bad = dict(empty=b'', cut=good[:k], flipped=good[:k]+bytes([good[k]^255])+good[k+1:], text=b'not a scene')
    if harm=='other': np.savez(file, image=np.zeros((3,8,8), np.uint8), labels=np.zeros((8,8), np.uint8), depth=np.zeros((8,8), np.float32))
    else: file.write_bytes(bad[harm])
    assert same(world[0], want) and file.read_bytes()==good and len(list(tmp_path.rglob('*')))==2

def test_whatever_changes_a_scene_has_a_folder_of_its_own(tmp_path):
    a = dict(size=SIZE, seed=1, pair=True, motion=1.)
    keys = [DrivingWorld(**{**a, **b}).key for b in ({}, dict(size=(96,161)), dict(seed=2), dict(pair=False), dict(motion=.5))]
    assert len(set(keys))==5
    assert DrivingWorld(**a, length=7, cache=tmp_path).key==keys[0] # neither length nor place

def test_a_failed_write_leaves_no_file(tmp_path, monkeypatch):
    world = DrivingWorld((32,48), cache=tmp_path)
    def full(*args, **kw): raise OSError('disk full')
    with monkeypatch.context() as m:
        m.setattr(np, 'savez', full)
        with pytest.raises(OSError, match='disk full'): world[0]
    assert not [p for p in tmp_path.rglob('*') if p.is_file()]

@pytest.mark.parametrize('context', ['fork','spawn'])
def test_workers_share_a_cache(tmp_path, context):
    world = DrivingWorld((32,48), length=5, pair=True, cache=tmp_path)
    plain = DrivingWorld((32,48), length=5, pair=True)
    loader = DataLoader(world, batch_size=3, num_workers=2, multiprocessing_context=context)
    for _ in range(1 + (context=='fork')): # rendered, then read
        got = list(loader)
        assert [len(b['image']) for b in got]==[3,2]
        assert same({k: torch.cat([b[k] for b in got]) for k in got[0]}, plain.batch(range(5)))
    files = [p.name for p in tmp_path.rglob('*') if p.is_file()]
    assert sorted(files)==[f'{i:07d}.npz' for i in range(5)]

# Mistakes

@pytest.mark.parametrize('args,message', [
    (dict(size=64), r'size 64 is not a size; give \(height, width\)'), (dict(size=(1,2,3)), r'size \(1, 2, 3\) is not a size'),
    (dict(size=(4,64)), 'size 4 must be a whole number of at least 8'), (dict(size=(64.5,64)), 'size 64.5 must be a whole number'),
    (dict(length=0), 'length 0 must be a whole number of at least 1'), (dict(seed=-1), 'seed -1 must be a whole number of at least 0'),
    (dict(seed=.5), 'seed 0.5 must be'), (dict(motion=-.1), r'motion -0.1 is outside \[0,3\]'), (dict(motion=float('nan')), 'motion nan is outside')], ids=str)
def test_bad_arguments(args, message):
    with pytest.raises(ValueError, match=message): DrivingWorld(**args)

def test_indices():
    world = DrivingWorld((32,48), length=3)
    assert len(world)==3 and same(world[-1], world[2]) and len(list(world))==3
    for i in (3,-4):
        with pytest.raises(IndexError, match=f'scene {i} of 3'): world[i]
        with pytest.raises(IndexError, match=f'scene {i} of 3'): world.camera(i)

# Pictures

def test_color_labels():
    labels = torch.tensor([[[0,13],[255,9]]], dtype=torch.uint8)
    rgb = color_labels(labels)
    assert rgb.shape==(1,2,2,3) and rgb.dtype==np.uint8
    assert (rgb[0,0,1]==DrivingWorld.palette[13]).all() and (rgb[0,1,0]==0).all()
    assert (color_labels(np.array([[1]]), [(1,2,3),(4,5,6)])==[4,5,6]).all()

@pytest.mark.parametrize('pair', [False,True])
def test_show_world(pair):
    import matplotlib; matplotlib.use('Agg')
    axs = show_world(DrivingWorld((32,48), pair=pair)[0])
    assert np.size(axs)==(6 if pair else 3) and all(ax.images for ax in np.ravel(axs))
    matplotlib.pyplot.close('all')
