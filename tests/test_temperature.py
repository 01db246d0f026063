"Temperatures: set, read, saved, folded, swept, learned and matched, in every family of models."
import copy, json, math
import pytest, timm, torch
import winwin
from test_probes import each_family, families, make, rng, state, whole
from winwin.attention.statistics import self_probability
from winwin.models.controls import attention_layers, layer_tau
from winwin.temperature.matching import output_sizes
from winwin.models.dense import create_model
from winwin.models.hub import load_model, save_model
from winwin.models.controls import fold_temperature, get_temperature, set_temperature
from winwin.temperature.theory import log_ratio
from winwin.temperature.matching import match_temperature
from winwin.temperature.search import Sweep, learn_temperature, sweep_temperature
from winwin.temperature.comparison import FullLoss, compare_temperatures
from winwin.attention.views import layer_means, make_views
from winwin.windows.sampling import sample_windows

def flow_pair(seed=0): return torch.rand(2,1,3,64,96, generator=rng(seed))

def sharp(num_classes=5, **kw):
    "A model whose tokens notice themselves, and images of 12x20 tokens"
    torch.manual_seed(0)
    size = dict(dim=64, depth=3, num_heads=4) | kw
    model = create_model('winwin_seg_micro', num_classes=num_classes, **size).eval().requires_grad_(False)
    for m in model.encoder.blocks: m.attn.qkv.weight[:2*size['dim']] = 1.5*m.attn.qkv.weight[:size['dim']].repeat(2,1)
    return model,torch.rand(3,3,96,160, generator=rng())

# --- Set, get, save

@each_family
def test_set_and_take_back(family):
    model,x = make(family)
    plain,before = whole(model(x)),state(model)
    heads = [*attention_layers(model).values()][0].num_heads
    for tau in (1.3,torch.linspace(.8, 1.6, heads)):
        old = set_temperature(model, tau)
        assert all(torch.equal(torch.as_tensor(t), torch.as_tensor(tau)) for t in get_temperature(model).values())
        assert not torch.allclose(whole(model(x)), plain, atol=1e-6)
        set_temperature(model, old)
        assert torch.equal(whole(model(x)), plain) and state(model)==before

@each_family
def test_one_number_for_all_heads_is_one_per_head(family):
    model,x = make(family)
    set_temperature(model, 1.4)
    want = whole(model(x))
    set_temperature(model, torch.full(([*attention_layers(model).values()][0].num_heads,), 1.4))
    torch.testing.assert_close(whole(model(x)), want, atol=2e-5, rtol=1e-4)

@each_family
def test_fold_is_exact(family):
    model,x = make(family)
    heads = [*attention_layers(model).values()][0].num_heads
    for tau in (1.37,torch.linspace(.7, 1.8, heads)):
        m = copy.deepcopy(model)
        set_temperature(m, tau)
        want = whole(m(x))
        if family=='qk norm' and isinstance(tau, torch.Tensor):
            with pytest.raises(ValueError, match='not one per head'): fold_temperature(m)
            continue
        assert fold_temperature(m) is m
        torch.testing.assert_close(whole(m(x)), want, atol=2e-5, rtol=1e-4)
        assert [type(o) for o in m.modules()]==[type(o) for o in model.modules()] # plain again
        assert {*get_temperature(m).values()}=={1.}
        fresh = make(family)[0]
        fresh.load_state_dict(m.state_dict()) # the weights alone carry it
        torch.testing.assert_close(whole(fresh(x)), want, atol=2e-5, rtol=1e-4)

def test_copies_are_independent():
    "A tempered layer of timm is copied with its temperature, and the copy is its own"
    model,x = make('dinov3')
    set_temperature(model, 1.5)
    want,other = model(x),copy.deepcopy(model)
    set_temperature(model, 1.)
    assert torch.equal(other(x), want) and not torch.equal(model(x), want)

