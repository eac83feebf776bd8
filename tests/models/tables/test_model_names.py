"""The names of models, and the tables that they stand for."""

import pytest

from models import build_model
from models.tables.find import load_model_table


@pytest.mark.parametrize(
    "name",
    ["yolov5s", "yolov5s.yaml", "models/yolov5s.yaml", "models/hub/yolov5s.yaml", "yolov5s.yml"],
)
def test_model_can_be_named_in_several_ways(name):
    table, scale = load_model_table(name)
    assert (table["source"], scale) == ("models/yolov5.yaml", "s")


def test_p6_models_use_their_own_table():
    table, scale = load_model_table("yolov5x6.yaml")
    assert (table["source"], scale) == ("models/yolov5-p6.yaml", "x6")


@pytest.mark.parametrize("name", ["yolov9000", "elsewhere/yolov5s.yaml", "yolov5"])
def test_unknown_model_names_are_rejected(name):
    with pytest.raises(
        ValueError,
        match=r"no model .* one of convnext_tiny, .*yolox_x|the table has the scales n, s, m, l, x",
    ):
        build_model(name, 80)
