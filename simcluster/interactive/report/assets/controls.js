// What a person does with a Gantt: mouse, keyboard, search, the tooltip, and the same in text for screen readers.
class Controls {
  constructor(root, gantt) {
    this.root = root;
    this.gantt = gantt;
    this.part = (name) => root.querySelector(`[data-part="${name}"]`);
    this.tip = this.part("tip");
    this.hits = [];
    this.place = -1;
    this.pointer = null; // where on the canvas the mouse is
    this.buttons();
    this.chooses();
    this.touching();
    this.mouse();
    this.searching();
    gantt.canvas.addEventListener("keydown", (event) => this.key(event));
    gantt.scroller.addEventListener("scroll", () => { this.hide(); gantt.later(); });
    gantt.onview = () => this.said();
    new ResizeObserver(() => gantt.fit()).observe(gantt.scroller);
    const details = this.part("table");
    if (details) details.addEventListener("toggle", () => this.table());
    this.said();
  }

  buttons() {
    const {gantt} = this;
    const actions = {in: () => gantt.zoom(2), out: () => gantt.zoom(0.5), all: () => gantt.show(0, gantt.duration),
      left: () => gantt.pan(-0.25), right: () => gantt.pan(0.25)};
    for (const button of this.root.querySelectorAll("button[data-do]")) {
      const action = actions[button.dataset.do];
      if (action) button.addEventListener("click", action);
    }
    const rows = this.part("rows");
    if (rows) {
      gantt.mode = rows.value;
      gantt.layout();
      rows.addEventListener("change", () => { gantt.mode = rows.value; this.rearrange(); });
    }
  }

