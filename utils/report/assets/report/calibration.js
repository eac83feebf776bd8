// How often a detection of a confidence is right.

const CONFIDENT = 0.25; // as detect.py detects
const CALIBRATED = 0.03; // a smaller difference is none

function calibration() {
  if (!evaluation) return null;
  const title = "Calibration of confidence";
  if (!evaluation.calibration) return section("calibration", title, null, empty(LATER));
  const bins = evaluation.calibration.bins.filter((bin) => bin.count);
  if (!bins.length) return section("calibration", title, null, empty("No detections."));

  const { expected_error: all, "expected_error_from_0.25": confident } = evaluation.calibration;
  const verdict = calibrationVerdict(bins.filter((bin) => bin.low >= CONFIDENT), confident);
  const note =
    `${verdict} Expected calibration error: ${share(all)} over all detections, ` +
    `${share(confident)} from confidence 0.25 on.`;
  return section("calibration", title, note,
    div("wide-columns", reliabilityCard(bins, verdict), countCard(bins)));
}

/** Return a sentence about bins of confident detections. error: their expected error. */
function calibrationVerdict(bins, error) {
  if (!bins.length) return "There are no detections of 0.25 confidence or more.";
  const sum = (value) => bins.reduce((total, bin) => total + value(bin) * bin.count, 0);
  const gap = sum((bin) => bin.score - bin.precision) / sum(() => 1);
  if (Math.abs(gap) < CALIBRATED && error >= CALIBRATED) {
    return "Above 0.25 the model is too sure at some confidences and too modest at others.";
  }
  if (Math.abs(gap) < CALIBRATED) {
    return "Above 0.25, confidence is about the share of detections that are right.";
  }
  const [what, where] = gap > 0 ? ["sure", "above"] : ["modest", "below"];
  return (
    `Above 0.25 the model is too ${what}: confidence is ${share(Math.abs(gap))} ${where} the ` +
    "share that is right."
  );
}

function reliabilityCard(bins, verdict) {
  const scores = bins.map((bin) => bin.score);
  const precision = bins.map((bin) => bin.precision);
  const chart = lineChart({
    x: shareAxis("confidence", scores),
    lines: [
      line("right (IoU 0.50)", precision, 0, { width: 2.25 }),
      { name: "calibrated", values: scores, color: "--soft", dashed: true, width: 1.25 },
    ],
    y: { text: share, range: () => [0, 1.02] },
    height: 240,
    description: `Chart: share of right detections against confidence. ${verdict}`,
  });
  return card("Share of detections that are right", chart,
    "On the dashed line, 80 of 100 detections of confidence 0.8 are right. Below it the model is " +
    "too sure, above it too modest. It changes no AP, only which --conf suits you.");
}

function countCard(bins) {
  const scores = bins.map((bin) => bin.score);
  const counts = bins.map((bin) => bin.count);
  const chart = lineChart({
    x: shareAxis("confidence", scores),
    lines: [line("detections", counts, 1)],
    y: { text: count, log: true, range: logRange },
    height: 240,
    description: "Chart: number of detections against confidence.",
  });
  return card("Detections at each confidence", chart,
    "On a logarithmic scale. Few detections at high confidence: the model is unsure, train " +
    "longer or with more data.");
}

function logRange(_, low, high) {
  return low === null ? [1, 10] : [Math.max(0.8, low * 0.7), high * 1.5];
}
