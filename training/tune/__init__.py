"""python -m training.tune: search for hyper-parameters and flags with Optuna."""
