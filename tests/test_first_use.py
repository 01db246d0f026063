"""What a first user meets: own folders, own photographs, own datasets; nothing wrong without a word"""
import json, os, warnings
import numpy as np, pytest, torch
from PIL import Image
from winwin.cli import main
from winwin.data.flow_files import write_flow
from winwin.models.controls import get_temperature
from winwin.models.dense import create_model
from winwin.models.hub import load_model
from winwin.tasks.segmentation import SegTask
from winwin.temperature import checkpoint as tempering
from winwin.temperature.matching import match_temperature
from winwin.temperature.search import sweep_temperature
from winwin.training.loop import TrainConfig, fit
from winwin.training.recipes import change, check_held_out, get_preset, presets, preset_name, recipe_data, train_recipe

def call(capsys, *args):
    "Exit code, output and errors of a command"
    capsys.readouterr()
    try: main([str(o) for o in args])
    except SystemExit as stop: code = stop.code
    else: code = 0
    out = capsys.readouterr()
    return code or 0, out.out, out.err

def save(path, x):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(x).save(path)

def fill(root, images, targets, names, target=lambda i: np.full((64,96), i%2, np.uint8)):
    "Pictures and class maps; picture `i` has brightness `i`"
    for i in names:
        save(root/images/f'{i:03d}.png', np.full((64,96,3), i, np.uint8))
        save(root/targets/f'{i:03d}.png', target(i))

quick = dict(model='winwin_seg_micro', windows='2x3', steps=2, batch_size=2, workers=0, warmup=0)
flags = '--model winwin_seg_micro --windows 2x3 --steps 2 --batch-size 2 --workers 0 --warmup 0 --classes a b'.split()

# -------------------------------------------------------------------------------- 1: never scored on training images
def seg(root, **over): return change(get_preset('folder-seg'), root=str(root), classes=('a','b'), **quick|over)
def depth(root, **over):
    return change(get_preset('folder-depth'), root=str(root), depth_scale=.1, **quick|dict(model='winwin_depth_micro')|over)

@pytest.mark.parametrize('layout', ['flat','inside','outside'])
@pytest.mark.parametrize('make,targets', [(seg,'labels'),(depth,'depth')])
def test_folders_without_validation_are_split(layout, make, targets, tmp_path):
    images,targets = dict(flat=('images',targets), inside=('images/train',f'{targets}/train'), outside=('train/images',f'train/{targets}'))[layout]
    fill(tmp_path, images, targets, range(20), lambda i: np.full((64,96), 10+i%2, np.uint8) if make is depth else np.full((64,96), i%2, np.uint8))
    train,valid = (recipe_data(make(tmp_path), k) for k in ('train','valid'))
    seen,scored = ({round(o['image'][0,0,0].item()*255) for o in data} for data in (train,valid))
    assert len(seen)==16 and scored=={16,17,18,19} and not seen & scored

def test_pairs_that_share_a_frame_with_held_out_ones_are_not_trained_on(tmp_path):
    for i in range(11): save(tmp_path/f'images/{i}.png', np.full((64,96,3), i, np.uint8))
    (tmp_path/'flow').mkdir()
    for i in range(10): write_flow(tmp_path/f'flow/{i}.flo', torch.zeros(2,64,96))
    for preset in ('folder-flow','folder-pretrain'):
        r = change(get_preset(preset), root=str(tmp_path))
        seen,scored = ({round(o[k][0,0,0].item()*255) for o in recipe_data(r, part) for k in ('image','image2')} for part in ('train','valid'))
        assert scored=={8,9,10} and seen==set(range(8)), preset

