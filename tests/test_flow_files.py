"Flow files: bytes written and read by references made here, round trips, and every kind of damage named with its file."
import itertools, os, re, struct, threading, tracemalloc, zlib
import h5py, numpy as np, pytest, torch, torchvision
from hypothesis import given, settings, strategies as st
from PIL import Image
from winwin.data import flow_files
from winwin.data.flow_files import read_flow, write_flow

KINDS = '.flo','.pfm','.png','.flo5','.npy'
EXACT = '.flo','.pfm','.flo5','.npy'
SIZES = [(1,1),(1,7),(6,1),(5,8),(13,11)]

def field(h=5, w=8, seed=0, png=False):
    "Flow (2,h,w) and valid (h,w), some of it not"
    rng = torch.Generator().manual_seed(seed)
    flow = 40*torch.randn(2,h,w, generator=rng)
    if png: flow = (flow*64).round()/64
    return flow,torch.rand(h,w, generator=rng)>.3

# References, from the descriptions of the formats; a flow is a list of rows of (u, v), or None

def pixels(flow, valid): return [[tuple(flow[:,y,x].tolist()) if valid[y,x] else None for x in range(flow.shape[2])]
                                 for y in range(flow.shape[1])]

def flo(rows):
    b = struct.pack('<fii', 202021.25, len(rows[0]), len(rows))
    return b + b''.join(struct.pack('<ff', *(p or (1e10,1e10))) for row in rows for p in row)

def pfm(rows, end='<', scale='1.0', newline='\n'):
    lines = 'PF',f'{len(rows[0])} {len(rows)}',('-' if end=='<' else '')+scale,''
    nan = float('nan')
    return newline.join(lines).encode() + b''.join(
        struct.pack(end+'fff', *(p or (nan,nan)), 0) for row in reversed(rows) for p in row)

def paeth(a, b, c):
    p = a+b-c
    return min((abs(p-a),0,a), (abs(p-b),1,b), (abs(p-c),2,c))[2]

def predicted(kind, a, b, c): return (0, a, b, (a+b)//2, paeth(a,b,c))[kind] # left, above, above left

def part(kind, data): return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind+data))

