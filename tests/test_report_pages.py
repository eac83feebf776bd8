"""report.html and compare.html in a real browser: no error, no request, sorting, hovering, filters,
a narrow window, dark mode. Class names and file names are text everywhere.
"""

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
import yaml

from data import Dataset, open_dataset
from tests.support.browser import PHONE, Browser, browser
from training.compare.__main__ import main as compare
from training.evaluation import SplitPredictions
from training.report.training import TrainingReport
from training.settings.config import TrainConfig
from training.settings.hyperparameters import Hyp
from utils.distributed.world import World
from utils.files.writers import write_csv, write_json, write_yaml
from utils.log import EpochEnded, EvaluationEnded, RunEnded, RunStarted, say_nothing
from utils.metrics import evaluate_boxes, operating_curves
from utils.metrics.evaluation import Evaluation
from utils.metrics.records import Detections, GroundTruth

CPU = World(torch.device("cpu"))
ATTACK = "<img src=x onerror='window.attacked = 1'>"
ATTACKS = (
    f"</script>{ATTACK}",
    f'"{ATTACK}',
    f"'>{ATTACK}<!--",
    "a\u2028b\u202etxt.exe",  # a line separator, and letters that run from right to left
)
NAMES = (*ATTACKS, *(f"class {number}" for number in range(4, 30)))
ALL_PAGES = ("started", "nothing", "unlabeled", "finished", "compare")
SIDE = 96
EPOCHS = 12


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def draw_data(folder: Path) -> Dataset:
    """A data set of 30 classes whose names and files are hostile."""
    random = np.random.default_rng(0)
    for name in ("images", "labels"):
        (folder / name).mkdir(parents=True)
    for number in range(20):
        stem = f"{number} {ATTACKS[1]}".replace("/", "")
        image = np.full((SIDE, SIDE, 3), random.integers(0, 255, 3), np.uint8)
        (folder / "images" / f"{stem}.png").write_bytes(cv2.imencode(".png", image)[1].tobytes())
        rows = [f"{(3 * number + i) % 30} {0.2 + 0.3 * i} 0.5 0.2 0.3" for i in range(3)]
        (folder / "labels" / f"{stem}.txt").write_text("\n".join(rows))
    file = folder / "hostile.yaml"
    file.write_text(yaml.safe_dump({"train": "images", "val": "images", "names": [*NAMES]}))
    dataset = open_dataset(
        [str(file)],
        ["train", "val"],
        CPU,
        download=False,
        single_class=False,
        cache_dir=str(folder / "cache"),
    )
    for split in ("train", "val"):
        dataset.read(split)
    return dataset


def evaluate(dataset: Dataset, *, found: bool = True) -> Evaluation:
    """The evaluation of detections near the objects, some with the wrong class, some nowhere."""
    labels = dataset.labels["val"]
    truth = labels.ground_truth()
    random = np.random.default_rng(1)
    boxes = truth.boxes_xywh + random.normal(0, 4, truth.boxes_xywh.shape)
    boxes[::7] = [2, 2, 9, 9]
    boxes[:, 2:] = boxes[:, 2:].clip(1)
    class_ids = np.where(random.random(len(boxes)) < 0.2, 1, truth.class_ids)
    rows = np.arange(len(boxes) if found else 0)
    scores = random.uniform(0.1, 1, len(boxes))
    detections = Detections(truth.image_ids[rows], class_ids[rows], boxes[rows], scores[rows])
    return SplitPredictions(labels, detections, {}, {"model": 3.0}).evaluate()


def unlabeled() -> Evaluation:
    """The evaluation of an image without objects, in which one is detected."""
    truth = GroundTruth([], [], [], [], [])
    found = Detections([1], [0], [[1, 1, 8, 8]], [0.5])
    ids = {"image_ids": [1], "class_ids": range(len(NAMES))}
    coco = evaluate_boxes(truth, found, **ids)
    return Evaluation(1, coco, operating_curves(truth, found, **ids), truth, found)


