// Elements of the page. Whatever comes from the run (class names, paths, file names) is text: it
// enters the page through text nodes and checked attributes, never as HTML.

/**
 * Return an element.
 * attributes: names and values; `onclick` and the like are functions; null and false are left out.
 * children: elements, or text; null and false are left out, lists are flattened.
 */
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    made.append(child); // a string becomes a text node
  }
  return made;
}

/** Return a name that a user chose, apart from the direction of the text around it. */
function nameOf(text) {
  return element("bdi", { class: "name" }, text);
}

const DASH = "–";

/** Return a number in [0, 1] such as an AP with three decimals, a dash if it is unknown. */
function share(value) {
  return value === null || value === undefined || value < 0 ? DASH : value.toFixed(3);
}

/** Return a count with thousands separators, a dash if it is unknown. */
function count(value) {
  return value === null || value === undefined ? DASH : Math.round(value).toLocaleString("en-US");
}

/** Return a number of any size with about `digits` significant digits. */
function number(value, digits = 4) {
  if (value === null || value === undefined || !isFinite(value)) return DASH;
  const size = Math.abs(value);
  if (size >= 1000) return count(value);
  if (size && size < 0.001) return value.toExponential(Math.min(digits - 1, 2));
  return String(Number(value.toPrecision(digits)));
}

/** Return seconds as text: 48 s, 12 min 5 s, 3 h 20 min. */
function duration(seconds) {
  if (seconds === null || seconds === undefined || !isFinite(seconds)) return DASH;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${whole % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Return a noun with its number: 1 image, 2 images, 3 classes. */
function counted(value, noun) {
  const plural = /(s|x)$/.test(noun) ? `${noun}es` : `${noun}s`;
  return `${count(value)} ${value === 1 ? noun : plural}`;
}

/** Return a paragraph in place of content that does not exist (yet). */
function empty(text) {
  return element("p", { class: "empty" }, text);
}

/** Return our own text with its flags as code that is not broken at hyphens. */
function withFlags(text) {
  if (typeof text !== "string") return text;
  return text.split(/((?:\w+\.py )?--[a-z][a-z-]*(?: \d[\d.]*\d)?|-p[26]\b)/).map((part, i) =>
    (i % 2 ? element("code", null, part) : part));
}

/** Return a box with a title, content and a sentence that says how to read it. */
function card(title, content, caption) {
  return element("div", { class: "card" },
    title && element("h3", null, title), content,
    caption && element("p", { class: "caption" }, withFlags(caption)));
}

// What the row of links calls a section, where that is shorter than its title.
const LINKS = { pr: "Precision, recall", confusion: "Confusion", errors: "Errors", pictures: "Pictures", calibration: "Calibration", sizes: "Box size" };

/** Return a section with an anchor; the row of links is made from all sections. */
function section(id, title, note, ...content) {
  return element("section", { id, "aria-labelledby": `${id}-title`, "data-link": LINKS[id] },
    element("h2", { id: `${id}-title` }, title), note && element("p", { class: "note" }, withFlags(note)), content);
}

/** Return a list of keys and values. rows: [key, value, whether it is emphasized]. */
function definitions(rows) {
  return element("dl", null, rows.map(([key, value, changed]) => [
    element("dt", null, nameOf(key)), element("dd", { class: changed ? "changed" : null }, nameOf(value)),
  ]));
}

/** Fill the page: head, row of links, sections, foot. */
function show({ title, path, badge, sections, foot }) {
  const links = sections.map((part) =>
    element("li", null, element("a", { href: `#${part.id}` }, part.dataset.link || part.querySelector("h2").textContent)));
  document.body.append(
    element("header", null,
      element("div", null,
        element("div", { class: "title-line" }, element("h1", null, nameOf(title)), badge),
        path && element("div", { class: "path" }, nameOf(path)))),
    element("nav", { "aria-label": "Sections" }, element("ul", null, links)),
    element("main", null, sections),
    element("footer", null, foot));
}

/** Return the values that Python wrote into the page. */
function readValues() {
  return JSON.parse(document.getElementById("values").textContent);
}
