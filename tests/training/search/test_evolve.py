"""training/search/evolve.py: the files of a search, failures, and how it continues."""

import csv
import json
import re
import shutil
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch

from tests.support.pretended_training import PretendedTraining, by_learning_rate
from tests.support.small_run import files_of
from tests.support.thread_ranks import run_ranks, thread_worlds
from training.distillation.teacher_file import with_teacher_digest
from training.nonfinite import NonFiniteError
from training.search.evolve import evolve, find_search
from training.search.history import read_history
from training.settings.config import TrainConfig
from training.settings.hyperparameters import Hyp, read_hyp
from utils.distributed.world import World
from utils.files import sha256_of
from utils.loggers.base import Logger
from utils.loggers.registry import LOGGERS
from utils.terminal import FaultError

CPU = World(torch.device("cpu"))


@pytest.fixture(autouse=True, scope="module")
def _no_picture():
    """Drawing 27 panels takes a second; test_search_plot.py does it."""
    with mock.patch("utils.plots.search.plot_search", lambda csv, png, keys: png.touch()):
        yield


def flags_for(folder, *, evolve=4, **flags):
    given = {"project", "evolve", *flags}
    return TrainConfig(project=str(folder), evolve=evolve, given=frozenset(given), **flags)


def resume_flags(folder, **flags):
    given = {"project", "resume_evolve", *flags}
    return TrainConfig(project=str(folder), resume_evolve="newest", given=frozenset(given), **flags)


