"""Assignment of predictions to targets: one file per rule, and what all rules share."""
