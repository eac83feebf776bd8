"""cleanlab's object_detection scores of labels and detections, for measure.py.

    python cleanlab_scores.py boxes.npz scores.npz

Runs in an environment of its own with cleanlab and NumPy; nothing of Kestrel is imported.
boxes.npz: for labels and detections the image, the class and the corners of each box, for
detections the score, and the numbers of images and classes. scores.npz: of each image, of each
label (badly located, swapped) and of each detection (overlooked), low for likely faults; with the
probability thresholds of --thresholds, or cleanlab's own.
"""

import argparse

import numpy as np
from cleanlab.object_detection.rank import (
    compute_badloc_box_scores,
    compute_overlooked_box_scores,
    compute_swap_box_scores,
    get_label_quality_scores,
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("boxes")
    parser.add_argument("scores")
    parser.add_argument("--thresholds", nargs=2, type=float, metavar=("LOW", "HIGH"))
    options = parser.parse_args()
    boxes = np.load(options.boxes)

    # In the layout that cleanlab takes: a dict and a list of arrays for each image.
    images, classes = boxes["counts"].tolist()
    labels = []
    predictions = []
    label_order = []
    detection_order = []
    for image in range(images):
        own = np.flatnonzero(boxes["label_images"] == image)
        label_order.append(own)
        labels.append({"bboxes": boxes["label_boxes"][own], "labels": boxes["label_classes"][own]})

        by_class = []
        for number in range(classes):
            found = np.flatnonzero(
                (boxes["detection_images"] == image) & (boxes["detection_classes"] == number)
            )
            detection_order.append(found)
            scores = boxes["detection_scores"][found, None]
            by_class.append(np.hstack([boxes["detection_boxes"][found], scores]))
        array = np.empty(classes, dtype=object)
        array[:] = by_class
        predictions.append(array)

    low = {}
    high = {}
    if options.thresholds:
        low = {"low_probability_threshold": options.thresholds[0]}
        high = {"high_probability_threshold": options.thresholds[1]}
    both = {"labels": labels, "predictions": predictions}
    per_label = {
        "badly_placed": compute_badloc_box_scores(**both, **low),
        "swapped": compute_swap_box_scores(**both, **high),
    }
    overlooked = compute_overlooked_box_scores(**both, **high)

    results = {"images": get_label_quality_scores(**both, verbose=False)}
    in_order = np.concatenate(label_order)
    for kind, scores in per_label.items():
        values = np.ones(len(boxes["label_images"]))
        values[in_order] = np.concatenate(scores)
        results[kind] = values
    values = np.ones(len(boxes["detection_images"]))
    values[np.concatenate(detection_order)] = np.concatenate(overlooked)
    results["missing"] = values
    np.savez(options.scores, **results)


if __name__ == "__main__":
    main()
