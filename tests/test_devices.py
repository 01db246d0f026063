"""Everything that takes tensors, on a GPU that is not there (stand_in.py): no mixing of devices, no float64 on mps, few waits per step.

Keys of CALLS name the public functions and classes that the call runs; `test_every_public_name_is_tried` looks for the others.
"""
import contextlib, importlib, inspect, json, tempfile, unittest.mock as mock
from pathlib import Path
import accelerate, pytest, torch, torch.nn as nn
import matplotlib
matplotlib.use('Agg')
import matplotlib.pyplot as plt
from stand_in import Generator, stand_in
import winwin, winwin.bench, winwin.data, winwin.models.heads, winwin.training.loop as loop
from winwin import *
from winwin.attention import *
from winwin.bench import *
from winwin.data import *
from winwin.inference import *
from winwin.models import *
from winwin.tasks import *
from winwin.temperature import *
from winwin.windows import *
from winwin.workbench import *
from winwin.worlds import *
from winwin.training.log import EvalPictures
from winwin.training.loop import TrainConfig, TrainRun, train_step
from winwin.training.recipes import change, get_preset, recipe_data, recipe_model, recipe_task, train_recipe

ROOMS = 'windows data worlds models attention tasks training inference temperature bench workbench experiments'.split()
SIZES = [(4,4),(3,5)]
SEG = DrivingWorld((64,96), length=4)
PAIRS = LayeredFlow((64,96), length=4, max_motion=12)
MORE = DrivingWorld((64,96), length=2, normals=True)
STEREO = DrivingWorld((64,96), length=2, stereo=True)
SCENES = SEG.batch(range(2))
FRAMES = PAIRS.batch(range(2))
W = sample_windows((8,12), SIZES, 2, torch.Generator().manual_seed(0))
EXTRA = sample_windows((8,12), SIZES, 2, torch.Generator().manual_seed(0), extra=3)
rng = lambda: torch.Generator().manual_seed(0)
there = lambda: Generator().manual_seed(0)

@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close('all')

def tiny(task='seg', **over):
    "A model of a task, as small as it can be"
    torch.manual_seed(0)
    size = dict(dim=48, depth=4, num_heads=3) if task in ('seg','depth') else dict(dim=32, depth=2, num_heads=2)
    if over.get('head')=='matching': size = dict(dim=32, depth=2, num_heads=2, patch_size=8)
    elif task in ('flow','pretrain'): size |= dict(decoder=dict(dim=32, depth=3, num_heads=2))
    if task=='seg': size |= dict(num_classes=14)
    return create_model(f'winwin_{task}_micro', **size | over)

def on(device, x):
    "A batch on the device"
    return {k: v.to(device) for k,v in x.items()}

def maps_of(device, channels): return [torch.rand(2,channels,h*8,w*8, device=device, requires_grad=True) for h,w in SIZES]

def heads_of(device, tokens=31): return [torch.randn(2,3,tokens,16).to(device) for _ in range(2)]

def scored(metrics, *args):
    metrics.update(*args)
    return metrics.table(metrics.compute())

def loss_of(name, device, scheme, head='linear', frames=None, **options):
    "A training step of a task by hand, with backward"
    task = make_task(name, SEG, **options) if name=='seg' else make_task(name, **options)
    model = tiny(name, **{} if name=='pretrain' else dict(head=head)).to(device)
    batch = SCENES if name in ('seg','depth') else FRAMES
    loss,_ = task.loss(model, {k: batch[k].to(device) for k in task.keys}, parse_scheme(scheme), model.patch_size, rng())
    loss.backward()
    frozen = [n for n,p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert loss.device.type==device and not frozen

def run_model(device, model, frames=1, windows=W, **call):
    "Forward and backward of a model, with windows on the host, on the device, with isolated tokens, and in full"
    model = model.to(device)
    images = [torch.rand(2,3,8*model.patch_size,12*model.patch_size, device=device) for _ in range(frames)]
    layouts = [windows, windows.to(device), None] if windows is not None else [None]
    for w in layouts:
        out = torch.utils._pytree.tree_leaves(model(*images, *([w]*frames if w is not None else []), **call))
        assert {o.device.type for o in out}=={device}
    sum(o.float().square().mean() for o in out).backward()

def recorded(device, cross=False):
    model = tiny('flow', head='linear') if cross else tiny()
    images = (torch.rand(3,64,96),)*2 if cross else torch.rand(3,64,96)
    return AttentionRecorder(model.to(device), images, '2x4')

def look_at_attention(device, cross=False):
    maps = recorded(device, cross)
    name = [*maps.kinds][-1 if cross else 1]
    look = maps.look(name, 'full')
    token_panels(maps, name, [3,5], torch.ones(look.q.shape[1]))
    token_stats(look, [3])
    layer_rows(maps, 4)
    if not cross: curve_map(look, tau_curve(look), 1.3)
    rows = TokenRows(look, [3])
    LayerCurves(maps, samples=8)
    read_with(maps, {n: 1.2 for n in maps.kinds}, [3])
    return rows

class Foreign(nn.Module):
    "A vision transformer of a user, which knows nothing of this library"
    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 16, 8, 8)
        self.layer = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)
    def forward(self, img): return self.layer(self.embed(img).flatten(2).mT)