def run(flags, train=None):
    train = train or PretendedTraining()
    evolve(flags, CPU, train)
    return train


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The folder of a search of six trainings."""
    folder = tmp_path_factory.mktemp("straight")
    run(flags_for(folder, evolve=6))
    return folder / "exp"


def same_as(straight, folder):
    for name in ("evolve.csv", "hyp_evolve.yaml", "metrics.json"):
        assert (folder / name).read_bytes() == (straight / name).read_bytes(), name


def test_search_trains_the_base_and_mutations_of_the_best(tmp_path, capsys):
    train = run(flags_for(tmp_path, epochs=3, seed=5))
    assert [hyp.lr0 for _, hyp in train.calls[:1]] == [0.01]
    assert len({hyp.lr0 for _, hyp in train.calls}) > 1
    for number, (config, _) in enumerate(train.calls):
        assert (config.project, config.name) == (str(tmp_path / "exp"), f"generations/{number}")
        assert (config.evolve, config.noplots, config.epochs, config.seed) == (0, True, 3, 5)
    # what the first one has chosen for the data
    assert [config.optimizer for config, _ in train.calls] == ["auto"] + ["Muon"] * 3

    folder = tmp_path / "exp"
    known = read_history(folder / "evolve.csv")
    assert [one.hyp for one in known] == [hyp.as_dict() for _, hyp in train.calls]
    best = max(known, key=lambda one: one.fitness)
    assert best.fitness == pytest.approx(by_learning_rate(None, Hyp(**best.hyp)), rel=1e-6)
    assert read_hyp(folder / "hyp_evolve.yaml") == ("Muon", Hyp(**best.hyp))
    assert (folder / "hyp_evolve.yaml").read_text().startswith("# the best of 4 generations: numb")
    assert json.loads((folder / "metrics.json").read_text())["best"]["AP50"] == 0.75
    assert (folder / "evolve.png").exists()
    weights = {name for name in files_of(folder) if name.endswith(".pt")}
    assert weights == {f"generations/{best.number}/weights/best.pt"}

    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"--evolve: 4 trainings, one after another; writing to {folder}"
    gain = best.fitness - known[0].fitness
    assert said[-1] == (
        f"best: generation {best.number}, fitness {best.fitness:.5g}, {gain:+.5g} against "
        f"generation 0; train with --hyp {folder}/hyp_evolve.yaml --batch-size 16"
    )


def test_all_trainings_of_a_search_have_the_same_teacher(tmp_path):
    teacher = tmp_path / "teacher.pt"
    teacher.write_bytes(b"one")
    train = run(flags_for(tmp_path, evolve=2, teacher=(str(teacher),)))
    given = [config for config, _ in train.calls]
    assert [config.teacher for config in given] == [(str(teacher), sha256_of(teacher)[:16])] * 2
    assert with_teacher_digest(given[0]).teacher == given[0].teacher

    teacher.write_bytes(b"another")
    with pytest.raises(ValueError, match=r"teacher\.pt: has changed since the search began"):
        with_teacher_digest(given[0])


def test_search_of_one_training(tmp_path):
    assert len(run(flags_for(tmp_path, evolve=1)).calls) == 1
    assert len(read_history(tmp_path / "exp" / "evolve.csv")) == 1


class StopError(Exception):
    """Ends a training as a kill would: nothing handles it."""


def stopping_at(number, error):
    """A training that fails in the call of this number, from 0."""
    calls = iter(range(10**6))

    def score(config, hyp):
        if next(calls) == number:
            raise error
        return by_learning_rate(config, hyp)

    return PretendedTraining(score)


@pytest.mark.parametrize("number", [0, 1, 4])
def test_interrupted_search_continues_as_if_it_had_not_been(straight, tmp_path, number, capsys):
    with pytest.raises(KeyboardInterrupt):
        run(flags_for(tmp_path, evolve=6), stopping_at(number, KeyboardInterrupt()))
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == f"continue with --resume-evolve {tmp_path}/exp"
    assert not (tmp_path / "exp" / "metrics.json").exists()

    again = run(resume_flags(tmp_path, epochs=7))
    same_as(straight, tmp_path / "exp")
    # the interrupted one resumes from its checkpoint, with the flags of the search
    last = tmp_path / "exp" / "generations" / str(number) / "weights" / "last.pt"
    assert [config.resume for config, _ in again.calls] == [str(last)] + [""] * (5 - number)
    assert {config.epochs for config, _ in again.calls} == {100}
    said = capsys.readouterr().out
    assert f"continuing the search in {tmp_path}/exp: {number} of 6 trainings done" in said
    assert "--resume-evolve keeps the search's own settings; these flags have no effect: " in said


def test_training_that_was_done_but_not_recorded_is_trained_again(straight, tmp_path, monkeypatch):
    def killed(*_):
        raise StopError

    with monkeypatch.context() as patch:
        patch.setattr("training.search.evolve.write_history", killed)
        with pytest.raises(StopError):
            run(flags_for(tmp_path, evolve=6))
    assert (tmp_path / "exp" / "generations" / "0" / "metrics.json").exists()
    assert [config.resume for config, _ in run(resume_flags(tmp_path)).calls] == [""] * 6
    same_as(straight, tmp_path / "exp")


def test_search_that_was_killed_before_its_files_were_written_writes_them(straight, tmp_path):
    run(flags_for(tmp_path, evolve=6))
    for name in ("hyp_evolve.yaml", "evolve.png", "metrics.json"):
        (tmp_path / "exp" / name).unlink()
    run(resume_flags(tmp_path, evolve=7))
    assert (tmp_path / "exp" / "evolve.png").exists()
    first = read_history(tmp_path / "exp" / "evolve.csv")[:6]
    assert first == read_history(straight / "evolve.csv")


def test_search_that_was_killed_after_its_last_training_is_completed(straight, tmp_path):
    run(flags_for(tmp_path, evolve=6))
    for name in ("hyp_evolve.yaml", "metrics.json"):
        (tmp_path / "exp" / name).unlink()
    assert run(resume_flags(tmp_path)).calls == []
    same_as(straight, tmp_path / "exp")
    with pytest.raises(ValueError, match="its 6 trainings are done"):
        run(resume_flags(tmp_path))


def test_nothing_outside_the_folder_is_removed(tmp_path):
    """The folder may be a stranger's, with links to folders of the user."""
    folder = tmp_path / "exp"
    run(flags_for(tmp_path, evolve=2))
    (tmp_path / "mine" / "weights").mkdir(parents=True)
    for name in ("weights/last.pt", "hyp.yaml", "args.yaml", "metrics.json"):
        (tmp_path / "mine" / name).write_bytes(
            (folder / "generations/1" / name).read_bytes() if not name.endswith(".pt") else b""
        )
    before = files_of(tmp_path / "mine")
    for number in (0, 2):
        shutil.rmtree(folder / "generations" / str(number), ignore_errors=True)
        (folder / "generations" / str(number)).symlink_to(tmp_path / "mine")
    with pytest.raises(
        ValueError, match=r"generations/2: is a link, or contains one; a search wri"
    ):
        run(resume_flags(tmp_path, evolve=3))
    assert files_of(tmp_path / "mine") == before


