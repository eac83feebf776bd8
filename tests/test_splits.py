"""data/splits.py: data sets by name."""

from data import splits


def test_the_generated_set_is_drawn_and_no_other(tiny_data, monkeypatch):
    drawn = []
    monkeypatch.setattr(splits.shapes, "generate", drawn.append)
    assert splits.open_data(str(tiny_data)).file == tiny_data
    assert drawn == []
    assert [splits.open_data("shapes.yaml").root] == drawn
