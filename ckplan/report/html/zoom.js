// Zoom into the steps of a chart, and a field that finds tensors and nodes.
//
// Wheel: once the chart has the focus (a click gives it), else with Ctrl, so that a page scrolls over its charts as any
// page does. Drag moves what is zoomed. Keys: + and - zoom, Shift with an arrow moves, 0 shows the whole step.

ckplan.zoomed = (chart, redraw) => {
  const { canvas } = chart;
  const MARGIN = 0.15;
  const STEP = 1.25;
  const reset = chart.box.parentElement.querySelector("[data-whole]");

  function show(from, to) {
    const before = [...chart.view];
    chart.look(from, to);
    reset.hidden = chart.whole();
    if (before.some((edge, index) => edge !== chart.view[index])) redraw();
  }

  /** Keep the step under a place of the canvas where it is. */
  function zoom(factor, x) {
    const [from, to] = chart.view;
    const share = Math.min(1, Math.max(0, (x - chart.area.left) / chart.area.width));
    const span = (to - from) * factor;
    const start = from + share * (to - from - span);
    show(start, start + span);
  }

  function move(steps) {
    const [from, to] = chart.view;
    const by = Math.min(Math.max(steps, -from), chart.count - to);
    show(from + by, to + by);
  }

  canvas.addEventListener("wheel", (event) => {
    const asked = event.ctrlKey || document.activeElement === canvas;
    if (!asked || (event.deltaY > 0 && chart.whole())) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? STEP : 1 / STEP, event.clientX - canvas.getBoundingClientRect().left);
  }, { passive: false });

  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.focus({ preventScroll: true });
    if (chart.whole() || event.button) return;
    held = [event.clientX, ...chart.view];
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!held) return;
    const [x, from, to] = held;
    move(from + Math.round(((x - event.clientX) / chart.area.width) * (to - from)) - chart.view[0]);
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { held = null; });

  canvas.addEventListener("keydown", (event) => {
    const at = chart.cursor?.column ?? chart.columns.length / 2;
    const [from, to] = chart.view;
    const sideways = event.shiftKey ? { ArrowLeft: -1, ArrowRight: 1 }[event.key] : undefined;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "+" || event.key === "=") zoom(1 / STEP ** 2, chart.x(at));
    else if (event.key === "-") zoom(STEP ** 2, chart.x(at));
    else if (event.key === "0") show(0, chart.count);
    else if (sideways) move(sideways * Math.ceil((to - from) / 8));
    else return;
    event.preventDefault();
    event.stopImmediatePropagation();
  });
  reset.addEventListener("click", () => {
    show(0, chart.count);
    canvas.focus();
  });

  /** Show some steps with room beside them. */
  return (first, last) => {
    const room = Math.max(4, Math.ceil((last - first + 1) * MARGIN));
    show(first - room, last + 1 + room);
  };
};

/** A field for a part of a name; what has it is listed, and a press shows it in its chart. */
ckplan.searched = (charts, go) => {
  const { data, spans, PLACE } = ckplan;
  const MOST = 30;
  const box = document.getElementById("search");
  const [field, told, list] = ["input", "output", "ul"].map((kind) => box.querySelector(kind));
  const titles = charts.map((chart) => chart.box.parentElement.querySelector("strong").textContent);

  /** What to list: `[chart, place, name, remark]`, tensors before nodes, names that begin so first. */
  function find(text) {
    const has = data.strings.map((name) => name.toLowerCase().indexOf(text));
    const found = [];
    charts.forEach((chart, number) => {
      chart.content.bands.forEach((band, index) => {
        for (const at of spans(band).filter((place) => has[band[place + 2]] >= 0)) {
          const last = band[at + PLACE.width] === undefined ? band[PLACE.dies] : band[at + PLACE.width] - 1;
          found.push([has[band[at + 2]] > 0, number, { step: band[at], column: null, band: index }, last, data.strings[band[at + 2]], "tensor"]);
        }
      });
      chart.content.ops.forEach((name, step) => {
        if (has[name] >= 0) found.push([has[name] > 0 || 2, number, { step, column: null, band: null }, step, data.strings[name], "node"]);
      });
    });
    return found.sort((a, b) => Number(a[0]) - Number(b[0]));
  }

  function search() {
    const text = field.value.trim().toLowerCase();
    const found = text ? find(text) : [];
    told.textContent = !text ? "" : found.length > MOST ? `${found.length} found, ${MOST} shown` : `${found.length} found`;
    list.replaceChildren(...found.slice(0, MOST).map(([, number, place, last, name, kind]) => {
      const row = document.createElement("li");
      const button = document.createElement("button");
      button.type = "button";
      const code = document.createElement("code");
      code.textContent = name;
      const where = last > place.step ? `steps ${place.step + 1} to ${last + 1}` : `step ${place.step + 1}`;
      const remark = document.createElement("small");
      remark.textContent = `${kind}, ${titles[number].toLowerCase()}, ${where}`;
      button.append(code, remark);
      button.addEventListener("click", () => go(number, place, last));
      row.append(button);
      return row;
    }));
  }

  box.hidden = false;
  field.addEventListener("input", search);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") list.querySelector("button")?.click();
    if (event.key === "Escape") {
      field.value = "";
      search();
    }
  });
};
