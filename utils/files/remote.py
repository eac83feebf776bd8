"""What an http or https address holds.

Whether it is a file of a known length, and its content in memory.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

from utils.files.disk import format_bytes
from utils.files.download import (
    Response,
    announced_length,
    authorization,
    check_url,
    host_of,
    network_errors,
    open_response,
    status_text,
)
from utils.terminal import FaultError

CHUNK = 2**20
# on average; a server that sends a byte now and then would keep a reader for ever
MIN_BYTES_PER_S = 1000
HEADERS = {"Accept-Encoding": "identity", "User-Agent": "kestrel"}
STREAM_KINDS = ("multipart/", "video/", "audio/")  # how the Content-Type of a stream begins
UNAUTHORIZED = 401


class Remote:
    """The response of a server.

    kind: its Content-Type, in lower case. length: bytes, None if it announces none.
    """

    def __init__(self, response: Response, host: str, stall_s: float) -> None:
        self.kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        self.length = announced_length(response)
        self._response, self._host, self._stall_s = response, host, stall_s

    @property
    def is_stream(self) -> bool:
        """Return whether the server says that it sends moving pictures or sound."""
        return self.kind.startswith(STREAM_KINDS)

    @property
    def is_image(self) -> bool:
        """Return whether the server says that it sends an image."""
        return self.kind.startswith("image/")

    def read(self, limit: int) -> bytes:
        """Return the whole content.

        Raises FaultError if it is longer than `limit` bytes, breaks off, or comes slower than
        MIN_BYTES_PER_S.
        """
        content = bytearray()
        start_s = time.monotonic()
        while chunk := self._next_chunk():
            content += chunk
            if len(content) > limit:
                raise FaultError(f"{self._host} sent more than the allowed {format_bytes(limit)}")
            elapsed_s = time.monotonic() - start_s
            if elapsed_s > self._stall_s and len(content) < MIN_BYTES_PER_S * elapsed_s:
                raise FaultError(
                    f"{self._host} sent only {format_bytes(len(content))} in {elapsed_s:.0f} s"
                )
        if self.length is not None and len(content) < self.length:
            received = f"{format_bytes(len(content))} of {format_bytes(self.length)}"
            raise FaultError(f"{self._host} closed the connection after {received}")
        return bytes(content)

    def _next_chunk(self) -> bytes:
        with network_errors(self._host, self._stall_s):
            return self._response.read1(CHUNK)


@contextmanager
def open_remote(address: str, stall_s: float) -> Iterator[Remote]:
    """Yield what is at an http or https address, which may hold a user name and a password.

    stall_s: seconds without a byte after which reading fails. Raises ValueError for an address that
    is not allowed, and FaultError, with the host's name, if the server cannot be reached or answers
    with an error.
    """
    parts = urlsplit(address)
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))
    check_url(url, plain_http=True)

    headers, answer = HEADERS, None
    with open_response(url, headers, stall_s, plain_http=True) as (response, host):
        # not a host that it redirects to
        asks_itself = response.status == UNAUTHORIZED and host == host_of(url)
        if asks_itself and user:
            answer = authorization(
                url, user, password, response.headers.get_all("WWW-Authenticate", [])
            )
        if answer is None:
            yield _accepted(response, host, stall_s)
            return
    with open_response(url, {**headers, "Authorization": answer}, stall_s, plain_http=True) as (
        response,
        host,
    ):
        yield _accepted(response, host, stall_s)


def _accepted(response: Response, host: str, stall_s: float) -> Remote:
    """Return what a response holds. Raises FaultError if it has another status than 200."""
    if response.status != 200:
        raise FaultError(f"{host} answered {status_text(response.status)}")
    return Remote(response, host, stall_s)
