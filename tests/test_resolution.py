"Position scale, and scores at other sizes than that of training"
import pytest, torch
from winwin import create_model, load_model, save_model, set_position_scale
from winwin.models import get_position_scale
from winwin.models.controls import size_scale
from winwin.experiments.resolution import StreetViews, average_sizes, resolution_table, score_sizes, show_resolution
from winwin.experiments.studies import get_study
from winwin.training.recipes import recipe_task
from winwin.models.layers import Attention

micro = dict(dim=48, depth=2, num_heads=2)
two = dict(micro, decoder=dict(dim=48, depth=1, num_heads=2))

@pytest.mark.parametrize('name,args', [('winwin_seg_micro', dict(micro, num_classes=3)), ('winwin_pretrain_micro', two),
                                       ('winwin_flow_micro', dict(two, head='linear'))])
def test_scale_is_saved(name, args, tmp_path):
    model = create_model(name, **args)
    assert set_position_scale(model, .5)==1 and set_position_scale(model, .25)==.5
    again = load_model(save_model(model, tmp_path))
    scales = {m.rope_scale for m in again.modules() if hasattr(m, 'rope_scale')}
    assert scales=={.25} and get_position_scale(again)==.25
    set_position_scale(again, 1.)
    assert get_position_scale(load_model(save_model(again, tmp_path/'b')))==1

def test_scale_equals_smaller_positions():
    "Half the scale at twice the positions: the same attention"
    torch.manual_seed(0)
    layer,x,pos = Attention(48, 2),torch.rand(1,6,48),torch.randint(9, (1,6,2))
    want = layer(x, pos)
    layer.rope_scale = .5
    torch.testing.assert_close(layer(x, 2*pos), want)

@pytest.mark.parametrize('trained,size,want', [((96,160),(192,320),.5), ((96,160),(96,320),.5), ((96,160),(48,80),2.)])
def test_size_scale(trained, size, want): assert size_scale(trained, size)==want

def test_bad_scales():
    model = create_model('winwin_seg_micro', num_classes=3, **micro)
    for bad in (0., -1., float('inf'), float('nan')):
        with pytest.raises(ValueError, match='must be positive'): set_position_scale(model, bad)
    for args in ({}, dict(trained=(8,8)), dict(scale=1., trained=(8,8), size=(8,8))):
        with pytest.raises(ValueError, match='give a scale'): set_position_scale(model, **args)
    timm = create_model('vit_tiny_patch16_224:linear', num_classes=3, depth=1)
    with pytest.raises(ValueError, match='no rotary positions'): set_position_scale(timm, .5)

@pytest.mark.parametrize('size', [(64,104),(192,320)])
def test_views(size):
    "A wider view has the training image in its middle, or is the middle of it"
    small,large = sorted([size,(96,160)])
    a,b = (StreetViews(s, 1, wider=True)[0]['labels'] for s in (small,large))
    y,x = (large[0]-small[0])//2,(large[1]-small[1])//2
    assert (b[y:y+small[0],x:x+small[1]]==a).float().mean()>.95
    with pytest.raises(IndexError): StreetViews(size, 1)[1]

def test_scores_and_figure():
    import matplotlib
    matplotlib.use('Agg')
    study = get_study('resolution')
    model = create_model('winwin_seg_micro', num_classes=14, **micro).eval()
    rows = score_sizes(model, recipe_task(study.recipe, StreetViews((32,48))), (32,48), [(32,48),(64,96)], 1, False)
    assert [(r['view'],r['scaled']) for r in rows]==[(v,s) for v in ('finer','wider') for s in (False,False,True)]
    results = [dict(case=c, resolution=rows) for c in study.cases for _ in (0,1)] # two seeds each
    found = average_sizes(results)
    assert len(found)==len(rows)*len(study.cases) and all(len(v)==2 and v[0]==v[1] for v in found.values())
    assert found['crop','wider',(64,96),True]==[100*rows[-1]['mIoU']]*2
    assert len(resolution_table(results).splitlines())==2*(1+len(study.cases))
    assert len(show_resolution(results)[0].get_lines())==2*len(study.cases)+1

def test_commands(tmp_path):
    "--position-scale of predict and export is that of set_position_scale, and the checkpoint stays as it is"
    import numpy as np
    from PIL import Image
    from winwin.cli import main
    from winwin.inference.export import Exported
    torch.manual_seed(0)
    model = create_model('winwin_seg_micro', num_classes=3, **micro).eval()
    save_model(model, tmp_path/'run', extra=dict(classes=['a','b','c']))
    img = torch.randint(256, (64,96,3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    Image.fromarray(img.numpy()).save(tmp_path/'x.png')
    for scale in (1.,.25):
        words = ['--position-scale', str(scale)]
        with pytest.raises(SystemExit): main(['predict', str(tmp_path/'run'), str(tmp_path/'x.png'), '-o', str(tmp_path/f'{scale}'), '--kinds', 'map', *words])
        with pytest.raises(SystemExit): main(['export', str(tmp_path/'run'), '--format', 'torch', '--size', '64', '96', '-o', str(tmp_path/f'{scale}.pt2'), *words])
        set_position_scale(model, scale)
        x = img.permute(2,0,1)[None]/255
        with torch.no_grad(): want = model(x)[0]
        assert np.array_equal(np.array(Image.open(tmp_path/f'{scale}'/'labels'/'x.png')), want[0].argmax(0).numpy())
        torch.testing.assert_close(Exported(tmp_path/f'{scale}.pt2')(x), want, atol=1e-4, rtol=1e-4)
    assert get_position_scale(load_model(tmp_path/'run'))==1
