// The result in a few numbers, and what costs most.

function result() {
  const title = "Result";
  if (!evaluation) return section("result", title, null, empty(NOT_VALIDATED));

  const note = isRunning
    ? `${evaluation.of} As of ${values.written}: reload the page for later epochs.`
    : evaluation.of;
  const figures = [...metricFigures(), ...values.figures];
  return section("result", title, note, div("figures", figures.map(figure)), findings());
}

/** Return label, value and meaning of the four metrics. */
function metricFigures() {
  const { stats, precision, recall, confidence } = evaluation;
  const figures = [
    ["mAP50-95", share(stats.AP),
      "COCO's mean AP over IoU 0.50 to 0.95; 1: every object found, every box exact"],
    ["mAP50", share(stats.AP50), "the same at IoU 0.50: a box may be off by a little"],
  ];
  if (stats.AP < 0) {
    const none = "no objects in the labels";
    return [...figures, ["Precision", DASH, none], ["Recall", DASH, none]];
  }

  const mean = names.length > 1 ? ", mean of the classes" : "";
  figures.push(
    ["Precision", share(precision),
      `share of the detections of ${number(confidence, 2)} confidence or more that are right${mean}`],
    ["Recall", share(recall), `share of the objects that they find${mean}`],
  );
  return figures;
}

function figure([label, value, words]) {
  return div("figure card", div("label", label), div("value", value), div("words", words));
}

/** Return a list of sentences about what is weak, null if nothing stands out. */
function findings() {
  const sentences = [costliestKind(), weakestClasses(), absentClasses()].filter(Boolean);
  if (!sentences.length) return null;
  const entries = sentences.map((sentence) => element("li", null, sentence));
  return element("ul", { class: "findings" }, entries);
}

function costliestKind() {
  if (!evaluation.errors) return null;
  const kinds = ERRORS.map((kind) => ({ ...kind, ...evaluation.errors.kinds[kind.key] }));
  const worst = kinds.sort((a, b) => b.cost - a.cost)[0];
  if (worst.cost < 0.001) return null;

  const link = element("a", { href: "#errors" }, "What costs most");
  const what = `: ${worst.title.toLowerCase()} (${share(worst.cost)} AP50). `;
  return [link, what, withFlags(worst.act)];
}

function weakestClasses() {
  const rated = evaluation.classes.filter((row) => row.AP >= 0);
  if (rated.length < 4) return null;

  const lowest = rated.sort((a, b) => a.AP - b.AP).slice(0, 3);
  const texts = lowest.map((row, i) => {
    const ap = ` ${share(row.AP)} (${counted(row.instances, "object")})`;
    return [i ? ", " : "", nameOf(row.name), ap];
  });
  return [element("a", { href: "#classes" }, "Weakest classes"), ": ", texts, "."];
}

function absentClasses() {
  const absent = evaluation.classes.filter((row) => !row.instances).length;
  if (!absent) return null;
  return (
    `${counted(absent, "class")} of ${count(names.length)} without an object in this split: ` +
    "their AP is unknown, and the mean leaves them out."
  );
}
