"""utils/files/download.py against a server that drops connections, stalls and sends wrong data."""

import hashlib
import os
import re
import shutil
import socket

import pytest

from tests.support.scripted_server import Server, file_answer, fixed_answer, raw_answer
from utils.files import download
from utils.files.download import DownloadSource, check_url, fetch, host_of
from utils.terminal import FaultError

DATA = bytes(range(256)) * 400  # 102,400 bytes
DIGEST = hashlib.sha256(DATA).hexdigest()
OTHER_DATA = DATA[::-1]
NO_PAUSES = (0.0, 0.0)


@pytest.fixture
def get(tmp_path):
    """get(server) fetches to tmp_path/a.zip, checks that no other file remains, and returns the
    bytes.
    """

    def run(server: Server, sha256: str = "", path: str = "/a.zip", **options):
        target = tmp_path / "a.zip"
        found = fetch(
            DownloadSource(server.url + path, sha256),
            target,
            **{"pauses_s": NO_PAUSES, "stall_s": 0.3} | options,
        )
        assert os.listdir(tmp_path) == ["a.zip"]
        assert found == hashlib.sha256(target.read_bytes()).hexdigest()
        return target.read_bytes()

    return run


# ---------------------------------------------------------------------- complete downloads


@pytest.mark.parametrize("data", [b"", b"x", DATA])
@pytest.mark.parametrize("headers", [{}, {"ETag": '"1"'}])
def test_downloaded_file_equals_served_file(serve, get, data, headers):
    server = serve(file_answer(data, **headers))
    assert get(server) == data
    assert (
        get(server, sha256=hashlib.sha256(data).hexdigest().upper()) == data
    )  # replaces the old file
    assert [(path, received["Accept-Encoding"]) for path, received in server.received] == [
        ("/a.zip", "identity")
    ] * 2


def test_download_without_content_length(serve, get):
    chunked = (
        b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (DATA[:1000], DATA[1000:]))
        + b"0\r\n\r\n"
    )
    assert (
        get(serve(fixed_answer(200, DATA))) == DATA
    )  # the end of the connection is the end of the file
    assert (
        get(serve(raw_answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked)))
        == DATA
    )
    assert get(serve(fixed_answer(200, DATA, Content_Length="many"))) == DATA


