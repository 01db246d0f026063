"Backbones of timm: one full window is timm's own forward, windows keep their places, weights and configs survive."
import pytest, torch
import timm
from timm.optim import create_optimizer_v2
from winwin.models.backbones import BACKBONES, NEWER, TimmEncoder, list_backbones, timm_encoder
from winwin.tasks.completion import completion_loss
from winwin.models.dense import DenseModel, FlowModel, create_model, list_models, model_task
from winwin.models.controls import attention_layers, capture
from winwin.models.hub import load_model, save_model, temperature_dict
from winwin.models.controls import fold_temperature, set_temperature
from winwin.windows.layout import Windows
from winwin.windows.sampling import sample_tokens, sample_windows

def seeded(n=0): return torch.Generator().manual_seed(n)

# One of every kind of position, prefix and block that timm's plain transformers have; depth 2 keeps them small
families = dict(dinov3='vit_small_patch16_dinov3', dinov3_bias='vit_small_patch16_dinov3_qkvb', dinov3_swiglu='vit_small_plus_patch16_dinov3',
    eva02='eva02_tiny_patch14_224', eva02_clip='eva02_base_patch16_clip_224', rope='vit_small_patch16_rope_224', rope_ape='vit_small_patch16_rope_ape_224',
    mixed='vit_small_patch16_rope_mixed_224', mixed_ape='vit_small_patch16_rope_mixed_ape_224', rope_reg='vit_medium_patch16_rope_reg1_gap_256',
    pe_core='vit_pe_core_tiny_patch16_384', pe_spatial='vit_pe_spatial_tiny_patch16_512', plain='vit_tiny_patch16_224', plain_reg='vit_little_patch16_reg4_gap_256',
    dinov2='vit_small_patch14_dinov2', dinov2_reg='vit_small_patch14_reg4_dinov2', clip='vit_xsmall_patch16_clip_224', siglip='vit_base_patch16_siglip_224',
    deit='deit_tiny_patch16_224', distilled='deit_tiny_distilled_patch16_224', deit3='deit3_small_patch16_224', parallel='vit_small_patch16_18x2_224', patch8='vit_small_patch8_224')

def open_up(m, seed=0):
    "Random values everywhere, layer scales among them: fresh models are nearly the identity"
    g = seeded(seed)
    with torch.no_grad():
        for n,p in m.named_parameters():
            if 'gamma' in n or n.endswith(('ls1','ls2')): p.uniform_(.5, 1.5, generator=g)
            elif p.ndim==1 or 'token' in n or 'pos_embed' in n: p.add_(torch.randn(p.shape, generator=g)*.1)
    return m.eval().requires_grad_(False)

def encoder(name, **over): return open_up(timm_encoder(families.get(name, name), depth=2, **over))
def image(enc, grid=(4,6), B=2): return torch.randn(B,3,grid[0]*enc.patch_size,grid[1]*enc.patch_size, generator=seeded(1))
def spread(x): return x.std().item()

@pytest.mark.parametrize('family', families)
def test_one_full_window_is_timm(family):
    enc = encoder(family)
    img,n = image(enc),enc.model.num_prefix_tokens
    theirs = enc.model.forward_features(img)[:,n:]
    _,states = enc.model.forward_intermediates(img, indices=[0,1], output_fmt='NLC')
    for w in (None, Windows.full((4,6)), Windows.full((4,6), 2)):
        assert (enc(img, w)-theirs).abs().max()<1e-5*max(1, theirs.abs().max().item())
    first,last = enc.forward_intermediates(img)
    assert (first-states[0]).abs().max()<1e-5*max(1, states[0].abs().max().item()) and torch.allclose(last, theirs, atol=1e-5*max(1, theirs.abs().max().item()))
    assert spread(theirs)>1e-2 and (enc.depth,enc.dim)==(2,enc.model.embed_dim)