def masks(device):
    "Masks of every form that can be folded into queries and keys"
    q,k = heads_of(device, 12)
    one = torch.zeros(12, device=device)
    one[3:] = 1.
    for mask in (one>0, one, (one>0)[:,None] & (one>0), torch.rand(12,12, device=device)): fold_mask(q, k, mask)

def heated(device):
    "A temperature, for all layers and by layer, around any model"
    class Attends(nn.Module):
        def forward(self, x): return nn.functional.scaled_dot_product_attention(x, x, x)
    for tau in (1.2, torch.tensor([1.,1.1]), torch.tensor([1.,1.1], device=device), [1.,1.1]):
        with attention_temperature(Attends(), tau) as m: m(heads_of(device)[0][:,:2])

def raster(device):
    "A small TIFF, predicted block by block"
    from tifffile import imwrite
    with tempfile.TemporaryDirectory() as place:
        imwrite(f'{place}/a.tif', torch.randint(0, 255, (80,112,3), dtype=torch.uint8, device='cpu').numpy(), tile=(32,32), photometric='rgb')
        predict_raster(Predictor(tiny().to(device)), f'{place}/a.tif', place, (48,48), progress=False)

def draw_pictures(device):
    pictures = EvalPictures(make_task('seg', SEG), 1)
    pictures({k: v.to(device) for k,v in SCENES.items()}, torch.rand(1,14,64,96, device=device))
    assert pictures.rows

def lazily(device):
    "Maps that stay in their file, windows on either device"
    class Source:
        shape,dtype = (3,64,96),torch.float32
        def read(self, top, left, h, w): return SCENES['image'][0,:,top:top+h,left:left+w]
    lazy = stack_maps([LazyMap(Source(), (0,0,64,96), (64,96))]*2)
    for w in (W, W.to(device), EXTRA.to(device)):
        assert torch.equal(pack_maps(lazy, w, 8), pack_windows(SCENES['image'][[0,0]], w, 8))
        pack_maps(SCENES['image'].to(device), w, 8)
    for x in (lazy, lazy.maps[0], SCENES['image'].to(device)): read_maps(x)
    for x in (lazy.maps[0], SCENES['image'].to(device)): glimpse(x)

def foreign(device):
    maps = AttentionRecorder(Foreign().eval().to(device), SCENES['image'][0], '2x4')
    prefix_share(maps.look(list(maps.layers)[0]))
    feature_moves(maps)
    x = maps.features(list(maps.layers)[0])
    feature_similarity(x, [3])
    feature_norms(x)
    feature_colors([x])
    return [maps.look(n, view).q for n in maps.layers for view in ('windows','full')]

def captured(device):
    model = tiny().to(device).eval()
    with torch.no_grad(), capture(model) as seen: model(SCENES['image'].to(device), W)
    return self_probability(seen[0].q, seen[0].k)

def predict_all(device, head):
    model = tiny(head=head).to(device)
    image = torch.rand(1,3,70,101, device=device)
    for options in (dict(), dict(rows=2), dict(mode='tile', size=(48,48), weights='taper'), dict(mode='resize', size=(32,48))):
        assert predict(model, image, **options).device.type==device

def predict_flow_all(device, head):
    model = tiny('flow', head=head).to(device)
    frames = [torch.rand(1,3,70,101, device=device) for _ in range(2)]
    for options in (dict(), dict(mode='tile', size=(48,48), weights='taper'), dict(mode='resize', size=(32,48))):
        assert predict_flow(model, *frames, **options).device.type==device

def temper(device, **options):
    "Temperatures of some heads, in turn from floats, lists and tensors on either device"
    model = tiny().to(device)
    for tau in (1.2, [1.,1.1,1.2], torch.tensor([1.,1.1,1.2]), torch.tensor([1.,1.1,1.2], device=device)):
        before = set_temperature(model, tau)
        set_temperature(model, [1.5,1.6], heads=[0,1])
        set_temperature(model, torch.tensor([1.5], device=device), heads=0)
        with tempered(model, get_temperature(model)): model(SCENES['image'].to(device), W)
        set_temperature(model, before)
    set_temperature(model, torch.tensor([1.,1.1,1.2]))
    fold_temperature(model)

def explore(device, kind, *args, **options):
    e = kind(*args, **options)
    e.figure()
    return e