def test_a_run_says_what_it_holds_out_and_eval_scores_the_same(tmp_path, capsys):
    fill(tmp_path/'data', 'images', 'labels', range(10))
    code,out,err = call(capsys, 'train', 'folder-seg', '--root', tmp_path/'data', *flags, '--out', tmp_path/'run')
    assert code==0, err
    line = next(o for o in err.splitlines() if 'held out' in o)
    assert '2 of its 10 images' in line and '--valid-share' in line
    saved = load_model(tmp_path/'run/last').saved['extra']
    assert saved['recipe']['valid_share']==.2 and saved['held_out']['items']==2
    code,out,err = call(capsys, 'eval', tmp_path/'run', '--json')
    assert code==0 and json.loads(out)['images']==2 and '2 of its 10 images' in err
    os.rename(tmp_path/'data', tmp_path/'moved')
    assert json.loads(call(capsys, 'eval', tmp_path/'run', '--root', tmp_path/'moved', '--json')[1])['images']==2
    fill(tmp_path/'moved', 'images', 'labels', range(10, 20)) # the held-out part is another now
    code,_,err = call(capsys, 'eval', tmp_path/'run', '--root', tmp_path/'moved')
    assert code==1 and 'training images' in err and 'images/val' in err

def test_shares_of_nothing_and_of_everything(tmp_path, capsys):
    fill(tmp_path/'one', 'images', 'labels', range(1))
    code,_,err = call(capsys, 'train', 'folder-seg', '--root', tmp_path/'one', *flags, '--out', tmp_path/'a')
    assert code==1 and 'nothing to score' in err and '--valid-share' in err and len(err.splitlines())==1
    fill(tmp_path/'ten', 'images', 'labels', range(10))
    code,_,err = call(capsys, 'train', 'folder-seg', '--root', tmp_path/'ten', *flags, '--valid-share', '1', '--out', tmp_path/'b')
    assert code==1 and 'nothing to train on' in err
    code,out,err = call(capsys, 'train', 'folder-seg', '--root', tmp_path/'ten', *flags, '--valid-share', '0', '--out', tmp_path/'c')
    assert code==0 and 'no scores' in err and 'mIoU' not in out
    code,_,err = call(capsys, 'eval', tmp_path/'c')
    assert code==1 and 'no images to score' in err
    with pytest.raises(ValueError, match='between 0 and 1'): recipe_data(seg(tmp_path/'ten', valid_share=2.))

def test_runs_of_earlier_versions_have_no_held_out_images(tmp_path):
    from winwin.training.recipes import read_recipe, saved_recipe
    fill(tmp_path, 'images', 'labels', range(10))
    old = json.loads(json.dumps(saved_recipe(seg(tmp_path))))
    del old['valid_share']
    with pytest.raises(ValueError, match='no images to score'): recipe_data(read_recipe(old), 'valid')
    assert len(recipe_data(read_recipe(old)))==10

def test_a_separate_folder_for_validation_is_used_whole(tmp_path):
    fill(tmp_path/'a', 'images', 'labels', range(10))
    fill(tmp_path/'b', 'images', 'labels', range(5))
    r = seg(tmp_path/'a', valid_root=str(tmp_path/'b'))
    assert [len(recipe_data(r, k)) for k in ('train','valid')]==[10,5]
    same = seg(tmp_path/'a', valid_root=str(tmp_path/'a'))
    assert [len(recipe_data(same, k)) for k in ('train','valid')]==[8,2]

def test_a_validation_folder_is_never_trained_on(tmp_path):
    fill(tmp_path, 'images/val', 'labels/val', range(5))
    with pytest.raises(ValueError, match='no train'): recipe_data(seg(tmp_path))

# -------------------------------------------------------------------------------- 12: one layout, one pattern of names
@pytest.mark.parametrize('ends', [('_img1','_img2',''),('_img1','_img2','_flow'),('-img0','-img1','-gt'),('_img0','_img1','')])
@pytest.mark.parametrize('images,flow', [('.','.'), ('images','flow'), ('images/train','flow/train'), ('train/images','train/flow'), ('train','train')])
def test_flow_folders_of_pairs(ends, images, flow, tmp_path):
    first,second,target = ends
    for i in range(5):
        save(tmp_path/images/f'{i:03d}{first}.png', np.full((64,96,3), i, np.uint8))
        save(tmp_path/images/f'{i:03d}{second}.png', np.full((64,96,3), 100+i, np.uint8))
        (tmp_path/flow).mkdir(parents=True, exist_ok=True)
        write_flow(tmp_path/flow/f'{i:03d}{target}.flo', torch.full((2,64,96), float(i)))
    train,valid = (recipe_data(change(get_preset('folder-flow'), root=str(tmp_path)), k) for k in ('train','valid'))
    assert (train.names,valid.names)==(['000','001','002','003'],['004'])
    item = train[3]
    assert [round(item[k][0,0,0].item()*255) for k in ('image','image2')]==[3,103] and item['flow'].unique().tolist()==[3.]

