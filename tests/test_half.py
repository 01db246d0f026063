"""Half precision: types on a 'cuda' of fake tensors, and real values in fp16 on the CPU (bf16 ends the process on some CPUs).

Products are in half precision; the tokens between blocks, rotations, losses and probes are in float32, sums of metrics in float64.
"""
import contextlib, unittest.mock as mock
import accelerate, pytest, torch, torch.nn as nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
import winwin.models.layers, winwin.models.vit, winwin.training.loop as loop
from winwin import *
from winwin.attention import attention_entropy, attention_rows, self_probability
from winwin.models import rope_table, rotate_pairs
from winwin.tasks import make_task
from winwin.training.loop import TrainConfig, TrainRun, fit
from test_devices import EXTRA, FRAMES, PAIRS, SCENES, SEG, W, tiny

HALF = dict(bf16=torch.bfloat16, fp16=torch.float16)
MODELS = dict(linear=('seg',dict(head='linear')), convnext=('seg',{}), upsample=('seg',dict(head='upsample')), dpt=('depth',{}), sincos=('seg',dict(pos='sincos')),
              resized=('seg',dict(pos='sincos:4x4')), vitdet=('seg',dict(local_window=3, global_blocks=(1,3))), relative=('seg',dict(relative=True)),
              checkpointing=('seg',dict(checkpointing=True)), flow=('flow',dict(depth=4, relative=True, tied=True, flow_scale=16.)),
              decoupled=('flow',dict(depth=4, head='decoupled')), matching=('flow',dict(head='matching')), pretrain=('pretrain',{}))
BACKBONES = 'dinov3-small','eva02-tiny','pe-tiny','rope-small','rope-mixed-small','dinov2-small','vit-tiny'

@contextlib.contextmanager
def autocast(device, dtype):
    "As `torch.autocast`, which switches itself off for 'cuda' where there is no GPU"
    was = torch.is_autocast_enabled(device),torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, dtype)
    torch.autocast_increment_nesting()
    try: yield
    finally:
        if torch.autocast_decrement_nesting()==0: torch.clear_autocast_cache()
        torch.set_autocast_enabled(device, was[0])
        torch.set_autocast_dtype(device, was[1])

def make_fake(model, mode, device):
    "Give a model fake tensors on a device"
    def new(t): return torch.empty(t.shape, dtype=t.dtype, device=device)
    with mode:
        for m in model.modules():
            m._parameters.update({k: nn.Parameter(new(p), p.requires_grad) for k,p in m._parameters.items() if p is not None})
            m._buffers.update({k: new(b) for k,b in m._buffers.items() if b is not None})
    return model

def spy(model):
    "What blocks return and what tables they are given"
    seen = dict(stream=set(), tables=set())
    def see(module, args, out):
        seen['stream'].add(out.dtype)
        seen['tables'] |= {a.dtype for a in args[1:] if torch.is_tensor(a) and a.ndim==4 and a.shape[-1]==2}
    for module in model.modules():
        if isinstance(module, (winwin.models.layers.Block,winwin.models.layers.DecoderBlock)): module.register_forward_hook(see)
    return seen

def run_fake(model, device, dtype, frames=1, windows=W, grad=False):
    mode,P = FakeTensorMode(),model.patch_size
    model = make_fake(model, mode, device)
    with mode, autocast(device, dtype), torch.set_grad_enabled(grad):
        w = Windows.unchecked(*(None if t is None else mode.from_tensor(t).to(device) if torch.is_tensor(t) else t for t in (windows.yx,windows.sizes,windows.grid,windows.extra)))
        out = model(*[torch.rand(2,3,8*P,12*P, device=device) for _ in range(frames)], *[w]*frames)
        assert {o.device.type for o in out}=={device}
        if grad: sum(o.float().square().mean() for o in out).backward()
    return [n for n,p in model.named_parameters() if grad and p.requires_grad and p.grad is None]

@pytest.mark.parametrize('name', MODELS)
def test_types_on_a_gpu(name):
    task,over = MODELS[name]
    for half in HALF.values():
        for windows in (W,) if name in ('vitdet','pretrain') else (W,EXTRA):
            model = tiny(task, **over)
            seen = spy(model)
            run_fake(model, 'cuda', half, 1 if task in ('seg','depth') else 2, windows)
            assert seen['stream']=={torch.float32} and seen['tables']<={torch.float32}

@pytest.mark.parametrize('name', BACKBONES)
def test_backbones_of_timm_on_a_gpu(name):
    for half in HALF.values(): run_fake(create_model(f'{name}:linear', depth=2), 'cuda', half)

@pytest.mark.parametrize('name', sorted(MODELS.keys()-{'matching'})) # whose crops read their corners, on a CPU
def test_every_parameter_gets_a_gradient(name): # on a fake CPU: the engine wants real streams for 'cuda'
    task,over = MODELS[name]
    assert run_fake(tiny(task, **over), 'cpu', torch.bfloat16, 1 if task in ('seg','depth') else 2, grad=True)==[]

