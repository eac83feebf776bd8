"""From files to batches: the same bytes for any number of DataLoader workers, and no process left
running.
"""

import gc
import multiprocessing
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from data import (
    Augmentation,
    Loader,
    base_images,
    build_evaluation_loader,
    build_loaders,
    build_train_loader,
)
from data.base_images import DecodedImages, UnreadableImageError
from data.labels import Labels, LabelsBuilder
from data.loader import Batch, Drawn, Samples, explain_worker_death, fit_workers
from data.sampler import Key
from tests.data.augment.test_plan import box, labels_of, polygon
from utils.distributed.world import World
from utils.images.decode import read_image
from utils.terminal import FaultError
from utils.threads import fork_lock, run_in_background

SIDE = 64
ALL_AUGMENTATIONS = Augmentation(0.02, 0.7, 0.4, 10, 0.1, 0.5, 3, 0.0005, 0.5, 0.5, 0.7, 0.5, 0.5)
SIZES = [(80, 60), (60, 80), (200, 100), (64, 64), (33, 47), (1, 1), (2000, 4)]
forked_only = pytest.mark.skipif(
    sys.platform != "linux" or sys.version_info >= (3, 14), reason="workers are not forked"
)
SHAPE = np.array([[2, 2], [28, 2], [28, 20], [15, 8]], np.float32)


def write_data(folder: Path, sizes: list[tuple[int, int]] = SIZES) -> Labels:
    """Write images of noise; every third has no label, the others have a polygon and a crowd
    region, or a box.
    """
    builder = LabelsBuilder()
    for i, (width, height) in enumerate(sizes):
        path = folder / f"{i}.png"
        noise = np.random.default_rng(i).integers(0, 256, (height, width, 3), dtype=np.uint8)
        cv2.imwrite(str(path), noise)
        kinds = [
            [],
            [polygon(1, SHAPE), box(0, 0, 0, 30, 30, crowd=True)],
            [box(0, 1, 1, width - 1, height - 1)],
        ]
        builder.add_image(str(path), (width, height), i + 1, kinds[i % 3])
    return builder.build([1, 2])


def train_loader(labels: Labels, **changes: object) -> Loader:
    values = {
        "batch_size": 3,
        "image_size": SIDE,
        "stride": 32,
        "augmentation": ALL_AUGMENTATIONS,
        "seed": 0,
    } | changes
    return build_train_loader(labels, **values)  # type: ignore[arg-type]


def weighted_loader(labels: Labels, **changes: object) -> Loader:
    """Return a loader with weights that draw the first images most often, some several times per
    epoch.
    """
    loader = train_loader(labels, **changes)
    loader.sampler.weights = 0.5 ** np.arange(len(labels))  # type: ignore[union-attr]
    return loader


def epochs_of(loader: Loader, epochs: int) -> list[Batch]:
    batches = []
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)  # type: ignore[union-attr]
        batches += list(loader)
    return batches


def contents(batch: Batch | Drawn) -> tuple[object, ...]:
    arrays = [np.asarray(part) for part in batch]
    return tuple((part.dtype, part.shape, part.tobytes()) for part in arrays)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "rect"), [(train_loader, False), (train_loader, True), (weighted_loader, False)]
)
def test_batches_do_not_depend_on_number_of_workers(
    tmp_path: Path, make: Callable[..., Loader], rect: bool
) -> None:
    labels = write_data(tmp_path)
    runs = [epochs_of(make(labels, workers=workers, rect=rect), 2) for workers in (0, 1, 3)]
    alone, one, three = ([contents(batch) for batch in run] for run in runs)
    assert len(alone) == 4  # 14 samples in batches of 3
    assert alone == one == three


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_passes_that_were_begun_early_have_the_same_batches(tmp_path: Path, workers: int) -> None:
    labels = write_data(tmp_path)
    expected = [contents(batch) for batch in epochs_of(train_loader(labels, workers=workers), 3)]

    loader = train_loader(labels, workers=workers)
    batches = list(loader)
    loader.sampler.set_epoch(1)  # type: ignore[union-attr]
    loader.begin()
    batches += list(loader)

    loader.begin()  # not used: the next one starts afresh
    loader.sampler.set_epoch(2)  # type: ignore[union-attr]
    loader.begin()
    batches += list(loader)
    assert [contents(batch) for batch in batches] == expected
    assert [len(list(loader)), len(list(loader))] == [3, 3]


