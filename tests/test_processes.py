"""N processes train like one, and evaluate like one to the last digit: 1, 2, 3 and 4 gloo processes
on the CPU.

All runs start from the weights of a short training. From random weights even two runs of one
process diverge: in a deep network with BatchNorm a difference in the last bit grows tenfold with
each step (benchmarks/equivalence.py).
"""

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import train
from models import LossGains, build_loss
from models.weights.kestrel import load_detector
from tests.support.processes import (
    FAULTS,
    SINGLE_PROCESS,
    SLOW_S,
    PlainDict,
    SyncBatchNormModel,
    draw_data,
    evaluates,
    images_of_one_step,
    launch,
    launching,
    trains,
    validates,
    weights_of,
    write_hyp,
)
from tests.support.run_differences import (
    assert_losses_agree,
    difference,
    last_checkpoint,
    results,
    state_differences,
)
from utils.distributed.world import World

Results = dict[str, list[Any]]  # by name of the job: one result per process

pytestmark = [pytest.mark.slow, pytest.mark.trains]

TOLERANCE = {"fp32": 1e-4, "fp64": 1e-9}
SHORT = "--epochs 2 --batch 4 --sync-bn --amp fp64 --noplots --nosave --noval"
# 10 images: every other epoch starts with the images left over from the epoch before it.
STEP_EACH_BATCH = "--hyp EAGER --data TEN"
RUNS = {
    "fp64": "--epochs 8 --batch 4 --sync-bn --amp fp64 --noplots --nosave " + STEP_EACH_BATCH,
    "fp32": "--epochs 8 --batch 4 --sync-bn --amp fp32 --noplots --nosave --noval "
    + STEP_EACH_BATCH,
    "accumulated": SHORT,
    "Muon, rect and image weights": SHORT.replace(" --noval", "")
    + " --optimizer Muon --rect --image-weights",
    "chosen, repeated and weighted": SHORT.replace(" --noval", "")
    + " --data FOUR TEN --data-weights 2.5 0.75 --repeat-factor 0.9 --class-weights auto "
    "--classes blue 2",
    "multi-scale and activations computed again": SHORT + " --multi-scale --checkpoint-activations",
    "backbone": SHORT + " --cfg BACKBONE --data FOUR",
    "sharded backbone": SHORT.replace("--sync-bn", "--shard") + " --cfg BACKBONE --data FOUR",
    "tiles": SHORT.replace(" --noval", "").replace("--epochs 2", "--epochs 1")
    + " --tile 40 --tile-overlap 0.3 --data FOUR",
    "the largest batch": SHORT.replace("--batch 4", "--batch -1") + " --data FOUR",
}
COUNTS = {"FOUR": 4, "TEN": 10}  # the images of data sets
ALONE = {"sharded backbone": "backbone"}  # --shard changes nothing in one process: see SHARDED
SHARDED = SHORT.replace("--sync-bn", "--shard")
FAULTY_RUNS = {  # fault: the run of RUNS that it is compared with
    "rank-local normalization": "accumulated",
    "gradients not multiplied by the number of processes": "accumulated",
    "rank-seeded augmentation": "accumulated",
    "padding duplicates": "accumulated",
    "rank-local image size": "multi-scale and activations computed again",
    "plain BatchNorm": "accumulated",
}
SEVEN_IMAGES = [0, 1, 2, 3, 5, 6, 7]
EVALUATIONS: dict[str, PlainDict] = {
    "12 images in 6 batches": {"images": list(range(12)), "batch": 2},
    "7 images": {"images": SEVEN_IMAGES},
    "1 image": {"images": [3]},
    "no detections": {"images": SEVEN_IMAGES, "confidence": 1.0},
    "no labels": {"images": [0, 4, 8]},
}


# ---------------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def yaml(folder: Path) -> str:
    return str(draw_data(folder / "data"))


