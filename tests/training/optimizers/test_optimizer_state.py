"""Optimizer state survives a checkpoint: scalars, factored moments, several buffers, or no
state.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.small_run import state_with
from training.checkpoints.contents import Checkpoint, Description, read_checkpoint
from training.optimizers import build_optimizer, check_state, match_strides
from training.state import TrainState
from utils.distributed.replica import running_statistics
from utils.distributed.world import World
from utils.files import checkpoint_file

CPU = torch.device("cpu")


class CountingSGD(torch.optim.Optimizer):
    """Keeps numbers outside of its parameters' states, as schedule-free optimizers do; they change
    the next step.
    """

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "k": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.state["steps"] = self.state.get("steps", 0) + 1
        for group in self.param_groups:
            group["k"] += 1
            group["peak"] = max(group.get("peak", 0.0), group["lr"] / group["k"])
            for parameter in group["params"]:
                parameter -= group["peak"] / group["k"] / self.state["steps"] * parameter.grad


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {}),
    "SGD with momentum": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "Adam": ("Adam", {"amsgrad": True}),
    "AdamW": ("AdamW", {}),
    "NAdam": ("NAdam", {}),
    "RAdam": ("RAdam", {}),
    "RMSprop": ("RMSprop", {"centered": True, "momentum": 0.9}),
    "Rprop": ("Rprop", {}),
    "Adadelta": ("Adadelta", {}),
    "ASGD": ("ASGD", {}),
    "Adafactor": ("Adafactor", {}),
    "Muon": ("Muon", {}),
    "CountingSGD": ("CountingSGD", {}),
}


def state_of(name: str) -> TrainState[nn.Sequential]:
    """The state of a new model with this optimizer, in two groups; for Muon the model has only
    matrices.
    """
    torch.manual_seed(0)
    kind, settings = KINDS[name]
    layers = [nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 2)]
    if kind == "Muon":
        layers = [
            nn.Flatten(),
            nn.Linear(48, 8, bias=False),
            nn.Linear(8, 8, bias=False),
            nn.Linear(8, 2, bias=False),
        ]
    model = nn.Sequential(*layers)
    first, *others = model.parameters()
    groups = [{"params": [first], "lr": 0.01}, {"params": others, "lr": 0.02}]
    optimizer = (CountingSGD if kind == "CountingSGD" else getattr(torch.optim, kind))(
        groups, **settings
    )
    return state_with(model, optimizer, World(CPU))


def train(state: TrainState[nn.Sequential], first: int, last: int) -> None:
    """Run the optimizer steps `first` to `last` - 1."""
    for number in range(first, last):
        images = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(number))
        state.replica(images).square().sum().backward()
        state.step()


def saved_and_loaded(state: TrainState[nn.Sequential], folder: Path) -> Checkpoint:
    """Save a checkpoint and read it again."""
    description = Description(
        table={},
        names=[],
        data="",
        images="",
        draws="",
        class_weights_file="",
        config={},
        hyp={},
        versions={},
    )
    checkpoint_file.save(folder / "last.pt", state.checkpoint(description).as_dict())
    return read_checkpoint(str(folder / "last.pt"))


def parameter_states(state: TrainState[nn.Sequential]) -> list[dict[str, Tensor]]:
    """The optimizer's state of each parameter, in the order of the parameters."""
    return [
        dict(state.optimizer.state.get(parameter, {}))
        for parameter in state.replica.model.parameters()
    ]


@pytest.fixture(params=KINDS)
def name(request: pytest.FixtureRequest) -> str:
    if request.param != "CountingSGD" and not hasattr(torch.optim, KINDS[request.param][0]):
        pytest.skip("this torch does not have it")
    return request.param


@pytest.mark.parametrize("before", [0, 1, 3])
def test_resumed_optimizer_continues_with_same_bits(name: str, tmp_path: Path, before: int) -> None:
    """Weights and optimizer state are the same bits. before: number of steps before the
    checkpoint.
    """
    straight, stopped, resumed = (state_of(name) for _ in range(3))
    train(straight, 0, 5)
    train(stopped, 0, before)
    resumed.load(saved_and_loaded(stopped, tmp_path))
    train(resumed, before, 5)
    for value, other in zip(
        straight.replica.state_dict().values(), resumed.replica.state_dict().values(), strict=True
    ):
        assert value.equal(other)
    for own, others in zip(parameter_states(straight), parameter_states(resumed), strict=True):
        assert own.keys() == others.keys()
        assert all(
            torch.equal(torch.as_tensor(own[key]), torch.as_tensor(others[key])) for key in own
        )


