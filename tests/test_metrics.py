"Metrics: integer counts and 64-bit sums that agree with torchmetrics and numpy, on one process or two."
import json, math, os, subprocess, sys
import numpy as np
import pytest, torch
from hypothesis import given, settings, strategies as st
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex
from conftest import ROOT
from winwin.tasks.segmentation import SegMetrics, show_confusion
from winwin.tasks.depth import DEPTH_SCORES, DepthMetrics

def seeded(seed=0): return torch.Generator().manual_seed(seed)
def same(a, b, tol=1e-12):
    assert a.keys()==b.keys()
    for k in a: assert (math.isnan(a[k]) and math.isnan(b[k])) or abs(a[k]-b[k])<=tol*max(1, abs(b[k])), (k, a[k], b[k])
def scored(m, *batches):
    for b in batches: m.update(*b)
    return m.compute()
few = settings(max_examples=50, deadline=None)

# --- Segmentation

def seg_data(seed, C, B, ignored, used):
    "Predictions that are right more often than not; only the first `used` classes occur in the answers"
    g = seeded(seed)
    t = torch.randint(0, used, (B,9,11), generator=g)
    scores = torch.randn(B, C, 9, 11, generator=g)
    scores.scatter_add_(1, t[:,None], torch.rand(B,1,9,11, generator=g)*3)
    t[torch.rand(t.shape, generator=g)<ignored] = 255
    return scores,t

def seg_oracle(pred, target, C, ignore=255):
    "A plain confusion matrix, pixel by pixel"
    m = np.zeros((C,C), int)
    for p,t in zip(pred.flatten().tolist(), target.flatten().tolist()):
        if t!=ignore: m[t,p] += 1
    iou,acc = [],[]
    for c in range(C):
        union,true = m[c].sum()+m[:,c].sum()-m[c,c],m[c].sum()
        iou.append(m[c,c]/union if union else math.nan)
        acc.append(m[c,c]/true if true else math.nan)
    mean = lambda x: np.nanmean(x) if not np.isnan(x).all() else math.nan
    out = dict(mIoU=mean(iou), pixel_acc=np.trace(m)/m.sum() if m.sum() else math.nan, mean_acc=mean(acc))
    return out | {f'IoU/{c}': o for c,o in enumerate(iou)} | {f'acc/{c}': o for c,o in enumerate(acc)}

seg_problem = dict(seed=st.integers(0,2**31), C=st.integers(2,8), B=st.integers(1,4), ignored=st.sampled_from([0.,.2,.97,1.]), data=st.data())

@few
@given(**seg_problem)
def test_seg_matches_a_plain_confusion_matrix(seed, C, B, ignored, data):
    scores,t = seg_data(seed, C, B, ignored, data.draw(st.integers(1,C)))
    pred,size = scores.argmax(1),data.draw(st.integers(1,B))
    want = seg_oracle(pred, t, C)
    same(scored(SegMetrics(C), (scores,t)), want)
    same(scored(SegMetrics(C), *zip(scores.split(size), t.split(size))), want)
    small = t.to(torch.uint8)
    same(scored(SegMetrics(C), (pred.to(torch.int32),small)), want)

@few
@given(**seg_problem)
def test_seg_matches_torchmetrics(seed, C, B, ignored, data):
    scores,t = seg_data(seed, C, B, min(ignored, .97), data.draw(st.integers(1,C)))
    t[0,0,0] = 0 # at least one answer
    ours,args = scored(SegMetrics(C), (scores,t)),dict(num_classes=C, ignore_index=255)
    for ref,key in ((MulticlassJaccardIndex(**args),'mIoU'), (MulticlassAccuracy(average='micro', **args),'pixel_acc')):
        assert abs(ref(scores, t).item()-ours[key])<1e-6, key
    each = MulticlassJaccardIndex(average='none', **args)(scores, t)
    for c in range(C): # torchmetrics says 0 for a class that never occurs, and leaves it out of its mean
        assert abs(each[c].item()-ours[f'IoU/{c}'])<1e-6 or (each[c]==0 and math.isnan(ours[f'IoU/{c}']))

