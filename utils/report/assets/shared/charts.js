// Charts of lines, drawn by uPlot; colors follow the page's light or dark mode.

const charts = [];
const FONT = "12px system-ui, sans-serif";
const FEW_POINTS = 30; // of a line whose points are drawn
const WHOLE_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];

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
 * lines: [{name, values, color, dashed, width, faint}]: a value that is null is a gap. A `faint`
 *   line is gray until the pointer is near; the tooltip names the nearest one.
 * y: {text, range, log}.
 * group: charts of one group move their cursors together.
 * height: in pixels.
 * description: what a person hears who does not see the chart.
 */
function lineChart({ x, lines, y = {}, group, description, height = 210, legend = true }) {
  const plot = element("div",
    { class: "plot", tabindex: "0", role: "img", "aria-label": description });
  // A screen reader says what the arrow keys show.
  const tooltip = element("div", { class: "tooltip", role: "status" });
  charts.push({ plot, tooltip, x, lines, y, group, height, drawn: null, nearest: null });
  return div("chart", plot, tooltip, legend && chartLegend(lines.filter((line) => !line.faint)));
}

function chartLegend(lines) {
  return div("legend", lines.map((line) => element("span", null, swatch(line), nameOf(line.name))));
}

/** Return a short stroke in the color of a line. */
function swatch({ color: name, dashed, faint }) {
  const stroke = element("span", { class: dashed ? "swatch dashed" : "swatch" });
  stroke.style.color = `var(${faint ? "--ink" : name})`;
  return stroke;
}

/** Draw all charts. They must be in the page by then, because their width follows from it. */
function drawCharts() {
  const observer = new ResizeObserver((entries) => {
    for (const { target, contentRect } of entries) {
      const chart = charts.find(({ plot }) => plot === target);
      fitChart(chart, Math.floor(contentRect.width));
    }
  });
  for (const { plot } of charts) observer.observe(plot);

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const { drawn } of charts) if (drawn) drawn.redraw(false);
  });
}

function fitChart(chart, width) {
  if (width < 1) return;
  if (!chart.drawn) chart.drawn = drawChart(chart, width);
  else if (chart.drawn.width !== width) chart.drawn.setSize({ width, height: chart.height });
}

/** Show or hide the lines of a name in all charts. */
function showLines(name, shown) {
  for (const { drawn, lines } of charts) {
    lines.forEach((line, i) => {
      if (drawn && line.name === name) drawn.setSeries(i + 1, { show: shown });
    });
  }
}

function drawChart(chart, width) {
  const { plot, tooltip, x, lines, y, group, height } = chart;
  const hasFaint = lines.some((line) => line.faint);
  const options = {
    width,
    height,
    padding: [8, 12, 0, 0],
    legend: { show: false }, // ours is HTML, and so are the values
    cursor: {
      sync: group ? { key: group, setSeries: false } : undefined,
      drag: { x: true, y: false },
      focus: { prox: hasFaint ? 24 : -1 },
      points: { size: 6 },
      y: false,
    },
    focus: { alpha: hasFaint ? 0.25 : 1 },
    scales: {
      x: { time: false, range: x.range || xRange },
      y: { range: y.range || yRange, distr: y.log ? 3 : 1 },
    },
    axes: [xAxis(x), yAxis()],
    series: [{}, ...lines.map((line) => series(line, x.values.length))],
    hooks: {
      setCursor: [() => showTooltip(chart)],
      setSeries: [
        (_, index) => {
          chart.nearest = index;
          showTooltip(chart);
        },
      ],
    },
  };
  const drawn = new uPlot(options, [x.values, ...lines.map((line) => line.values)], plot);
  moveByKeys(plot, drawn, x.values);
  plot.addEventListener("mouseleave", () => (tooltip.style.display = "none"));
  return drawn;
}

function series(line, points) {
  return {
    stroke: () => color(line.faint ? "--faint-series" : line.color),
    width: line.width || 1.75,
    dash: line.dashed ? [6, 4] : undefined,
    spanGaps: true,
    points: {
      show: points <= FEW_POINTS && !line.faint,
      size: 4,
      fill: () => color(line.color),
    },
  };
}