def test_kinds_layers_heads():
    model = create_model('winwin_flow_micro').eval()
    set_temperature(model, 1.2, 'encoder')
    set_temperature(model, 1.3, 'decoder', layers=[0,-1])
    set_temperature(model, 1.4, 'cross', layers=1, heads=2)
    t = get_temperature(model)
    assert [t[f'encoder.blocks.{i}.attn'] for i in range(3)]==[1.2]*3
    assert [t[f'decoder.blocks.{i}.attn'] for i in range(3)]==[1.3,1.,1.3]
    assert torch.equal(t['decoder.blocks.1.cross_attn'], torch.tensor([1.,1.,1.4,1.]))
    assert t['decoder.blocks.0.cross_attn']==1
    set_temperature(model, {'encoder.blocks.0.attn': [1.,2.,1.,1.]}) # as JSON would have it
    assert torch.equal(get_temperature(model)['encoder.blocks.0.attn'], torch.tensor([1.,2.,1.,1.]))

def test_checkpoint_round_trip(tmp_path):
    model = create_model('winwin_flow_micro').eval().requires_grad_(False)
    a,b = flow_pair()
    set_temperature(model, 1.2, 'encoder')
    set_temperature(model, torch.tensor([.9,1.1,1.3,1.5]), 'cross')
    again = load_model(save_model(model, tmp_path/'m')).eval()
    one,two = get_temperature(model),get_temperature(again)
    assert one.keys()==two.keys() and all(torch.allclose(torch.as_tensor(one[n]), torch.as_tensor(two[n])) for n in one)
    assert torch.equal(again(a, b)[0], model(a, b)[0])
    assert json.loads((tmp_path/'m'/'config.json').read_text())['tau']['encoder.blocks.0.attn']==1.2

@pytest.mark.parametrize('call,message', [
    (lambda m: set_temperature(m, -.1), 'at least 0'), (lambda m: set_temperature(m, math.nan), 'finite'),
    (lambda m: set_temperature(m, torch.ones(5)), 'for 4 heads'), (lambda m: set_temperature(m, 1.2, 'all', heads=[4]), 'do not exist'),
    (lambda m: set_temperature(m, 1.2, 'crosswise'), 'is unknown'), (lambda m: set_temperature(m, 1.2, 'cross'), 'none is of kind'),
    (lambda m: set_temperature(m, {'block': 1.}), 'no attention layer is named block'),
    (lambda m: log_ratio(1, 100), 'at least 2'),
    (lambda m: sweep_temperature(m, lambda _: 0., [1.,1.2]), '3 or more'),
    (lambda m: sweep_temperature(m, lambda _: 0., [1.,1.2,1.1]), 'ascending'),
    (lambda m: learn_temperature(m, lambda *_: 0, per='row'), "'model', 'layer' or 'head'"),
    (lambda m: match_temperature(m, torch.rand(1,3,96,160), '2x6', by='luck'), 'use output, self, entropy'),
    (lambda m: match_temperature(m, torch.rand(3,96,160), '2x6'), r'must be \(B,3'),
    (lambda m: match_temperature(m, torch.rand(1,3,96,160), '2x6', bounds=(2.,1.)), 'lower one first'),
    (lambda m: match_temperature(m, torch.rand(1,3,96,160), '2x60'), 'cannot fit'),
    (lambda m: set_temperature(torch.nn.Linear(2, 2), 1.2), 'no attention layer')])
def test_bad_input(call, message):
    model,_ = sharp()
    before = state(model)
    with pytest.raises(ValueError, match=message): call(model)
    assert state(model)==before

# --- Sweep

curve = lambda at: lambda model: (get_temperature(model)['encoder.blocks.0.attn']-at)**2

@pytest.mark.parametrize('at', [1.,1.02,1.137,1.33,1.5,1.71,1.98,2.])
def test_coarse_sweep_finds_the_same_minimum(at):
    model,_ = sharp()
    every = sweep_temperature(model, curve(at), progress=False)
    few = sweep_temperature(model, curve(at), coarse=True, progress=False)
    assert len(every.taus)==51 and len(few.taus)<=15
    assert few.best==every.best and abs(few.best-at)<=.0101
    assert every.tau==pytest.approx(at, abs=1e-6) or at in (1.,2.)
    assert few.tau==pytest.approx(every.tau, abs=.011)