def test_class_only_in_predictions_counts_and_absent_one_does_not():
    s = scored(SegMetrics(3), (torch.tensor([[[0,1]]]), torch.tensor([[[0,0]]])))
    assert s['IoU/0']==.5 and s['IoU/1']==0 and math.isnan(s['IoU/2']) and s['mIoU']==.25
    assert s['acc/0']==.5 and math.isnan(s['acc/1']) and s['mean_acc']==.5

def test_many_pixels_are_counted_exactly():
    "Past 2^24 a 32-bit float would stop counting"
    m = SegMetrics(2)
    m.confusion[0,0] = 2**53
    m.update(torch.zeros(1,1,1).long(), torch.zeros(1,1,1).long())
    assert m.confusion[0,0].item()==2**53+1

def test_prediction_at_ignored_pixels_is_free():
    t = torch.tensor([[[0,255]]])
    assert scored(SegMetrics(2), (torch.tensor([[[0,77]]]), t))['pixel_acc']==1
    assert scored(SegMetrics(2, ignore=0), (torch.tensor([[[1,1]]]), torch.tensor([[[0,1]]])))['mIoU']==1

def test_half_precision_scores():
    scores,t = seg_data(0, 5, 2, .1, 5)
    for dtype in (torch.float16, torch.bfloat16): same(scored(SegMetrics(5), (scores.to(dtype),t)), scored(SegMetrics(5), (scores.to(dtype).float(),t)))

def test_reset_and_empty():
    m,(scores,t) = SegMetrics(4),seg_data(0, 4, 2, .1, 4)
    fresh = m.compute()
    assert all(map(math.isnan, fresh.values()))
    m.update(scores, t); m.reset()
    same(m.compute(), fresh)
    m.update(scores[:0], t[:0]) # a batch without images
    same(m.compute(), fresh)

def test_seg_table_is_aligned():
    m = SegMetrics(3, ['a','traffic light','b'])
    m.update(torch.tensor([[[0,1]]]), torch.tensor([[[0,0]]]))
    lines = m.table().splitlines()
    assert len({len(o) for o in lines})==1 and len(lines)==1+3+1+2
    assert lines[1].split()==['a','50.0','50.0'] and lines[3].split()==['b','-','-'] and lines[-1].split()==['all','pixels','-','50.0']
    assert m.table(m.compute())==m.table()

def test_show_confusion():
    import matplotlib; matplotlib.use('agg')
    m = SegMetrics(3, ['a','b','c'])
    m.update(torch.tensor([[[0,1]]]), torch.tensor([[[0,0]]]))
    ax = show_confusion(m)
    assert [o.get_text() for o in ax.texts]==['50','50']
    matplotlib.pyplot.close(ax.figure)

ints = torch.zeros(2,4,5).long()
@pytest.mark.parametrize('pred,target,message', [
    (torch.zeros(2,4,4,5), ints, r'give scores \(B,3,H,W\)'), (torch.zeros(2,4,5), ints, 'classes .* as integers'), (ints[:,None], ints, 'give scores'), (ints[0], ints[0], 'give scores'),
    (torch.zeros(2,3,4,4), ints, 'see unpad'), (ints, ints[:1], 'see unpad'), (ints, ints[:,None], 'give integers'), (ints, ints.float(), 'give integers'),
    (ints+3, ints, 'prediction 3 is none of the 3'), (ints-1, ints, 'prediction -1'), (ints, ints+3, 'target 3'), (ints, ints-1, 'target -1'),
    (torch.full((2,3,4,5), math.nan), ints, 'NaN')])
def test_seg_refuses_and_counts_nothing(pred, target, message):
    m = SegMetrics(3)
    with pytest.raises(ValueError, match=message): m.update(pred, target)
    assert m.confusion.sum()==0

@pytest.mark.parametrize('names', [['a'], ['a','a'], ['a','b','c']])
def test_seg_refuses_names(names):
    with pytest.raises(ValueError, match='name of its own'): SegMetrics(2, names)

# --- Depth

