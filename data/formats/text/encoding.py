"""The text of files in the encoding that they declare, UTF-8 without one; others are refused.

Taken for UTF-8, a name in another encoding may become another name: `猫` in GB2312 has the bytes of
`è`.
"""

import codecs
import re

from utils.printable import printable

START_BYTES = 256  # that have the declaration
DECLARATION = re.compile(rb"""<\?xml\s[^>]*?\bencoding\s*=\s*["']([\w.:-]+)["']""", re.ASCII)
MARKS = {  # how a file begins, and what Python calls its encoding
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
    b"<\0": "utf-16-le",
    b"\0<": "utf-16-be",
    b"\xef\xbb\xbf": "utf-8-sig",
}
UTF_8_NAMES = ("utf-8", "utf8", "us-ascii", "ascii")
UTF_16_NAMES = ("utf-16", "utf16", "utf-16le", "utf-16be", "unicode", "ucs-2", "iso-10646-ucs-2")
# What Python calls the encodings that XML may declare, which are in lower case and with "-" for "_"
# here; no others are looked up.
CODECS = {
    **{f"iso-8859-{part}": f"iso8859_{part}" for part in (*range(2, 12), *range(13, 17))},
    **{f"windows-{page}": f"cp{page}" for page in (874, *range(1250, 1259))},
    **{f"cp{page}": f"cp{page}" for page in (874, 932, 949, 950, *range(1250, 1259))},
    "iso-8859-1": "cp1252",  # as browsers read it: the letters are the same
    "latin-1": "cp1252",
    "latin1": "cp1252",
    "gb2312": "gb18030",  # as programs write it: with characters that the older one lacks
    "gbk": "gb18030",
    "cp936": "gb18030",
    "gb18030": "gb18030",
    "big5": "big5hkscs",
    "shift-jis": "cp932",
    "windows-31j": "cp932",
    "euc-jp": "euc_jp",
    "iso-2022-jp": "iso2022_jp",
    "euc-kr": "cp949",
    "ks-c-5601-1987": "cp949",
    "koi8-r": "koi8_r",
    "koi8-u": "koi8_u",
    "tis-620": "cp874",
}
ONE_BYTE = re.compile(r"cp(?!932|949|950)|iso8859|koi8")  # codecs with a byte for each letter
# Pairs of bytes of a Chinese, Japanese or Korean encoding may be UTF-8, too, but for such letters.
FIRST_OF_THREE_BYTES = "\u0800"


class EncodingError(ValueError):
    """A file is not text in its encoding. line: where, counted from 1."""

    def __init__(self, reason: str, line: int = 1) -> None:
        super().__init__(reason)
        self.line = line


class XmlDecoder:
    """Decodes an XML file, block by block, in the encoding that it declares."""

    def __init__(self, start: bytes) -> None:
        """start: the first bytes of the file. Raises EncodingError for an unknown encoding."""
        self.declared, codec = _encoding(start)
        self._decoder = codecs.getincrementaldecoder(codec)()
        self._lines = 1

        # Whether the text might be UTF-8, although it declares something else.
        self._utf_8 = None if codec.startswith("utf") else codecs.getincrementaldecoder("utf-8")()
        self._least = "\x80" if ONE_BYTE.match(codec) else FIRST_OF_THREE_BYTES
        self._seems_utf_8 = False

    def decode(self, block: bytes, *, final: bool) -> str:
        """Return the text of the next block. Raises EncodingError if it is none."""
        self._look_for_utf_8(block, final=final)
        try:
            text = self._decoder.decode(block, final)
        except UnicodeDecodeError as error:
            line = self._lines + error.object[: error.start].count(b"\n")
            reason = f"not text in {self.declared}, the encoding that it declares"
            if self.declared == "UTF-8":
                reason = "not UTF-8 text, and it declares no other encoding"
            raise EncodingError(f"{reason}: save it as UTF-8", line) from None
        if final and self._seems_utf_8:
            problem = f"declares the encoding {self.declared}, but seems to be UTF-8"
            raise EncodingError(f"{problem}: correct its first line")
        self._lines += text.count("\n")
        return text

    def _look_for_utf_8(self, block: bytes, *, final: bool) -> None:
        if self._utf_8 is None:
            return
        try:
            text = self._utf_8.decode(block, final)
        except UnicodeDecodeError:
            self._utf_8 = None
            self._seems_utf_8 = False
        else:
            self._seems_utf_8 = self._seems_utf_8 or max(text, default="") >= self._least


def utf_8_text(data: bytes, file: str) -> str:
    """Return the text of a file in UTF-8. Raises EncodingError with its path and the line."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_utf_8(data, error, file) from None


def start_in_utf_8(start: bytes) -> bytes:
    """Return the first bytes of a file in UTF-8, if they are in UTF-16 with its mark.

    >>> start_in_utf_8('["a"]'.encode("utf-16")), start_in_utf_8(b"a")
    (b'["a"]', b'a')
    """
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return start.decode("utf-16", "replace").encode()
    return start


def not_utf_8(data: bytes, error: UnicodeDecodeError, file: str) -> EncodingError:
    """Return the error for a file with these bytes, which could not be decoded."""
    line = data[: error.start].count(b"\n") + 1
    reason = f"not {error.encoding.upper()} text: save it as UTF-8"
    return EncodingError(f"{printable(file)} line {line}: {reason}", line)


def _encoding(start: bytes) -> tuple[str, str]:
    """Return the encoding of an XML file, as it declares it, and what Python calls it."""
    for mark, codec in MARKS.items():
        if start.startswith(mark):
            return codec.upper().removesuffix("-SIG"), codec

    declaration = DECLARATION.match(start[:START_BYTES])
    declared = declaration[1].decode() if declaration else "UTF-8"
    # A declaration that can be read as ASCII is not UTF-16: .NET writes it above UTF-8.
    name = declared.lower().replace("_", "-")
    if name in (*UTF_8_NAMES, *UTF_16_NAMES):
        return "UTF-8", "utf-8"
    codec = CODECS.get(name, "")
    if not codec:
        raise EncodingError(
            f"declares the encoding {printable(declared)}, which is not read: save it as UTF-8"
        )
    return declared, codec
