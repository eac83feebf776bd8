"""report.html: what a run is, how it went, and why its AP is what it is."""
