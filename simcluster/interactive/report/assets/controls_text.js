// Search, and the part of a Gantt that is in view as a table: the controls that are made of text.
Object.assign(Controls.prototype, {
  // --- search -------------------------------------------------------------------------------------------------------

  searching() {
    const box = this.part("search");
    if (!box) return;
    let timer = 0;
    box.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => this.search(box.value), 120); });
    box.addEventListener("keydown", (event) => {
      if (event.key === "Enter") {
        clearTimeout(timer);
        if (this.text !== box.value) this.search(box.value);
        this.next(event.shiftKey ? -1 : 1);
      } else if (event.key === "Escape") { box.value = ""; this.search(""); this.gantt.canvas.focus(); }
    });
    this.part("next").addEventListener("click", () => this.next(1));
    this.part("previous").addEventListener("click", () => this.next(-1));
  },

  search(text) {
    const {gantt} = this;
    this.text = text;
    this.place = -1;
    gantt.finds = gantt.runs.map((run) => searched(run.timeline, text));
    this.hits = [];
    let seconds = 0;
    gantt.runs.forEach(({timeline}, run) => {
      const found = gantt.finds[run];
      if (!found) return;
      for (const lane of timeline.lanes) {
        const own = found.get(lane);
        for (let i = lane.first; i < lane.last; i++) {
          if (own[i - lane.first]) { this.hits.push([run, lane, i]); seconds += timeline.seconds(timeline.length[i]); }
        }
      }
    });
    const count = this.hits.length.toLocaleString("en");
    this.part("found").textContent = text.trim() ? `${count} found, ${formatSeconds(seconds)} together` : "";
    gantt.later();
    this.changed();
  },

  // The next hit in a row that is shown.
  next(by) {
    const shown = new Set(this.gantt.rows.filter((row) => row.lane).map((row) => row.lane));
    for (let tries = 0; tries < this.hits.length; tries++) {
      this.place = (this.place + by + this.hits.length) % this.hits.length;
      const [run, lane, span] = this.hits[this.place];
      if (shown.has(lane)) { this.into({run, lane, span, others: 0}); return; }
    }
  },

  // --- in text ------------------------------------------------------------------------------------------------------

  tell(text) {
    const live = this.part("live");
    if (live) live.textContent = text;
  },

  said() {
    const {gantt} = this;
    const [from, to] = gantt.view;
    this.part("view").textContent = `${gantt.instant(from)} + ${gantt.look.seconds(to - from)}`;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.table(), 200);
    if (this.onview) this.onview(gantt.view);
    this.changed();
  },

  // The spans of one row that are in view, as a table.
  table() {
    const details = this.part("table");
    if (!details || !details.open) return;
    const {gantt} = this;
    const pick = this.part("table-row");
    if (!pick.options.length) {
      gantt.runs.forEach((run, number) => run.timeline.ranks.forEach((rank) => {
        pick.add(new Option(`${gantt.runs.length > 1 ? `${run.name}, ` : ""}${gantt.look.rowName} ${rank}`, `${number} ${rank}`));
      }));
      pick.addEventListener("change", () => this.table());
    }
    const [number, rank] = pick.value.split(" ").map(Number);
    const {timeline} = gantt.runs[number];
    const [low, high] = gantt.view.map((seconds) => seconds / timeline.secondsPerTick);
    const found = [];
    for (const lane of timeline.lanes.filter((each) => each.rank === rank)) {
      for (let i = timeline.from(lane, low - lane.longest); i < lane.last && timeline.start[i] <= high; i++) {
        if (timeline.end(i) >= low) found.push([lane, i]);
      }
    }
    found.sort((a, b) => timeline.start[a[1]] - timeline.start[b[1]]);
    const most = 200;
    const body = this.part("table-body");
    body.replaceChildren(...found.slice(0, most).map(([lane, i]) => {
      const row = document.createElement("tr");
      const layer = timeline.number("layer", i);
      const cells = [timeline.word("name", i), timeline.word("kind", i), lane.stream, layer < 0 ? "" : String(layer),
        timeline.microbatch[i] < 0 ? "" : String(timeline.microbatch[i]),
        gantt.instant(timeline.seconds(timeline.start[i]), timeline.seconds(timeline.length[i])),
        ...[timeline.length[i], timeline.wait[i]].map((ticks) => gantt.look.seconds(timeline.seconds(ticks)))];
      cells.forEach((text, at) => {
        const cell = document.createElement(at ? "td" : "th");
        if (at > 2) cell.className = "number";
        if (!at) cell.scope = "row";
        cell.textContent = text;
        row.append(cell);
      });
      return row;
    }));
    const count = found.length.toLocaleString("en");
    this.part("table-count").textContent = found.length > most
      ? `The first ${most} of ${count} spans in view; zoom in for the others.` : `${count} spans in view.`;
  },
});
