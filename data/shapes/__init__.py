"""The generated demonstration data set: ten classes of shapes on textured backgrounds.

One seed gives the same bytes.

    python -m data.shapes [--root DIR] [--seed N] [--train N] [--val N] [--size PX]

The outline alone does not identify the class: a checker is a square with another texture. Most
shapes of a class have the same hue, which helps if a shape is tiny or half hidden, and misleads for
the shapes with another hue. Sizes range over 1:20, shapes hide each other and extend past the
image, one image in twenty is empty. A label is the outline of the visible part of a shape, as a
YOLO polygon row; its extent is the box.

An image is planned first (numbers only), then drawn. Its random generator is keyed by seed, split
and index, so no image depends on another one. S: side of the image in pixels; colors are BGR in
[0, 255], as in OpenCV; points are (x, y) in pixels, where pixel i covers [i, i + 1].
"""