def test_folders_of_generations_that_are_done_are_not_needed(straight, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(flags_for(tmp_path, evolve=6), stopping_at(4, KeyboardInterrupt()))
    for number in range(4):
        shutil.rmtree(tmp_path / "exp" / "generations" / str(number))
    again = run(resume_flags(tmp_path))
    assert [config.optimizer for config, _ in again.calls] == ["Muon"] * 2
    same_as(straight, tmp_path / "exp")


@pytest.mark.parametrize("rows", [0, 1])
def test_missing_rows_are_named_and_nothing_is_trained_again(straight, tmp_path, rows):
    folder = tmp_path / "exp"
    shutil.copytree(straight, folder)
    history = folder / "evolve.csv"
    lines = history.read_text().splitlines(keepends=True)
    if rows == 0:
        history.unlink()
    else:
        history.write_text("".join(lines[: 1 + rows]))
    before = files_of(folder)

    count = "0 generations" if rows == 0 else "1 generation"
    sentence = (
        rf"^.*/evolve\.csv: has {count}, but generations/{rows + 1} is there; put the missing rows "
        rf"back, or remove the folders of these generations, from {rows} on, to train them again$"
    )
    with pytest.raises(ValueError, match=sentence):
        run(resume_flags(tmp_path, evolve=7))
    assert files_of(folder) == before

    for number in range(rows, 6):
        shutil.rmtree(folder / "generations" / str(number))
    assert len(run(resume_flags(tmp_path, evolve=7)).calls) == 7 - rows


def test_first_training_whose_choices_are_nowhere_is_named(tmp_path):
    """As in a search of an older version, whose evolve.json does not have them."""
    folder = tmp_path / "exp"
    run(flags_for(tmp_path, evolve=2))
    state = json.loads((folder / "evolve.json").read_text())
    assert state.pop("base") == {"optimizer": "Muon", "batch_size": 16}
    (folder / "evolve.json").write_text(json.dumps(state))
    shutil.move(folder / "generations" / "0", tmp_path / "away")
    sentence = (
        r"^.*/generations/0: does not say the optimizer and the batch size of the search's first "
        r"training \(.*hyp\.yaml.*\); put its hyp\.yaml and args\.yaml back, or begin a new search"
    )
    with pytest.raises(ValueError, match=sentence):
        run(resume_flags(tmp_path, evolve=3))
    shutil.move(tmp_path / "away", folder / "generations" / "0")
    assert len(run(resume_flags(tmp_path, evolve=3)).calls) == 1


def test_rank_0_reads_the_state_for_all(tmp_path):
    """Other machines may not see the folder."""
    run(flags_for(tmp_path, evolve=2))
    worlds = thread_worlds(2)
    flags = [resume_flags(tmp_path, evolve=3), resume_flags(tmp_path / "elsewhere", evolve=3)]
    read, readers = Path.open, []

    def opened(path, *args, **kwargs):
        readers.append(threading.get_ident())
        return read(path, *args, **kwargs)

    def continued(rank):
        evolve(flags[rank], worlds[rank], PretendedTraining())
        return threading.get_ident()

    with mock.patch.object(Path, "open", opened):
        threads = run_ranks([partial(continued, rank) for rank in range(2)], worlds)
    assert {*readers} == {threads[0]}

    (tmp_path / "exp" / "evolve.json").write_text("[]")
    with pytest.raises(ValueError, match=r"exp/evolve\.json: is damaged: "):
        run_ranks([partial(continued, rank) for rank in range(2)], worlds)


def test_loggers_of_a_stranger_are_said_and_can_be_stopped(tmp_path, monkeypatch, capsys):
    class Sending(Logger):
        title = "Sender"

        def destination(self, account):
            return f"{account} at example.com"

    monkeypatch.setitem(LOGGERS, "wandb", Sending)
    run(flags_for(tmp_path, evolve=1, loggers=("wandb",), entity="stranger"))
    assert capsys.readouterr().err == ""  # the user has given them
    again = run(resume_flags(tmp_path, evolve=2))
    assert capsys.readouterr().err == (
        f"Sender sends the run to stranger at example.com, because {tmp_path}/exp/evolve.json says "
        "so; to stop it, give --loggers without a name\n"
    )
    assert [(config.loggers, config.entity) for config, _ in again.calls] == [
        (("wandb",), "stranger")
    ]

    stopped = run(resume_flags(tmp_path, evolve=3, loggers=())).calls[0][0]
    assert (stopped.loggers, stopped.entity) == ((), "")
    assert "loggers" in stopped.given  # a generation that resumes has a checkpoint with others
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match="--entity me: is an account of Weights & Biases; give"):
        run(resume_flags(tmp_path, evolve=4, entity="me"))


def test_state_of_a_stranger_opens_no_connection(tmp_path):
    run(flags_for(tmp_path, evolve=1, download=True))
    assert not run(resume_flags(tmp_path, evolve=2)).calls[0][0].download
    assert run(resume_flags(tmp_path, evolve=3, download=True)).calls[0][0].download


