"Signals, as terminals, clusters and scripts send them: a run saves and stops, a server leaves nothing behind."
import json, os, signal, socket, subprocess, sys, time, urllib.request
from pathlib import Path
import pytest
from winwin.training.checkpoints import read_state
from winwin.training.log import read_log
from winwin.training.recipes import train_recipe
from .conftest import limit, tiny

# Forks processes that train, each in a session of its own: one import serves all cases, and a fork of the tests themselves would inherit threads
STARTER = """
import json, os, signal, sys
import torch
torch.set_num_threads(1)
from attack.conftest import tiny
from winwin.training.recipes import train_recipe
for line in sys.stdin:
    job = json.loads(line)
    if 'wait' in job:
        print(os.waitstatus_to_exitcode(os.waitpid(job['wait'], 0)[1]), flush=True)
        continue
    pid = os.fork()
    if pid:
        print(pid, flush=True)
        continue
    os.setsid()
    for n in (signal.SIGINT,signal.SIGTERM,signal.SIGHUP): signal.signal(n, signal.SIG_DFL)
    for n in job['ignored']: signal.signal(n, signal.SIG_IGN)
    try: train_recipe(tiny(**job['over']), job['out'], progress=False, score=False)
    except KeyboardInterrupt: os._exit(130)
    finally: os._exit(1)
"""

