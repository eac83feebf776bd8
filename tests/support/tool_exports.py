"""Exports of annotation tools as the page on them names them: four tiny images, a box in each.

Written after the tools' own files (tests/data/formats/tools) and, for YOLO, COCO and Pascal VOC,
after their documentation.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from utils.images.opencv import cv2

NAMES = ("cat", "dog")
WIDTH, HEIGHT = 64, 48
LEFT, TOP, BOX_WIDTH, BOX_HEIGHT = 16, 12, 32, 24  # of every box, in pixels
RIGHT, BOTTOM = LEFT + BOX_WIDTH, TOP + BOX_HEIGHT
YOLO_BOX = "0.5 0.5 0.5 0.5"
STEMS = ("a", "b", "c", "d")
CLASS_OF = {stem: number % 2 for number, stem in enumerate(STEMS)}
SIZE = {"width": WIDTH, "height": HEIGHT}


def name_of(stem: str) -> str:
    """Return the class name of an image's box."""
    return NAMES[CLASS_OF[stem]]


def write(file: Path, content: Any) -> None:
    """Write text, or plain values as JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))


def draw(folder: Path, stems: tuple[str, ...] = STEMS) -> None:
    """Write images of noise, no two alike, with a bright box."""
    folder.mkdir(parents=True, exist_ok=True)
    for stem in stems:
        random = np.random.default_rng(ord(stem))
        pixels = random.integers(0, 99, (HEIGHT, WIDTH, 3)).astype(np.uint8)
        pixels[TOP:BOTTOM, LEFT:RIGHT, CLASS_OF[stem]] = 255
        cv2.imwrite(str(folder / f"{stem}.jpg"), pixels)


def yolo_rows(folder: Path, stems: tuple[str, ...] = STEMS) -> None:
    for stem in stems:
        write(folder / f"{stem}.txt", f"{CLASS_OF[stem]} {YOLO_BOX}\n")


def coco(stems: tuple[str, ...] = STEMS) -> dict[str, Any]:
    bbox = [LEFT, TOP, BOX_WIDTH, BOX_HEIGHT]
    images = [{"id": ord(stem), "file_name": f"{stem}.jpg", **SIZE} for stem in stems]
    annotations = []
    for stem in stems:
        category = CLASS_OF[stem] + 1
        row = {"id": ord(stem), "image_id": ord(stem), "category_id": category, "bbox": bbox}
        annotations.append(row | {"area": BOX_WIDTH * BOX_HEIGHT, "iscrowd": 0})
    categories = [{"id": number + 1, "name": name} for number, name in enumerate(NAMES)]
    return {"images": images, "annotations": annotations, "categories": categories}


def voc_xml(folder: Path) -> None:
    for stem in STEMS:
        corners = f"<xmin>{LEFT + 1}</xmin><ymin>{TOP + 1}</ymin>"
        corners += f"<xmax>{RIGHT}</xmax><ymax>{BOTTOM}</ymax>"
        size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>"
        text = f"<object><name>{name_of(stem)}</name><bndbox>{corners}</bndbox></object>"
        whole = f"<annotation><filename>{stem}.jpg</filename>{size}{text}</annotation>"
        write(folder / f"{stem}.xml", whole)


def cvat(root: Path) -> None:
    draw(root / "images")
    corners = f'xtl="{LEFT}" ytl="{TOP}" xbr="{RIGHT}" ybr="{BOTTOM}"'
    images = "".join(
        f'<image id="{number}" name="{stem}.jpg" width="{WIDTH}" height="{HEIGHT}">'
        f'<box label="{name_of(stem)}" {corners}/></image>'
        for number, stem in enumerate(STEMS)
    )
    labels = "".join(f"<label><name>{name}</name></label>" for name in NAMES)
    meta = f"<meta><task><labels>{labels}</labels></task></meta>"
    write(root / "annotations.xml", f"<annotations>{meta}{images}</annotations>")


def label_studio(root: Path) -> None:
    draw(root / "images")
    yolo_rows(root / "labels")
    write(root / "classes.txt", "\n".join(NAMES) + "\n")
    categories = [{"id": number, "name": name} for number, name in enumerate(NAMES)]
    write(root / "notes.json", {"categories": categories, "info": {}})


def label_studio_json(file: Path) -> None:
    draw(file.parent)
    tasks = []
    for stem in STEMS:
        box = {"x": 25, "y": 25, "width": 50, "height": 50, "rotation": 0}
        value = box | {"rectanglelabels": [name_of(stem)]}
        sizes = {"original_width": WIDTH, "original_height": HEIGHT}
        result = {"type": "rectanglelabels", "value": value, **sizes}
        data = {"image": f"/data/upload/1/0123abcd-{stem}.jpg"}
        tasks.append({"id": ord(stem), "data": data, "annotations": [{"result": [result]}]})
    write(file, tasks)


def labelme(root: Path) -> None:
    draw(root)
    for stem in STEMS:
        points = [[LEFT, TOP], [RIGHT, BOTTOM]]
        shape = {"label": name_of(stem), "points": points, "shape_type": "rectangle"}
        size = {"imageWidth": WIDTH, "imageHeight": HEIGHT}
        document = {"version": "5.5.0", "shapes": [shape], "imagePath": f"{stem}.jpg", **size}
        write(root / f"{stem}.json", document)


def labelimg(root: Path) -> None:
    draw(root)
    yolo_rows(root)
    write(root / "classes.txt", "\n".join(NAMES) + "\n")


def labelimg_voc(root: Path) -> None:
    draw(root)
    voc_xml(root)


def roboflow(root: Path) -> None:
    for split, stems in (("train", STEMS[:3]), ("valid", STEMS[3:])):
        draw(root / split / "images", stems)
        yolo_rows(root / split / "labels", stems)
    splits = "train: ../train/images\nval: ../valid/images\n"
    write(root / "data.yaml", f"{splits}nc: 2\nnames: [{', '.join(NAMES)}]\n")


def via(file: Path) -> None:
    draw(file.parent)
    document = {}
    for stem in STEMS:
        corner = {"x": LEFT, "y": TOP, "width": BOX_WIDTH, "height": BOX_HEIGHT}
        region = {
            "shape_attributes": {"name": "rect", **corner},
            "region_attributes": {"class": name_of(stem)},
        }
        document[f"{stem}.jpg1"] = {"filename": f"{stem}.jpg", "size": 1, "regions": [region]}
        document[f"{stem}.jpg1"]["file_attributes"] = {}
    write(file, document)


def vott(root: Path) -> None:
    draw(root)
    assets = {}
    for stem in STEMS:
        box = {"left": LEFT, "top": TOP, "width": BOX_WIDTH, "height": BOX_HEIGHT}
        region = {"type": "RECTANGLE", "tags": [name_of(stem)], "boundingBox": box}
        asset = {"name": f"{stem}.jpg", "path": f"file:/photos/{stem}.jpg", "size": SIZE}
        assets[stem] = {"asset": asset, "regions": [region]}
    tags = [{"name": name, "color": "#ff0000"} for name in NAMES]
    write(root / "pets-export.json", {"name": "pets", "tags": tags, "assets": assets})


def createml(root: Path) -> None:
    draw(root)
    center = {"x": (LEFT + RIGHT) / 2, "y": (TOP + BOTTOM) / 2}
    coordinates = center | {"width": BOX_WIDTH, "height": BOX_HEIGHT}
    rows = []
    for stem in STEMS:
        box = {"label": name_of(stem), "coordinates": coordinates}
        rows.append({"image": f"{stem}.jpg", "annotations": [box]})
    write(root / "annotations.json", rows)


def supervisely(root: Path) -> None:
    draw(root / "ds0" / "img")
    for stem in STEMS:
        # The last pixel belongs to the box.
        points = {"exterior": [[LEFT, TOP], [RIGHT - 1, BOTTOM - 1]], "interior": []}
        shape = {"classTitle": name_of(stem), "geometryType": "rectangle", "points": points}
        file = root / "ds0" / "ann" / f"{stem}.jpg.json"
        write(file, {"description": "", "tags": [], "size": SIZE, "objects": [shape]})
    classes = [{"title": name, "shape": "rectangle", "color": "#FF0000"} for name in NAMES]
    write(root / "meta.json", {"classes": classes, "tags": [], "projectType": "images"})


def darknet(root: Path) -> None:
    draw(root / "obj_train_data")
    yolo_rows(root / "obj_train_data")
    write(root / "obj.data", "classes = 2\ntrain = data/train.txt\nnames = data/obj.names\n")
    write(root / "obj.names", "\n".join(NAMES) + "\n")
    paths = [f"data/obj_train_data/{stem}.jpg\n" for stem in STEMS]
    write(root / "train.txt", "".join(paths))


def yolo(root: Path) -> None:
    draw(root / "images")
    yolo_rows(root / "labels")


def make_sense_zip(root: Path) -> None:
    """The archive of label files, put into the folder of the images."""
    draw(root)
    yolo_rows(Path("labels"))
    shutil.make_archive(str(root / "labels_my-project"), "zip", "labels")


def coco_folder(root: Path) -> None:
    for split, stems in (("train2017", STEMS[:3]), ("val2017", STEMS[3:])):
        draw(root / split, stems)
        write(root / "annotations" / f"instances_{split}.json", coco(stems))


def coco_file(file: Path) -> None:
    draw(file.parent / "images")
    write(file, coco())


def voc(root: Path) -> None:
    draw(root / "JPEGImages")
    voc_xml(root / "Annotations")
    lists = root / "ImageSets" / "Main"
    write(lists / "train.txt", "".join(f"{stem}\n" for stem in STEMS[:3]))
    write(lists / "val.txt", "".join(f"{stem}\n" for stem in STEMS[3:]))


def csv_file(file: Path) -> None:
    """TensorFlow's columns."""
    draw(file.parent / "images")
    rows = ["filename,width,height,class,xmin,ymin,xmax,ymax"]
    for stem in STEMS:
        corners = f"{LEFT},{TOP},{RIGHT},{BOTTOM}"
        rows.append(f"{stem}.jpg,{WIDTH},{HEIGHT},{name_of(stem)},{corners}")
    write(file, "\n".join(rows) + "\n")


