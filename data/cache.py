"""The cache of decoded base images.

It is one flat uint8 file per split, which all processes of a machine memory-map.

Image i is at byte `offsets[i]`, [h, w, 3]. The file ends with a digest of what it was made from.
With `ram` it is an anonymous file in memory, freed when the last process that maps it ends. With
`disk` it is in the cache folder, where later runs find it. `device` copies the training images from
there into the memory of each process's GPU, which then draws the samples itself.
"""

import hashlib
import json
import math
import os
import shutil
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from data.augment.draw_device import POOL_PADDING
from data.augment.records import Reader
from data.base_images import DecodedImages, UnreadableImageError, decoded
from data.labels import Labels
from data.tiles.labels import TiledLabels
from utils.distributed.memory import free_memory, free_ram
from utils.distributed.world import World
from utils.files.disk import exclusive_access, format_bytes, lock_shared, remove_unused
from utils.files.fingerprint import digest_of_states
from utils.images.decode import DECODER_VERSION, quiet_decoder
from utils.images.decoder_messages import caught_messages
from utils.images.letterbox import Image
from utils.images.opencv import cv2
from utils.log import Say, say_nothing
from utils.printable import printable
from utils.shared_memory import SharedBytes, has_memfd
from utils.terminal import FaultError
from utils.threads import map_in_threads, usable_cores

UPLOAD_BYTES = 2**26  # per copy to the GPU
VERSION = 2  # increase it when a change of the code gives other bytes for the same files
RAM, DISK, DEVICE, OFF, AUTO = "ram", "disk", "device", "off", "auto"
SHARE_OF_FREE = 0.8  # max fraction of the free memory or disk to use; training needs some too
SHARE_OF_GPU = 0.5  # max fraction of the GPU's free memory
AUTO_SHARE, AUTO_MAX_BYTES = 0.1, 2**30  # limits of `auto`: fraction of the free memory, and bytes


class CachedImages:
    """Base images in a memory-mapped file, by index.

    Read-only views, uint8 [h, w, 3], blue green red.
    """

    def __init__(
        self, path: str, sizes: NDArray[np.int32], mark: bytes, owner: object = None
    ) -> None:
        """Map the file.

        sizes: [M, 2] width, height. mark: the digest at the end of the file. owner: keeps an
        anonymous file open.

        Raises OSError or ValueError if the file does not exist or ends with another mark.
        """
        self.path = path
        self.sizes = sizes
        self.mark = mark
        self.owner = owner
        self.offsets = offsets_of(sizes)
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe may block forever
            raise ValueError(f"{path}: not a regular file")

        self.pixels = np.memmap(path, np.uint8, "r")
        end = self.offsets[-1]
        has_size = len(self.pixels) == end + len(mark)
        if not has_size or self.pixels[end:].tobytes() != mark:
            raise ValueError(f"{path}: contains other images")

        self._file = open(path, "rb")  # noqa: SIM115  # holds the lock as long as the images are in use
        lock_shared(self._file.fileno())

    def __call__(self, index: int) -> Image:
        width, height = self.sizes[index].tolist()
        start = self.offsets[index]
        end = self.offsets[index + 1]
        return self.pixels[start:end].reshape(height, width, 3)

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedImages, (self.path, self.sizes, self.mark)


class DeviceImages:
    """Base images in a GPU's memory, which data/augment/draw_device.py draws from."""

    def __init__(self, images: CachedImages, device: torch.device) -> None:
        self._sizes = images.sizes
        self._offsets = images.offsets

        size = int(self._offsets[-1])
        pool = torch.zeros(size + POOL_PADDING, dtype=torch.uint8, device=device)
        for start in range(0, size, UPLOAD_BYTES):
            end = min(start + UPLOAD_BYTES, size)
            part = np.array(images.pixels[start:end])  # torch warns about read-only arrays
            pool[start:end].copy_(torch.from_numpy(part))
        self.pool: Tensor | None = pool  # None in workers

    def locate(self, index: int) -> tuple[int, int, int]:
        """Return the offset of an image's first byte in the pool, its height and its width."""
        width, height = self._sizes[index].tolist()
        return int(self._offsets[index]), height, width

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"pool": None}


