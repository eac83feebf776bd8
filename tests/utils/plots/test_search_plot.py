"""utils/plots/search.py: evolve.png."""

import cv2
import numpy as np
import pytest

from utils.plots.search import plot_search

HEADER = "generation,fitness,lr0,box,failure\n"


@pytest.mark.parametrize(
    ("rows", "panels"),
    [
        ("", 1),
        ("0,0.5,0.01,0.05,\n", 1),
        ("0,0.5,0.01,0.05,\n1,0,0.02,0.05,not finite\n2,0.75,0.03,0.05,\n", 2),
        ("0,-0.5,0.01,0.05,\n1,-0.25,0.02,0.06,\n", 3),
        ("0,0,9,0.05,not finite\n", 1),
    ],
)
def test_a_panel_is_drawn_for_each_key_that_changed(tmp_path, rows, panels):
    (tmp_path / "evolve.csv").write_text(HEADER + rows)
    plot_search(tmp_path / "evolve.csv", tmp_path / "evolve.png", ["lr0", "box"])
    image = cv2.imread(str(tmp_path / "evolve.png"))
    assert image.shape[1] == pytest.approx(panels * 2.6 * 140, abs=1)
    has_star = (np.abs(image.astype(int) - (0x0C, 0x59, 0xE8)).sum(2) < 12).any()
    assert has_star == any(row.endswith(",") for row in rows.split("\n") if row)
