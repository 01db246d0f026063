"Flow metrics: golden values and plain numpy, one vector per pixel or four; one process or two."
import json, math, os, subprocess, sys
import numpy as np
import pytest, torch
from hypothesis import given, settings, strategies as st
from conftest import ROOT
from winwin.tasks.flow_scoring import FLOW_SCORES, FlowMetrics

def seeded(seed=0): return torch.Generator().manual_seed(seed)
def same(a, b, tol=1e-9):
    assert a.keys()==b.keys()
    for k in a: assert (math.isnan(a[k]) and math.isnan(b[k])) or abs(a[k]-b[k])<=tol*max(1, abs(b[k])), (k, a[k], b[k])
def scored(m, *batches):
    for b in batches: m.update(*b)
    return m.compute()
few = settings(max_examples=30, deadline=None)
AVERAGES = pytest.mark.parametrize('average', ['set','image'])

def data(seed, B, missing, fine=False, size=(7,9)):
    "Prediction, truth with holes of every kind, mask, visibility; speeds from zero to beyond 40 px"
    g = seeded(seed)
    k = 2 if fine else 1
    big = (size[0]*k,size[1]*k)
    t = torch.randn(B, 2, *size, generator=g)*torch.rand(B, 1, *size, generator=g)**3*80
    p = t + torch.randn(t.shape, generator=g)*torch.rand(B, 1, *size, generator=g)**2*8
    t = t.repeat_interleave(k, 2).repeat_interleave(k, 3) + (torch.randn(B, 2, *big, generator=g) if fine else 0)
    u = torch.rand(t.shape, generator=g)
    for i,v in enumerate((math.inf, -math.inf, math.nan, 1e10)): t[(u>=missing*i/4) & (u<missing*(i+1)/4)] = v
    return p,t,torch.rand(B, *big, generator=g)<.9,torch.rand(B, *size, generator=g)<.7

def oracle(p, t, valid, visible, average, fine):
    "The benchmarks' formulas, pixel by pixel in numpy"
    def image(p, t, valid, visible):
        e,speed,top,seen = [],[],[],[]
        for y in range(p.shape[1]):
            for x in range(p.shape[2]):
                rows,cols = (slice(2*y, 2*y+2),slice(2*x, 2*x+2)) if fine else (slice(y, y+1),slice(x, x+1))
                vectors,ok = t[:,rows,cols].reshape(2,-1),valid[rows,cols].all()
                with np.errstate(over='ignore', invalid='ignore'): length = np.hypot(*vectors)
                if not ok or not (length<1e4).all(): continue
                e.append(np.hypot(*(p[:,y,x,None]-vectors)).min()); speed.append(length.mean()); top.append(length.max()); seen.append(visible[y,x])
        return np.array(e),np.array(speed),np.array(top),np.array(seen, bool)
    def score(e, speed, top, seen):
        mean = lambda x: x.mean() if len(x) else math.nan
        w = [1-(i-1)/100 for i in range(1,101)]
        wauc = sum(w[i-1]*(e<=i/20).sum() for i in range(1,101))/(len(e)*sum(w)) if len(e) else math.nan
        return [mean(e), *[100*mean(e>k) for k in (1,3,5)], 100*mean((e>3) & (e>.05*top)), 100*wauc,
                mean(e[speed<10]), mean(e[(speed>=10) & (speed<40)]), mean(e[speed>=40]), mean(e[seen]), mean(e[~seen])]
    args = [x.double().numpy() if x.is_floating_point() else x.numpy() for x in (p,t,valid,visible)]
    images = [image(*o) for o in zip(*args)]
    if average=='set': return dict(zip(FLOW_SCORES, score(*[np.concatenate(o) for o in zip(*images)])))
    rows = np.array([score(*o) for o in images])
    return {k: np.nanmean(c) if not np.isnan(c).all() else math.nan for k,c in zip(FLOW_SCORES, rows.T)}

@AVERAGES
@pytest.mark.parametrize('fine', [False,True])
@few
@given(seed=st.integers(0,2**31), B=st.integers(1,4), size=st.integers(1,4), missing=st.sampled_from([0.,.1,.9,1.]))
def test_matches_numpy(average, fine, seed, B, size, missing):
    batch = data(seed, B, missing, fine)
    want = oracle(*batch, average, fine)
    same(scored(FlowMetrics(average, fine), batch), want)
    same(scored(FlowMetrics(average, fine), *zip(*[x.split(size) for x in batch])), want)
    p,t,valid,visible = batch
    hidden = t.masked_fill(~valid[:,None], math.nan) # a hole in the truth is a hole in the mask
    same(scored(FlowMetrics(average, fine), (p,hidden,None,visible)), want)

