// The report of one run. Each function returns a section, or null if the run has nothing for it.

const values = readValues();
const evaluation = values.evaluation;
const names = evaluation ? evaluation.classes.map((row) => row.name) : [];
const LATER = values.status.state === "running" ? "Written when the training has ended." : "This run has none.";
const NOT_VALIDATED = values.status.state === "running"
  ? "No epoch has been validated yet. Reload the page later."
  : "The run was not validated.";

// ---- the result in a few numbers

function overview() {
  if (!evaluation) return section("overview", "Result", null, empty(NOT_VALIDATED));
  const { stats, precision, recall, confidence } = evaluation;
  const of100 = (value) => Math.round(value * 100);
  const hasTruth = stats.AP >= 0;
  const figures = [
    figure("mAP50-95", share(stats.AP), "COCO's mean AP over IoU 0.50 to 0.95; 1: every object found, every box exact"),
    figure("mAP50", share(stats.AP50), "the same at IoU 0.50: a box may be off by a little"),
    figure("Precision", hasTruth ? share(precision) : DASH,
      hasTruth ? `of 100 detections of ${number(confidence, 2)} confidence or more, ${of100(precision)} are right` : "no objects in the labels"),
    figure("Recall", hasTruth ? share(recall) : DASH,
      hasTruth ? `of 100 objects, ${of100(recall)} are found at that confidence` : "no objects in the labels"),
  ];
  for (const [label, value, words] of values.figures) figures.push(figure(label, value, words));
  const now = values.status.state === "running" ? ` As of ${values.written}: reload the page for later epochs.` : "";
  return section("overview", "Result", evaluation.of + now,
    element("div", { class: "figures" }, figures), findings());
}

function figure(label, value, words) {
  return element("div", { class: "figure card" }, element("div", { class: "label" }, label),
    element("div", { class: "value" }, value), element("div", { class: "words" }, words));
}

/** Return sentences about what costs most. */
function findings() {
  const found = [];
  if (evaluation.errors) {
    const worst = ERRORS.map((kind) => ({ ...kind, ...evaluation.errors.kinds[kind.key] }))
      .filter(({ cost }) => cost > 0.001).sort((a, b) => b.cost - a.cost)[0];
    if (worst) found.push([element("a", { href: "#errors" }, "What costs most"),
      `: ${worst.title.toLowerCase()} (${share(worst.cost)} AP50). `, withFlags(worst.act)]);
  }
  const rated = evaluation.classes.filter((row) => row.AP >= 0);
  if (rated.length > 3) {
    const low = [...rated].sort((a, b) => a.AP - b.AP).slice(0, 3);
    found.push([element("a", { href: "#classes" }, "Weakest classes"), ": ",
      low.map((row, i) => [i ? ", " : "", nameOf(row.name), ` ${share(row.AP)} (${counted(row.instances, "object")})`]), "."]);
  }
  const absent = evaluation.classes.filter((row) => !row.instances).length;
  if (absent) found.push(`${counted(absent, "class")} of ${count(names.length)} without an object in this split: their AP is unknown, and the mean leaves them out.`);
  return found.length ? element("ul", { class: "findings" }, found.map((sentence) => element("li", null, sentence))) : null;
}

// ---- curves over the epochs

const LOSSES = {
  box: "How far boxes are from their objects.",
  obj: "Objectness: whether there is an object.",
  cls: "Which class it is.",
  l1: "Differences of the raw box values, in the last epochs only.",
  dfl: "Distances to the sides of the box, as distributions.",
  o2o_box: "Boxes, of the head without NMS.",
  o2o_cls: "Classes, of the head without NMS.",
  o2o_dfl: "Distances to the sides, of the head without NMS.",
};