@pytest.fixture(scope="module")
def flags(folder: Path, yaml: str, micro_model: str) -> Callable[[str], list[str]]:
    """flags("--epochs 1 ...") adds the flags of all runs: data, trained weights, augmentation,
    small images.
    """
    shared = f"--img 64 --workers 0 --device cpu --cache-dir {folder}/cache --data {yaml}".split()
    write_hyp(folder / "learn.yaml", "hyp.no-augmentation.yaml", warmup_epochs=0)
    learning = (
        "--epochs 50 --batch 12 --optimizer AdamW --noval --nosave --noplots --amp "
        f"fp32 --cfg {micro_model}"
    )
    paths = f"--hyp {folder}/learn.yaml --project {folder} --name start"
    train.main(train.parse_args([*shared, *learning.split(), *paths.split()])[0], SINGLE_PROCESS)
    sets = {name: str(draw_data(folder / name, count)) for name, count in COUNTS.items()}
    tuning = {"lr0": 0.002, "warmup_bias_lr": 0.01, "degrees": 5, "mixup": 0.2, "flipud": 0.3}
    write_hyp(folder / "tune.yaml", "hyp.scratch-low.yaml", **tuning)
    write_hyp(folder / "eager.yaml", "hyp.scratch-low.yaml", **tuning, nominal_batch=4)
    backbone = Path(micro_model).with_name("backbone.yaml").read_text()
    (folder / "backbone.yaml").write_text(backbone.replace("[8, 16]", "[4, 8]"))  # fewer layers
    files = sets | {name.upper(): f"{folder}/{name}.yaml" for name in ("eager", "backbone")}
    shared += ["--hyp", f"{folder}/tune.yaml"]
    start = ["--weights", str(weights_of(folder / "start"))]
    return lambda own: [*shared, *(files.get(word, word) for word in own.split()), *start]


@pytest.fixture(scope="module")
def alone(folder: Path, flags: Callable[[str], list[str]]) -> Callable[..., Path]:
    """alone(name): the folder of a run of RUNS in this process; each is trained once."""

    def run(name: str, world: World = SINGLE_PROCESS, call: str = "alone") -> Path:
        run_folder = folder / call / name
        if not run_folder.exists():
            paths = ["--project", str(run_folder.parent), "--name", name]
            words = RUNS.get(name, SHARDED)
            train.main(train.parse_args([*flags(words), *paths])[0], world)
        return run_folder

    return run


@pytest.fixture(scope="module")
def evaluations(yaml: str, flags: Callable[[str], list[str]]) -> dict[str, PlainDict]:
    """The arguments of `evaluates` for each name of EVALUATIONS."""
    model = {"yaml": yaml, "weights": flags("")[-1]}
    return {name: model | own for name, own in EVALUATIONS.items()}


@pytest.fixture(scope="module")
def alone_evaluated(folder: Path, evaluations: dict[str, PlainDict]) -> dict[str, PlainDict]:
    """The results of `evaluates` in this process for each name of EVALUATIONS."""
    return {
        name: evaluates(SINGLE_PROCESS, folder, name, **given)
        for name, given in evaluations.items()
    }


@pytest.fixture(scope="module")
def validation(folder: Path, yaml: str, flags: Callable[[str], list[str]]) -> list[str]:
    """The flags of val.py."""
    words = "--img 64 --batch 2 --workers 0 --device cpu"
    paths = ["--data", yaml, "--cache-dir", f"{folder}/cache"]
    return [*words.split(), *paths, *flags("")[-2:]]  # --weights and the file


@pytest.fixture(scope="module")
def slow(folder: Path, flags: Callable[[str], list[str]]) -> Iterator[Callable[[], Results]]:
    """slow() waits for a run whose rank 0 is slow to write. It starts first: it mostly sleeps."""
    work = {
        "work": "trains",
        "flags": flags("--epochs 1 --batch 12 --nosave"),
        "fault": "slow writer",
    }
    with launching(folder / "slow", 2, {"slow": work}, dist_timeout=SLOW_S - 1) as finish:
        yield finish


