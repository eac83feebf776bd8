"""The tasks of the processes in test_processes.py. As a script (see launching.forked) it runs a
plan of tasks in order.

A plan is a JSON file with flags of Launch, and tasks (`works`) by name with their arguments. Each
process saves the result of each task to its own file.
"""

import contextlib
import dataclasses
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import cv2
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

import data.loaders
import train
import val
from data import build_evaluation_loader
from data.augment.plan import Planner
from data.dataset_yaml import read_data_yaml
from data.labels import Labels
from data.multi_scale import MultiScale
from data.sampler import Key, TrainSampler
from data.scan import scan
from models import LossGains, build_loss
from models.losses.anchor_based import AnchorBasedLoss
from models.weights.kestrel import load_detector
from tests.support.launching import ROOT, forked, rank_environment
from training import evaluation
from utils.distributed.launch import Launch
from utils.distributed.replica import DistributedReplica, sync_buffers
from utils.distributed.session import distributed_session
from utils.distributed.sync_bn import SyncBatchNorm2d
from utils.distributed.world import World
from utils.files import checkpoint_file
from utils.metrics.evaluation import Evaluation
from utils.plots.pictures import Pictures

SINGLE_PROCESS = World(torch.device("cpu"))
Fault = Callable[[World], AbstractContextManager[object]]
PlainDict = dict[str, Any]  # tensors and plain values


# ---------------------------------------------------------------------- data


def draw_data(root: Path, count: int = 12) -> Path:
    """Draw images of three sizes with 0 to 3 rectangles; returns a data YAML (same training and
    validation set).
    """
    random = np.random.default_rng(0)
    for folder in ("images", "labels"):
        (root / folder).mkdir(parents=True)
    for number in range(count):
        height, width = ((96, 96), (72, 96), (96, 60))[number % 3]
        image, rows = random.integers(90, 130, (height, width, 3)).astype(np.uint8), []
        for _ in range(number % 4):
            kind, (wide, high) = int(random.integers(3)), random.integers(12, 40, 2).tolist()
            x, y = int(random.integers(width - wide)), int(random.integers(height - high))
            cv2.rectangle(
                image,
                (x, y),
                (x + wide - 1, y + high - 1),
                [255 * (c == kind) for c in range(3)],
                -1,
            )
            shares = (x + wide / 2) / width, (y + high / 2) / height, wide / width, high / height
            rows.append(f"{kind} {' '.join(f'{share:.6f}' for share in shares)}\n")
        cv2.imwrite(str(root / "images" / f"{number:02}.png"), image)
        (root / "labels" / f"{number:02}.txt").write_text("".join(rows))
    file = root / "rectangles.yaml"
    file.write_text("path: .\ntrain: images\nval: images\nnames: [blue, green, red]\n")
    return file


# ---------------------------------------------------------------------- launching


def launch(
    folder: Path, size: int, works: dict[str, PlainDict], *, seconds: float = 600, **settings: Any
) -> dict[str, list]:
    """Run tasks in `size` processes; returns results by name and rank. works: name -> task of
    TASKS, its arguments. settings: those of `launching`.
    """
    with launching(folder, size, works, **settings) as finish:
        return finish(seconds)


