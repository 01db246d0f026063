"""Pictures of the explorers in JupyterLab, for the site: docs/_static/workbench/NAME.png.

    python tools/screenshots.py [NAME...]     windows, guidance, attention, temperature; none = all

Starts `winwin lab` on loopback and needs Playwright and Chromium. Look at the pictures before you commit them.
"""
import argparse, io, tempfile
from pathlib import Path

from PIL import Image
from winwin.lab import LabServer, explorers, write_notebooks
from winwin.lab_bench import _browser_page, _open_notebook, _run_all

OUT = Path(__file__).resolve().parents[1]/'docs'/'_static'/'workbench'

def shoot(page, server, name):
    "An explorer as a small PNG"
    _open_notebook(page, server, name)
    _run_all(page)
    page.locator('.winwin-explorer canvas').first.wait_for(timeout=300_000)
    page.wait_for_selector('#jp-main-statusbar >> text=/\\| Idle/', timeout=300_000)
    page.evaluate('new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))')
    png = Image.open(io.BytesIO(page.locator('.winwin-explorer').first.screenshot())).convert('RGB')
    png.thumbnail((900,900))
    png.quantize(192, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(OUT/f'{name}.png', optimize=True)
    return OUT/f'{name}.png'

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('names', nargs='*', help='explorers')
    names = ap.parse_args().names or list(explorers)
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as d:
        write_notebooks(d)
        with LabServer(d) as server, _browser_page(1400, 1400) as page:
            for n in names:
                f = shoot(page, server, n)
                print(f'{f.relative_to(OUT.parents[2])}  {f.stat().st_size/1e3:.0f} KB')

if __name__=='__main__': main()
