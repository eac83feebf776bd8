"""Anchors: the boxes that they reach, and the anchors that are fitted to the others."""

import numpy as np
import pytest

from utils.metrics.anchors import best_possible_recall, check_anchors, fit_anchors, matched

TABLE = np.array(
    [
        [[10, 13], [16, 30], [33, 23]],
        [[30, 61], [62, 45], [59, 119]],
        [[116, 90], [156, 198], [373, 326]],
    ],
    np.float64,
)


def log_normal(middle: float, spread: float, count: int = 2000, seed: int = 0) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(np.log(middle), spread, (count, 2)))


def fit(sizes: np.ndarray, count: int = 9, **settings) -> np.ndarray:
    return fit_anchors(sizes, count, 4.0, generations=100, **settings)


def test_recall_equals_the_slow_loop():
    sizes, anchors = log_normal(60, 1.2, 200), TABLE.reshape(-1, 2)
    reached = 0
    for w, h in sizes:
        reached += any(max(w / a, a / w, h / b, b / h) < 4 for a, b in anchors)
    assert 0 < reached < 200
    assert best_possible_recall(sizes, anchors, 4.0) == reached / 200
    assert best_possible_recall(np.zeros((0, 2)), anchors, 4.0) == 1.0


def test_box_at_ratio_limit_is_not_recalled():
    anchors = np.array([[16.0, 16]])
    assert best_possible_recall(np.array([[64.0, 16]]), anchors, 4.0) == 0
    assert best_possible_recall(np.array([[63.9, 16]]), anchors, 4.0) == 1
    assert best_possible_recall(np.array([[4.0, 16]]), anchors, 4.0) == 0
    assert best_possible_recall(np.array([[4.1, 16]]), anchors, 4.0) == 1


def test_table_anchors_are_kept_for_common_box_sizes():
    # Sides about 20 to 300 px, as in COCO at 640.
    anchors, sentence = check_anchors(log_normal(70, 0.6), TABLE, 4.0)
    assert anchors is TABLE
    assert sentence.startswith("anchor sizes match ")


@pytest.mark.slow
def test_unusual_box_sizes_get_fitted_anchors_with_higher_recall():
    sizes = log_normal(5, 0.3) * [1.0, 50.0]  # very narrow and tall
    before = best_possible_recall(sizes, TABLE.reshape(-1, 2), 4.0)
    anchors, sentence = check_anchors(sizes, TABLE, 4.0)
    after = best_possible_recall(sizes, anchors.reshape(-1, 2), 4.0)
    assert before < 0.5
    assert after > 0.98
    assert anchors.shape == TABLE.shape
    assert (
        sentence
        == f"{matched(after)}: they were chosen by the boxes, as the model's own match {before:.1%}"
    )


def test_two_box_clusters_get_one_anchor_each():
    sizes = np.concatenate([np.full((30, 2), (8.0, 8)), np.full((30, 2), (100.0, 50))])
    sizes *= 1 + 0.01 * np.random.default_rng(0).standard_normal(sizes.shape)
    for seed in range(5):  # for any initial boxes of k-means
        anchors = fit_anchors(sizes, 2, 4.0, seed=seed)
        assert anchors == pytest.approx(np.array([[8.0, 8], [100, 50]]), rel=0.05)


@pytest.mark.slow
def test_anchor_fitting_is_deterministic_and_sorted_by_area():
    sizes = log_normal(40, 0.9)
    anchors = fit(sizes)
    assert np.array_equal(anchors, fit(sizes))
    assert not np.array_equal(anchors, fit(sizes, seed=1))
    assert (np.diff(anchors.prod(1)) >= 0).all()
    assert anchors.min() >= 2


@pytest.mark.slow
def test_anchor_mutation_never_lowers_fitness():
    sizes = log_normal(40, 0.9)

    def fitness(anchors: np.ndarray) -> float:
        ratio = sizes[:, None] / anchors
        best = np.minimum(ratio, 1 / ratio).min(-1).max(1)
        return float((best * (best > 0.25)).mean())

    scores = [fitness(fit_anchors(sizes, 9, 4.0, generations=n)) for n in (0, 30, 300)]
    assert scores == sorted(scores)
    assert scores[0] < scores[-1]


def test_anchors_fitted_to_equal_boxes_have_their_size():
    anchors = fit(np.full((50, 2), (20.0, 10)), 3)
    assert anchors == pytest.approx(np.tile([[20.0, 10]], (3, 1)))


def test_anchors_cannot_be_fitted_to_too_few_boxes():
    with pytest.raises(ValueError, match="9 anchors cannot be fitted to 2 boxes of at least 2 px"):
        fit(np.array([[5.0, 5], [6, 6], [1, 9]]))
    anchors, sentence = check_anchors(np.array([[3.0, 300], [3, 310], [1, 1]]), TABLE, 4.0)
    assert anchors is TABLE
    assert sentence == f"{matched(0)}; 2 boxes are too few to choose new anchors by"


@pytest.mark.parametrize("sizes", [np.zeros((0, 2)), np.zeros((5, 2)), np.full((5, 2), 1.9)])
def test_check_anchors_without_boxes_keeps_anchors(sizes):
    anchors, sentence = check_anchors(sizes, TABLE, 4.0)
    assert anchors is TABLE
    assert sentence == "no boxes to check the anchors with"


def test_fitted_anchors_without_higher_recall_are_not_used():
    # Six very different sizes and one anchor: any fitted anchor reaches one of the six, like the
    # given one.
    sizes = np.array([[20.0 * 9**n, 20.0 * 9**n] for n in range(-1, 5)])
    given = np.array([[[20.0, 20]]])
    anchors, sentence = check_anchors(sizes, given, 4.0)
    assert anchors is given
    assert sentence == f"{matched(1 / 6)}; new anchors would match 16.7%"


def test_anchor_fitting_samples_at_most_max_boxes(monkeypatch):
    monkeypatch.setattr("utils.metrics.anchors.MAX_BOXES", 100)
    seen = []
    monkeypatch.setattr(
        "utils.metrics.anchors.fit_anchors",
        lambda sizes, *_, **__: seen.append(len(sizes)) or TABLE.reshape(-1, 2),
    )
    check_anchors(log_normal(5, 0.1, 199) * [1, 50], TABLE, 4.0)
    assert seen == [100]


@pytest.mark.slow
def test_placeholder_anchors_are_replaced_despite_full_recall():
    sizes = log_normal(70, 0.1)
    given = np.full((1, 3, 2), 70.0)
    kept, _ = check_anchors(sizes, given, 4.0)
    fitted, sentence = check_anchors(sizes, given, 4.0, placeholders=True)
    assert np.array_equal(kept, given)
    assert not np.array_equal(fitted, given)
    assert sentence == (
        "anchor sizes match all boxes: they were chosen by the boxes, as the model's own match "
        "100.0%"
    )
