// Columns of numbers out of the page: base64, deflated, in byte planes (simcluster/report/blob.py wrote them).
const TICKS = 2 ** 32 - 1;
const ARRAYS = {u1: Uint8Array, u2: Uint16Array, i2: Int16Array, u4: Uint32Array, i4: Int32Array, f4: Float32Array};

async function inflated(text) {
  const packed = atob(text.trim());
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = packed.charCodeAt(i);
  const {readable, writable} = new DecompressionStream("deflate");
  const writer = writable.getWriter(); // from a Blob it goes through the browser's other processes
  const written = Promise.all([writer.write(bytes), writer.close()]);
  const parts = [];
  let count = 0;
  for (const reader = readable.getReader(); ;) {
    const {done, value} = await reader.read();
    if (done) break;
    parts.push([count, value]);
    count += value.length;
  }
  await written;
  const whole = new Uint8Array(count);
  for (const [at, part] of parts) whole.set(part, at);
  return whole;
}

function column(bytes, [offset, count, type, runs, lengths]) {
  if (lengths !== undefined) return fromRuns(column(bytes, [offset, runs, type]), column(bytes, [lengths, runs, "u4"]), count);
  if (bytes.inPlace) return new ARRAYS[type](bytes.buffer, bytes.byteOffset + offset, count); // in no planes
  const values = new ARRAYS[type](count);
  const width = values.BYTES_PER_ELEMENT;
  const whole = new {1: Uint8Array, 2: Uint16Array, 4: Uint32Array}[width](values.buffer);
  const [a, b, c, d] = [0, 1, 2, 3].map((plane) => bytes.subarray(offset + plane * count, offset + (plane + 1) * count));
  if (width === 1) whole.set(a);
  else if (width === 2) for (let i = 0; i < count; i++) whole[i] = a[i] | b[i] << 8;
  else for (let i = 0; i < count; i++) whole[i] = a[i] | b[i] << 8 | c[i] << 16 | d[i] << 24;
  return values;
}

// A column from its runs of equal numbers.
function fromRuns(values, lengths, count) {
  const whole = new values.constructor(count);
  for (let run = 0, at = 0; run < values.length; run++) whole.fill(values[run], at, at += lengths[run]);
  return whole;
}

// A timeline: lanes of spans in time, each span's start and end in ticks, and what it is.  Ranks that do exactly the
// same share their spans: each has a row and lanes of its own, and groups of its own.
class Timeline {
  constructor(raw, bytes) {
    this.duration = raw.duration;
    this.count = raw.count;
    this.words = raw.words;
    this.what = Object.fromEntries(Object.entries(raw.what).map(([name, values]) =>
      [name, typeof values[2] === "string" ? Array.from(column(bytes, values)) : values])); // of few kinds as they are
    this.weights = raw.weights;
    this.secondsPerTick = raw.duration / TICKS;
    for (const name of ["length", "wait", "microbatch", "stage", "step", "group"]) {
      this[name] = column(bytes, raw.columns[name]);
    }
    this.kindOf = column(bytes, raw.columns.what);
    this.start = column(bytes, raw.columns.start);
    if (!(this.start instanceof Uint32Array)) this.start = Uint32Array.from(this.start);
    for (let i = 1; i < this.count; i++) this.start[i] += this.start[i - 1]; // differences, modulo 2^32
    this.played = raw.lanes.map(([rank, stream, first], at) => {
      const last = at + 1 < raw.lanes.length ? raw.lanes[at + 1][2] : this.count;
      return this.lane(rank, this.words[stream], first, last);
    });
    const sources = new Set(this.played.map((lane) => lane.rank));
    const shown = raw.rows && raw.rows.length ? raw.rows : [...sources].map((rank) => ({rank, source: rank}));
    this.lanes = shown.flatMap((row) => this.played.filter((lane) => lane.rank === row.source)
      .map((lane) => ({...lane, rank: row.rank, row})));
    this.ranks = shown.map((row) => row.rank);
    for (const name of ["late", "mate"]) this[name] = raw.columns[name] ? column(bytes, raw.columns[name]) : null;
    this.path = raw.columns.path_lane ? this.pathOf(raw, bytes) : null;
  }

  // The critical path: of every piece its span, that span's lane, and from when on it is how long.
  pathOf(raw, bytes) {
    const [lane, step, start, length] = ["lane", "step", "start", "length"].map((name) => column(bytes, raw.columns[`path_${name}`]));
    const at = this.played.map((each) => each.first);
    const path = {lane, span: new Uint32Array(lane.length), start: new Float64Array(lane.length), length: new Float64Array(lane.length)};
    lane.forEach((number, piece) => {
      const span = at[number] += step[piece];
      path.span[piece] = span;
      path.start[piece] = this.start[span] + start[piece];
      path.length[piece] = this.length[span] + length[piece];
    });
    return path;
  }

  lanesOf(rank) {
    if (!this.byRank) {
      this.byRank = new Map(this.ranks.map((each) => [each, []]));
      this.lanes.forEach((lane) => this.byRank.get(lane.rank).push(lane));
    }
    return this.byRank.get(rank);
  }

  // The name of the group that a span of a lane is of; "" for none.
  groupOf(lane, i) {
    const own = this.group[i];
    return this.words[lane.row.groups?.[own] ?? own];
  }

  // The rank at the other end of a message; -1 where it is none.
  peer(lane, i) {
    const mate = this.mate ? this.mate[i] : -1;
    if (mate < 0) return -1;
    const way = this.word("kind", i) === "send" ? "to" : "from";
    return lane.row.peers?.[`${way} ${this.stage[mate]}`] ?? this.rankOf(mate);
  }

  // The rank that a span waited for; -1 for none.
  waitedFor(lane, i) {
    const late = this.late ? this.late[i] : -1;
    if (late < 0) return -1;
    const axis = this.words[this.group[i]].replace(/\d+$/, "");
    return lane.row.late?.[`${axis} ${late}`] ?? late;
  }

  // The rank that was simulated whose span this is.
  rankOf(i) { return this.played.find((lane) => i >= lane.first && i < lane.last).rank; }

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

// An instant with as many digits as tell it from one `resolution` later, in the unit of `scale`.
function formatInstant(seconds, resolution, scale = seconds) {
  if (Math.abs(seconds) < resolution / 2) return "0 s";
  const [unit, size] = [["s", 1], ["ms", 1e-3], ["µs", 1e-6]].find(([, each]) => Math.abs(scale) >= each * 0.99995) || ["ns", 1e-9];
  const digits = Math.ceil(-Math.log10(resolution / size) - 1e-9);
  return `${(seconds / size).toFixed(Math.min(9, Math.max(0, digits)))} ${unit}`;
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
