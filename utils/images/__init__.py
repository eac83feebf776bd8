"""Images: decoding files, letterboxing, frames of videos, and the detections in them."""
