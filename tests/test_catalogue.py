"Datasets by name and by format: counts, other readers as references, damaged files"
import json
from pathlib import Path
import numpy as np, pytest, torch
from PIL import Image
from winwin.data import catalogue as c

GREY = np.full((24,32,3), 128, np.uint8)

def save(path, x):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(x).save(path)

def test_hub_items_from_disk(tmp_path):
    "A dataset written by the library itself, with splits and without"
    datasets = pytest.importorskip('datasets')
    rows = datasets.Dataset.from_dict(dict(image=[Image.fromarray(GREY)]*3, mask=[Image.fromarray(np.full((24,32), i, np.uint8)) for i in range(3)]),
        features=datasets.Features(image=datasets.Image(), mask=datasets.Image()))
    rows.save_to_disk(tmp_path/'plain')
    datasets.DatasetDict(train=rows).save_to_disk(tmp_path/'split')
    for name in ('plain','split'):
        data = c.HubItems(c.open_hub(str(tmp_path/name), 'train'), labels='mask', num_classes=3)
        assert [data[i]['labels'].unique().tolist() for i in range(3)]==[[0],[1],[2]]
        assert torch.equal(data[0]['image'], torch.full((3,24,32), 128/255))
    with pytest.raises(ValueError, match="split 'test' is unknown; use one of train"): c.open_hub(str(tmp_path/'split'), 'test')

def test_shapes_agree_with_pillow():
    "Random rectangles with corners on the grid, polygons here and plain slices there"
    rng = np.random.default_rng(0)
    for _ in range(20):
        want,shapes = np.zeros((40,50), np.uint8),[]
        boxes = sorted(((*sorted(rng.choice(41, 2, False)), *sorted(rng.choice(51, 2, False))) for _ in range(4)), key=lambda o: -(o[1]-o[0])*(o[3]-o[2]))
        if len({(o[1]-o[0])*(o[3]-o[2]) for o in boxes})<4: continue # equal areas have no order
        for k,(y0,y1,x0,x1) in enumerate(boxes):
            want[y0:y1,x0:x1] = k+1
            shapes.append((k+1, dict(segmentation=[[int(o) for o in (x0,y0,x1,y0,x1,y1,x0,y1)]])))
        rng.shuffle(shapes)
        assert np.array_equal(c.paint_shapes(shapes, (40,50)).numpy(), want)

def test_run_lengths_round_trip():
    from pycocotools import mask
    x = np.random.default_rng(0).random((24,32))<.3
    packed = mask.encode(np.asfortranarray(x.astype(np.uint8)))
    for shape in (packed, dict(size=packed['size'], counts=packed['counts'].decode())):
        assert np.array_equal(c.paint_shapes([(7,dict(segmentation=shape))], (24,32)).numpy(), 7*x)

@pytest.mark.parametrize('text', ['', '{', '[]', '{"images": []}', '{"images": 1, "annotations": [], "categories": []}', '['*10000])
def test_damaged_json(tmp_path, text):
    (tmp_path/'notes.json').write_text(text)
    with pytest.raises(ValueError, match='notes.json'): c.read_coco(tmp_path/'notes.json')

def test_segment_numbers_use_all_three_bytes():
    ids = torch.tensor([[0,255,256,65535,65536,2**24-1]])
    segments = torch.tensor([[2**24-1,3],[255,0],[256,1],[65536,2]])
    assert c.segments_to_classes(ids, segments).tolist()==[[255,0,1,255,2,3]]
    assert c.segments_to_classes(ids, segments[:0]).unique().tolist()==[255]

@pytest.mark.parametrize('kind', [c.Cityscapes, c.ADE20K, c.PascalVOC, c.CocoPanoptic, c.KITTIDepth, c.DIODE])
def test_nothing_there(kind, tmp_path):
    "The error names the folder, what belongs there, and where it comes from"
    (tmp_path/'stray').mkdir()
    with pytest.raises(FileNotFoundError, match='stray/. It should have .*: .{10}') as e: kind(tmp_path)
    assert str(tmp_path) in str(e.value)
    with pytest.raises(ValueError, match="split 'dev' is unknown; use one of"): kind(tmp_path, 'dev')

