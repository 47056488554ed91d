"use strict";
(async () => {
  const root = document.documentElement;
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  if (typeof DecompressionStream === "undefined") {
    document.getElementById("unpacked").hidden = false;
    root.classList.add("no-figures");
    return;
  }
  async function unpack(id, format) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream(format));
    return new Response(stream).text();
  }
  const figures = JSON.parse(await unpack("specs", "deflate"));
  const script = document.createElement("script");
  script.textContent = await unpack("plotly", "gzip");
  document.head.append(script);

  const ids = Object.keys(figures);
  const chips = [...document.querySelectorAll(".chip")];
  const pressed = (button) => button.getAttribute("aria-pressed") === "true";
  const hidden = new Set(chips.filter((chip) => !pressed(chip)).map((chip) => chip.dataset.variant));
  const paperWidth = 680;

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
    const only = (list) => list.filter((_, k) => !hidden.has(trace.meta.variants[k]));
    return { ...trace, x: only(trace.x), y: only(trace.y), text: only(trace.text) };
  }

  function paint(trace, narrow) {
    const colour = css(`--${trace.meta.colour}`), kind = trace.meta.kind;
    const shown = !hidden.has(trace.meta.variant) && !(narrow && kind === "label");
    const painted = { ...kept(trace), visible: shown, showlegend: false };
    if (kind === "band") painted.fillcolor = fade(colour, 0.14);
    if (kind === "area") painted.fillcolor = fade(colour, 0.55);
    if (kind === "label" || kind === "total") painted.textfont = { color: colour, size: 13 };
    if (kind === "part") painted.marker = { color: colour, line: { color: css("--card"), width: 1 } };
    if (kind === "segment") painted.marker = { color: colour, line: { width: 0 } };
    if (trace.line) painted.line = { ...trace.line, color: colour };
    if (trace.marker && kind !== "label") {
      painted.marker = { ...trace.marker, color: colour, line: { ...trace.marker.line, color: colour } };
    }
    if (trace.error_x) painted.error_x = { ...trace.error_x, color: colour };
    return painted;
  }

  // 1, 2 and 5 in each decade, written out: plotly would write some of them as a lone digit.
  function decades(spec, most) {
    const values = spec.data
      .flatMap((t) => (t.meta.kind === "band" || hidden.has(t.meta.variant) ? [] : t[spec.value]))
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
  function rowAxis(spec) {
    if (!spec.rows) return {};
    const shown = spec.rows.filter(([name]) => !hidden.has(name)).reverse();
    const names = shown.map(([name]) => name);
    return { showgrid: false, categoryorder: "array", categoryarray: names, tickvals: names, tickfont: { color: css("--ink"), size: 12.5 },
      ticktext: shown.map(([, label]) => label), range: [-0.6, names.length - 0.4] };
  }

  function layoutOf(id, div, choice, spec, narrow) {
    const scale = document.querySelector(`.scale[data-figure="${id}"]`);
    const log = Boolean(scale) && pressed(scale);
    const across = spec.value === "x";
    const value = log ? decades(spec, (across ? 2.2 : 3.5) - (narrow ? 1 : 0)) : { type: "linear" };
    const rows = rowAxis(spec);
    const labels = spec.data.filter((t) => t.meta.kind === "label").map((t) => t.text[0].length);
    const totals = spec.data.some((t) => t.meta.kind === "total");
    const right = totals ? 66 : narrow || across || !labels.length ? 14 : Math.min(150, 8 * Math.max(4, ...labels));
    const layout = {
      ...spec.layout,
      autosize: true,
      margin: { l: 8, r: right, t: 22, b: 8 },
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: css("--ink") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      hovermode: "closest", showlegend: false, uirevision: `${choice} ${log}`,
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink"), size: 13 }, align: "left" },
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      xaxis: axis(spec.layout.xaxis, across ? value : { zeroline: false }),
      yaxis: axis(spec.layout.yaxis, across ? rows : value),
    };
    for (const other of ["yaxis2", "yaxis3"]) {
      if (spec.layout[other]) layout[other] = axis(spec.layout[other], {});
    }
    if (spec.layout.shapes) layout.shapes = spec.layout.shapes.map((s) => ({ ...s, line: { ...s.line, color: css("--soft") } }));
    return layout;
  }

  // plotly fills the element, also after the window is resized.
  function size(div, spec) {
    const rows = spec.rows && Math.max(2, spec.rows.filter(([name]) => !hidden.has(name)).length);
    div.style.height = `${rows ? 96 + 27 * rows : spec.height || 380}px`;
    div.style.width = root.classList.contains("paper") ? `${paperWidth}px` : "";
  }

  function draw(id) {
    const div = document.getElementById(id), note = document.getElementById(`note-${id}`);
    const { name, spec } = chosen(id);
    const narrow = div.clientWidth < 480 && !root.classList.contains("paper");
    const config = { responsive: true, displayModeBar: false };
    div.setAttribute("aria-label", spec.alt);
    size(div, spec);
    if (note) note.textContent = spec.note || "";
    Plotly.react(div, spec.data.map((trace) => paint(trace, narrow)), layoutOf(id, div, name, spec, narrow), config);
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
    hidden[on ? "delete" : "add"](chip.dataset.variant);
  }

  chips.forEach((chip) => chip.addEventListener("click", () => {
    show(chip, !pressed(chip));
    redraw(byVariant);
  }));
  document.querySelectorAll("[data-show]").forEach((button) => button.addEventListener("click", () => {
    chips.forEach((chip) => show(chip, button.dataset.show === "all" || chip.classList.contains("strong")));
    redraw(byVariant);
  }));
  document.querySelectorAll(".scale").forEach((button) => button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(!pressed(button)));
    redraw([button.dataset.figure]);
  }));
  document.querySelectorAll(".save").forEach((button) => button.addEventListener("click", () => {
    const { figure } = button.dataset;
    Plotly.downloadImage(figure, { filename: figure, format: "png", scale: 2 });
  }));
  new Set(ids.map(chooser).filter(Boolean)).forEach((select) => select.addEventListener("change", () => {
    redraw(ids.filter((id) => chooser(id) === select));
  }));

  // Print uses the light colours and a fixed width.
  function paper(on) {
    if (root.classList.contains("paper") === on) return;
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
  redraw(ids);
})();