def test_a_video_is_not_taken_for_pairs(tmp_path):
    for i in (1,2,3): save(tmp_path/f'images/a_img{i}.png', np.full((8,8,3), i, np.uint8))
    (tmp_path/'flow').mkdir()
    for i in (1,2): write_flow(tmp_path/f'flow/a_img{i}.flo', torch.zeros(2,8,8))
    r = change(get_preset('folder-flow'), root=str(tmp_path), valid_share=0.)
    assert recipe_data(r).names==['a_img1','a_img2']

def test_names_of_presets(capsys):
    assert all(name.split('-')[1]==r.train.task for name,r in presets.items() if name!='folder') # which takes any task
    assert {f'folder-{task}' for task in ('seg','depth','flow','pretrain')}<=presets.keys()
    for old in ('flow-layered','flow-layered-quiet','flow-driving','flow-photos','flow-sintel','flow-spring','flow-folder',
                'pretrain','pretrain-driving','nyuv2-tiny-depth'):
        assert get_preset(old) is presets[preset_name(old)]
    code,_,err = call(capsys, 'train', 'flow-folder')
    assert code==1 and 'root' in err

# -------------------------------------------------------------------------------- 2: the end of a range is no result
def tau_of(model): return float(next(iter(get_temperature(model).values())))

def test_a_sweep_that_ends_at_its_range_keeps_1():
    model = create_model('winwin_seg_micro', depth=2)
    for score in (tau_of, lambda m: -tau_of(m)): # best at the lower end, at the upper end
        with pytest.warns(UserWarning, match='1 is kept'):
            found = sweep_temperature(model, score, [.5,.75,1.,1.5,2.], progress=False)
        assert found.tau==1 and {*get_temperature(model).values()}=={1.}
    with warnings.catch_warnings(): # best at 1, the end of this range: nothing to complain about
        warnings.simplefilter('error')
        assert sweep_temperature(model, tau_of, [1.,1.5,2.], progress=False).tau==1

@pytest.mark.parametrize('per', ['model','layer','head'])
def test_matching_keeps_1_where_nothing_matches(per):
    torch.manual_seed(0)
    model = create_model('winwin_seg_micro', depth=2).eval().requires_grad_(False)
    with pytest.warns(UserWarning, match='sweep_temperature .--sweep.'): # a single token attends to itself alone
        found = match_temperature(model, torch.rand(1,3,96,96), '1x1', per=per, by='self')
    assert found.unmatched==[*found.tau] and found.mean==1
    assert all((torch.as_tensor(t)==1).all() for t in get_temperature(model).values())

def test_matching_warns_below_0_8():
    "Windows that attend more evenly than the full image: the match flattens attention"
    torch.manual_seed(0)
    model = create_model('winwin_seg_micro', depth=2).eval().requires_grad_(False)
    for b in model.encoder.blocks: b.attn.qkv.weight[:384] = 1.5*b.attn.qkv.weight[:192].repeat(2,1)
    img = torch.rand(1,3,96,96)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        found = [match_temperature(model, img, '2x4', by='self', bounds=bounds) for bounds in ((.5,2.),(.7,.79))]
    assert found[0].mean>1 and found[1].mean==1 # the narrow range has no match: 1, not .79
    found[0].tau = dict.fromkeys(found[0].tau, .7)
    assert 'below 0.8' in found[0].doubt

