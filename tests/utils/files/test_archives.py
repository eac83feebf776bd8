"""utils/files/archives.py: valid archives are unpacked correctly, hostile ones are refused before
the first write.
"""

import bz2
import gzip
import lzma
import os
import re
import stat
import tarfile
import zipfile

import numpy as np
import pytest

from tests.support.packing import make_tar, make_zip
from utils.files import archives
from utils.files.archives import ArchiveError, Limits, paths_in, safe_path, unpack
from utils.terminal import FaultError

FILES = {
    "images/a.jpg": b"\xff\xd8" * 3000,
    "images/sub/b.png": b"",
    "labels/a.txt": b"0 0.5 0.5 1 1\n",
}
PACKERS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
KINDS = ["zip", *(f"tar{suffix}" for suffix in PACKERS)]


def packed(kind: str, files: dict[str, bytes]) -> bytes:
    return make_zip(files) if kind == "zip" else PACKERS[kind.removeprefix("tar")](make_tar(files))


@pytest.fixture
def unpacked(tmp_path):
    """unpacked(data) unpacks an archive of these bytes and returns {path: content}; no other file
    is written.
    """

    def run(data: bytes, **options) -> dict[str, bytes]:
        archive, folder = tmp_path / "archive", tmp_path / "deep" / "down" / "here"
        archive.write_bytes(data)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            unpack(archive, folder, **options)
        finally:
            outside = [
                path
                for path in tmp_path.rglob("*")
                if not path.is_dir() and folder not in path.parents
            ]
            assert outside == [archive]
        return {
            str(p.relative_to(folder)): p.read_bytes()
            for p in sorted(folder.rglob("*"))
            if p.is_file()
        }

    return run


@pytest.fixture
def refused(unpacked, tmp_path):
    """refused(data, sentence) checks that an archive is refused with this error and that no file is
    written.
    """

    def run(data: bytes, sentence: str, **options) -> None:
        with pytest.raises(ArchiveError, match=re.escape(sentence)) as error:
            unpacked(data, **options)
        assert str(error.value).isprintable()
        assert [path for path in (tmp_path / "deep").rglob("*") if not path.is_dir()] == []

    return run


# ---------------------------------------------------------------------- valid archives


@pytest.mark.parametrize("kind", KINDS)
def test_unpacked_files_equal_packed_files(unpacked, kind):
    assert unpacked(packed(kind, FILES)) == FILES


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_compression_methods_are_supported(unpacked, method):
    assert unpacked(make_zip(FILES, method=method)) == FILES


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_formats_are_supported(unpacked, form):
    files = (
        {"images/" + "long" * 40 + "/" + "é" * 50 + ".jpg": b"x"}
        if form != tarfile.USTAR_FORMAT
        else FILES
    )
    assert unpacked(make_tar(files, form=form)) == files


def test_paths_are_normalized_and_unwanted_files_skipped(unpacked):
    data = make_tar(
        {"./images/a.jpg": b"1", "images//b.jpg": b"2", "./run.py": b"3", "__MACOSX/._a.jpg": b"4"}
    )
    assert unpacked(data, wanted=lambda path: path[-1][0] in "ab") == {
        "images/a.jpg": b"1",
        "images/b.jpg": b"2",
    }


def test_backslashes_in_a_zip_are_folders(unpacked):
    assert unpacked(make_zip({"images\\sub\\": b"", "images\\sub\\a.jpg": b"1"})) == {
        "images/sub/a.jpg": b"1"
    }


@pytest.mark.parametrize(
    ("start", "kind"), [(b"7z\xbc\xaf\x27\x1c", "7z"), (b"Rar!\x1a\x07\1\0", "RAR")]
)
def test_other_archives_are_called_by_their_names(refused, start, kind):
    sentence = f"it is a {kind} archive; zip and tar are read: unpack it"
    refused(start.ljust(1000, b"\0"), sentence)


def test_paths_in_an_archive(tmp_path):
    for data in (make_zip(FILES), make_tar(FILES)):
        (tmp_path / "a").write_bytes(data)
        assert paths_in(tmp_path / "a") == [tuple(name.split("/")) for name in FILES]
    (tmp_path / "a").write_bytes(make_zip({}))
    assert paths_in(tmp_path / "a") == []


def test_skipped_files_are_counted_by_suffix(tmp_path):
    (tmp_path / "a").write_bytes(make_zip({"a.jpg": b"", "b.py": b"", "c.py": b"", "LICENSE": b""}))
    (tmp_path / "out").mkdir()
    assert unpack(tmp_path / "a", tmp_path / "out", wanted=lambda path: path[-1] == "a.jpg") == {
        ".py": 2,
        "": 1,
    }