def test_resumed_run_restores_averaged_weights_and_their_update_count(tmp_path: Path) -> None:
    """They continue with the same bits as in a run that was not stopped; the count sets the rate of
    the average.
    """
    straight, stopped, resumed = (state_of("SGD") for _ in range(3))
    train(straight, 0, 5)
    train(stopped, 0, 3)
    resumed.load(saved_and_loaded(stopped, tmp_path))
    assert resumed.ema.updates == 3
    for key, value in resumed.ema.state_dict().items():
        assert value.equal(stopped.ema.state_dict()[key])
        assert not value.equal(resumed.replica.state_dict()[key])
    train(resumed, 3, 5)
    assert resumed.ema.updates == straight.ema.updates == 5
    for key, value in resumed.ema.state_dict().items():
        assert value.equal(straight.ema.state_dict()[key])


@pytest.mark.parametrize(
    ("name", "number", "shapes"),
    [
        ("SGD", 0, {}),
        ("SGD with momentum", 0, {"momentum_buffer": (4, 3, 3, 3)}),
        # The variance is factored over the last two dimensions: one value per row and one per
        # column.
        ("Adafactor", 0, {"step": (), "row_var": (4, 3, 3, 1), "col_var": (4, 3, 1, 3)}),
        ("Adafactor", 2, {"step": (), "row_var": (8, 1), "col_var": (1, 16)}),
        ("Adafactor", 3, {"step": (), "variance": (8,)}),
        ("NAdam", 3, {"step": (), "mu_product": (), "exp_avg": (8,), "exp_avg_sq": (8,)}),
    ],
)
def test_optimizer_state_shapes(name: str, number: int, shapes: dict[str, tuple[int, ...]]) -> None:
    state = state_of(name)
    train(state, 0, 1)
    assert {
        key: tuple(value.shape) for key, value in parameter_states(state)[number].items()
    } == shapes


@pytest.mark.parametrize(
    "fault",
    [
        lambda own, key: own.update({key: torch.zeros(*own[key].shape, 1)}),
        lambda own, key: own.update({key: own[key].flatten()[:1]}),
        lambda own, key: own.update({key: torch.tensor(0.0)}),
        lambda own, key: own.update({key: "x"}),
        lambda own, key: own.pop(key),
    ],
    ids=["one dimension more", "one number", "a scalar", "no tensor", "nothing"],
)
def test_optimizer_state_of_wrong_shape_is_refused(
    name: str, tmp_path: Path, fault: Callable[..., None]
) -> None:
    """Each state tensor of the first parameter in turn; a state that becomes empty is accepted."""
    state = state_of(name)
    train(state, 0, 2)
    keys = [key for key, value in parameter_states(state)[0].items() if value.ndim > 0]
    assert keys or name in ("SGD", "CountingSGD")
    for key in keys:
        saved = saved_and_loaded(state, tmp_path)
        fault(saved.optimizer["state"][0], key)
        if not saved.optimizer["state"][0]:
            state_of(name).load(saved)
            continue
        with pytest.raises(
            ValueError, match=r"^the optimizer's state is of another model or optimizer$"
        ):
            state_of(name).load(saved)


def test_transposed_adafactor_moments_are_refused(tmp_path: Path) -> None:
    state = state_of("Adafactor")
    train(state, 0, 1)
    saved = saved_and_loaded(state, tmp_path)
    own = saved.optimizer["state"][2]
    own["row_var"], own["col_var"] = own["row_var"].T, own["col_var"].T
    with pytest.raises(ValueError, match="of another model"):
        state_of("Adafactor").load(saved)


@pytest.mark.parametrize(("saved_by", "loaded_by"), [("AdamW", "Rprop"), ("RMSprop", "Adafactor")])
def test_state_of_another_optimizer_is_refused(
    tmp_path: Path, saved_by: str, loaded_by: str
) -> None:
    state = state_of(saved_by)
    train(state, 0, 1)
    with pytest.raises(ValueError, match="of another model"):
        state_of(loaded_by).load(saved_and_loaded(state, tmp_path))


