"""Choice of devices and precision, and the error messages, on simulated machines."""

import sys
import types
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from utils.distributed.devices import (
    describe,
    loader_workers,
    pick_devices,
    processes_for,
    tuned_convolutions,
)
from utils.distributed.host_copies import Uploads, page_lock
from utils.distributed.launch import RankInfo
from utils.distributed.memory import free_memory, free_ram, memory_gib, release_memory, reserved_by
from utils.distributed.precision import choose_precision, weights_dtype, widest_float

CPU, GPU, METAL = torch.device("cpu"), torch.device("cuda", 0), torch.device("mps")


@pytest.fixture
def machine(monkeypatch):
    """machine(gpus, ...): pretend to have so many GPUs of this generation and name."""

    def simulate(
        gpus: int, generation: int = 8, name: str = "Some GPU", metal: bool = False
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (generation, 0))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: metal)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return simulate


@pytest.mark.parametrize(
    ("wanted", "device"),
    [
        ("", GPU),
        ("0", GPU),
        ("cuda:1", torch.device("cuda", 1)),
        (" 1 ", torch.device("cuda", 1)),
        ("CPU", CPU),
        ("mps", METAL),
    ],
)
def test_available_devices_are_picked(machine, wanted, device):
    machine(2, metal=True)
    assert pick_devices(wanted, RankInfo()) == (device,)


def test_default_device_without_gpu_is_cpu(machine):
    machine(0)
    assert pick_devices("", RankInfo()) == (CPU,)


@pytest.mark.parametrize(
    ("wanted", "gpus", "sentence"),
    [
        ("0", 0, "--device 0: this machine has no CUDA GPU; use --device cpu"),
        ("2", 2, "--device 2: this machine has GPUs 0 to 1; use --device cpu or another number"),
        (
            "cuda:7",
            1,
            "--device cuda:7: this machine has GPU 0; use --device cpu or another number",
        ),
        (
            "0,2",
            2,
            "--device 0,2: this machine has GPUs 0 to 1; use --device cpu or another number",
        ),
        ("1,1", 2, "--device 1,1: a GPU is named twice"),
        ("cuda", 0, "--device cuda: this machine has no CUDA GPU; use --device cpu"),
        (
            "mps",
            0,
            "--device mps: this machine or this torch has no Metal device; use --device cpu",
        ),
        ("gpu", 1, '--device gpu: choose "cpu", "mps" or GPU numbers, for example 0 or 0,1'),
        ("-1", 1, '--device -1: choose "cpu", "mps" or GPU numbers, for example 0 or 0,1'),
        ("0.0", 1, '--device 0.0: choose "cpu", "mps" or GPU numbers, for example 0 or 0,1'),
        ("²", 1, '--device ²: choose "cpu", "mps" or GPU numbers, for example 0 or 0,1'),
    ],
)
def test_unavailable_devices_are_refused(machine, wanted, gpus, sentence):
    machine(gpus)
    with pytest.raises(ValueError) as caught:
        pick_devices(wanted, RankInfo())
    assert str(caught.value) == sentence


def gpu(number):
    return torch.device("cuda", number)


@pytest.mark.parametrize(
    ("wanted", "gpus", "rank_info", "devices"),
    [
        ("0,1", 2, RankInfo(), (gpu(0), gpu(1))),  # one process, DataParallel
        ("", 4, RankInfo(), (gpu(0),)),
        ("", 4, RankInfo(5, 8, 1, 4), (gpu(1),)),  # the local rank counts, not the rank
        ("3,2", 4, RankInfo(1, 2, 1, 2), (gpu(2),)),
        ("0,1,2", 4, RankInfo(1, 2, 1, 2), (gpu(1),)),
        ("", 1, RankInfo(1, 2, 1, 2, own_gpu=True), (gpu(0),)),  # SLURM hides the others
        ("0", 1, RankInfo(1, 2, 1, 2, own_gpu=True), (gpu(0),)),
        ("cuda", 1, RankInfo(1, 2, 0, 2, own_gpu=True), (gpu(0),)),
        (
            "0,1",
            1,
            RankInfo(1, 2, 1, 2, own_gpu=True),
            (gpu(0),),
        ),  # the machine's numbers: one for each process
        ("4,7,1", 1, RankInfo(5, 6, 2, 3, own_gpu=True), (gpu(0),)),
        ("", 2, RankInfo(1, 2, 1, 2, own_gpu=True), (gpu(1),)),  # does not hide them
        ("1,0", 2, RankInfo(1, 2, 1, 2, own_gpu=True), (gpu(0),)),
        ("", 0, RankInfo(1, 2, 1, 2), (CPU,)),
        ("cpu", 8, RankInfo(1, 2, 1, 2), (CPU,)),
    ],
)
def test_devices_of_several_processes(machine, wanted, gpus, rank_info, devices):
    machine(gpus)
    assert pick_devices(wanted, rank_info) == devices