def png(rows, filters=(0,), parts=1, extra=b'', head=None, data=None):
    "A 16-bit RGB PNG whose rows take `filters` in turn, its data in `parts` parts"
    lines = [b''.join(struct.pack('>HHH', *((round(p[0]*64)+32768, round(p[1]*64)+32768, 1) if p else (0,0,0))) for p in row)
             for row in rows]
    raw,above = bytearray(),bytes(len(lines[0]))
    for line,kind in zip(lines, itertools.cycle(filters)):
        raw.append(kind)
        raw += bytes((v-predicted(kind, line[i-6] if i>5 else 0, above[i], above[i-6] if i>5 else 0))%256
                     for i,v in enumerate(line))
        above = line
    z = zlib.compress(bytes(raw)) if data is None else data
    n = -(-len(z)//parts)
    head = head or struct.pack('>IIBBBBB', len(rows[0]), len(rows), 16, 2, 0, 0, 0)
    return (b'\x89PNG\r\n\x1a\n' + part(b'IHDR', head) + extra
            + b''.join(part(b'IDAT', z[i:i+n]) for i in range(0, len(z), n)) + part(b'IEND', b''))

def unpng(b):
    "(R,G,B) of every pixel, in rows"
    at,data = 8,b''
    while at<len(b):
        n,kind = struct.unpack_from('>I4s', b, at)
        body = b[at+8:at+8+n]
        assert b[at+8+n:at+12+n]==struct.pack('>I', zlib.crc32(kind+body))
        if kind==b'IHDR': W,H,bits,color,*rest = struct.unpack('>IIBBBBB', body)
        if kind==b'IDAT': data += body
        at += 12+n
    assert (bits,color,rest,kind)==(16,2,[0,0,0],b'IEND')
    raw,above,out = zlib.decompress(data),bytes(6*W),[]
    assert len(raw)==H*(1+6*W)
    for y in range(H):
        kind,line = raw[y*(1+6*W)],bytearray(raw[y*(1+6*W)+1:(y+1)*(1+6*W)])
        for i in range(6*W):
            line[i] = (line[i]+predicted(kind, line[i-6] if i>5 else 0, above[i], above[i-6] if i>5 else 0))%256
        out.append([struct.unpack_from('>HHH', line, 6*x) for x in range(W)])
        above = bytes(line)
    return out

def array(flow, valid): return np.where(valid.numpy()[...,None], flow.permute(1,2,0).numpy(), np.float32(np.nan))

def reference(path, flow, valid, **kw):
    "Write with the references"
    if path.suffix=='.npy': np.save(path, np.ascontiguousarray(array(flow, valid)))
    elif path.suffix=='.flo5':
        with h5py.File(path, 'w') as f: f.create_dataset('flow', data=array(flow, valid), compression='gzip', compression_opts=5)
    else: path.write_bytes({'.flo': flo, '.pfm': pfm, '.png': png}[path.suffix](pixels(flow, valid), **kw))
    return path

def same(path, flow, valid):
    got,ok = read_flow(path)
    assert got.dtype==torch.float32 and ok.dtype==torch.bool and got.is_contiguous()
    assert torch.equal(ok, valid) and torch.equal(got, torch.where(valid, flow, 0.))
    return True

# Reading and writing against the references

@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('kind', KINDS)
def test_reads_what_references_write(tmp_path, kind, size):
    flow,valid = field(*size, png=kind=='.png')
    assert same(reference(tmp_path/f'a{kind}', flow, valid), flow, valid)

@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('kind', ['.flo','.pfm','.npy'])
def test_writes_the_bytes_of_references(tmp_path, kind, size):
    flow,valid = field(*size)
    write_flow(tmp_path/f'a{kind}', flow, valid)
    assert (tmp_path/f'a{kind}').read_bytes()==reference(tmp_path/f'b{kind}', flow, valid).read_bytes()

@pytest.mark.parametrize('size', SIZES)
def test_writes_what_a_png_decoder_reads(tmp_path, size):
    flow,valid = field(*size, png=True)
    write_flow(p := tmp_path/'a.png', flow, valid)
    want = [[(round(q[0]*64)+32768, round(q[1]*64)+32768, 1) if q else (0,0,0) for q in row] for row in pixels(flow, valid)]
    assert unpng(p.read_bytes())==want
    with Image.open(p) as img: assert np.array_equal(img, np.array(want)>>8) # Pillow keeps the upper 8 bits

@pytest.mark.filterwarnings('ignore::DeprecationWarning')
@pytest.mark.skipif(not hasattr(torchvision.io, 'decode_png'), reason='this torchvision has no PNG decoder')
def test_libpng_agrees(tmp_path):
    flow,valid = field(13, 11, png=True)
    libpng = lambda p: torchvision.io.decode_png(torch.frombuffer(bytearray(p.read_bytes()), dtype=torch.uint8)).permute(1,2,0)
    write_flow(p := tmp_path/'a.png', flow, valid)
    assert libpng(p).dtype==torch.uint16 and libpng(p).tolist()==[[list(q) for q in row] for row in unpng(p.read_bytes())]
    q = reference(tmp_path/'b.png', flow, valid, filters=(4,3,1,2,0))
    assert torch.equal(libpng(p), libpng(q)) and same(q, flow, valid)

def test_writes_what_h5py_reads(tmp_path):
    flow,valid = field()
    write_flow(p := tmp_path/'a.flo5', flow, valid)
    with h5py.File(p) as f:
        x = f['flow']
        assert list(f)==['flow'] and x.dtype==np.float32 and (x.compression,x.compression_opts)==('gzip',5)
        assert np.array_equal(x[()], array(flow, valid), equal_nan=True)

@pytest.mark.parametrize('kind', KINDS)
def test_written_again_the_bytes_are_the_same(tmp_path, kind):
    write_flow(tmp_path/f'a{kind}', *field(13, 11))
    write_flow(tmp_path/f'b{kind}', *read_flow(tmp_path/f'a{kind}'))
    assert (tmp_path/f'a{kind}').read_bytes()==(tmp_path/f'b{kind}').read_bytes()

numbers = st.floats(-1e9, 1e9, width=32)
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(numbers, numbers, st.booleans()), min_size=1, max_size=12), st.sampled_from(EXACT))
def test_any_number_comes_back(tmp_path_factory, values, kind):
    x = torch.tensor([v[:2] for v in values], dtype=torch.float32).T[:,None]
    valid = torch.tensor([[v[2] for v in values]])
    write_flow(p := tmp_path_factory.mktemp('flow')/f'a{kind}', x, valid)
    got,ok = read_flow(p)
    assert torch.equal(ok, valid) and torch.equal(got[:,ok].view(torch.int32), x[:,ok].view(torch.int32)) # -0. too
    assert (got[:,~ok]==0).all()

