"""Read a TorchScript file as data, and refuse whatever Kestrel's own export does not need.

TorchScript is a program. Kestrel writes one flat function of tensor operations: its code is parsed here, and every call
must be in a list of operations that compute values and do nothing else. The tensors of its pickles must lie within
their storages. torch then loads a new archive that holds only the entries that were checked.
"""

import ast
import io
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from models.export.metadata import ExportedModel, read_metadata
from models.export.to_torchscript import METADATA
from utils.files.pickled import ClassName, PickleReader, Record, Stored, is_view, open_limited
from utils.printable import excerpt, one_line, printable

MAX_CODE = 1 << 24  # bytes: 20 times that of a large model
MAX_ENTRIES = 100_000
MAX_DEPTH = 100  # of nested expressions
ENTRY = re.compile(
    r"version|byteorder|data\.pkl|constants\.pkl|(data|constants)/\d+|\.data/serialization_id|"
    rf"code/__torch__(/\w+)*\.py(\.debug_pkl)?|extra/{re.escape(METADATA)}"
)
UNUSED = re.compile(r".*\.debug_pkl|\.data/.*")
# Operations of torch that compute tensors, shapes and numbers, and have no other effect.
TORCH_CALLS = frozenset(
    """
    __and__ __contains__ __derive_index __getitem__ __is__ __isnot__ __not__ __or__ __range_length
    _convolution _softmax abs adaptive_avg_pool2d add addmm all amax amin any append arange argmax argmin argsort
    avg_pool2d batch_norm bitwise_and bitwise_not bitwise_or cat ceil chunk clamp clamp_max clamp_min clone
    constant_pad_nd contiguous conv2d conv_transpose2d cos cumsum detach device dim div div_ einsum elu embedding eq
    erf exp expand expand_as flatten flip floor floor_divide floordiv full full_like gather ge gelu group_norm gt
    hardsigmoid hardswish hardtanh index index_put index_select instance_norm isfinite isnan layer_norm le leaky_relu
    len linear linspace log log_softmax logical_and logical_not logical_or logsigmoid logsumexp lt masked_fill matmul
    max max_pool2d maximum mean mT meshgrid min minimum mish movedim mul mul_ narrow ne neg new_full new_ones new_zeros
    nonzero nonzero_numpy norm numel numpy_T ones ones_like pad permute pixel_shuffle pixel_unshuffle pow prelu prod
    reciprocal relu relu6 remainder repeat repeat_interleave reshape roll round rsqrt rsub scaled_dot_product_attention
    scatter select select_scatter sigmoid sign silu sin size slice softmax softplus sort split split_with_sizes sqrt
    square squeeze stack std sub sub_ sum swapaxes t tan tanh tensor tensor_split tile to topk transpose tril triu
    type_as unbind unflatten unfold unsqueeze upsample_bicubic2d upsample_bilinear2d upsample_nearest2d var view view_as
    where zeros zeros_like
    """.split()
)
OTHER_CALLS = frozenset(
    [f"ops.prim.{name}" for name in ("device", "dtype", "NumToTensor", "min", "max", "RaiseException", "data")]
    + ["ops.torchvision.nms", "annotate", "int", "float", "bool", "unchecked_cast", "torch.device"]
)
NODES = (
    *(ast.Module, ast.ClassDef, ast.FunctionDef, ast.arguments, ast.arg, ast.Assign, ast.AnnAssign, ast.Return),
    *(ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.keyword, ast.Constant, ast.List, ast.Tuple),
    *(ast.UnaryOp, ast.USub, ast.Not, ast.BinOp, ast.operator, ast.Compare, ast.cmpop, ast.Load, ast.Store, ast.Pass),
)


def read_torchscript(path: Path) -> tuple[bytes, ExportedModel]:
    """Return an archive for torch.jit.load of the checked entries of a file that Kestrel exported, and its metadata.

    Raises ValueError that names the file if it is damaged, comes from another program, or is refused.
    """
    shown = printable(path)
    try:
        entries = read_entries(path)
        text = entries[f"extra/{METADATA}"].decode() if f"extra/{METADATA}" in entries else None
    except OSError as error:
        raise ValueError(f"{shown}: cannot be read as TorchScript: {error.strerror}") from None
    except Exception as error:  # zipfile and the decoders raise errors of many types for a damaged file
        raise ValueError(f"{shown}: is not a TorchScript file of Kestrel, or is damaged ({one_line(error)})") from None
    if text is None:
        raise ValueError(f"{shown}: has no metadata of Kestrel: export the checkpoint with export.py")
    model = read_metadata(text, path)
    try:
        check_entries(entries)
    except Exception as error:  # the same, of pickles and of Python's parser
        raise ValueError(f"{shown}: is not TorchScript that Kestrel exported, or is damaged ({one_line(error)})") from None
    return packed(entries), model


