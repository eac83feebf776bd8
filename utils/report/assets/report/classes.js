// The table of classes.

const MANY_CLASSES = 15; // from which on they can be searched

function classes() {
  const title = "Classes";
  if (!evaluation) return section("classes", title, null, empty(NOT_VALIDATED));

  const { stats, precision, recall } = evaluation;
  const hasTruth = stats.AP >= 0;
  const total = {
    name: "all classes",
    images: evaluation.images,
    instances: evaluation.instances,
    precision: hasTruth ? precision : null,
    recall: hasTruth ? recall : null,
    ...stats,
  };
  const rows = names.length > 1 ? evaluation.classes : [];
  const table = sortableTable(classColumns(), rows, {
    total,
    caption: title,
    sortedBy: rows.length ? "AP" : null,
    filter: rows.length > MANY_CLASSES,
  });
  const note =
    `P and R at confidence ${evaluation.confidence.toFixed(3)}, IoU 0.50. S, M, L: small, medium ` +
    `and large objects, in pixels of the original images. ${DASH}: no such object in this split. ` +
    "A click on a heading sorts.";
  return section("classes", title, note, div("card", table));
}

function classColumns() {
  const whole = (title, key, help) => ({ title, key, kind: "number", text: count, help });
  const metric = (title, key, help, bar) =>
    ({ title, key, kind: "number", text: share, help, bar });
  return [
    { title: "class", key: "name", kind: "name" },
    // The most important columns first: a narrow window shows only these without scrolling.
    metric("AP50-95", "AP", "average precision, mean over IoU 0.50 to 0.95", 1),
    metric("AP50", "AP50", "average precision at IoU 0.50"),
    metric("P", "precision", "precision: share of the detections that are right"),
    metric("R", "recall", "recall: share of the objects that are found"),
    whole("images", "images", "images that contain the class"),
    whole("instances", "instances", "labeled objects"),
    metric("AP S", "APs", "of objects up to 32² pixels"),
    metric("AP M", "APm", "of objects of 32² to 96² pixels"),
    metric("AP L", "APl", "of objects from 96² pixels"),
  ];
}
