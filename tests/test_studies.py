"Studies: results fit the code that describes them, a queue that stops and resumes, claims that follow from files"
import json, os, signal, subprocess, sys, time
from dataclasses import replace
from pathlib import Path
import numpy as np, pytest, torch

from conftest import ROOT
from winwin.experiments.claims import Comparison, claim_rows, compare_runs, list_claims
from winwin.experiments.programme import Job, Piece, claim_studies, list_pieces, open_jobs, run_queue
from winwin.experiments.studies import Study, list_studies, outdated, read_study, run_folder, run_study, trained_steps
from winwin.inference.readings import Reading, draw_images, paired_difference, read_sums, write_sums
from winwin.tasks.registry import make_task
from winwin.training.recipes import change, get_preset, paper_variants, recipe_data
from winwin.windows.layout import window_mask
from winwin.windows.sampling import sample_windows
from winwin.windows.schemes import parse_scheme

RESULTS = ROOT/'nbs'/'results'
TINY = change(get_preset('driving-seg'), image_size=(64,96), images=6, valid_images=2, steps=2, batch_size=2)

@pytest.fixture(scope='module')
def studies(): return list_studies()

def committed():
    "Result files that a study wrote"
    for path in sorted(RESULTS.glob('*.json')):
        found = json.loads(path.read_text(encoding='utf-8'))
        if isinstance(found, list) and found and {'study','case','seed'}<=set(found[0]): yield pytest.param(path, id=path.stem)

# --- No page is older than the code it describes

@pytest.mark.parametrize('path', committed())
def test_results_were_made_with_the_recipes_of_today(path, studies):
    for result in json.loads(path.read_text(encoding='utf-8')):
        if result.get('model')=='bundled': continue # not a run of the study; tests of the bundled models guard it
        assert path.stem in studies, f'{path.name}: there is no study of that name any more'
        assert not (changed := outdated(studies[path.stem], result)), f'{path.name}, {result["case"]}, seed {result["seed"]}: {changed}; run the study again'

def test_a_changed_recipe_makes_results_outdated(studies):
    study = studies['claims-driving']
    result = dict(case='1 window', seed=2, settings=json.loads(json.dumps(_settings(study, '1 window', 2))))
    assert outdated(study, result)==[]
    for over in (dict(lr=1e-3), dict(images=500), dict(head='linear')):
        name, = over
        lines = outdated(replace(study, recipe=change(study.recipe, **over)), result)
        assert len(lines)==1 and lines[0].startswith(name)

def _settings(study, case, seed):
    from winwin.experiments.studies import recipe_settings
    return recipe_settings(change(study.recipe, **study.cases[case], seed=seed, root='/somewhere', workers=3))

def test_results_name_no_folder_of_a_machine():
    for path in [*RESULTS.glob('*.json')]:
        text = path.read_text(encoding='utf-8')
        assert '/work/' not in text and '/home/' not in text and '/tmp/' not in text, path.name

# --- Seeds and variants

def test_seeds_change_training_scenes_and_never_meet_those_of_validation():
    recipes = [change(TINY, seed=s) for s in range(4)]
    seeds = [recipe_data(r).seed for r in recipes]
    assert len(set(seeds))==4 and seeds[0]==0 and {recipe_data(r, 'valid').seed for r in recipes}=={1} and 1 not in seeds
    assert {recipe_data(change(TINY, seed=s, data_seed=0)).seed for s in range(4)}=={0}

def test_variants_have_all_rows_of_the_tables():
    v = {k: o['windows'] for k,o in paper_variants((45,80), 1024).items()}
    for scheme in ('26+19','30+11','22+12','28+15','crop:24','2x17','crop:14','2x10','2x22+20','2x22+50','2x22+100','1x32+20','1x32+50','1x32+100'):
        assert scheme in v.values(), scheme
    assert sum(o.startswith('random') for o in v.values())==4
    for name,scheme in v.items(): assert parse_scheme(scheme).draw((45,80), generator=torch.Generator().manual_seed(0)).num_tokens<=3600, name

@pytest.mark.parametrize('grid,size', [((30,40),13), ((45,80),22), ((24,40),5)])
def test_even_coverage_lifts_the_border(grid, size):
    rng = torch.Generator().manual_seed(0)
    uniform, even = (window_mask(sample_windows(grid, [(size,size)]*2, 3000, rng, coverage=k)).float().mean(0) for k in ('uniform','even'))
    assert even.max()/even.min() < .2*uniform.max()/uniform.min().clamp(min=1/3000)
    assert even.sum()==pytest.approx(uniform.sum()) # neither loses a token

# --- Paired differences

