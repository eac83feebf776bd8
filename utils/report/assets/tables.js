// Tables that are sorted by a click on a heading.

/**
 * Return a table.
 * columns: {title, key, text, kind, help, bar, best}: `key` is the value's name in a row; `text`
 *   formats it; `kind` is "name" for text of several words, "word" or "number"; `bar` draws a line
 *   as long as the value's share of it; `best` is the value that is marked, or "row" if it is `most`
 *   of the row.
 * rows: objects. A value that is null is shown as a dash, and comes last in any order.
 * total: a row that stays at the top.
 * filter: whether a field to search the names is shown.
 */
function sortableTable(columns, rows, { total, caption, sortedBy, filter } = {}) {
  const body = element("tbody", null);
  const headings = columns.map((column) =>
    element("th", { scope: "col", class: column.kind === "number" ? "number" : null, title: column.help },
      element("button", { type: "button", onclick: () => sortBy(column) }, column.title)));
  const built = rows.map((row) => ({ row, line: tableRow(columns, row) }));
  let sorted = { key: null, descending: false };
  let wanted = "";

  function fill() {
    const nameKey = columns[0].key;
    const shown = built.filter(({ row }) => !wanted || String(row[nameKey]).toLowerCase().includes(wanted));
    body.replaceChildren(...(total ? [total.line] : []), ...shown.map(({ line }) => line));
  }

  function sortBy(column, descending) {
    // A first click on numbers shows the largest first, on names the alphabet.
    const again = sorted.key === column.key;
    sorted = { key: column.key, descending: descending ?? (again ? !sorted.descending : column.kind === "number") };
    const sign = sorted.descending ? -1 : 1;
    built.sort((a, b) => compareValues(a.row[column.key], b.row[column.key], sign));
    columns.forEach((other, i) => {
      if (other === column) headings[i].setAttribute("aria-sort", sorted.descending ? "descending" : "ascending");
      else headings[i].removeAttribute("aria-sort");
    });
    fill();
  }

  if (total) total = { line: tableRow(columns, total, "total") };
  fill();
  if (sortedBy) sortBy(columns.find((column) => column.key === sortedBy), true);
  const table = element("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": caption },
    element("table", { class: "full" },
      element("thead", null, element("tr", null, headings)), body));
  if (!filter) return table;
  const search = element("input", { type: "search", placeholder: "part of a name",
    oninput: () => { wanted = search.value.toLowerCase(); fill(); } });
  return [element("div", { class: "controls" }, element("label", null, "Show classes with", search)), table];
}

function tableRow(columns, row, kind) {
  return element("tr", { class: kind || null }, columns.map((column, i) => {
    const value = row[column.key];
    const text = column.text ? column.text(value, row) : value;
    if (i === 0) return element("th", { scope: "row" }, nameOf(String(text)));
    const missing = value === null || value === undefined || value < 0;
    const isBest = !missing && column.best !== undefined && value === (column.best === "row" ? row.most : column.best);
    const cell = element("td", { class: [isBest ? "best" : "", { number: "number", name: "words" }[column.kind] || "", column.bar ? "bar" : "",
      column.cost ? "cost" : "", missing ? "missing" : ""].join(" ").trim() || null }, text);
    if (column.bar && !missing) {
      const line = element("i", null);
      line.style.width = `calc((100% - 1.2rem) * ${Math.min(1, value / column.bar)})`;
      cell.append(line);
    }
    return cell;
  }));
}

/** Return the order of two values: numbers by size, text by the alphabet; unknown ones last. */
function compareValues(a, b, sign) {
  const unknown = (value) => value === null || value === undefined || (typeof value === "number" && value < 0);
  if (unknown(a) || unknown(b)) return unknown(a) - unknown(b);
  if (typeof a === "string") return sign * a.localeCompare(b, "en", { numeric: true });
  return sign * (a - b);
}
