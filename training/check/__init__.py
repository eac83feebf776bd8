"""The data doctor with a model: labels and confident detections that disagree."""