@pytest.mark.parametrize('way', ['match','sweep'])
def test_nothing_found_is_exit_1_and_changes_nothing(way, tmp_path, monkeypatch, capsys):
    fill(tmp_path/'data', 'images', 'labels', range(10))
    train_recipe(seg(tmp_path/'data', windows='2x3'), tmp_path/'run', progress=False)
    before = {p: p.read_bytes() for p in (tmp_path/'run/best').iterdir()}
    if way=='match': # a range too narrow for any match: its upper end does not count
        monkeypatch.setattr(tempering, 'match_temperature', lambda *args,**kw: match_temperature(*args, **kw, bounds=(1.9,1.9001)))
    else: monkeypatch.setattr(tempering, 'sweep_temperature', lambda model,loss,*args,**kw: sweep_temperature(model, tau_of, *args, **kw))
    code,out,err = call(capsys, 'temperature', tmp_path/'run', f'--{way}', '--images', '2')
    assert code==1 and 'unchanged' in err and ('--ratio' in out if way=='match' else '1 is kept' in out)
    assert {p: p.read_bytes() for p in before}==before

# -------------------------------------------------------------------------------- 3 and 9: datasets of one's own
class Own(torch.utils.data.Dataset):
    "What someone who has not read anything might write"
    def __init__(self, item): self.item = item
    def __len__(self): return 4
    def __getitem__(self, i): return self.item

config = TrainConfig(windows='2x3', steps=1, batch_size=2, log_every=1)
image,mask = torch.rand(3,64,96),torch.ones(64,96, dtype=torch.int64)
def own(item, task='seg', **over):
    model = create_model(f'winwin_{task}_micro', **dict(num_classes=3) if task=='seg' else {}, **over)
    return fit(model, Own(item), TrainConfig(task=task, windows='2x3', steps=1, batch_size=2), valid=Own(item), progress=False)

@pytest.mark.parametrize('item', [(image,mask), [image,mask[None]], dict(image=image, labels=mask), (image,mask.byte())])
def test_own_datasets_of_tuples(item):
    done = own(item)
    assert {k for k in done.scores if k.startswith('IoU/')}=={'IoU/0','IoU/1','IoU/2'} # the model knows the classes

def test_own_datasets_of_depth_and_flow():
    assert own((image,torch.ones(64,96)), 'depth').scores['abs_rel']>0
    assert own((image,image,torch.ones(2,64,96)), 'flow').scores['EPE']>0

@pytest.mark.parametrize('item,words', [
    ((image*255,mask), r"'image' of the first batch .*values from .*divide by 255"),
    (((image*255).byte(),mask), r"'image' of the first batch .*uint8.*divide by 255"),
    ((image*2-1,mask), r"'image' of the first batch"),
    (image, r'returns Tensor; an item is a dict of tensors, or a tuple in this order: image \(3,H,W\) float in \[0,1\], labels \(H,W\) whole'),
    ((image,mask.float()), r"'labels' of an item is \(64, 96\) of torch.float32; an item is"),
    ((Image.new('RGB', (96,64)),mask), "'image' of an item is a Image; an item is"),
    (dict(image=image, mask=mask), "no 'labels', which the task seg needs; it has image, mask; an item is")])
def test_wrong_items_are_told_at_once(item, words):
    with pytest.raises(ValueError, match=words): own(item)

def test_validation_images_are_checked_too():
    model = create_model('winwin_seg_micro', num_classes=3)
    with pytest.raises(ValueError, match='divide by 255'):
        fit(model, Own((image,mask)), config, valid=Own((image*255,mask)), progress=False)

def test_other_models_may_want_other_images():
    class Plain(torch.nn.Module):
        patch_size = 16
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 3, 1)
        def forward(self, x, windows=None):
            from winwin.windows.layout import crop_windows
            y = self.conv(x)
            return [y] if windows is None else crop_windows(y, windows, 16)
    assert fit(Plain(), Own((image*255,mask)), config, task=SegTask(('a','b','c')), progress=False).log