def test_kitti_steps(tmp_path):
    x = torch.tensor([[[-512, 511.984375, 0, 1.5, 1/64, 1/100]],[[-2, 0, 0, 100, -1/64, -1/200]]])
    write_flow(tmp_path/'a.png', x)
    assert unpng((tmp_path/'a.png').read_bytes())==[
        [(0,32640,1), (65535,32768,1), (32768,32768,1), (32864,39168,1), (32769,32767,1), (32769,32768,1)]]
    flow,_ = field(40, 50)
    write_flow(tmp_path/'b.png', flow)
    assert (read_flow(tmp_path/'b.png')[0]-flow).abs().max()<=1/128

# PNG: all that encoders do

@pytest.mark.parametrize('filters', [(0,),(1,),(2,),(3,),(4,),(4,3,2,1,0),(1,4),(3,0,4)])
def test_png_filters(tmp_path, filters):
    flow,valid = field(9, 7, png=True)
    p = reference(tmp_path/'a.png', flow, valid, filters=filters)
    assert same(p, flow, valid) and len(unpng(p.read_bytes()))==9

def test_png_parts_and_other_parts(tmp_path):
    flow,valid = field(png=True)
    extra = part(b'gAMA', struct.pack('>I', 45455)) + part(b'sBIT', bytes([16]*3)) + part(b'tEXt', b'a\0b')
    assert same(reference(tmp_path/'a.png', flow, valid, parts=7, extra=extra), flow, valid)

def test_png_any_blue_is_valid(tmp_path):
    head,row = struct.pack('>IIBBBBB', 3, 1, 16, 2, 0, 0, 0),struct.pack('>B9H', 0, 32768,32832,1, 1,2,0, 0,65535,65535)
    (tmp_path/'a.png').write_bytes(png([[None]], head=head, data=zlib.compress(row)))
    flow,valid = read_flow(tmp_path/'a.png')
    assert valid.tolist()==[[True,False,True]] and flow.tolist()==[[[0,0,-512]],[[1,0,511.984375]]]

@pytest.mark.parametrize('h,w,band', [(1,1,1),(7,5,1),(7,5,2),(7,5,3),(20,3,8),(3,20,512),(16,16,16),(17,9,16)])
def test_png_bands(h, w, band):
    rs = np.random.RandomState(h*w+band)
    want,kinds = rs.randint(0, 256, (h,6*w)).astype(np.uint8),rs.randint(0, 5, h)
    at = lambda y,i: int(want[y,i]) if y>=0 and i>=0 else 0
    rows = [[kinds[y], *((int(want[y,i])-predicted(kinds[y], at(y,i-6), at(y-1,i), at(y-1,i-6)))%256 for i in range(6*w))]
            for y in range(h)]
    got = flow_files._undo_filters(np.array(rows, np.uint8), band)
    assert np.array_equal(got, want.view('>u2').reshape(h,w,3))

