// Kinds of errors, after TIDE (arXiv 2008.08115), and what they cost.

const ERRORS = [
  {
    key: "classification",
    title: "Wrong class",
    words: "the box is right (IoU 0.50 or more), the class is not",
    act: "Look at the pairs in the confusion matrix: similar classes need more examples, or " +
      "labels that agree.",
  },
  {
    key: "localization",
    title: "Misplaced box",
    words: "the class is right, the box overlaps too little (IoU 0.10 to 0.50)",
    act: "Label tightly and alike; a larger --img helps small objects.",
  },
  {
    key: "both",
    title: "Wrong class and misplaced",
    words: "another class's object, and the box overlaps too little",
    act: "Often crowded scenes; see the pictures.",
  },
  {
    key: "duplicate",
    title: "Duplicate",
    words: "a second detection of an object that is already found",
    act: "A lower --iou in detect.py removes more of them.",
  },
  {
    key: "background",
    title: "Nothing there",
    words: "a detection where nothing is labeled (IoU below 0.10)",
    act: "Check whether labels are missing; else add images without objects.",
  },
  {
    key: "missed",
    title: "Missed",
    words: "an object that no detection finds or nearly finds",
    act: "More examples of what is missed, a larger --img or --tile for small objects, or a " +
      "larger model.",
  },
];

const ERRORS_NOTE =
  "Each wrong detection and each missed object has one kind (TIDE, arXiv 2008.08115). The cost " +
  "is the AP50 that would be gained if only this kind were corrected. Costs do not add up: " +
  "correcting one kind changes what the others cost. Counts are of detections of any confidence; " +
  "most have a low one and cost nothing.";

function errors() {
  if (!evaluation) return null;
  const title = "Errors by kind";
  if (!evaluation.errors) return section("errors", title, null, empty(LATER));

  const { kinds, ap } = evaluation.errors;
  const rows = ERRORS.map((kind) => ({ ...kind, ...kinds[kind.key] }));
  const highest = Math.max(0.001, ...rows.map(({ cost }) => cost));
  const columns = [
    { title: "kind", key: "title", kind: "name" },
    { title: "errors", key: "count", kind: "number", text: count, help: "of any confidence" },
    { title: "costs AP50", key: "cost", kind: "number", text: share, bar: highest, cost: true },
    { title: "what it is", key: "words", kind: "name" },
    { title: "what helps", key: "act", kind: "name", text: withFlags },
  ];
  const table = sortableTable(columns, rows, { caption: title, sortedBy: "cost" });

  const caption =
    `Without any false detection ${share(kinds.false_positive.cost)} AP50 would be gained, with ` +
    `all objects found ${share(kinds.false_negative.cost)}. AP50 as TIDE counts it: ` +
    `${share(ap)}. There the 100 most confident detections of an image count, of all classes ` +
    "together, and a class that is detected but not labeled in this split has 0.";
  const text = element("p", { class: "caption" }, caption);
  return section("errors", title, ERRORS_NOTE, div("card", table, text));
}
