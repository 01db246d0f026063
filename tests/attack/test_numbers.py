"Absurd numbers in schemes, mixtures, configs and calls: an error at once, no endless loop, no full memory."
import torch
from winwin.bench.cost import plan
from winwin.data.flow_files import write_flow
from winwin.inference.modes import predict, tile_offsets
from winwin.models.controls import set_temperature
from winwin.models.dense import create_model
from winwin.models.positions import half_to_pairs, pairs_to_half
from winwin.training.loop import TrainConfig, read_config
from winwin.training.sources import Mix
from winwin.training.streams import ItemStream, batches
from winwin.windows.layout import Windows, crop_windows
from winwin.windows.sampling import random_sizes, sample_windows
from winwin.windows.schemes import parse_scheme
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
    'images of bytes': lambda: predict(MODEL, (IMAGE*255).byte()), 'no image': lambda: predict(MODEL, IMAGE[:0]), 'no pixel': lambda: predict(MODEL, IMAGE[...,:0]), 'one side': lambda: predict(MODEL, IMAGE, mode='tile', size=(16,)),
    'tiles of nothing': lambda: predict(MODEL, IMAGE, mode='tile', size=(0,0)), 'a copy of nothing': lambda: predict(MODEL, IMAGE, mode='resize', size=(0,0)), 'negative': lambda: predict(MODEL, IMAGE, mode='tile', size=(-16,16)),
    'no batch': lambda: crop_windows(IMAGE[:0], Windows.full((2,2))), 'three for two heads': lambda: set_temperature(MODEL, [1.,2.,3.], heads=[0,1]), 'tau nan': lambda: set_temperature(MODEL, float('nan')),
    'grid inf': lambda: sample_windows((float('inf'),3), [(1,1)]), 'grid nan': lambda: Windows.full((float('nan'),2)), 'grid of letters': lambda: sample_windows('ab', [(1,1)]), 'corners in a list': lambda: Windows([[[0,0]]], [(1,1)], (2,2)),
    'no room': lambda: plan(16, (64,64), 'winwin_seg_micro', margin=1.), 'no memory': lambda: plan(float('nan'), (64,64), 'winwin_seg_micro'), 'no rows': lambda: plan(16, (0,64), 'winwin_seg_micro'), 'no windows': lambda: plan(16, (64,64), 'winwin_seg_micro', n=0),
    'odd rows': lambda: half_to_pairs(torch.rand(7,3), 2), 'odd rows back': lambda: pairs_to_half(torch.rand(7,3), 2), 'no heads': lambda: half_to_pairs(torch.rand(8,3), 0), 'flow of lists': lambda: write_flow('x.flo', [[1]]), 'no flow': lambda: write_flow('x.flo', None)}

def test_calls(attack):
    for name,call in CALLS.items(): attack.refused(name, call)
