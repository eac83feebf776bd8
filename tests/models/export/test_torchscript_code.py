"""models/export/torchscript/code.py: only one flat function of allowed operations passes."""

import pytest

from models.export.torchscript.code import check_code

HEAD = """class G(Module):
  __parameters__ = []
  __buffers__ = []
  def forward(self: __torch__.G,
    x: Tensor) -> Tensor:
"""


def code(*lines):
    return HEAD + "".join(f"    {line}\n" for line in lines)


def test_tensor_operations_are_allowed():
    assert (
        check_code(
            code(
                "_0 = ops.prim.device(x)",
                "a, b, = torch.split(x, [1, -2], 1)",
                "return torch.cat([a, b], 1)",
            )
        )
        == "G"
    )
    check_code(
        code(
            "k = ops.torchvision.nms(x, CONSTANTS.c0, 0.45)",
            "return torch.mul(x, annotate(number, int(k)))",
        )
    )


@pytest.mark.parametrize(
    "line",
    [
        'torch.save(x, "/etc/passwd")',
        'return torch.from_file("/etc/passwd", False, 10)',
        'return ops.aten.from_file("/etc/passwd", False, 10)',
        "return ops.aten.add(x, x)",
        "return ops.my.op(x)",
        'print("x")',
        'ops.prim.RaiseException("x", "y"), ops.prim.Print(x)',
        "return self.forward(x)",
        "return x.numpy()",
        "return (torch.add)(x, x).sum()",
        "return torch.as_strided(x, [9999999], [1], 0)",
        "return torch.ops.aten.from_file(x)",
        "import os",
        "while True: x = x",
        "for i in range(9): x = x",
        "if True: return x",
        "return [y for y in x]",
        "return lambda: x",
        "y = torch.jit.load(x)",
        "return __import__('os')",
    ],
)
def test_anything_else_is_refused(line):
    with pytest.raises(ValueError, match="its code"):
        check_code(code(line))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x = 1",
        HEAD + "    return x\n" + HEAD + "    return x\n",
        HEAD + "    return x\n  def __setstate__(self, x: Tensor) -> Tensor:\n    return x\n",
        HEAD.replace("forward", "__setstate__") + "    return x\n",
        HEAD.replace("  def", "  @decorated\n  def") + "    return x\n",
        HEAD.replace("x: Tensor", "x: Tensor=torch.save(1)") + "    return x\n",
        "@decorated\n" + HEAD + "    return x\n",
        HEAD.replace("Module)", "Module, metaclass=x)") + "    return x\n",
        code("return " + "torch.add(" * 120 + "x" + ", x)" * 120),
    ],
)
def test_other_classes_and_methods_are_refused(text):
    with pytest.raises(ValueError):
        check_code(text)


def test_text_that_is_not_python_is_refused():
    for text in ("class G(", HEAD + "    return (((x\n", HEAD + "    return x\0\n"):
        with pytest.raises((SyntaxError, ValueError)):
            check_code(text)
