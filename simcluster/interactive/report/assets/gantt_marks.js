// What is drawn over the spans of a Gantt when it is asked for: the critical path, and arrows from sends to receives.
Object.assign(Gantt.prototype, {
  marks(top) {
    const {context, size} = this;
    if (!this.shows.path && !this.shows.sends) return;
    context.save();
    context.beginPath();
    context.rect(this.gutter, LANE.ruler, this.plot, size.height - LANE.ruler);
    context.clip();
    this.runs.forEach((run, number) => {
      if (this.shows.sends && run.timeline.mate) this.sends(number, top);
      if (this.shows.path && run.timeline.path) this.path(number, top);
    });
    context.restore();
  },

  // The first row for each lane that was played: of ranks that share their spans the first one.
  rowsOfLanes(number) {
    const found = new Map();
    for (const row of this.rows) {
      if (row.lane && row.run === number && !found.has(row.lane.first)) found.set(row.lane.first, row);
    }
    return found;
  },

  // A line along the spans that everything waits for, and where it goes on to another row.  Where its parts would be
  // narrower than a few pixels it goes by rank, along the rank's first row.
  path(number, top) {
    const {timeline} = this.runs[number];
    const {path, played} = timeline;
    const low = this.view[0] / timeline.secondsPerTick;
    const high = this.view[1] / timeline.secondsPerTick;
    const rows = this.rowsOfLanes(number);
    const firsts = new Map(this.rows.filter((row) => row.first && row.run === number).map((row) => [row.lane.row.source, row]));
    const [from, to] = [firstAfter(path, low), firstAfter(path, high, true)];
    const byRank = this.plot < 4 * (to - from);
    const pieces = [];
    for (let at = from; at < to; at++) {
      const lane = played[path.lane[at]];
      const row = byRank ? firsts.get(lane.rank) : rows.get(lane.first);
      const x = this.x(timeline.seconds(path.start[at]));
      const end = this.x(timeline.seconds(path.start[at] + path.length[at]));
      const before = pieces.at(-1);
      if (before && before.row === row) before.end = end; else pieces.push({row, x, end});
    }
    const {context, colours} = this;
    context.beginPath();
    let on = false;
    for (const {row, x, end} of pieces) {
      if (row) {
        const y = row.y + row.height - 2 - top;
        if (on) context.lineTo(x, y); else context.moveTo(x, y);
        context.lineTo(end, y);
      }
      on = Boolean(row);
    }
    context.lineJoin = "round";
    for (const [width, colour] of [[4.5, colours.ground], [2, colours.text]]) {
      context.lineWidth = width;
      context.strokeStyle = colour;
      context.stroke();
    }
  },

  // From where a send begins to where its receive ends.
  sends(number, top) {
    const {timeline} = this.runs[number];
    const {context, size, colours} = this;
    const own = this.rows.filter((row) => row.lane && row.lane.stream === "pp" && row.run === number);
    const rows = new Map(own.map((row) => [`${row.lane.rank} ${row.lane.first}`, row]));
    const heights = new Map(own.map((row) => [row.lane.rank, row.y]));
    const others = this.rowsOfLanes(number);
    const lanes = timeline.played.filter((lane) => lane.stream === "pp");
    const bottom = top + size.height;
    const low = this.view[0] / timeline.secondsPerTick;
    const high = this.view[1] / timeline.secondsPerTick;
    context.strokeStyle = colours.text;
    context.fillStyle = colours.text;
    context.lineWidth = 1;
    context.globalAlpha = 0.75;
    for (const row of own) {
      const {lane} = row;
      const ends = [row.y, ...Object.values(lane.row.peers || {}).map((rank) => heights.get(rank) ?? row.y)];
      if (Math.max(...ends) < top || Math.min(...ends) > bottom) continue;
      for (let i = timeline.from(lane, low - lane.longest); i < lane.last && timeline.start[i] <= high; i++) {
        const mate = timeline.mate[i];
        if (mate < 0 || timeline.end(i) < low || timeline.word("kind", i) !== "send") continue;
        const place = lanes.find((each) => mate >= each.first && mate < each.last)?.first;
        const target = rows.get(`${timeline.peer(lane, i)} ${place}`) || others.get(place);
        if (!target) continue;
        const y = row.y + row.height / 2 - top;
        const to = target.y + target.height / 2 - top;
        if (Math.max(y, to) < LANE.ruler || Math.min(y, to) > size.height) continue;
        this.arrow(this.x(timeline.seconds(timeline.start[i])), y, this.x(timeline.seconds(timeline.end(i))), to);
      }
    }
    context.globalAlpha = 1;
  },

  arrow(x, y, end, to) {
    const {context} = this;
    const length = Math.hypot(end - x, to - y) || 1;
    const [right, down] = [(end - x) / length, (to - y) / length];
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(end, to);
    context.stroke();
    context.beginPath();
    context.moveTo(end, to);
    context.lineTo(end - 6 * right - 2.5 * down, to - 6 * down + 2.5 * right);
    context.lineTo(end - 6 * right + 2.5 * down, to - 6 * down - 2.5 * right);
    context.fill();
  },

  // Seconds of the critical path that go through a span.
  onPath(timeline, span) {
    const {path} = timeline;
    if (!path) return 0;
    if (!path.of) {
      path.of = new Map();
      path.span.forEach((each, at) => path.of.set(each, (path.of.get(each) || 0) + path.length[at]));
    }
    return timeline.seconds(path.of.get(span) || 0);
  },
});

// The first piece of a path that ends after a tick, or (`begins`) that begins after it.
function firstAfter(path, tick, begins = false) {
  let low = 0;
  let high = path.start.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((begins ? path.start[middle] : path.start[middle] + path.length[middle]) <= tick) low = middle + 1; else high = middle;
  }
  return low;
}
