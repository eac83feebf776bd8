"""evolve.json: what a search has begun with, from which it continues."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from training.settings.config import LISTS, TrainConfig
from utils.distributed.world import World
from utils.files.writers import write_json
from utils.printable import one_line, printable

MAX_BYTES = 2**20


@dataclass(frozen=True)
class Base:
    """What the first training of a search has chosen for the data, and all others use, too."""

    optimizer: str
    batch_size: int

    def __post_init__(self) -> None:
        if type(self.optimizer) is not str or type(self.batch_size) is not int:
            raise TypeError("base is not an optimizer and a batch size")


@dataclass(frozen=True)
class State:
    """The flags of a search. base: None until the first training is done."""

    config: TrainConfig
    base: Base | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for `state_of`."""
        values: dict[str, Any] = {
            "flags": self.config.as_dict(),
            "given": sorted(self.config.given),
        }
        if self.base:
            values["base"] = asdict(self.base)
        return values


def state_of(values: Any) -> State:
    """Return the state with these plain values.

    Raises ValueError, TypeError or KeyError if they are not those of a state.
    """
    flags = TrainConfig().as_dict() | values["flags"]
    for entry in LISTS:
        flags[entry] = tuple(flags[entry])
    given = frozenset(str(entry) for entry in values["given"])
    config = replace(TrainConfig(**flags), given=given)
    base = values.get("base")
    return State(config, None if base is None else Base(**base))


def write_state(path: Path, state: State) -> None:
    """Write the file atomically."""
    write_json(path, state.as_dict())


def read_state(path: Path, world: World) -> State:
    """Return what rank 0 reads; other machines may not see the file.

    Raises ValueError, on all processes, if it cannot be read or is damaged.
    """
    values = _read(path).as_dict() if world.is_main else None
    return state_of(world.broadcast_object(values))


def _read(path: Path) -> State:
    name = printable(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES)
        return state_of(json.loads(data))
    except OSError as error:
        raise ValueError(f"{name}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{name}: is damaged: {one_line(error)}") from None
