"The model of two frames: the released numbers, windows of either frame in any order, gradients, saving."
import pytest, torch
from test_croco import error, expected, files, plain # fixtures among them
from winwin.models.released import load_croco
from winwin.models.vit import Decoder
from winwin.models.dense import create_model
from winwin.models.hub import load_model, save_model
from winwin.windows.layout import Windows
from winwin.windows.sampling import sample_windows

def seeded(n=0): return torch.Generator().manual_seed(n)

@pytest.mark.parametrize('full', [False,True])
def test_released_numbers(files, expected, full):
    "Encoder, decoder and DPT head as one model reproduce CroCo-Flow's output"
    w = Windows.full((6,8)) if full else None
    with torch.no_grad(): out, = plain(load_croco(files['flow']))(expected['img1'], expected['img2'], w, w)
    assert error(out, expected['flow_out'])<1e-4

def test_parameters_of_the_base_model():
    with torch.device('meta'): assert sum(p.numel() for p in create_model('winwin_flow_base').parameters())==219_744_451

def micro(**over): return create_model('winwin_flow_micro', **over).eval().requires_grad_(False)
def frames(B=2, size=(48,64), seed=0): return torch.rand(2,B,3,*size, generator=seeded(seed))

@pytest.mark.parametrize('over', [dict(), dict(head='linear'), dict(relative=True), dict(head='decoupled'), dict(head='convnext', flow_scale=8.)])
def test_windows_of_either_frame_may_be_permuted(over):
    torch.manual_seed(0)
    model,(a,b) = micro(**over),frames()
    w1,w2 = sample_windows((6,8), [(3,3)]*2, 2, seeded(1)),sample_windows((6,8), [(2,2)]*4, 2, seeded(2))
    maps = model(a, b, w1, w2)
    p1,p2 = Windows(w1.yx.flip(1), w1.sizes[::-1], w1.grid),Windows(w2.yx[:,[2,0,3,1]], w2.sizes, w2.grid)
    for x,y in zip(model(a, b, p1, p2), maps[::-1]): assert torch.allclose(x, y, atol=1e-4)
    assert [m.shape for m in maps]==[(2,3,24,24)]*2

@pytest.mark.parametrize('head', ['dpt','linear'])
def test_one_full_window_per_frame_is_the_plain_model(head):
    model,(a,b) = micro(head=head),frames()
    full = Windows.full((6,8), 2)
    plain, = model(a, b)
    for w1,w2 in ((full,full),(None,full),(full,None)): assert torch.allclose(model(a, b, w1, w2)[0], plain, atol=1e-5)

def test_frames_may_show_different_numbers_of_tokens_and_extra_tokens():
    model,(a,b) = micro(),frames()
    w1 = sample_windows((6,8), [(3,4),(2,3)], 2, seeded(3), extra=2)
    maps = model(a, b, w1, sample_windows((6,8), [(4,4)], 2, seeded(4)))
    assert [m.shape[2:] for m in maps]==[(24,32),(16,24)]

def test_match_logits_are_those_of_the_layer():
    "Softmax of the logits, times the values, is what the layer adds"
    model,(a,b) = micro(),frames(1)
    w1,w2 = sample_windows((6,8), [(3,3)], 1, seeded(1)),sample_windows((6,8), [(2,2)]*2, 1, seeded(2))
    layer,got = model.decoder.blocks[1].cross_attn,{}
    h = layer.register_forward_hook(lambda m,args,out: got.update(args=args, out=out))
    maps,logits = model(a, b, w1, w2, match=1)
    h.remove()
    _,_,v = layer.heads(*got['args'])
    assert logits.shape==(1,4,9,8)
    assert torch.allclose(layer.proj((logits.softmax(-1)@v).transpose(1,2).flatten(2)), got['out'], atol=1e-5)
    for x,y in zip(maps, model(a, b, w1, w2)): assert torch.equal(x, y)
    assert not layer._forward_pre_hooks # nothing stays behind

def test_relative_values_are_equivariant():
    "Moving both frames' windows together changes nothing but the place"
    torch.manual_seed(0)
    d = Decoder(32, 32, 2, 4, relative=True).requires_grad_(False)
    x,y = torch.randn(1,9,32),torch.randn(1,5,32)
    p,q = (torch.randint(0, 20, (1,n,2)) for n in (9,5))
    assert torch.allclose(d(x, y, p, q)[0], d(x, y, p+11, q+11)[0], atol=1e-4)
    assert not torch.allclose(d(x, y, p, q)[0], d(x, y, p, q+1)[0], atol=1e-3)

def test_tied_start():
    d = Decoder(32, 32, 2, 4, tied=True)
    for b in d.blocks: assert torch.equal(b.cross_attn.projq.weight, b.cross_attn.projk.weight)

def test_quiet_start():
    "Blocks add nothing at first, and still learn"
    torch.manual_seed(0)
    loud,model = (create_model('winwin_flow_micro', head='linear', quiet=q) for q in (False,True))
    a,b = frames()
    assert torch.equal(model(a, b)[0], model(a, b.flip(0))[0]) and not torch.equal(loud(a, b)[0], loud(a, b.flip(0))[0])
    for p in (model.encoder,model.decoder):
        for k in p.blocks: assert not k.attn.proj.weight.any() and not k.mlp.fc2.weight.any()
    model(a, b)[0].square().mean().backward()
    assert model.decoder.blocks[0].cross_attn.proj.weight.grad.any()

def test_gradients_reach_everything():
    model = create_model('winwin_flow_micro')
    a,b = frames()
    w1,w2 = sample_windows((6,8), [(3,3)]*2, 2, seeded(1)),sample_windows((6,8), [(2,2)]*4, 2, seeded(2))
    sum(m.square().mean() for m in model(a, b, w1, w2)).backward()
    assert [n for n,p in model.named_parameters() if p.requires_grad and p.grad is None]==[]

def test_layer_decay_orders_encoder_decoder_head():
    from timm.optim import create_optimizer_v2
    model = create_model('winwin_flow_micro')
    opt = create_optimizer_v2(model, 'adamw', lr=1., weight_decay=.05, layer_decay=.5)
    scale = {id(p): g['lr_scale'] for g in opt.param_groups for p in g['params']}
    of = lambda n: scale[id(dict(model.named_parameters())[n])]
    order = ['encoder.patch_embed.proj.weight', 'encoder.blocks.0.attn.qkv.weight', 'encoder.blocks.2.mlp.fc1.weight', 'decoder.embed.weight',
             'decoder.blocks.0.attn.qkv.weight', 'decoder.blocks.2.cross_attn.projq.weight', 'head.head.0.weight']
    assert [of(n) for n in order]==sorted(of(n) for n in order) and of(order[-1])==1 and of(order[0])==.5**8

def test_save_and_load(tmp_path):
    model = create_model('winwin_flow_micro', relative=True, head='linear', flow_scale=8.)
    model.decoder.blocks[1].cross_attn.tau = 1.5
    save_model(model, tmp_path/'m')
    again = load_model(tmp_path/'m').eval()
    a,b = frames()
    with torch.no_grad(): assert torch.equal(model.eval()(a, b)[0], again(a, b)[0]) and again.flow_scale==8
    assert again.decoder.blocks[1].cross_attn.tau==1.5

@pytest.mark.parametrize('bad', [dict(head='mlp'), dict(depth=1, decoder=dict(depth=1))])
def test_mistakes_are_named(bad):
    with pytest.raises(ValueError, match='no head|too few'): micro(**bad)
