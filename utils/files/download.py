"""Download a file from a URL, resuming earlier tries; check it, and rename it into place.

This is the only module of Kestrel that requests anything from the network. It is called only with
`--download`, for URLs that a program gives to a model loaded with `urls=True`, and
(`open_response`) for an address that `--source` gives.
"""

import base64
import hashlib
import http
import json
import os
import re
import socket
import ssl
import string
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse, IncompleteRead
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import (
    AbstractDigestAuthHandler,
    HTTPHandler,
    HTTPPasswordMgrWithDefaultRealm,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    parse_http_list,
    parse_keqv_list,
    url2pathname,
)

from tqdm import tqdm

from utils.files.atomic import atomic_write, name_os_errors
from utils.files.disk import format_bytes, require_free_space
from utils.terminal import FaultError, print_lines

MAX_BYTES = 2**41  # largest file
STALL_S = 30.0  # read timeout
# waits after the 1st, 2nd, ... failure in a row; one more failure is the last
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
PROGRESS_BYTES = 2**20  # bytes: a try that receives this many starts the count of failures anew
CHUNK = 2**20
MAX_REDIRECTS = 10
REDIRECTS = (301, 302, 303, 307, 308)
TEMPORARY_STATUS = (408, 416, 425, 429, 500, 502, 503, 504)  # status codes of temporary faults
RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII)
Response = HTTPResponse  # what `open_response` yields
LOOPBACK = ("127.0.0.1", "localhost", "::1")  # http is safe: the data do not leave this machine


class TemporaryError(FaultError):
    """A temporary fault of the network or server: another try may succeed."""


class DownloadSource(NamedTuple):
    """A file's URL, and its SHA-256 in hexadecimal digits, "" if unknown.

    sha256_prefix: its first digits, where no more are known. They find damage; who wants to can
    make another file with the same ones.
    """

    url: str
    sha256: str = ""
    sha256_prefix: str = ""

    @property
    def digits(self) -> str:
        """Return the digits that are known of its SHA-256."""
        return (self.sha256 or self.sha256_prefix).lower()

    def __str__(self) -> str:
        name = urlsplit(self.url).path.rpartition("/")[2] or "a file"
        return f"{name} from {host_of(self.url)}"


def host_of(url: str) -> str:
    """Return the host of a URL, with its port if it has one.

    >>> host_of("https://a.org:8443/b.zip"), host_of("file:///b.zip")
    ('a.org:8443', 'this machine')
    """
    return urlsplit(url).netloc or "this machine"


def check_url(url: str, *, plain_http: bool = False) -> None:
    """Raise ValueError, with half a sentence, for anything but an https or file URL.

    http is allowed only to this machine, unless plain_http. A URL with a password is refused,
    because URLs are printed and stored.

    >>> check_url("https://a.org/b.zip")
    >>> check_url("http://a.org/b.zip")
    Traceback (most recent call last):
    ValueError: http:// can be read and changed in transit; use https://
    """
    if not re.match(r"(https?|file)://", url, re.IGNORECASE) or not re.fullmatch(r"[!-~]+", url):
        raise ValueError("it is not an https:// or file:// URL; commands and code are never run")

    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port  # raises ValueError unless it is a valid number
    except ValueError as error:
        raise ValueError(f"it is not a URL ({error})") from None

    if parts.username is not None or parts.password is not None:
        raise ValueError("it contains a user name or a password, which would be printed and stored")

    if parts.scheme == "file":
        if host not in ("", "localhost") or not parts.path.startswith("/"):
            raise ValueError(
                "a file URL needs the full path of a file on this machine: file:///folder/file.zip"
            )
    elif not re.fullmatch(r"[\w-]{1,63}(\.[\w-]{1,63})*\.?|[0-9a-f]*:[0-9a-f:.]*", host, re.ASCII):
        raise ValueError("it has no valid host name")
    elif parts.scheme == "http" and host not in LOOPBACK and not plain_http:
        raise ValueError("http:// can be read and changed in transit; use https://")


