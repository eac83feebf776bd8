// Curves over the epochs.

const LOSSES = {
  box: "How far boxes are from their objects.",
  obj: "Objectness: whether there is an object.",
  cls: "Which class it is.",
  l1: "Differences of the raw box values, in the epochs without mosaic.",
  dfl: "Distances to the sides of the box, as distributions.",
  o2o_box: "Boxes, of the head without NMS.",
  o2o_cls: "Classes, of the head without NMS.",
  o2o_dfl: "Distances to the sides, of the head without NMS.",
  feature: "How far its maps are from the teacher's.",
  output: "How far its boxes and scores are from the teacher's.",
};

const CURVES_NOTE =
  "Move the pointer over a chart, or choose it and use the arrow keys, to read the values of an " +
  "epoch; drag to enlarge, double-click to go back.";

function curves() {
  if (values.script !== "train.py") return null;
  if (!values.epochs.epoch) {
    const text = "No epoch has ended yet. Reload the page later.";
    return section("curves", "Curves", null, empty(text));
  }
  const cards = [...metricCharts(), ...lossCharts(), ...otherCharts()].filter(Boolean);
  const note = [...values.advice, CURVES_NOTE].join(" ");
  return section("curves", "Curves", note, div("columns", cards));
}

function metricCharts() {
  const { epochs } = values;
  const maps = [
    line("mAP50-95", epochs["metrics/mAP_0.5:0.95"], 0),
    line("mAP50", epochs["metrics/mAP_0.5"], 1),
  ];
  const rates = [
    line("precision", epochs["metrics/precision"], 0),
    line("recall", epochs["metrics/recall"], 1),
  ];
  return [
    epochChart("mAP", maps, { text: share },
      "Higher is better. Still rising at the end: train longer. Flat for long: more epochs will " +
      "not help."),
    epochChart("Precision and recall", rates, { text: share },
      "At the confidence of the best F1 of each epoch. Low recall: objects are missed. Low " +
      "precision: too much is detected."),
  ];
}

function lossCharts() {
  const { epochs } = values;
  const columns = Object.keys(epochs).filter((name) => /^train\/.*_loss$/.test(name));
  return columns.map((column) => {
    const term = column.slice("train/".length, -"_loss".length);
    const lines = [line("train", epochs[column], 0), line("val", epochs[`val/${term}_loss`], 1)];
    return epochChart(`Loss: ${term}`, lines, {}, LOSSES[term] || "A term of the loss.");
  });
}

function otherCharts() {
  const { epochs, unit } = values; // unit: image, or tile
  const title = `${unit[0].toUpperCase()}${unit.slice(1)}s per second`;
  return [
    epochChart("Learning rate", [line("learning rate", epochs.lr, 0)], {},
      "Of the last batch of each epoch: a short warm-up, then the schedule."),
    epochChart(title, [line(`${unit}s/s`, epochs.per_second, 0)], {},
      `Training ${unit}s by the time of the epoch, from its start to the start of the next one.`),
  ];
}

/** Return a chart over the epochs; null if no line has a value. */
function epochChart(title, lines, y, caption) {
  const isKnown = (list) => list && list.some((value) => value !== null);
  const known = lines.filter((entry) => isKnown(entry.values));
  if (!known.length) return null;

  const x = {
    title: "epoch",
    values: values.epochs.epoch,
    whole: true,
    text: (epoch) => `epoch ${epoch}`,
  };
  const last = known.map((entry) => {
    const value = entry.values.filter((one) => one !== null).at(-1);
    return `${entry.name} ${number(value)}`;
  });
  const description = `Chart: ${title}. At the end: ${last.join(", ")}.`;
  return card(title, lineChart({ x, lines: known, y, group: "epochs", description }), caption);
}

/** Return a line of a chart in the color of its number. */
function line(name, list, index, more) {
  return { name, values: list, color: seriesColor(index), ...more };
}
