"Guidance: where matches are counted, which windows they choose, and that windows are always found."
import itertools, math, pickle
import pytest, torch
from hypothesis import given, settings, strategies as st
from scipy.stats import chisquare
from torch.utils.data import DataLoader, Dataset
from winwin.windows import guidance as module
from winwin.windows.guidance import best_windows, bin_flow, guide_methods, guide_windows, match_coverage, perturb_map, show_guidance
from winwin.windows.layout import Windows
from winwin.windows.sampling import sample_tokens, sample_windows

quick = settings(deadline=None, max_examples=40, derandomize=True)

def seeded(seed=0): return torch.Generator().manual_seed(seed)

def pixels(windows, b, patch, stride=1):
    "Pixels (y,x) of the windows of image `b` that are looked at"
    for (y,x),(h,w) in zip(windows.yx[b if windows.batch>1 else 0].tolist(), windows.sizes):
        for i in range((stride-1)//2, h*patch, stride):
            for j in range((stride-1)//2, w*patch, stride): yield y*patch+i,x*patch+j

def endpoint(flow, b, y, x, patch, grid, valid=None):
    "Token (i,j) of frame 2 to which a pixel moves, none if its match is not seen"
    u,v = (flow[b,k,y,x].float() for k in (0,1))
    if valid is not None and not valid[b,y,x] or not (math.isfinite(u) and math.isfinite(v)): return None
    i,j = math.floor((v+(y+.5)).item()/patch),math.floor((u+(x+.5)).item()/patch)
    return (i,j) if 0<=i<grid[0] and 0<=j<grid[1] else None

def slow_counts(flow, windows, patch, valid=None, stride=1):
    "`bin_flow`, pixel by pixel"
    out = torch.zeros(len(flow), *windows.grid, dtype=torch.long)
    for b in range(len(flow)):
        for y,x in pixels(windows, b, patch, stride):
            if (at := endpoint(flow, b, y, x, patch, windows.grid, valid)) is not None: out[b][at] += stride**2
    return out

def wild_flow(batch, grid, patch, seed=0, spoil=True):
    "Random flow, some of it far out of the frame, NaN or infinite, and a mask"
    g = seeded(seed)
    shape = batch,2,grid[0]*patch,grid[1]*patch
    flow = torch.randn(shape, generator=g)*patch*2
    if spoil:
        for value in (math.nan, math.inf, -math.inf, 1e30, -1e30): flow[torch.rand(shape, generator=g)<.02] = value
    return flow,torch.rand(batch, *shape[2:], generator=g)<.8

def check(w, sizes, batch):
    "The windows asked for, inside the grid and apart: the public constructor looks"
    assert w.sizes==tuple(map(tuple, sizes)) and w.yx.shape==(batch,len(sizes),2) and w.yx.dtype==torch.int64
    Windows(w.yx, w.sizes, w.grid, w.extra)

def apart(c, h, d, k):
    "Whether windows at `c` of size `h` and at `d` of size `k` share no token"
    return any(c[i]+h[i]<=d[i] or d[i]+k[i]<=c[i] for i in (0,1))

def box(m, c, h): return m[c[0]:c[0]+h[0],c[1]:c[1]+h[1]].sum().item()

def corners(grid, h): return list(itertools.product(range(grid[0]-h[0]+1), range(grid[1]-h[1]+1)))

# Counting

mixed = [(2,3),(1,1),(2,3),(1,2)]

@pytest.mark.parametrize('patch,grid', [(1,(7,9)), (2,(6,8)), (5,(5,7)), (16,(4,7))])
@pytest.mark.parametrize('masked', [False,True])
def test_counts(patch, grid, masked):
    "Against a loop over pixels, with NaN, infinities, far endpoints and a mask"
    flow,valid = wild_flow(3, grid, patch)
    w = sample_windows(grid, mixed, 3, seeded(1))
    valid = valid if masked else None
    got = bin_flow(flow, w, patch, valid)
    assert got.shape==(3,*grid) and not got.is_floating_point() and got.sum()>0
    assert torch.equal(got, slow_counts(flow, w, patch, valid))

@pytest.mark.parametrize('stride', [2,3,4,5])
def test_counts_with_stride(stride):
    "Every stride-th pixel, counted stride^2-fold, also when windows are no multiple of the stride"
    flow,valid = wild_flow(2, (6,7), 5)
    w = sample_windows((6,7), [(3,2),(2,2)], 2, seeded())
    assert torch.equal(bin_flow(flow, w, 5, valid, stride), slow_counts(flow, w, 5, valid, stride))

@pytest.mark.parametrize('patch', [3,7,14,16])
def test_counts_on_borders(patch):
    "Flow in steps of 1/64 pixel, as in KITTI's files, meets the borders of tokens exactly: they belong to the right and lower token"
    flow = torch.randint(-64*3*patch, 64*3*patch, (1,2,5*patch,6*patch), generator=seeded())/64
    flow[:,:,::2] = flow[:,:,::2].round()+.5
    assert torch.equal(bin_flow(flow, Windows.full((5,6)), patch), slow_counts(flow, Windows.full((5,6)), patch))
    one = torch.full((1,2,2*patch,2*patch), -.5)
    counts = bin_flow(one, Windows.full((2,2)), patch)
    assert counts.sum()==(2*patch)**2 # pixel 0 ends at 0: still inside
    assert bin_flow(-one, Windows.full((2,2)), patch).sum()==(2*patch-1)**2 # the last pixel ends at the far border: outside

@pytest.mark.parametrize('dtype', [torch.float16,torch.bfloat16,torch.float32,torch.float64])
def test_counts_in_any_precision(dtype):
    "Half precision is read, not computed with"
    flow = (torch.randn(1,2,8*16,200*16, generator=seeded())*8).to(dtype)
    w = Windows(torch.tensor([[[2,190]]]), [(4,6)], (8,200))
    assert torch.equal(bin_flow(flow, w), bin_flow(flow.double(), w)) and flow.dtype==dtype

def test_counts_leave_their_input_alone():
    flow,valid = wild_flow(1, (4,5), 4)
    a,b = flow.clone(),valid.clone()
    bin_flow(flow, Windows.full((4,5)), 4, valid)
    assert torch.equal(flow.nan_to_num(), a.nan_to_num()) and torch.equal(valid, b)

def test_one_set_of_windows_for_all_images():
    flow,valid = wild_flow(3, (5,6), 4)
    w = sample_windows((5,6), [(2,2)]*2, 1, seeded())
    each = Windows(w.yx.expand(3,-1,-1), w.sizes, w.grid)
    assert torch.equal(bin_flow(flow, w, 4, valid), bin_flow(flow, each, 4, valid))
    assert torch.equal(match_coverage(flow, w, w, 4, valid), match_coverage(flow, each, each, 4, valid))
    check(guide_windows(flow, w, [(2,2)], patch=4, generator=seeded()), [(2,2)], 3)
    check(guide_windows(flow, w, patch=4, method='same'), w.sizes, 3)

def test_extra_tokens():
    "In frame 1 they have no loss and do not count; in frame 2 they are seen and do"
    flow,_ = wild_flow(2, (5,6), 4)
    w = sample_windows((5,6), [(2,3)], 2, seeded(), extra=4)
    bare = Windows(w.yx, w.sizes, w.grid)
    assert torch.equal(bin_flow(flow, w, 4), bin_flow(flow, bare, 4))
    assert torch.equal(match_coverage(flow, w, bare, 4), match_coverage(flow, bare, bare, 4))
    still = torch.zeros_like(flow)
    rest = Windows(torch.tensor([[[4,5]]]*2), [(1,1)], (5,6), extra=torch.arange(12).expand(2,-1))
    top = Windows(torch.zeros(2,1,2, dtype=torch.long), [(4,6)], (5,6))
    assert torch.equal(match_coverage(still, top, rest, 4), torch.full((2,), .5))

def test_isolated_tokens():
    "Many windows of one token, the paper's Table 7"
    flow,valid = wild_flow(2, (9,11), 2)
    w = sample_tokens((9,11), 30, 2, seeded())
    assert torch.equal(bin_flow(flow, w, 2, valid), slow_counts(flow, w, 2, valid))
    two = guide_windows(flow, w, [(1,1)]*30, 0, 2, valid)
    check(two, [(1,1)]*30, 2)
    counts = bin_flow(flow, w, 2, valid).flatten(1)
    assert torch.equal(counts.gather(1, two.index()), counts.sort(1, descending=True).values[:,:30])

@pytest.mark.parametrize('masked', [False,True])
def test_coverage(masked):
    "Against a loop over pixels"
    patch,grid = 4,(6,8)
    flow,valid = wild_flow(3, grid, patch, seed=2)
    valid = valid if masked else None
    one,two = sample_windows(grid, [(3,3),(2,2)], 3, seeded()),sample_windows(grid, [(2,4),(3,2)], 3, seeded(1), extra=3)
    got = match_coverage(flow, one, two, patch, valid)
    for b in range(3):
        ends = [endpoint(flow, b, y, x, patch, grid, valid) for y,x in pixels(one, b, patch)]
        seen = set(map(tuple, two.positions()[b].tolist()))
        assert got[b].item()==pytest.approx(sum(e in seen for e in ends)/len(ends), abs=1e-6)
    assert (got>0).all() and (got<=match_coverage(flow, one, Windows.full(grid, 3), patch, valid)).all()

# Noise

def test_noise_has_the_spread_asked_for():
    counts = torch.randint(0, 257, (200,24,40), generator=seeded())*torch.randint(0, 3, (200,1,1), generator=seeded(1))
    noise = perturb_map(counts, .3, seeded())-counts
    spread = counts.float().flatten(1).std(1, correction=0)
    want = torch.where(spread>0, spread, 1.)*.3
    assert ((noise.flatten(1).std(1)/want-1).abs()<.15).all() and (spread==0).any()
    assert (noise.flatten(1).mean(1).abs()<6*want/960**.5).all()
    assert ((noise/want[:,None,None]).std()-1).abs()<.01

def test_no_noise_is_no_change():
    counts = torch.randint(0, 257, (2,5,6), generator=seeded())
    assert torch.equal(perturb_map(counts, 0), counts)
    before = counts.clone()
    perturb_map(counts, 1., seeded())
    floats = counts.float()
    perturb_map(floats, 1., seeded())
    assert torch.equal(counts, before) and torch.equal(floats, before.float())

def test_flat_maps_give_varied_windows():
    "No match at all, or the same everywhere: the noise decides alone"
    for value in (0,256):
        w = best_windows(perturb_map(torch.full((64,12,16), value), .3, seeded()), [(3,3)])
        assert len(w.yx.unique(dim=0))>30

# Choosing

def slow_greedy(m, sizes):
    "Corners (n,2) of the greedy choice for one map, by trying every place; none if there is no room"
    placed = {}
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i][0]*sizes[i][1]):
        free = [c for c in corners(m.shape, sizes[i]) if all(apart(c, sizes[i], d, sizes[j]) for j,d in placed.items())]
        if not free: return None
        placed[i] = max(free, key=lambda c: box(m, c, sizes[i])) # the first of several
    return [placed[i] for i in range(len(sizes))]