def test_single_top_folder_is_removed_from_paths(unpacked, tmp_path):
    assert unpacked(make_zip({"set/a.txt": b"1", "set/b/c.txt": b"2"}), top="set") == {
        "a.txt": b"1",
        "b/c.txt": b"2",
    }
    for files in ({"set/a.txt": b"3", "other/b.txt": b"4"}, {"set": b"5"}):
        clear(unpacked)
        assert unpacked(make_zip(files), top="set") == files


def test_unpacked_files_get_default_permissions_and_owner(unpacked, tmp_path):
    def prepare(info):
        if isinstance(info, tarfile.TarInfo):
            info.mode, info.uid, info.gid = 0o6777, 12345, 12345
        else:
            info.external_attr = (stat.S_IFREG | 0o6777) << 16

    plain = tmp_path / "plain"
    plain.touch()
    for data in (
        make_zip({"a.jpg": b"1"}, prepare=prepare),
        make_tar({"b.jpg": b"2"}, prepare=prepare),
    ):
        plain.unlink(missing_ok=True)
        unpacked(data)
    plain.touch()
    written = [path.stat() for path in sorted((tmp_path / "deep").rglob("*.jpg"))]
    assert [(s.st_mode, s.st_uid) for s in written] == [
        (plain.stat().st_mode, plain.stat().st_uid)
    ] * 2


def test_safe_path_splits_valid_names():
    assert safe_path("./") == () == safe_path(".")
    assert safe_path("a/./b//c") == ("a", "b", "c")
    assert safe_path("a..b/...c") == ("a..b", "...c")
    assert safe_path("12:30.jpg") == ("12:30.jpg",)


# ---------------------------------------------------------------------- hostile names and kinds


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("/etc/x.txt", "is an absolute path"),
        ("//host/x.txt", "is an absolute path"),
        ("../x.txt", "'../x.txt' leads out of its folder"),
        ("a/../../x.txt", "leads out of its folder"),
        ("a/..", "leads out of its folder"),
        ("C:/x.txt", "names a drive"),
        ("a/c:x.txt", "names a drive"),
        ("a\nb.txt", "control character"),
        ("a\x1b[2J.txt", "'a\\x1b[2J.txt' contains a backslash or a control character"),
        ("a" * 256, "is too long: at most 255 bytes per name"),
        ("é" * 128, "is too long"),
        ("a/" * 600 + "b", "is too long"),
        ("a/" * 40 + "b", "is too long"),
    ],
)
def test_unsafe_archive_names_are_refused(refused, name, sentence):
    for pack in (make_zip, make_tar):
        refused(pack({"images/a.jpg": b"1", name: b"2"}), sentence)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("..\\x.txt", "leads out of its folder"),
        ("a\\..\\..\\x.txt", "leads out of its folder"),
        ("\\\\host\\x.txt", "is an absolute path"),
        ("C:\\x.txt", "names a drive"),
        ("images\\a.jpg", "appears twice"),
    ],
)
def test_unsafe_names_with_backslashes_are_refused(refused, name, sentence):
    refused(make_zip({"images/a.jpg": b"1", name: b"2"}), sentence)
    refused(make_tar({"images/a.jpg": b"1", name: b"2"}), "contains a backslash")


def test_nul_in_zip_name_is_refused(refused):
    """zipfile itself would cut the name at the NUL: a.txt\\0.jpg."""
    data = make_zip({"images/a.txt#.jpg": b"1"}).replace(b"a.txt#.jpg", b"a.txt\0.jpg")
    refused(data, "'images/a.txt\\x00.jpg' contains a backslash or a control character")


@pytest.mark.parametrize(
    "name", ["con.txt", "NUL", "a/aux", "com1.jpg", "ab:c.txt", "a?", "a. ", "dir./b"]
)
def test_invalid_windows_names_are_refused_on_windows(monkeypatch, name):
    assert safe_path(name)
    monkeypatch.setattr(archives.os, "name", "nt")
    with pytest.raises(ArchiveError, match="is not a valid file name on Windows"):
        safe_path(name)


