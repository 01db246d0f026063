"""Two processes over gloo: DDP and FSDP2 train like one process with twice the batch; checkpoints are whole, one process can load them;
a process that dies or hangs is named by the other.

accelerate offers FSDP for GPUs only, so the jobs tell it that two CPUs are two GPUs. `STARTER` imports winwin once and forks the processes of a job.
"""
import json, os, shutil, signal, socket, subprocess, sys, time
import pytest
from conftest import ROOT
from winwin.models.hub import load_model
from winwin.training.checkpoints import read_state

STARTER = """
import json, os, signal, sys
import torch
torch.set_num_threads(1)
from accelerate import Accelerator, state
from accelerate.utils import DistributedType
from winwin.training.recipes import change, get_preset, train_recipe
from winwin.models.hub import load_model
from winwin.training.loop import TrainRun
sharded = set()
collect = TrainRun.collect
def noted(self):
    sharded.add(self.sharded)
    collect(self)
TrainRun.collect = noted
plain = state.PartialState.__init__
def init(self, *args, **options): # two CPUs are two GPUs
    fresh = not state.PartialState._shared_state
    plain(self, *args, **options)
    if fresh and self.distributed_type==DistributedType.MULTI_CPU: self.distributed_type = DistributedType.MULTI_GPU
small = dict(image_size=(64,96), images=6, valid_images=5, windows='full', flip=0., steps=4, warmup=2, log_every=1, save_every=10)

def work(out, over, stop=None, fsdp=False):
    if fsdp: state.PartialState.__init__ = init
    if over.get('precision')=='fp16': Accelerator.autocast = lambda self: torch.autocast('cpu', torch.float16) # which accelerate has for GPUs only
    recipe = change(get_preset('driving-seg'), **small | over)
    def watch(line): # called in the first process: the second stops too
        if line['step']==stop: os.kill(os.getpid(), signal.SIGTERM)
    try: result = train_recipe(recipe, out, resume=True, progress=False, watch=watch)
    except KeyboardInterrupt: return {}
    saved = load_model(out+'/last').state_dict()
    same = all(torch.equal(v, saved[k]) for k,v in result.model.state_dict().items())
    steps = [line for line in result.log if 'loss' in line]
    return dict(losses=[o['loss'] for o in steps], norms=[o['grad_norm'] for o in steps], score=result.scores['mIoU'], same=same and sharded=={bool(fsdp)})

def start(job, rank):
    pid = os.fork()
    if pid: return pid
    os.setsid()
    to = open(f"{job['text']}.{rank}", 'w')
    for n in (1,2): os.dup2(to.fileno(), n)
    os.environ |= job['env'] | dict(RANK=str(rank), LOCAL_RANK=str(rank)) if job['env'] else {}
    code = 1
    try:
        result = work(job['out'], job['over'], job.get('stop'), job.get('fsdp'))
        if rank==0: open(job['text'], 'w').write(json.dumps(result))
        code = 0
    except OSError as error: print(error)
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)

for line in sys.stdin:
    job = json.loads(line)
    if 'wait' in job: print(os.waitstatus_to_exitcode(os.waitpid(job['wait'], 0)[1]), flush=True)
    else: print(json.dumps([start(job, rank) for rank in range(job['processes'])]), flush=True)
"""

class Starter:
    def __init__(self):
        env = os.environ | dict(OMP_NUM_THREADS='1', ACCELERATE_USE_CPU='true', CUDA_VISIBLE_DEVICES='', PYTHONPATH=str(ROOT))
        self.process = subprocess.Popen([sys.executable, '-c', STARTER], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **job):
        self.process.stdin.write(json.dumps(job)+'\n')
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def start(self, folder, processes=1, fsdp=False, wrap='NO_WRAP', stop=None, **over):
        "Numbers of the processes of a job"
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as s:
            s.bind(('127.0.0.1', 0))
            port = s.getsockname()[1]
        env = dict(WORLD_SIZE=str(processes), MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port)) if processes>1 else {}
        if fsdp: env |= dict(ACCELERATE_USE_FSDP='true', FSDP_VERSION='2', FSDP_CPU_RAM_EFFICIENT_LOADING='false', FSDP_AUTO_WRAP_POLICY=wrap, FSDP_TRANSFORMER_CLS_TO_WRAP='Block')
        return self.ask(processes=processes, fsdp=fsdp, env=env, stop=stop, over=over, out=str(folder/'run'), text=str(folder/'text'))

    def run(self, folder, *args, **over):
        "Result of a job, and what it printed"
        pids = self.start(folder, *args, **over)
        codes = [self.ask(wait=pid) for pid in pids]
        text = '\n'.join((folder/f'text.{i}').read_text() for i in range(len(pids)))
        assert not any(codes), text
        return json.loads((folder/'text').read_text()) | dict(text=text)

@pytest.fixture(scope='module')
def starter():
    one = Starter()
    yield one
    one.process.kill()
    one.process.wait()

def numbers(result): return {k: v for k,v in result.items() if k!='text'}

def close(one, two, rel=1e-6):
    for key in ('losses','norms'): assert two[key]==pytest.approx(one[key], rel=rel), key

