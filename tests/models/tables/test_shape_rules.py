"""models/tables/shape_rules.py: the same shapes, and errors for the same shapes, as torch."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import (
    batch_norm,
    hardsigmoid,
    hardswish,
    layer_norm,
    scaled_dot_product_attention,
)

from models.tables.shape_rules import RULES, ShapeRules

ROOT = Path(__file__).parents[3]
OPERATIONS = {
    "sum": lambda x, y: x + y,
    "sum with a number": lambda x, y: x + 2,
    "sum in place": lambda x, y: x.clone().add_(y),
    "product": lambda x, y: x * y,
    "product with a number": lambda x, y: 2 * x,
    "concatenation of channels": lambda x, y: torch.cat([x, y], 1),
    "concatenation of columns": lambda x, y: torch.cat((x, y), dim=-1),
    "concatenation of images": lambda x, y: torch.cat([x, y]),
    "normalization": lambda x, y: batch_norm(x, torch.zeros(x.shape[1]), torch.ones(x.shape[1])),
    "normalization of rows": lambda x, y: layer_norm(x, x.shape[3:]),
    "gate": lambda x, y: hardsigmoid(x),
    "activation": lambda x, y: hardswish(x),
    "attention": lambda x, y: scaled_dot_product_attention(x, y, y[..., :1]),
}
SHAPES = [
    ((2, 8, 4, 6), (2, 8, 4, 6)),
    ((2, 8, 4, 6), (2, 8, 1, 1)),
    ((2, 8, 4, 6), (2, 3, 4, 6)),
    ((2, 8, 4, 6), (2, 8, 4, 5)),
    ((2, 8, 4, 6), (1, 8, 4, 6)),
    ((0, 8, 4, 6), (0, 8, 4, 6)),
]


def shape_or_error(operation, shapes) -> tuple[int, ...] | type[Exception]:
    first, second = (torch.ones(shape) for shape in shapes)
    try:
        return tuple(operation(first, second).shape)
    except RuntimeError:
        return RuntimeError


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_shapes_and_errors_are_those_of_torch(name, shapes):
    expected = shape_or_error(OPERATIONS[name], shapes)
    with ShapeRules():
        found = shape_or_error(OPERATIONS[name], shapes)
    assert found == expected


def test_every_rule_is_tested():
    used = set()

    class Watched(ShapeRules):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            used.add(func)
            return super().__torch_function__(func, types, args, kwargs)

    x = torch.ones(2, 8, 4, 6)
    with Watched():
        for operation in OPERATIONS.values():
            assert isinstance(operation(x, x), Tensor)
    assert used >= RULES.keys()


@pytest.mark.slow
def test_trial_run_does_not_import_the_compiler_of_torch():
    """It takes a second, which a detection of one image would wait for.

    Of models with and without attention, in one new process.
    """
    code = (
        "import sys; from models import check_shapes; from models.tables.find import "
        "load_model_table; from models.tables.resolve import resolve; "
        "[check_shapes(resolve(*load_model_table(name), 3)) for name in ('yolov5n', 'yolo11n')]; "
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
