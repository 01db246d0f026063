"""The pages of the gallery, in winwin/static/gallery/: NAME.html, and cases.json with their titles and texts.

    python tools/gallery.py --weights FILE [NAME...]

FILE is deit_tiny_patch16_224 as .safetensors (DeiT-Tiny, Apache-2.0). Of it the pages hold maps only, no weights. The photographs are those of
scikit-image: the cat and the coffee are CC0, the astronaut is NASA's and in the public domain, the rocket is SpaceX's, CC0.
All other pages need nothing but the package. Look at the pages before you commit them.
"""
import argparse, json, time
from pathlib import Path

import torch
from skimage import data
from winwin import AttentionExplorer, GuidanceExplorer, LayeredFlow, WindowExplorer, bundled_model, timm_encoder
from winwin.windows.layout import Windows

OUT = Path(__file__).resolve().parents[1]/'winwin'/'static'/'gallery'
def photograph(name): return torch.from_numpy(getattr(data, name)()).permute(2,0,1)/255

def two_windows(img, side=10, tokens=640):
    "Two windows of a photograph as it is shown, left and right of the middle"
    from winwin.data.images import fit_image
    H,W = (n//16 for n in fit_image(img, 16, tokens).shape[-2:])
    top = (H-side)//2
    return Windows(torch.tensor([[[top,W//2-side-1],[top,W//2+2]]]), [(side,side)]*2, (H,W))

def lean(ex, *, tiles=False):
    "Leave out what every state would store again"
    ex.canvas['difference'].only_live = True
    ex.tiles.only_live = not tiles
    return ex

def spots(ex, step, inside=False):
    "States of tokens on a coarse grid, or inside the windows"
    H,W = ex.maps.grid
    seen = set(ex.maps.windows[0].index()[0].tolist())
    ids = [y*W+x for y in range(step//2, H, step) for x in range(step//2, W, step)]
    some = [t for t in ids if t in seen or not inside]
    ex.set_state(dict(tokens=[some[len(some)//3]]))
    return 'token',[(f'row {t//W}, column {t%W}',dict(tokens=[t])) for t in some]

def layers(ex, which):
    names = [n for n in ex.maps.layers]
    return 'layer',[(str(i),dict(layer=names[i])) for i in which]

def deit(img, **options):
    def make(weights):
        model = timm_encoder('deit_tiny_patch16_224', checkpoint=weights).eval()
        photo = photograph(img)
        return AttentionExplorer(model, photo, two_windows(photo), tokens=640, width=330, **options)
    return make

DEIT = 'DeiT-Tiny, a plain ViT with a class token that was trained on ImageNet at 224 pixels (14 x 14 tokens), as published; the page holds maps, not weights. '

def cat(weights):
    ex = lean(deit('chelsea', layer=9)(weights))
    return ex,spots(ex, 3, inside=True)

def class_token(weights):
    ex = lean(deit('astronaut', layer=11)(weights))
    ex.flush()
    ex.set_state(dict(query=-1, brightness=8.))
    return ex,layers(ex, range(12))

def sinks(weights):
    ex = lean(deit('coffee', layer=9)(weights), tiles=True)
    ex.set_state(dict(show='norm', multiples='sinks'))
    return ex,layers(ex, range(12))

def pca(weights):
    ex = lean(deit('coffee', layer=11)(weights))
    ex.set_state(dict(show='pca'))
    return ex,layers(ex, range(1, 12, 2))

def similarity(weights):
    ex = lean(deit('astronaut', layer=9)(weights))
    ex.set_state(dict(show='alike'))
    return ex,spots(ex, 3, inside=True)

def temperature(weights):
    ex = lean(deit('rocket', layer=5)(weights))
    ex.set_state(dict(show='entropy', brightness=1., tau=1.2))
    return ex,('tau',[(f'{i/10:.1f}',dict(tau=i/10)) for i in range(8, 21)])

def street(weights):
    ex = lean(AttentionExplorer(bundled_model('seg'), None, '2x11', layer=-1, width=330))
    return ex,spots(ex, 3, inside=True)

def match(weights):
    ex = lean(AttentionExplorer(bundled_model('flow-cross'), None, layer='decoder.blocks.0.cross_attn', width=260))
    ex.set_state(dict(brightness=2.))
    return ex,spots(ex, 3, inside=True)

def guidance(weights):
    ex = GuidanceExplorer(LayeredFlow((224,384), max_motion=80)[1], patch=8, width=430)
    return ex,None

def windows(weights):
    ex = WindowExplorer(photograph('coffee'), '2x10', patch=16)
    return ex,None

CASES = dict(
    cat=('A cat, and what a token of it attends to', cat, DEIT +
         'Click a token inside the windows: the three maps show its attention in block 9 when the model sees two windows only, in the full image, and there with a temperature. '
         'In the full image the same amount of attention is shared by 551 instead of 200 tokens.'),
    class_token=('The class token, layer by layer', class_token, DEIT +
         'Here the class token is the query; the slider goes through the layers, mean over heads. In block 1 it keeps 55 % of its attention for itself, in the last one 4 %, where it picks out parts of the person and the suit. '
         'In windows it has only their tokens to collect from.'),
    sinks=('Where attention comes to rest', sinks, DEIT +
         'The large maps show the length of every token; the small picture has a row for each layer and a column for each head, and its colour is the share of the attention of all image tokens '
         'that the class token takes. A token that takes much of it and tells little is a sink; models with register tokens have more of these columns. No weights with registers ship with winwin: '
         'AttentionExplorer(your_model, your_photo) shows those of yours.'),
    pca=('Features as colours', pca, DEIT +
         'The three main directions of the features become red, green and blue, with one set of colours for windows and full image: the same colour means the same features. '
         'Where a window and the full image differ in colour, its tokens became something else because they saw less.'),
    similarity=('Tokens like this one', similarity, DEIT +
         'Click a token: bright ones have features that point the same way. In the full image two tokens of the face have a cosine of 0.88, two of the suit 0.84, face and suit 0.28. The cosine with windows '
         'in the table says how far features move '
         'when the model sees the full image instead of two windows.'),
    temperature=('What a temperature does to entropy', temperature, DEIT +
         'Entropy of the attention of every token, in windows and in full. With more tokens attention spreads; a temperature tau above 1 multiplies the logits and sharpens it. '
         'In block 5 the mean is 3.48 nats in windows and 5.27 in full. The ratio of logarithms asks for 1.2, which brings back less than half of the gap here: move the slider.'),
    street=('A street in two windows and in full', street,
         'The segmenter that ships with winwin, trained on two windows of 11 x 11 tokens of drawn streets. Click a token inside the windows. In the full image it finds its own kind outside the windows too, '
         'although it was trained with never more than two windows in sight.'),
    match=('A token looks for its match', match,
         'The flow model that ships with winwin, on two frames of textured layers that move. Click a token of frame 1: its cross-attention in the first decoder block lands where the token has moved to in frame 2. In the full frames its peak is within two tokens of the true match for 92 % of all tokens. '
         'Later blocks use the match and look around it: AttentionExplorer(bundled_model(\'flow-cross\'), ...) shows them.'),
    guidance=('Windows of frame 2 follow the flow', guidance,
         'For optical flow the windows of frame 2 have to show where the pixels of frame 1 went, without giving the motion away. Pixels vote, noise is added to the votes, '
         'and windows are chosen from the sum. The slider is the noise.'),
    windows=('What two windows show and cost', windows,
         'Two windows of a photograph, drawn twelve times. The table is the cost of a training step with ViT-B against that of the full image. The coverage says how often a token is seen, the chart at which distances '
         'two seen tokens stand: all that occur in the full image occur in two windows, too.'),
)

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('names', nargs='*', help='cases; none = all')
    ap.add_argument('--weights', help='file of deit_tiny_patch16_224')
    args = ap.parse_args()
    OUT.mkdir(exist_ok=True)
    for name in args.names or CASES:
        title,make,text = CASES[name]
        begin = time.process_time()
        ex,steps = make(args.weights)
        file = ex.save(OUT/f'{name}.html', steps, title, text)
        print(f'{name}: {file.stat().st_size/1e3:.0f} kB, {time.process_time()-begin:.0f} CPU s', flush=True)
    texts = {k: dict(title=title, text=text) for k,(title,_,text) in CASES.items()}
    (OUT/'cases.json').write_text(json.dumps(texts, indent=1) + '\n', encoding='utf-8')

if __name__=='__main__': main()