@pytest.mark.parametrize(
    ("wanted", "gpus", "sentence"),
    [
        ("cuda", 0, "--device cuda: this machine has no CUDA GPU; use --device cpu"),
        ("0", 4, "--device 0: 2 processes on this machine need 2 devices"),
        (
            "0,5",
            4,
            "--device 0,5: this machine has GPUs 0 to 3; use --device cpu or another number",
        ),
        (
            "cuda",
            1,
            "--device cuda: 2 processes need 2 GPUs, this machine has GPU 0; use fewer processes "
            "or --device cpu",
        ),
        (
            "",
            1,
            "--device not given: 2 processes need 2 GPUs, this machine has GPU 0; use fewer "
            "processes or --device cpu",
        ),
        ("mps", 0, "--device mps: Metal has one device, which only one process can use"),
    ],
)
def test_invalid_devices_for_several_processes_are_refused(machine, wanted, gpus, sentence):
    machine(gpus, metal=True)
    with pytest.raises(ValueError) as caught:
        pick_devices(wanted, RankInfo(1, 2, 1, 2))
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("visible", "gpus", "wanted", "sentence"),
    [
        (
            "1",
            1,
            "1",
            "CUDA_VISIBLE_DEVICES=1 leaves GPU 0, counted anew from 0; use --device cpu or another "
            "number",
        ),
        (
            "3,GPU-x",
            2,
            "0,3",
            "CUDA_VISIBLE_DEVICES=3,GPU-x leaves GPUs 0 to 1, counted anew from 0; use --device "
            "cpu or another number",
        ),
        ("MIG-8f3a", 0, "0", "CUDA_VISIBLE_DEVICES=MIG-8f3a leaves no CUDA GPU; use --device cpu"),
        ("", 0, "0", "CUDA_VISIBLE_DEVICES= leaves no CUDA GPU; use --device cpu"),
        ("-1", 0, "cuda", "CUDA_VISIBLE_DEVICES=-1 leaves no CUDA GPU; use --device cpu"),
    ],
)
def test_gpus_hidden_by_a_variable_are_named(machine, monkeypatch, visible, gpus, wanted, sentence):
    machine(gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(ValueError) as caught:
        pick_devices(wanted, RankInfo())
    assert str(caught.value) == f"--device {wanted}: {sentence}"


@pytest.mark.parametrize("name", ["GPU-8f3a1c2e-77", "MIG-6d1e", "MIG-GPU-8f3a/1/0"])
def test_uuid_or_mig_name_of_a_gpu_is_refused_with_the_way_to_use_it(machine, name):
    machine(2)
    with pytest.raises(ValueError) as caught:
        pick_devices(name, RankInfo())
    own = f"set CUDA_VISIBLE_DEVICES={name}, which makes this GPU number 0, and use --device 0"
    assert str(caught.value) == f"--device {name}: a GPU is given by its number here; {own}"


def test_numbers_for_a_process_with_its_own_gpu_must_match_the_processes(machine):
    machine(1)
    bound = RankInfo(1, 2, 1, 2, own_gpu=True)
    for wanted in ("1", "0,1,2"):
        with pytest.raises(
            ValueError,
            match=f"--device {wanted}: this machine has GPU 0; use --device cpu or another",
        ):
            pick_devices(wanted, bound)


def test_number_of_processes_to_spawn(machine):
    machine(3)
    assert [processes_for(wanted, 0) for wanted in ("", "cuda", "0,1", "cuda:2")] == [3, 3, 2, 1]
    assert processes_for("cpu", 4) == processes_for("0,1", 4) == 4
    for wanted, shown in (("cpu", "cpu"), ("mps", "mps")):
        with pytest.raises(
            ValueError, match=f"--spawn: give the number of processes, .* .--device {shown}"
        ):
            processes_for(wanted, 0)
    machine(0)
    with pytest.raises(ValueError, match=r"--spawn: give the number .* \(--device cpu\)"):
        processes_for("", 0)


def test_loader_workers_share_the_cores(monkeypatch):
    monkeypatch.setattr("utils.distributed.devices.machine_cores", lambda: 16)
    monkeypatch.setattr("utils.distributed.devices.usable_cores", lambda: 16)
    assert [loader_workers(99, 99, GPU, processes) for processes in (1, 2, 8, 32)] == [16, 8, 2, 0]
    assert [loader_workers(99, 99, CPU, processes) for processes in (1, 2, 8, 16)] == [8, 4, 1, 0]
    assert loader_workers(3, 99, GPU) == loader_workers(99, 3, GPU) == 3


def test_loader_workers_use_the_cores_that_a_process_is_bound_to(monkeypatch):
    """Of 16 cores: 4 for a job, or 4 for each of its 2 or 4 processes."""
    monkeypatch.setattr("utils.distributed.devices.machine_cores", lambda: 16)
    monkeypatch.setattr("utils.distributed.devices.usable_cores", lambda: 4)
    assert [loader_workers(99, 99, GPU, processes) for processes in (1, 2, 4, 8)] == [4, 4, 4, 2]
    assert [loader_workers(99, 99, CPU, processes) for processes in (1, 2, 4, 8)] == [2, 2, 2, 1]


def test_weights_dtype_of_each_precision():
    assert weights_dtype(torch.float64) == torch.float64
    assert (
        weights_dtype(torch.bfloat16)
        == weights_dtype(torch.float16)
        == weights_dtype(torch.float32)
        == torch.float32
    )


@pytest.mark.parametrize(
    ("generation", "name", "precision"),
    [
        (9, "NVIDIA H100", torch.bfloat16),
        (8, "NVIDIA A100", torch.bfloat16),
        (7, "Tesla T4", torch.float16),
        (7, "NVIDIA GeForce GTX 1660 Ti", torch.float32),
        (6, "Tesla P100", torch.float32),
    ],
)
def test_auto_precision_of_gpus(machine, generation, name, precision):
    machine(1, generation, name)
    assert choose_precision("auto", GPU) == precision
    assert choose_precision("fp32", GPU) == torch.float32
    assert choose_precision("fp16", GPU) == torch.float16
    assert choose_precision("bf16", GPU) == torch.bfloat16


@pytest.mark.parametrize(("flags", "precision"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_precision_of_cpus_and_metal(monkeypatch, flags, precision):
    monkeypatch.setattr("utils.distributed.precision._cpu_has_bf16", lambda: flags)
    assert choose_precision("auto", CPU) == precision
    assert choose_precision("auto", METAL) == torch.float32
    assert choose_precision("bf16", CPU) == torch.bfloat16


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ("fp16", "--amp fp16: not supported on a CPU; choose auto, bf16, fp32 or fp64"),
        ("fp8", "--amp fp8: choose auto, fp64, fp32, bf16 or fp16"),
    ],
)
def test_unsupported_precisions_are_refused(wanted, sentence):
    with pytest.raises(ValueError) as caught:
        choose_precision(wanted, CPU)
    assert str(caught.value) == sentence


def test_upload_copies_host_memory_that_will_be_overwritten():
    uploads, host = Uploads(torch.device("cpu")), torch.arange(4)
    kept, same = uploads.send(host, 0), uploads.send(host)
    uploads.wait(0)
    uploads.wait(5)  # never sent
    uploads.wait()
    host += 10
    assert kept.tolist() == [0, 1, 2, 3]
    assert same.tolist() == [10, 11, 12, 13]
    page_lock(host, torch.device("cpu"), uploads)


@pytest.mark.parametrize("one_shape", [True, False])
def test_convolution_tuning_ends_with_its_context(one_shape):
    before = torch.backends.cudnn.benchmark
    with tuned_convolutions(one_shape):
        assert torch.backends.cudnn.benchmark == one_shape
    assert torch.backends.cudnn.benchmark == before


def test_device_descriptions_and_widest_float(machine, monkeypatch):
    machine(1)
    properties = types.SimpleNamespace(name="Some GPU", total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert describe(GPU) == "CUDA 0 Some GPU, 80 GiB"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert describe(CPU) == "CPU, 1 thread"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert describe(CPU) == "CPU, 8 threads"
    assert describe(METAL) == "Metal"
    assert 0 <= memory_gib(CPU) < 100
    assert widest_float(CPU) == widest_float(GPU) == torch.float64
    assert widest_float(METAL) == torch.float32


@pytest.mark.parametrize(
    ("cores", "variable", "threads"), [(2, None, 2), (64, None, 8), (2, "8", 8)]
)
def test_torch_gets_no_more_threads_than_cores(monkeypatch, cores, variable, threads):
    state = {"threads": 8}
    monkeypatch.setattr(torch, "get_num_threads", lambda: state["threads"])
    monkeypatch.setattr(torch, "set_num_threads", lambda number: state.update(threads=number))
    monkeypatch.setattr("utils.distributed.devices.usable_cores", lambda: cores)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert pick_devices("cpu", RankInfo()) == (CPU,)
    assert state["threads"] == threads


# ---------------------------------------------------------------------- memory


def kernel_files(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MACHINE = {
    "proc/meminfo": "MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:    1000 kB\nBuffers: 1 kB\n"
}
CGROUP_V2 = {
    "proc/self/cgroup": "0::/job/step\n",
    "sys/fs/cgroup/job/memory.max": "900000\n",
    "sys/fs/cgroup/job/memory.current": "400000\n",
    "sys/fs/cgroup/job/memory.stat": "anon 1\ninactive_file 70000\nactive_file 5\n",
    "sys/fs/cgroup/job/step/memory.max": "max\n",
    "sys/fs/cgroup/job/step/memory.current": "300000\n",
}
CGROUP_V1 = {
    "proc/self/cgroup": "3:cpu,cpuacct:/x\n4:memory:/job\n0::/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "123456789\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "800000\n",
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "500000\n",
    "sys/fs/cgroup/memory/job/memory.stat": "inactive_file 7\ntotal_inactive_file 1000\n",
}
CONTAINER = {  # it sees its own group as the base; the path is the one on the host
    "proc/self/cgroup": "4:memory:/docker/0123\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "600000",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "100000",
}
OVER_LIMIT = CGROUP_V2 | {"sys/fs/cgroup/job/memory.current": "990000\n"}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        (MACHINE, 1_024_000),
        (MACHINE | CGROUP_V2, 570_000),  # 900000 - 400000 + 70000, in the parent group
        (MACHINE | CGROUP_V1, 301_000),  # 800000 - 500000 + 1000
        (MACHINE | CONTAINER, 500_000),
        (MACHINE | OVER_LIMIT, 0),  # 900000 - 990000 + 70000 is below 0
        (CGROUP_V1, 301_000),
        ({}, sys.maxsize),
        ({"proc/meminfo": "MemTotal:  9000 kB\n"}, sys.maxsize),
    ],
)
def test_free_ram_with_cgroup_limits(tmp_path, files, free):
    assert free_ram(kernel_files(tmp_path, files)) == free


def test_free_memory_of_this_machine():
    assert 2**20 < free_memory(CPU) <= sys.maxsize
    release_memory(CPU)


def test_gpu_memory_by_hand(monkeypatch):
    # 100 free on the device; 50 reserved, of which 30 are allocated: 20 more can be allocated.
    state = {"reserved": 50, "peak": 70, "emptied": 0}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (100, 160))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 30)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: state["reserved"])
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: state["peak"])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(
        torch.cuda, "empty_cache", lambda: state.update(emptied=state["emptied"] + 1)
    )
    monkeypatch.setattr(
        torch.cuda, "reset_peak_memory_stats", lambda _: state.update(peak=state["reserved"])
    )
    assert free_memory(GPU) == 120
    # The step allocates 40, of which 20 fit into the reserved memory: 70 reserved at the peak, 40
    # above 30.
    assert reserved_by(lambda: state.update(peak=70), GPU) == 40
    assert state["emptied"] == 1
    release_memory(GPU)
    assert state["emptied"] == 2