@pytest.mark.parametrize('n', [3,4,11,26,51,101])
@pytest.mark.parametrize('skew', [-3,0,4])
def test_coarse_sweep_on_any_valley(n, skew):
    taus = [1+i/(n-1) for i in range(n)]
    model,_ = sharp()
    def bowl(m):
        t = get_temperature(m)['encoder.blocks.0.attn']
        return abs(t-1.44)**1.5*(1+.2*skew*(t>1.44))
    a,b = (sweep_temperature(model, bowl, taus, coarse=c, progress=False) for c in (False,True))
    assert a.best==b.best

def test_higher_is_better_and_noise():
    model,_ = sharp()
    score = lambda m: torch.tensor([-curve(1.4)(m)+o for o in (0.,.1,-.1,.3)])
    s = sweep_temperature(model, score, higher=True, progress=False)
    assert s.best==1.4 and s.tau==pytest.approx(1.4, abs=1e-6)
    assert len(s.scores[0])==4 and s.noise==pytest.approx(0, abs=1e-6) # all images gain the same
    assert math.isnan(sweep_temperature(model, curve(1.4), progress=False).noise)

def test_sweep_resumes_after_a_crash(tmp_path):
    model,_ = sharp()
    calls,path = [],tmp_path/'sweep.json'
    def score(m):
        calls.append(get_temperature(m)['encoder.blocks.0.attn'])
        if len(calls)==4: raise KeyboardInterrupt
        return curve(1.3)(m)
    before = get_temperature(model)
    with pytest.raises(KeyboardInterrupt): sweep_temperature(model, score, path=path, progress=False)
    assert get_temperature(model)==before and len(json.loads(path.read_text())['scores'])==3
    s = sweep_temperature(model, score, path=path, progress=False)
    assert len(calls)==1+51 and s.best==1.3
    again = sweep_temperature(model, score, path=path, progress=False)
    assert len(calls)==52 and again.values==s.values
    assert [p.name for p in tmp_path.iterdir()]==['sweep.json'] # no temporary files

def test_sweep_touches_its_kind_only():
    model = create_model('winwin_flow_micro')
    set_temperature(model, 1.1, 'encoder')
    model.train()
    seen = []
    sweep_temperature(model, lambda m: seen.append((m.training,torch.is_grad_enabled())) or 0., [1.,1.1,1.2], 'cross', progress=False)
    t = get_temperature(model)
    assert t['encoder.blocks.0.attn']==1.1 and t['decoder.blocks.0.attn']==1 and model.training
    assert seen==[(False,False)]*3

def test_sweep_figure():
    import matplotlib.pyplot as plt
    s = Sweep([1.,1.1,1.2], [[.3,.4],[.2,.3],[.4,.5]], {})
    assert s.best==1.1 and 1<s.tau<1.2 and s.values==pytest.approx([.35,.25,.45])
    plt.close(s.show().figure)

# --- Learn

@pytest.mark.parametrize('per', ['model','layer','head'])
def test_learning_finds_a_teacher(per):
    student,x = sharp(depth=2)
    teacher = copy.deepcopy(student)
    set_temperature(teacher, 1.3)
    truth = teacher(x)[0]
    r = learn_temperature(student, lambda m,i: (m(x)[0]-truth).square().mean(), 40, per=per, lr=.05, progress=False)
    assert r.end<.1*r.start and len(r.losses)==40
    sizes = {'model': [()]*2, 'layer': [()]*2, 'head': [(4,)]*2}[per]
    assert [tuple(torch.as_tensor(t).shape) for t in r.tau.values()]==sizes
    if per=='model': assert [*r.tau.values()]==pytest.approx([1.3]*2, abs=.05) and len({*r.tau.values()})==1
    for m in r.moved.values(): assert m.mean()>.1
    assert not any(isinstance(t, torch.Tensor) and t.requires_grad for t in get_temperature(student).values())