@pytest.mark.parametrize('family', families)
def test_windows_keep_their_places(family):
    "All tokens of the image as several windows, in any order, are the tokens of the whole image; and the order of windows means nothing"
    enc = encoder(family)
    img = image(enc)
    whole = enc(img).unflatten(1, (4,6))
    w = Windows(torch.tensor([[[0,0],[0,4],[2,0]], [[2,2],[0,0],[0,2]]]), [(2,4),(4,2),(2,4)], (4,6)) # two images, two tilings
    for i,m in enumerate(w.split(enc(img, w))):
        for b,(y,x) in enumerate(w.yx[:,i].tolist()):
            h,v = w.sizes[i]
            assert torch.allclose(m[b], whole[b,y:y+h,x:x+v], atol=1e-4*max(1, whole.abs().max().item()))

@pytest.mark.parametrize('family', families)
def test_temperature_and_capture(family):
    "Every family obeys a temperature, fused or written out, folded or not, and shows its queries"
    enc = encoder(family)
    img = image(enc)
    cold = enc(img)
    with capture(enc) as seen: assert torch.equal(enc(img), cold)
    assert len(seen)==2*(2 if family=='parallel' else 1) and seen[0].q.shape[-2]==24+enc.model.num_prefix_tokens
    set_temperature(enc, 1.5)
    hot = enc(img)
    assert (hot-cold).abs().max()>1e-4
    for m in attention_layers(enc).values(): m.fused_attn = False
    close = lambda a: torch.allclose(a, hot, atol=1e-4*max(1, hot.abs().max().item()))
    assert close(enc(img)) and not any(m.fused_attn for m in attention_layers(enc).values())
    for m in attention_layers(enc).values(): m.fused_attn = True
    assert close(fold_temperature(enc)(img)) and temperature_dict(enc)=={}

@pytest.mark.parametrize('family', ['dinov3','eva02','mixed_ape','plain'])
def test_a_batch_of_windows(family):
    "Every image has its own windows; a single set serves all; isolated tokens come along"
    enc = encoder(family)
    img = image(enc, B=3)
    w = sample_windows((4,6), [(2,2),(1,3)], 3, seeded(2), extra=2)
    out = enc(img, w)
    assert out.shape==(3,9,enc.dim)
    for i in range(3):
        alone = Windows(w.yx[i:i+1], w.sizes, w.grid, w.extra[i:i+1])
        assert torch.allclose(enc(img[i:i+1], alone)[0], out[i], atol=1e-4*max(1, out.abs().max().item()))
    one = Windows(w.yx[:1], w.sizes, w.grid, w.extra[:1])
    assert torch.allclose(enc(img, one)[0], out[0], atol=1e-4*max(1, out.abs().max().item()))

@pytest.mark.parametrize('family', ['dinov3','eva02','rope','plain','mixed','pe_core'])
def test_gradients_reach_everything(family):
    for checkpointing in (False,True):
        enc = timm_encoder(families[family], depth=2, checkpointing=checkpointing)
        enc(image(enc), sample_windows((4,6), [(2,2)]*2, 2, seeded())).square().mean().backward()
        assert [n for n,p in enc.named_parameters() if p.grad is None]==[]

def test_checkpointing_changes_nothing():
    enc = encoder('dinov3').requires_grad_(True)
    w,grads = sample_windows((4,6), [(2,2)]*2, 2, seeded()),[]
    for enc.checkpointing in (False,True):
        enc.zero_grad()
        enc(image(enc), w).square().mean().backward()
        grads.append(enc.model.blocks[0].attn.qkv.weight.grad.clone())
    assert torch.allclose(*grads, atol=1e-6)

@pytest.mark.parametrize('short', [n for n in BACKBONES if n.endswith(('tiny','small')) and timm.is_model(BACKBONES[n])])
def test_short_names(short):
    with torch.device('meta'): enc = timm_encoder(short, depth=1)
    assert timm.is_model(BACKBONES[short]) and len(enc.mean)==3

def test_every_short_name_is_listed():
    assert set(BACKBONES)<=set(list_backbones()) and all(timm.is_model(v) for k,v in BACKBONES.items() if k.split('-')[0] not in NEWER)
    assert 'vit_base_patch16_dinov3' in list_backbones('*dinov3') and not list_backbones('*convnext*')

@pytest.mark.parametrize('name,why', [('beit_base_patch16_224','a table made for one grid'), ('vit_relpos_small_patch16_224','a table made for one grid'),
    ('samvit_base_patch16','inside tiles of a whole map'), ('vit_base_resnet50d_224','sees beyond a patch'), ('naflexvit_base_patch16_gap','ready patches'),
    ('swin_tiny_patch4_window7_224','not a plain vision transformer'), ('resnet18','not a plain vision transformer'), ('vit_bass_patch16_dinov3','did you mean vit_base_patch16_dinov3')])
