"Attention scaled by the logarithm of the number of tokens: windows, full images, capture, temperature, files"
import math
import pytest, torch
from winwin import capture, create_model, export_model, sample_windows
from winwin.attention.recorder import AttentionRecorder
from winwin.models.controls import tempered

small = dict(num_classes=3, dim=48, depth=2, num_heads=2, head='linear')
W = sample_windows((6,8), [(3,3),(2,2)], generator=torch.Generator().manual_seed(0)) # 13 tokens

@pytest.fixture
def pair():
    "A plain model and the same weights with `log_n`"
    torch.manual_seed(0)
    plain,ours = create_model('winwin_seg_micro', **small),create_model('winwin_seg_micro', **small, log_n=W.num_tokens)
    ours.load_state_dict(plain.state_dict())
    return [m.eval().requires_grad_(False) for m in (plain,ours)]

def image(h=6, w=8): return torch.rand(1,3,8*h,8*w, generator=torch.Generator().manual_seed(1))

def test_equals_the_plain_model_at_the_tokens_of_training(pair):
    plain,ours = (m.encoder for m in pair)
    assert torch.equal(plain(image(), W), ours(image(), W))
    cut = image(1, 13)
    assert torch.equal(plain(cut), ours(cut)) # a full image of 13 tokens
    ratio = math.log(48)/math.log(13)
    with tempered(plain, ratio): expected = plain(image())
    torch.testing.assert_close(ours(image()), expected, atol=1e-5, rtol=1e-5)
    assert (expected-plain(image())).abs().max()>1e-2

def test_capture_and_temperature_see_the_scaled_logits(pair):
    plain,ours = pair
    with capture(plain, 0) as a: plain(image())
    with tempered(ours, 1.2),capture(ours, 0) as b: ours(image())
    ratio = math.log(48)/math.log(13)
    torch.testing.assert_close(b[0].q@b[0].k.mT, ratio*(a[0].q@a[0].k.mT), atol=1e-4, rtol=1e-4)
    assert b[0].tau==1.2
    with tempered(ours, 1.2): once = ours(image())[0]
    with tempered(plain, 1.2*ratio): torch.testing.assert_close(once, plain(image())[0], atol=1e-4, rtol=1e-4)

def test_explorers_entropy(pair):
    plain,ours = (AttentionRecorder(m, image(), W) for m in pair)
    name = next(iter(plain.layers))
    for view,ratio in (('windows',1.),('full',math.log(48)/math.log(13))):
        rows = [m.look(name, view) for m in (plain,ours)]
        torch.testing.assert_close(rows[1].q@rows[1].k.mT, ratio*(rows[0].q@rows[0].k.mT), atol=1e-4, rtol=1e-4)

@pytest.mark.parametrize('dynamic', [False,True])
def test_exported(pair, tmp_path, dynamic):
    ours = pair[1]
    f = export_model(ours, tmp_path/'m.onnx', **dict(dynamic=True) if dynamic else dict(size=(48,64)))
    for h,w in ((6,8),(3,5),(9,4)) if dynamic else ((6,8),):
        torch.testing.assert_close(f(image(h, w)), ours(image(h, w))[0], atol=1e-4, rtol=1e-4)

def test_compiled_for_any_number(pair):
    ours = pair[1].encoder
    fast = torch.compile(ours, backend='aot_eager', fullgraph=True)
    for h,w in ((6,8),(3,5)): torch.testing.assert_close(fast(image(h, w)), ours(image(h, w)), atol=1e-5, rtol=1e-5)

def test_half_precision_and_gradients():
    torch.manual_seed(0)
    model = create_model('winwin_seg_micro', **small, log_n=13)
    with torch.autocast('cpu', torch.bfloat16): out = model(image())[0]
    out.float().square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
