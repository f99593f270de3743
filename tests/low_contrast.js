// Texts of the page whose contrast is under 4.5 (3 of large ones; WCAG 2.1, 1.4.3), whatever lies behind them.
(() => {
  const paint = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (text) => { paint.clearRect(0, 0, 1, 1); paint.fillStyle = text; paint.fillRect(0, 0, 1, 1); const d = paint.getImageData(0, 0, 1, 1).data; return [d[0], d[1], d[2], d[3] / 255]; };
  const over = (top, below) => top.slice(0, 3).map((each, place) => each * top[3] + below[place] * (1 - top[3]));
  const light = (rgb) => { const [r, g, b] = rgb.map((each) => (each /= 255) <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) layers.push(rgba(getComputedStyle(each).backgroundColor));
    const page = matchMedia("(prefers-color-scheme: dark)").matches ? [0, 0, 0] : [255, 255, 255];
    return layers.reverse().reduce((below, layer) => over(layer, below), page);
  };
  const found = [];
  for (const each of document.querySelectorAll("body *")) {
    const own = [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || each.disabled || !each.getClientRects().length || each.closest("svg, [hidden], option, .visually-hidden")) continue;
    const below = behind(each), style = getComputedStyle(each), text = over(rgba(style.color), below);
    const [one, other] = [light(text), light(below)].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) found.push(`${each.tagName} ${each.className} ${each.textContent.trim().slice(0, 40)}: ${ratio.toFixed(2)} (${style.color} on ${below.map(Math.round)})`);
  }
  return [...new Set(found)].slice(0, 20);
})()
