"Windows: where they may lie, how they are drawn, what they cut out, and what they refuse."
import copy, itertools, math, pickle, re, subprocess, sys
import pytest, torch
from hypothesis import given, settings, strategies as st
from scipy.stats import chisquare
from torch.utils import _pytree
from torch.utils.data import DataLoader, Dataset
from winwin.windows import sampling as module
from winwin.windows.layout import Windows, crop_windows, window_mask
from winwin.windows.sampling import free_corners, random_sizes, sample_tokens, sample_windows

quick = settings(deadline=None, max_examples=40, derandomize=True)

def seeded(seed=0): return torch.Generator().manual_seed(seed)

def placements(grid, sizes):
    "Every way (M,n,2) to put windows of `sizes` into `grid` without overlap, by trying all"
    spots = [list(itertools.product(range(grid[0]-h+1), range(grid[1]-w+1))) for h,w in sizes]
    def apart(c):
        return all(c[i][0]+sizes[i][0]<=c[j][0] or c[j][0]+sizes[j][0]<=c[i][0] or c[i][1]+sizes[i][1]<=c[j][1] or c[j][1]+sizes[j][1]<=c[i][1]
                   for i,j in itertools.combinations(range(len(sizes)), 2))
    return [c for c in itertools.product(*spots) if apart(c)]

def uniform_p(draws, all_placements):
    "Chi-square p-value of `draws` (M,n,2) against the uniform distribution over `all_placements`"
    place = {c: i for i,c in enumerate(all_placements)}
    ids = [place[tuple(map(tuple, d))] for d in draws.tolist()]
    return chisquare(torch.bincount(torch.tensor(ids), minlength=len(place)).numpy()).pvalue

def check(w):
    "What every `Windows` promises, by plain loops"
    index,pos = w.index(),w.positions()
    (H,W),B,N = w.grid,w.batch,sum(h*w for h,w in w.sizes) + (0 if w.extra is None else w.extra.shape[1])
    assert index.shape==(B,N) and pos.shape==(B,N,2) and w.num_tokens==N and index.dtype==torch.int64
    assert (pos[...,0]*W+pos[...,1]==index).all()
    for b in range(B):
        want = [(y+i)*W+x+j for (y,x),(h,k) in zip(w.yx[b].tolist(), w.sizes) for i in range(h) for j in range(k)]
        assert index[b].tolist()[:len(want)]==want
        assert len(set(index[b].tolist()))==N and all(0<=i<H*W for i in index[b].tolist())
        for (y,x),(h,k) in zip(w.yx[b].tolist(), w.sizes): assert 0<=y<=H-h and 0<=x<=W-k
    assert (window_mask(w).flatten(1).sum(1)==N).all()
    parts = w.split(pos)
    for i,(h,k) in enumerate(w.sizes):
        assert parts[i].shape==(B,h,k,2) and (parts[i][:,0,0]==w.yx[:,i]).all() and (parts[i][:,-1,-1]==w.yx[:,i]+torch.tensor([h-1,k-1])).all()
    Windows(w.yx, w.sizes, w.grid, w.extra) # the public constructor agrees

grids = st.tuples(st.integers(1,12), st.integers(1,12))

@st.composite
def layouts(draw, most=4, side=12):
    grid = draw(st.tuples(st.integers(1,side), st.integers(1,side)))
    return grid,draw(st.lists(st.tuples(st.integers(1,grid[0]), st.integers(1,grid[1])), min_size=1, max_size=min(most, grid[0]*grid[1])))

# Drawing

@quick
@given(layouts(), st.integers(1,5), st.integers(0,99), st.data())
def test_drawn_windows_are_valid(layout, batch, seed, data):
    "Inside the grid, no overlap, every view of the tokens consistent, extra tokens outside the windows"
    grid,sizes = layout
    try: w = sample_windows(grid, sizes, batch, seeded(seed))
    except ValueError as e: return fits_instead(grid, str(e), len(sizes))
    check(w)
    extra = data.draw(st.integers(0, grid[0]*grid[1]-w.num_tokens))
    x = sample_windows(grid, sizes, batch, seeded(seed), extra=extra)
    check(x)
    assert torch.equal(x.yx, w.yx) and x.num_tokens==w.num_tokens+extra

