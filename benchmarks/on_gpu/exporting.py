"""The trained checkpoint, validated and exported: in float32 and in 16 bits, the same mAP
everywhere.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import export
import val
from benchmarks.on_gpu.commands import run_command
from benchmarks.on_gpu.stage import Finding, Scope

MAX_DIFFERENCE = {
    "fp32": 0.002,
    "half": 0.01,
}  # of mAP, between a file and the checkpoint in float32


def validate(scope: Scope) -> Iterator[Finding]:
    """val.py on the checkpoint, in float32 and with `--half`."""
    yield from validated(scope, scope.best, "val-fp32", "fp32")
    yield from validated(scope, scope.best, "val-half", "half", "--half")


def export_torchscript(scope: Scope) -> Iterator[Finding]:
    """TorchScript on the device, in float32 and, on a GPU, in float16; written, compared with
    torch, validated.
    """
    yield from exported(scope, "torchscript", "fp32")
    if scope.on_gpu:
        yield from exported(scope, "torchscript", "half", "--half")


def export_onnx(scope: Scope) -> Iterator[Finding]:
    """ONNX, compared with torch on the device; validated by ONNX Runtime on the CPU."""
    yield from exported(scope, "onnx", "fp32", runs_on="cpu")


def exported(
    scope: Scope, kind: str, precision: str, *flags: str, runs_on: str = ""
) -> Iterator[Finding]:
    """Export and validate one format. The copy of the checkpoint keeps the files of several formats
    apart.
    """
    name = f"{kind}-{precision}"
    checkpoint = scope.folder / "exports" / name / "best.pt"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_bytes(scope.best.read_bytes())

    words = [
        "--weights",
        str(checkpoint),
        "--include",
        kind,
        "--dynamic",
        "--device",
        scope.device,
        *flags,
    ]
    done = run_command(export.run, words, scope.folder / "output" / f"export-{name}.txt")
    yield from done.findings(f"export.py --include {kind} {precision}", done.lines[-2:])
    if done.code == 0:
        file = next(path for path in checkpoint.parent.iterdir() if path.suffix == f".{kind}")
        yield from validated(
            scope, file, f"val-{name}", precision, "--device", runs_on or scope.device
        )


def validated(
    scope: Scope, weights: Path, name: str, precision: str, *flags: str
) -> Iterator[Finding]:
    """val.py on a file; its mAP against that of the checkpoint in float32, which is measured first
    if need be.
    """
    words = [
        "--weights",
        str(weights),
        "--data",
        scope.data,
        "--device",
        scope.device,
        "--batch-size",
        "32",
    ]
    words += ["--workers", str(scope.sizes.workers), "--cache-dir", str(scope.cache)]
    words += ["--project", str(scope.folder / "val"), "--name", name, "--exist-ok", *flags]
    done = run_command(val.run, words, scope.folder / "output" / f"{name}.txt")
    yield from done.findings(f"val.py {name}")
    if done.code:
        return

    found = mean_ap(scope, name)
    expected = mean_ap(scope, "val-fp32")
    times = next((line for line in done.lines if " ms per image" in line), "")
    text = (
        f"{name}: mAP50-95 {found:.4f}, {abs(found - expected):.4f} from the checkpoint's "
        f"in float32; {times}"
    )
    yield Finding(text, abs(found - expected) <= MAX_DIFFERENCE[precision], {"map": found})


def mean_ap(scope: Scope, name: str) -> float:
    """The mAP in the run folder of a validation."""
    return float(json.loads((scope.folder / "val" / name / "metrics.json").read_text())["AP"])
