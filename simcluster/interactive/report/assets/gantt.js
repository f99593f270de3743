// The rows of timelines on one canvas: lanes of ranks under each other, time to the right, several runs on one axis.
// Spans narrower than a pixel are mixed into that pixel by the part of it that they fill, so that idle time stays pale.
const LANE = {compute: 18, other: 8, gap: 2, pad: 7, head: 28, ruler: 26};
const FONT = "11px system-ui, sans-serif";

class Gantt {
  constructor(canvas, scroller, sizer, runs, look) {
    Object.assign(this, {canvas, scroller, sizer, runs, look});
    this.context = canvas.getContext("2d", {alpha: false});
    this.strip = document.createElement("canvas");
    this.duration = Math.max(...runs.map((run) => run.timeline.duration));
    this.view = [0, this.duration];
    this.finds = runs.map(() => null);
    this.selected = null;
    this.mode = "all";
    this.order = "beside";
    this.only = null;
    this.shows = {path: false, sends: false};
    this.pending = false;
    this.onview = () => {};
    this.widths = new Map();
    this.layout();
  }

  // --- rows ---------------------------------------------------------------------------------------------------------

  // Rows from above: run below run, or of several runs rank beside rank ("beside"), or those of one run (its number).
  layout() {
    this.rows = [];
    this.height = LANE.ruler + 4;
    const shown = this.runs.map((run, number) => number).filter((number) => !/^\d+$/.test(this.order) || Number(this.order) === number);
    const ranks = new Map(shown.map((number) => [number, this.ranksOf(this.runs[number].timeline)]));
    const beside = this.order === "beside" && shown.length > 1;
    const every = [...new Set(shown.flatMap((number) => ranks.get(number)))].sort((one, other) => one - other);
    const blocks = beside ? every.flatMap((rank) => shown.filter((number) => ranks.get(number).includes(rank)).map((number) => [number, rank]))
      : shown.flatMap((number) => [[number, null], ...ranks.get(number).map((rank) => [number, rank])]);
    if (beside) shown.forEach((number) => this.addHead(number, this.letter(number)));
    for (const [number, rank] of blocks) {
      if (rank === null) this.addHead(number, ""); else this.addRank(number, rank, beside ? this.letter(number) : "");
    }
    this.height += this.runs.length > 1 ? 8 : 0;
    this.sizer.style.height = `${this.height}px`;
  }

  letter(number) { return String.fromCharCode(65 + number); }

  // Ranks that are shown: those that were chosen, or the first of each stage and what a fault makes slow, or all.
  ranksOf(timeline) {
    if (this.only) return timeline.ranks.filter((rank) => this.only(rank));
    if (this.mode !== "stage") return timeline.ranks;
    const seen = new Set();
    return timeline.ranks.filter((rank) => {
      const lane = timeline.lanesOf(rank)[0];
      const first = !seen.has(lane.stage);
      seen.add(lane.stage);
      return first || lane.row.slow;
    });
  }

  addHead(number, letter) {
    if (this.runs.length < 2) return;
    this.rows.push({y: this.height, height: LANE.head, run: number, head: true, letter});
    this.height += LANE.head;
  }

  addRank(number, rank, letter) {
    const begin = this.height;
    const lanes = this.runs[number].timeline.lanesOf(rank);
    lanes.forEach((lane, at) => {
      const height = lane.stream === "compute" ? this.look.height || LANE.compute : LANE.other;
      this.rows.push({y: this.height, height, run: number, lane, letter, first: at === 0, last: at === lanes.length - 1});
      this.height += height + LANE.gap;
    });
    this.rows[this.rows.length - lanes.length].block = this.height - LANE.gap - begin;
    this.height += LANE.pad;
  }

  resize() {
    const width = this.scroller.clientWidth;
    const height = Math.min(this.scroller.clientHeight, this.height);
    const ratio = window.devicePixelRatio || 1;
    this.size = {width, height, ratio};
    this.gutter = this.look.gutter(width, this);
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.draw();
  }

  // To another size of its place; the one that it is drawn in already costs nothing.
  fit() {
    const {size, scroller} = this;
    if (!size || size.width !== scroller.clientWidth || size.height !== Math.min(scroller.clientHeight, this.height)) this.resize();
  }

  // An instant with the digits that the zoom needs, and that tell the ends of something `length` long apart.
  instant(seconds, length = Infinity) {
    const finest = Math.max(Math.min((this.view[1] - this.view[0]) / 500, length / 50), this.duration * 2 ** -32);
    return this.look.instant(seconds, finest, this.duration);
  }

  get plot() { return Math.max(50, this.size.width - this.gutter - 8); }

  x(seconds) { return this.gutter + (seconds - this.view[0]) / (this.view[1] - this.view[0]) * this.plot; }

  time(x) { return this.view[0] + (x - this.gutter) / this.plot * (this.view[1] - this.view[0]); }

  // --- the view -----------------------------------------------------------------------------------------------------

  show(from, to) {
    const least = Math.min(this.duration, Math.max(this.duration * 2 ** -30, 1e-9));
    let length = Math.min(this.duration, Math.max(least, to - from));
    let start = Math.min(Math.max(0, (from + to - length) / 2), this.duration - length);
    this.view = [start, start + length];
    this.later();
    this.onview(this.view);
  }

  pan(part) {
    const length = this.view[1] - this.view[0];
    const start = Math.min(Math.max(0, this.view[0] + part * length), this.duration - length);
    this.show(start, start + length);
  }

  zoom(factor, at = (this.view[0] + this.view[1]) / 2) {
    const [from, to] = this.view;
    const length = Math.min(this.duration, (to - from) / factor);
    const start = Math.min(Math.max(0, at - (at - from) * length / (to - from)), this.duration - length);
    this.show(start, start + length);
  }

