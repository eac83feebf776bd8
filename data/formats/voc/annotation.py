"""One annotation file of Pascal VOC as plain fields.

The XML is data: no DTD, no entity, nothing outside the file.
"""

from typing import Any, NamedTuple, NoReturn
from xml.parsers import expat

from data.formats.text.encoding import EncodingError, XmlDecoder

MAX_BYTES = 4 * 1024 * 1024  # some 10,000 objects
MAX_DEPTH = 32  # elements inside each other; Pascal VOC has 5
CORNERS = ("xmin", "ymin", "xmax", "ymax")
OBJECT = ("annotation", "object")
# path of an element -> the field that has its text
OBJECT_FIELDS: dict[tuple[str, ...], str] = {
    (*OBJECT, "name"): "name",
    (*OBJECT, "difficult"): "difficult",
}
OBJECT_FIELDS |= {(*OBJECT, "bndbox", corner): corner for corner in CORNERS}
SIZE_FIELDS: dict[tuple[str, ...], str] = {
    ("annotation", "size", "width"): "width",
    ("annotation", "size", "height"): "height",
}


class AnnotationError(ValueError):
    """The file is refused, for the reason in the message."""

    def __init__(self, reason: str, line: int = 0) -> None:
        """line: where the reason was noticed, 0 if unknown."""
        super().__init__(reason)
        self.line = line


class AnnotationEncodingError(AnnotationError):
    """The file is not text in the encoding that it declares, so its class names are unknown."""


class VocObject(NamedTuple):
    """The texts of one <object>."""

    line: int  # where it begins
    fields: dict[str, str]  # by name of the element, without those that are absent
    repeated: list[str]  # names of elements that appear more than once


class VocAnnotation(NamedTuple):
    """The texts in <size> by name of the element, and the objects."""

    size: dict[str, str]
    objects: list[VocObject]


def parse_annotation(data: bytes) -> VocAnnotation:
    """Return the fields of an annotation file.

    It is in the encoding that it declares, or else in UTF-8. The objects of a <part> and all other
    elements are ignored. XML's five own entities (&amp; ...) and characters by number are
    text; a file with a DTD is refused, so no others can be defined.
    Raises AnnotationError if the file is not such an annotation, or is larger or nested deeper than
    the limits.
    """
    if len(data) > MAX_BYTES:
        raise AnnotationError(f"has more than {MAX_BYTES // 2**20} MiB")

    collector = _Collector()
    try:
        text = XmlDecoder(data).decode(data, final=True)
        collector.parser.Parse(text, True)
    except EncodingError as error:
        raise AnnotationEncodingError(str(error), error.line) from None
    except expat.ExpatError as error:
        raise AnnotationError(f"not XML: {expat.ErrorString(error.code)}", error.lineno) from None
    return VocAnnotation(collector.size, collector.objects)


class _Collector:
    """Expat's handlers, and what they have collected so far."""

    def __init__(self) -> None:
        self.size: dict[str, str] = {}
        self.objects: list[VocObject] = []
        self.path: tuple[str, ...] = ()
        self.text: list[str] = []

        self.parser = expat.ParserCreate("UTF-8")  # whatever the file declares: it gets text
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.text_found
        self.parser.StartDoctypeDeclHandler = self.refuse_dtd
        self.parser.EntityDeclHandler = self.refuse_dtd
        self.parser.ExternalEntityRefHandler = self.refuse_dtd

    def start(self, name: str, _: Any) -> None:
        self.path = (*self.path, name)
        if self.path[0] != "annotation":
            raise AnnotationError(
                "not a Pascal VOC annotation: the root element is not <annotation>", self.line
            )
        if len(self.path) > MAX_DEPTH:
            raise AnnotationError(f"nested more than {MAX_DEPTH} elements deep", self.line)

        if self.path == OBJECT:
            self.objects.append(VocObject(self.line, {}, []))
        if self.path in OBJECT_FIELDS or self.path in SIZE_FIELDS:
            self.text = []

    def text_found(self, text: str) -> None:
        if self.path in OBJECT_FIELDS or self.path in SIZE_FIELDS:
            self.text.append(text)

    def end(self, _: str) -> None:
        text = "".join(self.text).strip()
        if self.path in OBJECT_FIELDS:
            name = OBJECT_FIELDS[self.path]
            voc_object = self.objects[-1]
            if name in voc_object.fields:
                voc_object.repeated.append(name)
            voc_object.fields[name] = text
        elif self.path in SIZE_FIELDS:
            self.size[SIZE_FIELDS[self.path]] = text
        self.path = self.path[:-1]

    def refuse_dtd(self, *_: Any) -> NoReturn:
        raise AnnotationError(
            "has a DTD, which is not read because it can define entities", self.line
        )

    @property
    def line(self) -> int:
        return self.parser.CurrentLineNumber
