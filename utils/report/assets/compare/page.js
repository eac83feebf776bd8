// Several runs side by side.

const values = readValues();
const { runs } = values;
const trained = runs.filter((run) => run.epochs);
const AP = "metrics/mAP_0.5:0.95";

// A run's lines have one color in all charts; beyond ten runs they are dashed.
runs.forEach((run, i) => {
  run.color = seriesColor(i);
  run.dashed = i >= 10;
});

// ---- the table of runs

const RUNS_NOTE =
  "Metrics of best.pt on the val split, or of val.py; P and R at the confidence of the best F1. " +
  `★ marks the best value. ${DASH}: not known. A click on a heading sorts.`;

function runTable() {
  const table = sortableTable(runColumns(), runs, { caption: "Runs", sortedBy: "AP" });
  const problems = values.problems.map((problem) => element("li", null, nameOf(problem)));
  return section("runs", "Runs", RUNS_NOTE, div("card", table),
    problems.length > 0 && element("ul", { class: "problems" }, problems));
}

function runColumns() {
  const list = (key) => runs.map((run) => run[key]);
  const metric = (title, key, help) =>
    ({ title, key, kind: "number", text: share, help, best: bestOf(list(key)) });
  const whole = (title, key) => ({ title, key, kind: "number", text: count });
  const time = (title, key, help) =>
    ({ title, key, kind: "number", text: duration, help, best: bestOf(list(key), Math.min) });
  return [
    { title: "run", key: "name", kind: "name" },
    metric("mAP50-95", "AP", "COCO's mean AP over IoU 0.50 to 0.95"),
    metric("mAP50", "AP50", "at IoU 0.50"),
    metric("mAP75", "AP75", "at IoU 0.75"),
    metric("S", "APs", "mAP50-95 of objects up to 32² pixels"),
    metric("M", "APm", "mAP50-95 of objects of 32² to 96² pixels"),
    metric("L", "APl", "mAP50-95 of objects from 96² pixels"),
    metric("P", "precision", "precision"),
    metric("R", "recall", "recall"),
    whole("best epoch", "best_epoch"),
    whole("epochs", "epochs"),
    time("s/epoch", "seconds", "time per epoch: median"),
    time("training", "total", "sum of the epochs"),
    { title: "status", key: "status", kind: "word" },
  ];
}

/** Return the best of the known values, undefined if all are alike, or shown as 0.000. */
function bestOf(list, pick = Math.max) {
  const known = list.filter((value) => value !== null);
  const isZero = pick === Math.max && share(Math.max(...known)) === share(0);
  return new Set(known).size > 1 && !isZero ? pick(...known) : undefined;
}

// ---- curves

const COMPARED_CURVES_NOTE =
  "Choose runs below. Move the pointer over a chart, or choose it and use the arrow keys, to " +
  "read values; drag to enlarge, double-click to go back. Losses of different models do not " +
  "compare, only their courses.";

function runCurves() {
  if (!trained.length) {
    return section("curves", "Curves", null, empty("No run has the results of an epoch."));
  }
  const cards = [
    epochChart("mAP50-95", AP, { text: share }),
    epochChart("mAP50", "metrics/mAP_0.5", { text: share }),
    timeChart(),
    epochChart("Precision", "metrics/precision", { text: share }),
    epochChart("Recall", "metrics/recall", { text: share }),
    ...lossColumns().map((column) => epochChart(lossTitle(column), column)),
    epochChart("Learning rate", "lr"),
    epochChart("Seconds per epoch", "time"),
  ];
  return section("curves", "Curves", COMPARED_CURVES_NOTE,
    div("controls", trained.map(runToggle)), div("columns", cards));
}

/** Return a check box that shows and hides a run in all charts, with the run's color. */
function runToggle(run) {
  const onchange = () => showLines(run.name, input.checked);
  const input = element("input", { type: "checkbox", checked: true, onchange });
  return element("label", null, input, element("span", null, swatch(run), nameOf(run.name)));
}

function lossColumns() {
  const columns = new Set(trained.flatMap((run) => Object.keys(run.columns)));
  return [...columns].filter((name) => /^(val|train)\/.*_loss$/.test(name)).sort();
}

