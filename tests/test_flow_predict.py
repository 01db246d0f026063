"Optical flow of pairs: full, tiles and copies, files and videos, submissions, the command"
import math, warnings, zipfile
import numpy as np, pytest, torch, torch.nn as nn, torch.nn.functional as F
from PIL import Image
from winwin import FlowFolder, Predictor, create_model, flow_to_color, predict, read_flow, save_model
from winwin.tasks import FlowTask, flow_uncertainty
from winwin.inference import submission_files, tile_offsets, tile_weights, write_submission

def flow_predictor(model, *args, **kw): return Predictor(model, *args, task='flow', **kw)

@pytest.fixture(scope='module')
def model():
    torch.manual_seed(0)
    return create_model('winwin_flow_micro', relative=True, dim=48, depth=2, num_heads=3, decoder=dict(dim=48, depth=2, num_heads=3)).requires_grad_(False)

def pair(h=40, w=56, B=1, seed=0): return torch.rand(2,B,3,h,w, generator=torch.Generator().manual_seed(seed))

class Pointwise(nn.Module):
    "Flow by the colours of a pixel in both frames, certainty by the third channel: all ways to read must agree"
    patch_size = 8
    def forward(self, a, b, windows1=None, windows2=None): return [torch.cat([10*a[:,:2]-5*b[:,1:], 4*b[:,2:]-2], 1)]

class Moody(nn.Module):
    "An answer that depends on the whole tile, so that tiles disagree; `channels` of certainty"
    patch_size = 8
    def __init__(self, channels=1):
        super().__init__()
        self.channels = channels
    def forward(self, a, b, windows1=None, windows2=None):
        m = a.mean((1,2,3), keepdim=True)
        return [torch.cat([9*(a-b)[:,:2]+30*m, (8*b-6*m)[:,:self.channels]], 1)]

# --- The full pass

@pytest.mark.parametrize('head', ['dpt', 'decoupled', 'convnext', 'linear'])
@pytest.mark.parametrize('h,w', [(40,56), (37,50), (8,8), (9,120)])
def test_full_is_the_models_own_pass(head, h, w):
    "Padded by repeating the border, cut back, in bands of any height; flow_scale included; nothing is left behind"
    torch.manual_seed(0)
    m = create_model('winwin_flow_micro', head=head, flow_scale=3., dim=48, depth=2, num_heads=3, decoder=dict(dim=48, depth=2, num_heads=3)).requires_grad_(False)
    a,b = pair(h, w, B=2)
    pad = lambda x: F.pad(x, (0,-w%8,0,-h%8), mode='replicate')
    want = m(pad(a), pad(b))[0][...,:h,:w]
    for rows in ('auto',None,1,2,100):
        got = predict(m, a, b, rows=rows)
        assert got.shape==(2,3,h,w) and not got.requires_grad and torch.allclose(got, want, atol=1e-5)
    assert m.training and 'predict' not in vars(m.head)

def test_rows_of_sintel_and_full_hd():
    "436 and 1080 rows: whole patches of 16 inside, every row of the frame in the answer"
    for h in (436, 1080):
        a,b = pair(h, 16)
        got = predict(Wide(), a, b)
        assert got.shape==(1,3,h,16) and torch.equal(got[0,0], torch.arange(h).float()[:,None].expand(h,16))

class Wide(nn.Module):
    "The row of every pixel as flow; refuses what is not divisible by 16"
    patch_size = 16
    def forward(self, a, b, windows1=None, windows2=None):
        assert a.shape==b.shape and a.shape[-2]%16==0 and a.shape[-1]%16==0
        return [torch.arange(a.shape[-2]).float()[:,None].expand(len(a),3,*a.shape[-2:])]

def test_the_order_of_frames_counts(model):
    a,b = pair()
    assert not torch.allclose(predict(model, a, b), predict(model, b, a), atol=1e-3)

# --- Tiles

def test_weights_by_hand():
    m = torch.zeros(2,3,4,5)
    m[:,2] = torch.linspace(-8, 8, 40).view(2,4,5)
    for b,s in ((10.,5.), (15.,3.)):
        want = torch.tensor([math.exp(-2*b*(1/(1+math.exp(-c/s))-.5)) for c in m[:,2].flatten().tolist()]).view(2,1,4,5)
        assert torch.allclose(FlowTask().tile_confidence(m, b, s), want, rtol=1e-4)
    assert FlowTask().tile_confidence(m.half()).dtype==torch.float32
    four = torch.randn(2,4,4,5)
    want = (-20*((flow_uncertainty(four, 'mixture').log()/5).sigmoid()-.5)).exp()[:,None]
    assert torch.allclose(FlowTask(kind='mixture').tile_confidence(four), want)
    for C in (2,5):
        with pytest.raises(ValueError, match=f'not {C} channels'): FlowTask().tile_confidence(torch.zeros(1,C,2,2))
    with pytest.raises(ValueError, match='use uniform'): tile_weights(m, 'gauss', FlowTask())

