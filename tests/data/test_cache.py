"""The image cache: same bytes as the files, reused by later runs, rebuilt after changes, never a
reason to fail.
"""

import json
import multiprocessing
import os
import pickle
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from data import Augmentation, cache, trial_drawing
from data.base_images import DecodedImages, UnreadableImageError
from data.cache import CachedImages, DeviceImages, choose_location, offsets_of, open_base_images
from data.labels import Labels, LabelsBuilder
from tests.data.test_loader import (
    ALL_AUGMENTATIONS,
    SIDE,
    SIZES,
    contents,
    epochs_of,
    train_loader,
    write_data,
)
from tests.support.own_process import run_program
from utils.distributed.world import World
from utils.images.decode import read_image
from utils.images.letterbox import base_sizes

SINGLE_PROCESS = World(torch.device("cpu"))
GIB = 2**30
NO_COPY_PASTE = Augmentation(
    **vars(ALL_AUGMENTATIONS) | {"copy_paste": 0.0}
)  # not supported by DeviceImages


def open_train_images(
    labels: Labels, where: str, folder: Path | None = None
) -> tuple[object, list[str]]:
    """Return the reader of the images of one split, and the log lines."""
    lines: list[str] = []
    settings = {"folder": folder, "spills": True, "world": SINGLE_PROCESS, "say": lines.append}
    images = open_base_images({"train": labels}, SIDE, where=where, **settings)  # type: ignore[arg-type]
    return images["train"], lines


@pytest.mark.parametrize("where", ["ram", "disk", "auto", "off"])
def test_cached_images_equal_decoded_images(tmp_path: Path, where: str) -> None:
    labels = write_data(tmp_path)
    images, lines = open_train_images(labels, where, tmp_path / "cache")
    plain = DecodedImages(labels, SIDE)
    assert isinstance(images, DecodedImages) == (where == "off")
    for index in range(len(labels)):
        assert images(index).shape == plain(index).shape
        assert images(index).tobytes() == plain(index).tobytes()
    size = sum(
        max(1, round(w * SIDE / max(w, h))) * max(1, round(h * SIDE / max(w, h))) * 3
        for w, h in SIZES
    )
    kept = {"disk": "on disk", "off": None}.get(where, "in memory")
    assert lines == ([f"decoded images are cached: {size / 1000:.1f} kB {kept}"] if kept else [])


@pytest.mark.slow
@pytest.mark.parametrize("where", ["ram", "disk"])
def test_batches_from_cache_equal_uncached_batches(tmp_path: Path, where: str) -> None:
    labels = write_data(tmp_path)
    images, _ = open_train_images(labels, where, tmp_path / "cache")
    plain = [contents(batch) for batch in epochs_of(train_loader(labels), 2)]
    for workers in (0, 2):
        assert [
            contents(b) for b in epochs_of(train_loader(labels, images=images, workers=workers), 2)
        ] == plain


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_device_drawn_batches_match_host_batches(tmp_path: Path, workers: int) -> None:
    """With the CPU as the device: the same boxes, and nearly the same pixels."""
    labels = write_data(tmp_path)
    images, _ = open_train_images(labels, "ram")
    on_device = DeviceImages(images, torch.device("cpu"))
    host, device = (
        epochs_of(train_loader(labels, images=own, workers=workers, augmentation=NO_COPY_PASTE), 3)
        for own in (None, on_device)
    )
    for one, other in zip(host, device, strict=True):
        assert contents(one)[1:] == contents(other)[1:]
        difference = (one.images.int() - other.images.int()).abs()
        assert other.images.dtype == torch.uint8
        assert other.images.shape == one.images.shape
        assert (
            difference.float().mean() < 1.5
        )  # the images are noise, in which every edge is as sharp as possible
        assert (difference > 8).float().mean() < 0.03
    assert len(host) == 7


