"""The data doctor: what is wrong with a data set, before an hour of training is spent on it."""
