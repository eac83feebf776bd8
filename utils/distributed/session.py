"""Run a script in one or several processes: connect them first, and end all of them together."""

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
from utils.distributed.launch import (
    LOST,
    Launch,
    RankInfo,
    find_dist_url,
    read_rank_info,
    read_rank_info_leniently,
)
from utils.distributed.peer_watch import PEER_DIED, PeerWatch
from utils.distributed.rendezvous import (
    PeerFailedError,
    Rendezvous,
    hosts_store,
    join_rendezvous,
    of_generation,
    open_store,
)
from utils.distributed.world import World
from utils.startup import SPAWNED, is_first_process
from utils.terminal import AgreedExit, FaultError, exit_code

GRACE_S = 10.0  # time for a process to end by itself after another one has failed
SHUTDOWN_WAIT_S = 5.0  # how long processes that end together wait for each other
LATE_JOIN_TIMEOUT_S = 30.0  # timeout of the rendezvous of a process that failed before it


class LostError(FaultError):
    """Another process died."""


class DistributedSession:
    """Connects this process to the others of the run, and ends it together with them.

    `world = connect(launch)` in `with distributed_session() as connect`.

    How a process ends:

    success: when all are about to end; the host of the store ends last.

    error, the first one: claims the failure, leaves its process groups, and ends with the error,
        which is then shown.

    error, a later one: ends silently, with the exit code of the first.

    error before the rendezvous: joins the others to end together with them, since their flags or
        variables may differ. If that is impossible, or no other process connects, every process
        reports its own error.

    another process died: one sentence in place of the error of gloo or NCCL; with --spawn the
        launcher reports it.

    stuck: PeerWatch ends the process after its grace period.
    """

    def __init__(self) -> None:
        self.rendezvous: Rendezvous | None = None
        self.watch: PeerWatch | None = None
        # whether this process hosts the store, which the others need until they end
        self.hosts = False
        self.device = torch.device("cpu")
        self._left = False
        self._tried_to_join = False
        # whether rank 0 has, and reports, the same error as this process
        self._rank_0_reports = False

    def __call__(self, launch: Launch) -> World:
        """Connect to the other processes, if there are any, and return the world of this process.

        Raises ValueError on every process if one of them finds invalid input: variables that
        contradict each other, a device that does not exist, fewer devices than processes.
        """
        die_with_launcher()
        rank_info = read_rank_info(os.environ, launch.local_rank)
        if rank_info.size == 1:
            devices = pick_devices(launch.device, rank_info)
            set_device(devices[0])
            if len(devices) == 1:
                return World(devices[0])
            return World(devices[0], devices=devices)

        # Choose a device. An error waits until the others can be told.
        device = torch.device("cpu")
        backend = ""
        error_text = ""
        try:
            device = pick_devices(launch.device, rank_info)[0]
            backend = pick_backend(launch.dist_backend, device)
        except ValueError as error:
            error_text = str(error)

        # Meet the others, and let one invalid input end all.
        rendezvous = self.join(rank_info, launch.dist_url, launch.dist_timeout)
        for text in rendezvous.all_gather_object(error_text):
            if text:
                raise ValueError(text)

        self.device = device
        kinds = sorted(set(rendezvous.all_gather_object(device.type)))
        if len(kinds) > 1:
            raise ValueError(
                f"some processes would run on {kinds[0]}, others on {kinds[1]}: set --device for "
                "all"
            )

        timeout = timedelta(seconds=launch.dist_timeout)
        return init_world(rendezvous, rank_info, device, backend, timeout)

    def join(self, rank_info: RankInfo, url: str, timeout_s: float) -> Rendezvous:
        """Wait for the others at the rendezvous, and watch for their failures from then on."""

        def open_own(*, again: bool = False) -> dist.Store:
            store = open_store(rank_info, url, timeout_s, again=again)
            return dist.PrefixStore(rank_info.run, store)

        self._tried_to_join = True
        try:
            store = open_own()
        except ValueError:  # flags are the same for all processes, variables may differ
            self._rank_0_reports = rank_info.rank > 0 and not url.startswith("env:")
            raise
        rendezvous = join_rendezvous(store, rank_info, timeout_s)

        # The watch has a connection of its own.
        watched_store = of_generation(open_own(again=True), rendezvous.generation)
        watched = replace(rendezvous, store=watched_store)
        self.watch = PeerWatch(watched, GRACE_S, end=os._exit, timeout_s=timeout_s)

        self.rendezvous = rendezvous
        self.hosts = hosts_store(rank_info, url)
        return rendezvous

    def fail(self, error: BaseException) -> BaseException:
        """Return the exception that this process ends with.

        It is the error, or a silent exit if another process failed first. Invalid input
        (ValueError) is reported by rank 0; then all processes end at once, with the same exit code.
        """
        exits_well = isinstance(error, SystemExit) and not error.code
        if exits_well or isinstance(error, AgreedExit):
            self.part()
            return error
        if not launched_as_several(os.environ):
            return error

        if threading.current_thread() is threading.main_thread():
            # when one process ends, a launcher ends the others
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

        rendezvous = self.rendezvous or self._join_to_end(error)
        if rendezvous is None:
            return self._end_alone(error)
        is_first, code = self._claim(rendezvous, error)
        exit_after_grace(code)

        self.leave(SHUTDOWN_WAIT_S)  # so that no process waits in a collective for this one
        waits_for_others = code == 2 or self.hosts
        rendezvous.wait_for_all_to_end(SHUTDOWN_WAIT_S if waits_for_others else 0)

        end = explain(error)
        if isinstance(end, LostError) and SPAWNED in os.environ:
            return SystemExit(LOST)  # the launcher reports it
        if is_first:
            return end
        return SystemExit(code)

    def _claim(self, rendezvous: Rendezvous, error: BaseException) -> tuple[bool, int]:
        """Return whether this process must report its failure, and the exit code for all."""
        if isinstance(error, PeerFailedError):
            return False, error.code
        try:
            if isinstance(error, ValueError) and rendezvous.rank > 0:
                rendezvous.wait_for_failure(SHUTDOWN_WAIT_S)
            return rendezvous.claim_failure(exit_code(error))
        except dist.DistError:  # the store ended with rank 0 or with the launcher
            reported_code = self.watch.code if self.watch else 0
            if reported_code:
                return False, reported_code
            return True, exit_code(error)

    def _join_to_end(self, error: BaseException) -> Rendezvous | None:
        """Return the rendezvous of processes that fail before it, for example on a flag.

        It is None if they cannot meet.
        """
        if self._tried_to_join or isinstance(error, KeyboardInterrupt):
            return None
        with suppress(ValueError, FaultError, dist.DistError):
            rank_info = read_rank_info_leniently(os.environ)
            if rank_info.size > 1:
                return self.join(rank_info, find_dist_url(sys.argv), LATE_JOIN_TIMEOUT_S)
        return None

    def _end_alone(self, error: BaseException) -> BaseException:
        """Return the exception of a process that cannot reach the others.

        It is the error, or a silent exit if rank 0 reports it. Ctrl-C interrupts all processes of a
        launcher.
        """
        if isinstance(error, KeyboardInterrupt):
            reported_by_rank_0 = not is_first_process(os.environ)
        else:
            reported_by_rank_0 = isinstance(error, ValueError) and self._rank_0_reports
        if not reported_by_rank_0:
            return error

        # If this process ended first, a launcher would end rank 0 before it has reported the error.
        time.sleep(2)
        return SystemExit(exit_code(error))

    def part(self) -> None:
        """Report that this process is about to end; the host of the store waits and ends last."""
        if self.rendezvous:
            self.rendezvous.wait_for_all_to_end(SHUTDOWN_WAIT_S if self.hosts else 0)

    def leave(self, seconds: float = GRACE_S) -> None:
        """Destroy the process groups; give up after some seconds.

        Other processes, which take part in it, may have ended already.
        """
        if self.watch:
            self.watch.stop()
        if dist.is_initialized() and not self._left:
            self._left = True  # set first: if it gets stuck, a second call would get stuck too
            thread = threading.Thread(target=_destroy_groups, args=(self.device,), daemon=True)
            thread.start()
            thread.join(seconds)


