"""The generated demonstration set: ten kinds of shapes on textured backgrounds, the same bytes from the same seed.

    python -m data.shapes [--root DIR] [--seed N] [--train N] [--val N] [--size PX]

Shape alone does not tell the classes apart: a checker is a square with another texture, and a class has a favourite
hue, which helps where a shape is tiny or half hidden, and misleads where it is not kept. Sizes spread over 1:20, shapes
hide each other and leave the image, one image in twenty is empty. A label is the outline of what is seen of a shape, as
a YOLO polygon row, whose extremes are its box.

An image is planned first (numbers only), then drawn, from a generator keyed by seed, split and index: no image depends
on another one. S side of the image in pixels; colours are BGR in [0, 255], as OpenCV has them; points are (x, y) pixels
in the frame whose pixel i covers [i, i + 1].
"""
