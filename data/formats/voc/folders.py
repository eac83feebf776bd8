"""Where the files of Pascal VOC are: images, their XML files, and the lists of image ids."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from data.formats.base import ClassNames
from data.images import ImageFiles, read_lines
from data.report import IMAGE_DROPPED, Problem
from utils.images.decode import IMAGE_SUFFIXES, is_image_name
from utils.printable import excerpt, printable

IMAGES = "JPEGImages"
LISTS = "ImageSets"
ANNOTATIONS = ("Annotations", "annotations", "labels", "xml", "xmls")
IMAGE_FOLDERS = ("images", IMAGES)
# the second column of a list for one class: absent, only difficult objects, present
LABEL_MAP = "labelmap.txt"
BACKGROUND = "background"  # in it, which is no class
COLUMN = ("-1", "0", "1")
START_BYTES = 4096  # of a list, to see whether it has ids


def is_image_set(file: Path) -> bool:
    """Whether `file` is a list of image ids, ROOT/ImageSets/Main/*.txt beside ROOT/JPEGImages.

    A list of image paths in such a folder is none: it can be read as any other list. `a.jpg` is
    the id of an image `a.jpg.png`.
    """
    if file.suffix.lower() != ".txt" or file.parent.parent.name != LISTS:
        return False
    folder = _images_folder(file)
    if not folder.is_dir():
        return False

    try:
        if not file.is_file():
            return False
        with open(file, "rb") as stream:
            words = stream.read(START_BYTES).decode("utf-8", "replace").split()
    except OSError:
        return False
    if not words:
        return False
    first = os.path.basename(words[0])
    return not is_image_name(first) or any(
        (folder / f"{first}{suffix}").is_file() for suffix in IMAGE_SUFFIXES
    )


def images_of_set(file: Path) -> ImageFiles:
    """Return the images of a list of ids, sorted by path.

    A column of -1, 0 or 1 after the ids is ignored. Lines whose image is missing or was listed
    before are reported. Raises ValueError if the list cannot be read.
    """
    # The image of each id; of several with the same id, the first by name.
    folder = _images_folder(file)
    names = {}
    for name in sorted(os.listdir(folder), reverse=True):
        if is_image_name(name):
            names[os.path.splitext(name)[0]] = name

    line_of_id: dict[str, int] = {}
    problems: list[Problem] = []
    for number, line in enumerate(read_lines(file), 1):
        if not line.strip():
            continue
        image_id = _image_id(line.strip(), names)
        if image_id not in names:
            reason = f"no image '{excerpt(image_id, 100)}' with any suffix in {printable(folder)}"
        elif image_id in line_of_id:
            first = line_of_id[image_id]
            reason = f"image '{excerpt(image_id, 100)}' was already listed in line {first}"
        else:
            line_of_id[image_id] = number
            continue
        problems.append(Problem(IMAGE_DROPPED, f"{printable(file)} line {number}", reason))

    paths = [str(folder / names[image_id]) for image_id in line_of_id]
    return ImageFiles(sorted(paths), problems)


def xml_of_set(file: Path, image: str) -> str:
    """Return the XML file of an image of the list `file`. It may not exist."""
    return str(file.parents[2] / ANNOTATIONS[0] / f"{Path(image).stem}.xml")


def xml_of_image(folder: str, image: str) -> str:
    """Return the XML file of an image in `folder`.

    It is the first of `_xml_paths` that exists, otherwise the first of all.
    """
    paths = _xml_paths(folder, image)
    return next(filter(os.path.lexists, paths), paths[0])


def xmls_of_images(folder: str, images: Sequence[str]) -> list[str]:
    """Return the XML file of each image in `folder`, which may not exist.

    In a folder where one lies beside its image, those of the others do, too: one that is missing is
    not looked for in another folder, whose images may have the same names.
    """
    beside = [f"{os.path.splitext(image)[0]}.xml" for image in images]
    own = {os.path.dirname(xml) for xml in beside if os.path.lexists(xml)}
    files = []
    for image, xml in zip(images, beside, strict=True):
        is_own = os.path.dirname(xml) in own
        files.append(xml if is_own else xml_of_image(folder, image))
    return files


def first_xml(folder: str, images: Iterable[str]) -> str:
    """Return the XML file of the first of these images in `folder` that has one, "" if none has."""
    for image in images:
        xml = xml_of_image(folder, image)
        if os.path.lexists(xml):
            return xml
    return ""


def label_map_names(folder: Path) -> ClassNames | None:
    """Return the classes of CVAT's `labelmap.txt` in a folder, None if there is none.

    Its rows are `name:color:parts:actions`; `background` is no class.
    """
    file = folder / LABEL_MAP
    if not file.is_file():
        return None
    lines = [line for line in read_lines(file) if line.strip() and not line.startswith("#")]
    names = [line.rsplit(":", 3)[0].strip() for line in lines]
    return ClassNames(tuple(name for name in names if name != BACKGROUND), str(file))


def _images_folder(file: Path) -> Path:
    return file.parents[2] / IMAGES


def _image_id(line: str, names: dict[str, str]) -> str:
    """Return the id in a line, without the second column.

    An id may contain spaces, so the whole line is tried first.

    >>> _image_id("000005 -1", {"000005": "000005.jpg"})
    '000005'
    >>> _image_id("photo 1", {"photo 1": "photo 1.jpg"})
    'photo 1'
    """
    if line in names:
        return line
    before, _, last = line.replace("\t", " ").rpartition(" ")
    has_column = before and last in COLUMN
    return before.strip() if has_column else line


def _xml_paths(folder: str, image: str) -> list[str]:
    """Return the places where the XML file of an image in `folder` may be, the preferred one first.

    Beside the image, in a folder of ANNOTATIONS beside `folder`, in these in place of the last
    folder `images` or `JPEGImages` of the image's path, and in these beside the image's folder.

    >>> _xml_paths("/a/photos", "/a/photos/b/1.jpg")[:3]
    ['/a/photos/b/1.xml', '/a/Annotations/b/1.xml', '/a/annotations/b/1.xml']
    >>> "/a/annotations/b/1.xml" in _xml_paths("/a/images/b", "/a/images/b/1.jpg")
    True
    """
    # Beside the image.
    stem = os.path.splitext(image)[0]
    paths = [f"{stem}.xml"]

    # In an annotations folder beside `folder`.
    parent = os.path.dirname(folder)
    inside = os.path.relpath(stem, folder)
    for name in ANNOTATIONS:
        paths.append(os.path.join(parent, name, f"{inside}.xml"))

    # In an annotations folder in place of the last images folder.
    parts = stem.split(os.sep)
    image_folders = [index for index, part in enumerate(parts[:-1]) if part in IMAGE_FOLDERS]
    if image_folders:
        last = image_folders[-1]
        for name in ANNOTATIONS:
            replaced = [*parts[:last], name, *parts[last + 1 :]]
            paths.append(f"{os.sep.join(replaced)}.xml")

    # In an annotations folder beside that of the image.
    image_folder, name = os.path.split(stem)
    for annotations in ANNOTATIONS:
        paths.append(os.path.join(os.path.dirname(image_folder), annotations, f"{name}.xml"))
    return list(dict.fromkeys(paths))
