"""Short videos whose frames can be told apart, written by OpenCV."""

from pathlib import Path

import cv2
import numpy as np

SIDE = 64
FIRST_LEVEL, LEVEL_STEP = 20, 8  # gray level of frame 1, and how much brighter each further one is


def write_clip(
    path: Path, frames: int = 10, *, fps: float = 25, fourcc: str = "mp4v", side: int = SIDE
) -> Path:
    """Write a video of gray frames, frame n at level 20 + 8 (n - 1), up to 30 of them; return its
    path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = cv2.VideoWriter(
        str(path), cv2.CAP_FFMPEG, cv2.VideoWriter_fourcc(*fourcc), fps, (side, side)
    )
    assert writer.isOpened(), fourcc
    for number in range(1, frames + 1):
        writer.write(gray(number, side))
    writer.release()
    return path


def write_noise(path: Path, frames: int = 60, *, fourcc: str = "MJPG") -> Path:
    """Write a video of noise, whose frames take many bytes each; return its path."""
    writer = cv2.VideoWriter(
        str(path), cv2.CAP_FFMPEG, cv2.VideoWriter_fourcc(*fourcc), 30, (SIDE, SIDE)
    )
    assert writer.isOpened(), fourcc
    random = np.random.default_rng(0)
    for _ in range(frames):
        writer.write(random.integers(0, 255, (SIDE, SIDE, 3)).astype(np.uint8))
    writer.release()
    return path


def gray(number: int, side: int = SIDE) -> np.ndarray:
    """The image of frame `number`, from 1."""
    return np.full((side, side, 3), FIRST_LEVEL + LEVEL_STEP * (number - 1), np.uint8)


def frame_number(image: np.ndarray) -> int:
    """The number of the frame with these pixels, as `write_clip` drew it."""
    return round((float(image.mean()) - FIRST_LEVEL) / LEVEL_STEP) + 1


def jpeg(number: int) -> bytes:
    """Frame `number` as a JPEG file of more than 4096 bytes: FFmpeg recognizes a stream by its
    first 2048.
    """
    data = cv2.imencode(".jpg", gray(number))[1].tobytes()
    return data[:2] + b"\xff\xfe\x10\x00" + bytes(4094) + data[2:]  # a comment
