"""utils/training/recipe.py: the rules of --optimizer auto and --hyp auto, with the numbers of docs/recipes.md."""

from dataclasses import replace

import pytest

from utils.training.hyperparameters import Hyp
from utils.training.recipe import choose_recipe

RUN = {
    "images": 200,
    "epochs": 100,
    "classes": 3,
    "pretrained": False,
    "sharded": False,
    "gains": {"box": 0.1, "cls": 1.5},
}


def test_hyperparameters_of_a_file_are_kept():
    given = Hyp(lr0=0.5, cls=2)
    for optimizer in ("SGD", "Adam", "AdamW", "Muon"):
        recipe = choose_recipe(optimizer, given, **RUN)
        assert (recipe.optimizer, recipe.hyp, recipe.chosen) == (optimizer, given, False)


def test_files_without_an_optimizer_are_trained_with_sgd():
    recipe = choose_recipe("auto", Hyp(lr0=0.02), **RUN)
    assert (recipe.optimizer, recipe.hyp) == ("SGD", Hyp(lr0=0.02))
    assert recipe.chosen
    line = "--optimizer SGD, for which YOLOv5's files were tuned: --hyp names no optimizer"
    assert recipe.describe("a.yaml") == line


# 640,000 images over all epochs are 10,000 steps of 64 images, as 6,400 images x 100 epochs.
@pytest.mark.parametrize(("images", "expected"), [(6_399, "Muon"), (6_400, "SGD"), (118_287, "SGD"), (1, "Muon")])
def test_long_runs_use_the_published_recipe(images, expected):
    recipe = choose_recipe("auto", None, **RUN | {"images": images})
    assert recipe.optimizer == expected
    assert (recipe.hyp == Hyp()) == (expected == "SGD")


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "Muon"])
def test_long_runs_with_another_optimizer_differ_in_the_learning_rate_only(optimizer):
    recipe = choose_recipe(optimizer, None, **RUN | {"images": 6_400})
    assert replace(recipe.hyp, lr0=0.01) == Hyp()
    assert recipe.hyp.lr0 == (0.01 if optimizer == "Muon" else 0.004)


def test_sgd_uses_the_published_recipe():
    recipe = choose_recipe("SGD", None, **RUN)
    assert (recipe.optimizer, recipe.hyp) == ("SGD", Hyp())
    assert recipe.describe("a.yaml").endswith("--optimizer SGD --hyp a.yaml (the values of hyp.scratch-low.yaml)")


# images x epochs / 2,000 steps, within 16 to 64 images per step: 20,000 / 2,000 = 10, 50,000 / 2,000 = 25.
# 8 images per step if 16 give less than 500 steps: 79 x 100 / 16 = 493, 80 x 100 / 16 = 500
@pytest.mark.parametrize(
    ("images", "per_step"), [(1, 8), (79, 8), (80, 16), (200, 16), (320, 16), (500, 25), (1_280, 64), (5_000, 64)]
)
def test_short_runs_take_fewer_images_per_step(images, per_step):
    for optimizer in ("auto", "AdamW", "Muon"):
        recipe = choose_recipe(optimizer, None, **RUN | {"images": images})
        assert recipe.hyp.nominal_batch == per_step
        assert recipe.batch_size == (8 if images < 80 else None)


# of 50 images x 100 epochs
@pytest.mark.parametrize(("given", "per_step"), [(1, 8), (8, 8), (9, 16), (16, 16), (64, 16), (-1, 16)])
def test_given_batch_size_is_kept(given, per_step):
    """And images per step are not lowered below it: the weight decay would be multiplied."""
    recipe = choose_recipe("auto", None, **RUN | {"images": 50}, batch_size=given)
    assert (recipe.batch_size, recipe.hyp.nominal_batch) == (None, per_step)


def test_batch_size_is_not_changed_with_a_file_or_sgd():
    for optimizer, hyp in (("auto", Hyp()), ("SGD", None)):
        assert choose_recipe(optimizer, hyp, **RUN | {"images": 10}).batch_size is None


def test_line_names_the_flags_and_the_changed_values():
    recipe = choose_recipe("auto", None, **RUN | {"classes": 1})
    assert recipe.describe("runs/exp/hyp.yaml") == (
        "recipe for 200 images x 100 epochs, 1 class, random weights: --optimizer Muon --hyp runs/exp/hyp.yaml "
        "(hyp.scratch-low.yaml with lrf 0.05, nominal_batch 16, box 0.1, cls 1.5)"
    )
    assert replace(Hyp(), lrf=0.05, nominal_batch=16, box=0.1, cls=1.5) == recipe.hyp


def test_line_names_a_chosen_batch_size():
    line = choose_recipe("auto", None, **RUN | {"images": 50}).describe("a.yaml")
    assert line == (
        "recipe for 50 images x 100 epochs, 3 classes, random weights: --optimizer Muon --hyp a.yaml --batch-size 8 "
        "(hyp.scratch-low.yaml with lrf 0.05, nominal_batch 8, box 0.1, cls 1.5)"
    )


# 200 images x 100 epochs: 20,000 / 64 = 312 steps, 20,000 / 40 = 500
@pytest.mark.parametrize(("batch", "steps"), [(64, 312), (41, 487), (40, None), (16, None)])
def test_large_batches_of_few_images_are_advised_against(batch, steps):
    advice = choose_recipe("auto", None, **RUN).advice(batch)
    sentence = f"only {steps} optimizer steps: with so few images, a smaller --batch-size or more --epochs train better"
    assert advice == (sentence if steps else "")
    assert choose_recipe("SGD", None, **RUN).advice(batch) == ""  # it takes a step for 64 images at any batch size
    assert choose_recipe("auto", Hyp(), **RUN).advice(batch) == ""


def test_small_batches_are_not_advised_against():
    """The steps are few because the run is short: 10 images x 100 epochs / 8 = 125."""
    assert choose_recipe("auto", None, **RUN | {"images": 10}).advice(8) == ""
    assert choose_recipe("auto", None, **RUN | {"images": 10}).advice(16).startswith("only 62 optimizer steps: ")


def test_line_can_be_pasted():
    assert " --hyp 'my runs/hyp.yaml' (" in choose_recipe("auto", None, **RUN).describe("my runs/hyp.yaml")


def test_line_says_that_trained_weights_are_given():
    line = choose_recipe("auto", None, **RUN | {"pretrained": True}).describe("a.yaml")
    assert "3 classes, trained weights: " in line
    assert "recipe for 1 tile x 100 " in choose_recipe("auto", None, **RUN | {"images": 1}, unit="tile").describe("a")
    assert "recipe for 2 tiles x 100 " in choose_recipe("auto", None, **RUN | {"images": 2}, unit="tile").describe("a")


@pytest.mark.parametrize("changed", [{"pretrained": True}, {"sharded": True}])
def test_trained_weights_and_sharded_runs_use_adamw(changed):
    recipe = choose_recipe("auto", None, **RUN | changed)
    assert (recipe.optimizer, recipe.hyp.lr0) == ("AdamW", 0.004)
    assert choose_recipe("auto", None, **RUN | changed | {"images": 6_400}).optimizer == "SGD"