def test_a_shape_that_lies_about_its_size(tmp_path):
    save(tmp_path/'a.png', GREY)
    notes = dict(categories=[dict(id=1, name='cup')], images=[dict(id=1, file_name='a.png', height=32, width=24)], annotations=[])
    (tmp_path/'n.json').write_text(json.dumps(notes))
    with pytest.raises(ValueError, match='a.png is 24x32 pixels, the JSON says 32x24'): c.CocoShapes(tmp_path, tmp_path/'n.json')[0]

# -------------------------------------------------------------------------------- from the command line
SMALL = '--model winwin_seg_micro --windows 2x1 --steps 1 --batch-size 1 --warmup 0 --workers 0'.split()

def command(*words):
    from winwin.cli import main
    with pytest.raises(SystemExit) as e: main([str(o) for o in words])
    return e.value.code

def imitate_cityscapes(at, n):
    for split in ('train','val'):
        for i in range(n):
            name = f'{split}/town/town_{i:06d}_000000'
            save(at/'leftImg8bit'/f'{name}_leftImg8bit.png', GREY)
            save(at/'gtFine'/f'{name}_gtFine_labelIds.png', np.full((24,32), (7,26)[i%2], np.uint8))

def imitate_voc(at, n):
    for split in ('train','val'):
        names = [f'{split}_{i}' for i in range(n)]
        for i,name in enumerate(names):
            save(at/'VOCdevkit/VOC2012/JPEGImages'/f'{name}.jpg', GREY)
            save(at/'VOCdevkit/VOC2012/SegmentationClass'/f'{name}.png', np.full((24,32), (0,15)[i%2], np.uint8))
        (at/'VOCdevkit/VOC2012/ImageSets/Segmentation').mkdir(parents=True, exist_ok=True)
        (at/f'VOCdevkit/VOC2012/ImageSets/Segmentation/{split}.txt').write_text('\n'.join(names))

@pytest.mark.parametrize('preset,kind,imitate', [('cityscapes-seg', c.Cityscapes, imitate_cityscapes), ('voc-seg', c.PascalVOC, imitate_voc)])
def test_presets_train_on_imitations(preset, kind, imitate, tmp_path, monkeypatch, capsys):
    "An incomplete download is refused with its count; with as many images as there should be, a step is trained and scored"
    imitate(tmp_path/'data', 2)
    assert command('train', preset, '--root', tmp_path/'data', *SMALL, '--out', tmp_path/'run')==1
    assert '2 ' in (err := capsys.readouterr().err) and str(kind.counts['train']) in err.replace(',', '')
    monkeypatch.setattr(kind, 'counts', dict.fromkeys(kind.counts, 2))
    assert command('train', preset, '--root', tmp_path/'data', *SMALL, '--out', tmp_path/'run')==0
    assert 'IoU %' in capsys.readouterr().out

def test_hub_data_by_name(tmp_path, capsys):
    "A table with columns of any name; without a validation split some rows are held out"
    datasets = pytest.importorskip('datasets')
    rows = datasets.Dataset.from_dict(dict(photo=[Image.fromarray(GREY)]*5, mask=[Image.fromarray(np.full((24,32), i%2, np.uint8)) for i in range(5)]),
        features=datasets.Features(photo=datasets.Image(), mask=datasets.Image()))
    datasets.DatasetDict(train=rows).save_to_disk(tmp_path/'table')
    words = 'train', 'folder-seg-tiny', '--data', f'hf:{tmp_path}/table', '--classes', 'wall', 'lamp', *SMALL, '--size', 'None', '--head', 'linear'
    assert command(*words, '--images-in', 'photo', '--targets-in', 'mask', '--out', tmp_path/'run')==0
    assert 'IoU %' in capsys.readouterr().out
    assert command(*words, '--images-in', 'picture', '--targets-in', 'mask', '--out', tmp_path/'other')==1
    assert "no column 'picture'; the table has photo, mask" in capsys.readouterr().err

def test_held_out_rows_are_others():
    from winwin.data.folders import hold_out
    data = c.HubItems([dict(image=GREY, label=np.full((24,32), i, np.uint8)) for i in range(10)], labels='label')
    seen = [{hold_out(data, .3, train)[i]['labels'][0,0].item() for i in range(len(hold_out(data, .3, train)))} for train in (True,False)]
    assert seen[0]|seen[1]==set(range(10)) and not seen[0]&seen[1] and len(seen[1])==3