def fits_instead(grid, message, n):
    "The sizes that a 'cannot fit' message suggests do fit"
    assert 'cannot fit' in message
    shown = re.search(r'; \((\(.*)\) would fit', message)[1]
    sizes = [tuple(map(int, s)) for s in re.findall(r'\((\d+), (\d+)\)', shown)]
    if 'in all' in shown: sizes *= n # equal windows, shortened
    assert len(sizes)==n
    check(sample_windows(grid, sizes))

@settings(quick, max_examples=25)
@given(layouts(most=3, side=4))
def test_refuses_exactly_what_cannot_fit(layout):
    "On small grids, where all placements can be tried: an error if and only if there is none"
    grid,sizes = layout
    if placements(grid, sizes): check(sample_windows(grid, sizes, 3, seeded()))
    else:
        with pytest.raises(ValueError, match='cannot fit'): sample_windows(grid, sizes, 3, seeded())

@pytest.mark.parametrize('sizes,batch,extra', [([(22,22)]*2, 4, 0), ([(22,22)]*6, 2, 5), ([(3,9),(20,4)], 3, 7), ([(45,80)], 2, 0)])
def test_same_generator_same_windows(sizes, batch, extra):
    "The generator decides everything, and different seeds differ"
    a,b,c = (sample_windows((45,80), sizes, batch, seeded(s), extra) for s in (1,1,2))
    assert torch.equal(a.index(), b.index())
    assert sizes==[(45,80)] or not torch.equal(a.index(), c.index())

def test_global_seed_without_generator():
    "Without a generator, torch's own seed decides"
    def draw(): torch.manual_seed(3); return sample_windows((20,20), [(5,5)]*3, 4, extra=3).index(),sample_tokens((20,20), 5).index(),random_sizes((45,80))
    (a,b,c),(d,e,f) = draw(),draw()
    assert torch.equal(a, d) and torch.equal(b, e) and c==f

def test_images_of_a_batch_differ():
    assert len(sample_windows((45,80), [(22,22)]*2, 64, seeded()).yx.unique(dim=0))>60

def test_huge_batch():
    "Vectorised over the batch"
    w = sample_windows((45,80), [(22,22)]*2, 20_000, seeded())
    assert w.yx.shape==(20_000,2,2) and not module._overlapping(w.yx, w.sizes).any()

small_layouts = [((3,3), [(2,2)]), ((1,7), [(1,2),(1,2)]), ((4,4), [(2,2),(2,2)]), ((4,5), [(2,3),(3,1)]), ((3,4), [(1,2),(2,1),(1,1)]),
                 ((4,4), [(2,2),(1,2),(3,1)]), ((5,5), [(3,3),(2,2)]), ((2,6), [(2,2),(2,1),(1,2)]), ((3,3), [(3,3)])]

@pytest.mark.parametrize('grid,sizes', small_layouts, ids=str)
def test_uniform(grid, sizes):
    "Every placement is equally likely: chi-square over all of them"
    every = placements(grid, sizes)
    w = sample_windows(grid, sizes, max(2000, 15*len(every)), seeded())
    assert len(every)==1 or uniform_p(w.yx, every)>1e-4

@pytest.fixture
def no_luck(monkeypatch):
    "Rejection finds nothing, so that every draw takes the path of tight layouts"
    monkeypatch.setattr(module, '_draw_reject', lambda grid, sizes, *a, **k: torch.zeros(0, len(sizes), 2, dtype=torch.long))

@pytest.mark.parametrize('grid,sizes', [
    ((4,4), [(2,2),(2,2)]), ((4,5), [(2,3),(3,1)]), ((3,4), [(1,2),(2,1),(1,1)]), ((4,5), [(2,2),(2,2)]), # windows can pass one another
    ((2,4), [(2,2),(2,2)]), ((3,6), [(2,2),(2,2),(2,2)]), ((3,5), [(3,3),(1,2),(1,2)]), ((5,5), [(2,2)]*4)], ids=str) # they cannot
