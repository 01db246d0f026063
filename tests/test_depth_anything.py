"Depth Anything V2: the released layouts give transformers' maps, on any size, and train on windows"
import json, re
import pytest, torch
from winwin.models.hub import load_model, save_model
from winwin.models.released import load_depth_anything
from winwin.tasks.relative import RelativeTask
from winwin.windows.layout import Windows
from winwin.windows.sampling import sample_windows

transformers = pytest.importorskip('transformers')
DIM, HIDDEN, FUSED = 128, [16,24,32,48], 16

def reference(depth=12, stages=(3,6,9,12), side=5, **more):
    "A small random Depth Anything of transformers whose numbers are not all alike"
    backbone = transformers.Dinov2Config(hidden_size=DIM, num_hidden_layers=depth, num_attention_heads=DIM//64, image_size=14*side, patch_size=14,
                                         out_features=[f'stage{i}' for i in stages], apply_layernorm=True, reshape_hidden_states=False)
    config = transformers.DepthAnythingConfig(backbone_config=backbone, reassemble_hidden_size=DIM, patch_size=14, neck_hidden_sizes=HIDDEN,
                                              fusion_hidden_size=FUSED, head_hidden_size=8, **more)
    torch.manual_seed(0)
    model = transformers.DepthAnythingForDepthEstimation(config).eval()
    with torch.no_grad():
        for k,p in model.named_parameters():
            if 'lambda1' in k: p.fill_(.5)
            elif p.ndim==1 or 'token' in k or 'position' in k: p.add_(torch.randn_like(p)*.1)
            else: p.mul_(3.)
        model.head.conv3.bias.fill_(1.) # something above 0 to compare
    return model

@pytest.fixture(scope='module')
def theirs(): return reference()

@pytest.fixture(scope='module')
def folder(theirs, tmp_path_factory):
    at = tmp_path_factory.mktemp('da')
    theirs.save_pretrained(at)
    return at

def normalised(model, img): return (img-model.mean)/model.std

@pytest.mark.parametrize('grid', [(5,5),(7,6),(9,14),(6,5)])
def test_maps_are_those_of_transformers(theirs, folder, grid):
    ours = load_depth_anything(folder).eval()
    img = torch.rand(2,3,14*grid[0],14*grid[1])
    with torch.no_grad(): want, got = theirs(normalised(ours, img)).predicted_depth, ours(img)[0][:,0]
    assert want.shape==got.shape and want.std()>1e-3
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)

@pytest.mark.parametrize('grid', [(12,12),(9,14),(16,17),(6,7)])
def test_a_resampled_position_table_is_that_of_transformers(tmp_path, grid):
    theirs = reference(4, (1,2,3,4), side=12)
    with torch.no_grad(): theirs.backbone.embeddings.position_embeddings.normal_()
    theirs.save_pretrained(tmp_path)
    ours = load_depth_anything(tmp_path).eval()
    img = torch.rand(1,3,14*grid[0],14*grid[1])
    with torch.no_grad(): want, got = theirs(normalised(ours, img)).predicted_depth, ours(img)[0][:,0]
    assert (got-want).abs().max() < 1e-3*want.std() # a filter against aliasing would be off by several percent

def authors_names(state):
    "transformers' names as the authors' file has them; one matrix for queries, keys and values"
    out = {}
    for k,v in state.items():
        for old,new in ((r'^backbone\.embeddings\.patch_embeddings\.projection', 'pretrained.patch_embed.proj'), (r'^backbone\.embeddings\.position_embeddings', 'pretrained.pos_embed'),
                        (r'^backbone\.embeddings\.', 'pretrained.'), (r'^backbone\.layernorm', 'pretrained.norm'), (r'^backbone\.encoder\.layer\.', 'pretrained.blocks.'),
                        (r'layer_scale(\d)\.lambda1', r'ls\1.gamma'), (r'attention\.output\.dense', 'attn.proj'), (r'attention\.attention\.', 'attn.'),
                        (r'^neck\.reassemble_stage\.layers\.(\d)\.projection', r'depth_head.projects.\1'), (r'^neck\.reassemble_stage\.layers\.(\d)\.resize', r'depth_head.resize_layers.\1'),
                        (r'^neck\.convs\.(\d)', lambda m: f'depth_head.scratch.layer{int(m[1])+1}_rn'),
                        (r'^neck\.fusion_stage\.layers\.(\d)', lambda m: f'depth_head.scratch.refinenet{4-int(m[1])}'), (r'(refinenet\d)\.projection', r'\1.out_conv'),
                        (r'residual_layer(\d)\.convolution(\d)', r'resConfUnit\1.conv\2'), (r'^head\.conv1', 'depth_head.scratch.output_conv1'),
                        (r'^head\.conv2', 'depth_head.scratch.output_conv2.0'), (r'^head\.conv3', 'depth_head.scratch.output_conv2.2')): k = re.sub(old, new, k)
        out[k] = v
    for k in [k for k in out if '.attn.query.' in k]: out[k.replace('query', 'qkv')] = torch.cat([out.pop(k.replace('query', o)) for o in ('query','key','value')])
    return out

