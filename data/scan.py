"""Read a split: every image opened once, every label row checked, the result stored for the next run."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from data import scan_cache
from data.coco_json import CocoFile, CocoImage, read_coco, rows_inside
from data.images import decode_bgr, find_images, has_end, quiet_decoder, read_bytes
from data.labels import Labels, LabelsBuilder, Row
from data.report import IMAGE_DROPPED, NOTE, Problem, ProblemLog, Report
from data.yolo_txt import label_path, parse_label_file
from utils.printable import excerpt, shown
from utils.threads import in_threads

MIN_SIDE = 2  # pixels; a smaller image is left out


class Item(NamedTuple):
    """An image to be checked, with the rows that its COCO JSON gives it; None if it has a label file instead."""

    path: str
    image_id: int
    declared_size: tuple[int, int] | None
    rows: list[Row] | None
    where: str  # the image itself, or the COCO JSON that lists it


class Checked(NamedTuple):
    """An opened image: its size (width, height) or None if it cannot be used."""

    size: tuple[int, int] | None
    rows: list[Row]
    problems: list[Problem]
    has_labels: bool


@dataclass
class Listed:
    """The images of all sources, before any is opened."""

    items: list[Item] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def scan(
    sources: Sequence[Path],
    names: Sequence[str],
    *,
    cache_dir: Path | None = None,
    threads: int = 4,
    progress: bool = False,
) -> tuple[Labels, Report]:
    """The labels of `sources` (folders, .txt lists, COCO .json files) and the report of all that was wrong with them.

    A bad row goes and its image stays; an image that cannot be decoded goes and is listed; nothing is written but one
    file in `cache_dir`. Image and category ids are the JSON's own if it is the only source, else they count from 1.
    Raises ValueError if there is no image or no label, or a class is out of range.
    """
    sources = [Path(os.path.abspath(source)) for source in sources]
    listed = _list_files(sources)
    own = [path for item in listed.items for path in (item.path, label_path(item.path))]
    before = scan_cache.fingerprint(source for source in sources if os.path.isfile(source))
    stored, state = _from_cache(
        cache_dir, sources, names, lambda told: f"{before} {scan_cache.fingerprint(own + told)}"
    )
    if stored is not None:
        return stored.labels, stored.report.with_cache(state)

    coco = [read_coco(source, names) for source in sources if _is_coco(source)]
    told = [image.path for part in coco for image in part.images]
    mark = f"{before} {scan_cache.fingerprint(own + told)}"  # taken before the images are read: a later change shows
    _add_coco(listed, [source for source in sources if _is_coco(source)], coco)
    if not listed.items:
        raise ValueError(_no_images(sources, listed.problems))
    single = coco[0] if len(sources) == len(coco) == 1 else None
    category_ids = single.category_ids if single else range(1, len(names) + 1)
    labels, report = _check_all(listed, names, list(category_ids), single is not None, threads, progress)
    if cache_dir is not None:
        state = _to_cache(cache_dir, sources, names, scan_cache.Stored(labels, report, mark, told), state)
    return labels, report.with_cache(state)


def _is_coco(source: Path) -> bool:
    return source.suffix.lower() == ".json" and not os.path.isdir(source)


def _list_files(sources: Sequence[Path]) -> Listed:
    """The images of folders and .txt lists; each once."""
    listed = Listed()
    seen: set[str] = set()
    image_of: dict[str, str] = {}
    for source in sources:
        if _is_coco(source):
            continue
        images, problems = find_images(source)
        listed.problems.extend(problems)
        for path in images:
            if path in seen:
                listed.problems.append(Problem(NOTE, shown(source), f"{shown(path)} comes from another source too"))
                continue
            seen.add(path)
            listed.items.append(Item(path, 0, None, None, path))
            if (other := image_of.setdefault(label_path(path), path)) != path:
                listed.problems.append(Problem(NOTE, shown(path), f"has the same label file as {shown(other)}"))
    return listed


def _add_coco(listed: Listed, files: Sequence[Path], parts: Sequence[CocoFile]) -> None:
    seen = {item.path for item in listed.items}
    for file, part in zip(files, parts, strict=True):
        listed.problems.extend(part.problems)
        for image, rows in zip(part.images, part.rows, strict=True):
            if image.path in seen:
                reason = f"{shown(image.path)} is listed before, by this or another source"
                listed.problems.append(Problem(IMAGE_DROPPED, f"{shown(file)} image {image.image_id}", reason))
                continue
            seen.add(image.path)
            listed.items.append(_coco_item(file, image, rows))


def _coco_item(file: Path, image: CocoImage, rows: list[Row]) -> Item:
    return Item(image.path, image.image_id, image.declared_size, rows, str(file))


def _check_all(
    listed: Listed, names: Sequence[str], category_ids: list[int], keep_ids: bool, threads: int, progress: bool
) -> tuple[Labels, Report]:
    builder = LabelsBuilder()
    problems = ProblemLog()
    problems.extend(listed.problems)
    unreadable: list[str] = []
    without_file: list[str] = []
    checked = in_threads(lambda item: _check(item, len(names)), listed.items, threads)  # OpenCV holds no lock
    hidden = None if progress else True  # None: unless there is a terminal
    with quiet_decoder():
        shown_on = tqdm(checked, total=len(listed.items), desc="images", disable=hidden, leave=False)
        for item, result in zip(listed.items, shown_on, strict=True):
            problems.extend(result.problems)
            if result.size is None:
                unreadable.append(shown(item.path))
                continue
            if not result.has_labels:
                without_file.append(item.path)
            image_id = item.image_id if keep_ids else len(builder.paths) + 1
            builder.add_image(item.path, result.size, image_id, result.rows)
    problems.extend(_missing_label_files(without_file))
    labels = builder.build(category_ids)
    _require_labels(labels, listed, problems.first)
    return labels, _report(labels, names, unreadable, len(without_file), problems)


def _check(item: Item, num_classes: int) -> Checked:
    """Opens one image and reads its rows. Raises ValueError if a class is out of range."""
    problems: list[Problem] = []
    try:
        size = _image_size(item, problems)
        rows, has_labels = item.rows, True
        if rows is None:
            data = _label_bytes(item.path)
            has_labels = data is not None
    except ValueError as error:
        reason = str(error).removeprefix(f"{shown(item.path)} ")
        return Checked(None, [], [Problem(IMAGE_DROPPED, shown(item.path), reason)], True)
    if rows is None:
        rows, more = parse_label_file(data or b"", label_path(item.path), size, num_classes)
    else:
        rows, more = rows_inside(rows, size, shown(item.where))
    return Checked(size, rows, problems + more, has_labels)


def _image_size(item: Item, problems: list[Problem]) -> tuple[int, int]:
    """Width and height of the upright image. Raises ValueError if it cannot be used.

    An image whose size is not what its JSON says cannot: nobody knows which pixels its boxes mean (scaled? rotated?).
    """
    data = read_bytes(item.path)
    height, width, _ = decode_bgr(data, item.path).shape
    if min(width, height) < MIN_SIDE:
        raise ValueError(f"{shown(item.path)} is {width}x{height}, smaller than {MIN_SIDE} pixels")
    if item.declared_size not in (None, (width, height)):
        declared = "x".join(map(str, item.declared_size or ()))
        problem = f"{width}x{height} upright, but its JSON says {declared}: the boxes are for other pixels"
        raise ValueError(f"{shown(item.path)} is {problem}")
    if not has_end(data):
        problems.append(Problem(NOTE, shown(item.path), "a JPEG without end marker; all its pixels are there"))
    return width, height


def _label_bytes(image_path: str) -> bytes | None:
    """The image's label file, or None if it has none. Raises ValueError if there is one that cannot be read."""
    path = label_path(image_path)
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:  # there may be one, behind a locked folder: not background
        pass
    return read_bytes(path)