def test_loader_compile_applies_torch_compile_to_drawing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = write_data(tmp_path)
    images, _ = open_train_images(labels, "ram")
    on_device = DeviceImages(images, torch.device("cpu"))
    loader = train_loader(labels, images=on_device, workers=0, augmentation=NO_COPY_PASTE)
    plain = [batch.images for batch in epochs_of(loader, 1)]
    monkeypatch.setattr(torch, "compile", lambda draw, **_: lambda *given: 255 - draw(*given))
    loader.compile(pytest.fail)
    assert all(
        (255 - batch.images).equal(other)
        for batch, other in zip(epochs_of(loader, 1), plain, strict=True)
    )


def test_device_images_are_located_in_pool_and_not_pickled(tmp_path: Path) -> None:
    images, _ = open_train_images(write_data(tmp_path), "ram")
    on_device = DeviceImages(images, torch.device("cpu"))
    assert on_device.pool is not None
    first, height, width = on_device.locate(1)
    pixels = on_device.pool[first : first + height * width * 3].view(height, width, 3)
    assert (pixels.numpy() == images(1)).all()
    assert len(pickle.dumps(on_device)) < 2000
    assert pickle.loads(pickle.dumps(on_device)).locate(1) == (first, height, width)  # noqa: S301


def test_incomplete_cache_file_is_rebuilt(tmp_path: Path) -> None:
    """Its name and size are right, but after a power failure there are zeros in place of the
    mark.
    """
    labels = write_data(tmp_path)
    images, _ = open_train_images(labels, "disk", tmp_path / "cache")
    expected, file = images(1).copy(), Path(images.path)
    del images
    file.write_bytes(bytes(file.stat().st_size))
    assert (open_train_images(labels, "disk", tmp_path / "cache")[0](1) == expected).all()


def test_cache_device_falls_back_to_cpu_without_gpu(tmp_path: Path) -> None:
    images, lines = open_train_images(write_data(tmp_path), "device")
    assert isinstance(images, CachedImages)
    assert lines[-1] == "--cache device: there is no GPU; the CPU draws the images"


def test_cached_images_are_read_only(tmp_path: Path) -> None:
    images, _ = open_train_images(write_data(tmp_path), "ram")
    with pytest.raises(ValueError, match="read-only"):
        images(0)[:] = 0


@pytest.mark.parametrize("where", ["ram", "disk"])
def test_pickled_cache_contains_no_pixels(tmp_path: Path, where: str) -> None:
    """Pickling, as for workers that are not forked, does not copy the pixels."""
    images, _ = open_train_images(write_data(tmp_path), where, tmp_path / "cache")
    pickled = pickle.dumps(images)
    assert len(pickled) < 2000
    assert (pickle.loads(pickled)(1) == images(1)).all()  # noqa: S301


def test_disk_cache_is_reused_and_rebuilt_when_an_image_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = write_data(tmp_path)
    reads: Counter[str] = Counter()
    monkeypatch.setattr(
        "data.base_images.read_image", lambda path: reads.update([path]) or read_image(path)
    )
    folder = tmp_path / "cache"
    open_train_images(labels, "disk", folder)
    assert reads == Counter(labels.path(i) for i in range(len(labels)))
    kept, _ = open_train_images(labels, "disk", folder)
    assert sum(reads.values()) == len(labels)

    path = labels.path(2)
    cv2.imwrite(path, 255 - cv2.imread(path))
    os.utime(path, ns=(1, 2))
    del kept
    images, _ = open_train_images(labels, "disk", folder)
    assert sum(reads.values()) == 2 * len(labels)
    assert (images(2) == DecodedImages(labels, SIDE)(2)).all()
    (subfolder,) = folder.iterdir()
    assert sorted(file.name for file in subfolder.iterdir()) == sorted(
        [Path(images.path).name, "lock"]
    )  # no old file
    open_base_images({"train": labels}, 2 * SIDE, where="disk", folder=folder, world=SINGLE_PROCESS)
    assert len(list(folder.iterdir())) == 2  # one folder per image size


