"""--batch-size -1: the search for all thresholds, the count against the allocator, the choice
against real steps.
"""

import copy
import math
import random
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

from models import LossGains, build_loss, build_model
from training.averages.ema import EMA
from training.batch_size import autobatch
from training.batch_size.autobatch import (
    FinalTrial,
    checked_batch,
    choose_batch,
    format_gib,
    initialize_state,
    largest_batch,
    memory_advice,
    memory_budget,
    step_memory,
)
from training.optimizers import build_optimizer
from utils.terminal import FaultError

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
MIB, GIB = 2**20, 2**30
SIDE = 96


def single_process(value: int) -> int:
    """The minimum over one process."""
    return value


def ignore_values(*_: object) -> None:
    """Discard the values of expressions, for steps of one line."""


# ---------------------------------------------------------------------- the search


def search(need: Callable[[int], float | None], budget: int, most: int) -> tuple[int, list[int]]:
    """The batch that is found, and the batches that were tried."""
    tried: list[int] = []

    def watched(batch: int) -> int | None:
        tried.append(batch)
        taken = need(batch)
        return None if taken is None else int(taken)

    return largest_batch(watched, budget, most=most), tried


def check(found: int, tried: list[int], best: int, most: int) -> None:
    assert (found == 0) == (best == 0)
    assert found <= best <= found + max(found // 8, 1)
    assert found == best or found >= 8  # small batches are exact
    assert found == 0 or found in tried
    near = found + max(found // 8, 1)
    assert near >= most or any(
        found < size <= near for size in tried
    )  # a batch this close does not fit
    assert len(tried) == len(set(tried))
    assert all(1 <= size <= most for size in tried)


@pytest.mark.parametrize("most", [1, 2, 3, 10, 100, 1024])
def test_search_finds_every_threshold_without_memory_numbers(most):
    for best in range(most + 1):
        found, tried = search(lambda batch: 0 if batch <= best else None, 1, most)  # noqa: B023
        check(found, tried, best, most)
        assert len(tried) <= math.log2(most) + 5


@pytest.mark.parametrize(
    ("base", "each"), [(0, 7), (5, 7), (1000, 7), (100_000, 7), (300, 1), (10, 1000)]
)
@pytest.mark.parametrize("most", [1, 40, 1024])
def test_search_with_linear_memory_takes_few_trials(base, each, most):
    for best in range(most + 1):
        found, tried = search(
            lambda batch: base + each * batch, base + each * best + each // 2, most
        )
        check(found, tried, best, most)
        assert len(tried) <= 8
        assert max(tried) <= max(best * 9 / 8, best + 1)  # no trial goes far beyond the budget


def test_search_trials_by_hand():
    # 1 takes 12 and 2 take 14, so 23 would end at 6.5 (6); that is within 4 * 2, fits with 22, and
    # 7 take 24.
    assert search(lambda batch: 10 + 2 * batch, 23, 1024) == (6, [1, 2, 6, 7])
    # The line from (1, 5) to (2, 5) is flat: double. 4 take 20: (23 - 20) / (15 / 2) is no image,
    # so 5, but 25.
    assert search(lambda batch: max(5 * batch, 5) if batch > 2 else 5, 23, 1024) == (
        4,
        [1, 2, 4, 5],
    )


@pytest.mark.slow
def test_search_with_noisy_memory_steps_finds_fitting_batch():
    chance = random.Random(0)
    for _ in range(3000):
        base, each, block = (
            chance.uniform(0, 500),
            10 ** chance.uniform(-1, 2),
            10 ** chance.uniform(-1, 2),
        )
        needs = [
            math.ceil((base + each * batch) * chance.uniform(0.97, 1.03) / block) * block
            for batch in range(1, 1025)
        ]
        budget = int(base + each * 10 ** chance.uniform(-0.5, 3))
        found, tried = search(lambda batch: needs[batch - 1], budget, 1024)  # noqa: B023
        assert found == 0 or int(needs[found - 1]) <= budget
        near = found + max(found // 8, 1)
        assert near >= 1024 or any(
            int(needs[size - 1]) > budget for size in tried if found < size <= near
        )
        assert len(tried) <= 20


# ---------------------------------------------------------------------- the measure


def test_step_memory_of_live_tensors_by_hand():
    def step() -> None:
        a = torch.zeros(1000)  # 4000 bytes
        b = a + 1  # 8000
        b.view(10, 100).mul_(2)  # no more
        del a  # 4000
        c = torch.zeros(500, dtype=torch.float64)  # 8000
        torch.cat([b, c.float()])  # float32 of c 2000, and the result 6000: 16000

    assert step_memory(step, CPU) == 16000


def test_step_memory_excludes_existing_tensors():
    old = torch.zeros(1000)
    assert step_memory(lambda: None, CPU) == 0
    assert step_memory(lambda: ignore_values(old.add_(1), old[:1].exp_()), CPU) == 0


def test_step_memory_counts_saved_tensors_until_backward():
    weight = torch.zeros(1000, requires_grad=True)

    def step() -> None:
        y = (weight * 2).exp()  # exp saves its result, the product is freed
        z = y.exp()  # and again: 3 * 4000 at once while the product lives
        z.sum().backward()

    need = step_memory(step, CPU)
    assert need is not None
    assert 12_000 <= need <= 24_000
    assert weight.grad is not None


def allocator_peak(step: Callable[[], None]) -> int:
    """The peak bytes of torch's own allocator, as the profiler records them."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        step()
    now = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


@pytest.mark.slow
@pytest.mark.parametrize("amp", [False, True])
def test_step_memory_is_close_to_allocator_peak(amp):
    step = training_step(build_model("yolov5n.yaml", 80), 160, amp=amp)
    step(1)
    need = step_memory(lambda: step(4), CPU)
    assert need == pytest.approx(allocator_peak(lambda: step(4)), rel=0.1)
    assert need == step_memory(lambda: step(4), CPU)


OUT_OF_MEMORY = [
    (torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 2.00 GiB."),
    (MemoryError, ""),
    (RuntimeError, "MPS backend out of memory (MPS allocated: 1 GB)"),
    (RuntimeError, "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
]


@pytest.mark.parametrize(("kind", "words"), OUT_OF_MEMORY)
def test_step_memory_is_none_when_out_of_memory_and_frees_tensors(kind, words):
    references: list[weakref.ref[object]] = []

    def step() -> None:
        tensor = torch.zeros(1000, requires_grad=True)
        holder = nn.Module()
        holder.itself, holder.map = (
            [holder],
            tensor.exp(),
        )  # a cycle, which only the garbage collector frees
        references.extend(
            weakref.ref(each) for each in (tensor, holder, holder.map.untyped_storage())
        )
        raise kind(words)

    assert step_memory(step, CPU) is None
    assert [reference() for reference in references] == [None, None, None]
    assert step_memory(lambda: ignore_values(torch.zeros(1000)), CPU) == 4000


def test_step_memory_recognizes_cpu_out_of_memory():
    assert step_memory(lambda: ignore_values(torch.empty(2**50)), CPU) is None


def test_step_memory_raises_other_errors():
    with pytest.raises(RuntimeError, match="must match the size"):
        step_memory(lambda: ignore_values(torch.zeros(2) + torch.zeros(3)), CPU)


def test_step_memory_restores_random_state():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    step_memory(lambda: ignore_values(torch.rand(100), torch.manual_seed(1)), CPU)
    assert torch.rand(3).equal(wanted)


# ---------------------------------------------------------------------- the budget


@pytest.mark.parametrize(
    ("device", "free", "processes", "budget"),
    [
        (CPU, 64 * GIB, 1, 2 * GIB),
        (CPU, 64 * GIB, 16, 2 * GIB),  # 64 / 2 / 16 = 2
        (CPU, 64 * GIB, 32, GIB),
        (CPU, 3 * GIB, 1, 1536 * MIB),
        (CPU, 0, 1, 0),
        (GPU, 10 * GIB, 1, 8 * GIB),
        (GPU, 10 * GIB, 8, 8 * GIB),  # each process has a GPU of its own
    ],
)
def test_memory_budgets_of_devices_and_processes(monkeypatch, device, free, processes, budget):
    monkeypatch.setattr(autobatch, "free_memory", lambda _: free)
    assert memory_budget(device, processes) == budget


# ---------------------------------------------------------------------- the choice


@pytest.fixture
def simulated_steps(monkeypatch):
    """Simulated steps of 100 MiB and 10 MiB per image, with a budget of 1 GiB: the list of trials,
    and the step.
    """
    trials: list[int] = []
    monkeypatch.setattr(autobatch, "memory_budget", lambda *_: GIB)
    monkeypatch.setattr(autobatch, "step_memory", lambda step, _: step())
    return trials, lambda images: trials.append(images) or (100 + 10 * images) * MIB


@pytest.mark.parametrize(
    ("images", "shares", "batch", "words"),
    [
        # (1024 - 100) / 10 = 92.4; the line leads to 92 less a 32nd, which is 90
        (5000, 1, 90, "batch 90: a step of 90 images needs 1000 MiB of the allowed 1.0 GiB"),
        (
            5000,
            4,
            360,
            "batch 360 (4 x 90): a step of 90 images needs 1000 MiB of the allowed 1.0 GiB",
        ),
        (
            131,
            2,
            130,
            "batch 130 (2 x 65): a step of 65 images needs 750 MiB of the allowed 1.0 GiB; "
            "limited by the 131 training images",
        ),
        (
            5000,
            32,
            1024,
            "batch 1024 (32 x 32): a step of 32 images needs 420 MiB of the allowed 1.0 GiB; "
            "more than 1024 are not tried",
        ),
        (
            1,
            1,
            1,
            "batch 1: a step of 1 image needs 110 MiB of the allowed 1.0 GiB; limited by the 1 "
            "training image",
        ),
    ],
)
def test_chosen_batch_sizes_and_messages(simulated_steps, images, shares, batch, words):
    trials, step = simulated_steps
    found = choose_batch(step, single_process, device=CPU, images=images, shares=shares)
    assert found == (batch, f"--batch-size -1: {words}")
    assert max(trials) <= images // shares


def test_choose_batch_takes_minimum_over_processes(simulated_steps):
    _, step = simulated_steps
    given: list[int] = []
    others = iter([GIB - 1, 17])  # the smallest budget, then the smallest batch

    def world_min(value: int) -> int:
        given.append(value)
        return min(value, next(others))

    batch, sentence = choose_batch(step, world_min, device=CPU, images=5000, shares=3)
    assert (batch, given) == (51, [GIB, 90])
    assert sentence.startswith(
        "--batch-size -1: batch 51 (3 x 17): a step of 90 images needs 1000 MiB"
    )


@pytest.mark.parametrize("others", [[GIB, 0], [50 * MIB, 500], [-1, 500]])
def test_too_little_memory_is_refused_on_all_processes(simulated_steps, others):
    # In the first case it fits on this process, but not on another; the number of collectives must
    # not depend on it.
    trials, step = simulated_steps
    calls = iter(others)
    with pytest.raises(ValueError, match="not even one image fits in") as caught:
        choose_batch(step, lambda value: min(value, next(calls)), device=CPU, images=5000, shares=2)
    assert list(calls) == []
    budget = format_gib(max(others[0], -1))
    assert str(caught.value) == (
        f"--batch-size -1: not even one image fits in {budget}; use a smaller --imgsz or model"
    )
    assert trials[0] == 1


def test_batch_that_does_not_fit_when_compiled_is_reduced(simulated_steps):
    """Compiled, 100 MiB and 20 MiB per image: 90 need 1900 MiB, 90 x 1024 / 1900 = 48; they need
    1060, and 46 fit.
    """
    _, step = simulated_steps
    tried: list[int] = []

    def check(images: int) -> int:
        tried.append(images)
        return (100 + 20 * images) * MIB

    batch, sentence = choose_batch(
        step, single_process, device=CPU, images=5000, check=FinalTrial("compiled", check)
    )
    assert tried == [90, 48, 46]
    assert batch == 46
    assert sentence.startswith(
        "--batch-size -1: batch 46: a step of 90 images needs 1000 MiB of the allowed 1.0 GiB;"
    )
    assert sentence.endswith("; compiled, a step of 46 images needs 1020 MiB")


def test_checked_batch_by_hand():
    # Memory runs out: an eighth less each time, 16, 14, 12 and so on; another process may need a
    # smaller batch still.
    assert checked_batch(lambda batch: 10 if batch < 11 else None, 10, 16, single_process) == (
        10,
        10,
    )
    others = iter([5, 5])
    assert checked_batch(lambda batch: batch, 10, 8, lambda size: min(size, next(others))) == (5, 5)
    assert checked_batch(lambda _: None, 10, 3, single_process) == (0, 0)
    assert checked_batch(lambda _: 99, 10, 1, single_process) == (0, 0)
    assert checked_batch(pytest.fail, 10, 0, single_process) == (0, 0)


def test_choose_batch_refuses_fewer_images_than_processes(simulated_steps):
    _, step = simulated_steps
    for images, shares in [(0, 1), (3, 4)]:
        with pytest.raises(
            ValueError, match=f"-1: {images} training images are too few for {shares} processes"
        ):
            choose_batch(step, single_process, device=CPU, images=images, shares=shares)


def training_step(
    model: nn.Module, side: int, *, optimizer: str = "SGD", amp: bool = False
) -> Callable[[int], None]:
    """A step of train.py on copies, as in the middle of a run, of images with 100 boxes each."""
    criterion = build_loss(model.head, LossGains())

    def step(images: int) -> None:
        trial = copy.deepcopy(model).train()
        ema = EMA(trial)
        steps = build_optimizer(trial, "SGD", lr=0.01, momentum=0.9, weight_decay=5e-4)
        initialize_state(steps)
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            maps = trial(torch.rand(images, 3, side, side))
        boxes = torch.rand(images * 100, 2, 2).sort(1).values.flatten(1) * side
        owner = torch.arange(images).repeat_interleave(100)[:, None]
        losses = criterion(maps, torch.cat([owner, torch.zeros_like(owner), boxes], 1))
        (sum(losses.values()) * images).backward()
        nn.utils.clip_grad_norm_(trial.parameters(), max_norm=10.0)
        steps.step()
        steps.zero_grad()
        ema.update(trial.state_dict())

    return step


@pytest.mark.slow
def test_chosen_batch_fits_real_step_and_larger_batch_does_not(micro_model, monkeypatch):
    torch.manual_seed(0)
    model = build_model(micro_model, 3)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    step = training_step(model, SIDE)
    monkeypatch.setattr(autobatch, "CPU_BUDGET", 20 * MIB)
    drawn = torch.random.get_rng_state()

    batch, sentence = choose_batch(step, single_process, device=CPU, images=5000)
    assert 4 <= batch < 40
    assert (
        step_memory(lambda: step(batch), CPU)
        <= 20 * MIB
        < step_memory(lambda: step(batch + batch // 8 + 1), CPU)
    )
    assert (batch, sentence) == choose_batch(step, single_process, device=CPU, images=5000)

    assert torch.random.get_rng_state().equal(drawn)
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_initialize_state_fills_momentum_and_keeps_weights():
    layer = nn.Linear(3, 2)
    weight = layer.weight.detach().clone()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    initialize_state(optimizer)
    assert all(parameter.grad.eq(0).all() for parameter in layer.parameters())
    assert {state["momentum_buffer"].shape for state in optimizer.state.values()} == {(2, 3), (2,)}
    assert layer.weight.equal(weight)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_chosen_batch_uses_allowed_share_of_gpu_memory():
    def step(images: int) -> None:
        torch.zeros(images, 64 * MIB, device=GPU)

    free = autobatch.free_memory(GPU)
    batch, _ = choose_batch(step, single_process, device=GPU, images=10_000)
    assert 0.7 * free * 8 / 9 <= batch * 256 * MIB <= 0.8 * free
    assert step_memory(lambda: step(100_000), GPU) is None
    assert autobatch.free_memory(GPU) > 0.95 * free


@pytest.mark.parametrize(
    ("batch", "size", "processes", "advice"),
    [
        (
            64,
            640,
            1,
            "--batch-size 64 and --imgsz 640: try --batch-size 32, --imgsz 480, "
            "--checkpoint-activations;",
        ),
        (
            6,
            100,
            3,
            "--batch-size 6 and --imgsz 100: try --batch-size 3, --imgsz 64, "
            "--checkpoint-activations;",
        ),
        (2, 32, 2, "--batch-size 2 and --imgsz 32: try --checkpoint-activations;"),
    ],
)
def test_out_of_memory_advice_names_smaller_settings(batch, size, processes, advice):
    errors = [
        torch.OutOfMemoryError("CUDA out of memory. Tried to\nallocate"),
        RuntimeError("can't allocate memory: 9"),
    ]
    for error in errors:
        with pytest.raises(FaultError) as caught, memory_advice(batch, size, CPU, processes):
            raise error
        first = " ".join(str(error).split())
        hint = "--batch-size -1 finds the largest batch that fits"
        assert str(caught.value) == f"out of memory on cpu with {advice} {hint} ({first})"


@pytest.mark.parametrize(
    ("batch", "side", "advice"),
    [
        (4, 64, "try --batch-size 2; --batch-size -1 finds"),
        (1, 32, "--imgsz 32: --batch-size -1 finds"),
    ],
)
def test_out_of_memory_advice_names_what_can_be_given(batch, side, advice):
    with (
        pytest.raises(FaultError, match=advice),
        memory_advice(batch, side, CPU, 1, may_recompute=False),
    ):
        raise MemoryError


def test_out_of_memory_advice_for_error_without_message():
    with pytest.raises(FaultError, match=r"\(MemoryError\)$"), memory_advice(4, 64, CPU, 1):
        raise MemoryError


def test_other_errors_get_no_memory_advice():
    with pytest.raises(RuntimeError, match=r"^shape$"), memory_advice(2, 64, CPU, 1):
        raise RuntimeError("shape")
    with memory_advice(2, 64, CPU, 1):
        pass