def test_png_tall_and_thin_takes_little_memory(tmp_path):
    data = zlib.compress((b'\4'+bytes(6))*3000)
    (p := tmp_path/'a.png').write_bytes(png([[None]], head=struct.pack('>IIBBBBB', 1, 3000, 16, 2, 0, 0, 0), data=data))
    read_flow(tmp_path/'a.png')
    tracemalloc.start()
    flow,valid = read_flow(p)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert flow.shape==(2,3000,1) and not valid.any() and peak<15e6 # 108e6 in one band

# PFM and others: legal variants

@pytest.mark.parametrize('end', '<>')
@pytest.mark.parametrize('scale', ['1','1.0','1.000000','0.5','1e0'])
@pytest.mark.parametrize('newline', ['\n','\r\n'])
def test_pfm_headers(tmp_path, end, scale, newline):
    flow,valid = field()
    assert same(reference(tmp_path/'a.pfm', flow, valid, end=end, scale=scale, newline=newline), flow, valid)

def test_pfm_numbers_that_look_like_space(tmp_path):
    b = b'PF\n1 1\n-1\n' + b'\n\n\n\x20' + b'\r\n\t\x20' + bytes(4)
    (tmp_path/'a.pfm').write_bytes(b)
    assert read_flow(tmp_path/'a.pfm')[0].flatten().tolist()==list(struct.unpack('<ff', b'\n\n\n\x20\r\n\t\x20'))

@pytest.mark.parametrize('dtype', ['<f2','<f4','>f4','<f8','>f8'])
@pytest.mark.parametrize('order', 'CF')
def test_npy_kinds(tmp_path, dtype, order):
    x = np.array(np.arange(-12,12).reshape(3,4,2), dtype, order=order)
    np.save(tmp_path/'a.npy', x)
    flow,valid = read_flow(tmp_path/'a.npy')
    assert valid.all() and flow.dtype==torch.float32 and np.array_equal(flow.permute(1,2,0), x.astype(np.float32))

@pytest.mark.parametrize('dtype', ['<f2','<f4','<f8'])
@pytest.mark.parametrize('kw', [{}, dict(compression='gzip', chunks=(2,3,1)), dict(compression='lzf', shuffle=True)])
def test_flo5_kinds(tmp_path, dtype, kw):
    x = np.arange(-12,12).reshape(3,4,2).astype(dtype)
    with h5py.File(tmp_path/'a.flo5', 'w') as f: f.create_dataset('flow', data=x, **kw)
    assert np.array_equal(read_flow(tmp_path/'a.flo5')[0].permute(1,2,0), x)

def test_flo5_at_twice_the_resolution_is_as_stored(tmp_path):
    flow,valid = field(10, 16)
    assert read_flow(reference(tmp_path/'a.flo5', flow, valid))[0].shape==(2,10,16)
    assert same(tmp_path/'a.flo5', flow, valid)

def test_constant_flow_packs_well_and_is_read(tmp_path):
    for kind in ('.flo5','.png'):
        write_flow(tmp_path/f'a{kind}', torch.zeros(2,500,800))
        assert (tmp_path/f'a{kind}').stat().st_size<30_000
        assert same(tmp_path/f'a{kind}', torch.zeros(2,500,800), torch.ones(500,800, dtype=torch.bool))

@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf, 1.01e9, -1e10])
@pytest.mark.parametrize('kind', EXACT)
@pytest.mark.parametrize('channel', [0,1])
def test_not_known_in_one_number_is_not_known(tmp_path, kind, value, channel):
    x = np.ones((2,3,2), np.float32)
    x[1,2,channel] = value
    p = tmp_path/f'a{kind}'
    if kind=='.flo': p.write_bytes(struct.pack('<fii', 202021.25, 3, 2) + x.tobytes())
    elif kind=='.pfm': p.write_bytes(b'PF\n3 2\n-1\n' + np.dstack([x, np.zeros((2,3), 'f4')])[::-1].tobytes())
    elif kind=='.npy': np.save(p, x)
    else:
        with h5py.File(p, 'w') as f: f['flow'] = x
    flow,valid = read_flow(p)
    assert not valid[1,2] and valid.sum()==5 and flow[:,1,2].tolist()==[0,0] and flow.sum()==10

