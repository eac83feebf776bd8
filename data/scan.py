"""Read a split: open every image once, check every label row, store the result for the next run."""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from data import scan_cache
from data.formats import format_of
from data.formats.adapted import RenamedClasses, SelectedImages
from data.formats.base import (
    ImageRows,
    LabelFormat,
    ListedImage,
    SourceImages,
    UnreadableLabelsError,
)
from data.formats.image_finder import ImageFinder
from data.formats.listing_reader import ListingReader
from data.formats.resized import Size, fit_rows
from data.formats.tools.csv_classes import class_lists_beside
from data.formats.voc.folders import xml_of_image
from data.formats.yolo_txt import ClassNumberError, label_path
from data.formats.yolo_values import BOX_VALUES, KEYPOINT_ROWS, POLYGON_ROWS
from data.images import find_images
from data.labels import Labels, LabelsBuilder
from data.report import (
    IMAGE_DAMAGED,
    IMAGE_DROPPED,
    NO_USABLE_ROW,
    NOTE,
    OTHER_LABELS,
    REPEATED_LINES,
    ROW_DROPPED,
    RUN_FOLDERS,
    UNMATCHED_LABELS,
    VALUES_LEFT_OUT,
    Problem,
    ProblemLog,
    Report,
    counts_of,
    first_of,
)
from data.sanity.box_units import BoxesAsRead
from data.sanity.ignored_objects import ignored_text
from utils.files.fingerprint import digest_of_contents, digest_of_states
from utils.images.bit_depth import bit_depth
from utils.images.decode import (
    UnreadableFileError,
    decode_any_depth,
    has_end,
    quiet_decoder,
    read_bytes,
)
from utils.images.decoder_messages import DecoderMessages, caught_messages
from utils.images.headers import is_gray
from utils.images.orientation import stored_orientation
from utils.printable import counted, printable
from utils.threads import map_in_threads

MAX_DECODED_AGAIN = 1000  # images, in one thread
BEGINS_AT_1 = (
    "; no row has class 0, and the largest is the number of names: do they begin at 1? "
    "Then subtract 1 in all rows, or list a name for class 0 first"
)
HOW_TO_WEIGHT = (
    "to draw images more often, write 'train: [{path: a.txt, weight: 2}]' in a data YAML"
)
MIN_SIDE = 2  # pixels; smaller images are left out


class EmptySplitError(ValueError):
    """There is nothing to read, or nothing to learn from."""


class ListedSource(NamedTuple):
    """A source, its reader, and the images and problems that the reader finds."""

    source: Path
    reader: LabelFormat
    contents: SourceImages


class ImageToCheck(NamedTuple):
    """An image to be checked."""

    image: ListedImage
    reader: LabelFormat


class DecodedImage(NamedTuple):
    """An image that was decoded: its size (width, height), and what was converted."""

    size: tuple[int, int]
    bits: int | None  # the bit depth of its values if the file has 16-bit ones, otherwise None
    gray: bool
    orientation: int = 1  # of the file, as in EXIF
    # whether something was printed meanwhile, perhaps by a decoder in another thread
    warned: bool = False


class CheckedImage(NamedTuple):
    """A checked image, `image` is None if it cannot be used, and its rows.

    failed_to_read: whether its file could not be read, which may be otherwise the next time.
    """

    image: DecodedImage | None
    labels: ImageRows
    failed_to_read: bool = False


@dataclass
class SourceTotals:
    """What is counted over all images of a source."""

    boxes: BoxesAsRead = field(default_factory=BoxesAsRead)
    rows: int = 0
    ignored: int = 0  # of the rows

    def add(self, read: ImageRows, size: Size) -> None:
        """Add the rows of an image; size: for which they are."""
        self.boxes.add(read.boxes, size)
        self.rows += len(read.rows)
        self.ignored += sum(row.crowd for row in read.rows)


