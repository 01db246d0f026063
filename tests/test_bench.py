"The measuring tools measure: order of calls, ratios, memory of a process of its own"
import pytest, torch
from winwin.machine import clock, pick_device
from winwin.bench.harness import Bench, benches, compare, check_targets, list_benches, peak_memory, ratio, register_bench, report_bench, run_bench
from winwin.bench.contests import RecipeStep, input_times, step_flops, train_whole_bench, vit_flops, write_streets
from winwin.models.vit import ViT

def test_cases_take_turns_and_warm_up_is_not_counted():
    calls = []
    t = compare({k: lambda k=k: calls.append(k) for k in 'ab'}, rounds=3, warmup=2)
    assert calls == ['a', 'b']*5 and [len(v) for v in t.values()] == [3, 3]

def test_ratio_is_taken_within_rounds():
    "A round in which the whole machine was slow does not count twice"
    assert ratio([2., 20., 2.], [1., 10., 1.]) == 2

@pytest.mark.parametrize('value,rule,met', [(2.3, '>= 2.3', True), (2.2, '>= 2.3', False), (.5, '<= 0.55', True), (.6, '<= 0.55', False), (1e-6, '<= 1e-5', True)])
def test_targets(value, rule, met): assert check_targets({'x': value}, {'x': rule})[0]['met'] is met

def test_memory_is_that_of_one_case():
    "Embedding two windows holds a good deal less than embedding the image"
    few, all_ = (peak_memory('embed', c) for c in ('slice first', 'embed first'))
    assert 0 < few['before'] < few['peak'] < all_['peak']
    assert few['peak']-few['before'] < .7*(all_['peak']-all_['before'])

def test_a_case_that_fails_says_why():
    with pytest.raises(RuntimeError, match='no case'): peak_memory('embed', 'no case')

def test_a_new_benchmark_needs_no_other_code():
    register_bench(Bench('halves', 'a test', {'one': lambda d: lambda: torch.zeros(10), 'two': lambda d: lambda: torch.zeros(10)}, targets={'times faster than two': '>= 0'}))
    try: r = run_bench('halves', device='cpu', rounds=2, progress=False)
    finally: del benches['halves']
    assert r['targets'][0]['met'] and 'halves: a test (cpu)' in report_bench(r)

def test_unknown_names():
    with pytest.raises(ValueError, match="no benchmark 'nothing'"): run_bench('nothing')
    with pytest.raises(RuntimeError): pick_device('no such device')

def test_flops_of_vit_b():
    "1.09 TFLOP for 3600 tokens; 5.5 times those of 968"
    with torch.device('meta'): vit = ViT.preset('base')
    assert vit_flops(vit, 3600) == pytest.approx(1.0935e12, rel=1e-3)
    assert vit_flops(vit, 3600)/vit_flops(vit, 968) == pytest.approx(5.47, abs=.05)

def test_clock_runs_forward():
    a = clock(); sum(range(100_000)); assert clock() >= a

def test_a_case_that_runs_a_share_is_scaled(monkeypatch):
    "A third of the work times three counts as the whole; its memory is not that of the whole and is left out"
    import winwin.bench.harness as module
    x, asked = torch.randn(400, 400), []
    work = lambda n: lambda d: lambda: [x@x for _ in range(n)]
    monkeypatch.setattr(module, 'peak_memory', lambda name, case, device: asked.append(case) or dict(before=1., peak=3.))
    register_bench(Bench('shares', 'a test', {'whole': work(60), 'third': work(20), 'all': work(60)}, scale={'third': 3.}, memory=True))
    try: r = run_bench('shares', device='cpu', rounds=9, progress=False)
    finally: del benches['shares']
    assert .6 < r['results']['times faster than third'] < 1.6 and .6 < r['seconds']['third']/r['seconds']['whole'] < 1.6
    assert asked == ['whole', 'all'] and not [k for k in r['results'] if 'memory' in k and 'third' in k]

def test_tiles_of_the_prediction_bench():
    "What the sampled case runs is 8 of the 96 tiles it stands for, and every target is about a case"
    from winwin.inference.modes import tile_offsets
    b = list_benches()['predict']
    (name, factor), = b.scale.items()
    count = lambda h, w: len(tile_offsets(h, 512, .9))*len(tile_offsets(w, 512, .9))
    assert '8 of 96, scaled' in name and (count(512, 870), count(720, 1280)) == (8, 96) and factor == 96/8
    assert {k.removeprefix('times faster than ') for k in b.targets} <= set(b.cases)

def test_long_names_keep_the_columns():
    text = report_bench(dict(bench='b', about='x', device='cpu', results={'a': 1., 'b'*70: 2.}, targets=[]))
    assert len({len(o) for o in text.splitlines()[1:]}) == 1

def test_threads_of_a_benchmark():
    "A benchmark on one thread computes on one, and leaves the number as it was"
    seen, before = [], torch.get_num_threads()
    register_bench(Bench('alone', 'a test', {'one': lambda d: lambda: seen.append(torch.get_num_threads())}, threads=1))
    try: run_bench('alone', device='cpu', rounds=1, progress=False)
    finally: del benches['alone']
    assert set(seen)=={1} and torch.get_num_threads()==before

SMALL = dict(model='winwin_seg_micro', size=(64,96), windows='2x3', batch_size=2)

def test_whole_step_from_files():
    "`train-whole` on small files: every row is a positive number, every target is measured, nothing is left behind"
    b = register_bench(train_whole_bench('small-whole', files=3, pixels=(96,128), steps=1, **SMALL))
    try: r = run_bench('small-whole', device='cpu', rounds=1, progress=False)
    finally: del benches['small-whole']
    assert all(v>0 for v in r['results'].values())
    assert {t['name'] for t in r['targets']}==set(b.targets)
    got = r['results']
    assert got['utilisation from files, one worker']==pytest.approx(got['utilisation ready batch']/got['wall-clock time over a ready batch, one worker'])

def test_whole_step_is_the_step_of_fit(tmp_path):
    "The losses of `RecipeStep` on its own batches are those that `fit` logs"
    from winwin.training.recipes import change, get_preset, train_recipe
    write_streets(tmp_path, 8, (96,128))
    recipe = change(get_preset('camvid-seg'), data='seg-folder', root=str(tmp_path), classes=tuple('abcdefghijk'),
                    steps=4, warmup=1, log_every=1, workers=0, **SMALL)
    lines = train_recipe(recipe, progress=False, score=False).log
    step = RecipeStep(recipe)
    source = step.load(steps=4)
    assert [step(next(source)) for _ in range(4)]==pytest.approx([o['loss'] for o in lines if 'loss' in o], rel=1e-4)

def test_listed_benches_are_whole():
    b = list_benches()['train-whole']
    assert b.targets=={'utilisation from files, one worker': '>= 0.70', 'wall-clock time over a ready batch, one worker': '<= 1.05'}
    assert b.threads==1 and list(b.cases)==['ready batch','from files']