def test_disk_cache_notices_images_replaced_by_others_of_the_same_size_and_time(
    tmp_path: Path,
) -> None:
    """As `cp -p`, `rsync -t` and archives with fixed times do. BMP files of one shape have one
    size.
    """
    paths = [str(tmp_path / f"{name}.bmp") for name in "ab"]
    for path, value in zip(paths, (0, 200), strict=True):
        cv2.imwrite(path, np.full((SIDE, SIDE, 3), value, np.uint8))
        os.utime(path, ns=(1, 1))
    builder = LabelsBuilder()
    builder.add_image(paths[0], (SIDE, SIDE), 1, [])
    labels = builder.build([1])
    images, _ = open_train_images(labels, "disk", tmp_path / "cache")
    assert images(0).max() == 0
    os.replace(paths[1], paths[0])
    images, _ = open_train_images(labels, "disk", tmp_path / "cache")
    assert images(0).min() == 200


def test_cache_file_in_use_by_another_run_is_kept(tmp_path: Path) -> None:
    """For example if two machines share the cache folder, but have copies of the images with
    different mtimes.
    """
    labels = write_data(tmp_path)
    first, _ = open_train_images(labels, "disk", tmp_path / "cache")
    for time in (1, 2):
        os.utime(labels.path(0), ns=(time, time))
        open_train_images(labels, "disk", tmp_path / "cache")
        assert Path(first.path).exists()
        (folder,) = (tmp_path / "cache").iterdir()
        assert len(list(folder.iterdir())) == 3  # the lock, the first run's file and the newest
    del first
    os.utime(labels.path(0), ns=(3, 3))
    open_train_images(labels, "disk", tmp_path / "cache")
    assert len(list(folder.iterdir())) == 2


def test_partial_cache_file_of_killed_run_is_overwritten(tmp_path: Path) -> None:
    labels = write_data(tmp_path)
    images, _ = open_train_images(labels, "disk", tmp_path / "cache")
    file = Path(images.path)
    file.with_name("part").write_bytes(b"half")
    file.unlink()
    images, _ = open_train_images(labels, "disk", tmp_path / "cache")
    assert (images(1) == DecodedImages(labels, SIDE)(1)).all()
    assert not file.with_name("part").exists()


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_damaged_cache_file_is_not_used(tmp_path: Path, damage: bytes | None) -> None:
    labels = write_data(tmp_path)
    images, _ = open_train_images(labels, "disk", tmp_path / "cache")
    file = Path(images.path)
    file.write_bytes(file.read_bytes()[:-1] + b"x" if damage is None else damage)
    again, lines = open_train_images(labels, "disk", tmp_path / "cache")
    assert (again(1) == DecodedImages(labels, SIDE)(1)).all()
    assert len(lines) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_named_pipe_as_cache_file_does_not_block(tmp_path: Path) -> None:
    labels = write_data(tmp_path)
    images, _ = open_train_images(labels, "disk", tmp_path / "cache")
    Path(images.path).unlink()
    os.mkfifo(images.path)
    again, _ = open_train_images(labels, "disk", tmp_path / "cache")
    assert isinstance(again, CachedImages)
    assert (again(1) == DecodedImages(labels, SIDE)(1)).all()


def test_caching_reports_image_changed_since_scan(tmp_path: Path) -> None:
    labels = write_data(tmp_path)
    cv2.imwrite(labels.path(0), np.zeros((500, 300, 3), np.uint8))
    for where in ("ram", "disk"):
        with pytest.raises(
            UnreadableImageError, match=r"0\.png: has changed since its labels were read"
        ):
            open_train_images(labels, where, tmp_path / "cache")
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").iterdir())


def test_cache_accepts_no_images(tmp_path: Path) -> None:
    none = write_data(tmp_path).subset([])
    assert offsets_of(base_sizes(none.sizes, SIDE)).tolist() == [0]
    for where in ("ram", "disk"):
        assert isinstance(open_train_images(none, where, tmp_path / "cache")[0], CachedImages)