@contextlib.contextmanager
def launching(
    folder: Path,
    size: int,
    works: dict[str, PlainDict],
    *,
    variables: Mapping[str, str] | None = None,
    **flags: Any,
) -> Iterator[Callable[..., dict[str, list]]]:
    """Start what `launch` runs; finish(seconds) waits for it and returns the results.

    variables: of the environment of each process. flags: of Launch.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plan = {
        "launch": {"device": "cpu", "dist_url": f"file://{folder}/store", **flags},
        "works": works,
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    environments = [rank_environment(rank, size, 0) | dict(variables or {}) for rank in range(size)]
    with forked(
        environments, [str(folder / "plan.json")], folder, script="tests.support.processes"
    ) as ranks:

        def finish(seconds: float = 600) -> dict[str, list]:
            for rank in ranks:
                code = rank.end(seconds)
                assert code == 0, f"{rank.out[-2000:]}\n{rank.err[-4000:]}"
            return {
                name: [
                    torch.load(folder / f"{name}.{rank}.pt", weights_only=True)
                    for rank in range(size)
                ]
                for name in works
            }

        yield finish


def run_script(arguments: Sequence[str]) -> None:
    """The script of one process."""
    file = Path(arguments[0])
    plan = json.loads(file.read_text())
    with distributed_session() as connect:
        world = connect(Launch(**plan["launch"]))
        for name, work in plan["works"].items():
            found = TASKS[work.pop("work")](world, file.parent, name, **work)
            torch.save(checkpoint_file.to_plain(found), file.parent / f"{name}.{world.rank}.pt")


# ---------------------------------------------------------------------- training


def weights_of(run: Path) -> Path:
    """Write the averaged weights of a run to a file of their own, and return its path.

    Runs start from them sooner than from last.pt: they read the file twice, and all of it.
    """
    saved = checkpoint_file.load(run / "weights" / "last.pt")
    saved["model"] = saved.pop("ema")
    del saved["optimizer"]
    file = run / "weights" / "averaged.pt"
    checkpoint_file.save(file, saved)
    return file


def trains(
    world: World, folder: Path, name: str, *, flags: Sequence[str], fault: str = ""
) -> PlainDict:
    """Run train.py with the run folder folder/name; returns the COCO metrics of the best
    checkpoint.
    """
    run_flags = ["--project", str(folder), "--name", name]
    with FAULTS[fault](world) if fault else nullcontext():
        return train.main(train.parse_args([*flags, *run_flags])[0], world).coco.stats


def validates(world: World, folder: Path, name: str, *, flags: Sequence[str]) -> PlainDict:
    """Run val.py with the run folder folder/name, without its pictures."""
    run_flags = ["--project", str(folder), "--name", name]
    with mock.patch.object(val, "draw_results"):
        val.main(val.parse_args([*flags, *run_flags])[0], world)
    return {}


def averages(world: World, folder: Path, name: str, *, flags: Sequence[str]) -> PlainDict:
    """Train one epoch: each process's BatchNorm statistics before they are averaged, and the model
    it evaluates.
    """
    found: PlainDict = {}
    real_epoch, real_detect = train.train_one_epoch, evaluation.predict_split

    def train_one_epoch(state: train.TrainState, *arguments: Any, **keywords: Any) -> Any:
        result = real_epoch(state, *arguments, **keywords)
        for part, model in (("model", state.replica.model), ("ema", state.ema.model)):
            found[part] = {
                key: value.clone() for key, value in model.state_dict().items() if "running" in key
            }
        return result

    def detect(model: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        found.setdefault(
            "evaluated", {key: value.clone() for key, value in model.state_dict().items()}
        )
        return real_detect(model, *arguments, **keywords)

    with (
        mock.patch.object(train, "train_one_epoch", train_one_epoch),
        mock.patch.object(evaluation, "predict_split", detect),
    ):
        trains(world, folder, name, flags=flags)
    return found


@contextlib.contextmanager
def scaled_loss(world: World, *, local: bool) -> Iterator[None]:
    """Divide the loss again by the number of processes. local: normalize by the counts of this
    process only.
    """
    real = AnchorBasedLoss.forward

    def forward(
        self: AnchorBasedLoss, maps: list[Tensor], targets: Tensor, total: Any = None
    ) -> dict[str, Tensor]:
        def own_counts(counts: Tensor) -> Tensor:
            if total is not None:
                total(counts)  # carries the requests to save, too
            return counts

        losses = real(self, maps, targets, own_counts if local else total)
        return {term: value / world.size for term, value in losses.items()}

    with mock.patch.object(AnchorBasedLoss, "forward", forward):
        yield


def seeded_by_rank(world: World) -> AbstractContextManager[object]:
    def planner(
        labels: Labels,
        image_size: int,
        augmentation: data.Augmentation,
        seed: int,
        draws: data.Draws | None = None,
        **how: Any,
    ) -> Planner:
        return Planner(labels, image_size, augmentation, seed + world.rank, draws, **how)

    return mock.patch.object(data.loaders, "Planner", planner)


def image_size_by_rank(world: World) -> AbstractContextManager[object]:
    return mock.patch.object(
        train, "MultiScale", lambda seed, stride: MultiScale(seed + world.rank, stride)
    )


def duplicate_last_sample(world: World) -> AbstractContextManager[object]:
    """The last sample of an epoch repeats another one, as in a sampler that pads the shares of the
    processes.
    """
    real = TrainSampler.__iter__

    def batches(self: TrainSampler) -> Iterator[list[Key]]:
        shares = list(real(self))
        shares[-1][-1] = shares[-1][0]
        return iter(shares)

    return mock.patch.object(TrainSampler, "__iter__", batches)


@contextlib.contextmanager
def slow_writer(world: World) -> Iterator[None]:
    """Rank 0 is slow when it draws before training, saves last.pt, and draws after training."""
    real = checkpoint_file.save

    def save(path: Path, state: PlainDict) -> None:
        time.sleep(SLOW_S if path.name == "last.pt" else 0)
        real(path, state)

    def draw(pictures: Pictures, *_: Any) -> None:
        time.sleep(SLOW_S if pictures.active else 0)

    writing = mock.patch.object(checkpoint_file, "save", save)
    last = mock.patch.object(train, "draw_results", draw)
    with writing, last, mock.patch.multiple(Pictures, train_batch=lambda *_: None, labels=draw):
        yield


@contextlib.contextmanager
def fitness_by_rank(world: World) -> Iterator[None]:
    """Each process measures a fitness of its own; the run's is that of rank 0."""
    real = Evaluation.as_dict
    measured = iter(FITNESS[world.rank])

    def as_dict(self: Evaluation, *arguments: Any) -> PlainDict:
        return real(self, *arguments) | {"fitness": next(measured)}

    with mock.patch.object(Evaluation, "as_dict", as_dict):
        yield


