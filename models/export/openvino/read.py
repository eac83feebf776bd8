"""Read an OpenVINO folder as data, and refuse whatever Kestrel's own export does not need.

OpenVINO gets the bytes that were checked, not the paths, so it can open no other file.
"""

import re
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

from models.export.metadata import ExportedModel, read_metadata
from models.export.openvino.write import METADATA, openvino_digest
from utils.files.folders import best_checkpoint_in
from utils.printable import excerpt, one_line, printable

MAX_GRAPH = 1 << 28  # bytes: 30 times that of a large model
MAX_WEIGHTS = 1 << 34
MAX_METADATA = 1 << 26
MAX_DEPTH = 16
ELEMENTS = re.compile("net|layers|layer|data|input|output|port|dim|edges|edge|rt_info")
NESTED_GRAPHS = frozenset(["If", "Loop", "TensorIterator"])
STATE = frozenset(["ReadValue", "Assign"])


class OpenVinoFiles(NamedTuple):
    """The bytes of graph and weights, and the metadata."""

    graph: bytes
    weights: bytes
    model: ExportedModel


def read_openvino(path: Path) -> OpenVinoFiles:
    """Return the files of a folder that Kestrel exported.

    path: the folder, or the .xml file in it. Raises ValueError that names a file if one is missing,
    damaged or changed, or the graph has a DTD, entities, operators that are not OpenVINO's own,
    nested graphs, or constants outside the weights.
    """
    graph_file = _graph_file(path)
    metadata_file = graph_file.with_name(METADATA)
    weights_file = graph_file.with_suffix(".bin")

    metadata = _bytes(metadata_file, MAX_METADATA)
    graph = _bytes(graph_file, MAX_GRAPH)
    weights = _bytes(weights_file, MAX_WEIGHTS)

    model = read_metadata(metadata.decode("utf-8", "replace").strip(), metadata_file)
    try:
        GraphChecker(len(weights)).check(graph)
    except (ValueError, expat.ExpatError) as error:
        raise ValueError(
            f"{printable(graph_file)}: is refused or damaged: {one_line(error)}"
        ) from None
    if model.sealed(openvino_digest(graph, weights)) != model:
        raise ValueError(
            f"{printable(graph_file)}: its content and its .bin do not match the checksum in "
            f"{METADATA}: they are damaged, or were changed after the export"
        )
    return OpenVinoFiles(graph, weights, model)


def _graph_file(path: Path) -> Path:
    if path.suffix == ".xml":
        return path
    if not path.is_dir():
        raise ValueError(f"{printable(path)}: no such folder")
    graphs = sorted(path.glob("*.xml"))
    best = best_checkpoint_in(path)
    if best and not graphs:
        raise ValueError(f"{printable(path)}: is a folder; did you mean {printable(best)}?")
    if len(graphs) != 1:
        raise ValueError(
            f"{printable(path)}: is a folder that has {len(graphs)} .xml files; an OpenVINO export "
            "has one"
        )
    return graphs[0]


def _bytes(file: Path, most: int) -> bytes:
    try:
        if file.exists() and not file.is_file():
            raise ValueError(f"{printable(file)}: is not a regular file")
        if file.stat().st_size > most:
            raise ValueError(f"{printable(file)}: has more than {most} bytes")
        return file.read_bytes()
    except OSError as error:
        raise ValueError(f"{printable(file)}: cannot be read: {error.strerror}") from None


class GraphChecker:
    """Checks an OpenVINO graph while it is parsed. weights: bytes of the .bin file."""

    def __init__(self, weights: int) -> None:
        self.weights = weights
        self._open: list[str] = []
        self._layer = ""

    def check(self, graph: bytes) -> None:
        """Raise ValueError or ExpatError if the graph is refused or is not XML."""
        parser = expat.ParserCreate()
        parser.StartDoctypeDeclHandler = self._refuse_doctype
        parser.EntityDeclHandler = self._refuse_doctype
        parser.ProcessingInstructionHandler = self._refuse_doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.Parse(graph, True)

    def _refuse_doctype(self, *_: object) -> None:
        raise ValueError("it has a document type, entities or processing instructions")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._open.append(name)
        if len(self._open) > MAX_DEPTH:
            raise ValueError("it is nested too deeply")
        is_root = len(self._open) == 1
        if is_root != (name == "net"):
            raise ValueError("it is not one OpenVINO model")
        if "rt_info" in self._open:
            self._check_note(name, attributes)
        elif not ELEMENTS.fullmatch(name):
            raise ValueError(f"it has an element {excerpt(name)}")
        elif name == "layer":
            self._start_layer(attributes)
        elif name == "data" and self._layer == "Const":
            self._check_range(attributes)

    def _end(self, name: str) -> None:
        self._open.pop()

    def _start_layer(self, attributes: dict[str, str]) -> None:
        self._layer = attributes.get("type", "")
        version = attributes.get("version", "")
        if not (version.startswith("opset") and version[5:].isdecimal()):
            raise ValueError(
                f"its layer {excerpt(self._layer)} is of {excerpt(version)}, not one of OpenVINO's "
                "own"
            )
        if self._layer in NESTED_GRAPHS | STATE:
            raise ValueError(f"it has a layer {self._layer}, which is not supported")

    def _check_range(self, attributes: dict[str, str]) -> None:
        offset = attributes.get("offset", "")
        size = attributes.get("size", "")
        for text in (offset, size):
            if len(text) >= 19 or not text.isascii() or not text.isdecimal():
                raise ValueError("a constant has no offset and size")
        if int(offset) + int(size) > self.weights:
            raise ValueError("a constant reaches outside the .bin file")

    def _check_note(self, name: str, attributes: dict[str, str]) -> None:
        """Refuse notes of the runtime through which OpenVINO finds weights of its own choice."""
        texts = [name, *attributes.values()]
        if any("weightless" in text for text in texts):
            raise ValueError("it names other weights")
