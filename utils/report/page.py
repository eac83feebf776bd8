"""A page of one file: styles, scripts, chart library and values; it requests nothing.

The scripts are in assets/. They build the page from the values, which are text everywhere: the
policy in the page allows these scripts and styles only, by their digests, and pictures that are
inside the page.
"""

import base64
import hashlib
import html
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from utils.printable import printable
from utils.report.values import to_json

ASSETS = Path(__file__).parent / "assets"
LICENSE = "uplot/uPlot.LICENSE"  # of the chart library
STYLES = ("uplot/uPlot.min.css", "shared/page.css")
SHARED_SCRIPTS = (
    "uplot/uPlot.iife.min.js",
    "shared/elements.js",
    "shared/numbers.js",
    "shared/tables.js",
    "shared/charts.js",
)
SCRIPTS = {
    "report": (
        "report/values.js",
        "report/result.js",
        "report/curves.js",
        "report/classes.js",
        "report/precision_recall.js",
        "report/confusion.js",
        "report/errors.js",
        "report/pictures.js",
        "report/calibration.js",
        "report/box_sizes.js",
        "report/run.js",
        "report/page.js",
    ),
    "compare": ("compare/page.js",),
}
HEAD_BYTES = 2000  # of a file, in which its mark is

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="generator" content="{generator}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript>This page needs JavaScript, which it has inside; it loads nothing.</noscript>
<script type="application/json" id="values">{values}</script>
<script>{script}</script>
</body>
</html>
"""


def build_page(kind: str, title: str, values: Any) -> str:
    """Return a page as HTML.

    Args:
        kind: one of SCRIPTS.
        title: of the browser's tab.
        values: what the page shows, as `to_json` takes it.
    """
    style = _joined(STYLES)
    code = _joined((*SHARED_SCRIPTS, *SCRIPTS[kind]))
    policy = (
        f"default-src 'none'; script-src {_source(code)}; style-src {_source(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return PAGE.format(
        policy=policy,
        generator=_generator(kind),
        title=html.escape(printable(title)),
        style=style,
        values=to_json(values),
        script=code,
    )


def is_page_of(file: Path, kind: str) -> bool:
    """Return whether a file is a page of this kind.

    Raises OSError if it cannot be read.
    """
    mark = f'<meta name="generator" content="{_generator(kind)}">'
    return begins_with_mark(file, mark.encode())


def begins_with_mark(file: Path, mark: bytes) -> bool:
    """Return whether a regular file has this mark of a program's own output at its beginning.

    Other files are not opened: a FIFO would block. Raises OSError if it cannot be read.
    """
    if not file.is_file():
        return False
    with open(file, "rb") as stream:
        return mark in stream.read(HEAD_BYTES)


def _generator(kind: str) -> str:
    """Return what a page says of the program that wrote it."""
    return f"Kestrel, {kind}"


@cache
def _joined(files: Sequence[str]) -> str:
    """Return the contents of files in assets/ as the content of one element.

    The license of the chart library, which must go with each copy, comes first.
    """
    license_text = (ASSETS / LICENSE).read_text(encoding="utf-8")
    texts = [f"/*! uPlot:\n{license_text}\n*/"]
    texts += [(ASSETS / file).read_text(encoding="utf-8") for file in files]
    return "\n".join(texts)


@cache
def _source(text: str) -> str:
    """Return the name of an element's content in a Content-Security-Policy, by its digest."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