def test_empty_archive_name_is_refused():
    with pytest.raises(ArchiveError, match="'' is empty"):
        safe_path("")


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (tarfile.SYMTYPE, "link"),
        (tarfile.LNKTYPE, "link"),
        (tarfile.CHRTYPE, "device, pipe, sparse or other special file"),
        (tarfile.BLKTYPE, "device, pipe, sparse or other special file"),
        (tarfile.FIFOTYPE, "device, pipe, sparse or other special file"),
        (tarfile.CONTTYPE, "device, pipe, sparse or other special file"),
        (b"Z", "device, pipe, sparse or other special file"),
    ],
)
@pytest.mark.parametrize("goal", ["/etc/passwd", "a.jpg"])
def test_links_and_special_files_in_tar_are_refused(refused, kind, word, goal):
    def prepare(info):
        if info.name == "images/x":
            info.type, info.linkname, info.size = kind, goal, 0

    refused(
        make_tar({"images/a.jpg": b"1", "images/x": b""}, prepare=prepare),
        f"'images/x' is a {word}",
    )


def test_sparse_file_in_tar_is_refused(refused):
    sparse = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "x",
        "GNU.sparse.realsize": "9999",
    }

    def prepare(info):
        info.pax_headers = sparse

    refused(
        make_tar({"x": b"1\n0\n1\n".ljust(512, b"\0") + b"a"}, prepare=prepare),
        "sparse or other special file",
    )


@pytest.mark.parametrize(
    ("kind", "word"),
    [(stat.S_IFLNK, "link"), (stat.S_IFIFO, "device or pipe"), (stat.S_IFCHR, "device or pipe")],
)
def test_links_and_special_files_in_zip_are_refused(refused, kind, word):
    def prepare(info):
        info.external_attr = (kind | 0o777) << 16

    refused(make_zip({"x": b"/etc/passwd"}, prepare=prepare), f"'x' is a {word}")


def test_encrypted_zip_is_refused(refused):
    data = bytearray(make_zip({"a.jpg": b"1"}))
    data[6] |= 1  # in the file's own header, and in the list at the end
    data[data.index(b"PK\1\2") + 8] |= 1
    refused(bytes(data), "'a.jpg' is encrypted")


@pytest.mark.parametrize("pack", [make_zip, make_tar])
@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["a.jpg", "./a.jpg"], "'./a.jpg' appears twice"),
        (["a.jpg", "A.JPG"], "'A.JPG' appears twice (upper and lower case count as the same)"),
        (["é.jpg", "e\u0301.jpg"], "appears twice"),
        (["Images/straße.jpg", "images/STRASSE.jpg"], "appears twice"),
        (["a", "a/b.jpg"], "'a' is both a file and a folder"),
        (["A/b/c.jpg", "a/B"], "'a/b' is both a file and a folder"),
        (["a.jpg", "."], "'.' appears twice"),
    ],
)
def test_colliding_archive_names_are_refused(refused, pack, names, sentence):
    refused(pack(dict.fromkeys(names, b"x")), sentence)


# ---------------------------------------------------------------------- bombs


@pytest.mark.parametrize("kind", KINDS)
def test_archives_above_limits_are_refused(refused, kind):
    data = packed(kind, {f"{i}.txt": bytes(10_000) for i in range(10)})
    refused(data, "it contains more than 9 files and folders", limits=Limits(entries=9))
    refused(data, "would unpack to more than 100 kB", limits=Limits(size=99_999))
    if kind != "tar":
        refused(
            data, "would unpack to more than 50.0 kB", limits=Limits(ratio=1, size_always=50_000)
        )


@pytest.mark.parametrize("kind", KINDS)
def test_archives_at_limits_are_accepted(unpacked, kind):
    files = {f"{i}.txt": bytes(10_000) for i in range(10)}
    assert unpacked(packed(kind, files), limits=Limits(entries=10, size=100_000)) == files


def test_tar_announcing_too_much_is_refused_at_its_header(refused):
    header = tarfile.TarInfo("a.jpg")
    header.size = 2**45
    refused(gzip.compress(header.tobuf(tarfile.GNU_FORMAT)), "would unpack to more than 1.07 GB")


def test_zip_with_more_data_than_stated_is_refused(unpacked, refused, tmp_path):
    """The list at the end states 10 bytes instead of 10,000."""
    data = make_zip({"a.jpg": bytes(10_000)})
    at = data.index(b"PK\1\2") + 24
    with pytest.raises(ArchiveError, match="damaged or truncated"):
        unpacked(data[:at] + (10).to_bytes(4, "little") + data[at + 4 :])
    assert sum(path.stat().st_size for path in (tmp_path / "deep").rglob("*.jpg")) <= 10


def test_zip_with_less_data_than_stated_is_refused(unpacked):
    data = make_zip({"a.jpg": bytes(10)})
    at = data.index(b"PK\1\2") + 24
    with pytest.raises(
        ArchiveError, match=r"does not have the size that the archive states|damaged or truncated"
    ):
        unpacked(data[:at] + (1000).to_bytes(4, "little") + data[at + 4 :])


