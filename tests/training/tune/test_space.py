"""training/tune/space.py: the search space, its suggestions, and the text of each error."""

import re

import pytest

from training.settings.config import TrainConfig
from training.tune.space import FLAGS, HYP_DEFAULTS, Parameter, read_space, settings_with

SPACE = """
lr0: {low: 1e-5, high: 0.1, log: true}   # comments are allowed
degrees: {low: 0, high: 45, step: 5}
batch: {low: 4, high: 64, log: True}
close-mosaic: {low: 0, high: 10}
optimizer: {choices: [SGD, AdamW]}
rect: {choices: [true, false]}
freeze: {choices: [0, 10]}
label_smoothing:
  choices: [0, 0.1]
"""


class FakeTrial:
    """Suggests the last choice, or the end of the range, and keeps what was asked."""

    def __init__(self):
        self.asked = []

    def suggest_float(self, name, low, high, **options):
        self.asked.append((name, low, high, options))
        return high

    suggest_int = suggest_float

    def suggest_categorical(self, name, choices):
        self.asked.append((name, choices))
        return choices[-1]


@pytest.fixture
def written(tmp_path):
    def write(text):
        (tmp_path / "space.yaml").write_text(text)
        return tmp_path / "space.yaml"

    return write


def test_space_is_read_and_suggested(written):
    space = read_space(written(SPACE))
    trial = FakeTrial()
    values = {one.name: one.suggest(trial) for one in space}
    assert trial.asked == [
        ("lr0", 1e-5, 0.1, {"log": True, "step": None}),
        ("degrees", 0.0, 45.0, {"log": False, "step": 5.0}),
        ("batch_size", 4, 64, {"log": True, "step": 1}),
        ("close_mosaic", 0, 10, {"log": False, "step": 1}),
        ("optimizer", ["SGD", "AdamW"]),
        ("rect", [True, False]),
        ("freeze", [0, 10]),
        ("label_smoothing", [0.0, 0.1]),
    ]
    config, hyp = settings_with(TrainConfig(epochs=7, given=frozenset({"epochs"})), values)
    assert hyp == {"lr0": 0.1, "degrees": 45.0}
    assert (config.epochs, config.batch_size, config.optimizer) == (7, 64, "AdamW")
    assert (config.rect, config.freeze, config.label_smoothing) == (False, (10,), 0.1)
    assert config.given == {"epochs"} | values.keys() - hyp.keys()


def test_values_that_do_not_go_together_are_an_error():
    with pytest.raises(ValueError, match="--rect and --multi-scale cannot be used together"):
        settings_with(TrainConfig(), {"rect": True, "multi_scale": True})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "lr: {low: 0, high: 1}",
            "unknown key 'lr' (did you mean lr0 or lrf?); known keys are lr0",
        ),
        (
            "seed: {choices: [1, 2]}",
            "'seed' is the same in all trials: give it on the command line",
        ),
        ("lr0: 0.1", "lr0: expected {low: ..., high: ...} or {choices: [...]}"),
        ("lr0: {low: 0.1}", "lr0: high missing"),
        (
            "lr0: {hi: 0.1, low: 0}",
            "lr0: unknown key 'hi' (did you mean high?); expected low, high",
        ),
        ("lr0: {low: 0.1, high: 0.01}", "lr0: low is 0.1 and high is 0.01; low must be less"),
        ("lr0: {low: 0, high: 1, log: true}", "lr0: low is 0; with log: true it must be above 0"),
        ("lr0: {low: 0, high: 1, log: yes}", "lr0: log is 'yes', expected true or false"),
        ("lr0: {low: a, high: 1}", "lr0 is 'a', expected a number"),
        ("lr0: {low: [1], high: 1}", "lr0: a value is a list or a mapping, expected a number"),
        ("lr0: {low: nan, high: 1}", "lr0: low is nan and high is 1; low must be less"),
        (
            "lr0: {low: 1, high: 2, log: true, step: 1}",
            "lr0: log and step cannot be given together",
        ),
        ("lr0: {low: 0, high: 1, step: 2}", "lr0: step is 2, expected more than 0, up to 1"),
        ("lr0: {low: 0, high: 1, choices: [1]}", "lr0: choices and a range cannot be given togeth"),
        ("lr0: {choices: []}", "lr0: expected choices: [one, another]"),
        ("lr0: {choices: [1, 1.0]}", "lr0: a choice is given twice"),
        ("mosaic: {low: 0, high: 2}", "mosaic is 2, allowed are 0 to 1"),
        ("imgsz: {low: 1, high: 64}", "--imgsz 1: choose 32 to 8192 pixels"),
        ("patience: {low: 1, high: 1%s}" % ("0" * 400), "patience is '1000"),
        ("lr0: {low: 0, high: inf}", "lr0 is 'inf', expected up to 1e+09"),
        ("imgsz: {low: 64.5, high: 96}", "imgsz is '64.5', expected a whole number"),
        ("optimizer: {low: 0, high: 2}", "optimizer: has no range; give it choices: [...]"),
        (
            "optimizer: {choices: [SDG]}",
            "--optimizer SDG: choose auto, SGD, Adam, AdamW or Muon (d",
        ),
        ("rect: {choices: [1]}", "rect is '1', expected true or false"),
        ("img: {choices: [64]}\nimgsz: {choices: [96]}", "imgsz is given twice"),
    ],
)
def test_mistake_is_reported_with_file_and_line(written, text, sentence):
    file = written(f"\n{text}\n")
    line = 3 if "\n" in text else 2
    with pytest.raises(ValueError, match=f"^{re.escape(f'{file} line {line}: {sentence}')}"):
        read_space(file)


@pytest.mark.parametrize("text", ["", "[]", "lr0", "{}"])
def test_empty_space_is_an_error(written, text):
    with pytest.raises(ValueError, match=r"space\.yaml: expected lines such as `lr0: \{low: 1e-5"):
        read_space(written(text))


def test_yaml_is_only_data(written, tmp_path):
    with pytest.raises(
        ValueError, match=r"line 1: tags \(tag:yaml.org,2002:python.* are not allowed"
    ):
        read_space(written("lr0: !!python/name:os.system {low: 0, high: 1}"))
    with pytest.raises(ValueError, match=r"line 2: the key 'lr0' appears twice in a search space"):
        read_space(written("lr0: {low: 0, high: 1}\nlr0: {low: 0, high: 1}"))
    with pytest.raises(ValueError, match=r"absent\.yaml cannot be read: No such file"):
        read_space(tmp_path / "absent.yaml")


def test_each_flag_of_a_space_exists_and_is_no_hyper_parameter():
    assert set(FLAGS) <= TrainConfig().as_dict().keys()
    assert not set(FLAGS) & HYP_DEFAULTS.keys()
    assert Parameter("lr0", low=0.0, high=1.0).as_dict()["choices"] == []
