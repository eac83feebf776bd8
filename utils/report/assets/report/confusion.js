// The confusion matrix, and the classes that are mixed up most.

const FEW_CLASSES = 25;
const MOST_CLASSES = 120; // a table with more cells is slow
const MIXED_PAIRS = 5;

const MATRIX_CAPTION =
  "A column is what is there, a row what is detected. Blue: right. Orange: wrong. The darker, " +
  "the larger the share of the column's objects (last column: of the row's detections). Last " +
  "row: objects that are missed. Last column: detections where nothing is labeled; look at their " +
  "pictures, some may be objects that nobody has labeled.";

function confusion() {
  if (!evaluation) return null;
  const title = "Confusion matrix";
  const { cells, confidence, iou } = evaluation.confusion;
  const note =
    `Detections of ${confidence} confidence or more, matched to objects at IoU ${iou} whatever ` +
    "their classes.";
  if (!cells.length) {
    return section("confusion", title, note, empty("No objects and no such detections."));
  }

  const totals = countConfusion(cells);
  const present = names.map((_, k) => k).filter((k) => totals.objects[k] || totals.boxes[k]);
  present.sort((a, b) => totals.wrong[b] - totals.wrong[a]);

  const box = element("div",
    { class: "scroll matrix-box", tabindex: "0", role: "region", "aria-label": title });
  const draw = (most) => {
    const shown = present.slice(0, most).sort((a, b) => a - b);
    box.replaceChildren(matrix(shown, totals));
  };
  draw(FEW_CLASSES);
  const caption = element("p", { class: "caption" }, MATRIX_CAPTION);
  return section("confusion", title, note,
    div("card", matrixSize(present.length, draw), box, caption, mixedClasses(cells, totals)));
}

/** Return the counts of a matrix: `at` of a cell, `objects`, `boxes` and `wrong` ones by class. */
function countConfusion(cells) {
  const K = names.length; // also the index of background
  const zeros = () => new Array(K + 1).fill(0);
  const [objects, boxes, wrong] = [zeros(), zeros(), zeros()];
  const counts = new Map();
  for (const [predicted, truth, n] of cells) {
    counts.set(predicted * (K + 1) + truth, n);
    objects[truth] += n;
    boxes[predicted] += n;
    if (predicted !== truth) {
      wrong[predicted] += n;
      wrong[truth] += n;
    }
  }
  const at = (predicted, truth) => counts.get(predicted * (K + 1) + truth) || 0;
  return { at, objects, boxes, wrong };
}

/** Return a list to choose how many classes are shown, null if they are few. */
function matrixSize(present, draw) {
  if (present <= FEW_CLASSES) return null;
  const most = Math.min(MOST_CLASSES, present);
  const text = most < present ? `the ${most} with the most errors` : `all ${most} that occur`;
  const choice = element("select", { onchange: () => draw(Number(choice.value)) },
    element("option", { value: FEW_CLASSES }, `the ${FEW_CLASSES} with the most errors`),
    element("option", { value: most }, text));
  return div("controls", element("label", null, "Classes", choice));
}

function matrix(shown, totals) {
  const K = names.length;
  const corner = element("th", { scope: "col" }, "detected \\ labeled");
  const headings = [...shown, K].map((k) => {
    const name = names[k] ?? "nothing there";
    return element("th", { scope: "col", title: name }, element("span", null, nameOf(name)));
  });
  const rows = [...shown, K].map((predicted) => {
    const name = names[predicted] ?? "missed";
    const heading = element("th", { scope: "row", title: name }, nameOf(name));
    const cells = [...shown, K].map((truth) => matrixCell(predicted, truth, totals));
    return element("tr", null, heading, cells);
  });
  return element("table", { class: "matrix" },
    element("thead", null, element("tr", null, corner, headings)),
    element("tbody", null, rows));
}

function matrixCell(predicted, truth, totals) {
  const n = totals.at(predicted, truth);
  if (!n) return element("td", null);

  // The share of the objects, or of the detections where there is no object.
  const isObject = truth < names.length;
  const all = isObject ? totals.objects[truth] : totals.boxes[predicted];
  const part = n / all;
  const percent = `${Math.round(100 * part)} %`;
  const name = (k) => isolated(names[k]);
  const what = predicted < names.length ? `detected as ${name(predicted)}` : "missed";
  const whole = isObject
    ? `${counted(all, "object")} of ${name(truth)}`
    : `${counted(all, "detection")} of ${name(predicted)}`;
  const title = `${count(n)} of ${whole} (${percent}): ${isObject ? what : "nothing is labeled"}`;

  const cell = element("td", { title }, count(n));
  const hue = predicted === truth ? "--right-rgb" : "--wrong-rgb";
  cell.style.backgroundColor = `rgba(var(${hue}), ${0.08 + 0.47 * part})`;
  return cell;
}

/** Return the pairs of classes that are mixed up most, null if none are. */
function mixedClasses(cells, totals) {
  const K = names.length;
  const pairs = cells.filter(([predicted, truth]) => predicted !== truth);
  const mixed = pairs.filter(([predicted, truth]) => predicted < K && truth < K);
  if (!mixed.length) return null;

  mixed.sort((a, b) => b[2] - a[2]);
  const entries = mixed.slice(0, MIXED_PAIRS).map(([predicted, truth, n]) => {
    const of = `: ${n} of ${counted(totals.objects[truth], "object")}`;
    return element("li", null, nameOf(names[truth]), " detected as ", nameOf(names[predicted]), of);
  });
  const title = element("h3", null, "Classes that are mixed up most");
  return [title, element("ul", { class: "findings" }, entries)];
}
