// What the run was: data, model, environment, settings.

function runFacts() {
  const cards = values.facts.map(([title, rows]) => card(title, definitions(rows)));
  const changed = values.settings.filter(([, , differs]) => differs);
  const plain = changed.map(([name, value]) => [name, value]);
  return section("run", "Run", "What was run, with what, and on which data.",
    div("stack",
      div("wide-columns", cards),
      changed.length > 0 && card("Settings that differ from the defaults", definitions(plain)),
      foldedList("All settings; bold: not the default", values.settings),
      foldedList("Hyper-parameters; bold: not the default", values.hyp)));
}

/** Return a list that a click opens, null if it is empty. */
function foldedList(title, rows) {
  if (!rows.length) return null;
  return element("details", { class: "card" }, element("summary", null, title), definitions(rows));
}