# -------------------------------------------------------------------------------- 4: photographs that lie on their side
def lying(path, x, orientation=6):
    "Store a picture (h,w,3) lying down, with the EXIF note that says so"
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    turn = {6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270, 3: Image.Transpose.ROTATE_180}[orientation]
    Image.fromarray(x).transpose(turn).save(path, exif=exif)

@pytest.mark.parametrize('kind', ['png','tif','webp','jpg'])
@pytest.mark.parametrize('orientation', [3,6,8])
def test_exif_rotations_are_applied(kind, orientation, tmp_path):
    from winwin.data.images import fit_image, read_image, stored_size, to_images
    x = np.zeros((32,64,3), np.uint8)
    x[:16,:32] = 255 # bright at the upper left
    path = tmp_path/f'a.{kind}'
    lying(path, x, orientation)
    for img in (read_image(path), to_images(Image.open(path))[0], fit_image(path)[0]):
        assert img.shape==(3,32,64) and img[:,:12,:28].mean()>.95 and img[:,20:].mean()<.05
    assert stored_size(path)==(32,64)

def test_exif_reaches_predictions_and_explains_labels(tmp_path, capsys):
    from winwin.inference.predictor import Predictor
    model = create_model('winwin_seg_micro', num_classes=2, depth=2)
    model.saved = dict(extra=dict(task='seg', classes=['a','b']))
    lying(tmp_path/'images/a.jpg', np.full((64,96,3), 99, np.uint8))
    assert Predictor(model)(tmp_path/'images/a.jpg').classes.shape==(64,96)
    save(tmp_path/'labels/a.png', np.zeros((96,64), np.uint8)) # made for the pixels as stored
    from winwin.data.folders import SegFolder
    with pytest.raises(ValueError, match='EXIF.*turn the target too'): SegFolder(tmp_path)[0]
    save(tmp_path/'labels/a.png', np.zeros((64,96), np.uint8))
    assert SegFolder(tmp_path)[0]['image'].shape==(3,64,96)

# -------------------------------------------------------------------------------- 10 and 11: errors in the files
@pytest.mark.parametrize('bad', ['train','val'])
def test_broken_files_are_one_line_from_workers(bad, tmp_path, capsys):
    for split in ('train','val'): fill(tmp_path, f'images/{split}', f'labels/{split}', range(3))
    broken = tmp_path/f'images/{bad}/001.png'
    broken.write_bytes(broken.read_bytes()[:80])
    args = ['--root', tmp_path, *flags, '--out', tmp_path/'run']
    args[args.index('--workers')+1] = '1'
    code,_,err = call(capsys, 'train', 'folder-seg', *args)
    lines = [o for o in err.splitlines() if o.startswith('winwin:')]
    assert code==1 and len(lines)==1 and str(broken) in lines[0] and 'Traceback' not in err

def test_folder_presets_have_no_more_workers_than_cores():
    cores = len(os.sched_getaffinity(0))
    for name,r in presets.items():
        if name.startswith('folder-'): assert r.train.workers==min(4, cores), name
        assert r.train.workers<=cores, name

@pytest.mark.parametrize('check', [['--check'],[]])
def test_images_smaller_than_their_windows_are_found_first(check, tmp_path, capsys):
    fill(tmp_path, 'images', 'labels', range(10))
    small = tmp_path/'images/004.png'
    save(small, np.zeros((40,40,3), np.uint8))
    save(tmp_path/'labels/004.png', np.zeros((40,40), np.uint8))
    args = ['--root', tmp_path, *flags, '--batch-size','1', '--windows','2x4', '--out', tmp_path/'run', *check]
    code,_,err = call(capsys, 'train', 'folder-seg', *args)
    assert code==1 and '40x40 pixels, 5x5 tokens' in err and 'images/004.png' in err and '--windows' in err
    assert not (tmp_path/'run').exists()
    assert call(capsys, 'train', 'folder-seg', *args, '--size', '64', '96')[0]==0

