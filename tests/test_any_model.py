"Attention of models that are not ours, recognised by the call: transformers, torchvision, timm, one's own."
import json
import pytest, torch, torch.nn as nn, torch.nn.functional as F
from torchvision.transforms.functional import to_pil_image
from torch.utils._python_dispatch import TorchDispatchMode
from winwin.attention.any_model import AnyModel, look_at_calls
from winwin.attention.recorder import AttentionRecorder, normalize_images
from winwin.attention.statistics import attention_entropy, attention_rows
from winwin.models.controls import attention_temperature, capture, watch_calls
from winwin.temperature.matching import match_temperature
from winwin.temperature.theory import log_ratio
from winwin.windows.sampling import sample_windows
from winwin.workbench.attention import AttentionExplorer
from winwin.workbench.lab import named_model, write_yours

SMALL = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=224, patch_size=16)
IMG = torch.rand(3,224,224, generator=torch.Generator().manual_seed(0))

def depth_anything(T):
    backbone = T.Dinov2Config(**SMALL, out_indices=[1,2], reshape_hidden_states=False)
    return T.DepthAnythingForDepthEstimation(T.DepthAnythingConfig(backbone_config=backbone, patch_size=16,
        reassemble_hidden_size=24, reassemble_factors=[2,1], neck_hidden_sizes=[8,8], fusion_hidden_size=8, head_hidden_size=8))

def sam(T):
    return T.SamVisionModel(T.SamVisionConfig(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, mlp_dim=32, image_size=224,
        patch_size=16, window_size=7, global_attn_indexes=[1], output_channels=8))

def eomt(T):
    "Ten object queries join the second of two blocks, each with a mask of its own"
    return T.EomtForUniversalSegmentation(T.EomtConfig(**SMALL, num_register_tokens=4, num_blocks=1, num_queries=10, num_upscale_blocks=1))

THEIRS = dict( # name -> model, tokens before those of the image
    vit=(lambda T: T.ViTModel(T.ViTConfig(**SMALL)),1), deit=(lambda T: T.DeiTModel(T.DeiTConfig(**SMALL)),2),
    dinov2=(lambda T: T.Dinov2Model(T.Dinov2Config(**SMALL)),1),
    registers=(lambda T: T.Dinov2WithRegistersModel(T.Dinov2WithRegistersConfig(**SMALL)),5),
    dinov3=(lambda T: T.DINOv3ViTModel(T.DINOv3ViTConfig(**SMALL, num_register_tokens=4)),5),
    siglip=(lambda T: T.SiglipVisionModel(T.SiglipVisionConfig(**SMALL)),0),
    siglip2=(lambda T: T.Siglip2VisionModel(T.Siglip2VisionConfig(**{k: v for k,v in SMALL.items() if k!='image_size'}, num_patches=196)),0),
    dpt=(lambda T: T.DPTModel(T.DPTConfig(**SMALL, backbone_out_indices=[0,0,1,1])),1),
    depth_anything=(depth_anything,1))

def make(build):
    "A model with random weights, large enough that its attention is far from even"
    T = pytest.importorskip('transformers')
    torch.manual_seed(0)
    model = build(T).eval().requires_grad_(False)
    for p in model.parameters():
        if p.ndim==2: p.normal_(0., .35)
    return model

@pytest.mark.parametrize('name', THEIRS)
def test_rows_are_those_of_eager_attention(name):
    build,prefix = THEIRS[name]
    model = make(build)
    maps = AttentionRecorder(model, IMG, '2x4')
    plain = maps.model.mean,maps.model.std
    x = (IMG[None]-torch.tensor(plain[0]).view(3,1,1))/torch.tensor(plain[1]).view(3,1,1)
    model.set_attn_implementation('eager')
    inputs = dict(pixel_values=x, output_attentions=True)
    if name=='siglip2':
        inputs['pixel_values'] = F.unfold(x, 16, stride=16).view(1,3,256,196).permute(0,3,2,1).flatten(2)
        inputs |= dict(pixel_attention_mask=torch.ones(1,196, dtype=torch.long), spatial_shapes=torch.tensor([[14,14]]))
    want = model(**inputs).attentions
    for layer,eager in zip(maps.layers, want, strict=True):
        look = maps.look(layer) # the model is set to eager attention, and is watched nevertheless
        assert look.prefix==prefix and look.to.grid==(14,14)
        rows = attention_rows(look.q, look.k, [0,prefix,prefix+99])
        assert rows.max()>.05 # far from 1/197
        torch.testing.assert_close(rows, eager[:,:,[0,prefix,prefix+99]], atol=1e-5, rtol=0)
    assert model.config._attn_implementation=='eager'