def offsets_of(sizes: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the byte offset of each image, and the end of the last: [M + 1].

    sizes: [M, 2], width and height.

    >>> offsets_of(np.array([[2, 1], [4, 3]])).tolist()
    [0, 6, 42]
    """
    return np.concatenate([[0], np.cumsum(sizes.prod(1, dtype=np.int64) * 3)])


def open_base_images(
    labels: Mapping[str, Labels],
    image_size: int,
    world: World,
    say: Say = say_nothing,
    *,
    where: str,
    folder: Path | None,
    spills: bool = False,
    pastes: bool = False,
    transforms: bool = False,
) -> dict[str, Reader | DeviceImages]:
    """Return a reader of base images for each split: a cache, or their files.

    The first process of each machine creates missing caches, the others map them. If there is not
    enough room, the next best option is used, and `say` reports it.

    Args:
        labels: of each split, by name.
        image_size: side of the canvases that the images are resized for, in pixels.
        world: this process and the others.
        say: receives log lines.
        where: what was asked for: auto, ram, disk, device or off.
        folder: the cache folder on disk, None if there is none.
        spills: whether images that do not fit into memory may be cached on disk instead.
        pastes: whether the augmentation uses copy-paste, which GPUs cannot draw.
        transforms: whether there are own transforms, which run on the CPU.

    Raises ValueError for `device` with copy-paste or own transforms, and as DecodedImages does, for
    an image that is damaged or was replaced.
    """
    if where == DEVICE and pastes:
        raise ValueError(
            "--cache device does not support copy-paste (copy_paste in --hyp): choose --cache ram"
        )
    if where == DEVICE and transforms:
        raise ValueError(
            "--cache device does not support --augmentations, whose transforms run on the CPU: "
            "choose --cache ram"
        )
    splits = []
    for name, split_labels in labels.items():
        splits.append(_Split(name, _reader(name, split_labels, image_size)))

    # The first process of each machine makes the caches, the others open them.
    caches: dict[str, CachedImages] = {}
    if world.local_rank == 0:
        caches = _make_caches(splits, where, folder, spills, world.is_main, say)
    own_paths = {name: images.path for name, images in caches.items()}
    paths_of_all = world.all_gather_object(own_paths)
    if world.local_rank > 0:
        for split in splits:
            images = split.open_first([paths.get(split.name, "") for paths in paths_of_all])
            if images is not None:
                caches[split.name] = images

    counts = world.all_gather_object(len(caches))
    # another machine has less room, or a process may not open another's file
    if any(counts) and not all(counts):
        say(
            f"{counts.count(0)} of {world.size} processes have no cached images and decode them "
            "for each batch"
        )

    readers: dict[str, Reader | DeviceImages] = {}
    for split in splits:
        readers[split.name] = caches.get(split.name, split.source)
    if where == DEVICE and _fits_on_device(caches, world, say):
        readers["train"] = DeviceImages(caches["train"], world.device)
    return readers


def _reader(split: str, labels: Labels, image_size: int) -> DecodedImages:
    """Return the reader of a split's base images.

    Training cuts its tiles anywhere, so it needs whole images.
    """
    if split == "train" and isinstance(labels, TiledLabels):
        return decoded(labels.images, image_size, labels.tiling.side)
    return decoded(labels, image_size)


def _fits_on_device(
    caches: Mapping[str, CachedImages], world: World, say: Callable[[str], None]
) -> bool:
    """Whether the training images fit onto the GPUs of all processes.

    All processes get the same answer.
    """
    size = int(caches["train"].offsets[-1]) if "train" in caches else sys.maxsize
    free = free_memory(world.device) if world.device.type == "cuda" else 0
    fits = all(world.all_gather_object(size <= SHARE_OF_GPU * free))
    fallback = "the CPU draws the images"
    if world.device.type != "cuda":
        say(f"--cache device: there is no GPU; {fallback}")
    elif fits:
        say(f"the GPU draws the training images: {format_bytes(size)} in its memory")
    elif caches:
        say(
            f"--cache device: {format_bytes(size)} are too much for a GPU with "
            f"{format_bytes(free)} free; {fallback}"
        )
    return fits


def _make_caches(
    splits: Sequence["_Split"],
    where: str,
    folder: Path | None,
    spills: bool,
    progress: bool,
    say: Callable[[str], None],
) -> dict[str, CachedImages]:
    """Create or open the caches of this machine.

    Return none if there is no room, or the folder is not writable.

    Args:
        splits: the images.
        where: what was asked for.
        folder: the cache folder on disk, None if there is none.
        spills: whether images that do not fit into memory may be cached on disk instead.
        progress: show a bar on a terminal.
        say: receives a log line.
    """
    # The free bytes of each place that may be used.
    size = sum(split.size for split in splits)
    free = {RAM: free_ram() if has_memfd() else 0}
    unwritable = ""
    if folder and (where == DISK or (spills and where in (RAM, DEVICE))):
        existing = 0
        for split in splits:
            if split.open_first([str(split.file(folder))]):
                existing += split.size
        if existing < size:
            unwritable = _why_unwritable(folder)
        if not unwritable:
            # existing caches need no further room
            free[DISK] = _free_disk(folder) + math.ceil(existing / SHARE_OF_FREE)

    place = choose_location(where, size, free)
    message = _describe_choice(where, place, size, free, unwritable)

    caches: dict[str, CachedImages] = {}
    try:
        if place == RAM:
            caches = {split.name: split.in_ram(progress) for split in splits}
        elif place == DISK and folder is not None:
            caches = {split.name: split.on_disk(folder, progress) for split in splits}
    except UnreadableImageError:
        raise
    except (OSError, FaultError) as error:  # for example, another process has used up the room
        reason = getattr(error, "strerror", None) or error
        place_name = printable(folder) if place == DISK and folder else "memory"
        message = f"--cache {where}: {place_name}: {reason}; images are decoded for each batch"
        caches = {}

    if message:
        say(message)
    return caches


def choose_location(where: str, size: int, free: Mapping[str, int]) -> str:
    """Return where to cache `size` bytes if `where` is requested: ram, disk or off.

    free: free bytes of each place that may be used.

    >>> choose_location("ram", 10**9, {"ram": 10**10, "disk": 0})
    'ram'
    >>> choose_location("ram", 10**9, {"ram": 0, "disk": 10**10})
    'disk'
    >>> choose_location("auto", 10**9, {"ram": 2 * 10**9}), choose_location("off", 0, {"ram": 1})
    ('off', 'off')
    """
    if where == AUTO:
        limit = min(AUTO_SHARE * free[RAM], AUTO_MAX_BYTES)
        return RAM if size <= limit else OFF

    wanted = {DEVICE: (RAM, DISK), RAM: (RAM, DISK), DISK: (DISK,), OFF: ()}[where]
    for place in wanted:
        if size <= SHARE_OF_FREE * free.get(place, 0):
            return place
    return OFF


def _describe_choice(
    where: str, place: str, size: int, free: Mapping[str, int], unwritable: str = ""
) -> str:
    """Return a line for the log, "" for none.

    Args:
        where: what was asked for.
        place: what was chosen.
        size: bytes of the images.
        free: free bytes of each place that may be used.
        unwritable: why the cache folder cannot be used, "" if it can.
    """
    if where == OFF:
        return ""

    uncached = "decoded for each batch"
    location = "on disk" if place == DISK else "in memory"
    cached = f"cached: {format_bytes(size)} {location}"
    if where == DISK and unwritable:
        return f"--cache disk: {unwritable}; images are {uncached}"
    if place == where or (where, place) in ((AUTO, RAM), (DEVICE, RAM)):
        return f"decoded images are {cached}"
    if where == AUTO:
        return f"images are {uncached}; --cache ram or disk would cache them: {format_bytes(size)}"

    # The places with too little room.
    wanted = (DISK,) if where == DISK else (RAM, DISK)
    tried = [name for name in wanted if name in free and name != place]
    short = "no place to cache them is free"
    if tried:
        rooms = [f"{format_bytes(free[name])} of {name}" for name in tried]
        short = f"{' and '.join(rooms)} are free"

    need = f"--cache {where}: decoded images take {format_bytes(size)}, but {short}"
    if unwritable:
        need = f"{need}, and {unwritable}"
    result = uncached if place == OFF else cached
    return f"{need}; they are {result}"


def _why_unwritable(folder: Path) -> str:
    """Return why nothing can be created in a folder, "" if something can.

    A folder that does not exist would be created in the first of its parents that does.
    """
    existing = next((path for path in (folder, *folder.parents) if os.path.exists(path)), folder)
    try:
        with TemporaryDirectory(dir=existing):
            return ""
    except OSError as error:
        return f"{printable(folder)} cannot be written to ({error.strerror})"


def _free_disk(folder: Path) -> int:
    """Return the free bytes of the disk that a folder is on, or would be created on.

    0 if unknown.
    """
    for existing in (folder, *folder.parents):
        with suppress(OSError):  # the folder does not exist yet, or may not be read
            return shutil.disk_usage(existing).free
    return 0


class _Split:
    """The images of a split, and the ways to cache them."""

    def __init__(self, name: str, source: DecodedImages) -> None:
        self.name = name
        self.source = source
        self.size = int(offsets_of(source.sizes)[-1])

    @cached_property
    def mark(self) -> bytes:
        """A digest of what the cache is made from.

        Computed when needed, because it checks the state of every file.
        """
        made_of = [
            VERSION,
            DECODER_VERSION,
            cv2.__version__,
            *self.source.key,
            digest_of_states(self._paths()),
        ]
        return hashlib.sha256(json.dumps(made_of).encode()).digest()

    def _paths(self) -> list[str]:
        return [self.source.labels.path(index) for index in range(len(self.source.labels))]

    def file(self, folder: Path) -> Path:
        """Return the path of the cache on disk.

        It is the only file in its folder, named after its contents.
        """
        return folder / self._folder_name / self.mark.hex()[:16]

    @cached_property
    def _folder_name(self) -> str:
        digest = hashlib.sha256(json.dumps(self._paths()).encode()).hexdigest()
        return "-".join(["images", digest[:16], *map(str, self.source.key)])

    def open_first(self, paths: Sequence[str]) -> CachedImages | None:
        """Open the first of these files that contains the images, if any.

        Paths of other machines do not exist here.
        """
        for path in filter(None, paths):
            with suppress(OSError, ValueError):
                return CachedImages(path, self.source.sizes, self.mark)
        return None

    def in_ram(self, progress: bool) -> CachedImages:
        shared = SharedBytes(self.size + len(self.mark))
        self._fill(shared.path, progress)
        return CachedImages(shared.path, self.source.sizes, self.mark, owner=shared)

    def on_disk(self, folder: Path, progress: bool) -> CachedImages:
        """Cache the images in a file that is renamed to its path once complete.

        Remove outdated files not in use.
        """
        file = self.file(folder)
        part = file.with_name("part")
        images = self.open_first([str(file)])  # before the lock, which needs a writable folder
        if images:
            return images

        with exclusive_access(file.parent):
            images = self.open_first([str(file)])  # another process has made it meanwhile
            if images:
                return images

            for old in file.parent.iterdir():
                if old.name != "lock":
                    remove_unused(old)
            try:
                _reserve(part, self.size + len(self.mark))
                self._fill(str(part), progress)
                os.replace(part, file)
            finally:
                part.unlink(missing_ok=True)
            return CachedImages(str(file), self.source.sizes, self.mark)

    def _fill(self, path: str, progress: bool) -> None:
        """Write the images into a file of the right size; the mark once they are on the disk."""
        pixels = np.memmap(path, np.uint8, "r+")
        offsets = offsets_of(self.source.sizes)

        def write(index: int) -> None:
            pixels[offsets[index] : offsets[index + 1]] = self.source(index).reshape(-1)

        numbers = range(len(self.source.labels))
        written = map_in_threads(write, numbers, usable_cores())
        disable = None if progress else True  # None: show the bar on a terminal only
        # the scan has reported what decoders print, with the file
        with quiet_decoder(), caught_messages():
            title = f"{self.name} images"
            for _ in tqdm(written, total=len(numbers), desc=title, disable=disable, leave=False):
                pass

        pixels.flush()
        pixels[offsets[-1] :] = np.frombuffer(self.mark, np.uint8)


def _reserve(file: Path, size: int) -> None:
    """Create a file of `size` bytes with its disk space reserved.

    A mapped write to a full disk kills the process. Raises OSError if the disk is full.
    """
    with file.open("xb") as stream:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(stream.fileno(), 0, size)
        stream.truncate(size)
