"""python -m training.compare: whole, unfinished and damaged runs, the table, the file it writes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from training.compare.__main__ import main
from training.compare.comparison import differing, labels_of, run_values
from training.compare.run_files import read_run
from training.early_stopping import EarlyStopping
from utils.files.writers import write_csv, write_json, write_yaml
from utils.metrics.fitness import parse_fitness
from utils.terminal import exit_code_of


def write_run(folder: Path, ap: float, *, epochs: int = 2, **settings: Any) -> Path:
    """A finished run whose epoch n has the AP `ap` * n / epochs."""
    folder.mkdir(parents=True)
    rows = []
    for epoch in range(1, epochs + 1):
        share = epoch / epochs
        rows.append(
            {
                "epoch": epoch,
                "time": 10.0 * epoch,
                "metrics/precision": 0.5,
                "metrics/recall": 0.25,
                "metrics/mAP_0.5": 2 * ap * share,
                "metrics/mAP_0.5:0.95": ap * share,
            }
        )
    write_csv(folder / "results.csv", rows)
    write_yaml(folder / "args.yaml", {"epochs": epochs, "name": folder.name, **settings})
    write_yaml(folder / "hyp.yaml", {"lr0": 0.01})
    best = {"AP": ap, "AP50": 2 * ap, "APs": -1.0, "precision": 0.5, "recall": 0.25}
    best["per_class"] = {"cat": {"AP": ap}, "dog": {"AP": -1.0}}
    write_json(folder / "metrics.json", {"last": {}, "best": best})
    write_json(folder / "data_report.json", {"val": {"images": 8, "instances": 20}})
    return folder


def values_of(page: Path) -> dict:
    (text,) = re.findall(r'id="values">(.*?)</script>', page.read_text(encoding="utf-8"))
    return json.loads(text)


def compare(tmp_path: Path, *runs: Path) -> dict:
    out = tmp_path / "out.html"
    main([*map(str, runs), "--out", str(out)])
    return values_of(out)


def test_runs_are_compared_in_a_table_and_a_page(tmp_path, capsys):
    a = write_run(tmp_path / "a", 0.2, imgsz=320)
    b = write_run(tmp_path / "b", 0.3, epochs=4, imgsz=320)
    values = compare(tmp_path, a, b, a)  # one of them twice
    assert capsys.readouterr().out.splitlines() == [
        "run  epochs  best  mAP50-95    mAP50        P        R  s/epoch  status",
        "a         2     2   0.2000   0.4000   0.5000   0.2500      15.0  finished",
        "b         4     4   0.3000*  0.6000*  0.5000   0.2500      25.0  finished",
        "* the best",
        f"written: {tmp_path / 'out.html'}",
    ]
    assert values["settings"] == [["epochs", ["2", "4"]]]
    assert values["hyp"] == []
    assert values["classes"] == [["cat", [0.2, 0.3]], ["dog", [None, None]]]
    assert values["problems"] == []
    run = values["runs"][1]
    assert (run["AP"], run["APs"], run["best_epoch"], run["total"]) == (0.3, None, 4, 100)
    assert run["columns"]["metrics/mAP_0.5:0.95"] == [0.075, 0.15, 0.225, 0.3]


def test_unfinished_run_has_the_numbers_of_its_best_epoch(tmp_path):
    run = write_run(tmp_path / "a", 0.2)
    (run / "metrics.json").unlink()
    values = compare(tmp_path, run)
    assert values["runs"][0]["status"] == "unfinished"
    assert values["runs"][0]["AP"] == 0.2
    assert values["problems"] == [
        "a: no result in metrics.json: the numbers are those of the best row of results.csv",
        "a: the run has not ended, or was ended by force",
    ]


def test_best_epoch_is_that_of_best_pt(tmp_path):
    """With --fitness another epoch may be the best than that with the highest AP."""
    run = write_run(tmp_path / "a", 0.3, epochs=4)
    write_json(run / "metrics.json", {"best": {"AP": 0.1, "epoch": 2}})
    assert compare(tmp_path, run)["runs"][0]["best_epoch"] == 2
    write_json(run / "metrics.json", {"best": {"AP": 0.1, "epoch": 9}})
    assert compare(tmp_path, run)["runs"][0]["best_epoch"] == 4


def test_best_row_is_that_of_the_fitness_of_the_run(tmp_path):
    """The AP of the rows is 0.1, 0.2, 0.3: recall - |AP - 0.2| is highest in the second."""
    of_row = "recall - max(AP - 0.2, 0.2 - AP)"
    for name, fitness, best in (("a", of_row, 2), ("b", "", 3), ("c", "AP75", 3), ("d", "x", 3)):
        run = write_run(tmp_path / name, 0.3, epochs=3, fitness=fitness)
        (run / "metrics.json").unlink()
        read = read_run(run)
        assert (read.epochs[read.best_row], read.best["AP"]) == (best, pytest.approx(best / 10))
        text = "results.csv does not have what --fitness needs: the best epoch is that of 0.1*"
        assert any(one.startswith(text) for one in read.problems) == (name in "cd")


def test_best_row_is_the_epoch_that_the_training_took(tmp_path):
    """Of equal ones the first; but while all are 0 the latest, whatever follows.

    The AP of the rows is 0.1, 0.2, 0.3.
    """
    above = "max(AP - 0.25, 0)"
    below = "min(0.25 - AP, 0)"
    for name, fitness, best in (("a", above, 3), ("b", below, 2), ("c", "0 * AP", 3)):
        run = write_run(tmp_path / name, 0.3, epochs=3, fitness=fitness)
        (run / "metrics.json").unlink()
        read = read_run(run)
        assert read.epochs[read.best_row] == best

        stopping = EarlyStopping(patience=0)
        for epoch, ap in enumerate((0.1, 0.2, 0.3), 1):
            stopping.update(epoch, parse_fitness(fitness).of({"AP": ap}))
        assert stopping.best_epoch == best


def test_run_without_an_epoch_has_no_numbers(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "args.yaml").write_text("epochs: 3\n")
    (folder / "results.csv").write_text("\n")
    values = compare(tmp_path, folder)
    assert values["runs"][0]["status"] == "no epoch"
    assert values["runs"][0]["AP"] is None
    assert values["runs"][0]["columns"] == {}


def test_status_in_metrics_and_preempted_runs(tmp_path):
    a, b = write_run(tmp_path / "a", 0.2), write_run(tmp_path / "b", 0.2)
    write_json(a / "metrics.json", {"status": "failed\n", "reason": "no disk", "last": {}})
    (b / "metrics.json").unlink()
    (b / "preempted.json").write_text("{}")
    runs = [read_run(run) for run in (a, b)]
    assert [run.status for run in runs] == ["failed", "interrupted"]
    assert runs[0].problems[0] == "failed: no disk"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("metrics.json", "{", "metrics.json cannot be used: Expecting property name"),
        ("metrics.json", "[" * 100_000, "metrics.json cannot be used: maximum recursion"),
        ("metrics.json", "[]", "metrics.json cannot be used: not an object"),
        ("metrics.json", b"\xff", "metrics.json cannot be read: 'utf-8' codec can't decode"),
        ("results.csv", "epoch,time\n1,2\n", "results.csv cannot be used: no column metrics/mAP"),
        ("args.yaml", "a: &x 1\nb: *x\n", "args.yaml line 2: aliases (*x) are not allowed"),
        ("args.yaml", "- a\n", "args.yaml: not a list of keys and values"),
        ("hyp.yaml", "lr0: 1\nlr0: 2\n", "hyp.yaml line 2: the key 'lr0' appears twice"),
        ("data_report.json", "{'a'", "data_report.json cannot be used: Expecting property"),
    ],
)
def test_damaged_file_is_a_sentence(name, content, sentence, tmp_path):
    run = write_run(tmp_path / "a", 0.2)
    write = (run / name).write_bytes if isinstance(content, bytes) else (run / name).write_text
    write(content)
    problem = compare(tmp_path, run)["problems"][0]
    assert problem.startswith(f"a: {sentence}")


def test_values_of_any_type_are_no_numbers(tmp_path):
    run = write_run(tmp_path / "a", 0.2)
    best = {"AP": "0.5", "AP50": True, "precision": 1e999, "per_class": {"cat": 3, "dog": {}}}
    (run / "metrics.json").write_text(json.dumps({"best": best}))
    values = compare(tmp_path, run)
    assert values["runs"][0]["AP"] == 0.2  # from results.csv
    assert values["classes"] == [["cat", [None]], ["dog", [None]]]
    (run / "metrics.json").write_text(f'{{"best": {{"AP": 1{"0" * 400}, "AP50": 1e308}}}}')
    assert compare(tmp_path, run)["runs"][0]["AP50"] == 0.4
    (run / "metrics.json").write_text('{"best": [], "status": 3}')
    assert compare(tmp_path, run)["runs"][0]["status"] == "finished"


def test_cut_row_of_results_is_left_out(tmp_path):
    run = write_run(tmp_path / "a", 0.2, epochs=3)
    text = (run / "results.csv").read_text()
    (run / "results.csv").write_text(text.rstrip()[:-3].rpartition(",")[0])
    values = compare(tmp_path, run)
    assert values["runs"][0]["epochs"] == 2
    sentence = "a: results.csv: rows without 6 values or the number of an epoch: 1"
    assert values["problems"] == [sentence]


def test_numbers_that_cannot_be_are_not_known(tmp_path, capsys):
    """And of epochs that are all 0 the last one is the best, as in a training."""
    run = write_run(tmp_path / "a", 0.0)
    (run / "metrics.json").unlink()
    lines = (run / "results.csv").read_text().splitlines()
    lines += ["1e300,1,0.5,0.5,0.5,0.5", "nan,1,0.5,0.5,0.5,0.5", "3,1e308,1e308,inf,-1,0.5"]
    (run / "results.csv").write_text("\ufeff" + "\n".join(lines))  # as a spreadsheet writes it
    values = compare(tmp_path, run)["runs"][0]
    assert (values["epochs"], values["best_epoch"], values["AP"]) == (3, 2, 0)
    assert values["columns"]["metrics/precision"] == [0.5, 0.5, None]
    table = capsys.readouterr().out.splitlines()[:2]
    assert all(len(line) < 100 for line in table)


def test_other_classes_and_other_data_are_named(tmp_path):
    a, b = write_run(tmp_path / "a", 0.2), write_run(tmp_path / "b", 0.3)
    write_json(b / "metrics.json", {"best": {"AP": 0.3, "per_class": {"cat": {"AP": 0.3}}}})
    write_json(b / "data_report.json", {"val": {"images": 9, "instances": 20}})
    assert compare(tmp_path, a, b)["problems"] == [
        "the classes of b differ from those of a: their mAP is not comparable",
        "the val split of b has other images or boxes than that of a: their metrics are not "
        "comparable",
    ]
    for run, digest in ((a, "1f"), (b, "2e")):
        write_json(run / "metrics.json", {"best": {"AP": 0.3}})
        val = {"images": 8, "instances": 20, "digest": digest}
        write_json(run / "data_report.json", {"val": val})
    assert "the val split of b has other images" in compare(tmp_path, a, b)["problems"][0]


def test_runs_of_equal_name_are_told_apart(tmp_path):
    runs = [read_run(write_run(tmp_path / place / "exp", 0.1)) for place in ("a", "b")]
    assert labels_of(runs) == ["a/exp", "b/exp"]
    assert labels_of(runs[:1]) == ["exp"]
    assert labels_of([]) == []
    assert differing([]) == []
    assert run_values(runs[0], "x")["name"] == "x"


def test_validation_runs_are_compared_too(tmp_path):
    folder = tmp_path / "val"
    folder.mkdir()
    write_json(folder / "metrics.json", {"AP": 0.4, "AP50": 0.6, "per_class": {"cat": {"AP": 0.4}}})
    run = compare(tmp_path, folder)["runs"][0]
    assert (run["status"], run["AP"], run["epochs"]) == ("validation", 0.4, None)


def test_page_replaces_only_a_page_of_its_own(tmp_path, capsys):
    run = write_run(tmp_path / "a", 0.2)
    out = tmp_path / "page.html"
    words = [str(run), "--out", str(out)]
    assert exit_code_of(lambda: main(words)) == 0
    assert exit_code_of(lambda: main(words)) == 0  # its own
    out.write_text("mine")
    assert exit_code_of(lambda: main(words)) == 2
    assert out.read_text() == "mine"
    assert f"{out}: exists and is not a comparison of runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "nowhere: there is no such folder"),
        (["."], ".: no run folder, which has args.yaml, results.csv, metrics.json or one of them"),
        (["a", "--out", "."], "--out .: is a folder; name a file, such as compare.html"),
        (["a", "--out", "b/c.html"], "--out b/c.html: there is no folder b"),
        ([], "the following arguments are required: RUN"),
    ],
)
def test_wrong_input_is_one_sentence(words, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a", 0.2)
    assert exit_code_of(lambda: main(words)) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.glob("**/*.html"))
    assert not (tmp_path / "runs").exists()


def test_page_is_below_runs_by_default(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a", 0.2)
    main(["a"])
    assert capsys.readouterr().out.splitlines()[-1] == f"written: {Path('runs/compare.html')}"
    assert Path("runs/compare.html").is_file()


def test_folder_without_a_run_is_left_out(tmp_path, capsys):
    run = write_run(tmp_path / "a", 0.2)
    (tmp_path / "notes").mkdir()
    assert len(compare(tmp_path, tmp_path / "notes", run)["runs"]) == 1
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'notes'}: not a run folder, left out\n")