  mouse() {
    const {gantt} = this;
    const {canvas} = gantt;
    let drag = null;
    canvas.addEventListener("wheel", (event) => {
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        gantt.zoom(Math.exp(-event.deltaY * 0.0025), gantt.time(event.offsetX));
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        gantt.pan((event.deltaX || event.deltaY) / gantt.plot);
      }
    }, {passive: false});
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      const area = event.shiftKey || event.offsetY < LANE.ruler;
      drag = {x: event.offsetX, y: event.clientY, top: gantt.scroller.scrollTop, view: gantt.view, area, moved: false};
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      this.pointer = event.offsetX;
      if (this.pinched) { drag = null; return; }
      if (!drag) { this.hover(event); return; }
      const far = Math.abs(event.offsetX - drag.x) + Math.abs(event.clientY - drag.y);
      drag.moved = drag.moved || far > 3;
      if (!drag.moved) return;
      this.hide();
      if (drag.area) { this.band(drag.x, event.offsetX); return; }
      canvas.classList.add("dragging");
      const length = drag.view[1] - drag.view[0];
      const start = drag.view[0] - (event.offsetX - drag.x) / gantt.plot * length;
      const from = Math.min(Math.max(0, start), gantt.duration - length);
      gantt.show(from, from + length);
      gantt.scroller.scrollTop = drag.top - (event.clientY - drag.y);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && drag.moved && drag.area) {
        const [from, to] = [gantt.time(drag.x), gantt.time(event.offsetX)].sort((a, b) => a - b);
        gantt.show(Math.max(0, from), Math.min(gantt.duration, to));
      } else if (drag && !drag.moved) {
        this.select(gantt.hit(event.offsetX, event.offsetY));
        if (event.pointerType === "touch") this.hover(event);
      }
      drag = null;
      canvas.classList.remove("dragging");
      this.band(0, 0);
    });
    canvas.addEventListener("pointercancel", () => { drag = null; });
    canvas.addEventListener("pointerleave", (event) => {
      this.pointer = null;
      if (event.pointerType !== "touch") this.hide();
    });
    canvas.addEventListener("dblclick", (event) => this.into(gantt.hit(event.offsetX, event.offsetY)));
  }

  band(from, to) {
    const {style} = this.part("band");
    style.display = from === to ? "none" : "block";
    style.left = `${Math.min(from, to)}px`;
    style.width = `${Math.abs(to - from)}px`;
  }

  // --- keyboard -----------------------------------------------------------------------------------------------------

  // `alone`: nothing on the page has the focus, so that the keys that scroll it are its own.
  key(event, alone = false) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const {gantt} = this;
    const far = event.shiftKey ? 0.8 : 0.2;
    const at = this.pointer === null ? undefined : gantt.time(this.pointer);
    const keys = {
      w: () => gantt.zoom(1.5, at),
      s: () => gantt.zoom(1 / 1.5, at),
      a: () => gantt.pan(-far),
      d: () => gantt.pan(far),
      ArrowLeft: () => gantt.pan(-far),
      ArrowRight: () => gantt.pan(far),
      ArrowUp: () => { gantt.scroller.scrollTop -= 60; },
      ArrowDown: () => { gantt.scroller.scrollTop += 60; },
      "+": () => gantt.zoom(2),
      "=": () => gantt.zoom(2),
      "-": () => gantt.zoom(0.5),
      _: () => gantt.zoom(0.5),
      0: () => gantt.show(0, gantt.duration),
      Home: () => gantt.show(0, gantt.duration),
      ".": () => this.step(1),
      ",": () => this.step(-1),
      "[": () => this.lane(-1),
      "]": () => this.lane(1),
      Enter: () => this.into(gantt.selected),
      n: () => this.next(1),
      p: () => this.next(-1),
      "/": () => this.part("search") && this.part("search").focus(),
      Escape: () => this.select(null),
    };
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (!Object.hasOwn(keys, key) || (alone && ["ArrowUp", "ArrowDown", "Home"].includes(key))) return;
    event.preventDefault();
    keys[key]();
  }

  // The next span of the lane with the selected one, or the first in view.
  step(by) {
    const {gantt} = this;
    const {selected} = gantt;
    if (!selected) { this.select(this.firstInView()); return; }
    const span = selected.span + by;
    if (span >= selected.lane.first && span < selected.lane.last) this.reveal({...selected, span});
  }

  lane(by) {
    const {gantt} = this;
    const {selected} = gantt;
    if (!selected) { this.select(this.firstInView()); return; }
    const lanes = gantt.rows.filter((row) => row.lane);
    const row = lanes[lanes.findIndex((each) => each.lane === selected.lane && each.run === selected.run) + by];
    if (!row) return;
    const {timeline} = gantt.runs[row.run];
    const seconds = gantt.runs[selected.run].timeline.seconds(gantt.runs[selected.run].timeline.start[selected.span]);
    const span = Math.min(timeline.from(row.lane, seconds / timeline.secondsPerTick), row.lane.last - 1);
    this.reveal({run: row.run, lane: row.lane, span, others: 0});
  }

  firstInView() {
    const {gantt} = this;
    const row = gantt.rows.find((each) => each.lane && each.y >= gantt.scroller.scrollTop);
    if (!row) return null;
    const {timeline} = gantt.runs[row.run];
    const span = Math.min(timeline.from(row.lane, gantt.view[0] / timeline.secondsPerTick), row.lane.last - 1);
    return {run: row.run, lane: row.lane, span, others: 0};
  }

  // --- one span -----------------------------------------------------------------------------------------------------

  select(found) {
    const {gantt} = this;
    gantt.selected = found;
    gantt.later();
    if (!found) { this.hide(); this.tell(""); return; }
    this.tell(this.facts(found).map(([name, value]) => `${name} ${value}`).join(", "));
  }

  // Selects a span and moves the view to where it can be seen.
  reveal(found) {
    const {gantt} = this;
    const {timeline} = gantt.runs[found.run];
    const start = timeline.seconds(timeline.start[found.span]);
    const end = timeline.seconds(timeline.end(found.span));
    const length = Math.max(gantt.view[1] - gantt.view[0], 1.5 * (end - start));
    if (start < gantt.view[0] || end > gantt.view[1]) gantt.show((start + end - length) / 2, (start + end + length) / 2);
    const row = gantt.rows.find((each) => each.lane === found.lane && each.run === found.run);
    const {scroller} = gantt;
    if (row && (row.y < scroller.scrollTop + LANE.ruler || row.y + 30 > scroller.scrollTop + scroller.clientHeight)) {
      scroller.scrollTop = row.y - scroller.clientHeight / 2;
    }
    this.select(found);
    this.tooltip(found, gantt.x((start + end) / 2), (row ? row.y : 0) - scroller.scrollTop + 20);
  }

  into(found) {
    if (!found) return;
    const {timeline} = this.gantt.runs[found.run];
    const start = timeline.seconds(timeline.start[found.span]);
    const length = Math.max(timeline.seconds(timeline.length[found.span]), 1e-9);
    this.gantt.show(start - 2 * length, start + 3 * length);
    this.reveal(found);
  }

  hover(event) {
    const found = this.gantt.hit(event.offsetX, event.offsetY);
    if (found) this.tooltip(found, event.offsetX, event.offsetY); else this.hide();
  }

  hide() { this.tip.hidden = true; }

  tooltip(found, x, y) {
    const {tip} = this;
    const [[, title], ...facts] = this.facts(found);
    tip.replaceChildren();
    const head = document.createElement("strong");
    head.textContent = title;
    const list = document.createElement("dl");
    for (const [name, value] of facts) {
      const term = document.createElement("dt");
      const text = document.createElement("dd");
      term.textContent = name;
      text.textContent = value;
      list.append(term, text);
    }
    tip.append(head, list);
    tip.hidden = false;
    const {width, height} = this.gantt.size;
    tip.style.left = `${Math.max(4, Math.min(x + 14, width - tip.offsetWidth - 4))}px`;
    const below = y + 18 + tip.offsetHeight < Math.max(height, 60) ? y + 18 : y - tip.offsetHeight - 12;
    tip.style.top = `${below}px`;
  }

  // What is known of a span, as [name, value]; the first is its title.
  facts({run, lane, span, others}) {
    const {runs, look} = this.gantt;
    const {timeline, name} = runs[run];
    const time = (ticks) => look.seconds(timeline.seconds(ticks));
    const length = timeline.seconds(timeline.length[span]);
    const title = `${timeline.word("kind", span)} ${timeline.word("name", span)}`.replaceAll("_", " ");
    const found = [["", title], [look.rowName, String(lane.rank)]];
    if (runs.length > 1) found.push(["run", name]);
    if (look.rowName !== "stage") found.push(["stage", String(timeline.stage[span])], ["stream", lane.stream]);
    for (const [word, value] of [["layer", timeline.number("layer", span)], ["chunk", timeline.number("chunk", span)],
      ["microbatch", timeline.microbatch[span]], ["step", runs[run].steps > 1 ? timeline.step[span] : -1]]) {
      if (value >= 0) found.push([word, String(value)]);
    }
    const start = this.gantt.instant(timeline.seconds(timeline.start[span]), length);
    found.push(["start", start], ["duration", time(timeline.length[span])], ...this.communication(timeline, lane, span));
    if (others > 0) found.push(["and", `${others.toLocaleString("en")} more here: zoom in`]);
    return found;
  }
  // What is known of a call or a message: with whom, how much and how fast, how, and who was late.
  communication(timeline, lane, span) {
    const {look} = this.gantt;
    const found = [];
    const group = timeline.groupOf(lane, span);
    const peer = timeline.peer(lane, span);
    const late = timeline.waitedFor(lane, span);
    const size = timeline.number("bytes", span);
    const length = timeline.seconds(timeline.length[span]);
    const bus = timeline.what.bus ? timeline.number("bus", span) : 0;
    if (group) found.push(["group", group]);
    if (peer >= 0) found.push([timeline.word("kind", span) === "send" ? "to" : "from", `rank ${peer}`]);
    if (timeline.what.way && timeline.word("way", span)) found.push(["algorithm", timeline.word("way", span)]);
    if (size > 0) {
      found.push(["size", formatBytes(size)]);
      if (length > 0) found.push([bus ? "size / time" : "rate", `${formatBytes(size / length)}/s`]);
      if (length > 0 && bus) found.push(["bus bandwidth", `${formatBytes(size / length * bus)}/s`]);
    }
    const onPath = this.gantt.onPath(timeline, span);
    if (onPath) found.push(["critical path", `${look.seconds(onPath)} of it`]);
    if (timeline.wait[span]) {
      const whom = late >= 0 ? `, for rank ${late}` : "";
      found.push(["waited before", look.seconds(timeline.seconds(timeline.wait[span])) + whom]);
    }
    return found;
  }
}