class CheckedImages(NamedTuple):
    """The labels of the images that can be used, the report, and how many could not be read."""

    labels: Labels
    report: Report
    unread: int


@dataclass
class ImageList:
    """The images of all sources, each once, before they are opened."""

    items: list[ImageToCheck] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    sentences: list[Problem] = field(default_factory=list)
    label_warnings: list[Problem] = field(default_factory=list)
    # of each image the source that listed it first
    first: dict[str, ListedSource] = field(default_factory=dict)
    image_of: dict[str, str] = field(default_factory=dict)  # the first image of each label file

    def add(self, listed_source: ListedSource) -> None:
        """Add the images of one more source.

        Raises ValueError if one has label files whose classes an earlier source names otherwise.
        """
        self.add_problems(listed_source.contents.problems)
        for image in listed_source.contents.images:
            self.problems += image.problems
            first = self.first.get(image.path)
            if first is not None:
                self.problems.append(_listed_twice(image, listed_source, first))
                continue
            self.first[image.path] = listed_source
            self.items.append(ImageToCheck(image, listed_source.reader))

            if listed_source.reader.lists_images:
                continue  # one file has the labels of all images
            other = self.image_of.setdefault(image.label_file, image.path)
            if other != image.path:
                reason = f"has the same label file as {printable(other)}"
                self.problems.append(Problem(NOTE, printable(image.path), reason))

    def add_problems(self, problems: Iterable[Problem]) -> None:
        """Add what is said of a source: most of it is stored, the rest is found on each start."""
        for problem in problems:
            if problem.kind in (RUN_FOLDERS, VALUES_LEFT_OUT):
                self.sentences.append(problem)
            elif problem.kind == REPEATED_LINES:
                reason = f"{problem.reason}; {HOW_TO_WEIGHT}"
                self.sentences.append(problem._replace(reason=reason))
            elif problem.kind == UNMATCHED_LABELS:
                self.label_warnings.append(problem)
            else:
                self.problems.append(problem)

    def complete(self, report: Report, state: str, long_rows: str) -> Report:
        """Return a report of these images, with what is looked at again each time.

        state: of the cache. long_rows: as in SourceImages, of all sources.
        """
        found = report.with_cache(state, self.sentences, self.label_warnings)
        return replace(found, long_rows=long_rows)


