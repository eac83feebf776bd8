"""Read XML as a stream of elements: no DTD, no entity, nothing outside the file."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn
from xml.parsers import expat

from data.formats.text.encoding import EncodingError, XmlDecoder
from utils.printable import printable

MAX_DEPTH = 32  # elements inside each other
BLOCK_BYTES = 2**20
Attributes = Mapping[str, str]


def read_xml(
    file: Path,
    start: Callable[[tuple[str, ...], Attributes, int], None],
    end: Callable[[tuple[str, ...], str, int], None],
) -> None:
    """Call `start` and `end` for each element of a file, which is not kept in memory.

    Args:
        file: the XML file.
        start: gets the path of an element from the root on, its attributes, and its line.
        end: gets the path of an element, its text without spaces around it, and its line.

    Raises ValueError with file and line if the file is not XML, is not text in the encoding that it
    declares, has a DTD, or is nested deeper than MAX_DEPTH.
    """
    handlers = _Handlers(file, start, end)
    try:
        with open(file, "rb") as stream:
            block = stream.read(BLOCK_BYTES)
            decoder = XmlDecoder(block)
            while block:
                handlers.parser.Parse(decoder.decode(block, final=False), False)
                block = stream.read(BLOCK_BYTES)
            handlers.parser.Parse(decoder.decode(b"", final=True), True)
    except EncodingError as error:
        raise EncodingError(f"{printable(file)} line {error.line}: {error}", error.line) from None
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise ValueError(f"{printable(file)} line {error.lineno}: not XML: {reason}") from None
    except OSError as error:
        raise ValueError(f"{printable(file)} cannot be read: {error.strerror}") from None


class _Handlers:
    def __init__(self, file: Path, start: Any, end: Any) -> None:
        self.file = file
        self.start = start
        self.end = end
        self.path: tuple[str, ...] = ()
        self.text: list[str] = []

        self.parser = expat.ParserCreate("UTF-8")  # whatever the file declares: it gets text
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self.start_element
        self.parser.EndElementHandler = self.end_element
        self.parser.CharacterDataHandler = self.text.append
        self.parser.StartDoctypeDeclHandler = self.refuse_dtd
        self.parser.EntityDeclHandler = self.refuse_dtd
        self.parser.ExternalEntityRefHandler = self.refuse_dtd

    def start_element(self, name: str, attributes: Attributes) -> None:
        self.path = (*self.path, name)
        if len(self.path) > MAX_DEPTH:
            self.refuse(f"nested more than {MAX_DEPTH} elements deep")
        self.text.clear()
        self.start(self.path, attributes, self.parser.CurrentLineNumber)

    def end_element(self, _: str) -> None:
        text = "".join(self.text).strip()
        self.text.clear()
        self.end(self.path, text, self.parser.CurrentLineNumber)
        self.path = self.path[:-1]

    def refuse_dtd(self, *_: Any) -> NoReturn:
        self.refuse("has a DTD, which is not read because it can define entities")

    def refuse(self, reason: str) -> NoReturn:
        line = self.parser.CurrentLineNumber
        raise ValueError(f"{printable(self.file)} line {line}: {reason}")
