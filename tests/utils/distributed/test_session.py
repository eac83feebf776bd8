"""A session with one process, and how it ends. For several processes see test_processes.py."""

import dataclasses
import signal

import pytest
import torch
import torch.distributed as dist

from utils.distributed.launch import Launch
from utils.distributed.peer_watch import PEER_DIED
from utils.distributed.rendezvous import PeerFailedError, Rendezvous
from utils.distributed.session import (
    GRACE_S,
    DistributedSession,
    distributed_session,
    explain,
    pick_backend,
)
from utils.distributed.world import World
from utils.terminal import FaultError, exit_code

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)


def test_single_process_world_operations():
    with distributed_session() as connect:
        world = connect(Launch(device="cpu"))
        assert (world.rank, world.local_rank, world.size, world.is_main) == (0, 0, 1, True)
        assert world.device == CPU
        rows = torch.arange(6).view(3, 2)
        assert world.all_reduce_sum(rows).equal(rows)
        assert world.all_gather_rows(rows).equal(rows)
        assert world.all_gather_rows(rows[:0]).shape == (0, 2)
        assert world.broadcast_object({"a": [1.5]}) == {"a": [1.5]}
        assert world.all_gather_object(3) == [3]
        world.wait_for_main()
        with world.local_main_first():
            world.broadcast_([rows])
            world.all_reduce_mean_([rows])
        assert rows.equal(torch.arange(6).view(3, 2))
        with pytest.raises(dataclasses.FrozenInstanceError):
            world.rank = 1
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("size", ["", "1"])
def test_launcher_with_one_process_gives_world_of_size_1(monkeypatch, size):
    monkeypatch.setenv("WORLD_SIZE", size)
    with distributed_session() as connect:
        assert connect(Launch(device="cpu")).size == 1


def test_session_refuses_unknown_device():
    with pytest.raises(ValueError, match="--device gpu: choose"), distributed_session() as connect:
        connect(Launch(device="gpu"))


@pytest.mark.parametrize(
    "error", [KeyError("a"), ValueError("b"), SystemExit(3), KeyboardInterrupt(), FaultError("c")]
)
def test_single_process_session_reraises_errors(error):
    with pytest.raises(type(error)) as caught, distributed_session():
        raise error
    assert caught.value is error


@pytest.mark.slow
def test_failure_of_peer_ends_process_silently(monkeypatch):
    store = torch.distributed.HashStore()
    session = DistributedSession()
    session.rendezvous = Rendezvous(store, 1, rank=1, size=2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("utils.distributed.session.exit_after_grace", lambda code: None)
    monkeypatch.setattr("utils.distributed.session.SHUTDOWN_WAIT_S", 0.1)  # the peer has gone
    handler = signal.getsignal(signal.SIGTERM)
    try:
        end = session.fail(PeerFailedError(2))
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert isinstance(end, SystemExit)
    assert end.code == 2


def test_exit_codes_of_exceptions():
    errors = [
        ValueError(),
        KeyboardInterrupt(),
        FaultError(),
        OSError(),
        RuntimeError(),
        SystemExit(7),
        SystemExit("x"),
        SystemExit(),
    ]
    assert [exit_code(error) for error in errors] == [2, 130, 1, 1, 1, 7, 1, 0]


def test_backend_of_each_device():
    assert pick_backend("auto", CPU) == "gloo"
    assert pick_backend("auto", GPU) == "nccl"
    assert pick_backend("gloo", GPU) == "gloo"
    with pytest.raises(
        ValueError, match="--dist-backend nccl: nccl needs GPUs, but the device is cpu; use gloo"
    ):
        pick_backend("nccl", CPU)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "[/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:2961",
            "died, probably out of memory",
        ),
        (
            "[gloo/transport/tcp/pair.cc] Read error: Connection reset by peer",
            "died, probably out of memory",
        ),
        (
            "Gloo connectFullMesh failed with [..] Connection refused, remote=[127.0.0.1]",
            "set the network interface",
        ),
        ("[../gloo/..] connect [..]: Connection refused", "set the network interface"),
        (
            "NCCL error: .. Connect to 10.0.0.2<40001> failed : Connection refused",
            "set the network interface",
        ),
        (
            "[gloo/transport/tcp/unbound_buffer.cc] Timed out waiting 6000ms for recv operation",
            "did not answer in time",
        ),
        (
            "NCCL communicator was aborted on rank 1. Original reason: socketPollConnect failed",
            "died, probably out of memory",
        ),
        (
            "NCCL error: Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 50",
            "two processes would use the same GPU: start one process for each GPU",
        ),
    ],
)
def test_errors_of_gloo_and_nccl_are_explained(text, sentence):
    assert sentence in str(explain(RuntimeError(text)))
    other = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    assert explain(other) is other
    assert explain(other := ValueError(text)) is other


def test_only_nccl_timeout_and_network_errors_are_explained():
    for text in (
        "NCCL error: invalid usage : rank 0 and rank 1",
        "NCCL WARN peer access is not supported",
    ):
        error = dist.DistBackendError(text)
        assert explain(error) is error
    slow = dist.DistBackendError("NCCL: Watchdog caught collective operation timeout")
    assert "did not answer in time" in str(explain(slow))
    assert str(explain(dist.DistNetworkError("recvValue failed"))) == PEER_DIED


def test_world_can_be_constructed_directly():
    assert World(CPU, rank=1, size=2).is_main is False
    assert GRACE_S < 30  # the whole job must end within 30 s