@pytest.mark.parametrize('error,wauc', [(0.,100.), (1.,65.7624), (5.,100*.01/50.5), (5.01,0.), (.05,100.), (.051,100*49.5/50.5)])
def test_wauc_golden(error, wauc):
    off = torch.tensor([0.,error], dtype=torch.float64)[:,None,None].expand(1,2,3,3)
    s = scored(FlowMetrics(), (off,torch.zeros_like(off)))
    assert abs(s['WAUC']-wauc)<1e-4

def one(truth, pred, **kw):
    "Scores of a single pixel"
    return scored(FlowMetrics(**kw), (torch.tensor(pred, dtype=torch.float64).reshape(1,2,1,1),torch.tensor(truth, dtype=torch.float64).reshape(1,2,*([2,2] if kw.get('fine') else [1,1]))))

@pytest.mark.parametrize('k', [1,3,5])
def test_outliers_are_strict(k):
    assert one([0.,0.], [float(k),0.])[f'{k}px']==0 and one([0.,0.], [k+1e-9,0.])[f'{k}px']==100

def test_fl_needs_both():
    assert one([0.,0.], [3.,0.])['Fl-all']==0 and one([0.,0.], [3.1,0.])['Fl-all']==100
    assert one([100.,0.], [95.,0.])['Fl-all']==0 and one([100.,0.], [94.9,0.])['Fl-all']==100

@pytest.mark.parametrize('speed,group', [(0.,'s0-10'), (9.999,'s0-10'), (10.,'s10-40'), (39.999,'s10-40'), (40.,'s40+'), (500.,'s40+')])
def test_speed_groups(speed, group):
    s = one([0.,speed], [2.,speed])
    assert {k for k in ('s0-10','s10-40','s40+') if s[k]==2}=={group} and sum(math.isnan(v) for v in s.values())==2+2

def test_spring_takes_smallest_error_mean_speed_and_longest_vector():
    s = one([[0.,0.,0.,100.],[0.]*4], [4.,0.], fine=True)
    assert s['EPE']==4 and s['s10-40']==4 and s['3px']==100 and s['Fl-all']==0 # mean speed 25; 4 is below 5% of 100
    assert math.isnan(one([[0.,0.,0.,math.nan],[0.]*4], [4.,0.], fine=True)['EPE']) # one unknown vector is enough

def test_pixels_against_images():
    "A group that an image lacks is left to the others"
    flow = torch.zeros(2,2,2,2); flow[1,0] = 50.
    pred = flow.clone(); pred[0,1],pred[1,1] = 1.,3.
    valid = torch.ones(2,2,2).bool(); valid[1,0] = False
    sets,images = (scored(FlowMetrics(a), (pred,flow,valid)) for a in ('set','image'))
    assert sets['EPE']==(4*1+2*3)/6 and images['EPE']==2
    for s in (sets,images): assert s['s0-10']==1 and s['s40+']==3 and math.isnan(s['s10-40'])

@AVERAGES
def test_visibility_known_for_some_images_only(average):
    p,t,valid,visible = data(0, 4, .1)
    m = FlowMetrics(average)
    m.update(p[:2], t[:2], valid[:2])
    assert math.isnan(m.compute()['matched']) and math.isnan(m.compute()['unmatched'])
    m.update(p[2:], t[2:], valid[2:], visible[2:])
    part = scored(FlowMetrics(average), (p[2:],t[2:],valid[2:],visible[2:]))
    whole = scored(FlowMetrics(average), (p,t,valid))
    same(m.compute(), whole | {k: part[k] for k in ('matched','unmatched')})

@AVERAGES
def test_reset_empty_and_table(average):
    m = FlowMetrics(average)
    assert all(map(math.isnan, m.compute().values()))
    p,t,valid,visible = data(0, 2, .3)
    m.update(p, t, valid)
    names,values = m.table().splitlines()
    assert names.split()==list(FLOW_SCORES) and len(names)==len(values)
    assert values.split()[-2:]==['-','-'] and float(values.split()[0])==round(m.compute()['EPE'], 2)
    assert m.table(m.compute())==m.table()
    m.reset(); m.update(p[:0], t[:0]); m.update(p, t*math.nan)
    assert all(map(math.isnan, m.compute().values())) and m.sums.sum()==0

def test_prediction_without_truth_is_free():
    p,t,valid,visible = data(1, 2, .3)
    want = scored(FlowMetrics(), (p,t,valid,visible))
    ok = valid & (t.double().norm(dim=1)<1e4)
    same(scored(FlowMetrics(), (p.masked_fill(~ok[:,None], math.nan),t,valid,visible)), want, 0)

def test_update_leaves_its_inputs_and_the_graph_alone():
    batch = data(0, 2, .3)
    copies = [x.clone() for x in batch]
    batch[0].requires_grad_()
    m = FlowMetrics()
    m.update(*batch)
    assert not m.sums.requires_grad
    for a,b in zip(batch, copies): assert torch.equal(a.detach().nan_to_num(), b.nan_to_num())