def test_one_tile_is_the_full_pass(model):
    a,b = pair(B=2)
    full = predict(model, a, b)
    for k in ('confidence','uniform','taper'): assert torch.allclose(predict(model, a, b, 'tile', (40,56), weights=k), full, atol=1e-5)

@pytest.mark.parametrize('kind', ['confidence', 'uniform', 'taper', 'own'])
@pytest.mark.parametrize('size,overlap,tiles,B', [((16,24), 0., 1, 2), ((16,24), .5, 4, 1), ((24,32), .8, 5, 2)])
def test_tiles_are_a_weighted_mean(kind, size, overlap, tiles, B):
    "Against a loop; both frames are cut at the same place"
    (a,b),m = pair(29, 41, B, seed=1),Moody()
    own = lambda m: (-.5*m[:,2:3]).exp()
    weigh = own if kind=='own' else lambda x: tile_weights(x, kind, FlowTask())
    num,den = torch.zeros(B,3,29,41, dtype=torch.double),torch.zeros(B,1,29,41, dtype=torch.double)
    for y in tile_offsets(29, size[0], overlap):
        for x in tile_offsets(41, size[1], overlap):
            cut = lambda o: o[...,y:y+size[0],x:x+size[1]]
            out = m(cut(a), cut(b))[0]
            cut(num).add_(out.double()*weigh(out).double())
            cut(den).add_(weigh(out).double())
    got = predict(m, a, b, 'tile', size, overlap, own if kind=='own' else kind, tiles=tiles)
    assert torch.allclose(got.double(), num/den, atol=1e-3)

def test_all_ways_agree_on_pointwise_flow():
    a,b = pair(45, 70, 2)
    want = Pointwise()(a, b)[0]
    assert torch.equal(predict(Pointwise(), a, b), want)
    for k in ('confidence','uniform','taper'): assert torch.allclose(predict(Pointwise(), a, b, 'tile', (16,24), .7, k), want, atol=1e-4)

def test_confidence_of_other_losses():
    a,b = pair()
    with pytest.raises(ValueError, match='not 2 channels'): predict(Moody(0), a, b, 'tile', (16,24))
    assert predict(Moody(0), a, b, 'tile', (16,24), weights='taper').shape==(1,2,40,56)
    assert predict(Moody(2), a, b, 'tile', (16,24)).shape==(1,4,40,56)

# --- Small copies

@pytest.mark.parametrize('size', [(8,16), (40,56), (80,32)])
def test_vectors_of_a_copy_are_rescaled(size):
    "A pan by a share of the image is the same share at any size; certainty is left alone"
    class Pan(nn.Module):
        patch_size = 8
        def forward(self, a, b, windows1=None, windows2=None):
            h,w = a.shape[-2:]
            assert (h,w)==size
            return [torch.tensor([.1*w,-.2*h,1.5])[:,None,None].expand(len(a),3,h,w)]
    a,b = pair(B=2)
    got = predict(Pan(), a, b, 'resize', size)
    assert got.shape==(2,3,40,56) and torch.allclose(got, torch.tensor([5.6,-8.,1.5])[:,None,None].expand_as(got), atol=1e-5)

def test_a_copy_is_the_small_pass_enlarged(model):
    a,b = pair(64, 96)
    small = lambda x: F.interpolate(x, size=(32,32), mode='bilinear', antialias=True)
    want = F.interpolate(model(small(a), small(b))[0], size=(64,96), mode='bilinear')*torch.tensor([3.,2.,1.])[:,None,None]
    assert torch.allclose(predict(model, a, b, 'resize', (32,32)), want, atol=1e-5)

# --- Bad input

@pytest.mark.parametrize('kw,text', [
    (dict(mode='whole'), 'use full, tile, resize'), (dict(mode='tile'), 'needs size'), (dict(mode='resize', size=(30,32)), 'multiple of the patch'),
    (dict(mode='tile', size=(80,80)), 'smaller tile'), (dict(mode='tile', size=(16,16), weights='best'), 'use uniform'), (dict(rows='some'), "'auto'"),
    (dict(rows=0), 'at least 1'), (dict(mode='tile', size=(16,16), overlap=1.), 'below 1')])
def test_settings(model, kw, text):
    with pytest.raises(ValueError, match=text): predict(model, *pair(), **kw)
    assert model.training # restored after an error too

