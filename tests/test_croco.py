"CroCo: files of every released layout become our models and give the released architecture's numbers; nothing in them is run."
import argparse, json, os, pickle, subprocess, sys
from pathlib import Path
import numpy as np, pytest, torch
import torch.nn.functional as F
from winwin.models.released import load_croco, to_croco
from winwin.models.loading import read_checkpoint
from winwin.models.released import croco_arguments, literal_kwargs, read_croco
from winwin.models.heads import dpt_hooks
from winwin.models.dense import FlowModel, create_model
from winwin.models.hub import load_model, save_model
from winwin.models.positions import apply_rope, sincos_pos
from winwin.windows.layout import Windows
from winwin.windows.sampling import sample_tokens

DATA = Path(__file__).parent/'data'
spec = json.loads((DATA/'croco_tiny.json').read_text())
kw = spec['croco_kwargs']

@pytest.fixture(scope='module')
def files(tmp_path_factory):
    "Paths of the two checkpoints"
    out = tmp_path_factory.mktemp('croco')
    subprocess.run([sys.executable, DATA/'croco_fixture.py', DATA/'croco_tiny.json', out], check=True)
    return {k: out/f'{k}.pth' for k in ('pretrained','flow')}

@pytest.fixture(scope='module')
def expected(): return {k: torch.from_numpy(v) for k,v in np.load(DATA/'croco_tiny.npz').items()}

@pytest.fixture(scope='module')
def theirs(files): return {k: read_checkpoint(p) for k,p in files.items()}

def under(sd, prefix): return {k.removeprefix(prefix): v for k,v in sd.items() if k.startswith(prefix)}
def error(a, b): return ((a-b).norm()/b.norm()).item()
def plain(model):
    "A model that takes images as they are, as the fixture's numbers were made"
    model.mean.zero_(), model.std.fill_(1)
    return model.eval()

# --- The architecture written out plainly, on the file's own names: a reference at any grid

def norm(x, sd, key): return F.layer_norm(x, x.shape[-1:], sd[f'{key}.weight'], sd[f'{key}.bias'], 1e-6)
def linear(x, sd, key): return F.linear(x, sd[f'{key}.weight'], sd[f'{key}.bias'])
def mlp(x, sd): return linear(F.gelu(linear(x, sd, 'mlp.fc1')), sd, 'mlp.fc2')

def attention(q, k, v, heads, pos=None, ypos=None):
    q,k,v = (o.unflatten(-1, (heads,-1)).transpose(1,2) for o in (q,k,v))
    if pos is not None: q,k = apply_rope(q, pos),apply_rope(k, ypos)
    return ((q@k.mT*q.shape[-1]**-.5).softmax(-1)@v).transpose(1,2).flatten(2)

def encode(sd, img, pos=None):
    "Every encoder block's tokens, the last ones normed"
    x,out = F.conv2d(img, sd['patch_embed.proj.weight'], sd['patch_embed.proj.bias'], 16).flatten(2).mT,[]
    if 'enc_pos_embed' in sd: x = x + sd['enc_pos_embed']
    for i in range(kw['enc_depth']):
        b = under(sd, f'enc_blocks.{i}.')
        x = x + linear(attention(*linear(norm(x, b, 'norm1'), b, 'attn.qkv').chunk(3, -1), kw['enc_num_heads'], pos, pos), b, 'attn.proj')
        x = x + mlp(norm(x, b, 'norm2'), b)
        out.append(x)
    return [*out[:-1],norm(x, sd, 'enc_norm')]

def decode(sd, x, y, pos=None):
    "The decoder's tokens of frame 1, normed"
    heads = kw['dec_num_heads']
    if 'dec_pos_embed' in sd: x,y = x+sd['dec_pos_embed'],y+sd['dec_pos_embed']
    for i in range(kw['dec_depth']):
        b = under(sd, f'dec_blocks.{i}.')
        x = x + linear(attention(*linear(norm(x, b, 'norm1'), b, 'attn.qkv').chunk(3, -1), heads, pos, pos), b, 'attn.proj')
        memory,c = norm(y, b, 'norm_y'),under(b, 'cross_attn.')
        x = x + linear(attention(linear(norm(x, b, 'norm2'), c, 'projq'), linear(memory, c, 'projk'), linear(memory, c, 'projv'), heads, pos, pos), c, 'proj')
        x = x + mlp(norm(x, b, 'norm3'), b)
    return norm(x, sd, 'dec_norm')