@pytest.mark.parametrize('family', ['seg','dinov3','eva02'])
def test_learning_trains_temperatures_only(family):
    model,x = make(family)
    for p in model.parameters(): p.requires_grad_(True)
    model.train()
    weights = copy.deepcopy(model.state_dict())
    r = learn_temperature(model, lambda m,i: whole(m(x)).square().mean(), 3, progress=False)
    assert all(torch.equal(v, weights[k]) for k,v in model.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in model.parameters()) and model.training
    assert all(m.abs().max()>0 for m in r.moved.values())

def test_failed_learning_restores():
    model,x = sharp()
    set_temperature(model, 1.1)
    def loss(m, i):
        if i==2: raise RuntimeError('on purpose')
        return m(x)[0].mean()
    with pytest.raises(RuntimeError): learn_temperature(model, loss, 5, check=0, progress=False)
    assert {*get_temperature(model).values()}=={1.1}

def test_flow_kinds_are_learned_separately():
    model = create_model('winwin_flow_micro')
    a,b = flow_pair()
    learn_temperature(model, lambda m,i: m(a, b)[0].square().mean(), 2, kind='cross', check=1, progress=False)
    t = get_temperature(model)
    assert all(isinstance(t[n], torch.Tensor)==('cross' in n) for n in t)
    r = learn_temperature(model, lambda m,i: m(a, b)[0].square().mean(), 1, check=1, progress=False)
    assert sum(x.numel() for x in r.tau.values())==3*3*4 # heads, layers, kinds

# --- Match

def means(model, imgs, windows, f=self_probability):
    train,full = make_views(model, imgs, windows)
    stat = lambda layer,q,k,view: f(q, k, layer_tau(layer))
    return tuple(layer_means(model, attention_layers(model), views, stat) for views in (train,[full]))

@pytest.mark.parametrize('by,per', [('self','layer'),('self','head'),('entropy','layer'),('entropy','head'),('output','layer')])
def test_matched_layers_agree_with_training(by, per):
    model,x = sharp()
    r = match_temperature(model, x, '2x6', per=per, by=by)
    for n in r.tau:
        if n in r.unmatched: continue
        a,b = (d[n] if per=='head' else d[n].mean() for d in (r.train,r.full))
        torch.testing.assert_close(b, a, rtol=.02, atol=1e-5)
    assert get_temperature(model)==r.tau or per=='head'
    assert r.mean>1 and r.tokens==(72,240)
    if by=='self': # measured again from outside
        set_temperature(model, 1.)
        train = means(model, x, '2x6')[0]
        set_temperature(model, r.tau)
        full = means(model, x, '2x6')[1]
        for n in r.tau: assert full[n].mean()==pytest.approx(train[n].mean().item(), rel=.02)

@pytest.mark.parametrize('by', ['self','entropy','output'])
def test_matched_model_agrees_on_average(by):
    model,x = sharp()
    r = match_temperature(model, x, '2x6', by=by)
    assert len({*r.tau.values()})==1
    assert torch.stack([(r.full[n].mean()/r.train[n].mean()).log() for n in r.tau]).mean().abs()<2e-3

def test_output_sizes():
    "Mean squares of what the layers return, over the tokens that are looked at"
    model,x = sharp()
    w = sample_windows((12,20), [(6,6)]*2, batch=3, generator=rng())
    train,full = make_views(model, x, w)
    found = []
    hook = model.encoder.blocks[1].attn.register_forward_hook(lambda m,args,out: found.append(out))
    model(x, w); model(x)
    hook.remove()
    a,b = (output_sizes(model, attention_layers(model), v)['encoder.blocks.1.attn'].item() for v in (train,[full]))
    same = found[1].gather(1, w.index()[...,None].expand(-1,-1,64))
    assert a==pytest.approx(found[0].square().mean().item(), rel=1e-5) and b==pytest.approx(same.square().mean().item(), rel=1e-5)
    assert not model.encoder.blocks[1].attn._forward_hooks

@pytest.mark.parametrize('by', ['self','entropy','output'])
def test_nothing_to_match(by):
    model,x = sharp()
    r = match_temperature(model, x, 'full', by=by, draws=1)
    assert [*r.tau.values()]==pytest.approx([1.]*3, abs=2e-3)