def use_task(name, data, device, **options):
    "A training step, scores and pictures of a task, and its map written and read again"
    task = make_task(name, **options)
    batch = {k: v.to(device) for k,v in data.batch(range(2)).items() if k in task.keys}
    pair = 'image2' in task.keys
    model = (tiny('flow', head='linear', num_outputs=task.outputs()) if pair else tiny(head='linear', num_classes=task.outputs())).to(device)
    loss,_ = task.loss(model, batch, parse_scheme('2x4'), model.patch_size, rng())
    loss.backward()
    assert loss.device.type==device and loss.isfinite()
    with torch.no_grad(): maps = task.predict(model, batch)
    metrics = task.metrics()
    task.update(metrics, maps, batch)
    metrics.table()
    values = {k: v[0] for k,v in task.decode(maps).items()}
    for item in (data[0],on(device, data[0])): task.paint_error(values, item)
    task.paint(values, task.limit(values))
    task.difference(maps, maps+.1)
    assert task.describe_values(values)
    with tempfile.TemporaryDirectory() as folder:
        path = task.file_of(Path(folder), 'map', 'a')
        path.parent.mkdir()
        task.write_map(values, path)
        assert task.read_map(path).isfinite().all()

def written_disparity(device):
    with tempfile.TemporaryDirectory() as folder:
        for kind in ('.pfm','.png','.npy'):
            for ok in (None, torch.ones(8,12, dtype=torch.bool, device='cpu'), torch.ones(8,12, dtype=torch.bool, device=device)):
                write_disparity(Path(folder)/f'a{kind}', torch.rand(8,12, device=device)+1, ok)
                assert read_disparity(Path(folder)/f'a{kind}')[0].shape==(8,12)

def read_on(device):
    model = tiny(head='linear').to(device)
    task = make_task('seg', SEG)
    for reading in (Reading(every=2), Reading(every=2, size=(48,64), tau=1.2), Reading(every=2, crop=(32,48), bands=(0,8))):
        sums = read_images(model, SEG, task, reading, progress=False)
    with tempfile.TemporaryDirectory() as folder: again = read_sums(write_sums(Path(folder)/'a.npz', dict(a=sums)))
    assert torch.equal(again['a'], sums)
    return draw_images(4, 3), border_distance(8, 12)