function lossTitle(column) {
  const [split, term] = column.split("/");
  return `${split} loss: ${term.replace(/_loss$/, "")}`;
}

/** Return a chart of a column of all runs over the epochs; null if no run has it. */
function epochChart(title, column, y = {}) {
  const isKnown = (list) => list && list.some((value) => value !== null);
  const shown = trained.filter((run) => isKnown(run.columns[column]));
  if (!shown.length) return null;

  const epochs = sortedValues(trained.map((run) => run.columns.epoch));
  const lines = shown.map((run) => runLine(run, epochs, run.columns.epoch, column));
  const x = { title: "epoch", values: epochs, whole: true, text: (epoch) => `epoch ${epoch}` };
  const description = `Chart: ${title} of ${counted(lines.length, "run")} over the epochs.`;
  return card(title, lineChart({ x, lines, y, group: "epochs", description, legend: false }));
}

/** Return a chart of mAP50-95 over the time of training; null if no run has both. */
function timeChart() {
  const timed = trained.filter((run) => run.columns.time && run.columns[AP]);
  if (!timed.length) return null;

  const longest = Math.max(...timed.map((run) => run.total || 0));
  const [unit, seconds] = longest > 7200 ? ["hours", 3600] : ["minutes", 60];
  const clocks = timed.map((run) => runningSum(run.columns.time).map((sum) => sum / seconds));
  const times = sortedValues(clocks);
  const lines = timed.map((run, i) => runLine(run, times, clocks[i], AP));
  const text = (time) => `${number(time, 3)} ${unit}`;
  const x = { title: `${unit} of training`, values: times, text };
  const description = "Chart: mAP50-95 over the time of training.";
  const chart = lineChart({ x, lines, y: { text: share }, description, legend: false });
  return card("mAP50-95 over time", chart);
}

/** Return a run's column at the places of an axis, null where the run has none. */
function runLine(run, places, own, column) {
  const at = new Map(own.map((place, i) => [place, run.columns[column][i]]));
  const list = places.map((place) => at.get(place) ?? null);
  return { name: run.name, values: list, color: run.color, dashed: run.dashed };
}

function runningSum(list) {
  let sum = 0;
  return list.map((value) => (sum += value || 0));
}

/** Return the values of several lists in ascending order, each once. */
function sortedValues(lists) {
  const known = lists.flat().filter((value) => value !== null);
  return [...new Set(known)].sort((a, b) => a - b);
}

// ---- settings and classes

function settingsTable() {
  if (runs.length < 2) return null;
  const title = "Settings that differ";
  const rows = [...values.settings, ...values.hyp].map(([name, list]) => ({ name, ...list }));
  if (!rows.length) {
    const text = "No setting and no hyper-parameter differs between the runs.";
    return section("settings", title, null, empty(text));
  }

  const text = (value) => (value === null || value === "" ? DASH : nameOf(value));
  const columns = [
    { title: "setting", key: "name", kind: "name" },
    ...perRun({ kind: "word", text }),
  ];
  const table = sortableTable(columns, rows, { caption: title });
  const note =
    "All others are alike. Two runs that differ in one setting only show what it does, but for " +
    "chance: repeat them with other seeds.";
  return section("settings", title, note, div("card", table));
}

function classTable() {
  if (!values.classes.length) return null;
  const title = "AP50-95 of each class";
  const rows = values.classes.map(([name, list]) => ({ name, ...list, most: bestOf(list) }));
  const columns = [
    { title: "class", key: "name", kind: "name" },
    ...perRun({ kind: "number", text: share, best: "row" }),
  ];
  const table = sortableTable(columns, rows, { caption: title, filter: rows.length > 15 });
  const note =
    "★ marks the best run of a class. Differences of classes with few objects are mostly chance.";
  return section("classes", title, note, div("card", table));
}

/** Return a column for each run. */
function perRun(column) {
  return runs.map((run, i) => ({ title: nameOf(run.name), key: i, ...column }));
}

show({
  title: `${counted(runs.length, "run")} compared`,
  sections: [runTable(), runCurves(), settingsTable(), classTable()],
  values,
});
drawCharts();
