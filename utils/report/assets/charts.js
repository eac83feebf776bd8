// Charts of lines, drawn by uPlot; colors follow the page's light or dark mode.

const charts = [];

/** Return the value of a color of the page, such as "--ink". */
function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Return the name of the color of a line: ten colors, in turn. */
function seriesColor(index) {
  return `--series-${index % 10}`;
}

/**
 * Return a chart.
 * x: {title, values, text, range, whole, ticks}: numbers in ascending order; `whole` ones have no
 *   ticks between them; `ticks` gives the text of the tick at each value.
 * lines: [{name, values, color, dashed, width, faint}]: a value that is null is a gap. `faint` lines
 *   are gray until the pointer is near; the tooltip names the nearest one.
 * y: {title, text, range, log}.
 * group: charts of one group move their cursors together.
 * description: what a person hears who does not see the chart.
 */
function lineChart({ x, lines, y = {}, group, description, height = 210, legend = true }) {
  const plot = element("div", { class: "plot", tabindex: "0", role: "img", "aria-label": description });
  const tooltip = element("div", { class: "tooltip" });
  const box = element("div", { class: "chart" }, plot, tooltip);
  if (legend) box.append(chartLegend(lines.filter((line) => !line.faint)));
  charts.push({ plot, tooltip, x, lines, y, group, height, drawn: null, focused: null });
  return box;
}

function chartLegend(lines) {
  return element("div", { class: "legend" }, lines.map((line) => {
    const swatch = element("span", { class: line.dashed ? "swatch dashed" : "swatch" });
    swatch.style.color = `var(${line.color})`;
    return element("span", null, swatch, nameOf(line.name));
  }));
}

/** Draw all charts. They must be in the page by then, because their width follows from it. */
function drawCharts() {
  const observer = new ResizeObserver((entries) => {
    for (const { target, contentRect } of entries) {
      const chart = charts.find(({ plot }) => plot === target);
      const width = Math.floor(contentRect.width);
      if (width < 1) continue;
      if (!chart.drawn) chart.drawn = draw(chart, width);
      else if (chart.drawn.width !== width) chart.drawn.setSize({ width, height: chart.height });
    }
  });
  for (const { plot } of charts) observer.observe(plot);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const { drawn } of charts) if (drawn) drawn.redraw(false);
  });
}

/** Show or hide the lines of a run in all charts. */
function showLines(run, shown) {
  for (const { drawn, lines } of charts) {
    lines.forEach((line, i) => { if (drawn && line.run === run) drawn.setSeries(i + 1, { show: shown }); });
  }
}

function draw(chart, width) {
  const { plot, tooltip, x, lines, y, group, height } = chart;
  const axis = {
    stroke: () => color("--soft"), font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif",
    grid: { stroke: () => color("--grid"), width: 1 }, ticks: { show: false },
  };
  const points = x.values.length <= 30;
  const hasFaint = lines.some((line) => line.faint);
  const drawn = new uPlot({
    width, height,
    padding: [8, 12, 0, 0],
    legend: { show: false },
    cursor: {
      sync: group ? { key: group, setSeries: false } : undefined,
      drag: { x: true, y: false },
      focus: { prox: hasFaint ? 24 : -1 },
      points: { size: 6 },
      y: false,
    },
    focus: { alpha: hasFaint ? 0.25 : 1 },
    scales: {
      x: { time: false, range: x.range || ((u, low, high) => (low === high ? [low - 0.5, high + 0.5] : [low, high])) },
      y: { range: y.range || yRange, distr: y.log ? 3 : 1 },
    },
    axes: [
      { ...axis, label: x.title, labelSize: 18, size: 26, space: 44,
        incrs: x.whole ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] : undefined,
        ...(x.ticks ? { splits: () => x.values, values: (u, ticks) => ticks.map(x.ticks) } : {}) },
      { ...axis, size: yAxisSize, values: (u, ticks) => ticks.map((tick) => (tick === null ? "" : tickText(tick))) },
    ],
    series: [
      { label: x.title },
      ...lines.map((line) => ({
        label: line.name,
        stroke: () => color(line.faint ? "--faint-series" : line.color),
        width: line.width || 1.75,
        dash: line.dashed ? [6, 4] : undefined,
        spanGaps: true,
        points: { show: points && !line.faint, size: 4, fill: () => color(line.color) },
      })),
    ],
    hooks: {
      setCursor: [(u) => showTooltip(u, chart)],
      setSeries: [(u, index) => { chart.focused = index; showTooltip(u, chart); }],
    },
  }, [x.values, ...lines.map((line) => line.values)], plot);
  moveByKeys(plot, drawn, x.values);
  plot.addEventListener("mouseleave", () => { tooltip.style.display = "none"; });
  return drawn;
}

/** Return a range of the y axis with some room, from 0 where the values are near it. */
function yRange(u, low, high) {
  if (low === null || high === null) return [0, 1];
  if (low === high) return low === 0 ? [0, 1] : [Math.min(0, low * 2), Math.max(0, high * 1.25)];
  const room = (high - low) * 0.06;
  return [low >= 0 && low < high * 0.6 ? 0 : low - room, high + room];
}

function tickText(tick) {
  const size = Math.abs(tick);
  if (size && (size < 0.001 || size >= 1e6)) return tick.toExponential().replace("e+", "e");
  return String(Number(tick.toPrecision(6)));
}

/** Return the width of the y axis: that of its longest number. */
function yAxisSize(u, values) {
  const longest = (values || []).reduce((most, text) => Math.max(most, String(text).length), 2);
  return 14 + 7 * longest;
}

function showTooltip(u, { tooltip, plot, x, lines, y, focused }) {
  const { idx, left } = u.cursor;
  // Charts of a group move together, but only the one below the pointer, or in use, has a tooltip.
  const inUse = plot.matches(":hover") || document.activeElement === plot;
  if (idx === null || idx === undefined || left < 0 || !inUse) {
    tooltip.style.display = "none";
    return;
  }
  const shown = lines.map((line, i) => ({ line, value: line.values[idx], near: focused === i + 1, shown: u.series[i + 1].show }))
    .filter(({ line, value, near, shown: on }) => on && value !== null && value !== undefined && (!line.faint || near));
  const rows = shown.map(({ line, value }) => {
    const swatch = element("span", { class: line.dashed ? "swatch dashed" : "swatch" });
    swatch.style.color = line.faint ? "var(--ink)" : `var(${line.color})`;
    return element("div", { class: "row" }, element("span", null, swatch, nameOf(line.name)),
      element("span", null, (y.text || number)(value)));
  });
  const head = (x.text || ((value) => `${x.title} ${number(value)}`))(x.values[idx]);
  tooltip.replaceChildren(element("div", { class: "head" }, head), ...rows);
  tooltip.style.display = "block";
  const origin = u.over.offsetLeft + left;
  const flips = origin + tooltip.offsetWidth + 18 > plot.clientWidth;
  tooltip.style.left = `${Math.max(0, flips ? origin - tooltip.offsetWidth - 12 : origin + 12)}px`;
  tooltip.style.top = "8px";
}

/** Let the arrow keys move the cursor of a chart that has the focus. */
function moveByKeys(plot, drawn, values) {
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !values.length) return;
    event.preventDefault();
    const now = drawn.cursor.idx ?? (step > 0 ? -1 : values.length);
    const next = Math.max(0, Math.min(values.length - 1, now + step));
    drawn.setCursor({ left: drawn.valToPos(values[next], "x"), top: 10 });
  });
  plot.addEventListener("blur", () => drawn.setCursor({ left: -10, top: -10 }));
}
