// Lines over an axis: theme-aware SVG with a readout and marks. No libraries, no requests.
const NS = 'http://www.w3.org/2000/svg'
const TRAITS = 'lines marks at xlim ylim title xlabel ylabel log pick label width height'
const HUES = ['#e8871e', '#2a8fd8', '#2fae68', '#d8498f', '#9a7be0', '#a09a2a']
const part = (tag, attrs, parent, text) => {
  const e = document.createElementNS(NS, tag)
  for (const k in attrs) e.setAttribute(k, attrs[k])
  if (text !== undefined) e.textContent = text
  parent.append(e)
  return e
}
const nice = (lo, hi, n) => { // round numbers between lo and hi
  const raw = (hi - lo) / n, mag = 10 ** Math.floor(Math.log10(raw)), f = raw / mag
  const step = mag * (f < 1.5 ? 1 : f < 3.5 ? 2 : f < 7.5 ? 5 : 10), out = []
  for (let v = Math.ceil(lo / step - 1e-9) * step; v <= hi + step * 1e-6; v += step) out.push(Math.abs(v) < step * 1e-6 ? 0 : v)
  return out
}
const short = v => v === 0 ? '0' : Math.abs(v) < .001 || Math.abs(v) >= 1e5 ? v.toExponential(1) : String(+v.toPrecision(3))

