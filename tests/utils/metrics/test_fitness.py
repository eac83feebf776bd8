"""utils/metrics/fitness.py: the grammar of --fitness, its values, and the text of each error."""

import random
import re
from contextlib import suppress

import pytest

from utils.metrics.fitness import DEFAULT, MAX_DEPTH, METRICS, parse_fitness

FOUND = {
    "AP": 0.5,
    "AP50": 0.75,
    "APs": -1.0,
    "precision": 0.25,
    "recall": 0.0,
    "per_class": {
        "cat": {"AP": 0.25, "AR100": 0.5, "AP50": -1.0},
        "two words": {"AP": 0.125},
        "driver's": {"AP": 0.375},
        'a "]" \\': {"AP50": 1.0},
    },
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("AP", 0.5),
        ("2*AP + AP50/3", 2 * 0.5 + 0.75 / 3),
        ("2*(AP+AP50)/5", 2 * (0.5 + 0.75) / 5),
        ("1 - AP - .25", 0.25),  # from left to right
        ("8/AP50/4", 8 / 0.75 / 4),
        ("1e0*AP+2.5E-1", 0.75),
        ("-AP + +AP50", 0.25),
        ("--AP", 0.5),
        ("min(AP, AP50)", 0.5),
        ("max(precision,\tAP, AP50 ) ", 0.75),
        ("min(AP)", 0.5),
        ("AP[cat] + AR100[ cat ]", 0.75),
        ("AP[two words]", 0.125),
        ("AP['two words']", 0.125),
        ('AP["driver\'s"] ', 0.375),
        ("AP['driver\\'s']", 0.375),
        (r'AP50["a \"]\" \\"]', 1.0),
        # what no object decides is 0: -1 in metrics.json, or a class without a row
        ("AP + APs", 0.5),
        ("AP + AP50[cat]", 0.5),
        ("AP + AR1[two words]", 0.5),
        ("AP + AP[absent]", 0.5),
        # so is a division by 0, and what no float holds
        ("2*precision*recall/(recall+recall)", 0.0),
        ("1e308*AP*1e308", 0.0),
    ],
)
def test_expression_has_the_value_worked_out_by_hand(text, value):
    assert parse_fitness(text).of(FOUND) == value


def test_nan_counts_as_0():
    assert parse_fitness("1 + AP").of({"AP": float("nan")}) == 1


def test_default_is_that_of_yolov5_to_the_bit():
    numbers = random.Random(0)
    for _ in range(1000):
        ap50, ap = numbers.choice([-1.0, 0.0, numbers.random()]), numbers.random()
        expected = 0.1 * max(ap50, 0.0) + 0.9 * max(ap, 0.0)
        for text in ("", DEFAULT, "0.1*AP50+0.9*AP"):
            assert parse_fitness(text).of({"AP50": ap50, "AP": ap}) == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("AP+", "column 4: found the end, expected a number, a metric or ("),
        ("AP AP50", "column 4: found 'AP50', expected an operator (+ - * /) or the end"),
        ("(AP", "column 4: found the end, expected )"),
        ("AP)", "column 3: found ')', expected an operator (+ - * /) or the end"),
        ("min()", "column 5: found ')', expected a number, a metric or ("),
        ("min AP", "column 5: found 'AP', expected ("),
        ("  mAP", "column 3: unknown metric 'mAP' (did you mean AP?); metrics are AP, AP50"),
        ("fitness", "column 1: unknown metric 'fitness'; metrics are AP, AP50"),
        ("2*AP[", "column 6: expected the name of a class and ]"),
        ("AP[]", "column 4: expected the name of a class and ]"),
        ("AP['a]", "column 4: expected the name of a class and ]"),
        ("recall[cat]", "column 1: 'recall' is not known for each class; those of a class are AP,"),
        ("AP**2", "column 4: found '*', expected a number, a metric or ("),
        ("AP ; AP", "column 4: ';' is not part of an expression; metrics are AP"),
        ("AP.real", "column 3: '.' is not part of an expression"),
        ("1e999*AP", "column 1: found '1e999', expected a smaller number"),
        ("AP\x1b", "column 3: '\\x1b' is not part of an expression"),
        ("(" * 60 + "AP", f"column {MAX_DEPTH + 1}: found '(', nested more than {MAX_DEPTH} deep"),
    ],
)
def test_mistake_is_reported_with_its_column(text, sentence):
    with pytest.raises(ValueError, match=f"^--fitness {re.escape(sentence)}"):
        parse_fitness(text)


def test_other_mistakes_are_reported():
    with pytest.raises(ValueError, match=r"^--fitness 1\+2: names no metric; metrics are AP, "):
        parse_fitness("1+2")
    with pytest.raises(ValueError, match=r"^--fitness: longer than 500 characters$"):
        parse_fitness("+".join(["AP"] * 200))


def test_longest_expressions_are_evaluated():
    assert parse_fitness("+".join(["AP"] * 166)).of({"AP": 1.0}) == 166
    assert parse_fitness("-" * (MAX_DEPTH - 1) + "AP").of({"AP": 1.0}) == -1


def test_nothing_is_executed_and_random_text_is_an_expression_or_an_error():
    letters = ["AP", "AP50", "cat", "1", "min", " ", "__import__", "é", *"()[]'+-*/,.\\\n", '"']
    numbers = random.Random(0)
    accepted = 0
    for _ in range(3000):
        text = "".join(numbers.choices(letters, k=numbers.randrange(1, 9)))
        with suppress(ValueError):
            assert isinstance(parse_fitness(text).of(FOUND), float)
            accepted += 1
    assert accepted > 30


def test_unknown_class_is_reported_with_the_known_ones():
    fitness = parse_fitness("AP + min(AP[cat], AP50[dgo])")
    fitness.require_classes(["cat", "dgo"])
    sentence = "--fitness column 19: unknown class 'dgo' (did you mean dog?); classes are cat, dog"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        fitness.require_classes(["cat", "dog"])
    many = [f"class {k}" for k in range(100)]
    with pytest.raises(ValueError, match=r"class 19 and 80 more$"):
        fitness.require_classes(many)
    parse_fitness("").require_classes([])


def test_every_metric_is_one_of_metrics_json():
    found = dict.fromkeys(METRICS, 0.5) | {"per_class": {}}
    for name in METRICS:
        assert parse_fitness(name).of(found) == 0.5
