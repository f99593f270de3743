// The studio's controls in a notebook.  While the kernel plays, only the last change waits; what lies between is dropped.
function made(tag, properties = {}, ...children) {
  const found = Object.assign(document.createElement(tag), properties);
  found.append(...children);
  return found;
}

// A list of words, or a slider over the values with the value beside it.
function picker({label, slides, values}, change) {
  const input = slides ? made("input", {type: "range", min: 0, max: values.length - 1, step: 1})
    : made("select", {}, ...values.map((each, place) => made("option", {value: place, textContent: String(each)})));
  const output = made("output");
  const say = () => {
    const now = String(values[Number(input.value)]);
    if (slides) { output.textContent = now; input.setAttribute("aria-valuetext", now); }
  };
  const set = (value) => { input.value = String(Math.max(0, values.indexOf(value))); say(); };
  input.addEventListener("input", () => { say(); change(values[Number(input.value)]); });
  const line = made("span", {className: "line"}, input, ...(slides ? [output] : []));
  return {part: made("label", {}, made("span", {className: "name", textContent: label}), line), input, set};
}

// A rank, and by how much it is slower.
function slow({label, values}, change) {
  const number = made("input", {type: "number", min: 0, step: 1});
  let [rank, factor] = [0, 1];
  const slider = picker({label: "slower, ×", slides: true, values}, (chosen) => { factor = chosen; change([rank, factor]); });
  number.addEventListener("change", () => { rank = Math.max(0, Math.round(Number(number.value)) || 0); change([rank, factor]); });
  const place = made("label", {}, made("span", {className: "name", textContent: label}), made("span", {className: "line"}, number));
  const set = (value) => { [rank, factor] = value; number.value = String(rank); slider.set(factor); };
  return {part: made("span", {className: "line"}, place, slider.part), input: slider.input, set};
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
  const change = (key) => (value) => ask({...(waiting || model.get("settings")), [key]: value});

  const zoom = made("input", {type: "checkbox", name: "zoom"});
  zoom.addEventListener("change", () => { busy = true; model.set("zoom", zoom.checked); model.save_changes(); });
  const reset = made("button", {type: "button", textContent: "As given", title: "All controls as the scenario has them"});
  reset.addEventListener("click", () => ask({}));
  form.append(made("label", {className: "switch"}, zoom, "timeline to zoom into"), reset);

  // A control is made anew only where what it may be set to has changed, so that a drag goes on.
  const parts = new Map();
  const draw = () => {
    for (const control of model.get("controls")) {
      const values = JSON.stringify(control.values);
      const before = parts.get(control.key);
      if (!before || before.values !== values) {
        const found = {values, ...(control.key === "slow_gpu" ? slow : picker)(control, change(control.key))};
        found.input.name = control.key;
        const focused = before && before.input === document.activeElement;
        if (before) before.part.replaceWith(found.part); else zoom.parentElement.before(found.part);
        if (focused) found.input.focus();
        parts.set(control.key, found);
      }
      parts.get(control.key).set(control.value);
    }
    zoom.checked = model.get("zoom");
  };

  const show = () => {
    if (waiting) { ask(waiting); return; } // what has come is stale already
    draw();
    page.classList.toggle("stale", Boolean(model.get("message")));
    if (!model.get("message")) page.innerHTML = model.get("html");
    message.hidden = !model.get("message");
    const nearest = model.get("nearest");
    message.replaceChildren(model.get("message"));
    if (model.get("message") && nearest) {
      const told = Object.entries(nearest).map(([key, value]) => `${key.split(".").pop()} ${value}`).join(", ") || "as given";
      const go = made("button", {type: "button", textContent: told});
      go.addEventListener("click", () => ask(nearest));
      message.append(" Nearest that can be: ", go);
    }
  };

  const answered = () => { busy = false; show(); };
  model.on("change:answered", answered);
  show();
  return () => model.off("change:answered", answered);
}

export default {render};
