// Several runs side by side.

const values = readValues();
const { runs } = values;

// A run's lines have one color in all charts; beyond ten runs they are dashed.
runs.forEach((run, i) => { run.color = seriesColor(i); run.dashed = i >= 10; });

function table() {
  const best = (key, pick = Math.max) => {
    const known = runs.map((run) => run[key]).filter((value) => value !== null);
    return new Set(known).size > 1 ? pick(...known) : undefined;
  };
  const metric = (title, key, help) => ({ title, key, kind: "number", text: share, help, best: best(key) });
  const columns = [
    { title: "run", key: "name", kind: "name" },
    metric("mAP50-95", "AP", "COCO's mean AP over IoU 0.50 to 0.95"), metric("mAP50", "AP50", "at IoU 0.50"), metric("mAP75", "AP75", "at IoU 0.75"),
    metric("S", "APs", "mAP50-95 of objects up to 32² pixels"), metric("M", "APm", "mAP50-95 of objects of 32² to 96² pixels"),
    metric("L", "APl", "mAP50-95 of objects from 96² pixels"), metric("P", "precision", "precision"), metric("R", "recall", "recall"),
    { title: "best epoch", key: "best_epoch", kind: "number", text: count },
    { title: "epochs", key: "epochs", kind: "number", text: count },
    { title: "time per epoch", key: "seconds", kind: "number", text: duration, help: "median", best: best("seconds", Math.min) },
    { title: "training", key: "total", kind: "number", text: duration, help: "sum of the epochs", best: best("total", Math.min) },
    { title: "status", key: "status", kind: "word" },
  ];
  return section("runs", "Runs",
    `Metrics of best.pt on the val split, or of val.py; P and R at the confidence of the best F1. ★ marks the best value. ${DASH}: not known. A click on a heading sorts.`,
    element("div", { class: "card" }, sortableTable(columns, runs, { caption: "Runs", sortedBy: "AP" })),
    values.problems.length > 0 && element("ul", { class: "problems" }, values.problems.map((problem) => element("li", null, nameOf(problem)))));
}

function settings() {
  const title = "Settings that differ";
  const rows = [...values.settings, ...values.hyp];
  if (runs.length < 2) return null;
  if (!rows.length) return section("settings", title, null, empty("No setting and no hyper-parameter differs between the runs."));
  const columns = [{ title: "setting", key: "name", kind: "name" },
    ...runs.map((run, i) => ({ title: nameOf(run.name), key: i, kind: "word", text: (value) => (value === null ? DASH : nameOf(value || "–")) }))];
  return section("settings", title, "All others are alike. Two runs that differ in one setting only show what it does, but for chance: repeat them with other seeds.",
    element("div", { class: "card" }, sortableTable(columns, rows.map(([name, list]) => ({ name, ...list })), { caption: title })));
}

function curves() {
  const trained = runs.filter((run) => run.epochs);
  if (!trained.length) return section("curves", "Curves", null, empty("No run has the results of an epoch."));
  const names = [...new Set(trained.flatMap((run) => Object.keys(run.columns)))];
  const epochs = axis(trained.map((run) => run.columns.epoch));
  const x = { title: "epoch", values: epochs, whole: true, text: (epoch) => `epoch ${epoch}` };
  const charts = [];
  const add = (title, key, y) => {
    const lines = trained.filter((run) => run.columns[key] && run.columns[key].some((value) => value !== null))
      .map((run) => ({ name: run.name, values: onAxis(epochs, run.columns.epoch, run.columns[key]), color: run.color, dashed: run.dashed, run: run.name }));
    if (lines.length) charts.push(card(title, lineChart({ x, lines, y, group: "epochs", description: `Chart: ${title} of ${counted(lines.length, "run")} over the epochs.`, legend: false })));
  };
  add("mAP50-95", "metrics/mAP_0.5:0.95", { text: share });
  add("mAP50", "metrics/mAP_0.5", { text: share });
  const inTime = overTime(trained);
  if (inTime) charts.push(inTime);
  add("Precision", "metrics/precision", { text: share });
  add("Recall", "metrics/recall", { text: share });
  for (const name of names.filter((column) => /^(val|train)\/.*_loss$/.test(column)).sort()) {
    const [split, term] = name.split("/");
    add(`${split} loss: ${term.replace(/_loss$/, "")}`, name);
  }
  add("Learning rate", "lr");
  add("Seconds per epoch", "time");
  const keys = element("div", { class: "controls" }, trained.map((run) => {
    const input = element("input", { type: "checkbox", checked: true, onchange: () => showLines(run.name, input.checked) });
    const swatch = element("span", { class: run.dashed ? "swatch dashed" : "swatch" });
    swatch.style.color = `var(${run.color})`;
    return element("label", null, input, element("span", null, swatch, nameOf(run.name)));
  }));
  return section("curves", "Curves", "Choose runs below. Move the pointer over a chart, or choose it and use the arrow keys, to read values; drag to enlarge, double-click to go back. Losses of different models do not compare, only their courses.",
    keys, element("div", { class: "columns" }, charts));
}

/** Return a chart of mAP50-95 over the time of training, null if no run has both. */
function overTime(trained) {
  const key = "metrics/mAP_0.5:0.95";
  const timed = trained.filter((run) => run.columns.time && run.columns[key]);
  const unit = Math.max(...timed.map((run) => run.total || 0)) > 7200 ? ["hours", 3600] : ["minutes", 60];
  const clocks = timed.map((run) => {
    let sum = 0;
    return run.columns.time.map((seconds) => (sum += seconds || 0) / unit[1]);
  });
  if (!timed.length) return null;
  const times = axis(clocks);
  const lines = timed.map((run, i) => ({ name: run.name, values: onAxis(times, clocks[i], run.columns[key]), color: run.color, dashed: run.dashed, run: run.name }));
  return card("mAP50-95 over time", lineChart({ x: { title: `${unit[0]} of training`, values: times, text: (time) => `${number(time, 3)} ${unit[0]}` },
    lines, y: { text: share }, description: "Chart: mAP50-95 over the time of training.", legend: false }));
}

/** Return the values of several lists in ascending order, each once. */
function axis(lists) {
  return [...new Set(lists.flat().filter((value) => value !== null))].sort((a, b) => a - b);
}

/** Return a list of values at the places of another axis, null where there is none. */
function onAxis(places, own, list) {
  const at = new Map(own.map((place, i) => [place, list[i]]));
  return places.map((place) => at.get(place) ?? null);
}

/** Return the highest value, undefined unless there is a lower one. */
function bestOf(list) {
  const known = list.filter((value) => value !== null);
  return new Set(known).size > 1 ? Math.max(...known) : undefined;
}

function classes() {
  const rows = values.classes.map(([name, list]) => ({ name, ...list, most: bestOf(list) }));
  if (!rows.length) return null;
  const columns = [{ title: "class", key: "name", kind: "name" },
    ...runs.map((run, i) => ({ title: nameOf(run.name), key: i, kind: "number", text: share, best: runs.length > 1 ? "row" : undefined }))];
  return section("classes", "AP50-95 of each class", "★ marks the best run of a class. Differences of classes with few objects are mostly chance.",
    element("div", { class: "card" }, sortableTable(columns, rows, { caption: "AP of each class", filter: rows.length > 15 })));
}

show({
  title: `${counted(runs.length, "run")} compared`, path: null, badge: null,
  sections: [table(), curves(), settings(), classes()].filter(Boolean),
  foot: `Written by Kestrel ${values.version} on ${values.written}. This page is one file: it loads nothing and sends nothing.`,
});
drawCharts();
