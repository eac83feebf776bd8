"""The trained checkpoint, validated and exported: the same mAP in float32 and in 16 bits."""

import json
from collections.abc import Iterator
from pathlib import Path

import export
import val
from benchmarks.on_gpu.commands import run_command
from benchmarks.on_gpu.stage import Finding, Scope

# of mAP, between a file and the checkpoint in float32
MAX_DIFFERENCE = {"fp32": 0.002, "half": 0.01}


def validate(scope: Scope) -> Iterator[Finding]:
    """val.py on the checkpoint, in float32 and with `--half`."""
    yield from validated(scope, scope.best, "val-fp32", "fp32")
    yield from validated(scope, scope.best, "val-half", "half", "--half")


def export_torchscript(scope: Scope) -> Iterator[Finding]:
    """TorchScript on the device in float32, and in float16 on a GPU: compared and validated."""
    yield from exported(scope, "torchscript", "fp32")
    if scope.on_gpu:
        yield from exported(scope, "torchscript", "half", "--half")


def export_onnx(scope: Scope) -> Iterator[Finding]:
    """ONNX, compared with torch on the device; validated by ONNX Runtime on the CPU."""
    yield from exported(scope, "onnx", "fp32", runs_on="cpu")


def exported(
    scope: Scope, kind: str, precision: str, *flags: str, runs_on: str = ""
) -> Iterator[Finding]:
    """Export and validate one format.

    A copy of the checkpoint in a folder of its own keeps the files of several formats apart.
    """
    name = f"{kind}-{precision}"
    checkpoint = scope.folder / "exports" / name / "best.pt"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_bytes(scope.best.read_bytes())

    words = ["--weights", str(checkpoint), "--include", kind, "--dynamic"]
    words += ["--device", scope.device, *flags]
    done = run_command(export.run_script, words, scope.folder / "output" / f"export-{name}.txt")
    yield from done.findings(f"export.py --include {kind} {precision}", done.lines[-2:])
    if done.code == 0:
        file = next(path for path in checkpoint.parent.iterdir() if path.suffix == f".{kind}")
        device = runs_on or scope.device
        yield from validated(scope, file, f"val-{name}", precision, "--device", device)


def validated(
    scope: Scope, weights: Path, name: str, precision: str, *flags: str
) -> Iterator[Finding]:
    """val.py on a file; its mAP against that of the checkpoint in float32, measured before."""
    words = ["--weights", str(weights), "--data", scope.data]
    words += ["--device", scope.device, "--batch-size", "32"]
    words += ["--workers", str(scope.sizes.workers), "--cache-dir", str(scope.cache)]
    words += ["--project", str(scope.folder / "val"), "--name", name, "--exist-ok", *flags]
    done = run_command(val.run_script, words, scope.folder / "output" / f"{name}.txt")
    yield from done.findings(f"val.py {name}")
    if done.code:
        return

    found = mean_ap(scope, name)
    difference = abs(found - mean_ap(scope, "val-fp32"))
    times = next((line for line in done.lines if " ms per image" in line), "")
    distance = f"{difference:.4f} from the checkpoint's in float32"
    text = f"{name}: mAP50-95 {found:.4f}, {distance}; {times}"
    yield Finding(text, difference <= MAX_DIFFERENCE[precision], {"map": found})


def mean_ap(scope: Scope, name: str) -> float:
    """The mAP in the run folder of a validation."""
    file = scope.folder / "val" / name / "metrics.json"
    return float(json.loads(file.read_text())["AP"])
