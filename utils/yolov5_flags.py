"""Flags of YOLOv5 that the scripts do not take: what a refusal says to use instead."""

_NO_UPLOAD = "nothing is uploaded; copy the run folder (--project, --name) yourself"
_NO_LOGGER = "there is no Weights & Biases logger; results.csv and metrics.json in the run folder hold every number"

NOT_IN_TRAIN = {
    "--evolve": "hyper-parameters are not searched; run once for each --hyp file and compare metrics.json",
    "--evolve_population": "hyper-parameters are not searched; give one set of them with --hyp",
    "--resume_evolve": "hyper-parameters are not searched; --resume continues a single run",
    "--bucket": _NO_UPLOAD,
    "--quad": "batches are not tiled into larger images; train at a larger --imgsz, or with --multi-scale",
    "--entity": _NO_LOGGER,
    "--upload_dataset": _NO_UPLOAD,
    "--bbox_interval": "boxes are drawn once, after training: val_batch*_pred.jpg in the run folder",
    "--artifact_alias": f"{_NO_LOGGER}; name the run with --name",
}
NOT_IN_VAL = {
    "--save-hybrid": "labels mixed with predictions raise the mAP; --save-txt writes predictions alone",
    "--dnn": "OpenCV's DNN module is not used; run the checkpoint itself, with --device and --half",
}
