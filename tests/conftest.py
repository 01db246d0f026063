"The built site, served on loopback, and a Chromium page for tests marked `browser`."
import os, shutil, signal, subprocess, sys, tempfile, threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT/'tools'))
BROWSERS = 'chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable'
FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-background-networking', '--disable-component-update', '--no-first-run']

# A job in the background of a script inherits an ignored Ctrl-C; tests of Ctrl-C, and the programs they start, need the usual one
if signal.getsignal(signal.SIGINT)==signal.SIG_IGN: signal.signal(signal.SIGINT, signal.default_int_handler)

# Files of tasks that tests name are remembered in a folder that goes with the tests, also by the programs they start
STATE = tempfile.TemporaryDirectory(prefix='winwin-state-')
os.environ['XDG_STATE_HOME'] = STATE.name

def pytest_collection_modifyitems(items):
    "torch.export follows windows from torch 2.8 on (`export_model` says so), torch.compile position tables too"
    import torch
    if tuple(int(o) for o in torch.__version__.split('.')[:2])>=(2,8): return
    for o in items:
        if 'export' in o.nodeid or 'test_compile[sincos' in o.nodeid: o.add_marker(pytest.mark.skip(reason='needs torch 2.8'))

def stale(site):
    "Whether a source of the site is newer than the site"
    index = site/'index.html'
    sources = [*(ROOT/'nbs').rglob('*.ipynb'), *(ROOT/'docs').rglob('*.*'), *(ROOT/'tools').glob('*.py'), ROOT/'settings.ini']
    return not index.exists() or max(p.stat().st_mtime for p in sources if 'readme' not in p.parts) > index.stat().st_mtime

@pytest.fixture(scope='session')
def site():
    "Folder of the site, built if it is missing or old"
    out = ROOT/'_docs'
    if stale(out): subprocess.run([sys.executable, 'tools/docs.py'], cwd=ROOT, check=True)
    return out

@pytest.fixture(scope='session')
def url(site):
    "Address of the site on loopback"
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args): pass
    server = ThreadingHTTPServer(('127.0.0.1', 0), partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{server.server_port}'
    server.shutdown()

@pytest.fixture(scope='session')
def browser():
    from playwright.sync_api import sync_playwright
    path = os.environ.get('CHROMIUM') or next(filter(None, map(shutil.which, BROWSERS)), None)
    assert path, 'no Chromium found; install it, or set CHROMIUM to its path'
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()

@pytest.fixture
def page(browser):
    "A page that collects console errors in `.problems` and requests that leave the machine in `.outside`"
    page = browser.new_page(viewport={'width': 1400, 'height': 1000})
    page.set_default_timeout(20_000)
    page.problems, page.outside = [], []
    page.on('console', lambda m: page.problems.append(m.text) if m.type=='error' else None)
    page.on('pageerror', lambda e: page.problems.append(str(e)))
    page.on('request', lambda r: page.outside.append(r.url) if r.url.startswith('http') and '//127.0.0.1' not in r.url else None)
    yield page
    page.close()
