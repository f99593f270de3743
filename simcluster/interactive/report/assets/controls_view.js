// Which rows a Gantt has and what is drawn over them; the view as a link; fingers, and keys wherever the reader is.
const PARTS_OF_LINK = ["t", "ranks", "rows", "runs", "show", "find"];
const ofPage = {address: () => ""}; // what stands in the address before the view, of a page of several states

Object.assign(Controls.prototype, {
  // --- what is shown ------------------------------------------------------------------------------------------------

  chooses() {
    const {gantt} = this;
    const ranks = this.part("ranks");
    if (!ranks) return;
    ranks.addEventListener("change", () => this.chooseRanks(ranks.value));
    const order = this.part("order");
    if (gantt.runs.length > 1) {
      order.add(new Option("grouped by rank", "beside"));
      order.add(new Option("grouped by run", "below"));
      gantt.runs.forEach((run, number) => order.add(new Option(`only ${run.name}`, String(number))));
      order.parentElement.hidden = false;
      this.root.classList.add("several");
      order.addEventListener("change", () => { gantt.order = order.value; this.rearrange(); });
    }
    for (const [name, column] of [["path", "path"], ["sends", "mate"]]) {
      const box = this.part(name);
      box.parentElement.hidden = !gantt.runs.some(({timeline}) => timeline[column]?.span?.length || timeline[column]?.some?.((mate) => mate >= 0));
      box.addEventListener("change", () => { gantt.shows[name] = box.checked; gantt.later(); this.changed(); });
    }
    const link = this.part("link");
    link.hidden = window.parent !== window; // a frame has no address to send to anyone
    link.addEventListener("click", () => this.copyLink(link));
  },

  rearrange() {
    const {gantt} = this;
    gantt.layout();
    gantt.resize();
    gantt.scroller.scrollTop = Math.min(gantt.scroller.scrollTop, gantt.height);
    this.changed();
  },

  // "0-7,16": those ranks alone; "" for all.  A text that names none of them is marked and changes nothing.
  chooseRanks(text) {
    const box = this.part("ranks");
    const parts = text.split(",").map((part) => part.trim()).filter(Boolean).map((part) => part.match(/^(\d+)(?:\s*-\s*(\d+))?$/));
    const wanted = (rank) => parts.some((part) => rank >= Number(part[1]) && rank <= Number(part[2] ?? part[1]));
    const known = parts.every(Boolean) && this.gantt.runs.some(({timeline}) => timeline.ranks.some(wanted));
    box.setCustomValidity(parts.length && !known ? "Ranks that are on this page, as in 0-7,16" : "");
    box.value = text;
    if (parts.length && !known) { box.reportValidity(); return; }
    this.gantt.only = parts.length ? wanted : null;
    this.rearrange();
  },

  // --- a link to a view ---------------------------------------------------------------------------------------------

  // The view as the part of an address behind #; "" where all of it is shown.
  address() {
    const {gantt} = this;
    const [from, to] = gantt.view;
    const found = {};
    const whole = to - from >= gantt.duration * (1 - 1e-9);
    if (!whole) {
      const start = parseFloat(formatInstant(from, Math.max((to - from) / 1000, gantt.duration * 2 ** -32), 1));
      found.t = `${start},${formatSeconds(to - from).replace("µ", "u").replace(" ", "")}`;
    }
    const value = (name) => (this.part(name) ? this.part(name).value : "");
    if (gantt.only) found.ranks = value("ranks").replaceAll(" ", "");
    if (value("rows") !== this.usual.rows) found.rows = value("rows");
    if (value("order") !== this.usual.order) found.runs = value("order");
    const shown = Object.keys(gantt.shows).filter((name) => gantt.shows[name]);
    if (shown.length) found.show = shown.join(",");
    if (value("search").trim()) found.find = encodeURIComponent(value("search").trim());
    return Object.entries(found).map(([name, text]) => `${name}=${text}`).join("&");
  },

  // Shows what an address says; false where it says nothing of a view.
  visit(text) {
    const {gantt} = this;
    const told = new URLSearchParams(text.replace(/^#/, ""));
    if (!PARTS_OF_LINK.some((name) => told.has(name))) return false;
    const choose = (name, value) => {
      const part = this.part(name);
      if (value !== null && [...part.options].some((each) => each.value === value)) part.value = value;
    };
    choose("rows", told.get("rows"));
    choose("order", told.get("runs"));
    gantt.mode = this.part("rows").value;
    gantt.order = this.part("order").value || gantt.order;
    const shown = (told.get("show") || "").split(",");
    for (const name of Object.keys(gantt.shows)) this.part(name).checked = gantt.shows[name] = shown.includes(name);
    this.chooseRanks(told.get("ranks") || "");
    this.part("search").value = told.get("find") || "";
    this.search(this.part("search").value);
    const [start, length] = (told.get("t") || "").split(",").map(secondsOf);
    if (start >= 0 && length > 0) gantt.show(start, start + length); else gantt.show(0, gantt.duration);
    return true;
  },

  // Writes the view into the address, a little after it has come to rest.
  changed() {
    if (!this.usual) return; // the page is not up yet
    clearTimeout(this.writing);
    this.writing = setTimeout(() => this.write(), 400);
  },

  write() {
    clearTimeout(this.writing);
    const text = [ofPage.address(), this.address()].filter(Boolean).join("&");
    const now = location.hash.slice(1);
    const mine = PARTS_OF_LINK.some((name) => new URLSearchParams(now).has(name));
    if (text ? text === now : !mine) return;
    try {
      history.replaceState(null, "", text ? `#${text}` : `${location.pathname}${location.search}`);
    } catch { /* an address that may not be changed: the button says so */ }
  },

  async copyLink(button) {
    this.write();
    try {
      await navigator.clipboard.writeText(location.href);
      button.textContent = "Copied";
    } catch { // no clipboard for this page
      button.textContent = "In the address";
    }
    setTimeout(() => { button.textContent = "Link"; }, 2000);
  },

  // From now on a view that is not as it is now is written into the address.
  settle() {
    const value = (name) => (this.part(name) ? this.part(name).value : "");
    this.usual = {rows: value("rows"), order: value("order")};
  },

  // Follows the address from now on.
  follow() {
    this.settle();
    const arrive = () => { if (this.visit(location.hash)) this.root.scrollIntoView({block: "start"}); };
    arrive();
    addEventListener("hashchange", arrive);
  },

  // --- fingers ------------------------------------------------------------------------------------------------------

  // Two fingers: what is under each stays under it.
  touching() {
    const {gantt} = this;
    const {canvas} = gantt;
    const fingers = new Map();
    let grip = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "touch") return;
      fingers.set(event.pointerId, event.offsetX);
      if (fingers.size === 2) grip = [...fingers.values()].map((x) => gantt.time(x));
      this.pinched = fingers.size > 1;
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!fingers.has(event.pointerId)) return;
      fingers.set(event.pointerId, event.offsetX);
      if (!grip || fingers.size !== 2) return;
      const [one, other] = fingers.values();
      if (Math.abs(other - one) < 8) return;
      const perPixel = Math.abs((grip[1] - grip[0]) / (other - one));
      const from = (grip[0] + grip[1]) / 2 - ((one + other) / 2 - gantt.gutter) * perPixel;
      gantt.show(from, from + gantt.plot * perPixel);
    });
    const gone = (event) => {
      fingers.delete(event.pointerId);
      grip = null;
      if (!fingers.size) this.pinched = false;
    };
    canvas.addEventListener("pointerup", gone);
    canvas.addEventListener("pointercancel", gone);
  },
});

// "7.278302", "180us"
function secondsOf(text) {
  const found = text.match(/^(\d+(?:\.\d+)?(?:e-?\d+)?)(s|ms|us|µs|ns|ps)?$/);
  return found ? Number(found[1]) * {...UNITS, ps: 1e-12}[found[2] || "s"] : NaN;
}

// Keys work wherever the reader is on the page, on the Gantt under the mouse or else the one that is most in sight; but
// not while something has the focus that has keys of its own.
function keysEverywhere(all) {
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || (event.target instanceof Element && event.target.closest("input, select, pre, .scroll-x, canvas"))) return;
    const seen = all.map((controls) => {
      const {top, bottom} = controls.gantt.scroller.getBoundingClientRect();
      return [controls.pointer === null ? Math.min(bottom, innerHeight) - Math.max(top, 0) : Infinity, controls];
    }).filter(([high]) => high > 60).sort((one, other) => other[0] - one[0]);
    if (seen.length && !(event.key === "Enter" && event.target.closest("button, a, summary"))) seen[0][1].key(event, true);
  });
}
