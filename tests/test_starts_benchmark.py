"""benchmarks/starts.py: epochs from a trial's seconds, the starts that it takes, its table."""

import argparse
import doctest
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import report, starts
from benchmarks.starts import Planned, Start
from benchmarks.trainings import pace, run
from benchmarks.trainings.pace import Pace
from benchmarks.trainings.run import Outcome, Training
from tests.support.launching import ForkedProcess, forked_script
from utils.images.opencv import cv2
from utils.terminal import FaultError

STOP = threading.Event()
# A program that writes the results.csv of three epochs, as train.py does.
TRAINED = """
import sys
from pathlib import Path
folder = Path(sys.argv[1]) / "run"
folder.mkdir(parents=True)
rows = ["epoch,time", "1,0.6", "2,0.2", "3,0.4", ""]
(folder / "results.csv").write_text("\\n".join(rows))
"""


@pytest.mark.parametrize("module", [starts, pace, report])
def test_doctests_pass(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


def options(**given):
    defaults = {"minutes": 10.0, "img": 320, "threads": 2, "flags": [], "about": "a test"}
    return argparse.Namespace(**defaults | given)


def test_trial_gives_the_pace_without_the_first_epoch(tmp_path):
    """0.2 and 0.4 s: 0.3 s an epoch; the rest of the program's time is fixed. Then it is stored."""
    (tmp_path / "trained.py").write_text(TRAINED)
    command = (sys.executable, str(tmp_path / "trained.py"), "{out}")
    trial = Training("trial", "data.yaml", 0, command)
    found = pace.try_out(trial, tmp_path, 1, STOP)
    assert found.epoch == pytest.approx(0.3)
    assert found.fixed > -3 * 0.3
    (tmp_path / "trained.py").unlink()
    assert pace.try_out(trial, tmp_path, 1, STOP) == found


def test_failed_and_interrupted_trials_are_not_stored(tmp_path):
    failing = Training("trial", "d", 0, (sys.executable, "-c", "raise SystemExit('no such data')"))
    with pytest.raises(FaultError, match=r"^trial_d_0_\w+ ended with 1: no such data \(see "):
        pace.try_out(failing, tmp_path, 1, STOP)

    silent = Training("trial", "d", 0, (sys.executable, "-c", "pass"))
    with pytest.raises(FaultError, match="has fewer than 2 epochs"):
        pace.try_out(silent, tmp_path, 1, STOP)

    stopped = threading.Event()
    stopped.set()
    sleeping = Training("trial", "d", 0, (sys.executable, "-c", "import time; time.sleep(60)"))
    with pytest.raises(FaultError, match="interrupted"):
        pace.try_out(sleeping, tmp_path, 1, stopped)
    assert not list(tmp_path.glob("*.json"))

    (tmp_path / f"{silent.key}.json").write_text("{}")
    with pytest.raises(FaultError, match="not the pace of a training"):
        pace.try_out(silent, tmp_path, 1, STOP)


def test_trial_is_repeated_with_the_smaller_batches_of_a_short_run(tmp_path, monkeypatch):
    """200 images: 100 epochs have batches of 16, 10 epochs of 4."""
    paces = {16: Pace(0.0, 6.0), 4: Pace(0.0, 9.0)}
    tried = []

    def try_out(trial, *_):
        tried.append(int(trial.command[-1]))
        return paces[tried[-1]]

    monkeypatch.setattr(starts, "try_out", try_out)
    start = Start("nano", "yolox_nano.yaml", "")
    own = {"seeds": [0], "work": tmp_path}
    assert starts.plan(start, "d", 200, options(minutes=10, **own), STOP)[0] == 100
    assert tried == [16]
    assert starts.plan(start, "d", 200, options(minutes=1.5, **own), STOP)[0] == 10
    assert tried == [16, 16, 4]


@pytest.mark.parametrize("size", [4, 64, -1])
def test_trial_has_the_batches_that_the_user_gives(size, tmp_path, monkeypatch):
    tried = []

    def try_out(trial, *_):
        tried.append(trial.command[-1])
        return Pace(0.0, 6.0)

    monkeypatch.setattr(starts, "try_out", try_out)
    given = options(minutes=10, seeds=[0], work=tmp_path, flags=["--batch", str(size)])
    starts.plan(Start("nano", "yolox_nano.yaml", ""), "d", 200, given, STOP)
    assert tried == [str(size)]


def test_default_starts_are_trained_from_scratch_and_from_published_files(tmp_path, capsys):
    (tmp_path / "yolox_nano.pth").touch()
    (tmp_path / "other.pth").touch()
    read = starts.read_options(["--data", "d", "--minutes", "1", "--weights-dir", str(tmp_path)])
    chosen = starts.chosen_starts(read)
    assert [start.name for start in chosen] == [*starts.FROM_SCRATCH, "yolox_nano-weights"]
    assert chosen[0] == Start("yolov5n", "yolov5n.yaml", "")
    assert chosen[-1] == Start("yolox_nano-weights", "", str(tmp_path / "yolox_nano.pth"))
    printed = capsys.readouterr().out
    assert "so left out: yolox_tiny.pth, " in printed
    assert "yolox_nano.pth" not in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--minutes 0", "^--minutes 0: choose a number above 0$"),
        ("--minutes inf", "^--minutes inf: choose a number above 0$"),
        ("--minutes 1 --threads 0", "^--threads 0: choose 1 or more$"),
        ("--minutes 1 --weights-dir no-such", "^--weights-dir no-such: there is no such folder$"),
        (
            "--minutes 1 --start a=yolov5n.yaml --start a=yolox_s.yaml",
            "^the start a is given twice",
        ),
        (
            "--minutes 1 --start a=yolov5n.yaml -- --epochs 3",
            "^--epochs after --: the benchmark itself plans its trainings$",
        ),
        ("--minutes 1 --start a=yolov5n.yaml -- --evolve 3", "^--evolve after --: the benchmark"),
        ("--minutes 1 --start a=yolov5n.yaml -- --noval", "^--noval after --: the benchmark"),
        ("--minutes 1 --start a=yolov5n.yaml -- --val-period 2", "^--val-period after --: the"),
        ("--minutes 1 --start a=yolov5n.yaml --seeds 0 -1", "^--seed -1: choose 0 to "),
        (
            f"--minutes 1 --start a=yolov5n.yaml --work {__file__}",
            "^--work .*test_starts_benchmark.py: .* is not a folder$",
        ),
        ("--minutes 1 --start a=no-such.yaml", "^no model 'no-such.yaml'"),
        ("--minutes 1 --start a=:no-such.pth", "no-such.pth"),
    ],
)
def test_wrong_values_are_refused_before_anything_is_trained(words, message, tiny_data):
    with pytest.raises(ValueError, match=message):
        starts.main(["--data", str(tiny_data), *words.split()])


