// What Python has written into the page, and what is said in place of what it has not.

const values = readValues();
const evaluation = values.evaluation; // null if nothing has been evaluated
const names = evaluation ? evaluation.classes.map((row) => row.name) : [];

const isRunning = values.status.state === "running";
const LATER = isRunning ? "Written when the training has ended." : "This run has none.";
const NOT_VALIDATED = isRunning
  ? "No epoch has been validated yet. Reload the page later."
  : "The run was not validated.";
