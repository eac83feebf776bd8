"""Every backend computes float32 as float32: TF32 is off while it runs, and as before
afterwards.
"""

import threading
from types import SimpleNamespace

import pytest
import torch
from torch.nn import Conv2d

from models.backends.in_torch import TorchBackend
from models.export.compare import ReferenceBackend
from models.export.onnx.run import providers
from models.export.torchscript import run as torchscript
from models.export.writer import Writer
from models.loading import load_backend
from tests.support.exporting import FIXED, SIZE, lively_detector
from utils.distributed.precision import exact_float32

CPU = torch.device("cpu")
IMAGES = torch.zeros(1, 3, SIZE, SIZE)


def allowed() -> tuple[str, str]:
    """What torch may use for float32 in convolutions and in products of matrices, on a GPU."""
    return torch.backends.cudnn.conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision


@pytest.fixture
def before():
    """Both may use TF32, the second because a program asked for it."""
    usual = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    assert allowed() == ("tf32", "tf32")
    yield allowed()
    torch.backends.cuda.matmul.fp32_precision = usual


@pytest.mark.parametrize(
    ("precision", "expected"),
    [(torch.float32, ("ieee", "ieee")), (torch.bfloat16, ("tf32", "tf32"))],
)
def test_torch_backend(before, tiny_model, precision, expected):
    backend, seen = TorchBackend(lively_detector(tiny_model), precision=precision), []
    backend.detector.layers[0].register_forward_hook(lambda *_: seen.append(allowed()))
    backend.predict(IMAGES)
    assert seen == [expected]
    assert allowed() == before


def test_failing_forward_restores_the_setting(before, tiny_model):
    with pytest.raises(RuntimeError):
        TorchBackend(lively_detector(tiny_model)).predict(torch.zeros(1, 4, SIZE, SIZE))
    assert allowed() == before


def test_torch_side_of_an_export_comparison(before, exports):
    model = load_backend(exports("torchscript", *FIXED), CPU).backend.model
    reference, seen = ReferenceBackend(Writer(exports.detector, model).reference), []
    hook = exports.detector.layers[0].register_forward_hook(lambda *_: seen.append(allowed()))
    reference.predict(IMAGES)
    hook.remove()
    assert seen == [("ieee", "ieee")]
    assert allowed() == before


def test_torchscript_backend(before, exports):
    backend = load_backend(exports("torchscript", *FIXED), CPU).backend
    assert isinstance(backend, torchscript.TorchScriptBackend)
    module, seen = backend._module, []
    backend._module = lambda images: (seen.append(allowed()), module(images))[1]
    backend.predict(IMAGES)
    assert seen == [("ieee", "ieee")]
    assert allowed() == before


def test_torchscript_file_forbids_tf32(before, exports):
    """A traced convolution holds the setting as its last argument, which torch obeys."""
    module = load_backend(exports("torchscript", *FIXED), CPU).backend._module
    convolutions = [line for line in module.code.splitlines() if "_convolution(" in line]
    assert len(convolutions) == sum(isinstance(each, Conv2d) for each in exports.detector.modules())
    assert all(line.endswith("True, False)") for line in convolutions)


def test_settings_through_the_older_names_are_kept(monkeypatch):
    for value in (False, True):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", value)
        with exact_float32():
            assert allowed() == ("ieee", "ieee")
        assert torch.backends.cudnn.allow_tf32 is value


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_the_older_setting_of_matrix_products_never_contradicts_the_newer_one(precision):
    """Images of NVIDIA set it to "high", by TORCH_ALLOW_TF32_CUBLAS_OVERRIDE; reading it must raise
    no error.
    """
    backends = torch.backends
    operations = (backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.conv)

    def settings():
        newer = [each.fp32_precision for each in operations]
        return torch.get_float32_matmul_precision(), backends.cuda.matmul.allow_tf32, newer

    original, originals = (
        torch.get_float32_matmul_precision(),
        [each.fp32_precision for each in operations],
    )
    try:
        torch.set_float32_matmul_precision(precision)
        before = settings()
        with exact_float32():
            assert settings() == ("highest", False, ["ieee"] * 3)
        assert settings() == before
    finally:
        torch.set_float32_matmul_precision(original)
        for each, value in zip(operations, originals, strict=True):
            each.fp32_precision = value


def test_setting_is_kept_until_the_last_thread_has_finished(before):
    """Two threads overlap: the first enters and leaves while the second is inside."""
    inside, leave = threading.Event(), threading.Event()

    def second():
        with exact_float32():
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=second)
    with exact_float32():
        thread.start()
        assert inside.wait(30)
    assert allowed() == ("ieee", "ieee")
    leave.set()
    thread.join()
    assert allowed() == before


def test_onnxruntime_on_cuda_gets_quick_and_exact_convolutions():
    runtime = SimpleNamespace(
        get_available_providers=lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
    )
    for device, number in ((torch.device("cuda"), 0), (torch.device("cuda", 1), 1)):
        (name, options), last = providers(runtime, device)
        assert (name, last) == ("CUDAExecutionProvider", "CPUExecutionProvider")
        assert options == {
            "device_id": number,
            "cudnn_conv_algo_search": "HEURISTIC",
            "use_tf32": 0,
        }
    assert providers(runtime, CPU) == ["CPUExecutionProvider"]


def test_onnxruntime_without_cuda_says_what_to_install():
    runtime = SimpleNamespace(get_available_providers=lambda: ["CPUExecutionProvider"])
    with pytest.raises(
        ValueError,
        match="cannot use the device cuda:0: use --device cpu, or for an NVIDIA GPU pip ins",
    ):
        providers(runtime, torch.device("cuda", 0))