function curves() {
  if (values.script !== "train.py") return null;
  const epochs = values.epochs;
  const note = "Move the pointer over a chart, or choose it and use the arrow keys, to read the values of an epoch; drag to enlarge, double-click to go back. A loss of val that rises while that of train falls: the model learns the training images by heart; more data or more augmentation helps.";
  if (!epochs.epoch) return section("curves", "Curves", null, empty("No epoch has ended yet. Reload the page later."));
  const x = { title: "epoch", values: epochs.epoch, whole: true, text: (epoch) => `epoch ${epoch}` };
  const charts = [];
  const add = (title, lines, caption, y) => {
    const known = lines.filter((line) => line.values && line.values.some((value) => value !== null));
    if (known.length) charts.push(card(title, lineChart({ x, lines: known, y, group: "epochs", description: lastValues(title, known) }), caption));
  };
  add("mAP", [line("mAP50-95", epochs["metrics/mAP_0.5:0.95"], 0), line("mAP50", epochs["metrics/mAP_0.5"], 1)],
    "Higher is better. Still rising at the end: train longer. Flat for long: more epochs will not help.", { text: share });
  add("Precision and recall", [line("precision", epochs["metrics/precision"], 0), line("recall", epochs["metrics/recall"], 1)],
    "At the confidence of the best F1 of each epoch. Low recall: objects are missed. Low precision: too much is detected.", { text: share });
  for (const column of Object.keys(epochs).filter((name) => /^train\/.*_loss$/.test(name))) {
    const term = column.slice("train/".length, -"_loss".length);
    add(`Loss: ${term}`, [line("train", epochs[column], 0), line("val", epochs[`val/${term}_loss`], 1)],
      LOSSES[term] || "A term of the loss.");
  }
  add("Learning rate", [line("learning rate", epochs.lr, 0)], "Of the last batch of each epoch: a short warm-up, then the schedule.");
  const unit = values.unit; // image, or tile
  add(`${unit[0].toUpperCase()}${unit.slice(1)}s per second`, [line(`${unit}s/s`, epochs.per_second, 0)],
    `Training ${unit}s by the time of the epoch, from its start to the start of the next one.`);
  return section("curves", "Curves", note, element("div", { class: "columns" }, charts));
}

function line(name, list, index, more) {
  return { name, values: list, color: seriesColor(index), ...more };
}

/** Return the last value of each line as a sentence. */
function lastValues(title, lines) {
  const last = lines.map(({ name, values: list }) => `${name} ${number(list.filter((value) => value !== null).at(-1))}`);
  return `Chart: ${title}. At the end: ${last.join(", ")}.`;
}

// ---- classes

function classes() {
  if (!evaluation) return section("classes", "Classes", null, empty(NOT_VALIDATED));
  const { stats } = evaluation;
  const columns = [
    { title: "class", key: "name", kind: "name" },
    { title: "images", key: "images", kind: "number", text: count, help: "images that contain the class" },
    { title: "instances", key: "instances", kind: "number", text: count, help: "labeled objects" },
    { title: "P", key: "precision", kind: "number", text: share, help: "precision: share of the detections that are right" },
    { title: "R", key: "recall", kind: "number", text: share, help: "recall: share of the objects that are found" },
    { title: "AP50", key: "AP50", kind: "number", text: share, help: "average precision at IoU 0.50" },
    { title: "AP50-95", key: "AP", kind: "number", text: share, bar: 1, help: "average precision, mean over IoU 0.50 to 0.95" },
    { title: "AP S", key: "APs", kind: "number", text: share, help: "of objects up to 32² pixels" },
    { title: "AP M", key: "APm", kind: "number", text: share, help: "of objects of 32² to 96² pixels" },
    { title: "AP L", key: "APl", kind: "number", text: share, help: "of objects from 96² pixels" },
  ];
  const total = { name: "all classes", images: evaluation.images, instances: evaluation.instances, precision: stats.AP < 0 ? null : evaluation.precision,
    recall: stats.AP < 0 ? null : evaluation.recall, AP50: stats.AP50, AP: stats.AP, APs: stats.APs, APm: stats.APm, APl: stats.APl };
  const rows = names.length > 1 ? evaluation.classes : [];
  return section("classes", "Classes",
    `P and R at confidence ${evaluation.confidence.toFixed(3)}, IoU 0.50. S, M, L: small, medium and large objects, in pixels of the original images. ${DASH}: no such object in this split. A click on a heading sorts.`,
    element("div", { class: "card" },
      sortableTable(columns, rows, { total, caption: "Classes", sortedBy: rows.length ? "AP" : null, filter: rows.length > 15 })));
}

