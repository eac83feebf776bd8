"""data/formats/writers/: the files of each format, by hand, and what a format cannot hold."""

import json
from xml.etree import ElementTree

import pytest

from data.formats.writers import WRITERS, WrittenBox, WrittenImage
from data.formats.yolo_values import box_row_length

NAMES = ["cat", 'a "b" & <c>']
BOX = WrittenBox(0, (10, 20, 30, 40), area=1200)  # of an image of 100 x 200
TRIANGLE = WrittenBox(1, (0, 0, 50, 100), [(0, 0), (50, 0), (25, 100)], area=2500)
CROWD = BOX._replace(crowd=True)
DETECTED = BOX._replace(score=0.875)


def written(folder, kind, *boxes, split="train", names=NAMES):
    """Write one image with these boxes, and return the writer."""
    writer = WRITERS[kind](folder, names)
    writer.add(WrittenImage("/photos/a.jpg", "a.jpg", (100, 200), boxes, split))
    writer.close()
    return writer


def files(folder):
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.*"))


def test_yolo(tmp_path):
    """cx = (10 + 30 / 2) / 100 = 0.25, cy = (20 + 40 / 2) / 200 = 0.2, w = 0.3, h = 0.2."""
    written(tmp_path, "yolo", BOX)
    assert files(tmp_path) == ["data.yaml", "labels/train/a.txt"]
    rows = (tmp_path / "labels" / "train" / "a.txt").read_text()
    assert rows == "0 0.25 0.2 0.3 0.2\n"
    assert (tmp_path / "data.yaml").read_text() == (
        'path: .\ntrain: images/train\nnames:\n  0: cat\n  1: a "b" & <c>\n'
    )


def test_boxes_beside_a_polygon_have_four_corners_in_yolo(tmp_path):
    """YOLOv5 reads all rows of a file with a polygon as polygons."""
    written(tmp_path, "yolo", BOX, TRIANGLE)
    rows = (tmp_path / "labels" / "train" / "a.txt").read_text()
    assert rows == "0 0.1 0.1 0.4 0.1 0.4 0.3 0.1 0.3\n1 0 0 0.5 0 0.25 0.5\n"


def test_polygons_of_yolo_cannot_be_taken_for_keypoints(tmp_path):
    """0.75 0.75 0.9 0.9 0.6 0.6 is a triangle, or a box of 0.9 x 0.9 around 0.75 with a keypoint.

    One of two such polygons has its first corner twice, so their rows differ in length.
    """
    triangle = WrittenBox(0, (60, 120, 30, 60), [(75, 150), (90, 180), (60, 120)])
    writer = written(tmp_path, "yolo", triangle, triangle, triangle)
    rows = (tmp_path / "labels" / "train" / "a.txt").read_text().splitlines()
    once = "0 0.75 0.75 0.9 0.9 0.6 0.6"
    assert rows == [once, "0 0.75 0.75 0.75 0.75 0.9 0.9 0.6 0.6", once]
    values = [list(map(float, row.split())) for row in rows]
    assert box_row_length(values) == 0
    assert not writer.lost


def test_only_polygon_that_may_be_a_keypoint_becomes_its_box(tmp_path):
    triangle = WrittenBox(0, (60, 120, 30, 60), [(75, 150), (90, 180), (60, 120)])
    writer = written(tmp_path, "yolo", triangle)
    rows = (tmp_path / "labels" / "train" / "a.txt").read_text()
    assert rows == "0 0.75 0.75 0.3 0.3\n"
    assert writer.lost == {"polygon": 1}

    # Beside a polygon that cannot be one it stays.
    assert not written(tmp_path, "yolo", TRIANGLE, triangle).lost


def test_yolo_without_splits_has_a_list_of_names(tmp_path):
    written(tmp_path, "yolo", split="")
    assert files(tmp_path) == ["classes.txt", "labels/a.txt"]
    assert (tmp_path / "labels" / "a.txt").read_text() == ""
    assert (tmp_path / "classes.txt").read_text() == 'cat\na "b" & <c>\n'


def test_coco(tmp_path):
    written(tmp_path, "coco", BOX, TRIANGLE, CROWD, split="val")
    assert files(tmp_path) == ["annotations/instances_val.json"]
    document = json.loads((tmp_path / "annotations" / "instances_val.json").read_text())
    assert document["images"] == [{"id": 1, "file_name": "a.jpg", "width": 100, "height": 200}]
    assert [category["name"] for category in document["categories"]] == NAMES
    assert [category["id"] for category in document["categories"]] == [1, 2]
    box, triangle, crowd = document["annotations"]
    assert box == {
        "id": 1,
        "image_id": 1,
        "category_id": 1,
        "bbox": [10, 20, 30, 40],
        "area": 1200,
        "iscrowd": 0,
        "segmentation": [],
    }
    assert triangle["segmentation"] == [[0, 0, 50, 0, 25, 100]]
    assert (crowd["id"], crowd["iscrowd"]) == (3, 1)