class NoMatrix(TorchDispatchMode):
    "Within: no tensor has more than `most` elements"
    def __init__(self, most):
        super().__init__()
        self.most = most
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs or {})
        for o in out if isinstance(out, (tuple,list)) else [out]:
            assert not isinstance(o, torch.Tensor) or o.numel()<=self.most, func
        return out

@pytest.mark.parametrize('name', ['dinov2','dinov3'])
def test_no_matrix_at_1024_pixels(name):
    model = make(THEIRS[name][0])
    big = torch.rand(3,1024,1024, generator=torch.Generator().manual_seed(0))
    with NoMatrix(4096*4096//2):
        maps = AttentionRecorder(model, big, tokens=4096)
        look = maps.look(list(maps.layers)[-1])
        rows = attention_rows(look.q, look.k, [2000])
    assert look.q.shape[2]==4096+look.prefix and rows.sum(-1).sub(1).abs().max()<1e-5
    q,k = (o.double() for o in (look.q,look.k))
    want = (q[:,:,2000:2001]@k.mT*q.shape[-1]**-.5).softmax(-1)
    torch.testing.assert_close(rows.double(), want, atol=1e-5, rtol=0)

def test_windows_are_what_the_model_would_see_alone():
    "Tokens of windows, at their places in the image, without the others: a class of its own does the same by slicing"
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Conv2d(3, 24, 8, 8)
            self.place = nn.Parameter(torch.randn(1,96,24))
            self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(24, 2, 48, batch_first=True) for _ in range(2))
        def forward(self, img, at=slice(None)):
            x = (self.embed(img).flatten(2).mT + self.place)[:,at]
            for b in self.blocks: x = b(x)
            return x
    torch.manual_seed(0)
    own = Own().eval().requires_grad_(False)
    img = torch.rand(1,3,64,96)
    w = sample_windows((8,12), [(3,3)]*2, generator=torch.Generator().manual_seed(0))
    alone,seen = {},{}
    def note(name, layer, q, k): seen[name] = q,k
    look_at_calls(AnyModel(own), img, note, w)
    with capture(own) as calls: own(img, w.index()[0])
    for s in calls: alone[s.name] = s.q,s.k
    assert seen.keys()==alone.keys() and len(seen)==2
    for n in seen: torch.testing.assert_close(seen[n], alone[n])

def test_capture_leaves_the_pass_unchanged():
    model = make(THEIRS['dinov3'][0])
    x = torch.rand(1,3,64,96)
    want = model(x).last_hidden_state
    with capture(model, [0,'model.layer.1.attention']) as seen: got = model(x).last_hidden_state
    assert torch.equal(got, want) and len(seen)==2 and len(model._forward_hooks)==0
    with capture(model, model.model.layer[1]) as seen: model(x)
    assert [s.name for s in seen]==['model.layer.1.attention']
    mha = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    y = torch.rand(1,5,16)
    out,weights = mha(y, y, y, average_attn_weights=False) # computed without a fused call
    with capture(mha) as seen: again = mha(y, y, y, average_attn_weights=False)
    torch.testing.assert_close(again[0], out)
    torch.testing.assert_close(attention_rows(seen[0].q, seen[0].k, range(5)), weights)

