"""The stages of benchmarks/gpu.py, in the order of their importance."""

from functools import partial

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

# The kinds of stages
cuda_check = partial(Stage, needs_cuda=True)
timed = partial(Stage, alone=True)
cuda_timed = partial(Stage, alone=True, needs_cuda=True)

# The stages whose files others read
DATA = ("data",)
TRAINED = ("train-ram",)
VALIDATED = ("val",)

# Packages
PYTEST = ("pytest",)
ONNX = ("onnx", "onnxscript", "onnxruntime")

# Name, about, function, limit in seconds, least seconds.
CORRECTNESS = (
    cuda_check("gpu-tests", "tests/test_gpu.py", against_cpu.run_gpu_tests, 120, packages=PYTEST),
    Stage("data", "draw the images", trainings.draw_data, 60),
    cuda_check("host-waits", "waits for the GPU in a step", host_waits.look_for_waits, 150),
    Stage("uploads", "copies to the device", uploads.check_uploads, 30),
    Stage("two-processes", "DDP over gloo on one device", processes.compare_processes, 75),
    Stage("losses", "float64 losses against the CPU", against_cpu.compare_losses, 45),
    Stage("nms", "NMS against the CPU", against_cpu.compare_nms, 30),
    cuda_check("data-parallel", "precision of DataParallel", modes.check_data_parallel, 60),
    Stage("resume", "killed and resumed", resuming.kill_and_resume, 150, 30, after=DATA),
    cuda_check("graphs", "CUDA graphs, accumulation", modes.check_graphs, 150, 40, after=DATA),
)

TRAININGS = (
    timed("train-ram", "training, --cache ram", trainings.train_from_ram, 60, 20, after=DATA),
    timed(
        "train-device", "training, --cache device", trainings.train_from_device, 60, 20, after=DATA
    ),
    Stage("val", "val.py, float32 and 16 bits", exporting.validate, 45, after=TRAINED),
    Stage("torchscript", "TorchScript", exporting.export_torchscript, 60, after=VALIDATED),
    Stage("onnx", "ONNX", exporting.export_onnx, 60, packages=ONNX, after=VALIDATED),
)

SPEED = (
    timed("steps-64", "eager steps at batch 64", speed.time_first_batch, 70, 15),
    timed("steps-16", "eager steps at batch 16", speed.time_second_batch, 80, 15),
    timed("loader", "the training loader", speed.time_loader, 60, 20, after=DATA),
    timed("autobatch", "--batch-size -1", trainings.find_batch_size, 90, 20, after=DATA),
    timed("profile", "parts of a step", speed.profile_parts, 30),
    cuda_timed("compiled-yolov5n", "compiled steps", speed.time_compiled_yolov5n, 120, 60),
    cuda_timed("compiled-yolo26n", "compiled steps", speed.time_compiled_yolo26n, 140, 80),
    timed("steps-128", "eager steps at batch 128", speed.time_third_batch, 90, 15),
)

STAGES = (
    timed("machine", "hardware, versions, limits", machine.describe_machine, 30),
    *CORRECTNESS,
    *TRAININGS,
    *SPEED,
)
