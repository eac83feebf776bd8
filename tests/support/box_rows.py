"""Ground truths and detections of boxes, a row each."""

from utils.metrics.records import Detections, GroundTruth


def truths_of(*rows):
    """Ground truths from rows (image, class, x, y, w, h, crowd)."""
    columns = list(zip(*rows, strict=True)) or [[]] * 7
    areas = [width * height for width, height in zip(columns[4], columns[5], strict=True)]
    return GroundTruth(columns[0], columns[1], [row[2:6] for row in rows], areas, columns[6])


def detections_of(*rows):
    """Detections from rows (image, class, x, y, w, h, score)."""
    columns = list(zip(*rows, strict=True)) or [[]] * 7
    return Detections(columns[0], columns[1], [row[2:6] for row in rows], columns[6])