class Starter:
    def __init__(self):
        env = os.environ | dict(OMP_NUM_THREADS='1', PYTHONPATH=str(Path(__file__).parents[1]))
        self.process = subprocess.Popen([sys.executable, '-c', STARTER], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.begun = []

    def ask(self, **job):
        self.process.stdin.write(json.dumps(job)+'\n')
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def train(self, out, cache, ignored=(), **over):
        "Number of a process that trains and has made a step"
        pid = self.ask(out=str(out), ignored=list(ignored), over=dict(root=str(cache), steps=5000, save_every=5000, **over))
        self.begun.append(pid)
        until(lambda: (out/'log.jsonl').exists() and read_log(out))
        return pid

    def exit_code(self, pid):
        with limit(60): return self.ask(wait=pid)

@pytest.fixture(scope='module')
def starter():
    one = Starter()
    yield one
    for pid in one.begun:
        try: os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError: pass
    one.process.kill()
    one.process.wait()

def until(found, seconds=60):
    end = time.monotonic()+seconds
    while not found():
        assert time.monotonic()<end, 'nothing happened'
        time.sleep(.02)

def alive(group):
    "Whether a process of a group still runs"
    try: os.killpg(group, 0)
    except ProcessLookupError: return False
    return any(o.split(')')[1].split()[0]!='Z' and int(o.split(')')[1].split()[2])==group for o in stats())

def stats():
    for p in Path('/proc').glob('[0-9]*/stat'):
        try: yield p.read_text()
        except OSError: pass

CASES = {'SIGTERM to the group, with workers': ([signal.SIGTERM], dict(workers=1), ()), 'SIGHUP to the group, with workers': ([signal.SIGHUP], dict(workers=1), ()),
         'SIGTERM and SIGHUP at once': ([signal.SIGTERM,signal.SIGHUP,signal.SIGTERM], {}, ()), 'SIGINT that was ignored at the start': ([signal.SIGINT], {}, (signal.SIGINT,)),
         'SIGTERM under nohup, after a SIGHUP': ([signal.SIGHUP,signal.SIGTERM], {}, (signal.SIGHUP,))}

@pytest.mark.parametrize('name', CASES)
def test_a_run_saves_its_last_step_and_stops(name, starter, cache, tmp_path, attack):
    signals,over,ignored = CASES[name]
    pid = starter.train(tmp_path/'run', cache, ignored, **over)
    for n in signals: os.killpg(pid, n)
    attack.case(f'{name}: stopped', starter.exit_code(pid)==130)
    done = read_log(tmp_path/'run')[-1]['step']
    attack.case(f'{name}: saved', read_state(tmp_path/'run'/'last')['step']==done, done)
    attack.case(f'{name}: released', (tmp_path/'run'/'.lock').read_text()=='')
    until(lambda: not alive(pid), 20)

def test_a_killed_run_is_taken_over(starter, cache, tmp_path, attack, capfd):
    pid = starter.train(tmp_path/'run', cache)
    os.kill(pid, signal.SIGKILL)
    starter.exit_code(pid)
    attack.case('its name stays', json.loads((tmp_path/'run'/'.lock').read_text())['pid']==pid)
    train_recipe(tiny(root=str(cache), steps=2), tmp_path/'run', resume=True, progress=False, score=False)
    attack.case('taken over', f'was left by process {pid}' in capfd.readouterr().err)

# --- The server

def ports(): return [int(o.split()[1].split(':')[1], 16) for o in Path('/proc/net/tcp').read_text().splitlines()[1:] if o.split()[3]=='0A']

def test_the_server_ends_with_the_process_that_started_it(attack):
    "However that ends: the pipe between them closes"
    from winwin.workbench.lab import _start_code
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    server = subprocess.Popen([sys.executable, '-P', '-c', _start_code, 'http.server', '--bind', '127.0.0.1', str(port)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: port in ports())
    server.stdin.close()
    attack.case('server ends', server.wait(20)==-signal.SIGTERM)

@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_stop_the_lab(number, attack):
    from winwin.workbench.lab import _interrupted_by_signals
    before = signal.getsignal(number)
    signal.signal(number, signal.SIG_DFL if number==signal.SIGHUP else signal.SIG_IGN) # as in the background of a script
    try:
        with pytest.raises(KeyboardInterrupt), _interrupted_by_signals():
            os.kill(os.getpid(), number)
            time.sleep(1)
        attack.case(f'lab {number.name}', True)
    finally: signal.signal(number, before)

def test_the_lab_on_a_shared_machine(tmp_path, attack):
    "Started where Ctrl-C is ignored, in a folder with modules that would be imported in place of its own"
    pytest.importorskip('jupyterlab')
    folder,mark = tmp_path/'lab',tmp_path/'mark'
    folder.mkdir(mode=0o700)
    for name in ('json','tornado','jupyterlab','ipykernel_launcher','jupyter_server'): (folder/f'{name}.py').write_text(f'open({str(mark)!r}, "a").write({name!r})')
    env = dict(os.environ, HOME=str(tmp_path), JUPYTER_RUNTIME_DIR=str(tmp_path/'runtime'), JUPYTER_CONFIG_DIR=str(tmp_path/'config'))
    ignore = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
    lab = subprocess.Popen([sys.executable, '-c', 'from winwin.cli import main; main()', 'lab', '--no-browser', '--folder', str(folder)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=ignore)
    try:
        with limit(100): address = [next(lab.stdout) for _ in range(2)][1].strip()
        token = address.rpartition('token=')[2]
        lines = []
        for p in Path('/proc').glob('[0-9]*/cmdline'):
            try: lines.append(p.read_bytes().decode(errors='replace'))
            except OSError: pass
        attack.case('token in no command line', len(token)>30 and not any(token in o for o in lines))
        attack.case('the token opens it', urllib.request.urlopen(address.replace('/lab/tree/workbench.ipynb', '/api/contents'), timeout=20).status==200)
        with pytest.raises(urllib.error.HTTPError): urllib.request.urlopen(address.partition('/lab/')[0]+'/api/contents', timeout=20)
        kernel = json.loads(urllib.request.urlopen(address.replace('/lab/tree/workbench.ipynb', '/api/kernelspecs'), timeout=20).read())['kernelspecs']['python3']['spec']['argv']
        subprocess.run([*kernel[:-2], '--version'], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        attack.case('nothing of the folder is imported', not mark.exists(), mark.exists() and mark.read_text())
        attack.case('notebooks are private', all(p.stat().st_mode & 0o077==0 for p in folder.rglob('*.ipynb')) and len(list(folder.glob('*.ipynb')))>=5 and len(list(folder.rglob('*.ipynb')))>5)
        lab.send_signal(signal.SIGINT)
        with limit(60): attack.case('Ctrl-C', lab.wait()==0)
        with pytest.raises(OSError): urllib.request.urlopen(address, timeout=5)
    finally:
        lab.kill()
        lab.wait()

def test_a_folder_of_another_user_is_refused(tmp_path, attack, monkeypatch):
    from winwin.workbench.lab import write_notebooks
    theirs = tmp_path.stat().st_uid+1000
    monkeypatch.setattr(os, 'getuid', lambda: theirs)
    attack.refused('another owner', lambda: write_notebooks(tmp_path), 'another user')

@pytest.mark.parametrize('user', [0, 1000])
def test_only_root_may_be_root(user, tmp_path, attack, monkeypatch):
    "JupyterLab refuses root unless it is told otherwise; the token is in no command line"
    from winwin.workbench.lab import _command
    monkeypatch.setattr(os, 'getuid', lambda: user)
    for kind in ('lab','app'):
        words = _command(kind, tmp_path, 8888)
        attack.case(f'{kind}, user {user}', ('--allow-root' in words)==(user==0 and kind=='lab'), words)
        attack.case(f'{kind}: no token', not any('token' in o.lower() for o in words), words)