def test_relative_positions_of_sam():
    "Global layers add relative positions: rows equal eager attention; local layers are refused"
    model = make(sam)
    T = pytest.importorskip('transformers')
    for n,p in model.named_parameters():
        if 'rel_pos' in n: p.data.normal_(0., .5)
    maps = AttentionRecorder(model, IMG)
    first,last = maps.layers
    look = maps.look(last)
    assert look.q.shape[-1]==12+14+14 and look.prefix==0 # two channels per row and column of the grid, no N x N
    eager = T.SamVisionModel._from_config(model.config, attn_implementation='eager').eval()
    eager.load_state_dict(model.state_dict())
    seen = []
    eager.vision_encoder.layers[1].attn.register_forward_hook(lambda m,args,out: seen.append(out[1]))
    with torch.no_grad(): eager(normalize_images(maps.model, IMG[None]))
    rows = attention_rows(look.q, look.k, [0,50,195])
    assert rows.max()>.05
    torch.testing.assert_close(rows[0], seen[0][:,[0,50,195]], atol=1e-5, rtol=0)
    maps.set_taus({last: 1.5})
    with capture(model) as calls: model(IMG[None])
    assert [len(s.q) for s in calls]==[4,1] # four windows of 7x7, then all tokens
    with pytest.raises(ValueError, match='among 49 tokens at a time, the image has 196: its attention is local'): maps.look(first)
    with pytest.raises(ValueError, match='cannot be run on windows'): maps.look(last, 'windows')
    with pytest.raises(ValueError, match="attn_implementation='sdpa'"): AttentionRecorder(eager, IMG)

def test_the_explorer_opens_where_sam_can_be_shown():
    "On a global layer; a local one and the windows say why they are empty, and nothing old stays"
    T = pytest.importorskip('transformers')
    model = make(sam)
    config = T.SamConfig(vision_config=model.config.to_dict() | dict(output_channels=256), prompt_encoder_config=dict(image_size=224, patch_size=16))
    for m in (model,T.SamModel(config).eval()): # the decoder's queries are no layers
        ex = AttentionExplorer(m, IMG)
        assert [label for label,_ in ex.layer.options]==['encoder 0, local','encoder 1'] and ex.layer.value.endswith('layers.1.attn')
        assert set(ex.result)=={'full','tau'} and 'cannot be run on windows' in ex.canvas['windows'].message
        ex.set_state(dict(show='entropy'))
        assert set(ex.result)=={'full','tau'}
        for show in ('row','entropy'):
            ex.set_state(dict(layer=list(ex.maps.layers)[0], show=show, multiples='full'))
            assert not ex.result and not ex.canvas['full'].heat and 'its attention is local' in ex.canvas['full'].message
            assert ex.tiles.heat and not ex.tiles.windows # the layer that can be shown
        ex.set_state(dict(layer=list(ex.maps.layers)[1], show='row', multiples='windows'))
        assert ex.canvas['full'].heat and not ex.canvas['full'].message and 'on windows' in ex.tiles.caption
        ex.close()

def test_swin_is_refused_and_left_as_it_is():
    T = pytest.importorskip('transformers')
    model = T.SwinModel(T.SwinConfig(embed_dim=24, depths=[1,1], num_heads=[2,2])).eval()
    with pytest.raises(ValueError, match='among 49 tokens at a time.*its attention is local'): AttentionRecorder(model, IMG)
    assert model.encoder.layers[0].blocks[0].window_size==7 # a small image would make it smaller for good

def test_object_queries_of_eomt():
    model = make(eomt)
    maps = AttentionRecorder(model, IMG, '2x4')
    first,last = maps.layers
    looks = {n: maps.look(n) for n in maps.layers}
    assert [(o.prefix,o.joined) for o in looks.values()]==[(5,0),(15,10)]
    model.set_attn_implementation('eager')
    seen = {}
    for n in looks: model.get_submodule(n).register_forward_hook(lambda m,args,out,n=n: seen.update({n: out[1]}))
    with torch.no_grad(): model(normalize_images(maps.model, IMG[None]))
    for n,look in looks.items():
        every = range(look.q.shape[2])
        torch.testing.assert_close(attention_rows(look.q, look.k, every), seen[n], atol=1e-5, rtol=0)
    want = seen[last][0]
    hidden = want[:,:10,15:]==0 # by the masks
    assert hidden.any() and not hidden.all()
    ex = AttentionExplorer(model, IMG, '2x4', layer=1)
    names = [name for name,_ in ex.query.options]
    assert names[:2]==['the clicked token','object query 1'] and names[11:]==['the class token',*(f'register {i}' for i in range(1, 5))]
    ex.set_state(dict(query=-3)) # the third object query
    torch.testing.assert_close(ex.result['full'][0].flatten(), want[:,2,15:].mean(0), atol=1e-5, rtol=0)
    assert 'object queries' in ex.table.value
    ex.close()