def test_huge_tar_header_is_refused(refused):
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 2**40
    refused(gzip.compress(info.tobuf(tarfile.GNU_FORMAT)), "it has a header of more than 4.19 MB")


def test_endless_tar_headers_are_refused(refused):
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 9
    refused(
        gzip.compress((info.tobuf(tarfile.GNU_FORMAT) + b"9 a=b\n".ljust(512, b"\0")) * 5000),
        "damaged",
    )


def test_unpack_requires_free_space_for_total_size(unpacked, monkeypatch):
    monkeypatch.setattr(
        archives,
        "require_free_space",
        lambda folder, size: (_ for _ in ()).throw(FaultError(f"{size}")),
    )
    with pytest.raises(FaultError, match=r"^6014$"):  # 2 * 3000 + 0 + 14
        unpacked(make_zip(FILES))


# ---------------------------------------------------------------------- damage


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_archive_is_refused(unpacked, kind):
    data = packed(kind, {name: os.urandom(700) for name in FILES})
    for length in [*range(0, len(data) - 1, 97), len(data) - 1]:
        if kind == "tar" and length >= 3 * (512 + 1024) + 512:
            break  # the end mark is complete: only padding is cut off
        with pytest.raises(ArchiveError):
            unpacked(data[:length])
        clear(unpacked)


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind != "tar"]
)  # a tar has no checksum of file contents
def test_changed_archive_byte_is_refused_or_harmless(unpacked, kind):
    random = np.random.default_rng(0)
    data = packed(kind, FILES)
    for _ in range(60):
        changed = bytearray(data)
        changed[int(random.integers(len(data)))] ^= int(random.integers(1, 256))
        try:
            found = unpacked(bytes(changed))
        except ArchiveError:
            pass
        else:
            assert sorted(found.values()) == sorted(FILES.values())
        clear(unpacked)


def clear(unpacked) -> None:
    """Empty the folder that `unpacked` unpacks to."""
    folder = unpacked.__closure__[0].cell_contents / "deep"
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize("at", [512 + 1024, 2 * 512 + 2 * 1024])
def test_damaged_tar_header_is_refused(refused, at):
    """tarfile treats it as the end, and the files after it would be missing."""
    data = bytearray(make_tar({name: bytes(1000) for name in "abcd"}))
    data[at + 10] ^= 1
    refused(bytes(data), "it is truncated, or one of its headers is damaged")


def test_data_after_end_of_tar_is_refused(refused):
    data = make_tar({"a": b"1"})
    refused(data + make_tar({"b": b"2"}), "it has data after its end")
    refused(gzip.compress(data) + gzip.compress(bytes(2**23)), "it has data after its end")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"<html>404</html>" * 100,
        b"PK\3\4",
        b"\x1f\x8b",
        b"7z" + bytes(99),
    ],
)
def test_files_that_are_not_archives_are_refused(unpacked, data):
    with pytest.raises(ArchiveError, match=r"is not a zip or tar|is damaged or truncated"):
        unpacked(data)


@pytest.mark.parametrize("data", [make_zip({}), make_tar({}), make_zip({"a/": b""}), bytes(10_240)])
def test_archive_without_wanted_files_is_refused(refused, data):
    refused(data, "it contains no wanted file")


@pytest.mark.slow
def test_zip64_with_65536_files_is_counted_and_unpacked(unpacked):
    """A zip states a count of 65,535 or more in another record (zip64)."""
    data = make_zip({f"{i}.txt": b"" for i in range(65_536)})
    with pytest.raises(ArchiveError, match="it contains more than 65,535 files"):
        unpacked(data, limits=Limits(entries=65_535))
    assert unpacked(data, wanted=lambda path: path == ("9.txt",)) == {"9.txt": b""}


def test_file_of_another_archive_is_not_overwritten(unpacked, tmp_path):
    unpacked(make_zip({"a.jpg": b"1"}))
    for files in ({"a.jpg": b"2"}, {"a.jpg/b.jpg": b"2"}):
        with pytest.raises(
            ArchiveError, match="it contains a file that another archive also contains"
        ):
            unpacked(make_zip(files))
    assert (tmp_path / "deep/down/here/a.jpg").read_bytes() == b"1"


def test_disk_error_is_not_reported_as_archive_damage(unpacked, monkeypatch):
    def disk_full(entry, target):
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(archives, "_write", disk_full)
    with pytest.raises(OSError, match="No space left"):
        unpacked(make_zip(FILES))
