"Images of different sizes in one batch: the same losses and gradients as one image at a time, and only the pixels of windows are handed over."
import numpy as np, pytest, torch
from functools import partial
from PIL import Image
from winwin.data.folders import SegFolder
from winwin.models.dense import create_model
from winwin.tasks.depth import DepthTask
from winwin.tasks.flow import FlowTask
from winwin.tasks.flow_scoring import cell_targets, match_targets
from winwin.tasks.segmentation import SegTask
from winwin.training.loop import TrainConfig, fit, resume
from winwin.training.streams import ItemStream, batches
from winwin.windows.canvas import refine_windows
from winwin.windows.layout import Windows, as_packed, crop_windows, pack_windows
from winwin.windows.sampling import sample_windows
from winwin.windows.schemes import parse_scheme
from winwin.windows.tokens import patchify
from winwin.worlds.datasets import LayeredFlow

SIZES = [(6,9),(8,5),(5,5),(8,5)] # token grids
CLASSES = [str(i) for i in range(5)]
MODELS = {'rope': ('winwin_seg_micro', dict(depth=2)), 'sincos': ('winwin_seg_micro', dict(depth=2, pos='sincos:4x4', head='linear')),
          'local': ('winwin_seg_micro', dict(depth=2, local_window=2, head='linear')),
          'dinov3': ('vit_small_patch16_dinov3:linear', dict(depth=2)), 'dinov2': ('vit_small_patch14_reg4_dinov2:linear', dict(depth=2)),
          'plain': ('vit_tiny_patch16_224:linear', dict(depth=2)), 'mixed': ('vit_small_patch16_rope_mixed_224:linear', dict(depth=2)),
          'eva': ('eva02_tiny_patch14_336:linear', dict(depth=1))}
rng = lambda: torch.Generator().manual_seed(0)

def photos(P, sizes=SIZES):
    g = rng()
    return [dict(image=torch.rand(3,H*P,W*P, generator=g, dtype=torch.float64), labels=torch.randint(0, 5, (H*P,W*P), generator=g),
                 depth=torch.rand(H*P,W*P, generator=g, dtype=torch.float64)+1) for H,W in sizes]

def alone(task, item, windows, i):
    "A batch of one whole image, with the windows it has in a batch of several"
    one = dict(windows=windows) if isinstance(windows, Windows) else windows
    keep = {k: Windows(w.yx[i:i+1], w.sizes, w.grids[i], None if w.extra is None else w.own_index()[i:i+1,-w.extra.shape[1]:]) for k,w in one.items()}
    return {k: item[k][None] for k in task.keys} | keep

def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n,p in model.named_parameters() if p.grad is not None}

def assert_same(found, wanted):
    assert found.keys()==wanted.keys()
    for k in found: torch.testing.assert_close(found[k], wanted[k], atol=1e-9, rtol=1e-6, msg=lambda m: f'{k}: {m}')

@pytest.mark.parametrize('kind', MODELS)
@pytest.mark.parametrize('scheme', ['2x2','3+2+4'])
def test_one_batch_equals_single_images(kind, scheme):
    torch.manual_seed(0)
    name,args = MODELS[kind]
    model = create_model(name, num_classes=5, **args).double().eval()
    if '+4' in scheme and kind=='local': pytest.skip('isolated tokens have no tile')
    scheme = parse_scheme('2x2+4' if '+4' in scheme else scheme)
    P = model.patch_size
    task = SegTask(CLASSES)
    items = [{k: o[k] for k in task.keys} for o in photos(P)]
    batch = task.window_batch(items, scheme, P, rng())
    w = batch['windows']
    assert w.packed and w.grids==tuple(SIZES) and batch['image'].shape==(4,3,1,w.num_tokens*P*P)
    loss = task.batch_loss(model, batch, P)
    single = sum(task.batch_loss(model, alone(task, item, w, i), P) for i,item in enumerate(items))/len(items)
    torch.testing.assert_close(loss, single, atol=1e-9, rtol=1e-6)
    assert_same(gradients(model, task.batch_loss(model, batch, P)), gradients(model, single))

def test_depth_and_random_sizes_and_crops():
    torch.manual_seed(0)
    model = create_model('winwin_depth_micro', depth=4).double().eval()
    task = DepthTask(kind='l1')
    items = [{k: o[k] for k in task.keys} for o in photos(8)]
    for scheme in ('random(tokens=12,n=2,min_side=2)','tokens:7','crop:4'):
        batch = task.window_batch(items, parse_scheme(scheme), 8, rng())
        loss = task.batch_loss(model, batch, 8)
        assert loss.isfinite()
        if scheme[0]=='r':
            single = sum(task.batch_loss(model, alone(task, o, batch['windows'], i), 8) for i,o in enumerate(items))/4
            torch.testing.assert_close(loss, single, atol=1e-9, rtol=1e-6)

def pairs():
    sets = [LayeredFlow(size, length=1, seed=i, max_motion=8) for i,size in enumerate([(64,96),(96,64),(64,64)])]
    items = [s[0] for s in sets]
    return [{k: v.double() if v.is_floating_point() else v for k,v in o.items()} for o in items]

