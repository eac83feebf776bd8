"""Image files of a folder or a list."""

import os
from pathlib import Path

import pytest

from data.images import find_images, walk_images
from data.report import IMAGE_DROPPED, NOTE, REPEATED_LINES, RUN_FOLDERS
from utils.files.folders import new_run_folder


def test_find_images_searches_subfolders(tmp_path: Path) -> None:
    for name in ("b.JPG", "a.png", "sub/c d.jpeg", "._a.png", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "sub" / "round").symlink_to(tmp_path)
    images, problems = find_images(tmp_path)
    assert images == [str(tmp_path / name) for name in ("a.png", "b.JPG", "sub/c d.jpeg")]
    (problem,) = problems
    assert (problem.kind, problem.where) == (NOTE, str(tmp_path))
    assert problem.reason.startswith("files that are not images, ignored: ")
    assert set(problem.reason.split("ignored: ")[1].split(", ")) == {"1 .txt", "1 .png"}


def test_find_images_sorts_like_paths(tmp_path: Path) -> None:
    names = [
        "a/b.png",
        "a/b/c.png",
        "a.png",
        "a-b/z.png",
        "a b.png",
        "B/1.png",
        "ä.png",
        "a/ä/1.png",
        "10.png",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "list.txt").write_text("\n".join(names), encoding="utf-8")
    expected = list(map(str, sorted(tmp_path / name for name in names)))
    assert find_images(tmp_path).images == find_images(tmp_path / "list.txt").images == expected
    assert expected != sorted(expected)


def test_find_images_in_empty_folder_returns_nothing(tmp_path: Path) -> None:
    assert find_images(tmp_path) == ([], [])


def test_image_list_paths_are_relative_to_the_list(tmp_path: Path) -> None:
    for name in ("lists/../x/a.jpg", "lists/b c.jpg"):
        path = Path(os.path.abspath(tmp_path / name))
        path.parent.mkdir(exist_ok=True)
        path.touch()
    file = tmp_path / "lists" / "train.txt"
    file.write_bytes(b"\xef\xbb\xbf../x/a.jpg\r\n\r\n./b c.jpg  \nb c.jpg\nmissing.jpg\nimages\n")
    images, problems = find_images(file)
    assert images == [str(tmp_path / name) for name in ("lists/b c.jpg", "x/a.jpg")]
    assert [str(p).removeprefix(str(file)) for p in problems] == [
        f" line 5: {tmp_path}/lists/missing.jpg does not exist",
        " line 6: 'images' is not the path of an image file",
        ": 1 line, the first is 4, with an image that is listed before, which counts once",
    ]
    assert [p.kind for p in problems] == [IMAGE_DROPPED, IMAGE_DROPPED, REPEATED_LINES]


def test_single_image_is_a_valid_source(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.touch()
    assert find_images(file) == ([str(file)], [])


def test_invalid_image_sources_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    (tmp_path / "b.txt").write_bytes(b"a.jpg\n\xff\n")
    with pytest.raises(ValueError, match="does not exist"):
        find_images(tmp_path / "none")
    with pytest.raises(ValueError, match=r"a.csv is not a folder"):
        find_images(tmp_path / "a.csv")
    with pytest.raises(ValueError, match=r"b.txt line 2: not UTF-8 text"):
        find_images(tmp_path / "b.txt")


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices in the file system")
def test_pipes_and_devices_are_reported_and_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "endless.jpg").symlink_to("/dev/zero")
    (tmp_path / "broken.jpg").symlink_to("nowhere")
    images, problems = find_images(tmp_path)
    assert images == []
    reason = "is not a file, or is a broken symlink"
    assert sorted(map(str, problems)) == [
        f"{tmp_path}/{n}.jpg: {reason}" for n in ("broken", "endless", "pipe")
    ]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_list_in_utf_16_is_refused_with_the_reason(tmp_path, encoding):
    (tmp_path / "list.txt").write_text("a.jpg\n", encoding=encoding)
    with pytest.raises(
        ValueError, match=r"list\.txt line 1: not UTF-8 text, but UTF-16: save the file as UTF-8$"
    ):
        find_images(tmp_path / "list.txt")


# ---------------------------------------------------------------------- run folders


