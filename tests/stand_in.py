"""A GPU that is not there: CPU tensors that are marked as living on 'cuda' or 'mps'.

Torch's fake tensors have no values, so code that reads one (`.item()`, a mask, a whole training run) ends there. Here tensors keep
their values. The mark is on the storage, so views, saved tensors and in-place operations carry it. Within `stand_in('cuda')`:
  * `t.device`, factory functions, `.to()` and generators speak of 'cuda'
  * an operation that mixes the two devices raises, with torch's own exceptions: 0-dim CPU tensors, CPU indices, `copy_`
  * `.numpy()` of a marked tensor raises; so does a generator of the other device, and float64 on 'mps'
  * every wait of the host for the device is counted in `waits`, with the line of winwin that caused it
"""
import collections, contextlib, sys, types, unittest.mock as mock
from pathlib import Path
import torch
from torch import Tensor
from torch.nn.utils import clip_grad
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
import winwin

LIBRARY = str(Path(winwin.__file__).parent)
aten = torch.ops.aten
INDEXING = aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index
WAITING = aten.nonzero, aten.masked_select, aten._unique2, aten.equal, aten.is_nonzero, aten.bincount
COPIES = 'copy_', '_to_copy', '_copy_from', '_foreach_copy_'
NEW = Tensor.new_tensor, Tensor.new_zeros, Tensor.new_ones, Tensor.new_full, Tensor.new_empty, Tensor.new_empty_strided, Tensor.new
FACTORIES = {getattr(torch, k) for k in ('zeros ones empty full arange linspace logspace rand randn randint randperm tensor as_tensor '
             'asarray eye triu_indices tril_indices scalar_tensor from_numpy frombuffer empty_strided').split()}

class Generator(torch.Generator):
    "A generator that claims to be on the device"
    device = torch.device('cuda', 0)

def caller(depth=2):
    "The innermost lines of winwin on the stack"
    frame,lines = sys._getframe(1),[]
    while frame is not None and len(lines)<depth:
        if frame.f_code.co_filename.startswith(LIBRARY): lines.append(f'{frame.f_code.co_filename[len(LIBRARY)+1:]}:{frame.f_lineno}')
        frame = frame.f_back
    return ' < '.join(lines) or 'not in winwin'

def storage(t):
    "The storage of a tensor, whatever mode is on; none for tensors without one"
    try:
        with torch._C.DisableTorchFunction(): return t.untyped_storage()
    except (NotImplementedError, RuntimeError): return None

class Marks:
    "Which storages are on the device ('on'), pinned on the host ('pinned'), or made by kernels for themselves ('any')"
    def __init__(self): self.known = {}

    def add(self, t, kind='on'):
        s = storage(t)
        if s is not None: self.known[s._cdata] = StorageWeakRef(s),kind

    def drop(self, t):
        s = storage(t)
        if s is not None: self.known.pop(s._cdata, None)

    def kind(self, t):
        "'on', 'pinned', 'any' or 'off'"
        s = storage(t)
        found = None if s is None else self.known.get(s._cdata)
        return found[1] if found is not None and not found[0].expired() else 'off'

    def has(self, t): return self.kind(t)=='on'

class Functions(TorchFunctionMode):
    "Passes every call of torch to a `StandIn`"
    def __init__(self, device):
        super().__init__()
        self.device = device

    def __torch_function__(self, func, types, args=(), kwargs=None):
        before,self.device.calling = self.device.calling,func
        try: return self.device.function(self, func, args, dict(kwargs or {}))
        finally: self.device.calling = before

class Kernels(TorchDispatchMode):
    "Passes every kernel to a `StandIn`"
    def __init__(self, device):
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None): return self.device.kernel(func, args, kwargs or {})

