"""Search for hyper-parameters: many trainings, one after another, each scored by its fitness."""
