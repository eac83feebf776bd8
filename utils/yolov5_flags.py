"""Flags of YOLOv5 that the scripts reject, and what the error message says to use instead."""

_NO_UPLOAD = "nothing is uploaded; copy the run folder (--project, --name) yourself"
_NO_TENSORFLOW = "TensorFlow files are converted from the ONNX file, see docs/export.md"
_NO_TENSORRT = "a TensorRT engine is built from the ONNX file by trtexec, see docs/export.md"
_NO_LOGGER = "there is no Weights & Biases logger; all numbers are in results.csv and metrics.json in the run folder"

NOT_IN_TRAIN = {
    "--evolve": "there is no hyper-parameter search; run once for each --hyp file and compare metrics.json",
    "--evolve_population": "there is no hyper-parameter search; give one set of hyper-parameters with --hyp",
    "--resume_evolve": "there is no hyper-parameter search; --resume continues a single run",
    "--bucket": _NO_UPLOAD,
    "--quad": "batches are not tiled into larger images; train at a larger --imgsz, or with --multi-scale",
    "--entity": _NO_LOGGER,
    "--upload_dataset": _NO_UPLOAD,
    "--bbox_interval": "boxes are drawn once, after training: val_batch*_pred.jpg in the run folder",
    "--artifact_alias": f"{_NO_LOGGER}; name the run with --name",
}
NOT_IN_VAL = {
    "--save-hybrid": "mixing labels with predictions inflates the mAP; --save-txt writes only the predictions",
    "--dnn": "OpenCV's DNN module is not used; run the checkpoint directly, with --device and --half",
}
NOT_IN_EXPORT = {
    "--keras": _NO_TENSORFLOW,
    "--optimize": "TorchScript is frozen, which folds constants; it is not converted for mobile interpreters",
    "--cache": _NO_TENSORRT,
    "--mlmodel": "CoreML files are converted from TorchScript, see docs/export.md",
    "--workspace": _NO_TENSORRT,
    "--per-tensor": "weights are quantized per channel, which loses less",
    "--topk-per-class": "the limit is for all classes together: --topk-all",
    "--inplace": "boxes are never computed in place",
    "--verbose": _NO_TENSORRT,
}
