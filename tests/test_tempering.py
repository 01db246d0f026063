import json, shutil
from unittest import mock
import pytest, torch
import winwin
from winwin.cli import main
from winwin.models.hub import load_model, save_model, temperature_dict
from winwin.training.recipes import change, get_preset, train_recipe
from winwin.experiments.studies import get_study
from winwin.models.controls import set_temperature
from winwin.temperature.matching import match_temperature
from winwin.temperature.checkpoint import choose_temperature, keep_temperature, open_run, tempering_text, undo_temperature, write_tempering
import winwin.experiments.studies as study

small = dict(image_size=(48,80), images=6, valid_images=3, windows='2x2', steps=2, batch_size=2, warmup=1)
recipes = {'seg': lambda: change(get_preset('driving-seg'), **small),
           'depth': lambda: change(get_preset('driving-depth'), **small),
           'flow': lambda: change(get_preset('flow-layered'), **small|dict(windows2='2x2'))}

@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    made,top = {},tmp_path_factory.mktemp('runs')
    def get(task):
        if task not in made: train_recipe(recipes[task](), top/task, progress=False); made[task] = top/task
        return made[task]
    return get

@pytest.fixture
def run(trained, tmp_path): return lambda task='seg': shutil.copytree(trained(task), tmp_path/task)

def winwin_command(*args):
    with pytest.raises(SystemExit) as e: main([str(a) for a in args])
    return e.value.code

@pytest.mark.parametrize('task', recipes)
@pytest.mark.parametrize('way', ['match','sweep','learn'])
def test_every_way_for_every_task(run, task, way):
    r = open_run(run(task), device='cpu')
    t = choose_temperature(r, way, images=2, steps=2, progress=False)
    assert t.after==temperature_dict(r.model) and t.numbers['tokens']==[8,60] and t.numbers['images']==2
    assert tempering_text(t)
    png,text = write_tempering(r, t)
    assert png.parent==r.folder.parent and png.name==f'best-temperature-{way}.png' and png.stat().st_size>2000
    said = json.loads(text.read_text())
    assert said['way']==way and said['after']==t.after and said['before']=={}
    keep_temperature(r, t)
    again = load_model(r.folder)
    assert temperature_dict(again)==pytest.approx(t.after) if way!='learn' else set(temperature_dict(again))==set(t.after)
    assert undo_temperature(r.folder)=={} and temperature_dict(load_model(r.folder))=={}

def test_flow_kinds(run):
    r = open_run(run('flow'), device='cpu')
    t = choose_temperature(r, 'sweep', images=1, kind='cross', progress=False)
    assert set(t.after)<={n for n in winwin.models.attention_layers(r.model, 'cross')} and t.numbers['kind']=='cross'
    seen = []
    with mock.patch('winwin.temperature.checkpoint.match_temperature', lambda model,frames,windows,**kw: seen.append((windows,kw)) or match_temperature(model, frames, windows, **kw)):
        t = choose_temperature(r, 'match', images=2)
    windows,how = seen[0] # as in training: frame 2 has its own windows, and cross-attention is matched
    assert how['kind']=='all' and set(t.found.tau)==set(winwin.models.attention_layers(r.model))
    assert len(windows)==4 and all(a.num_tokens==b.num_tokens==8 for a,b in windows)
    assert any(not torch.equal(a.index(), b.index()) for a,b in windows)
    t = choose_temperature(r, 'match', images=1, kind='decoder')
    assert set(t.found.tau)==set(winwin.models.attention_layers(r.model, 'decoder'))

def test_command_changes_the_checkpoint_and_back(run, capsys):
    at = run()
    before = json.loads((at/'best/config.json').read_text())
    weights = (at/'best/model.safetensors').read_bytes()
    assert winwin_command('temperature', at, '--learn', '--images', 2, '--steps', 3, '--per', 'model')==0
    assert '--undo' in capsys.readouterr().out
    after = json.loads((at/'best/config.json').read_text())
    assert after['tau'] and after['metrics']=={} and (at/'best/model.safetensors').read_bytes()==weights
    kept = after['extra']['temperatures'][0]
    assert kept['tau']==before['tau']=={} and kept['metrics']==before['metrics'] and kept['way']=='learn'
    assert after['extra']['recipe']==before['extra']['recipe']
    assert winwin_command('eval', at, '--json')==0 # the checkpoint is whole
    assert json.loads(capsys.readouterr().out)['images']==3
    assert winwin_command('temperature', at, '--undo')==0
    back = json.loads((at/'best/config.json').read_text())
    assert back['tau']=={} and back['metrics']==before['metrics'] and back['extra']['temperatures']==[]

