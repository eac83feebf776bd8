"""Sinks of a run's events: the terminal, results.csv, and loggers of other projects.

A sink that ends the run when it fails has a class with `handle(event)`, as in terminal_lines.py. A
logger, which must never end or delay a run, is a subclass of Logger (base.py) with a line in
registry.py.
"""