def test_voc(tmp_path):
    """Counted from 1: xmin = 10 + 1, the last column of the box is 10 + 30."""
    written(tmp_path, "voc", BOX, CROWD)
    assert files(tmp_path) == ["Annotations/a.xml", "ImageSets/Main/train.txt", "labelmap.txt"]
    root = ElementTree.parse(tmp_path / "Annotations" / "a.xml").getroot()  # noqa: S314
    assert [root.findtext(f"size/{side}") for side in ("width", "height", "depth")] == [
        "100",
        "200",
        "3",
    ]
    box, crowd = root.findall("object")
    corners = [box.findtext(f"bndbox/{name}") for name in ("xmin", "ymin", "xmax", "ymax")]
    assert corners == ["11", "21", "40", "60"]
    assert [found.findtext("difficult") for found in (box, crowd)] == ["0", "1"]
    assert (tmp_path / "ImageSets" / "Main" / "train.txt").read_text() == "a\n"


def test_labelme(tmp_path):
    written(tmp_path, "labelme", DETECTED, TRIANGLE)
    assert files(tmp_path) == ["labels.txt", "train/a.json"]
    document = json.loads((tmp_path / "train" / "a.json").read_text())
    box, triangle = document.pop("shapes")
    assert document == {
        "version": "5.4.1",
        "flags": {},
        "imagePath": "a.jpg",
        "imageData": None,
        "imageHeight": 200,
        "imageWidth": 100,
    }
    assert box == {
        "label": "cat",
        "points": [[10, 20], [40, 60]],
        "group_id": None,
        "description": "score 0.88",
        "shape_type": "rectangle",
        "flags": {},
    }
    assert (triangle["shape_type"], triangle["points"]) == ("polygon", [[0, 0], [50, 0], [25, 100]])


def test_cvat(tmp_path):
    written(tmp_path, "cvat", BOX, TRIANGLE)
    assert files(tmp_path) == ["annotations_train.xml"]
    root = ElementTree.parse(tmp_path / "annotations_train.xml").getroot()  # noqa: S314
    assert [name.text for name in root.findall("meta/task/labels/label/name")] == NAMES
    (image,) = root.findall("image")
    assert image.attrib == {
        "id": "0",
        "name": "a.jpg",
        "width": "100",
        "height": "200",
    }
    assert root.findtext("meta/task/subset") == "train"
    box, polygon = image
    corners = {"xtl": "10", "ytl": "20", "xbr": "40", "ybr": "60"}
    assert box.attrib.items() >= (corners | {"label": "cat", "occluded": "0"}).items()
    assert polygon.attrib["points"] == "0,0;50,0;25,100"
    assert polygon.attrib["label"] == NAMES[1]


def test_boxes_of_a_model_are_marked_in_cvat(tmp_path):
    written(tmp_path, "cvat", BOX, DETECTED)
    root = ElementTree.parse(tmp_path / "annotations_train.xml").getroot()  # noqa: S314
    assert [box.attrib["source"] for box in root.iter("box")] == ["manual", "auto"]


def test_box_narrower_than_a_pixel_does_not_end_before_it_begins_in_voc(tmp_path):
    """It becomes a pixel wide, which is counted."""
    writer = written(tmp_path, "voc", BOX._replace(box_xywh=(10.25, 20, 0.5, 40)))
    assert writer.lost == {"sub-pixel box": 1}
    root = ElementTree.parse(tmp_path / "Annotations" / "a.xml").getroot()  # noqa: S314
    corners = [root.findtext(f"object/bndbox/{name}") for name in ("xmin", "xmax")]
    assert corners == ["11.25", "11.25"]


def test_label_studio(tmp_path):
    """Percentages: 10 of 100 pixels are 10, 20 of 200 pixels are 10."""
    written(tmp_path, "label-studio", BOX, TRIANGLE)
    assert files(tmp_path) == ["labeling_config.xml", "tasks_train.json"]
    (task,) = json.loads((tmp_path / "tasks_train.json").read_text())
    assert task["data"] == {"image": "/data/local-files/?d=images/train/a.jpg"}
    box, polygon = task["annotations"][0]["result"]
    assert box["value"] == {
        "x": 10,
        "y": 10,
        "width": 30,
        "height": 20,
        "rotation": 0,
        "rectanglelabels": ["cat"],
    }
    assert (box["original_width"], box["original_height"], box["to_name"]) == (100, 200, "image")
    assert polygon["value"]["points"] == [[0, 0], [50, 0], [25, 50]]

    config = ElementTree.parse(tmp_path / "labeling_config.xml").getroot()  # noqa: S314
    tags = {element.attrib["name"]: element.tag for element in config}
    assert tags == {"image": "Image", "rectangle": "RectangleLabels", "polygon": "PolygonLabels"}
    assert {box["from_name"], polygon["from_name"]} == {"rectangle", "polygon"}
    labels = [label.attrib["value"] for label in config.findall("RectangleLabels/Label")]
    assert labels == NAMES


