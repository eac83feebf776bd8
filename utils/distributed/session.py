"""The life of a script in one or several processes: how it joins the others, and how all of them end."""

import ctypes
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist

from utils.distributed.devices import pick_devices
from utils.distributed.launch import LOST, Launch, RankInfo, read_rank_info, rough_rank_info, rough_url
from utils.distributed.rendezvous import (
    PEER_GONE,
    PeerFailedError,
    PeerWatch,
    Rendezvous,
    hosts_store,
    join_rendezvous,
    of_generation,
    open_store,
)
from utils.distributed.world import World
from utils.startup import SPAWNED, is_first_process
from utils.terminal import AgreedExit, FaultError, exit_code

GRACE_S = 10.0  # for a process to end by itself when another one has failed
PATIENCE_S = 5.0  # of processes that end together, with each other
JOIN_S = 30.0  # for the others to come to where one failed before they met


class LostError(FaultError):
    """Another process is gone."""


class Connection:
    """The way into the world, once: `world = connect(launch)` within `with together() as connect`; and the ways out.

    well                    when all are about to end, the host of the store last
    an error, the first     claims the failure, leaves its process groups, ends with the error, which is then told
    an error, a later one   ends silently, with the exit code of the first
    an error before they    meets the others to end together with them, since they may have other flags or variables;
    have met                where that cannot be, or nobody comes, every process reports its own error
    another one is gone     one sentence in place of gloo's or NCCL's words; --spawn's launcher tells it instead
    stuck                   the watch ends the process when its grace is over
    """

    def __init__(self) -> None:
        self.meeting: Rendezvous | None = None
        self.watch: PeerWatch | None = None
        self.hosts = False  # the store, which the others need to the end
        self.device = torch.device("cpu")
        self._left = False
        self._tried_to_meet = False
        self._rank_0_reports = False  # the error of this process, which is rank 0's too

    def __call__(self, launch: Launch) -> World:
        """The world of this process; meets the others if there are any.

        Raises ValueError, on every process, if one of them refuses: variables that contradict each other, a device that
        is not there, fewer devices than processes.
        """
        die_with_launcher()
        place = read_rank_info(os.environ, launch.local_rank)
        if place.size == 1:
            devices = pick_devices(launch.device, place)
            set_device(devices[0])
            return World(devices[0], devices=devices if len(devices) > 1 else ())
        device, backend, refusal = torch.device("cpu"), "", ""
        try:
            device = pick_devices(launch.device, place)[0]
            backend = pick_backend(launch.dist_backend, device)
        except ValueError as error:
            refusal = str(error)
        meeting = self.meet(place, launch.dist_url, launch.dist_timeout)
        for text in filter(None, meeting.all_gather_object(refusal)):
            raise ValueError(text)
        self.device = device
        kinds = sorted(set(meeting.all_gather_object(device.type)))
        if len(kinds) > 1:
            raise ValueError(f"some processes would run on {kinds[0]}, others on {kinds[1]}: name the --device")
        return init_world(meeting, place, device, backend, timedelta(seconds=launch.dist_timeout))

    def meet(self, place: RankInfo, url: str, timeout_s: float) -> Rendezvous:
        """Meet the others, and watch for their failures from now on."""

        def open_own(*, again: bool = False) -> dist.Store:
            return dist.PrefixStore(place.run, open_store(place, url, timeout_s, again=again))

        self._tried_to_meet = True
        try:
            store = open_own()
        except ValueError:  # a flag is the same for all processes, a variable may be this one's own
            self._rank_0_reports = place.rank > 0 and not url.startswith("env:")
            raise
        meeting = join_rendezvous(store, place, timeout_s)
        own = of_generation(open_own(again=True), meeting.generation)
        self.watch = PeerWatch(replace(meeting, store=own), GRACE_S, end=os._exit, patience_s=timeout_s)
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
        meeting = self.meeting or self._meet_to_end(error)
        if meeting is None:
            return self._end_alone(error)
        first, code = self._claim(meeting, error)
        exit_after_grace(code)
        self.leave(PATIENCE_S)  # then nobody waits in a collective for this process
        meeting.leave_together(PATIENCE_S if code == 2 or self.hosts else 0)
        end = explain(error)
        if isinstance(end, LostError) and SPAWNED in os.environ:
            return SystemExit(LOST)  # and the launcher reports it
        return end if first else SystemExit(code)

    def _claim(self, meeting: Rendezvous, error: BaseException) -> tuple[bool, int]:
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

    def _meet_to_end(self, error: BaseException) -> Rendezvous | None:
        """A meeting of processes that fail before they have met, for example over a flag; None if there is none."""
        if self._tried_to_meet or isinstance(error, KeyboardInterrupt):
            return None
        with suppress(ValueError, FaultError, dist.DistError):
            place = rough_rank_info(os.environ)
            return self.meet(place, rough_url(sys.argv), JOIN_S) if place.size > 1 else None
        return None

    def _end_alone(self, error: BaseException) -> BaseException:
        """What a process ends with that cannot reach the others, if there are any: its error, unless rank 0 reports it.

        Ctrl-C interrupts all processes of a launcher.
        """
        interrupted = isinstance(error, KeyboardInterrupt) and not is_first_process(os.environ)
        if not (interrupted or (isinstance(error, ValueError) and self._rank_0_reports)):
            return error
        time.sleep(2)  # a launcher that sees this process end would end rank 0 before it has reported the error
        return SystemExit(exit_code(error))

    def part(self) -> None:
        """End well: the process that hosts the store ends last."""
        if self.meeting:
            self.meeting.leave_together(PATIENCE_S if self.hosts else 0)

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
    set_device(device)
    dist.destroy_process_group()


def launched_as_several(environment: Mapping[str, str]) -> bool:
    """Whether there are other processes, as far as the launcher's variables tell, contradictory as they may be."""
    try:
        return rough_rank_info(environment).size > 1
    except ValueError:
        return True


def exit_after_grace(code: int) -> None:
    """End this process in a while, even if what it has left to do hangs."""
    timer = threading.Timer(2 * GRACE_S, os._exit, (code,))
    timer.daemon = True
    timer.start()


@contextmanager
def distributed_session() -> Iterator[Connection]:
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


def set_device(device: torch.device) -> None:
    """Make a GPU this thread's own, lest torch open another one, the first, for what names none."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def init_world(meeting: Rendezvous, place: RankInfo, device: torch.device, backend: str, timeout: timedelta) -> World:
    """The world of a process, its process groups made."""
    set_device(device)
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


def explain(error: BaseException) -> BaseException:
    """The error; a sentence in place of gloo's or NCCL's words for a process that went away without telling why."""
    text = str(error)
    if isinstance(error, (dist.DistNetworkError, dist.DistStoreError)):
        return LostError(PEER_GONE)
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
        return LostError(PEER_GONE)
    return error


def die_with_launcher() -> None:
    """Have the system end this process with its launcher, which may be killed before it can pass the word on."""
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
