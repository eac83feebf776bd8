"""Rare classes and small data sets: how often each image is drawn, and how much a class weighs."""