def test_what_cannot_work_is_refused_with_the_reason(name, why):
    with pytest.raises(ValueError, match=why): timm_encoder(name)

def test_ready_models_are_checked():
    make = lambda **kw: timm.create_model('vit_tiny_patch16_224', num_classes=0, depth=1, **kw)
    assert TimmEncoder(make(dynamic_img_size=True)).depth==1
    with pytest.raises(ValueError, match='dynamic_img_size=True'): TimmEncoder(make())
    with pytest.raises(ValueError, match='patch_drop_rate=0'): TimmEncoder(make(dynamic_img_size=True, patch_drop_rate=.5))
    with pytest.raises(ValueError, match='not a plain vision transformer'): TimmEncoder(timm.create_model('test_resnet'))

def test_wrong_windows_are_named():
    enc = encoder('plain')
    with pytest.raises(ValueError, match='grid'): enc(image(enc), Windows.full((5,5)))
    with pytest.raises(ValueError, match='not divisible'): enc(torch.zeros(1,3,50,64))

# --- Weights

@pytest.mark.parametrize('family', ['dinov3','eva02','plain','mixed'])
@pytest.mark.parametrize('wrap', [lambda sd: sd, lambda sd: dict(state_dict=sd, epoch=3), lambda sd: dict(model={f'module.{k}': v for k,v in sd.items()})])
def test_checkpoints(family, wrap, tmp_path):
    torch.manual_seed(3)
    donor = open_up(timm.create_model(families[family], depth=2, dynamic_img_size=True))
    torch.save(wrap(donor.state_dict()), tmp_path/'x.pth')
    enc = timm_encoder(families[family], checkpoint=tmp_path/'x.pth', depth=2).eval()
    img = image(enc)
    with torch.no_grad(): assert torch.allclose(enc(img), donor.forward_features(img)[:,donor.num_prefix_tokens:], atol=1e-4)

def authors(donor, bias=None):
    "DINOv3's weights with its authors' names: storage_tokens, fused biases with a mask, layer scales as modules"
    names = {'reg_token': 'storage_tokens', 'gamma_1': 'ls1.gamma', 'gamma_2': 'ls2.gamma', 'fc1_g': 'w1', 'fc1_x': 'w2'}
    swiglu,sd = any('fc1_g' in k for k in donor.state_dict()),{}
    for k,v in donor.state_dict().items():
        if k.endswith(('q_bias','v_bias')): continue
        for a,b in (names | (dict(fc2='w3') if swiglu else {})).items(): k = k.replace(a, b)
        sd[k] = v
    for i,b in enumerate(donor.blocks):
        n,q = len(b.attn.qkv.weight)//3,getattr(b.attn, 'q_bias', None)
        parts = [torch.zeros(n) if q is None else q, torch.ones(n), torch.zeros(n) if q is None else b.attn.v_bias] # the middle is masked
        sd |= {f'blocks.{i}.attn.qkv.bias': torch.cat(parts) + (0 if bias is None else bias), f'blocks.{i}.attn.qkv.bias_mask': torch.tensor([1.,0.,1.]).repeat_interleave(n)}
    return sd | {'mask_token': torch.zeros(1,donor.embed_dim), 'rope_embed.periods': torch.ones(16)}

def transformers_names(sd):
    "The authors' names as transformers has them"
    out,gated = {},any('.mlp.w1.' in k for k in sd)
    mlp = {'.w1.': '.gate_proj.', '.w2.': '.up_proj.', '.w3.': '.down_proj.'} if gated else {'.fc1.': '.up_proj.', '.fc2.': '.down_proj.'}
    for k,v in sd.items():
        if k.endswith(('bias_mask','periods')): continue
        if k.startswith('blocks.'):
            k = k.replace('blocks.', 'layer.').replace('ls1.gamma', 'layer_scale1.lambda1').replace('ls2.gamma', 'layer_scale2.lambda1').replace('.attn.proj.', '.attention.o_proj.')
            for a,b in mlp.items(): k = k.replace(a, b)
        elif not k.startswith('norm'): k = 'embeddings.' + k.replace('patch_embed.proj', 'patch_embeddings').replace('storage_tokens', 'register_tokens')
        if '.attn.qkv.' not in k: out[k] = v
        else: out |= {k.replace('attn.qkv', f'attention.{n}_proj'): o.clone() for n,o in zip('qkv', v.chunk(3)) if not (n=='k' and k.endswith('bias'))}
    return out

