"""Images: decoding files, letterboxing, frames of videos, and the detections in them."""

from utils.images.bit_depth import bit_depth
from utils.images.decode import (
    IMAGE_SUFFIXES,
    decode_any_depth,
    decode_bgr,
    is_image_name,
    quiet_decoder,
    read_bytes,
    read_image,
)
from utils.images.decoder_messages import DecoderMessages, caught_messages, discarded_messages
from utils.images.detections import Frame, ImageDetections
from utils.images.encode import encode_bgr
from utils.images.headers import is_gray
from utils.images.letterbox import (
    CanvasShapes,
    Placement,
    Region,
    canvas_shapes,
    draw_letterboxed,
    fit_to_stride,
    place,
    round_up_to_stride,
)
from utils.images.tiles import Tiling, cut_by_tile, open_tiling

__all__ = [
    "IMAGE_SUFFIXES",
    "CanvasShapes",
    "DecoderMessages",
    "Frame",
    "ImageDetections",
    "Placement",
    "Region",
    "Tiling",
    "bit_depth",
    "canvas_shapes",
    "caught_messages",
    "cut_by_tile",
    "decode_any_depth",
    "decode_bgr",
    "discarded_messages",
    "draw_letterboxed",
    "encode_bgr",
    "fit_to_stride",
    "is_gray",
    "is_image_name",
    "open_tiling",
    "place",
    "quiet_decoder",
    "read_bytes",
    "read_image",
    "round_up_to_stride",
]
