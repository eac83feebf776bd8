"""Base images decoded once: a flat uint8 file for each split, which all processes of a machine map into their memory.

Image i lies at `offsets[i]`, [h, w, 3]; the file ends with a digest of what it was made from. In `ram` it has no name
and is freed with the last process that maps it; on `disk` it lies in the cache folder, where later runs find it.
`device` copies the training images from there into the memory of each process's GPU, which then draws them itself.
"""

import hashlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from data.augment.draw_device import SPARE
from data.base_images import DecodedImages, Reader
from data.images import quiet_decoder
from data.labels import Labels
from data.scan_cache import fingerprint
from utils.distributed.memory import free_memory, free_ram
from utils.distributed.world import World
from utils.files.disk import exclusive_access, format_bytes, lock_shared, remove_unused
from utils.letterbox import Image
from utils.opencv import cv2
from utils.shared_memory import SharedBytes, has_nameless_files
from utils.terminal import FaultError
from utils.threads import map_in_threads

UPLOAD_BYTES = 2**26  # at a time
VERSION = 1  # raise it when the same files would give other bytes
RAM, DISK, DEVICE, OFF, AUTO = "ram", "disk", "device", "off", "auto"
SHARE_OF_FREE = 0.8  # of memory or disk; training needs some too
SHARE_OF_GPU = 0.5  # of its free memory
UNASKED_SHARE, UNASKED_BYTES = 0.1, 2**30  # of free memory, and at most, what `auto` takes


class CachedImages:
    """Base images of a mapped file by index: views of it, which cannot be written to."""

    def __init__(self, path: str, sizes: NDArray[np.int32], mark: bytes, owner: object = None) -> None:
        """sizes: [M, 2] width, height. owner: what keeps a file without a name alive.

        Raises OSError or ValueError if the file does not exist or has another mark.
        """
        self.path, self.sizes, self.mark, self.owner = path, sizes, mark, owner
        self.offsets = offsets_of(sizes)
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe may block forever
            raise ValueError(f"{path}: is not a regular file")
        self.pixels = np.memmap(path, np.uint8, "r")
        if len(self.pixels) != self.offsets[-1] + len(mark) or self.pixels[self.offsets[-1] :].tobytes() != mark:
            raise ValueError(f"{path}: holds other images")
        self._file = open(path, "rb")  # noqa: SIM115  # for as long as the images are in use
        lock_shared(self._file.fileno())

    def __call__(self, index: int) -> Image:
        width, height = self.sizes[index].tolist()
        return self.pixels[self.offsets[index] : self.offsets[index + 1]].reshape(height, width, 3)

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedImages, (self.path, self.sizes, self.mark)


class DeviceImages:
    """Base images in a GPU's memory, to be drawn there (data/augment/draw_device.py)."""

    def __init__(self, images: CachedImages, device: torch.device) -> None:
        self._sizes, self._offsets = images.sizes, images.offsets
        size = int(self._offsets[-1])
        self.pool: Tensor | None = torch.zeros(size + SPARE, dtype=torch.uint8, device=device)  # loader processes: None
        for start in range(0, size, UPLOAD_BYTES):
            part = np.array(images.pixels[start : min(start + UPLOAD_BYTES, size)])  # torch warns of what is read-only
            self.pool[start : start + len(part)].copy_(torch.from_numpy(part))

    def locate(self, index: int) -> tuple[int, int, int]:
        """The first byte of an image in the pool, its height and width."""
        width, height = self._sizes[index].tolist()
        return int(self._offsets[index]), height, width

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"pool": None}


def offsets_of(sizes: NDArray[np.int32]) -> NDArray[np.int64]:
    """[M + 1] where each image of `sizes` [M, 2] begins, and the end of the last.

    >>> offsets_of(np.array([[2, 1], [4, 3]])).tolist()
    [0, 6, 42]
    """
    return np.concatenate([[0], np.cumsum(sizes.prod(1, dtype=np.int64) * 3)])


