"""Cameras and network addresses: which are allowed, shown without passwords, and their names."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from data.images import read_lines
from data.sources.containers import VIDEO_SUFFIXES
from data.sources.names import FrameNames
from utils.images.decode import IMAGE_SUFFIXES
from utils.printable import excerpt, printable

SCHEMES = ("rtsp", "rtmp", "http", "https", "tcp")
_STARTS = ", ".join(f"{scheme}://" for scheme in SCHEMES)
ALLOWED = f"a camera number such as 0, or an address that starts with {_STARTS}"
MAX_CAMERA = 999
MAX_NAME = 100  # characters
# a parameter of an address, such as token=, whose value is a secret
SECRET = re.compile(r"((?:pass|pwd|token|key|secret|auth|sig)[^=&]*=)[^&#]*", re.IGNORECASE)
MASK = r"\1***"


@dataclass(frozen=True)
class Address:
    """A camera or network address."""

    text: str  # what OpenCV opens
    shown: str  # the same without passwords
    name: str  # of its outputs

    @property
    def camera(self) -> int | None:
        """The number of the camera, None for a network address."""
        return int(self.text) if self.text.isdecimal() else None

    @property
    def is_web(self) -> bool:
        """Whether it is an address of the web, which may be that of a file."""
        return self.text.startswith(("http://", "https://"))

    @property
    def is_image(self) -> bool:
        """Whether it is the address of an image file, by its suffix."""
        return self.is_web and self._suffix in IMAGE_SUFFIXES

    @property
    def is_video_file(self) -> bool:
        """Whether it has the suffix of a video file; it may be a stream that never ends."""
        return self.is_web and self._suffix in VIDEO_SUFFIXES

    @property
    def is_gif(self) -> bool:
        """Whether it has the suffix of a GIF, which always has an end."""
        return self.is_web and self._suffix == ".gif"

    @property
    def _suffix(self) -> str:
        return os.path.splitext(urlsplit(self.text).path)[1].lower()


def is_camera(text: str) -> bool:
    """Whether the text is the number of a camera.

    >>> is_camera("0"), is_camera("0.jpg")
    (True, False)
    """
    return re.fullmatch(r"[0-9]+", text) is not None


def is_address(text: str) -> bool:
    """Whether the text is the number of a camera or starts like the address of a stream.

    >>> is_address("0"), is_address("http://a"), is_address("a.jpg")
    (True, True, False)
    """
    return is_camera(text) or has_scheme(text)


def has_scheme(text: str) -> bool:
    """Whether the text starts like an address.

    >>> has_scheme("RTSP://a/b"), has_scheme("a/b://c")
    (True, False)
    """
    return re.match(r"[a-z][a-z0-9+.-]*://", text, re.IGNORECASE) is not None


def parse_address(text: str) -> Address:
    """Return the camera or address that `text` gives.

    Raises ValueError that says what is allowed.

    >>> parse_address("rtsp://me:secret@10.0.0.1:554/ch1").shown
    'rtsp://me:***@10.0.0.1:554/ch1'
    >>> parse_address("rtsp://me:secret@10.0.0.1:554/ch1").name, parse_address("0").name
    ('10-0-0-1-554-ch1', 'camera0')
    """
    if is_camera(text):
        return _parse_camera(text)

    scheme = text.partition("://")[0].lower()
    given = excerpt(_masked_text(text), 200)
    if not has_scheme(text) or scheme not in SCHEMES:
        hint = "; give the path of a local file without file://" if scheme == "file" else ""
        raise ValueError(f"'{given}' is not {ALLOWED}{hint}")
    if not re.fullmatch(r"[!-~]+", text):
        raise ValueError(f"'{given}' has spaces or other characters that an address cannot have")

    try:
        parts = urlsplit(text)
        has_port = parts.port is not None  # raises ValueError for a number out of range
        is_valid = bool(parts.hostname) and (has_port or scheme != "tcp")
    except ValueError:
        is_valid = False
    if not is_valid:
        port = ", and tcp:// its port," if scheme == "tcp" else ""
        raise ValueError(f"'{given}' has no valid host{port} after {scheme}://")

    lowered = scheme + text[len(scheme) :]
    return Address(lowered, _masked_text(text), _name(parts))


def _parse_camera(text: str) -> Address:
    """Return the camera of a text of digits. Raises ValueError if the number is too large."""
    if len(text) > 9 or int(text) > MAX_CAMERA:
        raise ValueError(f"there is no camera {excerpt(text)}, the largest number is {MAX_CAMERA}")
    number = int(text)
    return Address(str(number), f"camera {number}", f"camera{number}")


def addresses_in(file: str) -> list[Address]:
    """Return the cameras and addresses in a .streams file.

    There is one per line; empty lines and `#` comments are left out. Raises ValueError with file
    and line.
    """
    names = FrameNames()
    addresses: dict[str, Address] = {}
    for number, line in enumerate(read_lines(Path(file)), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue

        place = f"{printable(file)} line {number}"
        try:
            address = parse_address(text)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
        if address.text in addresses:
            raise ValueError(f"{place}: {address.shown} is listed twice")
        name = names.name(address.text, address.name)
        addresses[address.text] = Address(address.text, address.shown, name)

    if not addresses:
        raise ValueError(f"{printable(file)} is empty; a line is {ALLOWED}")
    return list(addresses.values())


def _masked_text(text: str) -> str:
    """Return an address with *** for its password and for the values of parameters like `token=`.

    It need not be a valid one.
    """
    scheme, slashes, after = text.partition("://")

    # The user, password and host end at the first slash. Where they would end in no valid port,
    # before a later @, the slash is part of the password.
    end = len(re.split(r"[/?#]", after, maxsplit=1)[0])
    has_invalid_port = re.search(r":[0-9]*[^0-9\]:]", after[:end]) is not None
    if "@" in after[end:] and has_invalid_port:
        end = after.rindex("@") + 1

    user, at, host = after[:end].rpartition("@")
    if ":" in user:
        name = user.partition(":")[0]
        user = f"{name}:***"

    path, mark, query = after[end:].partition("?")
    query = SECRET.sub(MASK, query)
    return printable(f"{scheme}{slashes}{user}{at}{host}{path}{mark}{query}")


def _name(parts: SplitResult) -> str:
    """Return a file name for an address, from its host, port and path.

    The query may hold a password.
    """
    host = parts.netloc.rpartition("@")[2]
    name = re.sub(r"[^A-Za-z0-9_]+", "-", f"{host}{parts.path}").strip("-")
    return name[:MAX_NAME] or "stream"