CALLS = {
    'Windows window_mask': lambda d: [window_mask(Windows(W.yx.to(d), W.sizes, W.grid)), Windows.full((8,12)).to(d).positions(), EXTRA.to(d).index()],
    'Windows; extra on another device': lambda d: Windows(W.yx.to(d), W.sizes, W.grid, EXTRA.extra).positions(),
    'Scheme': lambda d: [parse_scheme(s).apply(SCENES['image'].to(d), SCENES['labels'].to(d), patch=8, generator=rng()) for s in ('2x4','crop:4','full','tokens:9')],
    'stack_windows': lambda d: stack_windows([EXTRA.to(d)]*2),
    'sample_windows': lambda d: sample_windows((8,12), SIZES, 4, there(), 3),
    'sample_windows; packed': lambda d: sample_windows((6,6), [(3,3)]*4, 3, there()),
    'free_corners': lambda d: free_corners(W.yx.to(d), SIZES, (8,12), (2,2)),
    'random_sizes': lambda d: random_sizes((20,30), 200, generator=there()),
    'sample_tokens': lambda d: sample_tokens((8,12), 5, 2, there()),
    'LazyMap stack_maps read_maps pack_maps glimpse': lazily,
    'crop_windows': lambda d: [crop_windows(SCENES['image'].to(d), w, 8) for w in (W, W.to(d))],
    'pack_windows as_packed': lambda d: [crop_windows(pack_windows(SCENES['image'].to(d), w, 8), as_packed(w), 8) for w in (W, EXTRA, EXTRA.to(d))],
    'distance_histogram': lambda d: distance_histogram(W.to(d)),
    'seen_neighbours': lambda d: seen_neighbours(W.to(d)),
    'scheme_coverage': lambda d: scheme_coverage('2x4', (8,12), 9, there()),
    'scheme_of show_windows': lambda d: [scheme_of(W.to(d)), show_windows(EXTRA.to(d), SCENES['image'][0].to(d))],
    'pad_to_patches unpad': lambda d: unpad(pad_to_patches(torch.rand(1,3,13,17, device=d), 8)[0], (13,17)),
    'patch_view patchify unpatchify': lambda d: unpatchify(patchify(patch_view(SCENES['image'].to(d), 8).permute(0,3,1,4,2,5).reshape(2,3,64,96), 8), (8,12), 8),
    'gather_tokens scatter_tokens': lambda d: [scatter_tokens(gather_tokens(torch.rand(2,96,4, device=d), w), w) for w in (W, EXTRA)],
    'PatchEmbed check_windows': lambda d: [PatchEmbed(8, 3, 16).to(d)(SCENES['image'].to(d), w) for w in (None, W, EXTRA)],
    **{f'guide_windows bin_flow perturb_map; {m}': lambda d,m=m: guide_windows(FRAMES['flow'].to(d), W.to(d), None, .3, 8, FRAMES['valid'], m, rng()) for m in guide_methods},
    'best_windows': lambda d: best_windows(torch.rand(2,8,12, device=d), SIZES),
    'match_coverage': lambda d: match_coverage(FRAMES['flow'].to(d), W, W.to(d), 8),
    'show_guidance': lambda d: show_guidance(FRAMES['flow'].to(d), W.to(d), patch=8),
    'guide_once Guidance': lambda d: guide_once(FRAMES['flow'][0].to(d), Windows.unchecked(W.yx[:1].to(d), W.sizes, W.grid), size=4, patch=8),
    'refine_windows paste_windows': lambda d: paste_windows(crop_windows(SCENES['image'].to(d), W, 8), refine_windows(W, 8)),
    'cell_places square_offsets sample_at warp_window': lambda d: warp_window(torch.rand(2,4,8,12, device=d), torch.rand(2,2,4,4, device=d), W.yx[:,0]),
    'lookup': lambda d: lookup(torch.rand(2,16,8,12, device=d), torch.rand(2,2,4,4, device=d), 1),
    'correlate neighbours': lambda d: correlate(torch.rand(1,4,6,6, device=d, requires_grad=True), neighbours(torch.rand(1,4,6,6, device=d))[:,:,0], 1).sum().backward(),

    'seg_loss window_pairs': lambda d: [seg_loss(maps_of(d, 14), t, w, 8, weight=torch.ones(14)).backward() for t in (SCENES['labels'],SCENES['labels'].to(d)) for w in (W,W.to(d))],
    'depth_loss': lambda d: [depth_loss(maps_of(d, 1), SCENES['depth'].to(d), W.to(d), 8, k).backward() for k in ('silog','berhu','l1')],
    'flow_loss': lambda d: [flow_loss(maps_of(d, FLOW_CHANNELS[k]), FRAMES['flow'].to(d), W.to(d), 8, k, valid=FRAMES['valid']).backward() for k in FLOW_CHANNELS],
    'laplacian_loss flow_uncertainty': lambda d: [laplacian_loss(torch.rand(2,3,64,96, device=d), FRAMES['flow']), flow_uncertainty(torch.rand(2,3,64,96, device=d))],
    'match_loss match_targets': lambda d: match_loss(torch.rand(2,3,31,31, device=d), FRAMES['flow'], W, W.to(d), 8),
    'cell_targets': lambda d: cell_targets(FRAMES['flow'].to(d), W, W.to(d), 8, FRAMES['valid'], FRAMES['visible']),
    'completion_loss complete': lambda d: [f(SCENES['image'].to(d), SCENES['image'].to(d), W, 8) for f in (completion_loss, complete)],
    'richest_windows': lambda d: richest_windows([W.to(d)]*2, torch.rand(2,64,96, device=d), 8),
    **{f'Task {kind}; {k} {s} {o}': lambda d,k=k,s=s,o=o: loss_of(k, d, s, **o) for kind,k,s,o in (
        ('SegTask','seg','2x4',dict()), ('SegTask','seg','4+3',dict(weight=[1.]*14, layouts=3)), ('SegTask','seg','2x4+5',dict()),
        ('SegTask','seg','crop:4',dict(label_smoothing=.1)), ('DepthTask','depth','full',dict(max_depth=80.)), ('FlowTask PairTask','flow','2x4',dict(match=1.)),
        ('FlowTask','flow','4+3',dict(windows2='tokens:9')), ('FlowTask matching_loss','flow','2x4',dict(head='matching', match=1., kind='epe')),
        ('CompletionTask','pretrain','full',dict()))},
    'normals_loss NormalsTask AngleMetrics': lambda d: use_task('normals', MORE, d),
    'relative_loss RelativeTask align_inverse': lambda d: use_task('relative', MORE, d, max_depth=80.),
    'disparity_loss disparity_flow StereoTask StereoMetrics': lambda d: use_task('stereo', STEREO, d),
    'write_disparity': written_disparity,
    'read_images read_item border_distance write_sums read_sums draw_images': read_on,
    'first_map shade rgb_picture mark_wrong error_colors': lambda d: [shade(first_map(dict(x=torch.rand(1,8,12, device=d)))), shade(torch.rand(8,12, device=d)), rgb_picture(torch.rand(3,8,12, device=d)),
        mark_wrong(torch.rand(3,8,12, device=d), torch.rand(8,12, device=d)), error_colors(torch.rand(8,12, device=d))],
    'SegMetrics': lambda d: [scored(SegMetrics(14), torch.rand(2,14,64,96, device=d), t) for t in (SCENES['labels'],SCENES['labels'].to(d))],
    'DepthMetrics': lambda d: [scored(DepthMetrics(80., average=a), torch.rand(2,1,64,96, device=d)+1, SCENES['depth'].to(d)[:,None]) for a in ('image','set')],
    'FlowMetrics': lambda d: [scored(FlowMetrics(a), torch.rand(2,2,64,96, device=d), FRAMES['flow'].to(d), FRAMES['valid'], FRAMES['visible']) for a in ('image','set')],
    'MeanMetrics sum_over_processes': lambda d: scored(MeanMetrics(), torch.rand(3, device=d)),
    **{f'evaluate predict_full; {k}': lambda d,k=k,data=data: evaluate(tiny(k, **{} if k=='pretrain' else dict(head='linear')).to(d), [data[0]], make_task(k, SEG) if k=='seg' else make_task(k), progress=False)
       for k,data in (('seg',SEG),('depth',SEG),('flow',PAIRS),('pretrain',PAIRS))},

    'check_flow mark_unknown full_precision': lambda d: mark_unknown(full_precision(FRAMES['flow'].to(d)), FRAMES['valid'], 1e4),
    'flow_to_color show_flow show_arrows': lambda d: [flow_to_color(FRAMES['flow'].to(d)), show_flow(FRAMES['flow'][0].to(d)), show_arrows(FRAMES['flow'][0].to(d), FRAMES['image'][0].to(d))],
    'flow_error_map show_flow_error': lambda d: [flow_error_map(FRAMES['flow'].to(d), FRAMES['flow']), show_flow_error(FRAMES['flow'][0].to(d), FRAMES['flow'][0])],
    'warp show_warp': lambda d: [warp(FRAMES['image2'].to(d), FRAMES['flow']), show_warp(FRAMES['image'][0], FRAMES['image2'][0].to(d), FRAMES['flow'][0])],
    'resize_flow': lambda d: resize_flow(FRAMES['flow'][0].to(d), (32,48), FRAMES['valid'][0].to(d)),
    'heat_bytes to_images image_bytes': lambda d: [heat_bytes(torch.rand(8,12, device=d)), to_images(torch.rand(3,16,16, device=d)), image_bytes(torch.rand(3,16,16, device=d))],
    'fit_image': lambda d: fit_image(torch.rand(3,65,99).to(d), 8),
    'check_range': lambda d: [check_range(x := torch.rand(3,16,16, device=d)), x][1],
    'adapt_bands': lambda d: adapt_bands(ViT(32, 1, 2, 8).to(d).state_dict(), ViT(32, 1, 2, 8, in_chans=5).to(d)),
    'check_bands': lambda d: [check_bands(x := torch.rand(5,16,16, device=d), torch.full((5,), .5), torch.full((5,), .3)), x][1],
    'Augment FlowAugment': lambda d: [Augment(scale=(.5,.6))(on(d, SEG[0])), FlowAugment((48,64), erase=1.)(on(d, PAIRS[0]))],
    'DrivingWorld LayeredFlow color_labels': lambda d: [color_labels(DrivingWorld((64,96), length=2, pair=True, device=d)[0]['labels']), LayeredFlow((64,96), length=2, device=d)[0]],

    'rope_table apply_rope sincos_pos rotate_back rotate_pairs': lambda d: [apply_rope(torch.rand(2,3,31,16, device=d), W.to(d).positions()), sincos_pos(W.to(d).positions(), 16, grid=(8,12), trained=(4,4)),
                                                              rotate_back(torch.rand(2,31,3,16, device=d), rope_table(W.to(d).positions(), 16))],
    'attend': lambda d: [attend(*heads_of(d), heads_of(d)[0], t) for t in (1.2, torch.ones(3))],
    'half_to_pairs pairs_to_half': lambda d: half_to_pairs(pairs_to_half(torch.rand(32,5, device=d), 2), 2),
    'resample_patch_embed': lambda d: resample_patch_embed(torch.rand(8,3,16,16, device=d), 8),
    **{f'{kind}; {name}': lambda d,t=t,o=o,n=n,w=w,c=c: run_model(d, tiny(t, **o), n, w, **c) for kind,name,t,o,n,w,c in (
        ('LinearHead DenseModel ViT Encoder Block Attention Mlp gelu Head WindowModel run_blocks','linear','seg',dict(head='linear'),1,EXTRA,{}),
        ('ConvNeXtHead ConvNeXtBlock','convnext','seg',{},1,W,{}), ('UpsampleHead','upsample','seg',dict(head='upsample'),1,W,{}), ('ProbeHead','probe','seg',dict(head='probe'),1,W,{}),
        ('DPTHead FeatureFusion ResidualConvUnit','dpt','depth',{},1,W,{}), ('ViT','sincos','seg',dict(pos='sincos', head='linear'),1,W,{}),
        ('ViT','resized','seg',dict(pos='sincos:4x4', head='linear'),1,EXTRA,{}), ('ViT','checkpointing','seg',dict(checkpointing=True, head='linear'),1,W,{}),
        ('attend_locally to_tiles from_tiles','vitdet','seg',dict(local_window=3, global_blocks=(1,3), head='linear'),1,W,{}),
        ('ViT','relative','seg',dict(relative=True, head='linear'),1,EXTRA,{}),
        ('FlowModel Decoder DecoderBlock CrossAttention','flow','flow',dict(depth=4, relative=True, tied=True, flow_scale=16.),2,W,dict(match=0)),
        ('DecoupledDPTHead','decoupled','flow',dict(depth=4, head='decoupled'),2,W,{}),
        ('MatchingModel MatchingHead ConvStem FlowUpdate WindowMatch','matching','flow',dict(head='matching'),2,W,{}))},
    'CompletionModel': lambda d: tiny('pretrain').to(d)(FRAMES['image'].to(d), FRAMES['image2'].to(d), W)[0].sum().backward(),
    **{f'TimmEncoder embed_timm; {name}': lambda d,name=name: run_model(d, create_model(f'{name}:linear', depth=2), 1, W)
       for name in ('dinov3-small','eva02-tiny','pe-tiny','rope-small','rope-mixed-small','dinov2-small','vit-tiny')},
    'LoRALinear add_lora merge_lora plain_state set_trainable': lambda d: [run_model(d, set_trainable(tiny(head='linear').to(d), 'lora:2'), 1, W), plain_state(set_trainable(tiny().to(d), 'lora:2')), set_trainable(set_trainable(tiny().to(d), 'lora:2'), 'all')],
    'TimmEncoder grid_places; as DINOv2': lambda d: run_model(d, create_model('vit_small_patch14_dinov2:linear', depth=2, antialias=False), 1, W),
    'capture Seen watch': captured,
    'EvalPictures': draw_pictures,
    'scale_keys': lambda d: scale_keys(heads_of(d)[1], 7),
    'scaled_frequencies': lambda d: [scaled_frequencies(torch.rand(4, device=d), o) for o in (.5,'ntk:0.5','yarn:0.5:20')],
    'MadePixels': lambda d: [MadePixels((3,64,96)).read(0, 0, 8, 8), MadePixels((64,96), 4).read(0, 0, 8, 8)],
    'fold_mask': masks,
    'attention_temperature': heated,
    'set_temperature get_temperature set_layer_tau layer_tau tempered fold_temperature': temper,
    'to_croco': lambda d: to_croco(tiny('flow', depth=4).to(d)),
    'temperature_dict restore_temperatures': lambda d: temperature_dict(tiny().to(d)),

    'attention_sums head_taus self_probability token_products attention_entropy attention_logits attention_rows window_mass window_ids attention_distance distance_profile': lambda d: [
        self_probability(*heads_of(d), torch.ones(3)), self_probability(*heads_of(d), torch.ones(3, device=d)), attention_entropy(*heads_of(d)), attention_rows(*heads_of(d), [1,2]),
        window_mass(*heads_of(d), W), window_mass(*heads_of(d), W.to(d)), attention_distance(*heads_of(d), W.positions()), attention_distance(*heads_of(d), W.positions(), kind='rms'),
        distance_profile(*heads_of(d), W.positions(), torch.arange(6.))],
    'TauCurve': lambda d: [f(1.3) for c in [TauCurve(*heads_of(d))] for f in (c.log_sum, c.entropy, c.self_probability)],
    'compare_attention AttentionComparison make_views View TokenMeans layer_means': lambda d: [compare_attention(tiny().to(d), imgs, w).table() for imgs in (SCENES['image'],SCENES['image'].to(d)) for w in ('2x4',W,W.to(d),'crop:4')],
    'compare_attention; two frames': lambda d: compare_attention(tiny('flow', head='linear').to(d), (FRAMES['image'],FRAMES['image2']), '2x4').table(),
    'AttentionRecorder RecordedLayer LayerCurves TokenRows curve_map token_panels token_stats read_with': look_at_attention,
    'AnyModel CalledLayer FusedCall call_model find_patch find_layers look_at_calls watch_calls knows_layers prefix_share feature_moves feature_similarity feature_norms feature_colors': foreign,
    'AttentionRecorder; cross': lambda d: look_at_attention(d, cross=True),
    'mosaic normalize_images': lambda d: [mosaic([torch.rand(2,8,12, device=d)]*3), normalize_images(tiny().to(d), SCENES['image'].to(d))],

    **{f'predict predict_bands tile_weights; {h}': lambda d,h=h: predict_all(d, h) for h in ('linear','convnext','dpt')},
    **{f'predict_flow flow_weights; {h}': lambda d,h=h: predict_flow_all(d, h) for h in ('linear','matching')},
    'RasterJob predict_raster': raster,
    'Predictor Prediction': lambda d: [Predictor(tiny(t).to(d))(torch.rand(3,70,101)).overlay() for t in ('seg','depth')],
    'FlowPredictor FlowPrediction': lambda d: FlowPredictor(tiny('flow').to(d))(*[torch.rand(3,70,101)]*2).color(),
    'DensePath WholeImage': lambda d: [DensePath(tiny(**o).to(d), pad=p)(torch.rand(1,3,64,96, device=d)) for o in ({}, dict(pos='sincos:4x4')) for p in (False,True)],
    'FlowPath': lambda d: FlowPath(tiny('flow').to(d))(*[torch.rand(1,3,64,96, device=d)]*2),

    'match_temperature Match output_sizes row_means': lambda d: [match_temperature(tiny().to(d), imgs, '2x4', per=per, by=by).table() for imgs,per,by in (
        (SCENES['image'],'model','output'), (SCENES['image'].to(d),'layer','output'), (SCENES['image'],'head','self'), (SCENES['image'],'layer','entropy'), (SCENES['image'],'head','gaps'))],
    'critical_tau': lambda d: critical_tau(torch.randn(2,9, device=d)),
    'sweep_temperature Sweep FullLoss': lambda d: sweep_temperature(tiny(head='linear').to(d), FullLoss(SEG, make_task('seg', SEG), 2), [.9,1.,1.1], progress=False),
    'learn_temperature Learned': lambda d: learn_temperature(tiny().to(d), lambda m,i: m(SCENES['image'].to(d))[0].square().mean(), 1, check=1, progress=False),
    'compare_temperatures TemperatureTable ImageScores': lambda d: compare_temperatures(tiny(head='linear').to(d), SEG, SEG, make_task('seg', SEG), '2x4', 2, 2, 1, progress=False),
    'token_counts': lambda d: token_counts(SCENES['image'].to(d), '2x4', 8),
    'constant_attention constant_height constant_self_probability constant_tau show_discrepancy': lambda d: [constant_attention(W.to(d), 0), constant_height(.3, W.to(d)), constant_self_probability(W.to(d)),
        constant_tau('2x4', (8,12)), constant_tau(W.to(d)), show_discrepancy(W.to(d))],

    'gemm PlainViT': lambda d: [gemm(d)(), PlainViT(ViT(48, 2, 3, 8).to(d))(SCENES['image'].to(d))],
    'flops memory trace_cost window_facts': lambda d: [flops(tiny().to(d), W.to(d)), memory(tiny().to(d), (8,12)), window_facts(W.to(d), tiny().to(d))],
    'measure_speed': lambda d: measure_speed(d, seconds=.01),
    'boxes_windows window_boxes TokenCanvas': lambda d: [boxes_windows(window_boxes(W.to(d)), (8,12)), TokenCanvas().show_heat(torch.rand(8,12, device=d)), TokenCanvas().show_image(torch.rand(3,64,96, device=d), 8),
                                                         TokenCanvas().show_seen(window_mask(W.to(d))[0])],
    'show_confusion class_weights': lambda d: [class_weights(SEG, 14), show_confusion(SegMetrics(14))],
}
# no tensor on a device goes in: files, weights of files, results of the calls above, and what only forwards to them
ELSEWHERE = set('''PairFolder Explorer FileDataset read_bands FlowPairs KITTI Spring TartanAir load_image read_colours read_depth read_flow read_image read_labels paint_shapes paired_item segments_to_classes write_flow
    street_labels read_disparity RasterSource image_values class_values height_values CrocoFile fill_model find_weights from_transformers plain_weights Exported theory_numbers
    AttentionExplorer ExampleScene GuidanceExplorer TemperatureExplorer'''.split())

