"""The data YAMLs in data/: each is valid, and reads the files of its data set where the archives
put them.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from data.dataset_yaml import FOLDER, DataSpec, find_data, read_data_yaml
from data.scan import scan
from tests.data.formats.voc.test_voc_reader import annotation, object_xml

YAMLS = sorted(file.name for file in FOLDER.glob("*.yaml"))
SIZE = (40, 20)


def draw(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(
            cv2.imencode(file.suffix, np.full((SIZE[1], SIZE[0], 3), 99, np.uint8))[1].tobytes()
        )


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def coco_json(names: tuple[str, ...], file_name: str) -> str:
    """Return a COCO JSON with one image and a box of the last class."""
    images = [{"id": 1, "file_name": file_name, "width": SIZE[0], "height": SIZE[1]}]
    boxes = [
        {
            "id": 1,
            "image_id": 1,
            "category_id": len(names),
            "bbox": [1, 2, 3, 4],
            "iscrowd": 0,
            "area": 12,
        }
    ]
    categories = [{"id": number, "name": name} for number, name in enumerate(names, 1)]
    return json.dumps({"images": images, "annotations": boxes, "categories": categories})


def draw_coco(spec: DataSpec) -> None:
    """As images.cocodataset.org/zips/*.zip and annotations_trainval2017.zip unpack."""
    for split in ("train2017", "val2017"):
        draw(spec.root / split / "000000000009.jpg")
        write(
            spec.root / "annotations" / f"instances_{split}.json",
            coco_json(spec.names, "000000000009.jpg"),
        )


def draw_coco128(spec: DataSpec) -> None:
    draw(spec.root / "images" / "train2017" / "000000000009.jpg")
    write(
        spec.root / "labels" / "train2017" / "000000000009.txt",
        f"{len(spec.names) - 1} .5 .5 .5 .5\n",
    )


def draw_voc(spec: DataSpec) -> None:
    """As VOCtrainval_06-Nov-2007.tar, VOCtest_06-Nov-2007.tar and VOCtrainval_11-May-2012.tar
    unpack.
    """
    lists = {
        "VOC2007": {"trainval": "000005", "test": "000001"},
        "VOC2012": {"trainval": "2008_000008"},
    }
    for year, splits in lists.items():
        for split, image in splits.items():
            draw(spec.root / year / "JPEGImages" / f"{image}.jpg")
            write(spec.root / year / "ImageSets" / "Main" / f"{split}.txt", f"{image}\n")
            text = annotation(object_xml(spec.names[-1], "1 1 9 9"), size=SIZE)
            write(spec.root / year / "Annotations" / f"{image}.xml", text)


def draw_visdrone(spec: DataSpec) -> None:
    """As VisDrone2019-DET-train.zip and so on unpack."""
    for split in ("train", "val", "test-dev"):
        folder = spec.root / f"VisDrone2019-DET-{split}"
        draw(folder / "images" / "0000002_00005_d_0000014.jpg")
        write(folder / "annotations" / "0000002_00005_d_0000014.txt", "1,2,3,4,1,10,0,0\n")


def draw_objects365(spec: DataSpec) -> None:
    for split in ("train", "val"):
        name = "images/v1/patch0/objects365_v1_00000000.jpg"
        draw(spec.root / split / name)
        write(spec.root / split / f"zhiyuan_objv2_{split}.json", coco_json(spec.names, name))


LAYOUTS: dict[
    str, tuple[int, Callable[[DataSpec], None]]
] = {  # number of classes, and how the files are laid out
    "coco.yaml": (80, draw_coco),
    "coco128.yaml": (80, draw_coco128),
    "VOC.yaml": (20, draw_voc),
    "VisDrone.yaml": (10, draw_visdrone),
    "Objects365.yaml": (365, draw_objects365),
}


def test_every_yaml_has_a_layout_here() -> None:
    assert set(YAMLS) - {"shapes.yaml"} == set(
        LAYOUTS
    )  # shapes.yaml is generated and read in test_shapes.py


@pytest.mark.parametrize("name", YAMLS)
def test_yaml_in_data_is_found_and_valid(name: str) -> None:
    spec = read_data_yaml(find_data(name))
    assert spec.download_error == ""
    assert spec.train
    assert spec.val
    assert spec.root.parent.name == "datasets"
    text = (FOLDER / name).read_text()
    assert max(map(len, text.splitlines())) <= 120
    assert all(source.url.startswith("https://") for source in spec.download)
    assert "sha256" not in text  # no data set states one


@pytest.mark.parametrize("name", LAYOUTS)
def test_dataset_laid_out_as_its_archives_is_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / name
    file.write_bytes((FOLDER / name).read_bytes())
    number, lay_out = LAYOUTS[name]
    spec = read_data_yaml(file)
    lay_out(spec)
    for split in ("train", "val", *(["test"] if spec.test else [])):
        labels, report = scan(spec.sources(split), spec.names)
        assert len(labels) == report.instances == len(spec.sources(split))
        assert (report.without_label_file, report.problems) == (0, ())
        assert labels.classes.tolist() == [number - 1] * len(labels)


def test_coco_images_may_be_in_folder_images(tmp_path: Path) -> None:
    """As YOLOv5 lays out COCO."""
    names = read_data_yaml(FOLDER / "coco.yaml").names
    draw(tmp_path / "images" / "val2017" / "1.jpg")
    write(tmp_path / "annotations" / "instances_val2017.json", coco_json(names, "1.jpg"))
    assert len(scan([tmp_path / "annotations" / "instances_val2017.json"], names)[0]) == 1


def test_class_names_are_those_of_torchvision() -> None:
    from torchvision.models._meta import _COCO_CATEGORIES, _VOC_CATEGORIES

    coco = tuple(name for name in _COCO_CATEGORIES if name not in ("__background__", "N/A"))
    assert (
        read_data_yaml(FOLDER / "coco.yaml").names
        == read_data_yaml(FOLDER / "coco128.yaml").names
        == coco
    )
    assert read_data_yaml(FOLDER / "VOC.yaml").names == tuple(_VOC_CATEGORIES[1:])


def test_downloaded_voc_archives_lose_their_top_folder() -> None:
    """They contain VOCdevkit/VOC2007 and VOCdevkit/VOC2012; data/fetching.py drops a top folder
    named like `path`.
    """
    spec = read_data_yaml(FOLDER / "VOC.yaml")
    assert spec.root.name == "VOCdevkit"
    assert not any(path.is_relative_to(spec.root / "VOCdevkit") for path in spec.needed())
    assert [re.sub(r".*/", "", source.url) for source in spec.download] == [
        "VOCtrainval_06-Nov-2007.tar",
        "VOCtest_06-Nov-2007.tar",
        "VOCtrainval_11-May-2012.tar",
    ]
