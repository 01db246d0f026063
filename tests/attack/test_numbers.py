"Absurd numbers in schemes, mixtures, configs and calls: an error at once, no endless loop, no full memory."
from winwin.inference.modes import tile_offsets
from winwin.training.loop import TrainConfig, read_config
from winwin.training.sources import Mix
from winwin.training.streams import ItemStream, batches
from winwin.windows.sampling import random_sizes
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
