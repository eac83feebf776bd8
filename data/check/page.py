"""The diagnosis as one HTML page: no scripts, nothing from outside, texts escaped."""

from collections.abc import Iterable, Iterator
from html import escape

from data.check.findings import Diagnosis, Example, Finding, Suggestion, Table
from data.check.pictures import Thumbnails
from data.check.text import floor_2, summary
from utils.printable import counted, printable

MOST_PICTURE_BYTES = 4_500_000  # of the 5 MiB that a page may have
SHOWN = 24  # places of each finding, with pictures
LISTED = 200  # further places, without
# Nothing is loaded: styles stand in the page, pictures are data URLs.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
STYLE = """
:root { color-scheme: light dark; --line: #d5d9e0; --soft: #f3f5f8; --error: #b3261e;
  --warning: #8a5a00; --note: #3b5bdb; --text: #1c1e21; --back: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --line: #3a3f47; --soft: #23262b; --error: #ff8a80;
  --warning: #ffc266; --note: #91a7ff; --text: #e6e8eb; --back: #16181b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 70rem; color: var(--text);
  background: var(--back); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; margin: 0.5rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; }
p { margin: 0.4rem 0; } .quiet { opacity: 0.75; font-size: 0.9rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.9rem; }
th, td { padding: 0.25rem 0.7rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }
section.finding { border: 1px solid var(--line); border-left-width: 5px; border-radius: 6px;
  margin: 1rem 0; padding: 0.6rem 0.9rem; }
section.error { border-left-color: var(--error); }
section.warning { border-left-color: var(--warning); }
section.note { border-left-color: var(--note); }
.level { font-weight: 600; } .error .level { color: var(--error); }
.warning .level { color: var(--warning); } .note .level { color: var(--note); }
h3 { font-size: 1rem; margin: 0; font-weight: 600; }
.places { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(14rem, 100%), 1fr));
  gap: 0.8rem; margin-top: 0.6rem; }
.places figure { margin: 0; padding: 0.5rem; background: var(--soft); border-radius: 6px; }
.places img { max-width: 100%; max-height: 12rem; border-radius: 3px; margin-right: 0.3rem; }
.places .pair img { max-width: calc(50% - 0.35rem); }
figcaption { font-size: 0.8rem; }
details { margin-top: 0.5rem; } summary { cursor: pointer; }
li { font-size: 0.85rem; }
.key { display: inline-block; width: 0.9rem; height: 0.9rem; vertical-align: -0.1rem;
  border: 2px solid; margin: 0 0.25rem 0 0.6rem; }
.label { border-color: #1e90ff; } .detection { border-color: #ff6e00; }
"""


def page_of(diagnosis: Diagnosis) -> str:
    """Return the page of a diagnosis."""
    thumbnails = Thumbnails(MOST_PICTURE_BYTES)
    title = f"Data check: {printable(diagnosis.data)}"

    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(summary(diagnosis))}. Paths are those in {escape(diagnosis.folder)}.</p>",
        *_keys(diagnosis),
        "<h2>Findings</h2>",
    ]

    for finding in diagnosis.by_level():
        body += _finding(diagnosis, finding, thumbnails)

    if not diagnosis.findings:
        body.append("<p>Nothing was found.</p>")

    body += _suggestions(diagnosis.suggestions)
    for table in diagnosis.tables:
        body += _table(table)

    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            *body,
            "</body></html>\n",
        ]
    )


def _keys(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield what the colors of the boxes in the pictures mean."""
    text = '<span class="key label"></span>label'
    if diagnosis.weights:
        text += '<span class="key detection"></span>detection of '
        text += escape(printable(diagnosis.weights))
    yield f'<p class="quiet">Boxes in the pictures: {text}</p>'


def _finding(diagnosis: Diagnosis, finding: Finding, thumbnails: Thumbnails) -> Iterator[str]:
    """Yield the section of a finding: pictures of the first places, a list of further ones."""
    yield f'<section class="finding {escape(finding.level)}">'
    level = f'<span class="level">{escape(finding.level)}:</span>'
    yield f"<h3>{level} {escape(finding.heading)}</h3>"
    yield f"<p>{escape(finding.advice[:1].upper() + finding.advice[1:])}.</p>"

    figures = []
    rest: list[Example] = []
    for place, example in enumerate(finding.examples):
        urls = thumbnails.of(example) if place < SHOWN else []
        if urls:
            figures.append(_figure(diagnosis, example, urls))
        else:
            rest.append(example)
    if figures:
        yield f'<div class="places">{"".join(figures)}</div>'
    if rest:
        yield from _list(diagnosis, rest, finding.count - len(figures))
    yield "</section>"


def _figure(diagnosis: Diagnosis, example: Example, urls: Iterable[str]) -> str:
    images = [f'<img src="{url}" alt="" loading="lazy">' for url in urls]
    kind = "pair" if len(images) > 1 else "one"
    caption = _words(diagnosis, example)
    return (
        f'<figure><div class="{kind}">{"".join(images)}</div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _list(diagnosis: Diagnosis, examples: list[Example], count: int) -> Iterator[str]:
    """Yield a list of places without pictures. count: of all such places."""
    is_open = " open" if count <= 5 else ""
    yield f"<details{is_open}><summary>{counted(count, 'place')} in text</summary><ul>"
    for example in examples[:LISTED]:
        yield f"<li>{_words(diagnosis, example)}</li>"
    if count > LISTED:
        yield f"<li>and {count - LISTED:,} more: see the JSON file</li>"
    yield "</ul></details>"


def _words(diagnosis: Diagnosis, example: Example) -> str:
    """Return the score, the place and what is there, escaped."""
    score = "" if example.score is None else f"<b>{floor_2(example.score):.2f}</b> "
    return score + escape(diagnosis.short(f"{example.where}: {example.what}"))


def _suggestions(suggestions: list[Suggestion]) -> Iterator[str]:
    if not suggestions:
        return
    yield "<h2>Suggested flags of train.py</h2><ul>"
    for suggestion in suggestions:
        flag = f"{suggestion.flag} {suggestion.value}"
        if not suggestion.value:
            flag = f"no {suggestion.flag}"
        yield f"<li><code>{escape(flag)}</code>: {escape(suggestion.reason)}</li>"
    yield "</ul>"


def _table(table: Table) -> Iterator[str]:
    yield f'<h2>{escape(table.title)}</h2><div class="scroll"><table>'
    yield "<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in table.header) + "</tr>"
    for row in table.rows:
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
    yield "</table></div>"
    if table.note:
        yield f'<p class="quiet">{escape(table.note)}</p>'
