// Hands bytes that arrive from the kernel to the browser as a file: once per message, however many views
// of the widget there are (JupyterLab keeps the first one when a display is updated). Each view has a link for a second click.
export default () => {
  let file = {}
  function initialize({model}) {
    model.on('msg:custom', ({name, kind}, [data]) => {
      if (file.href) URL.revokeObjectURL(file.href)
      file = {href: URL.createObjectURL(new Blob([data], {type: kind})), download: name, textContent: name}
      Object.assign(document.createElement('a'), file).click()
    })
    return () => { if (file.href) URL.revokeObjectURL(file.href) }
  }
  function render({model, el}) {
    const link = document.createElement('a')
    const show = () => { Object.assign(link, file) }
    link.style.color = 'var(--jp-content-link-color, #1976d2)'
    el.append(link)
    show()
    model.on('msg:custom', show)
    return () => model.off('msg:custom', show)
  }
  return {initialize, render}
}