def test_uniform_when_rejection_fails(grid, sizes, no_luck):
    "The sampler of tight layouts is uniform too, also where no window can pass another"
    every = placements(grid, sizes)
    assert uniform_p(sample_windows(grid, sizes, max(1000, 6*len(every)), seeded()).yx, every)>1e-4

@pytest.mark.parametrize('n', [4,6])
def test_tight_layouts(n):
    "Layouts that random placing hardly ever meets are drawn, and not always the same"
    w = sample_windows((45,80), [(22,22)]*n, 16, seeded())
    check(w)
    assert len(w.yx.unique(dim=0))>8

def test_tight_layout_has_no_favourite_window():
    "Equal windows are interchangeable: each is the top left one equally often"
    w = sample_windows((45,80), [(22,22)]*6, 120, seeded())
    first = (w.yx.sum(-1)).argmin(1)
    assert chisquare(torch.bincount(first, minlength=6).numpy()).pvalue>1e-4

def test_tight_layout_has_no_favourite_side():
    "The mirror image of a placement is as likely as the placement"
    w = sample_windows((45,80), [(45,41),(22,38),(22,38)], 100, seeded())
    left = (w.yx[:,0,1]<w.yx[:,1,1]).sum().item()
    assert 25<left<75

def test_unlucky_numbers(monkeypatch):
    "A random number of exactly 0, which torch draws once in 16 million, never puts a window or an extra token on another"
    rand = torch.rand
    monkeypatch.setattr(torch, 'rand', lambda *a, **k: rand(*a, **k)*0)
    check(sample_windows((2,4), [(2,2)], 3, seeded(), extra=4))
    monkeypatch.setattr(module, '_draw_reject', lambda grid, sizes, *a, **k: torch.zeros(0, len(sizes), 2, dtype=torch.long))
    check(sample_windows((2,4), [(2,2),(2,2)], 3, seeded()))

@pytest.mark.parametrize('grid,n', [((2,3),2), ((3,3),3), ((1,5),1), ((2,2),4)], ids=str)
def test_sample_tokens_uniform(grid, n):
    "Sets of isolated tokens are equally likely, and so is their order"
    every = list(itertools.permutations(itertools.product(*map(range, grid)), n))
    w = sample_tokens(grid, n, 40*len(every), seeded())
    assert uniform_p(w.yx, every)>1e-4

@quick
@given(grids, st.integers(1,3), st.integers(0,9), st.data())
def test_sample_tokens_valid(grid, batch, seed, data):
    "All different, inside the grid; the generator decides"
    n = data.draw(st.integers(1, grid[0]*grid[1]))
    w,v = (sample_tokens(grid, n, batch, seeded(seed)) for _ in range(2))
    check(w)
    assert w.sizes==((1,1),)*n and torch.equal(w.index(), v.index())

def test_extra_uniform():
    "Extra tokens are uniform over what the windows leave free"
    w = sample_windows((3,3), [(2,2)], 6000, seeded(), extra=2)
    for corner in itertools.product((0,1), (0,1)):
        extra = w.extra[(w.yx[:,0]==torch.tensor(corner)).all(1)]
        count = torch.bincount(extra.flatten(), minlength=9)
        assert (count>0).sum()==5 and chisquare(count[count>0].numpy()).pvalue>1e-4

# Layouts that cannot be

@pytest.mark.timeout(20)
@pytest.mark.parametrize('grid,sizes', [((45,80), [(22,22)]*7), ((45,80), [(40,50)]*2), ((45,80), [(23,45)]*2), ((4,4), [(3,3),(2,2)]),
    ((100,100), [(51,51)]*2), ((5,5), [(5,3),(3,5)]), ((2,2), [(1,2)]*3)], ids=str)