@pytest.mark.parametrize('wrap,over', [('NO_WRAP',{}), ('TRANSFORMER_BASED_WRAP',dict(ema=.9, accumulate=2))], ids=['whole model','blocks, average, accumulation'])
def test_fsdp2_is_one_process_with_twice_the_batch(starter, tmp_path, wrap, over):
    "Full windows and no missing labels, so that the mean of two halves is the mean; five images to score over two processes"
    one = starter.run(tmp_path/'one', batch_size=2, **over)
    two = starter.run(tmp_path/'two', 2, True, wrap, batch_size=1, **over)
    assert one['same'] and two['same']
    close(one, two)
    assert two['score']==pytest.approx(one['score'], abs=.02)
    if wrap=='NO_WRAP': return # half a model and whole norms: torch has no such layer_norm for CPUs
    half = starter.run(tmp_path/'half', 2, True, wrap, batch_size=1, precision='fp16', **over)
    assert half['same'] and half['losses']!=two['losses'] and half['losses']==pytest.approx(one['losses'], rel=.02)

def test_ddp_is_one_process_with_twice_the_batch(starter, tmp_path):
    over = dict(ema=.9, accumulate=2)
    one = starter.run(tmp_path/'one', batch_size=2, **over)
    two = starter.run(tmp_path/'two', 2, batch_size=1, **over)
    assert one['same'] and two['same']
    close(one, two)
    assert two['score']==pytest.approx(one['score'], abs=.02)

def test_fsdp2_resumes_exactly_and_on_one_process(starter, tmp_path):
    "The checkpoint of two processes, each with a part of every weight, is resumed by two, and by one that accumulates two batches"
    over = dict(batch_size=1, ema=.9, windows='2x3')
    whole = starter.run(tmp_path/'whole', 2, True, **over)
    assert numbers(starter.run(tmp_path/'cut', 2, True, stop=2, **over))=={}
    shutil.copytree(tmp_path/'cut', tmp_path/'alone')
    rest = starter.run(tmp_path/'cut', 2, True, **over)
    assert rest['losses']==whole['losses'][-len(rest['losses']):] and 0<len(rest['losses'])<4
    assert rest['score']==whole['score'] and rest['same']
    alone = starter.run(tmp_path/'alone', **over)
    close({k: whole[k][-len(alone[k]):] for k in ('losses','norms')}, alone)
    assert 'has 1 instead of 2 processes now: accumulate 2 keeps the images and windows of a step' in alone['text'] and alone['same']

def test_one_process_continues_on_two(starter, tmp_path):
    "Two batches of a step become one batch of each process; the checkpoint still says how the run began"
    over = dict(batch_size=1, accumulate=2, windows='2x3')
    whole = starter.run(tmp_path/'whole', **over)
    starter.run(tmp_path/'cut', stop=2, **over)
    rest = starter.run(tmp_path/'cut', 2, **over)
    close({k: whole[k][-len(rest[k]):] for k in ('losses','norms')}, rest)
    assert 'has 2 instead of 1 processes now: accumulate 1 keeps' in rest['text']
    again = starter.run(tmp_path/'cut', **over) # finished: nothing is left to do
    assert 'instead of' not in again['text']

FAULTS = {'killed': (signal.SIGKILL,1), 'stopped': (signal.SIGSTOP,1), 'first killed': (signal.SIGKILL,0)}

@pytest.mark.parametrize('name', FAULTS)
def test_a_process_that_dies_or_hangs_is_named(name, starter, tmp_path):
    number,victim = FAULTS[name]
    pids = starter.start(tmp_path, 2, batch_size=1, steps=10**5, save_every=1, timeout=6.)
    log = tmp_path/'run'/'log.jsonl'
    end = time.monotonic()+120
    while not (log.exists() and log.read_text().count('\n')>=2): assert time.monotonic()<end and time.sleep(.05) is None
    os.kill(pids[victim], number)
    begin = time.monotonic()
    try: assert starter.ask(wait=pids[1-victim])==1
    finally: os.kill(pids[victim], signal.SIGKILL)
    starter.ask(wait=pids[victim])
    assert time.monotonic()-begin<60
    text = (tmp_path/f'text.{1-victim}').read_text()
    assert f'process {victim}' in text and 'resume from the last checkpoint' in text, text
    if victim: assert f'process 1 (pid {pids[1]} on {socket.gethostname()}) has ended or hangs, since' in text
    assert read_state(tmp_path/'run'/'last')['step']>0 and load_model(tmp_path/'run'/'last')

LAUNCHERS = dict(torchrun='torch.distributed.run --nproc-per-node 2 --master-port', accelerate='accelerate.commands.launch --multi_gpu --num_machines 1 --num_processes 2 --mixed_precision no --dynamo_backend no --main_process_port')

@pytest.mark.parametrize('name', LAUNCHERS)
def test_launchers_from_the_shell(name, tmp_path):
    "Two processes over gloo, started by the real launcher: one log, one whole checkpoint, scores over both"
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = str(s.getsockname()[1])
    words = 'train driving-seg --out run --image-size 32 48 --images 4 --valid-images 3 --windows 2x2 --batch-size 2 --steps 2 --log-every 1 --timeout 30'
    script = tmp_path/'start.py'
    script.write_text('from winwin.cli import main\nmain()\n')
    env = os.environ | dict(OMP_NUM_THREADS='1', ACCELERATE_USE_CPU='true', CUDA_VISIBLE_DEVICES='', PYTHONPATH=str(ROOT))
    p = subprocess.run([sys.executable, '-m', *LAUNCHERS[name].split(), port, str(script), *words.split()], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert p.returncode==0, p.stderr[-3000:]
    lines = [json.loads(o) for o in (tmp_path/'run'/'log.jsonl').read_text().splitlines()]
    assert [o['step'] for o in lines if 'loss' in o]==[1,2] and len([o for o in lines if 'eval' in o])==1
    state = read_state(tmp_path/'run'/'last')
    assert state['step']==2 and json.loads(state['what'])['processes']==2 and load_model(tmp_path/'run'/'best')