# -------------------------------------------------------------------------------- 8: train, then export
def test_a_folder_run_exports_at_the_size_of_its_images(tmp_path, capsys):
    pytest.importorskip('onnx')
    fill(tmp_path/'data', 'images', 'labels', range(10))
    save(tmp_path/'data/images/003.png', np.zeros((80,96,3), np.uint8)) # one of another size
    save(tmp_path/'data/labels/003.png', np.zeros((80,96), np.uint8))
    small = [*flags, '--batch-size', '1']
    assert call(capsys, 'train', 'folder-seg', '--root', tmp_path/'data', *small, '--out', tmp_path/'run')[0]==0
    code,out,err = call(capsys, 'export', tmp_path/'run', '--format', 'torch', '-o', tmp_path/'model.pt2')
    assert code==0 and '64x96 pixels' in out, err

# -------------------------------------------------------------------------------- 6: adapters
class Adapter(torch.nn.Module):
    "A linear layer with LoRA, built as peft builds it"
    def __init__(self, layer):
        super().__init__()
        self.base_layer = layer
        self.lora_A = torch.nn.ModuleDict(dict(default=torch.nn.Linear(layer.in_features, 2, bias=False)))
        self.lora_B = torch.nn.ModuleDict(dict(default=torch.nn.Linear(2, layer.out_features, bias=False)))
    def forward(self, x): return self.base_layer(x) + self.lora_B['default'](self.lora_A['default'](x))

def test_adapters_are_refused_before_training(tmp_path):
    from winwin.models.hub import save_model
    model = create_model('winwin_seg_micro', num_classes=3, depth=2, head='linear')
    plain = {k: v.clone() for k,v in model.state_dict().items()}
    fc1 = model.encoder.blocks[0].mlp.fc1
    model.encoder.blocks[0].mlp.fc1 = Adapter(fc1)
    for write in (lambda: fit(model, Own((image,mask)), config, out=tmp_path/'run', progress=False), lambda: save_model(model, tmp_path/'run')):
        with pytest.raises(ValueError, match=r'adapters \(LoRA\).*merge_and_unload'): write()
        assert not (tmp_path/'run').exists()
    assert fit(model, Own((image,mask)), config, progress=False).log # training them is fine
    adapter = model.encoder.blocks[0].mlp.fc1 # merged, the model is a plain one
    with torch.no_grad(): fc1.weight += adapter.lora_B['default'].weight@adapter.lora_A['default'].weight
    model.encoder.blocks[0].mlp.fc1 = fc1
    again = load_model(save_model(model, tmp_path/'merged'))
    assert again.state_dict().keys()==plain.keys()

# -------------------------------------------------------------------------------- 13: heads in proportion
def test_heads_scale_with_the_encoder():
    from winwin.bench.cost import flops
    from winwin.windows.layout import Windows
    def share(model): # of the operations that are the head's
        with torch.device('meta'): whole,linear = (create_model(model, head=h) for h in ('convnext','linear'))
        total,encoder = (flops(m, Windows.full((8,8))) for m in (whole,linear))
        return (total-encoder)/encoder
    base,small,tiny = (share(f'winwin_seg_{k}') for k in ('base','small','tiny'))
    assert max(small, tiny)<2*base # in proportion, as in the paper

@pytest.mark.parametrize('name', ['winwin_seg_tiny','winwin_depth_tiny','dinov3-small:convnext'])
def test_checkpoints_of_earlier_versions_have_the_old_head(name, tmp_path):
    from winwin.models.dense import build_model
    from winwin.models.hub import save_model
    over = dict(depth=4) # blocks
    old,new = (make(name, dict(over)) for make in (build_model, lambda n,o: create_model(n, **o)))
    assert 'head_args' not in old.config['arguments'] and 'head_args' in new.config['arguments']
    counts = []
    for k,model in dict(old=old, new=new).items():
        again = load_model(save_model(model, tmp_path/k))
        for a,b in zip(model.state_dict().values(), again.state_dict().values()): assert torch.equal(a, b)
        counts.append(sum(p.numel() for p in again.head.parameters()))
    assert counts[1]<counts[0]/2