@forked_only
def test_workers_draw_the_first_batches_of_a_pass_that_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = tmp_path / "drawn"
    real = Samples.draw

    def draw(self: Samples, keys: list[Key], memory: object) -> Drawn:
        drawn.touch()
        return real(self, keys, memory)  # type: ignore[arg-type]

    monkeypatch.setattr(Samples, "draw", draw)
    loader = train_loader(write_data(tmp_path), workers=1)
    assert not drawn.exists()

    loader.begin()
    give_up = time.monotonic() + 60
    while not drawn.exists():
        assert time.monotonic() < give_up
        time.sleep(0.01)
    assert len(list(loader)) == 2


def test_workers_are_not_forked_while_another_thread_runs_a_program(tmp_path: Path) -> None:
    """They would inherit its pipe."""
    loader = train_loader(write_data(tmp_path), workers=1)
    others = set(multiprocessing.active_children())
    is_locked = threading.Event()

    def run_program() -> set[object]:
        with fork_lock:
            is_locked.set()
            time.sleep(0.3)
            return set(multiprocessing.active_children()) - others

    forked_meanwhile = run_in_background(run_program)
    is_locked.wait()
    assert len(list(loader)) == 2
    assert forked_meanwhile.result() == set()
    assert len(set(multiprocessing.active_children()) - others) == 1


def test_workers_of_a_loader_in_a_reference_cycle_end(tmp_path: Path) -> None:
    """As after each training of a search. Python closes the queues of a cycle before torch sends
    the workers their last signal.
    """
    before = set(multiprocessing.active_children())
    loader = train_loader(write_data(tmp_path), workers=1)
    assert len(list(loader)) > 0
    assert len(set(multiprocessing.active_children()) - before) == 1
    cycle = [loader]
    cycle.append(cycle)  # type: ignore[arg-type]
    del loader, cycle
    gc.collect()
    assert set(multiprocessing.active_children()) - before == set()


