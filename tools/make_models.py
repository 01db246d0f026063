"""Train the small models that are shipped with the package, and write them to winwin/static/models.

    python tools/make_models.py [seg] [flow] [flow-cross] [--steps N] [--cache FOLDER] [--runs FOLDER [--unfinished]] [--begin FOLDER]
                                [--out FOLDER]

Fixed seeds, one thread: about half an hour of CPU time for the segmenter, an hour and a half for flow, which has a second stretch at half the
learning rate (--begin starts it from a model of the first). The segmenter trains on two windows, the flow model on small full frames of layers, half of them drawn and half cut from six freely licensed pictures of scikit-image, flow-cross, whose frames
meet in cross-attention, on guided windows of drawn layers. Weights are written as fp16, and the
scores in a model's README.md are those of the fp16 weights on full images that were not trained on. A model's config.json has
the recipe that made it.
"""
import argparse, math, shutil, tempfile
from pathlib import Path

import torch
from torch.utils.data import ConcatDataset
from winwin.inference.modes import predict
from winwin.models.hub import load_model, save_model
from winwin.training.recipes import change, get_preset, recipe_augment, recipe_data, recipe_model, recipe_task, saved_recipe
from winwin.tasks.task import evaluate
from winwin.training.loop import fit, resume
from winwin.worlds.datasets import DrivingWorld, LayeredFlow

HERE = Path(__file__).resolve().parents[1]
OUT = HERE/'winwin'/'static'/'models'
SEED = 2 # of the segmenter's streets: recipes and the demonstration train on seed 0, and everybody tests on seed 1
RECIPES = dict(
    seg=change(get_preset('driving-seg'), model='winwin_seg_nano', head='upsample', steps=4500, batch_size=8, lr=3e-3, beta2=.95, warmup=200,
               ema=.998, images=3200, scale=(.87,1.41), jitter=.5, class_weights='auto', log_every=20, save_every=200),
    flow=change(get_preset('flow-photos'), model='winwin_flow_micro', relative=True, steps=1600, lr=1e-3, layer_decay=None, warmup=100,
                ema=.998, images=50_000, log_every=20, save_every=100),
    **{'flow-cross': change(get_preset('flow-layered'), steps=900, ema=.99, flip=.5, flip_y=.5, log_every=20)})
SECOND = dict(flow=dict(steps=2400, lr=5e-4, seed=1)) # what the second stretch of a model changes
PICTURES = 'astronaut.png coffee.png chelsea.png rocket.jpg retina.jpg hubble_deep_field.jpg'.split() # of scikit-image, freely licensed

def training_data(task, recipe):
    "Images to train on; streets that no recipe trains on, so that a run which starts from the encoder sees new ones"
    if task=='flow':
        photos = recipe_data(recipe)
        drawn = LayeredFlow(recipe.data.image_size, recipe.data.images, SEED, recipe.data.motion, layers=photos.layers, **photos.more)
        return ConcatDataset([photos,drawn])
    if task=='flow-cross': return recipe_data(recipe)
    return DrivingWorld(recipe.data.image_size, recipe.data.images, SEED, cache=recipe.data.root)

def free_pictures(folder):
    "The pictures of scikit-image that may be used freely, copied to a folder"
    import skimage
    folder.mkdir(parents=True, exist_ok=True)
    for name in PICTURES: shutil.copy(Path(skimage.__file__).parent/'data'/name, folder/name)
    return str(folder)

def say(line):
    if 'eval' not in line: print(f"{line['step']:6d}  loss {line['loss']:.3f}", flush=True)

def train(name, recipe, data, what, runs, begin=None):
    "A trained model; with a folder, a run that was stopped is resumed"
    how = dict(transform=recipe_augment(recipe, what), task=what, progress=False, watch=say)
    out = None if runs is None else Path(runs)/name
    if out is not None and (out/'last').exists(): return resume(out, data, recipe.train, **how).model
    return fit(begin or recipe_model(recipe, what), data, recipe.train, out=out, **how).model

def trained(task, recipe, data, what, runs, begin):
    "The model after all stretches of its training, and the recipe of the last"
    model = load_model(begin) if begin else train(task, recipe, data, what, runs)
    if task not in SECOND: return model,recipe
    last = change(recipe, **dict(SECOND[task], steps=min(SECOND[task]['steps'], 2*recipe.train.steps)))
    return train(f'{task}-2', last, data, what, runs, model),last

def ship(task, steps, cache, runs, out, unfinished, begin):
    root = free_pictures(Path(runs or tempfile.mkdtemp())/'pictures') if task=='flow' else cache
    recipe = change(RECIPES[task], root=root, **dict(steps=steps, warmup=min(100, steps//8)) if steps else {})
    data = training_data(task, recipe)
    what = recipe_task(recipe, data, weigh=True)
    before = recipe.train.steps if task in SECOND else 0
    if unfinished:
        model = load_model(Path(runs)/(f'{task}-2' if before else task)/'last')
        done = model.saved['extra']['step']+before
    else:
        model,recipe = trained(task, recipe, data, what, runs, begin)
        done = recipe.train.steps+before
    extra = dict(recipe=saved_recipe(change(recipe, root=None)), **dict(classes=list(data.classes), scenes=repr(data)) if task=='seg' else {})
    save_model(model.half(), out/task, extra=extra)
    model = load_model(out/task).eval() # as users get it: fp16 read as fp32
    valid = recipe_data(recipe, 'valid')
    scores = evaluate(model, valid, what, predict, progress=False)
    keep = {k: round(v, 4) for k,v in scores.items() if '/' not in k and not math.isnan(v)}
    if task!='seg': keep |= zero_flow(valid)
    keep |= dict(images=len(valid), steps=done)
    save_model(model.half(), out/task, metrics=keep, extra=extra)
    print(task, keep, flush=True)

def zero_flow(valid):
    "The error of a model that sees no motion"
    error = [item['flow'].norm(dim=0)[item['valid']].mean().item() for item in (valid[i] for i in range(len(valid)))]
    return {'EPE of no motion': round(sum(error)/len(error), 4)}

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('tasks', nargs='*', metavar='seg | flow | flow-cross', help='which models; none = all')
    ap.add_argument('--steps', type=int, help='other than those of the recipe, to try something')
    ap.add_argument('--cache', help='folder in which rendered images are kept')
    ap.add_argument('--runs', help='folder in which checkpoints are kept, so that a stopped run is resumed')
    ap.add_argument('--unfinished', action='store_true', help='ship the last checkpoint in --runs as it is, and say how many steps it has')
    ap.add_argument('--begin', help='a model to begin the second stretch with, in place of the first stretch')
    ap.add_argument('--out', type=Path, default=OUT, help='where to')
    a = ap.parse_args()
    if bad := [t for t in a.tasks if t not in RECIPES]: ap.error(f'no task {bad[0]!r}; there are {", ".join(RECIPES)}')
    if a.begin and not set(a.tasks)<=set(SECOND): ap.error(f'--begin is for models with a second stretch: {", ".join(SECOND)}')
    if a.unfinished and not a.runs: ap.error('--unfinished needs --runs, the folder of the checkpoints')
    torch.set_num_threads(1)
    for task in a.tasks or RECIPES: ship(task, a.steps, a.cache, a.runs, a.out, a.unfinished, a.begin)

if __name__=='__main__': main()