def retinanet(file: Path) -> None:
    """Without a header, with the table of the classes beside it."""
    draw(file.parent / "images")
    corners = f"{LEFT},{TOP},{RIGHT},{BOTTOM}"
    rows = [f"images/{stem}.jpg,{corners},{name_of(stem)}\n" for stem in STEMS]
    write(file, "".join(rows))
    write(file.parent / "classes.csv", "cat,0\ndog,1\n")


def kaggle(file: Path) -> None:
    """Left, top, width and height as a list."""
    draw(file.parent / "train")
    rows = ["image_id,width,height,bbox,label"]
    box = f'"[{LEFT}, {TOP}, {BOX_WIDTH}, {BOX_HEIGHT}]"'
    rows += [f"{stem},{WIDTH},{HEIGHT},{box},{name_of(stem)}" for stem in STEMS]
    write(file, "\n".join(rows) + "\n")


def open_images(file: Path) -> None:
    """Fractions of the image, classes by a code whose name is in another file."""
    draw(file.parent / "images")
    rows = ["ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsGroupOf"]
    codes = ("/m/01yrx", "/m/0bt9lr")
    rows += [f"{stem},x,{codes[CLASS_OF[stem]]},1,0.25,0.75,0.25,0.75,0" for stem in STEMS]
    write(file, "\n".join(rows) + "\n")
    table = "".join(f"{code},{name}\n" for code, name in zip(codes, NAMES, strict=True))
    write(file.parent / "class-descriptions-boxable.csv", table)