def test_matching_starts_from_training():
    "Whatever temperature was set before, the target is the model as trained"
    model,x = sharp()
    a = match_temperature(model, x, '2x6', per='layer', by='self')
    set_temperature(model, 1.9)
    b = match_temperature(model, x, '2x6', per='layer', by='self')
    assert [*b.tau.values()]==pytest.approx([*a.tau.values()], abs=1e-6)
    assert {*b.before.values()}=={1.9}

def test_failed_matching_restores():
    model,x = sharp()
    set_temperature(model, 1.1)
    with pytest.raises(ValueError): match_temperature(model, x[...,:90], '2x6')
    assert {*get_temperature(model).values()}=={1.1}

@pytest.mark.parametrize('by,kind', [('self','encoder'),('self','decoder'),('output','cross'),('entropy','cross'),('output','all')])
def test_flow_models_by_kind(by, kind):
    torch.manual_seed(0)
    model = create_model('winwin_flow_micro').eval().requires_grad_(False)
    a,b = flow_pair()
    w = [(sample_windows((8,12), [(3,3)]*2, generator=rng(i)),sample_windows((8,12), [(3,4)]*2, generator=rng(i))) for i in (1,2)]
    for windows in ('2x3',w):
        r = match_temperature(model, (a,b), windows, kind=kind, by=by)
        chosen = attention_layers(model, kind)
        assert set(r.tau)==set(chosen)
        assert all(t==1 for n,t in get_temperature(model).items() if n not in chosen)
        set_temperature(model, 1.)

def test_depth_models():
    torch.manual_seed(0)
    model = create_model('winwin_depth_micro', dim=64, depth=4, num_heads=4).eval().requires_grad_(False)
    x = torch.rand(2,3,96,160, generator=rng())
    assert len({*match_temperature(model, x, '2x6').tau.values()})==1

def test_local_attention_is_left_alone():
    model,x = make('vit-det')
    r = match_temperature(model, x, '2x4', per='layer', by='entropy')
    assert list(r.tau)==['encoder.blocks.1.attn']

def test_timm_backbones(tmp_path):
    "A dense model on a backbone of timm: matched through windows, saved and loaded with its temperatures"
    torch.manual_seed(0)
    model = create_model('vit_small_patch16_dinov3:linear', num_classes=3, depth=2).eval().requires_grad_(False)
    x = torch.rand(1,3,96,128, generator=rng())
    r = match_temperature(model, x, '2x2', per='head', by='entropy', bounds=(1.,4.))
    again = load_model(save_model(model, tmp_path/'m')).eval()
    torch.testing.assert_close(again(x)[0], model(x)[0])
    for n,t in get_temperature(again).items(): torch.testing.assert_close(torch.as_tensor(t), torch.as_tensor(r.tau[n]))

def test_timm_models_match_crops():
    torch.manual_seed(0)
    model = timm.create_model('vit_small_patch16_dinov3', num_classes=0, depth=2, dynamic_img_size=True).eval().requires_grad_(False)
    x = torch.rand(2,3,96,128, generator=rng())
    r = match_temperature(model, x, 'crop:4', per='head', by='entropy', bounds=(1.,4.))
    for n in r.tau:
        if n not in r.unmatched: torch.testing.assert_close(r.full[n], r.train[n], rtol=.01, atol=0)
    assert set(match_temperature(model, x, 'crop:4', per='layer').tau)==set(attention_layers(model))

# --- From data and tasks

tasks = {'seg': ('winwin_seg_micro', dict(num_classes=14, depth=1), {}), 'depth': ('winwin_depth_micro', dict(depth=4), {}),
         'flow': ('winwin_flow_micro', dict(num_outputs=3), dict(pair=True))}

