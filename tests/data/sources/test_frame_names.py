"""Names of frames: unique."""

import os

from data.sources.names import FrameNames, path_below


def test_names_are_numbered_in_order_and_stay_the_same():
    names = FrameNames()
    given = [names.name(f"/{folder}/a.jpg", "a.jpg") for folder in "xyz"]
    assert given == ["a.jpg", "a-2.jpg", "a-3.jpg"]
    assert [names.name(f"/{folder}/a.jpg", "a.jpg") for folder in "xyz"] == given
    assert names.name("/q/a-2.jpg", "a-2.jpg") == "a-2-2.jpg"
    assert names.name("/q/sub/a.jpg", "sub/a.jpg") == "sub/a.jpg"


def test_names_differ_in_more_than_case():
    names = FrameNames()
    wanted = ["a.jpg", "a.png", "A.jpg", "a.mp4", "a-2.jpg", "b.tar.gz", "ß.jpg", "SS.jpg"]
    given = [names.name(f"/{number}", name) for number, name in enumerate(wanted)]
    assert given == [
        "a.jpg",
        "a.png",
        "A-2.jpg",
        "a.mp4",
        "a-2-2.jpg",
        "b.tar.gz",
        "ß.jpg",
        "SS-2.jpg",
    ]


def test_many_equal_names_take_no_quadratic_time():
    names = FrameNames()
    assert (
        len({names.name(f"/{number}/frame.jpg", "frame.jpg") for number in range(20_000)}) == 20_000
    )


def test_path_below_a_folder():
    assert path_below(os.path.join("/a", "b", "c d.jpg"), "/a") == "b/c d.jpg"
    assert path_below("/a/b.jpg", "/") == "a/b.jpg"
