"Flow by matching: windows, files, prediction, study"
import json
import numpy as np, pytest, torch
from PIL import Image
from winwin.cli import main
from winwin.data.flow_files import read_flow, write_flow
from winwin.data.folders import FlowFolder
from winwin.experiments.studies import Study, get_study, pair_scores, run_study
from winwin.inference.export import export_model
from winwin.inference.modes import predict
from winwin.models.dense import MatchingModel, create_model
from winwin.models.hub import load_model, save_model
from winwin.tasks.flow import FlowTask
from winwin.training.recipes import change, get_preset, recipe_data
from winwin.windows.layout import Windows
from winwin.windows.sampling import sample_windows
from winwin.windows.schemes import parse_scheme
from winwin.worlds.datasets import LayeredFlow

SMALL = dict(head='matching', dim=32, depth=3, num_heads=4,
             head_args=dict(fine=8, coarse=8, match_dim=16, state=8, fine_dim=8, fine_state=8))

@pytest.fixture(scope='module')
def model():
    torch.manual_seed(0)
    return create_model('winwin_flow_micro', **SMALL).eval().requires_grad_(False)

def frames(B=2, size=(96,128), seed=0):
    return torch.rand(2, B, 3, *size, generator=torch.Generator().manual_seed(seed))

@pytest.mark.parametrize('patch', [8,16])
@pytest.mark.parametrize('batch', [1,2])
def test_full_window_is_the_full_image(patch, batch):
    torch.manual_seed(0)
    m = create_model('winwin_flow_micro', **SMALL, patch_size=patch).requires_grad_(False)
    a,b = frames(batch)
    grid = 96//patch,128//patch
    full = Windows.full(grid, batch)
    assert m(a, b, full, full)[0].equal(m(a, b)[0])
    assert m(a, b, Windows.full(grid), full)[0].equal(m(a, b)[0]) # corners shared by the batch

@pytest.mark.parametrize('sizes', [[(2,3)], [(2,2)]*3, [(1,1)]*5, [(6,8)]])
def test_windows_of_any_size(model, sizes):
    a,b = frames()
    rng = torch.Generator().manual_seed(1)
    w1,w2 = sample_windows((6,8), [(3,3),(2,4)], 2, rng),sample_windows((6,8), sizes, 2, rng)
    maps,found = model(a, b, w1, w2, match=0)
    assert [tuple(m.shape) for m in maps] == [(2,2,48,48),(2,2,32,64)]
    for o,(h,w) in zip(found, w1.sizes):
        assert o.logits.shape==(2,4*h*w,12*16+1) and o.trust.shape==(2,1,2*h,2*w)
        assert all(torch.isfinite(x).all() for x in o.steps)

def test_each_image_of_a_batch_alone(model):
    a,b = frames()
    rng = torch.Generator().manual_seed(2)
    w1,w2 = sample_windows((6,8), [(3,3),(2,4)], 2, rng),sample_windows((6,8), [(2,2)]*4, 2, rng)
    both = model(a, b, w1, w2)
    for i in (0,1):
        one = [Windows(w.yx[i:i+1], w.sizes, w.grid) for w in (w1,w2)]
        for m,n in zip(both, model(a[i:i+1], b[i:i+1], *one)):
            assert torch.allclose(m[i:i+1], n, atol=1e-3)

@pytest.mark.parametrize('scheme,windows2', [('full',None),('2x3','3x3'),('crop:4',None),('2x3','tokens:12')])
def test_loss_on_windows(scheme, windows2):
    torch.manual_seed(0)
    m = create_model('winwin_flow_micro', **SMALL)
    task = FlowTask(kind='epe', windows2=windows2, match=5.)
    data = LayeredFlow((96,128), 2, max_motion=20)
    batch = torch.utils.data.default_collate([task.select(data[i]) for i in range(2)])
    batch['valid'][:,:20] = False
    loss,_ = task.loss(m, batch, parse_scheme(scheme), 16, torch.Generator().manual_seed(0))
    loss.backward()
    assert loss.isfinite() and all(p.grad is not None and p.grad.isfinite().all() for p in m.parameters())

def test_loss_falls():
    torch.manual_seed(0)
    m = create_model('winwin_flow_micro', **SMALL)
    task = FlowTask(kind='epe', match=5.)
    data = LayeredFlow((96,128), 2, max_motion=20)
    batch = torch.utils.data.default_collate([task.select(data[i]) for i in range(2)])
    batch = task.draw_windows(batch, parse_scheme('full'), 16)
    opt = torch.optim.AdamW(m.parameters(), 3e-3)
    losses = []
    for _ in range(12):
        opt.zero_grad()
        loss = task.batch_loss(m, batch, 16)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    assert losses[-1] < .8*losses[0]

