"""benchmarks/detection/exports.py: what it reads from the output of other projects' validation."""

import pytest

from benchmarks.detection.exports import read_figures, size_mb

FIVE_COLUMNS = (
    "                   all         87        967      0.851      0.903      0.899      0.512\n"
)
COLORED = "\x1b[34m\x1b[1mval:\x1b[0m 87 images\n" + FIVE_COLUMNS
PER_CLASS = (
    "                   RBC         87        800      0.751      0.803      0.799      0.412\n"
)


def test_stages_with_hyphen_and_nms():
    speed = (
        "Speed: 0.3ms pre-process, 21.5ms inference, 1.2ms NMS per image at shape (1, 3, "
        "320, 320)\n"
    )
    figures = read_figures(COLORED + PER_CLASS + speed)
    assert figures.ap == 0.512
    assert figures.milliseconds == {"letterbox": 0.3, "model": 21.5, "postprocess": 1.2}


def test_stages_with_loss_and_postprocess():
    speed = "Speed: 0.4ms preprocess, 20.0ms inference, 0.1ms loss, 0.9ms postprocess per image\n"
    assert read_figures(FIVE_COLUMNS + speed).milliseconds == {
        "letterbox": 0.4,
        "model": 20.0,
        "postprocess": 0.9,
    }


@pytest.mark.parametrize("output", ["", FIVE_COLUMNS, "Speed: 1ms inference\n"])
def test_incomplete_output_is_reported(output):
    with pytest.raises(SystemExit, match='no line "all" or "Speed:"'):
        read_figures(output)


def test_size_counts_external_data_and_folders(tmp_path):
    for name, size in (("m.onnx", 1000), ("m.onnx.data", 2000), ("m_openvino_model/m.xml", 10)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    assert size_mb(tmp_path / "m.onnx") == 0.003
    assert size_mb(tmp_path / "m_openvino_model") == 0.00001