// ---- precision, recall and confidence

function precisionRecall() {
  if (!evaluation) return null;
  const { curves: drawn } = evaluation;
  if (!drawn || !drawn.pr_mean) return section("pr", "Precision and recall", null, empty("No objects in the labels, so there is no precision and no recall."));
  const shown = drawn.pr.map((list, i) => ({ list, name: `${names[i]}` })).filter(({ list }) => list);
  const few = shown.length <= 10;
  const perClass = shown.map(({ list, name }, i) =>
    few ? line(name, list, i, { width: 1.5 }) : line(name, list, 0, { faint: true, width: 1 }));
  const mean = { name: shown.length > 1 ? "mean of classes" : shown[0].name, values: drawn.pr_mean, color: "--ink", width: 2.75 };
  const all = shown.length > 1 ? [...perClass, mean] : [mean];
  const unit = (low, high) => () => [low, high];
  const best = evaluation.confidence;
  return section("pr", "Precision and recall", null, element("div", { class: "wide-columns" },
    card("Precision against recall, IoU 0.50",
      lineChart({ x: { title: "recall", values: drawn.pr_recall, range: unit(0, 1), text: (r) => `recall ${r.toFixed(2)}` }, lines: all,
        y: { text: share, range: unit(0, 1.02) }, height: 320, description: `Chart: precision against recall. The area below the mean is the mAP50, ${share(evaluation.stats.AP50)}.` }),
      `The area below a line is that class's AP50.${few ? "" : " Gray: a line for each class; the nearest one is named."} A line that ends early: the rest of the objects is never found, at any confidence.`),
    card("Which confidence to detect with",
      lineChart({ x: { title: "confidence", values: drawn.confidence, range: unit(0, 1), text: (c) => `confidence ${c.toFixed(2)}` },
        lines: [line("precision", drawn.precision, 0), line("recall", drawn.recall, 1), line("F1", drawn.f1, 2, { width: 2.5 })],
        y: { text: share, range: unit(0, 1.02) }, height: 320, description: `Chart: precision, recall and F1 against confidence. F1 is best at ${best.toFixed(3)}.` }),
      `Mean of the classes. F1, which weighs both alike, is best at ${best.toFixed(3)}${best >= 0.01 ? `: detect.py --conf ${number(best, 2)}` : ""}. Go lower if misses are worse than false alarms, higher if not.`)));
}

// ---- confusion matrix

const FEW_CLASSES = 25;
const MOST_CLASSES = 120; // a table with more cells is slow