MODELS = 'TimmEncoder','Head','ViT','attend_locally','FlowModel','MatchingModel','predict' # nothing of theirs is in float64

@pytest.mark.parametrize('kind,name', [(kind,name) for kind in ('cuda','mps') for name in CALLS if kind=='cuda' or not any(word in name for word in MODELS)])
def test_calls(kind, name):
    with stand_in(kind): CALLS[name](kind)

HOST_ONLY = ('TimmEncoder','predict','Task','evaluate','match_temp','compare_temp','sweep','learn') # slow, or of which the loop below tries the parts
DEFAULT = [k for k in CALLS if not any(k.startswith(o) for o in HOST_ONLY)]

@pytest.mark.parametrize('name', DEFAULT)
def test_calls_with_another_default_device(name):
    "After `torch.set_default_device('cuda')` the same calls, with data that is on the CPU"
    with stand_in('cuda'), torch.device('cuda'): CALLS[name]('cuda')

def takes_tensors(x):
    "Whether a public function or class has tensors, windows or models among its arguments"
    members = [x] if inspect.isfunction(x) else [f for k,f in vars(x).items() if inspect.isfunction(f) and (k[0]!='_' or k in ('__init__','__call__'))]
    return any(word in str(inspect.signature(f)) for f in members for word in ('Tensor','Windows','nn.Module','Seen'))