def open_images(
    labels: Mapping[str, Labels],
    image_size: int,
    world: World,
    say: Callable[[str], None] = lambda _: None,
    *,
    where: str,
    folder: Path | None,
    spills: bool = False,
    pastes: bool = False,
) -> dict[str, Reader | DeviceImages]:
    """What gives the base images of each split: a cache (`where`: auto, ram, disk, device or off), else their files.

    folder: of caches on disk, None if there is none. spills: what does not fit into memory may go there unasked. The
    first process of each machine makes what does not exist, the others map it. Where there is not enough room the next
    best place is taken, and `say` reports it.
    pastes: whether copy-paste is to be drawn, which GPUs do not. Raises ValueError for that, and as DecodedImages does,
    for an image that is damaged or was replaced.
    """
    if where == DEVICE and pastes:
        raise ValueError("--cache device: GPUs draw no copy-paste (copy_paste in --hyp); choose --cache ram")
    splits = [_Split(name, DecodedImages(own, image_size)) for name, own in labels.items()]
    made = _make(splits, where, folder, spills, world.is_main, say) if world.local_rank == 0 else {}
    paths = world.all_gather_object({name: images.path for name, images in made.items()})
    if world.local_rank > 0:
        found = {split.name: split.found([own.get(split.name, "") for own in paths]) for split in splits}
        made = {name: images for name, images in found.items() if images}
    have = world.all_gather_object(len(made))
    if any(have) and not all(have):  # another machine has less room, or a process may not open another's file
        say(f"{have.count(0)} of {world.size} processes have no decoded images, and decode them for each batch")
    readers: dict[str, Reader | DeviceImages] = {split.name: made.get(split.name, split.source) for split in splits}
    if where == DEVICE and _fits_on_device(made, world, say):
        readers["train"] = DeviceImages(made["train"], world.device)
    return readers


def _fits_on_device(made: Mapping[str, CachedImages], world: World, say: Callable[[str], None]) -> bool:
    """Whether the training images go onto the GPUs of all processes."""
    size = int(made["train"].offsets[-1]) if "train" in made else sys.maxsize
    free = free_memory(world.device) if world.device.type == "cuda" else 0
    fits = all(world.all_gather_object(size <= SHARE_OF_GPU * free))
    stay = "images stay where they are"
    if world.device.type != "cuda":
        say(f"--cache device: there is no GPU; {stay}")
    elif fits:
        say(f"training images are drawn by the GPU: {format_bytes(size)} in its memory")
    elif made:
        say(f"--cache device: {format_bytes(size)} are too much for a GPU with {format_bytes(free)} free; {stay}")
    return fits


def _make(
    splits: Sequence["_Split"],
    where: str,
    folder: Path | None,
    spills: bool,
    progress: bool,
    say: Callable[[str], None],
) -> dict[str, CachedImages]:
    """The caches of this machine; none if there is no room."""
    size, free = sum(split.size for split in splits), {RAM: free_ram() if has_nameless_files() else 0}
    if folder and (where == DISK or (spills and where in (RAM, DEVICE))):
        there = sum(split.size for split in splits if split.found([str(split.file(folder))]))
        free[DISK] = _free_disk(folder) + round(there / SHARE_OF_FREE)  # what exists already takes none
    place = choose_place(where, size, free)
    if sentence := _in_words(where, place, size, free):
        say(sentence)
    try:
        if place == RAM:
            return {split.name: split.in_ram(progress) for split in splits}
        if place == DISK and folder is not None:
            return {split.name: split.on_disk(folder, progress) for split in splits}
    except (OSError, FaultError) as error:  # another process took the room, or it is not writable
        say(f"--cache {where}: {error}; images are decoded for each batch")
    return {}


def choose_place(where: str, size: int, free: Mapping[str, int]) -> str:
    """Where `size` bytes are kept if `where` is asked for and so many bytes are free: ram, disk or off.

    free: of the places that may be used.

    >>> choose_place("ram", 10**9, {"ram": 10**10, "disk": 0}), choose_place("ram", 10**9, {"ram": 0, "disk": 10**10})
    ('ram', 'disk')
    >>> choose_place("auto", 10**9, {"ram": 2 * 10**9}), choose_place("off", 0, {"ram": 1})
    ('off', 'off')
    """
    if where == AUTO:
        return RAM if size <= min(UNASKED_SHARE * free[RAM], UNASKED_BYTES) else OFF
    wanted = {DEVICE: (RAM, DISK), RAM: (RAM, DISK), DISK: (DISK,), OFF: ()}[where]
    return next((place for place in wanted if size <= SHARE_OF_FREE * free.get(place, 0)), OFF)


