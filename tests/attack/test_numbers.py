"Absurd numbers in schemes, mixtures, configs and calls: an error at once, no endless loop, no full memory."
import pytest, torch
from winwin.bench.cost import plan
from winwin.data.flow_files import write_flow
from winwin.inference.modes import predict, tile_offsets
from winwin.models.controls import set_temperature
from winwin.models.dense import create_model
from winwin.models.heads import ConvNeXtHead, ConvStem, DPTHead, DecoupledDPTHead, LinearHead, MatchingHead, ProbeHead, UpsampleHead
from winwin.models.layers import Mlp
from winwin.models.positions import half_to_pairs, pairs_to_half, rope_table, sincos_pos, trained_grid
from winwin.models.vit import Decoder, ViT
from winwin.training.loop import TrainConfig, read_config
from winwin.training.sources import Mix
from winwin.training.streams import ItemStream, batches
from winwin.windows.layout import Windows, crop_windows
from winwin.windows.sampling import random_sizes, sample_windows
from winwin.windows.schemes import parse_scheme
from winwin.windows.tokens import PatchEmbed
from winwin.worlds.datasets import DrivingWorld
from .conftest import limit

SCHEMES = ['1000000000*1x1', '999999999*1x1+5', '9x999999999999', 'tokens:99999999999999', 'crop:999999999', '9'*5000, '2x'+'9'*5000, 'random(n=1-300000000)', 'random(n=1.5-3.5)', 'random(n=1e9)', 'random(tokens=1.2.3)',
           'random(n=)', 'random(n=9999999999)', 'random(aspect=..)', '0x0', '0*5x5', '-1x3', '+', '2x22+', '', '\x00', '2x22\n3', '1'+'+1'*20000, 'random(min_side=99999999999)', 'random(n=4-2)', 'random(ratio=0)']

def test_schemes(attack):
    for text in SCHEMES: attack.refused(f'scheme {text[:30]!r}', lambda: parse_scheme(text).draw((24,40)))
    for n in (10**7, 0, -1, (), (10**9,)): attack.refused(f'random_sizes {n}', lambda: random_sizes((24,40), n=n))

def test_mixtures(attack):
    world = DrivingWorld((32,48), length=2)
    for text in ('1000000000@a', '99999999999999999999*a', '0*a', '-1*a', '*a', '@', 'a++b', '1e9*a', '4**a', '__import__("os")', 'a'*10**5+'!', '9'*5000+'*a'):
        attack.refused(f'mix {text[:30]}', lambda: Mix(text, dict(a=world)))
    with limit(): attack.case('a large mixture', len(Mix('1_000_000*a', dict(a=world)))==2*10**6)

def test_configs(attack):
    for k,v in (('steps',10**12), ('steps',0), ('steps',-1), ('batch_size',10**9), ('accumulate',10**9), ('workers',10**6), ('workers',-1), ('lr',-1.), ('save_every',0), ('ema',2.), ('layer_decay',0.), ('precision','fp8'), ('windows','1000000000*1x1'),
                ('steps','x'), ('steps',None), ('seed',-1), ('windows',7), ('colour',1)):
        attack.refused(f'config {k} {v}', lambda: read_config({k: v}))
    world = DrivingWorld((32,48), length=2)
    with limit(): first = next(batches(ItemStream(world, ('image',), 8), range(10**9), 1))
    attack.case('the first of a billion steps', first['image'].shape==(1,3,32,48))

def test_tiles(attack):
    for args in ((100,0), (100,-5), (100,200), (100,10,1.), (100,10,-.1), (100,10,float('nan'))): attack.refused(f'tiles {args}', lambda: tile_offsets(*args))
    with limit(): attack.case('overlap', tile_offsets(100, 10, .999999)==list(range(91)))