def test_every_public_name_is_tried():
    tried = {word for key in CALLS for word in key.partition(';')[0].split()} | ELSEWHERE
    rooms = [importlib.import_module(f'winwin.{r}') for r in ROOMS]
    public = {n: getattr(room, n) for room in rooms for n in room._HOME}
    wanted = {n for n,x in public.items() if (inspect.isfunction(x) or inspect.isclass(x)) and takes_tensors(x)}
    assert wanted <= tried, f'give CALLS a call of {sorted(wanted-tried)}'
    assert not ELSEWHERE - public.keys(), 'these names are gone'

# --- whole runs

@contextlib.contextmanager
def machine(kind='cuda'):
    "A machine with one GPU, as far as accelerate can tell"
    def accelerator(mixed_precision, kwargs_handlers, **trackers):
        accelerate.state.AcceleratorState._reset_state(True)
        made = accelerate.Accelerator(cpu=True)
        for state in (accelerate.state.PartialState,accelerate.state.AcceleratorState): state._shared_state['device'] = torch.device(kind, 0)
        return made
    with mock.patch.object(loop, 'Accelerator', accelerator), stand_in(kind) as device:
        try: yield device
        finally: accelerate.state.AcceleratorState._reset_state(True)

SMALL = dict(image_size=(64,96), images=4, valid_images=2, windows='2x3', steps=3, batch_size=2, warmup=1, log_every=1, save_every=2)
RUNS = {'driving-seg': dict(ema=.9, accumulate=2), 'driving-depth': {}, 'flow-layered': dict(windows2='2x3'), 'pretrain-driving': dict(windows='full')}
OTHERS = {'driving-normals': {}, 'driving-relative': {}, 'driving-stereo': dict(windows2='2x3')} # whose parts CALLS tries
def recipe(preset, **over): return change(get_preset(preset), **SMALL | (RUNS|OTHERS)[preset] | over)