function confusion() {
  if (!evaluation || !evaluation.confusion) return null;
  const { cells, confidence, iou } = evaluation.confusion;
  const K = names.length;
  const note = `Detections of ${confidence} confidence or more, matched to objects at IoU ${iou} whatever their classes.`;
  if (!cells.length) return section("confusion", "Confusion matrix", note, empty("No objects and no detections of that confidence."));
  const counts = new Map(cells.map(([predicted, truth, n]) => [predicted * (K + 1) + truth, n]));
  const at = (predicted, truth) => counts.get(predicted * (K + 1) + truth) || 0;
  const objects = new Array(K + 1).fill(0);
  const boxes = new Array(K + 1).fill(0);
  const wrong = new Array(K + 1).fill(0);
  for (const [predicted, truth, n] of cells) {
    objects[truth] += n;
    boxes[predicted] += n;
    if (predicted !== truth) { wrong[predicted] += n; wrong[truth] += n; }
  }
  const present = names.map((_, k) => k).filter((k) => objects[k] || boxes[k]);
  const byWrong = [...present].sort((a, b) => wrong[b] - wrong[a]);
  const box = element("div", { class: "scroll matrix-box", tabindex: "0", role: "region", "aria-label": "Confusion matrix" });
  const draw = (most) => box.replaceChildren(matrix(byWrong.slice(0, most).sort((a, b) => a - b), K, at, objects, boxes));
  draw(Math.min(FEW_CLASSES, present.length));
  const sizes = [FEW_CLASSES, Math.min(MOST_CLASSES, present.length)];
  const choose = element("select", { onchange: () => draw(Number(choose.value)) },
    element("option", { value: sizes[0] }, `the ${sizes[0]} with the most errors`),
    element("option", { value: sizes[1] }, sizes[1] < present.length ? `the ${sizes[1]} with the most errors` : `all ${sizes[1]} that occur`));
  const mixed = cells.filter(([predicted, truth]) => predicted !== truth && predicted < K && truth < K).sort((a, b) => b[2] - a[2]);
  return section("confusion", "Confusion matrix", note, element("div", { class: "card" },
    present.length > FEW_CLASSES && element("div", { class: "controls" }, element("label", null, "Classes", choose)),
    box,
    element("p", { class: "caption" }, "A column is what is there, a row what is detected. Blue: right. Orange: wrong. The darker, the larger the share of the column's objects (last column: of the row's detections). ",
      "Last row: objects that are missed. Last column: detections where nothing is labeled; look at their pictures, some may be objects that nobody has labeled."),
    mixed.length > 0 && [element("h3", null, "Classes that are mixed up most"),
      element("ul", { class: "findings" }, mixed.slice(0, 5).map(([predicted, truth, n]) =>
        element("li", null, nameOf(names[truth]), " detected as ", nameOf(names[predicted]), `: ${n} of ${counted(objects[truth], "object")}`)))]));
}

function matrix(shown, K, at, objects, boxes) {
  const lines = [...shown, K];
  const heading = (k, label) => element("th", { scope: "col", title: k < K ? names[k] : label }, element("span", null, nameOf(k < K ? names[k] : label)));
  return element("table", { class: "matrix" },
    element("thead", null, element("tr", null, element("th", { scope: "col" }, "detected \\ labeled"), shown.map((k) => heading(k)), heading(K, "nothing there"))),
    element("tbody", null, lines.map((predicted) => element("tr", null,
      element("th", { scope: "row", title: predicted < K ? names[predicted] : null }, nameOf(predicted < K ? names[predicted] : "missed")),
      lines.map((truth) => {
        const n = at(predicted, truth);
        const cell = element("td", { title: n ? cellText(predicted, truth, n, K, objects, boxes) : null }, n ? count(n) : "");
        if (n) {
          const part = n / Math.max(1, truth < K ? objects[truth] : boxes[predicted]);
          cell.style.backgroundColor = `rgba(var(${predicted === truth ? "--right-rgb" : "--wrong-rgb"}), ${0.08 + 0.62 * Math.min(1, part)})`;
        }
        return cell;
      })))));
}

function cellText(predicted, truth, n, K, objects, boxes) {
  const percent = (all) => `${Math.round(100 * n / Math.max(1, all))} %`;
  if (truth === K) return `${count(n)} detections of ${names[predicted]} (${percent(boxes[predicted])}) where nothing is labeled`;
  const what = predicted === K ? "missed" : `detected as ${names[predicted]}`;
  return `${count(n)} of ${counted(objects[truth], "object")} of ${names[truth]} (${percent(objects[truth])}): ${what}`;
}

// ---- errors by kind, and their pictures

