"""The names of the files in a zip, as programs of Windows and of Chinese systems write them.

A zip says of each name only whether it is UTF-8. Names without that mark are in CP437 by the
standard (APPNOTE.TXT, appendix D), but programs write the encoding of their machine.
"""

import os
import re
import zipfile
from collections.abc import Sequence

from utils.files.misread_text import as_gb2312

UTF_8_FLAG = 0x800
UNIX = 3  # the `create_system` of Linux and macOS, whose file names are UTF-8
STANDARD = "cp437"  # that `zipfile` decodes with; every byte is a letter of it


def names_in_zip(infos: Sequence[zipfile.ZipInfo]) -> list[str]:
    r"""Return the name of each entry, with slashes for the backslashes of Windows.

    Names that are not marked as UTF-8 are read as UTF-8 or as GBK if all of them are that.

    >>> info = zipfile.ZipInfo()
    >>> info.create_system = 0  # DOS and Windows; 3 on Linux
    >>> info.orig_filename = "图\\a.png".encode("gbk").decode("cp437")
    >>> names_in_zip([info])
    ['图/a.png']
    """
    unmarked = []
    is_of_unix = False
    for info in infos:
        name = info.orig_filename  # info.filename ends at a NUL
        if not info.flag_bits & UTF_8_FLAG and not name.isascii():
            unmarked.append(name.encode(STANDARD, "replace"))
            is_of_unix = info.create_system == UNIX
    encoding = _encoding(unmarked, is_of_unix=is_of_unix)

    names = []
    for info in infos:
        name = info.orig_filename
        if not info.flag_bits & UTF_8_FLAG and not name.isascii():
            name = name.encode(STANDARD, "replace").decode(encoding, "replace")
        names.append(name.replace("\\", "/"))
    return names


def _encoding(names: Sequence[bytes], *, is_of_unix: bool) -> str:
    """Return the encoding of names that have none.

    Names that may be UTF-8 are Chinese only if Windows has written them: signs such as the µ of
    `10µm.png` and the ° of `25°.png` are the bytes of Chinese characters, too. Letters of Western
    Europe in CP437 are pairs of bytes in GBK, but not in the older GB2312: most names must be in
    that.
    """
    if _count(names, "utf-8") == len(names):
        if is_of_unix:
            return "utf-8"
        parts = re.split("[/\\\\]", "/".join(name.decode() for name in names))
        misread = any(as_gb2312(os.path.splitext(part)[0]) for part in parts)
        return "gb18030" if misread and _count(names, "gb2312") == len(names) else "utf-8"
    if _count(names, "gb18030") == len(names) and 2 * _count(names, "gb2312") > len(names):
        return "gb18030"
    return STANDARD


def _count(names: Sequence[bytes], encoding: str) -> int:
    """Return how many of these names are in an encoding."""
    count = 0
    for name in names:
        try:
            name.decode(encoding)
        except UnicodeDecodeError:
            continue
        count += 1
    return count