def scan(
    sources: Sequence[Path],
    names: Sequence[str],
    *,
    labels_from: Sequence[Path] = (),
    label_names: Mapping[Path, Mapping[str, str]] | None = None,
    keypoints: tuple[int, int] | None = None,
    cache_dir: Path | None = None,
    threads: int = 4,
    progress: bool = False,
    require_labels: bool = True,
) -> tuple[Labels, Report]:
    """Return the labels of `sources` and the report of all problems.

    A bad row is dropped and its image stays, unless it has no other row: as background it would
    teach that there is nothing. Such images, and those that cannot be decoded, are left out and
    reported. If there is one source and it has image and category ids, as a COCO JSON has, they are
    kept; otherwise ids count from 1.

    Args:
        sources: folders and files of any format in data/formats/.
        names: the class names.
        labels_from: the sources that have the labels of the images in `sources`; () if each source
            has its own.
        label_names: of each source whose labels have other classes: these, in the order of their
            numbers, and the one of `names` that each becomes.
        keypoints: number and dimensions of the keypoints after the boxes in YOLO's rows; None: the
            rows decide (data/formats/yolo_values.py).
        cache_dir: where the result is stored; nothing else is written.
        threads: number of threads that decode images.
        progress: show a bar on a terminal.
        require_labels: refuse images without any box. If not, such a scan is not stored.

    Raises EmptySplitError if there is no image or no label, and ValueError if a class is out of
    range.
    """
    lists = [Path(os.path.abspath(source)) for source in sources]
    label_sources = [Path(os.path.abspath(source)) for source in labels_from]
    label_names = label_names or {}
    readers, wanted, problems_of_lists = readers_of(lists, label_sources, label_names, names)
    all_files = [*lists, *label_sources]  # that are read
    listed = ImageList()
    listed.add_problems(problems_of_lists)

    # Sources with a label file for each image. With these, a stored scan of the same files can be
    # used.
    with_label_files = [
        with_keypoints(source, keypoints)
        for source in list_sources(readers, names, lists_images=False)
    ]
    long_rows = _long_rows(with_label_files)
    for source in with_label_files:
        listed.add(source)
    fingerprint = ""
    if cache_dir is not None:
        read_as = [(str(source), dict(classes)) for source, classes in label_names.items()]
        parts = (
            _fingerprint(all_files, listed),
            str(keypoints),
            str(read_as),
            _fingerprint_of_names([source for source, _ in readers], wanted),
        )
        fingerprint = " ".join(filter(None, parts))
    stored, state = _from_cache(cache_dir, all_files, names, fingerprint)
    if stored is not None:
        return stored.labels, listed.complete(stored.report, state, long_rows)

    # Files such as a COCO JSON, which list images.
    listings = list_sources(readers, names, lists_images=True)
    in_listings = [image.path for source in listings for image in source.contents.images]
    # before the images are read, so that a change during the scan makes the cache invalid
    if cache_dir is not None:
        fingerprint = f"{fingerprint} {digest_of_states(in_listings)}"
    for source in listings:
        listed.add(source)
    listed.problems += _without_entry(wanted, listed, label_sources)
    if not listed.items:
        raise EmptySplitError(_no_images(all_files, [*listed.sentences, *listed.problems]))

    # The ids of a single source are kept, if it has some.
    source_ids = None
    if len(readers) == 1:
        source_ids = (with_label_files or listings)[0].contents.category_ids
    keep_ids = source_ids is not None
    category_ids = list(range(1, len(names) + 1)) if source_ids is None else source_ids

    try:
        labels, report, unread = _check_all(
            listed, names, category_ids, keep_ids, threads, progress
        )
    except ClassNumberError as error:
        begins_at_1 = any(source.contents.begins_at_1 for source in with_label_files)
        hint = BEGINS_AT_1 if begins_at_1 else ""
        raise ValueError(f"{error}{hint}") from None
    if labels.crowd.all():  # true also for no rows at all
        reason = _no_labels(labels, listed, report)
        if require_labels:
            raise EmptySplitError(reason)
        return labels, listed.complete(replace(report, no_objects=reason), state, long_rows)
    if unread:
        state = f"not cached: {counted(unread, 'image')} could not be read this time"
    elif cache_dir is not None:
        result = scan_cache.StoredScan(labels, report, fingerprint, in_listings)
        state = _to_cache(cache_dir, all_files, names, result, state)
    return labels, listed.complete(report, state, long_rows)


def readers_of(
    sources: Sequence[Path],
    label_sources: Sequence[Path],
    label_names: Mapping[Path, Mapping[str, str]],
    names: Sequence[str],
) -> tuple[list[tuple[Path, LabelFormat]], set[str], list[Problem]]:
    """Return what is read, each with its reader; the images that are wanted of it; problems.

    Without label_sources those are the sources, and all of their images. With them, the problems
    are those of the lists of images. label_names, names: as in `scan`.
    """
    index_of = {name: index for index, name in enumerate(names)}
    wanted: set[str] = set()
    problems: list[Problem] = []
    if label_sources:
        for source in sources:
            found = find_images(source)
            wanted.update(found.images)
            problems += [problem for problem in found.problems if problem.kind != NOTE]

    readers = []
    for source in label_sources or sources:
        reader = format_of(source)
        if source in label_names:
            new_name = label_names[source]
            new_index = [index_of[name] for name in new_name.values()]
            reader = RenamedClasses(reader, list(new_name), new_index)
        if label_sources:
            reader = SelectedImages(reader, wanted)
        readers.append((source, reader))
    return readers, wanted, problems