def test_paired_error_is_smaller_than_that_of_unpaired_models():
    "Images that are hard for both models do not count as a difference"
    task = make_task('seg', classes=['a','b'])
    rng = np.random.default_rng(0)
    hard = rng.uniform(.4, 1., 60) # share of right pixels, the same for both
    def sums(bonus):
        right = np.clip(hard+bonus, 0, 1)*1000
        return torch.from_numpy(np.stack([np.stack([right,1000-right],1), np.stack([1000-right,right],1)], 1)).long()
    found = paired_difference(task, sums(.02), sums(0.), 'pixel_acc')
    alone = draw_images(60)@torch.from_numpy(hard)/60
    assert found['difference']==pytest.approx(.02, abs=.005) and found['error']<.1*alone.std().item()
    assert found['low']>0

def test_sums_survive_the_file(tmp_path):
    sums = dict(counts=torch.randint(2**20, (3,2,2)), means=torch.rand(3,4, dtype=torch.float64))
    back = read_sums(write_sums(tmp_path/'a.npz', sums))
    for k in sums: assert torch.equal(back[k], sums[k]) and back[k].dtype==sums[k].dtype

# --- The queue

def test_pieces_ask_for_nothing_twice(tmp_path):
    jobs = open_jobs(tmp_path)
    asked = [(j.study,j.case,j.seed,r) for j in jobs for r in j.reads]
    assert len(asked)==len(set(asked))
    wanted = {(s.name,c,k,r) for s in claim_studies().values() for c,k in s.jobs() for r in s.readings(c)}
    assert set(asked)==wanted

def test_failed_job_does_not_stop_the_queue(tmp_path, capfd):
    bad = Study('tiny', 'x', TINY, dict(wrong=dict(windows='2x40'), two=dict(windows='2x3')), seeds=(0,))
    left = run_queue(tmp_path, hours=.2, jobs=1, wait=.2, pieces=[Piece('tiny', ('wrong','two'), (0,))], studies=dict(tiny=bad))
    assert left==[Job('tiny', 'wrong', 0, ('full',))]
    assert 'failed with code 1' in capfd.readouterr().out
    assert [r['case'] for r in read_study(bad, tmp_path/'tiny')]==['two']

@pytest.mark.skipif(not hasattr(signal, 'SIGTERM') or os.name=='nt', reason='signals')
def test_queue_that_is_stopped_resumes_to_the_same_result(tmp_path):
    "SIGTERM saves a checkpoint in the middle of training; the second call ends with the weights of an undisturbed run"
    code = f'''
from winwin.experiments.programme import Piece, run_queue
from winwin.experiments.studies import Study
from winwin.training.recipes import change, get_preset
if __name__=='__main__':
    recipe = change(get_preset('driving-seg'), image_size=(64,96), images=6, valid_images=2, steps=60, batch_size=2, save_every=5, windows='2x3', seed=0)
    study = Study('tiny', 'x', recipe, dict(two={{}}), seeds=(0,))
    run_queue({str(tmp_path)!r}, hours=.2, jobs=1, wait=.1, pieces=[Piece('tiny', ('two',), (0,))], studies=dict(tiny=study))
'''
    script = tmp_path/'stopped.py'
    script.write_text(code)
    env = dict(os.environ, OMP_NUM_THREADS='1')
    process = subprocess.Popen([sys.executable, str(script)], env=env)
    folder = run_folder(tmp_path/'tiny', 'two', 0)
    try:
        end = time.monotonic()+240
        while trained_steps(folder)<5 and time.monotonic()<end and process.poll() is None: time.sleep(.05)
        process.send_signal(signal.SIGTERM)
        process.wait(120)
    finally:
        if process.poll() is None: process.kill()
    steps = trained_steps(folder)
    assert 5<=steps<=60
    subprocess.run([sys.executable, str(script)], env=env, check=True, timeout=300)
    recipe = change(TINY, steps=60, save_every=5, windows='2x3')
    straight = Study('tiny', 'x', recipe, dict(two={}), seeds=(0,))
    expected, = run_study(straight, tmp_path/'straight', progress=False)
    result, = read_study(straight, tmp_path/'tiny')
    assert result['scores']==expected['scores']

# --- Claims

def test_every_row_of_the_table_follows_from_committed_files():
    rows = claim_rows(RESULTS)
    assert len(rows)==len(list_claims())>=20
    for row in rows:
        for test,found in zip(row['claim'].tests, row['found']): assert found==compare_runs(test, RESULTS)

def test_an_empty_folder_gives_no_verdict(tmp_path):
    assert {row['verdict'] for row in claim_rows(tmp_path)}=={'not run yet'}

def test_lower_is_better_for_errors(tmp_path):
    rows = [dict(case=c, seed=s, train_cpu_s=1., scores=dict(full=dict(EPE=v))) for s in range(3) for c,v in (('a',1.), ('b',2.))]
    (tmp_path/'flow.json').write_text(json.dumps(rows))
    found = compare_runs(Comparison('flow', 'a: full', 'b: full'), tmp_path)
    assert found['difference']==pytest.approx(50.)
