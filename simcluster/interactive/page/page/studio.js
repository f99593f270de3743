// The studio: a state, what was before it, one that may be pinned beside it; and the parts that the server answers with.
const part = (name) => document.querySelector(`[data-part="${name}"]`);
const place = (name) => document.querySelector(`[data-place="${name}"]`);
const first = JSON.parse($("#first").textContent);

class Studio {
  constructor() {
    Object.assign(this, {live: null, pinned: null, before: [], after: [], from: null, shown: 0, charts: new Map(), keyed: [], asked: 0, times: []});
    this.panel = new Panel(part("panel"), (key, value, done) => this.set(key, value, done));
    this.client = new Client((ask, of) => this.heard(ask, of), (state) => this.connected(state));
    this.scenarios(first.files);
    part("folder").textContent = first.folder;
    document.querySelectorAll("[data-act]").forEach((button) => button.addEventListener("click", () => this[button.dataset.act.replace("-", "_")]()));
    part("base").addEventListener("change", (event) => { if (event.target.value) this.open(event.target.value); });
    part("saving").addEventListener("submit", (event) => { event.preventDefault(); this.write(); });
    document.querySelector("[data-do=to-answer]").addEventListener("click", (event) => { event.preventDefault(); document.querySelector("main").focus(); });
    addEventListener("keydown", (event) => this.key(event));
    addEventListener("hashchange", () => this.arrive());
    keysEverywhere(this.keyed);
    theming((whole) => this.redraw(whole));
    const narrow = matchMedia("(max-width: 820px)");
    const fold = () => { part("all-controls").open = !narrow.matches; }; // where they stand beside the page nothing opens them
    narrow.addEventListener("change", fold);
    fold();
    if (!this.arrive()) this.go(first.state, null);
  }

  // --- states -------------------------------------------------------------------------------------------------------

  arrive() {
    const told = stateOf(location.hash);
    if (!told || (this.live && linkOf(this.live, this.pinned) === linkOf(told.live, told.pinned))) return Boolean(told);
    this.remember();
    this.arriving = true; // Back and Forward go through the states: no new one is written
    this.go(told.live, told.pinned);
    this.arriving = false;
    return true;
  }

  open(base) { this.remember(); this.go({base, settings: {}}, this.pinned); }

  // Shows a state; `changed` is the control that made it another one.
  go(live, pinned, changed = "", done = true) {
    const began = Boolean(this.live);
    Object.assign(this, {live, pinned, began: performance.now()});
    if (live) this.asked = this.client.send({live, pinned, changed}); // while it is played, the page follows
    part("welcome").hidden = Boolean(live);
    document.querySelectorAll(".when-open").forEach((each) => { each.hidden = !live; });
    if (!live) { part("heading").textContent = "simcluster studio"; return; }
    part("base").value = live.base;
    if (part("base").selectedIndex < 0) part("base").value = "";
    const link = `#${linkOf(live, pinned)}`;
    if (done && link !== this.written) {
      history[began && !this.arriving ? "pushState" : "replaceState"](null, "", link);
      this.written = link;
    }
    this.buttons();
  }

  set(key, value, done) {
    if (this.from === null) this.from = this.snapshot();
    const settings = {...this.live.settings};
    if (value === undefined) delete settings[key]; else settings[key] = value;
    if (done) {
      if (this.from !== this.snapshot([{...this.live, settings}, this.pinned])) { this.before.push(this.from); this.after = []; }
      this.from = null;
    }
    this.go({...this.live, settings}, this.pinned, key, done);
  }

  snapshot(of = [this.live, this.pinned]) { return JSON.stringify(of); }

  remember() {
    if (!this.live) return;
    this.before.push(this.snapshot());
    if (this.before.length > 500) this.before.shift();
    this.after = [];
  }

  step(from, to) {
    if (!from.length) return;
    to.push(this.snapshot());
    this.go(...JSON.parse(from.pop()));
  }

  undo() { this.step(this.before, this.after); }

  redo() { this.step(this.after, this.before); }

  reset() { this.remember(); this.go({base: this.live.base, settings: {}}, this.pinned); }

  pin() { this.remember(); this.go(this.live, this.live); }

  unpin() { this.remember(); this.go(this.live, null); }

  swap() { this.remember(); this.go(this.pinned, this.live); }

  choose(settings, pinned, changed = "") { this.remember(); this.go({...this.live, settings}, pinned, changed); }

  buttons() {
    const act = (name) => document.querySelector(`[data-act="${name}"]`);
    document.body.classList.toggle("alone", !this.pinned);
    act("undo").disabled = !this.before.length;
    act("redo").disabled = !this.after.length;
    act("reset").disabled = !Object.keys(this.live.settings).length;
    act("unpin").hidden = act("swap").hidden = part("beside").hidden = part("difference").hidden = !this.pinned;
  }