def test_half_precision_is_scored_in_full():
    p,t,*_ = data(2, 2, 0.)
    for dtype in (torch.float16, torch.bfloat16): same(scored(FlowMetrics(), (p.to(dtype),t)), scored(FlowMetrics(), (p.to(dtype).double(),t)))

def test_many_pixels_are_counted_exactly():
    m = FlowMetrics()
    m.sums[0] = 2.**40
    m.update(torch.zeros(1,2,1,1), torch.zeros(1,2,1,1))
    assert m.sums[0]==2.**40+1

Z,MASK = torch.zeros(2,2,4,6),torch.ones(2,4,6).bool()
@pytest.mark.parametrize('args,message', [
    ((Z[:1],Z), 'see unpad'), ((Z[...,:-1],Z), 'see unpad'), ((Z[0],Z), 'two channels'), ((Z[:,[0,1,1]],Z), 'two channels'), ((Z.long(),Z), 'give floats'), ((Z,Z[:,:1]), 'x before y'), ((Z,Z[0]), r'\(B,2,H,W\)'),
    ((Z[...,:3],Z), 'fine=True'), ((Z,Z,MASK.float()), 'give bool'), ((Z,Z,MASK[:,1:]), r'give bool \(2, 4, 6\)'), ((Z,Z,None,MASK[:1]), 'visible .* the size of the prediction'), ((Z,Z,None,MASK.long()), 'visible'),
    ((Z*math.nan,Z), 'NaN or infinite'), ((Z+math.inf,Z), 'NaN or infinite')])
def test_refuses_and_counts_nothing(args, message):
    m = FlowMetrics()
    with pytest.raises(ValueError, match=message): m.update(*args)
    assert m.sums.sum()==0

@pytest.mark.parametrize('args,message', [((Z,Z), 'half the height'), ((Z[...,:2,:3],Z[...,:5]), 'half the height'), ((Z[...,:2,:3],Z,MASK[:,:2,:3]), r'give bool \(2, 4, 6\)'), ((Z[...,:2,:3],Z,MASK,MASK), r'give bool \(2, 2, 3\)')])
def test_fine_refuses(args, message):
    m = FlowMetrics(fine=True)
    m.update(Z[...,:2,:3], Z, MASK, MASK[:,:2,:3])
    with pytest.raises(ValueError, match=message): m.update(*args)

def test_refuses_settings():
    with pytest.raises(ValueError, match="average 'pixel'; take 'image' or 'set'"): FlowMetrics('pixel')

# --- Processes

SCRIPT = '''
import json, torch, torch.distributed as dist
from winwin.tasks.flow_scoring import FlowMetrics
dist.init_process_group('gloo')
rank = dist.get_rank()
batch = torch.load({data!r}, weights_only=True)
out = {{}}
for split in ((4,1), (5,0), (0,5), (0,0)): # images of each process
    ms = {{a: FlowMetrics(a) for a in ('set','image')}}
    for i in range(5)[rank*split[0]:rank*split[0]+split[rank]]: # one image at a time: different numbers of calls
        for m in ms.values(): m.update(*[x[i:i+1] for x in batch])
    out[str(split)] = {{a: m.compute() for a,m in ms.items()}} | dict(again=ms['set'].compute(), table=ms['set'].table(), mine=ms['set'].sums[0].item())
with open({out!r} + str(rank), 'w') as f: json.dump(out, f)
dist.destroy_process_group()
'''

def test_two_processes_with_uneven_data(tmp_path):
    "Every process gets the scores of one that saw all images, whoever saw what; computing changes nothing"
    batch = data(3, 5, .3)
    script,saved,out = (tmp_path/o for o in ('run.py','data.pt','out'))
    torch.save(list(batch), saved)
    script.write_text(SCRIPT.format(data=str(saved), out=str(out)))
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'GLOO_SOCKET_IFNAME': 'lo', 'PYTHONPATH': str(ROOT)}
    run = subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--nproc_per_node', '2', '--master_addr', '127.0.0.1', '--master_port', '0',
                          '--rdzv_backend', 'c10d', '--rdzv_endpoint', '127.0.0.1:0', str(script)], env=env, capture_output=True, text=True, timeout=120)
    assert run.returncode==0, run.stderr[-3000:]
    results = [json.loads((tmp_path/f'out{r}').read_text()) for r in (0,1)]
    whole = FlowMetrics()
    want = dict(set=scored(whole, batch), image=scored(FlowMetrics('image'), batch))
    for split in ('(4, 1)', '(5, 0)', '(0, 5)'):
        a,b = (o[split] for o in results)
        for k,v in want.items():
            same(a[k], v, 1e-12)
            same(a[k], b[k], 0)
        same(a['again'], a['set'], 0)
        assert a['table']==b['table']==whole.table()
        assert a['mine']+b['mine']==whole.sums[0]
    for r in results: assert all(math.isnan(v) for k in want for v in r['(0, 0)'][k].values())
