"The canvas from Python: bytes, windows, traits, pictures. What a browser does with it is tested with a browser."
import io, re
from pathlib import Path
import numpy as np, pytest, torch, traitlets
from PIL import Image

from conftest import ROOT
from winwin.data.pictures import heat_bytes
from winwin.workbench.widgets import TokenCanvas, WINDOW_COLORS, boxes_windows, draw_canvas, image_bytes, lut_bytes, window_boxes
from winwin.windows.sampling import sample_windows

STATIC = ROOT/'winwin'/'static'

def test_scripts_are_small_and_ask_nobody():
    for p in STATIC.glob('*.js'):
        text = p.read_text().replace('http://www.w3.org/2000/svg', '') # a name, not an address
        assert p.stat().st_size<10_000, p.name
        assert not re.search(r'https?:|\bimport\b|\bfetch\(|XMLHttpRequest|WebSocket|eval\(', text), p.name
        assert ('export default' in text)==(p.name!='snapshot.js') # which is no widget
    assert not re.search(r'https?:|@import|url\(', ''.join(p.read_text() for p in STATIC.glob('*.css')))

def test_browser_and_figures_have_the_same_colours():
    short = re.search(r"COLORS = \[(.*?)\]", (STATIC/'canvas.js').read_text())[1]
    assert tuple('#' + ''.join(2*c for c in o[1:]) for o in re.findall(r"'(.*?)'", short))==WINDOW_COLORS

@pytest.mark.parametrize('dtype', [torch.float16, torch.float32, torch.float64, torch.int32, torch.bool, torch.bfloat16])
def test_heat_of_any_dtype(dtype):
    x = torch.tensor([[0,1],[1,0]], dtype=dtype)
    assert list(heat_bytes(x))==list(heat_bytes(x, 1))==[0,255,255,0]

def test_heat_scales_clips_and_forgives():
    x = torch.tensor([-1., 0., .25, .5, 2., float('nan'), float('inf'), -float('inf')])
    assert list(heat_bytes(x, .5))==[0,0,128,255,255,0,255,0]
    assert list(heat_bytes(np.array([1., 3.]), 3, 1))==[0,255]
    assert list(heat_bytes(torch.zeros(3)))==[0,0,0] and list(heat_bytes(torch.full((2,), float('nan'))))==[0,0]
    y = torch.rand(5, requires_grad=True)
    assert len(heat_bytes(y))==5 and (x[0]==-1) # nothing is changed

def test_heat_error_is_half_a_step():
    x = torch.rand(45, 80)
    back = torch.tensor(list(heat_bytes(x, 1))).view(45, 80)/255
    assert (back-x).abs().max()<=.5/255+1e-6

@pytest.mark.parametrize('img,size', [
    (torch.rand(3,20,30), (30,20)), (torch.rand(1,3,20,30), (30,20)), (torch.rand(1,20,30), (30,20)), (torch.rand(20,30), (30,20)),
    (np.random.rand(20,30,3), (30,20)), ((255*np.random.rand(20,30,3)).astype(np.uint8), (30,20)), (torch.rand(3,40,3000), (1280,17))])
def test_images_of_many_kinds(img, size): assert Image.open(io.BytesIO(image_bytes(img))).size==size

def test_image_values_survive():
    img = torch.zeros(3,16,16); img[0] = 1
    back = np.asarray(Image.open(io.BytesIO(image_bytes(img))))
    assert np.abs(back.astype(int)-(255,0,0)).max()<6
    with pytest.raises(ValueError, match='cannot be shown'): image_bytes(torch.rand(0,8,8))

def test_colour_tables():
    table = np.frombuffer(lut_bytes('gray'), np.uint8).reshape(256,3).astype(int)
    assert np.abs(table-np.arange(256)[:,None]).max()<=1
    with pytest.raises(ValueError, match='no colormap'): lut_bytes('nosuch')

@pytest.mark.parametrize('sizes', [[(3,4)], [(3,4),(5,2)], [(1,1)]*5])
def test_boxes_round_trip(sizes):
    w = sample_windows((12,20), sizes, batch=2)
    for i in (0,1): assert boxes_windows(window_boxes(w, i), w.grid).yx.tolist()==[w.yx[i].tolist()]

@pytest.mark.parametrize('boxes,words', [([], 'at least one'), ([[1,2,3]], 'must be'), ([[0,0,20,20]], 'leaves'), ([[-1,0,2,2]], 'leaves'), ([[0,0,4,4],[3,3,2,2]], 'overlap')])
def test_bad_boxes_are_refused(boxes, words):
    with pytest.raises(ValueError, match=words): boxes_windows(boxes, (12,20))

def test_traits_refuse_nonsense():
    c = TokenCanvas()
    for k,v in dict(mode='dance', windows=[[1,2]], tokens=['a'], grid=[1], heat='text', opacity='high').items():
        with pytest.raises(traitlets.TraitError): setattr(c, k, v)

def test_only_changes_are_announced():
    c, seen = TokenCanvas(), []
    c.observe(lambda ch: seen.append(ch.name), ['heat','vmax','seen','tokens'])
    c.grid = [2,2]
    for _ in range(3): c.show_heat(torch.tensor([[0.,1.],[2.,3.]])); c.show_seen(torch.tensor([[1,0],[1,1]])>0); c.tokens = [1]
    assert sorted(seen)==['heat','seen','tokens','vmax'] and c.vmax==3 and list(c.seen)==[1,0,1,1]
    c.show_heat(None); c.show_seen(None)
    assert c.heat==c.seen==b''

def test_figures_of_canvases():
    import matplotlib.pyplot as plt
    c = TokenCanvas(mode='windows', grid=[12,20], windows=[[1,2,3,4],[6,6,5,5]], tokens=[5])
    ax = draw_canvas(c, title='windows')
    assert len(ax.patches)==3 and ax.get_xlim()==(0,20) and ax.get_ylim()==(12,0)
    plt.close(ax.figure)