// ---- axes

function axis(more) {
  return {
    stroke: () => color("--soft"),
    font: FONT,
    labelFont: FONT,
    grid: { stroke: () => color("--grid"), width: 1 },
    ticks: { show: false },
    ...more,
  };
}

function xAxis(x) {
  const options = { label: x.title, labelSize: 18, size: 26, space: 44 };
  if (x.whole) options.incrs = WHOLE_STEPS;
  if (x.ticks) {
    options.splits = () => x.values;
    options.values = (_, ticks) => ticks.map(x.ticks);
  }
  return axis(options);
}

function yAxis() {
  const values = (_, ticks) => ticks.map((tick) => (tick === null ? "" : tickText(tick)));
  return axis({ size: yAxisSize, values });
}

function xRange(_, low, high) {
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

/** Return a range of the y axis with some room, from 0 where the values are near it. */
function yRange(_, low, high) {
  if (low === null || high === null) return [0, 1];
  if (low === high) return low ? [Math.min(0, low * 2), Math.max(0, high * 1.25)] : [0, 1];
  const room = (high - low) * 0.06;
  const isNearZero = low >= 0 && low < high * 0.6;
  return [isNearZero ? 0 : low - room, high + room];
}

function tickText(tick) {
  const size = Math.abs(tick);
  if (size && (size < 0.001 || size >= 1e6)) return tick.toExponential().replace("e+", "e");
  return String(Number(tick.toPrecision(6)));
}

/** Return the width of the y axis: that of its longest number. */
function yAxisSize(_, texts) {
  const longest = (texts || []).reduce((most, text) => Math.max(most, String(text).length), 2);
  return 14 + 7 * longest;
}

// ---- values below the pointer, or the cursor that the arrow keys move

function showTooltip({ drawn, tooltip, plot, x, lines, y, nearest }) {
  if (!drawn) return; // uPlot calls its hooks while it is built, too
  const { idx, left } = drawn.cursor;
  // Charts of a group move together, but only the one that is in use has a tooltip.
  const isUsed = plot.matches(":hover") || document.activeElement === plot;
  if (idx === null || idx === undefined || left < 0 || !isUsed) {
    tooltip.style.display = "none";
    return;
  }

  const isShown = (line, i) => {
    const isKnown = line.values[idx] !== null && line.values[idx] !== undefined;
    return isKnown && drawn.series[i + 1].show && (!line.faint || nearest === i + 1);
  };
  const rows = lines.filter(isShown).map((line) => {
    const value = (y.text || number)(line.values[idx]);
    return div("row", element("span", null, swatch(line), nameOf(line.name)),
      element("span", null, value));
  });
  const text = x.text || ((value) => `${x.title} ${number(value)}`);
  tooltip.replaceChildren(div("head", text(x.values[idx])), ...rows);
  placeTooltip(tooltip, drawn.over.offsetLeft + left, plot.clientWidth);
}

/** Show a tooltip beside a place, within the width of the chart. */
function placeTooltip(tooltip, place, width) {
  tooltip.style.display = "block";
  const isRight = place + tooltip.offsetWidth + 18 > width;
  const left = isRight ? place - tooltip.offsetWidth - 12 : place + 12;
  tooltip.style.left = `${Math.max(0, left)}px`;
  tooltip.style.top = "8px";
}

/** Let the arrow keys move the cursor of a chart that has the focus. */
function moveByKeys(plot, drawn, values) {
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !values.length) return;
    event.preventDefault();
    const before = drawn.cursor.idx ?? (step > 0 ? -1 : values.length);
    const next = Math.max(0, Math.min(values.length - 1, before + step));
    drawn.setCursor({ left: drawn.valToPos(values[next], "x"), top: 10 });
  });
  plot.addEventListener("blur", () => drawn.setCursor({ left: -10, top: -10 }));
}