def _in_words(where: str, place: str, size: int, free: Mapping[str, int]) -> str:
    if where == OFF:
        return ""
    each, once = (
        "decoded for each batch",
        f"decoded once: {format_bytes(size)} {'on disk' if place == DISK else 'in memory'}",
    )
    if place == where or (where, place) in ((AUTO, RAM), (DEVICE, RAM)):
        return f"images are {once}"
    if where == AUTO:
        return f"images are {each}; --cache ram or disk keeps them decoded: {format_bytes(size)}"
    tried = [name for name in (RAM, DISK) if name in free and name != place and not (name == RAM and where == DISK)]
    short = " and ".join(f"{format_bytes(free[name])} of {name}" for name in tried) or "no place for them"
    need = f"--cache {where}: decoded images take {format_bytes(size)}, but {short} {'are' if tried else 'is'} free"
    return f"{need}; they are {each if place == OFF else once}"


def _free_disk(folder: Path) -> int:
    """Bytes free on the disk that a folder is, or would be, on; 0 if that is unknown."""
    for place in (folder, *folder.parents):
        with suppress(OSError):  # it does not exist yet, or may not be read
            return shutil.disk_usage(place).free
    return 0


class _Split:
    """The images of a split, and the ways to keep them."""

    def __init__(self, name: str, source: DecodedImages) -> None:
        self.name, self.source = name, source
        self.size = int(offsets_of(source.sizes)[-1])

    @cached_property
    def mark(self) -> bytes:
        """A digest of what they are made from. It asks for the state of each file, so it is computed when needed."""
        made_of = [VERSION, cv2.__version__, self.source.image_size, fingerprint(self._paths())]
        return hashlib.sha256(json.dumps(made_of).encode()).digest()

    def _paths(self) -> list[str]:
        return [self.source.labels.path(index) for index in range(len(self.source.labels))]

    def file(self, folder: Path) -> Path:
        """Where they are kept on disk: the only file of its folder, named after its contents."""
        return folder / self._folder_name / self.mark.hex()[:16]

    @cached_property
    def _folder_name(self) -> str:
        own = hashlib.sha256(json.dumps(self._paths()).encode()).hexdigest()
        return f"images-{own[:16]}-{self.source.image_size}"

    def found(self, paths: Sequence[str]) -> CachedImages | None:
        """The first of these files that holds them. A path of another machine does not exist here."""
        for path in filter(None, paths):
            with suppress(OSError, ValueError):
                return CachedImages(path, self.source.sizes, self.mark)
        return None

    def in_ram(self, progress: bool) -> CachedImages:
        shared = SharedBytes(self.size + len(self.mark))
        self._fill(shared.path, progress)
        return CachedImages(shared.path, self.source.sizes, self.mark, owner=shared)

    def on_disk(self, folder: Path, progress: bool) -> CachedImages:
        """In a file that exists whole or not at all. An outdated one that is not in use is removed."""
        file = self.file(folder)
        part = file.with_name("part")
        if found := self.found([str(file)]):  # before the lock, which needs a writable folder
            return found
        with exclusive_access(file.parent):
            if found := self.found([str(file)]):
                return found
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
        """Write the images into a file of the right size, and the mark once they are on the disk."""
        pixels, offsets = np.memmap(path, np.uint8, "r+"), offsets_of(self.source.sizes)

        def write(index: int) -> None:
            pixels[offsets[index] : offsets[index + 1]] = self.source(index).reshape(-1)

        numbers = range(len(self.source.labels))
        written = map_in_threads(write, numbers, os.cpu_count() or 1)
        hidden = None if progress else True  # None: unless there is a terminal
        with quiet_decoder():
            for _ in tqdm(written, total=len(numbers), desc=f"{self.name} images", disable=hidden, leave=False):
                pass
        pixels.flush()
        pixels[offsets[-1] :] = np.frombuffer(self.mark, np.uint8)


def _reserve(file: Path, size: int) -> None:
    """A new file of so many bytes, its room on the disk reserved: a mapped write to a full disk kills."""
    with file.open("xb") as stream:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(stream.fileno(), 0, size)
        stream.truncate(size)