def read_entries(path: Path) -> dict[str, bytes]:
    """Return the entries of the archive that torch needs, by name; their checksums are verified.

    Raises OSError, ValueError or BadZipFile.
    """
    with open_limited(path) as file:
        size = path.stat().st_size
        archive = zipfile.ZipFile(file)
        infos = archive.infolist()
        if len(infos) > MAX_ENTRIES or sum(info.compress_size for info in infos) > size:
            raise ValueError("its entries are larger than the file")
        found: dict[str, bytes] = {}
        for info in infos:
            name = info.filename.partition("/")[2]
            if not ENTRY.fullmatch(name) or name in found:
                raise ValueError(f"it has an entry {excerpt(info.filename)}")
            found[name] = b"" if UNUSED.fullmatch(name) else _content(archive, info, name)
        return {name: content for name, content in found.items() if not UNUSED.fullmatch(name)}


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> bytes:
    """The bytes of an entry. torch compresses code, nothing else."""
    is_code = name.startswith("code/")
    stored = info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size
    if not stored and not (is_code and info.compress_type == zipfile.ZIP_DEFLATED):
        raise ValueError("its entries are compressed")
    if is_code and info.file_size > MAX_CODE:
        raise ValueError(f"its code has more than {MAX_CODE} bytes")
    with archive.open(info) as stream:
        content = stream.read(info.file_size)
        if len(content) != info.file_size or stream.read(1):
            raise ValueError(f"its {excerpt(name)} has another size than its directory says")
    return content


def check_entries(entries: Mapping[str, bytes]) -> None:
    """Raise ValueError unless the code is one function of allowed operations and the tensors fit their storages."""
    if entries.get("byteorder", b"little") != b"little":
        raise ValueError("its numbers are not little-endian")
    sources = [content for name, content in entries.items() if name.startswith("code/")]
    if len(sources) != 1 or len(sources[0]) > MAX_CODE:
        raise ValueError("it has no code, or too much")
    kind = check_code(sources[0].decode())
    for folder in ("data", "constants"):
        check_pickle(entries, folder, kind)


def packed(entries: Mapping[str, bytes]) -> bytes:
    """Return an archive of these entries."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for name, value in entries.items():
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), value)
    return content.getvalue()


# ---------------------------------------------------------------------- the code


def check_code(text: str) -> str:
    """Return the name of the class, after checking that it has one method, `forward`, of allowed operations.

    Raises ValueError or SyntaxError otherwise.
    """
    tree = ast.parse(text)
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.ClassDef):
        raise ValueError("its code is not one class")
    owner = tree.body[0]
    methods = [statement for statement in owner.body if isinstance(statement, ast.FunctionDef)]
    if [method.name for method in methods] != ["forward"] or owner.decorator_list or owner.keywords:
        raise ValueError("its class must have one method, forward")
    if methods[0].decorator_list or methods[0].args.defaults:
        raise ValueError("its method forward has decorators or defaults")
    for node in walk(tree):
        _check_node(node)
    return owner.name


def walk(tree: ast.AST, depth: int = 0) -> Iterator[ast.AST]:
    """Yield all nodes of a syntax tree. Raises ValueError if it is nested too deeply."""
    if depth > MAX_DEPTH:
        raise ValueError("its code is nested too deeply")
    yield tree
    for child in ast.iter_child_nodes(tree):
        yield from walk(child, depth + 1)


def _check_node(node: ast.AST) -> None:
    if not isinstance(node, NODES):
        raise ValueError(f"its code has a {type(node).__name__}")
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        allowed = name in OTHER_CALLS or (name.startswith("torch.") and name.removeprefix("torch.") in TORCH_CALLS)
        if not allowed:
            raise ValueError(f"its code calls {excerpt(name)}")


# ---------------------------------------------------------------------- the pickles


def check_pickle(entries: Mapping[str, bytes], folder: str, kind: str) -> None:
    """Raise ValueError unless a pickle holds only tensors within their storages, and an object of the code's class."""
    left = sum(map(len, entries.values()))
    root = PickleReader().run(entries[f"{folder}.pkl"])
    for value in values_of(root):
        if isinstance(value, Record):
            name, args = value.kind, value.args
            if re.fullmatch(rf"__torch__(\.\w+)*\.{re.escape(kind)}", name):
                continue
            if name != "torch._utils._rebuild_tensor_v2":
                raise ValueError(f"it builds a {excerpt(name)}")
            stored, offset, size, strides = args[:4]
            content = entries.get(f"{folder}/{stored.key}", b"") if isinstance(stored, Stored) else b""
            if not isinstance(stored, Stored) or len(content) != stored.count * stored.dtype.itemsize:
                raise ValueError("one of its tensors has another size than its storage")
            if not is_view(stored.count, offset, size, strides):
                raise ValueError("one of its tensors reaches outside its storage")
            left -= len(content)
            if left < 0:
                raise ValueError("its tensors are larger than the file")


def values_of(root: Any) -> Iterator[Any]:
    """Yield the values nested in an unpickled value. Raises ValueError for types that the export does not write."""
    pending = [root]
    for _ in range(1_000_000):
        if not pending:
            return
        value = pending.pop()
        yield value
        if isinstance(value, (list, tuple)):
            pending += value
        elif isinstance(value, dict):
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, Record):
            if value.items:
                raise ValueError("it has an object with items")
            pending += [] if value.kind.startswith("torch._utils.") else [value.args, value.state]
        elif not isinstance(value, (str, int, float, bool, type(None), ClassName)):
            raise ValueError(f"it holds a {type(value).__name__}")
    raise ValueError("it is nested too deeply, or contains itself")