@pytest.mark.parametrize(
    "headers", [{"ETag": '"1"'}, {"Last_Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}]
)
def test_interrupted_download_resumes_with_range_request(serve, get, headers):
    server = serve(
        file_answer(DATA, only=30_000, **headers),
        file_answer(DATA, only=50_000, **headers),
        file_answer(DATA, **headers),
    )
    assert get(server) == DATA
    assert server.ranges == [None, "bytes=30000-", "bytes=80000-"]
    assert [received.get("If-Range") for _, received in server.received] == [
        None,
        *headers.values(),
        *headers.values(),
    ]


def test_weak_etag_is_not_used_for_if_range(serve, get):
    marks = {"ETag": 'W/"1"', "Last_Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
    server = serve(file_answer(DATA, only=9, **marks), file_answer(DATA, **marks))
    assert get(server) == DATA
    assert server.received[1][1]["If-Range"] == marks["Last_Modified"]


def test_download_without_version_header_resumes_only_with_digest(serve, get):
    blind = serve(file_answer(DATA, only=30_000), file_answer(DATA))
    assert get(blind) == DATA
    assert blind.ranges == [None, None]
    checked = serve(file_answer(DATA, only=30_000), file_answer(DATA))
    assert get(checked, sha256=DIGEST) == DATA
    assert checked.ranges == [None, "bytes=30000-"]


def test_later_fetch_resumes_partial_download(serve, get, tmp_path):
    server = serve(file_answer(DATA, only=30_000, ETag='"1"'), fixed_answer(503))
    with pytest.raises(
        FaultError,
        match=r"answered 503 Service Unavailable; gave up after 3 tries in a row; 30.0 kB are kept",
    ):
        get(server)
    assert sorted(os.listdir(tmp_path)) == ["a.zip.part", "a.zip.part.json"]
    server.answers[:] = [file_answer(DATA, ETag='"1"')]
    assert get(server) == DATA
    assert server.ranges[-1] == "bytes=30000-"


@pytest.mark.parametrize(
    "note",
    ["", "{}", "[1]", "not JSON", '{"url": "x", "total": 1, "etag": 2, "modified": null}', None],
)
def test_partial_file_of_unknown_origin_is_discarded(serve, get, tmp_path, note):
    (tmp_path / "a.zip.part").write_bytes(OTHER_DATA[:50_000])
    if note is not None:
        (tmp_path / "a.zip.part.json").write_text(note)
    server = serve(file_answer(DATA, ETag='"1"'))
    assert get(server) == DATA
    assert server.ranges == [None]


def test_download_retries_while_each_try_makes_progress(serve, get, monkeypatch):
    monkeypatch.setattr(download, "PROGRESS_BYTES", 10_000)
    server = serve(file_answer(DATA, only=10_000, ETag='"1"'))
    assert get(server) == DATA  # 11 responses, with 2 pauses
    assert len(server.received) == 11
    with pytest.raises(FaultError, match="gave up after 3 tries"):
        get(serve(file_answer(DATA, only=9_999, ETag='"1"')))


# ---------------------------------------------------------------------- wrong ranges and versions


def test_server_without_range_support_sends_whole_file_again(serve, get):
    server = serve(
        file_answer(DATA, only=30_000, ETag='"1"'),
        fixed_answer(200, DATA, Content_Length=str(len(DATA)), ETag='"1"'),
    )
    assert get(server) == DATA
    assert server.ranges == [None, "bytes=30000-"]


def test_file_changed_during_download_is_fetched_again(serve, get):
    server = serve(file_answer(DATA, only=30_000, ETag='"1"'), file_answer(OTHER_DATA, ETag='"2"'))
    assert get(server) == OTHER_DATA  # If-Range: the server sends all of it


@pytest.mark.parametrize(
    ("given", "headers"),
    [
        ("bytes 0-102399/102400", {"ETag": '"1"'}),  # another part
        ("bytes 30001-102399/102400", {"ETag": '"1"'}),
        ("bytes 30000-29999/102400", {"ETag": '"1"'}),
        ("bytes 30000-102399/102401", {"ETag": '"1"'}),  # of another file
        ("bytes 30000-102399/102400", {"ETag": '"2"'}),
        ("30000-", {"ETag": '"1"'}),
        ("", {}),
    ],
)
def test_wrong_content_range_restarts_download(serve, get, given, headers):
    wrong = fixed_answer(
        206, OTHER_DATA[30_000:], Content_Range=given, Content_Length="72400", **headers
    )
    server = serve(file_answer(DATA, only=30_000, ETag='"1"'), wrong, file_answer(DATA, ETag='"1"'))
    assert get(server) == DATA
    assert server.ranges == [None, "bytes=30000-", None]


def test_file_that_became_shorter_is_fetched_again(serve, get):
    server = serve(
        file_answer(DATA, only=30_000), file_answer(DATA[:20_000])
    )  # 416 for the range: no version header was sent
    assert get(server, sha256=hashlib.sha256(DATA[:20_000]).hexdigest()) == DATA[:20_000]
    assert server.ranges == [None, "bytes=30000-", None]


def test_mixed_file_versions_are_detected_by_digest(serve, get):
    server = serve(file_answer(OTHER_DATA, only=30_000), file_answer(DATA))
    assert get(server, sha256=DIGEST) == DATA
    assert server.ranges == [None, "bytes=30000-", None]


# ---------------------------------------------------------------------- faults


def unterminated_chunk(handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\nabc")


@pytest.mark.parametrize(
    ("answer", "sentence", "tries"),
    [
        (fixed_answer(404), "answered 404 Not Found", 1),
        (fixed_answer(403), "answered 403 Forbidden", 1),
        (fixed_answer(204), "answered 204 No Content", 1),
        (fixed_answer(206, DATA), "answered 206 Partial Content", 1),
        (fixed_answer(799), "answered 799", 1),
        (
            fixed_answer(500),
            "answered 500 Internal Server Error; gave up after 3 tries in a row",
            3,
        ),
        (fixed_answer(429), "answered 429 Too Many Requests; gave up", 3),
        (raw_answer(b""), "closed the connection; gave up", 3),
        (raw_answer(b"SSH-2.0-OpenSSH_9.6\r\n"), "sent a response that is not HTTP; gave up", 3),
        (
            raw_answer(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000 + b"\r\n"),
            "sent a response that is not HTTP; gave up",
            3,
        ),
        (unterminated_chunk, "closed the connection; gave up", 3),
        (
            file_answer(DATA, only=100),
            "closed the connection after 100 bytes of 102 kB; gave up",
            3,
        ),
        (file_answer(DATA, only=100, then="stall"), "sent nothing for 0.3 s; gave up", 3),
        (
            fixed_answer(200, Content_Length=str(2**50)),
            "has 1.13 PB; at most 2.20 TB are allowed",
            1,
        ),
        (
            fixed_answer(302),
            "redirected to a URL that is not allowed: it is not an https:// or file:// URL",
            1,
        ),
        (fixed_answer(302, Location="/a.zip"), "redirected more than 10 times", 1),
        (
            fixed_answer(302, Location="file:///etc/passwd"),
            "not allowed: http:// must not redirect to file://",
            1,
        ),
        (
            fixed_answer(302, Location="ftp://a.org/b"),
            "not allowed: it is not an https:// or file:// URL",
            1,
        ),
        (
            fixed_answer(307, Location="http://a.org/b"),
            "not allowed: http:// can be read and changed",
            1,
        ),
        (
            fixed_answer(308, Location="//a.org/b"),
            "not allowed: http:// can be read and changed",
            1,
        ),
        (
            fixed_answer(303, Location="https://me:secret@a.org/b"),
            "not allowed: it contains a user name",
            1,
        ),
    ],
)
def test_download_errors_are_one_line_and_name_the_host(
    serve, get, tmp_path, answer, sentence, tries
):
    server = serve(answer)
    with pytest.raises(FaultError, match=re.escape(sentence)) as fault:
        get(server)
    text = str(fault.value)
    assert host_of(server.url) in text
    assert "secret" not in text
    assert text.isprintable()
    assert len(server.received) in (tries, 11)
    assert "a.zip" not in os.listdir(tmp_path)


def test_redirects_are_followed(serve, get):
    target = serve(file_answer(DATA))
    server = serve(
        fixed_answer(301, Location="b%20c.zip?d"), fixed_answer(302, Location=target.url + "/e\xe9")
    )
    assert get(server, path="/x/a.zip") == DATA
    assert [path for path, _ in server.received] == ["/x/a.zip", "/x/b%20c.zip?d"]
    assert [path for path, _ in target.received] == ["/e%E9"]


def test_redirect_from_https_to_http_is_refused():
    with pytest.raises(
        FaultError,
        match=r"a\.org redirected to a URL that is not allowed: https:// must not redirect to "
        r"http:",
    ):
        download._redirected("https://a.org/b", "http://127.0.0.1/c")
    assert download._redirected("https://a.org/b/c", "../d") == "https://a.org/d"


def test_download_with_wrong_digest_is_removed(serve, get, tmp_path):
    server = serve(file_answer(OTHER_DATA, ETag='"1"'))
    wrong = hashlib.sha256(OTHER_DATA).hexdigest()
    with pytest.raises(
        FaultError,
        match=rf"the SHA-256 of a.zip from 127\S+ is {wrong}, expected {DIGEST}: .* removed",
    ):
        get(server, sha256=DIGEST)
    assert os.listdir(tmp_path) == []
    assert len(server.received) == 1


def test_excess_response_bytes_are_ignored_or_refused(serve, get, tmp_path):
    """Bytes after the announced length are never read; without a length, or after a range, they are
    counted.
    """
    assert (
        get(serve(fixed_answer(200, DATA + b"more", Content_Length=str(len(DATA)), ETag='"1"')))
        == DATA
    )
    (tmp_path / "a.zip").unlink()
    for answer in (fixed_answer(200, DATA), fixed_answer(200, DATA, Content_Length=str(len(DATA)))):
        with pytest.raises(
            FaultError, match=r"sent more than the allowed 1.00 kB|has 102 kB; at most"
        ):
            get(serve(answer), limit=1000)
    long = fixed_answer(206, DATA, Content_Range="bytes 30000-102399/102400", ETag='"1"')
    with pytest.raises(FaultError, match="sent more than the announced 102 kB"):
        get(serve(file_answer(DATA, only=30_000, ETag='"1"'), long))
    assert (tmp_path / "a.zip.part").stat().st_size == 0


def test_download_requires_free_disk_space(serve, get, monkeypatch):
    monkeypatch.setattr(
        shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10**6, 0, 10**5)
    )
    with pytest.raises(FaultError, match=r"the disk has 100 kB free, but 102 kB are needed"):
        get(serve(file_answer(DATA)))


def test_refused_connection_is_reported(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/a.zip"
        with pytest.raises(
            FaultError,
            match=r"127.0.0.1:\d+ refused the connection; gave up after 1 tries in a row$",
        ):
            fetch(DownloadSource(url), tmp_path / "a.zip", pauses_s=())


def test_proxy_is_not_used_for_localhost(serve, get, tmp_path, monkeypatch):
    proxy = serve(fixed_answer(403))
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, proxy.url)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert get(serve(file_answer(DATA))) == DATA
    assert proxy.received == []
    with pytest.raises(
        FaultError,
        match=r"somewhere\.invalid cannot be reached: Tunnel connection failed: 403 Forbidden",
    ):
        fetch(DownloadSource("https://somewhere.invalid/a.zip"), tmp_path / "b.zip", pauses_s=())
    assert [path for path, _ in proxy.received] == ["somewhere.invalid:443"]


# ---------------------------------------------------------------------- URLs and files


def test_file_urls_are_copied(tmp_path):
    source, target = tmp_path / "a b.zip", tmp_path / "c.zip"
    source.write_bytes(DATA)
    assert fetch(DownloadSource(source.as_uri(), DIGEST), target) == DIGEST
    assert target.read_bytes() == DATA
    for url in (
        (tmp_path / "none").as_uri(),
        tmp_path.as_uri(),
        "file:///dev/zero",
        source.as_uri() + "%00",
    ):
        with pytest.raises(FaultError, match="there is no such file"):
            fetch(DownloadSource(url), target)
    with pytest.raises(FaultError, match=r"the SHA-256 of a%20b\.zip from this machine is"):
        fetch(DownloadSource(source.as_uri(), "0" * 64), target)
    assert target.read_bytes() == DATA


@pytest.mark.parametrize(
    "url",
    [
        "https://a.org",
        "HTTPS://a.org:8443/b?c#d",
        "https://[::1]/a",
        "http://localhost:80/",
        "http://[::1]:1/",
        "file:///a",
    ],
)
def test_allowed_urls_are_accepted(url):
    check_url(url)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "not an https:// or file:// URL"),
        ("bash data/get.sh", "commands and code are never run"),
        ("import os\nos.system('ls')", "commands and code are never run"),
        ("https://a.org/b c", "not an https:// or file:// URL"),
        ("https://a.org/\n", "not an https:// or file:// URL"),
        ("https://a.org/\x1b[31m", "not an https:// or file:// URL"),
        ("https://ä.org/", "not an https:// or file:// URL"),
        ("ftp://a.org/b", "not an https:// or file:// URL"),
        ("data:text/plain,abc", "not an https:// or file:// URL"),
        ("https:a.org", "not an https:// or file:// URL"),
        ("https://", "no valid host name"),
        ("https:///a", "no valid host name"),
        ("https://a..b/", "no valid host name"),
        ("https://a.org\\@b.org/", "no valid host name|a user name"),
        ("https://" + "a" * 64 + "/", "no valid host name"),
        ("https://" + "a-" * 5000 + "!/", "no valid host name"),
        ("https://a.org:x/", "is not a URL"),
        ("https://a.org:99999/", "is not a URL"),
        ("https://[::1/", "is not a URL"),
        ("https://me@a.org/", "user name"),
        ("https://:secret@a.org/", "password"),
        ("http://a.org/", "use https://"),
        ("http://127.0.0.1.a.org/", "use https://"),
        ("http://127.0.0.2/", "use https://"),
        ("file://a.org/b", "full path of a file on this machine"),
        ("file:a", "not an https:// or file:// URL"),
        ("file://localhost", "full path of a file on this machine"),
    ],
)
def test_urls_that_are_not_allowed_are_refused(url, problem, tmp_path):
    with pytest.raises(ValueError, match=problem):
        check_url(url)
    with pytest.raises(ValueError, match=problem):
        fetch(DownloadSource(url), tmp_path / "a")


def test_redirects_of_plain_http_stay_in_plain_http_only_if_it_is_allowed():
    assert (
        download._redirected("http://a.org/b", "http://c.org/d", plain_http=True)
        == "http://c.org/d"
    )
    for url, location, plain_http in (
        ("http://127.0.0.1/b", "http://c.org/d", False),
        ("https://a.org/b", "http://c.org/d", True),
        ("http://a.org/b", "file:///etc/passwd", True),
        ("http://a.org/b", "http://me:secret@c.org/d", True),
    ):
        with pytest.raises(FaultError, match="redirected to a URL that is not allowed"):
            download._redirected(url, location, plain_http)
