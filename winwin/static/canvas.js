// An image under tokens.
const COLORS = ['#f92', '#2af', '#4d8', '#f5a', '#b9f', '#fe5', '#2dd', '#bc3', '#ddd']
const DARK = [14, 17, 24, 172]
const STEPS = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}
const HELP = {view: '', tokens: '. Arrow keys move the token',
  windows: '. Numbers choose a window, arrow keys move it, with Shift they resize it'}

const bytes = d => d && d.byteLength ? new Uint8Array(d.buffer || d, d.byteOffset || 0, d.byteLength) : new Uint8Array(0)
const {max, floor, round} = Math, clamp = (v, lo, hi) => max(lo, Math.min(hi, v))
const make = (tag, cls, parent) => { const e = document.createElement(tag); e.className = cls; parent.append(e); return e }
const touch = (a, b) => a[0] < b[0] + b[2] && b[0] < a[0] + a[2] && a[1] < b[1] + b[3] && b[1] < a[1] + a[3]

function render({model, el}) {
  const root = make('div', 'winwin-canvas', el), frame = make('div', 'winwin-frame', root)
  const canvas = make('canvas', '', frame), readout = make('div', 'winwin-readout', frame)
  const caption = make('div', 'winwin-caption', root), message = make('div', 'winwin-message', root)
  const ctx = canvas.getContext('2d'), veil = document.createElement('canvas')
  let windows = [], current = 0, loads = 0, picture, frameId, hover, drag, refused, timer, said
  canvas.tabIndex = 0
  readout.setAttribute('aria-live', 'polite')
  message.setAttribute('role', 'alert')

  const get = name => model.get(name)
  const send = (name, value) => { model.set(name, value); model.save_changes() }
  const copy = o => o.map(o => [...o])
  const size = () => { const [H, W] = get('grid'), width = get('width'); return {H, W, width, s: width / W, height: width * H / W} }
  const show = text => { readout.textContent = text }
  const later = () => { frameId ||= requestAnimationFrame(draw) }

  function overlay({H, W}) { // a pixel per token: dark if not seen, else its colour
    const heat = bytes(get('heat')), lut = bytes(get('lut')), alpha = round(255 * get('opacity'))
    let seen = bytes(get('seen'))
    if (get('mode') === 'windows' && windows.length && (drag || seen.length !== H * W)) {
      seen = new Uint8Array(H * W)
      for (const [y, x, h, w] of windows) for (let i = y; i < y + h; i++) seen.fill(1, i * W + x, i * W + x + w)
    }
    const out = new ImageData(W, H), d = out.data, dim = seen.length === H * W, hot = heat.length === H * W && lut.length >= 768
    for (let i = 0, o = 0; i < H * W; i++, o += 4) {
      const dark = dim && !seen[i]
      if (dark || hot) for (let j = 0; j < 4; j++) d[o + j] = dark ? DARK[j] : j > 2 ? alpha : lut[3 * heat[i] + j]
    }
    veil.width = W; veil.height = H
    veil.getContext('2d').putImageData(out, 0, 0)
  }

  function box(y, x, h, w, color, line, s) {
    for (const [c, t] of [['#000b', line + 2], [color, line]]) {
      ctx.strokeStyle = c; ctx.lineWidth = t; ctx.strokeRect(x * s, y * s, w * s, h * s)
    }
  }

  function draw() {
    frameId = 0
    const z = size(), {s, width, height} = z, dpr = devicePixelRatio || 1, mode = get('mode')
    canvas.width = round(width * dpr); canvas.height = round(height * dpr)
    root.style.width = width + 'px'; canvas.style.aspectRatio = `${z.W} / ${z.H}`
    ctx.setTransform(dpr, 0, 0, dpr, 0, 0)
    ctx.fillStyle = '#8888'; ctx.fillRect(0, 0, width, height)
    if (picture) ctx.drawImage(picture, 0, 0, width, height)
    overlay(z)
    ctx.imageSmoothingEnabled = false
    ctx.drawImage(veil, 0, 0, width, height)
    ctx.fillStyle = '#0006'
    if (s > 16) for (let i = 1; i < max(z.H, z.W); i++) { ctx.fillRect(i * s, 0, 1, height); ctx.fillRect(0, i * s, width, 1) }
    windows.forEach(([y, x, h, w], i) => {
      const bad = refused === i || drag?.bad && drag.i === i, on = mode === 'windows' && i === current
      const color = bad ? '#f14' : COLORS[(get('hues')[i] ?? i) % 9]
      if (bad) { ctx.fillStyle = '#f147'; ctx.fillRect(x * s, y * s, w * s, h * s) }
      box(y, x, h, w, color, on ? 3 : 2, s)
      if (mode !== 'windows') return
      ctx.fillStyle = color; ctx.fillRect((x + w) * s - 9, (y + h) * s - 9, 9, 9)
      ctx.font = 'bold 13px sans-serif'; ctx.strokeStyle = '#000'; ctx.lineWidth = 3
      for (const f of ['strokeText', 'fillText']) ctx[f](i + 1, x * s + 5, y * s + 15)
    })
    if (hover && mode !== 'windows') box(...hover, 1, 1, '#fff9', 1, s)
    for (const t of get('tokens')) box(floor(t / z.W), t % z.W, 1, 1, '#f22', 2, s)
  }

  function say(y, x) {
    said = [y, x]
    const {H, W} = size(), heat = bytes(get('heat')), a = get('vmin'), b = get('vmax')
    const value = heat[y * W + x] >= 0 ? ' · ' + +(a + (b - a) * heat[y * W + x] / 255).toPrecision(3) : ''
    show(`row ${y}, column ${x}${value}`)
  }

  const place = e => { // tokens, as a fraction
    const r = canvas.getBoundingClientRect(), {H, W} = size()
    return [clamp((e.clientY - r.y) / r.height * H, 0, H - 1e-6), clamp((e.clientX - r.x) / r.width * W, 0, W - 1e-6)]
  }
  const clash = i => windows.some((o, j) => j !== i && touch(o, windows[i]))
  const grip = () => 12 * size().W / canvas.getBoundingClientRect().width // handle's side in tokens
  const inside = ([y, x, h, w], a, b) => a >= y && a < y + h && b >= x && b < x + w
  const corner = ([y, x, h, w], a, b, g = grip()) => inside([y + h - g, x + w - g, 1.2 * g, 1.2 * g], a, b)
  function hit(a, b) {
    const order = [current, ...windows.keys()].filter(i => i < windows.length)
    return order.find(i => corner(windows[i], a, b)) ?? order.find(i => inside(windows[i], a, b))
  }
  function refuse(i) {
    clearTimeout(timer)
    refused = i; show('windows must not overlap')
    timer = setTimeout(() => { refused = null; later() }, 700)
  }
  const tell = () => { said = 0; const [y, x, h, w] = windows[current]; show(`window ${current + 1}: ${h} x ${w} at row ${y}, column ${x}`) }
  function change(i, [y, x, h, w], dy, dx, resize) {
    const {H, W} = size()
    windows[i] = resize ? [y, x, clamp(h + dy, 1, H - y), clamp(w + dx, 1, W - x)]
      : [clamp(y + dy, 0, H - h), clamp(x + dx, 0, W - w), h, w]
  }

  canvas.onpointerdown = e => {
    if (e.button) return
    const [a, b] = place(e), [y, x] = [a, b].map(floor), mode = get('mode')
    canvas.focus({preventScroll: true})
    if (mode === 'tokens') {
      const t = y * size().W + x, old = get('tokens'), rest = old.filter(o => o !== t)
      send('tokens', !e.shiftKey ? [t] : rest[0] >= 0 && rest.length < old.length ? rest : [...rest, t])
    }
    const i = mode === 'windows' ? hit(a, b) : undefined
    if (i === undefined) return
    current = i; drag = {i, a, b, old: windows[i], resize: corner(windows[i], a, b), bad: false}
    canvas.setPointerCapture(e.pointerId); tell(); later()
  }
  canvas.onpointermove = e => {
    const [a, b] = place(e), [y, x] = [a, b].map(floor), mode = get('mode')
    if (drag) {
      change(drag.i, drag.old, round(a - drag.a), round(b - drag.b), drag.resize)
      drag.bad = clash(drag.i); tell()
    } else if (mode === 'windows') {
      const i = hit(a, b)
      canvas.style.cursor = i === undefined ? 'default' : corner(windows[i], a, b) ? 'nwse-resize' : 'move'
      return
    } else {
      canvas.style.cursor = mode === 'tokens' ? 'crosshair' : 'default'
      hover = [y, x]; say(y, x)
    }
    later()
  }
  const drop = () => {
    if (!drag) return
    const {i, old, bad} = drag
    drag = null
    if (bad) { windows[i] = old; refuse(i) }
    else if (String(windows[i]) !== String(old)) send('windows', copy(windows))
    later()
  }
  canvas.onpointerup = canvas.onpointercancel = drop
  canvas.onpointerleave = canvas.onblur = () => { if (!drag) { hover = said = 0; show(''); later() } }

  canvas.onkeydown = e => {
    const mode = get('mode'), step = STEPS[e.key], {H, W} = size()
    const mine = () => { e.preventDefault(); e.stopPropagation() }
    if (e.ctrlKey || e.metaKey || e.altKey) return
    if (mode === 'tokens' && step) {
      mine()
      const t = [...get('tokens')], last = t.pop() ?? floor(H / 2) * W + floor(W / 2)
      const y = clamp(floor(last / W) + step[0], 0, H - 1), x = clamp(last % W + step[1], 0, W - 1)
      send('tokens', [...t.filter(o => o !== y * W + x), y * W + x]); say(y, x)
    }
    if (mode !== 'windows' || !windows.length) return
    if (step) {
      mine()
      const old = windows[current]
      change(current, old, ...step, e.shiftKey)
      if (clash(current)) { windows[current] = old; refuse(current) }
      else if (String(old) !== String(windows[current])) { tell(); send('windows', copy(windows)) }
    } else if (e.key >= '1' && e.key <= '9' && +e.key <= windows.length) { mine(); current = +e.key - 1; tell() }
    else if (e.key === 'Tab' && windows[current + (e.shiftKey ? -1 : 1)]) { mine(); current += e.shiftKey ? -1 : 1; tell() }
    later()
  }

  async function load() {
    const mine = ++loads, data = bytes(get('image'))
    let next
    if (data.length) try { next = await createImageBitmap(new Blob([data])) } catch { show('unreadable image') }
    if (mine !== loads) return next?.close()
    picture?.close(); picture = next; later()
  }
  function words() {
    const mode = get('mode')
    canvas.setAttribute('role', mode === 'view' ? 'img' : 'application')
    canvas.setAttribute('aria-label', get('label') + HELP[mode])
    canvas.style.touchAction = mode === 'windows' ? 'none' : ''
    root.setAttribute('aria-busy', get('busy'))
    caption.textContent = get('caption'); message.textContent = get('message')
  }
  function follow() { if (!drag) { windows = copy(get('windows')); current = clamp(current, 0, max(0, windows.length - 1)) } }
  const refresh = () => { follow(); words(); if (said) say(...said); later() }
  model.on('change:image', load); model.on('change', refresh)
  load(); refresh()
  return () => {
    model.off('change:image', load); model.off('change', refresh); cancelAnimationFrame(frameId); clearTimeout(timer)
    loads++; picture?.close()
  }
}
export default {render}
