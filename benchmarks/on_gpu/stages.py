"""The stages of benchmarks/gpu.py, in the order of their importance."""

from benchmarks.on_gpu import (
    against_cpu,
    exporting,
    host_waits,
    machine,
    modes,
    processes,
    resuming,
    speed,
    trainings,
    uploads,
)
from benchmarks.on_gpu.stage import Stage

ONNX = ("onnx", "onnxscript", "onnxruntime")

STAGES = (
    Stage("machine", "hardware, versions, limits", machine.describe_machine, 30, alone=True),
    # Correctness
    Stage(
        "gpu-tests",
        "tests/test_gpu.py",
        against_cpu.run_gpu_tests,
        120,
        needs_cuda=True,
        packages=("pytest",),
    ),
    Stage("data", "draw the images", trainings.draw_data, 60),
    Stage(
        "host-waits", "waits for the GPU in a step", host_waits.look_for_waits, 90, needs_cuda=True
    ),
    Stage("uploads", "copies to the device", uploads.check_uploads, 30),
    Stage("two-processes", "DDP over gloo on one device", processes.compare_processes, 75),
    Stage("losses", "float64 losses against the CPU", against_cpu.compare_losses, 45),
    Stage("nms", "NMS against the CPU", against_cpu.compare_nms, 30),
    Stage(
        "data-parallel", "precision of DataParallel", modes.check_data_parallel, 30, needs_cuda=True
    ),
    Stage(
        "resume", "killed and resumed", resuming.kill_and_resume, 75, least_s=30, after=("data",)
    ),
    Stage(
        "graphs",
        "CUDA graphs, accumulation",
        modes.check_graphs,
        90,
        least_s=40,
        needs_cuda=True,
        after=("data",),
    ),
    # Real trainings, their exports, validation
    Stage(
        "train-ram",
        "training, --cache ram",
        trainings.train_from_ram,
        60,
        20,
        after=("data",),
        alone=True,
    ),
    Stage(
        "train-device",
        "training, --cache device",
        trainings.train_from_device,
        60,
        20,
        after=("data",),
        alone=True,
    ),
    Stage("val", "val.py, float32 and 16 bits", exporting.validate, 45, after=("train-ram",)),
    Stage("torchscript", "TorchScript", exporting.export_torchscript, 60, after=("val",)),
    Stage("onnx", "ONNX", exporting.export_onnx, 60, packages=ONNX, after=("val",)),
    # Speed
    Stage("steps-64", "eager steps at batch 64", speed.time_first_batch, 70, 15, alone=True),
    Stage("steps-16", "eager steps at batch 16", speed.time_second_batch, 50, 15, alone=True),
    Stage("loader", "the training loader", speed.time_loader, 60, 20, after=("data",), alone=True),
    Stage(
        "autobatch",
        "--batch-size -1",
        trainings.find_batch_size,
        60,
        20,
        after=("data",),
        alone=True,
    ),
    Stage("profile", "parts of a step", speed.profile_parts, 30, alone=True),
    Stage(
        "compiled-yolov5n",
        "compiled steps",
        speed.time_compiled_yolov5n,
        120,
        60,
        needs_cuda=True,
        alone=True,
    ),
    Stage(
        "compiled-yolo26n",
        "compiled steps",
        speed.time_compiled_yolo26n,
        140,
        80,
        needs_cuda=True,
        alone=True,
    ),
    Stage("steps-128", "eager steps at batch 128", speed.time_third_batch, 90, 15, alone=True),
)
