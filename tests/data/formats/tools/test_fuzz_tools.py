"""Mutated files of each tool: they are read, or refused with one line that names the file."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from data.formats.base import LabelFormat, UnreadableLabelsError
from data.formats.registry import FORMATS
from data.report import IMAGE_DROPPED, NOTE, ROW_CLIPPED, Problem
from tests.data.formats.test_fuzz_coco import PIECES, VALUES, entries_of
from tests.data.formats.tools.test_supervisely import bitmap
from tests.data.formats.tools.test_via import RECT
from tests.support.fuzzing import assert_printable_line, mutate, result_or_error
from tests.support.tool_files import SIZE, all_problems, draw

LEFT_OUT = IMAGE_DROPPED  # b.png of a seed does not exist
pytestmark = pytest.mark.slow

NAMES = ("cat", "dog", "face", "object")
POINTS = [[1, 9], [5, 3], [7, 8]]
VALUE = {"x": 10, "y": 20, "width": 50, "height": 25, "rotation": 30, "rectanglelabels": ["cat"]}
REGION = {"original_width": 40, "original_height": 20, "type": "rectanglelabels", "id": "x"}
VIA = {
    "a": {
        "filename": "a.png",
        "regions": [{"shape_attributes": RECT, "region_attributes": {"class": "cat"}}],
    }
}
VOTT_REGION = {"type": "POLYGON", "tags": ["cat"], "points": [{"x": 1, "y": 2}, {"x": 5, "y": 9}]}
CSV = b"filename,width,height,class,xmin,ymin,xmax,ymax\na.png,40,20,cat,1,2,11,14\n"
VIA_CSV = b"""filename,region_shape_attributes,region_attributes
a.png,"{""name"":""rect"",""x"":1,""y"":2,""width"":10,""height"":12}","{""c"":""cat""}"
"""
CVAT = b"""<annotations><meta><labels><label><name>cat</name></label></labels><original_size>
<width>40</width><height>20</height></original_size></meta>
<image name="a.png" width="40" height="20">
<box label="cat" xtl="1" ytl="2" xbr="11" ybr="14" rotation="30"/>
<polygon label="dog" points="1,9;5,3;7,8"/><mask label="cat" left="1" top="2" width="3" height="4"/>
<skeleton label="cat"><points points="1,2"/><points points="8,9" outside="0"/></skeleton></image>
<track label="dog"><ellipse frame="0" outside="0" cx="9" cy="9" rx="5" ry="4"/></track>
</annotations>"""


class Seed(NamedTuple):
    """A valid file of a tool."""

    title: str  # of its reader
    name: str  # of the file
    document: Any  # of a JSON
    text: bytes = b""  # of another file

    def bytes(self) -> bytes:
        return self.text or json.dumps(self.document).encode()


CREATEML = [{"image": "a.png", "annotations": [{"label": "cat", "coordinates": RECT}]}]
PAINTED = {"classTitle": "cat", "geometryType": "bitmap", "bitmap": bitmap(3, 4)}
SUPERVISELY = [
    {"classTitle": "cat", "geometryType": "rectangle", "points": {"exterior": [[1, 2], [3, 4]]}},
    PAINTED,
]
SEEDS = [
    Seed("CreateML JSON", "x.json", CREATEML),
    Seed(
        "Label Studio JSON",
        "x.json",
        [{"annotations": [{"result": [REGION | {"value": VALUE}]}], "data": {"image": "a.png"}}],
    ),
    Seed("Label Studio JSON", "min.json", [{"image": "a.png", "label": [VALUE | REGION]}]),
    Seed("VGG Image Annotator JSON", "x.json", VIA),
    Seed("VGG Image Annotator JSON", "x.json", {"_via_settings": {}, "_via_img_metadata": VIA}),
    Seed(
        "VoTT JSON",
        "x.json",
        {
            "tags": [{"name": "cat"}],
            "assets": {"a": {"asset": {"name": "a.png"}, "regions": [VOTT_REGION]}},
        },
    ),
    Seed("LabelMe JSON", "a.json", {"shapes": [{"label": "cat", "points": POINTS}]}),
    Seed("Supervisely", "../ann/a.png.json", {"size": {"width": 40}, "objects": SUPERVISELY}),
    Seed("CVAT XML 1.1", "x.xml", None, CVAT),
    Seed("CSV with a box in each row", "x.csv", None, CSV),
    Seed("CSV with a box in each row", "x.csv", None, b'image_id,bbox\na,"[1, 2, 10, 12]"\n'),
    Seed("VGG Image Annotator CSV", "x.csv", None, VIA_CSV),
    Seed("WIDER FACE", "x.txt", None, b"a.png\n2\n1 2 10 12 0 0\n3 4 5 6\nb.png\n0\n0 0 0 0\n"),
    Seed("DOTA, oriented boxes", "a.txt", None, b"gsd:1\n1 2 11 2 11 14 1 14 cat 0\n"),
]
MORE_PIECES = [
    *(b"cat", b"a.png", b"../a.png", b"-1", b"0.5", b"\t", b";", b" ", b"\r", b'""', b"\0", b"\n"),
    *(b"<!DOCTYPE a>", b"&x;", b"<box/>", b"</image>", b"<track>", b"frame", b"outside", b"[]"),
    *("٣".encode(), "é".encode(), b"\x1b[2J", b"1e999", b"http://[", b"%00", b"%ff", b"file:///"),
]


def altered(document: Any, random: np.random.Generator) -> Any:
    """Return a copy of a JSON document with one to three values replaced, removed or doubled."""
    document = copy.deepcopy(document)
    for _ in range(int(random.integers(1, 4))):
        found = entries_of(document)
        if not found:
            return document
        container, key = found[int(random.integers(len(found)))]
        kind = int(random.integers(4))
        if kind == 0:
            del container[key]
        elif kind == 1 and isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        else:
            container[key] = copy.deepcopy(VALUES[int(random.integers(len(VALUES)))])
    return document


def mutations(seed: Seed, random: np.random.Generator, count: int) -> Iterator[bytes]:
    for number in range(count):
        if seed.document is not None and number % 2:
            yield json.dumps(altered(seed.document, random)).encode()
        elif seed.text.startswith(b"<") and number % 2:
            yield with_other_attribute(seed.text, random)
        else:
            yield mutate(seed.bytes(), random, [*PIECES, *MORE_PIECES])


def with_other_attribute(text: bytes, random: np.random.Generator) -> bytes:
    """Return XML with another value of one of its attributes."""
    found = [*re.finditer(rb'(?<=")[^"=<>]*(?=")', text)]
    chosen = found[int(random.integers(len(found)))]
    pieces = [b"", b"nan", b"1e999", b"9" * 5000, b"-1", b"cow", b"x;y", b"1,2", "٣".encode(), b"1"]
    value = pieces[int(random.integers(len(pieces)))]
    return text[: chosen.start()] + value + text[chosen.end() :]


def read_all(reader: LabelFormat, source: Path) -> list[Problem]:
    """Return all problems of a source, and check that its boxes are inside the image."""
    reader.accepts(source)
    reader.class_names(source)
    contents = reader.images(source, NAMES)
    problems = all_problems(contents)
    for image in contents.images:
        try:
            read = reader.rows(image, SIZE, NAMES)
        except UnreadableLabelsError as error:
            message = str(error)
        else:
            message = ""
        if message:
            assert str(source.parent) in message
            assert_printable_line(message)
            continue
        problems += read.problems
        for row in read.rows:
            x, y, w, h = row.box_xywh
            assert w > 0
            assert h > 0
            assert min(x, y) >= -1e-3
            assert x + w <= SIZE[0] + 1e-3
            assert y + h <= SIZE[1] + 1e-3
    return problems


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"{seed.title} {seed.name}")
def test_mutated_files_are_read_or_refused_in_one_line(tmp_path: Path, seed: Seed) -> None:
    reader = next(reader for reader in FORMATS if reader.title == seed.title)
    folder = tmp_path / "img"
    draw(folder, "a.png", "frame_000000.png")
    (tmp_path / "ann").mkdir()
    file = folder / seed.name
    source = file if reader.lists_images else folder

    file.write_bytes(seed.bytes())
    assert reader.accepts(source)
    assert {problem.kind for problem in read_all(reader, source)} <= {NOTE, ROW_CLIPPED, LEFT_OUT}

    random = np.random.default_rng(0)
    read = 0
    for data in mutations(seed, random, 120):
        file.write_bytes(data)
        where = file.resolve() if not reader.lists_images else file
        found = result_or_error(lambda: read_all(reader, source), where)
        if not isinstance(found, str):
            read += 1
            for problem in found:
                assert_printable_line(str(problem))
    assert read > 20