SLOW_S = 4.0
# After each epoch of a run with --patience 1, and of best.pt. On rank 0 the second epoch is the
# best; rank 1 alone would stop after the second one.
FITNESS = ((0.1, 0.3, 0.2, 0.3), (0.3, 0.2, 0.4, 0.5))
FAULTS: dict[str, Fault] = {
    "rank-local normalization": lambda world: scaled_loss(world, local=True),
    "gradients not multiplied by the number of processes": lambda world: scaled_loss(
        world, local=False
    ),
    "rank-seeded augmentation": seeded_by_rank,
    "rank-local image size": image_size_by_rank,
    "padding duplicates": duplicate_last_sample,
    "slow writer": slow_writer,
    "fitness by rank": fitness_by_rank,
}


# ---------------------------------------------------------------------- evaluation


def evaluates(
    world: World,
    folder: Path,
    name: str,
    *,
    yaml: str,
    weights: str,
    images: list[int],
    batch: int = 1,
    confidence: float = 0.001,
    twice: bool = False,
) -> PlainDict:
    """The results of `evaluate` on the images with these indices. twice: each process repeats its
    first batch.
    """
    spec = read_data_yaml(yaml)
    labels, _ = scan(spec.sources("val"), spec.names, threads=1)
    model, _ = load_detector(Path(weights))
    shape: PlainDict = {"batch_size": batch, "image_size": 64, "stride": 32, "letterbox": "center"}
    loader = build_evaluation_loader(
        labels.subset(images), **shape, rank=world.rank, size=world.size
    )
    sampler = loader.sampler
    if twice:
        sampler.batches, sampler.numbers = (
            [*sampler.batches, sampler.batches[0]],
            [*sampler.numbers, 0],
        )
    criterion = None if twice else build_loss(model.head, LossGains())
    found = evaluation.evaluate_split(
        model, loader, world, criterion=criterion, confidence=confidence, active=False
    )
    return {
        "numbers": {"loss": found.losses, **found.as_dict(spec.names)},
        "detections": {
            column: torch.from_numpy(values) for column, values in vars(found.detections).items()
        },
        "precision": torch.from_numpy(found.coco.precision),
        "curves": torch.from_numpy(found.curves.pr_precision),
        "batches": len(loader),
    }


# ---------------------------------------------------------------------- the operations of a world


def run_world_operations(world: World, folder: Path, name: str) -> PlainDict:
    """The results of all World operations, in a world of three, for inputs that depend on the
    rank.
    """
    rank, rows = world.rank, torch.arange(2.0)
    mine = [rows + rank, torch.tensor([[10.0 * rank]], dtype=torch.float64), torch.tensor(rank)]
    means, rank_0s = [value.clone() for value in mine[:2]], [value.clone() for value in mine]
    world.all_reduce_mean_(means)
    world.broadcast_(rank_0s)
    world.all_reduce_mean_([])
    world.broadcast_([])
    return {
        "place": [world.rank, world.local_rank, world.size, world.local_size, world.is_main],
        "sum": world.all_reduce_sum(mine[0]),
        "untouched": mine[0],
        "whole sum": world.all_reduce_sum(torch.tensor([rank, 1])),
        "gather": world.all_gather_rows(torch.full((rank * 2, 3), rank)),  # no rows from rank 0
        "gather of rank 1 alone": world.all_gather_rows(
            torch.ones(int(rank == 1), 7, dtype=torch.float64)
        ),
        "gather of nobody": world.all_gather_rows(torch.zeros(0, 7)),
        "average": means,
        "spread": rank_0s,
        "share": world.broadcast_object({"bits": [0.1 + 0.2, float("nan")], "rank": rank}),
        "all_gather_object": world.all_gather_object({"rank": rank, "text": "é"}),
    }