  key(event) {
    const typing = event.target instanceof Element && event.target.closest("input[type=text], input[type=search], input[type=number], select");
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z" && !typing) {
      event.preventDefault();
      if (event.shiftKey) this.redo(); else this.undo();
    } else if (event.key.toLowerCase() === "p" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey && this.live) {
      this.pin();
    }
  }

  // --- messages from the server -----------------------------------------------------------------------------------------

  connected(state) {
    if (state === "lost") this.progress("The server does not answer; is simcluster studio still running? Trying again.");
    else this.progress("");
  }

  progress(text, leave = false) {
    part("progress-text").textContent = text;
    document.querySelector("[data-act=leave]").hidden = !leave;
  }

  heard(ask, of) {
    if (of.saved) { this.wrote(of); return; }
    if (ask === this.saving) { part("saved").textContent = `Not saved: ${of.problem.join(" ")}`; return; } // the state is unchanged
    if (of.seconds !== undefined) {
      const what = {figures: "Simulating the step", answer: "Computing the time breakdown", advice: "Simulating remedies", run: "Simulating the long run", links: "Computing link loads"}[of.doing] || (of.doing.startsWith("hint ") ? "Simulating other values" : "Drawing");
      if (ask === this.asked) this.progress(`${what}: ${of.seconds.toFixed(1)} s.`, true);
      return;
    }
    if (ask < this.shown) return;
    if (of.sections) this.shows(ask, of).catch((problem) => this.broke(ask, problem.message));
    else if (of.problem) this.refused(ask, of);
    else if (of.bug) this.broke(ask, of.bug);
    else if (of.stopped && ask === this.asked) { this.progress("Stopped. Change something, or undo."); part("shown").classList.add("stale"); }
    else if (of.done && ask === this.asked) { this.progress(""); document.documentElement.dataset.complete = String(ask); }
  }

  broke(ask, text) { this.refused(ask, {problem: [`This is a bug in simcluster, not in your input: ${text}`], remedies: []}); }

  async shows(ask, of) {
    this.shown = ask;
    part("problem").hidden = true;
    part("shown").classList.remove("stale");
    part("shown").hidden = document.querySelector("aside").hidden = false;
    if (ask === this.asked) this.progress("");
    if (of.part === "timeline" || of.part === "detail") {
      await this.timeline(ask, of);
      if (of.part === "detail" && ask === this.shown) document.documentElement.dataset.quick = String(ask); // parts that follow every change
      return;
    }
    for (const [name, html] of Object.entries(of.sections)) this.fill(name, html);
    if (of.part === "figures") this.answered(ask, of);
    if (of.part === "answer") this.took(ask, "answer");
    if (of.part === "run") part("weeks").hidden = !of.sections.run;
    if (of.hints) this.panel.hint(of.hints);
    if (of.ideas && of.ideas.length) place("advice").append(ways("Try:", of.ideas, (settings) => this.choose(settings, this.pinned)));
    if (of.part === "memory") await this.memory(ask, of);
    if (of.part === "links") await this.links(ask, of);
  }

  fill(name, html) {
    place(name).innerHTML = html;
    this.pending(name, false);
  }

  // The content is still that of the previous state; the new one replaces it when it arrives.
  pending(name, waits) {
    place(name).classList.toggle("pending", waits && place(name).childElementCount > 0);
    place(name).setAttribute("aria-busy", String(waits));
  }

  took(ask, what) {
    const last = this.times[this.times.length - 1];
    if (last && last.ask === ask && last[what] === undefined) last[what] = performance.now() - this.began;
  }

  answered(ask, of) {
    for (const name of ["compared", "where", "differences", "timeline", "memory"]) this.pending(name, true);
    part("heading").textContent = of.name;
    document.title = `${of.name}: simcluster studio`;
    this.controls = of.controls;
    this.panel.show(of.controls, this.live.settings);
    this.panel.unhint();
    part("changes").textContent = of.changes.length ? `Changed: ${of.changes.join("; ")}.` : "";
    this.suggest(of);
    if (ask !== this.asked) return;
    place("advice").replaceChildren();
    part("announced").textContent = document.querySelector("[data-place=figures]").innerText.split("\n").slice(0, 2).join(" ");
    this.times.push({ask, figures: performance.now() - this.began});
  }

  // Suggestions for new users, until the first change.
  suggest(of) {
    const row = part("try");
    row.replaceChildren();
    if (Object.keys(this.live.settings).length || this.pinned) return;
    const change = (settings) => this.choose({...this.live.settings, ...settings}, this.live, Object.keys(settings)[0]);
    row.append(ways("Change a control, or pin this result as A and try:", firstIdeas(of.controls), change));
  }

  refused(ask, of) {
    if (ask !== this.asked) return;
    this.shown = ask;
    this.progress("");
    part("problem").hidden = false;
    part("shown").classList.add("stale");
    part("shown").hidden = document.querySelector("aside").hidden = !this.controls; // an invalid link has no controls
    part("welcome").hidden = Boolean(this.controls);
    part("problem-lines").replaceChildren(...of.problem.map((line) => {
      const item = document.createElement("li");
      item.textContent = line;
      return item;
    }));
    part("remedies").replaceChildren(...(of.remedies.length ? [ways("Valid:", of.remedies, (settings) => this.choose(settings, this.pinned))] : []));
    this.panel.unhint();
    if (this.controls) this.panel.show(this.controls, this.live.settings);
    document.documentElement.dataset.quick = document.documentElement.dataset.complete = String(ask);
  }

  // --- pictures -----------------------------------------------------------------------------------------------------

  async timeline(ask, {part: which, sections, data, columns}) {
    const bytes = typeof columns === "string" ? await inflated(columns) : columns;
    if (ask < this.shown) return;
    const runs = data.runs.filter((run) => run.timeline).map((run) => ({...run, timeline: new Timeline(run.timeline, bytes)}))
      .map((run) => ({...run, paint: run.timeline.what.paint}));
    const old = this.gantt;
    const kept = old && old.gantt.runs.length === runs.length ? {view: old.controls.address(), top: old.gantt.scroller.scrollTop} : null;
    const focused = old && document.activeElement === old.gantt.canvas;
    this.fill("timeline", sections.timeline);
    const drawn = ganttIn($("#gantt"), runs, data.paints, SECONDS);
    const value = (name) => drawn.controls.part(name).value;
    drawn.controls.usual = {rows: value("rows"), order: value("order")};
    drawn.controls.write = () => {}; // the address is the state's
    if (kept && kept.view) drawn.controls.visit(kept.view);
    if (kept) drawn.gantt.scroller.scrollTop = kept.top;
    if (focused) drawn.gantt.canvas.focus({preventScroll: true});
    this.gantt = drawn;
    this.keyed.splice(0, this.keyed.length, drawn.controls);
    const draw = () => legend($("#gantt [data-part=legend]"), runs, drawn.gantt.look);
    draw();
    this.charts.set("timeline", drawn.gantt).set("legend", {draw});
    if (which === "detail") this.follows(); // before it the memory is that of another state
    this.took(ask, "picture");
  }

  // Memory on the time axis of the timeline.
  follows() {
    const chart = this.charts.get("memory");
    if (!chart || !this.gantt) return;
    const {controls, gantt} = this.gantt;
    controls.onview = (view) => this.charts.get("memory").show(view);
    chart.show(gantt.view);
  }

  async memory(ask, {data, columns}) {
    const [run] = data.runs;
    this.charts.delete("memory");
    if (!run.memory.length) return;
    const bytes = await inflated(columns);
    this.charts.set("memory", new MemoryChart(document.getElementById("memory-0"), run.memory, run.capacity, bytes, {colours: colourist([], data.paints)}));
    this.follows();
  }

  async links(ask, {data, columns}) {
    const [run] = data.runs;
    this.charts.delete("links");
    if (!run.links) return;
    const bytes = await inflated(columns);
    const draw = () => drawStrips(document.getElementById("links-0"), run.links.matrix, run.links.bins, bytes, {colours: colourist([], data.paints)});
    this.charts.set("links", {draw});
    draw();
  }

  redraw(whole) {
    this.charts.forEach((chart) => { if (whole && chart.resize) chart.resize(); else chart.draw(); });
  }

  // --- files and links ----------------------------------------------------------------------------------------------

  scenarios(files) {
    const group = (label, names) => {
      const found = document.createElement("optgroup");
      found.label = label;
      found.append(...names.map((name) => new Option(name, name)));
      return found;
    };
    const select = part("base");
    select.replaceChildren(new Option("choose one", ""), group("in this folder", files), group("built-in", first.shipped));
    if (this.live) select.value = this.live.base;
    part("choices").replaceChildren(...[...files, ...first.shipped].map((name) => {
      const item = document.createElement("li");
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      button.addEventListener("click", () => this.open(name));
      item.append(button);
      return item;
    }));
  }

  leave() { this.client.send({leave: true}); }

  save() { part("saving").hidden = false; part("saved").textContent = ""; part("file").focus(); }

  not_saved() { part("saving").hidden = true; }

  write() {
    this.saving = this.client.send({save: part("file").value.trim(), live: this.live});
  }

  wrote({saved, files}) {
    part("saved").textContent = `Saved as ${saved}.`;
    this.scenarios(files);
    document.documentElement.dataset.saved = saved;
  }

  query() {
    const pinned = this.pinned ? `&pinned=${encodeURIComponent(linkOf(this.pinned, null))}` : "";
    return `state=${encodeURIComponent(linkOf(this.live, null))}${pinned}`;
  }

  download() { location.assign(`/scenario?${this.query()}`); }

  report() { window.open(`/report?${this.query()}`, "_blank"); }

  async copy() {
    const button = document.querySelector("[data-act=copy]");
    try { await navigator.clipboard.writeText(location.href); button.textContent = "Copied"; } catch { button.textContent = "In the address"; }
    setTimeout(() => { button.textContent = "Copy link"; }, 2000);
  }
}

window.studio = new Studio(); // for whoever looks into the page
