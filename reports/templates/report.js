"use strict";
(() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const source = document.getElementById("specs");
  const specs = source ? JSON.parse(source.textContent) : {};
  const chips = [...document.querySelectorAll(".chip")];
  const hidden = new Set();

  const fade = (hex, alpha) => {
    const n = parseInt(hex.slice(1), 16);
    return `rgba(${n >> 16}, ${(n >> 8) & 255}, ${n & 255}, ${alpha})`;
  };

  function paint(trace, narrow) {
    const colour = css(`--s${trace.meta.slot}`);
    const shown = !hidden.has(trace.meta.variant) && !(narrow && trace.meta.kind === "label");
    const painted = { ...trace, visible: shown, showlegend: false };
    if (trace.meta.kind === "band") painted.fillcolor = fade(colour, 0.14);
    if (trace.meta.kind === "label") painted.textfont = { color: colour, size: 13 };
    if (trace.line) painted.line = { ...trace.line, color: colour };
    if (trace.marker && trace.meta.kind !== "label") {
      painted.marker = { ...trace.marker, color: colour, line: { ...trace.marker.line, color: colour } };
    }
    if (trace.error_x) painted.error_x = { ...trace.error_x, color: colour };
    return painted;
  }

  // 1, 2 and 5 in each decade, written out: plotly would write some of them as a lone digit.
  function decades(spec, key) {
    const values = spec.data.flatMap((t) => (t.meta.kind === "band" ? [] : t[key])).filter((v) => v > 0);
    const ticks = [];
    for (let e = Math.floor(Math.log10(Math.min(...values))); e <= Math.log10(Math.max(...values)) + 1; e++) {
      ticks.push(...[1, 2, 5].map((digit) => digit * 10 ** e));
    }
    return { type: "log", tickvals: ticks, ticktext: ticks.map((t) => t.toLocaleString("en")) };
  }

  function axis(of, extra) {
    const title = of.title ? { ...of.title, standoff: 8, font: { size: 12, color: css("--soft") } } : undefined;
    const look = { gridcolor: css("--grid"), linecolor: css("--line"), zerolinecolor: css("--line"),
      tickfont: { color: css("--soft"), size: 12 }, automargin: true,
      exponentformat: "none", separatethousands: true };
    return { ...look, ...of, title, ...extra };
  }

  function draw(id) {
    const spec = specs[id], div = document.getElementById(id);
    const narrow = div.clientWidth < 480, dots = spec.data.some((t) => t.meta.kind === "dot");
    const scale = document.querySelector(`.scale[data-figure="${id}"]`);
    const log = scale && scale.getAttribute("aria-pressed") === "true";
    const value = log ? decades(spec, dots ? "x" : "y") : { type: "linear" };
    const label = spec.data.filter((t) => t.meta.kind === "label").map((t) => t.text[0].length);
    const layout = {
      ...spec.layout,
      height: spec.layout.height || 380,
      margin: { l: 8, r: narrow || dots ? 14 : Math.min(150, 8 * Math.max(4, ...label)), t: 22, b: 8 },
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: css("--ink") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      hovermode: "closest", showlegend: false,
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--line"), activecolor: css("--accent") },
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink"), size: 13 }, align: "left" },
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      xaxis: axis(spec.layout.xaxis, dots ? value : { zeroline: false }),
      yaxis: axis(spec.layout.yaxis, dots ? {} : value),
    };
    const config = { responsive: true, displaylogo: false, displayModeBar: narrow ? false : "hover",
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
      toImageButtonOptions: { filename: id, scale: 2 } };
    Plotly.react(div, spec.data.map((trace) => paint(trace, narrow)), layout, config);
  }

  const drawAll = () => Object.keys(specs).forEach(draw);

  function show(chip, on) {
    chip.setAttribute("aria-pressed", String(on));
    hidden[on ? "delete" : "add"](chip.dataset.variant);
  }

  chips.forEach((chip) => chip.addEventListener("click", () => {
    show(chip, chip.getAttribute("aria-pressed") === "false");
    drawAll();
  }));
  document.querySelectorAll("[data-show]").forEach((button) => button.addEventListener("click", () => {
    chips.forEach((chip) => show(chip, button.dataset.show === "all" || chip.classList.contains("strong")));
    drawAll();
  }));
  document.querySelectorAll(".scale").forEach((button) => button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") === "false"));
    draw(button.dataset.figure);
  }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawAll();

  const headings = [...document.querySelectorAll(".cells thead th")];
  headings.forEach((th, column) => th.firstElementChild.addEventListener("click", () => {
    const descending = th.getAttribute("aria-sort") === "ascending";
    headings.forEach((other) => other.removeAttribute("aria-sort"));
    th.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const body = th.closest("table").tBodies[0];
    const key = (row) => row.cells[column].dataset.sort;
    const compare = (a, b) => key(a) === undefined
      ? a.cells[column].textContent.localeCompare(b.cells[column].textContent)
      : Number(key(a)) - Number(key(b));
    body.append(...[...body.rows].sort((a, b) => (descending ? -1 : 1) * compare(a, b)));
  }));
})();