def test_workers_do_not_print_what_a_decoder_says(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """libjpeg prints its warnings without the file's name; the scan has reported them with it."""
    labels = write_data(tmp_path)
    path = Path(labels.path(0))
    data = cv2.imencode(".jpg", cv2.imread(str(path)))[1].tobytes()
    path.write_bytes(data[: len(data) // 2] + b"\xff\xd9")

    DecodedImages(labels, SIDE)(0)
    assert "Corrupt JPEG data" in capfd.readouterr().err
    epochs_of(train_loader(labels, workers=1), 1)
    assert capfd.readouterr().err == ""


class KillOnImport:
    """An import hook that kills child processes which import anything except torch."""

    def __init__(self) -> None:
        self.parent = os.getpid()

    def find_spec(self, name: str, *_: object) -> None:
        if os.getpid() != self.parent and name.partition(".")[0] != "torch":
            os.kill(os.getpid(), signal.SIGKILL)


@forked_only
def test_workers_import_no_modules_except_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are forked while a thread imports matplotlib: importing a half-imported module would
    wait forever.
    """
    monkeypatch.setattr(sys, "meta_path", [KillOnImport(), *sys.meta_path])
    assert len(epochs_of(train_loader(write_data(tmp_path), workers=1), 2)) == 4


@pytest.mark.slow
@pytest.mark.parametrize("make", [train_loader, weighted_loader])
@pytest.mark.parametrize("workers", [0, 2])
def test_starting_mid_epoch_gives_the_remaining_batches(
    tmp_path: Path, make: Callable[..., Loader], workers: int
) -> None:
    loader = make(write_data(tmp_path), batch_size=2, workers=workers)
    complete = [contents(batch) for batch in epochs_of(loader, 2)]
    assert len(complete) == 7  # 14 samples: 3 batches, then 4
    for first_batch in (1, 4, 2):
        loader.sampler.set_epoch(1, first_batch)  # type: ignore[union-attr]
        assert len(loader) == 4 - first_batch
        assert [contents(batch) for batch in loader] == complete[3 + first_batch :]
    assert [
        contents(batch) for batch in epochs_of(loader, 2)
    ] == complete  # the same workers start from the beginning


def test_skipped_batches_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = train_loader(write_data(tmp_path), batch_size=1, mosaic_until=0)
    loader.sampler.set_epoch(0, 4)  # type: ignore[union-attr]
    read: list[str] = []
    monkeypatch.setattr(
        "data.base_images.read_image", lambda path: read.append(path) or read_image(path)
    )
    indices = [int(batch.indices) for batch in loader]
    assert read == [loader.labels.path(index) for index in indices]
    assert len(indices) == 3


def test_repeated_draws_of_an_image_differ_in_pixels(tmp_path: Path) -> None:
    labels = write_data(tmp_path)
    loader = weighted_loader(labels, batch_size=7, mosaic_until=0)
    (batch,) = epochs_of(loader, 1)
    drawn = batch.indices.tolist()
    assert len(set(drawn)) < 7
    assert len({image.numpy().tobytes() for image in batch.images}) == 7
    (keys,) = loader.sampler
    assert [key.index for key in keys] == drawn
    # The first draw of an image is the same sample as in an epoch without weights.
    for key, image in zip(keys, batch.images, strict=True):
        plain = loader.samples.draw([Key(0, key.index, SIDE, SIDE, False)])
        assert (plain.pixels[0] == image.numpy()).all() == (key.repeat == 0)


def test_sample_depends_only_on_its_key(tmp_path: Path) -> None:
    labels = write_data(tmp_path)
    keys = [Key(epoch, index, SIDE, SIDE, True) for epoch in (0, 5) for index in range(7)]
    samples = train_loader(labels).samples
    forward = [contents(samples.draw([key])) for key in keys]
    other = train_loader(labels).samples
    assert [contents(other.draw([key])) for key in reversed(keys)] == forward[::-1]
    assert len({part[0] for part in forward}) == len(keys)  # pixels of every epoch and index differ
    again = train_loader(labels, seed=1).samples
    assert contents(again.draw([keys[0]])) != forward[0]


def test_ranks_together_load_the_batches_of_one_process(tmp_path: Path) -> None:
    labels = write_data(tmp_path)
    alone = epochs_of(train_loader(labels, batch_size=4), 2)
    ranks = [epochs_of(train_loader(labels, batch_size=4, rank=rank, size=2), 2) for rank in (0, 1)]
    for batch, *parts in zip(alone, *ranks, strict=True):
        assert torch.stack([part.images for part in parts], 1).flatten(0, 1).equal(batch.images)
        assert sorted(torch.cat([part.targets[:, 1:] for part in parts]).tolist()) == sorted(
            batch.targets[:, 1:].tolist()
        )


def test_evaluation_batches_have_expected_shapes_types_and_targets(tmp_path: Path) -> None:
    labels = write_data(tmp_path)
    loader = build_evaluation_loader(
        labels, batch_size=7, image_size=SIDE, stride=32, letterbox="center"
    )
    batches = list(loader)
    # Sides in strides, plus half a stride: the long side is 2.5, so 96 px. The short side is 0.504
    # for 2000 x 4: 32 px; 1.5 for 200 x 100 and 2 for 80 x 60: 64 px; 2.5 for 64 x 64 and 1 x 1: 96
    # px; 2 for 60 x 80 and 1.9 for 33 x 47: 64 px.
    shapes = [(1, 32, 96, 3), (2, 64, 96, 3), (2, 96, 96, 3), (2, 96, 64, 3)]
    assert [tuple(batch.images.shape) for batch in batches] == shapes
    assert len(loader) == 4
    for batch in batches:
        assert batch.images.dtype == torch.uint8
        assert batch.targets.dtype == torch.float32
        for row in batch.targets.tolist():
            rows = labels.rows(int(batch.indices[int(row[0])]))
            assert row[1] in np.where(labels.crowd[rows], -1, labels.classes[rows])
        shown = {
            i
            for i, index in enumerate(batch.indices.tolist())
            if index % 3 and SIZES[index][1] not in (1, 4)
        }
        assert set(batch.targets[:, 0].int().tolist()) == shown
        assert batch.targets[:, 0].tolist() == sorted(batch.targets[:, 0].tolist())


def test_evaluation_sample_does_not_depend_on_batch_size(tmp_path: Path) -> None:
    labels = write_data(tmp_path, [*SIZES, (90, 45), (64, 66), (400, 200)])
    seen = []
    for batch_size in (1, 2, 10):
        found = {}
        for batch in build_evaluation_loader(
            labels, batch_size=batch_size, image_size=SIDE, stride=32, letterbox="center"
        ):
            for i, index in enumerate(batch.indices.tolist()):
                targets = batch.targets[batch.targets[:, 0] == i, 1:].tolist()
                found[index] = (batch.images[i].tolist(), targets, batch.placement[i].tolist())
        seen.append(found)
    assert sorted(seen[0]) == list(range(10))
    assert seen[0] == seen[1] == seen[2]


def test_images_without_labels_give_empty_targets(tmp_path: Path) -> None:
    labels = write_data(tmp_path).subset([0, 3])
    for batch in [
        *train_loader(labels, batch_size=2),
        *build_evaluation_loader(
            labels, batch_size=2, image_size=SIDE, stride=32, letterbox="center"
        ),
    ]:
        assert batch.targets.shape == (0, 6)
        assert batch.targets.dtype == torch.float32


def test_dataset_of_one_image_can_be_loaded(tmp_path: Path) -> None:
    labels = write_data(tmp_path).subset([2])
    batches = epochs_of(train_loader(labels, batch_size=1), 3)
    assert [batch.indices.tolist() for batch in batches] == [[0]] * 3
    assert len({batch.images.numpy().tobytes() for batch in batches}) == 3


@pytest.mark.parametrize(
    "size", [(80, 60), (61, 200), (641, 479), (64, 64), (30, 20), (20000, 10), (1, 1)]
)
def test_placement_maps_source_pixels_to_the_canvas(tmp_path: Path, size: tuple[int, int]) -> None:
    width, height = size
    row = box(0, width * 0.25, height * 0.25, width * 0.5, height * 0.5)
    path = tmp_path / "0.png"
    cv2.imwrite(str(path), np.full((height, width, 3), 255, np.uint8))
    builder = LabelsBuilder()
    builder.add_image(str(path), size, 1, [row])
    labels = builder.build([1])
    (batch,) = build_evaluation_loader(
        labels, batch_size=4, image_size=SIDE, stride=32, letterbox="center"
    )
    scale, shift = batch.placement[0].numpy().reshape(2, 2)
    # The corners of the white image on the canvas are where placement maps them.
    ys, xs = np.nonzero(batch.images[0, :, :, 0].numpy() == 255)
    assert shift.tolist() == [xs.min(), ys.min()]
    assert scale * size + shift == pytest.approx([xs.max() + 1, ys.max() + 1], abs=1e-9)
    for target in batch.targets[:, 2:].double().numpy():
        back = (target.reshape(2, 2) - shift) / scale
        assert back.reshape(-1) == pytest.approx(
            np.array([0.25, 0.25, 0.75, 0.75]) * [*size, *size], abs=1e-4
        )
    assert len(batch.targets) == (0 if size in [(20000, 10)] else 1)


def test_training_samples_have_no_placement(tmp_path: Path) -> None:
    (batch,) = train_loader(write_data(tmp_path), batch_size=7)
    assert batch.placement.isnan().all()


@pytest.mark.parametrize("workers", [0, 1])
def test_loader_reports_image_changed_since_scan(tmp_path: Path, workers: int) -> None:
    """Its boxes belong to the old image."""
    labels = write_data(tmp_path)
    cv2.imwrite(labels.path(0), np.zeros((500, 300, 3), np.uint8))
    message = (
        r"0\.png: has changed since its labels were read: it had 80 x 60 pixels, now it "
        r"has 300 x 500$"
    )
    for loader in (
        train_loader(labels, workers=workers),
        build_evaluation_loader(
            labels, batch_size=3, image_size=SIDE, stride=32, letterbox="center"
        ),
    ):
        with pytest.raises(UnreadableImageError, match=message):
            list(loader)


UNREADABLE = (
    r"^\S*1\.png cannot be read: No such file or directory, in 3 attempts; "
    "it could be read when the data set was scanned$"
)


@pytest.mark.parametrize("workers", [0, 1])
def test_missing_image_is_reported_in_one_line(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a fault, not as wrong input: the scan of the data set has decoded it."""
    monkeypatch.setattr(base_images, "PAUSES_S", (0.01, 0.01))
    labels = write_data(tmp_path)
    os.remove(labels.path(1))
    with pytest.raises(UnreadableImageError, match=UNREADABLE):
        list(train_loader(labels, batch_size=7, workers=workers))


@pytest.mark.parametrize("content", [None, b"", b"half"])
def test_image_that_can_be_read_again_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    """The disk of another machine may be away for a second, or deliver half a file."""
    labels = write_data(tmp_path)
    whole = Path(labels.path(1)).read_bytes()
    expected = base_images.read_labeled(labels, 1)
    broken = whole[: len(whole) // 2] if content == b"half" else content
    if broken is None:
        os.remove(labels.path(1))
    else:
        Path(labels.path(1)).write_bytes(broken)
    pauses: list[float] = []

    def repair(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            Path(labels.path(1)).write_bytes(whole)

    monkeypatch.setattr(base_images.time, "sleep", repair)
    assert (base_images.read_labeled(labels, 1) == expected).all()
    assert pauses == [0.1, 1.0]


def test_mosaic_is_disabled_from_mosaic_until(tmp_path: Path) -> None:
    labels = write_data(tmp_path)
    closed = epochs_of(train_loader(labels, mosaic_until=0), 2)
    single = epochs_of(
        train_loader(
            labels,
            augmentation=Augmentation(**vars(ALL_AUGMENTATIONS) | {"mosaic": 0.0}),
            mosaic_until=0,
        ),
        2,
    )
    assert [contents(batch) for batch in closed] == [contents(batch) for batch in single]
    late = epochs_of(train_loader(labels, mosaic_until=1), 2)
    full = epochs_of(train_loader(labels), 2)
    assert [contents(b) for b in late] == [contents(b) for b in full[:2] + closed[2:]]


def test_loading_does_not_change_torch_random_state(tmp_path: Path) -> None:
    loader = train_loader(write_data(tmp_path))
    before = torch.get_rng_state()
    epochs_of(loader, 2)
    assert torch.get_rng_state().equal(before)


def test_pickled_samples_are_small() -> None:
    count = 20_000
    labels = labels_of([(640, 480)] * count, [[box(0, 1, 1, 9, 9)] * 5] * count)
    samples = train_loader(labels, batch_size=16).samples
    # 100,000 rows of class, box, area, crowd and offset: 4 + 32 + 8 + 1 + 8 = 53 bytes; 20,000
    # images, about 40 bytes.
    assert len(pickle.dumps(samples)) < 53 * 5 * count + 60 * count
    assert isinstance(pickle.loads(pickle.dumps(samples)), Samples)  # noqa: S301


# ---------------------------------------------------------------------- processes

PROGRAM = """
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from tests.data.test_loader import train_loader, write_data

def main(folder, ending):
    loader = train_loader(write_data(Path(folder)), workers=2)
    batches = iter(loader)
    next(batches), next(batches)  # one from each
    workers = loader._loader._iterator._workers
    print(os.getpid(), *[worker.pid for worker in workers], flush=True)
    if ending == "raise":
        raise RuntimeError("something else")
    if ending == "wait":
        signal.pause()
    return batches

# Each program is a fork of this one, which ends as Python ends. A process of multiprocessing
# would end by os._exit().
for line in sys.stdin:
    folder, ending, method = line.rstrip().split("\t")
    pid = os.fork()
    if not pid:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    sys.exit()

os.setsid()
multiprocessing.set_start_method(method)
multiprocessing.set_forkserver_preload(["tests.data.test_loader"])
kept = main(folder, ending)
"""


class Programs:
    """Programs with two workers, one after another."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def start(self, folder: Path, ending: str, method: str = "fork") -> list[int]:
        """Start a program; return its process id and those of its workers."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{folder}\t{ending}\t{method}\n")
        self.process.stdin.flush()
        numbers = self._numbers()
        self.program = numbers[0]
        return numbers

    def wait(self) -> int:
        """Wait until the program has ended; return its exit code. One that still runs after 30 s is
        killed.
        """
        assert self.process.stdout is not None
        is_ended, _, _ = select.select([self.process.stdout], [], [], 30)
        if not is_ended:
            os.kill(self.program, signal.SIGKILL)
        [code] = self._numbers()
        return code

    def _numbers(self) -> list[int]:
        assert self.process.stdout is not None
        return [int(word) for word in self.process.stdout.readline().split()]


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=root, text=True, start_new_session=True, **pipes
    ) as process:
        yield Programs(process)
        process.kill()


def is_running(pid: int) -> bool:
    """Whether a process is running; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_end(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(is_running, pids))


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.slow
@linux_only
@pytest.mark.parametrize("ending", ["raise", "return"])
def test_program_with_active_workers_exits(tmp_path: Path, programs: Programs, ending: str) -> None:
    _, *workers = programs.start(tmp_path, ending)
    assert len(workers) == 2
    assert programs.wait() == (1 if ending == "raise" else 0)
    assert wait_for_end(workers, 5)


@pytest.mark.slow
@linux_only
@pytest.mark.parametrize("method", ["fork", "forkserver"])  # Python 3.14's default is the latter
def test_workers_ignore_signals_but_exit_with_parent(
    tmp_path: Path, programs: Programs, method: str
) -> None:
    program, *workers = programs.start(tmp_path, "wait", method)
    assert len(workers) == 2
    for pid in workers:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGHUP)
    time.sleep(0.3)
    assert all(map(is_running, workers))
    os.kill(program, signal.SIGKILL)
    assert programs.wait() == -signal.SIGKILL
    assert wait_for_end(workers, 5)


def kill_worker(loader: Loader, seconds: float = 0) -> None:
    """Kill a worker, then do something else for `seconds`."""
    os.kill(loader._loader._iterator._workers[0].pid, signal.SIGKILL)
    for _ in range(round(seconds / 0.05)):
        time.sleep(0.05)


WORKER_DIED = "^a DataLoader worker died, probably out of memory: use fewer --workers$"


@linux_only
@pytest.mark.parametrize("another", [False, True])
def test_killed_worker_raises_while_main_thread_is_busy(tmp_path: Path, another: bool) -> None:
    """torch raises wherever the main thread is, also if another DataLoader has set torch's handler
    before.
    """
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal_handling._SIGCHLD_handler_set = False
    try:
        if another:
            assert len(list(DataLoader([1, 2], num_workers=1))) == 2  # type: ignore[arg-type]
        loader = train_loader(write_data(tmp_path), workers=2)
        next(iter(loader))
        with pytest.raises(FaultError, match=WORKER_DIED):
            kill_worker(loader, 5)
    finally:
        signal.signal(signal.SIGCHLD, handler)


@pytest.mark.slow
@linux_only
@pytest.mark.parametrize("next_pass", [list, Loader.begin])
def test_killed_worker_raises_when_its_batch_is_due(
    tmp_path: Path, next_pass: Callable[[Loader], object]
) -> None:
    """As in Python 3.14, where workers are not children of this process, so nothing reports that
    they ended.
    """
    loader = train_loader(write_data(tmp_path), workers=2)
    next(iter(loader))
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        kill_worker(loader)
        with pytest.raises(FaultError, match=WORKER_DIED):
            next_pass(loader)
    finally:
        signal.signal(signal.SIGCHLD, handler)


@linux_only
def test_workers_can_be_started_from_a_thread(tmp_path: Path) -> None:
    """Python sets signal handlers in the main thread only, where another DataLoader has set one."""
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal_handling._SIGCHLD_handler_set = False
    try:
        assert len(list(DataLoader([1, 2], num_workers=1))) == 2  # type: ignore[arg-type]
        torchs = signal.getsignal(signal.SIGCHLD)
        loader = train_loader(write_data(tmp_path), workers=1)
        batches = run_in_background(lambda: list(loader)).result()
        assert len(batches) == len(loader)
        assert signal.getsignal(signal.SIGCHLD) is torchs
    finally:
        signal.signal(signal.SIGCHLD, handler)


def test_a_daemonic_process_draws_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may not have children."""
    labels = write_data(tmp_path)
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    said: list[str] = []
    loader = train_loader(labels, workers=2, say=said.append)
    assert len(list(loader)) == len(loader)
    assert loader.workers == 0
    assert said == ["--workers: a daemonic process cannot start workers, it draws by itself"]


def test_worker_death_is_explained_but_other_errors_are_not() -> None:
    assert explain_worker_death("CUDA error: out of memory") == ""
    assert explain_worker_death("Caught RuntimeError in DataLoader worker process 0.") == ""
    killed = "DataLoader worker (pid 7) is killed by signal: "
    assert "died, probably out of memory: use fewer --workers" in explain_worker_death(
        killed + "Killed. "
    )
    assert "out of memory" in explain_worker_death(
        killed + "Bus error. It is possible that dataloader's workers are ..."
    )
    assert "died (Aborted): try --workers 0" in explain_worker_death(killed + "Aborted. ")
    assert "out of memory" in explain_worker_death(
        "DataLoader worker (pid(s) 7, 8) exited unexpectedly"
    )


# ---------------------------------------------------------------------- memory of the ring buffer


GB = 10**9


@pytest.mark.parametrize(
    ("workers", "batch_bytes", "budget", "found", "instead"),
    [
        # 1024 images of 640 x 640 x 3 bytes are 1.258 GB; (8 x 2 + 2) of them 22.65 GB, (8 x 1 + 2)
        # of them 12.58 GB
        (8, 1024 * 640 * 640 * 3, 23 * GB, (8, 2), ""),
        (8, 1024 * 640 * 640 * 3, 13 * GB, (8, 1), "22.6 GB: 8 workers with 1 batch each"),
        (
            8,
            1024 * 640 * 640 * 3,
            8 * GB,
            (4, 1),
            "22.6 GB: 4 workers with 1 batch each",
        ),  # 6 places, 2 of them extra
        (8, 1024 * 640 * 640 * 3, 4 * GB, (1, 1), "22.6 GB: 1 worker with 1 batch each"),
        (
            8,
            1024 * 640 * 640 * 3,
            3 * GB,
            (0, 1),
            "22.6 GB: no workers, each process draws by itself",
        ),
        (8, 1024 * 640 * 640 * 3, 0, (0, 1), "22.6 GB: no workers, each process draws by itself"),
        (0, 1024 * 640 * 640 * 3, 0, (0, 2), ""),
        (8, 0, 100, (8, 2), ""),  # a split without images
    ],
)
def test_workers_whose_prepared_batches_fit_into_memory(
    workers: int, batch_bytes: int, budget: int, found: tuple[int, int], instead: str
) -> None:
    lines: list[str] = []
    assert fit_workers(workers, batch_bytes, budget, lines.append) == found
    assert len(lines) == bool(instead)
    for line in lines:
        assert line.startswith(
            f"--workers {workers}: prepared batches may take a quarter of the free memory, "
        )
        assert line.endswith(f", not {instead}")


@pytest.mark.slow
@pytest.mark.parametrize(("places", "workers"), [(6, 2), (4, 2), (3, 1), (2, 0)])
def test_batches_do_not_depend_on_the_memory_for_the_ring_buffer(
    tmp_path: Path, places: int, workers: int
) -> None:
    labels = write_data(tmp_path)
    batch_bytes = 3 * SIDE * SIDE * 3
    lines: list[str] = []
    small = train_loader(labels, workers=2, ring_bytes=places * batch_bytes, say=lines.append)
    assert small.workers == workers
    assert small.ring_bytes == (places * batch_bytes if workers else 0)
    assert len(lines) == (places < 6)
    for one, other in zip(epochs_of(small, 2), epochs_of(train_loader(labels), 2), strict=True):
        assert contents(one) == contents(other)


def test_both_loaders_of_a_run_share_the_memory_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes on a machine: each may take an eighth of the free memory for the ring buffers
    of both loaders.
    """
    batch_bytes = 2 * SIDE * SIDE * 3  # a process draws two of the four images
    monkeypatch.setattr("utils.distributed.memory.free_ram", lambda: 8 * 7 * batch_bytes)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    labels = write_data(tmp_path)
    images = DecodedImages(labels, SIDE)
    lines: list[str] = []
    loaders = build_loaders(
        {"train": labels, "val": labels},
        {"train": images, "val": images},
        4,
        SIDE,
        32,
        World(torch.device("cpu"), size=2, local_size=2),
        {},
        seed=0,
        rect=False,
        mosaic_until=0,
        workers=2,
        letterbox="center",
        say=lines.append,
    )
    # Seven places: a validation batch holds four images, so that not even three of them fit into
    # half of the memory; two workers for training would take six places.
    assert (loaders.val.workers, loaders.val.ring_bytes) == (0, 0)
    assert (loaders.train.workers, loaders.train.ring_bytes) == (2, 6 * batch_bytes)
    assert [line.partition(": ")[0] for line in lines] == ["validation"]


def test_validation_canvases_may_have_another_stride(tmp_path: Path) -> None:
    """With a teacher, training images are multiples of both models' strides; val.py knows one."""
    labels = write_data(tmp_path)
    images = DecodedImages(labels, SIDE)

    def val_shapes(stride: int, val_stride: int | None) -> list[torch.Size]:
        loaders = build_loaders(
            {"train": labels, "val": labels},
            {"train": images, "val": images},
            2,
            SIDE,
            stride,
            World(torch.device("cpu")),
            Augmentation(),
            seed=0,
            rect=False,
            mosaic_until=0,
            workers=0,
            letterbox="center",
            val_stride=val_stride,
        )
        return [batch.images.shape for batch in loaders.val]

    assert val_shapes(SIDE, 8) == val_shapes(8, None) != val_shapes(SIDE, None)
