"CroCo: files with the released layout load into our encoder and DPT head and give the released architecture's numbers."
import argparse, json, subprocess, sys
from pathlib import Path
import numpy as np, pytest, torch
import torch.nn.functional as F
from winwin.heads import DPTHead, dpt_hooks
from winwin.rope import apply_rope, half_to_pairs
from winwin.vit import Attention, Mlp, ViT, attend
from winwin.windows import Windows

DATA = Path(__file__).parent/'data'

@pytest.fixture(scope='module')
def files(tmp_path_factory):
    "The two checkpoints, read as foreign files should be: without running what is in them"
    out = tmp_path_factory.mktemp('croco')
    subprocess.run([sys.executable, DATA/'croco_fixture.py', DATA/'croco_tiny.json', out], check=True)
    with torch.serialization.safe_globals([argparse.Namespace]):
        return {k: torch.load(out/f'{k}.pth', map_location='cpu', weights_only=True) for k in ('pretrained','flow')}

@pytest.fixture(scope='module')
def expected(): return {k: torch.from_numpy(v) for k,v in np.load(DATA/'croco_tiny.npz').items()}

spec = json.loads((DATA/'croco_tiny.json').read_text())
kw = spec['croco_kwargs']

def under(sd, prefix): return {k.removeprefix(prefix): v for k,v in sd.items() if k.startswith(prefix)}

def ours(w, heads):
    "Fused q, k, v rows with q and k in our channel order"
    q,k,v = w.chunk(3)
    return torch.cat([half_to_pairs(q, heads), half_to_pairs(k, heads), v])

def encoder(sd):
    m = ViT(kw['enc_embed_dim'], kw['enc_depth'], kw['enc_num_heads'])
    new = {k.replace('enc_blocks.', 'blocks.').replace('enc_norm.', 'norm.'): v for k,v in sd.items() if k.startswith(('patch_embed.','enc_blocks.','enc_norm.'))}
    m.load_state_dict({k: ours(v, m.num_heads) if '.qkv.' in k else v for k,v in new.items()})
    return m.eval()

def error(a, b): return ((a-b).norm()/b.norm()).item()

@pytest.mark.parametrize('name', ['pretrained','flow'])
def test_encoder(files, expected, name):
    "First block and last block with the final norm, from either file, with and without an explicit full window"
    m = encoder(files[name]['model'])
    with torch.no_grad():
        for w in (None, Windows.full((6,8))):
            states = m.forward_intermediates(expected['img1'], w)
            assert error(states[0], expected['encoder_first'])<1e-4
            assert error(states[-1], expected['encoder_last'])<1e-4
    assert len(states)==kw['enc_depth']

def test_channel_order_matters(files, expected):
    "Without reordering q and k the numbers are others: the check above can fail"
    m = encoder(files['pretrained']['model'])
    m.blocks[0].attn.qkv.weight.data = files['pretrained']['model']['enc_blocks.0.attn.qkv.weight']
    with torch.no_grad(): assert error(m.forward_intermediates(expected['img1'])[0], expected['encoder_first'])>1e-3

def norm(x, sd, key): return F.layer_norm(x, x.shape[-1:], sd[f'{key}.weight'], sd[f'{key}.bias'], 1e-6)

def decode(sd, x, y, pos):
    "Every decoder block's tokens of frame 1, which look at frame 2's; the last ones normed"
    dim,heads,out = kw['dec_embed_dim'],kw['dec_num_heads'],[]
    x,y = (F.linear(o, sd['decoder_embed.weight'], sd['decoder_embed.bias']) for o in (x,y))
    for i in range(kw['dec_depth']):
        b = under(sd, f'dec_blocks.{i}.')
        attn,mlp = Attention(dim, heads),Mlp(dim, 4*dim)
        attn.load_state_dict({k: ours(v, heads) if 'qkv' in k else v for k,v in under(b, 'attn.').items()})
        mlp.load_state_dict(under(b, 'mlp.'))
        x = x + attn(norm(x, b, 'norm1'), pos)
        def project(o, k): return F.linear(o, b[f'cross_attn.{k}.weight'], b[f'cross_attn.{k}.bias'])
        memory = norm(y, b, 'norm_y')
        q,k,v = (project(o, n).unflatten(-1, (heads,-1)).transpose(1,2) for o,n in ((norm(x, b, 'norm2'),'projq'),(memory,'projk'),(memory,'projv')))
        x = x + project(attend(apply_rope(q, pos), apply_rope(k, pos), v).transpose(1,2).flatten(2), 'proj')
        x = x + mlp(norm(x, b, 'norm3'))
        out.append(x)
    return [*out[:-1],norm(out[-1], sd, 'dec_norm')]

def flow_head(sd, alias):
    "Our DPT head from either of the two sets of names that the files hold"
    hooks = dpt_hooks(kw['enc_depth'], kw['dec_depth'])
    dims = [kw['enc_embed_dim'] if h<kw['enc_depth'] else kw['dec_embed_dim'] for h in hooks]
    h = under(sd, 'head.dpt.')
    if alias=='numbered':
        h = {k: v for k,v in h.items() if not k.startswith(('act_postprocess.','scratch.layer_rn.'))}
        for i in range(4): h = {k.replace(f'act_{i+1}_postprocess.', f'act_postprocess.{i}.').replace(f'scratch.layer{i+1}_rn.', f'scratch.layer_rn.{i}.'): v for k,v in h.items()}
    else: h = {k: v for k,v in h.items() if not (k.startswith('act_') and k[4].isdigit()) and not k.startswith(tuple(f'scratch.layer{i}_rn' for i in range(1,5)))}
    fused = h['scratch.layer_rn.0.weight'].shape[0]
    head = DPTHead(dims, 3, layer_dims=spec['layer_dims'], feature_dim=fused, last_dim=h['head.2.weight'].shape[0])
    head.load_state_dict(h)
    return head,hooks

@pytest.mark.parametrize('alias', ['listed','numbered'])
def test_flow(files, expected, alias):
    "Encoder, decoder and DPT head together give the released flow and confidence: names, hooks and norms are right"
    sd = files['flow']['model']
    m,(head,hooks),w = encoder(sd),flow_head(sd, alias),Windows.full((6,8))
    with torch.no_grad():
        one,two = (m.forward_intermediates(expected[k]) for k in ('img1','img2'))
        states = one+decode(sd, one[-1], two[-1], w.positions())
        out, = head([states[h] for h in hooks], w)
        assert error(out, expected['flow_out'])<1e-4
        wrong, = head([states[min(h, 3 if i==0 else 10)] for i,h in enumerate(hooks)], w)
        assert error(wrong, expected['flow_out'])>1e-3 # other hooks give another flow

def test_every_key_is_used(files):
    "Encoder, decoder and head account for all of the flow file"
    sd = files['flow']['model']
    known = ('patch_embed.','enc_blocks.','enc_norm.','decoder_embed.','dec_blocks.','dec_norm.','head.dpt.')
    assert all(k.startswith(known) for k in sd)