class Grouped(nn.Module):
    "Attention with any options of a fused call; two heads share their keys"
    def __init__(self, **options):
        super().__init__()
        self.embed = nn.Conv2d(3, 32, 8, 8)
        self.qkv = nn.Linear(32, 64)
        self.options = options
    def heads(self, img):
        x = self.embed(img).flatten(2).mT
        q,kv = self.qkv(x).split([32,32], -1)
        q = q.unflatten(-1, (4,8)).transpose(1,2)
        return q,*kv.unflatten(-1, (2,2,8)).permute(2,0,3,1,4)
    def forward(self, img):
        out = F.scaled_dot_product_attention(*self.heads(img), enable_gqa=True, **self.options)
        return out.transpose(1,2).flatten(2)

MASKS = dict(none=dict(), causal=dict(is_causal=True), dropped=dict(dropout_p=.5), scaled=dict(scale=.7),
    bool=dict(attn_mask=torch.rand(48,48, generator=torch.Generator().manual_seed(1))>.3),
    added=dict(attn_mask=torch.randn(1,4,48,48, generator=torch.Generator().manual_seed(1))),
    padding=dict(attn_mask=torch.arange(48)[None]<40))

@pytest.mark.parametrize('name', MASKS)
@pytest.mark.parametrize('tau', [1.,1.6])
def test_options_of_a_fused_call(name, tau):
    "Shared keys, masks, biases, scale, dropout: rows are those of explicit attention, and so is the result with a temperature"
    torch.manual_seed(0)
    own = Grouped(**MASKS[name]).eval().requires_grad_(False)
    nn.init.normal_(own.qkv.weight, std=1.5)
    img = torch.rand(1,3,48,64)
    q,k,v = own.heads(img)
    k,v = (o.repeat_interleave(2, 1) for o in (k,v))
    mask = MASKS[name].get('attn_mask')
    logits = q@k.mT*MASKS[name].get('scale', 8**-.5)
    if name=='causal': mask = torch.ones(48,48, dtype=torch.bool).tril()
    if mask is not None: logits = logits.masked_fill(~mask, -torch.inf) if mask.dtype==torch.bool else logits+mask
    want = (tau*logits).softmax(-1)
    assert want.max()>.3
    with capture(own) as seen: own(img)
    torch.testing.assert_close(attention_rows(seen[0].q, seen[0].k, range(48), tau), want, atol=1e-5, rtol=0)
    torch.testing.assert_close(attention_entropy(seen[0].q, seen[0].k, tau), -torch.xlogy(want, want).sum(-1), atol=1e-4, rtol=0)
    if name=='dropped': return # its result is random
    with attention_temperature(own, tau): got = own(img)
    torch.testing.assert_close(got, (want@v).transpose(1,2).flatten(2), atol=1e-5, rtol=1e-4)
    w = sample_windows((6,8), [(3,3)]*2, generator=torch.Generator().manual_seed(0))
    found = {}
    look_at_calls(AnyModel(own), img, lambda n,layer,q,k: found.update(q=q, k=k), w)
    at = w.index()[0]
    among = (logits[:,:,at][...,at]).softmax(-1)
    torch.testing.assert_close(attention_rows(found['q'], found['k'], range(18)), among, atol=1e-5, rtol=0)
    def attend(call): return call.run(at=at)
    with watch_calls(own, attend): out = own(img)
    torch.testing.assert_close(out[:,at], (among@v[:,:,at]).transpose(1,2).flatten(2), atol=1e-5, rtol=1e-4)

def test_temperature_of_foreign_models():
    "Equal to a model whose queries are multiplied, which is the same as a scaled query projection"
    model = make(THEIRS['dinov2'][0])
    x = torch.rand(1,3,64,96)
    layer = 'encoder.layer.1.attention'
    with capture(model) as seen: plain = model(x).last_hidden_state
    assert layer in [s.name for s in seen]
    with attention_temperature(model, {layer: torch.tensor([1.5,.7])}): got = model(x).last_hidden_state
    assert not torch.allclose(got, plain) and torch.equal(model(x).last_hidden_state, plain)
    per = torch.tensor([1.5,.7]).repeat_interleave(12)
    query, = (m for n,m in model.get_submodule(layer).named_modules() if n.split('.')[-1] in ('query','q_proj'))
    query.weight.mul_(per[:,None])
    query.bias.mul_(per)
    torch.testing.assert_close(got, model(x).last_hidden_state, atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match='layer'), attention_temperature(model, {'encoder.layer.9': 2.}): model(x)

