"Attacks on files, folders and processes: counted case by case, the count is printed at the end of the run."
import contextlib, signal
import pytest, torch
from winwin.models.dense import create_model
from winwin.models.hub import save_model
from winwin.training.recipes import change, get_preset, train_recipe

TRIED,FAILED = [],[]
SECONDS = 20 # that one refusal may take on a busy machine

class Hang(BaseException):
    "No `OSError` as `TimeoutError` is, which a reader may take for a damaged file"

@contextlib.contextmanager
def limit(seconds=SECONDS):
    "A hang becomes an error"
    def stop(*_): raise Hang(f'still running after {seconds} s')
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try: yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

class Attack:
    "Counts cases, and fails the test at its end with a list of those that went wrong"
    def __init__(self): self.wrong = []

    def case(self, name, ok, why=''):
        "One case: `ok` says whether it went well"
        TRIED.append(name)
        if not ok: self.wrong.append(f'{name}: {why}')

    def refused(self, name, call, *words):
        "A case that must raise a `ValueError` or `OSError` with all words in its text, soon"
        try:
            with limit(): found = call()
        except (ValueError,OSError) as error:
            lost = [w for w in words if w not in str(error)]
            return self.case(name, not lost, f'{error!r} does not say {lost}')
        except BaseException as error: return self.case(name, False, repr(error)) # whatever it is, a user sees a traceback
        self.case(name, False, f'accepted, {str(found)[:100]}')

@pytest.fixture
def attack():
    one = Attack()
    yield one
    FAILED.extend(one.wrong)
    assert not one.wrong, '\n'.join([f'{len(one.wrong)} cases went wrong', *one.wrong])

def pytest_terminal_summary(terminalreporter):
    if TRIED: terminalreporter.write_line(f'attacks: {len(TRIED)} cases tried, {len(FAILED)} failed')

@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

TINY = dict(image_size=(32,48), images=4, valid_images=1, windows='2x2', batch_size=2, warmup=1, log_every=1, steps=3, save_every=1)
def tiny(**over): return change(get_preset('driving-seg'), **(TINY | over))

@pytest.fixture(scope='session')
def cache(tmp_path_factory): return tmp_path_factory.mktemp('scenes')

@pytest.fixture(scope='session')
def saved(tmp_path_factory):
    "A saved model; copy it before changing it"
    torch.manual_seed(0)
    return save_model(create_model('winwin_seg_micro', num_classes=3, depth=1, dim=32, num_heads=2), tmp_path_factory.mktemp('model')/'m')

@pytest.fixture(scope='session')
def run(tmp_path_factory, cache):
    "A finished run of three steps; copy it before changing it"
    out = tmp_path_factory.mktemp('runs')/'run'
    train_recipe(tiny(root=str(cache)), out, progress=False)
    return out