def test_frames_that_are_none(model):
    a,b = pair()
    with pytest.raises(ValueError, match=r'\(1, 3, 40, 56\) and \(1, 3, 40, 48\); both need one shape'): predict(model, a, b[...,:48])
    with pytest.raises(ValueError, match=r'give \(B,3,height,width\)'): predict(model, a[0], b[0])
    with pytest.raises(ValueError, match='takes 1 image, not 2'): predict(create_model('winwin_depth_micro'), a, b)

# --- Files: one pair

class ByColour(nn.Module):
    "Flow that can be told from the frames: red of the first and green of the second; certainty by blue"
    patch_size = 8
    def __init__(self, channels=3, flow=30.):
        super().__init__()
        self.channels,self.gain = channels,nn.Parameter(torch.tensor(flow))
    def forward(self, a, b, windows1=None, windows2=None):
        return [torch.cat([a[:,:1]*self.gain,-b[:,1:2]*self.gain,(8*a-4)[:,2:],b], 1)[:,:self.channels]]

def photo(h=20, w=28, seed=0): return np.random.default_rng(seed).integers(0, 256, (h,w,3), dtype=np.uint8)
def tensor(x): return torch.from_numpy(x).permute(2,0,1)
def true(x, y): return torch.stack([tensor(x)[0]/255*30,-(tensor(y)[1]/255)*30])

def film(root, names, size=(20,28), suffix='.png'):
    for i,n in enumerate(names):
        (f := root/f'{n}{suffix}').parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo(*size, seed=i)).save(f)
    return root

def quiet(f, *a, **kw):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return f(*a, progress=False, **kw)

def test_all_kinds_of_input_agree(tmp_path):
    x,y,p = photo(),photo(seed=1),flow_predictor(ByColour())
    for n,o in (('some frame',x), ('b',y)): Image.fromarray(o).save(tmp_path/f'{n}.png')
    want = p(x, y).flow
    assert torch.allclose(want, true(x, y), atol=1e-5)
    ways = [(tmp_path/'some frame.png',str(tmp_path/'b.png')), (Image.fromarray(x),y/255), (tensor(x),tensor(y).double()/255), (str(tmp_path/'some frame.png'),y)]
    for a,b in ways: assert torch.allclose(p(a, b).flow, want, atol=1e-5)
    assert p(*ways[0]).name=='some frame' and p(x, y).name==''
    both = p(torch.stack([tensor(x),tensor(y)]), torch.stack([tensor(y),tensor(x)]))
    assert torch.equal(both[0].flow, want) and torch.allclose(both[1].flow, true(y, x), atol=1e-5) and len(both)==2

def test_sizes_that_differ(tmp_path):
    p = flow_predictor(ByColour())
    film(tmp_path, ['a']); film(tmp_path, ['b'], (20,27))
    with pytest.raises(ValueError, match=r'a.png is 20x28 pixels, .*b.png is 20x27; both need one size'): p(tmp_path/'a.png', tmp_path/'b.png')
    with pytest.raises(ValueError, match='the first frame is 20x28 pixels, the second is 19x28'): p(photo(), photo(19))
    with pytest.raises(ValueError, match='is 2 of 20x28 pixels, the second is 3 of 20x28'): p(torch.rand(2,3,20,28), torch.rand(3,3,20,28))

def test_bad_input(tmp_path):
    p = flow_predictor(ByColour())
    (tmp_path/'cut.jpg').write_bytes(b'\xff\xd8\xff')
    film(tmp_path, ['a'])
    for bad,text in ((None,'NoneType is no image'), (np.zeros((8,8,2), np.uint8),'arrays are'), (torch.full((3,20,28), 200.),'divide by 255'),
                     (tmp_path/'cut.jpg','cannot be decoded'), (tmp_path,'is a folder; use Predictor.folder')):
        with pytest.raises(ValueError, match=text): p(tmp_path/'a.png', bad)
        with pytest.raises(ValueError, match=text): p(bad, tmp_path/'a.png')
    with pytest.raises(FileNotFoundError, match='there is no file .*none.png'): p(tmp_path/'a.png', tmp_path/'none.png')

def test_a_saved_model(model, tmp_path):
    save_model(model, tmp_path/'m', extra=dict(task='flow'))
    p,(a,b) = flow_predictor(tmp_path/'m', device='cpu'),pair(37, 50)
    got = p(a[0], b[0])
    assert torch.allclose(got.flow, predict(model, a, b)[0,:2], atol=1e-5)
    assert torch.allclose(got.uncertainty, flow_uncertainty(predict(model, a, b))[0], atol=1e-5)
    assert '50x37' in repr(got) and 'winwin_flow_micro' in repr(p)
    for kw in (dict(mode='tile', size=(24,32), weights='taper'), dict(mode='resize', size=(24,32)), dict(rows=2)):
        assert torch.allclose(flow_predictor(model, **kw)(a[0], b[0]).flow, predict(model, a, b, **kw)[0,:2], atol=1e-5)