MODEL = create_model('winwin_seg_micro', num_classes=3, depth=1, dim=32, num_heads=2, head='linear').eval()
IMAGE = torch.rand(1,3,32,32)
CALLS = {
    'images of bytes': lambda: predict(MODEL, (IMAGE*255).byte()), 'images of whole numbers': lambda: predict(MODEL, IMAGE.long()), 'no image': lambda: predict(MODEL, IMAGE[:0]), 'no pixel': lambda: predict(MODEL, IMAGE[...,:0]), 'one side': lambda: predict(MODEL, IMAGE, mode='tile', size=(16,)),
    'tiles of nothing': lambda: predict(MODEL, IMAGE, mode='tile', size=(0,0)), 'a copy of nothing': lambda: predict(MODEL, IMAGE, mode='resize', size=(0,0)), 'negative': lambda: predict(MODEL, IMAGE, mode='tile', size=(-16,16)),
    'no batch': lambda: crop_windows(IMAGE[:0], Windows.full((2,2))), 'three for two heads': lambda: set_temperature(MODEL, [1.,2.,3.], heads=[0,1]), 'tau nan': lambda: set_temperature(MODEL, float('nan')),
    'grid inf': lambda: sample_windows((float('inf'),3), [(1,1)]), 'grid nan': lambda: Windows.full((float('nan'),2)), 'grid of letters': lambda: sample_windows('ab', [(1,1)]), 'corners in a list': lambda: Windows([[[0,0]]], [(1,1)], (2,2)),
    'no room': lambda: plan(16, (64,64), 'winwin_seg_micro', margin=1.), 'no memory': lambda: plan(float('nan'), (64,64), 'winwin_seg_micro'), 'no rows': lambda: plan(16, (0,64), 'winwin_seg_micro'), 'no windows': lambda: plan(16, (64,64), 'winwin_seg_micro', n=0),
    'odd rows': lambda: half_to_pairs(torch.rand(7,3), 2), 'odd rows back': lambda: pairs_to_half(torch.rand(7,3), 2), 'no heads': lambda: half_to_pairs(torch.rand(8,3), 0), 'flow of lists': lambda: write_flow('x.flo', [[1]]), 'no flow': lambda: write_flow('x.flo', None)}

def test_calls(attack):
    for name,call in CALLS.items(): attack.refused(name, call)

def test_images_of_other_floats(attack):
    "Either predicted, or refused with the way out"
    want = predict(MODEL, IMAGE)
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        try: ok,why = (predict(MODEL, IMAGE.to(dtype)).float()-want).abs().max()<.1,''
        except ValueError as error: ok,why = str(dtype).removeprefix('torch.') in str(error),error
        except BaseException as error: ok,why = False,repr(error)
        attack.case(f'images of {dtype}', ok, why)

ONE,FOUR = dict(dim=16, num_outputs=2, patch_size=8),dict(dims=16, num_outputs=2, patch_size=8)
SIZES = [(LinearHead, ONE), (ProbeHead, ONE), (ConvNeXtHead, ONE | dict(hidden=8, stride=4)), (UpsampleHead, FOUR | dict(cell_dim=4, hidden=8, depth=2, stride=4)), (DPTHead, FOUR | dict(feature_dim=8, last_dim=4)),
         (DecoupledDPTHead, FOUR), (ConvStem, dict(fine=8, coarse=8, in_chans=3)), (MatchingHead, dict(dim=16, patch_size=8, fine=8, coarse=8, match_dim=8, state=8, fine_dim=8, fine_state=8, iterations=1, in_chans=3)), (Mlp, dict(dim=8, hidden=8)),
         (ViT, dict(dim=16, depth=1, num_heads=2, patch_size=8, in_chans=3, mlp_ratio=2, rope_base=100, rope_scale=1, local_window=2)), (Decoder, dict(enc_dim=16, dim=16, depth=1, num_heads=2, mlp_ratio=2, rope_base=100, rope_scale=1)),
         (PatchEmbed, dict(patch_size=8, in_chans=3, dim=16))]

@pytest.mark.parametrize('kind,right', SIZES, ids=lambda o: getattr(o, '__name__', ''))
def test_sizes_of_nothing(kind, right, attack):
    kind(**right)
    for k in right:
        for v in (0, -1, float('nan')): attack.refused(f'{kind.__name__} {k}={v}', lambda: kind(**right | {k: v}), k, str(v))
    if 'dims' in right: attack.refused(f'{kind.__name__} of four', lambda: kind(**right | dict(dims=(16,16,0,16))), 'dims')

def test_sizes_of_positions_and_models(attack):
    at = torch.zeros(1,1,2)
    for v in (0, -4): attack.refused(f'rope {v}', lambda: rope_table(at, v), str(v))
    for v in (0, -1.): attack.refused(f'rope base {v}', lambda: rope_table(at, 8, base=v), 'base')
    for v in (0, -4): attack.refused(f'sincos {v}', lambda: sincos_pos(at, v), str(v))
    attack.refused('sincos base', lambda: sincos_pos(at, 8, base=0), 'base')
    for text in ('sincos:0x14', 'sincos:7x0'): attack.refused(text, lambda: trained_grid(text), text)
    attack.refused('layer_dims', lambda: DPTHead(16, 2, 8, layer_dims=(8,8,0,8)), 'layer_dims')
    for k in ('num_classes','patch_size','dim','depth','num_heads','in_chans'):
        for v in (0, -1): attack.refused(f'create_model {k}={v}', lambda: create_model('winwin_seg_micro', **{k: v}), str(v))
