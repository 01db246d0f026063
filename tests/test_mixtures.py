"Mixtures: sums are read without running them, epochs follow from the seed, workers agree."
import copy, pickle
import numpy as np, pytest, torch
from collections import Counter
from torch.utils.data import DataLoader, Dataset
from winwin.data.augment import FlowAugment
from winwin.training.sources import Mix, parse_mix
from winwin.training.streams import ItemStream
from winwin.worlds.datasets import DrivingWorld, LayeredFlow

class Numbers(Dataset):
    def __init__(self, n, start=0, **more): self.n,self.start,self.more = n,start,more
    def __len__(self): return self.n
    def __getitem__(self, i):
        if not 0<=i<self.n: raise IndexError(i)
        return dict(x=torch.tensor(self.start+i)) | self.more

SETS = dict(a=Numbers(10, 0), b=Numbers(7, 100), c=Numbers(100, 1000))
def values(mix): return [o['x'].item() for o in (mix[i] for i in range(len(mix)))]

# Reading

@pytest.mark.parametrize('text,want', [
    ('a', [(1,'*','a')]), ('3*a', [(3,'*','a')]), (' 3 * a ', [(3,'*','a')]), ('10_000@a', [(10000,'@','a')]),
    ('40*clean+2@b + flying.things-3d:v2', [(40,'*','clean'),(2,'@','b'),(1,'*','flying.things-3d:v2')]), ('a+a', [(1,'*','a')]*2), ('2*_x\n+ y', [(2,'*','_x'),(1,'*','y')])])
def test_parse(text, want): assert parse_mix(text)==want

@pytest.mark.parametrize('text', ['', '+', 'a+', '3*', '3', 'a*3', '-2*a', '2.5*a', '2**a', '3*2*a', 'a b', '__import__("os")', "a('x')", '(a+b)', '2*(a+b)', '1e3@a', '*a'])
def test_what_is_no_sum(text):
    with pytest.raises(ValueError, match='is not a term'): parse_mix(text)

def test_nothing_is_evaluated(tmp_path):
    with pytest.raises(ValueError): Mix(f"open('{tmp_path}/x','w')", SETS)
    assert not list(tmp_path.iterdir())

def test_zero():
    with pytest.raises(ValueError, match='takes nothing'): Mix('0@a', SETS)

# Counting

def test_order_and_counts():
    mix = Mix('2*b + a + 2*a', SETS)
    assert values(mix)==[*range(100,107)]*2+[*range(10)]*3 and len(mix)==44
    assert mix.shares()==dict(b=14/44, a=30/44)
    assert mix.where(-1)==('a',9) and mix.where(7)==('b',0) and mix.where(np.int64(14))==('a',0)

@pytest.mark.parametrize('n', [1,7,30,100,101,250])
def test_every_item_once_before_any_comes_twice(n):
    mix,seen = Mix(f'a + {n}@c', SETS),Counter()
    for epoch in range(12):
        mix.set_epoch(epoch)
        seen.update(v for v in values(mix) if v>=1000)
        counts = [seen[1000+i] for i in range(100)]
        assert max(counts)-min(counts)<=1 and sum(counts)==n*(epoch+1)

def test_epochs_follow_from_the_seed():
    a,b,c = (Mix('5@c + 5@c', SETS, seed=s) for s in (0,0,1))
    assert values(a)==values(b)!=values(c) and values(a)[:5]!=values(a)[5:]
    first = values(a)
    a.set_epoch(3); third = values(a)
    assert third!=first and [b.at(i, 3)['x'].item() for i in range(10)]==third and b.epoch==0 and values(b)==first
    a.set_epoch(0)
    assert values(a)==first

def test_a_mixture_of_mixtures():
    mix = Mix('6@m + a', dict(SETS, m=Mix('a + b', SETS)))
    assert len(mix)==16 and set(values(mix)[:6]) <= {*range(10),*range(100,107)}

def test_iteration_ends(): assert len(list(Mix('a + b', SETS)))==17

# Keys

def test_common_keys():
    sets = dict(p=Numbers(3, name='p', y=1), q=Numbers(2, z=2, y=3))
    assert [list(o) for o in Mix('p + q', sets)]==[['x','y']]*5
    assert [len(o) for o in Mix('p + q', sets, common=False)]==[3]*5 and list(Mix('p', sets)[0])==['x','name','y']
    with pytest.raises(ValueError, match='no key is in all sets: p has x; q has y'): Mix('p+q', dict(p=[dict(x=1)], q=[dict(y=1)]))
    with pytest.raises(ValueError, match="item 1 of 'p' has no 'x'"): Mix('p', dict(p=[dict(x=1), dict(y=2)]))[1]

def test_only_what_is_wanted_is_opened():
    opened = []
    sets = dict(a=lambda: opened.append('a') or SETS['a'], b=lambda: opened.append('b') or SETS['b'])
    mix = Mix('a + 2*a', sets)
    assert opened==['a'] and len(mix)==30

@pytest.mark.parametrize('name,near', [('chair','chairs'), ('sintel-clean','sintel'), ('Layered','layered')])
def test_nearest_name(name, near):
    with pytest.raises(ValueError, match=f'no set {name!r}.*did you mean {near}'): Mix(f'2*{name}', dict.fromkeys(['chairs','sintel','layered'], SETS['a']))

def test_errors():
    with pytest.raises(ValueError, match="set 'e' is empty"): Mix('e', dict(e=Numbers(0)))
    with pytest.raises(ValueError, match='there are none'): Mix('a', {})
    for i in (17,-18):
        with pytest.raises(IndexError): Mix('a + b', SETS)[i]

# With loaders

@pytest.mark.parametrize('persistent', [False,True])
def test_workers_see_the_epoch(persistent):
    mix = Mix('a + 8@c', SETS)
    loader = DataLoader(mix, batch_size=4, num_workers=2, persistent_workers=persistent)
    for epoch in (0,2,1):
        mix.set_epoch(epoch)
        assert torch.cat([b['x'] for b in loader]).tolist()==values(mix)

def test_copies():
    mix = Mix('a + 8@c', SETS)
    mix.set_epoch(2)
    for twin in (pickle.loads(pickle.dumps(mix)), copy.deepcopy(mix)): assert values(twin)==values(mix) and twin.epoch==2

def test_pairs_with_augmentation():
    sets = dict(streets=DrivingWorld((48,64), length=3, pair=True), layered=LayeredFlow((40,80), length=9))
    mix = Mix('2*streets + 4@layered', sets, transform=FlowAugment((32,48)))
    batch = next(iter(DataLoader(mix, batch_size=10, shuffle=True)))
    assert batch['image2'].shape==(10,3,32,48) and batch['flow'].shape==(10,2,32,48) and batch.keys()=={'image','image2','flow','visible','valid'}

def test_in_draws():
    mix = Mix('2*layered + 2@layered', dict(layered=LayeredFlow((32,48), length=4)))
    draws = ItemStream(mix, ('image','image2','flow','valid','visible'), transform=FlowAugment())
    a,b = draws[3],draws[3]
    assert all(torch.equal(a[k], b[k]) for k in a) and a['flow'].shape==(2,32,48)
