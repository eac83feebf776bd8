"""The model of tables/micro.yaml with other heads."""

from pathlib import Path

MICRO = Path(__file__).parents[1] / "tables" / "micro.yaml"
HEADS = {  # rows that replace those of micro.yaml's head
    "anchor_free": "[[2, 3, 4], 1, AnchorFree, [nc]]",
    "decoupled": "[[2, 3, 4], 1, DecoupledDetect, [nc]]",
    "distance": "[[2, 3, 4], 1, DistanceDetect, [nc, 16]]",
    "distance_plain": "[[2, 3, 4], 1, DistanceDetect, [nc, 1, True]]",
    "shared": "[[2, 3, 4], 1, SharedDistanceDetect, [nc, True]]",
    # With an auxiliary branch, whose head is another one.
    "auxiliary": "[[2, 3, 4], 1, GroupedDistanceDetect, [nc, 16]]\n\nauxiliary:\n"
    "  - [images, 1, Conv, [256, 3, 8]]\n  - [[3, -1], 1, CBFuse, []]\n"
    "  - [[-1, 3, 4], 1, DistanceDetect, [nc, 16]]",
    # Behind self-attention, which needs 128 channels.
    "dual": "[-1, 1, Conv, [1024, 1, 1]]\n  - [-1, 1, C2PSA, [1024]]\n"
    "  - [[2, 3, 6], 1, DualDistanceDetect, [nc, 1, True]]",
}


def write_micro_table(folder: Path, kind: str) -> Path:
    """Write micro.yaml with one of HEADS to the folder; return the path."""
    micro = MICRO.read_text().replace("[[2, 3, 4], 1, Detect, [nc, anchors]]", HEADS[kind])
    file = folder / f"{kind}.yaml"
    file.write_text(micro[: micro.index("anchors:")] + micro[micro.index("backbone:") :])
    return file