def with_keypoints(listed_source: ListedSource, keypoints: tuple[int, int] | None) -> ListedSource:
    """Return a source whose rows have so many keypoints, if the YAML says so."""
    if keypoints is None:
        return listed_source
    count, dimensions = keypoints
    length = BOX_VALUES + count * dimensions
    images = [image._replace(box_row_length=length) for image in listed_source.contents.images]
    problems = [found for found in listed_source.contents.problems if found.kind != VALUES_LEFT_OUT]
    contents = listed_source.contents._replace(images=images, problems=problems, long_rows="")
    return listed_source._replace(contents=contents)


def _long_rows(listed_sources: Iterable[ListedSource]) -> str:
    """Return what the long rows of all sources are. Raises ValueError if they differ."""
    source_of = {listed.contents.long_rows: listed.source for listed in listed_sources}
    source_of.pop("", None)
    if len(source_of) > 1:
        keypoints = printable(source_of[KEYPOINT_ROWS])
        polygons = printable(source_of[POLYGON_ROWS])
        raise ValueError(rows_differ(keypoints, polygons))
    return next(iter(source_of), "")


def rows_differ(keypoints: str, polygons: str) -> str:
    """Return what is said of two parts of one data set whose long rows are read otherwise."""
    return (
        f"the rows with more values than a box are {KEYPOINT_ROWS} in {keypoints}, but "
        f"{POLYGON_ROWS} in {polygons}: kpt_shape in a data YAML says that all are keypoints"
    )


def _without_entry(
    wanted: set[str], listed: ImageList, label_sources: Sequence[Path]
) -> Iterator[Problem]:
    """Return the problems of wanted images that the sources of labels do not have."""
    sources = ", ".join(map(printable, label_sources[:3]))
    for path in sorted(wanted - listed.first.keys()):
        yield Problem(IMAGE_DROPPED, printable(path), f"is not in {sources}")


def _fingerprint(sources: Sequence[Path], listed: ImageList) -> str:
    """Return a text that changes when a source, an image in `listed` or its label file changes.

    Labels are small, so their contents count, whatever their times say. Images are too large to be
    read on each start.
    """
    files = [source for source in sources if os.path.isfile(source)]
    label_files = [item.image.label_file for item in listed.items]
    images = [item.image.path for item in listed.items]
    return f"{digest_of_contents([*files, *label_files])} {digest_of_states(images)}"


def _fingerprint_of_names(sources: Sequence[Path], wanted: set[str]) -> str:
    """Return a text that changes when the names of images in sources may mean other images.

    So it does when a list of classes beside a source changes. "" for sources that name none, and
    for COCO JSON, of which the paths of missing images are stored. wanted: the images that are read
    of the sources, if not all.
    """
    images = set(wanted)
    lists: list[Path] = []
    for source in sources:
        if isinstance(format_of(source), ListingReader):
            images.update(ImageFinder(source).images)
            lists += class_lists_beside(source)
    if not images and not lists:
        return ""
    names = hashlib.sha256(os.fsencode("\0".join(sorted(images)))).hexdigest()
    return f"{names} {digest_of_contents(lists)}"


def list_sources(
    readers: Sequence[tuple[Path, LabelFormat]], names: Sequence[str], *, lists_images: bool
) -> list[ListedSource]:
    """Return the sources of one kind (see LabelFormat) with the images that their readers find."""
    listed = []
    for source, reader in readers:
        if reader.lists_images == lists_images:
            contents = reader.images(source, names)
            listed.append(ListedSource(source, reader, contents))
    return listed


def _listed_twice(image: ListedImage, second: ListedSource, first: ListedSource) -> Problem:
    """Return the problem of an image that was already listed.

    If it has its own label file, its rows are the same both times, so this is only a note. If a
    file such as a COCO JSON lists it, the rows of that second entry are lost.

    Raises ValueError if the label file is read otherwise the second time, as with other classes.
    """
    source = printable(second.source)
    path = printable(image.path)
    if not second.reader.lists_images:
        if second.reader != first.reader:
            both = f"{printable(first.source)} and {source}"
            raise ValueError(f"{path} is in {both}, which have other classes or another format")
        return Problem(NOTE, source, f"{path} is also in another source")

    reason = f"{path} was already listed, in this or another source"
    return Problem(IMAGE_DROPPED, f"{source} image {image.image_id}", reason)