def test_the_loss_says_what_certainty_means(model, tmp_path):
    x = photo(),photo(seed=1)
    for extra,want in ((dict(task='flow'),'bounded'), (dict(kind='laplacian'),'laplacian'), (dict(kind='mixture'),'bounded'), (dict(kind=None),'bounded')):
        assert flow_predictor(save_model(model, tmp_path/'m', extra=extra)).task.kind==want
    for channels,kind in ((2,'l1'), (3,'bounded'), (4,'mixture')): assert flow_predictor(ByColour(channels)).task.kind==kind
    assert 'uncertainty' not in flow_predictor(ByColour(2))(*x).values
    p = flow_predictor(ByColour(), kind='laplacian')(*x)
    assert torch.allclose(p.uncertainty, (tensor(x[0])[2]/255*8-4).exp(), rtol=1e-4)
    with pytest.raises(ValueError, match='has 2 outputs, the head of the model 3'): flow_predictor(model, kind='l1')
    with pytest.raises(ValueError, match='maps of 5 channels'): flow_predictor(ByColour(5))

def test_uncertainty_of_a_copy_is_in_pixels_of_the_frame():
    class Even(nn.Module):
        patch_size = 8
        def forward(self, a, b, windows1=None, windows2=None): return [torch.zeros(len(a),3,*a.shape[-2:])]
    x = torch.rand(3,32,64)
    full,half = (flow_predictor(Even(), **kw)(x, x).uncertainty for kw in ({}, dict(mode='resize', size=(16,32))))
    assert torch.allclose(full, torch.full((32,64), 2.125)) and torch.allclose(half, 2*full)

def test_models_that_are_none(model):
    with pytest.raises(ValueError, match='Linear is not a dense model'): flow_predictor(nn.Linear(2, 2))
    with pytest.raises(ValueError, match='takes one image'): flow_predictor(create_model('winwin_seg_micro'))
    with pytest.raises(ValueError, match='takes two frames'): Predictor(model, task='seg')
    assert Predictor(model).task.name=='flow'
    for kw,text in ((dict(mode='tile'),'needs size'), (dict(mode='whole'),'use full'), (dict(rows='many'),"'auto'")):
        with pytest.raises(ValueError, match=text): flow_predictor(model, **kw)

@pytest.mark.parametrize('format,eps', [('.flo',0), ('pfm',0), ('.png',1/128+1e-5), ('.FLO5',0), ('npy',0)])
def test_every_format(format, eps, tmp_path):
    p = flow_predictor(ByColour())(photo(), photo(seed=1))
    (flow,color,sure) = p.save(tmp_path, ('flow','color','uncertainty'), name='deep/a', format=format)
    assert flow==tmp_path/f'flow/deep/a.{format.lower().lstrip(".")}'
    assert (read_flow(flow)[0]-p.flow).abs().max()<=eps and read_flow(flow)[1].all()
    assert (np.array(Image.open(color))==np.round(flow_to_color(p.flow)*255)).all() and (np.array(Image.open(color))==p.color()).all()
    img = np.array(Image.open(sure)).astype(int).sum(-1)
    assert img.shape==(20,28) and img[p.uncertainty==p.uncertainty.max()].min()>img[p.uncertainty==p.uncertainty.min()].max()

def test_nothing_is_replaced_by_accident(tmp_path):
    p = flow_predictor(ByColour())(photo(), photo(seed=1))
    p.save(tmp_path, 'color', name='a')
    with pytest.raises(FileExistsError, match='overwrite=True'): p.save(tmp_path, name='a')
    assert not (tmp_path/'flow').exists()
    assert len(p.save(tmp_path, name='a', overwrite=True))==2
    with pytest.raises(ValueError, match='has no name'): p.save(tmp_path)
    with pytest.raises(ValueError, match='choose from map, color, uncertainty'): p.save(tmp_path, 'mask', name='b')
    with pytest.raises(ValueError, match='use .flo'): p.save(tmp_path, name='b', format='jpg')
    bare = flow_predictor(ByColour(2))(photo(), photo(seed=1))
    with pytest.raises(ValueError, match='predicts no uncertainty'): bare.save(tmp_path, 'uncertainty', name='b')

@pytest.mark.parametrize('channels', [2, 3])
def test_pictures(channels):
    import io, matplotlib
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    p = flow_predictor(ByColour(channels))(photo(), photo(seed=1))
    assert len(p.show())==channels and Image.open(io.BytesIO(p._repr_png_())).size==(28,20)
    plt.close('all')
    assert (p.color(60)>=p.color(40)).all() and (p.color(60)!=p.color(40)).any() # paler on a wider scale