def test_doubles_beyond_floats_are_not_known(tmp_path):
    np.save(tmp_path/'a.npy', np.full((1,1,2), 1e300))
    assert not read_flow(tmp_path/'a.npy')[1].any()

# Damage

def fails(path, *words):
    "The message, which names the file and is one line"
    with pytest.raises(ValueError) as e: read_flow(path)
    text = str(e.value)
    assert path.name in text and '\n' not in text and all(re.search(w, text) for w in words), text

@pytest.mark.parametrize('kind', KINDS)
def test_cut_anywhere(tmp_path, kind):
    b = reference(tmp_path/f'a{kind}', *field(3, 4, png=kind=='.png')).read_bytes()
    p = tmp_path/f'cut{kind}'
    for n in range(0, len(b), 1 if len(b)<1000 else 61):
        p.write_bytes(b[:n])
        fails(p)
    p.write_bytes(b[:-1])
    fails(p)

@pytest.mark.parametrize('kind', ['.flo','.pfm','.npy'])
def test_too_long(tmp_path, kind):
    p = reference(tmp_path/f'a{kind}', *field())
    p.write_bytes(p.read_bytes()+b'\0')
    fails(p, 'too long')

def test_png_every_flipped_bit_is_found_or_harmless(tmp_path):
    flow,valid = field(3, 4, png=True)
    b = reference(tmp_path/'a.png', flow, valid, filters=(4,3)).read_bytes()
    for i in range(len(b)):
        p = tmp_path/'bit.png'
        p.write_bytes(b[:i] + bytes([b[i]^16]) + b[i+1:])
        fails(p)

@pytest.mark.parametrize('kind', KINDS)
def test_other_contents(tmp_path, kind):
    for other in KINDS:
        if other==kind: continue
        p = tmp_path/f'a{kind}'
        p.write_bytes(reference(tmp_path/f'b{other}', *field(png=True)).read_bytes())
        fails(p)
    for junk in (b'', b'\0', b'PIEH', b'PF', bytes(1000), b'\n'*50, os.urandom(300)):
        p.write_bytes(junk)
        fails(p)

@pytest.mark.parametrize('w,h', [(0,4),(4,0),(0,0),(-1,4),(4,-1),(-2,-4)])
def test_flo_sizes(tmp_path, w, h):
    (p := tmp_path/'a.flo').write_bytes(struct.pack('<fii', 202021.25, w, h) + bytes(64))
    fails(p, 'a flow has pixels')

@pytest.mark.parametrize('header,words', [
    (b'PF\n0 3\n-1\n', 'a flow has pixels'), (b'PF\n3 0\n-1\n', 'a flow has pixels'), (b'PF\n-3 3\n-1\n', 'three lines'),
    (b'PF\n3\n-1\n', 'three lines'), (b'PF\n3 3\n0\n', 'scale 0'), (b'PF\n3 3\n-0.0\n', 'scale -0.0'),
    (b'PF\n3 3\nnan\n', 'three lines'), (b'PF\n3.5 3\n-1\n', 'three lines'), (b'PF 3 3 -1', 'three lines'),
    (b'Pf\n3 3\n-1\n', 'one channel'), (b'P6\n3 3\n255\n', "begins with b'P6'"), (b'PF\n'+b'9'*400+b' 3\n-1\n', 'three lines')])
def test_pfm_headers_that_are_wrong(tmp_path, header, words):
    (p := tmp_path/'a.pfm').write_bytes(header + bytes(108))
    fails(p, words)

def test_pfm_of_colours(tmp_path):
    (p := tmp_path/'a.pfm').write_bytes(b'PF\n3 3\n-1\n' + np.ones((3,3,3), '<f4').tobytes())
    fails(p, 'third channel', 'up to 1;')