const ERRORS = [
  { key: "classification", title: "Wrong class", words: "the box is right (IoU 0.50 or more), the class is not",
    act: "Look at the pairs in the confusion matrix: similar classes need more examples, or labels that agree." },
  { key: "localization", title: "Misplaced box", words: "the class is right, the box overlaps too little (IoU 0.10 to 0.50)",
    act: "Label tightly and alike; a larger --img helps small objects." },
  { key: "both", title: "Wrong class and misplaced", words: "another class's object, and the box overlaps too little",
    act: "Often crowded scenes; see the pictures." },
  { key: "duplicate", title: "Duplicate", words: "a second detection of an object that is already found",
    act: "A lower --iou in detect.py removes more of them." },
  { key: "background", title: "Nothing there", words: "a detection where nothing is labeled (IoU below 0.10)",
    act: "Check whether labels are missing; else add images without objects." },
  { key: "missed", title: "Missed", words: "an object without a detection that one of the other kinds explains",
    act: "More examples of what is missed, a larger --img or --tile for small objects, or a larger model." },
];

function errors() {
  if (!evaluation) return null;
  const title = "Errors by kind";
  if (!evaluation.errors) return section("errors", title, null, empty(LATER));
  const { kinds, ap } = evaluation.errors;
  const rows = ERRORS.map((kind) => ({ ...kind, ...kinds[kind.key] }));
  const most = Math.max(0.001, ...rows.map(({ cost }) => cost));
  const columns = [
    { title: "kind", key: "title", kind: "name" },
    { title: "errors", key: "count", kind: "number", text: count, help: "of any confidence" },
    { title: "costs AP50", key: "cost", kind: "number", text: share, bar: most, cost: true },
    { title: "what it is", key: "words", kind: "name" },
    { title: "what helps", key: "act", kind: "name", text: withFlags },
  ];
  const both = [["false_positive", "all false detections"], ["false_negative", "all objects not found"]]
    .filter(([key]) => kinds[key]).map(([key, text]) => `${text}: ${share(kinds[key].cost)}`);
  return section("errors", title,
    "Each wrong detection and each missed object has one kind (TIDE, arXiv 2008.08115). The cost is the AP50 that would be gained if only this kind were corrected. Costs do not add up: correcting one kind changes what the others cost. Counts are of detections of any confidence; most have a low one and cost nothing.",
    element("div", { class: "card" }, sortableTable(columns, rows, { caption: title, sortedBy: "cost" }),
      element("p", { class: "caption" }, `AP50 as TIDE counts it: ${share(ap)}. There the 100 most confident detections of an image count, of all classes together, and a class that is detected but not labeled in this split has 0.${both.length ? ` AP50 to gain without ${both.join("; without ")}.` : ""}`)));
}

const FIRST_PICTURES = 24; // that are shown before a click on "Show all"

function pictures() {
  if (!evaluation) return null;
  const title = "Worst pictures";
  const list = evaluation.pictures;
  if (!list) return section("pictures", title, null, empty(LATER));
  if (!list.length) return section("pictures", title, null, empty("No errors to show."));
  const grid = element("div", { class: "pictures" });
  const shownCount = element("span", { class: "count", role: "status" });
  const kindsThere = ERRORS.filter(({ key }) => list.some((picture) => picture.kind === key));
  const classesThere = [...new Set(list.flatMap((picture) => picture.classes))].sort((a, b) => a - b);
  const kind = element("select", { id: "kind", onchange: fill }, element("option", { value: "" }, "all kinds"),
    kindsThere.map(({ key, title: text }) => element("option", { value: key }, text)));
  const ofClass = element("select", { id: "of-class", onchange: fill }, element("option", { value: "" }, "all classes"),
    classesThere.map((k) => element("option", { value: k }, names[k])));
  const toggle = (text, hidden, key) => {
    const input = element("input", { type: "checkbox", checked: true, onchange: () => grid.classList.toggle(hidden, !input.checked) });
    return element("label", null, input, element("span", { class: key }, text));
  };
    const more = element("button", { type: "button", class: "more", onclick: () => fill(null, Infinity) }, "Show all");
  function fill(_, most = FIRST_PICTURES) {
    const chosen = list.filter((picture) => (!kind.value || picture.kind === kind.value)
      && (!ofClass.value || picture.classes.includes(Number(ofClass.value))));
    const figures = chosen.slice(0, most).map(pictureFigure);
    grid.replaceChildren(...(figures.length ? figures : [empty("No picture of this kind and class.")]));
    shownCount.textContent = counted(chosen.length, "picture");
    more.hidden = chosen.length <= most;
  }
  fill();
  return section("pictures", title,
    "The most confident errors first, missed objects by their number. A picture is the part of the image around the error. A detection without a label may be right: then the label is missing.",
    element("div", { class: "controls" }, element("label", null, "Kind", kind), element("label", null, "Class", ofClass),
      toggle("labels", "no-labels", "key-truth"), toggle("detections", "no-detections", "key-detection"), shownCount),
    grid, more);
}