def test_models_without_fused_attention_are_refused():
    class Silent(nn.Sequential): pass
    with pytest.raises(ValueError, match='makes no call of F.scaled_dot_product_attention'):
        AttentionRecorder(Silent(nn.Conv2d(3, 8, 16, 16)), IMG)
    with pytest.raises(ValueError, match='patch=16'): AttentionRecorder(nn.Linear(3, 3), IMG)

def test_the_explorer_takes_a_foreign_model():
    ex = AttentionExplorer(make(THEIRS['dinov3'][0]), IMG, '2x4', layer=1)
    assert ex.flush().error is None and set(ex.result)=={'windows','full','tau'}
    assert ex.maps.windows[0].num_tokens==32 and 'prefix' in ex.table.value
    before = ex.result['tau'][0]
    ex.set_state(dict(scope='model', tau=1.5))
    assert not torch.allclose(ex.result['tau'][0], before)
    ex.close()

def test_your_model_and_image_in_one_command(tmp_path):
    "What `winwin lab --model FOLDER --image FILE` opens, run as its kernel would run it"
    make(THEIRS['dinov2'][0]).save_pretrained(tmp_path/'dino')
    to_pil_image(IMG).save(tmp_path/'photo.png')
    file = write_yours(tmp_path, None, str(tmp_path/'dino'), str(tmp_path/'photo.png'))
    code = ''.join(json.loads(file.read_text())['cells'][1]['source'])
    *lines,last = code.splitlines()
    space = {}
    exec('\n'.join(lines) + f'\nex = {last}', space)
    ex = space['ex']
    assert repr(ex)=='AttentionExplorer(Dinov2Model, (14, 14) tokens)' and ex.flush().error is None
    with pytest.raises(ValueError, match='backbone'): named_model('vit_smal')
    ex.close()

@pytest.mark.parametrize('name', ('vit','dinov2'))
def test_temperature_of_foreign_models_is_matched(name):
    "Larger images have more tokens; the temperature brings self-probability, entropy and gaps back, and only in its context"
    model = make(THEIRS[name][0])
    parts = dict(model.named_modules())
    keys = [n for n in parts if n.rpartition('.')[2] in ('key','k_proj')]
    assert len(keys)==2
    for n in keys: parts[n].weight.copy_(parts[n.replace('key','query').replace('k_proj','q_proj')].weight*.2) # tokens see themselves first
    imgs = torch.randn(2,3,256,256, generator=torch.Generator().manual_seed(0))
    for by in ('self','entropy','gaps'):
        found = match_temperature(model, imgs, 'crop:8', per='layer', by=by, bounds=(.3,4.))
        assert found.tokens==(64,256) and len(found.tau)==2 and not found.unmatched
        for n in found.tau:
            assert (found.plain[n].mean()-found.train[n].mean()).abs()>2*(found.full[n].mean()-found.train[n].mean()).abs(), (by,n)
    one = match_temperature(model, imgs, 'crop:8', bounds=(.3,4.)) # by entropy
    assert one.by=='entropy' and len({*one.tau.values()})==1 and one.mean>1
    shared = match_temperature(model, imgs, '2x5', by='entropy', bounds=(.3,4.)) # other tokens hidden
    assert shared.tokens==(50,256) and shared.mean>1
    plain = model(imgs, interpolate_pos_encoding=True).last_hidden_state if name=='vit' else model(imgs).last_hidden_state
    with attention_temperature(model, log_ratio(*one.tokens)), capture(model) as seen:
        model(imgs, interpolate_pos_encoding=True) if name=='vit' else model(imgs)
    assert len(seen)==2
    again = model(imgs, interpolate_pos_encoding=True).last_hidden_state if name=='vit' else model(imgs).last_hidden_state
    assert torch.equal(plain, again)
    with pytest.raises(ValueError, match="known by its calls"): match_temperature(model, imgs, 'crop:8', by='output')
    with pytest.raises(ValueError, match='differ between images'): match_temperature(model, imgs, sample_windows((16,16), [(4,4)], batch=2))
