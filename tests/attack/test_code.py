"No file that somebody sends runs code: every way in is tried with a payload that would leave a mark."
import io, json, pickle, shutil, zipfile
import numpy as np, pytest, timm, torch
from winwin.data.flow_files import read_flow
from winwin.data.images import read_depth
from winwin.inference.export import Exported
from winwin.machine import read_array
from winwin.models.backbones import timm_encoder
from winwin.models.released import load_croco
from winwin.models.dense import create_model
from winwin.models.hub import load_model, save_model
from winwin.models.loading import load_vit, read_checkpoint
from winwin.worlds.datasets import DrivingWorld

class Payload:
    "Pickled, it creates a file when it is loaded"
    def __init__(self, mark): self.mark = mark
    def __reduce__(self): return open, (str(self.mark),'w')

# --- Arguments of a model folder

DANGEROUS = dict(pretrained=True, checkpoint='x.pth', checkpoint_path='x.pth', pretrained_cfg={'file': 'x.pth'}, pretrained_cfg_overlay={'hf_hub_id': 'a/b'},
                 cache_dir='/tmp', features_only=True, empty=['encoder'], weights='x.pth', pretrained_strict=False, pretrained_filter_fn='os.system',
                 scriptable=True, out_indices=[1], feature_cls='x', kwargs_filter=['x'], __class__='x')

@pytest.mark.parametrize('name', ['vit_tiny_patch16_224:seg', 'dinov3-small:depth', 'winwin_seg_micro', 'winwin_flow_micro'])
def test_only_arguments_of_an_architecture_are_taken(name, saved, tmp_path, attack, monkeypatch):
    def never(*args, **kwargs): raise AssertionError('timm was asked')
    monkeypatch.setattr(timm, 'create_model', never)
    folder = shutil.copytree(saved, tmp_path/'m')
    config = json.loads((folder/'config.json').read_text())
    for k,v in DANGEROUS.items():
        config['model'] = dict(name=name, arguments={k: v})
        (folder/'config.json').write_text(json.dumps(config))
        attack.refused(f'{name} {k}', lambda: load_model(folder), str(folder), repr(k))

def test_absurd_values_of_known_arguments(saved, tmp_path, attack):
    folder = shutil.copytree(saved, tmp_path/'m')
    config = json.loads((folder/'config.json').read_text())
    good = config['model']['arguments']
    for k,v in [('depth',10**8), ('depth',-1), ('depth',0), ('depth','9'), ('depth',1e300), ('depth',None), ('dim',10**9), ('dim',-32), ('dim',33), ('num_heads',0), ('num_heads',10**7),
                ('num_heads',7), ('num_classes',10**12), ('num_classes',-3), ('mlp_ratio',float('nan')), ('mlp_ratio',1e9), ('patch_size',0), ('patch_size',10**6), ('head','../../x'),
                ('head',['dpt']), ('head_args',{'file': 'x'}), ('head_args',{'num_classes': {}}), ('head_args',[1]), ('mean',['a']), ('mean',[.5]*10**4), ('pos','x'*10**5), ('local_window',-1)]:
        config['model']['arguments'] = good | {k: v}
        (folder/'config.json').write_text(json.dumps(config))
        attack.refused(f'{k} {str(v)[:20]}', lambda: load_model(folder), str(folder))
    config['model']['arguments'] = good
    (folder/'config.json').write_text(json.dumps(config))
    load_model(folder) # the folder was good all the time

def test_models_of_every_kind_load_again(tmp_path):
    "The list of known arguments is not too short"
    torch.manual_seed(0)
    micro = dict(depth=1, dim=32, num_heads=2)
    for name,args in [('winwin_seg_micro', dict(micro, num_classes=3, head='linear', pos='sincos', local_window=2, global_blocks=[0])), ('winwin_depth_micro', dict(micro, depth=4, patch_size=4, mlp_ratio=2.)),
                      ('winwin_flow_micro', dict(micro, head='linear', relative=True, tied=True, quiet=True, flow_scale=16., num_outputs=2, decoder=dict(depth=1, dim=32, num_heads=2))),
                      ('winwin_pretrain_micro', dict(micro, decoder=dict(depth=1, dim=32, num_heads=2))), ('winwin_flow_micro', dict(head='matching', depth=2, dim=32, num_heads=2)),
                      ('vit_tiny_patch16_224:seg', dict(num_classes=2, head='linear', depth=1, drop_path_rate=.1, checkpointing=True, mean=[.5,.5,.5], std=[.5,.5,.5]))]:
        model = create_model(name, **args)
        again = load_model(save_model(model, tmp_path/'m'))
        assert all(torch.equal(v, again.state_dict()[k]) for k,v in model.state_dict().items()), name

# --- Exported programs

@pytest.fixture(scope='module')
def program(tmp_path_factory):
    "A small .pt2 that `Exported` opens"
    path = tmp_path_factory.mktemp('pt2')/'x.pt2'
    exported = torch.export.export(torch.nn.Linear(2, 2), (torch.rand(1,2),))
    torch.export.save(exported, path, extra_files={'winwin.json': '{}'})
    return path

def rewritten(program, to, change=None, more=()):
    "A copy of an archive with some files changed and others added"
    with zipfile.ZipFile(program) as old, zipfile.ZipFile(to, 'w') as new:
        for o in old.namelist():
            data = old.read(o)
            for end,f in (change or {}).items():
                if o.endswith(end): data = f(data)
            new.writestr(o, data)
        for name,data in more: new.writestr(name, data)
    return to