@pytest.fixture(scope="module")
def two(
    slow: object,
    folder: Path,
    flags: Callable[[str], list[str]],
    evaluations: dict[str, PlainDict],
    validation: list[str],
) -> Results:
    works = {name: {"work": "evaluates", **given} for name, given in evaluations.items()}
    works |= {name: {"work": "trains", "flags": flags(own)} for name, own in RUNS.items()}
    for name, run in FAULTY_RUNS.items():
        fault = name if name in FAULTS else ""
        own = RUNS[run] if fault else RUNS[run].replace(" --sync-bn", "")
        works[name] = {"work": "trains", "flags": flags(own), "fault": fault}
    saving = flags(SHARDED.replace("--nosave", "--save-period 1"))
    works["sharded, saved"] = {"work": "trains", "flags": saving}
    resume = ["--resume", str(folder / "2" / "sharded, saved" / "weights" / "epoch1.pt")]
    works["sharded, resumed"] = {
        "work": "trains",
        "flags": [*resume, "--cache-dir", f"{folder}/cache"],
    }
    works["val"] = {"work": "validates", "flags": validation}
    works["own norms"] = {"work": "averages", "flags": flags("--epochs 1 --batch 6 --noplots")}
    return launch(folder / "2", 2, works | {"accumulation": {"work": "accumulates"}})


@pytest.fixture(scope="module")
def three(folder: Path, evaluations: dict[str, PlainDict]) -> Results:
    works = {name: {"work": "evaluates", **given} for name, given in evaluations.items()}
    works |= {
        name: {"work": name}
        for name in (
            "run_world_operations",
            "run_local_main_first",
            "run_require_same",
            "run_sync_buffers",
        )
    }
    twice = evaluations["7 images"] | {"work": "evaluates", "twice": True}
    return launch(folder / "3", 3, works | {"twice": twice})


@pytest.fixture(scope="module")
def four(
    folder: Path, flags: Callable[[str], list[str]], evaluations: dict[str, PlainDict]
) -> Results:
    works = {name: {"work": "evaluates", **given} for name, given in evaluations.items()}
    works["accumulated"] = {"work": "trains", "flags": flags(RUNS["accumulated"])}
    return launch(folder / "4", 4, works)


# ---------------------------------------------------------------------- training


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_weights_after_20_steps_match_single_process(folder, alone, precision):
    found = state_differences(alone(precision), folder / "2" / precision)
    assert last_checkpoint(alone(precision))["ema_updates"] == 20
    assert max(found["model"], found["ema"]) < TOLERANCE[precision], found


@pytest.mark.parametrize("run", sorted(RUNS.keys() - {"fp64", "fp32"}))
def test_two_processes_match_single_process_in_every_training_mode(folder, alone, two, run):
    found = state_differences(alone(ALONE.get(run, run)), folder / "2" / run)
    assert max(found.values()) < TOLERANCE["fp64"], found


def test_four_processes_match_single_process(folder, alone, four):
    """With one image of each batch in each."""
    found = state_differences(alone("accumulated"), folder / "4" / "accumulated")
    assert max(found.values()) < TOLERANCE["fp64"], found


def test_resumed_sharded_run_matches_single_process(folder, alone, two):
    """Its second epoch, from the full (unsharded) states in a checkpoint."""
    assert two["sharded, resumed"][0] == two["sharded, saved"][0]
    assert (
        max(state_differences(alone("sharded"), folder / "2" / "sharded, saved").values())
        < TOLERANCE["fp64"]
    )


@pytest.mark.parametrize("fault", FAULTY_RUNS)
def test_distributed_training_faults_change_the_weights(folder, alone, two, fault):
    found = state_differences(alone(FAULTY_RUNS[fault]), folder / "2" / fault)
    assert min(found["model"], found["ema"]) > 1e3 * TOLERANCE["fp64"], found


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_losses_of_two_processes_agree_in_results_csv(folder, alone, precision):
    assert_losses_agree(folder / "2" / precision, alone(precision), relative=1e-4)


@pytest.mark.usefixtures("two")
def test_metrics_of_two_processes_agree_in_results_csv(folder, alone):
    """In float64, and of a model that has learned: rounding then changes the order of no two
    detections.
    """
    rows, expected_rows = results(folder / "2" / "fp64"), results(alone("fp64"))
    assert len(rows) == len(expected_rows) == 8
    for row, expected in zip(rows, expected_rows, strict=True):
        assert row == pytest.approx(expected, rel=1e-4)
        assert expected["metrics/mAP_0.5"] > 0.1