@pytest.mark.parametrize('source', ['authors','transformers','transformers, newer'])
@pytest.mark.parametrize('family', ['dinov3','dinov3_bias','dinov3_swiglu'])
def test_dinov3_as_others_name_it(tmp_path, family, source):
    torch.manual_seed(0)
    donor = open_up(timm.create_model(families[family], depth=2, num_classes=0, dynamic_img_size=True))
    sd = authors(donor)
    if source!='authors': sd = transformers_names(sd)
    if 'newer' in source: sd = {k if k.startswith(('emb','norm')) else f'model.{k}': v for k,v in sd.items()}
    torch.save(sd, tmp_path/'x.pth')
    enc = timm_encoder(families[family], checkpoint=tmp_path/'x.pth', depth=2).eval()
    img = image(enc)
    with torch.no_grad(): assert torch.allclose(enc(img), donor.forward_features(img)[:,5:], atol=1e-5)

@pytest.mark.parametrize('source', ['authors','transformers'])
def test_biases_are_not_lost(tmp_path, source):
    "timm's plain DINOv3 has no biases for queries and values: a file whose biases are not zero needs the other model"
    donor = open_up(timm.create_model('vit_small_patch16_dinov3', depth=2, num_classes=0))
    sd = authors(donor, bias=.1)
    torch.save(sd if source=='authors' else transformers_names(sd), tmp_path/'x.pth')
    with pytest.raises(ValueError, match="not zero.*ends with '_qkvb'"): timm_encoder('dinov3-small', checkpoint=tmp_path/'x.pth', depth=2)
    assert timm_encoder('vit_small_patch16_dinov3_qkvb', checkpoint=tmp_path/'x.pth', depth=2).model.blocks[1].attn.q_bias.mean().item()==pytest.approx(.1)

@pytest.mark.parametrize('kind', ['DINOv3ViT','Dinov2','Dinov2WithRegisters'])
def test_files_that_transformers_wrote(tmp_path, kind):
    "Where transformers is installed: its model, its file, its numbers"
    tf = pytest.importorskip('transformers')
    torch.manual_seed(0)
    common = dict(hidden_size=384, num_hidden_layers=2, num_attention_heads=6)
    if kind=='DINOv3ViT': name,prefix,more = 'vit_small_patch16_dinov3_qkvb',5,dict(intermediate_size=1536, num_register_tokens=4)
    else: name,prefix,more = ('dinov2-small',5,dict(patch_size=14, image_size=518)) if kind.endswith('Registers') else ('vit_small_patch14_dinov2',1,dict(patch_size=14, image_size=518))
    model = getattr(tf, f'{kind}Model')(getattr(tf, f'{kind}Config')(**common, **more)).eval()
    with torch.no_grad():
        for p in model.parameters(): p.add_(torch.randn(p.shape, generator=seeded())*.05)
    model.save_pretrained(tmp_path)
    enc = timm_encoder(name, checkpoint=tmp_path/'model.safetensors', depth=2).eval()
    img = torch.randn(1,3,37*14,37*14, generator=seeded(1)) if prefix==1 or 'dinov2' in name else torch.randn(1,3,64,96, generator=seeded(1))
    with torch.no_grad(): theirs = model(img).last_hidden_state[:,prefix:]
    with torch.no_grad(): assert (enc(img)-theirs).abs().max()<1e-4*theirs.abs().max()

def test_checkpoints_that_do_not_fit(tmp_path):
    torch.save(timm.create_model('vit_tiny_patch16_224', depth=2).state_dict(), tmp_path/'x.pth')
    with pytest.raises(ValueError, match='missing: blocks.2'): timm_encoder('vit-tiny', checkpoint=tmp_path/'x.pth', depth=3)
    with pytest.raises(ValueError, match='unknown: blocks.1'): timm_encoder('vit-tiny', checkpoint=tmp_path/'x.pth', depth=1)
    with pytest.raises(ValueError, match='in the file'): timm_encoder('vit-small', checkpoint=tmp_path/'x.pth', depth=2)
    with pytest.raises(ValueError, match='not both'): timm_encoder('vit-tiny', pretrained=True, checkpoint=tmp_path/'x.pth')