# --- Files: videos and folders of pairs

def test_a_video_becomes_a_dataset(tmp_path):
    "Natural order, sub-folders are videos of their own, the last frame has no flow"
    names = ['9','10','11','b/1','b/02','b/c/x1','b/d1']
    src,p = film(tmp_path/'images', names, suffix='.PNG'),flow_predictor(ByColour())
    r = quiet(p.folder, src, tmp_path)
    assert list(r.failed)==['b/c/x1.PNG'] and 'alone in its folder' in r.failed['b/c/x1.PNG'] and len(r.written)==8
    seeds = {n: i for i,n in enumerate(names)}
    for a,b in (('9','10'), ('10','11'), ('b/1','b/02'), ('b/02','b/d1')):
        assert torch.allclose(read_flow(tmp_path/f'flow/{a}.flo')[0], true(photo(seed=seeds[a]), photo(seed=seeds[b])), atol=1e-5)

def test_what_was_written_is_read_again(tmp_path):
    src = film(tmp_path/'images', ['a/1','a/2','a/3'])
    quiet(flow_predictor(ByColour()).folder, src, tmp_path)
    data = FlowFolder(tmp_path)
    assert data.names==['a/1','a/2']
    for o in data: assert torch.allclose(flow_predictor(ByColour())(o['image'], o['image2']).flow, o['flow'], atol=1e-5)

def test_pairs_by_suffix_and_by_folder(tmp_path):
    p = flow_predictor(ByColour())
    src = film(tmp_path/'kitti', ['000000_10','000000_11','000001_10','000001_11','000002_10'])
    r = quiet(p.folder, src, tmp_path/'out', suffixes=('_10','_11'), kinds='flow', format='png')
    assert [o.name for o in r.written]==['000000.png','000001.png'] and list(r.failed)==['000002_10.png']
    assert (read_flow(tmp_path/'out/flow/000001.png')[0]-true(photo(seed=2), photo(seed=3))).abs().max()<.01
    first,second = film(tmp_path/'first', ['a/1','b']),film(tmp_path/'second', ['b','a/1','c'])
    r = quiet(p.folder, first, tmp_path/'two', second=second, kinds=('flow',))
    assert sorted(o.relative_to(tmp_path).as_posix() for o in r.written)==['two/flow/a/1.flo','two/flow/b.flo'] and [*r.failed][0].endswith('c.png')
    assert torch.allclose(read_flow(tmp_path/'two/flow/b.flo')[0], true(photo(seed=1), photo(seed=0)), atol=1e-5)

@pytest.mark.parametrize('kw,text', [(dict(second='x', suffixes=('a','b')), 'not both'), (dict(suffixes=('_10',)), 'two ends of names'), (dict(kinds='mask'), 'choose from map'),
    (dict(format='.jpg'), 'use .flo'), (dict(largest='most'), "pixels, 'all', or None"), (dict(largest=0), 'not a length'), (dict(largest='all', kinds='color'), "add 'map' to kinds")])
def test_folder_settings(kw, text, tmp_path):
    src = film(tmp_path/'in', ['1','2'])
    with pytest.raises(ValueError, match=text): flow_predictor(ByColour()).folder(src, tmp_path/'out', **kw)
    assert not (tmp_path/'out').exists()

def test_too_few_frames(tmp_path):
    p = flow_predictor(ByColour())
    with pytest.raises(ValueError, match='1.png is alone in its folder; a pair needs two frames'): p.folder(film(tmp_path/'in', ['a/1']), tmp_path/'out')
    with pytest.raises(ValueError, match='a_1.png has no partner'): p.folder(film(tmp_path/'s', ['a_1','b_2']), tmp_path/'out', suffixes=('_1','_2'))
    (tmp_path/'empty').mkdir()
    with pytest.raises(FileNotFoundError, match='nothing in it'): p.folder(tmp_path/'empty', tmp_path/'out')
    with pytest.raises(ValueError, match='would be read as images the next time'): p.folder(film(tmp_path/'v', ['1','2']), tmp_path/'v')
    with pytest.raises(ValueError, match='predicts no uncertainty'): flow_predictor(ByColour(2)).folder(tmp_path/'v', tmp_path/'out', kinds='uncertainty')

