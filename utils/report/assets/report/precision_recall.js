// Precision against recall, and against confidence.

const NAMED_LINES = 10; // classes whose lines have colors; more are gray
const CURVE_HEIGHT = 320; // pixels

function precisionRecall() {
  const title = "Precision and recall";
  if (!evaluation) return null;
  if (!evaluation.curves.pr_mean) {
    const text = "No objects in the labels, so there is no precision and no recall.";
    return section("pr", title, null, empty(text));
  }
  return section("pr", title, null, div("wide-columns", recallCard(), confidenceCard()));
}

function recallCard() {
  const { pr, pr_mean: mean, pr_recall: recall } = evaluation.curves;
  const known = names.map((name, k) => ({ name, list: pr[k] })).filter(({ list }) => list);
  const few = known.length <= NAMED_LINES;
  const style = few ? { width: 1.5 } : { width: 1, faint: true };
  const lines = known.map(({ name, list }, i) => line(name, list, i, style));
  const average = { name: "mean of classes", values: mean, color: "--ink", width: 2.75 };

  const x = shareAxis("recall", recall);
  const chart = lineChart({
    x,
    lines: known.length > 1 ? [...lines, average] : lines,
    y: { text: share, range: () => [0, 1.02] },
    height: CURVE_HEIGHT,
    description:
      "Chart: precision against recall. The area below the mean is the mAP50, " +
      `${share(evaluation.stats.AP50)}.`,
  });
  const gray = few ? "" : "Gray: a line for each class; the nearest one is named. ";
  return card("Precision against recall, IoU 0.50", chart,
    `The area below a line is that class's AP50. ${gray}A line that ends early: the rest of the ` +
    "objects is never found, at any confidence.");
}

function confidenceCard() {
  const { confidence, precision, recall, f1 } = evaluation.curves;
  const best = evaluation.confidence;
  const chart = lineChart({
    x: shareAxis("confidence", confidence),
    lines: [
      line("precision", precision, 0),
      line("recall", recall, 1),
      line("F1", f1, 2, { width: 2.5 }),
    ],
    y: { text: share, range: () => [0, 1.02] },
    height: CURVE_HEIGHT,
    description: `Chart: precision, recall and F1. F1 is best at ${best.toFixed(3)}.`,
  });
  const command = best >= 0.01 ? `: detect.py --conf ${number(best, 2)}` : "";
  return card("Which confidence to detect with", chart,
    `Mean of the classes. F1, which weighs both alike, is best at ${best.toFixed(3)}${command}. ` +
    "Go lower if misses are worse than false alarms, higher if not.");
}

/** Return an x axis from 0 to 1. */
function shareAxis(title, list) {
  const text = (value) => `${title} ${value.toFixed(2)}`;
  return { title, values: list, range: () => [0, 1], text };
}
