"The same models again, slowly and plainly: one step per line, explicit softmax, no shared code. Tests compare against these."
import torch
import torch.nn.functional as F

def rotate(x, pos, base=100., scale=1.):
    "RoPE of x (B,heads,N,D) with the two channels of a pair side by side: first half of the pairs by y, second by x"
    D,out = x.shape[-1],torch.empty_like(x)
    for pair in range(D//2):
        axis,j = divmod(pair, D//4)
        angle = (pos[...,axis].double()*scale*base**(-j/(D//4)))[:,None]
        cos,sin,u,v = angle.cos().to(x.dtype),angle.sin().to(x.dtype),x[...,2*pair],x[...,2*pair+1]
        out[...,2*pair],out[...,2*pair+1] = u*cos-v*sin,v*cos+u*sin
    return out

def softmax_attention(q, k, v, tau=1.):
    "Explicit N x M softmax; tau is a number or one number per head"
    tau = torch.as_tensor(tau, dtype=q.dtype).reshape(-1,1,1)
    return ((tau*(q @ k.mT)/q.shape[-1]**.5).softmax(-1)) @ v

def self_attention(attn, x, pos, base, scale):
    "Attention of `attn`'s weights on tokens x (B,N,C)"
    B,N,C = x.shape
    q,k,v = F.linear(x, attn.qkv.weight, attn.qkv.bias).view(B,N,3,attn.num_heads,-1).permute(2,0,3,1,4)
    if pos is not None: q,k = rotate(q, pos, base, scale),rotate(k, pos, base, scale)
    tau = attn.tau.detach() if torch.is_tensor(attn.tau) else attn.tau
    return F.linear(softmax_attention(q, k, v, tau).transpose(1,2).reshape(B,N,C), attn.proj.weight, attn.proj.bias)

def tile_attention(attn, x, size, k, rotated, base, scale):
    "detectron2's windowed attention on one map: pad with zeros to whole tiles, attend in each tile without a mask, cut the padding off"
    B,N,C = x.shape
    h,w = size
    m = x.new_zeros(B, -(-h//k)*k, -(-w//k)*k, C)
    m[:,:h,:w] = x.view(B,h,w,C)
    out = torch.zeros_like(m)
    pos = torch.tensor([[(i,j) for i in range(k) for j in range(k)]]) if rotated else None
    for y in range(0, m.shape[1], k):
        for z in range(0, m.shape[2], k):
            tile = m[:,y:y+k,z:z+k].reshape(B,k*k,C)
            out[:,y:y+k,z:z+k] = self_attention(attn, tile, pos, base, scale).view(B,k,k,C)
    return out[:,:h,:w].reshape(B,N,C)

def norm(x, layer): return F.layer_norm(x, x.shape[-1:], layer.weight, layer.bias, 1e-6)

def absolute(pos, dim):
    "Sines and cosines of x, then of y"
    f = 10_000.**(-torch.arange(dim//4, dtype=torch.float64)/(dim//4))
    y,x = pos.double().unbind(-1)
    return torch.cat([(x[...,None]*f).sin(), (x[...,None]*f).cos(), (y[...,None]*f).sin(), (y[...,None]*f).cos()], -1).float()

def vit_states(model, img, windows):
    "Tokens after every block, the last one normed: the whole image is embedded by a convolution, then tokens are picked"
    x = F.conv2d(img, model.patch_embed.proj.weight, model.patch_embed.proj.bias, stride=model.patch_size).flatten(2).mT
    index = windows.index().expand(len(img), -1)
    x = torch.stack([x[b,i] for b,i in enumerate(index)])
    pos = torch.stack([index//windows.grid[1], index%windows.grid[1]], -1)
    rope,base,scale = model.pos=='rope',model.blocks[0].attn.rope_base,model.blocks[0].attn.rope_scale
    if not rope: x = x + absolute(pos, model.dim)
    out = []
    for blk in model.blocks:
        y = norm(x, blk.norm1)
        if blk.local_window is None: y = self_attention(blk.attn, y, pos if rope else None, base, scale)
        else:
            parts = y.split([h*w for h,w in windows.sizes], 1)
            y = torch.cat([tile_attention(blk.attn, p, hw, blk.local_window, rope, base, scale) for p,hw in zip(parts, windows.sizes)], 1)
        x = x + y
        y = F.linear(norm(x, blk.norm2), blk.mlp.fc1.weight, blk.mlp.fc1.bias)
        y = .5*y*(1+torch.erf(y/2**.5))
        x = x + F.linear(y, blk.mlp.fc2.weight, blk.mlp.fc2.bias)
        out.append(x)
    return [*out[:-1],norm(out[-1], model.norm)]

def convnext_head(head, x, patch):
    "MultiMAE's segmentation head on one map (B,h,w,C), in NCHW throughout"
    B,h,w,_ = x.shape
    y = F.linear(x, head.proj_dec.weight, head.proj_dec.bias)
    s = head.cells
    hidden = y.shape[-1]//s**2
    m = y.new_zeros(B, hidden, h*s, w*s)
    for i in range(s):
        for j in range(s): # sub-position major, channel minor
            c = (i*s+j)*hidden
            m[:,:,i::s,j::s] = y[...,c:c+hidden].permute(0,3,1,2)
    for b in head.blocks:
        z = F.conv2d(m, b.dwconv.weight, b.dwconv.bias, padding=3, groups=hidden)
        z = F.layer_norm(z.permute(0,2,3,1), (hidden,), b.norm.weight, b.norm.bias, 1e-6)
        z = F.linear(F.gelu(F.linear(z, b.pwconv1.weight, b.pwconv1.bias)), b.pwconv2.weight, b.pwconv2.bias)
        m = m + z.permute(0,3,1,2)
    y = F.conv2d(m, head.final_layer.weight, head.final_layer.bias)
    return F.interpolate(y, size=(h*patch,w*patch), mode='bilinear', align_corners=False)

def dpt_head(sd, maps, patch=16):
    "CroCo's DPT on four maps (B,C,h,w), from a state dict; maps that are too large are cut to the finer map's size"
    def conv(x, key, **kw): return F.conv2d(x, sd[f'{key}.weight'], sd.get(f'{key}.bias'), **kw)
    def up(x, factor): return F.interpolate(x, scale_factor=factor, mode='bilinear', align_corners=True)
    def unit(x, key): return x + conv(F.relu(conv(F.relu(x), f'{key}.conv1', padding=1)), f'{key}.conv2', padding=1)
    act = [conv(m, f'act_postprocess.{i}.0') for i,m in enumerate(maps)]
    for i,s in ((0,4),(1,2)): act[i] = F.conv_transpose2d(act[i], sd[f'act_postprocess.{i}.1.weight'], sd[f'act_postprocess.{i}.1.bias'], stride=s)
    act[3] = conv(act[3], 'act_postprocess.3.1', stride=2, padding=1)
    skips = [conv(a, f'scratch.layer_rn.{i}', padding=1) for i,a in enumerate(act)]
    y = None
    for i in (3,2,1,0):
        key = f'scratch.refinenet{i+1}'
        if y is None: y = skips[i]
        else: y = y[:,:,:skips[i].shape[2],:skips[i].shape[3]] + unit(skips[i], f'{key}.resConfUnit1')
        y = conv(up(unit(y, f'{key}.resConfUnit2'), 2), f'{key}.out_conv')
    y = up(conv(y, 'head.0', padding=1), patch/8)
    return conv(F.relu(conv(y, 'head.2', padding=1)), 'head.4')
