// The studio's controls in a notebook.  While the kernel plays, only the last change waits; what lies between is dropped.
function made(tag, properties = {}, ...children) {
  const found = Object.assign(document.createElement(tag), properties);
  found.append(...children);
  return found;
}

const told = (value) => (typeof value === "number" ? value.toLocaleString("en", {maximumFractionDigits: 4}) : String(value));

// A list of words, a switch, a number to type, or a slider over the values with the value beside it.
function picker({label, kind, values, says}, change) {
  const slides = kind === "steps" || kind === "fault";
  const input = slides ? made("input", {type: "range", min: 0, max: values.length - 1, step: 1})
    : kind === "switch" ? made("input", {type: "checkbox"})
    : kind === "price" ? made("input", {type: "number", min: 0, step: "any"})
    : made("select", {}, ...values.map((each, place) => made("option", {value: place, textContent: told(each)})));
  const output = made("output");
  const now = () => (kind === "switch" ? input.checked : kind === "price" ? Number(input.value) || undefined : values[Number(input.value)]);
  const say = () => {
    if (slides) { output.textContent = told(now()); input.setAttribute("aria-valuetext", output.textContent); }
  };
  const set = (value) => {
    if (kind === "switch") input.checked = Boolean(value);
    else if (kind === "price") input.value = value ?? "";
    else input.value = String(Math.max(0, values.indexOf(value)));
    say();
  };
  input.addEventListener(kind === "switch" || kind === "price" ? "change" : "input", () => { say(); change(now()); });
  const line = made("span", {className: "line"}, input, ...(slides ? [output] : []));
  return {part: made("label", {title: says}, made("span", {className: "name", textContent: label}), line), input, set};
}

// The size of a fault and, if it has one, its place.
function fault(control, change) {
  const slider = picker(control, (chosen) => { number = chosen; send(); });
  let [at, number] = [0, control.off];
  const send = () => change(number === control.off ? undefined : control.place ? [at, number] : number);
  const set = (value) => {
    if (control.place) { [at, number] = value ?? [at, control.off]; place.value = String(at); } else number = value ?? control.off;
    slider.set(number);
  };
  if (!control.place) return {...slider, set};
  const place = made("input", {type: "number", min: 0, step: 1});
  place.setAttribute("aria-label", `${control.label}: ${control.place}`);
  place.addEventListener("change", () => { at = Math.max(0, Math.round(Number(place.value)) || 0); if (number !== control.off) send(); });
  const where = made("label", {}, made("span", {className: "name", textContent: control.place}), made("span", {className: "line"}, place));
  return {part: made("span", {className: "line"}, slider.part, where), input: slider.input, set};
}

function render({model, el}) {
  const form = made("form", {onsubmit: (event) => event.preventDefault()});
  const message = made("p", {className: "message", hidden: true});
  message.setAttribute("role", "alert");
  const page = made("div");
  page.setAttribute("role", "status");
  el.classList.add("simcluster-studio");
  el.append(form, message, page);
  let busy = false;
  let waiting = null;

  const ask = (settings) => {
    waiting = null;
    if (JSON.stringify(settings) === JSON.stringify(model.get("settings"))) { show(); return; }
    page.classList.add("stale");
    if (busy) { waiting = settings; return; }
    busy = true;
    model.set("settings", settings);
    model.save_changes();
  };
  const change = (key) => (value) => {
    const settings = {...(waiting || model.get("settings")), [key]: value};
    if (value === undefined) delete settings[key];
    ask(settings);
  };

  const zoom = made("input", {type: "checkbox", name: "zoom"});
  zoom.addEventListener("change", () => { busy = true; model.set("zoom", zoom.checked); model.save_changes(); });
  const reset = made("button", {type: "button", textContent: "Reset", title: "Reset all controls to the scenario"});
  reset.addEventListener("click", () => ask({}));
  form.append(made("label", {className: "switch"}, zoom, "zoomable timeline"), reset);

  // A control is replaced only if its values changed, so that a drag continues.
  const parts = new Map();
  const groups = new Map();
  const group = (name) => {
    if (!groups.has(name)) {
      const found = made("details", {open: groups.size < 2}, made("summary", {textContent: name}));
      groups.set(name, found);
      form.append(found);
    }
    return groups.get(name);
  };
  const draw = () => {
    const controls = model.get("controls");
    for (const control of controls) {
      const now = control.set ?? (control.kind === "fault" ? null : control.value);
      const number = Array.isArray(now) ? now[1] : now;
      const offered = now === null || control.values.includes(number) ? control.values : [...control.values, number];
      const own = {...control, values: ["steps", "fault"].includes(control.kind) ? [...offered].sort((one, other) => one - other) : offered};
      const values = JSON.stringify(own.values);
      const before = parts.get(control.key);
      if (!before || before.values !== values) {
        const found = {values, ...(control.kind === "fault" ? fault : picker)(own, change(control.key))};
        found.input.name = control.key;
        const focused = before && before.input === document.activeElement;
        if (before) before.part.replaceWith(found.part); else group(control.group).append(found.part);
        if (focused) found.input.focus();
        parts.set(control.key, found);
      }
      parts.get(control.key).set(now);
    }
    const known = new Set(controls.map((control) => control.key));
    for (const [key, {part}] of parts) part.hidden = !known.has(key);
    zoom.checked = model.get("zoom");
  };

  const show = () => {
    if (waiting) { ask(waiting); return; } // the answer is already stale
    draw();
    page.classList.toggle("stale", Boolean(model.get("message")));
    if (!model.get("message")) page.innerHTML = model.get("html");
    message.hidden = !model.get("message");
    const goes = (model.get("message") && model.get("remedies")) || [];
    message.replaceChildren(model.get("message"), ...(goes.length ? [" Valid: "] : []), ...goes.map(({words, settings}) => {
      const go = made("button", {type: "button", textContent: words});
      go.addEventListener("click", () => ask(settings));
      return go;
    }));
  };

  const answered = () => { busy = false; show(); };
  model.on("change:answered", answered);
  show();
  return () => model.off("change:answered", answered);
}

export default {render};