function pictureFigure(picture) {
  const { width, height, boxes } = picture;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  for (const { truth, main, box: [x1, y1, x2, y2], title } of boxes) {
    const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [name, value] of [["x", x1], ["y", y1], ["width", x2 - x1], ["height", y2 - y1]]) rect.setAttribute(name, value);
    rect.setAttribute("class", `${truth ? "truth" : "detection"}${main ? "" : " context"}`);
    const hint = document.createElementNS("http://www.w3.org/2000/svg", "title");
    hint.textContent = title;
    rect.append(hint);
    svg.append(rect);
  }
  const title = ERRORS.find(({ key }) => key === picture.kind).title;
  return element("figure", { class: "card", "data-kind": picture.kind },
    element("div", { class: "frame" }, element("img", { src: picture.image, width, height, alt: `${title}: ${picture.text}` }), svg),
    element("figcaption", null, element("span", { class: "kind" }, title), ": ", nameOf(picture.text), element("div", { class: "file" }, nameOf(picture.file))));
}

// ---- calibration and box sizes

function calibration() {
  if (!evaluation) return null;
  const title = "Calibration of confidence";
  if (!evaluation.calibration) return section("calibration", title, null, empty(LATER));
  const bins = evaluation.calibration.bins.filter((bin) => bin.count > 0);
  if (!bins.length) return section("calibration", title, null, empty("No detections."));
  const middles = bins.map((bin) => bin.score);
  const high = bins.filter((bin) => bin.low >= 0.25);
  const sum = (key) => high.reduce((total, bin) => total + bin[key] * bin.count, 0) / Math.max(1, high.reduce((total, bin) => total + bin.count, 0));
  const gap = sum("score") - sum("precision");
  const verdict = !high.length ? "There are no detections of 0.25 confidence or more."
    : Math.abs(gap) < 0.03 ? "Above 0.25, confidence is about the share of detections that are right."
      : gap > 0 ? `Above 0.25 the model is too sure: confidence is ${share(gap)} above the share that is right.`
        : `Above 0.25 the model is too modest: confidence is ${share(-gap)} below the share that is right.`;
  const range = () => [0, 1.02];
  return section("calibration", title, `${verdict} Expected calibration error: ${share(evaluation.calibration.expected_error)} over all detections, ${share(evaluation.calibration["expected_error_from_0.25"])} from confidence 0.25 on.`,
    element("div", { class: "wide-columns" },
      card("Share of detections that are right",
        lineChart({ x: { title: "confidence", values: middles, range: () => [0, 1], text: (value) => `confidence ${value.toFixed(2)}` },
          lines: [line("right (IoU 0.50)", bins.map((bin) => bin.precision), 0, { width: 2.25 }), { name: "calibrated", values: middles, color: "--soft", dashed: true, width: 1.25 }],
          y: { text: share, range }, height: 240, description: `Chart: share of right detections against confidence. ${verdict}` }),
        "On the dashed line, 80 of 100 detections of confidence 0.8 are right. Below it the model is too sure, above it too modest. It changes no AP, only which --conf suits you."),
      card("Detections at each confidence",
        lineChart({ x: { title: "confidence", values: middles, range: () => [0, 1], text: (value) => `confidence ${value.toFixed(2)}` },
          lines: [line("detections", bins.map((bin) => bin.count), 1)], y: { text: count, log: true, range: logRange }, height: 240,
          description: "Chart: number of detections against confidence." }),
        "On a logarithmic scale. Few detections at high confidence: the model is unsure, train longer or with more data.")));
}