def run_local_main_first(world: World, folder: Path, name: str) -> PlainDict:
    """Which ranks find the work of local rank 0 done in local_main_first; the last rank is alone on
    its machine.
    """
    local_world = dataclasses.replace(
        world, local_rank=0 if world.rank == world.size - 1 else world.rank
    )
    machine, first = int(world.rank == world.size - 1), local_world.local_rank == 0
    done, began = folder / f"machine{machine}", time.monotonic()
    with local_world.local_main_first():
        found = done.exists()
        time.sleep(0.5 if first else 0)
        done.touch()
    return {"first": first, "found": found, "waited": time.monotonic() - began}


def run_require_same(world: World, folder: Path, name: str) -> PlainDict:
    """The error messages of require_same if the last process has a different value."""
    messages = []
    for value in (
        int(world.rank == world.size - 1),
        {"a": [1, 2], "b": world.rank // (world.size - 1), "c": 3},
    ):
        try:
            world.require_same("--this", value)
        except ValueError as error:
            messages.append(str(error))
    world.require_same("--that", {"a": 0.1})
    return {"said": messages}


# ---------------------------------------------------------------------- replicas


class SyncBatchNormModel(nn.Module):
    """SyncBatchNorm2d between two convolutions, and a buffer that is not a BatchNorm statistic."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Conv2d(2, 4, 3, bias=False), SyncBatchNorm2d(4), nn.SiLU(), nn.Conv2d(4, 1, 3)
        ).double()
        self.register_buffer("sizes", torch.ones(3))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


def images_of_one_step() -> Tensor:
    """[12, 2, 8, 8]: three batches of four."""
    return torch.randn(12, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def accumulates(world: World, folder: Path, name: str) -> PlainDict:
    """Gradients of two optimizer steps of three batches each, and the number of all-reduces after
    each batch.
    """
    replica, exchanges, counts, gradients = (
        DistributedReplica(SyncBatchNormModel(), world, accumulates=True),
        [],
        [],
        [],
    )

    def counted(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        exchanges.append(bucket.index())
        return allreduce_hook(group, bucket)

    replica.wrapped.register_comm_hook(None, counted)
    for _ in range(2):
        for number, batch in enumerate(images_of_one_step().split(4)):
            with replica.gradients(last=number == 2):
                share = replica(batch[world.rank :: world.size]).square().sum()
                (share * world.size).backward()
            counts.append(len(exchanges))
        gradients.append(
            [
                parameter.grad.clone()
                for parameter in replica.model.parameters()
                if parameter.grad is not None
            ]
        )
        replica.model.zero_grad()
    return {"exchanges": counts, "gradients": gradients}


def run_sync_buffers(world: World, folder: Path, name: str) -> PlainDict:
    """The state of a model filled with the rank after sync_buffers, without and with synchronized
    BatchNorm.
    """
    found = {}
    for synchronized in (False, True):
        model = SyncBatchNormModel()
        for value in model.state_dict().values():
            value.fill_(world.rank)
        sync_buffers(model, world, synchronized=synchronized)
        state = model.state_dict()
        assert all((value == value.flatten()[0]).all() for value in state.values())
        found["synchronized" if synchronized else "own"] = {
            key: value.max().item() for key, value in state.items()
        }
    return found


TASKS: dict[str, Callable[..., PlainDict]] = {
    work.__name__: work
    for work in (
        trains,
        validates,
        averages,
        evaluates,
        run_world_operations,
        run_local_main_first,
        run_require_same,
        accumulates,
        run_sync_buffers,
    )
}


def write_hyp(file: Path, like: str, **changed: float) -> None:
    """Write a copy of the hyper-parameter file `like` from data/hyps with changed values."""
    text = (ROOT / "data" / "hyps" / like).read_text()
    for key, value in changed.items():
        text = re.sub(rf"^{key}: \S+", f"{key}: {value}", text, flags=re.MULTILINE)
    file.write_text(text)