def test_malicious_checkpoints_are_refused(tmp_path):
    from test_croco import Trap
    torch.save(dict(state_dict=Trap(tmp_path/'sprung')), tmp_path/'x.pth')
    with pytest.raises(ValueError, match='nothing of it was run'): timm_encoder('vit-tiny', checkpoint=tmp_path/'x.pth')
    assert not (tmp_path/'sprung').exists()

# --- Whole models

small = dict(convnext=dict(hidden=16, depth=1), dpt=dict(layer_dims=(8,8,16,16), feature_dim=16, last_dim=8), linear={})

@pytest.mark.parametrize('backbone', ['dinov3-small','eva02-tiny','vit-tiny'])
@pytest.mark.parametrize('head', ['linear','convnext','dpt'])
def test_dense_models_round_trip(backbone, head, tmp_path):
    model = create_model(f'{backbone}:{head}', num_classes=5, depth=4, head_args=small[head])
    assert isinstance(model, DenseModel) and model_task(f'{backbone}:{head}')=='seg'
    open_up(model)
    img,w = torch.rand(1,3,4*model.patch_size,6*model.patch_size),sample_windows((4,6), [(2,2),(2,3)], generator=seeded())
    again = load_model(save_model(model, tmp_path/'m')).eval().requires_grad_(False)
    for a,b in zip(model(img, w), again(img, w)): assert torch.equal(a, b)
    assert [m.shape[2:] for m in model(img, w)]==[(2*model.patch_size,2*model.patch_size), (2*model.patch_size,3*model.patch_size)]
    full, = model(img, Windows.full((4,6)))
    assert torch.allclose(full, model(img)[0], atol=1e-5*max(1, full.abs().max().item()))

def test_models_normalise_as_their_backbone_was_trained():
    model = create_model('eva02-tiny:linear', num_classes=2, depth=1)
    assert torch.allclose(model.mean.flatten(), torch.tensor(timm.get_pretrained_cfg('eva02_tiny_patch14_336').mean))
    other = create_model('eva02-tiny:linear', num_classes=2, depth=1, mean=(.5,.5,.5), std=(.5,.5,.5))
    assert other.mean.flatten().tolist()==[.5]*3

def test_flow_and_pretraining(tmp_path):
    flow = create_model('dinov3-small:flow', depth=2, decoder=dict(dim=32, depth=2, num_heads=2), head='linear', relative=True)
    a,b = torch.rand(2,1,3,64,96)
    assert isinstance(flow, FlowModel)
    open_up(flow)
    w1,w2 = sample_windows((4,6), [(2,2)]*2, generator=seeded()),sample_windows((4,6), [(3,3)], generator=seeded())
    again = load_model(save_model(flow, tmp_path/'m')).eval()
    for x,y in zip(flow(a, b, w1, w2), again(a, b, w1, w2)): assert torch.equal(x, y)
    pre = create_model('vit-tiny:pretrain', depth=1, decoder=dict(dim=32, depth=1, num_heads=2))
    shown = sample_tokens((4,6), 4, generator=seeded())
    completion_loss(pre(a, b, shown)[0], a, shown).backward()
    assert pre.encoder.model.blocks[0].mlp.fc1.weight.grad.abs().max()>0

@pytest.mark.parametrize('name', ['dinov3-small:linear','vit-tiny:linear','eva02-tiny:linear'])
def test_layer_decay(name):
    model = create_model(name, num_classes=2, depth=3)
    opt = create_optimizer_v2(model, 'adamw', lr=1., weight_decay=.05, layer_decay=.5)
    names = {id(p): n for n,p in model.named_parameters()}
    scale = {names[id(p)]: g['lr_scale'] for g in opt.param_groups for p in g['params']}
    decay = {names[id(p)]: g['weight_decay'] for g in opt.param_groups for p in g['params']}
    assert set(scale)==set(names.values())
    level = lambda n: .5**(4 if any(o in n for o in ('patch_embed','token','pos_embed','norm_pre','rope')) else 3-int(n.split('blocks.')[1][0]) if 'blocks.' in n else 0 if n.startswith('head') else 1)
    assert {n: s for n,s in scale.items() if s!=level(n)}=={}
    assert all(decay[n]==0 for n in decay if 'token' in n or 'pos_embed' in n) and decay['encoder.model.blocks.0.attn.proj.weight']==.05

