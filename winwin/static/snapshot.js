// Draws a page of widgets without a kernel: `kinds` are their scripts, #data their traits, a slider changes frames.
const decode = s => Uint8Array.from(atob(s), c => c.charCodeAt(0))
const {files, shown} = JSON.parse(document.getElementById('data').textContent), bytes = files.map(decode)
const data = JSON.parse(JSON.stringify(shown), (k, v) => v?.$ === undefined ? v : bytes[v.$])
const model = state => { const on = {}
  return {get: k => state[k], on(k, f) { (on[k] ||= []).push(f) }, off() {}, save_changes() {},
    set(k, v) { if (state[k] !== v) { state[k] = v; for (const f of [...on['change:' + k] || [], ...on.change || []]) f() } }} }
const parts = [...document.querySelectorAll('[data-part]')].map((el, i) => {
  if (!el.dataset.kind) return {set(k, v) { el.innerHTML = v }}
  const m = model({...data.base[i]})
  kinds[el.dataset.kind].render({model: m, el})
  return m
})
const show = frame => parts.forEach((p, i) => { for (const [k, v] of Object.entries({...data.base[i], ...frame?.[i]})) p.set(k, v) })
show()
const slider = document.querySelector('input[type=range]')
if (slider) slider.oninput = () => {
  show(data.frames[slider.value]); document.querySelector('output').textContent = data.names[slider.value]
}