class StandIn:
    "The device: marks, rules and the count of waits"
    def __init__(self, kind='cuda'):
        self.device = torch.device(kind, 0)
        self.marks = Marks()
        self.waits = collections.Counter() # (what, where): times
        self.calling = None                # function of torch that is running

    def is_ours(self, device):
        "Whether a device, by any of its names, is this one"
        if isinstance(device, int): return True
        return torch.device(device).type==self.device.type

    def wait(self, what): self.waits[what,caller()] += 1

    def mark(self, t):
        "Put a tensor on the device"
        self.marks.add(t)
        if self.device.type=='mps' and t.dtype in (torch.float64,torch.complex128):
            raise TypeError(f"Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. [{caller()}]")

    # --- calls of torch

    def function(self, mode, func, args, kwargs):
        marks = self.marks
        name = getattr(func, '__name__', '')
        first = args[0] if args and isinstance(args[0], Tensor) else None
        here = first is not None and marks.has(first)
        if name=='__get__': return self.attribute(func, first, args)
        if func is Tensor.get_device: return self.device.index if here else -1
        if func is Tensor.is_pinned: return marks.kind(first)=='pinned'
        if func in (Tensor.numpy,Tensor.__array__) and here:
            raise TypeError(f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() first. [{caller()}]")
        if func is Tensor.tolist and here: self.wait('tolist')
        if func is Tensor.backward: return self.backward(mode, *args, **kwargs)
        if func is Tensor.pin_memory: return self.pin(first)
        if func in (Tensor.to,Tensor.cuda,Tensor.cpu): return self.move(func, *args, **kwargs)
        if func is Tensor.__deepcopy__:
            out = func(*args, **kwargs)
            if here: marks.add(out)
            return out
        if kwargs.get('generator') is not None: self.check_generator(kwargs, here)
        if func in NEW and kwargs.get('device') is None:
            if func is Tensor.new_tensor and here: self.wait('copy to device')
            out = func(*args, **kwargs)
            if here: self.mark(out)
            return out
        device = kwargs.get('device')
        if device is None or torch.device(device).type=='meta': return func(*args, **kwargs)
        return self.make(func, name, args, kwargs)

    def attribute(self, func, t, args):
        "What `t.device`, `t.is_cuda` and the like say"
        name = getattr(getattr(func, '__self__', None), '__name__', '')
        here = t is not None and self.marks.has(t)
        if name=='device' and here: return self.device
        if name in ('is_cuda','is_mps','is_xpu'): return here and name==f'is_{self.device.type}'
        if name=='is_cpu' and here: return False
        return func(*args)

    def backward(self, mode, t, gradient=None, retain_graph=None, create_graph=False, inputs=None):
        "Backward with the mode on: hooks and custom functions see the device"
        with mode: return torch.autograd.backward(t, gradient, retain_graph, create_graph, inputs=inputs)

    def check_generator(self, kwargs, here):
        "Refuse a generator of another device than the result's"
        on = self.is_ours(kwargs['device']) if kwargs.get('device') is not None else here
        kind = kwargs['generator'].device.type
        if (kind==self.device.type)!=on:
            raise RuntimeError(f"Expected a '{self.device.type if on else 'cpu'}' device type for generator but found '{kind}' [{caller()}]")

    def make(self, func, name, args, kwargs):
        "A call with `device=`"
        on = self.is_ours(kwargs.pop('device'))
        data = args[0] if args else kwargs.get('data')
        if isinstance(data, Tensor) and name in ('as_tensor','asarray'):
            return self.move(Tensor.to, data, self.device if on else 'cpu', dtype=kwargs.get('dtype'))
        if name in ('tensor','as_tensor') and on: self.wait('copy to device') # built on the host, copied, waited for
        out = func(*args, **kwargs)
        for t in tree_leaves(out):
            if isinstance(t, Tensor): self.mark(t) if on else self.marks.drop(t)
        return out

    def pin(self, t):
        "A copy in pinned memory"
        out = t.clone()
        self.marks.add(out, 'pinned')
        return out

    def move(self, func, t, *args, **kwargs):
        "`to`, `cuda` and `cpu`"
        was = self.marks.has(t)
        dtype,device,quick = self.wanted(func, args, kwargs)
        if device is not None and not isinstance(device, int) and torch.device(device).type=='meta': return func(t, *args, **kwargs)
        to = was if device is None else self.is_ours(device)
        if to==was:
            out = t if dtype is None or dtype==t.dtype else t.to(dtype)
            if to and out is not t: self.mark(out)
            return out
        pinned = self.marks.kind(t)=='pinned'
        t = t if dtype is None or dtype==t.dtype else t.to(dtype)
        out = Move.apply(t, self, to) if t.requires_grad and torch.is_grad_enabled() else t.clone()
        if not (to and quick and pinned): self.wait('copy to device' if to else 'copy to host')
        if to: self.mark(out)
        else: self.marks.drop(out)
        return out

    def wanted(self, func, args, kwargs):
        "dtype, device and `non_blocking` that a call of `to` asks for"
        if func is Tensor.cuda: return None,self.device,kwargs.get('non_blocking', False)
        if func is Tensor.cpu: return None,'cpu',False
        dtype = device = None
        for o in (*args,kwargs.get('other')):
            if isinstance(o, torch.dtype): dtype = o
            elif isinstance(o, Tensor): dtype,device = o.dtype,self.device if self.marks.has(o) else 'cpu'
            elif isinstance(o, (str,torch.device,int)) and not isinstance(o, bool): device = o
        dtype,device = kwargs.get('dtype') or dtype,kwargs.get('device', device)
        return dtype,device,kwargs.get('non_blocking', any(o is True for o in args))

    # --- kernels

    def kernel(self, func, args, kwargs):
        marks = self.marks
        packet = func.overloadpacket
        name = packet.__name__
        tensors = [t for t in tree_leaves((args,kwargs)) if isinstance(t, Tensor)]
        kinds = [marks.kind(t) for t in tensors]
        here = 'on' in kinds
        if here and {'off','pinned'} & {*kinds} and name not in COPIES: self.check_mix(func, args, tensors, kinds)
        if here: self.count(packet, args, kwargs)
        if name in ('copy_','_copy_from') and marks.has(args[0])!=marks.has(args[1]):
            self.wait('copy to device' if marks.has(args[0]) else 'copy to host')
        if packet is aten._scaled_dot_product_efficient_attention: return self.efficient_attention(*args, **kwargs)
        before = {storage(t)._cdata for t in tensors if storage(t) is not None}
        out = func(*args, **kwargs)
        # what a kernel or the engine makes for itself is wherever it is needed
        inner = not tensors and (self.calling not in FACTORIES or torch._C._current_autograd_node() is not None)
        kind = 'on' if here else 'any' if inner or kinds and {*kinds}=={'any'} else None
        if kind is None or name=='copy_': return out
        for t in tree_leaves(out):
            if not isinstance(t, Tensor) or t.device.type=='meta' or storage(t)._cdata in before: continue
            self.mark(t) if kind=='on' else marks.add(t, kind)
        return out

    def count(self, packet, args, kwargs):
        "Count the wait of a kernel whose result the host must know"
        if packet is aten._local_scalar_dense: self.wait('item')
        elif packet in WAITING: self.wait(packet.__name__)
        elif packet is aten.repeat_interleave and kwargs.get('output_size') is None: self.wait('repeat_interleave')
        elif packet in INDEXING:
            given = [i for i in args[1] if i is not None]
            if any(i.dtype in (torch.bool,torch.uint8) for i in given): self.wait('mask')
            elif any(i.dim() and not self.marks.has(i) for i in given): self.wait('copy to device')

    def check_mix(self, func, args, tensors, kinds):
        "Refuse what torch refuses: tensors of both devices, but for CPU scalars and CPU indices"
        def off(t): return self.marks.kind(t) in ('off','pinned')
        if func.overloadpacket in INDEXING:
            values = args[2] if len(args)>2 and isinstance(args[2], Tensor) and args[2].dim() else None
            me = off(args[0])
            indices = any(i is not None and self.marks.has(i) for i in args[1])
            if not me and (values is None or not off(values)): return
            if me and not indices and (values is None or off(values)): return
        elif all(kind in ('on','any') or not t.dim() for t,kind in zip(tensors, kinds)): return
        what = ', '.join(f'{"cpu" if off(t) else self.device.type}{tuple(t.shape)}' for t in tensors)
        raise RuntimeError(f'Expected all tensors to be on the same device, but found {what} in {func} [{caller()}]')

    def efficient_attention(self, q, k, v, bias, lse, *args, scale=None):
        "CUDA's kernel and its demands; the log-sum is padded to 32 rows"
        assert self.device.type=='cuda' and bias is None and lse and q.dtype!=torch.float64 and q.shape[-1]%8==0
        assert all(t.stride(-1)==1 for t in (q,k,v)), 'the kernel needs the last dimension contiguous'
        out,sums = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, scale=scale)
        pad = torch.full((*sums.shape[:-1], -sums.shape[-1]%32), float('inf'))
        outs = out,torch.cat([sums.float(),pad], -1),torch.zeros(()),torch.zeros(())
        for t in outs: self.mark(t)
        return outs