def test_listed():
    assert {'dinov3-base:convnext','eva02-large:dpt','vit-base:linear','dinov3-large:flow'}<=set(list_models('*')) and len(set(list_models()))==len(list_models())
    assert all(model_task(n) in ('seg','depth','flow','pretrain','dense','pair') for n in list_models())

@pytest.mark.parametrize('bad', ['dinov3-base:mlp','nothing:convnext','resnet18:convnext','winwin_seg_huge'])
def test_bad_names(bad):
    with pytest.raises(ValueError, match='no head or task|no backbone|cannot be trained|did you mean'): create_model(bad)

@pytest.mark.parametrize('name', ['lingbot-small','tipsv2-base'])
def test_newer_backbones_on_windows(name):
    "Where timm has them: the whole image as timm, two windows a token per patch"
    if not timm.is_model(BACKBONES[name]):
        with pytest.raises(ValueError, match='is not in timm'): timm_encoder(name)
        return
    enc = timm_encoder(name, depth=1).eval()
    P = enc.patch_size
    img = torch.randn(1, 3, 4*P, 6*P)
    with torch.no_grad():
        whole = enc.model.forward_features(img)[:,enc.model.num_prefix_tokens:]
        torch.testing.assert_close(enc(img), whole, atol=1e-5, rtol=1e-5)

def test_a_family_that_timm_lacks():
    with pytest.raises(ValueError, match='eupe-small is not in timm .*list_backbones'): timm_encoder('eupe-small')

@pytest.mark.parametrize('name', ['dinov3-small','eva02-tiny','rope-small'])
def test_scaled_positions_survive_a_file(tmp_path, name):
    from winwin.models.controls import get_position_scale, set_position_scale
    from winwin.models.dense import create_model
    from winwin.models.hub import load_model, save_model
    model = create_model(f'{name}:linear', depth=1, num_classes=2).eval()
    img = torch.rand(1, 3, 6*model.patch_size, 8*model.patch_size)
    with torch.no_grad():
        plain = model(img)[0]
        set_position_scale(model, 'ntk:0.5')
        scaled = model(img)[0]
        again = load_model(save_model(model, tmp_path/'a')).eval()
        assert not scaled.equal(plain) and get_position_scale(again)=='ntk:0.5'
        torch.testing.assert_close(again(img)[0], scaled)
        set_position_scale(again, '1')
        torch.testing.assert_close(again(img)[0], plain)

def test_learned_frequencies_are_refused():
    with pytest.raises(ValueError, match='are learned'): timm_encoder('rope-mixed-small', depth=1).scale_positions(.5)

def test_rescaled_coordinates_in_training():
    "Another loss in training, no change in evaluation, an error where there is nothing to rescale"
    from winwin.training.recipes import change, get_preset, train_recipe
    over = dict(image_size=(64,96), images=4, valid_images=2, windows='2x2', batch_size=2, warmup=0, steps=2, save_every=1,
                patch_size=None, layer_decay=None)
    recipe = change(get_preset('driving-seg'), model='dinov3-small:linear', rescale_positions=2., **over)
    whole,again = (train_recipe(recipe, progress=False) for _ in range(2))
    assert whole.log[0]['loss']==again.log[0]['loss']
    assert whole.model.encoder.model.rope.aug_active
    img = torch.rand(1, 3, 64, 96)
    with torch.no_grad(): assert whole.model.eval()(img)[0].equal(whole.model(img)[0])
    plain = train_recipe(change(recipe, rescale_positions=None), progress=False)
    assert whole.log[0]['loss']!=plain.log[0]['loss']
    with pytest.raises(ValueError, match='is for DINOv3'):
        train_recipe(change(get_preset('driving-seg'), rescale_positions=2., **over), progress=False)
