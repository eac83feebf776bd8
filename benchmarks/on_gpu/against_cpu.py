"""The device against the CPU: tests/test_gpu.py; losses and gradients in float64; detections."""

import copy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import torch
from torch import Tensor

from benchmarks.on_gpu.stage import Finding, Scope
from benchmarks.timed_steps import NUM_CLASSES, Setting, made_up_batch
from models import Detector, LossGains, build_loss, build_model
from models.assign.targets import pad_targets
from models.nms import non_max_suppression
from utils.distributed.host_copies import to_device

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
MAX_DIFFERENCE = 1e-6  # relative, of losses and gradients in float64
# of the largest gradient: smaller ones are differences of equal numbers, that is, rounding
NEGLIGIBLE = 1e-6
CANDIDATES = 8400  # predictions of an image at 640 px


def run_gpu_tests(scope: Scope) -> Iterator[Finding]:
    """tests/test_gpu.py, with a line for each test that fails."""
    report = scope.folder / "test_gpu.xml"
    flags = f"-p no:cacheprovider --tb=short -rs --durations=0 --junitxml={report}"
    command = [sys.executable, "-m", "pytest", "tests/test_gpu.py", *flags.split()]
    subprocess.run(command, cwd=ROOT, check=False)  # its output is the stage's

    cases = list(ElementTree.parse(report).getroot().iter("testcase"))  # noqa: S314  # a file of our own
    problems = [(case, part) for case in cases for part in case if part.tag in ("failure", "error")]
    skipped = sum(part.tag == "skipped" for case in cases for part in case)
    passed = len(cases) - len(problems) - skipped
    text = f"{passed} tests passed, {len(problems)} failed, {skipped} skipped"
    yield Finding(text, passed > 0 and not problems)
    for case, part in problems:
        reason = (part.get("message") or "").strip().split("\n")[0]
        yield Finding(f"{case.get('name')}: {reason[:300]}", False)


def compare_losses(scope: Scope) -> Iterator[Finding]:
    """Losses and gradients of one step in float64, for every head."""
    device = scope.world.device
    for cfg in scope.sizes.check_models:
        torch.manual_seed(0)
        model = build_model(cfg, NUM_CLASSES).double().train()
        on_device = copy.deepcopy(model).to(memory_format=torch.channels_last).to(device)

        expected, expected_gradients = losses_and_gradients(model, scope, CPU, cfg)
        found, found_gradients = losses_and_gradients(on_device, scope, device, cfg)

        loss = max(relative_difference(found[name], expected[name]) for name in expected)
        largest = max(float(part.abs().max()) for part in expected_gradients)
        gradient = max(
            relative_difference(own, other, least=largest * NEGLIGIBLE)
            for own, other in zip(found_gradients, expected_gradients, strict=True)
        )

        differences = {"loss": loss, "gradient": gradient}
        worst = f"of a loss {loss:.1e}, of a gradient {gradient:.1e}"
        text = f"{cfg}: largest relative difference {worst}"
        yield Finding(text, max(loss, gradient) <= MAX_DIFFERENCE, differences)


def losses_and_gradients(
    model: Detector, scope: Scope, device: torch.device, cfg: str
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The losses of a made-up batch by name, and the gradients of all parameters."""
    setting = Setting(cfg=cfg, img=scope.sizes.check_img, batch=2)
    batch = made_up_batch(setting, 0, device)
    images = to_device(batch.images, device, torch.float64)
    criterion = build_loss(model.head, LossGains(), auxiliary=model.auxiliary_head).double()
    losses = criterion(model(images), pad_targets(batch.targets))
    criterion.weighted_sum(losses).backward()

    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return losses, gradients


def relative_difference(found: Tensor, expected: Tensor, least: float = 1e-12) -> float:
    """The largest difference, divided by the largest value expected, or by `least` if more."""
    found = found.detach().cpu()
    expected = expected.detach().cpu()
    difference = float((found - expected).abs().max())
    largest = float(expected.abs().max())
    return difference / max(largest, least)


def compare_nms(scope: Scope) -> Iterator[Finding]:
    """NMS of many candidates with equal scores: the same detections in the same order."""
    random = torch.Generator().manual_seed(0)
    corners = 600 * torch.rand(2, CANDIDATES, 2, generator=random)
    sizes = 20 + 80 * torch.rand(2, CANDIDATES, 2, generator=random)
    boxes = torch.cat([corners, corners + sizes], -1)
    # Mostly low, in steps of 0.02, so that many are equal.
    scores = (50 * torch.rand(2, CANDIDATES, NUM_CLASSES, generator=random) ** 8).round() / 50

    device = scope.world.device
    expected = non_max_suppression(boxes, scores)
    found = non_max_suppression(boxes.to(device), scores.to(device))

    pairs = zip(found, expected, strict=True)
    same = all(torch.equal(own.cpu(), other) for own, other in pairs)
    counts = ", ".join(str(len(rows)) for rows in found)
    verdict = "the same as" if same else "not those"
    yield Finding(f"NMS: {counts} detections, {verdict} on the CPU", same)