def _check_all(
    listed: ImageList,
    names: Sequence[str],
    category_ids: list[int],
    keep_ids: bool,
    threads: int,
    progress: bool,
) -> CheckedImages:
    """Open all images and read their rows.

    Args:
        listed: the images.
        names: the class names.
        category_ids: id of each class in COCO results.
        keep_ids: whether the images keep the ids of their source; otherwise they count from 1.
        threads: number of threads that decode images.
        progress: show a bar on a terminal.
    """
    builder = LabelsBuilder()
    problems = ProblemLog()
    problems.extend(listed.problems)
    unreadable: list[str] = []
    no_usable_row: list[str] = []
    without_file: list[ListedImage] = []
    converted: Counter[str] = Counter()
    opened: list[tuple[str, DecodedImage]] = []
    totals_of: defaultdict[Path, SourceTotals] = defaultdict(SourceTotals)
    unread = 0
    disable = None if progress else True  # None: show the bar on a terminal only
    with quiet_decoder(), caught_messages() as messages:
        # OpenCV releases the GIL.
        checked = map_in_threads(lambda item: _check(*item, names, messages), listed.items, threads)
        count = len(listed.items)
        results = tqdm(checked, total=count, desc="images", disable=disable, leave=False)
        for (image, _), (usable, read, failed_to_read) in zip(listed.items, results, strict=True):
            problems.extend(read.problems)
            unread += failed_to_read

            # Images that are left out.
            if usable is None:
                unreadable.append(printable(image.path))
                continue
            size = read.declared_size or image.declared_size or usable.size
            totals_of[listed.first[image.path].source].add(read, size)
            lost = _lost_rows(image, read)
            if lost > 0:
                no_usable_row.append(printable(image.path))
                problems.extend([_no_usable_row(image, lost)])
                continue

            if not read.has_labels:
                without_file.append(image)
            converted.update(read.converted)
            opened.append((image.path, usable))
            image_id = image.image_id if keep_ids else len(opened)
            builder.add_image(image.path, usable.size, image_id, read.rows)

        # Inside the `with`, because it reads the messages of the decoder.
        warned = [path for path, image in opened if image.warned]
        problems.extend(_damaged_images(warned, messages))

    problems.extend(_missing_label_files(without_file))
    problems.extend(_other_label_files(without_file))
    problems.extend(_converted_images(opened))

    labels = builder.build(category_ids)
    warnings, notes = _about_sources(totals_of, listed)
    if not len(labels):
        images = f"none of {len(listed.items)} images can be used"
        reasons = "".join(f"; {warning}" for warning in warnings)
        raise EmptySplitError(f"{images}{reasons}{_first_problem(problems.first)}")
    report = _report(labels, names, unreadable, no_usable_row, len(without_file), problems)
    report = replace(
        report,
        converted=tuple(converted.most_common()),
        source_warnings=tuple(warnings),
        source_notes=tuple(notes),
    )
    return CheckedImages(labels, report, unread)


def _check(
    image: ListedImage, reader: LabelFormat, names: Sequence[str], messages: DecoderMessages
) -> CheckedImage:
    """Open one image and read its rows. Raises ValueError if a class is not in `names`."""
    try:
        printed = messages.size
        opened, problems = _open(image)
        opened = opened._replace(warned=messages.size > printed)
    except ValueError as error:
        return _left_out(image, error)

    try:
        labels = _fitting_rows(image, opened, reader, names)
    except UnreadableLabelsError as error:
        return _left_out(image, error)
    return CheckedImage(opened, labels._replace(problems=problems + labels.problems))


