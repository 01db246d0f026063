"Windows in other people's loops: pickled, collated, drawn in workers, under DDP"
import pickle, subprocess, sys
import pytest, torch
from torch.utils.data import DataLoader, Dataset, default_collate
from winwin import Windows, sample_windows
from winwin.windows import stack_windows

class Items(Dataset):
    "Images whose windows are drawn where the image is loaded"
    def __init__(self, extra=0): self.extra = extra
    def __len__(self): return 5
    def __getitem__(self, i):
        rng = torch.Generator().manual_seed(i)
        windows = sample_windows((4,6), [(2,2),(1,3)], 1, rng, self.extra)
        return dict(image=torch.full((3,32,48), float(i)), windows=windows)

def equal(a, b): return (a.sizes,a.grid)==(b.sizes,b.grid) and a.index().equal(b.index())

@pytest.mark.parametrize('extra', [0,3])
@pytest.mark.parametrize('workers', [0,2])
def test_default_collate_in_workers(extra, workers):
    batches = list(DataLoader(Items(extra), batch_size=2, num_workers=workers))
    assert [b['windows'].batch for b in batches]==[2,2,1]
    want = stack_windows([Items(extra)[i]['windows'] for i in range(5)])
    assert equal(stack_windows([b['windows'] for b in batches]), want)
    assert equal(pickle.loads(pickle.dumps(want)), want)

def test_nested_and_plain_collate():
    w = [Items()[i]['windows'] for i in range(2)]
    assert equal(default_collate(w), stack_windows(w))
    assert equal(default_collate([(torch.ones(2), [o]) for o in w])[1][0], stack_windows(w))

def test_what_cannot_be_stacked():
    a = Windows.full((4,6))
    for b in (Windows.full((4,7)), Items()[0]['windows'], sample_windows((4,6), [(2,2)], 1)):
        with pytest.raises(ValueError, match='cannot be one batch'): default_collate([a, b])
    with pytest.raises(ValueError, match='cannot be one batch'):
        stack_windows([Items(1)[0]['windows'], Items(2)[0]['windows']])

job = '''
import os, sys, torch, torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from winwin import create_model, sample_windows, seg_loss
torch.set_num_threads(1)
world = int(os.environ.get('WORLD_SIZE', 1))
class Items(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        rng = torch.Generator().manual_seed(i)
        return dict(image=torch.rand(3,32,48, generator=rng), labels=torch.randint(3, (32,48), generator=rng),
                    windows=sample_windows((4,6), [(2,2)]*2, 1, rng))
if __name__=='__main__':
    torch.manual_seed(0)
    model = create_model('winwin_seg_micro', num_classes=3, dim=32, depth=2, num_heads=2, head='linear')
    if world>1:
        dist.init_process_group('gloo')
        model = DDP(model)
        sampler = DistributedSampler(Items(), shuffle=False)
    else: sampler = None
    opt = torch.optim.SGD(model.parameters(), lr=.1)
    for batch in DataLoader(Items(), batch_size=4//world, sampler=sampler, num_workers=1):
        loss = seg_loss(model(batch['image'], batch['windows']), batch['labels'], batch['windows'], 8)
        opt.zero_grad(); loss.backward(); opt.step()
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.save(flat, f'{sys.argv[1]}/{world}-{os.environ.get("RANK", 0)}.pt')
    if world>1: dist.destroy_process_group()
'''

def test_two_processes_equal_one(tmp_path):
    "DDP over gloo with windows drawn in workers: both ranks end where one process ends"
    (tmp_path/'job.py').write_text(job)
    two = ['-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=2']
    for words in ([], two):
        run = subprocess.run([sys.executable, *words, str(tmp_path/'job.py'), str(tmp_path)], capture_output=True,
                             text=True, timeout=250)
        assert run.returncode==0, run.stderr[-2000:]
    one,a,b = (torch.load(tmp_path/f'{k}.pt') for k in ('1-0','2-0','2-1'))
    assert a.equal(b)
    torch.testing.assert_close(a, one, atol=1e-6, rtol=1e-5)
