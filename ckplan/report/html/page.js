// What the reader can do: point at bands, sort tables, change the scale and the colours.

(() => {
  const { data, Chart, PLACE } = ckplan;
  const tip = document.getElementById("tip");
  const boxes = [...document.querySelectorAll("[data-chart]")];
  const charts = boxes.map((box) => new Chart(data.charts[Number(box.dataset.chart)], box));
  let same = true;

  function draw() {
    const highest = Math.max(...charts.map((chart) => chart.highest));
    charts.forEach((chart) => chart.draw(same ? highest : chart.highest));
  }

  const zooms = charts.map((chart) => ckplan.zoomed(chart, () => {
    hide();
    draw();
  }));

  function element(kind, text, name = "") {
    const made = document.createElement(kind);
    made.textContent = text;
    if (name) made.className = name;
    return made;
  }

  function hide() {
    tip.hidden = true;
    charts.forEach((chart) => chart.point(null));
  }

  function tell(chart, place, x, y) {
    const told = chart.describe(place);
    tip.replaceChildren();
    if (told.name) {
      tip.append(element("code", told.name));
      told.facts.forEach((fact, index) => {
        const line = element("p", fact, "fact");
        if (index === 1) {
          const swatch = document.createElement("i");
          swatch.className = `swatch ${told.color}`;
          line.prepend(swatch);
        }
        tip.append(line);
      });
      tip.append(document.createElement("hr"));
    }
    told.step.forEach((line) => tip.append(element("p", line)));
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = x + 16 + width > innerWidth ? Math.max(8, x - 16 - width) : x + 16;
    const top = Math.max(8, Math.min(y + 14, innerHeight - height - 8));
    tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }

  function show(chart, place, x, y) {
    charts.forEach((other) => other.point(other === chart ? place : null));
    tell(chart, place, x, y);
  }

  charts.forEach((chart) => {
    const { canvas } = chart;
    const find = (event) => {
      const frame = canvas.getBoundingClientRect();
      const place = chart.find(event.clientX - frame.left, event.clientY - frame.top);
      if (place) show(chart, place, event.clientX, event.clientY);
      else hide();
    };
    canvas.addEventListener("pointermove", find);
    canvas.addEventListener("pointerdown", find);
    canvas.addEventListener("pointerleave", hide);
    canvas.addEventListener("blur", hide);
    canvas.addEventListener("keydown", (event) => {
      const sideways = { ArrowLeft: -1, ArrowRight: 1, PageUp: -25, PageDown: 25 }[event.key];
      const upwards = { ArrowUp: 1, ArrowDown: -1 }[event.key];
      if (event.key === "Escape") hide();
      if (sideways === undefined && upwards === undefined) return;
      event.preventDefault();
      const now = chart.cursor ?? chart.find(chart.stepX(chart.content.peak + 0.5), chart.area.bottom - 1) ?? { column: 0, band: null };
      const column = Math.min(chart.columns.length - 1, Math.max(0, (now.column ?? 0) + (sideways ?? 0)));
      const step = chart.columns[column];
      const piled = chart.piled(step).map(([index]) => index);
      const at = piled.indexOf(now.band);
      const band = piled[Math.min(piled.length - 1, Math.max(0, at + (upwards ?? 0)))] ?? null;
      const frame = canvas.getBoundingClientRect();
      show(chart, { column, step, band }, frame.left + chart.x(column), frame.top + chart.area.top);
    });
  });

  if (charts.length) {
    ckplan.searched(charts, (number, place, last) => {
      const chart = charts[number];
      zooms[number](place.step, last);
      chart.box.scrollIntoView({ block: "nearest" });
      const frame = chart.canvas.getBoundingClientRect();
      const column = chart.columns.findIndex((step) => step >= place.step);
      show(chart, { ...place, column }, frame.left + chart.stepX(place.step + 0.5), frame.top + chart.area.top);
    });
  }

  // Rows about a tensor show its band.
  document.querySelectorAll("tr[data-band]").forEach((row) => {
    const [chart, band] = row.dataset.band.split(":").map(Number);
    const place = { step: data.charts[chart].bands[band][PLACE.born], column: null, band };
    row.addEventListener("pointerenter", () => charts[chart].point(place));
    row.addEventListener("pointerleave", () => charts[chart].point(null));
  });

  // Tables are sorted by the column whose heading is pressed: figures from the largest, texts from A; then reversed.
  function sort(heading) {
    const table = heading.closest("table");
    const column = heading.cellIndex;
    const numeric = heading.classList.contains("number");
    const before = heading.getAttribute("aria-sort");
    const down = before ? before === "ascending" : numeric;
    table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const keyed = [...table.tBodies[0].rows].map((row) => {
      const { order } = row.cells[column].dataset;
      const none = numeric ? -Infinity : row.cells[column].textContent; // a dash in a column of figures
      return [order === undefined ? none : Number(order), row];
    });
    const collator = new Intl.Collator("en", { numeric: true });
    keyed.sort(([a], [b]) => (typeof a === "number" && typeof b === "number" ? a - b : collator.compare(a, b)));
    if (down) keyed.reverse();
    table.tBodies[0].append(...keyed.map(([, row]) => row));
  }

  document.addEventListener("click", (event) => {
    const heading = event.target.closest("th");
    if (heading?.querySelector("button")) sort(heading);
  });

  // Groups of buttons of which one is pressed.
  function press(button) {
    button.parentElement.querySelectorAll("button").forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
  }

  const scale = document.getElementById("scale");
  if (scale && charts.length > 1) {
    scale.hidden = false;
    scale.addEventListener("click", (event) => {
      if (!event.target.dataset.scale) return;
      press(event.target);
      same = event.target.dataset.scale === "same";
      draw();
    });
  }

  const tabs = [...document.querySelectorAll("[data-show]")];
  if (tabs.length) {
    const open = (button) => {
      press(button);
      tabs.forEach((tab) => { document.getElementById(tab.dataset.show).hidden = tab !== button; });
    };
    tabs[0].parentElement.hidden = false;
    document.querySelectorAll(".tab h3").forEach((title) => { title.hidden = true; });
    tabs.forEach((tab) => tab.addEventListener("click", () => open(tab)));
    open(tabs[tabs.length - 1]);
  }

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const toggle = document.getElementById("scheme");
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    const now = document.documentElement.dataset.scheme ?? (dark.matches ? "dark" : "light");
    document.documentElement.dataset.scheme = now === "dark" ? "light" : "dark";
    draw();
  });

  if (charts.length) {
    const present = new Set(charts.flatMap((chart) => [...chart.roles()]));
    const legend = document.querySelector(".legend");
    legend.hidden = present.size === 0;
    legend.querySelectorAll("li").forEach((entry) => { entry.hidden = !present.has(entry.dataset.role); });
    dark.addEventListener("change", draw);
    let width = 0;
    new ResizeObserver(() => {
      if (boxes[0].clientWidth === width) return;
      width = boxes[0].clientWidth;
      hide();
      draw();
    }).observe(boxes[0]);
  }
  document.documentElement.dataset.ready = "yes";
})();
