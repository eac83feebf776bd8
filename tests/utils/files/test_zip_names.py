"""utils/files/zip_names.py: names in the encodings that programs write without saying so."""

import io
import zipfile

import pytest

from utils.files.zip_names import names_in_zip

WINDOWS, UNIX = 0, 3


class Unmarked(zipfile.ZipInfo):
    """An entry whose name is written in an encoding, and not marked as UTF-8."""

    encoding = "utf-8"

    def _encodeFilenameFlags(self):
        return self.filename.encode(self.encoding), 0


def read_back(names, encoding="", *, system=WINDOWS):
    """Return what is read of a zip with these names; encoding: "" for marked ones."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            info = zipfile.ZipInfo(name)
            if encoding:
                info = Unmarked(name)
                info.encoding = encoding
            info.create_system = system
            archive.writestr(info, b"")
    with zipfile.ZipFile(buffer) as archive:
        return names_in_zip(archive.infolist())


@pytest.mark.parametrize(
    ("names", "encoding"),
    [
        (["图片/猫.png", "a.txt"], ""),
        (["图片/猫.png", "a.txt"], "utf-8"),
        (["图片/猫.png", "a.txt"], "gbk"),
        (["镕.png", "图.png", "片.png"], "gbk"),  # the first is not in GB2312
        (["Käfer/ñandú.png"], "cp437"),
        (["Käfer.png"], "utf-8"),
        (["a\\b.png"], "utf-8"),
        ([], "gbk"),
    ],
)
def test_names_are_read_as_written(names, encoding):
    assert read_back(names, encoding) == [name.replace("\\", "/") for name in names]


def test_other_encodings_are_cp437_as_the_standard_says():
    assert read_back(["\u306d.png"], "shift_jis") == ["é╦.png"]


@pytest.mark.parametrize("name", ["10µm_1.png", "25°.png", "α_1.png", "è.png"])
def test_signs_in_names_of_unix_are_no_chinese(name):
    assert read_back([name], "utf-8", system=UNIX) == [name]
