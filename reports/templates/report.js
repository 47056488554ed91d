"use strict";
(async () => {
  const root = document.documentElement;
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function unpack(id, header) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    return inflate(bytes, header);
  }
  const figures = JSON.parse(unpack("specs", 2)); // bytes of a header of zlib
  const script = document.createElement("script");
  script.textContent = unpack("plotly", 10); // of gzip
  document.head.append(script);

  const ids = Object.keys(figures);
  const chips = [...document.querySelectorAll(".chip")];
  const pressed = (button) => button.getAttribute("aria-pressed") === "true";
  const hideOthers = document.getElementById("hide-others");
  // Names of the variants that are not highlighted.
  const others = new Set(chips.filter((chip) => !pressed(chip)).map((chip) => chip.dataset.variant));
  const hidden = (variant) => others.has(variant) && pressed(hideOthers);
  const gone = (spec, variant) => !spec.complete && hidden(variant);
  const rowsOf = (spec) => spec.rows.filter(([name]) => !gone(spec, name));
  const paperWidth = 680;
  const mostNames = 8;

  const chooser = (id) => document.getElementById(`choose-${figures[id].choice}`);
  function chosen(id) {
    const specs = figures[id].specs;
    const name = chooser(id) ? chooser(id).value : "";
    return { name, spec: specs[name] || Object.values(specs)[0] };
  }

  const fade = (hex, alpha) => {
    const n = parseInt(hex.slice(1), 16);
    return `rgba(${n >> 16}, ${(n >> 8) & 255}, ${n & 255}, ${alpha})`;
  };

  // Removes the bars of hidden variants from a trace that has a bar for each variant.
  function kept(trace) {
    if (!trace.meta.variants) return trace;
    const only = (list) => list.filter((_, k) => !hidden(trace.meta.variants[k]));
    return { ...trace, x: only(trace.x), y: only(trace.y), text: only(trace.text) };
  }

  const paint = (spec) => (trace) => {
    const kind = trace.meta.kind, other = kind !== "dot" && others.has(trace.meta.variant);
    const colour = css(other ? "--muted" : `--${trace.meta.colour}`);
    const shown = !gone(spec, trace.meta.variant) && !(other && (kind === "band" || kind === "cells"));
    const painted = { ...kept(trace), visible: shown, showlegend: false };
    if (kind === "band") painted.fillcolor = fade(colour, 0.14);
    if (kind === "area") painted.fillcolor = fade(colour, 0.55);
    if (kind === "limit") painted.textfont = { color: colour, size: 12 };
    if (kind === "total") painted.textfont = { color: colour, size: 13 };
    if (kind === "part") painted.marker = { color: colour, line: { color: css("--card"), width: 1 } };
    if (kind === "segment") painted.marker = { color: colour, line: { width: 0 } };
    if (trace.line) painted.line = { ...trace.line, color: colour };
    if (trace.marker) painted.marker = { ...trace.marker, color: colour, line: { ...trace.marker.line, color: colour } };
    if (trace.error_x) painted.error_x = { ...trace.error_x, color: colour };
    if (other && kind === "knee") painted.marker = { ...painted.marker, size: 6, line: { width: 1, color: colour } };
    if (other && kind === "line") {
      painted.line.width = 1;
      if (trace.x.length > 1) painted.mode = "lines";
    }
    return painted;
  };

  // From the back: other variants, intervals, highlighted variants.
  function ordered(data) {
    const layer = (trace) => (others.has(trace.meta.variant) ? 0 : trace.meta.kind === "band" ? 1 : 2);
    return [...data].sort((a, b) => layer(a) - layer(b));
  }

  // 1, 2 and 5 in each decade, written out: plotly would write some of them as a lone digit.
  function decades(spec, most) {
    const values = spec.data
      .flatMap((t) => (t.meta.kind === "band" || gone(spec, t.meta.variant) ? [] : t[spec.value]))
      .filter((v) => v > 0);
    if (!values.length) return { type: "log" };
    const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
    const digits = Math.log10(high / low) > most ? [1] : [1, 2, 5];
    const ticks = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high) + 1; e++) {
      ticks.push(...digits.map((digit) => Number(`${digit}e${e}`)));
    }
    const written = (t) => t.toLocaleString("en", { maximumSignificantDigits: 3 });
    return { type: "log", tickvals: ticks, ticktext: ticks.map(written) };
  }

  function axis(of, extra) {
    const title = of.title ? { ...of.title, standoff: 8, font: { size: 12, color: css("--soft") } } : undefined;
    const look = { gridcolor: css("--grid"), linecolor: css("--line"), zerolinecolor: css("--line"),
      tickfont: { color: css("--soft"), size: 12 }, automargin: true,
      exponentformat: "none", separatethousands: true };
    return { ...look, ...of, title, ...extra };
  }

  // One variant a row, the first on top.
  function rowAxis(spec, dense) {
    if (!spec.rows) return {};
    const shown = rowsOf(spec).reverse();
    const names = shown.map(([name]) => name);
    return { showgrid: false, categoryorder: "array", categoryarray: names, tickvals: names, tickfont: { color: css("--ink"), size: dense ? 11 : 12.5 },
      ticktext: shown.map(([, label]) => label), range: [-0.6, names.length - 0.4] };
  }

  // The range of the values, which is fixed so that the places of the names are known. Intervals are cut off, since
  // those of a few seeds near a capacity may be a hundred times as long as all values.
  function valueRange(spec, log) {
    const isBand = (trace) => trace.meta.kind === "band";
    const shown = spec.data.filter((t) => !gone(spec, t.meta.variant) && !(isBand(t) && others.has(t.meta.variant)));
    const valuesOf = (traces) => traces.flatMap((t) => t.y).filter((v) => v !== null && (!log || v > 0));
    const lowest = (values) => values.reduce((a, b) => Math.min(a, b)), highest = (values) => values.reduce((a, b) => Math.max(a, b));
    const all = valuesOf(shown), values = valuesOf(shown.filter((t) => !isBand(t)));
    if (!values.length) return undefined;
    const low = Math.max(lowest(all), lowest(values) / 2), high = Math.min(highest(all), 1.5 * highest(values));
    // Lines that end on the limit have their names above it.
    const room = spec.data.some((t) => t.meta.kind === "limit") ? 0.25 : 0;
    if (!log) return [0, (1.06 + room) * high || 1];
    const span = Math.max(Math.log10(high / low), 0.3);
    return [Math.log10(low) - 0.05 * span, Math.log10(high) + (0.05 + room) * span];
  }

  // The same along the other axis, which the names would widen.
  function positionRange(spec) {
    const isDate = spec.layout.xaxis.type === "date";
    const at = spec.data.flatMap((t) => t.x).map((v) => (isDate ? Date.parse(v) : v));
    const low = at.reduce((a, b) => Math.min(a, b)), high = at.reduce((a, b) => Math.max(a, b));
    const margin = 0.03 * (high - low) || 1;
    if (isDate) return [low - margin, high + margin].map((ms) => new Date(ms).toISOString());
    return [low < high / 4 ? Math.min(0, low) : low - margin, high + margin];
  }

  // Names of variants with options differ at their ends. A wide figure has room for a policy and its router.
  const lettersIn = (width) => (width < 480 ? 12 : width < 800 ? 18 : 28);
  const shortened = (name, letters) => (name.length <= letters ? name
    : letters < 18 ? `${name.slice(0, letters - 1)}…` : `${name.slice(0, letters - 11)}…${name.slice(-10)}`);

  // A row for each name of lines that lie on each other from end to end, of which only one can be seen.
  const rowsOfLabel = ({ lines }) => (lines.length === 1 ? 1 : lines.length + 1);
  const labelOf = ({ lines }, letters) => (lines.length === 1 ? shortened(lines[0].name, letters) : ["equal:", ...lines
    .map((t) => `<span style="color:${css(`--${t.meta.colour}`)}">■</span> ${shortened(t.name, letters)}`)].join("<br>"));

  // The points of a line, in pixels from the lower left corner.
  function placed(t, spec, range, log, width, height) {
    const [from, to] = positionRange(spec);
    const time = (v) => (typeof v === "string" ? Date.parse(v) : v);
    return t.x.flatMap((x, k) => (t.y[k] === null || (log && t.y[k] <= 0) ? [] : [{
      k, x: (time(x) - time(from)) / (time(to) - time(from)) * width,
      y: ((log ? Math.log10(t.y[k]) : t.y[k]) - range[0]) / (range[1] - range[0]) * height,
    }]));
  }

  // The lines that have names in a figure. Lines that differ by less than a pixel count once.
  function namedLines(spec, ...scale) {
    const lines = spec.data.filter((t) => t.meta.kind === "line" && !gone(spec, t.meta.variant))
      .map((t) => ({ lines: [t], at: placed(t, spec, ...scale) })).filter(({ at }) => at.length);
    const same = (a, b) => a.at.length === b.at.length
      && others.has(a.lines[0].meta.variant) === others.has(b.lines[0].meta.variant)
      && a.at.every((p, k) => Math.hypot(p.x - b.at[k].x, p.y - b.at[k].y) < 1);
    const kinds = [];
    for (const line of lines) {
      const known = kinds.find((other) => same(line, other));
      if (known) known.lines.push(...line.lines);
      else kinds.push(line);
    }
    return kinds;
  }

  // Whether a line passes through a box.
  function crosses({ at }, left, right, bottom, top) {
    return at.slice(1).some((end, k) => {
      const start = at[k], low = Math.max(left, start.x), high = Math.min(right, end.x);
      if (low > high) return false;
      const y = (x) => start.y + (end.y - start.y) * (end.x === start.x ? 0 : (x - start.x) / (end.x - start.x));
      return Math.max(y(low), y(high)) >= bottom && Math.min(y(low), y(high)) <= top;
    });
  }

  // The names of lines at their right ends. Those at the right edge are moved apart where they would overlap. Others are
  // moved to the nearest place without lines and names, or where all places have lines, without names.
  function names(spec, range, log, width, height, letters, all) {
    const row = 16, gap = 18, lines = namedLines(spec, range, log, width, height);
    const limits = spec.data.filter((t) => t.meta.kind === "limit")
      .map((t) => ({ at: placed(t, spec, range, log, width, height) }));
    const ends = lines
      .filter(({ lines: [t] }) => all || !others.has(t.meta.variant))
      .map((line) => ({ ...line, end: line.at.at(-1), size: row * rowsOfLabel(line),
        long: 7 * Math.max(...line.lines.map((t) => Math.min(letters, t.name.length) + (line.lines.length > 1 ? 3 : 0))) }))
      .sort((a, b) => a.end.y - b.end.y);
    const edge = Math.max(...ends.map(({ end }) => end.x)) - 1;
    const atEdge = ends.filter(({ end }) => end.x >= edge), within = ends.filter(({ end }) => end.x < edge);
    const groups = [];
    const middle = (g) => g.sum / g.members.length;
    const size = (g) => g.members.reduce((sum, each) => sum + each.size, 0);
    for (const each of atEdge) {
      groups.push({ sum: each.end.y, members: [each] });
      for (let last = groups.length - 1; last > 0; last--) {
        const [below, above] = [groups[last - 1], groups[last]];
        if (middle(above) - middle(below) >= (size(above) + size(below)) / 2) break;
        groups.splice(last - 1, 2, { sum: below.sum + above.sum, members: [...below.members, ...above.members] });
      }
    }
    const boxes = [];
    for (const group of groups) {
      let bottom = middle(group) - size(group) / 2;
      for (const each of group.members) {
        boxes.push({ ...each, y: bottom + each.size / 2 });
        bottom += each.size;
      }
    }
    const apart = ({ end, size: high, long }, y) => y - high / 2 >= -4 && y + high / 2 <= height + 14
      && !boxes.some((box) => Math.abs(box.y - y) < (box.size + high) / 2
        && box.end.x + gap < end.x + gap + long && end.x + gap < box.end.x + gap + box.long);
    const free = ({ end, size: high, long }, y) => ![...lines, ...limits].some((line) =>
      crosses(line, end.x + gap - 2, end.x + gap + long, y - high / 2 - 1, y + high / 2 + 1));
    for (const each of within) {
      const places = Array.from({ length: 40 }, (_, k) => each.end.y + (k % 2 ? 1 : -1) * 4 * Math.ceil(k / 2))
        .filter((y) => apart(each, y));
      boxes.push({ ...each, y: places.find((y) => free(each, y)) ?? places[0] ?? each.end.y });
    }
    return boxes.map((box) => {
      const [t] = box.lines, value = t.y[box.end.k], grey = others.has(t.meta.variant), shift = box.y - box.end.y;
      return { x: t.x[box.end.k], y: log ? Math.log10(value) : value, text: labelOf(box, letters), xanchor: "left", align: "left",
        showarrow: true, arrowhead: 0, arrowwidth: Math.abs(shift) > 1 ? 1 : 0.01, standoff: 5, ax: gap, ay: -shift,
        arrowcolor: css(grey ? "--muted" : `--${t.meta.colour}`), font: { size: 13, color: css(grey ? "--soft" : "--ink") } };
    });
  }

  function layoutOf(id, choice, spec, width) {
    const narrow = width < 480, letters = lettersIn(width);
    const scale = document.querySelector(`.scale[data-figure="${id}"]`);
    const log = Boolean(scale) && pressed(scale);
    const across = spec.value === "x";
    const value = log ? decades(spec, (across ? 2.2 : 3.5) - (narrow ? 1 : 0)) : { type: "linear" };
    const rows = rowAxis(spec, isFirst(id) && (spec.rows || []).length > 16);
    const lines = !spec.labelled ? [] : spec.data.filter((t) => t.meta.kind === "line" && !gone(spec, t.meta.variant));
    const strong = lines.filter((t) => !others.has(t.meta.variant)), all = lines.length <= mostNames;
    const labels = (all ? lines : strong).map((t) => t.meta.variant.length + 3);
    const labelled = labels.length > 0 && labels.length <= mostNames;
    const range = spec.labelled ? valueRange(spec, log) : undefined;
    const totals = spec.data.some((t) => t.meta.kind === "total");
    const right = totals ? 66 : labelled ? 24 + 7.5 * Math.min(letters + 1, Math.max(4, ...labels)) : 14;
    const layout = {
      ...spec.layout,
      autosize: true,
      margin: { l: 8, r: right, t: 22, b: 8 },
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: css("--ink") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      hovermode: "closest", showlegend: false, uirevision: `${choice} ${log}`,
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink"), size: 13 }, align: "left" },
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      xaxis: axis(spec.layout.xaxis, across ? value : { zeroline: false, ...(range ? { range: positionRange(spec) } : {}) }),
      yaxis: axis(spec.layout.yaxis, across ? rows : range ? { ...value, range } : value),
    };
    layout.annotations = (spec.layout.annotations || []).map((a) => ({ ...a, font: { ...a.font, color: css("--soft") } }));
    if (labelled && range) {
      layout.annotations.push(...names(spec, range, log, width - right - 70, heightOf(id, spec) - 78, letters, all));
    }
    for (const other of ["yaxis2", "yaxis3"]) {
      if (spec.layout[other]) layout[other] = axis(spec.layout[other], {});
    }
    if (spec.layout.shapes) layout.shapes = spec.layout.shapes.map((s) => ({ ...s, line: { ...s.line, color: css("--soft") } }));
    return layout;
  }

  // The picture of the answer is lower, so that it fits on the first screen with the caveats.
  const isFirst = (id) => Boolean(document.getElementById(id).closest(".answer"));
  function heightOf(id, spec, row) {
    if (!spec.rows) return spec.height || (isFirst(id) ? 300 : 380);
    const rows = Math.max(2, rowsOf(spec).length);
    if (!isFirst(id)) return 84 + row * rows;
    return rows > 8 ? 80 + (rows > 16 ? 13.5 : 16) * rows : Math.max(84 + row * rows, Math.min(300, 84 + 62 * rows));
  }

  // plotly fills the element, also after the window is resized.
  function size(id, spec) {
    const div = document.getElementById(id);
    div.style.height = `${heightOf(id, spec, 27)}px`;
    div.style.width = root.classList.contains("paper") ? `${paperWidth}px` : "";
  }

  // Where too many lines are shown for a name at each, a sentence names the grey ones.
  function greyNames(spec) {
    const lines = spec.labelled ? spec.data.filter((t) => t.meta.kind === "line" && !gone(spec, t.meta.variant)) : [];
    const grey = lines.filter((t) => others.has(t.meta.variant)).map((t) => t.meta.variant);
    return lines.length > mostNames && grey.length ? `Grey: ${grey.join(", ")}.` : "";
  }

  function draw(id) {
    const div = document.getElementById(id), note = document.getElementById(`note-${id}`);
    const { name, spec } = chosen(id);
    const config = { responsive: true, displayModeBar: false };
    div.setAttribute("aria-label", spec.alt);
    size(id, spec);
    if (note) note.textContent = [spec.note, greyNames(spec)].filter(Boolean).join(" ");
    Plotly.react(div, ordered(spec.data).map(paint(spec)), layoutOf(id, name, spec, div.clientWidth), config);
  }

  // Figures are drawn one by one with a pause between, so that the page stays responsive.
  const due = new Set();
  let drawing = false;
  async function redraw(some) {
    some.forEach((id) => due.add(id));
    delete root.dataset.figures;
    if (drawing) return;
    drawing = true;
    for (const id of due) {
      due.delete(id);
      draw(id);
      await new Promise((later) => setTimeout(later));
    }
    drawing = false;
    root.dataset.figures = "drawn";
  }
  const byVariant = ids.filter((id) => chosen(id).spec.data.some((t) => t.meta.variant || t.meta.variants));

  function show(chip, on) {
    chip.setAttribute("aria-pressed", String(on));
    others[on ? "delete" : "add"](chip.dataset.variant);
  }

  chips.forEach((chip) => chip.addEventListener("click", () => {
    show(chip, !pressed(chip));
    redraw(byVariant);
  }));
  document.querySelectorAll("[data-show]").forEach((button) => button.addEventListener("click", () => {
    chips.forEach((chip) => show(chip, button.dataset.show === "all" || chip.classList.contains("strong")));
    redraw(byVariant);
  }));
  if (hideOthers) hideOthers.addEventListener("click", () => {
    hideOthers.setAttribute("aria-pressed", String(!pressed(hideOthers)));
    redraw(byVariant);
  });
  document.querySelectorAll(".scale[data-figure]").forEach((button) => button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(!pressed(button)));
    redraw([button.dataset.figure]);
  }));
  // The figure as it is now, in the style of a paper: light, of fixed width, and with its own legend.
  const isWide = (id) => !isFirst(id) && Boolean(document.getElementById(id).closest(".wide"));
  function onPaper(id) {
    const isPaper = root.classList.contains("paper");
    root.classList.add("paper");
    const { name, spec } = chosen(id);
    const inLegend = (t) => !spec.labelled && ["line", "area", "part", "segment"].includes(t.meta.kind);
    const data = ordered(spec.data).map(paint(spec)).map((t) => ({
      ...t, showlegend: inLegend(t) && t.visible && !others.has(t.meta.variant),
    }));
    const height = (spec.rows ? heightOf(id, spec, 22) : spec.height || 340) + 20;
    const width = isWide(id) ? paperWidth : 480;
    const layout = {
      ...layoutOf(id, name, spec, width),
      width, height,
      font: { family: "Helvetica, Arial, sans-serif", size: 12, color: css("--ink") },
      paper_bgcolor: "#fff", plot_bgcolor: "#fff",
      showlegend: true, legend: { orientation: "h", y: -56 / (height - 120), yanchor: "top", traceorder: "normal" },
    };
    root.classList.toggle("paper", isPaper);
    return { data, layout };
  }
  const fileName = (id) => [id, chosen(id).name].filter(Boolean).join("-").replace(/[^A-Za-z0-9.+_-]+/g, "-");

  // The page shows only this figure, on a sheet of its size.
  async function showSheet(id) {
    const figure = onPaper(id), { width, height } = figure.layout;
    const url = await Plotly.toImage(figure, { format: "svg", width, height });
    const sheet = document.createElement("div"), page = document.createElement("style"), { title } = document;
    sheet.id = "sheet";
    sheet.innerHTML = decodeURIComponent(url.slice(url.indexOf(",") + 1));
    page.textContent = `@page { size: ${width}px ${height}px; margin: 0; }`;
    document.body.append(sheet);
    document.head.append(page);
    root.classList.add("sheet");
    document.title = fileName(id); // which a browser suggests as the name of the file
    return () => {
      sheet.remove();
      page.remove();
      root.classList.remove("sheet");
      document.title = title;
    };
  }

  document.querySelectorAll(".save").forEach((button) => button.addEventListener("click", async () => {
    const { figure, format } = button.dataset;
    if (format === "pdf") {
      addEventListener("afterprint", await showSheet(figure), { once: true });
      window.print();
      return;
    }
    const { data, layout } = onPaper(figure);
    const { width, height } = layout;
    Plotly.downloadImage({ data, layout }, { filename: fileName(figure), format, width, height, scale: format === "png" ? 3 : 1 });
  }));
  new Set(ids.map(chooser).filter(Boolean)).forEach((select) => select.addEventListener("change", () => {
    redraw(ids.filter((id) => chooser(id) === select));
  }));

  // Print uses the light colours and a fixed width.
  function paper(on) {
    if (root.classList.contains("paper") === on || root.classList.contains("sheet")) return;
    root.classList.toggle("paper", on);
    due.clear();
    ids.forEach(draw);
    root.dataset.figures = "drawn";
  }
  addEventListener("beforeprint", () => paper(true));
  addEventListener("afterprint", () => paper(false));
  matchMedia("print").addEventListener("change", (event) => paper(event.matches));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(ids));
  matchMedia("(max-width: 860px)").addEventListener("change", () => redraw(ids));

  // Those of the first screen are drawn before the page has loaded, the others after it.
  ids.filter(isFirst).forEach(draw);
  redraw(ids.filter((id) => !isFirst(id)));
})();