def test_cannot_fit(grid, sizes):
    "An impossible layout is refused with the reason and with sizes that do fit"
    with pytest.raises(ValueError, match='cannot fit') as e: sample_windows(grid, sizes)
    fits_instead(grid, str(e.value), len(sizes))

def test_more_windows_than_tokens_ends():
    "More windows than tokens: no size would fit, so there must be an error rather than a search without end"
    code = 'from winwin.windows import sample_windows\ntry: sample_windows((1,4), [(1,1)]*9)\nexcept ValueError as e: assert "cannot fit" in str(e)\nelse: assert 0'
    subprocess.run([sys.executable, '-c', code], check=True, timeout=30)

@pytest.mark.timeout(20)
def test_many_small_windows():
    "Hundreds of windows are drawn or refused, as few are"
    check(sample_windows((20,20), [(1,1)]*300, 2, seeded()))
    with pytest.raises(ValueError, match='cannot fit'): sample_windows((15,20), [(2,2)]*72)

@pytest.mark.parametrize('hw', [(5,2), (2,7), (9,9)])
def test_window_larger_than_grid(hw):
    with pytest.raises(ValueError, match=rf'window \({hw[0]}, {hw[1]}\) cannot fit.*larger than the \(4, 6\) grid.*shrink'): sample_windows((4,6), [hw])

# Randomised sizes

@quick
@given(st.integers(0,10_000), st.sampled_from([968, (768,1280), (300,400)]), st.sampled_from([2, (2,3,4), [1,3]]), st.sampled_from([1.,1.3,2.]), st.sampled_from([1., (.5,2.), (.8,1.2)]))
def test_random_sizes(seed, tokens, n, ratio, aspect):
    "Budget, number, ratio and aspect within rounding, and the layout can be placed"
    sizes = random_sizes((45,80), tokens, n, ratio, aspect, generator=seeded(seed))
    assert sizes==random_sizes((45,80), tokens, n, ratio, aspect, generator=seeded(seed))
    lo,hi = (tokens,tokens) if isinstance(tokens, int) else tokens
    a0,a1 = (aspect,aspect) if isinstance(aspect, float) else aspect
    area,slack = [h*w for h,w in sizes],sum(w/2 for _,w in sizes)
    tiny = 16*sum(min(hw)==4 for hw in sizes) # a window is never lower or narrower than 4
    assert len(sizes) in ([n] if isinstance(n, int) else n)
    assert lo-slack-1<=sum(area)<=hi+slack+tiny+1
    assert max(area)<=ratio*(sum(area)+slack)/len(area) + max(w for _,w in sizes)/2
    for h,w in sizes:
        assert 4<=h<=45 and 4<=w<=80
        assert a0<=(h+1)/(w-1) and (h-1)/(w+1)<=a1
    check(sample_windows((45,80), sizes))

def test_random_sizes_vary():
    "Number of windows, budget and shape are all drawn"
    draws = [random_sizes((45,80), generator=g) for g in [seeded()] for _ in range(200)]
    assert {len(d) for d in draws}=={2,3,4}
    total = [sum(h*w for h,w in d) for d in draws]
    assert min(total)<830 and max(total)>1210
    logs = [math.log(h/w) for d in draws for h,w in d if min(h,w)>4]
    assert abs(sum(logs)/len(logs))<.1 and max(logs)>.5 and min(logs)<-.5

def test_random_sizes_fixed():
    "Ratio 1 and aspect 1 give the paper's two squares"
    assert random_sizes((45,80), 968, 2, 1., 1.)==((22,22),(22,22))

@pytest.mark.parametrize('kw,words', [(dict(ratio=.5), 'ratio'), (dict(tokens=5000), 'no layout'), (dict(tokens=3600, n=4), 'no layout')])
def test_random_sizes_refuses(kw, words):
    with pytest.raises(ValueError, match=words): random_sizes((45,80), **kw)

