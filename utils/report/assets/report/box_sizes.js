// AP against the size of boxes.

function boxSizes() {
  if (!evaluation) return null;
  const title = "AP against box size";
  if (!evaluation.sizes) return section("sizes", title, null, empty(LATER));
  const bins = evaluation.sizes.filter((bin) => bin.instances > 0);
  if (!bins.length) return section("sizes", title, null, empty("No objects in the labels."));

  const note =
    "The size is the square root of a box's area, in pixels of the original image. Before the " +
    "model sees it, an image is resized to --img.";
  return section("sizes", title, note, div("wide-columns", sizeChart(bins), sizeTable(bins)));
}

/** Return the range of a bin as text. */
function sizeName({ low, high }) {
  return high === null ? `from ${low} px` : `${low} to ${high} px`;
}

function sizeChart(bins) {
  const places = bins.map((_, i) => i);
  const known = (key) => bins.map((bin) => (bin[key] < 0 ? null : bin[key]));
  const tick = ({ low, high }) => (high === null ? `${low}+` : `${low}–${high}`);
  const chart = lineChart({
    x: {
      title: "size of the box",
      values: places,
      text: (i) => sizeName(bins[i]),
      ticks: (i) => tick(bins[i]),
      range: () => [-0.4, bins.length - 0.6],
    },
    lines: [line("AP50-95", known("AP"), 0), line("AP50", known("AP50"), 1)],
    y: { text: share, range: () => [0, 1.02] },
    height: 240,
    description: "Chart: AP against the size of boxes; the table beside it has the values.",
  });
  return card("AP by size", chart,
    "Low at the left: small objects are the problem; train with a larger --img, with --tile, or " +
    "a -p2 model. Low at the right: a -p6 model, or more large examples.");
}

function sizeTable(bins) {
  const columns = [
    { title: "size", key: "name", kind: "name" },
    { title: "objects", key: "instances", kind: "number", text: count },
    { title: "AP50-95", key: "AP", kind: "number", text: share, bar: 1 },
    { title: "AP50", key: "AP50", kind: "number", text: share },
  ];
  const rows = bins.map((bin) => ({ ...bin, name: sizeName(bin) }));
  return card("Objects by size", sortableTable(columns, rows, { caption: "Objects by size" }));
}
