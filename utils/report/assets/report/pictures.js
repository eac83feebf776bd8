// The worst pictures of each kind of error.

const FIRST_PICTURES = 24; // that are shown before a click on "Show all"
const SVG = "http://www.w3.org/2000/svg";

const PICTURES_NOTE =
  "The most confident errors first, missed objects by their number. A picture is the part of the " +
  "image around the error. A detection without a label may be right: then the label is missing.";

function pictures() {
  if (!evaluation) return null;
  const title = "Worst pictures";
  const all = evaluation.pictures;
  if (!all) return section("pictures", title, null, empty(LATER));
  if (!all.length) return section("pictures", title, null, empty("No errors to show."));

  const grid = div("pictures");
  const shown = element("span", { class: "count", role: "status" });
  const more = element("button",
    { type: "button", class: "more", onclick: () => fill(Infinity) }, "Show all");
  const kind = kindChoice(all, () => fill());
  const ofClass = classChoice(all, () => fill());

  function fill(most = FIRST_PICTURES) {
    const chosen = all.filter((picture) => {
      const isKind = !kind.value || picture.kind === kind.value;
      return isKind && (!ofClass.value || picture.classes.includes(Number(ofClass.value)));
    });
    const figures = chosen.slice(0, most).map(pictureFigure);
    if (!figures.length) figures.push(empty("No picture of this kind and class."));
    grid.replaceChildren(...figures);
    shown.textContent = counted(chosen.length, "picture");
    more.hidden = chosen.length <= most;
  }

  fill();
  const controls = div("controls",
    element("label", null, "Kind", kind),
    element("label", null, "Class", ofClass),
    boxToggle(grid, "labels", "no-labels", "key-truth"),
    boxToggle(grid, "detections", "no-detections", "key-detection"),
    shown);
  return section("pictures", title, PICTURES_NOTE, controls, grid, more);
}

function kindChoice(all, onchange) {
  const present = ERRORS.filter(({ key }) => all.some((picture) => picture.kind === key));
  const options = present.map(({ key, title }) => element("option", { value: key }, title));
  return element("select", { id: "kind", onchange },
    element("option", { value: "" }, "all kinds"), options);
}

function classChoice(all, onchange) {
  const present = [...new Set(all.flatMap((picture) => picture.classes))].sort((a, b) => a - b);
  const options = present.map((k) => element("option", { value: k }, names[k]));
  return element("select", { id: "of-class", onchange },
    element("option", { value: "" }, "all classes"), options);
}

/** Return a check box that shows and hides boxes: `hidden` is the grid's class without them. */
function boxToggle(grid, text, hidden, key) {
  const onchange = () => grid.classList.toggle(hidden, !input.checked);
  const input = element("input", { type: "checkbox", checked: true, onchange });
  return element("label", null, input, element("span", { class: key }, text));
}

function pictureFigure(picture) {
  const { width, height, image, text, file } = picture;
  const { title } = ERRORS.find(({ key }) => key === picture.kind);
  const shown = element("img", { src: image, width, height, alt: `${title}: ${text.join("")}` });
  const caption = element("figcaption", null,
    element("span", { class: "kind" }, title), ": ", withNames(text), div("file", nameOf(file)));
  return element("figure", { class: "card", "data-kind": picture.kind },
    div("frame", shown, boxDrawing(picture)), caption);
}

/** Return the boxes of a picture as a drawing that lies over it. */
function boxDrawing({ width, height, boxes }) {
  const drawing = svgElement("svg",
    { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const { truth, main, box, title } of boxes) {
    const [x1, y1, x2, y2] = box;
    const kind = truth ? "truth" : "detection";
    const rect = svgElement("rect",
      { x: x1, y: y1, width: x2 - x1, height: y2 - y1, class: main ? kind : `${kind} context` });
    const hint = svgElement("title", {});
    hint.textContent = title;
    rect.append(hint);
    drawing.append(rect);
  }
  return drawing;
}

function svgElement(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
