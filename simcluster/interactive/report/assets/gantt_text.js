// What is written on a Gantt: numbers and names on spans, names of rows, the ruler; and the frame of a chosen span.
Object.assign(Gantt.prototype, {
  // Numbers of microbatches on actions, names on spans that are wide enough.
  labels(lanes, top) {
    const {context} = this;
    context.font = FONT;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const row of lanes) {
      if (!row.lane.actions || row.height < 14) continue;
      const {timeline} = this.runs[row.run];
      const {actions} = row.lane;
      const low = this.view[0] / timeline.secondsPerTick;
      const high = this.view[1] / timeline.secondsPerTick;
      for (let a = 0; a + 1 < actions.length; a++) {
        const first = actions[a];
        const last = actions[a + 1] - 1;
        if (timeline.end(last) < low) continue;
        if (timeline.start[first] > high) break;
        const left = this.x(timeline.seconds(timeline.start[first]));
        const right = this.x(timeline.seconds(timeline.end(last)));
        if (right - left < 9) continue;
        if (left >= this.gutter) {
          context.fillStyle = this.colours.ground;
          context.fillRect(Math.round(left), row.y - top, 1, row.height);
        }
        if (last > first && (right - left) / (last - first + 1) >= 20) this.spanLabels(row, first, last, top);
        else if (!this.found(row) || last === first) this.label(row, first, left, right, timeline.microbatch[first] < 0 ? [] : [String(timeline.microbatch[first])], top);
      }
    }
  },

  spanLabels(row, first, last, top) {
    const {timeline} = this.runs[row.run];
    for (let i = first; i <= last; i++) {
      const words = timeline.word("name", i).split("_");
      const left = this.x(timeline.seconds(timeline.start[i]));
      const right = this.x(timeline.seconds(timeline.end(i)));
      if (i > first && left >= this.gutter && right - left > 6) {
        this.context.fillStyle = this.colours.ground;
        this.context.fillRect(Math.round(left), row.y - top, 1, row.height);
      }
      this.label(row, i, left, right, [words.join(" "), words.slice(0, 2).join(" "), words[0]], top);
    }
  },

  label(row, i, left, right, texts, top) {
    const from = Math.max(left, this.gutter);
    const to = Math.min(right, this.gutter + this.plot);
    const text = texts.find((each) => this.width(each) + 4 <= to - from);
    if (!text) return;
    const find = this.found(row);
    if (find && !find[i - row.lane.first]) return;
    this.context.fillStyle = this.colours.spans[row.run].on[this.runs[row.run].timeline.kindOf[i]];
    this.context.fillText(text, (from + to) / 2, row.y - top + row.height / 2 + 0.5);
  },

  width(text) {
    if (!this.widths.has(text)) this.widths.set(text, this.context.measureText(text).width);
    return this.widths.get(text);
  },

  mark(top) {
    if (!this.selected) return;
    const row = this.rows.find((each) => each.lane === this.selected.lane && each.run === this.selected.run);
    if (!row) return;
    const {timeline} = this.runs[row.run];
    const left = this.x(timeline.seconds(timeline.start[this.selected.span]));
    const right = this.x(timeline.seconds(timeline.end(this.selected.span)));
    if (right < this.gutter || left > this.gutter + this.plot) return;
    const from = Math.max(left, this.gutter - 2);
    const width = Math.max(3, Math.min(right, this.gutter + this.plot + 2) - from);
    this.context.lineWidth = 2;
    this.context.strokeStyle = this.colours.text;
    this.context.strokeRect(from - 1, row.y - top - 2, width + 2, row.height + 4);
  },

  // What a rank is called, and what is said of it.
  rowNames(row, narrow) {
    const [name, more] = this.look.row(this.runs[row.run], row.lane, narrow);
    return [row.letter ? `${row.letter}  ${name}` : name, more];
  },

  // A bar beside all lanes of a rank that a fault makes slow, and how slow it is.
  slowness(row, y) {
    const {context, colours} = this;
    const {slow} = row.lane.row;
    if (!slow) return;
    context.fillStyle = colours.text;
    context.fillRect(this.gutter - 3, y, 3, row.block);
    context.font = `700 10px system-ui, sans-serif`;
    context.fillText(this.gutter < 100 ? slow.replace("slow ", "") : slow, 2, y + row.height + 7);
    context.font = FONT;
  },

  names(rows, top) {
    const {context, colours} = this;
    context.fillStyle = colours.ground;
    context.fillRect(0, 0, this.gutter, this.size.height);
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (const row of rows) {
      const y = row.y - top;
      const run = this.runs[row.run];
      if (row.head) {
        context.font = `600 ${FONT}`;
        context.fillStyle = colours.text;
        context.fillText(`${row.letter ? `${row.letter}   ` : ""}${run.name}   ${this.look.length(run, this.runs[0])}`, 2, y + row.height / 2 + 2);
        context.font = FONT;
      } else if (row.first) {
        context.font = FONT;
        const [name, more] = this.rowNames(row, this.gutter < 100);
        context.fillStyle = colours.text;
        context.fillText(name, 2, y + row.height / 2);
        context.fillStyle = colours.quiet;
        if (more) context.fillText(more, 2 + this.width(`${name} `) + 2, y + row.height / 2);
        this.slowness(row, y);
      } else {
        context.font = "8.5px system-ui, sans-serif";
        context.fillStyle = colours.quiet;
        context.textAlign = "right";
        context.fillText(row.lane.stream, this.gutter - 5, y + row.height / 2);
        context.textAlign = "left";
      }
    }
  },

  ruler() {
    const {context, colours, size} = this;
    context.fillStyle = colours.ground;
    context.fillRect(0, 0, size.width, LANE.ruler);
    context.font = FONT;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const length = this.view[1] - this.view[0];
    const wide = this.width(this.instant(this.view[1])) + 26;
    const rough = length / Math.max(2, this.plot / Math.max(90, wide));
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
    const ticks = this.look.ticks(step, this.view[1]);
    for (let n = Math.ceil(this.view[0] / step - 1e-9); n * step <= this.view[1] * (1 + 1e-12); n++) {
      const x = Math.round(this.x(n * step));
      context.fillStyle = colours.rule;
      context.fillRect(x, LANE.ruler - 5, 1, 5);
      context.fillStyle = colours.quiet;
      const text = ticks(n * step);
      const half = this.width(text) / 2;
      context.fillText(text, Math.min(Math.max(x, this.gutter + half - 4), size.width - half - 2), 11);
    }
    context.fillStyle = colours.rule;
    context.fillRect(this.gutter, LANE.ruler - 1, this.plot, 1);
  },
});
