"""Check the code of a TorchScript file as text: one flat function of allowed operations.

Kestrel's export writes such a function. Every call in it must be in a list of operations that
compute values and do nothing else; torch has others, which read and write files.
"""

import ast
import re
from collections.abc import Iterator

from utils.printable import excerpt

MAX_DEPTH = 100  # of nested expressions
# Operations of torch that compute tensors, shapes and numbers, and have no other effect.
TORCH_CALLS = re.compile(
    "__and__|__contains__|__derive_index|__getitem__|__is__|__isnot__|__not__|__or__"
    "|__range_length|_convolution|_softmax|abs|adaptive_avg_pool2d|add|add_|addmm|all|amax|amin"
    "|any|append|arange|argmax|argmin|argsort|avg_pool2d|batch_norm|bitwise_and|bitwise_not"
    "|bitwise_or|cat|ceil|chunk|clamp|clamp_max|clamp_min|clone|constant_pad_nd|contiguous"
    "|conv2d|conv_transpose2d|cos|cumsum|detach|device|dim|div|div_|einsum|elu|embedding|eq|erf"
    "|exp|expand|expand_as|flatten|flip|floor|floor_divide|floordiv|full|full_like|gather|ge"
    "|gelu|group_norm|gt|hardsigmoid|hardsigmoid_|hardswish|hardswish_|hardtanh|hardtanh_|index"
    "|index_put|index_select|instance_norm|isfinite|isnan|layer_norm|le|leaky_relu|len|linear"
    "|linspace|log|log_softmax|logical_and|logical_not|logical_or|logsigmoid|logsumexp|lt"
    "|masked_fill|matmul|max|max_pool2d|maximum|mean|mT|meshgrid|min|minimum|mish|movedim|mul"
    "|mul_|narrow|ne|neg|new_full|new_ones|new_zeros|nonzero|nonzero_numpy|norm|numel|numpy_T"
    "|ones|ones_like|pad|permute|pixel_shuffle|pixel_unshuffle|pow|prelu|prod|reciprocal|relu"
    "|relu_|relu6|relu6_|remainder|repeat|repeat_interleave|reshape|roll|round|rsqrt|rsub"
    "|scaled_dot_product_attention|scatter|select|select_scatter|sigmoid|sign|silu|silu_|sin"
    "|size|slice|softmax|softplus|sort|split|split_with_sizes|sqrt|square|squeeze|stack|std|sub"
    "|sub_|sum|swapaxes|t|tan|tanh|tensor|tensor_split|tile|to|topk|transpose|tril|triu|type_as"
    "|unbind|unflatten|unfold|unsqueeze|upsample_bicubic2d|upsample_bilinear2d"
    "|upsample_nearest2d|var|view|view_as|where|zeros|zeros_like"
)
PRIMITIVES = ("device", "dtype", "NumToTensor", "min", "max", "RaiseException", "data")
CASTS = ("annotate", "int", "float", "bool", "unchecked_cast", "torch.device")
OTHER_CALLS = frozenset(
    [*(f"ops.prim.{name}" for name in PRIMITIVES), "ops.torchvision.nms", *CASTS]
)
NODES = (
    # statements
    ast.Module,
    ast.ClassDef,
    ast.FunctionDef,
    ast.arguments,
    ast.arg,
    ast.Assign,
    ast.AnnAssign,
    ast.Return,
    ast.Pass,
    # values
    ast.Name,
    ast.Attribute,
    ast.Subscript,
    ast.Call,
    ast.keyword,
    ast.Constant,
    ast.List,
    ast.Tuple,
    ast.Load,
    ast.Store,
    # operators
    ast.UnaryOp,
    ast.USub,
    ast.Not,
    ast.BinOp,
    ast.operator,
    ast.Compare,
    ast.cmpop,
)


def check_code(text: str) -> str:
    """Return the name of the code's class, which has one method, `forward`, of allowed operations.

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
        of_torch = name.startswith("torch.") and TORCH_CALLS.fullmatch(name[6:])
        if name not in OTHER_CALLS and not of_torch:
            raise ValueError(f"its code calls {excerpt(name)}")
