// A page of variants that were played beforehand: its controls choose one, and every part of the page follows.
class Moving {
  constructor(told, bytes) {
    Object.assign(this, {told, bytes, charts: [], controls: [], timeline: null, at: told.base, pinned: told.base, waits: false, drag: ""});
    this.longest = Math.max(...told.states.filter((state) => !state.refused).map((state) => state.seconds));
    let from = 0;
    this.pieces = told.pieces.map((size) => bytes.subarray(from, from += size));
    this.form = $("#controls");
    this.inputs = told.keys.map((key, number) => [...this.form.querySelectorAll(`[data-key="${number}"] input, [data-key="${number}"] select`)]);
    this.form.hidden = false;
    this.form.addEventListener("input", (event) => {
      if (event.target.type === "range") this.drag = this.drag || "begun";
      this.later();
    });
    this.form.addEventListener("change", () => requestAnimationFrame(() => { this.drag = ""; }));
    this.form.addEventListener("submit", (event) => event.preventDefault());
    document.querySelectorAll(".variants a[data-at]").forEach((link) => link.addEventListener("click", (event) => {
      event.preventDefault();
      this.choose(Number(link.dataset.at));
      this.show();
    }));
  }

  text(piece) { return new TextDecoder().decode(this.pieces[piece]); }

  // The columns of a state, as a page of it alone has them.
  columns(state) {
    const parts = state.columns.map((piece) => this.pieces[piece]);
    const found = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
    let to = 0;
    parts.forEach((part) => { found.set(part, to); to += part.length; });
    return found;
  }

  // --- which one ----------------------------------------------------------------------------------------------------

  // The value of every key in a combination, the last key fastest; and the other way round.
  digits(number) {
    const found = [];
    [...this.told.keys].reverse().forEach(({labels}) => {
      found.unshift(number % labels.length);
      number = Math.floor(number / labels.length);
    });
    return found;
  }

  number(digits) { return digits.reduce((sum, digit, key) => sum * this.told.keys[key].labels.length + digit, 0); }

  chosen() {
    return this.number(this.inputs.map((inputs) => Number((inputs.find((input) => input.checked) || inputs[0]).value)));
  }

  choose(number) {
    this.digits(number).forEach((digit, key) => this.inputs[key].forEach((input) => {
      if (input.type === "radio") input.checked = Number(input.value) === digit; else input.value = String(digit);
    }));
  }

  // The combination with a state that has most values of this one, then those that are nearest.
  nearest(number) {
    const wanted = this.digits(number);
    const far = (other) => this.digits(other).reduce((sum, digit, key) =>
      sum + (digit === wanted[key] ? 0 : 1000 + Math.abs(digit - wanted[key])), 0);
    return this.told.states.map((state, at) => at).filter((at) => !this.told.states[at].refused)
      .sort((one, other) => far(one) - far(other))[0];
  }

  // --- what is shown ------------------------------------------------------------------------------------------------

  // Of many changes between two frames the last one counts.
  later() {
    if (this.waits) return;
    this.waits = true;
    requestAnimationFrame(() => { this.waits = false; this.show(); });
  }

  show() {
    const at = this.chosen();
    const state = this.told.states[at];
    this.at = at;
    this.inputs.forEach(([input], key) => this.say(input, this.told.keys[key].labels));
    document.querySelectorAll(".variants tbody tr").forEach((row, number) => {
      if (number === at) row.setAttribute("aria-current", "true"); else row.removeAttribute("aria-current");
      const table = row.closest(".variants");
      const hidden = row.offsetTop < table.scrollTop + row.offsetHeight || row.offsetTop + row.offsetHeight > table.scrollTop + table.clientHeight;
      if (number === at && hidden) table.scrollTop = row.offsetTop - table.clientHeight / 2;
    });
    this.refuse(at, state.refused);
    this.compare(at, state);
    if (!state.refused) this.fill(state, at);
    this.write();
  }

  say(input, labels) {
    const output = input.closest("[data-key]").querySelector("output");
    if (!output) return;
    output.textContent = labels[Number(input.value)];
    input.setAttribute("aria-valuetext", labels[Number(input.value)]);
  }

  refuse(at, why) {
    const note = $("#refused");
    note.hidden = !why;
    $("#now").hidden = Boolean(why);
    $("main").classList.toggle("nothing-to-show", Boolean(why));
    if (!why) return;
    const nearest = this.nearest(at);
    const link = document.createElement("button");
    link.type = "button";
    link.textContent = this.told.states[nearest].name;
    link.addEventListener("click", () => { this.choose(nearest); this.show(); this.inputs[0][0].focus(); });
    note.replaceChildren(`${this.told.states[at].name} is invalid: ${why}. Nearest valid variant: `, link);
  }

  // What is pinned, and how far the others are from it.
  compare(at, state) {
    const {states} = this.told;
    const part = (other) => {
      const change = other.seconds / states[this.pinned].seconds - 1;
      return `${change < 0 ? "−" : "+"}${Math.abs(100 * change).toFixed(1)} %`;
    };
    $("#pinned").textContent = states[this.pinned].name;
    $("#pin").disabled = at === this.pinned || Boolean(state.refused) || state.against[at] === undefined;
    document.querySelectorAll(".variants tbody tr").forEach((row, number) => {
      if (!states[number].refused) row.cells[3].textContent = number === this.pinned ? "A" : part(states[number]);
    });
    if (state.refused) return;
    const name = document.createElement("span");
    name.className = "unseen"; // the controls show it to those who see
    name.textContent = `${state.name}: `;
    const differs = at === this.pinned ? "" : ` (${part(state)} against A)`;
    $("#now").replaceChildren(name, `${state.step} per step${differs}; ${state.told}`);
  }