function logRange(u, low, high) {
  return low === null ? [1, 10] : [Math.max(0.8, low * 0.7), high * 1.5];
}

function boxSizes() {
  if (!evaluation) return null;
  const title = "AP against box size";
  if (!evaluation.sizes) return section("sizes", title, null, empty(LATER));
  const bins = evaluation.sizes.filter((bin) => bin.instances > 0);
  if (!bins.length) return section("sizes", title, null, empty("No objects in the labels."));
  const rows = bins.map((bin) => ({ ...bin, name: bin.high === null ? `from ${bin.low} px` : `${bin.low} to ${bin.high} px` }));
  const place = bins.map((_, i) => i);
  return section("sizes", title, "The size is the square root of a box's area, in pixels of the original image. Before the model sees it, an image is resized to --img.",
    element("div", { class: "wide-columns" },
      card("AP by size",
        lineChart({ x: { title: "size of the box", values: place, text: (i) => rows[i].name, ticks: (i) => (bins[i].high === null ? `${bins[i].low}+` : `${bins[i].low}–${bins[i].high}`), range: () => [-0.4, place.length - 0.6] },
          lines: [line("AP50-95", bins.map((bin) => (bin.AP < 0 ? null : bin.AP)), 0), line("AP50", bins.map((bin) => (bin.AP50 < 0 ? null : bin.AP50)), 1)],
          y: { text: share, range: () => [0, 1.02] }, height: 240, description: "Chart: AP against the size of boxes; the table beside it has the values." }),
        "Low at the left: small objects are the problem; train with a larger --img, with --tile, or a -p2 model. Low at the right: a -p6 model, or more large examples."),
      card("Objects by size", sortableTable([
        { title: "size", key: "name", kind: "name" },
        { title: "objects", key: "instances", kind: "number", text: count },
        { title: "AP50-95", key: "AP", kind: "number", text: share, bar: 1 },
        { title: "AP50", key: "AP50", kind: "number", text: share },
      ], rows, { caption: title }))));
}

// ---- what the run was

function settings() {
  const boxes = values.facts.map(([title, rows]) => card(title, definitions(rows)));
  const changed = values.settings.filter(([, , differs]) => differs);
  const all = (title, rows) => rows.length > 0 && element("details", { class: "card" }, element("summary", null, title), definitions(rows));
  return section("run", "Run", "What was run, with what, and on which data.",
    element("div", { class: "stack" },
      element("div", { class: "wide-columns" }, boxes),
      changed.length > 0 && card("Settings that differ from the defaults", definitions(changed.map(([key, value]) => [key, value]))),
      all("All settings; bold: not the default", values.settings),
      all("Hyper-parameters; bold: not the default", values.hyp)));
}

const badge = element("span", { class: `badge ${values.status.state}` }, values.status.text);
show({
  title: values.title, path: values.folder, badge,
  sections: [overview(), curves(), classes(), precisionRecall(), confusion(), errors(), pictures(), calibration(), boxSizes(), settings()].filter(Boolean),
  foot: `Written by Kestrel ${values.version} on ${values.written}. This page is one file: it loads nothing and sends nothing.`,
});
drawCharts();
