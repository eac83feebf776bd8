"""benchmarks/detection/exports.py: what it reads from the output of other projects' validation."""

from benchmarks.detection.exports import read_figures

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