def test_detections_are_predictions_in_label_studio(tmp_path):
    writer = WRITERS["label-studio"](tmp_path, NAMES)
    boxes = [DETECTED, DETECTED._replace(score=0.625)]
    writer.add(WrittenImage("/photos/a.jpg", "a.jpg", (100, 200), boxes, is_detected=True))
    writer.close()
    (task,) = json.loads((tmp_path / "tasks.json").read_text())
    (prediction,) = task["predictions"]
    assert "annotations" not in task
    assert prediction["score"] == 0.75  # (0.875 + 0.625) / 2
    assert [region["score"] for region in prediction["result"]] == [0.875, 0.625]


@pytest.mark.parametrize(
    ("kind", "lost"),
    [
        ("yolo", {"ignore region": 1}),
        ("coco", {}),
        ("voc", {"polygon": 1}),
        ("labelme", {"ignore region": 1}),
        ("cvat", {"ignore region": 1}),
        ("label-studio", {"ignore region": 1}),
    ],
)
def test_what_a_format_cannot_hold_is_counted(tmp_path, kind, lost):
    assert written(tmp_path, kind, BOX, TRIANGLE, CROWD, DETECTED).lost == lost


@pytest.mark.parametrize("kind", ["voc", "cvat", "label-studio"])
def test_class_name_that_xml_cannot_hold_is_refused(tmp_path, kind):
    with pytest.raises(ValueError, match="has a character that XML cannot hold"):
        WRITERS[kind](tmp_path, ["a\x01b"])


LINES = "which is not one line without spaces at its ends"


@pytest.mark.parametrize("kind", ["yolo", "voc", "labelme", "cvat"])
@pytest.mark.parametrize("name", ["two\nlines", "two\rlines", " cat", "cat ", "\ufeffcat"])
def test_class_name_that_a_list_of_lines_would_change_is_refused(tmp_path, kind, name):
    """Written as two classes it would shift the numbers of those after it."""
    with pytest.raises(ValueError, match=LINES):
        WRITERS[kind](tmp_path, ["dog", name])


@pytest.mark.parametrize("name", ["background", "#1"])
def test_voc_counts_the_list_of_classes_that_its_file_cannot_hold(tmp_path, name):
    writer = written(tmp_path, "voc", BOX, names=[name, "dog"])
    assert writer.lost == {"list of classes": 1}
    assert files(tmp_path) == ["Annotations/a.xml", "ImageSets/Main/train.txt"]


@pytest.mark.parametrize("kind", WRITERS)
def test_data_set_without_images_is_written(tmp_path, kind):
    writer = WRITERS[kind](tmp_path, NAMES)
    writer.close()
    assert not writer.lost


def test_box_over_the_border_is_clipped_in_yolo(tmp_path):
    """Readers refuse fractions outside 0 to 1: YOLOv5 the whole image, Kestrel the row."""
    box = WrittenBox(0, (80, -20, 40, 60))  # in an image of 100 x 200: 80 to 100, 0 to 40
    triangle = WrittenBox(1, (-10, 0, 60, 100), [(-10, 0), (50, 0), (20, 100)])
    writer = written(tmp_path / "1", "yolo", box, BOX)
    rows = (tmp_path / "1" / "labels" / "train" / "a.txt").read_text().splitlines()
    assert rows == ["0 0.9 0.1 0.2 0.2", "0 0.25 0.2 0.3 0.2"]
    assert writer.lost == {"out-of-bounds box": 1}

    assert written(tmp_path / "2", "yolo", triangle).lost == {"out-of-bounds box": 1}
    rows = (tmp_path / "2" / "labels" / "train" / "a.txt").read_text().splitlines()
    assert rows == ["1 0 0 0.5 0 0.2 0.5"]


def test_box_that_ends_at_the_border_up_to_rounding_is_not_counted(tmp_path):
    assert not written(tmp_path, "yolo", WrittenBox(0, (60.1, 20, 39.9000001, 40))).lost


@pytest.mark.parametrize("kind", WRITERS)
def test_polygon_of_another_extent_than_its_box_stays_in_coco_and_is_counted_elsewhere(
    tmp_path, kind
):
    """Most formats have one of the two, and the box is what is trained."""
    polygon = TRIANGLE._replace(box_xywh=(0, 0, 50.01, 100))
    writer = written(tmp_path, kind, polygon)
    assert writer.lost == ({} if kind == "coco" else {"polygon": 1})
    if kind == "coco":
        document = json.loads((tmp_path / "annotations" / "instances_train.json").read_text())
        (annotation,) = document["annotations"]
        assert annotation["bbox"] == [0, 0, 50.01, 100]
        assert annotation["segmentation"] == [[0, 0, 50, 0, 25, 100]]
