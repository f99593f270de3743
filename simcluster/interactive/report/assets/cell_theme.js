// Inside a notebook the page has the notebook's ground, light or dark, whatever the system prefers, and is as high as
// what it shows.
function frameOfNotebook() {
  try {
    return window.frameElement; // null where the page stands alone
  } catch { return null; } // not to be asked where the notebook is from elsewhere
}

function themeAround(frame) {
  for (let at = frame.parentElement; at; at = at.parentElement) {
    const parts = at.ownerDocument.defaultView.getComputedStyle(at).backgroundColor.match(/[\d.]+/g);
    if (parts && (parts.length < 4 || Number(parts[3]) > 0.5)) {
      const [red, green, blue] = parts.map(Number);
      return 0.299 * red + 0.587 * green + 0.114 * blue < 128 ? "dark" : "light";
    }
  }
  return "light"; // no ground at all is white
}

const frame = frameOfNotebook();
if (frame) {
  document.documentElement.dataset.theme = themeAround(frame);
  const fit = () => { frame.style.height = `${Math.ceil(document.body.getBoundingClientRect().height)}px`; };
  new ResizeObserver(fit).observe(document.body);
}
