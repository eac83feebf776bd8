// Tables that are sorted by a click on a heading.

/**
 * Return a table.
 * columns: {title, key, kind, text, help, bar, cost, best}: `key` is the value's name in a row;
 *   `kind` is "name" for text of several words, "word" or "number"; `text` formats the value;
 *   `bar` draws a line as long as the value's share of it, in another color for a `cost`; `best` is
 *   the value that is marked, or "row" if it is `most` of the row.
 * rows: objects. An unknown number comes last in any order.
 * total: a row that stays at the top.
 * caption: what a screen reader says.
 * sortedBy: the key of the column that it is sorted by at first, largest first.
 * filter: whether a field to search the names is shown.
 */
function sortableTable(columns, rows, { total, caption, sortedBy, filter } = {}) {
  const body = element("tbody", null);
  const lines = rows.map((row) => ({ row, line: tableRow(columns, row) }));
  const first = total ? [tableRow(columns, total, "total")] : [];
  let sorted = { key: null, descending: false };
  let wanted = "";

  function fill() {
    const isWanted = ({ row }) => String(row[columns[0].key]).toLowerCase().includes(wanted);
    body.replaceChildren(...first, ...lines.filter(isWanted).map(({ line }) => line));
  }

  function sortBy({ key }, descending) {
    sorted = { key, descending };
    const sign = descending ? -1 : 1;
    lines.sort((a, b) => compareValues(a.row[key], b.row[key], sign));
    columns.forEach((column, i) => {
      if (column.key !== key) headings[i].removeAttribute("aria-sort");
      else headings[i].setAttribute("aria-sort", descending ? "descending" : "ascending");
    });
    fill();
  }

  const headings = columns.map((column) => {
    const onclick = () => {
      // The first click on numbers shows the largest first, on text the alphabet.
      const again = sorted.key === column.key;
      sortBy(column, again ? !sorted.descending : column.kind === "number");
    };
    const button = element("button", { type: "button", onclick }, column.title);
    const className = column.kind === "number" ? "number" : null;
    return element("th", { scope: "col", class: className, title: column.help }, button);
  });

  fill();
  if (sortedBy) sortBy({ key: sortedBy }, true);
  const head = element("thead", null, element("tr", null, headings));
  const box = element("div",
    { class: "scroll tall", tabindex: "0", role: "region", "aria-label": caption },
    element("table", { class: "full" }, head, body));
  if (!filter) return box;

  const oninput = () => {
    wanted = search.value.toLowerCase();
    fill();
  };
  const search = element("input", { type: "search", placeholder: "part of a name", oninput });
  return [div("controls", element("label", null, "Show classes with", search)), box];
}

function tableRow(columns, row, className) {
  const [first, ...others] = columns;
  const heading = element("th", { scope: "row" }, nameOf(row[first.key]));
  const cells = others.map((column) => tableCell(column, row));
  return element("tr", { class: className }, heading, cells);
}

function tableCell(column, row) {
  const value = row[column.key];
  const isNumber = column.kind === "number";
  const isMissing = isNumber && isUnknown(value);
  const best = column.best === "row" ? row.most : column.best;
  const classes = {
    number: isNumber,
    words: column.kind === "name",
    missing: isMissing,
    best: best !== undefined && value === best,
    bar: column.bar,
    cost: column.cost,
  };
  const className = Object.keys(classes).filter((name) => classes[name]).join(" ");

  const cell = element("td", { class: className }, column.text ? column.text(value) : value);
  if (column.bar && !isMissing) {
    const bar = element("i", null);
    bar.style.width = `calc((100% - 1.2rem) * ${Math.min(1, value / column.bar)})`;
    cell.append(bar);
  }
  return cell;
}

/** Return the order of two values: numbers by size, text by the alphabet; unknown ones last. */
function compareValues(a, b, sign) {
  if (typeof a === "string" && typeof b === "string") {
    return sign * a.localeCompare(b, "en", { numeric: true });
  }
  if (isUnknown(a) || isUnknown(b)) return isUnknown(a) - isUnknown(b);
  return sign * (a - b);
}