def test_what_cannot_be_read_is_listed_and_the_run_resumed(tmp_path):
    src,p = film(tmp_path/'in', ['1','2','3','4','5','6']),flow_predictor(ByColour())
    (src/'2.png').write_bytes(b'no image')
    film(src, ['6'], (20,30))
    with pytest.warns(UserWarning, match='3 of 5 pairs could not be read'): r = p.folder(src, tmp_path/'out', progress=False)
    assert list(r.failed)==['1.png','2.png','5.png'] and r.failed['5.png']=='5.png is 20x28 pixels, 6.png is 20x30; both need one size'
    assert len(r.written)==4 and 'FolderReport(4 written, 0 skipped, 3 failed)' in repr(r)
    film(src, ['0','2']); (tmp_path/'out/color/3.png').unlink()
    r = quiet(p.folder, src, tmp_path/'out')
    assert [o.relative_to(tmp_path/'out').as_posix() for o in r.written]==['flow/0.flo','color/0.png','flow/1.flo','color/1.png','flow/2.flo','color/2.png','color/3.png']
    assert r.skipped==['4'] and list(r.failed)==['5.png']

def test_flow_that_a_format_cannot_hold_is_listed(tmp_path):
    src = film(tmp_path/'in', ['1','2','3'])
    r = quiet(flow_predictor(ByColour(flow=2000.)).folder, src, tmp_path/'out', format='.png', kinds='flow')
    assert not r.written and list(r.failed)==['1.png','2.png'] and 'does not fit' in r.failed['1.png']

def test_one_scale_for_a_video(tmp_path):
    src,p = film(tmp_path/'in', ['1','2','3']),flow_predictor(ByColour())
    shown = lambda n: np.array(Image.open(tmp_path/f'out/color/{n}.png'))
    r = quiet(p.folder, src, tmp_path/'out', largest='all')
    flows = {n: read_flow(tmp_path/f'out/flow/{n}.flo')[0] for n in '12'}
    far = max(f.norm(dim=0).max().item() for f in flows.values())
    for n,f in flows.items(): assert (shown(n)==np.round(flow_to_color(f, far)*255)).all()
    assert len(r.written)==4
    assert not quiet(p.folder, src, tmp_path/'out', largest='all').written # all is there
    film(src, ['1','2','3','4'])
    assert [o.name for o in quiet(p.folder, src, tmp_path/'out', largest='all').written]==['3.flo','1.png','2.png','3.png'] # the scale may have changed
    quiet(p.folder, src, tmp_path/'out', largest=100., overwrite=True)
    assert (shown('1')==np.round(flow_to_color(flows['1'], 100.)*255)).all()
    still = film(tmp_path/'still', ['1','2'])
    quiet(flow_predictor(ByColour(flow=0.)).folder, still, tmp_path/'out2', largest='all')
    assert (np.array(Image.open(tmp_path/'out2/color/1.png'))==255).all() # no motion is white, and no division by zero

# --- Submissions

def sintel(root):
    for r in ('clean','final'):
        for s,n in (('ambush_1',3), ('market_4',2)): film(root/f'test/{r}/{s}', [f'frame_{i:04d}' for i in range(1, n+1)])
    return root

def kitti(root, folder='image_2'):
    film(root/f'testing/{folder}', [f'{i:06d}_{k}' for i in range(2) for k in (10,11)])
    return root

def spring(root):
    for side in ('left','right'):
        for s in ('0003','0019'): film(root/f'test/{s}/frame_{side}', [f'frame_{side}_{i:04d}' for i in (1,2,3)])
    return root

SPRING = [f'{s}/flow_{w}_{c}/flow_{w}_{c}_{i:04d}.flo5' for s in ('0003','0019') for c in ('left','right') for w,ids in (('FW',(1,2)), ('BW',(2,3))) for i in ids]
SINTEL = [f'{r}/{s}/frame_{i:04d}.flo' for r in ('clean','final') for s,n in (('ambush_1',3), ('market_4',2)) for i in range(1, n)]
NAMES = dict(sintel=(sintel,SINTEL), spring=(spring,SPRING), kitti2015=(kitti,['flow/000000_10.png','flow/000001_10.png','kitti2015.zip']),
             kitti2012=(lambda root: kitti(root, 'colored_0'),['000000_10.png','000001_10.png','kitti2012.zip']))

@pytest.mark.parametrize('kind', NAMES)
def test_names_that_the_servers_expect(kind, tmp_path):
    make,names = NAMES[kind]
    root = make(tmp_path/'data')
    with pytest.raises(FileNotFoundError, match='complete the download'): write_submission(ByColour(), root, tmp_path/'out', kind)
    assert not (tmp_path/'out').exists()
    r = quiet(write_submission, ByColour(), root, tmp_path/'out', kind, strict=False)
    assert sorted(o.relative_to(tmp_path/'out').as_posix() for o in (tmp_path/'out').rglob('*') if o.is_file())==sorted(names)
    assert sorted(r.written)==sorted(tmp_path/'out'/n for n in names) and not r.failed
    assert str(tmp_path/'out') in r.then and r.then in repr(r) and repr(r).startswith('SubmissionReport(')
    assert not quiet(write_submission, ByColour(), root, tmp_path/'out', kind, strict=False).written