def test_more_trainings_can_be_added_and_done_searches_are_refused(straight, tmp_path):
    run(flags_for(tmp_path, evolve=3))
    sentence = f"^{re.escape(str(tmp_path))}/exp: its 3 trainings are done; to continue, give --evo"
    with pytest.raises(ValueError, match=sentence):
        run(resume_flags(tmp_path))
    run(resume_flags(tmp_path, evolve=6))
    same_as(straight, tmp_path / "exp")
    with pytest.raises(ValueError, match="its 6 trainings are done"):  # 6 is kept
        run(resume_flags(tmp_path))


def test_failed_generations_have_fitness_0_and_a_reason(tmp_path, capsys):
    text = "loss or gradient was not finite in 10 optimizer steps in a row; these steps were"
    run(flags_for(tmp_path), stopping_at(1, NonFiniteError(text)))
    with open(tmp_path / "exp" / "evolve.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["failure"] for row in rows] == ["", text.partition(";")[0], "", ""]
    assert float(rows[1]["fitness"]) == float(rows[1]["metrics/recall"]) == 0
    said = capsys.readouterr().out
    assert f"generation 1: failed: {text.partition(';')[0]}; best so far: generation 0, fit" in said


def test_a_gain_is_said_only_against_a_first_generation_that_has_not_failed(tmp_path, capsys):
    run(flags_for(tmp_path, evolve=2), stopping_at(0, NonFiniteError("not finite")))
    assert re.search(
        r"^best: generation 1, fitness [\d.]+, generation 0 failed; train with --hyp .*$",
        capsys.readouterr().out.splitlines()[-1],
    )


def test_search_in_which_all_fail(tmp_path, capsys):
    def score(config, hyp):
        raise NonFiniteError("not finite")

    run(flags_for(tmp_path, evolve=3), PretendedTraining(score))
    assert capsys.readouterr().out.endswith("all 3 generations failed; see evolve.csv\n")
    assert not (tmp_path / "exp" / "hyp_evolve.yaml").exists()
    assert (tmp_path / "exp" / "evolve.png").exists()


def test_wrong_flags_leave_no_folder(tmp_path):
    class Refusing(PretendedTraining):
        def __call__(self, config, world, trial):
            raise ValueError("--data: nothing there")

    with pytest.raises(ValueError, match="nothing there"):
        run(flags_for(tmp_path), Refusing())
    assert list(tmp_path.iterdir()) == []


def test_other_errors_say_how_to_continue(tmp_path):
    sentence = f"^disk full; continue with --resume-evolve {re.escape(str(tmp_path))}/exp$"
    with pytest.raises(FaultError, match=sentence):
        run(flags_for(tmp_path), stopping_at(1, FaultError("disk full")))


def test_search_to_continue_is_found(straight, tmp_path):
    project = straight.parent
    for given in ("newest", str(straight), str(straight / "evolve.csv")):
        assert find_search(given, project) == straight
    with pytest.raises(ValueError, match=r"^--resume-evolve finds no search under .*: begin one"):
        find_search("newest", tmp_path)
    with pytest.raises(ValueError, match=r"^--resume-evolve .*: there is no evolve.json of"):
        find_search(str(tmp_path), project)


def test_folder_of_another_search_is_not_used(straight, tmp_path):
    with pytest.raises(ValueError, match=r"evolve\.json: a search is there; continue it with"):
        run(flags_for(straight.parent, exist_ok=True))
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "notes.txt").write_text("mine")
    run(flags_for(tmp_path, evolve=1, exist_ok=True))
    assert (tmp_path / "exp" / "notes.txt").exists()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"flags": {"x": 1}, "given": []}',
        '{"flags": {}, "given": [], "base": {"optimizer": 1, "batch_size": 2}}',
        "[" * 9999,
    ],
)
def test_damaged_state_is_reported(straight, tmp_path, content):
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "evolve.json").write_text(content)
    with pytest.raises(ValueError, match=r"exp/evolve\.json: is damaged: "):
        run(resume_flags(tmp_path))


def test_default_project_is_that_of_yolov5(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(replace(flags_for(tmp_path, evolve=1), project="runs/train", given=frozenset({"evolve"})))
    assert (tmp_path / "runs" / "evolve" / "exp" / "evolve.csv").exists()
    resumed = TrainConfig(resume_evolve="newest", evolve=2, given=frozenset({"resume_evolve"}))
    run(resumed)
    assert len(read_history(tmp_path / "runs/evolve/exp/evolve.csv")) == 2
