"""Augmentation: planned as numbers and boxes first, then drawn by OpenCV or on the device."""