def draw_files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_run_folders_inside_a_folder_are_left_out_and_counted(tmp_path: Path) -> None:
    draw_files(tmp_path, "a.jpg", "b/c.jpg", "runs/train/images/d.jpg")
    draw_files(
        tmp_path, "runs/detect/exp/a.jpg", "runs/detect/exp/crops/cat/a.jpg"
    )  # from before the mark
    draw_files(
        new_run_folder(tmp_path / "b", "night", exist_ok=False),
        "labels.png",
        "clip.mp4",
        "labels/a.txt",
    )
    inner = new_run_folder(
        tmp_path / "b" / "night" / "again", "x", exist_ok=False
    )  # a project inside a run folder
    draw_files(inner, "a.jpg")

    images, (problem, *others) = find_images(tmp_path)
    assert images == [
        str(tmp_path / name) for name in ("a.jpg", "b/c.jpg", "runs/train/images/d.jpg")
    ]
    assert sorted(walk_images(tmp_path)) == images
    assert (problem.kind, problem.where, others) == (RUN_FOLDERS, str(tmp_path), [])
    what = "4 images left out in 2 run folders, results of train.py, val.py or detect.py, as in "
    assert problem.reason == f"{what}{tmp_path / 'b' / 'night'}"

    # With videos there are five: a.jpg, crops/cat/a.jpg, labels.png, clip.mp4 and the inner a.jpg.
    assert (
        find_images(tmp_path, videos=frozenset({".mp4"}))
        .problems[0]
        .reason.startswith("5 image or video files left out in 2 run ")
    )


def test_run_folder_that_is_named_is_read(tmp_path: Path) -> None:
    run = new_run_folder(tmp_path / "runs" / "detect", "exp", exist_ok=False)
    draw_files(run, "a.jpg", "crops/cat/b.jpg")
    (tmp_path / "list.txt").write_text("runs/detect/exp/a.jpg\n")
    expected = [str(run / "a.jpg"), str(run / "crops/cat/b.jpg")]
    assert find_images(run).images == expected
    assert find_images(run / "crops").images == expected[1:]
    assert find_images(tmp_path / "list.txt") == ([expected[0]], [])
    assert find_images(tmp_path / "runs").images == []


def test_link_into_a_run_folder_is_followed_but_not_a_link_to_the_run_folder(
    tmp_path: Path,
) -> None:
    run = new_run_folder(tmp_path / "elsewhere", "night", exist_ok=False)
    draw_files(run, "a.jpg", "crops/cat/b.jpg")
    photos = tmp_path / "photos"
    draw_files(photos, "c.jpg")
    (photos / "crops").symlink_to(run / "crops")
    (photos / "results").symlink_to(run)

    images, (problem,) = find_images(photos)
    assert images == [str(photos / "c.jpg"), str(photos / "crops/cat/b.jpg")]
    assert problem.kind == RUN_FOLDERS
    assert problem.reason.endswith(f"as in {photos / 'results'}")


def test_run_folders_without_images_are_not_mentioned(tmp_path: Path) -> None:
    draw_files(tmp_path, "a.jpg")
    new_run_folder(tmp_path, "exp", exist_ok=False)
    assert find_images(tmp_path) == ([str(tmp_path / "a.jpg")], [])


def test_photographs_as_heic_are_answered_with_their_conversion(tmp_path: Path) -> None:
    (tmp_path / "a.HEIC").write_bytes(b"x")
    (problem,) = find_images(tmp_path).problems
    assert problem.reason == (
        "files that are not images, ignored: 1 .heic; photographs as .heic are not read: convert "
        "them, as with 'magick mogrify -format jpg *.heic'"
    )


def test_paths_of_another_machine_are_found_without_their_first_folders(tmp_path: Path) -> None:
    for folder in ("images", "more"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.png").write_bytes(b"x")
    lines = ["data/images/a.png", "C:\\sets\\more\\a.png", "../../more/x.png"]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    found = find_images(tmp_path / "list.txt")
    assert found.images == [str(tmp_path / name / "a.png") for name in ("images", "more")]
    assert [problem.reason for problem in found.problems] == [
        f"{tmp_path.parents[1]}/more/x.png does not exist",
        "2 paths found without the first folders, as data/ of CVAT's",
    ]


@pytest.mark.skipif(os.name != "posix", reason="symlinks")
def test_images_have_the_path_of_their_own_folder_also_beside_a_link_to_it(tmp_path: Path) -> None:
    """Labels lie beside it: those of images/train in labels/train, and none in labels/current."""
    draw_files(tmp_path, "images/train/a.jpg", "images/val/b.jpg", "elsewhere/c.jpg")
    (tmp_path / "images" / "current").symlink_to("train")
    (tmp_path / "images" / "more").symlink_to(tmp_path / "elsewhere")
    names = ("more/c.jpg", "train/a.jpg", "val/b.jpg")
    assert find_images(tmp_path / "images").images == [
        str(tmp_path / "images" / name) for name in names
    ]


def test_percent_encoded_lines_of_a_list_are_read(tmp_path: Path) -> None:
    for name in ("my a.jpg", "100%.jpg", "b%20c.jpg"):
        (tmp_path / name).touch()
    file = tmp_path / "list.txt"
    file.write_text("my%20a.jpg\n100%.jpg\nb%20c.jpg\nno%20file.jpg\n%00.jpg\n")
    found = find_images(file)
    assert found.images == [str(tmp_path / name) for name in ("100%.jpg", "b%20c.jpg", "my a.jpg")]
    assert [problem.reason for problem in found.problems] == [
        f"{tmp_path}/no%20file.jpg does not exist",
        f"{tmp_path}/%00.jpg does not exist",
    ]
