"""Three photographs as each tool writes them, and files of the tools' own tests."""

import json
from pathlib import Path

import pytest

from data.report import NOTE
from tests.support.tool_files import Read, read_source

FIXTURES = Path(__file__).resolve().parents[5] / "shared" / "fixtures" / "annotation_tools"
REAL = FIXTURES / "real"
pytestmark = pytest.mark.skipif(
    not FIXTURES.is_dir(), reason="../shared/fixtures/annotation_tools is missing"
)
PHOTOGRAPHS = ("BloodImage_00000", "BloodImage_00001", "BloodImage_00003")
WHOLE = 1.0  # pixels by which a box may differ where a format has whole numbers only
EXACT = 0.01  # pixels: decimals that a tool writes


def expected(photographs: tuple[str, ...], classes: bool) -> dict[str, list]:
    """Return the boxes of photographs; classes: with their class, otherwise all `object`."""
    document = json.loads((FIXTURES / "expected.json").read_text())
    boxes = {}
    for name in photographs:
        given = document[f"{name}.jpg"]["boxes_xyxy"]
        boxes[name] = sorted([box[0] if classes else "object", *box[1:]] for box in given)
    return boxes


def read_photographs(source: Path) -> dict[str, list]:
    """Return the boxes of a source, by the photograph."""
    read = read_source(source, size=(640, 480), root=FIXTURES)
    assert {problem.kind for problem in read.problems} <= {NOTE}, read.problems
    found = {}
    for path, boxes in read.boxes.items():
        (name,) = (name for name in PHOTOGRAPHS if name in path)
        found[name] = boxes
    return found


@pytest.mark.parametrize(
    ("source", "train", "tolerance"),
    [
        ("rf_createml/train/_annotations.createml.json", True, EXACT),
        ("rf_createml/valid/_annotations.createml.json", False, EXACT),
        ("rf_retinanet/train/_annotations.csv", True, WHOLE),
        ("rf_retinanet/valid/_annotations.csv", False, WHOLE),
        ("rf_coco/train/_annotations.coco.json", True, EXACT),
        ("rf_coco/valid/_annotations.coco.json", False, EXACT),
        ("rf_voc/train", True, WHOLE),
        ("rf_voc/valid", False, WHOLE),
        ("rf_yolov5_obb/train/images", True, WHOLE),
        ("rf_yolov5_obb/valid/images", False, WHOLE),
        ("cvat_images/annotations.xml", None, EXACT),
        ("cvat_coco/annotations/instances_default.json", None, EXACT),
        ("cvat_voc/ImageSets/Main/default.txt", None, WHOLE),
        ("ls_coco/result.json", None, EXACT),
        ("ls_coco_win/result.json", None, EXACT),
        ("labelme", None, EXACT),
        ("labelimg_voc", None, WHOLE),
        ("via/via_project_export.json", None, WHOLE),
        ("via/via_project_export.csv", None, WHOLE),
        ("supervisely/ds0/img", None, WHOLE),
        ("supervisely", None, WHOLE),
        ("kaggle/train.csv", True, WHOLE),
    ],
)
def test_boxes_are_those_that_were_drawn(source: str, train: bool | None, tolerance: float) -> None:
    """train: whether the source has the two training images, the other one, or all (None)."""
    photographs = {None: PHOTOGRAPHS, True: PHOTOGRAPHS[1:], False: PHOTOGRAPHS[:1]}[train]
    wanted = expected(photographs, classes=not source.startswith("kaggle"))
    found = read_photographs(FIXTURES / source)
    assert found.keys() == wanted.keys()
    for name in photographs:
        rest = wanted[name]
        assert len(found[name]) == len(rest)
        for kind, *corners in found[name]:
            match = [box for box in rest if box == [kind, *map(_near(tolerance), corners)]]
            assert match, (name, kind, corners)
            rest.remove(match[0])


def _near(tolerance: float):
    return lambda value: pytest.approx(value, abs=tolerance + 1e-6)


def read_real(source: str, size: tuple[int, int] = (1000, 1000)) -> Read:
    return read_source(REAL / source, size=size, root=REAL)


@pytest.mark.parametrize(
    ("source", "images", "boxes", "names"),
    [
        ("cvat_dataset/for_images/export_task/train.xml", 2, None, ("label1", "label2")),
        ("cvat_dataset/for_images/export_project/annotations.xml", 6, None, ("label1", "label2")),
        ("cvat_dataset/for_video/annotations.xml", 3, 3, ("klhg", "z U k", "II")),
        ("dota_dataset/train/images", 2, 2, ("label_0", "label_1")),
        ("dota_dataset/val/images", 1, 2, ("label_0", "label_1")),
        ("kaggle_dataset/image_csv_det/ann.csv", 3, 6, ("cat", "dog")),
        ("kaggle_dataset/image_csv_det/ann2.csv", 3, 6, ("cat", "dog")),
        ("kaggle_dataset/image_csv_det/ann3.csv", 3, None, ("cat", "dog")),
        ("kaggle_dataset/image_txt_det/ann.txt", 3, 6, ("cat", "dog")),
        (
            "open_images_dataset/v6/annotations/oidv6-train-annotations-bbox.csv",
            1,
            1,
            ("Generic label #0",),
        ),
        ("roboflow_dataset/createml/train/_annotations.createml.json", 2, None, None),
        ("roboflow_dataset/createml/val/_annotations.createml.json", 1, None, None),
        ("roboflow_dataset/yolo_obb/train/images", 2, None, None),
        ("vott_csv_dataset/dataset/train-export.csv", 2, 3, ("helmet", "person")),
        ("vott_json_dataset/dataset/train-export.json", 3, None, ("animal", "dog", "person")),
        ("widerface_dataset/wider_face_split/wider_face_train_bbx_gt.txt", 2, 3, ("face",)),
        ("widerface_dataset/wider_face_split/wider_face_val_bbx_gt.txt", 1, 3, ("face",)),
    ],
)
def test_samples_of_datumaro_are_read(
    source: str, images: int, boxes: int | None, names: tuple[str, ...] | None
) -> None:
    read = read_real(f"datumaro/{source}")
    assert len(read.boxes) == images
    assert names is None or read.names == names
    found = sum(map(len, read.boxes.values()))
    assert found > 0
    assert boxes is None or found == boxes
    for problem in read.problems:
        assert str(REAL / "datumaro") in problem.where


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("test_export_coco_data", ("polygon_label", "rectangle_label")),
        ("test_export_yolo_data", ("parasites", "white")),
        ("test_export_yolo_data_obb", ("Butterfly", "butterfly")),
        ("test_export_yolo_data_polygons", ("Airplane",)),
    ],
)
def test_samples_of_label_studio_have_no_images(name: str, names: tuple[str, ...]) -> None:
    read = read_real(f"label_studio/{name}.json")
    assert (read.title, read.names, read.boxes) == ("Label Studio JSON", names, {})
    assert "none found in this folder or beside it, such as '" in read.problems[-1].reason