@pytest.mark.parametrize('sizes', [[(1,1)], [(3,2)], [(9,12)], [(2,2)]*3, [(1,3),(3,4),(2,2)], [(2,2),(3,3),(2,2),(1,5)]], ids=str)
@pytest.mark.parametrize('ties', [False,True])
def test_greedy(sizes, ties):
    "The optimum for one window, and for more the greedy choice, ties included"
    m = torch.randint(0, 3 if ties else 10_000, (8,9,12), generator=seeded())
    w = best_windows(m, sizes)
    for b in range(8): assert w.yx[b].tolist()==[list(c) for c in slow_greedy(m[b], sizes)]

@pytest.mark.parametrize('sizes', [[(2,3)], [(3,3),(2,2)]], ids=str)
def test_guided_without_noise_is_greedy_on_the_counts(sizes):
    flow,valid = wild_flow(3, (6,8), 4)
    one = sample_windows((6,8), [(3,3)]*2, 3, seeded())
    w,counts = guide_windows(flow, one, sizes, 0, 4, valid),slow_counts(flow, one, 4, valid)
    for b in range(3): assert w.yx[b].tolist()==[list(c) for c in slow_greedy(counts[b], sizes)]

def test_guided_with_noise_is_greedy_on_the_perturbed_counts():
    flow,valid = wild_flow(3, (6,8), 4)
    one = sample_windows((6,8), [(3,3)]*2, 3, seeded())
    w = guide_windows(flow, one, [(2,2)]*2, .7, 4, valid, generator=seeded(4))
    noisy = perturb_map(bin_flow(flow, one, 4, valid), .7, seeded(4)).double()
    for b in range(3): assert w.yx[b].tolist()==[list(c) for c in slow_greedy(noisy[b], [(2,2)]*2)]