@pytest.mark.parametrize('task,options', [('seg',{}), ('depth',{}), ('flow',dict(match=1.)), ('flow',dict(match=1., kind='epe')), ('pretrain',{})])
def test_losses_and_gradients_in_fp16_are_those_of_float32(task, options):
    head = 'matching' if options.get('kind')=='epe' else 'linear'
    model = tiny(task, **{} if task=='pretrain' else dict(head=head))
    work = make_task(task, SEG) if task=='seg' else make_task(task, **options)
    batch = {k: (SCENES if task in ('seg','depth') else FRAMES)[k] for k in work.keys}
    batch = work.draw_windows(batch, parse_scheme('full' if task=='pretrain' else '2x4'), model.patch_size, torch.Generator().manual_seed(0))
    losses,grads = [],[]
    for on in (False,True):
        model.zero_grad()
        with torch.autocast('cpu', torch.float16, enabled=on): loss = work.batch_loss(model, batch, model.patch_size)
        loss.backward()
        assert loss.dtype==torch.float32
        losses.append(loss.item())
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert abs(losses[1]-losses[0])<5e-3*abs(losses[0]) # fp16 has 11 bits
    assert torch.cosine_similarity(*grads, 0)>.99

def test_probes_in_autocast_are_those_of_float32():
    q,k = torch.randn(2,1,2,40,16, generator=torch.Generator().manual_seed(0))
    for probe in (self_probability, attention_entropy, lambda q,k: attention_rows(q, k, [1,5]), lambda q,k: self_probability(q, k, route='chunked')):
        with torch.autocast('cpu', torch.float16): half = probe(q, k)
        torch.testing.assert_close(half, probe(q, k), atol=0, rtol=0)

def test_rotations_are_exact_at_the_far_end_of_8k():
    "Positions of a 8192 px image in fp16 would be off by 2 tokens"
    far = torch.tensor([[[511,511],[4095,4095]]])
    exact = rope_table(far.double(), 64).double()
    n = torch.arange(16, dtype=torch.float64)
    angle = (far.double()[...,None]*100.**(-n/16)).flatten(-2)
    for half in HALF.values():
        with autocast('cpu', half): table = rope_table(far, 64)
        assert table.dtype==torch.float32
        torch.testing.assert_close(table.double(), torch.stack([angle.cos(),angle.sin()], -1), atol=5e-4, rtol=0) # 4095 has 12 of the 24 bits
    x = torch.randn(1,2,64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(rotate_pairs(x.half(), table).float(), rotate_pairs(x, table), atol=4e-3, rtol=0)

@pytest.mark.parametrize('task', ['seg','depth','flow','pretrain'])
def test_a_half_model_is_scored_like_a_full_one(task):
    data = SEG if task in ('seg','depth') else PAIRS
    work = make_task(task, SEG) if task=='seg' else make_task(task)
    model = tiny(task, **{} if task=='pretrain' else dict(head='linear'))
    full,half = (evaluate(m, [data[0]], work, progress=False)[work.score] for m in (model, model.half()))
    assert abs(half-full)<2e-2*abs(full)+1e-3
    assert work.metrics().zeros().dtype in (torch.float64,torch.int64)

# --- accelerate

@pytest.fixture
def fresh():
    accelerate.state.AcceleratorState._reset_state(True)
    yield
    accelerate.state.AcceleratorState._reset_state(True)

@pytest.mark.parametrize('version,wanted', [((7,5),'fp16'), ((8,0),'bf16')], ids=['Turing','Ampere'])
def test_auto_is_what_the_gpu_is_fast_at(version, wanted):
    class Properties: major,minor = version
    gpu = dict(is_available=lambda: True, current_device=lambda: 0, get_device_properties=lambda d: Properties, _check_bf16_tensor_supported=lambda d: True)
    with mock.patch.multiple(torch.cuda, **gpu), mock.patch.object(loop, 'Accelerator', lambda mixed_precision,**other: mixed_precision):
        assert loop._accelerator(TrainConfig())==wanted

def test_two_precisions_in_one_process(fresh):
    for precision in ('no','bf16','no'): assert loop._accelerator(TrainConfig(precision=precision)).mixed_precision==precision

def test_what_fit_returns_is_a_plain_model(fresh):
    "accelerate makes `forward` of the trained model run under autocast; neither it nor the average may stay so"
    model = tiny(head='linear')
    with mock.patch.object(loop, '_all_steps', lambda *args: None):
        result = fit(model, SEG, TrainConfig(ema=.9, layer_decay=None, precision='bf16'), progress=False)
    assert not any(hasattr(m.forward, '__wrapped__') for m in (model,result.model))
