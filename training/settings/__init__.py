"""Settings of a run: flags, hyper-parameters, and the recipe that is chosen from the data."""