def test_group_setting_of_another_type_is_refused(tmp_path: Path) -> None:
    saved = saved_and_loaded(state_of("AdamW"), tmp_path)
    saved.optimizer["param_groups"][0]["eps"] = "x"
    with pytest.raises(
        ValueError, match=r"of another model or optimizer: eps is 'x', expected a value like 1e-08"
    ):
        state_of("AdamW").load(saved)


def test_settings_from_flags_and_device_stay_those_of_the_run(tmp_path: Path) -> None:
    """--batch-size may change on --resume, and with it the weight decay; `fused` depends on the
    device.
    """
    saved = saved_and_loaded(state_of("AdamW"), tmp_path)
    saved.optimizer["param_groups"][0] |= {"weight_decay": 7.0, "fused": True, "eps": 1e-6}
    resumed = state_of("AdamW")
    resumed.load(saved)
    group = resumed.optimizer.param_groups[0]
    assert (group["weight_decay"], group["fused"], group["eps"]) == (0.01, None, 1e-6)


def test_state_of_unknown_parameter_is_refused(tmp_path: Path) -> None:
    state = state_of("AdamW")
    train(state, 0, 1)
    saved = saved_and_loaded(state, tmp_path)
    saved.optimizer["state"][99] = saved.optimizer["state"][0]
    with pytest.raises(ValueError, match="of another model"):
        state_of("AdamW").load(saved)


def test_unused_momentum_buffer_is_accepted() -> None:
    """A warm-up that ends at momentum 0 leaves its momentum buffer in the state."""
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.8)
    optimizer.step()
    optimizer.param_groups[0]["momentum"] = 0.0
    check_state(optimizer)


def test_state_check_ignores_implementation_settings() -> None:
    """Some of them need a device that the check does not use."""
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    optimizer = torch.optim.Adam([weight], lr=0.1)
    optimizer.step()
    optimizer.param_groups[0] |= {"fused": None, "foreach": True, "capturable": True}
    check_state(optimizer)


def test_state_check_of_optimizer_without_parameters_adds_no_state() -> None:
    optimizer = torch.optim.SGD([{"params": []}], lr=0.1, momentum=0.9)
    check_state(optimizer)
    assert not optimizer.state


# ---------------------------------------------------------------------- the memory layout


def channels_last_state(name: str) -> TrainState[nn.Sequential]:
    """A new training of a channels-last model in one process, with the fused optimizer that a GPU
    uses.
    """
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 2, 2),
        nn.Flatten(),
        nn.Linear(2, 2),
    ]
    model = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    optimizer = build_optimizer(model, name, lr=0.01, momentum=0.9, weight_decay=0.01)
    for group in (*optimizer.param_groups, optimizer.defaults):
        group["fused"], group["foreach"] = True, False
    state = state_with(model, optimizer, World(CPU))
    state.guard.statistics = running_statistics(model)
    state.guard.snapshot_statistics()
    return state


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_state_saved_by_a_sharded_run_continues_in_one_process(tmp_path: Path, name: str) -> None:
    """A sharded run saves contiguous state: its weights are contiguous, those of one process are
    channels last.
    """
    straight, resumed = channels_last_state(name), channels_last_state(name)
    train(straight, 0, 2)
    saved = saved_and_loaded(straight, tmp_path)
    for values in saved.optimizer["state"].values():
        values.update({key: value.contiguous() for key, value in values.items()})
    resumed.load(saved)

    # The fused kernels of a CPU read both tensors in the order of memory, without a check.
    for parameter, values in resumed.optimizer.state.items():
        for key, value in values.items():
            assert key == "step" or value.stride() == parameter.stride()
            assert not value.requires_grad
    train(straight, 2, 4)
    train(resumed, 2, 4)
    for expected, found in zip(parameter_states(straight), parameter_states(resumed), strict=True):
        assert expected.keys() == found.keys()
        assert all(value.equal(found[key]) for key, value in expected.items())
    for expected, found in zip(
        straight.replica.model.parameters(), resumed.replica.model.parameters(), strict=True
    ):
        assert expected.equal(found)


def test_strides_of_an_optimizer_without_state() -> None:
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters())
    match_strides(optimizer)
    assert not optimizer.state