def test_programs_with_pickles_are_not_opened(program, tmp_path, attack):
    mark = tmp_path/'mark'
    evil = pickle.dumps(Payload(mark))
    saved = io.BytesIO()
    torch.save(Payload(mark), saved)
    def config(**over):
        def f(data):
            found = json.loads(data)
            for o in found['config'].values(): o.update(over)
            return json.dumps(found)
        return f
    constant = lambda name: lambda data: json.dumps({'config': {'c': {'path_name': name, 'is_param': False, 'use_pickle': False, 'tensor_meta': None}}})
    cases = dict(weight=dict(change={'weights_config.json': config(use_pickle=True), 'weight_0': lambda d: saved.getvalue()}),
                 opaque=dict(change={'constants_config.json': constant('opaque_obj_0')}, more=[('x/data/constants/opaque_obj_0',evil)]),
                 custom=dict(change={'constants_config.json': constant('custom_obj_0')}, more=[('x/data/constants/custom_obj_0',evil)]),
                 inputs=dict(change={'sample_inputs/model.pt': lambda d: saved.getvalue()}),
                 legacy=dict(more=[('x/data/weights/model.pt',saved.getvalue())]),
                 second=dict(more=[('x/models/other.json','{}'), ('x/data/weights/other_weights_config.json','{"config": {}}')]),
                 compiled=dict(more=[('x/data/aotinductor/model/model.so',b'\x7fELF')]),
                 twice=dict(change={'weight_0': lambda d: saved.getvalue()}, more=[('x/data/weights/Model_Weights_Config.json','{}')]),
                 outside=dict(more=[('y/data/weights/model.pt',saved.getvalue())]), older=dict(more=[('version','8.8')]))
    for name,how in cases.items():
        path = rewritten(program, tmp_path/f'{name}.pt2', **how)
        attack.refused(f'pt2 {name}', lambda: Exported(path), f'{name}.pt2')
        attack.case(f'pt2 {name} ran nothing', not mark.exists(), 'code of the file ran')
    assert Exported(rewritten(program, tmp_path/'same.pt2'))(torch.rand(1,2)).shape==(1,2)

# --- Pickles in files of tensors and arrays

def test_pickles_run_nothing(tmp_path, attack):
    mark = tmp_path/'mark'
    evil = Payload(mark)
    torch.save(evil, tmp_path/'bare.pth')
    torch.save(dict(model={'patch_embed.proj.weight': torch.zeros(8,3,4,4)}, args=evil), tmp_path/'args.pth')
    torch.save(dict(model=evil), tmp_path/'old.pth', _use_new_zipfile_serialization=False)
    (tmp_path/'plain.pth').write_bytes(pickle.dumps(evil))
    for name in ('bare','args','old','plain'):
        path = tmp_path/f'{name}.pth'
        for read in (read_checkpoint, load_vit, load_croco, lambda p: timm_encoder('vit-tiny', checkpoint=p, depth=1)):
            attack.refused(f'{name} {getattr(read, "__name__", "")}', lambda: read(path), path.name)
    objects = np.array([evil], object)
    np.save(tmp_path/'a.npy', objects, allow_pickle=True)
    for read in (read_array, read_depth, read_flow): attack.refused(f'npy {read.__name__}', lambda: read(tmp_path/'a.npy'), 'a.npy')
    world = DrivingWorld((32,48), length=1, cache=tmp_path/'scenes')
    scene = world[0]
    (file,) = (tmp_path/'scenes').rglob('*.npz')
    np.savez(file, image=objects)
    attack.case('cache', torch.equal(DrivingWorld((32,48), length=1, cache=tmp_path/'scenes')[0]['image'], scene['image']), 'another scene')
    attack.case('nothing ran', not mark.exists(), 'code of a file ran')

# --- The file of a task

def test_a_checkpoint_runs_no_task_file_that_nobody_named(saved, tmp_path, attack, monkeypatch):
    "The recipe of a folder that somebody sent names a Python file that came with it; named by its user, it is imported"
    from winwin.inference.predictor import Predictor
    from winwin.tasks.registry import make_task, task_of
    from winwin.training.recipes import read_recipe
    monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path/'state'))
    mark = tmp_path/'mark'
    code = f'open({str(mark)!r}, "w")\nfrom winwin.tasks.depth import DepthTask\nclass Mine(DepthTask): name = "mine"\n'
    (tmp_path/'theirs.py').write_text(code)
    folder = shutil.copytree(saved, tmp_path/'m')
    config = json.loads((folder/'config.json').read_text())
    name = f'{tmp_path}/theirs.py:Mine'
    config['extra'] = dict(recipe=dict(train=dict(task=name)))
    (folder/'config.json').write_text(json.dumps(config))
    model = load_model(folder)
    for what,call in {'task_of': lambda: task_of(model), 'Predictor': lambda: Predictor(folder), 'recipe': lambda: read_recipe(dict(config['extra']['recipe']))}.items():
        attack.refused(f'task file, {what}', call, 'theirs.py', 'nobody has named it')
    assert not mark.exists()
    make_task(name)
    assert mark.exists() and name.partition(':')[0] in (tmp_path/'state/winwin/task-files.txt').read_text()
