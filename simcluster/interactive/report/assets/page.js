// Puts the page together: reads its data, makes the charts, follows the theme.
const root = document.documentElement;
const $ = (selector) => document.querySelector(selector);

function dark() {
  if (root.dataset.printing) return false;
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function rgb(code) {
  const found = [1, 3, 5].map((at) => parseInt(code.slice(at, at + 2), 16));
  found.name = code;
  return found;
}

function mixed(one, other, part) {
  const found = [0, 1, 2].map((at) => Math.round(one[at] + (other[at] - one[at]) * part));
  found.name = `rgb(${found.join(",")})`;
  return found;
}

const MUTED = 0.82; // how far what a search does not find goes towards the ground

// Colours of the theme, of all spans of some runs; kept until the theme changes.
function colourist(runs, paints) {
  const kept = {};
  return () => {
    const theme = dark() ? "dark" : "light";
    if (kept[theme]) return kept[theme];
    const style = getComputedStyle(root);
    const own = (name) => style.getPropertyValue(name).trim();
    const ground = rgb(own("--ground"));
    const waiting = rgb(own("--k-bubble"));
    const spans = runs.map((run) => {
      const palette = run.paints || paints; // one that comes from elsewhere has its own
      const colours = run.paint.map((place) => rgb(palette[theme][place]));
      const pale = colours.map((colour) => mixed(colour, ground, MUTED));
      return {ground, rgb: colours, pale, text: colours.map((colour) => colour.name), paleText: pale.map((colour) => colour.name),
        on: run.paint.map((place) => palette[`${theme}_text`][place])};
    });
    kept[theme] = {
      ground: own("--ground"), text: own("--text"), quiet: own("--quiet"), rule: own("--rule"), spans, waiting,
      waitingPale: mixed(waiting, ground, MUTED), memory: paints.memory[theme],
      empty: rgb(own("--ground")), full: rgb(own("--accent")),
    };
    return kept[theme];
  };
}

// The instants of a ruler: in the unit of the last one, with the digits of a step.
function timeTicks(step, end) {
  return (seconds) => formatInstant(seconds, step, end);
}

// Room for the names of rows; the same for the timeline and for memory below it.
let gutter = 128;

function gutterOf(width, gantt) {
  if (width < 620) return 64;
  const {context} = gantt;
  context.font = FONT;
  const widths = gantt.rows.filter((row) => row.first).map((row) => gantt.rowNames(row, false))
    .map((names) => context.measureText(names.join("  ")).width);
  return Math.min(220, Math.max(110, Math.ceil(Math.max(...widths)) + 12));
}

const SECONDS = {
  gutter: (width, gantt) => { gutter = gutterOf(width, gantt); return gutter; },
  rowName: "rank",
  seconds: formatSeconds,
  instant: formatInstant,
  ticks: timeTicks,
  length: (run, first) => {
    const part = run.timeline.duration / first.timeline.duration - 1;
    const sign = part < 0 ? "−" : "+";
    return formatSeconds(run.timeline.duration) + (run === first ? "" : `  (${sign}${Math.abs(100 * part).toFixed(1)} %)`);
  },
  row: (run, lane, narrow) => {
    const weight = run.timeline.weights[lane.rank];
    const times = weight > 1 ? ` ×${weight.toLocaleString("en")}` : "";
    return narrow ? [`r${lane.rank}`, times] : [`rank ${lane.rank}`, `stage ${lane.stage}${times}`];
  },
};
const UNITS_OF_F = {
  gutter: gutterOf,
  rowName: "stage",
  height: 22,
  seconds: (value) => `${Number(value.toPrecision(6))} F`,
  instant: (value) => `${Number(value.toPrecision(6))} F`,
  ticks: () => (value) => `${Number(value.toPrecision(6))} F`,
  length: () => "",
  row: (run, lane, narrow) => [narrow ? `s${lane.rank}` : `stage ${lane.rank}`, ""],
};

function ganttIn(section, runs, paints, units) {
  const look = {...units, colours: colourist(runs, paints)};
  const part = (name) => section.querySelector(`[data-part="${name}"]`);
  const gantt = new Gantt(section.querySelector("canvas"), part("scroller"), part("sizer"), runs, look);
  const controls = new Controls(section, gantt);
  gantt.resize();
  return {gantt, controls};
}

function legend(place, runs, look) {
  const shown = new Map();
  const colours = look.colours();
  runs.forEach((run, number) => {
    const {what, words} = run.timeline;
    what.kind.forEach((kind, at) => {
      if (what.chunk[at] > 0) return;
      const stream = words[what.stream[at]];
      const name = stream === "compute" ? words[kind].replaceAll("_", " ") : `${stream} ${words[kind].replaceAll("_", "-")}`;
      if (!shown.has(name)) shown.set(name, colours.spans[number].text[at]);
    });
  });
  shown.set("waiting for peers or links", colours.waiting.name);
  place.replaceChildren(...[...shown].map(([name, colour]) => {
    const item = document.createElement("li");
    const swatch = document.createElement("span");
    swatch.style.background = colour;
    item.append(swatch, name);
    return item;
  }));
}

function theming(redraw) {
  const button = $("#theme");
  const say = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Switch to ${dark() ? "light" : "dark"} colours`); };
  button.hidden = false;
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; say(); redraw(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { say(); redraw(); });
  addEventListener("beforeprint", () => { root.dataset.printing = "1"; redraw(true); });
  addEventListener("afterprint", () => { delete root.dataset.printing; redraw(true); });
  say();
}

// Which run the sections below the timeline are about.
function picking(redraw) {
  const pick = $("#pick");
  const show = () => {
    document.querySelectorAll("[data-run]").forEach((part) => { part.hidden = part.dataset.run !== pick.value; });
    redraw();
  };
  if (pick) {
    pick.closest("[hidden]").hidden = false;
    pick.addEventListener("change", show);
    show();
  }
}

function copying() {
  document.querySelectorAll("button[data-copy]").forEach((button) => {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(text.textContent);
        button.textContent = "Copied";
      } catch { // no clipboard for this page: select it instead
        getSelection().selectAllChildren(text);
        button.textContent = "Selected";
      }
    });
  });
}

// The charts of runs, into `charts` and `controls`: the timeline that they share with those that it begins with, and of
// each its memory, links and schedule.  The timeline, or null where there is none.
function present(data, bytes, charts, controls, before = []) {
  const own = data.runs.filter((run) => run.timeline).map((run) => ({...run, timeline: new Timeline(run.timeline, bytes)}));
  const shown = [...before, ...own].map((run) => ({...run, paint: run.timeline.what.paint}));
  let timeline = null;
  if (own.length) {
    timeline = ganttIn($("#gantt"), shown, data.paints, SECONDS);
    const draw = () => legend($("#gantt [data-part=legend]"), shown, timeline.gantt.look);
    charts.push(timeline.gantt, {draw});
    controls.push(timeline.controls);
    draw();
  }
  root.dataset.ready = performance.now().toFixed(1);
  data.runs.forEach((run, number) => {
    const part = (name) => document.getElementById(`${name}-${number}`);
    if (run.memory.length) {
      const look = {colours: colourist([], data.paints)};
      const chart = new MemoryChart(part("memory"), run.memory, run.capacity, bytes, look);
      charts.push(chart);
      if (timeline) {
        const before = timeline.controls.onview;
        timeline.controls.onview = (view) => { if (before) before(view); chart.show(view); };
      }
    }
    if (run.links) {
      const look = {colours: colourist([], data.paints)};
      const draw = () => drawStrips(part("links"), run.links.matrix, run.links.bins, bytes, look);
      charts.push({draw});
    }
    if (run.grid) {
      const grid = new Timeline(run.grid, bytes);
      const runs = [{name: run.name, steps: 1, paint: grid.what.paint, timeline: grid}];
      const drawn = ganttIn(part("grid"), runs, data.paints, UNITS_OF_F);
      charts.push(drawn.gantt);
      controls.push(drawn.controls);
    }
  });
  if (timeline && timeline.controls.onview) timeline.controls.onview(timeline.gantt.view);
  return timeline;
}

function redrawn(charts) {
  return (whole) => charts.forEach((chart) => { if (whole && chart.resize) chart.resize(); else chart.draw(); });
}

async function main() {
  const controls = [];
  const data = JSON.parse($("#data").textContent);
  const charts = [];
  const redraw = redrawn(charts);
  copying();
  const bytes = await inflated($("#columns").textContent);
  const timeline = present(data, bytes, charts, controls);
  theming(redraw);
  picking(redraw);
  redraw();
  keysEverywhere(controls);
  if (timeline) timeline.controls.follow();
  root.dataset.complete = performance.now().toFixed(1);
  window.simcluster = {timeline, charts}; // for whoever looks into the page
}

function troubled(problem) {
  const note = $("#trouble");
  note.hidden = false;
  note.textContent = `The interactive parts cannot be shown (${problem.message}); all tables are complete without them.`;
  throw problem;
}

if ($("#data")) main().catch(troubled); // what shows runs by and by has no such block
