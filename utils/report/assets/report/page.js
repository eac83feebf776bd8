// The report of one run. A section is null if the run has nothing for it.

show({
  title: values.title,
  path: values.folder,
  badge: element("span", { class: `badge ${values.status.state}` }, values.status.text),
  sections: [
    result(),
    curves(),
    classes(),
    precisionRecall(),
    confusion(),
    errors(),
    pictures(),
    calibration(),
    boxSizes(),
    runFacts(),
  ],
  values,
});
drawCharts();