@pytest.mark.parametrize('kw', [dict(n=0), dict(n=()), dict(tokens=0), dict(tokens=-5), dict(tokens=(100,50)), dict(aspect=0), dict(aspect=-1.), dict(aspect=(0,1))], ids=str)
def test_random_sizes_refuses_nonsense(kw):
    "No windows, no tokens, an empty range or an aspect that is not positive"
    with pytest.raises(ValueError, match=next(iter(kw))): random_sizes((45,80), **kw)

# Cutting pixels

@pytest.mark.parametrize('patch', [1,4,16])
@pytest.mark.parametrize('kind', ['image','labels','flow','uint8','bool'])
def test_crop_equals_slicing(kind, patch):
    "Images, labels, flow and masks; any dtype; channels_last too"
    w = sample_windows((5,7), [(2,3),(1,1),(3,2)], 3, seeded())
    shape = (3,5*patch,7*patch) if kind in ('labels','bool') else (3,2 if kind=='flow' else 3,5*patch,7*patch)
    x = torch.randint(0, 200, shape, generator=seeded())
    x = dict(image=x.float(), labels=x, flow=x.float(), uint8=x.to(torch.uint8), bool=x>100)[kind]
    if kind=='image': x = x.to(memory_format=torch.channels_last)
    crops = crop_windows(x, w, patch)
    for i,((h,k),c) in enumerate(zip(w.sizes, crops)):
        assert c.dtype==x.dtype and c.shape==(*x.shape[:-2],h*patch,k*patch)
        for b in range(3):
            y,z = (w.yx[b,i]*patch).tolist()
            assert torch.equal(c[b], x[b,...,y:y+h*patch,z:z+k*patch])

def test_crop_full_is_the_image():
    x = torch.rand(2,3,32,48)
    assert torch.equal(crop_windows(x, Windows.full((2,3), 2))[0], x)

def test_crop_batch_one_serves_all():
    "One set of windows serves every image, for the targets as for the model"
    x,w = torch.rand(3,2,32,48),sample_windows((2,3), [(1,2)], 1, seeded())
    one = torch.cat([crop_windows(x[b:b+1], w)[0] for b in range(3)])
    assert torch.equal(crop_windows(x, w)[0], one)

def test_crop_gradient():
    "Gradient reaches the seen pixels, once, and no others"
    w = sample_windows((4,4), [(2,2),(1,3)], 2, seeded())
    x = torch.rand(2,3,16,16,requires_grad=True)
    sum(c.sum() for c in crop_windows(x, w, 4)).backward()
    seen = window_mask(w).repeat_interleave(4, 1).repeat_interleave(4, 2)[:,None].expand_as(x)
    assert torch.equal(x.grad, seen.float())

@pytest.mark.parametrize('shape', [(2,3,32,49), (2,3,48,32), (3,3,32,48), (2,32,47), (2,3,16,24)], ids=str)
def test_crop_refuses(shape):
    "Another size or another number of images"
    with pytest.raises(ValueError, match='does not match.*should hold'): crop_windows(torch.zeros(shape), sample_windows((2,3), [(1,1)], 2))

# Construction

def corners(*yx, dtype=torch.long): return torch.tensor([yx], dtype=dtype)

@pytest.mark.parametrize('grid', [(4,6), [4,6], torch.Size((4,6)), torch.tensor([4,6])], ids=lambda g: type(g).__name__)
@pytest.mark.parametrize('sizes', [[(2,3)], ((2,3),), [[2,3]], [torch.Size((2,3))], torch.tensor([[2,3]])], ids=lambda s: type(s).__name__)
def test_sizes_of_any_kind(grid, sizes):
    "Lists, tuples, torch.Size and tensors become tuples of ints, in every way in"
    for w in (Windows(corners((1,1)), sizes, grid), sample_windows(grid, sizes)):
        assert w.sizes==((2,3),) and w.grid==(4,6) and type(w.grid) is tuple and all(type(o) is int for o in (*w.grid,*w.sizes[0]))
    assert Windows.full(grid).is_full and Windows.full(grid).grid==(4,6)