def depth_data(seed, B, missing):
    g = seeded(seed)
    t = torch.rand(B, 7, 9, generator=g)*90 + .01
    p = t*torch.exp(torch.randn(t.shape, generator=g)*.3)
    u = torch.rand(t.shape, generator=g)
    for i,v in enumerate((math.inf, 0., -1., math.nan)): t[(u>=missing*i/4) & (u<missing*(i+1)/4)] = v
    return p,t,torch.rand(t.shape, generator=g)<.8

def depth_oracle(pred, truth, valid, lo, hi, average):
    "Eigen's formulas in numpy"
    def one(p, t):
        g,ratio = np.log(p)-np.log(t),np.maximum(p/t, t/p)
        return [np.mean(np.abs(p-t)/t), np.mean((p-t)**2/t), np.sqrt(np.mean((p-t)**2)), np.sqrt(np.mean(g**2)), np.mean(np.abs(np.log10(p)-np.log10(t))),
                100*np.std(g), *[np.mean(ratio<1.25**k) for k in (1,2,3)]]
    p,t,v = (x.double().numpy() if x.dtype!=torch.bool else x.numpy() for x in (pred,truth,valid))
    ok = np.isfinite(t) & (t>lo) & (t<hi) & v
    p = np.clip(p, lo, hi)
    if average=='set': rows = [one(p[ok], t[ok])] if ok.any() else []
    else: rows = [one(a[o], b[o]) for a,b,o in zip(p, t, ok) if o.any()]
    return dict(zip(DEPTH_SCORES, np.mean(rows, 0).tolist() if rows else [math.nan]*9))

@pytest.mark.parametrize('average', ['image','set'])
@few
@given(seed=st.integers(0,2**31), B=st.integers(1,4), size=st.integers(1,4), missing=st.sampled_from([0.,.3,.98,1.]), limit=st.sampled_from([None,10.,80.]))
def test_depth_matches_numpy(average, seed, B, size, missing, limit):
    p,t,valid = depth_data(seed, B, missing)
    want = depth_oracle(p, t, valid, 1e-3, limit or math.inf, average)
    new = lambda: DepthMetrics(limit, average=average)
    same(scored(new(), *zip(p.split(size), t.split(size), valid.split(size))), want, 1e-5) # a root of a difference of squares
    same(scored(new(), (p[:,None],t[:,None],valid[:,None])), want, 1e-5)
    same(scored(new(), (p.where(valid, math.nan),t[:,None],valid[:,None])), want, 1e-5) # no answer is needed where none is asked

@pytest.mark.parametrize('average', ['image','set'])
def test_perfect_and_scaled_depth(average):
    p,t,_ = depth_data(0, 3, .3)
    perfect = scored(DepthMetrics(average=average), (t.where(t.isfinite(), 5.),t))
    same(perfect, dict(zip(DEPTH_SCORES, [0.]*6+[1.]*3)))
    twice = scored(DepthMetrics(average=average), (2*t.where(t.isfinite(), 5.),t))
    assert abs(twice['abs_rel']-1)<1e-12 and abs(twice['log10']-math.log10(2))<1e-12 and twice['silog']<1e-5 and twice['delta3']==0

def test_depth_limits():
    m = DepthMetrics(10, .5)
    s = scored(m, (torch.tensor([[[-3.,99.,math.inf,1.,1.,1.]]]), torch.tensor([[[1.,9.,5.,.5,10.,11.]]])))
    assert abs(s['abs_rel']-(.5+1/9+1)/3)<1e-7 # cut to 0.5, 10 and 10; truth at or beyond a limit is out

def test_depth_reset_empty_and_table():
    m = DepthMetrics()
    assert all(map(math.isnan, m.compute().values()))
    p,t,_ = depth_data(0, 2, .3)
    m.update(p, t)
    names,values = m.table().splitlines()
    assert names.split()==list(DEPTH_SCORES) and len(names)==len(values)
    m.reset(); m.update(p[:0], t[:0])
    assert all(map(math.isnan, m.compute().values()))

def test_update_leaves_its_inputs_and_the_graph_alone():
    p,t,v = depth_data(0, 2, .3)
    copies = p.clone(),t.clone(),v.clone()
    p.requires_grad_()
    m = DepthMetrics(20)
    m.update(p, t, v)
    assert not m.sums.requires_grad
    for a,b in zip((p.detach(),t,v), copies): assert torch.equal(a.nan_to_num(), b.nan_to_num())