  later() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.draw(); });
  }

  // --- drawing ------------------------------------------------------------------------------------------------------

  draw() {
    if (!this.size || !this.size.width) return;
    const {context, size, look} = this;
    const begun = performance.now();
    const colours = look.colours();
    this.colours = colours;
    context.setTransform(size.ratio, 0, 0, size.ratio, 0, 0);
    context.fillStyle = colours.ground;
    context.fillRect(0, 0, size.width, size.height);
    const top = this.scroller.scrollTop;
    const rows = this.rows.filter((row) => row.y + row.height > top + LANE.ruler - 8 && row.y < top + size.height);
    const lanes = rows.filter((row) => !row.head);
    const columns = Math.max(1, Math.round(this.plot * size.ratio));
    const image = new ImageData(columns, Math.max(1, lanes.length));
    const boxes = [];
    const mixed = new Float32Array(columns * 3);
    lanes.forEach((row, at) => this.fill(row, image.data.subarray(at * columns * 4, (at + 1) * columns * 4), mixed, boxes));
    this.strip.width = columns;
    this.strip.height = image.height;
    this.strip.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    lanes.forEach((row, at) => {
      context.drawImage(this.strip, 0, at, columns, 1, this.gutter, row.y - top, this.plot, row.height);
    });
    let style = null;
    for (const box of boxes) {
      if (box.colour !== style) context.fillStyle = style = box.colour;
      context.fillRect(this.gutter + box.x, box.row.y - top, box.width, box.row.height);
    }
    this.labels(lanes, top);
    this.marks(top);
    this.mark(top);
    this.names(rows, top);
    this.ruler();
    this.drawn = performance.now() - begun;
  }

  // What a search found in the lane of a row: a byte a span; null without a search.
  found(row) {
    const find = this.finds[row.run];
    return find && find.get(row.lane);
  }

  // One lane: wide spans become boxes, narrow ones are mixed into their pixels, of which `pixels` are the colours.
  fill(row, pixels, mixed, boxes) {
    const {timeline} = this.runs[row.run];
    const {lane} = row;
    const find = this.found(row);
    const {ratio} = this.size;
    const {rgb, text, pale, paleText, ground} = this.colours.spans[row.run];
    const scale = this.plot * ratio / (this.view[1] - this.view[0]);
    const perTick = timeline.secondsPerTick * scale;
    const offset = this.view[0] * scale;
    const columns = pixels.length / 4;
    mixed.fill(0);
    let before = -Infinity;
    const first = timeline.from(lane, (this.view[0] / timeline.secondsPerTick) - lane.longest);
    for (let i = first; i < lane.last; i++) {
      const left = timeline.start[i] * perTick - offset;
      const waited = timeline.wait[i] ? Math.max(before, left - timeline.wait[i] * perTick) : left;
      if (Math.min(left, waited) > columns && left - lane.earliest * perTick > columns) break;
      const right = left + timeline.length[i] * perTick;
      const paint = find && !find[i - lane.first] ? -1 - timeline.kindOf[i] : timeline.kindOf[i];
      if (waited < left) spread(waited, left, find ? this.colours.waitingPale : this.colours.waiting);
      spread(left, right, paint < 0 ? pale[-1 - paint] : rgb[paint], paint < 0 ? paleText[-1 - paint] : text[paint]);
      if (right > before) before = right;
    }
    for (let c = 0, to = 0; c < columns; c++, to += 4) {
      pixels[to] = ground[0] + mixed[3 * c];
      pixels[to + 1] = ground[1] + mixed[3 * c + 1];
      pixels[to + 2] = ground[2] + mixed[3 * c + 2];
      pixels[to + 3] = 255;
    }

    function spread(from, to, colour, name) {
      if (to <= 0 || from >= columns) return;
      if (to - from >= 1) {
        const x = Math.round(Math.max(0, from));
        const end = Math.max(x + 1, Math.round(Math.min(columns, to)));
        boxes.push({row, x: x / ratio, width: (end - x) / ratio, colour: name || colour.name});
        return;
      }
      const begin = Math.max(0, from);
      const column = Math.floor(begin);
      const border = Math.min(to, column + 1);
      add(column, border - begin, colour);
      if (to > border && column + 1 < columns) add(column + 1, to - border, colour);
    }

    function add(column, part, colour) {
      const at = 3 * column;
      mixed[at] += part * (colour[0] - ground[0]);
      mixed[at + 1] += part * (colour[1] - ground[1]);
      mixed[at + 2] += part * (colour[2] - ground[2]);
    }
  }

  // --- what is where ------------------------------------------------------------------------------------------------

  // The span at a point of the canvas: the longest of those within a pixel; null where there is none.
  hit(x, y) {
    const at = y + this.scroller.scrollTop;
    const row = this.rows.find((each) => !each.head && at >= each.y - 1 && at < each.y + each.height + 1);
    if (!row || y < LANE.ruler || x < this.gutter || x > this.gutter + this.plot) return null;
    const {timeline} = this.runs[row.run];
    const low = this.time(x - 1.5) / timeline.secondsPerTick;
    const high = this.time(x + 1.5) / timeline.secondsPerTick;
    let best = -1;
    let others = 0;
    for (let i = timeline.from(row.lane, low - row.lane.longest); i < row.lane.last && timeline.start[i] <= high; i++) {
      if (timeline.end(i) < low) continue;
      others++;
      if (best < 0 || timeline.length[i] > timeline.length[best]) best = i;
    }
    return best < 0 ? null : {run: row.run, lane: row.lane, span: best, others: others - 1};
  }
}