@pytest.mark.parametrize(
    ("where", "size", "ram", "disk", "place"),
    [
        # At most 0.8 of the free bytes may be used.
        ("ram", 8 * GIB, 10 * GIB, 0, "ram"),
        ("ram", 9 * GIB, 10 * GIB, 100 * GIB, "disk"),
        ("ram", 9 * GIB, 10 * GIB, 11 * GIB, "off"),
        ("disk", 1 * GIB, 10 * GIB, 1 * GIB, "off"),
        ("disk", 1 * GIB, 10 * GIB, 2 * GIB, "disk"),
        # auto: at most a tenth, and at most 1 GiB.
        ("auto", GIB, 10 * GIB, 0, "ram"),
        ("auto", GIB + 1, 100 * GIB, 100 * GIB, "off"),
        ("auto", GIB, 9 * GIB, 100 * GIB, "off"),
        ("off", 0, 10 * GIB, 10 * GIB, "off"),
    ],
)
def test_cache_location_is_chosen_by_free_space(
    where: str, size: int, ram: int, disk: int, place: str
) -> None:
    assert choose_location(where, size, {"ram": ram, "disk": disk}) == place


@pytest.mark.parametrize(
    ("where", "ram", "disk", "expected"),
    [
        ("ram", 50_000, 10**6,
         "--cache ram: decoded images take 57.6 kB, but 50.0 kB of ram are free; "
         "they are cached: 57.6 kB on disk"),
        ("ram", 50_000, 60_000,
         "--cache ram: decoded images take 57.6 kB, but 50.0 kB of ram and 60.0 kB of disk are "
         "free; they are decoded for each batch"),
        ("disk", 10**6, 60_000,
         "--cache disk: decoded images take 57.6 kB, but 60.0 kB of disk are free; "
         "they are decoded for each batch"),
        ("auto", 10**5, 10**6,
         "images are decoded for each batch; --cache ram or disk would cache them: 57.6 kB"),
    ],
)  # fmt: skip
def test_cache_without_enough_space_logs_and_falls_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, ram: int, disk: int, expected: str
) -> None:
    labels = write_data(tmp_path, [(64, 60)] * 5)
    monkeypatch.setattr(cache, "free_ram", lambda: ram)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, disk))
    images, lines = open_train_images(labels, where, tmp_path / "cache")
    assert lines == [expected]
    assert (images(1) == DecodedImages(labels, SIDE)(1)).all()


@pytest.mark.parametrize(
    ("disk", "expected"),
    [
        (10**6, "50.0 kB of ram are free; they are cached: 57.6 kB on disk"),
        (60_000, "50.0 kB of ram and 60.0 kB of disk are free; they are decoded for each batch"),
    ],
)
def test_device_cache_without_enough_ram_logs_its_fallback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: int, expected: str
) -> None:
    labels = write_data(tmp_path, [(64, 60)] * 5)
    monkeypatch.setattr(cache, "free_ram", lambda: 50_000)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, disk))
    _, lines = open_train_images(labels, "device", tmp_path / "cache")
    assert lines[0] == f"--cache device: decoded images take 57.6 kB, but {expected}"


def deny_access(real: Callable[..., object]) -> Callable[..., object]:
    """Wrap a system call for a user without access to a folder named secret."""

    def call(path: object, *args: object, **keywords: object) -> object:
        if "/secret/" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **keywords)

    return call


def test_inaccessible_cache_folder_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user of a container may have root's home folder."""
    labels = write_data(tmp_path)
    for name in ("stat", "statvfs", "mkdir"):
        monkeypatch.setattr(os, name, deny_access(getattr(os, name)))
    for where in ("auto", "off", "disk"):
        images, _ = open_train_images(labels, where, tmp_path / "secret" / "cache")
        assert (images(1) == DecodedImages(labels, SIDE)(1)).all()