def dota(root: Path) -> None:
    draw(root / "images")
    corners = f"{LEFT} {TOP} {RIGHT} {TOP} {RIGHT} {BOTTOM} {LEFT} {BOTTOM}"
    for stem in STEMS:
        write(root / "labelTxt" / f"{stem}.txt", f"{corners} {name_of(stem)} 0\n")


def wider_face(root: Path) -> None:
    for split, stems in (("train", STEMS[:3]), ("val", STEMS[3:])):
        draw(root / f"WIDER_{split}" / "images" / "0--Parade", stems)
        box = f"{LEFT} {TOP} {BOX_WIDTH} {BOX_HEIGHT} 0 0 0 0 0 0"
        rows = [f"0--Parade/{stem}.jpg\n1\n{box}\n" for stem in stems]
        write(root / "wider_face_split" / f"wider_face_{split}_bbx_gt.txt", "".join(rows))


def make_sense_csv(file: Path) -> None:
    """Without a header: class, box, name of the image, its size."""
    draw(file.parent)
    box = f"{LEFT},{TOP},{BOX_WIDTH},{BOX_HEIGHT}"
    rows = [f"{name_of(stem)},{box},{stem}.jpg,{WIDTH},{HEIGHT}\n" for stem in STEMS]
    write(file, "".join(rows))


def fiftyone(root: Path) -> None:
    """`fiftyone.types.COCODetectionDataset`: data/ and labels.json."""
    draw(root / "data")
    write(root / "labels.json", coco())


def datumaro(root: Path) -> None:
    """Its format `coco_instances`."""
    for split, stems in (("train", STEMS[:3]), ("val", STEMS[3:])):
        draw(root / "images" / split, stems)
        write(root / "annotations" / f"instances_{split}.json", coco(stems))


EXPORTS: dict[str, Callable[[Path], None]] = {
    "cvat.zip": cvat,
    "label-studio.zip": label_studio,
    "photos/label-studio.json": label_studio_json,
    "labelme": labelme,
    "labelimg": labelimg,
    "labelimg-voc": labelimg_voc,
    "roboflow.zip": roboflow,
    "photos/via_export_json.json": via,
    "vott-json-export": vott,
    "createml": createml,
    "supervisely.tar": supervisely,
    "darknet": darknet,
    "yolo": yolo,
    "coco": coco_folder,
    "coco/result.json": coco_file,
    "VOC2007": voc,
    "boxes.csv": csv_file,
    "retinanet/annotations.csv": retinanet,
    "kaggle/train.csv": kaggle,
    "open-images/train-annotations-bbox.csv": open_images,
    "dota": dota,
    "wider": wider_face,
    "photos/labels_my-project.csv": make_sense_csv,
    "makesense": make_sense_zip,
    "fiftyone": fiftyone,
    "datumaro": datumaro,
}


def write_export(name: str) -> Path:
    """Write the export that the page calls `name`, in the current folder; return its path."""
    path = Path(name)
    if path.suffix not in (".zip", ".tar"):
        EXPORTS[name](path)
        return path
    folder = Path("unpacked")
    EXPORTS[name](folder)
    return Path(shutil.make_archive(path.stem, path.suffix.removeprefix("."), folder))
