"""Pages of one file: values that no text can leave, a policy that fits, no address outside."""

import base64
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from utils.report import build_page, is_page_of, to_json
from utils.report.page import ASSETS, LICENSE, SCRIPTS, SHARED_SCRIPTS, STYLES

HOSTILE = "</script><!--<img src=x onerror=alert(1)>&amp;\"'\u2028\u202e\x00\n\ud800"


def test_json_has_no_markup_and_reads_back_as_printable_text():
    text = to_json({HOSTILE: [HOSTILE, Path(HOSTILE.replace("\x00", ""))]})
    assert text.isascii()
    assert not {*"<>&\n"} & {*text}
    ((key, (first, _)),) = json.loads(text).items()
    assert key == first
    assert first.isprintable()
    assert first == HOSTILE[:-5] + r"\u2028\u202e\x00\n\ud800"


def test_numbers_become_json():
    values = {
        "float": 0.123456789,
        "unknown": [float("nan"), float("inf"), None],
        "array": np.array([[1, 2]]),
        "scalar": np.float32(0.5),
        "flag": np.bool_(True),
        "nothing": (),
    }
    assert json.loads(to_json(values)) == {
        "float": 0.123457,
        "unknown": [None, None, None],
        "array": [[1, 2]],
        "scalar": 0.5,
        "flag": True,
        "nothing": [],
    }


def test_bytes_are_a_picture_of_any_length():
    picture = bytes(range(256)) * 40
    uri = json.loads(to_json(picture))
    assert base64.b64decode(uri.removeprefix("data:image/jpeg;base64,")) == picture


def test_other_values_are_refused():
    with pytest.raises(TypeError, match=r"^a page cannot show a set$"):
        to_json({"a": {1}})


@pytest.fixture(scope="module")
def page() -> str:
    return build_page("report", HOSTILE, {"name": HOSTILE})


def test_policy_names_the_digests_of_script_and_style(page):
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for element, directive in (("script", "script-src"), ("style", "style-src")):
        (content,) = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy


def test_page_has_two_scripts_and_no_address_outside(page):
    assert len(re.findall(r"<script", page)) == len(re.findall(r"</script>", page)) == 2
    assert not re.findall(r"<img|<link|@import|url\(|innerHTML|outerHTML|insertAdjacentHTML", page)
    addresses = {*re.findall(r"https?://[^\s\"')]+", page)}
    assert addresses == {"https://github.com/leeoniya/uPlot", "http://www.w3.org/2000/svg"}
    assert "<title>&lt;/script&gt;" in page


def test_every_script_and_style_is_used():
    used = {
        LICENSE,
        *STYLES,
        *SHARED_SCRIPTS,
        *(file for files in SCRIPTS.values() for file in files),
    }
    files = [file for file in ASSETS.rglob("*") if file.is_file()]
    assert {file.relative_to(ASSETS).as_posix() for file in files} == used


def test_page_has_the_license_of_the_chart_library(page):
    assert (ASSETS / LICENSE).read_text() in page
    assert "Copyright (c) 2022 Leon Sorokin" in page


def test_page_is_recognized_by_its_script(page, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(page, encoding="utf-8")
    assert is_page_of(file, "report")
    assert not is_page_of(file, "compare")
    file.write_text("")
    assert not is_page_of(file, "report")
