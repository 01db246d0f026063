// The sidebar shows where the reader is: open at the current page, not at its top
addEventListener('DOMContentLoaded', () => {
  const box = document.querySelector('.sidebar-scroll'), here = document.querySelector('.sidebar-tree .current-page');
  if (!box || !here) return;
  const [a, b] = [box.getBoundingClientRect(), here.getBoundingClientRect()];
  if (b.bottom > a.bottom || b.top < a.top) box.scrollTo({top: box.scrollTop + b.top - a.top - a.height / 3, behavior: 'instant'}); // the theme scrolls smoothly
});
