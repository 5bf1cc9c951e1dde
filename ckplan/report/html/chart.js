"use strict";
// Memory over the steps as a pile of bands, drawn on a canvas. A band is a buffer, and its height is its size. Those that
// are there for the same reason lie together, the oldest below. Where there are more steps than pixels, a column shows the
// largest of its steps; of bands thinner than a pixel one is seen, so that colours do not mix into another one's.

const ckplan = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  data.strings = decoded(data.strings);
  const PLACE = { born: 1, dies: 2, spans: 3, width: 4 };
  const ROLE_TEXT = {
    kept: "kept for the backward pass",
    recomputed: "recomputed",
    forward: "forward only",
    backward: "made by the backward pass",
    held: "dead, held by onnxruntime for a later tensor",
  };
  const probe = document.createElement("i");
  probe.hidden = true;
  document.body.append(probe);

  /** Texts out of lengths of what each has in common with the one before it, and rests. */
  function decoded(parts) {
    const texts = [];
    for (let index = 0; index < parts.length; index += 2) {
      texts.push((texts.length ? texts[texts.length - 1].slice(0, parts[index]) : "") + parts[index + 1]);
    }
    return texts;
  }

  function color(name) {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  }

  function bytesText(count) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (count >= 1024 && unit < units.length - 1) {
      count /= 1024;
      unit += 1;
    }
    return unit ? `${count.toFixed(1)} ${units[unit]}` : `${count} B`;
  }

  /** Round figures from 0 to the end, and one unit for all of them. */
  function ticks(end, count) {
    const unit = Math.max(0, Math.min(4, Math.floor(Math.log2(Math.max(end, 1)) / 10)));
    const factor = 1024 ** unit;
    const rough = end / factor / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999);
    const found = [];
    for (let index = 0; index * step * factor <= end * 1.0001; index += 1) {
      const value = Number((index * step).toPrecision(6));
      found.push([value * factor, value ? `${value} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}` : "0"]);
    }
    return found;
  }

  /** `[step, value, step, value, ...]` as one value for each step. */
  function dense(sparse, count) {
    const values = new Float64Array(count);
    for (let index = 0; index < sparse.length; index += 2) {
      values.fill(sparse[index + 1], sparse[index], sparse[index + 2] ?? count);
    }
    return values;
  }

  /** Where the span begins that lies in a band at a step. */
  function spanAt(band, step) {
    let place = PLACE.spans;
    while (place + PLACE.width < band.length && band[place + PLACE.width] <= step) place += PLACE.width;
    return place;
  }

  /** Where the spans of a band begin. */
  const spans = (band) => [...band.keys()].filter((place) => place >= PLACE.spans && (place - PLACE.spans) % PLACE.width === 0);
  /** What a band is there for, by number, one after the other; it lies in the pile where the first of them does. */
  const roles = (band) => spans(band).map((place) => band[place + 1]);

  class Chart {
    constructor(content, box) {
      Object.assign(this, { content, box, top: 1, cursor: null, runs: [] });
      [this.canvas, this.overlay] = box.querySelectorAll("canvas");
      this.count = content.bytes.length;
      this.view = [0, this.count]; // the steps that are shown: from the first to before the last
      this.work = dense(content.work, this.count);
      this.rest = dense(content.rest, this.count);
      this.ranks = content.bands.map((band) => Math.min(...roles(band)));
      const measured = content.measured ? content.measured.bytes : [0];
      this.highest = [content.bytes, measured].reduce((top, values) => values.reduce((a, b) => Math.max(a, b), top), 0);
    }

    /** Roles that have a band here, for the legend. */
    roles() {
      const found = new Set(this.content.bands.flatMap(roles).map((role) => data.roles[role]));
      if (this.content.rest.length || this.content.work.length) found.add("rest");
      if (this.content.measured && this.content.bands.length) found.add("measured");
      return found;
    }

    resize() {
      const ratio = window.devicePixelRatio || 1;
      const { width, height } = this.box.getBoundingClientRect();
      for (const canvas of [this.canvas, this.overlay]) {
        canvas.width = Math.round(width * ratio);
        canvas.height = Math.round(height * ratio);
        canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
      }
      const narrow = width < 520;
      this.area = { left: narrow ? 58 : 74, top: 34, right: width - 8, bottom: height - 40 };
      this.area.width = Math.max(1, this.area.right - this.area.left);
      this.area.height = Math.max(1, this.area.bottom - this.area.top);
      this.pixel = 1 / ratio;
      this.columns = this.pick(Math.max(1, Math.min(this.span(), Math.round(this.area.width * Math.min(ratio, 2)))));
    }

    span() {
      return this.view[1] - this.view[0];
    }

    whole() {
      return this.span() >= this.count;
    }

    /** Show the steps from one to another, as far as there are such, and no fewer than a handful. */
    look(from, to) {
      const span = Math.min(this.count, Math.max(8, Math.round(to - from)));
      const start = Math.min(Math.max(0, Math.round(from)), this.count - span);
      this.view = [start, start + span];
    }

    /** The steps of a column: the first, and the one after the last. */
    stretch(column, columns, count = this.count) {
      const scale = count / this.count;
      const edge = (place) => Math.floor((this.view[0] + (place * this.span()) / columns) * scale);
      return [edge(column), Math.max(edge(column) + 1, edge(column + 1))];
    }

    /** The step that each column shows. */
    pick(columns) {
      const { bytes } = this.content;
      const chosen = new Int32Array(columns);
      for (let column = 0; column < columns; column += 1) {
        const [start, end] = this.stretch(column, columns);
        let best = start;
        for (let step = best + 1; step < end; step += 1) if (bytes[step] > bytes[best]) best = step;
        chosen[column] = best;
      }
      return chosen;
    }

    x(column) {
      return this.area.left + (column * this.area.width) / this.columns.length;
    }

    stepX(step) {
      return this.area.left + ((step - this.view[0]) * this.area.width) / this.span();
    }

    y(bytes) {
      return this.area.bottom - (bytes / this.top) * this.area.height;
    }

    draw(top) {
      this.top = top * 1.04 || 1;
      this.resize();
      this.context = this.canvas.getContext("2d");
      const colors = {};
      for (const name of [...data.roles, "rest", "text", "muted", "grid", "line", "card", "measured", "accent"]) colors[name] = color(name);
      colors.shades = { forward: color("shade-forward"), backward: color("shade-backward") };
      this.colors = colors;
      this.ground();
      this.pile();
      this.measured();
      this.again();
      this.labels();
      this.point(null);
    }

    ground() {
      const { context, area, colors, content } = this;
      context.clearRect(0, 0, this.box.clientWidth, this.box.clientHeight);
      const turn = Math.min(area.right, Math.max(area.left, this.stepX(content.turn)));
      context.fillStyle = colors.shades.forward;
      context.fillRect(area.left, area.top, turn - area.left, area.height);
      context.fillStyle = colors.shades.backward;
      context.fillRect(turn, area.top, area.right - turn, area.height);
      context.font = "12px system-ui, sans-serif";
      context.textBaseline = "middle";
      context.textAlign = "right";
      for (const [value, text] of ticks(this.top, area.height < 200 ? 3 : 5)) {
        const y = Math.round(this.y(value)) + 0.5;
        context.fillStyle = colors.grid;
        context.fillRect(area.left, y - 0.5, area.width, 1);
        context.fillStyle = colors.muted;
        context.fillText(text, area.left - 8, y);
      }
    }

    /** All bands, from the oldest at the bottom to the youngest; equal neighbours of a row are one rectangle. */
    pile() {
      const { context, columns, content, colors, pixel } = this;
      const { bands } = content;
      const runs = bands.map(() => []);
      const roles = new Uint8Array(bands.length);
      const belows = new Float64Array(bands.length).fill(-1); // -1: not open
      const starts = new Float64Array(bands.length);
      const scale = this.area.height / this.top;
      const flush = (index, end) => {
        const height = bands[index][0] * scale;
        const bottom = this.y(belows[index]);
        const y = bottom - height;
        const gap = height > 7 ? 1 : 0;
        const [above, under] = [y + gap, bottom].map((edge) => Math.round(edge / pixel) * pixel);
        const [left, right] = [starts[index], end].map((edge) => Math.round(edge / pixel) * pixel);
        const role = data.roles[roles[index]];
        context.fillStyle = colors[role];
        context.globalAlpha = role === "held" ? 0.75 : [1, 0.86, 0.74][index % 3];
        context.fillRect(left, above, Math.max(right - left, pixel), under - above);
        runs[index].push([starts[index], end, y, height]);
        belows[index] = -1;
      };
      let next = 0;
      const alive = data.roles.map(() => []);
      const rest = [];
      columns.forEach((step, column) => {
        const x = this.x(column);
        for (; next < bands.length && bands[next][PLACE.born] <= step; next += 1) alive[this.ranks[next]].push(next);
        let below = 0;
        for (const layer of alive) {
          let kept = 0;
          for (const index of layer) {
            const band = bands[index];
            if (band[PLACE.dies] < step) {
              if (belows[index] >= 0) flush(index, x);
              continue;
            }
            layer[kept] = index;
            kept += 1;
            const role = band[(band.length > PLACE.spans + PLACE.width ? spanAt(band, step) : PLACE.spans) + 1];
            if (belows[index] !== below || roles[index] !== role) {
              if (belows[index] >= 0) flush(index, x);
              belows[index] = below;
              roles[index] = role;
              starts[index] = x;
            }
            below += band[0];
          }
          layer.length = kept;
        }
        rest.push([x, below, bands.length ? this.rest[step] + this.work[step] : content.bytes[step]]);
      });
      for (const index of alive.flat()) flush(index, this.area.right);
      this.runs = runs;
      context.globalAlpha = 1;
      context.fillStyle = bands.length ? colors.rest : colors.accent;
      rest.forEach(([x, below, bytes], column) => {
        if (bytes) context.fillRect(x, this.y(below + bytes), this.x(column + 1) - x + pixel / 2, (bytes / this.top) * this.area.height);
      });
    }

    /** What onnxruntime reported, as a line over the pile. */
    measured() {
      const { context, content, columns, colors } = this;
      if (!content.measured || !content.bands.length) return;
      const { bytes } = content.measured;
      context.beginPath();
      columns.forEach((step, column) => {
        let value;
        if (bytes.length === this.count) {
          value = bytes[step];
        } else {
          const [start, end] = this.stretch(column, columns.length, bytes.length);
          value = Math.max(...bytes.slice(start, end));
        }
        context.lineTo(this.x(column), this.y(value));
        context.lineTo(this.x(column + 1), this.y(value));
      });
      context.strokeStyle = colors.measured;
      context.lineWidth = 1.25;
      context.lineJoin = "round";
      context.stroke();
    }

    /** Where nodes run again: marks below the axis. */
    again() {
      const { context, area, content, columns, colors } = this;
      context.fillStyle = colors.line;
      context.fillRect(area.left, area.bottom, area.width, 1);
      if (!content.again.includes("1")) return;
      context.fillStyle = colors.recomputed;
      for (let column = 0; column < columns.length; column += 1) {
        const [start, end] = this.stretch(column, columns.length);
        if (content.again.slice(start, end).includes("1")) context.fillRect(this.x(column), area.bottom + 4, area.width / columns.length + this.pixel / 2, 5);
      }
    }

    labels() {
      const { context, area, content, colors } = this;
      const turn = Math.min(area.right, Math.max(area.left, this.stepX(content.turn)));
      context.textBaseline = "alphabetic";
      context.fillStyle = colors.muted;
      context.textAlign = "left";
      if (content.turn < this.count) {
        context.globalAlpha = 0.5;
        if (turn > area.left && turn < area.right) context.fillRect(Math.round(turn), area.top, 1, area.height + 28);
        context.globalAlpha = 1;
        if (turn - area.left > 60) context.fillText("forward", area.left + 6, area.bottom + 27);
        if (area.right - turn > 70) context.fillText("backward", turn + 6, area.bottom + 27);
      }
      context.textAlign = "right";
      const steps = `${this.count.toLocaleString("en")} steps`;
      const shown = this.view.map((edge, index) => (edge + 1 - index).toLocaleString("en"));
      context.fillText(this.whole() ? steps : `${shown[0]} to ${shown[1]} of ${steps}`, area.right, area.bottom + 27);
      const marks = [...content.levels];
      if (content.bands.length === 0 && content.measured) marks.length = 0;
      let last = Infinity;
      for (const level of marks.sort((a, b) => a.bytes - b.bytes)) {
        const y = this.y(level.bytes);
        if (level.bytes > this.top) continue;
        this.dashed(area.left, Math.round(y) + 0.5, area.right, Math.round(y) + 0.5, colors.muted);
        if (last - y < 15) continue;
        last = y;
        this.tag(`${level.name} ${level.text}`, area.right - 4, y - 5, "right");
      }
      if (content.peak < this.view[0] || content.peak >= this.view[1]) return;
      const x = this.stepX(content.peak + 0.5);
      const y = this.y(content.bytes[content.peak] ?? 0);
      this.dashed(x, area.top - 8, x, y, colors.text);
      context.beginPath();
      context.arc(x, y, 3.5, 0, 2 * Math.PI);
      context.fillStyle = colors.text;
      context.fill();
      const side = x > area.left + area.width / 2 ? "right" : "left";
      const where = `peak ${bytesText(content.bytes[content.peak] ?? 0)}, step ${(content.peak + 1).toLocaleString("en")}`;
      this.tag(where, x + (side === "left" ? 7 : -7), area.top - 12, side, true);
    }

    dashed(x, y, right, bottom, style) {
      const { context } = this;
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(right, bottom);
      context.strokeStyle = style;
      context.lineWidth = 1;
      context.setLineDash([3, 3]);
      context.stroke();
      context.setLineDash([]);
    }

    /** Text that stays legible on whatever is below it. */
    tag(text, x, y, side, strong = false) {
      const { context, colors } = this;
      context.font = `${strong ? "600 " : ""}12px system-ui, sans-serif`;
      context.textAlign = side;
      context.lineWidth = 4;
      context.lineJoin = "round";
      context.strokeStyle = colors.card;
      context.strokeText(text, x, y);
      context.fillStyle = strong ? colors.text : colors.muted;
      context.fillText(text, x, y);
      context.font = "12px system-ui, sans-serif";
    }

    /** The bands that are piled up at a step, from below: `[band, bytes below]`. */
    piled(step) {
      const alive = data.roles.map(() => []);
      this.content.bands.forEach((band, index) => {
        if (band[PLACE.born] <= step && step <= band[PLACE.dies]) alive[this.ranks[index]].push(index);
      });
      let below = 0;
      return alive.flat().map((index) => {
        below += this.content.bands[index][0];
        return [index, below - this.content.bands[index][0]];
      });
    }

    /** What is at a place of the canvas: a step, and a band or null. */
    find(x, y) {
      const { area, columns } = this;
      if (x < area.left || x > area.right) return null;
      const column = Math.min(columns.length - 1, Math.floor(((x - area.left) / area.width) * columns.length));
      const bytes = ((area.bottom - y) / area.height) * this.top;
      const step = columns[column];
      const hit = this.piled(step).find(([index, below]) => bytes >= below && bytes < below + this.content.bands[index][0]);
      return { step, column, band: hit ? hit[0] : null };
    }

    /** Show a place: a line at its step, and its band over the whole of its life. */
    point(place) {
      const context = this.overlay.getContext("2d");
      context.clearRect(0, 0, this.box.clientWidth, this.box.clientHeight);
      this.cursor = place;
      if (!place) return;
      context.fillStyle = color("highlight");
      if (place.band !== null) {
        for (const [start, end, y, height] of this.runs[place.band] ?? []) {
          context.globalAlpha = 0.5;
          context.fillRect(start, y, Math.max(end - start, 1), Math.max(height, 1));
        }
      }
      context.globalAlpha = 0.45;
      if (place.column !== null) context.fillRect(this.x(place.column + 0.5), this.area.top, 1, this.area.height);
      context.globalAlpha = 1;
    }

    /** What there is to say of a place: lines of text. */
    describe(place) {
      const { content } = this;
      const name = (number) => data.strings[number];
      const told = { color: "", name: "", facts: [], step: [] };
      if (place.band !== null) {
        const band = content.bands[place.band];
        const span = spanAt(band, place.step);
        const [op, shape, dtype] = name(band[span + 3]).split("\n");
        const role = data.roles[band[span + 1]];
        told.color = role;
        told.name = name(band[span + 2]);
        told.facts.push(`${bytesText(band[0])}, ${shape} ${dtype}`, `${ROLE_TEXT[role]}; made by ${op}`);
        const after = band[span + PLACE.width];
        const end = after === undefined ? band[PLACE.dies] : after - 1;
        told.facts.push(`steps ${band[span] + 1} to ${end + 1} of ${this.count}`);
      }
      const { step } = place;
      const type = content.types[step] === undefined ? "" : `${name(content.types[step])} `;
      told.step.push(`step ${step + 1}: ${type}${name(content.ops[step])}`, `${bytesText(content.bytes[step])} of activations`);
      if (this.work[step]) told.step.push(`${bytesText(this.work[step])} of that is workspace`);
      if (this.rest[step]) told.step.push(`${bytesText(this.rest[step])} in smaller tensors`);
      if (content.measured && content.measured.bytes.length === this.count && content.bands.length) {
        told.step.push(`${bytesText(content.measured.bytes[step])} measured`);
      }
      return told;
    }
  }

  return { data, Chart, spans, PLACE };
})();