def test_the_authors_file_is_the_same_model(theirs, folder, tmp_path):
    from safetensors.torch import load_file
    torch.save(authors_names(load_file(folder/'model.safetensors')), tmp_path/'depth_anything_v2_vits.pth')
    a, b = load_depth_anything(folder), load_depth_anything(tmp_path/'depth_anything_v2_vits.pth')
    assert a.config==b.config
    for (k,v),w in zip(a.state_dict().items(), b.state_dict().values()): assert torch.equal(v, w), k

def test_layers_come_from_the_config(tmp_path):
    reference(4, (1,2,3,4)).save_pretrained(tmp_path)
    assert load_depth_anything(tmp_path).hooks==[0,1,2,3]
    assert load_depth_anything(tmp_path, hooks=[3,2,1,0]).hooks==[3,2,1,0] # the first version takes other layers

def test_windows_saving_and_training(folder, tmp_path):
    model = load_depth_anything(folder).eval()
    img = torch.rand(1,3,14*8,14*11)
    with torch.no_grad(): torch.testing.assert_close(model(img, Windows.full((8,11)))[0], model(img)[0])
    save_model(model, tmp_path/'saved')
    again = load_model(tmp_path/'saved').eval()
    with torch.no_grad(): assert torch.equal(again(img)[0], model(img)[0])
    w = sample_windows((8,11), [(4,4)]*2)
    loss = RelativeTask().window_loss(model.train()(img, w), 1+torch.rand(1,14*8,14*11), w, 14)
    loss.backward()
    assert loss.isfinite() and model.encoder.model.blocks[0].attn.qkv.weight.grad.abs().sum()>0

def test_bad_files(folder, tmp_path):
    config = json.loads((folder/'config.json').read_text())
    for f in folder.iterdir(): (tmp_path/f.name).write_bytes(f.read_bytes())
    (tmp_path/'config.json').write_text(json.dumps(config | dict(depth_estimation_type='metric')))
    with pytest.raises(ValueError, match='metres'): load_depth_anything(tmp_path)
    torch.save({'blocks.0.norm1.bias': torch.zeros(3)}, tmp_path/'vit.pth')
    with pytest.raises(ValueError, match='vit.pth is no Depth Anything'): load_depth_anything(tmp_path/'vit.pth')
    with pytest.raises(FileNotFoundError, match='nothing.pth'): load_depth_anything(tmp_path/'nothing.pth')

def test_fine_tuning_from_the_command_line(folder, tmp_path, capsys):
    "Windows of photographs larger than 518 pixels are the point; here they are small"
    import numpy as np
    from PIL import Image
    from winwin.cli import main
    for split in ('train','val'):
        for kind in ('images','depth'): (tmp_path/'data'/kind/split).mkdir(parents=True)
        for i in range(2):
            Image.fromarray(np.random.default_rng(i).integers(0, 255, (70,98,3), np.uint8)).save(tmp_path/f'data/images/{split}/{i}.png')
            np.save(tmp_path/f'data/depth/{split}/{i}.npy', np.random.default_rng(i).uniform(1, 9, (70,98)).astype(np.float32))
    words = 'train', 'folder-relative', '--root', tmp_path/'data', '--weights', folder, '--windows', '2x2', '--steps', 2, '--batch-size', 2, '--workers', 0, '--warmup', 1
    with pytest.raises(SystemExit) as e: main([str(o) for o in (*words, '--out', tmp_path/'run')])
    assert e.value.code==0, capsys.readouterr().err
    start, end = load_depth_anything(folder), load_model(tmp_path/'run/last')
    assert start.config==end.config and end.hooks==start.hooks
    assert not torch.equal(start.encoder.model.blocks[0].attn.qkv.weight, end.encoder.model.blocks[0].attn.qkv.weight)
    with pytest.raises(SystemExit) as e: main([str(o) for o in ('train', 'driving-seg', '--weights', folder, '--out', tmp_path/'seg')])
    assert e.value.code==1 and 'predicts one number per pixel' in capsys.readouterr().err