function render({model, el}) {
  const root = document.createElement('figure'), head = document.createElement('figcaption'), said = document.createElement('div')
  root.className = 'winwin-chart'; said.className = 'winwin-said'; said.setAttribute('aria-live', 'polite')
  const svg = document.createElementNS(NS, 'svg')
  root.append(head, svg, said); el.append(root)
  const get = k => model.get(k), pad = {l: 54, r: 10, t: 6, b: 34}
  let box, frame
  svg.setAttribute('role', 'img')

  function limits(axis) {
    const fixed = get(axis + 'lim')
    if (fixed.length === 2) return fixed
    const all = get('lines').flatMap(l => l[axis]).filter(Number.isFinite)
    if (axis === 'x') all.push(...get('marks').map(m => m.x))
    if (!all.length) return [0, 1]
    let lo = Math.min(...all), hi = Math.max(...all)
    if (lo === hi) { lo -= .5; hi += .5 }
    const gap = axis === 'y' ? .06 * (hi - lo) : 0
    return [lo - gap, hi + gap]
  }

  function draw() {
    frame = 0
    const W = get('width'), H = get('height'), [x0, x1] = limits('x'), [y0, y1] = limits('y')
    const X = v => pad.l + (v - x0) / (x1 - x0) * (W - pad.l - pad.r), Y = v => H - pad.b - (v - y0) / (y1 - y0) * (H - pad.t - pad.b)
    box = {X, x0, x1, W}
    svg.replaceChildren()
    svg.setAttribute('viewBox', `0 0 ${W} ${H}`); svg.setAttribute('width', W); svg.setAttribute('height', H)
    svg.setAttribute('aria-label', get('label') || get('title'))
    svg.style.cursor = get('pick') ? 'crosshair' : ''
    const tick = v => get('log') ? (Number.isInteger(v) ? '1e' + v : '') : short(v)
    for (const v of nice(y0, y1, 4)) {
      part('line', {x1: pad.l, x2: W - pad.r, y1: Y(v), y2: Y(v), class: 'grid'}, svg)
      part('text', {x: pad.l - 5, y: Y(v) + 4, 'text-anchor': 'end'}, svg, short(v))
    }
    for (const v of nice(x0, x1, 6)) part('text', {x: X(v), y: H - pad.b + 14, 'text-anchor': 'middle'}, svg, tick(v))
    part('line', {x1: pad.l, x2: W - pad.r, y1: H - pad.b, y2: H - pad.b, class: 'axis'}, svg)
    part('text', {x: (pad.l + W - pad.r) / 2, y: H - 4, 'text-anchor': 'middle'}, svg, get('xlabel'))
    part('text', {x: 11, y: (pad.t + H - pad.b) / 2, 'text-anchor': 'middle', transform: `rotate(-90 11 ${(pad.t + H - pad.b) / 2})`}, svg, get('ylabel'))
    const clip = Math.max(0, W - pad.l - pad.r)
    const plot = part('svg', {x: pad.l, y: pad.t, width: clip, height: H - pad.t - pad.b, viewBox: `${pad.l} ${pad.t} ${clip} ${H - pad.t - pad.b}`}, svg)
    const at = get('at'), signs = [...Number.isFinite(at) ? [{x: at, name: 'now ' + short(at), now: true}] : [], ...get('marks')]
    const hue = (m, i) => m.now ? 'var(--ww-text)' : m.color || HUES[(i - signs.length + get('marks').length) % HUES.length]
    signs.forEach((m, i) => part('line', {x1: X(m.x), x2: X(m.x), y1: pad.t, y2: H - pad.b, style: `stroke: ${hue(m, i)}`, 'stroke-width': 1.5, 'stroke-dasharray': m.now ? 'none' : '2 3'}, plot))
    get('lines').forEach((l, i) => {
      const c = l.color || HUES[i % HUES.length], pts = []
      let pen = false
      l.x.forEach((x, j) => {
        if (!Number.isFinite(l.y[j])) { pen = false; return }
        pts.push(`${pen ? 'L' : 'M'}${X(x).toFixed(1)} ${Y(l.y[j]).toFixed(1)}`); pen = true
        if (l.dots) part('circle', {cx: X(x), cy: Y(l.y[j]), r: 2.6, fill: c}, plot)
      })
      if (l.fill && pts.length) part('path', {d: pts.join('') + `L${X(l.x.at(-1))} ${Y(y0)}L${X(l.x[0])} ${Y(y0)}Z`, fill: c, opacity: .16}, plot)
      part('path', {d: pts.join(''), fill: 'none', stroke: c, 'stroke-width': 1.8, 'stroke-dasharray': l.dash ? '5 3' : 'none'}, plot)
    })
    signs.forEach((m, i) => {
      const late = X(m.x) > .7 * W // then write to the left
      part('text', {x: X(m.x) + (late ? -3 : 3), 'text-anchor': late ? 'end' : 'start', y: pad.t + 10 + 12 * (i % 6), style: `fill: ${hue(m, i)}`, class: 'mark'}, plot, m.name)
    })
    head.replaceChildren(...[get('title'), ...get('lines').map((l, i) => {
      const key = document.createElement('span'), dot = document.createElement('i')
      dot.style.background = l.color || HUES[i % HUES.length]
      key.append(dot, l.name)
      return key
    })])
  }

  const later = () => { frame ||= requestAnimationFrame(draw) }
  const where = e => { const r = svg.getBoundingClientRect(), px = (e.clientX - r.left) / r.width * box.W
    return Math.max(box.x0, Math.min(box.x1, box.x0 + (px - pad.l) / (box.W - pad.l - pad.r) * (box.x1 - box.x0))) }
  svg.onpointermove = e => {
    const x = where(e)
    const near = get('lines').map(l => { let b = 0; l.x.forEach((v, j) => { if (Math.abs(v - x) < Math.abs(l.x[b] - x)) b = j }); return `${l.name} ${short(l.y[b] ?? NaN)}` })
    said.textContent = `${get('xlabel')} ${get('log') ? short(10 ** x) : short(x)} · ${near.join(' · ')}`
  }
  svg.onpointerleave = () => { said.textContent = '' }
  svg.onclick = e => { if (get('pick')) { model.set('at', +where(e).toFixed(2)); model.save_changes() } }
  const events = TRAITS.split(' ').map(t => 'change:' + t)
  for (const n of events) model.on(n, later)
  draw()
  return () => { for (const n of events) model.off(n, later); cancelAnimationFrame(frame) }
}
export default {render}