@pytest.mark.parametrize('kind', ['cuda','mps'])
@pytest.mark.parametrize('preset', RUNS)
def test_whole_runs(preset, kind, tmp_path):
    with machine(kind):
        result = train_recipe(recipe(preset), tmp_path/'run', progress=False)
        assert next(result.model.parameters()).device.type==kind and result.scores

@pytest.mark.parametrize('preset', RUNS|OTHERS)
def test_a_step_waits_once(preset):
    with machine() as device:
        r = recipe(preset)
        data = recipe_data(r)
        task = recipe_task(r, data)
        run = TrainRun(recipe_model(r, task), data, r.train, task)
        source = run.batches()
        train_step(run, source) # makes the optimiser's state
        device.waits.clear()
        for _ in range(2): train_step(run, source)
        assert sum(device.waits.values())==2, '\n'.join(f'{n/2:5.1f} a step  {what:<16} {where}' for (what,where),n in device.waits.items())

# --- explorers

EXPLORERS = dict(
    attention=lambda **o: AttentionExplorer(tiny(), torch.rand(3,64,96), '2x4', **o), temperature=lambda **o: TemperatureExplorer(tiny(), torch.rand(3,64,96), '2x4', **o),
    guidance=lambda **o: GuidanceExplorer(), windows=lambda **o: WindowExplorer(torch.rand(3,160,240), '2x4'))