def test_saved_model_predicts_the_same(model, tmp_path):
    save_model(model, tmp_path/'m', extra=FlowTask(kind='epe').describe())
    again = load_model(tmp_path/'m').eval()
    a,b = frames(1, (90,121)) # padded to whole patches
    assert isinstance(again, MatchingModel)
    assert predict(again, a, b).equal(predict(model, a, b))
    for i,x in enumerate((a,b)):
        Image.fromarray((x[0].permute(1,2,0).numpy()*255).astype(np.uint8)).save(tmp_path/f'{i}.png')
    with pytest.raises(SystemExit) as end:
        main(['predict', *(str(tmp_path/k) for k in ('m','0.png','1.png')), '-o', str(tmp_path/'out')])
    assert end.value.code==0
    assert read_flow(tmp_path/'out'/'flow'/'0.flo')[0].shape==(2,90,121)

def test_errors(model, tmp_path):
    a,b = frames(1)
    with pytest.raises(ValueError, match='one shape'): model(a, b[...,:64])
    with pytest.raises(ValueError, match='lie on a'): model(a, b, None, Windows.full((3,4)))
    with pytest.raises(ValueError, match='at least 2'): create_model('winwin_flow_micro', **SMALL | dict(depth=1))
    with pytest.raises(ValueError, match='cannot be exported'): export_model(model, tmp_path/'m.onnx', size=(96,128))
    from safetensors.torch import save_file
    other = create_model('winwin_seg_micro', head='linear', num_classes=2, dim=64, num_heads=4, depth=8, patch_size=16)
    save_file(other.encoder.state_dict(), tmp_path/'vit.safetensors')
    with pytest.raises(ValueError, match='dim 64 in the file, 32 in the model'):
        create_model('winwin_flow_micro', weights=tmp_path/'vit.safetensors', **SMALL)
    deep = create_model('winwin_flow_micro', weights=tmp_path/'vit.safetensors', **SMALL | dict(dim=64))
    assert deep.encoder.blocks[2].mlp.fc1.weight.equal(other.encoder.blocks[2].mlp.fc1.weight)
    with pytest.raises(ValueError, match='depth 8 in the file, 9'):
        create_model('winwin_flow_micro', weights=tmp_path/'vit.safetensors', **SMALL | dict(dim=64, depth=9))

@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    for k in 'ab':
        (tmp_path/'photos'/k).mkdir(parents=True)
        Image.fromarray(rng.integers(0, 255, (90,120,3), dtype=np.uint8)).save(tmp_path/'photos'/k/'x.png')
    pairs = LayeredFlow((96,128), 2, seed=4, max_motion=10)
    (tmp_path/'pairs').mkdir()
    for i in range(2):
        for k,end in (('image','img0'),('image2','img1')):
            x = (pairs[i][k].permute(1,2,0)*255).round().byte().numpy()
            Image.fromarray(x).save(tmp_path/'pairs'/f'{i:07d}-{end}.png')
        write_flow(tmp_path/'pairs'/f'{i:07d}-gt.flo', pairs[i]['flow'])
    return tmp_path

def test_study_on_a_folder_of_pairs(photos):
    recipe = change(get_preset('flow-photos'), model='winwin_flow_micro', image_size=(64,96), images=4,
                    motion=20., steps=2, batch_size=1, warmup=1, save_every=1)
    study = Study('tiny', 'x', recipe, {'full frames': {}}, seeds=(0,), after=pair_scores)
    result, = run_study(study, photos/'out', photos/'photos', valid=photos/'pairs', progress=False)
    assert len(result['pairs'])==2 and np.isclose(np.mean(result['pairs']), result['scores']['full']['EPE'], atol=1e-3)
    assert result['log_ratio']>1 and result['train_cpu_s']>0 and result['memory_mb']>0
    json.dumps(result)
    with pytest.raises(ValueError, match='is not about flow'):
        run_study(get_study('camvid'), photos/'out', photos/'photos', valid=photos/'pairs')

def test_photos_need_a_folder(photos):
    recipe = change(get_preset('flow-photos'), images=4)
    with pytest.raises(ValueError, match='needs root'): recipe_data(recipe)
    with pytest.raises(ValueError, match='no photographs'): recipe_data(change(recipe, root=str(photos/'out')))
    data = recipe_data(change(recipe, root=str(photos/'photos')))
    assert data[0]['image'].shape==(3,256,320) and len(data.photos)==2

def test_pairs_in_one_folder(photos):
    data = FlowFolder(photos/'pairs', ends=('-img0','-img1','-gt'))
    assert data.names==['0000000','0000001'] and data[0]['flow'].shape==(2,96,128)
    (photos/'pairs'/'0000001-img1.png').unlink()
    with pytest.raises(FileNotFoundError, match='0000001'): FlowFolder(photos/'pairs', ends=('-img0','-img1','-gt'))