def _destroy_groups(device: torch.device) -> None:
    set_device(device)
    dist.destroy_process_group()


def launched_as_several(environment: Mapping[str, str]) -> bool:
    """Return whether a launcher's variables are of several processes; True if they are invalid."""
    try:
        return read_rank_info_leniently(environment).size > 1
    except ValueError:
        return True


def exit_after_grace(code: int) -> None:
    """Start a timer that ends this process after twice GRACE_S, even if its clean-up hangs."""
    timer = threading.Timer(2 * GRACE_S, os._exit, (code,))
    timer.daemon = True
    timer.start()


@contextmanager
def distributed_session() -> Iterator[DistributedSession]:
    """Run a script in one or several processes.

    `with distributed_session() as connect: main(cfg, connect(launch))`. Whatever ends one process
    ends all of them. The first error is reported once. Process groups are always destroyed.
    """
    session = DistributedSession()
    try:
        yield session
        session.part()
    except BaseException as error:
        end = session.fail(error)
        if end is error:
            raise
        raise end from None
    finally:
        session.leave()


def set_device(device: torch.device) -> None:
    """Make a GPU the current device of this thread.

    Otherwise torch would use the first GPU where none is named.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)


def init_world(
    rendezvous: Rendezvous,
    rank_info: RankInfo,
    device: torch.device,
    backend: str,
    timeout: timedelta,
) -> World:
    """Create the process groups and return the world of this process.

    Args:
        rendezvous: whose store the processes meet at.
        rank_info: of this process.
        device: that it computes on.
        backend: nccl or gloo.
        timeout: of a collective.
    """
    set_device(device)
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("group", rendezvous.store),
        rank=rank_info.rank,
        world_size=rank_info.size,
        timeout=timeout,
        device_id=device if backend == "nccl" else None,
    )

    # nccl has no collectives for tensors in host memory.
    host_group = None
    if backend != "gloo":
        host_group = dist.new_group(backend="gloo", timeout=timeout)

    return World(
        device,
        rank=rank_info.rank,
        local_rank=rank_info.local_rank,
        size=rank_info.size,
        local_size=rank_info.local_size,
        rendezvous=rendezvous,
        host_group=host_group,
    )


def pick_backend(wanted: str, device: torch.device) -> str:
    """Return the backend: for auto nccl on a GPU, else gloo.

    The device decides, because torch reports NCCL as available without a GPU too. Raises ValueError
    for nccl without a GPU.
    """
    if wanted == "nccl" and device.type != "cuda":
        raise ValueError(
            f"--dist-backend nccl: nccl needs GPUs, but the device is {device.type}; use gloo"
        )
    if wanted != "auto":
        return wanted
    return "nccl" if device.type == "cuda" else "gloo"


def explain(error: BaseException) -> BaseException:
    """Return the error, or one sentence (FaultError) in place of an error of gloo or NCCL."""
    text = str(error)
    if isinstance(error, (dist.DistNetworkError, dist.DistStoreError)):
        return LostError(PEER_DIED)
    if not isinstance(error, RuntimeError) or not re.search(r"gloo|nccl|Gloo|NCCL", text):
        return error

    if "Duplicate GPU" in text:
        return FaultError(
            "two processes would use the same GPU: start one process for each GPU, or bind a GPU "
            "to each process (srun --gpus-per-task=1)"
        )
    if re.search(r"connectFullMesh|Connection refused", text):
        return FaultError(
            "the processes cannot reach each other at their own addresses: set the network "
            "interface with GLOO_SOCKET_IFNAME=eth0 (and NCCL_SOCKET_IFNAME), see "
            "docs/multi_machine.md"
        )
    if re.search(r"[Tt]imed? ?out", text):
        return FaultError(
            "another process of the run did not answer in time (--dist-timeout): the process or "
            "the network hangs"
        )
    if re.search(r"[Cc]onnection|by peer|remote process|[Bb]roken pipe|[Ss]ocket", text):
        return LostError(PEER_DIED)
    return error


def die_with_launcher() -> None:
    """Let the system end this process when its launcher dies.

    A killed launcher cannot forward a signal.
    """
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