def fetch(
    source: DownloadSource,
    target: Path,
    *,
    limit: int = MAX_BYTES,
    stall_s: float = STALL_S,
    pauses_s: Sequence[float] = PAUSES_S,
) -> str:
    """Download `source` to `target`, which appears only when complete, and return its SHA-256.

    Received bytes are kept in TARGET.part beside `target`, even if this process is killed. The next
    call resumes from them if the server still has the same file. Only one process at a time may
    fetch to a target.

    Args:
        source: the URL, and the SHA-256 or its first digits, if they are known.
        target: the file.
        limit: bytes.
        stall_s: seconds without a byte after which a try fails.
        pauses_s: seconds to wait after each failure.

    Raises ValueError for a URL that is not allowed; FaultError, with the host's name, if the file
    cannot be fetched, is larger than `limit` or the free disk space, or has a different SHA-256;
    OSError if the disk is full.
    """
    check_url(source.url)
    part = PartialFile.load(source.url, target)

    # Once more from the start if pieces of two versions were put together.
    for last in (False, True):
        with tqdm(unit="B", unit_scale=True, desc=str(source), disable=None, leave=False) as bar:
            transfer = _Transfer(part, bar, limit, stall_s, may_resume=bool(source.digits))
            is_pieced = transfer.complete(pauses_s)

        digest = sha256_of(part.file)
        if digest.startswith(source.digits):
            break
        part.forget()
        if last or not is_pieced:  # else it may mix two versions: servers do not always say
            expected = source.digits if source.sha256 else f"{source.digits}..."
            mismatch = f"the SHA-256 of {source} is {digest}, expected {expected}"
            raise FaultError(f"{mismatch}: it is not the expected file, and was removed")

    with name_os_errors(target), open(part.file, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(part.file, target)
    part.forget()
    return digest


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(file, "rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@dataclass
class PartialFile:
    """The bytes of a file received so far, and a note of its version.

    Both are on disk, so that a later run can resume. total: bytes of the whole file, None if the
    server did not state it. etag, modified: the server's ETag and Last-Modified headers, "" if
    missing.
    """

    file: Path
    url: str
    total: int | None = None
    etag: str = ""
    modified: str = ""

    @classmethod
    def load(cls, url: str, target: Path) -> "PartialFile":
        """Return what an earlier run left of the file at `url`, or else an empty part."""
        part = cls(target.with_name(f"{target.name}.part"), url)
        try:
            values: Any = json.loads(part.note.read_text(encoding="utf-8"))
            part.total = values["total"]
            part.etag = values["etag"]
            part.modified = values["modified"]
            is_same = values["url"] == url
            is_named = type(part.etag) is str and type(part.modified) is str
            is_sized = part.total is None or (type(part.total) is int and part.size <= part.total)
            is_usable = is_same and is_named and is_sized
        except (OSError, ValueError, TypeError, KeyError):
            is_usable = False
        if not is_usable:
            part.forget()
        return part

    @property
    def note(self) -> Path:
        """Return the path of the JSON file that holds the URL and the version."""
        return self.file.with_name(f"{self.file.name}.json")

    @property
    def size(self) -> int:
        """Return the number of bytes received."""
        return self.file.stat().st_size if self.file.exists() else 0

    @property
    def condition(self) -> str:
        """Return the If-Range header, "" if unknown (RFC 9110, 13.1.5).

        With it a server sends the rest of this version, or all of another one.
        """
        is_strong = self.etag.startswith('"')
        return self.etag if is_strong else self.modified

    def begin(self, total: int | None, etag: str, modified: str) -> None:
        """Empty the part and note the version that the server has now."""
        # before the note: the bytes must never belong to another version than the note
        self.file.write_bytes(b"")
        self.total = total
        self.etag = etag
        self.modified = modified
        with atomic_write(self.note) as temporary:
            values = {"url": self.url, "total": total, "etag": etag, "modified": modified}
            temporary.write_text(json.dumps(values), encoding="utf-8")

    def forget(self) -> None:
        """Remove the bytes and the note."""
        self.file.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)
        self.total = None
        self.etag = ""
        self.modified = ""


@dataclass
class _Transfer:
    """Downloads a URL into a part.

    may_resume: resume even if the server does not identify the file's version.
    """

    part: PartialFile
    bar: Any
    limit: int
    stall_s: float
    may_resume: bool

    def complete(self, pauses_s: Sequence[float]) -> bool:
        """Receive the missing bytes; return whether the part was assembled from several responses.

        Raises FaultError for a permanent fault, or after more failures in a row than there are
        pauses.
        """
        part = self.part
        is_file_url = urlsplit(part.url).scheme == "file"
        is_pieced = part.size > 0
        failures = 0  # in a row
        while part.total is None or part.size < part.total:
            before = part.size
            try:
                if is_file_url:
                    self._copy()
                else:
                    self._receive()
                break
            except TemporaryError as error:
                is_pieced = is_pieced or part.size > 0
                has_progress = part.size - before >= PROGRESS_BYTES
                failures = 1 if has_progress else failures + 1

                if failures > len(pauses_s):
                    kept = ""
                    if part.size:
                        kept = f"; {format_bytes(part.size)} are kept for the next run"
                    raise FaultError(
                        f"{error}; gave up after {failures} tries in a row{kept}"
                    ) from error

                pause_s = pauses_s[failures - 1]
                print_lines(f"{error}; trying again in {pause_s:g} s")
                time.sleep(pause_s)
        return is_pieced

    def _copy(self) -> None:
        """Copy the whole file of a file URL."""
        path = Path(url2pathname(urlsplit(self.part.url).path))
        if not path.is_file():  # a device may be endless, a pipe may block
            raise FaultError(f"{path}: there is no such file")
        with open(path, "rb") as stream:
            self._begin(os.fstat(stream.fileno()).st_size, "", "")
            self._append(lambda: stream.read(CHUNK), "this machine")

    def _receive(self) -> None:
        """Send one request; append the response to the part, or replace the part by it."""
        part = self.part
        headers = {"Accept-Encoding": "identity", "User-Agent": "kestrel"}
        if part.size and (part.condition or self.may_resume):
            headers["Range"] = f"bytes={part.size}-"
            if part.condition:
                headers["If-Range"] = part.condition

        with open_response(part.url, headers, self.stall_s) as (response, host):
            if response.status == 200:
                etag = _validator(response, "ETag")
                modified = _validator(response, "Last-Modified")
                self._begin(announced_length(response), etag, modified)
            elif response.status == 206 and "Range" in headers:
                self._resume(response, host)
            else:
                self._refuse(response.status, host)

            def read() -> bytes:
                with network_errors(host, self.stall_s):
                    # the bytes available: waiting for a whole chunk would hide a stall
                    return response.read1(CHUNK)

            self._append(read, host)

    def _begin(self, total: int | None, etag: str, modified: str) -> None:
        """Start over with the version that the server has now."""
        self._require_allowed(total or 0)
        require_free_space(self.part.file.parent, (total or 0) - self.part.size)
        self.part.begin(total, etag, modified)
        self.bar.reset(total)

    def _resume(self, response: HTTPResponse, host: str) -> None:
        """Check that the response continues the same file where the part ends (RFC 9110, 14.4)."""
        part = self.part
        given = RANGE.fullmatch(response.headers.get("Content-Range", ""))
        first, last, total = given.groups() if given else ("", "", "*")

        # What identifies the version has another value than before.
        etag = _validator(response, "ETag")
        modified = _validator(response, "Last-Modified")
        is_changed = bool(part.etag) and etag not in ("", part.etag)
        is_changed |= bool(part.modified) and modified not in ("", part.modified)

        if part.total is None and total != "*":
            part.total = int(total)
        if not given or int(first) != part.size or int(last) < part.size:
            problem = "sent a different part of the file than was requested"
        elif is_changed or total not in ("*", str(part.total)):
            problem = "now has a different file"
        else:
            self._require_allowed(part.total or 0)
            require_free_space(part.file.parent, (part.total or 0) - part.size)
            self.bar.reset(part.total)
            self.bar.update(part.size)
            return
        part.forget()
        raise TemporaryError(f"{host} {problem}")

    def _refuse(self, status: int, host: str) -> None:
        """Raise the error for a response without the file."""
        if status == 416:  # the file is shorter than the part, so it has changed
            self.part.forget()
        kind = TemporaryError if status in TEMPORARY_STATUS else FaultError
        raise kind(f"{host} answered {http_status_text(status)}")

    def _append(self, read: Callable[[], bytes], host: str) -> None:
        """Append all received bytes.

        Raises FaultError for more than announced or allowed, TemporaryError for fewer.
        """
        size = self.part.size
        total = self.part.total
        most = self.limit if total is None else total

        with name_os_errors(self.part.file), open(self.part.file, "ab") as file:
            while chunk := read():
                size += len(chunk)
                if size > most:
                    file.truncate(0)
                    kind = "allowed" if total is None else "announced"
                    raise FaultError(
                        f"{host} sent more than the {kind} {format_bytes(total or self.limit)}"
                    )

                file.write(chunk)
                self.bar.update(len(chunk))

        if total is not None and size < total:
            raise TemporaryError(
                f"{host} closed the connection after {format_bytes(size)} of {format_bytes(total)}"
            )

    def _require_allowed(self, size: int) -> None:
        if size > self.limit:
            raise FaultError(
                f"{DownloadSource(self.part.url)} has {format_bytes(size)}; at most "
                f"{format_bytes(self.limit)} are allowed"
            )


@contextmanager
def open_response(
    url: str, headers: dict[str, str], stall_s: float, *, plain_http: bool = False
) -> Iterator[tuple[HTTPResponse, str]]:
    """Yield the response to a request, after redirects, and the host that sent it.

    url: without a user name, as `check_url` allows it. plain_http: redirects from http to http are
    followed to any host. Raises FaultError, with the host's name, if there is no response, and
    TemporaryError if another try may help.
    """
    for _ in range(MAX_REDIRECTS + 1):
        host = host_of(url)
        with network_errors(host, stall_s):
            response = _opener(url).open(Request(url, headers=headers), timeout=stall_s)  # noqa: S310 - checked above
        with response:
            if response.status not in REDIRECTS:
                yield response, host
                return

            url = _redirected(url, response.headers.get("Location", ""), plain_http)
            if host_of(url) != host:
                headers = dict(headers)
                headers.pop("Authorization", None)
    raise FaultError(f"{host} redirected more than {MAX_REDIRECTS} times")


def authorization(url: str, user: str, password: str, challenges: Sequence[str]) -> str | None:
    """Return the Authorization header that answers a server's challenges; None if unknown.

    user, password: as in an address, percent-encoded. challenges: the WWW-Authenticate headers.
    Digest is preferred, because Basic sends the password itself. Source: RFC 7616 and 7617. Raises
    ValueError for control characters, which could start another header.
    """
    name = unquote(user)
    secret = unquote(password)
    if re.search(r"[\x00-\x1f\x7f]", name + secret):
        raise ValueError("its user name or password has control characters")

    by_scheme = {}
    for challenge in challenges:
        scheme, _, rest = challenge.partition(" ")
        by_scheme[scheme.lower()] = rest

    if "digest" in by_scheme:
        passwords = HTTPPasswordMgrWithDefaultRealm()
        passwords.add_password(None, url, name, secret)
        try:
            pairs = [pair for pair in parse_http_list(by_scheme["digest"]) if pair]
            parameters = parse_keqv_list(pairs)
            answer = AbstractDigestAuthHandler(passwords).get_authorization(
                Request(url),  # noqa: S310
                parameters,
            )
        except (ValueError, IndexError, OSError):
            # a damaged challenge, or an algorithm that is not supported
            answer = None
        if answer:
            return f"Digest {answer}"
    if "basic" in by_scheme:
        return "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()
    return None


def _opener(url: str) -> OpenerDirector:
    """Return an opener for http and https, with the environment's proxies.

    It returns errors and redirects as responses.
    """
    opener = OpenerDirector()
    # to a proxy it would mean the proxy's own machine
    is_local = urlsplit(url).hostname in LOOPBACK
    proxies = ProxyHandler({}) if is_local else ProxyHandler()
    for handler in (proxies, HTTPHandler(), HTTPSHandler()):
        opener.add_handler(handler)
    return opener


def _redirected(url: str, location: str, plain_http: bool = False) -> str:
    """Return the absolute URL that `url` redirects to; FaultError if it is not allowed."""
    host = host_of(url)
    try:
        quoted = quote(location, safe=string.punctuation, encoding="iso-8859-1", errors="replace")
        target = urljoin(url, quoted) if quoted else ""
        check_url(target, plain_http=plain_http and urlsplit(url).scheme == "http")
        before = urlsplit(url).scheme
        after = urlsplit(target).scheme
        if "file" in (before, after) or (before, after) == ("https", "http"):
            raise ValueError(f"{before}:// must not redirect to {after}://")
    except ValueError as error:
        raise FaultError(f"{host} redirected to a URL that is not allowed: {error}") from None
    return target


def http_status_text(status: int) -> str:
    """Return the status code of a response with the phrase of the standard.

    The server's own text is not repeated.

    >>> http_status_text(404), http_status_text(799)
    ('404 Not Found', '799')
    """
    phrase = f" {http.HTTPStatus(status).phrase}" if status in set(http.HTTPStatus) else ""
    return f"{status}{phrase}"


def announced_length(response: HTTPResponse) -> int | None:
    """Return the number of bytes that a response announces, None if it does not."""
    length = response.headers.get("Content-Length", "")
    if response.chunked or not re.fullmatch(r"[0-9]{1,18}", length):
        return None
    return int(length)


def _validator(response: HTTPResponse, name: str) -> str:
    """Return a header that identifies the file's version (RFC 9110, 8.8).

    "" if it is missing or unfit to be sent back unchanged.
    """
    value = response.headers.get(name, "")
    return value if re.fullmatch(r"[ -~]{1,200}", value) else ""


@contextmanager
def network_errors(host: str, stall_s: float) -> Iterator[None]:
    """Turn errors of network calls into FaultError or TemporaryError; they name the host."""
    try:
        yield
    except (OSError, HTTPException, UnicodeError) as error:
        cause: Exception = error
        if isinstance(error, URLError) and isinstance(error.reason, Exception):
            cause = error.reason
        is_permanent = isinstance(cause, (ssl.SSLCertVerificationError, UnicodeError))
        kind = FaultError if is_permanent else TemporaryError
        raise kind(f"{host} {_describe(cause, stall_s)}") from error


def _describe(error: Exception, stall_s: float) -> str:
    """Return the second half of a sentence for an error of the network.

    The server's own text is not repeated.
    """
    if isinstance(error, TimeoutError):
        return f"sent nothing for {stall_s:g} s"
    if isinstance(error, socket.gaierror):
        return "cannot be found: this machine has no network, or the host does not exist"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has an invalid certificate: {error.verify_message}"
    if isinstance(error, ConnectionRefusedError):
        return "refused the connection"
    if isinstance(error, (ConnectionError, IncompleteRead)):
        return "closed the connection"
    if isinstance(error, HTTPException):
        return "sent a response that is not HTTP"

    text = getattr(error, "strerror", None) or str(error)
    first_line = (text.splitlines() or [type(error).__name__])[0]
    return f"cannot be reached: {ascii(first_line)[1:-1][:200]}"
