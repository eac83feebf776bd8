"""training/settings/recipe.py: the rules of --optimizer auto and --hyp auto, with the numbers of
docs/recipes.md.
"""

from dataclasses import replace

import pytest

from training.settings.hyperparameters import Hyp
from training.settings.recipe import TrainedWeights, choose_recipe

RUN = {
    "images": 200,
    "epochs": 100,
    "classes": 3,
    "trained": None,
    "sharded": False,
}


# 640,000 images over all epochs are 10,000 steps of 64 images, as 6,400 images x 100 epochs.
@pytest.mark.parametrize(
    ("images", "expected"), [(6_399, "Muon"), (6_400, "SGD"), (118_287, "SGD"), (1, "Muon")]
)
def test_long_runs_use_the_published_recipe(images, expected):
    recipe = choose_recipe("auto", **RUN | {"images": images})
    assert recipe.optimizer == expected
    assert (recipe.hyp == Hyp()) == (expected == "SGD")


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "Muon"])
def test_long_runs_with_another_optimizer_differ_in_the_learning_rate_only(optimizer):
    recipe = choose_recipe(optimizer, **RUN | {"images": 6_400})
    assert replace(recipe.hyp, lr0=0.01) == Hyp()
    assert recipe.hyp.lr0 == (0.01 if optimizer == "Muon" else 0.004)


def test_sgd_uses_the_published_recipe():
    recipe = choose_recipe("SGD", **RUN)
    assert (recipe.optimizer, recipe.hyp) == ("SGD", Hyp())
    assert recipe.describe("a.yaml", 8).endswith(
        "--optimizer SGD --hyp a.yaml (the values of hyp.scratch-low.yaml)"
    )


# images x epochs / 2,000 steps, within 16 to 64 images per step: 20,000 / 2,000 = 10, 50,000 /
# 2,000 = 25. 8 images per step if 16 give less than 500 steps: 79 x 100 / 16 = 493, 80 x 100 / 16 =
# 500. 4 images per step if 8 give less: 39 x 100 / 8 = 487, 40 x 100 / 8 = 500
@pytest.mark.parametrize(
    ("images", "per_step"),
    [
        (1, 4),
        (39, 4),
        (40, 8),
        (79, 8),
        (80, 16),
        (200, 16),
        (320, 16),
        (500, 25),
        (1_280, 64),
        (5_000, 64),
    ],
)
def test_short_runs_take_fewer_images_per_step(images, per_step):
    for optimizer in ("auto", "AdamW", "Muon"):
        recipe = choose_recipe(optimizer, **RUN | {"images": images})
        assert recipe.hyp.nominal_batch == per_step
        assert recipe.batch_size == (per_step if images < 80 else None)


# of 50 images x 100 epochs, 312 steps of 16 and 625 of 8, and of 30, which are 375 steps of 8
@pytest.mark.parametrize(
    ("given", "of_50", "of_30"),
    [(1, 8, 4), (4, 8, 4), (5, 8, 8), (8, 8, 8), (9, 16, 16), (64, 16, 16), (-1, 16, 16)],
)
def test_given_batch_size_is_kept(given, of_50, of_30):
    """8 images per step go with batches of at most 8, 4 with batches of at most 4."""
    for images, per_step in ((50, of_50), (30, of_30)):
        recipe = choose_recipe("auto", **RUN | {"images": images}, batch_size=given)
        assert (recipe.batch_size, recipe.hyp.nominal_batch) == (None, per_step)


# 30 images x 100 epochs
@pytest.mark.parametrize(("all_classes", "expected"), [(False, 4), (True, 8)])
def test_weights_that_know_all_classes_have_no_batches_of_4(all_classes, expected):
    run = RUN | {"images": 30, "trained": TrainedWeights(0.1, all_classes=all_classes)}
    recipe = choose_recipe("auto", **run)
    assert (recipe.batch_size, recipe.hyp.nominal_batch) == (expected, expected)


# Two images or more for each of them; 3 processes cannot share 8 or 4.
@pytest.mark.parametrize(
    ("processes", "chosen"), [(1, 4), (2, 4), (3, None), (4, 8), (5, None), (8, None)]
)
def test_processes_share_the_chosen_batch(processes, chosen):
    recipe = choose_recipe("auto", **RUN | {"images": 30}, processes=processes)
    assert (recipe.batch_size, recipe.hyp.nominal_batch) == (chosen, chosen or 16)


