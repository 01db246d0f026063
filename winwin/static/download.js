// Hands bytes that arrive from the kernel to the browser as a file; the link stays for a second click.
function render({model, el}) {
  const a = document.createElement('a')
  a.style.color = 'var(--jp-content-link-color, #1976d2)'
  el.append(a)
  const save = ({name, kind}, [data]) => {
    if (a.href) URL.revokeObjectURL(a.href)
    Object.assign(a, {href: URL.createObjectURL(new Blob([data], {type: kind})), download: name, textContent: name})
    a.click()
  }
  model.on('msg:custom', save)
  return () => { model.off('msg:custom', save); if (a.href) URL.revokeObjectURL(a.href) }
}
export default {render}
