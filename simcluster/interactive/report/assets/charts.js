// Memory of one rank over time, on the time axis of the timeline above it; and links over time as strips.
const MEMORY_PARTS = ["parameters", "gradients", "optimizer", "buffers", "activations", "gathered", "unsharded", "other", "lost"];

const FAR = 8; // times what is held most

class MemoryChart {
  constructor(root, curves, capacity, bytes, look) {
    Object.assign(this, {root, capacity, look});
    this.canvas = root.querySelector("canvas");
    this.out = root.querySelector("[data-part=readout]");
    this.pick = root.querySelector("select");
    this.curves = curves.map((curve) => this.stacked(curve, bytes));
    const most = Math.max(0, ...this.curves.map((curve) => curve.most));
    this.far = most > 0 && capacity > FAR * most; // with its line in sight nothing else would be
    this.top = this.far ? 1.3 * most : 1.06 * Math.max(capacity, most);
    this.view = [0, curves.length ? curves[0].duration : 1];
    this.pick.addEventListener("change", () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.hover(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => { this.out.textContent = this.peak(); });
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
  }

  // Upper edges of all parts, one array of levels after the other: levels[part * count + instant].
  stacked(curve, bytes) {
    const time = column(bytes, curve.time);
    const count = time.length;
    const pools = curve.pools.map((place) => column(bytes, place));
    const levels = new Float64Array(MEMORY_PARTS.length * count);
    const {parameters, gradients, optimizer, buffers} = curve.state;
    let most = 0;
    for (let i = 0; i < count; i++) {
      const [activations, gathered, unsharded, other] = pools.map((pool) => pool[i]);
      const lost = (curve.fragmentation - 1) * (activations + gathered + unsharded + other);
      let level = 0;
      [parameters, gradients, optimizer, buffers, activations, gathered, unsharded, other, lost].forEach((size, part) => {
        level += size;
        levels[part * count + i] = level;
      });
      most = Math.max(most, level);
    }
    return {...curve, time, count, levels, most, scale: curve.duration / TICKS};
  }

  get curve() { return this.curves[Number(this.pick.value) || 0]; }

  show(view) { this.view = view; this.draw(); }

  // The last instant that is not after `tick`.
  at(tick) {
    const {time} = this.curve;
    let low = 0;
    let high = time.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (time[middle] <= tick) low = middle + 1; else high = middle;
    }
    return low - 1;
  }

  draw() {
    const width = this.canvas.parentElement.clientWidth;
    const height = 200;
    if (!width || !this.curve) return;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext("2d", {alpha: false});
    context.scale(ratio, ratio);
    const colours = this.look.colours();
    this.gutter = width < 620 ? 64 : gutter;
    this.plot = Math.max(50, width - this.gutter - 8);
    context.fillStyle = colours.ground;
    context.fillRect(0, 0, width, height);
    const y = (size) => height - 4 - size / this.top * (height - 12);
    this.grid(context, colours, y, width);
    const {curve} = this;
    const length = (this.view[1] - this.view[0]) / this.plot / ratio;
    for (let c = 0; c < this.plot * ratio; c++) {
      const first = this.at((this.view[0] + c * length) / curve.scale);
      const last = this.at((this.view[0] + (c + 1) * length) / curve.scale);
      let most = Math.max(0, first);
      for (let i = most; i <= last; i++) if (this.total(i) > this.total(most)) most = i;
      let below = 0;
      MEMORY_PARTS.forEach((part, at) => {
        const level = first < 0 && last < 0 && at > 3 ? below : curve.levels[at * curve.count + most];
        if (level > below) {
          context.fillStyle = colours.memory[part];
          context.fillRect(this.gutter + c / ratio, y(level), 1 / ratio, y(below) - y(level));
        }
        below = level;
      });
    }
    this.limit(context, colours, this.far ? 22 : y(this.capacity));
    this.out.textContent = this.peak();
  }

  // What the GPU has, in a number above its line; or that this is far above all.
  limit(context, colours, y) {
    if (!this.capacity) return;
    const text = `capacity ${Number((this.capacity / 1e9).toPrecision(4))} GB${this.far ? ", far above" : ""}`;
    context.strokeStyle = colours.text;
    context.setLineDash([5, 4]);
    context.beginPath();
    if (!this.far) {
      context.moveTo(this.gutter, y);
      context.lineTo(this.gutter + this.plot, y);
    }
    context.stroke();
    context.setLineDash([]);
    context.font = FONT;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillStyle = colours.ground;
    context.fillRect(this.gutter + 2, y - 15, context.measureText(text).width + 8, 13);
    context.fillStyle = colours.text;
    context.fillText(text, this.gutter + 6, y - 8);
  }

  total(i) { return this.curve.levels[(MEMORY_PARTS.length - 1) * this.curve.count + i]; }

  grid(context, colours, y, width) {
    context.font = FONT;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const rough = this.top / 4;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
    for (let size = 0; size <= this.top; size += step) {
      context.fillStyle = colours.rule;
      context.fillRect(this.gutter, Math.round(y(size)), this.plot, 1);
      context.fillStyle = colours.quiet;
      context.fillText(`${Number((size / 1e9).toPrecision(3))} GB`, this.gutter - 8, Math.max(8, y(size)));
    }
  }

  peak() { return `Most on rank ${this.curve.rank}: ${formatBytes(this.curve.most)}${this.curve.peak ? `, at ${this.curve.peak}` : ""}.`; }

  hover(x) {
    const seconds = this.view[0] + (x - this.gutter) / this.plot * (this.view[1] - this.view[0]);
    const at = this.at(seconds / this.curve.scale);
    if (x < this.gutter || at < 0) return;
    let below = 0;
    const parts = [];
    MEMORY_PARTS.forEach((part, number) => {
      const level = this.curve.levels[number * this.curve.count + at];
      if (level - below > 1e5) parts.push(`${part} ${formatBytes(level - below)}`);
      below = level;
    });
    this.out.textContent = `At ${formatInstant(seconds, (this.view[1] - this.view[0]) / 500, this.curve.duration)}: ${formatBytes(below)} (${parts.join(", ")}).`;
  }
}

// A strip per link: how full it is over the run.
function drawStrips(root, place, bins, bytes, look) {
  const values = column(bytes, place);
  const colours = look.colours();
  root.querySelectorAll("canvas[data-strip]").forEach((canvas) => {
    const row = Number(canvas.dataset.strip);
    canvas.width = bins;
    canvas.height = 1;
    const context = canvas.getContext("2d");
    const image = context.createImageData(bins, 1);
    for (let bin = 0; bin < bins; bin++) {
      const value = values[row * bins + bin];
      const part = value ? 0.12 + 0.88 * value / 255 : 0; // a little traffic is not none
      for (let channel = 0; channel < 3; channel++) {
        image.data[4 * bin + channel] = colours.empty[channel] + part * (colours.full[channel] - colours.empty[channel]);
      }
      image.data[4 * bin + 3] = 255;
    }
    context.putImageData(image, 0, 0);
  });
}