def test_images_are_those_that_an_epoch_draws(tiny_data, tmp_path):
    cache = ["--cache-dir", str(tmp_path)]
    whole = starts.count_images(str(tiny_data), cache)
    assert whole == 8
    assert starts.count_images(str(tiny_data), [*cache, "--tile", "32"]) > whole


@pytest.mark.parametrize("start", ["nano", "a=", "a=:", "a b=c"])
def test_wrong_start_is_refused(start, capsys):
    with pytest.raises(SystemExit):
        starts.read_options(["--data", "d", "--minutes", "1", "--start", start])
    assert "argument --start" in capsys.readouterr().err


def outcome(ap: float, seconds: float) -> Outcome:
    curve = [(seconds / 4, ap / 2), (seconds / 2, ap * 0.8), (seconds, ap)]
    return Outcome(ap, ap + 0.2, True, 1.0, curve, wall=seconds + 6)


def test_report_has_the_best_start_first_and_its_ap_over_time(monkeypatch):
    """After 10 % (60 s) nothing was validated, after 25 % (150 s) the first row was."""
    found = {}
    for name, ap, epochs in (("a", 0.4, 30), ("b", 0.6, 90)):
        for seed, more in ((0, 0.0), (1, 0.02)):
            training = Training(name, "sets/bccd/dataset.yaml", seed, ())
            planned = Planned(training, epochs, Pace(1.0, 1.0))
            found[planned] = outcome(ap + more, 594.0)
    monkeypatch.setattr(sys, "argv", ["benchmarks/starts.py", "--about", "a test", "--", "--rect"])
    lines = starts.report(options(), found)
    assert "    python benchmarks/starts.py --about 'a test' -- --rect" in lines
    assert "## bccd" in lines
    rows = next(line for line in lines if line.startswith("| start")).splitlines()
    assert rows[0] == "| start | seeds | epochs | minutes | 10% | 25% | 50% | 75% | AP | AP50 |"
    mean_of_b = "0.610 ± 0.014 | 0.810 ± 0.014"
    assert rows[2] == f"| b | 2 | 90 | 10.0 | 0.000 | 0.305 | 0.488 | 0.488 | {mean_of_b} |"
    assert rows[3].startswith("| a | 2 | 30 | 10.0 | 0.000 | 0.205 ")
    assert lines[-1] == "Best start at 10 minutes: b, AP 0.610 ± 0.014 (2 seeds)"