STATES = dict(attention=[dict(show='self'), dict(show='entropy'), dict(show='row', scope='model', tau=1.3)], temperature=[dict(stat='entropy'), dict(scope='layer')], guidance=[{}], windows=[{}])

@pytest.mark.parametrize('name', EXPLORERS)
def test_explorers_begin_on_the_gpu_and_can_leave_it(name):
    with stand_in('cuda'):
        explorer = EXPLORERS[name]()
        assert explorer.device.value=='cuda'
        for state in STATES[name]: explorer.set_state(state)
        assert explorer.error is None
        explorer.figure()
        assert '6.0 of 24 GB in use' in explorer.memory.value # of the stand-in
        explorer.device.value = 'cpu'
        assert explorer.flush().error is None and explorer.memory.value==''

def test_explorers_take_any_name_of_a_device():
    with stand_in('cuda'):
        for name in (torch.device('cuda', 0), 'cuda:0', 'cuda'): assert Explorer(name).device.value=='cuda'
        assert Explorer(torch.device('cuda', 1)).device.options==('cuda','cpu','cuda:1')
        assert EXPLORERS['attention'](device='cpu').device.value=='cpu'

@pytest.mark.parametrize('preset', ['driving-seg','flow-layered'])
def test_a_run_with_another_default_device(preset):
    with machine(), torch.device('cuda'):
        result = train_recipe(recipe(preset, workers=0), progress=False)
        assert result.scores

# --- what a GPU owner runs

@pytest.mark.parametrize('kind', ['cuda','mps',None])
def test_doctor_compares_half_precision_where_there_is_a_gpu(kind, capsys):
    "`check_half` itself is part of the selftest below"
    from winwin.doctor import Check, Doctor
    tried = []
    def half(device): return Check(f'half on {tried.append(device)}', '')
    quick = {f'winwin.doctor.{name}': lambda: [] for name in ('check_forward','check_bf16')} | {'winwin.doctor.check_half': half}
    with contextlib.ExitStack() as stack:
        for name,value in quick.items(): stack.enter_context(mock.patch(name, value))
        if kind: stack.enter_context(stand_in(kind))
        assert Doctor(json=True).run()==0
    assert tried==([kind] if kind else [])
    if kind: assert next(o for o in json.loads(capsys.readouterr().out) if o['name']=='device')['detail']==kind

def test_selftest_on_a_stand_in(capsys):
    from winwin.doctor import Selftest
    with machine(), mock.patch('winwin.doctor._count_waits', lambda step: 1): assert Selftest('cuda', json=True).run()==0
    checks = {check['name']: check for check in json.loads(capsys.readouterr().out)}
    assert {'linear, float32','matching, fp16','timm, bf16','predict, tiles','probe, own','training','waits'} <= checks.keys()
    assert checks['training']['detail'].startswith('on cuda:0')
