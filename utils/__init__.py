"""Building blocks that import nothing from the rest of Kestrel.

Configuration, devices, files, metrics, plots.
"""

import sys

# Here, since the scripts import this first: later modules do not load in an older Python.
if sys.version_info < (3, 10):  # noqa: UP036
    python = ".".join(map(str, sys.version_info[:3]))
    sentence = f"Kestrel needs Python 3.10 or newer, but {sys.executable} is {python}"
    print(f"error: {sentence}: start it with a newer one, such as python3.12", file=sys.stderr)
    sys.exit(2)

# The only place that states it; --version, checkpoints and exported files have it from here.
__version__ = "0.1.0"
