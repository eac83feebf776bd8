"""Building blocks that import nothing from the rest of Kestrel.

Configuration, devices, files, metrics, plots.
"""

# The only place that states it; --version, checkpoints and exported files have it from here.
__version__ = "0.1.0"