def test_full():
    "The whole image: every token, row by row, also when given as an explicit window"
    w = Windows.full((3,4), 2)
    check(w)
    assert w.is_full and len(w)==1 and torch.equal(w.index(), torch.arange(12).expand(2,-1))
    assert Windows(torch.zeros(2,1,2,dtype=torch.long), [[3,4]], [3,4]).is_full
    assert not Windows(torch.zeros(2,1,2,dtype=torch.long), [[3,3]], [3,4]).is_full

@pytest.mark.parametrize('dtype', [torch.int64,torch.int32,torch.int16,torch.uint8])
def test_corner_dtypes(dtype):
    "Small integers hold the corners of a large grid and must not overflow in the token ids"
    w = Windows(corners((200,210), (0,3), dtype=dtype), [(20,20),(4,5)], (240,240))
    check(w)

def test_extra_dtypes():
    check(Windows(corners((0,0)), [(2,2)], (4,4), torch.tensor([[9,3]], dtype=torch.int32)))

def test_single_token_windows():
    check(sample_windows((1,1), [(1,1)], 2))
    check(sample_windows((3,4), [(1,1)]*12, 2))

def test_empty_batch():
    "No images, no windows, and no error: a last batch may be empty"
    for w in (Windows(torch.zeros(0,1,2,dtype=torch.long), [(1,2)], (4,4)), Windows.full((4,4), 0), sample_tokens((4,4), 3, 0), sample_windows((4,4), [(2,2)], 0)):
        assert w.batch==0 and w.index().shape==(0,w.num_tokens)

def test_free_corners():
    "Against trying every corner"
    w = sample_windows((6,7), [(2,3),(1,2)], 4, seeded())
    free = free_corners(w.yx, w.sizes, w.grid, (2,2))
    for b,y,x in itertools.product(range(4), range(5), range(6)): assert free[b,y,x]==(not window_mask(w)[b,y:y+2,x:x+2].any())

L = torch.tensor
@pytest.mark.parametrize('args,words', [
    ((corners((3,0)), [(2,2)], (4,4)), r'leaves the \(4, 4\) grid.*between \(0, 0\) and \(2, 2\)'),
    ((corners((0,-1)), [(2,2)], (4,4)), 'leaves the'),
    ((corners((0,0)), [(5,2)], (4,4)), 'leaves the'),
    ((corners((0,0), (1,1)), [(2,2),(2,2)], (4,4)), 'overlap.*sample_windows'),
    ((L([[[0,0],[2,2]],[[0,0],[0,1]]]), [(2,2),(2,2)], (4,4)), 'overlap in image 1'),
    ((corners((0,0)), [(2,2)], (4,4), L([[5]])), 'seen twice'),
    ((corners((0,0)), [(2,2)], (4,4), L([[9,9]])), 'seen twice'),
    ((corners((0,0)), [(2,2)], (4,4), L([[16]])), r'extra tokens.*\[0,16\)'),
    ((corners((0,0)), [(2,2)], (4,4), L([[-1]])), 'extra tokens'),
    ((corners((0,0)), [(2,2)], (4,4), L([9])), 'extra tokens'),
    ((corners((0,0)), [(2,2)], (4,4), L([[9],[9]])), 'extra tokens'),
    ((corners((0,0)), [(2,2)], (4,4), L([[9.]])), 'extra tokens'),
    ((corners((0,0)), [], (4,4)), 'no windows'),
    ((corners((0,0)), [(2,2),(1,1)], (4,4)), r'corners yx have shape \(1, 1, 2\).*\(B,2,2\)'),
    ((L([[0,0]]), [(2,2)], (4,4)), 'corners yx'),
    ((corners((0,0), dtype=torch.float), [(2,2)], (4,4)), 'corners yx.*integers'),
    ((corners((0,0), dtype=torch.complex64), [(2,2)], (4,4)), 'corners yx'),
    ((corners((0,0)), [(0,2)], (4,4)), r'window \(0, 2\).*at least 1'),
    ((corners((0,0)), [(2,2,2)], (4,4)), 'is not a size'),
    ((corners((0,0)), [(2,2)], (4,0)), r'grid \(4, 0\).*at least 1'),
    ((corners((0,0)), [(2,2)], (-4,4)), 'grid'),
    ((corners((0,0)), [(2.5,2)], (4,4)), 'is not a size')])