def test_signed_scores():
    "Any finite map will do, also a negative one"
    for m in (-torch.randint(1, 99, (4,6,7), generator=seeded()), torch.randn(4,6,7, generator=seeded(), dtype=torch.float64), torch.rand(4,6,7, generator=seeded())>.5):
        w = best_windows(m, [(2,2)]*3)
        for b in range(4): assert w.yx[b].tolist()==[list(c) for c in slow_greedy(m[b], [(2,2)]*3)]

def fits(grid, sizes):
    "Whether there is any placement, by trying all"
    def more(placed):
        if len(placed)==len(sizes): return True
        i = len(placed)
        return any(more([*placed,c]) for c in corners(grid, sizes[i]) if all(apart(c, sizes[i], d, sizes[j]) for j,d in enumerate(placed)))
    return more([])

@st.composite
def layouts(draw, most=4, side=10):
    grid = draw(st.tuples(st.integers(1,side), st.integers(1,side)))
    return grid,draw(st.lists(st.tuples(st.integers(1,grid[0]), st.integers(1,grid[1])), min_size=1, max_size=most))

kinds = st.sampled_from(['wild','still','gone','unknown'])

@quick
@given(layouts(), st.sampled_from(['greedy','weighted','random']), kinds, st.sampled_from([0,.3,5.]), st.integers(0,99))
def test_windows_always_come_back(layout, method, kind, stochasticity, seed):
    "As many as asked for, inside and apart, whatever the flow; if not, sampling finds none either"
    grid,sizes = layout
    flow,valid = wild_flow(2, grid, 2, seed)
    flow = dict(wild=flow, still=torch.zeros_like(flow), gone=torch.full_like(flow, 1e6), unknown=torch.full_like(flow, math.nan))[kind]
    one = sample_windows(grid, [(max(1, grid[0]//2),max(1, grid[1]//2))], 2, seeded(seed))
    try: check(guide_windows(flow, one, sizes, stochasticity, 2, valid, method, seeded(seed)), sizes, 2)
    except ValueError as e:
        assert 'cannot fit' in str(e)
        with pytest.raises(ValueError, match='cannot fit'): sample_windows(grid, sizes, 1, seeded(seed))

@settings(quick, max_examples=60)
@given(layouts(most=3, side=4), st.integers(0,99))
def test_refuses_exactly_what_cannot_fit(layout, seed):
    "On small grids, where all placements can be tried"
    grid,sizes = layout
    m = torch.rand(3, *grid, generator=seeded(seed))
    if fits(grid, sizes): check(best_windows(m, sizes), sizes, 3)
    else:
        with pytest.raises(ValueError, match='cannot fit'): best_windows(m, sizes)

@quick
@given(st.tuples(st.integers(2,7), st.integers(2,7)), st.data(), st.integers(0,99))
def test_two_windows_take_the_best_place_that_leaves_room(grid, data, seed):
    "The first of two windows is at the best place beside which the second fits, and the second at the best place left"
    a,b = (data.draw(st.tuples(st.integers(1,grid[0]), st.integers(1,grid[1]))) for _ in (0,1))
    if a[0]*a[1]<b[0]*b[1]: a,b = b,a
    if not fits(grid, [a,b]): return
    m = torch.randint(0, 10_000, (1,*grid), generator=seeded(seed))
    c,d = map(tuple, best_windows(m, [a,b]).yx[0].tolist())
    room = {p: [q for q in corners(grid, b) if apart(p, a, q, b)] for p in corners(grid, a)}
    assert box(m[0], c, a)==max(box(m[0], p, a) for p in room if room[p])
    assert box(m[0], d, b)==max(box(m[0], q, b) for q in room[c])

@pytest.mark.parametrize('grid,a,b', [((4,7),(4,3),(4,3)), ((7,4),(3,4),(3,3)), ((6,6),(4,4),(2,5)), ((5,8),(5,3),(3,4))])
def test_the_best_place_that_leaves_room_when_the_best_does_not(grid, a, b):
    "Tight pairs, where greed alone fails for some maps: the first window is still at the best place that works"
    m = torch.randint(0, 10_000, (150,*grid), generator=seeded())
    sums,w = module._box_sums(m, [a,b]),best_windows(m, [a,b])
    room = {p: [q for q in corners(grid, b) if apart(p, a, q, b)] for p in corners(grid, a)}
    for i in range(150):
        c,d = map(tuple, w.yx[i].tolist())
        assert box(m[i], c, a)==max(box(m[i], p, a) for p in room if room[p]) and box(m[i], d, b)==max(box(m[i], q, b) for q in room[c])
    assert 5<sum(module._take({hw: s[i] for hw,s in sums.items()}, [a,b]) is None for i in range(150))

@pytest.mark.parametrize('grid,sizes', [((45,80),[(22,22)]*6), ((68,120),[(32,32)]*6), ((8,8),[(2,2)]*16), ((6,6),[(3,6),(3,3),(3,3)]),
                                        ((5,5),[(2,3),(3,2),(2,3),(3,2)]), ((7,7),[(7,3),(7,4)]), ((3,40),[(3,13)]*3)], ids=str)
def test_tight_layouts(grid, sizes):
    "Windows that barely fit, on maps that want them elsewhere"
    m = torch.zeros(3, *grid)
    m[0,grid[0]//2,grid[1]//2],m[1,:,grid[1]//2] = 1,1
    m[2] = torch.rand(grid, generator=seeded())
    for w in (best_windows(m, sizes), best_windows(m, sizes[::-1])): check(w, w.sizes, 3)
    assert torch.equal(best_windows(m, sizes).yx, best_windows(m, sizes).yx)
    scores = {hw: module._lots(s, seeded()) for hw,s in module._box_sums(m, sizes).items()}
    check(module._place(scores, tuple(sizes), grid), sizes, 3)

def test_layouts_that_packing_misses(monkeypatch):
    "Where windows do not pack, a sampled layout is the start"
    take = module._take
    monkeypatch.setattr(module, '_take', lambda scores, sizes: None if scores[2,2].dtype==bool else take(scores, sizes)) # no first fit
    m = torch.tensor([[[0,3,5,3],[0,3,5,3]]])
    check(best_windows(m, [(2,2)]*2), [(2,2)]*2, 1)

# Drawing in proportion to matches

def test_weighted_frequencies():
    "Each place as often as its share of the matches says; a place without matches never"
    counts = torch.randint(0, 6, (4,5), generator=seeded())
    counts[:2,:3] = 0
    n = 20_000
    scores = module._lots(module._box_sums(counts[None].expand(n,-1,-1), [(2,2)])[2,2], seeded())
    w = module._place({(2,2): scores}, ((2,2),), (4,5))
    weight = torch.tensor([box(counts, c, (2,2)) for c in corners((4,5), (2,2))], dtype=torch.float64)
    drawn = torch.bincount(w.yx[:,0,0]*4+w.yx[:,0,1], minlength=len(weight))
    assert (weight==0).any() and (drawn[weight==0]==0).all()
    p = (weight/weight.sum())[weight>0]
    assert chisquare(drawn[weight>0].numpy(), (p*n).numpy()).pvalue>1e-4

@pytest.mark.parametrize('sizes', [[(1,2),(1,2)], [(2,2),(1,1)]], ids=str)
def test_weighted_pairs(sizes):
    "The second window in proportion to the matches of the places that the first leaves"
    counts,n = torch.tensor([[3,1,4,1],[5,9,2,6]]),10_000
    scores = {hw: module._lots(s, seeded(1)) for hw,s in module._box_sums(counts[None].expand(n,-1,-1), sizes).items()}
    if len(scores)>1: scores[1,1] = module._lots(module._box_sums(counts[None].expand(n,-1,-1), [(1,1)])[1,1], seeded(2))
    w = module._place(scores, tuple(sizes), (2,4))
    want = {}
    weight = {c: box(counts, c, sizes[0]) for c in corners((2,4), sizes[0])}
    for c in weight:
        left = {d: box(counts, d, sizes[1]) for d in corners((2,4), sizes[1]) if apart(c, sizes[0], d, sizes[1])}
        for d in left: want[c,d] = weight[c]/sum(weight.values())*left[d]/sum(left.values())
    drawn = dict.fromkeys(want, 0)
    for c,d in w.yx.tolist(): drawn[tuple(c),tuple(d)] += 1
    assert sum(want.values())==pytest.approx(1)
    assert chisquare(list(drawn.values()), [n*p for p in want.values()]).pvalue>1e-4

def test_weighted_by_flow():
    "From flow to windows: frequencies over many images of one pair"
    flow,valid = wild_flow(1, (4,5), 2, seed=3)
    one = sample_windows((4,5), [(2,2)], 1, seeded())
    n = 2000
    w = guide_windows(flow.expand(n,-1,-1,-1), one, [(2,3)], patch=2, valid=valid.expand(n,-1,-1), method='weighted', generator=seeded())
    weight = torch.from_numpy(module._box_sums(slow_counts(flow, one, 2, valid), [(2,3)])[2,3].flatten())
    drawn = torch.bincount(w.yx[:,0,0]*3+w.yx[:,0,1], minlength=9)
    assert chisquare(drawn[weight>0].numpy(), (weight[weight>0]/weight.sum()*n).numpy()).pvalue>1e-4 and (drawn[weight==0]==0).all()

def test_weighted_without_matches_is_uniform():
    w = guide_windows(torch.full((2000,2,4,5), math.nan), Windows.full((4,5)), [(2,2)], patch=1, method='weighted', generator=seeded())
    assert chisquare(torch.bincount(w.yx[:,0,0]*4+w.yx[:,0,1], minlength=12).numpy()).pvalue>1e-4

# Baselines, randomness, batches

def test_same():
    flow,_ = wild_flow(2, (5,6), 2)
    one = sample_windows((5,6), [(2,2),(1,3)], 2, seeded(), extra=2)
    for sizes in (None, [(2,2),(1,3)]):
        w = guide_windows(flow, one, sizes, patch=2, method='same')
        assert torch.equal(w.index(), one.index())

def test_random_ignores_the_flow():
    flow,_ = wild_flow(3, (5,6), 2)
    one = sample_windows((5,6), [(2,2)]*2, 3, seeded())
    w = guide_windows(flow, one, [(2,3)], patch=2, method='random', generator=seeded(7))
    assert torch.equal(w.yx, sample_windows((5,6), [(2,3)], 3, seeded(7)).yx)

@pytest.mark.parametrize('method', ['greedy','weighted','random'])
def test_the_generator_decides(method):
    "Equal seeds agree, others differ, and torch's own generator is left alone"
    flow,valid = wild_flow(4, (12,16), 2)
    one = sample_windows((12,16), [(5,5)]*2, 4, seeded())
    draw = lambda seed: guide_windows(flow, one, [(3,3)]*3, 2., 2, valid, method, seed and seeded(seed)).yx
    state = torch.get_rng_state()
    assert torch.equal(draw(1), draw(1)) and not torch.equal(draw(1), draw(2))
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(3); a = draw(None)
    torch.manual_seed(3); b = draw(None)
    assert torch.equal(a, b)

def test_without_noise_nothing_is_random():
    "Also where the first choice leaves no room"
    flow,valid = wild_flow(3, (6,8), 2)
    one = sample_windows((6,8), [(3,3)], 3, seeded())
    state = torch.get_rng_state()
    for sizes in ([(2,2)]*3, [(3,4)]*4, [(5,5),(6,3)]):
        a,b = (guide_windows(flow, one, sizes, 0, 2, valid, generator=g) for g in (None,seeded()))
        assert torch.equal(a.yx, b.yx)
    assert torch.equal(state, torch.get_rng_state())

@pytest.mark.parametrize('sizes', [[(2,2)]*3, [(1,2),(3,4)], [(3,4)]*4], ids=str)
@pytest.mark.parametrize('stride', [1,2])
def test_images_of_a_batch_are_independent(sizes, stride):
    flow,valid = wild_flow(5, (6,8), 4)
    flow[3] = math.nan
    one = sample_windows((6,8), [(3,3),(2,2)], 5, seeded())
    two = guide_windows(flow, one, sizes, 0, 4, valid, stride=stride)
    share = match_coverage(flow, one, two, 4, valid)
    for b in range(5):
        w = Windows(one.yx[b:b+1], one.sizes, one.grid)
        alone = guide_windows(flow[b:b+1], w, sizes, 0, 4, valid[b:b+1], stride=stride)
        assert torch.equal(alone.yx[0], two.yx[b])
        assert torch.equal(match_coverage(flow[b:b+1], w, alone, 4, valid[b:b+1])[0], share[b])

def test_default_sizes_are_those_of_frame_1():
    flow,_ = wild_flow(2, (6,8), 2)
    one = sample_windows((6,8), [(3,2),(2,2)], 2, seeded(), extra=3)
    for k in guide_methods: assert guide_windows(flow, one, patch=2, method=k, generator=seeded()).sizes==one.sizes

def test_whole_frames():
    "A window as large as the frame sees all there is"
    flow,valid = wild_flow(2, (4,5), 2)
    one = sample_windows((4,5), [(2,2)], 2, seeded())
    for k in ('greedy','weighted','random'): assert guide_windows(flow, one, [(4,5)], patch=2, valid=valid, method=k).is_full

def test_follows_a_large_motion():
    "A block that moves by whole tokens is found exactly, noise or not, while the same place sees nothing of it"
    one = Windows(torch.tensor([[[2,3]]]), [(6,6)], (20,30))
    flow = torch.tensor([8.*15,8.*9])[:,None,None].expand(1, 2, 160, 240)
    for s in (0,.3):
        two = guide_windows(flow, one, stochasticity=s, patch=8, generator=seeded())
        assert two.yx.tolist()==[[[11,18]]] and match_coverage(flow, one, two, 8).item()==1
    assert match_coverage(flow, one, one, 8).item()==0

def test_new_tensors_follow_the_inputs():
    "Every tensor is made on the device of the inputs: nothing lands on another default device"
    flow,valid = wild_flow(2, (6,8), 2)
    one = sample_windows((6,8), [(3,3)], 2, seeded())
    for sizes,k in itertools.product(([(2,2)]*2, [(3,4)]*4), ('greedy','weighted')):
        a,b = seeded(),seeded()
        with torch.device('meta'): there = guide_windows(flow, one, sizes, .3, 2, valid, k, a)
        assert torch.equal(there.yx, guide_windows(flow, one, sizes, .3, 2, valid, k, b).yx)
    with torch.device('meta'): assert match_coverage(flow, one, one, 2, valid).device.type=='cpu'

class Pairs(Dataset):
    "Guides windows in the workers of a loader"
    def __len__(self): return 8
    def __getitem__(self, i):
        flow,valid = wild_flow(1, (6,8), 2, i)
        one = sample_windows((6,8), [(3,3)], 1, seeded(i))
        return guide_windows(flow, one, [(2,2)]*2, .3, 2, valid, generator=seeded(i)).yx[0]

def test_in_the_workers_of_a_loader():
    here = torch.stack([Pairs()[i] for i in range(8)])
    assert torch.equal(torch.cat(list(DataLoader(Pairs(), 4, num_workers=2))), here)
    for f in (bin_flow, guide_windows, match_coverage): assert pickle.loads(pickle.dumps(f)) is f
    w = guide_windows(*wild_flow(1, (6,8), 2)[:1], Windows.full((6,8)), [(2,2)], patch=2)
    assert torch.equal(pickle.loads(pickle.dumps(w)).yx, w.yx)

# Pictures and errors

def test_figure():
    import matplotlib; matplotlib.use('agg')
    import matplotlib.pyplot as plt
    flow,valid = wild_flow(2, (6,8), 4)
    one = sample_windows((6,8), [(3,3)], 1, seeded())
    img = torch.rand(3,24,32)
    for kw in (dict(), dict(img=img, img2=img, valid=valid, i=1, stochasticity=0, sizes=[(2,2)]*2)):
        axs = show_guidance(flow, one, patch=4, generator=seeded(), **kw)
        assert len(axs)==4 and all(a.get_title() for a in axs)
        plt.close('all')
    share = match_coverage(flow, one, guide_windows(flow, one, patch=4, generator=seeded()), 4)[0]
    assert f'{100*share:.0f}%' in show_guidance(flow, one, patch=4, generator=seeded())[3].get_title()
    plt.close('all')

@pytest.mark.parametrize('change,message', [
    (dict(flow=torch.zeros(2,8,12)), r'flow\[None\]'), (dict(flow=torch.zeros(2,3,8,12)), 'does not match'), (dict(flow=torch.zeros(2,2,8,11)), 'pad_to_patches'),
    (dict(flow=torch.zeros(3,2,8,12)), 'does not match'), (dict(flow=torch.zeros(0,2,8,12)), 'does not match'), (dict(patch=4), 'patch 4'),
    (dict(valid=torch.ones(2,8,12)), 'give bool'), (dict(valid=torch.ones(2,4,6, dtype=torch.bool)), 'give bool'), (dict(stride=0), 'stride 0'), (dict(stride=3), 'stride 3')])
def test_bad_flow(change, message):
    args = dict(flow=torch.zeros(2,2,8,12), windows=Windows.full((4,6), 2), patch=2) | change
    for f in (bin_flow, guide_windows):
        with pytest.raises(ValueError, match=message): f(**args)

@pytest.mark.parametrize('change,message', [
    (dict(method='best'), 'greedy'), (dict(stochasticity=-.1), 'at least 0'), (dict(stochasticity=math.nan), 'at least 0'), (dict(stochasticity=math.inf), 'at least 0'),
    (dict(sizes=[(5,2)]), 'cannot fit'), (dict(sizes=[(4,6),(1,1)]), 'cannot fit'), (dict(sizes=[(3,4)]*2), 'cannot fit'), (dict(sizes=[]), 'at least one'),
    (dict(sizes=[(2,2)], method='same'), 'leave sizes out')])
def test_bad_choice(change, message):
    args = dict(flow=torch.zeros(2,2,8,12), windows=sample_windows((4,6), [(2,2)]*2, 2), patch=2) | change
    with pytest.raises(ValueError, match=message): guide_windows(**args)

def test_bad_maps():
    for m in (torch.zeros(4,5), torch.full((1,4,5), math.nan), torch.full((1,4,5), -math.inf)):
        with pytest.raises(ValueError, match='finite'): best_windows(m, [(2,2)])

def test_frames_of_different_grids():
    flow = torch.zeros(2,2,8,12)
    for w in (Windows.full((4,5), 2), Windows.full((4,6), 3)):
        with pytest.raises(ValueError, match='one grid'): match_coverage(flow, Windows.full((4,6), 2), w, 2)
