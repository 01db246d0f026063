// Draws a page of widgets without a kernel: `kinds` are their scripts, #data their traits, a slider or a click changes frames.
const decode = s => Uint8Array.from(atob(s), c => c.charCodeAt(0))
const {files, shown} = JSON.parse(document.getElementById('data').textContent), bytes = files.map(decode)
const data = JSON.parse(JSON.stringify(shown), (k, v) => v?.$ === undefined ? v : bytes[v.$])
const model = state => { const on = {}
  return {get: k => state[k], on(k, f) { (on[k] ||= []).push(f) }, off() {}, save_changes() {},
    set(k, v) { if (state[k] !== v) { state[k] = v; for (const f of [...on['change:' + k] || [], ...on.change || []]) f() } }} }
for (const i of data.clickable) data.base[i].mode = 'tokens'
const parts = [...document.querySelectorAll('[data-part]')].map((el, i) => {
  if (!el.dataset.kind) return {set(k, v) { el.innerHTML = v }}
  const m = model({...data.base[i]})
  kinds[el.dataset.kind].render({model: m, el})
  return m
})
let showing
const show = frame => {
  showing = true
  parts.forEach((p, i) => { for (const [k, v] of Object.entries({...data.base[i], ...frame?.[i]})) p.set(k, v) })
  showing = false
}
show()
const slider = document.querySelector('input[type=range]')
if (slider) slider.oninput = () => {
  show(data.frames[slider.value]); document.querySelector('output').textContent = data.names[slider.value]
}
for (const i of data.clickable) parts[i].on('change:tokens', () => { // go to the nearest token that has a frame
  if (showing) return
  const W = parts[i].get('grid')[1], now = +slider.value, from = data.spots[now]
  const off = t => [Math.floor(t / W) - Math.floor(from / W), t % W - from % W], [y, x] = off(parts[i].get('tokens').at(-1))
  const far = k => { const [a, b] = off(data.spots[k])
    return Math.abs(y) + Math.abs(x) === 1 && a * y + b * x <= 0 ? Infinity : (a - y) ** 2 + (b - x) ** 2 } // a key leaves the token
  const best = data.spots.map((_, k) => k).reduce((a, b) => far(b) < far(a) ? b : a)
  slider.value = far(best) < Infinity ? best : now
  slider.oninput()
})
try { // in a frame of the same site: as high as the page
  const frame = frameElement, root = document.documentElement
  if (frame) new ResizeObserver(() => { frame.style.height = root.offsetHeight + 4 + 'px' }).observe(root)
} catch {}
