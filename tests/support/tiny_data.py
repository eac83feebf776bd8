"""Draw the data set of most tests. Imports little, for scripts that only start others."""

from pathlib import Path

import cv2
import numpy as np

NAMES = ("disc", "square", "bar")
SIDE = 96


def draw_tiny_data(root: Path) -> Path:
    """Write the eight images, their labels and the data YAML under root; return the path of the
    YAML.
    """
    random = np.random.default_rng(0)
    for folder in ("images", "labels"):
        (root / folder).mkdir(parents=True)
    for number in range(8):
        image = random.integers(90, 130, (SIDE, SIDE, 3)).astype(np.uint8)
        rows = []
        centers = random.permutation([(26, 26), (70, 26), (26, 70), (70, 70)])[: 2 + number % 2]
        for x, y in centers.tolist():
            class_id, half_width = int(random.integers(3)), int(random.integers(9, 20))
            half_height = half_width // 2 if class_id == 2 else half_width
            color = [0, 0, 0]
            color[class_id] = 255
            if class_id == 0:
                cv2.circle(image, (x, y), half_width, color, -1)
            else:
                corners = (x - half_width, y - half_height), (x + half_width, y + half_height)
                cv2.rectangle(image, *corners, color, -1)
            size = (2 * half_width + 1) / SIDE, (2 * half_height + 1) / SIDE
            box = [(x + 0.5) / SIDE, (y + 0.5) / SIDE, *size]
            rows.append(" ".join([str(class_id), *(f"{v:.6f}" for v in box)]))
        cv2.imwrite(str(root / "images" / f"{number}.png"), image)
        (root / "labels" / f"{number}.txt").write_text("\n".join(rows) + "\n")
    file = root / "tiny.yaml"
    file.write_text(f"path: .\ntrain: images\nval: images\nnames: [{', '.join(NAMES)}]\n")
    return file
