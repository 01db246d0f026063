"""Pictures of the explorers in JupyterLab, in docs/_static/workbench/ (NAME.png, attention-dark.png).

    python tools/screenshots.py [NAME...]     windows, guidance, attention, temperature; none = all

Starts `winwin lab` on loopback and needs Playwright and Chromium. Look at the pictures before you commit them.
"""
import argparse, io, json, os, tempfile
from pathlib import Path

from PIL import Image
from winwin.workbench.lab import LabServer, explorers, write_notebooks
from winwin.workbench.contest import _browser_page, _open_notebook, _run_all

OUT = Path(__file__).resolve().parents[1]/'docs'/'_static'/'workbench'
THEMES = {'': ('JupyterLab Light',list(explorers)), '-dark': ('JupyterLab Dark',['attention'])}

def shoot(page, server, name, file):
    "An explorer as a small PNG"
    _open_notebook(page, server, name)
    _run_all(page)
    page.locator('.winwin-explorer canvas').first.wait_for(timeout=300_000)
    page.wait_for_selector('#jp-main-statusbar >> text=/\\| Idle/', timeout=300_000)
    if name=='temperature': # with all marks on the curve
        for text in ('sweep','match','learn'): page.click(f'.winwin-explorer button:text-is("{text}")')
        page.locator('.winwin-chart text.mark', has_text='learned').wait_for(timeout=300_000)
    page.locator('.winwin-explorer [role=status]').first.wait_for(state='detached')
    page.wait_for_timeout(300)
    png = Image.open(io.BytesIO(page.locator('.winwin-explorer').first.screenshot())).convert('RGB')
    png.thumbnail((1000,1000), Image.Resampling.LANCZOS)
    png.quantize(256, Image.Quantize.MEDIANCUT, kmeans=2, dither=Image.Dither.NONE).save(file, optimize=True)
    return file

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('names', nargs='*', help='explorers')
    names = ap.parse_args().names or list(explorers)
    OUT.mkdir(parents=True, exist_ok=True)
    files = []
    for end,(theme,some) in THEMES.items():
        if not (some := [n for n in names if n in some]): continue
        with tempfile.TemporaryDirectory() as d:
            settings = Path(d)/'settings'/'@jupyterlab'/'apputils-extension'
            settings.mkdir(parents=True)
            (settings/'themes.jupyterlab-settings').write_text(json.dumps(dict(theme=theme)))
            os.environ['JUPYTERLAB_SETTINGS_DIR'] = str(Path(d)/'settings')
            write_notebooks(Path(d)/'lab')
            with LabServer(Path(d)/'lab') as server, _browser_page(1500, 1500) as page:
                files += [shoot(page, server, n, OUT/f'{n}{end}.png') for n in some]
    for f in files: print(f'{f.relative_to(OUT.parents[2])}  {f.stat().st_size/1e3:.0f} KB')

if __name__=='__main__': main()