def test_existing_cache_file_is_opened_without_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example on a read-only disk, or in a folder of another user."""
    labels = write_data(tmp_path)
    made, _ = open_train_images(labels, "disk", tmp_path / "cache")

    def no_lock(folder: Path) -> None:
        raise PermissionError(30, "Read-only file system", str(folder))

    monkeypatch.setattr(cache, "exclusive_access", no_lock)
    found, _ = open_train_images(labels, "disk", tmp_path / "cache")
    assert isinstance(found, CachedImages)
    assert found.path == made.path


@pytest.mark.parametrize(("where", "count"), [("off", 0), ("auto", 0), ("ram", 1)])
def test_fingerprint_is_computed_only_if_images_are_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, count: int
) -> None:
    """Checking the state of many files on a network disk takes minutes."""
    labels, real, calls = write_data(tmp_path), cache.digest_of_states, []
    monkeypatch.setattr(
        cache, "digest_of_states", lambda paths: calls.append(real(paths)) or calls[-1]
    )
    monkeypatch.setattr(cache, "free_ram", lambda: 200_000)
    open_train_images(labels, where)
    assert len(calls) == count


def test_ram_cache_does_not_spill_to_disk_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = write_data(tmp_path, [(64, 60)] * 5)
    monkeypatch.setattr(cache, "free_ram", lambda: 50_000)
    lines: list[str] = []
    settings = {
        "where": "ram",
        "folder": tmp_path / "cache",
        "world": SINGLE_PROCESS,
        "say": lines.append,
    }
    images = open_base_images({"train": labels}, SIDE, **settings)["train"]  # type: ignore[arg-type]
    assert isinstance(images, DecodedImages)
    assert lines == [
        "--cache ram: decoded images take 57.6 kB, but 50.0 kB of ram are free; they are decoded "
        "for each batch"
    ]
    assert not (tmp_path / "cache").exists()


def test_existing_cache_file_needs_no_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = write_data(tmp_path, [(64, 60)] * 5)
    open_train_images(labels, "disk", tmp_path / "cache")
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 10))
    monkeypatch.setattr(cache, "free_ram", lambda: 10)
    for where in ("disk", "ram"):
        assert isinstance(open_train_images(labels, where, tmp_path / "cache")[0], CachedImages)


def test_unwritable_cache_folder_falls_back_to_decoding(tmp_path: Path) -> None:
    labels = write_data(tmp_path)
    (tmp_path / "file").touch()
    images, lines = open_train_images(labels, "disk", tmp_path / "file" / "cache")
    assert isinstance(images, DecodedImages)
    folder = tmp_path / "file" / "cache"
    assert lines == [
        f"--cache disk: {folder} cannot be written to (Not a directory); images are decoded for "
        "each batch"
    ]
    images, lines = open_train_images(labels, "disk", None)
    assert isinstance(images, DecodedImages)


def test_full_ram_and_unwritable_cache_folder_are_both_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = write_data(tmp_path, [(64, 60)] * 5)
    (tmp_path / "file").touch()
    monkeypatch.setattr(cache, "free_ram", lambda: 50_000)
    _, lines = open_train_images(labels, "ram", tmp_path / "file" / "cache")
    assert lines == [
        "--cache ram: decoded images take 57.6 kB, but 50.0 kB of ram are free, "
        f"and {tmp_path}/file/cache cannot be written to (Not a directory); they are decoded for "
        "each batch"
    ]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_folder_in_which_nothing_can_be_created_is_not_called_full(tmp_path: Path) -> None:
    _, lines = open_train_images(write_data(tmp_path), "disk", Path("/proc/x"))
    (line,) = lines
    assert line.startswith("--cache disk: /proc/x cannot be written to (")
    assert "free" not in line


def test_failure_while_caching_does_not_say_that_images_are_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "_reserve", full)
    images, lines = open_train_images(write_data(tmp_path), "disk", tmp_path / "cache")
    assert isinstance(images, DecodedImages)
    assert lines == [
        f"--cache disk: {tmp_path}/cache: No space left on device; images are decoded for each "
        "batch"
    ]


def test_concurrent_cache_builds_give_the_same_images(tmp_path: Path) -> None:
    labels = write_data(tmp_path)
    found: list[object] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(open_train_images(labels, "disk", tmp_path / "cache")[0])
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [images(1).tobytes() for images in found] == [
        DecodedImages(labels, SIDE)(1).tobytes()
    ] * 4


def test_other_local_processes_map_the_cache_of_the_first(tmp_path: Path) -> None:
    labels = write_data(tmp_path)
    first, _ = open_train_images(labels, "ram")
    second = _SecondProcess(torch.device("cpu"), rank=1, local_rank=1, size=2, local_size=2)
    for paths, mapped, messages in (
        ([{"train": "/proc/1/fd/987"}, {"train": first.path}], True, []),
        ([{"train": "/proc/1/fd/987"}, {}], False, [MISSING_IMAGES_MESSAGE]),
        ([{}, {}], False, []),
    ):
        second.paths, lines = paths, []
        images = open_base_images(
            {"train": labels}, SIDE, where="ram", folder=None, world=second, say=lines.append
        )["train"]
        assert isinstance(images, CachedImages) == mapped
        assert (images(1) == first(1)).all()
        assert lines == messages


MISSING_IMAGES_MESSAGE = "1 of 2 processes have no cached images and decode them for each batch"


class _SecondProcess(World):
    """The second process of a machine; `paths` is what it gathers from all processes: paths of the
    images by split.
    """

    paths: list[dict[str, str]]

    def all_gather_object(self, value: object) -> list[object]:
        return list(self.paths) if isinstance(value, dict) else [len(self.paths[0]), value]


def growth_over_epochs(folder: Path) -> list[int]:
    """Return the kB of private memory that 40 epochs add to this process and to each of two
    workers.
    """
    torch.set_num_threads(1)
    # Workers start as the user's do. Started as this process was, they would import for seconds.
    multiprocessing.set_start_method(None, force=True)
    labels = write_data(folder)
    images, _ = open_train_images(labels, "ram")
    loader = train_loader(labels, images=images, workers=2, image_size=2 * SIDE)

    def private_kb() -> list[int]:
        pids = [os.getpid(), *(worker.pid for worker in loader._loader._iterator._workers)]
        lines = [Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() for pid in pids]
        return [
            sum(int(line.split()[1]) for line in one if line.startswith("Private_"))
            for one in lines
        ]

    def run(epochs: range) -> None:
        for epoch in epochs:
            loader.sampler.set_epoch(epoch)
            for _ in loader:
                pass

    run(range(20))
    before = private_kb()
    run(range(20, 60))
    return [after - then for after, then in zip(private_kb(), before, strict=True)]


# In a forked process: what it shares with others is not private, and its garbage collections do not
# write to it.
GROWTH = """
import sys
from pathlib import Path
from tests.data.test_cache import growth_over_epochs
print(growth_over_epochs(Path(sys.argv[1])))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads /proc")
def test_memory_does_not_grow_over_epochs(tmp_path: Path) -> None:
    done = run_program(GROWTH, tmp_path, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    growth = json.loads(done.stdout)
    # If every sample of 128 x 128 pixels of 40 epochs of 7 images stayed in memory, it would be
    # 13.8 MB, half of it in each worker.
    assert max(growth) < 4000, growth


def test_trial_drawing_draws_like_training_on_the_device(tmp_path: Path) -> None:
    labels = write_data(tmp_path)
    images, _ = open_train_images(labels, "ram")
    on_device = DeviceImages(images, torch.device("cpu"))
    draw = trial_drawing(labels, on_device, SIDE, NO_COPY_PASTE, rect=False)
    assert draw is not None
    pixels = draw(2 * len(labels) + 1)  # more than there are images
    assert pixels.dtype == torch.uint8
    assert pixels.shape == (2 * len(labels) + 1, SIDE, SIDE, 3)
    assert pixels.float().std() > 10
    assert draw(1).equal(pixels[:1])
    assert trial_drawing(labels, images, SIDE, NO_COPY_PASTE, rect=False) is None  # the CPU draws
