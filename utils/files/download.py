"""A file fetched from a URL: resumed when it was interrupted, checked, and put in place whole.

Nothing else of Kestrel asks the network for anything, and nothing calls this without `--download`.
"""

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
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request, url2pathname

from tqdm import tqdm

from utils.files.atomic import atomic_write, name_os_errors
from utils.files.disk import format_bytes, require_free_space
from utils.terminal import FaultError, print_lines

MOST_BYTES = 2**41  # of one file
STALL_S = 30.0  # without a byte
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # after one failure, two, ...; one more is the last
ENOUGH = 2**20  # bytes: a try that receives so many does not count as a failure
CHUNK = 2**20
MOST_REDIRECTS = 10
REDIRECTS = (301, 302, 303, 307, 308)
PASSING = (408, 416, 425, 429, 500, 502, 503, 504)  # temporary answers: another try may succeed
RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII)
LOOPBACK = ("127.0.0.1", "localhost", "::1")  # nobody can listen in between


class PassingError(FaultError):
    """A temporary fault: another try may succeed."""


class Source(NamedTuple):
    """Where a file is, and its SHA-256 in hexadecimal digits, if that is known."""

    url: str
    sha256: str = ""

    def __str__(self) -> str:
        return f"{urlsplit(self.url).path.rpartition('/')[2] or 'a file'} from {host_of(self.url)}"


def host_of(url: str) -> str:
    """The host that a URL names.

    >>> host_of("https://a.org:8443/b.zip"), host_of("file:///b.zip")
    ('a.org:8443', 'this machine')
    """
    return urlsplit(url).netloc or "this machine"


def check_url(url: str) -> None:
    """Raises ValueError, with half a sentence, for anything but an https or file URL.

    http is allowed to this machine itself. A URL with a password is refused, since it would be shown and stored.

    >>> check_url("https://a.org/b.zip")
    >>> check_url("http://a.org/b.zip")
    Traceback (most recent call last):
    ValueError: http:// can be read and changed on the way; use https://
    """
    if not re.match(r"(https?|file)://", url, re.IGNORECASE) or not re.fullmatch(r"[!-~]+", url):
        raise ValueError("it is not an https:// or file:// URL; commands and code are never run")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise ValueError(f"it is not a URL ({error})") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError("it holds a user name or a password, which would be shown and stored")
    if parts.scheme == "file":
        if host not in ("", "localhost") or not parts.path.startswith("/"):
            raise ValueError("a file URL names a file of this machine in full: file:///folder/file.zip")
    elif not re.fullmatch(r"[\w-]{1,63}(\.[\w-]{1,63})*\.?|[0-9a-f]*:[0-9a-f:.]*", host, re.ASCII):
        raise ValueError("it names no host")
    elif parts.scheme == "http" and host not in LOOPBACK:
        raise ValueError("http:// can be read and changed on the way; use https://")


