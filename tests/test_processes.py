"""Two processes over gloo: DDP and FSDP2 train like one process with twice the batch; checkpoints are whole, one process can load them.

accelerate offers FSDP for GPUs only, so the jobs tell it that two CPUs are two GPUs.
"""
import json, os, subprocess, sys
import pytest
from conftest import ROOT

JOB = """
import json, os, signal, sys, torch
torch.set_num_threads(1)
out,over,fsdp = sys.argv[1],json.loads(sys.argv[2]),int(sys.argv[3])
if fsdp:
    from accelerate import state
    from accelerate.utils import DistributedType
    plain = state.PartialState.__init__
    def init(self, *args, **options):
        fresh = not state.PartialState._shared_state
        plain(self, *args, **options)
        if fresh and self.distributed_type==DistributedType.MULTI_CPU: self.distributed_type = DistributedType.MULTI_GPU
    state.PartialState.__init__ = init
from winwin.training.recipes import change, get_preset, train_recipe
from winwin.models.hub import load_model
small = dict(image_size=(64,96), images=6, valid_images=5, windows='full', flip=0., steps=4, warmup=2, log_every=1, save_every=10)
stop = over.pop('stop', None)
recipe = change(get_preset('driving-seg'), **small | over)
def watch(line): # called in the first process: the second stops too
    if line['step']==stop: os.kill(os.getpid(), signal.SIGTERM)
try: result = train_recipe(recipe, out, resume=True, progress=False, watch=watch)
except KeyboardInterrupt:
    print('{}')
    sys.exit()
if int(os.environ.get('RANK', 0))==0:
    saved = load_model(out+'/last').state_dict()
    same = all(torch.equal(v, saved[k]) for k,v in result.model.state_dict().items())
    print(json.dumps(dict(losses=[line['loss'] for line in result.log if 'loss' in line], norms=[line['grad_norm'] for line in result.log if 'loss' in line],
                          score=result.scores['mIoU'], same=same)))
"""

def run(folder, processes=1, fsdp=False, wrap='NO_WRAP', **over):
    "What a job prints"
    folder.mkdir(parents=True, exist_ok=True)
    (folder/'job.py').write_text(JOB)
    env = os.environ | dict(OMP_NUM_THREADS='1', ACCELERATE_USE_CPU='true', CUDA_VISIBLE_DEVICES='', PYTHONPATH=str(ROOT))
    if fsdp: env |= dict(ACCELERATE_USE_FSDP='true', FSDP_VERSION='2', FSDP_CPU_RAM_EFFICIENT_LOADING='false', FSDP_AUTO_WRAP_POLICY=wrap, FSDP_TRANSFORMER_CLS_TO_WRAP='Block')
    start = [sys.executable] if processes==1 else [sys.executable,'-m','torch.distributed.run','--standalone',f'--nproc-per-node={processes}']
    p = subprocess.run([*start, str(folder/'job.py'), str(folder/'run'), json.dumps(over), str(int(fsdp))], env=env, capture_output=True, text=True, timeout=250)
    assert p.returncode==0, p.stderr[-3000:]
    return json.loads(p.stdout.strip().splitlines()[-1])

@pytest.mark.parametrize('wrap,over', [('NO_WRAP',{}), ('TRANSFORMER_BASED_WRAP',dict(ema=.9, accumulate=2))], ids=['whole model','blocks, average, accumulation'])
def test_fsdp2_is_one_process_with_twice_the_batch(tmp_path, wrap, over):
    "Full windows and no missing labels, so that the mean of two halves is the mean; five images to score over two processes"
    one = run(tmp_path/'one', batch_size=2, **over)
    two = run(tmp_path/'two', 2, True, wrap, batch_size=1, **over)
    assert one['same'] and two['same']
    for key in ('losses','norms'): assert two[key]==pytest.approx(one[key], rel=1e-4) # the order of sums differs
    assert two['losses'][0]==pytest.approx(one['losses'][0], rel=1e-6)
    assert two['score']==pytest.approx(one['score'], abs=.02)

def test_fsdp2_resumes_exactly(tmp_path):
    over = dict(batch_size=1, ema=.9)
    whole = run(tmp_path/'whole', 2, True, **over)
    assert run(tmp_path/'cut', 2, True, stop=2, **over)=={}
    rest = run(tmp_path/'cut', 2, True, **over)
    assert rest['losses']==whole['losses'][-len(rest['losses']):] and 0<len(rest['losses'])<4
    assert rest['score']==whole['score'] and rest['same']
