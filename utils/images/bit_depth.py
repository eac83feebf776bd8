"""Images with more than 8 bits per channel.

Which bit depth their values have, and the same image with 8 bits.
"""

import numpy as np

BIT_DEPTHS = (8, 10, 12, 14, 16)  # of cameras and scanners


def bit_depth(image: np.ndarray) -> int:
    """Return the smallest of BIT_DEPTHS that holds the largest value of an image.

    image: uint8 or uint16, of any shape.

    >>> [bit_depth(np.array([most], np.uint16)) for most in (0, 255, 256, 4095, 4096, 65535)]
    [8, 8, 10, 12, 14, 16]
    """
    if image.dtype == np.uint8 or not image.size:
        return 8
    most = int(image.max())
    return next(bits for bits in BIT_DEPTHS if most < 1 << bits)


def to_8_bits(image: np.ndarray) -> np.ndarray:
    """Return a uint8 or uint16 image as uint8, of the same shape; uint8 is returned as it is.

    The values 0 to 2**b - 1, where b is the image's `bit_depth`, are mapped to 0 to 255 and rounded
    to the nearest. Cameras store 10, 12 or 14 bits in the low bits of 16-bit files, and few files
    state how many. Metadata are not used: PNG's sBIT describes values that were already scaled to
    16 bits, TIFF's MaxSampleValue is mostly missing.

    >>> to_8_bits(np.array([0, 8, 9, 4095], np.uint16))
    array([  0,   0,   1, 255], dtype=uint8)
    >>> to_8_bits(np.array([0, 4095, 65535], np.uint16))
    array([  0,  16, 255], dtype=uint8)
    """
    if image.dtype == np.uint8:
        return image
    full_scale = (1 << bit_depth(image)) - 1
    values = np.arange(full_scale + 1, dtype=np.uint32)
    # Rounded to the nearest. No value is halfway: full_scale is odd.
    rounded = (values * 255 + full_scale // 2) // full_scale
    table = rounded.astype(np.uint8)
    return table[image]
