"""torch.compile: model and loss are one graph, and windows that move do not compile it again. Backend 'eager': what is tested is the tracing."""
import unittest.mock as mock
from functools import partial
import pytest, torch
from torch._dynamo.utils import counters
from winwin import *
from winwin.tasks import make_task
from winwin.training.loop import TrainConfig, TrainRun, train_step
from test_devices import FRAMES, SCENES, SEG, tiny

CASES = dict(seg=('seg','2x4',dict(head='linear'),{}), convnext=('seg','4+3',{},{}), weights=('seg','2x4+5',dict(head='linear'),dict(weight=[1.]*14)), depth=('depth','2x4',{},{}),
             flow=('flow','2x4',dict(head='linear'),{}), match=('flow','2x4',dict(head='linear'),dict(match=1.)), matching=('flow','2x4',dict(head='matching'),dict(match=1., kind='epe')),
             pretrain=('pretrain','full',{},{}))

@pytest.mark.parametrize('name', CASES)
def test_model_and_loss_are_one_graph(name):
    task,scheme,over,options = CASES[name]
    torch._dynamo.reset()
    counters.clear()
    model = tiny(task, **over)
    work = make_task(task, SEG, **options) if task=='seg' else make_task(task, **options)
    judge = torch.compile(work.batch_loss, backend='eager', fullgraph=True)
    for seed in range(3): # windows move
        batch = {k: (SCENES if task in ('seg','depth') else FRAMES)[k] for k in work.keys}
        batch = work.draw_windows(batch, parse_scheme(scheme), model.patch_size, torch.Generator().manual_seed(seed))
        loss = judge(model, batch, model.patch_size)
        torch.testing.assert_close(loss, work.batch_loss(model, batch, model.patch_size), atol=0, rtol=1e-5)
    assert counters['stats']['unique_graphs']==1
    loss.backward()

def test_a_compiled_run_is_the_plain_one():
    config = dict(windows='2x3', steps=3, batch_size=2, layer_decay=None, seed=1)
    losses = []
    for compiled in (False,True):
        torch._dynamo.reset()
        counters.clear()
        with mock.patch.object(torch, 'compile', partial(torch.compile, backend='eager', fullgraph=True)):
            run = TrainRun(tiny(head='linear'), SEG, TrainConfig(**config, compile=compiled))
        source = run.batches()
        losses.append([train_step(run, source)['loss'] for _ in range(3)])
        assert counters['stats']['unique_graphs']==compiled
    torch.testing.assert_close(*losses, atol=0, rtol=1e-5)

def test_a_layout_is_compiled_once():
    torch._dynamo.reset()
    counters.clear()
    model,work = tiny(head='linear'),make_task('seg', SEG)
    judge = torch.compile(work.batch_loss, backend='eager', fullgraph=True)
    batch = {k: SCENES[k] for k in work.keys}
    for seed in range(2):
        for scheme in ('2x3','2x4','4+3'): judge(model, work.draw_windows(batch, parse_scheme(scheme), 8, torch.Generator().manual_seed(seed)), 8)
    assert counters['stats']['unique_graphs']==3