@pytest.mark.parametrize('change,words', [
    (dict(bits=8), '8 bits, RGB'), (dict(color=0), '16 bits, grey;'), (dict(color=6), 'RGB and alpha'),
    (dict(color=4), 'grey and alpha'), (dict(bits=8, color=3), 'palette'), (dict(color=9), 'unknown'),
    (dict(interlace=1), 'interlaced'), (dict(packing=3), 'interlaced or has an unknown compression'), (dict(W=0), '1 to 1000000'),
    (dict(H=0), '1 to 1000000'), (dict(W=9), 'do not match'), (dict(H=6), 'do not match'), (dict(H=4), 'do not match'),
    (dict(W=2**31, H=2**31), '1 to 1000000'), (dict(W=10**6, H=10**6), 'at most 67108864 pixels')])
def test_png_headers(tmp_path, change, words):
    h = dict(W=8, H=5, bits=16, color=2, packing=0, filters=0, interlace=0) | change
    (p := tmp_path/'a.png').write_bytes(png(pixels(*field(png=True)), head=struct.pack('>IIBBBBB', *h.values())))
    fails(p, words)

def test_png_data(tmp_path):
    rows = pixels(*field(png=True))
    raw = bytes(5*49)
    for data,words in [(b'not packed', 'damaged'), (zlib.compress(raw)[:-1], 'do not match'), (zlib.compress(raw[1:]), 'do not match'),
                       (zlib.compress(raw+b'0'), 'do not match'), (zlib.compress(b'\5'+raw[1:]), 'filter 5'), (b'', 'do not match')]:
        (p := tmp_path/'a.png').write_bytes(png(rows, data=data, parts=1) if data else png(rows, data=b'x').replace(part(b'IDAT', b'x'), b''))
        fails(p, words)
    good = png(rows)
    p.write_bytes(good[:8]+good[33:]) # no header
    fails(p, 'no IHDR')

@pytest.mark.parametrize('x', [np.zeros((4,5)), np.zeros((4,5,3)), np.zeros((2,4,5)), np.zeros((1,4,5,2)), np.zeros((0,5,2)),
    np.zeros((4,0,2)), np.zeros((4,5,2), int), np.zeros((4,5,2), bool), np.zeros((4,5,2), complex), np.zeros(()),
    np.full((4,5,2), 'a')], ids=lambda x: f'{x.shape}{x.dtype.kind}')
def test_arrays_that_are_no_flow(tmp_path, x):
    np.save(tmp_path/'a.npy', x)
    fails(tmp_path/'a.npy')
    with h5py.File(tmp_path/'a.flo5', 'w') as f: f['flow'] = x.astype('S1') if x.dtype.kind=='U' else x
    fails(tmp_path/'a.flo5', r'\(H,W,2\) of floats')

def test_npy_of_objects_and_archives(tmp_path):
    np.save(tmp_path/'a.npy', np.array([{}], object), allow_pickle=True)
    fails(tmp_path/'a.npy')
    np.savez(tmp_path/'b.npz', flow=np.zeros((4,5,2)))
    os.rename(tmp_path/'b.npz', tmp_path/'b.npy')
    fails(tmp_path/'b.npy', 'no single array')

def test_flo5_without_flow(tmp_path):
    with h5py.File(tmp_path/'a.flo5', 'w') as f: f['disparity'] = np.zeros((4,5))
    fails(tmp_path/'a.flo5', 'no array flow; it has disparity')
    with h5py.File(tmp_path/'b.flo5', 'w') as f: f.create_group('flow')
    fails(tmp_path/'b.flo5', 'no array flow')
    with h5py.File(tmp_path/'c.flo5', 'w') as f: pass
    fails(tmp_path/'c.flo5', 'it has nothing')

def test_flo5_with_holes(tmp_path):
    with h5py.File(tmp_path/'a.flo5', 'w') as f:
        x = f.create_dataset('flow', (8,8,2), 'f4', chunks=(4,8,2), compression='gzip')
        x[:4] = np.random.rand(4,8,2)
    fails(tmp_path/'a.flo5', 'cut short')

