"""benchmarks/accuracy.py, benchmarks/trainings/: programs of any kind, watched by the rows of their
results.csv.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import accuracy
from benchmarks.accuracy import Training, plan
from benchmarks.trainings import run as running
from benchmarks.trainings.run import Outcome, filled, read_rows, train, watch_results
from benchmarks.trainings.tables import plot, report
from utils.images.opencv import cv2
from utils.terminal import FaultError, exit_code_of

PEER = """
import sys, time
from itertools import pairwise
from pathlib import Path
folder = Path(sys.argv[1]) / "run"
folder.mkdir(parents=True)
with open(folder / "results.csv", "w") as file:
    print("epoch,  time, metrics/mAP50(B), metrics/mAP50-95(B)", file=file, flush=True)
    for epoch, value in enumerate((0.1, 0.45, 0.5, 0.4)):
        time.sleep(0.3)
        print(f"{epoch}, 1, {value + 0.2}, {value}", file=file, flush=True)
"""


@pytest.fixture
def peer(tmp_path):
    """The command of a program that writes results.csv as Ultralytics does, and no checkpoint."""
    (tmp_path / "peer.py").write_text(PEER)
    return f"{sys.executable} {tmp_path / 'peer.py'} {{out}}"


def test_rows_arrive_with_their_times(peer, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "LOOK_S", 0.02)
    process = subprocess.Popen(peer.format(out=tmp_path / "out").split())
    rows = list(watch_results(process, tmp_path / "out"))
    assert [row["metrics/mAP50-95(B)"] for _, row in rows] == ["0.1", "0.45", "0.5", "0.4"]
    times = [at for at, _ in rows]
    assert all(later >= earlier for earlier, later in pairwise(times))
    assert all(
        at > 0.25 * number for number, at in enumerate(times, 1)
    )  # 0.3 s each; a busy machine is slower
    assert times[-1] - times[0] > 0.3  # the first ones did not wait for the end


def test_rows_that_are_not_complete_are_left_out(tmp_path):
    file = tmp_path / "results.csv"
    file.write_text(" epoch , a\n 0 , 1\n 1 ,  \n 2 , 0.")
    assert read_rows(file) == [{"epoch": "0", "a": "1"}, {"epoch": "1"}]
    file.write_text("")
    assert read_rows(file) == []


def test_program_without_checkpoint_keeps_its_own_figures(peer, tmp_path, tiny_data, monkeypatch):
    monkeypatch.setattr(running, "LOOK_S", 0.02)
    training = Training("Peer", str(tiny_data), 0, tuple(peer.split()))
    outcome = train(training, tmp_path, threads=1)
    assert (outcome.ap, outcome.ap50, outcome.same_evaluator) == (0.5, 0.7, False)
    assert [value for _, value in outcome.curve] == [0.1, 0.45, 0.5, 0.4]
    # 8 images in each of the three epochs between the first and the last row; times in the curve
    # have one decimal
    seconds = outcome.curve[-1][0] - outcome.curve[0][0]
    assert 3 * 8 / (seconds + 0.1) <= outcome.images_per_second <= 3 * 8 / (seconds - 0.1)
    assert outcome.seconds_to(0.9) == outcome.curve[1][0]  # 0.45 of 0.5
    stored = json.loads((tmp_path / f"{training.key}.json").read_text())
    assert stored["ap"] == 0.5
    (tmp_path / "peer.py").write_text("raise SystemExit(1)")  # what is done is not trained again
    assert train(training, tmp_path, threads=1).ap == 0.5


def test_interrupted_training_starts_again(peer, tmp_path, tiny_data, monkeypatch):
    """Its results.csv would be read as rows of the new one, all after 0 seconds."""
    monkeypatch.setattr(running, "LOOK_S", 0.02)
    training = Training("Peer", str(tiny_data), 0, tuple(peer.split()))
    older = tmp_path / training.key / "run" / "results.csv"
    older.parent.mkdir(parents=True)
    older.write_text("epoch, metrics/mAP50-95(B)\n0, 0.9\n1, 0.9\n")
    curve = train(training, tmp_path, threads=1).curve
    assert [value for _, value in curve] == [0.1, 0.45, 0.5, 0.4]
    assert curve[0][0] > 0.2


def quick_training(folder: Path, data: Path, text: str) -> Training:
    """A training by a program that only writes this results.csv."""
    (folder / "quick.py").write_text(
        "import sys, os; os.mkdir(sys.argv[1]); open(sys.argv[1] + '/results.csv', "
        f"'w').write({text!r})"
    )
    return Training("Peer", str(data), 0, (sys.executable, f"{folder}/quick.py", "{out}"))


def test_figures_that_are_not_numbers_are_left_out(tmp_path, tiny_data, monkeypatch):
    monkeypatch.setattr(running, "LOOK_S", 0.02)
    training = quick_training(
        tmp_path, tiny_data, "metrics/mAP50(B), metrics/mAP50-95(B)\n0.1, nan\n0.7, 0.5\nnan, nan\n"
    )
    for _ in range(2):
        outcome = train(training, tmp_path, threads=1)
        assert (outcome.ap, outcome.ap50, [value for _, value in outcome.curve]) == (
            0.5,
            0.7,
            [0.5],
        )


def test_results_without_a_known_column_are_refused(tmp_path, tiny_data, monkeypatch):
    monkeypatch.setattr(running, "LOOK_S", 0.02)
    training = quick_training(tmp_path, tiny_data, "mAP\n1\n")
    with pytest.raises(
        FaultError,
        match=r"Peer_tiny_0_\w{8}: the results.csv under .* has no metrics/mAP_0.5:0.95 or",
    ):
        train(training, tmp_path, threads=1)


@pytest.mark.parametrize("jobs", [1, 2])
def test_failure_lets_running_programs_end_and_starts_no_other(
    jobs, peer, tmp_path, tiny_data, monkeypatch
):
    words = [
        "--data",
        str(tiny_data),
        "--models",
        "--seeds",
        "0",
        "--out",
        str(tmp_path / "out"),
        "--jobs",
        f"{jobs}",
    ]
    peers = ["--peer", f"Good={peer}", "--peer", "Bad=false {out}", "--peer", f"Later={peer}"]
    monkeypatch.setattr(sys, "argv", ["accuracy.py", *words, *peers])
    with pytest.raises(FaultError, match=r"^Bad_tiny_0_"):
        accuracy.main()
    assert [path.name.split("_")[0] for path in (tmp_path / "out").glob("*.json")] == ["Good"]
    assert not list((tmp_path / "out").glob("Later*"))


@pytest.mark.parametrize("text", ["", '{"ap": 0.5', '{"other": 1}', "[1]"])
def test_damaged_result_is_named(tmp_path, text):
    training = Training("Peer", "a.yaml", 0, ("false",))
    stored = tmp_path / f"{training.key}.json"
    stored.write_text(text)
    with pytest.raises(
        FaultError, match=rf"^{stored}: not the result of a training; delete it to train again$"
    ):
        train(training, tmp_path, threads=1)


def test_figure_that_is_not_known_is_read_back(tmp_path):
    """Of a single epoch there is no speed; JSON has no NaN."""
    training = Training("Peer", "a.yaml", 0, ("false",))
    running.write_json(
        tmp_path / f"{training.key}.json", running.asdict(Outcome(0.5, 0.7, True, float("nan")))
    )
    outcome = train(training, tmp_path, threads=1)
    assert (outcome.ap, math.isnan(outcome.images_per_second)) == (0.5, True)
    (row,) = [line for line in report([training], [outcome], "Title") if line.startswith("| a |")]
    assert row.endswith("| - |")


def test_stored_figures_are_of_the_same_data_and_command():
    one = Training("ours", "bccd/dataset.yaml", 0, ("train", "--epochs", "1"))
    others = [
        replace(one, data="chess/dataset.yaml"),
        replace(one, command=("train", "--epochs", "2")),
    ]
    others += [replace(one, seed=1), replace(one, program="theirs")]
    assert len({each.key for each in [one, *others]}) == 5
    assert one.key == replace(one).key


def test_failed_program_names_its_log(tmp_path, tiny_data):
    words = ("sh", "-c", "echo one; echo two; echo; exit 3")
    with pytest.raises(
        FaultError, match=r"^Peer_tiny_0_\w{8} ended with 3: two \(see .*Peer_tiny_0_\w{8}\.log\)$"
    ):
        train(Training("Peer", str(tiny_data), 0, words), tmp_path, threads=1)
    with pytest.raises(FaultError, match=r"^Peer_tiny_0_\w{8} ended with 1: no output \(see "):
        train(Training("Peer", str(tiny_data), 0, ("false",)), tmp_path, threads=1)


def test_table_has_means_and_deviations_over_seeds():
    seeds = [Training("ours auto", "bccd/dataset.yaml", seed, ("true",)) for seed in (0, 1)]
    trainings = [*seeds, Training("Slow", "bccd/dataset.yaml", 0, ("/a/b/slow", "{data}"))]
    trainings += [Training("Peer", "chess.yaml", 0, (sys.executable, f"{running.ROOT}/train.py"))]
    outcomes = [
        Outcome(0.50, 0.90, True, 10.0, [(10, 0.2), (20, 0.5)]),
        Outcome(0.60, 0.92, True, 12.0, [(12, 0.6)]),
        Outcome(0.40, 0.80, True, 3.0, [(15, 0.3), (40, 0.4)]),
        Outcome(0.30, 0.40, False, 5.0),
    ]
    lines = report(trainings, outcomes, "Title")
    rows = [line for line in lines if line.startswith("| ")]
    assert lines[-3:] == [
        "- ours auto: `true`",
        "- Slow: `slow '{data}'`",
        "- Peer: `python train.py`",
    ]
    # On bccd the first program ends after 20 s, with its slower seed: its seeds have reached 0.5
    # and 0.6, Slow 0.3. 80 % of 0.5 is reached after 20 s, of 0.6 after 12 s; the standard
    # deviation of 0.5 and 0.6 is 0.1 / sqrt(2)
    assert rows[1:] == [
        "| bccd | ours auto | 2 | 0.550 ± 0.071 | 0.910 | 0.550 | 16 | 16 | 16 | 16 | 11.0 |",
        "| bccd | Slow | 1 | 0.400 | 0.800 | 0.300 | 40 | 40 | 40 | 40 | 3.0 |",
        "| chess | Peer | 1 | 0.300 * | 0.400 | - | - | - | - | - | 5.0 |",
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--data DATA --models", "nothing to train: give --models or --peer, and --seeds"),
        ("--data absent.yaml", "no data set absent.yaml: neither "),
        ("--data DATA --peer P=no-such-program", "P: there is no program 'no-such-program'"),
        ("--data DATA --peer P=", "P: there is no program ''"),
        ("--data DATA --seeds 0 --peer P=true", "P: there is no {out} in its command"),
        ("--data DATA --peer P=yes{out}", "P: there is no program 'yes{out}'"),
        ("--data DATA DATA", "the data set DATA is given twice"),
        ("--data DATA -- --seed 7", "yolov5n auto: the benchmark itself gives --seed"),
        ("--data DATA -- --cfg yolo11n.yaml", "yolov5n auto: the benchmark itself gives --cfg"),
        ("--data DATA --recipe a=--project+x", "yolov5n a: the benchmark itself gives --project"),
        ("--data DATA --seeds 0 -1", "--seed -1: "),
        (
            "--data DATA --seeds 0 --peer P=env+{out} --peer P=env+{out}",
            "the program P is given twice",
        ),
        ("--data DATA --recipe a= --recipe a=--rect", "the program yolov5n a is given twice"),
        (
            "--data DATA --models yolov5n.yaml other/yolov5n.yaml",
            "the program yolov5n auto is given twice",
        ),
        ("--data DATA --seeds 0 1 0", "the seed 0 is given twice"),
        (
            "--data DATA --models yolov5z.yaml",
            "no model 'yolov5z.yaml': give a YAML file or one of ",
        ),
        ("--data DATA -- --epochs 0", "--epochs 0: "),
        (
            "--data DATA -- --weights absent.pt",
            "absent.pt: cannot be read as a checkpoint: No such file.",
        ),
        ("--data DATA -- --hyp absent.yaml", "no hyper-parameters absent.yaml: neither "),
        ("--data DATA --recipe a='", "a: No closing quotation"),
        ("--data DATA --jobs 0", "--jobs 0: choose 1 or more"),
        ("--data DATA --threads -1", "--threads -1: choose 1 or more"),
    ],
)
def test_wrong_flags_are_refused_before_training(
    tmp_path, tiny_data, monkeypatch, capsys, words, sentence
):
    own = [word.replace("DATA", str(tiny_data)).replace("+", " ") for word in words.split()]
    sentence = sentence.replace("DATA", str(tiny_data))
    monkeypatch.setattr(sys, "argv", ["accuracy.py", "--out", str(tmp_path / "out"), *own])
    assert exit_code_of(accuracy.main) == 2
    assert capsys.readouterr().err.startswith(f"error: {sentence}")
    assert not (tmp_path / "out").exists()


def test_out_that_is_a_file_is_refused(tmp_path, tiny_data, monkeypatch, capsys):
    (tmp_path / "out").touch()
    words = [
        "--data",
        str(tiny_data),
        "--models",
        "--peer",
        "P=true {out} {seed}",
        "--out",
        str(tmp_path / "out"),
    ]
    monkeypatch.setattr(sys, "argv", ["accuracy.py", *words])
    assert exit_code_of(accuracy.main) == 2
    assert capsys.readouterr().err == f"error: --out {tmp_path / 'out'} is a file\n"


def test_other_braces_of_a_command_stay(tmp_path):
    training = Training("P", "a.yaml", 7, ())
    words = ["{data}", "x={seed}", "{out}/a", '{"b":1}', "{c}"]
    assert [filled(word, training, tmp_path) for word in words] == [
        *("a.yaml", "x=7", f"{tmp_path}/a"),
        *('{"b":1}', "{c}"),
    ]


@pytest.mark.parametrize("name", ["A|B", "a b", "a/b", "x" * 61])
def test_names_fit_into_tables_and_file_names(tiny_data, monkeypatch, capsys, name):
    monkeypatch.setattr(
        sys, "argv", ["accuracy.py", "--data", str(tiny_data), "--peer", f"{name}=true {{out}}"]
    )
    with pytest.raises(SystemExit):
        accuracy.main()
    assert f"argument --peer: {name!r}: a name has 1 to 60 " in capsys.readouterr().err


@pytest.mark.parametrize(
    "other", [[], ["--peer", "Bad=false {out}", "--jobs", "2"]], ids=["alone", "after a failure"]
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_signal_ends_the_program_and_starts_no_other(tmp_path, tiny_data, other, number):
    """As from `kill -INT`, or where a terminal is closed: only the benchmark gets it; a second one
    changes nothing.
    """
    (tmp_path / "peer.py").write_text(
        "import os, signal, sys, time\n"
        "open(sys.argv[1] + '.pid', 'w').write(str(os.getpid()))\n"
        # as a program that saves and ends
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), sys.exit(0)))\n"
        "os.mkdir(sys.argv[2])\n"
        "open(sys.argv[2] + '/results.csv', 'w').write('metrics/mAP50(B), "
        "metrics/mAP50-95(B)\\n0.9, 0.9\\n')\n"
        "open(sys.argv[1], 'x')\n"
        "time.sleep(600)\n"
    )
    peer = f"P={sys.executable} {tmp_path}/peer.py {tmp_path}/{{seed}} {{out}}"
    script = [
        sys.executable,
        str(running.ROOT / "benchmarks" / "accuracy.py"),
        "--models",
        "--peer",
        peer,
        *other,
    ]
    words = [
        "--data",
        str(tiny_data),
        "--out",
        str(tmp_path / "out"),
        "--seeds",
        "0",
        *([] if other else ["1"]),
    ]
    process = subprocess.Popen(
        [*script, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        while not (tmp_path / "0").exists() and process.poll() is None:
            time.sleep(0.05)
        first = process.stderr.readline() if other else ""  # the failure, at once
        process.send_signal(number)
        time.sleep(0.3)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, errors) == (130, "interrupted\n")
    assert first.startswith("Bad_tiny_0_" if other else "")
    assert not (tmp_path / "1").exists()
    assert not list((tmp_path / "out").glob("*.json"))  # an unfinished training is not stored
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "0.pid").read_text()), 0)


def test_checkpoint_that_val_cannot_read_keeps_the_programs_figures(
    tmp_path, tiny_data, monkeypatch, capsys
):
    monkeypatch.setattr(running, "LOOK_S", 0.02)
    training = quick_training(
        tmp_path, tiny_data, "metrics/mAP50(B), metrics/mAP50-95(B)\n0.7, 0.5\n"
    )
    with open(tmp_path / "quick.py", "a") as file:
        file.write("; open(sys.argv[1] + '/best.pt', 'w').write('no')")
    outcome = train(training, tmp_path, threads=1)
    assert (outcome.ap, outcome.same_evaluator) == (0.5, False)
    said = capsys.readouterr().out
    assert "val.py ended with 2: error: " in said
    assert "best.pt: is not a checkpoint" in said
    assert said.endswith("the program's own figures are used, marked *\n")


def test_data_sets_with_the_same_file_name_are_kept_apart(tmp_path):
    seeds = [Training("ours", data, 0, ("true",)) for data in ("a/few.yaml", "b/few.yaml")]
    outcomes = [
        Outcome(0.5, 0.9, True, 10.0, [(10, 0.2)]),
        Outcome(0.3, 0.8, True, 10.0, [(10, 0.1)]),
    ]
    rows = [
        line.split(" | ")[:4] for line in report(seeds, outcomes, "Title") if line.startswith("| ")
    ]
    assert rows[1:] == [
        ["| a/few.yaml", "ours", "1", "0.500"],
        ["| b/few.yaml", "ours", "1", "0.300"],
    ]
    plot(seeds, outcomes, tmp_path / "a.png")
    one = cv2.imread(str(tmp_path / "a.png")).shape[1]
    plot(seeds[:1], outcomes[:1], tmp_path / "b.png")
    assert one > 1.5 * cv2.imread(str(tmp_path / "b.png")).shape[1]  # two panels


@pytest.mark.slow
def test_whole_benchmark(peer, tmp_path, tiny_data, tiny_model, monkeypatch, capsys):
    """Our training and a peer's: a table, a picture, and best.pt measured by val.py."""
    words = [
        "--data",
        str(tiny_data),
        "--models",
        tiny_model,
        "--seeds",
        "0",
        "1",
        "--out",
        str(tmp_path / "out"),
    ]
    words += [
        "--recipe",
        "auto=",
        "--recipe",
        "published=--optimizer SGD",
        "--peer",
        f"Peer={peer}",
        "--threads",
        "1",
    ]
    ours = ["--img", "64", "--epochs", "2", "--batch", "4", "--device", "cpu", "--workers", "0"]
    monkeypatch.setattr(
        sys, "argv", ["accuracy.py", *words, "--", *ours, "--cache-dir", str(tmp_path / "cache")]
    )
    accuracy.main()
    table = (tmp_path / "out" / "report.md").read_text()
    assert table.strip() in capsys.readouterr().out
    rows = [line.split(" | ")[1:3] for line in table.splitlines() if line.startswith("| tiny")]
    assert rows == [["tiny auto", "2"], ["tiny published", "2"], ["Peer", "2"]]
    stored = json.loads(next((tmp_path / "out").glob("tiny-auto_tiny_1_*.json")).read_text())
    assert stored["same_evaluator"]
    assert len(stored["curve"]) == 2
    drawn = cv2.imread(str(tmp_path / "out" / "accuracy.png"))
    assert drawn is not None
    assert drawn.std() > 5


def test_plan_crosses_data_models_recipes_and_seeds(tiny_data):
    names = {
        "data": [str(tiny_data)],
        "models": ["yolov5n.yaml", "yolo11n.yaml"],
        "seeds": [0, 1, 2],
        "flags": ["--rect"],
    }
    options = accuracy.argparse.Namespace(
        **names,
        recipe=[("auto", ""), ("sgd", "--optimizer SGD")],
        peer=[("P", "true {out} {seed}")],
    )
    trainings = plan(options)
    assert len(trainings) == (2 * 2 + 1) * 3
    assert len({training.key for training in trainings}) == len(trainings)
    ours = trainings[3]
    assert (ours.program, ours.seed, Path(ours.data)) == ("yolov5n sgd", 0, tiny_data.resolve())
    assert ours.command[-3:] == ("--optimizer", "SGD", "--rect")
