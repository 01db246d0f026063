"Layers: motions that can be undone, exact flow and visibility, the same everywhere."
import numpy as np, pytest, torch
import torch.nn.functional as F
from matplotlib.path import Path as Outline
from PIL import Image
from torch.utils.data import DataLoader
from winwin.data.pictures import warp
from winwin.worlds.layered import layers_flow, make_layers, make_motion, relight, render_layers
from winwin.worlds.textures import Photos, TEXTURES, make_texture, relief
from winwin.worlds.datasets import LayeredFlow, show_world

SIZE = (96,160)
HARD = dict(max_motion=60, layers=16, rotation=45, scale=.4, deform=.3)
def rng(*a): return np.random.default_rng(a)
def same(a, b): return a.keys()==b.keys() and all(torch.equal(a[k], b[k]) for k in a)
def grid(H, W): return torch.stack(torch.meshgrid(torch.arange(W)+.5, torch.arange(H)+.5, indexing='xy'))
def inner(ids):
    x = ids[None,None].float()
    return (F.max_pool2d(x, 5, 1, 2)==-F.max_pool2d(-x, 5, 1, 2))[0,0]

# Motions

@pytest.mark.parametrize('size', [(8,8), (160,256), (720,1280), (60,2000)], ids=str)
def test_motions_can_be_undone(size):
    H,W = size
    p = grid(H, W).flatten(1)[:,::max(1, H*W//20000)]
    for i in range(12):
        m = make_motion(rng(i), (W/2,H/2), np.hypot(H, W)/2, [1,H/2,2*W][i%3], 45, .4, .3)
        assert (m.inverse(m(p))-p).abs().max()<.01 and (m(m.inverse(p))-p).abs().max()<.01
        assert m.flow(p).norm(dim=0).max()<=[1,H/2,2*W][i%3]*1.001
        assert torch.linalg.det(m.slope(p).permute(2,0,1)).min()>.05 # nothing folds over

def test_slope_is_the_derivative():
    m = make_motion(rng(3), (30,20), 40., 30., 45, .4, .3)
    for k in range(5):
        p = torch.tensor(rng(k).uniform(0, 60, (2,1)))
        d = type(m)(*(v.double() for v in vars(m).values()))
        J = torch.autograd.functional.jacobian(lambda q: d(q[:,None])[:,0], p[:,0])
        assert torch.allclose(J, d.slope(p)[...,0], atol=1e-9)

def test_a_motion_that_folds_is_an_error():
    m = make_motion(rng(0), (30,20), 40., 30., deform=.3)
    m.push *= 40
    with pytest.raises(RuntimeError, match='could not be inverted'): m.inverse(grid(40, 60).flatten(1))

# Layers

@pytest.mark.parametrize('i', range(4))
def test_visibility_against_brute_force(i):
    "Outlines moved forward as polygons; whether a point lies in one of them needs no inverse"
    H,W = SIZE
    layers = make_layers(rng(7, i), SIZE, **HARD)
    _,ids = render_layers(layers, SIZE)
    flow,seen = layers_flow(layers, ids)
    p = grid(H, W)
    own = torch.zeros(SIZE, dtype=torch.long)
    polygon = lambda xy: Outline(xy.T.numpy())
    def covered(shape, move, at):
        rim = shape.outline(1000)
        hit = polygon(move(rim)).contains_points(at)
        if shape.hole: hit &= ~polygon(move(shape.centre+(rim-shape.centre)*shape.hole)).contains_points(at)
        return torch.from_numpy(hit).view(H, W)
    for k,l in enumerate(layers[1:], 1): own[covered(l.shape, lambda o: o, p.flatten(1).T.numpy())] = k
    assert (own!=ids).float().mean()<.001
    q,hidden = p+flow,torch.zeros(SIZE, dtype=torch.bool)
    for k,l in enumerate(layers[1:], 1): hidden |= covered(l.shape, l.motion, q.flatten(1).T.numpy()) & (ids<k)
    want = ~hidden & (q>=0).all(0) & (q[0]<=W) & (q[1]<=H)
    assert (want!=seen).float().mean()<.001 and .02<(~seen).float().mean()<.95

def test_flow_is_the_motion_of_the_layer_that_is_seen():
    layers = make_layers(rng(1), SIZE, **HARD)
    _,ids = render_layers(layers, SIZE)
    flow,_ = layers_flow(layers, ids)
    for k,l in enumerate(layers):
        at = ids==k
        assert torch.equal(flow[:,at], l.motion.flow(grid(*SIZE)[:,at])) or torch.allclose(flow[:,at], l.motion.flow(grid(*SIZE)[:,at]), atol=1e-4)

@pytest.mark.parametrize('hard', [False,True])
def test_warp_agrees(hard):
    right,moved = [],[]
    for i in range(6):
        layers = make_layers(rng(5, i), (128,192), **(HARD if hard else {}))
        (a,ids),(b,_) = (render_layers(layers, (128,192), k) for k in (0,1))
        flow,seen = layers_flow(layers, ids)
        at = seen & inner(ids)
        off = lambda f: (warp(b[None], f[None])[0]-a).abs().mean(0)[at].mean()
        right.append(off(flow)); moved.append(min(off(flow+torch.tensor(d)[:,None,None]) for d in ([1.,0.],[0.,1.],[-1.,0.],[0.,-1.])))
    assert torch.stack(right).mean()<(.6 if hard else .4)*torch.stack(moved).mean()

def test_at_rest():
    p = LayeredFlow(SIZE, max_motion=0, noise=0, light=0)[3]
    assert (p['flow']==0).all() and p['visible'].all() and (p['image']-p['image2']).abs().mean()<1e-3

def test_background_alone():
    p = LayeredFlow(SIZE, layers=0)[0]
    d = p['flow'].diff(dim=2).abs().max()
    assert d<.5 # smooth everywhere
    x,y = grid(*SIZE)+p['flow']
    assert torch.equal(p['visible'], (x>=0) & (x<=SIZE[1]) & (y>=0) & (y<=SIZE[0]))

# The contract of an item

@pytest.mark.parametrize('size', [(96,160), (8,8), (45,80), (61,33), (40,300)], ids=str)
def test_shapes_types_and_ranges(size):
    H,W = size
    item = LayeredFlow(size, seed=2, **HARD)[1]
    want = dict(image=((3,H,W),torch.float32), image2=((3,H,W),torch.float32), flow=((2,H,W),torch.float32),
                visible=((H,W),torch.bool), valid=((H,W),torch.bool))
    assert {k: (tuple(v.shape),v.dtype) for k,v in item.items()}==want
    for k in ('image','image2'):
        assert 0<=item[k].min() and item[k].max()<=1 and (item[k]*255-(item[k]*255).round()).abs().max()<1e-4
    assert item['flow'].isfinite().all() and item['flow'].norm(dim=0).max()<=60 and item['valid'].all()

def test_full_hd():
    item = LayeredFlow((540,960), max_motion=100)[0]
    assert item['flow'].norm(dim=0).max()<=100 and item['image'].std()>.05

def test_the_same_everywhere():
    data = LayeredFlow(SIZE, seed=3)
    a = data[4]
    assert same(a, LayeredFlow(SIZE, length=50, seed=3)[-46]) and same({k: v[1] for k,v in data.batch([0,4]).items()}, a)
    assert not torch.equal(a['flow'], LayeredFlow(SIZE, seed=4)[4]['flow']) and not torch.equal(a['flow'], data[5]['flow'])
    loader = DataLoader(LayeredFlow(SIZE, length=6, seed=3), batch_size=2, num_workers=2)
    assert same({k: v[0] for k,v in list(loader)[2].items()}, a)

def test_threads_change_nothing():
    threads,data = torch.get_num_threads(),LayeredFlow((160,256), seed=5)
    try:
        torch.set_num_threads(1); a = data[1]
        torch.set_num_threads(2); b = data[1]
    finally: torch.set_num_threads(threads)
    assert torch.equal(a['visible'], b['visible']) or (a['visible']!=b['visible']).sum()<3
    assert torch.allclose(a['flow'], b['flow'], atol=1e-4) and (a['image2']-b['image2']).abs().max()<2/255

def test_cache(tmp_path):
    data = LayeredFlow(SIZE, seed=1)
    kept = LayeredFlow(SIZE, seed=1, cache=tmp_path)
    for _ in range(2): assert same(kept[2], data[2])
    file, = tmp_path.rglob('*.npz')
    file.write_bytes(b'')
    assert same(kept[2], data[2])
    keys = {LayeredFlow(SIZE, **kw).key for kw in ({}, dict(seed=1), dict(noise=0), dict(layers=3), dict(max_motion=3), dict(light=0))}
    assert len(keys)==6

@pytest.mark.parametrize('kw,message', [
    (dict(size=(96,)), 'is not a size'), (dict(size=(4,96)), 'at least 8'), (dict(size=96), 'is not a size'), (dict(length=0), 'length 0'),
    (dict(max_motion=-1), 'max_motion -1 is outside'), (dict(max_motion=float('nan')), 'max_motion'), (dict(rotation=90), r'\[0,45\]'),
    (dict(scale=1), 'scale 1'), (dict(deform=.4), 'deform'), (dict(noise=-.1), 'noise'), (dict(layers=-1), 'layers -1'), (dict(layers=300), 'too many'),
    (dict(seed=-1), 'seed -1')])
def test_bad_arguments(kw, message):
    with pytest.raises(ValueError, match=message): LayeredFlow(**kw)

# Textures

@pytest.mark.parametrize('kind', TEXTURES)
def test_textures(kind):
    for size in ((1,1),(7,90),(64,64)):
        x = make_texture(rng(1), size, kind, 2.5)
        assert x.shape==(3,*size) and x.isfinite().all() and 0<=x.min() and x.max()<=1
        assert torch.equal(x, make_texture(rng(1), size, kind, 2.5))
    assert make_texture(rng(2), (64,64), kind).std()>.05
    assert relief(rng(0), (5,300), 1000).shape==(5,300)

def test_folder_of_photographs(tmp_path):
    (tmp_path/'in').mkdir()
    for k,(h,w) in enumerate([(300,200),(20,40)]):
        Image.fromarray((255*make_texture(rng(k), (h,w))).byte().permute(1,2,0).numpy()).save(tmp_path/'in'/f'{k}.png')
    Image.fromarray((255*make_texture(rng(5), (90,90)))[0].byte().numpy()).save(tmp_path/'grey.jpg')
    (tmp_path/'notes.txt').write_text('no picture')
    assert len(Photos(tmp_path))==3 and Photos(tmp_path, 64).cut(rng(0), (200,100)).shape==(3,200,100)
    data = LayeredFlow(SIZE, textures=tmp_path)
    assert same(data[0], LayeredFlow(SIZE, textures=tmp_path)[0]) and data.key!=LayeredFlow(SIZE).key
    assert same({k: v[0] for k,v in next(iter(DataLoader(data, num_workers=1))).items()}, data[0])
    assert data[0]['image'].std()>.05 and not torch.equal(data[0]['image'], LayeredFlow(SIZE)[0]['image'])
    (tmp_path/'broken.png').write_bytes(b'none')
    with pytest.raises(ValueError, match='broken.png cannot be read'):
        for i in range(40): Photos(tmp_path).cut(rng(i), (8,8))
    with pytest.raises(ValueError, match='no photographs in'): LayeredFlow(textures=tmp_path/'missing')

def test_light_and_noise():
    x = torch.full((3,40,60), .5)
    y = relight(x, rng(0), 0, .05)
    assert abs((y-.5).std()-.05)<.005 and relight(x, rng(0), 0, 0).unique().numel()==1
    z = torch.stack([relight(x, rng(i), .2, 0) for i in range(50)])
    assert z.flatten(1).mean(1).std()>.03 and abs(z.mean()-.5)<.1 and 0<=z.min() and z.max()<=1

def test_it_can_be_drawn():
    axs = show_world(LayeredFlow(SIZE)[0])
    assert len(np.ravel(axs))==4 and [a.get_title() for a in np.ravel(axs)][1]=='image2'

def test_patterns():
    plain,same_as_plain = LayeredFlow(SIZE, seed=3)[1],LayeredFlow(SIZE, seed=3, patterns=())[1]
    assert same(plain, same_as_plain)
    stone = LayeredFlow(SIZE, seed=3, patterns='stone')
    assert stone.patterns==('stone',) and not torch.equal(stone[1]['image'], plain['image'])
    assert same(stone[1], LayeredFlow(SIZE, seed=3, patterns=['stone'])[1])
    with pytest.raises(ValueError, match="no texture 'brick'.*stone"): LayeredFlow(SIZE, patterns=['stone','brick'])
    with pytest.raises(ValueError, match='give only one'): LayeredFlow(SIZE, patterns='stone', textures='somewhere')

def test_patterns_have_their_own_cache(tmp_path):
    kept = [LayeredFlow(SIZE, seed=1, cache=tmp_path, **o) for o in ({}, dict(patterns='stone'), dict(patterns=('stone','tiles')))]
    first = [o[0]['image'] for o in kept]
    assert all(torch.equal(a, o[0]['image']) for a,o in zip(first, kept))
    assert not torch.equal(first[0], first[1]) and len(list(tmp_path.iterdir()))==3