def test_batch_size_is_not_changed_with_sgd():
    assert choose_recipe("SGD", **RUN | {"images": 10}).batch_size is None


def test_line_names_the_flags_and_the_changed_values():
    recipe = choose_recipe("auto", **RUN | {"classes": 1})
    assert recipe.describe("runs/exp/hyp.yaml", 8) == (
        "recipe for 200 images x 100 epochs, 1 class, random weights: --optimizer Muon --hyp "
        "runs/exp/hyp.yaml "
        "(hyp.scratch-low.yaml with lrf 0.05, 16 images per optimizer step)"
    )
    assert replace(Hyp(), lrf=0.05, nominal_batch=16) == recipe.hyp


def test_line_names_a_chosen_batch_size():
    """The one that is used, for example 4 if there are 6 images."""
    recipe = choose_recipe("auto", **RUN | {"images": 50})
    assert " --batch-size 4 " in recipe.describe("a.yaml", 4)
    line = recipe.describe("a.yaml", 8)
    assert line == (
        "recipe for 50 images x 100 epochs, 3 classes, random weights: --optimizer Muon --hyp "
        "a.yaml --batch-size 8 "
        "(hyp.scratch-low.yaml with lrf 0.05, 8 images per optimizer step)"
    )


# 200 images x 100 epochs: 20,000 / 64 = 312 steps, 20,000 / 40 = 500
@pytest.mark.parametrize(("batch", "steps"), [(64, 312), (41, 487), (40, None), (16, None)])
def test_large_batches_of_few_images_are_advised_against(batch, steps):
    advice = choose_recipe("auto", **RUN).advice(batch)
    sentence = f"only {steps} optimizer steps: use more --epochs or a smaller --batch-size"
    assert advice == (sentence if steps else "")
    assert (
        choose_recipe("SGD", **RUN).advice(batch) == ""
    )  # it takes a step for 64 images at any batch size


def test_small_batches_are_not_advised_against():
    """The steps are few because the run is short: 19 images x 100 epochs / 4 = 475."""
    assert choose_recipe("auto", **RUN | {"images": 19}).advice(4) == ""
    assert (
        choose_recipe("auto", **RUN | {"images": 20})
        .advice(16)
        .startswith("only 125 optimizer steps: ")
    )


# 30 images x 100 epochs: 375 steps of 8, 187 of 16
@pytest.mark.parametrize(
    ("changed", "chosen"),
    [
        ({"trained": TrainedWeights(0.1, all_classes=True)}, 8),
        ({"processes": 4}, 8),
        ({"processes": 8}, 16),
    ],
)
def test_chosen_batches_are_not_advised_against(changed, chosen):
    recipe = choose_recipe("auto", **RUN | {"images": 30} | changed)
    assert (recipe.batch_size or 16) == chosen
    assert recipe.advice(chosen) == ""
    assert recipe.advice(2 * chosen).endswith(": use more --epochs or a smaller --batch-size")


# 4 images x 49 epochs / 4 = 49 steps; a smaller batch does not make more of them, as a step takes 4
# images. Of fewer images each epoch is one step: their batch is 1 or 2, and no step spans two
# epochs
@pytest.mark.parametrize(("images", "batch"), [(4, 4), (4, 2), (1, 1), (3, 2)])
@pytest.mark.parametrize(("epochs", "steps"), [(1, 1), (49, 49), (50, None)])
def test_very_few_steps_are_advised_against_at_any_batch_size(epochs, steps, images, batch):
    advice = choose_recipe("auto", **RUN | {"images": images, "epochs": epochs}).advice(batch)
    words = "1 optimizer step" if steps == 1 else f"{steps} optimizer steps"
    assert advice == (f"only {words}: use more --epochs" if steps else "")


def test_line_can_be_pasted():
    assert " --hyp 'my runs/hyp.yaml' (" in choose_recipe("auto", **RUN).describe(
        "my runs/hyp.yaml", 8
    )