def huge(path):
    "Files of a few bytes that claim terabytes"
    n = 10**6
    if path.suffix=='.flo': path.write_bytes(struct.pack('<fii', 202021.25, n, n) + bytes(64))
    elif path.suffix=='.pfm': path.write_bytes(f'PF\n{n} {n}\n-1\n'.encode() + bytes(64))
    elif path.suffix=='.png': path.write_bytes(png([[None]], head=struct.pack('>IIBBBBB', n, n, 16, 2, 0, 0, 0)))
    elif path.suffix=='.npy':
        with open(path, 'wb') as f: np.lib.format.write_array_header_1_0(f, dict(descr='<f4', fortran_order=False, shape=(n,n,2)))
    else:
        with h5py.File(path, 'w') as f:
            x = f.create_dataset('flow', (n,n,2), 'f4', chunks=(100,100,2), compression='gzip')
            x[:1,:1] = 1
    return path

@pytest.mark.parametrize('kind', KINDS)
def test_claims_take_no_memory(tmp_path, kind):
    p = huge(tmp_path/f'a{kind}')
    fails(p) # and load what is loaded once
    tracemalloc.start()
    fails(p)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert p.stat().st_size<200_000 and peak<4e6

# Paths

@pytest.mark.parametrize('name', ['a.exr','a','a.flo.gz','a.tif','flo'])
def test_unknown_endings(tmp_path, name):
    (tmp_path/name).write_bytes(b'PIEH')
    for f in (read_flow, lambda p: write_flow(p, field()[0])):
        with pytest.raises(ValueError, match=r'one of \.flo, \.pfm, \.png, \.flo5, \.npy') as e: f(tmp_path/name)
        assert name in str(e.value)
    assert (tmp_path/name).read_bytes()==b'PIEH'

@pytest.mark.parametrize('kind', KINDS)
def test_missing_files(tmp_path, kind):
    with pytest.raises(FileNotFoundError, match='there is no file .*none'): read_flow(tmp_path/f'none{kind}')
    (tmp_path/f'd{kind}').mkdir()
    with pytest.raises(FileNotFoundError): read_flow(tmp_path/f'd{kind}')
    with pytest.raises(OSError): write_flow(tmp_path/'no'/f'a{kind}', field()[0])

@pytest.mark.parametrize('kind', KINDS)
def test_strings_capitals_and_accents(tmp_path, kind):
    flow,valid = field(png=True)
    path = str(tmp_path/f'été 街{kind.upper()}')
    write_flow(path, flow, valid)
    assert same(path, flow, valid)

# Writing

@pytest.mark.parametrize('kind', KINDS)
def test_flow_and_mask_of_many_kinds(tmp_path, kind):
    flow,valid = field(png=True)
    p = tmp_path/f'a{kind}'
    for f,v in [(flow.numpy(),valid.numpy()), (flow.double(),valid), (flow.clone().requires_grad_(),valid),
                (flow.permute(2,1,0).contiguous().permute(2,1,0),valid.T.contiguous().T), (torch.where(valid, flow, torch.nan),None),
                (torch.where(valid, flow, torch.inf),None), (torch.where(valid, flow, -1e10),None),
                (torch.where(valid, flow, torch.nan),valid), (torch.where(valid, flow.double(), 1e300),None)]:
        write_flow(p, f, v)
        assert same(p, flow, valid)
    for dtype in (torch.float16, torch.bfloat16):
        write_flow(p, flow.round().to(dtype), valid)
        assert same(p, flow.round().to(dtype).float(), valid)

@pytest.mark.parametrize('kind', KINDS)
def test_all_and_nothing_known(tmp_path, kind):
    flow,valid = field(png=True)
    for v in (torch.ones_like(valid), torch.zeros_like(valid)):
        write_flow(p := tmp_path/f'a{kind}', flow, v)
        assert same(p, flow, v)

