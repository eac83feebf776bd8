"""Which predictions answer for which targets: a file per rule, and what all rules share."""