def test_all_processes_return_the_same_metrics(two, four):
    for processes in (two, four):
        for name in processes.keys() & RUNS.keys():
            assert all(found == processes[name][0] for found in processes[name]), name


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="DataParallel runs on the CPU only if there is no GPU"
)
@pytest.mark.parametrize("run", ["accumulated", "backbone"])
def test_data_parallel_on_cpu_equals_single_process_bitwise(alone, run):
    pair = World(torch.device("cpu"), devices=(torch.device("cpu"), torch.device("cpu")))
    found = state_differences(alone(run), alone(run, pair, "DataParallel"))
    assert found == {"model": 0, "ema": 0, "momentum_buffer": 0}


def test_batchnorm_statistics_are_averaged_without_sync_bn(folder, two):
    first, second = two["own norms"]
    saved = last_checkpoint(folder / "2" / "own norms")
    assert first["evaluated"].keys() == saved["ema"].keys()
    assert all(value.equal(first["evaluated"][key]) for key, value in second["evaluated"].items())
    for part in ("model", "ema"):
        assert any(not value.equal(second[part][key]) for key, value in first[part].items())
        for key, value in first[part].items():
            torch.testing.assert_close(saved[part][key], (value + second[part][key]) / 2)
    assert all(value.equal(saved["ema"][key]) for key, value in first["evaluated"].items())