def epoch_rows() -> list[dict[str, float]]:
    rows = []
    for epoch in range(1, EPOCHS + 1):
        rows.append(
            {
                "epoch": epoch,
                "time": 2.0,
                "train/box_loss": 1 / epoch,
                "metrics/precision": 0.5,
                "metrics/recall": 0.4,
                "metrics/mAP_0.5": epoch / 20,
                "metrics/mAP_0.5:0.95": epoch / 40,
                "val/box_loss": float("nan") if epoch == 2 else 1.5 / epoch,
                "lr": 0.01,
            }
        )
    return rows


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run, one that has just started, one whose last epoch found nothing, one without
    objects, and all runs compared.
    """
    root = tmp_path_factory.mktemp("runs")
    dataset = draw_data(root / "data")
    config = TrainConfig(epochs=EPOCHS, name=ATTACKS[0]).as_dict()
    rows = epoch_rows()
    best = evaluate(dataset)
    nothing = evaluate(dataset, found=False)
    events = {
        "started": [],
        "unlabeled": [EvaluationEnded(root, unlabeled(), NAMES, 1), RunEnded(root, {})],
        "nothing": [EpochEnded(root / "nothing", rows[0], rows[:1], "", nothing)],
        f"finished {ATTACK}": [
            EpochEnded(root / f"finished {ATTACK}", rows[-1], rows, "", best),
            EvaluationEnded(root, best, NAMES, 12),
            RunEnded(root, {}),
        ],
    }
    for name, sent in events.items():
        folder = root / name
        folder.mkdir()
        report = TrainingReport(dataset, CPU, [("model", ATTACK)], say_nothing, active=True)
        for event in (RunStarted(folder, config, Hyp().as_dict(), [], images=8), *sent):
            report.handle(event)
        write_yaml(folder / "args.yaml", {**config, "epochs": len(name), "cfg": ATTACK})
        write_csv(folder / "results.csv", rows)
        write_json(folder / "metrics.json", {"best": best.as_dict(NAMES)})
    (root / "nothing" / "metrics.json").write_text("{")

    out = root / "compare.html"
    compare([*(str(root / name) for name in events), "--out", str(out)])
    reports = {name.split()[0]: root / name / "report.html" for name in events}
    return {**reports, "compare": out}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_PAGES)
def test_page_has_no_errors_and_requests_nothing(name, pages, chromium):
    """Also what is hostile is text: nothing of it runs, or becomes an element."""
    chromium.open(pages[name])
    assert chromium.complaints() == []
    assert chromium.requests() <= {"file", "data"}
    assert chromium.run("return window.attacked") is None
    sources = chromium.run("return [...document.images].map((image) => image.src.slice(0, 11))")
    assert {*sources} <= {"data:image/"}
    assert ATTACK in chromium.run("return document.body.textContent")
    assert chromium.run("return document.querySelectorAll('section').length") > 3


@pytest.mark.parametrize("name", ALL_PAGES)
def test_page_fits_a_phone(name, pages, chromium):
    chromium.open(pages[name], width=PHONE)
    assert chromium.run("return document.documentElement.scrollWidth") == PHONE
    assert chromium.complaints() == []


def test_policy_of_the_page_stops_scripts_and_requests(pages, chromium):
    """Should a text ever become HTML in spite of all, it still cannot run or call anyone."""
    chromium.open(pages["started"])
    attack = """
        document.body.insertAdjacentHTML("beforeend", arguments[0]);
        const script = document.createElement("script");
        script.textContent = "window.attacked = 2";
        document.body.append(script);
        new Image().src = "http://127.0.0.1:9/";
        const done = arguments[1];
        fetch("http://127.0.0.1:9/").catch(() => setTimeout(done, 100));
    """
    chromium.driver.execute_async_script(attack, ATTACK)
    assert chromium.run("return window.attacked") is None
    refused = [text for text in chromium.complaints() if "Content Security Policy" in text]
    assert len(refused) >= 4


def test_dark_mode_changes_page_and_charts(pages, chromium):
    chromium.open(pages["finished"])
    background = "return getComputedStyle(document.body).backgroundColor"
    picture = "return document.querySelector('.plot canvas').toDataURL()"
    light = chromium.run(background), chromium.run(picture)
    chromium.prefer("dark")
    chromium.driver.execute_async_script("requestAnimationFrame(() => arguments[0]())")
    dark = chromium.run(background), chromium.run(picture)
    assert light[0] == "rgb(246, 247, 249)"
    assert dark[0] == "rgb(18, 21, 26)"
    assert light[1] != dark[1]


def column(chromium: Browser, section: str, number: int) -> list[str]:
    """The texts of a column of the first table of a section, from 1."""
    return chromium.texts(f"#{section} tbody tr > :nth-child({number})")


def test_table_of_classes_is_sorted_by_clicks_and_keys(pages, chromium):
    chromium.open(pages["finished"])
    heading = "#classes thead th:nth-child({})"
    chromium.click(heading.format(1) + " button")
    total, *names = column(chromium, "classes", 1)
    assert total == "all classes"
    assert len(names) == 30
    assert [name for name in names if name.startswith("class ")] == [*NAMES[4:]]  # 9 before 10

    chromium.keys(heading.format(2) + " button", "\ue007")  # Enter
    order = "return document.querySelector(arguments[0]).ariaSort"
    assert chromium.run(order, heading.format(2)) == "descending"
    assert chromium.run(order, heading.format(1)) is None
    values = [float(text) for text in column(chromium, "classes", 2)[1:]]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1]
    chromium.click(heading.format(2) + " button")
    assert [float(text) for text in column(chromium, "classes", 2)[1:]] == values[::-1]


def test_classes_are_searched_by_name(pages, chromium):
    chromium.open(pages["finished"])
    chromium.keys("#classes input", "SS 1")
    shown = column(chromium, "classes", 1)
    assert shown[0] == "all classes"
    assert {*shown[1:]} == {f"class {number}" for number in range(10, 20)}


def test_pointer_and_keys_show_the_values_of_an_epoch(pages, chromium):
    """mAP50-95 of epoch n is n / 40, mAP50 twice that."""
    chromium.open(pages["finished"])
    chart = "#curves .card:nth-child(1)"
    chromium.hover(f"{chart} .u-over", 0.5)
    (text,) = chromium.texts(f"{chart} .tooltip")
    epoch = int(text.split("mAP")[0].removeprefix("epoch "))
    assert 5 <= epoch <= 8
    assert text == f"epoch {epoch}mAP50-95{epoch / 40:.3f}mAP50{epoch / 20:.3f}"
    assert chromium.run("return document.querySelectorAll('.tooltip')[0].checkVisibility()")

    chromium.hover("h1")
    assert not chromium.run("return document.querySelectorAll('.tooltip')[0].checkVisibility()")
    chromium.keys(f"{chart} .plot", "\ue014")  # arrow right
    chromium.keys(f"{chart} .plot", "\ue014")
    assert chromium.texts(f"{chart} .tooltip") == ["epoch 2mAP50-950.050mAP500.100"]


def test_pictures_are_filtered_by_kind_and_class(pages, chromium):
    chromium.open(pages["finished"])
    chromium.run("document.querySelector('button.more')?.click()")
    kinds = "return [...document.querySelectorAll('.pictures figure')].map((f) => f.dataset.kind)"
    all_kinds = chromium.run(kinds)
    assert {*all_kinds} >= {"classification", "background"}

    chromium.choose("#kind", "background")
    of_kind = chromium.run(kinds)
    assert of_kind == ["background"] * all_kinds.count("background")
    assert f"{len(of_kind)} picture" in chromium.texts("#pictures .count")[0]

    chromium.choose("#kind", "")
    chromium.choose("#of-class", "1")
    captions = chromium.texts(".pictures figcaption")
    assert 0 < len(captions) < len(all_kinds)
    # the class is named, or it is that of a further error in the picture
    assert all(ATTACKS[1] in text or " more" in text for text in captions)

    # each picture has been decoded, and has boxes, which a click hides
    sizes = chromium.run("return [...document.images].map((image) => image.naturalWidth)")
    assert min(sizes) >= SIDE
    hidden = "return getComputedStyle(document.querySelector('svg .truth')).display"
    assert chromium.run(hidden) != "none"
    chromium.click("#pictures input[type=checkbox]")
    assert chromium.run(hidden) == "none"


def test_confusion_matrix_shows_few_or_all_classes(pages, chromium):
    chromium.open(pages["finished"])
    rows = "#confusion .matrix tbody tr"
    assert len(chromium.texts(rows)) == 26
    chromium.choose("#confusion select", "30")
    assert len(chromium.texts(rows)) == 31


def test_runs_without_results_say_so(pages, chromium):
    chromium.open(pages["started"])
    assert chromium.texts(".badge") == ["running: 0 of 12 epochs"]
    empty = " ".join(chromium.texts(".empty"))
    assert "No epoch has been validated yet" in empty
    assert "No epoch has ended yet" in empty

    chromium.open(pages["nothing"])
    assert chromium.texts(".figure .value")[:2] == ["0.000", "0.000"]
    assert "Written when the training has ended." in chromium.texts(".empty")

    chromium.open(pages["unlabeled"])
    assert chromium.texts(".figure .value")[:4] == ["–"] * 4
    assert {*column(chromium, "errors", 2)} == {"0", "1"}
    assert "of 30 without an object" in " ".join(chromium.texts(".findings"))


@pytest.mark.slow
def test_runs_are_compared(pages, chromium):
    chromium.open(pages["compare"])
    assert len(column(chromium, "runs", 1)) == 4
    assert "epochs" in column(chromium, "settings", 1)
    problem = chromium.texts(".problems li")[0]
    assert problem.startswith("nothing: metrics.json cannot be used")

    chart = "#curves .card:nth-child(1)"
    chromium.hover(f"{chart} .u-over", 0.9)
    assert len(chromium.texts(f"{chart} .tooltip .row")) == 4
    chromium.click("#curves .controls input")
    chromium.hover(f"{chart} .u-over", 0.8)
    assert len(chromium.texts(f"{chart} .tooltip .row")) == 3
