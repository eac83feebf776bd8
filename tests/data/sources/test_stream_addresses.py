"""Cameras and addresses: what is allowed, passwords, names, and .streams files."""

import pytest

from data.sources import is_live, open_source
from data.sources.addresses import addresses_in, parse_address


@pytest.mark.parametrize(
    ("text", "shown", "name"),
    [
        ("0", "camera 0", "camera0"),
        ("007", "camera 7", "camera7"),
        ("rtsp://cam/ch1", "rtsp://cam/ch1", "cam-ch1"),
        ("RTSP://cam:554/a.b?x=1", "RTSP://cam:554/a.b?x=1", "cam-554-a-b"),
        ("rtsp://me:pa:s@s@cam/x", "rtsp://me:***@cam/x", "cam-x"),
        ("rtsp://:secret@cam/", "rtsp://:***@cam/", "cam"),
        ("rtsp://me@cam/", "rtsp://me@cam/", "cam"),
        ("http://cam/v?user=me&pwd=abc&res=1", "http://cam/v?user=me&pwd=***&res=1", "cam-v"),
        ("https://h/v.mp4?Access_Token=abc", "https://h/v.mp4?Access_Token=***", "h-v-mp4"),
        ("rtsp://me:s@[::1]:554/../x", "rtsp://me:***@[::1]:554/../x", "1-554-x"),
        ("http://h/" + "a" * 500, "http://h/" + "a" * 500, "h-" + "a" * 98),
    ],
)
def test_addresses_are_shown_without_passwords_and_named(text, shown, name):
    address = parse_address(text)
    assert (address.shown, address.name) == (shown, name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1000", "^there is no camera 1000, the largest number is 999$"),
        ("9" * 5000, r"^there is no camera 9+\.\.\., the largest"),
        (
            "ftp://me:secret@a/b",
            r"^'ftp://me:\*\*\*@a/b' is not a camera number such as 0, or an address that starts ",
        ),
        ("http://", "has no valid host after http://$"),
        ("http://me:secret@/a", r"^'http://me:\*\*\*@/a' has no valid host"),
        ("rtsp://me:se/cr?et@cam/x", r"^'rtsp://me:\*\*\*@cam/x' has no valid host"),
        ("http://a:99999/", "has no valid host"),
        ("http://[::1/", "has no valid host"),
        ("tcp://a", "^'tcp://a' has no valid host, and tcp:// its port, after tcp://$"),
        ("http://a/b c", "has spaces or other characters"),
        ("http://a/\nb", r"^'http://a/\\nb' has spaces"),
        ("http://ä/", "has spaces or other characters"),
    ],
)
def test_bad_addresses_are_errors_without_passwords(text, message):
    with pytest.raises(ValueError, match=message):
        open_source(text, say=print)


def test_streams_file_has_one_address_per_line(tmp_path):
    file = tmp_path / "all.streams"
    file.write_text("\ufeff# cameras\n0\n\n  rtsp://a/x \nhttp://a/x\n", encoding="utf-8")
    assert [(address.text, address.name) for address in addresses_in(str(file))] == [
        ("0", "camera0"),
        ("rtsp://a/x", "a-x"),
        ("http://a/x", "a-x-2"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"a\.streams is empty; a line is a camera number"),
        ("# none\n\n", r"a\.streams is empty"),
        (
            "0\nclip.mp4\n",
            r"a\.streams line 2: 'clip\.mp4' is not a camera number such as 0, or an address",
        ),
        ("rtsp://a:b@c/\nrtsp://a:b@c/", r"a\.streams line 2: rtsp://a:\*\*\*@c/ is listed twice$"),
        ("0\n00", r"a\.streams line 2: camera 0 is listed twice$"),
    ],
)
def test_bad_streams_files_are_errors_with_the_line(tmp_path, text, message):
    (tmp_path / "a.streams").write_text(text)
    with pytest.raises(ValueError, match=message):
        open_source(str(tmp_path / "a.streams"), say=print)


def test_only_cameras_addresses_and_lists_of_them_are_live(tmp_path):
    streams, folder = tmp_path / "cams.streams", tmp_path / "folder.streams"
    streams.write_text("0\n")
    folder.mkdir()
    for text in ("0", "rtsp://cam/1", "http://h/v.mp4", str(streams)):
        assert is_live(text)
    for text in ("", "-", "a.jpg", "missing.streams", str(folder), str(tmp_path)):
        assert not is_live(text)