def test_gradients_of_uneven_batch_parts_match_full_batch(flags):
    """As in DataParallel: copies of the model get parts of the batch, the loss gets their
    concatenated maps.
    """
    model, _ = load_detector(Path(flags("")[-1]))
    model.double().train()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
    images = torch.rand(
        5, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    targets = torch.tensor(
        [[0, 1, 4, 4, 30, 40], [3, 0, 20, 8, 60, 50], [4, 2, 10, 10, 30, 30.0]]
    ).double()
    criterion = build_loss(model.head, LossGains()).double()
    gradients = []
    for parts in ((5,), (3, 2)):
        copies = [copy.deepcopy(model) for _ in parts]
        levels = zip(
            *(one(part) for one, part in zip(copies, images.split(parts), strict=True)), strict=True
        )
        criterion.weighted_sum(
            criterion([torch.cat(level) for level in levels], targets)
        ).backward()
        parameters = [dict(one.named_parameters()) for one in copies]
        gradients.append({key: sum(one[key].grad for one in parameters) for key in parameters[0]})
    assert difference(*gradients) < 1e-12


def test_gradients_are_all_reduced_once_per_optimizer_step(two):
    """With three batches per step there is one all-reduce, after the third; the sum equals that of
    one process.
    """
    model = SyncBatchNormModel()
    for batch in images_of_one_step().split(4):
        model(batch).square().sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    for found in two["accumulation"]:
        assert found["exchanges"] == [0, 0, 1, 1, 1, 2]
        for step in found["gradients"]:
            assert difference(dict(enumerate(expected)), dict(enumerate(step))) < 1e-12


def test_slow_writes_of_rank_0_do_not_time_out_other_ranks(folder, slow):
    """A rank that waited for rank 0 in a collective for longer than --dist-timeout would end the
    run.
    """
    found = slow()["slow"]
    assert found[0] == found[1]
    assert (folder / "slow" / "slow" / "metrics.json").exists()


def test_two_processes_stop_early_at_the_same_epoch_as_one(folder, flags):
    """Both leave the training loop there: a rank that trained on would wait for the other until the
    time is up.
    """
    words = flags("--epochs 20 --patience 1 --batch 4 --data FOUR --noplots --nosave")
    work = {"work": "trains", "flags": words, "fault": "fitness by rank"}
    found = launch(folder / "2 stop", 2, {"two": work}, seconds=60, dist_timeout=30)["two"]
    assert found[0] == found[1]

    trains(SINGLE_PROCESS, folder / "2 stop", "one", flags=words, fault=work["fault"])
    for run in ("one", "two"):
        saved = last_checkpoint(folder / "2 stop" / run)
        assert (saved["epoch"], saved["best"]["epoch"]) == (3, 1)  # the latter counted from 0


# ---------------------------------------------------------------------- evaluation


@pytest.mark.parametrize("name", EVALUATIONS)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_evaluation_in_every_process_matches_single_process(request, alone_evaluated, size, name):
    found = request.getfixturevalue({2: "two", 3: "three", 4: "four"}[size])[name]
    expected = dict(alone_evaluated[name])
    assert sum(result.pop("batches") for result in found) == expected.pop("batches")
    for result in found:
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


def test_evaluation_cases_match_their_names(alone_evaluated):
    found = alone_evaluated
    assert {name: result["batches"] for name, result in found.items()} == {
        "12 images in 6 batches": 6,
        "7 images": 7,
        "1 image": 1,
        "no detections": 7,
        "no labels": 3,
    }
    assert found["7 images"]["numbers"]["AP50"] > 0.1
    assert len(found["no detections"]["detections"]["scores"]) == 0
    assert found["no detections"]["numbers"]["AP"] == 0
    assert found["no labels"]["numbers"]["AP"] == -1
    assert len(found["no labels"]["detections"]["scores"]) > 0


def test_image_evaluated_twice_changes_metrics(alone_evaluated, three):
    expected = alone_evaluated["7 images"]
    for result in three["twice"]:
        assert len(result["detections"]["scores"]) > len(expected["detections"]["scores"])
        assert abs(result["numbers"]["AP"] - expected["numbers"]["AP"]) > 1e-3


def test_val_in_two_processes_matches_single_process(folder, two, validation):
    """val.py with the variables of a launch; test_launchers.py starts it with --spawn."""
    validates(SINGLE_PROCESS, folder / "val", "one", flags=validation)
    one = (folder / "val" / "one" / "metrics.json").read_text()
    assert one == (folder / "2" / "val" / "metrics.json").read_text()
    assert json.loads(one)["AP50"] > 0.1


# ---------------------------------------------------------------------- the operations of a world


def test_world_operations_of_three_processes(three):
    found = three["run_world_operations"]
    assert [result["place"] for result in found] == [
        [rank, rank, 3, 3, rank == 0] for rank in range(3)
    ]
    for rank, result in enumerate(found):
        assert result["sum"].tolist() == [3, 6]  # 0 + 1 + 2, 1 + 2 + 3
        assert result["untouched"].tolist() == [rank, rank + 1]
        assert result["whole sum"].tolist() == [3, 3]
        assert result["whole sum"].dtype == torch.int64
        assert result["gather"].tolist() == [[1, 1, 1]] * 2 + [[2, 2, 2]] * 4
        assert result["gather of rank 1 alone"].equal(torch.ones(1, 7, dtype=torch.float64))
        assert result["gather of nobody"].shape == (0, 7)
        floats, doubles = result["average"]
        assert (floats.tolist(), doubles.tolist(), doubles.dtype) == ([1, 2], [[10]], torch.float64)
        assert [value.tolist() for value in result["spread"]] == [[0, 1], [[0]], 0]
        assert result["share"]["bits"][0] == 0.1 + 0.2
        assert math.isnan(result["share"]["bits"][1])
        assert result["share"]["rank"] == 0
        assert result["all_gather_object"] == [{"rank": other, "text": "é"} for other in range(3)]


def test_local_rank_0_of_each_machine_runs_first(three):
    """Ranks 0 and 1 are on one machine, rank 2 is on another."""
    found = three["run_local_main_first"]
    assert [result["first"] for result in found] == [True, False, True]
    assert [result["found"] for result in found] == [False, True, False]
    assert all(
        result["waited"] >= 0.5 for result in found if result["first"]
    )  # the first ones sleep this long


def test_differing_values_are_refused_by_all_processes(three):
    for result in three["run_require_same"]:
        assert result["said"] == [
            "--this differs between the processes: 0 on rank 0, 1 on rank 2",
            "--this differs between the processes: b 0 on rank 0, b 1 on rank 2",
        ]


def test_sync_buffers_makes_model_state_equal_on_all_ranks(three):
    """Values are the rank, 0, 1 or 2: BatchNorm statistics are averaged unless synchronized, the
    rest is rank 0's.
    """
    for result in three["run_sync_buffers"]:
        averaged = {key for key, value in result["own"].items() if value != 0}
        assert averaged == {"layers.1.running_mean", "layers.1.running_var"}
        assert result["own"]["layers.1.running_mean"] == 1
        assert set(result["synchronized"].values()) == {0}