class Move(torch.autograd.Function):
    "A copy on the other device; its gradient comes back"
    @staticmethod
    def forward(ctx, t, device, to):
        ctx.device,ctx.to = device,to
        out = t.detach().clone()
        device.marks.add(out) if to else device.marks.drop(out)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.clone()
        ctx.device.marks.drop(out) if ctx.to else ctx.device.marks.add(out)
        return out,None,None

@contextlib.contextmanager
def stand_in(kind='cuda'):
    "Within: a machine with one GPU of a kind; yields its `StandIn`"
    device = StandIn(kind)
    plain = torch.Generator
    class AnyGenerator(plain):
        "A generator of either device"
        def __new__(cls, device='cpu'): return Generator() if torch.device(device).type==kind else plain()
    group = clip_grad._group_tensors_by_device_and_dtype
    def group_tensors(lists, *args): # by device, which C++ would take from the tensors
        return {(device.device if device.marks.has(found[0][0][0]) else at,dtype): found for (at,dtype),found in group(lists, *args).items()}
    def pin_batch(batch, *args): return tree_map_only(Tensor, device.pin, batch)
    swaps = [(torch.accelerator,'is_available',lambda *a, **k: True), (torch.accelerator,'current_accelerator',lambda *a, **k: torch.device(kind)),
             (torch.accelerator,'current_stream',lambda *a: types.SimpleNamespace(is_capturing=lambda: False)),
             (torch.utils.data._utils.pin_memory,'pin_memory',pin_batch), (Generator,'device',device.device), (torch,'Generator',AnyGenerator),
             (clip_grad,'_group_tensors_by_device_and_dtype',group_tensors)]
    swaps.append((getattr(torch, kind),'synchronize',lambda *a: None))
    if kind=='cuda': swaps += [(torch.cuda,k,lambda *a: 0) for k in ('max_memory_allocated','memory_allocated')] + [(torch.cuda,'mem_get_info',lambda *a: (18*2**30,24*2**30))]
    with contextlib.ExitStack() as stack:
        for owner,name,value in swaps: stack.enter_context(mock.patch.object(owner, name, value))
        stack.enter_context(Functions(device))
        stack.enter_context(Kernels(device))
        yield device