def test_answers_belong_to_their_frames(tmp_path):
    "Spring forward starts at the named frame and goes to the next, backward to the one before; at the size of the frames"
    quiet(write_submission, ByColour(), spring(tmp_path/'spring'), tmp_path/'out', 'spring', strict=False)
    x = [photo(seed=i) for i in range(3)]
    for name,a,b in (('FW_left_0001',0,1), ('FW_left_0002',1,2), ('BW_left_0002',1,0), ('BW_left_0003',2,1)):
        assert torch.allclose(read_flow(tmp_path/f'out/0003/flow_{name[:7]}/flow_{name}.flo5')[0], true(x[a], x[b]), atol=1e-5)
    quiet(write_submission, flow_predictor(ByColour()), sintel(tmp_path/'sintel'), tmp_path/'s', 'sintel', strict=False)
    assert torch.allclose(read_flow(tmp_path/'s/final/ambush_1/frame_0002.flo')[0], true(x[1], x[2]), atol=1e-5)

def test_the_archive_of_kitti(tmp_path):
    root = kitti(tmp_path/'kitti')
    quiet(write_submission, ByColour(flow=2000.), root, tmp_path/'out', 'kitti2015', strict=False)
    with zipfile.ZipFile(tmp_path/'out/kitti2015.zip') as z:
        assert z.namelist()==['flow/000000_10.png','flow/000001_10.png'] and z.read('flow/000000_10.png')==(tmp_path/'out/flow/000000_10.png').read_bytes()
    flow,valid = read_flow(tmp_path/'out/flow/000000_10.png')
    assert valid.all() and flow.max()==511.984375 and flow.min()==-512 # what the files can hold

def test_a_failed_pair_gives_no_archive(tmp_path):
    root = kitti(tmp_path/'kitti')
    (root/'testing/image_2/000001_11.png').write_bytes(b'no image')
    r = quiet(write_submission, ByColour(), root, tmp_path/'out', 'kitti2015', strict=False)
    assert len(r.written)==1 and list(r.failed)==['testing/image_2/000001_10.png']
    assert not r.then and not (tmp_path/'out/kitti2015.zip').exists()
    film(root/'testing/image_2', ['000001_11'])
    r = quiet(write_submission, ByColour(), root, tmp_path/'out', 'kitti2015', strict=False)
    assert r.then and len(r.written)==2 and r.skipped==['flow/000000_10.png']
    r = quiet(write_submission, ByColour(flow=math.nan), root, tmp_path/'nan', 'kitti2015', strict=False)
    assert len(r.failed)==2 and 'not finite' in str(r)

def test_unknown_submissions(tmp_path):
    for bad,text in (('kitti','did you mean kitti2015 or kitti2012'), ('sintell','did you mean sintel'), ('x','[Tt]here are sintel, kitti2015, kitti2012, spring')):
        with pytest.raises(ValueError, match=text): submission_files(bad, tmp_path)
    with pytest.raises(FileNotFoundError, match='there is no folder'): submission_files('spring', tmp_path)

# --- The command

@pytest.fixture
def call(capsys):
    from winwin.cli import main
    def run(*args):
        with pytest.raises(SystemExit) as e: main(['predict', *map(str, args)])
        got = capsys.readouterr()
        assert 'Traceback' not in got.err
        return e.value.code or 0, got.out, got.err
    return run

@pytest.fixture(scope='module')
def runs(model, tmp_path_factory):
    "A flow checkpoint and one of classes"
    root = tmp_path_factory.mktemp('runs')
    save_model(model, root/'flow/best', extra=dict(task='flow'))
    save_model(create_model('winwin_seg_micro', num_classes=3, dim=48, depth=1, num_heads=2), root/'seg', extra=dict(task='seg', classes=['a','b','c']))
    return root

def made(folder): return sorted(o.relative_to(folder).as_posix() for o in folder.rglob('*') if o.is_file())

def test_command_on_two_frames(call, runs, model, tmp_path):
    src = film(tmp_path/'in', ['a','b'])
    code,out,err = call(runs/'flow', src/'a.png', src/'b.png', '-o', tmp_path/'out')
    assert code==0 and made(tmp_path/'out')==['color/a.png','flow/a.flo','legend.png'] and str(tmp_path/'out/flow/a.flo') in out, err
    want = predict(model, *(tensor(photo(seed=i))[None]/255 for i in (0,1)))[0,:2]
    assert torch.allclose(read_flow(tmp_path/'out/flow/a.flo')[0], want, atol=1e-4)
    code,_,err = call(runs/'flow', src/'a.png', src/'b.png', '-o', tmp_path/'out')
    assert code==1 and '--overwrite' in err
    words = '--overwrite --kinds flow uncertainty --format png --mode tile --size 16 16 --overlap 0.7 --weights taper --largest all'.split()
    code,_,err = call(runs/'flow', src/'a.png', src/'b.png', '-o', tmp_path/'out', *words)
    assert code==0 and made(tmp_path/'out')==['color/a.png','flow/a.flo','flow/a.png','legend.png','uncertainty/a.png'], err

