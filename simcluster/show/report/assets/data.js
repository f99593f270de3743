// Columns of numbers out of the page: base64, deflated, in byte planes (simcluster/report/blob.py wrote them).
const TICKS = 2 ** 32 - 1;
const ARRAYS = {u1: Uint8Array, u2: Uint16Array, i2: Int16Array, u4: Uint32Array, i4: Int32Array, f4: Float32Array};

async function inflated(text) {
  const packed = atob(text.trim());
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = packed.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function column(bytes, [offset, count, type]) {
  const values = new ARRAYS[type](count);
  const width = values.BYTES_PER_ELEMENT;
  const own = new Uint8Array(values.buffer);
  for (let plane = 0; plane < width; plane++) {
    const from = offset + plane * count;
    for (let i = 0, to = plane; i < count; i++, to += width) own[to] = bytes[from + i];
  }
  return values;
}

// A timeline: lanes of spans in time, each span's start and end in ticks, and what it is.
class Timeline {
  constructor(raw, bytes) {
    this.duration = raw.duration;
    this.count = raw.count;
    this.words = raw.words;
    this.what = raw.what;
    this.weights = raw.weights;
    this.secondsPerTick = raw.duration / TICKS;
    for (const name of ["length", "wait", "microbatch", "stage", "step", "group"]) {
      this[name] = column(bytes, raw.columns[name]);
    }
    this.kindOf = column(bytes, raw.columns.what);
    this.start = column(bytes, raw.columns.start);
    if (!(this.start instanceof Uint32Array)) this.start = Uint32Array.from(this.start);
    for (let i = 1; i < this.count; i++) this.start[i] += this.start[i - 1]; // differences, modulo 2^32
    this.lanes = raw.lanes.map(([rank, stream, first], at) => {
      const last = at + 1 < raw.lanes.length ? raw.lanes[at + 1][2] : this.count;
      return this.lane(rank, this.words[stream], first, last);
    });
    this.ranks = [...new Set(this.lanes.map((lane) => lane.rank))];
  }

  lane(rank, stream, first, last) {
    let longest = 0;
    let earliest = 0;
    for (let i = first; i < last; i++) {
      if (this.length[i] > longest) longest = this.length[i];
      if (this.wait[i] > earliest) earliest = this.wait[i];
    }
    const lane = {rank, stream, first, last, longest, earliest, stage: this.stage[first]};
    if (stream === "compute") lane.actions = this.actions(first, last);
    return lane;
  }

  // First spans of actions: spans in a row for one microbatch, chunk and direction.
  actions(first, last) {
    const {kind, chunk} = this.what;
    const direction = kind.map((code, at) => {
      const word = this.words[code];
      const one = word === "recompute" || word === "input_grad" ? "backward" : word;
      return `${one} ${chunk[at]}`;
    });
    const found = [];
    for (let i = first; i < last; i++) {
      const changed = i === first || this.microbatch[i] !== this.microbatch[i - 1] || this.step[i] !== this.step[i - 1] ||
        (this.kindOf[i] !== this.kindOf[i - 1] && direction[this.kindOf[i]] !== direction[this.kindOf[i - 1]]);
      if (changed) found.push(i);
    }
    found.push(last);
    return Uint32Array.from(found);
  }

  end(i) { return this.start[i] + this.length[i]; }

  // Where a lane's first span with a start of at least `tick` is.
  from(lane, tick) {
    let low = lane.first;
    let high = lane.last;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.start[middle] < tick) low = middle + 1; else high = middle;
    }
    return low;
  }

  seconds(ticks) { return ticks * this.secondsPerTick; }

  word(name, i) { return this.words[this.what[name][this.kindOf[i]]]; }

  number(name, i) { return this.what[name][this.kindOf[i]]; }
}

function formatSeconds(seconds) {
  const size = Math.abs(seconds);
  for (const [unit, scale] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]]) {
    if (size >= scale * 0.99995) return `${Number((seconds / scale).toPrecision(4))} ${unit}`;
  }
  return size < 1e-12 ? "0 s" : `${Number((seconds / 1e-12).toPrecision(3))} ps`;
}

function formatBytes(size) {
  for (const [unit, scale] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (size >= scale) return `${Number((size / scale).toPrecision(4))} ${unit}`;
  }
  return `${Number(size.toPrecision(4))} B`;
}