def _fitting_rows(
    image: ListedImage, opened: DecodedImage, reader: LabelFormat, names: Sequence[str]
) -> ImageRows:
    """Return the rows of an image, turned or scaled if its labels are for another size.

    Raises UnreadableLabelsError if they cannot be read, or do not fit the image.
    """
    labels, declared = rows_as_declared(image, reader, opened.size, names)
    if declared == opened.size:
        return labels

    fitted = fit_rows(labels.rows, declared, opened.size, opened.orientation)
    if fitted is None:
        raise UnreadableLabelsError(_size_text(image, opened.size, declared))
    problem = Problem(fitted.kind, printable(image.path), fitted.reason)
    return labels._replace(rows=fitted.rows, problems=[*labels.problems, problem])


def rows_as_declared(
    image: ListedImage, reader: LabelFormat, size: Size, names: Sequence[str]
) -> tuple[ImageRows, Size]:
    """Return the rows of an image, and the size for which they are: declared, or else its own.

    Some readers find the declared size in the label file only: then the rows are read again, for
    that size. Raises UnreadableLabelsError if they cannot be read.
    """
    declared = image.declared_size or size
    labels = reader.rows(image, declared, names)
    if labels.declared_size is not None and labels.declared_size != declared:
        declared = labels.declared_size
        labels = reader.rows(image, declared, names)
    return labels, declared


def _left_out(image: ListedImage, error: ValueError) -> CheckedImage:
    """Return the result for an image that cannot be used, with the error as its problem."""
    path = printable(image.path)
    reason = str(error).removeprefix(f"{path} ")
    failed_to_read = isinstance(error, UnreadableFileError)
    return CheckedImage(None, ImageRows([], [Problem(IMAGE_DROPPED, path, reason)]), failed_to_read)


def _open(image: ListedImage) -> tuple[DecodedImage, list[Problem]]:
    """Return the upright image's size and kind, and notes about its file.

    Raises ValueError if it is unusable.
    """
    data = read_bytes(image.path)
    pixels = decode_any_depth(data, image.path)
    height, width, _ = pixels.shape
    if min(width, height) < MIN_SIDE:
        raise ValueError(
            f"{printable(image.path)} is {width}x{height}, smaller than {MIN_SIDE} pixels"
        )

    bits = bit_depth(pixels) if pixels.dtype == np.uint16 else None
    opened = DecodedImage((width, height), bits, is_gray(data), stored_orientation(data))
    if has_end(data):
        return opened, []
    reason = "JPEG without end marker, but no pixels are missing"
    return opened, [Problem(NOTE, printable(image.path), reason)]


def _size_text(image: ListedImage, size: tuple[int, int], declared: tuple[int, int]) -> str:
    """Return what is said of labels for another size (width, height) than that of their image."""
    actual = "x".join(map(str, size))
    stated = "x".join(map(str, declared))
    labels = os.path.splitext(image.label_file)[1].removeprefix(".").upper()  # such as JSON
    return (
        f"{printable(image.path)} is {actual} upright, but its {labels} says {stated}: "
        "its boxes do not fit this image"
    )


def _damaged_images(paths: Sequence[str], messages: DecoderMessages) -> Iterable[Problem]:
    """Decode images that may be damaged again, one at a time; return what each has printed.

    Those are the images during which something was printed, perhaps by another thread. At most
    MAX_DECODED_AGAIN: with many threads and a damaged image here and there, most images are decoded
    while another one prints, and all of them again in one thread would take longer than the scan. A
    JPEG without end marker has a note already; what it prints is about the bytes that were tried in
    its place.
    """
    if len(paths) > MAX_DECODED_AGAIN:
        reason = (
            f"only {MAX_DECODED_AGAIN} of {len(paths)} images that may be damaged were "
            "looked at again; this is the first of the others"
        )
        yield Problem(NOTE, printable(paths[MAX_DECODED_AGAIN]), reason)

    for path in paths[:MAX_DECODED_AGAIN]:
        data = read_bytes(path)
        if not has_end(data):
            continue
        printed = messages.size
        decode_any_depth(data, path)
        message = messages.since(printed)
        if message:
            reason = f"its decoder says '{message}'; parts of it may be wrong"
            yield Problem(IMAGE_DAMAGED, printable(path), reason)


