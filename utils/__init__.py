"""Building blocks that import nothing from the rest of Kestrel: configuration, devices, files,
metrics, plots.
"""