  pin(at) {
    if (this.told.states[at]?.against?.[at] === undefined) return; // refused, or one of too many
    this.pinned = at;
    this.show();
  }

  fill(state, at) {
    const view = this.timeline ? this.timeline.controls.address() : "";
    for (const part of document.querySelectorAll("[data-state]")) {
      const place = part.dataset.state;
      part.innerHTML = this.text(place === "differences" ? state.against[this.pinned] : state.texts[place]);
    }
    document.querySelectorAll("#where .bar svg").forEach((bar) => { bar.style.width = `${100 * state.seconds / this.longest}%`; });
    const data = JSON.parse(this.text(state.data));
    data.runs[0].name = state.name;
    this.charts.length = this.controls.length = 0;
    this.timeline = present(data, this.columns(state), this.charts, this.controls, this.before(at));
    if (this.timeline) {
      this.timeline.controls.settle();
      if (view) this.timeline.controls.visit(this.known(view));
    }
    copying();
    redrawn(this.charts)();
  }

  // The timeline of what is pinned, to stand beside another one.
  before(at) {
    const state = this.told.states[this.pinned];
    if (!$("#beside").checked || at === this.pinned) return [];
    const {runs: [run], paints} = JSON.parse(this.text(state.data));
    const rows = $("#gantt [data-part=rows]");
    if (!run.timeline || !rows) return [];
    rows.value = "stage";
    if (!this.kept || this.kept.name !== state.name) {
      this.kept = {...run, name: state.name, paints, timeline: new Timeline(run.timeline, this.columns(state))};
    }
    return [this.kept];
  }

  // What a view says that this timeline has: not ranks of another layout, nor an order of runs where there is one.
  known(view) {
    const told = new URLSearchParams(view);
    const {runs} = this.timeline.gantt;
    const ranks = (told.get("ranks") || "").match(/\d+/g) || [];
    if (!ranks.some((rank) => runs.some(({timeline}) => timeline.ranks.includes(Number(rank))))) told.delete("ranks");
    if (runs.length < 2) told.delete("runs");
    return told.toString();
  }

  // --- the address --------------------------------------------------------------------------------------------------

  address() {
    const digits = this.digits(this.at);
    const parts = this.told.keys.map(({path, labels}, key) => `${encodeURIComponent(path)}=${encodeURIComponent(labels[digits[key]])}`);
    const more = {against: this.pinned === this.told.base ? "" : this.pinned, beside: $("#beside").checked ? 1 : ""};
    return [...parts, ...Object.entries(more).filter(([, value]) => value !== "").map((pair) => pair.join("="))].join("&");
  }

  // A state of its own in the browser's history, so that Back goes to the one before: one for each choice and each drag,
  // none for what only the view of the timeline changes.
  write() {
    const view = this.timeline && !this.told.states[this.at].refused ? this.timeline.controls.address() : "";
    const own = this.address();
    const another = this.wrote !== undefined && own !== this.wrote && !this.visiting && this.drag !== "kept";
    if (another && this.drag) this.drag = "kept";
    this.wrote = own;
    try {
      history[another ? "pushState" : "replaceState"](null, "", `#${[own, view].filter(Boolean).join("&")}`);
    } catch { /* an address that may not be changed */ }
  }

  // Shows what an address says; false where it names none of the keys.
  visit(text) {
    this.visiting = true;
    try { return this.arrive(text); } finally { this.visiting = false; }
  }

  arrive(text) {
    const told = new URLSearchParams(text.replace(/^#/, ""));
    const {keys} = this.told;
    if (!keys.some(({path}) => told.has(path))) return false;
    const digits = this.digits(this.at).map((digit, key) => {
      const found = keys[key].labels.indexOf(told.get(keys[key].path));
      return found < 0 ? digit : found;
    });
    this.choose(this.number(digits));
    $("#beside").checked = told.has("beside");
    this.pinned = this.told.base;
    this.show();
    if (told.has("against")) this.pin(Number(told.get("against")));
    if (this.timeline) this.timeline.controls.visit(this.known(told.toString()));
    return true;
  }

  async copyLink(button) {
    this.write();
    try {
      await navigator.clipboard.writeText(location.href);
      button.textContent = "Copied";
    } catch { button.textContent = "In the address"; } // no clipboard for this page
    setTimeout(() => { button.textContent = "Copy link"; }, 2000);
  }
}

async function move() {
  const moving = new Moving(JSON.parse($("#states").textContent), await inflated($("#columns").textContent));
  $("#pin").addEventListener("click", () => moving.pin(moving.at));
  $("#link").addEventListener("click", () => moving.copyLink($("#link")));
  ofPage.address = () => moving.address();
  const begin = location.hash;
  if (!moving.visit(begin)) { moving.show(); history.replaceState(null, "", begin || location.pathname + location.search); }
  theming((whole) => redrawn(moving.charts)(whole));
  keysEverywhere(moving.controls);
  addEventListener("hashchange", () => moving.visit(location.hash));
  root.dataset.complete = performance.now().toFixed(1);
  window.simcluster = {moving, get timeline() { return moving.timeline; }, get charts() { return moving.charts; }};
}

move().catch(troubled);