@pytest.mark.parametrize('head,match', [('linear',0), ('dpt',0), ('linear',1.), ('matching',1.)])
def test_guided_windows(head, match):
    torch.manual_seed(0)
    model = create_model('winwin_flow_micro', head=head, **dict(num_outputs=2) if head=='matching' else {}).double().eval()
    P = model.patch_size
    task = FlowTask(kind='epe' if head=='matching' else 'bounded', match=match, windows2='3x2')
    items = [{k: o[k] for k in task.keys} for o in map(task.select, pairs())]
    batch = task.window_batch(items, parse_scheme('2x2'), P, rng())
    w1,w2 = batch['windows'],batch['windows2']
    assert w1.packed and w2.packed and batch['image2'].shape[-1]==w2.num_tokens*P*P!=batch['image'].shape[-1]
    ones = [alone(task, item, dict(windows=w1, windows2=w2), i) for i,item in enumerate(items)]
    call = dict(match=0) if match else {}
    maps = model(batch['image'], batch['image2'], w1, w2, **call)
    single = [model(o['image'], o['image2'], o['windows'], o['windows2'], **call) for o in ones]
    both = [m[0] if match else m for m in (maps,*single)]
    for k,m in enumerate(both[0]): torch.testing.assert_close(m, torch.cat([o[k] for o in both[1:]]), atol=1e-9, rtol=1e-6)
    targets = torch.cat([match_targets(o['flow'], o['windows'], o['windows2'], P, o['valid']&o['visible']) for o in ones])
    assert torch.equal(match_targets(batch['flow'], w1, w2, P, batch['valid']&batch['visible']), targets) and (targets>=0).any()
    loss = task.batch_loss(model, batch, P)
    if head=='matching':
        cells = [refine_windows(w, P//8) for w in (w1,w2)]
        known = cell_targets(batch['flow'], *cells, 8, batch['valid'], batch['visible'])
        each = torch.cat([cell_targets(o['flow'], refine_windows(o['windows'], P//8), refine_windows(o['windows2'], P//8), 8, o['valid'], o['visible']) for o in ones])
        assert torch.equal(known<0, each<0) and loss.isfinite() # ids of cells differ with the grid
        found = sum(s.square().mean() for o in maps[1] for s in o.steps)
        parts = [sum(s.square().mean() for o in m[1] for s in o.steps) for m in single]
        torch.testing.assert_close(found, sum(parts)/3, atol=1e-9, rtol=1e-6)
        assert_same(gradients(model, found), gradients(model, sum(parts)/3))
        return
    if match: # the match loss is a mean over tokens with a target, not over images
        n = torch.stack([(t>=0).sum() for t in targets.chunk(3)])/(targets>=0).sum()
        plain = FlowTask(kind='bounded', windows2='3x2')
        wanted = sum(plain.batch_loss(model, o, P)/3 + k*(task.batch_loss(model, o, P)-plain.batch_loss(model, o, P)) for k,o in zip(n, ones))
    else: wanted = sum(task.batch_loss(model, o, P) for o in ones)/3
    torch.testing.assert_close(loss, wanted, atol=1e-9, rtol=1e-6)
    assert_same(gradients(model, task.batch_loss(model, batch, P)), gradients(model, wanted))

@pytest.mark.parametrize('extra', [0,3])
def test_strips_hold_what_windows_show(extra):
    w = sample_windows((5,7), [(2,3),(2,2)], 3, rng(), extra)
    img = torch.rand(3,2,40,56)
    strip = pack_windows(img, w, 8)
    assert torch.equal(patchify(strip, 8, as_packed(w)), patchify(img, 8, w))
    for a,b in zip(crop_windows(strip, as_packed(w), 8), crop_windows(img, w, 8)): assert torch.equal(a, b)

@pytest.fixture
def folder(tmp_path):
    "Ten photographs in ten sizes"
    g = np.random.default_rng(0)
    for i in range(10):
        h,w = 64+9*i,110-4*i
        for kind,x in (('images',g.integers(0, 255, (h,w,3))),('labels',g.integers(0, 3, (h,w)))):
            (tmp_path/kind).mkdir(exist_ok=True)
            Image.fromarray(x.astype(np.uint8)).save(tmp_path/kind/f'{i}.png')
    return tmp_path

def test_a_folder_of_many_sizes_trains_and_resumes(folder, tmp_path):
    data = SegFolder(folder, names=['a','b','c'])
    def model():
        torch.manual_seed(0)
        return create_model('winwin_seg_micro', num_classes=3, depth=1, head='linear')
    cfg = TrainConfig(windows='2x3', steps=3, batch_size=8, save_every=2, warmup=1, log_every=1, workers=1)
    whole = fit(model(), data, cfg, progress=False)
    def die(line):
        if line['step']==3: raise RuntimeError('power cut')
    with pytest.raises(RuntimeError): fit(model(), data, cfg, out=tmp_path/'run', progress=False, watch=die)
    again = resume(tmp_path/'run', data, progress=False)
    a,b = whole.model.state_dict(),again.model.state_dict()
    assert all(torch.equal(a[k], b[k]) for k in a)

def test_whole_images_of_many_sizes_are_refused(folder):
    data = SegFolder(folder, names=['a','b','c'])
    model = create_model('winwin_seg_micro', num_classes=3, depth=1, head='linear')
    with pytest.raises(ValueError, match='give windows such as 2x22'): fit(model, data, TrainConfig(windows='full', steps=1), progress=False)

def test_bytes_of_a_720p_batch(tmp_path):
    world = [dict(image=torch.zeros(3,720,1280), labels=torch.zeros(720,1280, dtype=torch.uint8))]*2
    task = SegTask(CLASSES)
    choose = partial(task.window_batch, scheme=parse_scheme('2x22'), patch=16)
    batch, = batches(ItemStream(world, task.keys, 16), range(1), 2, choose=choose)
    share = sum(batch[k].numel()*batch[k].element_size() for k in task.keys)/sum(o[k].numel()*o[k].element_size() for o in world for k in task.keys)
    assert .26<share<.28
