"""Averages that training keeps: of the weights, and of the statistics of BatchNorm."""