@pytest.mark.parametrize('name', tasks)
def test_full_loss(name):
    model,args,world = tasks[name]
    model,data = create_model(model, **args).eval(),winwin.DrivingWorld((48,84), length=4, **world) # 84: padded to 88
    task = winwin.make_task(name, data)
    loss = FullLoss(data, task, images=3)
    with torch.no_grad(): each = loss(model)
    assert each.shape==(3,) and each.isfinite().all() and len(set(loss.index))==3
    torch.testing.assert_close(loss(model, 4), each[1]) # steps go round
    cold = FullLoss(data, task, images=3, keep=0)
    torch.testing.assert_close(cold(model, 2), each[2])
    assert not cold.kept and len(loss.kept)==3
    frames = loss.frames(2, 8)
    assert (frames[0] if name=='flow' else frames).shape==(2,3,48,88)
    r = learn_temperature(model, loss, 2, check=1, progress=False)
    assert all(m.abs().max()>0 for m in r.moved.values())

def test_full_loss_is_the_loss_of_training():
    data = winwin.DrivingWorld((48,80), length=2)
    model,task = create_model('winwin_seg_micro', num_classes=14, depth=1).eval(),winwin.make_task('seg', data)
    item = data[FullLoss(data, task, images=1).index[0]]
    want = torch.nn.functional.cross_entropy(model(item['image'][None])[0], item['labels'][None].long(), ignore_index=255)
    torch.testing.assert_close(FullLoss(data, task, images=1)(model)[0], want)
    with pytest.raises(ValueError, match='no image'): FullLoss(torch.utils.data.Subset(data, []), task)

def test_compare_temperatures():
    data = winwin.DrivingWorld((48,80), length=3)
    model,task = create_model('winwin_seg_micro', num_classes=14, depth=1),winwin.make_task('seg', data)
    set_temperature(model, 1.05)
    t = compare_temperatures(model, data, data, task, '2x2', images=2, few=2, steps=2, progress=False)
    assert [r['way'] for r in t.rows]==['none','log-ratio','matched','gaps','swept','learned'] and t.score=='mIoU'
    assert t.rows[0]['loss_difference']==t.rows[0]['score_difference']==0 and t.rows[1]['tau']==pytest.approx(log_ratio(8, 60))
    assert [r['labels'] for r in t.rows]==[False]*4+[True]*2
    assert {*get_temperature(model).values()}=={1.05} and model.training
    assert 'log-ratio' in repr(t)

def test_score_errors_by_leaving_out():
    data = winwin.DrivingWorld((48,80), length=4)
    model,task = create_model('winwin_seg_micro', num_classes=14, depth=1).eval(),winwin.make_task('seg', data)
    with torch.no_grad(): j = FullLoss(data, task).scores(model)
    some = FullLoss(data, task).index
    for i in range(4):
        rest = torch.utils.data.Subset(data, [o for n,o in enumerate(some) if n!=i])
        assert j.without[i].item()==pytest.approx(winwin.evaluate(model, rest, task, progress=False)['mIoU'])
    same = j.minus(j)
    assert same['loss']==same['score']==same['loss_error']==same['score_error']==0
    k = winwin.temperature.comparison.ImageScores(j.losses*2, j.score, j.without*3)
    d = k.minus(j)
    assert d['loss']==pytest.approx(j.losses.mean().item()) and d['loss_error']==pytest.approx(j.losses.std().item()/2)
    w = 2*j.without
    assert d['score_error']==pytest.approx((3/4*(w-w.mean()).square().sum()).sqrt().item())

@pytest.mark.parametrize('name', tasks)
def test_judge_gives_the_scores_of_evaluate(name):
    model,args,world = tasks[name]
    model,data = create_model(model, **args),winwin.DrivingWorld((48,84), length=3, **world) # 84: padded to 88
    task = winwin.make_task(name, data)
    with torch.no_grad(): j = FullLoss(data, task).scores(model.eval())
    assert j.score==pytest.approx(winwin.evaluate(model, data, task, progress=False)[task.score], rel=1e-5)
    torch.testing.assert_close(j.losses.float(), FullLoss(data, task)(model).detach().cpu().float())

def test_names_are_where_the_docs_say():
    for n in ('set_temperature','get_temperature','fold_temperature'): assert getattr(winwin.models, n) is getattr(winwin, n)
    for n in ('sweep_temperature','learn_temperature','match_temperature','log_ratio'):
        assert getattr(winwin.temperature, n) is getattr(winwin, n)