def test_command_on_folders(call, runs, tmp_path):
    src = film(tmp_path/'in', ['1','2','3'])
    code,out,err = call(runs/'flow', src, '-o', tmp_path/'out', '--largest', 'all')
    assert code==0 and '4 files written' in out and made(tmp_path/'out')==['color/1.png','color/2.png','flow/1.flo','flow/2.flo','legend.png'], err
    code,out,_ = call(runs/'flow', src, '-o', tmp_path/'out')
    assert code==0 and '0 files written' in out and '2 pairs already done' in out
    code,out,err = call(runs/'flow', src, film(tmp_path/'second', ['1','2','3']), '-o', tmp_path/'two', '--kinds', 'color', '--largest', 20)
    assert code==0 and made(tmp_path/'two')==[*(f'color/{i}.png' for i in (1,2,3)),'legend.png'], err
    (src/'3.png').write_bytes(b'no image')
    code,_,err = call(runs/'flow', src, '-o', tmp_path/'bad')
    assert code==1 and '2.png: 3.png cannot be decoded' in err
    code,_,err = call(runs/'flow', kitti(tmp_path/'k')/'testing/image_2', '-o', tmp_path/'three', '--suffixes', '_10', '_11', '--kinds', 'flow')
    assert code==0 and made(tmp_path/'three')==['flow/000000.flo','flow/000001.flo','legend.png'], err

@pytest.mark.parametrize('kind', NAMES)
def test_command_for_submissions(call, runs, kind, tmp_path, monkeypatch):
    from winwin.data import KITTI, Sintel, Spring
    make,names = NAMES[kind]
    root = make(tmp_path/'data')
    code,_,err = call(runs/'flow', root, '-o', tmp_path/'out', '--submission', kind)
    assert code==1 and 'complete the download' in err
    monkeypatch.setattr(Sintel, 'counts', dict(test=3)); monkeypatch.setattr(Spring, 'counts', dict(test=16))
    monkeypatch.setattr(KITTI, 'counts', {y: dict(testing=2) for y in (2012,2015)})
    code,out,err = call(runs/'flow', root, '-o', tmp_path/'out', '--submission', kind)
    assert code==0 and made(tmp_path/'out')==sorted(names) and f'{len(names)} files' in out and 'Next: ' in out, err

@pytest.mark.parametrize('words,text', [
    (('flow','in/1.png'), '1.png is one frame; give the second one too'), (('flow','in/1.png','wide.png'), 'both need one size'), (('flow','in/1.png','in/9.png'), 'there is no file'),
    (('flow','nowhere','in/1.png'), 'there is no file or folder nowhere'), (('flow','one'), 'a pair needs two frames'), (('flow','in','--submission','sintell'), 'did you mean sintel'),
    (('flow','in','--submission','sintel','--kinds','color'), '--kinds does not apply'), (('flow','in','--bits','8'), 'bits does not apply to flow'), (('flow','in','--max-depth','8'), '--max-depth does not apply to flow'),
    (('seg','in/1.png','in/2.png'), 'the second source in/2.png is for pairs'), (('seg','in','--submission','sintel'), '--submission is for pairs'),
    (('seg','in','--largest','all'), 'largest does not apply to seg'), (('flow','in','--kinds','mask'), 'choose from map, color, uncertainty'), (('flow','in/1.png','in/2.png','--suffixes','a','b'), 'both frames are given')])
def test_command_mistakes_are_one_line(call, runs, words, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for k in ('flow','seg'): (tmp_path/k).symlink_to(runs/k)
    film(tmp_path/'in', ['1','2']); film(tmp_path/'one', ['1']); film(tmp_path, ['wide'], (20,30))
    code,out,err = call(words[0], *words[1:], '-o', 'out')
    assert code==1 and text in err and err.count('\n')==1, out + err
    assert not (tmp_path/'out').exists()

def test_a_misspelt_option_gets_the_nearest(call):
    code,out,err = call('a', 'b', '-o', 'c', '--submision', 'sintel')
    assert code==2 and '--submission' in out + err

def test_single_images_still_work(call, runs, tmp_path):
    src = film(tmp_path/'in', ['1','2'])
    code,_,err = call(runs/'seg', src, '-o', tmp_path/'out', '--bits', 16)
    assert code==0 and made(tmp_path/'out')==['classes.json','labels/1.png','labels/2.png','legend.png','overlay/1.png','overlay/2.png'], err
