// Numbers as text. An unknown number is null, or -1 as in COCO's results; it is shown as a dash.

function isUnknown(value) {
  return value === null || value === undefined || value < 0;
}

/** Return a number in [0, 1], such as an AP, with three decimals. */
function share(value) {
  return isUnknown(value) ? DASH : value.toFixed(3);
}

/** Return a whole number with thousands separators. */
function count(value) {
  return isUnknown(value) ? DASH : Math.round(value).toLocaleString("en-US");
}

/** Return a number of any size with about `digits` significant digits. */
function number(value, digits = 4) {
  if (value === null || value === undefined || !isFinite(value)) return DASH;
  const size = Math.abs(value);
  if (size >= 1e9) return value.toExponential(2);
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  if (size && size < 0.001) return value.toExponential(Math.min(digits - 1, 2));
  return String(Number(value.toPrecision(digits)));
}

/** Return seconds as text: 4.2 s, 12 min 5 s, 3 h 20 min. */
function duration(seconds) {
  if (isUnknown(seconds)) return DASH;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${whole % 60} s`;
  return `${number(Math.floor(minutes / 60))} h ${minutes % 60} min`;
}

/** Return a noun with its number: 1 image, 2 images, 3 classes. */
function counted(value, noun) {
  const plural = /(s|x)$/.test(noun) ? `${noun}es` : `${noun}s`;
  return `${count(value)} ${value === 1 ? noun : plural}`;
}
