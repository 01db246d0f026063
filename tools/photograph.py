"""The photograph of the front page: two windows of it beside the prediction of the whole, in docs/_static/photograph.png.

    python tools/photograph.py RUN PHOTO [--size H W] [--windows 2x16] [--seed N]

RUN is a run of `camvid-seg-native`; its temperature is that of the checkpoint (`winwin temperature RUN --ratio`).
PHOTO is any photograph. The one on the front page is china.jpg of scikit-learn's wheel, by Daniel Büchele, CC BY 2.0.
"""
import argparse
from pathlib import Path

import matplotlib.pyplot as plt, numpy as np, torch
from matplotlib.patches import Patch
from PIL import Image
from winwin.data.benchmarks import CAMVID
from winwin.inference.modes import predict
from winwin.models.hub import load_model
from winwin.windows.layout import show_windows
from winwin.windows.schemes import parse_scheme

OUT = Path(__file__).resolve().parents[1]/'docs'/'_static'/'photograph.png'
COLORS = dict(sky='#5b9bd5', building='#5a5a5a', pole='#f2d06b', road='#8e5a8e', sidewalk='#e58ad6', tree='#5f9e2f', sign='#ffd400',
              fence='#b08d6a', car='#1f3fbf', pedestrian='#e0262f', bicyclist='#8c1d1d')

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('run', type=Path)
    ap.add_argument('photo', type=Path)
    ap.add_argument('--size', type=int, nargs=2, default=(640,960), metavar=('H','W'), help='pixels to predict')
    ap.add_argument('--windows', default='2x16', help='windows of the training')
    ap.add_argument('--seed', type=int, default=0, help='of the windows that are drawn')
    a = ap.parse_args()
    model = load_model(a.run/'last').eval()
    P = model.patch_size
    H,W = a.size
    photo = Image.open(a.photo).convert('RGB').resize((W,H), Image.Resampling.LANCZOS)
    img = torch.from_numpy(np.array(photo)).permute(2,0,1)[None]/255
    with torch.no_grad(): labels = predict(model, img)[0].argmax(0).numpy()
    palette = np.array([[int(c[i:i+2], 16) for i in (1,3,5)] for c in (COLORS[k] for k in CAMVID)], dtype=np.uint8)
    painted = (.65*palette[labels] + .35*np.array(photo)).astype(np.uint8)
    grid = H//P,W//P
    windows = parse_scheme(a.windows).draw(grid, generator=torch.Generator().manual_seed(a.seed))
    fig,axs = plt.subplots(1, 2, figsize=(7,2.75), dpi=130)
    fig.subplots_adjust(left=.005, right=.995, top=.92, bottom=.13, wspace=.02)
    show_windows(windows, np.array(photo), ax=axs[0]).spines[:].set_visible(False)
    axs[1].imshow(painted)
    axs[1].axis('off')
    axs[0].set_title(f'train: two windows, {windows.num_tokens} tokens', fontsize=9, weight='bold', pad=4)
    axs[1].set_title(f'predict: one pass, {grid[0]*grid[1]} tokens', fontsize=9, weight='bold', pad=4)
    shown = [k for i,k in enumerate(CAMVID) if (labels==i).mean()>=.005]
    fig.legend(handles=[Patch(color=COLORS[k], label=k) for k in shown], loc='lower center', ncols=len(shown), fontsize=8,
               frameon=False, handlelength=1, columnspacing=1.2)
    fig.savefig(OUT)
    small = Image.open(OUT).convert('RGB')
    small.quantize(96, Image.Quantize.MEDIANCUT, kmeans=2, dither=Image.Dither.NONE).save(OUT, optimize=True)
    print(OUT.name, f'{OUT.stat().st_size//1000} kB', {k: round(float((labels==i).mean()), 3) for i,k in enumerate(CAMVID)})

if __name__=='__main__': main()