def _missing_label_files(images: Sequence[str]) -> Iterable[Problem]:
    if images:
        reason = (
            f"no label file {shown(label_path(images[0]))}; taken as background, images of this kind: {len(images)}"
        )
        yield Problem(NOTE, shown(images[0]), reason)


def _report(
    labels: Labels, names: Sequence[str], unreadable: list[str], without_file: int, problems: ProblemLog
) -> Report:
    counts = np.bincount(labels.classes[~labels.crowd], minlength=len(names)).tolist()
    return Report(
        images=len(labels),
        background=int((np.diff(labels.offsets) == 0).sum()),
        without_label_file=without_file,
        instances=sum(counts),
        crowd=int(labels.crowd.sum()),
        polygons=int((np.diff(labels.point_offsets) > 0).sum()),
        instances_per_class=tuple(zip(names, counts, strict=True)),
        unreadable=tuple(unreadable),
        problem_counts=tuple(problems.counts.most_common()),
        problems=tuple(problems.first),
    )


def _no_images(sources: Sequence[Path], problems: Sequence[Problem]) -> str:
    where = ", ".join(map(shown, sources[:3])) + (" ..." if len(sources) > 3 else "")
    first = f"; the first problem is {problems[0]}" if problems else ""
    return f"no images in {where}{first}"


def _require_labels(labels: Labels, listed: Listed, problems: Sequence[Problem]) -> None:
    """Raises ValueError if no image or no box to learn from is left; it names the first image and its label file."""
    serious = [problem for problem in problems if problem.kind != NOTE]
    first_problem = f"; the first problem is {excerpt(str(serious[0]), 600)}" if serious else ""
    if not len(labels):
        raise ValueError(f"none of {len(listed.items)} images can be used{first_problem}")
    if labels.crowd.all():  # true also for no rows at all
        first = listed.items[0]
        looked = label_path(first.path) if first.rows is None else first.where
        found = "" if os.path.exists(looked) else ", which does not exist"
        what = f"the labels of the first image {shown(first.path)} were looked for in {shown(looked)}{found}"
        raise ValueError(f"no labels for {len(labels)} images: {what}{first_problem}")


def _from_cache(
    cache_dir: Path | None, sources: Sequence[Path], names: Sequence[str], current: Callable[[list[str]], str]
) -> tuple[scan_cache.Stored | None, str]:
    """The stored scan if it is whole and of the files as they are `current`ly; and a word on what was found."""
    if cache_dir is None:
        return None, "not cached: no home folder, and no --cache-dir"
    try:
        stored = scan_cache.load(scan_cache.cache_file(cache_dir, sources, names))
    except ValueError as error:
        return None, f"damaged cache rebuilt: {error}"
    if stored is None:
        return None, "cached now"
    if stored.fingerprint != current(stored.listed):
        return None, "files changed, cached anew"
    return stored, "from cache"


def _to_cache(
    cache_dir: Path, sources: Sequence[Path], names: Sequence[str], stored: scan_cache.Stored, state: str
) -> str:
    """Stores the scan; returns `state`, or why it could not be stored, which is no reason to stop."""
    try:
        scan_cache.store(scan_cache.cache_file(cache_dir, sources, names), stored)
    except OSError as error:
        return f"not cached: {shown(cache_dir)}: {error.strerror}"
    return state
