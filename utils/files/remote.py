"""What an http or https address holds: its kind, its length, and its content in memory."""

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
    http_status_text,
    network_errors,
    open_response,
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
        content_type, _, _ = response.headers.get("Content-Type", "").partition(";")
        self.kind = content_type.strip().lower()
        self.length = announced_length(response)
        self._response = response
        self._host = host
        self._stall_s = stall_s

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

        Raises: FaultError if it is longer than `limit` bytes, breaks off, or comes slower than
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
                received = format_bytes(len(content))
                raise FaultError(f"{self._host} sent only {received} in {elapsed_s:.0f} s")

        if self.length is not None and len(content) < self.length:
            received = f"{format_bytes(len(content))} of {format_bytes(self.length)}"
            raise FaultError(f"{self._host} closed the connection after {received}")
        return bytes(content)

    def _next_chunk(self) -> bytes:
        """Return the next bytes, none at the end. Raises FaultError if they do not come."""
        with network_errors(self._host, self._stall_s):
            return self._response.read1(CHUNK)


@contextmanager
def open_remote(address: str, stall_s: float) -> Iterator[Remote]:
    """Yield what is at an http or https address, which may hold a user name and a password.

    They are sent if the server asks for them.

    stall_s: seconds without a byte after which reading fails.

    Raises: ValueError for an address that is not allowed; FaultError, with the host's name, if the
    server cannot be reached or answers with an error.
    """
    parts = urlsplit(address)
    credentials, _, netloc = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    url = urlunsplit(parts._replace(netloc=netloc, fragment=""))
    check_url(url, plain_http=True)

    answer = None
    with open_response(url, HEADERS, stall_s, plain_http=True) as (response, host):
        # not a host that it redirects to
        asks_itself = response.status == UNAUTHORIZED and host == host_of(url)
        if asks_itself and user:
            challenges = response.headers.get_all("WWW-Authenticate", [])
            answer = authorization(url, user, password, challenges)
        if answer is None:
            yield _accepted(response, host, stall_s)
            return

    headers = {**HEADERS, "Authorization": answer}
    with open_response(url, headers, stall_s, plain_http=True) as (response, host):
        yield _accepted(response, host, stall_s)


def _accepted(response: Response, host: str, stall_s: float) -> Remote:
    """Return what a response holds.

    Raises: FaultError if it has another status than 200.
    """
    if response.status != 200:
        raise FaultError(f"{host} answered {http_status_text(response.status)}")
    return Remote(response, host, stall_s)
