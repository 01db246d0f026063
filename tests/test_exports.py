"Exported files against their models: formats, sizes, kinds of models"
import subprocess, sys
import pytest, torch
from winwin import create_model, export_model, get_temperature, save_model, set_temperature
from winwin.inference.export import Exported, _whole_size

micro = dict(dim=48, depth=2, num_heads=2)
deep = dict(dim=48, depth=4, num_heads=2)
decoder = dict(decoder=dict(dim=48, depth=1, num_heads=2))
flow = dict(dim=48, depth=1, num_heads=2, head='linear', flow_scale=16., **decoder)

def full(model, *images):
    with torch.no_grad(): return model.eval()(*images)[0]

def test_onnx_depth_any_size(tmp_path):
    torch.manual_seed(0)
    model = create_model('winwin_depth_micro', **deep)
    f = export_model(model, tmp_path/'m.onnx', dynamic=True)
    assert f.difference<1e-4 and f.info['task']=='depth'
    for B,h,w in ((1,2,2),(2,7,4),(1,6,9)): # odd and even grids
        x = torch.rand(B,3,8*h,8*w)
        torch.testing.assert_close(f(x), full(model, x), atol=1e-4, rtol=1e-5)

def test_onnx_flow_keeps_the_model(tmp_path):
    torch.manual_seed(0)
    model,taus = create_model('winwin_flow_micro', relative=True, tied=True, **flow),torch.tensor([1.3,.9])
    set_temperature(model, taus)
    before = {k: v.clone() for k,v in model.state_dict().items()}
    f = export_model(model, tmp_path/'m.onnx', size=(45,64))
    assert f.difference<1e-4 and f.info['task']=='flow' and [p.name for p in tmp_path.iterdir()]==['m.onnx']
    assert all(t.equal(taus) for t in get_temperature(model).values()) and model.training
    assert all(v.equal(before[k]) for k,v in model.state_dict().items())
    x = torch.rand(2,1,3,45,64)
    wide = torch.cat([x, x[...,-1:,:].expand(-1,-1,-1,3,-1)], -2)
    torch.testing.assert_close(f(*x), full(model, *wide)[...,:45,:], atol=1e-4, rtol=1e-5)

@pytest.mark.parametrize('name', ['vit_small_patch16_dinov3','eva02_tiny_patch14_336',
                                  'vit_small_patch16_rope_mixed_224','vit_tiny_patch16_224'])
def test_timm_fixed_size(name, tmp_path):
    torch.manual_seed(0)
    model = create_model(f'{name}:linear', num_classes=3, depth=2)
    set_temperature(model, 1.3)
    P = model.patch_size
    path = tmp_path/('m.onnx' if 'dinov3' in name else 'm.pt2')
    f = export_model(model, path, size=(5*P,7*P-3))
    assert f.difference<1e-4
    x = torch.rand(1,3,5*P,7*P-3)
    wide = torch.cat([x, x[...,-1:].expand(-1,-1,-1,3)], -1)
    torch.testing.assert_close(f(x), full(model, wide)[...,:-3], atol=1e-4, rtol=1e-4)

def loud(model):
    "Fresh layer scales and tables of positions are small: make them matter"
    with torch.no_grad():
        for n,p in model.named_parameters():
            if 'gamma' in n: p.fill_(1)
            if 'pos_embed' in n: p.mul_(30)
    return model

@pytest.mark.parametrize('name', ['vit_small_patch16_dinov3','eva02_tiny_patch14_336','vit_small_patch16_rope_224',
    'vit_small_patch16_rope_mixed_224','vit_pe_spatial_tiny_patch16_512','vit_tiny_patch16_224','vit_small_patch14_reg4_dinov2'])
