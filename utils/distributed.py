"""The processes that train together. One process is a world of size one, and every caller treats it like any other."""

import ctypes
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from utils.devices import pick_devices
from utils.launch import LOST, SPAWNED, Launch, Place, find_place, rough_place, rough_url
from utils.meeting import GONE, Meeting, PeerFailedError, Watch, hosts_store, meet, of_generation, open_store
from utils.terminal import AgreedExit, FaultError, exit_code, is_first_process

GRACE_S = 10.0  # for a process to end by itself when another one has failed
PATIENCE_S = 5.0  # of processes that end together, with each other
JOIN_S = 30.0  # for the others to come to where one failed before they met


class LostError(FaultError):
    """Another process is gone."""


@dataclass(frozen=True)
class World:
    """This process among those of the run. Decisions are made from numbers that every rank holds; rank 0 writes."""

    device: torch.device
    rank: int = 0
    local_rank: int = 0
    size: int = 1
    local_size: int = 1
    devices: tuple[torch.device, ...] = ()  # two or more: DataParallel in this one process
    meeting: Meeting | None = None
    host_group: Any = None  # the process group for what lies in the host's memory

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    # ---- of the device: collectives, in which all processes take part alike

    def sum(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        if self.size == 1:
            return value
        total = value.detach().clone()
        dist.all_reduce(total)
        return total

    def average_(self, values: Iterable[Tensor]) -> None:
        """Replace floating-point tensors by their means over all processes; to do it again changes no bit.

        Means of differences to rank 0's: the sum of seven equal numbers, divided by seven, may be another one.
        """
        for flat, parts in self._by_type(values):
            first = flat.clone()
            dist.broadcast(first, 0)
            apart = flat - first
            dist.all_reduce(apart)
            _scatter(first + apart / self.size, parts)

    def spread_(self, values: Iterable[Tensor]) -> None:
        """Replace tensors by those of rank 0."""
        for flat, parts in self._by_type(values):
            dist.broadcast(flat, 0)
            _scatter(flat, parts)

    def _by_type(self, values: Iterable[Tensor]) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """Tensors of each type as one, since what a collective costs is its start; nothing for a lone process."""
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for value in values if self.size > 1 else ():
            kinds.setdefault(value.dtype, []).append(value.detach())
        for parts in kinds.values():
            yield torch.cat([part.flatten() for part in parts]), parts

    # ---- of the host

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes, [N_0 + N_1 + ..., ...], in the order of their ranks. rows: on the CPU."""
        if self.size == 1:
            return rows
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(counts, torch.tensor([len(rows)]), group=self.host_group)
        most = int(max(counts))
        padded = torch.cat([rows, rows.new_zeros(most - len(rows), *rows.shape[1:])])
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded, group=self.host_group)
        return torch.cat([part[: int(count)] for part, count in zip(parts, counts, strict=True)])

    def agree(self, value: Any) -> Any:
        """Rank 0's value for all, of what JSON can hold. A collective, for where all come at about the same time."""
        if self.size == 1:
            return value
        text = json.dumps(value).encode() if self.is_main else b""
        return json.loads(self.gather(torch.tensor(list(text), dtype=torch.uint8)).numpy().tobytes())

    def share(self, value: Any) -> Any:
        """Rank 0's value for all, of what JSON can hold. Not a collective: the others wait as long as rank 0 takes."""
        return self.meeting.share(value) if self.meeting else value

    def exchange(self, value: Any) -> list[Any]:
        """The values of all processes, by rank, of what JSON can hold."""
        return self.meeting.exchange(value) if self.meeting else [value]

    def wait_for_main(self) -> None:
        """Wait until rank 0 has come here too. It may draw and write meanwhile: nobody sits in a collective."""
        self.share(None)

    def require_alike(self, what: str, value: Any) -> None:
        """Raises ValueError, in all processes, if they do not hold the same value, of what JSON can hold.

        what: the subject of the sentence. Of records only the entries that differ are shown.
        """
        values = self.exchange(value)
        for rank, other in enumerate(values):
            if other != values[0]:
                one, another = _differing(values[0], other)
                raise ValueError(f"{what} differs between the processes: {one} on rank 0, {another} on rank {rank}")

    @contextmanager
    def one_per_machine_first(self) -> Iterator[None]:
        """A block that the first process of each machine goes through before the others, who find its work done.

        Raises PeerFailedError in those who wait, if another process fails.
        """
        if self.local_rank > 0:
            self.exchange("came")
        yield
        if self.local_rank == 0:
            self.exchange("done")


def _scatter(flat: Tensor, parts: list[Tensor]) -> None:
    """Copy the pieces of `flat` into the tensors that it was joined from."""
    for part, piece in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
        part.copy_(piece.view_as(part))


def _differing(one: Any, other: Any) -> tuple[str, str]:
    """Of two records the entries that differ, of anything else all."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return str(one), str(other)
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    return ", ".join(f"{key} {one.get(key)}" for key in keys), ", ".join(f"{key} {other.get(key)}" for key in keys)


class Connection:
    """The way into the world, once: `world = connect(launch)` within `with together() as connect`; and the ways out.

    well                    when all are about to end, the host of the store last
    an error, the first     claims the failure, leaves its process groups, ends with the error, which is then told
    an error, a later one   ends silently, with the exit code of the first
    an error before they    meets the others only to end like them, for they may be of another mind (flags, variables);
    have met                where that cannot be, rank 0 speaks for all, and where nobody comes, everyone for itself
    another one is gone     one sentence in place of gloo's or NCCL's words; --spawn's launcher tells it instead
    stuck                   the watch ends the process when its grace is over
    """

    def __init__(self) -> None:
        self.meeting: Meeting | None = None
        self.watch: Watch | None = None
        self.hosts = False  # the store, which the others need to the end
        self.device = torch.device("cpu")
        self._left = False
        self._missed = False  # the others, who may not know of what this process failed over

    def __call__(self, launch: Launch) -> World:
        """The world of this process; meets the others if there are any.

        Raises ValueError, on every process, if one of them refuses: variables that contradict each other, a device that
        is not there, fewer devices than processes.
        """
        die_with_launcher()
        place = find_place(os.environ, launch.local_rank)
        if place.size == 1:
            devices = pick_devices(launch.device, place)
            use(devices[0])
            return World(devices[0], devices=devices if len(devices) > 1 else ())
        device, backend, refusal = torch.device("cpu"), "", ""
        try:
            device = pick_devices(launch.device, place)[0]
            backend = pick_backend(launch.dist_backend, device)
        except ValueError as error:
            refusal = str(error)
        meeting = self.meet(place, launch.dist_url, launch.dist_timeout)
        for text in filter(None, meeting.exchange(refusal)):
            raise ValueError(text)
        self.device = device
        kinds = sorted(set(meeting.exchange(device.type)))
        if len(kinds) > 1:
            raise ValueError(f"some processes would run on {kinds[0]}, others on {kinds[1]}: name the --device")
        return enter(meeting, place, device, backend, timedelta(seconds=launch.dist_timeout))

    def meet(self, place: Place, url: str, timeout_s: float) -> Meeting:
        """Meet the others, and watch for their failures from now on."""

        def open_own(*, again: bool = False) -> dist.Store:
            return dist.PrefixStore(place.run, open_store(place, url, timeout_s, again=again))

        meeting = meet(open_own(), place, timeout_s)
        own = of_generation(open_own(again=True), meeting.generation)
        self.watch = Watch(replace(meeting, store=own), GRACE_S, end=os._exit, patience_s=timeout_s)
        self.meeting = meeting
        self.hosts = hosts_store(place, url)
        return meeting

    def fail(self, error: BaseException) -> BaseException:
        """What this process is to end with: the error, or a silent exit if another one has told of a failure first.

        A refusal is left to rank 0 to tell, and then all processes end at once, with the same exit code.
        """
        if isinstance(error, AgreedExit) or (isinstance(error, SystemExit) and not error.code):
            self.part()
            return error
        if not launched_as_several(os.environ):
            return error
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a launcher that sees one process end ends the others
        meeting = self.meeting or self._meet_to_end()
        if meeting is None:
            return self._alone(error)
        first, code = self._claim(meeting, error)
        end_at_last(code)
        self.leave(PATIENCE_S)  # then nobody waits in a collective for this process
        meeting.end_together(PATIENCE_S if code == 2 or self.hosts else 0)
        end = told(error)
        if isinstance(end, LostError) and SPAWNED in os.environ:
            return SystemExit(LOST)  # and the launcher tells
        return end if first else SystemExit(code)

    def _claim(self, meeting: Meeting, error: BaseException) -> tuple[bool, int]:
        """Whether this process is to tell of its failure, and the exit code of all."""
        if isinstance(error, PeerFailedError):
            return False, error.code
        try:
            if isinstance(error, ValueError) and meeting.rank > 0:
                meeting.failure_within(PATIENCE_S)
            return meeting.claim_failure(exit_code(error))
        except dist.DistError:  # the store went with rank 0, or with the launcher
            noticed = self.watch.code if self.watch else 0
            return not noticed, noticed or exit_code(error)

    def _meet_to_end(self) -> Meeting | None:
        """A meeting of processes that fail before they have met, for example over a flag; None if there is none."""
        try:
            place = rough_place(os.environ)
            return self.meet(place, rough_url(sys.argv), JOIN_S) if place.size > 1 else None
        except ValueError:  # the others come upon the same
            return None
        except (FaultError, dist.DistError):
            self._missed = True
            return None

    def _alone(self, error: BaseException) -> BaseException:
        """The end of a process that cannot reach the others, if there are any."""
        time.sleep(2)  # the others are not to be cut short by the launcher
        first = is_first_process(os.environ) or not within_world(os.environ)
        silent = isinstance(error, ValueError) and not first and not self._missed
        return SystemExit(exit_code(error)) if silent else error

    def part(self) -> None:
        """End well: the process that hosts the store ends last."""
        if self.meeting:
            self.meeting.end_together(PATIENCE_S if self.hosts else 0)

    def leave(self, seconds: float = GRACE_S) -> None:
        """Leave the world; the others may be gone already, so it is given up after some seconds."""
        if self.watch:
            self.watch.stop()
        if dist.is_initialized() and not self._left:
            self._left = True  # or is stuck on the way, and is so the next time
            leaving = threading.Thread(target=_destroy_groups, args=(self.device,), daemon=True)
            leaving.start()
            leaving.join(seconds)


def _destroy_groups(device: torch.device) -> None:
    use(device)
    dist.destroy_process_group()


def launched_as_several(environment: Mapping[str, str]) -> bool:
    """Whether there are other processes, as far as the launcher's variables tell, contradictory as they may be."""
    try:
        return rough_place(environment).size > 1
    except ValueError:
        return True


def within_world(environment: Mapping[str, str]) -> bool:
    """Whether the rank is one of the world's, whose first may then speak for it."""
    rank, size = (environment.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    return not (rank.isdecimal() and size.isdecimal() and int(rank) >= int(size))


def end_at_last(code: int) -> None:
    """End this process in a while, even if what it has left to do hangs."""
    timer = threading.Timer(2 * GRACE_S, os._exit, (code,))
    timer.daemon = True
    timer.start()


@contextmanager
def together() -> Iterator[Connection]:
    """The life of a script in one or several processes: `with together() as connect: main(cfg, connect(launch))`.

    Whatever ends one process ends all of them, the first error is told once, and process groups are left on every path.
    """
    connection = Connection()
    try:
        yield connection
        connection.part()
    except BaseException as error:
        end = connection.fail(error)
        if end is error:
            raise
        raise end from None
    finally:
        connection.leave()


def use(device: torch.device) -> None:
    """Make a GPU this thread's own, lest torch open another one, the first, for what names none."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def enter(meeting: Meeting, place: Place, device: torch.device, backend: str, timeout: timedelta) -> World:
    """The world of a process, its process groups made."""
    use(device)
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("group", meeting.store),
        rank=place.rank,
        world_size=place.size,
        timeout=timeout,
        device_id=device if backend == "nccl" else None,
    )
    host_group = None if backend == "gloo" else dist.new_group(backend="gloo", timeout=timeout)
    own = (place.rank, place.local_rank, place.size, place.local_size)
    return World(device, *own, meeting=meeting, host_group=host_group)


def pick_backend(wanted: str, device: torch.device) -> str:
    """nccl for GPUs, else gloo, by the device itself: torch says that NCCL is there on machines without a GPU too.

    Raises ValueError for nccl without a GPU.
    """
    if wanted == "nccl" and device.type != "cuda":
        raise ValueError(f"--dist-backend nccl: it needs GPUs, but the device is {device.type}; use gloo")
    return ("nccl" if device.type == "cuda" else "gloo") if wanted == "auto" else wanted


def told(error: BaseException) -> BaseException:
    """The error; a sentence in place of gloo's or NCCL's words for a process that went away without telling why."""
    text = str(error)
    if isinstance(error, (dist.DistNetworkError, dist.DistStoreError)):
        return LostError(GONE)
    if not isinstance(error, RuntimeError) or not re.search(r"gloo|nccl|Gloo|NCCL", text):
        return error
    if re.search(r"connectFullMesh|Connection refused", text):
        return FaultError(
            "the processes do not reach each other at their own addresses: name the network interface, "
            "GLOO_SOCKET_IFNAME=eth0 (and NCCL_SOCKET_IFNAME), see docs/multi_machine.md"
        )
    if re.search(r"[Tt]imed? ?out", text):
        return FaultError(
            "another process of the run did not answer in time (--dist-timeout): it hangs, or the network"
        )
    if re.search(r"[Cc]onnection|by peer|remote process|[Bb]roken pipe|[Ss]ocket", text):
        return LostError(GONE)
    return error


def die_with_launcher() -> None:
    """Have the system end this process with its launcher, which may be killed before it can pass the word on."""
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