def _about_sources(
    totals_of: Mapping[Path, SourceTotals], listed: ImageList
) -> tuple[list[str], list[str]]:
    """Return what looks like a mistake in the labels of sources as a whole, and what may be one."""
    reader_of = {found.source: found.reader for found in listed.first.values()}
    warnings: list[str] = []
    notes: list[str] = []
    for source, totals in totals_of.items():
        where = printable(source)
        if warning := totals.boxes.warning():
            warnings.append(f"{where}: {warning}")
        if ignored := ignored_text(reader_of[source].title, totals.ignored, totals.rows):
            kind = warnings if totals.ignored == totals.rows else notes
            kind.append(f"{where}: {ignored}")
    return warnings, notes


def _lost_rows(image: ListedImage, read: ImageRows) -> int:
    """Return the number of rows of an image that has no usable one, 0 if it has one.

    0 also for an image that is background on purpose.
    """
    if read.rows:
        return 0
    dropped_now = sum(problem.kind == ROW_DROPPED for problem in read.problems)
    return image.dropped_rows + dropped_now


def _no_usable_row(image: ListedImage, lost: int) -> Problem:
    label_file = printable(image.label_file)
    rows = f"its only label row in {label_file} is unusable"
    if lost > 1:
        rows = f"all {lost} label rows in {label_file} are unusable"
    reason = f"{rows}, so the image is neither labeled nor background"
    return Problem(NO_USABLE_ROW, printable(image.path), reason)


def _missing_label_files(images: Sequence[ListedImage]) -> Iterable[Problem]:
    """Return one note for all images without label file."""
    if images:
        first = images[0]
        reason = (
            f"no label file {printable(first.label_file)}, so the image counts as background; "
            f"images without label file: {len(images)}"
        )
        yield Problem(NOTE, printable(first.path), reason)


def _other_label_files(images: Iterable[ListedImage]) -> Iterator[Problem]:
    """Return the problems of images without label file that have one of a format that is not read.

    The format of a folder is that of its first labels, so a part of another tool may be in it.
    """
    for image in images:
        stem = os.path.splitext(image.path)[0]
        xml = xml_of_image(os.path.dirname(image.path), image.path)
        for file in (label_path(image.path), xml, f"{stem}.json"):
            if os.path.isfile(file):
                reason = f"has no {printable(image.label_file)}, but {printable(file)}"
                yield Problem(OTHER_LABELS, printable(image.path), reason)
                break


def _converted_images(opened: Sequence[tuple[str, DecodedImage]]) -> Iterable[Problem]:
    """Return one note for all 16-bit images, and one for all gray images."""
    deep = [(path, image.bits) for path, image in opened if image.bits is not None]
    if deep:
        counts = sorted(Counter(bits for _, bits in deep).items())
        depths = ", ".join(f"{count} of {bits} bits" for bits, count in counts)
        scaled = "each is scaled to 8 bits from the smallest usual bit depth that holds its values"
        reason = f"has 16-bit values; {scaled}; images with 16-bit values: {depths}"
        first_path, _ = deep[0]
        yield Problem(NOTE, printable(first_path), reason)

    gray = [path for path, image in opened if image.gray]
    if gray:
        count = len(gray)
        reason = f"has one channel, which is used for all three; images with one channel: {count}"
        yield Problem(NOTE, printable(gray[0]), reason)