ones = torch.ones(2,4,5)
@pytest.mark.parametrize('args,message', [
    ((ones,ones[:1]), 'see unpad'), ((ones[0],ones[0]), r'give \(B,H,W\)'), ((ones[:,None].expand(2,2,4,5),ones), r'give \(B,H,W\)'), ((ones,ones,ones), 'give bool'), ((ones,ones,ones[:,1:].bool()), 'shaped like depth'),
    ((ones*math.nan,ones), 'NaN or infinite'), ((ones*math.inf,ones), 'max_depth')])
def test_depth_refuses_and_counts_nothing(args, message):
    m = DepthMetrics()
    with pytest.raises(ValueError, match=message): m.update(*args)
    assert m.sums.sum()==0

@pytest.mark.parametrize('kw', [dict(max_depth=0), dict(max_depth=-1), dict(min_depth=0), dict(min_depth=2, max_depth=1), dict(average='pixel')])
def test_depth_refuses_settings(kw):
    with pytest.raises(ValueError): DepthMetrics(**kw)

# --- Processes

SCRIPT = '''
import json, torch, torch.distributed as dist
from winwin.tasks.depth import DepthMetrics; from winwin.tasks.segmentation import SegMetrics
dist.init_process_group('gloo')
rank = dist.get_rank()
scores,t,p,d,v = torch.load({data!r}, weights_only=True)
out = {{}}
for split in ((4,1), (5,0), (0,5), (0,0)): # images of each process
    mine = slice(rank*split[0], rank*split[0]+split[rank])
    seg,depths = SegMetrics(6),{{a: DepthMetrics(80, average=a) for a in ('image','set')}}
    for i in range(5)[mine]: # one image at a time: the processes make different numbers of calls
        seg.update(scores[i:i+1], t[i:i+1])
        for m in depths.values(): m.update(p[i:i+1], d[i:i+1], v[i:i+1])
    key = str(split)
    out[key] = dict(seg=seg.compute(), **{{a: m.compute() for a,m in depths.items()}}, again=seg.compute(), table=seg.table(),
                    mine=int(seg.confusion.sum()))
with open({out!r} + str(rank), 'w') as f: json.dump(out, f)
dist.destroy_process_group()
'''

def test_two_processes_with_uneven_data(tmp_path):
    "Every process gets the scores of one that saw all images, whoever saw what; computing changes nothing"
    (scores,t),depth = seg_data(3, 6, 5, .2, 5),depth_data(3, 5, .5)
    script,data,out = (tmp_path/o for o in ('run.py','data.pt','out'))
    torch.save([scores, t, *depth], data)
    script.write_text(SCRIPT.format(data=str(data), out=str(out)))
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'GLOO_SOCKET_IFNAME': 'lo', 'PYTHONPATH': str(ROOT)}
    run = subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--nproc_per_node', '2', '--master_addr', '127.0.0.1', '--master_port', '0',
                          '--rdzv_backend', 'c10d', '--rdzv_endpoint', '127.0.0.1:0', str(script)], env=env, capture_output=True, text=True, timeout=120)
    assert run.returncode==0, run.stderr[-3000:]
    results = [json.loads((tmp_path/f'out{r}').read_text()) for r in (0,1)]
    seg = SegMetrics(6)
    want = dict(seg=scored(seg, (scores,t)))
    for a in ('image','set'): want[a] = scored(DepthMetrics(80, average=a), depth)
    for split in ('(4, 1)', '(5, 0)', '(0, 5)'):
        a,b = (o[split] for o in results)
        for k,v in want.items():
            same(a[k], v, 0 if k=='seg' else 1e-9)
            same(a[k], b[k], 0)
        same(a['again'], a['seg'], 0)
        assert a['table']==b['table']==seg.table()
        assert a['mine']+b['mine']==seg.confusion.sum()
    for r in results: assert all(math.isnan(v) for k in want for v in r['(0, 0)'][k].values())
