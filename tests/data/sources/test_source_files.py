"""Images, videos, folders, lists and patterns as sources of frames."""

import os
from pathlib import Path

import cv2
import pytest

from data.sources import FrameSource, open_source
from data.sources.capture import frames_per_second
from tests.support.clips import frame_number, gray, write_clip
from utils.files.folders import new_run_folder


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two images, two videos and a text file, in two folders."""
    for name, number in (("b.jpg", 3), ("sub/a.png", 5)):
        write_image(tmp_path / name, number)
    write_clip(tmp_path / "clip.mp4", 4)
    write_clip(tmp_path / "sub" / "c.avi", 5, fourcc="MJPG")
    (tmp_path / "notes.csv").write_text("x")
    return tmp_path


def write_image(path: Path, number: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(os.fspath(path.with_suffix(".png")), gray(number))
    os.replace(path.with_suffix(".png"), path)  # a decoder goes by the contents, not by the suffix
    return path


def summary(source: FrameSource) -> list[tuple[str, int | None, int]]:
    """(name, number in the video, number drawn in the pixels) of each frame."""
    return [(frame.name, frame.number, frame_number(frame.image)) for frame in source]


def test_image_is_one_frame(tmp_path, said):
    path = write_image(tmp_path / "a.png", 7)
    source = open_source(str(path), say=said.append)
    (frame,) = source
    assert (frame.path, frame.name, frame.number, frame.fps) == (str(path), "a.png", None, 0.0)
    assert frame.image.shape == (64, 64, 3)
    assert frame_number(frame.image) == 7
    assert (source.total, source.skipped, said) == (1, 0, [])


@pytest.mark.parametrize(
    ("name", "fourcc"),
    [
        ("a.mp4", "mp4v"),
        ("a.MOV", "mp4v"),
        ("a.avi", "MJPG"),
        ("a.mkv", "mp4v"),
        ("a.flv", "FLV1"),
        ("a.wmv", "WMV2"),
    ],
)
def test_video_gives_all_frames_in_order(tmp_path, said, name, fourcc):
    path = write_clip(tmp_path / name, 10, fourcc=fourcc)
    source = open_source(str(path), say=said.append)
    assert summary(source) == [(name, number, number) for number in range(1, 11)]
    assert (source.total, source.skipped, said) == (10, 0, [])


@pytest.mark.parametrize("name", ["a.ts", "a.mpg"])
def test_video_streams_without_frame_count_give_all_frames(tmp_path, said, name):
    """FFmpeg takes the frames of the .ts file, which are 40 ms apart, for 50 fields per second."""
    path = write_clip(tmp_path / name, 30, fourcc="mpg1")
    assert [number for _, number, _ in summary(open_source(str(path), say=said.append))] == list(
        range(1, 31)
    )
    if frames_per_second(cv2.VideoCapture(str(path))) == 25:
        assert said == []
    else:  # frame 30 comes after 29 x 40 = 1160 ms instead of 580
        timing = (
            "its frames do not come at an even rate of 50 per second; an annotated video "
            "shows them so, up to 0.6 s"
        )
        assert said == [f"{path}: {timing} from their time"]


def test_gif_is_a_video(tmp_path, said):
    image = pytest.importorskip("PIL.Image")
    first, *rest = (image.fromarray(gray(10 * number)) for number in (1, 2, 3))
    first.save(tmp_path / "a.gif", save_all=True, append_images=rest, duration=100, loop=0)
    source = open_source(str(tmp_path / "a.gif"), say=said.append)
    assert [(name, number) for name, number, _ in summary(source)] == [
        ("a.gif", 1),
        ("a.gif", 2),
        ("a.gif", 3),
    ]
    assert said == []


@pytest.mark.parametrize(
    ("step", "numbers"),
    [
        (1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (2, [1, 3, 5, 7, 9]),
        (3, [1, 4, 7, 10]),
        (9, [1, 10]),
        (10, [1]),
        (99, [1]),
    ],
)
def test_frame_step_uses_every_nth_frame_from_the_first(tmp_path, said, step, numbers):
    source = open_source(
        str(write_clip(tmp_path / "a.mp4", 10, fps=24)), frame_step=step, say=said.append
    )
    frames = list(source)
    assert (
        [frame.number for frame in frames]
        == [frame_number(frame.image) for frame in frames]
        == numbers
    )
    assert {frame.fps for frame in frames} == {24 / step}
    assert (source.total, said) == (len(numbers), [])


def test_frame_step_does_not_apply_to_images(folder, said):
    source = open_source(str(folder), frame_step=3, say=said.append)
    assert [frame.number for frame in source] == [None, 1, 4, None, 1, 4]
    assert source.total == 2 + 2 + 2  # images; frames 1, 4 of 4; frames 1, 4 of 5


def test_folder_is_read_recursively_in_sorted_order(folder, said):
    source = open_source(str(folder), say=said.append)
    expected = [
        ("b.jpg", None, 3),
        *(("clip.mp4", n, n) for n in range(1, 5)),
        ("sub/a.png", None, 5),
    ]
    expected += [("sub/c.avi", n, n) for n in range(1, 6)]
    assert source.total == len(expected)
    assert summary(source) == expected == summary(source)  # also a second time
    assert said == [f"{folder}: files that are not images or videos, ignored: 1 .csv"]
    assert source.skipped == 0


def test_list_is_relative_to_its_folder_and_names_are_unique(folder, said, monkeypatch):
    write_image(folder / "sub" / "b.jpg", 9)
    (folder / "list.txt").write_text("sub/b.jpg\nb.jpg\nclip.mp4\nmissing.png\nnotes.csv\n")
    monkeypatch.chdir("/")
    source = open_source(str(folder / "list.txt"), say=said.append)
    assert summary(source)[0::4] == [("b.jpg", None, 3), ("clip.mp4", 4, 4)]
    assert summary(source)[-1] == ("b-2.jpg", None, 9)
    assert source.skipped == 2
    assert said == [
        f"{folder}/list.txt line 4: {folder}/missing.png does not exist",
        f"{folder}/list.txt line 5: 'notes.csv' is not the path of an image or video file",
    ]


def test_patterns_match_sorted_files(folder, said):
    assert [name for name, *_ in summary(open_source(f"{folder}/*.jpg", say=said.append))] == [
        "b.jpg"
    ]
    everything = summary(open_source(f"{folder}/**", say=said.append))
    assert list(dict.fromkeys(name for name, *_ in everything)) == [
        "b.jpg",
        "clip.mp4",
        "a.png",
        "c.avi",
    ]
    (folder / "sub" / "loop").symlink_to(folder)
    assert summary(open_source(f"{folder}/**", say=said.append)) == everything
    assert said == []
    with pytest.raises(ValueError, match=r"^no image or video matches .*/\*\.bmp \("):
        open_source(f"{folder}/*.bmp", say=said.append)


def test_existing_folders_of_a_pattern_are_meant_by_their_names(tmp_path, said, monkeypatch):
    for name in ("[examples]/a.jpg", "[examples]/[1]/b.jpg", "e/a.jpg", "x[2]/c.jpg", "x2/d.jpg"):
        write_image(tmp_path / name)
    for pattern, names in (
        ("[examples]/*.jpg", ["a.jpg"]),
        ("[examples]/[1]/*.jpg", ["b.jpg"]),
        ("[examples]/**/*.jpg", ["b.jpg", "a.jpg"]),
        ("[e]/*.jpg", ["a.jpg"]),  # no folder has this name: a pattern, which e matches
        ("x[2]/*.jpg", ["c.jpg"]),
        ("x[2-3]/*.jpg", ["d.jpg"]),
        ("*/*.jpg", ["a.jpg", "a-2.jpg", "d.jpg", "c.jpg"]),
    ):
        assert [
            name for name, *_ in summary(open_source(f"{tmp_path}/{pattern}", say=said.append))
        ] == names
    monkeypatch.chdir(tmp_path)
    assert [name for name, *_ in summary(open_source("[examples]/*.jpg", say=said.append))] == [
        "a.jpg"
    ]


@pytest.mark.parametrize(
    "name", ["[1].jpg", "a*b.png", "ä ö.jpg", "new\nline.png", "%03d.png", " a .jpg", "-.jpg"]
)
def test_odd_file_names_are_taken_literally(tmp_path, said, name):
    write_image(tmp_path / "1.jpg", 2)
    path = write_image(tmp_path / name, 5)
    for text in (str(path), str(tmp_path)):
        frames = {frame.path: frame for frame in open_source(text, say=said.append)}
        assert frame_number(frames[str(path)].image) == 5
        assert frames[str(path)].name == name.replace("\n", "_")
    assert said == []


@pytest.mark.parametrize(
    "name", ["clip%03d.mp4", "file:a.mp4", "concat:a.mp4|b.mp4", "[1].mp4", "ä\n.mp4"]
)
def test_odd_video_names_are_opened_as_files(tmp_path, said, name, monkeypatch):
    for other in ("clip001.mp4", "a.mp4", "1.mp4"):
        write_clip(tmp_path / other, 7)
    write_clip(tmp_path / "plain.mp4", 3).rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert len(list(open_source(name, say=said.append))) == 3


@pytest.mark.skipif(
    os.name != "posix" or os.uname().sysname != "Linux", reason="names that are not UTF-8"
)
def test_undecodable_file_names_work_for_images_and_are_reported_for_videos(tmp_path, said):
    """OpenCV crashes if it is given such a path."""
    for suffix in (".jpg", ".mp4"):
        write_image(tmp_path / "a.jpg", 2).rename(
            os.fsdecode(os.fsencode(tmp_path) + b"/\xff" + suffix.encode())
        )
    source = open_source(str(tmp_path), say=said.append)
    assert summary(source) == [("_.jpg", None, 2)]
    assert said == [
        f"{tmp_path}/\\udcff.mp4 cannot be opened as a video: its name is not UTF-8; rename it; it "
        "is skipped"
    ]


def test_unreadable_files_are_reported_and_skipped(folder, said):
    (folder / "0empty.jpg").touch()
    (folder / "0text.mp4").write_text("no video\n" * 100)
    (folder / "0empty.avi").touch()
    (folder / "0gone.png").symlink_to("nowhere")
    (folder / "0cut.jpg").write_bytes((folder / "b.jpg").read_bytes()[:60])
    source = open_source(str(folder), say=said.append)
    assert len(list(source)) == 11
    assert source.skipped == 5
    assert [text.removeprefix(f"{folder}/") for text in said if ".csv" not in text] == [
        "0gone.png: is not a file, or is a broken symlink",
        "0cut.jpg is damaged, truncated or not an image that OpenCV can decode; it is skipped",
        "0empty.avi is empty; it is skipped",
        "0empty.jpg is empty; it is skipped",
        "0text.mp4 is not a video: it starts like none of the known containers (mp4, avi, mkv "
        "...); it is skipped",
    ]


def test_sources_without_a_readable_file_are_errors(tmp_path, said):
    with pytest.raises(ValueError, match=r" contains no image or video \(\.avif .*\.wmv\)$"):
        open_source(str(tmp_path), say=said.append)
    (tmp_path / "list.txt").touch()
    with pytest.raises(ValueError, match=r"list\.txt contains no image or video"):
        open_source(str(tmp_path / "list.txt"), say=said.append)
    (tmp_path / "a.jpg").touch()
    with pytest.raises(ValueError, match=r"a\.jpg is empty$"):
        list(open_source(str(tmp_path / "a.jpg"), say=said.append))
    assert said == []
    (tmp_path / "b.mp4").touch()
    source = open_source(str(tmp_path), say=said.append)
    assert source.total == 1  # the video has none, the image is not opened to be counted
    with pytest.raises(ValueError, match=f"^{tmp_path}: no image or video could be read$"):
        list(source)
    assert len(said) == source.skipped + 1 == 3  # and the list, which is ignored


@pytest.mark.skipif(os.name != "posix", reason="pipes in the file system")
@pytest.mark.parametrize("name", ["a.mp4", "a.jpg"])
def test_named_pipes_are_not_opened(tmp_path, said, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=f"{name} cannot be read: it is not a regular file$"):
        list(open_source(str(tmp_path / name), say=said.append))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            r"^--source is empty; allowed are an image, a video, a folder, .*, a camera number "
            r"such as 0, or an addre",
        ),
        (
            "none.jpg",
            r"^'none.jpg' does not exist; allowed are .* rtsp://, rtmp://, http://, https://, "
            r"tcp://$",
        ),
        ("a\0b", r"^'a\\x00b' does not exist; allowed are "),
        ("screen", "^--source screen is not supported; record the screen to a video file, or "),
        (
            "file:///a.mp4",
            "^'file:///a.mp4' is not a camera number .*; give the path of a local file without "
            "file://$",
        ),
        ("concat:a|b", "does not exist"),
    ],
)
def test_other_texts_are_errors_that_list_what_is_allowed(text, message, said):
    with pytest.raises(ValueError, match=message):
        open_source(text, say=said.append)


def test_files_of_other_kinds_are_errors(tmp_path, said):
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    with pytest.raises(
        ValueError,
        match=r"a\.pdf is not an image, a video, a \.txt list or a \.streams file \(\.avif",
    ):
        open_source(str(tmp_path / "a.pdf"), say=said.append)
    with pytest.raises(
        ValueError, match=r"^the frame step \(--vid-stride\) is 0, allowed are 1, 2, 3, \.\.\.$"
    ):
        open_source(str(tmp_path), frame_step=0, say=said.append)


def test_close_ends_the_iteration(folder, said):
    with open_source(str(folder), say=said.append) as source:
        frames = iter(source)
        next(frames), next(frames)  # in the middle of a video
        source.close()
        assert list(frames) == []


def test_video_is_released_at_its_end_and_when_abandoned(tmp_path, said):
    """Counted by the open files of this process."""
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc/self/fd")
    path = write_clip(tmp_path / "a.mp4", 5)

    def times_open() -> int:
        links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
        return sum(os.path.realpath(link) == str(path) for link in links)

    source = open_source(str(path), say=said.append)
    assert source.total == 5
    assert times_open() == 0
    frames = iter(source)
    next(frames)
    assert times_open() == 1
    frames.close()
    assert times_open() == 0
    assert len(list(source)) == 5
    assert times_open() == 0


@pytest.mark.parametrize("threads", [1, 3])
def test_number_of_decoding_threads_changes_nothing(tmp_path, said, monkeypatch, threads):
    for number in range(12):
        write_image(tmp_path / f"{number:02d}.png", number)
    (tmp_path / "05b.png").write_bytes(b"?")
    monkeypatch.setattr("data.sources.files.decoding_threads", lambda: threads)
    with open_source(str(tmp_path), say=said.append) as source:
        found = [(frame.name, frame_number(frame.image)) for frame in source]
    assert found == [(f"{number:02d}.png", number) for number in range(12)]
    assert len(said) == source.skipped == 1


# ---------------------------------------------------------------------- run folders


@pytest.fixture
def with_runs(folder: Path) -> Path:
    """The folder with the results of two runs inside: a picture and a video, and a picture."""
    for project in (folder / "runs" / "detect", folder / "sub"):
        write_image(new_run_folder(project, "exp", exist_ok=False) / "b.jpg")
    write_clip(folder / "runs" / "detect" / "exp" / "clip.mp4", 2)
    return folder


@pytest.mark.parametrize(
    ("text", "names", "left_out"),
    [
        (
            ".",
            ["b.jpg", "clip.mp4", "sub/a.png", "sub/c.avi"],
            "3 image or video files left out in 2 run folders",
        ),
        ("**/*.jpg", ["b.jpg"], "2 image or video files left out in 2 run folders"),
        ("*/*/*.*", None, "1 image or video file left out in 1 run folder"),
        ("sub/*/*.jpg", None, "1 image or video file left out in 1 run folder"),
        ("sub", ["a.png", "c.avi"], "1 image or video file left out in 1 run folder"),
        ("runs", None, "2 image or video files left out in 1 run folder"),
        ("*.jpg", ["b.jpg"], ""),
        ("sub/exp", ["b.jpg"], ""),
        ("sub/exp/*.jpg", ["b.jpg"], ""),
        ("runs/detect/exp/**/*.jpg", ["b.jpg"], ""),
        ("runs/detect/exp/b.jpg", ["b.jpg"], ""),
        ("list.txt", ["b.jpg"], ""),
    ],
)
def test_results_of_runs_are_left_out_unless_they_are_named(
    with_runs, said, monkeypatch, text, names, left_out
):
    monkeypatch.chdir(with_runs)
    Path("list.txt").write_text("runs/detect/exp/b.jpg\n")
    if names is None:
        with pytest.raises(ValueError, match=rf"no image or video.*; {left_out}, results of"):
            open_source(text, say=said.append)
        return
    source = open_source(text, say=said.append)
    assert sorted({frame.name for frame in source}) == names
    assert source.skipped == 0
    told = [line for line in said if "run folder" in line]
    assert len(told) == bool(left_out)
    assert left_out in "".join(told)