def fetch(
    source: Source,
    target: Path,
    *,
    limit: int = MOST_BYTES,
    stall_s: float = STALL_S,
    pauses_s: Sequence[float] = PAUSES_S,
) -> str:
    """Put the file of `source` in place of `target`, whole, and return its SHA-256.

    What was received lies beside `target` until all is there, also when this process is killed: the next call resumes
    from there if the server still has the same file. One process at a time may fetch to a target.

    Raises ValueError for a URL that is not allowed, FaultError, naming the host, when the file cannot be fetched, is
    larger than `limit` or than the disk, or has another SHA-256, and OSError if the disk is full.
    """
    check_url(source.url)
    part = Part.found(source.url, target)
    for last in (False, True):
        with tqdm(unit="B", unit_scale=True, desc=str(source), disable=None, leave=False) as bar:
            transfer = _Transfer(part, bar, limit, stall_s, may_resume=bool(source.sha256))
            pieced = transfer.complete(pauses_s)
        digest = sha256_of(part.file)
        if digest == (source.sha256.lower() or digest):
            break
        part.forget()
        if last or not pieced:  # pieces may be of two versions of the file, which servers do not always say
            mismatch = f"the SHA-256 of {source} is {digest}, expected {source.sha256.lower()}"
            raise FaultError(f"{mismatch}: it is not the expected file, and was removed")
    with name_os_errors(target), open(part.file, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(part.file, target)
    part.forget()
    return digest


def sha256_of(file: Path) -> str:
    """Hexadecimal digits."""
    digest = hashlib.sha256()
    with open(file, "rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@dataclass
class Part:
    """What was received of a file, and of which version of it. Both lie on disk, so that a later run can resume."""

    file: Path
    url: str
    total: int | None = None  # bytes, if the server says so
    etag: str = ""
    modified: str = ""

    @classmethod
    def found(cls, url: str, target: Path) -> "Part":
        """What an earlier run has left of the file at `url`; an empty part if that cannot be used."""
        part = cls(target.with_name(f"{target.name}.part"), url)
        try:
            values: Any = json.loads(part.note.read_text(encoding="utf-8"))
            part.total, part.etag, part.modified = (values[key] for key in ("total", "etag", "modified"))
            fits = (values["url"], type(part.etag), type(part.modified)) == (url, str, str)
            fits &= part.total is None or (type(part.total) is int and part.size <= part.total)
        except (OSError, ValueError, TypeError, KeyError):
            fits = False
        if not fits:
            part.forget()
        return part

    @property
    def note(self) -> Path:
        return self.file.with_name(f"{self.file.name}.json")

    @property
    def size(self) -> int:
        return self.file.stat().st_size if self.file.exists() else 0

    @property
    def condition(self) -> str:
        """For If-Range: a server sends the rest of this version, or else all (RFC 9110, 13.1.5); "" if unknown."""
        return self.etag if self.etag.startswith('"') else self.modified

    def begin(self, total: int | None, etag: str, modified: str) -> None:
        """Empty the part, for the version that the server has now."""
        self.file.write_bytes(b"")  # before the note: bytes must never lie beside the note of another version
        self.total, self.etag, self.modified = total, etag, modified
        with atomic_write(self.note) as temporary:
            values = {"url": self.url, "total": total, "etag": etag, "modified": modified}
            temporary.write_text(json.dumps(values), encoding="utf-8")

    def forget(self) -> None:
        self.file.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)
        self.total, self.etag, self.modified = None, "", ""


@dataclass
class _Transfer:
    """Receives the bytes of a URL into a part. may_resume: also if the server does not identify the file's version."""

    part: Part
    bar: Any
    limit: int
    stall_s: float
    may_resume: bool

    def complete(self, pauses_s: Sequence[float]) -> bool:
        """Receive what is missing; return whether the part was put together from several answers.

        Raises FaultError when a try fails for good, or when one more fails in a row than there are pauses.
        """
        part, failures, pieced = self.part, 0, self.part.size > 0
        while part.total is None or part.size < part.total:
            before = part.size
            try:
                (self._copy if urlsplit(part.url).scheme == "file" else self._receive)()
                break
            except PassingError as error:
                pieced = pieced or part.size > 0
                failures = 1 if part.size - before >= ENOUGH else failures + 1
                if failures > len(pauses_s):
                    kept = f"; {format_bytes(part.size)} of it are kept, to resume from" if part.size else ""
                    raise FaultError(f"{error}; gave up after {failures} tries in a row{kept}") from error
                print_lines(f"{error}; trying again in {pauses_s[failures - 1]:g} s")
                time.sleep(pauses_s[failures - 1])
        return pieced

    def _copy(self) -> None:
        """All of the file of a file URL."""
        path = Path(url2pathname(urlsplit(self.part.url).path))
        if not path.is_file():  # a device may never end, a pipe may block
            raise FaultError(f"{path}: there is no such file")
        with open(path, "rb") as stream:
            self._begin(os.fstat(stream.fileno()).st_size, "", "")
            self._append(lambda: stream.read(CHUNK), "this machine")

    def _receive(self) -> None:
        """One request; its answer is appended to the part, or replaces it."""
        part, size = self.part, self.part.size
        headers = {"Accept-Encoding": "identity", "User-Agent": "kestrel"}
        if size and (part.condition or self.may_resume):
            headers |= {"Range": f"bytes={size}-"} | ({"If-Range": part.condition} if part.condition else {})
        with _answer(part.url, headers, self.stall_s) as (answer, host):
            if answer.status == 200:
                self._begin(_length(answer), _mark(answer, "ETag"), _mark(answer, "Last-Modified"))
            elif answer.status == 206 and "Range" in headers:
                self._resume(answer, host)
            else:
                self._refuse(answer.status, host)

            def read() -> bytes:
                with _network(host, self.stall_s):
                    return answer.read1(CHUNK)  # what there is: a wait for a whole chunk would hide a stall

            self._append(read, host)

    def _begin(self, total: int | None, etag: str, modified: str) -> None:
        """Start over, with the version that the server has now."""
        self._require_allowed(total or 0)
        require_free_space(self.part.file.parent, (total or 0) - self.part.size)
        self.part.begin(total, etag, modified)
        self.bar.reset(total)

    def _resume(self, answer: HTTPResponse, host: str) -> None:
        """Check that the answer continues where the part ends, with the same file (RFC 9110, 14.4)."""
        part = self.part
        given = RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        first, last, total = given.groups() if given else ("", "", "*")
        known = ((part.etag, "ETag"), (part.modified, "Last-Modified"))
        changed = [name for value, name in known if value and _mark(answer, name) not in ("", value)]
        if part.total is None and total != "*":
            part.total = int(total)
        if not given or int(first) != part.size or int(last) < part.size:
            problem = "answers with another part of the file than was requested"
        elif changed or total not in ("*", str(part.total)):
            problem = "has a different file now"
        else:
            self._require_allowed(part.total or 0)
            require_free_space(part.file.parent, (part.total or 0) - part.size)
            self.bar.reset(part.total)
            self.bar.update(part.size)
            return
        part.forget()
        raise PassingError(f"{host} {problem}")

    def _refuse(self, status: int, host: str) -> None:
        """Raises the error for an answer without the file."""
        if status == 416:  # the file is shorter than the part: it has changed
            self.part.forget()
        phrase = f" {http.HTTPStatus(status).phrase}" if status in set(http.HTTPStatus) else ""
        raise (PassingError if status in PASSING else FaultError)(f"{host} answers {status}{phrase}")

    def _append(self, read: Callable[[], bytes], host: str) -> None:
        """Append all that is received. Raises FaultError for more than announced or allowed, PassingError for less."""
        size, total = self.part.size, self.part.total
        with name_os_errors(self.part.file), open(self.part.file, "ab") as file:
            while chunk := read():
                size += len(chunk)
                if size > (self.limit if total is None else total):
                    file.truncate(0)
                    whose = "is fetched at most" if total is None else "it announced"
                    raise FaultError(f"{host} sends more than the {format_bytes(total or self.limit)} that {whose}")
                file.write(chunk)
                self.bar.update(len(chunk))
        if total is not None and size < total:
            raise PassingError(f"{host} cut the connection after {format_bytes(size)} of {format_bytes(total)}")

    def _require_allowed(self, size: int) -> None:
        if size > self.limit:
            raise FaultError(
                f"{Source(self.part.url)} has {format_bytes(size)}; at most {format_bytes(self.limit)} are fetched"
            )


@contextmanager
def _answer(url: str, headers: dict[str, str], stall_s: float) -> Iterator[tuple[HTTPResponse, str]]:
    """The answer to a request, redirects followed, and the host that gave it."""
    for _ in range(MOST_REDIRECTS + 1):
        host = host_of(url)
        with _network(host, stall_s):
            answer = _opener(url).open(Request(url, headers=headers), timeout=stall_s)  # noqa: S310 - checked above
        with answer:
            if answer.status not in REDIRECTS:
                yield answer, host
                return
            url = _redirected(url, answer.headers.get("Location", ""))
    raise FaultError(f"{host} redirects more than {MOST_REDIRECTS} times")


def _opener(url: str) -> OpenerDirector:
    """Sends requests: http and https only, through the environment's proxies; errors and redirects are answers."""
    opener = OpenerDirector()
    own = urlsplit(url).hostname in LOOPBACK  # which would mean the proxy's own machine to a proxy
    for handler in (ProxyHandler({} if own else None), HTTPHandler(), HTTPSHandler()):
        opener.add_handler(handler)
    return opener


def _redirected(url: str, location: str) -> str:
    """The absolute URL that `url` redirects to. Raises FaultError if it is not allowed."""
    host = host_of(url)
    try:
        named = quote(location, safe=string.punctuation, encoding="iso-8859-1", errors="replace")
        goal = urljoin(url, named) if named else ""
        check_url(goal)
        kinds = urlsplit(url).scheme, urlsplit(goal).scheme
        if "file" in kinds or kinds == ("https", "http"):
            raise ValueError(f"{kinds[0]}:// must not lead to {kinds[1]}://")
    except ValueError as error:
        raise FaultError(f"{host} redirects to a URL that is not allowed: {error}") from None
    return goal


def _length(answer: HTTPResponse) -> int | None:
    """The bytes that an answer announces, if it does."""
    length = answer.headers.get("Content-Length", "")
    return int(length) if re.fullmatch(r"[0-9]{1,18}", length) and not answer.chunked else None


def _mark(answer: HTTPResponse, name: str) -> str:
    """A header that identifies a version of a file, if it can be sent back unchanged."""
    value = answer.headers.get(name, "")
    return value if re.fullmatch(r"[ -~]{1,200}", value) else ""


@contextmanager
def _network(host: str, stall_s: float) -> Iterator[None]:
    """Turns what the network raises into a sentence that names the host."""
    try:
        yield
    except (OSError, HTTPException, UnicodeError) as error:
        cause = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
        kind = FaultError if isinstance(cause, (ssl.SSLCertVerificationError, UnicodeError)) else PassingError
        raise kind(f"{host} {_in_words(cause, stall_s)}") from error


def _in_words(error: Exception, stall_s: float) -> str:
    """What happened, in words; the server's own text is not repeated."""
    if isinstance(error, TimeoutError):
        return f"sent nothing for {stall_s:g} s"
    if isinstance(error, socket.gaierror):
        return "is not found: there is no network here, or no such host"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has a certificate that is not valid: {error.verify_message}"
    if isinstance(error, ConnectionRefusedError):
        return "refuses the connection"
    if isinstance(error, (ConnectionError, IncompleteRead)):
        return "cut the connection"
    if isinstance(error, HTTPException):
        return "gives an answer that is not HTTP"
    text = (getattr(error, "strerror", None) or str(error)).splitlines() or [type(error).__name__]
    return f"cannot be reached: {ascii(text[0])[1:-1][:200]}"
