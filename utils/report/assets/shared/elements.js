// Elements of the page. Whatever comes from the run (class names, paths, file names) is text: it
// enters the page through text nodes and attributes, never as HTML.

const DASH = "–";

// What the row of links calls a section, where that is shorter than its title.
const LINKS = {
  pr: "Precision, recall",
  confusion: "Confusion",
  errors: "Errors",
  pictures: "Pictures",
  calibration: "Calibration",
  sizes: "Box size",
};

/**
 * Return an element.
 * attributes: names and values; `onclick` and the like are functions. null and false are left out.
 * children: elements and texts; null and false are left out, lists are flattened.
 */
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  const isShown = (child) => child !== null && child !== undefined && child !== false;
  made.append(...children.flat(Infinity).filter(isShown)); // a string becomes a text node
  return made;
}

/** Return a div of a class. */
function div(className, ...children) {
  return element("div", { class: className }, ...children);
}

/** Return a name that a user chose, apart from the direction of the text around it. */
function nameOf(text) {
  return element("bdi", { class: "name" }, text);
}

/** Return a sentence that has names in it. parts: our text and names in turn, text first. */
function withNames(parts) {
  return parts.map((part, i) => (i % 2 ? nameOf(part) : part));
}

/** Return a name for a plain text, such as a title, apart from the direction of what is around. */
function isolated(name) {
  return `\u2068${name}\u2069`;
}

/** Return our own text with its flags as code that is not broken at hyphens. */
function withFlags(text) {
  const parts = text.split(/((?:\w+\.py )?--[a-z][a-z-]*(?: \d[\d.]*\d)?|-p[26]\b)/);
  return parts.map((part, i) => (i % 2 ? element("code", null, part) : part));
}

/** Return a paragraph in place of content that does not exist (yet). */
function empty(text) {
  return element("p", { class: "empty" }, text);
}

/** Return a box with a title, content and a sentence that says how to read it. */
function card(title, content, caption) {
  const text = caption && element("p", { class: "caption" }, withFlags(caption));
  return div("card", element("h3", null, title), content, text);
}

/** Return a section with an anchor; the row of links is made from all sections. */
function section(id, title, note, ...content) {
  return element("section", { id, "aria-labelledby": `${id}-title` },
    element("h2", { id: `${id}-title` }, title),
    note && element("p", { class: "note" }, withFlags(note)),
    content);
}

/** Return a list of keys and values. rows: [key, value, whether it is emphasized]. */
function definitions(rows) {
  const entries = rows.map(([key, value, emphasized]) => [
    element("dt", null, nameOf(key)),
    element("dd", { class: emphasized ? "changed" : null }, nameOf(value)),
  ]);
  return element("dl", null, entries);
}

/** Fill the page: head, row of links, sections (null ones are left out), foot. */
function show({ title, path, badge, sections, values: { version, written } }) {
  const shown = sections.filter(Boolean);
  const links = shown.map((part) => {
    const text = LINKS[part.id] || part.querySelector("h2").textContent;
    return element("li", null, element("a", { href: `#${part.id}` }, text));
  });
  const titleLine = div("title-line", element("h1", null, nameOf(title)), badge);
  const foot =
    `Written by Kestrel ${version} on ${written}. This page is one file: it loads nothing and ` +
    "sends nothing.";
  document.body.append(
    element("header", null, div("head", titleLine, path && div("path", nameOf(path)))),
    element("nav", { "aria-label": "Sections" }, element("ul", null, links)),
    element("main", null, shown),
    element("footer", null, foot),
  );
}

/** Return the values that Python wrote into the page. */
function readValues() {
  return JSON.parse(document.getElementById("values").textContent);
}