def test_training_that_fails_does_not_stop_the_others(tmp_path, tiny_data, monkeypatch, capsys):
    """The report has the other one, and the benchmark ends with the first failure."""

    def train(training: Training, *_: object) -> Outcome:
        if training.program == "a":
            raise FaultError("a ended with 1: out of memory")
        return outcome(0.5, 60.0)

    monkeypatch.setattr(starts, "train", train)
    monkeypatch.setattr(starts, "plan", lambda *_: (3, Pace(1.0, 1.0)))
    monkeypatch.setattr(starts, "plot", lambda *_: None)
    words = ["--data", str(tiny_data), "--minutes", "1", "--work", str(tmp_path)]
    words += ["--start", "a=yolov5n.yaml", "--start", "b=yolov5n.yaml"]
    with pytest.raises(FaultError, match=r"^1 training failed, the first one: a ended with 1: out"):
        starts.main(words)
    printed = capsys.readouterr().out
    assert "a ended with 1: out of memory" in printed
    assert "Best start at 1 minute: b, AP 0.500" in printed


@pytest.mark.slow
def test_whole_benchmark(tmp_path, tiny_data, micro_model, monkeypatch, capsys):
    """A trial, a training of as few epochs as fit, and val.py, which are forked."""

    def start(command: Sequence[str], *_: object) -> ForkedProcess:
        return forked_script(command, tmp_path / "processes")

    monkeypatch.setattr(pace, "start", start)
    monkeypatch.setattr(run, "start", start)
    flags = f"--device cpu --workers 0 --cache-dir {tmp_path} --batch 8"
    words = ["--data", str(tiny_data), "--minutes", "0.01", "--img", "64", "--threads", "1"]
    words += ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "starts.md")]
    words += ["--start", f"micro={micro_model}", "--", *flags.split()]
    starts.main(words)
    printed = capsys.readouterr().out
    assert "micro on tiny: " in printed
    table = (tmp_path / "starts.md").read_text()
    assert table.strip() in printed
    assert "Best start at 0.01 minutes: micro, AP " in table
    drawn = cv2.imread(str(tmp_path / "starts.png"))
    assert drawn is not None
    assert drawn.std() > 5

    # Nothing is trained again.
    names = {file.name for file in Path(tmp_path / "work").iterdir()}
    starts.main(words)
    assert {file.name for file in Path(tmp_path / "work").iterdir()} == names
