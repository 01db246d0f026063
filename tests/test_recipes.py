"""Recipes: your own folders with other names, flow data by name, pretraining"""
import numpy as np, pytest, torch
from PIL import Image
from winwin.data.flow_files import write_flow
from winwin.training.recipes import change, get_preset, presets, read_recipe, recipe_data, recipe_model, recipe_task, saved_recipe, train_recipe
from winwin.worlds.datasets import DrivingWorld

small = dict(image_size=(64,96), images=4, valid_images=2, windows='2x3', batch_size=2, steps=2)

def write(path, x):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(x).save(path)

def test_folders_with_other_names(tmp_path):
    for i in range(2):
        write(tmp_path/f'leftImg8bit/train/{i}.png', np.full((32,48,3), 99, np.uint8))
        write(tmp_path/f'gtFine/train/{i}_labelIds.png', np.full((32,48), 7+i, np.uint8))
    r = change(get_preset('folder-seg'), root=str(tmp_path), images_in='leftImg8bit', targets_in='gtFine',
               suffix='_labelIds', remap='7:0,9:1', classes=('road','wall'), valid_share=0.)
    data = recipe_data(r)
    assert len(data)==2 and data[0]['labels'].unique().tolist()==[0] and data[1]['labels'].unique().tolist()==[255]

def test_folders_of_depth_and_flow_with_other_names(tmp_path):
    item = DrivingWorld((32,48), pair=True)[0]
    for i in range(3): write(tmp_path/f'rgb/{i}.png', (item['image']*255).byte().permute(1,2,0).numpy())
    for i in range(3): write(tmp_path/f'd/{i}.png', np.full((32,48), 2000, np.uint16))
    (tmp_path/'uv').mkdir()
    for i in range(2): write_flow(tmp_path/f'uv/{i}.flo', item['flow'], item['valid'])
    names = dict(root=str(tmp_path), images_in='rgb', valid_share=0.)
    d = recipe_data(change(get_preset('folder-depth'), depth_scale=1e-3, targets_in='d', **names))
    assert len(d)==3 and d[0]['depth'].unique().tolist()==[2.]
    f = recipe_data(change(get_preset('flow-layered'), data='flow-folder', targets_in='uv', **names))
    assert len(f)==2
    torch.testing.assert_close(f[0]['flow'], item['flow'])
    task = recipe_task(change(get_preset('flow-layered')))
    assert set(task.select(f[0]))=={'image','image2','flow','valid','visible'} # folders do not know what is hidden

@pytest.mark.parametrize('name', ['flow-layered','flow-driving'])
@pytest.mark.parametrize('over', [dict(windows2='4x2'), dict(windows2=None, guide='same'), dict(windows='full'),
    dict(windows='crop:4'), dict(windows='tokens:18', windows2='tokens:18', head='linear'),
    dict(windows2='3x2', guide='weighted'), dict(windows2='2x3', guide='random', match=0.), dict(flow_loss='mixture', windows2='4x2'),
    dict(windows='random(tokens=24)', windows2=None), dict(windows2='4x2', quiet=True)])
def test_flow_recipes(name, over, tmp_path):
    r = change(get_preset(name), root=str(tmp_path), **small | dict(motion=8. if name=='flow-layered' else 1.) | over)
    scores = train_recipe(r, progress=False).scores
    assert 0<scores['EPE']<100

def test_the_quiet_preset_begins_quietly():
    r = get_preset('flow-layered-quiet')
    model = recipe_model(r, recipe_task(r))
    assert model.config['arguments']['quiet']
    assert not any(b.cross_attn.proj.weight.any() for b in model.decoder.blocks)
    assert r.train.windows=='2x8' and r.task.windows2=='4x6' and (r.data.image_size,r.data.motion)==((160,256),32.)

def test_flow_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match='guide'): recipe_task(change(get_preset('flow-layered'), guide='greed'))
    with pytest.raises(ValueError, match='windows2'): recipe_task(change(get_preset('flow-layered'), windows2='full'))
    with pytest.raises(ValueError, match='kind'): recipe_task(change(get_preset('flow-layered'), flow_loss='l2'))
    with pytest.raises(ValueError, match='not made for'):
        recipe_model(r := change(get_preset('flow-layered'), model='winwin_seg_micro'), recipe_task(r))

def test_pretraining_resumes_to_the_same_weights_and_feeds_other_tasks(tmp_path):
    r = change(get_preset('pretrain-driving'), root=str(tmp_path/'scenes'), **small | dict(windows='full', steps=4, save_every=2))
    whole = train_recipe(r, tmp_path/'a', progress=False)
    calls = []
    def stop(line):
        calls.append(line)
        if line['step']>=2: raise RuntimeError('power cut')
    cut = change(r, log_every=1)
    with pytest.raises(RuntimeError): train_recipe(cut, tmp_path/'b', progress=False, watch=stop)
    again = train_recipe(cut, tmp_path/'b', resume=True, progress=False)
    for a,b in zip(whole.model.parameters(), again.model.parameters()): assert torch.equal(a, b)
    assert 0<again.scores['mse']<5
    flow = change(get_preset('flow-driving'), weights=str(tmp_path/'b'/'last'))
    model = recipe_model(flow, recipe_task(flow))
    for n,p in again.model.named_parameters():
        if n.startswith(('encoder','decoder')): assert torch.equal(p, model.get_parameter(n)), n

def test_every_preset_survives_a_checkpoint():
    import json
    for name,r in presets.items(): assert read_recipe(json.loads(json.dumps(saved_recipe(r))))==r, name

def test_checkpoints_of_earlier_versions_are_read():
    "They call the folder of targets `answers_in`; so do the bundled models"
    import json
    from pathlib import Path
    import winwin
    r = change(get_preset('folder-seg'), targets_in='gtFine')
    old = json.loads(json.dumps(saved_recipe(r)))
    old['answers_in'] = old.pop('targets_in')
    assert read_recipe(old)==r
    for f in Path(winwin.__file__).parent.glob('static/models/*/config.json'):
        assert read_recipe(json.loads(f.read_text())['extra']['recipe']).data.targets_in is None, f

def test_several_sets_as_one(tmp_path):
    r = change(get_preset('flow-layered'), **small | dict(data='2*layered + driving', valid='driving', windows2='4x2',
               motion=2., root=str(tmp_path)))
    data,valid = recipe_data(r),recipe_data(r, 'valid')
    assert len(data)==2*4+4 and len(valid)==2 and type(valid).__name__=='DrivingWorld'
    assert {p.name for p in tmp_path.iterdir()}<={'layered','driving'}
    assert train_recipe(r, progress=False).scores['EPE']>0
    with pytest.raises(ValueError, match='layered'): recipe_data(change(r, data='2*layred'))
    with pytest.raises(ValueError, match='needs root'): recipe_data(get_preset('flow-sintel'))
    with pytest.raises(FileNotFoundError, match='sintel'):
        recipe_data(change(get_preset('flow-sintel'), root=str(tmp_path)))