def test_constructor_refuses(args, words):
    "A `ValueError` with the value, the rule and the way out"
    with pytest.raises(ValueError, match=words): Windows(*args)

@pytest.mark.parametrize('grid,sizes,kw,words', [
    ((4,4), [], {}, 'no windows'), ((4,4), [(0,1)], {}, 'at least 1'), ((4,4), [(-1,1)], {}, 'at least 1'), ((0,4), [(1,1)], {}, 'grid'),
    ((4,4), [(2,2)], dict(extra=13), '13 extra tokens cannot fit: 12'), ((4,4), [(2,2)], dict(extra=-1), 'extra'),
    ((4,4), [(2,2)], dict(batch=-1), 'batch'), ((4.5,4), [(2,2)], {}, 'not a size'), ((4,4), [(2,1.5)], {}, 'not a size'),
    ((4,4), (2,2), {}, 'size'), ((4,4), 2, {}, 'size'), (4, [(2,2)], {}, 'grid')], ids=str)
def test_sample_windows_refuses(grid, sizes, kw, words):
    with pytest.raises(ValueError, match=words): sample_windows(grid, sizes, **kw)

@pytest.mark.parametrize('n', [0,17,-1])
def test_sample_tokens_refuses(n):
    with pytest.raises(ValueError, match=rf'{n} tokens cannot be drawn from a \(4, 4\) grid; choose 1 to 16'): sample_tokens((4,4), n)

def test_split_refuses():
    with pytest.raises(ValueError, match='19 tokens do not match the 20'): Windows.full((4,5)).split(torch.zeros(1,19,3))

# Travelling

def same(a, b):
    assert a.sizes==b.sizes and a.grid==b.grid and torch.equal(a.index(), b.index())

@pytest.mark.parametrize('extra', [0,3])
def test_copies(extra):
    "Pickle, deepcopy, pytree and devices keep windows as they are"
    w = sample_windows((6,8), [(2,3),(3,2)], 2, seeded(), extra)
    same(w, pickle.loads(pickle.dumps(w)))
    same(w, copy.deepcopy(w))
    leaves,spec = _pytree.tree_flatten(w)
    same(w, _pytree.tree_unflatten(leaves, spec))
    same(w, _pytree.treespec_loads(_pytree.treespec_dumps(spec)).unflatten(leaves))
    moved = _pytree.tree_map_only(torch.Tensor, lambda t: t+0, dict(w=[w]))['w'][0]
    same(w, moved)
    same(w, w.to('cpu'))
    meta = w.to('meta')
    assert meta.device.type=='meta' and meta.index().shape==w.index().shape and meta.sizes==w.sizes
    assert len(w)==2 and '(6, 8)' in repr(w)

def test_frozen():
    "Windows cannot be changed behind the back of what was checked"
    with pytest.raises(AttributeError): Windows.full((2,2)).grid = (3,3)

class Draws(Dataset):
    "Each sample brings windows of its own"
    def __len__(self): return 4
    def __getitem__(self, i): return torch.full((3,8,8), float(i)),sample_windows((2,2), [(1,2)], 1, seeded(i))

def stack(batch):
    imgs,ws = zip(*batch)
    return torch.stack(imgs),Windows(torch.cat([w.yx for w in ws]), ws[0].sizes, ws[0].grid)

def test_data_loader_worker():
    "Windows drawn in a worker process arrive as they were drawn"
    for w in DataLoader(Draws(), batch_size=2, collate_fn=stack, num_workers=1): assert w[1].batch==2
    got = torch.cat([w.yx for _,w in DataLoader(Draws(), batch_size=2, collate_fn=stack, num_workers=1)])
    assert torch.equal(got, torch.cat([Draws()[i][1].yx for i in range(4)]))