def complete(sd, img1, img2, shown, pos=None):
    "CroCo's own task: an image (B,3,H,W) whose patches are (y,x,colour)"
    (h,w),part = (n//16 for n in img1.shape[-2:]),shown.index()[0]
    y = linear(encode(sd, img2, pos)[-1], sd, 'decoder_embed')
    seen = F.conv2d(img1, sd['patch_embed.proj.weight'], sd['patch_embed.proj.bias'], 16).flatten(2).mT
    if 'enc_pos_embed' in sd: seen = seen + sd['enc_pos_embed']
    seen = seen[:,part] # the shown tokens see one another only
    for i in range(kw['enc_depth']):
        b,p = under(sd, f'enc_blocks.{i}.'),None if pos is None else pos[:,part]
        seen = seen + linear(attention(*linear(norm(seen, b, 'norm1'), b, 'attn.qkv').chunk(3, -1), kw['enc_num_heads'], p, p), b, 'attn.proj')
        seen = seen + mlp(norm(seen, b, 'norm2'), b)
    x = sd['mask_token'].repeat(len(y), h*w, 1)
    x[:,part] = linear(norm(seen, sd, 'enc_norm'), sd, 'decoder_embed')
    out = linear(decode(sd, x, y, pos), sd, 'prediction_head')
    return out.view(-1,h,w,16,16,3).permute(0,5,1,3,2,4).reshape(-1,3,16*h,16*w)

# --- The released numbers

@pytest.mark.parametrize('name', ['pretrained','flow'])
def test_encoder(files, expected, name):
    "First block and last block with the final norm, from either file, with and without an explicit full window"
    m = load_croco(files[name], 'encoder').eval()
    with torch.no_grad():
        for w in (None, Windows.full((6,8))):
            states = m.forward_intermediates(expected['img1'], w)
            assert error(states[0], expected['encoder_first'])<1e-4
            assert error(states[-1], expected['encoder_last'])<1e-4
    assert len(states)==kw['enc_depth']

def test_channel_order_matters(files, theirs, expected):
    "Without reordering q and k the numbers are others: the check above can fail"
    m = load_croco(files['pretrained'], 'encoder')
    with torch.no_grad():
        m.blocks[0].attn.qkv.weight.copy_(theirs['pretrained']['model']['enc_blocks.0.attn.qkv.weight'])
        assert error(m.forward_intermediates(expected['img1'])[0], expected['encoder_first'])>1e-3

def rewrite(path, theirs, **changes):
    torch.save(theirs | changes, path)
    return path

def only(sd, alias):
    "A state dict with one of the two forms of the doubled names"
    listed = lambda k: '.act_postprocess.' in k or '.layer_rn.' in k
    numbered = lambda k: '.act_1' in k or '.act_2' in k or '.act_3' in k or '.act_4' in k or '.layer' in k and '_rn' in k and not listed(k)
    return {k: v for k,v in sd.items() if not (numbered if alias=='listed' else listed)(k)}

@pytest.mark.parametrize('alias', ['both','listed','numbered'])
def test_flow(files, theirs, expected, alias, tmp_path):
    "Encoder, decoder and DPT head together give the released flow and confidence, with names in either form"
    sd = theirs['flow']['model']
    path = files['flow'] if alias=='both' else rewrite(tmp_path/'f.pth', theirs['flow'], model=only(sd, alias))
    model = plain(load_croco(path))
    assert isinstance(model, FlowModel) and model.hooks==dpt_hooks(kw['enc_depth'], kw['dec_depth'])
    with torch.no_grad():
        for w in (None, Windows.full((6,8))): assert error(model(expected['img1'], expected['img2'], w, w)[0], expected['flow_out'])<1e-4
        model.hooks = [3,4,7,10]
        assert error(model(expected['img1'], expected['img2'])[0], expected['flow_out'])>1e-3 # other layers give another flow

@pytest.mark.parametrize('grid', [(5,7),(3,9)])
def test_odd_grids_agree_with_the_plain_architecture(files, theirs, grid):
    img1,img2 = torch.rand(2,1,3,16*grid[0],16*grid[1], generator=torch.Generator().manual_seed(1))
    pos,sd = Windows.full(grid).positions(),theirs['flow']['model']
    model = plain(load_croco(files['flow']))
    with torch.no_grad():
        one,two = encode(sd, img1, pos),encode(sd, img2, pos)
        for a,b in zip(model.encoder.forward_intermediates(img1), one): assert error(a, b)<1e-5
        deep, = model.decoder(one[-1], two[-1], pos, pos)
        assert error(deep, decode(sd, linear(one[-1], sd, 'decoder_embed'), linear(two[-1], sd, 'decoder_embed'), pos))<1e-5
        assert model(img1, img2)[0].shape==(1,3,*img1.shape[2:])

def test_pretraining_goes_on(files, theirs):
    "The prediction head's pixels come in our order"
    img1,img2 = torch.rand(2,1,3,80,112, generator=torch.Generator().manual_seed(1))
    shown = sample_tokens((5,7), 6, generator=torch.Generator().manual_seed(2))
    model = plain(load_croco(files['pretrained'], 'pretrain'))
    with torch.no_grad():
        assert error(model(img1, img2, shown)[0], complete(theirs['pretrained']['model'], img1, img2, shown, Windows.full((5,7)).positions()))<1e-5

# --- Other layouts

@pytest.fixture
def v1(theirs, tmp_path):
    "As the first CroCo: absolute positions for 14x14 tokens, no arguments"
    at = Windows.full((14,14)).positions()
    sd = theirs['pretrained']['model'] | {f'{k}_pos_embed': sincos_pos(at, kw[f'{k}_embed_dim'])[0] for k in ('enc','dec')}
    heads = argparse.Namespace(model=f"CroCoNet(enc_num_heads={kw['enc_num_heads']}, dec_num_heads={kw['dec_num_heads']}, pos_embed='cosine')")
    torch.save(dict(model=sd, args=heads), tmp_path/'CroCo.pth')
    return tmp_path/'CroCo.pth'

def test_absolute_positions(v1):
    f = read_croco(v1)
    img1,img2 = torch.rand(2,1,3,224,224, generator=torch.Generator().manual_seed(1))
    shown = sample_tokens((14,14), 19, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        assert error(load_croco(v1)(img1), encode(f.weights, img1)[-1])<1e-5
        assert error(plain(load_croco(v1, 'pretrain'))(img1, img2, shown)[0], complete(f.weights, img1, img2, shown))<1e-5

def test_absolute_positions_are_resized(v1):
    "At another grid the table is resized bicubically, for windows too"
    f,grid = read_croco(v1),(5,9)
    def resized(k): return F.interpolate(f.weights[k].T.unflatten(1, (14,14))[None], size=grid, mode='bicubic')[0].flatten(1).T
    sd = f.weights | {k: resized(k) for k in ('enc_pos_embed','dec_pos_embed')}
    img1,img2 = torch.rand(2,1,3,80,144, generator=torch.Generator().manual_seed(1))
    shown = sample_tokens(grid, 9, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        assert error(load_croco(v1)(img1), encode(sd, img1)[-1])<1e-5
        assert error(plain(load_croco(v1, 'pretrain'))(img1, img2, shown)[0], complete(sd, img1, img2, shown))<1e-5
        assert load_croco(v1, 'flow', head='linear')(img1, img2)[0].shape==(1,3,80,144)

def test_other_tables_are_refused(v1, tmp_path):
    f = read_checkpoint(v1)
    f['model']['enc_pos_embed'] = f['model']['enc_pos_embed'].flip(0)
    with pytest.raises(ValueError, match='no sine-cosine table'): load_croco(rewrite(tmp_path/'x.pth', f))

def test_architecture_from_shapes():
    "Released sizes without any argument in the file"
    for E,Ld,D,enc,dec in ((768,12,768,12,12),(1024,12,768,16,12),(768,8,512,12,16)):
        sd = {'patch_embed.proj.weight': torch.empty(E,3,16,16, device='meta'), 'decoder_embed.weight': torch.empty(D,E, device='meta'),
              **{f'enc_blocks.{i}.mlp.fc1.weight': torch.empty(4*E,E, device='meta') for i in range(12)},
              **{f'dec_blocks.{i}.norm1.bias': torch.empty(D, device='meta') for i in range(Ld)}}
        from winwin.models.released import _inferred
        got = _inferred(sd)
        assert (got['enc_num_heads'],got['dec_num_heads'],got['dec_depth'],got['mlp_ratio'],got['pos_embed'])==(enc,dec,Ld,4,'RoPE100')

@pytest.mark.parametrize('source', ['croco_kwargs','croco_args','model','a dict'])
def test_where_the_architecture_is_found(theirs, tmp_path, source):
    call = 'CroCoNet(' + ', '.join(f'{k}={v!r}' for k,v in kw.items()) + ', norm_layer=partial(nn.LayerNorm, eps=1e-6))'
    args = {'a dict': dict(args=dict(croco_args=kw, task='flow')), 'croco_kwargs': dict(croco_kwargs=kw), 'croco_args': dict(args=argparse.Namespace(croco_args=kw)), 'model': dict(args=argparse.Namespace(model=call))}
    torch.save(dict(model=theirs['pretrained']['model'], optimizer=dict(state={}), epoch=3, **args[source]), tmp_path/'x.pth')
    f = read_croco(tmp_path/'x.pth')
    assert {k: f.kwargs[k] for k in kw}==kw and f.layout=='pretrained'

@pytest.fixture
def dust3r(theirs, tmp_path):
    sd = {k: v for k,v in theirs['pretrained']['model'].items() if not k.startswith('prediction_head')}
    sd |= {k.replace('dec_blocks.', 'dec_blocks2.'): v for k,v in sd.items() if k.startswith('dec_blocks.')}
    sd |= {f'downstream_head{i}.dpt.act_postprocess.0.0.weight': torch.zeros(3) for i in (1,2)}
    words = ', '.join(f'{k}={v!r}' for k,v in kw.items())
    call = f"AsymmetricMASt3R({words}, img_size=(512, 512), depth_mode=('exp', -inf, inf), patch_embed_cls='ManyAR_PatchEmbed')"
    torch.save(dict(model=sd, args=argparse.Namespace(model=call)), tmp_path/'dust3r.pth')
    return tmp_path/'dust3r.pth'

def test_dust3r(dust3r, expected):
    "The encoder is CroCo's, images are normalised with 0.5; the decoders are left"
    m = load_croco(dust3r)
    with torch.no_grad(): assert error(m(expected['img1']), expected['encoder_last'])<1e-4
    assert m.mean==m.std==(.5,.5,.5) and m.loaded['left']==['dec_blocks','dec_blocks2','dec_norm','decoder_embed','downstream_head1','downstream_head2','mask_token']
    seg = load_croco(dust3r, 'seg', num_classes=3, head='linear')
    assert seg.mean.flatten().tolist()==[.5]*3 and seg.std.flatten().tolist()==[.5]*3
    for what in ('flow','pretrain'):
        with pytest.raises(ValueError, match='two decoders'): load_croco(dust3r, what)

def test_safetensors_with_its_config(dust3r, expected, tmp_path):
    from safetensors.torch import save_file
    save_file({k: v.clone() for k,v in read_checkpoint(dust3r)['model'].items()}, tmp_path/'model.safetensors')
    (tmp_path/'config.json').write_text(json.dumps(kw | dict(head_type='dpt')))
    with torch.no_grad(): assert error(load_croco(tmp_path/'model.safetensors')(expected['img1']), expected['encoder_last'])<1e-4

def test_older_pickles_and_parallel_prefixes(theirs, expected, tmp_path):
    f = theirs['pretrained']
    torch.save(f | dict(model={f'module.{k}': v for k,v in f['model'].items()}), tmp_path/'old.pth', _use_new_zipfile_serialization=False)
    with torch.no_grad(): assert error(load_croco(tmp_path/'old.pth')(expected['img1']), expected['encoder_last'])<1e-4

def test_half_precision_files_become_float(theirs, tmp_path):
    f = theirs['pretrained']
    m = load_croco(rewrite(tmp_path/'h.pth', f, model={k: v.half() for k,v in f['model'].items()}))
    assert {p.dtype for p in m.parameters()}=={torch.float32}

def test_stereo(files, theirs, tmp_path):
    "Two channels are no flow: the head is fresh, unless it is asked for"
    sd = {k: v[:2].clone() if k.startswith('head.dpt.head.4') else v for k,v in theirs['flow']['model'].items()}
    args = argparse.Namespace(**vars(theirs['flow']['args']) | dict(task='stereo'))
    path = rewrite(tmp_path/'s.pth', theirs['flow'], model=sd, args=args)
    assert read_croco(path).layout=='stereo' and load_croco(path).loaded['fresh']==[]
    assert load_croco(path, 'flow').loaded['fresh']==['head']
    m = load_croco(path, 'flow', num_outputs=2)
    assert m.loaded['fresh']==[] and m(*torch.rand(2,1,3,32,48))[0].shape==(1,2,32,48)

@pytest.mark.parametrize('what,over,fresh', [('seg',dict(num_classes=4),['head']), ('depth',{},['head']), ('flow',{},[]), ('flow',dict(head='linear'),['head'])])
def test_saved_and_made_again(files, tmp_path, what, over, fresh):
    m = load_croco(files['flow'], what, **over).eval()
    assert m.loaded['fresh']==fresh
    again = load_model(save_model(m, tmp_path/'m')).eval()
    imgs = torch.rand(2 if what=='flow' else 1, 1,3,48,80)
    with torch.no_grad(): assert torch.equal(m(*imgs)[0], again(*imgs)[0])

def test_released_sizes_are_names_of_ours():
    "No argument needs to be stored for the sizes that were released"
    from winwin.models.dense import decoder_sizes
    from winwin.models.released import CrocoFile, _changed
    from winwin.models.vit import Decoder, ViT, vit_sizes
    for size,E,n,h in (('base',768,12,12),('large',1024,24,16)):
        f = CrocoFile('x', 'pretrained', dict(enc_embed_dim=E, enc_depth=n, enc_num_heads=h, dec_embed_dim=768, dec_depth=12, dec_num_heads=12, pos_embed='RoPE100'),
                      {'patch_embed.proj.weight': torch.empty(E,3,16,16, device='meta')})
        enc,dec = croco_arguments(f)
        assert _changed(ViT, enc, vit_sizes[size])=={} and _changed(Decoder, dec, decoder_sizes[size])=={}

def test_there_and_back(files, theirs):
    for name,what in (('flow','flow'),('pretrained','pretrain')):
        back,sd = to_croco(load_croco(files[name], what)),theirs[name]['model']
        assert back.keys()<=sd.keys() and all(torch.equal(back[k], sd[k]) for k in back)

# --- Mistakes and malice

class Trap:
    def __init__(self, path): self.path = str(path)
    def __reduce__(self): return os.mkdir,(self.path,)

@pytest.mark.parametrize('where', ['args','model','croco_kwargs'])
def test_malicious_pickles_are_refused_and_not_run(theirs, tmp_path, where):
    sprung = tmp_path/'sprung'
    bad = theirs['pretrained'] | {where: Trap(sprung) if where!='model' else theirs['pretrained']['model'] | dict(x=Trap(sprung))}
    for zipped in (True,False):
        torch.save(bad, tmp_path/'bad.pth', _use_new_zipfile_serialization=zipped)
        with pytest.raises(ValueError, match='nothing of it was run'): load_croco(tmp_path/'bad.pth')
    (tmp_path/'bare.pth').write_bytes(pickle.dumps(Trap(sprung), protocol=2))
    with pytest.raises(ValueError, match='refused|no checkpoint'): load_croco(tmp_path/'bare.pth')
    assert not sprung.exists()
    torch.load(tmp_path/'bad.pth', weights_only=False) # the trap works
    assert sprung.exists()

def test_calls_are_not_run(tmp_path):
    text = f"CroCoNet(enc_depth=__import__('os').mkdir({str(tmp_path/'sprung')!r}), dec_depth=3)"
    assert literal_kwargs(text)==dict(dec_depth=3) and not (tmp_path/'sprung').exists()
    for odd in ('', 'CroCoNet', '1+1', 'f(**x)', '('*5000, 'f(x=' + '['*3000): assert literal_kwargs(odd)=={}

def test_missing_and_unknown_keys_are_listed(files, theirs, tmp_path):
    f = theirs['flow']
    sd = {k: v for k,v in f['model'].items() if k!='enc_blocks.2.norm1.bias'} | dict(extra=torch.zeros(1))
    path = rewrite(tmp_path/'x.pth', f, model=sd)
    with pytest.raises(ValueError, match=r'missing: encoder\.blocks\.2\.norm1\.bias; unknown: extra'): load_croco(path)
    with pytest.warns(UserWarning, match='unknown: extra'): m = load_croco(path, strict=False)
    assert torch.isfinite(m.encoder.blocks[2].norm1.bias).all() and m.encoder.blocks[2].norm1.bias.abs().max()==0
    cut = {k: v for k,v in f['model'].items() if 'refinenet2' not in k}
    with pytest.raises(ValueError, match='missing: head.scratch.refinenet2') as e: load_croco(rewrite(tmp_path/'y.pth', f, model=cut))
    for k in f['model'].keys()-cut.keys(): assert k.replace('head.dpt.', 'head.') in str(e.value) # every one of them
    cut = {k: v for k,v in f['model'].items() if '.norm1.bias' not in k}
    with pytest.raises(ValueError, match=r'missing: encoder\.blocks\.0-3\.norm1\.bias, decoder\.blocks\.0-\d+\.norm1\.bias$'): load_croco(rewrite(tmp_path/'z.pth', f, model=cut))

def test_arguments_that_contradict_the_tensors(theirs, tmp_path):
    with pytest.raises(ValueError, match=r'64, 3, 16, 16\) in the file, \(32, 3, 16, 16\) in the model'):
        load_croco(rewrite(tmp_path/'x.pth', theirs['pretrained'], croco_kwargs=kw | dict(enc_embed_dim=32)))

@pytest.mark.parametrize('what', ['flow','nothing'])
def test_what_cannot_be(theirs, tmp_path, what):
    sd = {k: v for k,v in theirs['pretrained']['model'].items() if k.startswith(('patch_embed','enc_'))}
    path = rewrite(tmp_path/'x.pth', dict(croco_kwargs={k: v for k,v in kw.items() if 'dec' not in k}), model=sd)
    with pytest.raises(ValueError, match="holds no decoder|ask for 'encoder'"): load_croco(path, what)

def test_files_that_are_something_else(tmp_path):
    torch.save(dict(model={'conv1.weight': torch.zeros(1)}), tmp_path/'x.pth')
    with pytest.raises(ValueError, match='no file of the CroCo family.*conv1.weight'): load_croco(tmp_path/'x.pth')
    (tmp_path/'y.pth').write_bytes(b'PK nonsense')
    with pytest.raises(ValueError, match='broken|refused'): load_croco(tmp_path/'y.pth')
    with pytest.raises(FileNotFoundError): load_croco(tmp_path/'z.pth')

def test_one_copy_of_the_weights(tmp_path):
    "In a fresh process the peak grows by little more than the weights themselves, all of them touched"
    m = create_model('winwin_pretrain_small', decoder=dict(depth=4))
    torch.save(dict(model=to_croco(m), optimizer={str(i): v.clone() for i,v in enumerate(m.state_dict().values())},
                    croco_kwargs=dict(enc_num_heads=6, dec_num_heads=6)), tmp_path/'big.pth')
    code = f'''
import torch, resource, winwin.models.hub
from winwin.models.released import load_croco
def peak(): return int(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1])/1024
before = peak()
m = load_croco({str(tmp_path/'big.pth')!r}, 'pretrain')
total = sum(p.detach().sum().item() for p in m.parameters())
print(peak()-before, sum(p.numel() for p in m.parameters())*4/2**20)'''
    if not Path('/proc/self/status').exists(): pytest.skip('needs Linux')
    out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout
    grown,size = map(float, out.split())
    assert size>100 and grown<1.3*size+15, (grown,size)