def _report(
    labels: Labels,
    names: Sequence[str],
    unreadable: list[str],
    no_usable_row: list[str],
    without_file: int,
    problems: ProblemLog,
) -> Report:
    """Return the report of the labels and the problems.

    Args:
        labels: of the usable images.
        names: the class names.
        unreadable: images that cannot be used.
        no_usable_row: images with label rows, none of which can be used.
        without_file: the number of images without label file.
        problems: all problems.
    """
    return Report(
        **counts_of(labels, names),
        without_label_file=without_file,
        unreadable=tuple(unreadable),
        no_usable_row=tuple(no_usable_row),
        problem_counts=tuple(problems.counts.most_common()),
        problems=tuple(problems.first),
    )


def _no_images(sources: Sequence[Path], problems: Sequence[Problem]) -> str:
    """Return the text of the error for sources without images."""
    where = ", ".join(map(printable, sources[:3]))
    more = " ..." if len(sources) > 3 else ""
    return f"no images in {where}{more}{_first_problem(problems)}"


def _first_problem(problems: Sequence[Problem]) -> str:
    """Return the end of an error's sentence that names the first problem; "" if there is none."""
    first = first_of(problems)
    return f"; the first problem is {first}" if first else ""


def _no_labels(labels: Labels, listed: ImageList, report: Report) -> str:
    """Return the text of the error for images without a box to learn from."""
    images = counted(len(labels), "image")
    problem = _first_problem(report.problems)
    if len(labels.crowd):
        ignored = "; ".join(report.source_warnings)
        return f"no object to learn from in {images}: {ignored}{problem}"

    first = listed.items[0].image
    state = ""
    if not os.path.exists(first.label_file):
        state = ", which does not exist"
        if os.path.dirname(first.label_file) != os.path.dirname(first.path):
            state += _where_else(first.label_file)
    elif os.path.getsize(first.label_file) == 0:
        state = ", which is empty"

    reason = (
        f"those of the first image {printable(first.path)} should be in "
        f"{printable(first.label_file)}{state}"
    )
    for warning in listed.label_warnings:
        reason += f"; {warning.reason}"
    return f"no labels for {images}: {reason}{problem}"


def _where_else(label_file: str) -> str:
    """Return what is said of a file with the name of a missing label file, in another folder."""
    folder, name = os.path.split(label_file)
    parent, expected = os.path.split(folder)
    if not os.path.isdir(parent):
        return ""
    for other in sorted(os.listdir(parent)):
        if other != expected and os.path.isfile(os.path.join(parent, other, name)):
            found = printable(os.path.join(parent, other))
            return f"; {found} has a file {printable(name)}: call that folder {expected}"
    return ""


def _from_cache(
    cache_dir: Path | None, sources: Sequence[Path], names: Sequence[str], fingerprint: str
) -> tuple[scan_cache.StoredScan | None, str]:
    """Return the stored scan, and the state of the cache for the log.

    The scan is None if it is missing, damaged or outdated. fingerprint: of the files as they are
    now, without the images that COCO files list.
    """
    if cache_dir is None:
        return None, "not cached: no home folder, and no --cache-dir"

    try:
        stored = scan_cache.load(scan_cache.cache_file(cache_dir, sources, names))
    except ValueError as error:
        return None, f"damaged cache rebuilt: {error}"

    if stored is None:
        return None, "cached now"
    if stored.fingerprint != f"{fingerprint} {digest_of_states(stored.listed)}":
        return None, "files changed, cache rebuilt"
    return stored, "from cache"


def _to_cache(
    cache_dir: Path,
    sources: Sequence[Path],
    names: Sequence[str],
    stored: scan_cache.StoredScan,
    state: str,
) -> str:
    """Store the scan; return `state`, or the reason if it cannot be stored: that is no error.

    Args:
        cache_dir: the folder of the caches.
        sources: of the scan.
        names: the class names.
        stored: the scan.
        state: of the cache, for the log.
    """
    try:
        scan_cache.store(scan_cache.cache_file(cache_dir, sources, names), stored)
    except OSError as error:
        return f"not cached: {printable(cache_dir)}: {error.strerror}"
    return state
