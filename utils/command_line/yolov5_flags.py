"""Flags of YOLOv5 and others that the scripts reject, and what their errors say to use instead."""

from collections.abc import Iterable

_NOT_HERE = "made from an exported file by the command in docs/export.md"
_NO_UPLOAD = "nothing is uploaded; copy the run folder (--project, --name) yourself"
_NO_DATA_SENT = "--wandb sends numbers and pictures of the run, and no data set"

NOT_IN_TRAIN = {
    "--evolve_population": ("a search begins with one set of hyper-parameters; give it with --hyp"),
    "--bucket": _NO_UPLOAD,
    "--quad": (
        "batches are not tiled into larger images; train at a larger --imgsz, or with --multi-scale"
    ),
    "--upload_dataset": (f"{_NO_DATA_SENT}; wandb artifact put --type dataset FOLDER sends one"),
    "--bbox_interval": (
        "boxes are drawn once, after training: val_batch*_pred.jpg in the run folder, which "
        "--tensorboard, --wandb and --mlflow log"
    ),
    "--artifact_alias": (
        "no data set is read from Weights & Biases; wandb artifact get ENTITY/PROJECT/NAME:ALIAS "
        "fetches one for --data"
    ),
}
NOT_IN_VAL = {
    "--save-hybrid": (
        "mixing labels with predictions inflates the mAP; --save-txt writes only the predictions"
    ),
    "--dnn": (
        "OpenCV's DNN module is not used; run the checkpoint directly, with --device and --half"
    ),
    "--task study": (
        "no plot of speed over image sizes is made; run --task speed once for each --imgsz"
    ),
}
NOT_IN_DETECT = {
    "--dnn": (
        "OpenCV's DNN module is not used; give a checkpoint, or a file of export.py, as --weights"
    ),
    "--update": "checkpoints are never rewritten; best.pt holds only what detecting needs",
    "--visualize": "feature maps are not drawn; --save-crop and --view-img show the detections",
}
NOT_IN_EXPORT = {
    "--inplace": "the exported model is the same with and without it; leave the flag out",
    "--keras": f"TensorFlow models are {_NOT_HERE}",
    "--optimize": "TorchScript is not rewritten for phones; give phones the file of --include onnx",
    "--per-tensor": f"it is a setting of TensorFlow Lite, whose models are {_NOT_HERE}",
    "--cache": (
        f"TensorRT engines are {_NOT_HERE}; its timing cache is --timingCacheFile of trtexec"
    ),
    "--workspace": f"TensorRT engines are {_NOT_HERE}; its workspace is --memPoolSize of trtexec",
    "--mlmodel": f"CoreML models are {_NOT_HERE}",
    "--verbose": f"TensorRT engines are {_NOT_HERE}, whose log level it was; leave the flag out",
    "--topk-per-class": (
        "it is a setting of TensorFlow's NMS; --topk-all limits the detections of an image"
    ),
}

# Other names that people try, without dashes, and what to use instead.
_WEIGHTS = "did you mean --weights?"
HINTS = {
    "model": _WEIGHTS,
    "checkpoint": _WEIGHTS,
    "gpu": "did you mean --device?",
    "gpus": "did you mean --device?",
}
_RATE = "the learning rate is lr0 in a --hyp file"
HINTS_IN_TRAIN = HINTS | {
    "model": "--cfg names a model table, --weights a checkpoint",
    "lr": _RATE,
    "learning_rate": _RATE,
}


def hints_for_train(hyper_parameters: Iterable[str]) -> dict[str, str]:
    """Return the hints of train.py, also for the names of hyper-parameters, which are in a file."""
    hints = {}
    for name in hyper_parameters:
        hints[name] = f"{name} is a value in a --hyp file, see data/hyps/"
    return hints | HINTS_IN_TRAIN
