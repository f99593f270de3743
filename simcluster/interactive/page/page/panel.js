// The controls: one row each, created once, so that a control is not replaced while the user moves it.
const said = (value) => (typeof value === "number" ? value.toLocaleString("en", {maximumFractionDigits: 3}) : String(value));

class Panel {
  constructor(root, changed) {
    Object.assign(this, {root, changed, rows: new Map(), groups: new Map(), held: null});
  }

  // `controls` as the server describes them, `settings` the current ones.
  show(controls, settings) {
    for (const control of controls) {
      if (!this.rows.has(control.key)) this.add(control);
      this.update(this.rows.get(control.key), control, settings);
    }
    const known = new Set(controls.map((control) => control.key));
    for (const [key, row] of this.rows) row.root.hidden = !known.has(key);
  }

  group(name) {
    if (!this.groups.has(name)) {
      const field = document.createElement("fieldset");
      const legend = document.createElement("legend");
      legend.textContent = name;
      field.append(legend);
      this.root.append(field);
      this.groups.set(name, field);
    }
    return this.groups.get(name);
  }

  add(control) {
    const root = document.createElement("div");
    const id = `control-${control.key}`;
    root.className = "control";
    root.title = control.says;
    const label = document.createElement("label");
    label.textContent = control.label;
    label.htmlFor = id;
    const back = document.createElement("button");
    back.type = "button";
    back.className = "back";
    back.textContent = "↺";
    back.title = `${control.label}: reset to the file's value`;
    back.setAttribute("aria-label", back.title);
    back.addEventListener("click", () => this.changed(control.key, undefined, true));
    const row = {root, back, control};
    root.append(label);
    this[control.kind](row, id);
    this.rows.set(control.key, row);
    this.group(control.group).append(root);
  }

  choice(row, id) {
    const input = document.createElement("select");
    input.id = id;
    input.addEventListener("change", () => this.changed(row.control.key, row.control.values[input.selectedIndex], true));
    row.input = input;
    row.root.append(input, row.back);
  }

  switch(row, id) {
    const input = document.createElement("input");
    input.type = "checkbox";
    input.id = id;
    input.addEventListener("change", () => this.changed(row.control.key, input.checked, true));
    row.input = input;
    row.root.append(input, row.back);
  }

  // A slider over the offered values.
  scale(row, id, send) {
    const input = document.createElement("input");
    input.type = "range";
    input.min = 0;
    input.step = 1;
    input.id = id;
    const told = () => {
      row.output.textContent = this.told(row);
      input.setAttribute("aria-valuetext", row.output.textContent);
    };
    input.addEventListener("input", () => { this.held = row; told(); send(false); });
    input.addEventListener("change", () => { send(true); this.held = null; });
    row.input = input;
    row.output = document.createElement("output");
    row.output.htmlFor = id;
    row.say = told;
    return input;
  }

  steps(row, id) {
    const input = this.scale(row, id, (done) => this.changed(row.control.key, row.values[Number(input.value)], done));
    row.root.classList.add("on-scale");
    row.root.append(input, row.output, row.back);
  }

  fault(row, id) {
    const {label, place} = row.control;
    const send = (done) => {
      const number = row.values[Number(row.input.value)];
      const at = row.rank ? Math.max(0, Math.round(Number(row.rank.value) || 0)) : 0;
      this.changed(row.control.key, number === row.control.off ? undefined : place ? [at, number] : number, done);
    };
    const input = this.scale(row, id, send);
    row.root.classList.add("on-scale", "fault");
    if (place) {
      const rank = document.createElement("input");
      rank.type = "number";
      rank.min = 0;
      rank.value = 0;
      rank.setAttribute("aria-label", `${label}: ${place}`);
      rank.title = place;
      rank.addEventListener("change", () => { if (row.values[Number(input.value)] !== row.control.off) send(true); });
      row.rank = rank;
      if (!label.endsWith(place)) row.root.firstChild.append(`, ${place}`);
      row.root.append(rank);
    } else {
      row.root.classList.add("everywhere");
    }
    row.root.append(row.output, row.back, input);
  }

  // A typed number, or empty.
  price(row, id) {
    const input = document.createElement("input");
    input.type = "number";
    input.min = row.control.least;
    input.max = row.control.most;
    input.step = "any";
    input.placeholder = "none";
    input.id = id;
    input.addEventListener("change", () => this.changed(row.control.key, Number(input.value) > 0 ? Number(input.value) : undefined, true));
    row.input = input;
    row.root.append(input, row.back);
  }

  told(row) {
    const value = row.values[Number(row.input.value)];
    if (row.control.kind !== "fault") return said(value);
    if (value === row.control.off) return "none";
    return row.control.off === 1 ? `× ${said(value)}` : said(value);
  }

  update(row, control, settings) {
    const set = settings[control.key];
    row.control = control;
    row.root.classList.toggle("changed", set !== undefined);
    if (this.held === row) return;
    if (control.kind === "switch") row.input.checked = Boolean(set === undefined ? control.value : set);
    if (control.kind === "price" && document.activeElement !== row.input) row.input.value = set === undefined ? control.value ?? "" : set;
    if (control.kind === "choice") this.options(row, control, set === undefined ? control.value : set);
    if (control.kind === "steps" || control.kind === "fault") {
      const own = set === undefined ? (control.kind === "fault" ? control.off : control.value) : set;
      const value = Array.isArray(own) ? own[1] : own;
      row.values = [...new Set([...control.values, ...(typeof value === "number" ? [value] : [])])].sort((one, other) => one - other);
      row.input.max = row.values.length - 1;
      row.input.value = row.values.indexOf(value);
      if (row.rank && set !== undefined) row.rank.value = set[0];
      row.say();
    }
  }

  // Hints below a control: the effect of other values, one after the other as they are simulated.
  hint(hints) {
    for (const {key, of, words} of hints) {
      const row = this.rows.get(key);
      if (!row) continue;
      if (!row.hint) {
        row.hint = document.createElement("small");
        row.hint.id = `hint-${key}`;
        row.input.setAttribute("aria-describedby", row.hint.id);
        row.root.append(row.hint);
      }
      row.hint.textContent += `${row.hint.textContent ? ", " : of && `${of} `}${words.replaceAll(" ", "\u00a0")}`;
    }
  }

  // Remove the previous hints but keep their space, so that no control moves under the user's pointer.
  unhint() {
    const hints = [...this.rows.values()].map((row) => row.hint).filter((hint) => hint && hint.textContent);
    const heights = hints.map((hint) => hint.offsetHeight);
    hints.forEach((hint, at) => { hint.style.minHeight = `${heights[at]}px`; hint.textContent = ""; });
  }

  options(row, control, value) {
    const {input} = row;
    const texts = control.values.map(said);
    if (texts.join() !== [...input.options].map((each) => each.textContent).join()) {
      input.replaceChildren(...texts.map((text) => new Option(text)));
    }
    input.selectedIndex = control.values.indexOf(value);
  }
}