@pytest.mark.parametrize('flow', [torch.zeros(4,5,2), torch.zeros(3,4,5), torch.zeros(1,2,4,5), torch.zeros(4,5), torch.zeros(2,0,5),
    torch.zeros(2,4,0), torch.zeros(2,4,5, dtype=torch.int64), torch.zeros(2,4,5, dtype=torch.bool),
    torch.zeros(2,4,5, dtype=torch.complex64)], ids=lambda x: f'{tuple(x.shape)}{x.dtype}')
def test_not_a_flow(tmp_path, flow):
    with pytest.raises(ValueError, match=r'a\.flo has shape .* give floats \(2,H,W\)'): write_flow(tmp_path/'a.flo', flow)
    assert not list(tmp_path.iterdir())

@pytest.mark.parametrize('valid', [torch.ones(4,6), torch.ones(4,6, dtype=torch.uint8), torch.ones(6,4, dtype=torch.bool),
    torch.ones(1,4,6, dtype=torch.bool), torch.ones((), dtype=torch.bool)], ids=lambda x: f'{tuple(x.shape)}{x.dtype}')
def test_not_a_mask(tmp_path, valid):
    with pytest.raises(ValueError, match=r'give bool \(4, 6\)'): write_flow(tmp_path/'a.flo', torch.zeros(2,4,6), valid)
    assert not list(tmp_path.iterdir())

@pytest.mark.parametrize('value', [float('nan'), float('inf'), -float('inf'), 2e9])
@pytest.mark.parametrize('kind', KINDS)
def test_valid_pixels_have_numbers(tmp_path, kind, value):
    flow,valid = torch.zeros(2,4,6),torch.ones(4,6, dtype=torch.bool)
    flow[1,2,3] = value
    with pytest.raises(ValueError, match='in 1 pixels that are valid'): write_flow(tmp_path/f'a{kind}', flow, valid)
    assert not list(tmp_path.iterdir())

@pytest.mark.parametrize('value,ok', [(-512,True),(-512.007,True),(-512.02,False),(511.99,True),(512,False),(1e8,False)])
def test_kitti_has_limits(tmp_path, value, ok):
    flow = torch.zeros(2,4,6)
    flow[0,1,1] = value
    if ok: return write_flow(tmp_path/'a.png', flow)
    with pytest.raises(ValueError, match=r'does not fit in .*a\.png; KITTI stores -512 to 511.98 px: clamp it'):
        write_flow(tmp_path/'a.png', flow)
    valid = flow[0]==0
    write_flow(tmp_path/'a.png', flow, valid) # outside the mask anything goes
    assert same(tmp_path/'a.png', flow, valid)

@pytest.mark.parametrize('kind', KINDS)
def test_a_failed_write_leaves_the_old_file(tmp_path, kind, monkeypatch):
    flow,valid = field(png=True)
    write_flow(p := tmp_path/f'a{kind}', flow, valid)
    def full(*args): raise OSError(28, 'No space left on device')
    monkeypatch.setattr(os, 'replace', full)
    with pytest.raises(OSError, match='No space'): write_flow(p, flow*0, valid)
    assert same(p, flow, valid) and list(tmp_path.iterdir())==[p]

def test_many_writers_of_one_file(tmp_path):
    fields = [torch.full((2,60,80), float(i)) for i in range(6)]
    threads = [threading.Thread(target=write_flow, args=(tmp_path/'a.flo', f)) for f in fields]
    for t in threads: t.start()
    for t in threads: t.join()
    got,_ = read_flow(tmp_path/'a.flo')
    assert any(torch.equal(got, f) for f in fields) and len(list(tmp_path.iterdir()))==1

def test_permissions_are_those_of_other_files(tmp_path):
    (tmp_path/'plain').write_bytes(b'')
    write_flow(tmp_path/'a.flo', field()[0])
    assert (tmp_path/'a.flo').stat().st_mode==(tmp_path/'plain').stat().st_mode