def test_line_says_what_a_run_starts_from():
    for trained, words in (
        (TrainedWeights(0.236, all_classes=False), "trained weights, some classes new"),
        (TrainedWeights(0.0512, all_classes=True), "trained weights that know all classes"),
    ):
        line = choose_recipe("auto", **RUN | {"trained": trained}).describe("a.yaml", 8)
        assert f"3 classes, {words}: --optimizer AdamW " in line
        assert (", warmup_bias_lr 0)" in line) == trained.all_classes


def test_line_counts_tiles():
    for images, words in ((1, "recipe for 1 tile x 100 "), (2, "recipe for 2 tiles x 100 ")):
        assert words in choose_recipe("auto", **RUN | {"images": images}, unit="tile").describe(
            "a", 8
        )


@pytest.mark.parametrize(
    "changed", [{"trained": TrainedWeights(0.3, all_classes=True)}, {"sharded": True}]
)
def test_trained_weights_and_sharded_runs_use_adamw(changed):
    recipe = choose_recipe("auto", **RUN | changed)
    assert (recipe.optimizer, recipe.hyp.lr0) == ("AdamW", 0.004)
    assert recipe.hyp.warmup_bias_lr == (0.1 if "sharded" in changed else 0)
    assert choose_recipe("auto", **RUN | changed | {"images": 6_400}).hyp == Hyp()


# steps = 200 images x epochs / 16; below 4,000 images / 4, or / 8 from weights that know the
# classes. Full rate 0.004: other classes 0.004 x 150 x 0.1 / 25 = 0.0024, the same classes 0.004 x
# 75 x 0.1 / 320 = 0.00009375; full at steps x RMS of 25 and 320
@pytest.mark.parametrize(
    ("epochs", "rms", "other", "same"),
    [
        (3, 0.1, 0.0024, 0.000094),
        (5, 0.1, 0.004, 0.00016),
        (128, 0.2, 0.004, 0.004),
    ],
)
def test_short_runs_from_trained_weights_learn_slowly(epochs, rms, other, same):
    for all_classes, expected in ((False, other), (True, same)):
        run = RUN | {"epochs": epochs, "trained": TrainedWeights(rms, all_classes=all_classes)}
        hyp = choose_recipe("auto", **run).hyp
        assert (hyp.lr0, hyp.warmup_bias_lr) == (expected, 0 if all_classes else 0.1)
        assert choose_recipe("Muon", **run).hyp.lr0 == pytest.approx(2.5 * expected, rel=0.05)
        assert choose_recipe("SGD", **run).hyp == Hyp()


# 200 x 15 = 3,000 images are 187 steps of 16, 375 of 8, 750 of 4, 46 of 64, and 23 of 128, which a
# batch of 512 is reduced to: 0.004 x 187 x 0.1 / 25 = 0.003. A batch to be measured counts as 64.
@pytest.mark.parametrize(
    ("given", "expected"),
    [(16, 0.003), (8, 0.004), (1, 0.004), (64, 0.00074), (-1, 0.00074), (512, 0.00037)],
)
def test_learning_rate_from_trained_weights_follows_the_steps_of_the_given_batch(given, expected):
    run = RUN | {"epochs": 15, "trained": TrainedWeights(0.1, all_classes=False)}
    assert choose_recipe("auto", **run, batch_size=given).hyp.lr0 == expected


def test_smallest_run_has_a_learning_rate():
    run = RUN | {"epochs": 1, "images": 1, "trained": TrainedWeights(0.001, all_classes=True)}
    assert choose_recipe("auto", **run).hyp.lr0 == pytest.approx(0.004 * 1 * 0.001 / 320, rel=0.05)


# 4 images x E epochs / 4 = E steps; rate 0.004 x E x 0.064 / 320. Change of the weights: E x rate /
# 0.064, that is 0.004 x E x E / 320: 27 epochs 0.0091, 29 epochs 0.0105
@pytest.mark.parametrize(("epochs", "unchanged"), [(2, True), (27, True), (29, False)])
def test_fine_tuning_that_changes_nothing_says_so(epochs, unchanged):
    trained = TrainedWeights(0.064, all_classes=True)
    recipe = choose_recipe("auto", **RUN | {"images": 4, "epochs": epochs, "trained": trained})
    words = ", which leave the trained weights nearly as they are" if unchanged else ""
    assert recipe.advice(4) == f"only {epochs} optimizer steps{words}: use more --epochs"
