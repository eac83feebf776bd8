"""Every flag of YOLOv5's train, val, detect and export: it is accepted, or refused with what to use
instead.
"""

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from utils.command_line import yolov5_flags

ROOT = Path(__file__).parents[1]

# A command line for each flag, with a value that differs from the default.
TRAIN = """
--weights yolov5s.pt | --cfg yolov5s.yaml | --data data/coco128.yaml | --hyp data/hyps/hyp.VOC.yaml
--epochs 3 | --batch-size 4 | --batch-size -1 | --batch 4 | --imgsz 320 | --img 320 | --img-size 320 | --rect
--resume | --resume runs/train/exp/weights/last.pt | --nosave | --noval | --noautoanchor | --noplots | --evolve
--evolve 300 | --evolve_population data/hyps | --resume_evolve evolve.csv | --bucket gs://b | --cache | --cache ram
--cache disk | --image-weights | --device cpu | --device 0 | --device 0,1,2 | --device mps | --multi-scale
--single-cls | --optimizer Adam | --optimizer AdamW | --sync-bn | --workers 2 | --project p | --name n | --exist-ok
--quad | --cos-lr | --label-smoothing 0.1 | --patience 7 | --freeze 10 | --freeze 0 1 2 | --save-period 5 | --seed 1
--local_rank 0 | --entity e --wandb | --upload_dataset | --upload_dataset val | --bbox_interval -1 | --bbox_interval 5
--artifact_alias latest
"""  # noqa: E501
VAL = """
--data data/coco128.yaml | --weights yolov5s.pt | --weights a.pt b.pt | --batch-size 4 | --batch 4 | --imgsz 320
--img 320 | --img-size 320 | --conf-thres 0.1 | --conf 0.1 | --iou-thres 0.7 | --iou 0.7 | --max-det 100
--task train | --task test | --task speed | --task study | --task=study | --device cpu | --workers 2 | --single-cls
--augment | --verbose | --save-txt | --save-hybrid | --save-conf --save-txt | --save-json | --project p | --name n
--exist-ok | --half | --dnn
"""  # noqa: E501
DETECT = """
--weights yolov5s.pt | --weights a.pt b.pt | --source data/images | --source 0 | --data data/coco128.yaml
--imgsz 320 | --imgsz 320 640 | --img 320 | --img-size 320 | --conf-thres 0.1 | --conf 0.1 | --iou-thres 0.7
--max-det 100 | --device cpu | --view-img | --save-txt | --save-format 1 --save-txt | --save-csv
--save-conf --save-txt | --save-crop | --nosave | --classes 0 | --classes 0 2 3 | --agnostic-nms | --augment
--visualize | --update | --project p | --name n | --exist-ok | --line-thickness 5 | --hide-labels | --hide-conf
--half | --dnn | --vid-stride 2
"""  # noqa: E501
EXPORT = """
--data data/coco128.yaml | --weights a.pt b.pt | --imgsz 320 | --imgsz 320 640 | --img 320 | --img-size 320
--batch-size 4 | --device 0 | --half | --inplace | --keras | --optimize | --int8 | --per-tensor | --dynamic
--cache t.cache | --simplify | --mlmodel | --opset 12 | --verbose | --workspace 8 | --nms | --agnostic-nms
--topk-per-class 50 | --topk-all 50 | --iou-thres 0.5 | --conf-thres 0.3 | --include onnx
--include torchscript onnx openvino
"""  # noqa: E501
LISTS = {"train": TRAIN, "val": VAL, "detect": DETECT, "export": EXPORT}
REFUSED = {
    "train": yolov5_flags.NOT_IN_TRAIN,
    "val": yolov5_flags.NOT_IN_VAL,
    "detect": yolov5_flags.NOT_IN_DETECT,
    "export": yolov5_flags.NOT_IN_EXPORT,
}
OTHER_PROGRAMS = {"--timingCacheFile", "--memPoolSize", "--type"}  # of trtexec and wandb
LINES = [
    (script, line.strip())
    for script, lines in LISTS.items()
    for line in re.split(r"[|\n]", lines.strip())
    if line
]


def error_message(script: ModuleType, words: list[str]) -> str:
    """Return the error message of a script for a command line; "" if it is accepted."""
    try:
        script.parse_args(words)
    except ValueError as refusal:
        return str(refusal)
    return ""


def refused_name(script: str, line: str) -> str:
    """Return the refused flag, or flag and value, that a command line begins with; "" if there is
    none.
    """
    plain = line.replace("=", " ")
    return next((name for name in REFUSED[script] if f"{plain} ".startswith(f"{name} ")), "")


@pytest.mark.parametrize(("script", "line"), LINES, ids=lambda text: text)
def test_flag_changes_the_settings_or_is_refused_with_alternative(script: str, line: str) -> None:
    module, name = importlib.import_module(script), refused_name(script, line)
    said = error_message(module, line.split(" "))
    if name:
        assert said == f"{name} is not supported: {REFUSED[script][name]}"
    else:
        assert said == ""
        assert module.parse_args(line.split(" ")) != module.parse_args([])


@pytest.mark.parametrize("script", LISTS)
def test_every_refused_flag_is_in_the_list(script: str) -> None:
    assert {refused_name(script, line) for name, line in LINES if name == script} - {""} == set(
        REFUSED[script]
    )


@pytest.mark.parametrize("script", LISTS)
def test_every_alternative_exists(script: str) -> None:
    for flag, sentence in REFUSED[script].items():
        names = re.findall(
            r"--[a-zA-Z_-]+|\w+\.(?:json|csv|pt|md|py)|\w+\*\w+\.jpg|leave the flag out", sentence
        )
        assert names, f"{flag}: the sentence names nothing to use instead"
        assert ". " not in sentence
        assert not sentence.endswith(".")
        module = importlib.import_module(script)
        for name in {name for name in names if name.startswith("--")} - OTHER_PROGRAMS:
            said = error_message(module, [name])
            assert "unknown flag" not in said
            assert "not supported" not in said


def test_task_study_is_refused_in_any_spelling_but_not_as_a_name() -> None:
    import val

    for words in (["--task", "study"], ["--task=study"], ["--img", "64", "--task", "study"]):
        with pytest.raises(
            ValueError, match=r"^--task study is not supported: no plot .* run --task speed once"
        ):
            val.parse_args(words)
    assert val.parse_args(["--name", "study"])[0].name == "study"
    with pytest.raises(ValueError, match=r"^--task: invalid choice: 'nothing'"):
        val.parse_args(["--task", "nothing"])