def test_timm_any_size(name, tmp_path):
    "Rotations and tables of positions are computed in the file, for the size it gets"
    torch.manual_seed(0)
    model = loud(create_model(f'{name}:linear', num_classes=3, depth=2))
    set_temperature(model, 1.3)
    path = tmp_path/('m.onnx' if 'dinov' in name or 'tiny_patch16_224' in name else 'm.pt2')
    f,P = export_model(model, path, dynamic=True),model.patch_size
    assert f.difference<1e-4 and f.info['dynamic']
    for B,h,w in ((1,3,7),(2,6,2),(1,14,14),(1,18,17)): # below, at and above the grid that tables are for
        x = torch.rand(B,3,P*h,P*w)
        torch.testing.assert_close(f(x), full(model, x), atol=1e-4, rtol=1e-4)
    moved = full(model, x.roll((P,2*P), (-2,-1))).roll((-P,-2*P), (-2,-1))
    assert (moved-full(model, x)).abs().max()>1e-3 # positions do matter

def test_local_attention(tmp_path):
    model = create_model('winwin_seg_micro', num_classes=3, local_window=3, global_blocks=[1], **micro)
    assert export_model(model, tmp_path/'m.onnx', size=(40,56), batch=2).difference<1e-4
    with pytest.raises(ValueError, match='local attention'): export_model(model, tmp_path/'n.onnx', dynamic=True)

def test_torch_any_size(tmp_path):
    model = create_model('winwin_seg_micro', num_classes=3, **micro)
    model.saved = dict(extra=dict(classes=['a','b','c'], recipe=dict(data='driving', image_size=[48,80], train={})))
    f = export_model(model, tmp_path/'m.pt2', dynamic=True)
    again = Exported(tmp_path/'m.pt2')
    assert again.info['classes']==['a','b','c'] and again.info['dynamic'] and 'street' not in repr(f)
    x = torch.rand(3,3,24,88)
    torch.testing.assert_close(again(x), full(model, x), atol=1e-5, rtol=1e-5)
    assert _whole_size(model, None, False)==(48,80) # the recipe knows it

def test_a_file_that_is_wrong_is_not_kept(tmp_path):
    model = create_model('winwin_seg_micro', num_classes=3, **micro)
    with pytest.raises(ValueError, match='differs from the model'):
        export_model(model, tmp_path/'m.pt2', size=(32,32), tol=-1.)
    assert not list(tmp_path.iterdir())

def test_bad_input(tmp_path):
    model = create_model('winwin_seg_micro', num_classes=3, **micro)
    with pytest.raises(ValueError, match='fewer than 2x2'): export_model(model, tmp_path/'m.onnx', size=(8,64))
    with pytest.raises(FileNotFoundError, match='there is no file'): Exported(tmp_path/'no.onnx')
    with pytest.raises(ValueError, match='cannot be exported'):
        export_model(create_model('winwin_pretrain_micro', **micro, **decoder), tmp_path/'m.onnx', size=(32,32))

def test_missing_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'onnxscript', None)
    model = create_model('winwin_seg_micro', num_classes=3, **micro)
    with pytest.raises(ImportError, match=r'winwin\[export\]'): export_model(model, tmp_path/'m.onnx', size=(32,32))

def test_import_is_light():
    code = 'import sys, winwin.inference.export; assert not {"onnx","onnxruntime","onnxscript"} & {*sys.modules}'
    subprocess.run([sys.executable, '-c', code], check=True)

def test_command(tmp_path):
    from winwin.cli import main
    model = create_model('winwin_seg_micro', num_classes=3, **micro)
    save_model(model, tmp_path/'run')
    with pytest.raises(SystemExit) as e:
        main(['export', str(tmp_path/'run'), '--format', 'torch', '--size', '32', '48', '-o', str(tmp_path/'m.pt2')])
    assert e.value.code==0 and Exported(tmp_path/'m.pt2').info['size']==[32,48]

def test_an_old_torch_is_named():
    from winwin.inference.export import _check_torch
    for fine in ('2.8.0', '2.15.0+cu132', '3.0.0'): _check_torch(fine)
    with pytest.raises(ImportError, match='export needs torch 2.8 or later, and this is 2.6.0'): _check_torch('2.6.0+cu124')
