"""Augmentation: planned as numbers and boxes, then drawn by OpenCV or on the device."""
