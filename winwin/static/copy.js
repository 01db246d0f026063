// A line of text and a button that puts it on the clipboard.
function render({model, el}) {
  const root = document.createElement('span'), code = document.createElement('code'), button = document.createElement('button')
  root.className = 'winwin-copy'; button.type = 'button'; button.className = 'jupyter-button lm-Widget widget-button'
  root.append(code, button); el.append(root)
  let timer
  const show = () => { code.textContent = model.get('text'); button.textContent = 'Copy'; button.setAttribute('aria-label', `Copy ${model.get('text')}`) }
  const select = () => { // where the clipboard is closed, as on pages that are not secure: select, and ask the browser
    const range = document.createRange(), chosen = getSelection()
    range.selectNodeContents(code); chosen.removeAllRanges(); chosen.addRange(range)
    return document.execCommand('copy')
  }
  button.onclick = async () => {
    let done = true
    try { await navigator.clipboard.writeText(model.get('text')) } catch { done = select() }
    button.textContent = done ? 'Copied' : 'Press Ctrl-C'
    clearTimeout(timer); timer = setTimeout(show, 1500)
  }
  model.on('change:text', show); show()
  return () => { model.off('change:text', show); clearTimeout(timer) }
}
export default {render}