def test_the_new_temperature_is_used(run):
    at = run()
    r = open_run(at, device='cpu')
    img = r.data[0]['image'][None]
    with torch.no_grad(): plain = r.model(img)[0]
    set_temperature(r.model, 3.)
    t = choose_temperature(r, 'sweep', images=1, progress=False)
    set_temperature(r.model, 3.)
    keep_temperature(r, t)
    with torch.no_grad(): want,now = r.model(img)[0],load_model(at/'best')(img)[0]
    torch.testing.assert_close(now, want)
    assert not torch.equal(now, plain)

def test_dry_run_compare_and_out(run, tmp_path, capsys):
    at,out = run(),tmp_path/'figures'
    text = (at/'best/config.json').read_text()
    assert winwin_command('temperature', at, '--ratio', '--images', 2, '--dry-run', '--out', out)==0
    assert 'is unchanged' in capsys.readouterr().out
    assert winwin_command('temperature', at, '--compare', '--images', 2, '--steps', 2, '--held', 2, '--out', out)==0
    assert 'log-ratio' in capsys.readouterr().out
    names = {f'best-temperature-{w}.{k}' for w in ('ratio','compare') for k in ('png','json')}
    assert {p.name for p in out.iterdir()}==names
    assert (at/'best/config.json').read_text()==text
    numbers = json.loads((out/'best-temperature-compare.json').read_text())
    assert numbers['held']==2 and [r['way'] for r in numbers['rows']]==['none','log-ratio','matched','gaps','swept','learned']
    assert numbers['to_swept']['swept']['loss']==0
    v = study.verdict(numbers)
    assert v['no_worse']==(numbers['rows'][2]['loss_difference']<=0)
    result = dict(case='tiny', seed=0, temperature=numbers)
    assert 'as good as swept' in study.temperature_report([result])

def test_a_sweep_goes_on(run, monkeypatch):
    at = run()
    calls = []
    plain = winwin.temperature.comparison.FullLoss.__call__
    def loss(self, model, step=None):
        if step is None:
            calls.append(1)
            if len(calls)==4: raise KeyboardInterrupt
        return plain(self, model, step)
    monkeypatch.setattr(winwin.temperature.comparison.FullLoss, '__call__', loss)
    r = open_run(at, device='cpu')
    with pytest.raises(KeyboardInterrupt): choose_temperature(r, 'sweep', images=1, work=r.place(), progress=False)
    assert temperature_dict(r.model)=={} and len([*at.glob('best-sweep-*.part.json')])==1
    t = choose_temperature(r, 'sweep', images=1, work=r.place(), progress=False)
    assert len(calls)==4+len(t.numbers['taus'])-3 and not [*at.glob('*.part.json')]

def test_last_keeps_its_state(run):
    at = run()
    r = open_run(at/'last', device='cpu')
    keep_temperature(r, choose_temperature(r, 'match', images=1))
    assert (at/'last/state.safetensors').exists() and r.place()==f'{at}/last-'

def test_other_folders(run, tmp_path):
    model = load_model(run()/'best')
    folder = save_model(model, tmp_path/'mine', {}, model.saved['extra'])
    r = open_run(folder, device='cpu')
    assert [p.parent for p in write_tempering(r, choose_temperature(r, 'match', images=1))]==[folder]*2

@pytest.mark.parametrize('words,message', [
    ([], 'choose exactly one'), (['--match','--sweep'], 'choose exactly one'), (['--undo'], 'nothing to undo'),
    (['--sweep','--images','0'], 'at least 1'), (['--sweep','--per','head'], 'does not apply'),
    (['--match','--kind','cros'], 'cros'), (['--sweep','--kind','cross'], 'cross')])
def test_bad_words(run, capsys, words, message):
    at = run()
    text = (at/'best/config.json').read_text()
    assert winwin_command('temperature', at, *words)==1
    assert message in capsys.readouterr().err
    assert (at/'best/config.json').read_text()==text

def test_checkpoints_without_data(run, tmp_path, capsys):
    at = run()
    model = load_model(at/'best')
    save_model(model, tmp_path/'bare')
    with pytest.raises(ValueError, match='does not say what it was trained on'): open_run(tmp_path/'bare')
    said = model.saved['extra']
    for over,message in ((dict(task='pretrain'),'hidden tokens'), (dict(windows='full'),'nothing to match')):
        recipe = said['recipe'] | dict(train=said['recipe']['train']|over)
        save_model(model, tmp_path/'other', {}, said|dict(recipe=recipe))
        with pytest.raises(ValueError, match=message): choose_temperature(open_run(tmp_path/'other', device='cpu'), 'match')
    assert winwin_command('temperature', tmp_path/'nothing', '--match')==1
    assert 'does not exist' in capsys.readouterr().err

def test_studies_are_known():
    for name in ('temperature','temperature-depth','temperature-flow'): assert get_study(name).after is not None
