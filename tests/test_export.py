"""export.py: its flags, the files beside the checkpoint, val.py on them, errors, a killed
export.
"""

import json
import os
import re
import signal
import sys
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch

import detect
import export
import val
from models.export import FORMATS
from models.export.compare import ReferenceBackend
from models.export.writer import Writer
from models.loading import load_backend
from tests.support.convolutions import images_convolved_alone
from tests.support.exporting import (
    DYNAMIC,
    FIXED,
    WITH_NMS,
    installed,
    lively_detector,
    micro_table,
    save_checkpoint,
)
from tests.support.no_float64 import DEVICE, NoFloat64
from tests.support.own_process import run_program
from tests.support.unfolded import batch_norm_not_folded
from training import evaluation
from utils.distributed import precision
from utils.distributed.world import World
from utils.terminal import FaultError, exit_code_of

CPU = World(torch.device("cpu"))


@pytest.fixture(scope="module")
def detector(micro_model):
    return lively_detector(micro_model)


@pytest.fixture
def weights(detector, tmp_path, tiny_data):
    return save_checkpoint(tmp_path / "m.pt", detector, data=str(tiny_data))


@pytest.fixture
def run(weights, tmp_path):
    """run("--nms", ...) exports the checkpoint."""
    return lambda *flags: export.run_script(
        ["--weights", str(weights), "--cache-dir", str(tmp_path / "cache"), *flags]
    )


def written(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"m.pt", "cache"}


def test_default_is_torchscript_of_the_training_size(run, tmp_path, capsys):
    run()
    assert written(tmp_path) == {"m.torchscript"}
    assert (
        "m.torchscript: boxes differ from torch by at most 0 px, scores by 0, in 8"
        in capsys.readouterr().out
    )
    loaded = load_backend(tmp_path / "m.torchscript", CPU.device)
    assert loaded.backend.canvas == (64, 64)
    assert loaded.digest == load_backend(tmp_path / "m.pt", CPU.device).digest


def test_sizes_are_rounded_up_to_the_stride(run, tmp_path, capsys):
    run("--img", "50", "96", "--batch", "3")
    loaded = load_backend(tmp_path / "m.torchscript", CPU.device)
    assert (loaded.backend.canvas, loaded.image_size, loaded.backend.model.batch_size) == (
        (64, 96),
        96,
        3,
    )
    assert "--imgsz 50 is rounded up to 64" in capsys.readouterr().out
    run("--img", "96", "--dynamic", "--simplify")
    loaded = load_backend(tmp_path / "m.torchscript", CPU.device)
    assert (loaded.backend.canvas, loaded.image_size, loaded.backend.model.batch_size) == (
        None,
        96,
        None,
    )
    assert "--simplify: nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            [],
            "its files take images of 64 x 64 only, the checkpoint uses rectangles that fit the "
            "images: to compare the two, give the checkpoint --img 64 64 in val.py and detect.py, "
            "or export with --dynamic",
        ),
        (
            ["--img", "64", "96"],
            "its files take images of 96 x 64 only, the checkpoint uses rectangles that fit the "
            "images: to compare the two, give the checkpoint --img 64 96 in val.py and detect.py, "
            "or export with --dynamic",
        ),
        (
            ["--img", "96", "--dynamic"],
            "its files use images of 96 px by default, the checkpoint 64 px: to compare the two, "
            "give both the same --img",
        ),
        (["--dynamic"], ""),
    ],
)
def test_export_says_which_flags_give_the_checkpoint_the_canvas_of_the_files(
    weights, flags, sentence
):
    args = export.parse_args(flags)
    said: list[str] = []
    export.open_writer(weights, args, CPU.device, said.append)
    assert said == ([f"{weights}: {sentence}"] if sentence else [])


@pytest.mark.slow
def test_heads_get_files_of_their_own(tmp_path, tiny_data, capsys):
    two_heads = lively_detector(micro_table("DualDistanceDetect", "nc"))
    weights = save_checkpoint(tmp_path / "m.pt", two_heads, data=str(tiny_data))
    for flags, chosen, file in (
        ([], "o2o", "m.torchscript"),
        (["--head", "o2o"], "o2o", "m.torchscript"),
        (["--head", "o2m"], "o2m", "m_o2m.torchscript"),
    ):
        export.run_script(["--weights", str(weights), "--img", "64", *flags])
        printed = capsys.readouterr().out
        assert f"m.pt: exports the head {chosen}; choose with --head (o2o or o2m)" in printed
        assert f"written to {tmp_path}/{file}" in printed
    assert written(tmp_path) == {"m.torchscript", "m_o2m.torchscript"}
    assert load_backend(tmp_path / "m_o2m.torchscript", CPU.device).backend.needs_nms
    assert not load_backend(tmp_path / "m.torchscript", CPU.device).backend.needs_nms


def test_folder_of_the_checkpoint_is_looked_at_before_the_export(run, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    sentence = (
        f"^exported files are written beside the checkpoint: {tmp_path}: .* cannot be written"
    )
    with pytest.raises(ValueError, match=sentence):
        run()


@pytest.mark.slow
def test_several_checkpoints_and_the_newest_best(detector, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [save_checkpoint(tmp_path / name, detector) for name in ("a.pt", "ü b.pt")]
    export.run_script(["--weights", *map(str, paths)])
    assert written(tmp_path) == {"a.pt", "ü b.pt", "a.torchscript", "ü b.torchscript"}
    (tmp_path / "runs/train/exp/weights").mkdir(parents=True)
    save_checkpoint(tmp_path / "runs/train/exp/weights/best.pt", detector)
    export.run_script([])
    assert (tmp_path / "runs/train/exp/weights/best.torchscript").exists()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ["--include", "engine"],
            "--include engine: not written by export.py; docs/export.md says how",
        ),
        (["--include", "torchscript", "coreml"], "--include coreml: not written by export.py"),
        (
            ["--include", "onyx"],
            "--include onyx: choose from torchscript, onnx, openvino; write spaces",
        ),
        (["--img", "1"], "--imgsz 1: choose 32 to 8192 pixels"),
        (["--img", "64", "64", "64"], "--imgsz 64 64 64: give one side"),
        (["--batch", "0"], "--batch-size 0: choose 1 to 65536"),
        (["--opset", "9"], "--opset 9: choose 17 to 23"),
        (["--conf", "2"], "--conf-thres 2.0: choose 0 to 1"),
        (["--calibration-images", "0"], "--calibration-images 0: choose 1 to 1000000"),
        (["--half"], "--half: 16-bit TorchScript runs on GPUs only"),
        (["--half", "--int8", "--include", "onnx"], "--half and --int8 exclude each other"),
        (["--int8"], "--int8: TorchScript is not quantized"),
        (["--agnostic-nms"], "--agnostic-nms changes the suppression of --nms: give both"),
        (
            ["--keras"],
            "--keras is not supported: TensorFlow models are made from an exported file by",
        ),
        (["--workspace", "4"], "--workspace is not supported"),
        (["--inclde", "onnx"], "unknown flag --inclde (did you mean --include?)"),
    ],
)
def test_invalid_flags_give_one_sentence_and_write_nothing(run, tmp_path, flags, sentence, capsys):
    assert exit_code_of(lambda: run(*flags)) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert written(tmp_path) == set()


@pytest.mark.parametrize(
    ("flags", "missing", "command"),
    [
        (["onnx"], ["onnx"], "needs the package onnx: pip install onnx"),
        (["openvino"], ["onnx"], "needs the package onnx: pip install onnx"),
        (
            ["onnx"],
            ["onnx", "onnxscript", "onnxruntime"],
            "pip install onnx onnxscript onnxruntime",
        ),
        (["torchscript", "onnx"], ["onnxruntime"], "pip install onnxruntime"),
        (["openvino"], ["openvino", "onnx", "onnxscript"], "pip install openvino onnx onnxscript"),
        (["openvino"], ["openvino", "nncf"], "needs the package openvino: pip install openvino"),
        (
            ["openvino", "--int8"],
            ["openvino", "nncf"],
            "needs the packages openvino and nncf: pip install openvino nncf",
        ),
        (["onnx", "openvino"], ["onnxruntime", "openvino"], "pip install onnxruntime openvino"),
    ],
)
def test_all_missing_packages_are_named_at_once(
    run, tmp_path, monkeypatch, capsys, flags, missing, command
):
    """Before anything is written, whatever the format."""
    packages = {"onnx", "onnxscript", "onnxruntime", "openvino", "nncf"}
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None if package in missing else sys)
    assert exit_code_of(lambda: run("--include", *flags)) == 2
    error = capsys.readouterr().err
    assert (
        f"--include {' '.join(flag for flag in flags if flag != '--int8')} needs the package"
        in error
    )
    assert error.endswith(f"{command}\n")
    assert error.count("\n") == 1
    assert written(tmp_path) == set()


def test_torchscript_needs_no_other_package(run, tmp_path, monkeypatch):
    for package in ("onnx", "onnxscript", "onnxruntime", "openvino", "nncf"):
        monkeypatch.setitem(sys.modules, package, None)
    run()
    assert written(tmp_path) == {"m.torchscript"}


def test_file_that_differs_from_torch_is_not_kept(run, tmp_path, monkeypatch):
    """An earlier file stays as it was."""
    torchscript = type(FORMATS["torchscript"])
    write = torchscript.write

    def wrong(self, path, source, calibration):
        write(self, path, source, calibration)
        next(source.reference.detector.parameters()).mul_(1.1)  # now torch computes something else

    run()
    before = (tmp_path / "m.torchscript").read_bytes()
    monkeypatch.setattr(torchscript, "write", wrong)
    with pytest.raises(
        FaultError, match=r"m\.torchscript: .* which is too much: the file is not kept"
    ):
        run()
    assert written(tmp_path) == {"m.torchscript"}
    assert (tmp_path / "m.torchscript").read_bytes() == before


def test_folder_in_the_place_of_a_file_is_refused(run, tmp_path):
    (tmp_path / "m.torchscript").mkdir()
    with pytest.raises(ValueError, match=r"m\.torchscript: is a folder; move it away"):
        run()


def test_comparison_uses_images_of_the_data_set(run, tiny_data, capsys):
    run("--data", str(tiny_data), "--workers", "0")
    output = capsys.readouterr().out
    assert "val: 8 images" in output
    assert "in 8 images" in output


@pytest.fixture
def evaluate(tiny_data, tmp_path, val_without_pictures):
    """evaluate(file, ...): what val.py finds with a file."""

    def measure(*flags):
        paths = [
            "--project",
            str(tmp_path / "val"),
            "--cache-dir",
            str(tmp_path / "cache"),
            "--workers",
            "0",
        ]
        given = [
            "--data",
            str(tiny_data),
            "--device",
            "cpu",
            "--batch-size",
            "3",
            "--weights",
            *map(str, flags),
        ]
        return val.main(val.parse_args([*given, *paths])[0], CPU)

    return measure


@pytest.fixture(scope="module")
def wide(detector, tiny_data, tmp_path_factory):
    """A checkpoint, and its TorchScript file for images of 96 x 64 only."""
    folder = tmp_path_factory.mktemp("wide")
    weights = save_checkpoint(folder / "m.pt", detector, data=str(tiny_data))
    export.run_script(["--weights", str(weights), "--img", "64", "96"])
    return weights, folder / "m.torchscript"


CANVAS_NOTE = re.compile(
    r"the exported model puts all images on a canvas of 96 x 64, .* checkpoint (--img 64 96)\n"
)


@pytest.mark.slow
def test_val_finds_the_same_with_the_canvas_that_it_names(wide, evaluate, capsys):
    weights, file = wide
    expected = evaluate(file)
    output = capsys.readouterr().out
    assert "val split, 96 x 64 px, " in output
    flags = CANVAS_NOTE.search(output)[1].split()

    found = evaluate(weights, *flags)
    output = capsys.readouterr().out
    assert "val split, 96 x 64 px, " in output
    assert not CANVAS_NOTE.search(output)
    assert found.coco.stats["AP"] == pytest.approx(expected.coco.stats["AP"], abs=1e-3)
    own, other = (np.sort(each.detections.scores)[-100:] for each in (found, expected))
    np.testing.assert_allclose(own, other, atol=1e-4)
    assert len(own) == 100

    on_rectangles = np.sort(evaluate(weights, "--img", "96").detections.scores)[-100:]
    assert "val split, 96 px, " in capsys.readouterr().out
    assert np.abs(on_rectangles - own).max() > 1e-2


def test_detect_counts_the_same_with_the_canvas_that_it_names(wide, tiny_data, tmp_path, capsys):
    weights, file = wide
    images = tiny_data.parent / "images"

    def count(path, *flags):
        given = ["--weights", path, "--source", images, "--project", tmp_path, "--nosave"]
        words = [*given, "--save-txt", "--device", "cpu", *flags]
        return detect.main(detect.parse_args(list(map(str, words))))

    expected = count(file)
    output = capsys.readouterr().out
    assert f"{images}, 96 x 64 px, " in output
    flags = CANVAS_NOTE.search(output)[1].split()
    assert count(weights, *flags) == expected
    assert not CANVAS_NOTE.search(capsys.readouterr().out)
    assert count(weights, "--img", "96") != expected
    assert f"{images}, 96 px, " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torchscript", "onnx", "openvino"])
def test_val_finds_the_same_with_each_file(name, exports, evaluate, tmp_path, capsys):
    if name != "torchscript":
        pytest.importorskip("onnxscript", reason="an optional package")
    weights = save_checkpoint(tmp_path / "m.pt", exports.detector)
    for file, flags in (
        (exports(name, *FIXED), ["--square"]),
        (exports(name, *DYNAMIC), []),
    ):
        found, expected = evaluate(file), evaluate(weights, *flags)
        assert found.coco.stats["AP"] == pytest.approx(expected.coco.stats["AP"], abs=1e-3)
        best, expected_best = (np.sort(each.detections.scores)[-150:] for each in (found, expected))
        np.testing.assert_allclose(best, expected_best, atol=1e-3)
        assert len(best) == 150
    nms = exports(name, *WITH_NMS)
    assert evaluate(nms).detections.scores.min() > 0.3
    assert (
        "several classes per box find no more: export it without --nms" in capsys.readouterr().out
    )
    with pytest.raises(
        ValueError, match="image size 320: the model was exported for images of 64 x 64 pixels only"
    ):
        evaluate(nms, "--img", "320")


@pytest.fixture
def other_device(monkeypatch):
    """A device that is not the CPU, with values: enter NoFloat64() to use it."""
    monkeypatch.setattr(precision, "WITHOUT_FLOAT64", ("mps", DEVICE.type))
    monkeypatch.setattr(
        evaluation, "predict_split", torch.no_grad()(evaluation.predict_split.__wrapped__)
    )  # inference mode hides operations
    return DEVICE


@pytest.mark.parametrize("flags", [FIXED, WITH_NMS])
@pytest.mark.parametrize("name", ["onnx", pytest.param("openvino", marks=pytest.mark.slow)])
def test_file_for_the_cpu_is_compared_with_torch_on_another_device(
    name, flags, exports, other_device
):
    """As with --device 0: the runtime is on the CPU, the reference on the device, the images where
    they are loaded.
    """
    path, said = exports(name, *flags), []
    model = load_backend(path, CPU.device).backend.model
    images = [
        torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(seed)) for seed in range(2)
    ]
    with NoFloat64() as device:
        writer = Writer(
            deepcopy(exports.detector).to(other_device).fuse().requires_grad_(False), model
        )
        export.check_file(path, writer, images, other_device, said.append)
    assert device.operations > 50
    assert re.fullmatch(r"m.*: boxes differ from torch by at most .*, in 2 images", said[0])


def test_map_before_quantization_is_measured_on_another_device(
    weights, tiny_data, tmp_path, other_device
):
    flags = [
        "--int8",
        "--include",
        "onnx",
        "--data",
        str(tiny_data),
        "--workers",
        "0",
        "--cache-dir",
        str(tmp_path),
    ]
    args = export.parse_args(["--weights", str(weights), *flags])
    found = []
    for target, mode in ((CPU.device, nullcontext()), (other_device, NoFloat64())):
        with mode:
            writer = export.open_writer(weights, args, target, lambda _: None)
            images = export.open_dataset_images(args, weights, writer.model, lambda _: None)
            assert len(images.spread("val", 2, lambda _: None)) == 2
            found.append(images.mean_ap(ReferenceBackend(writer.reference)))
    assert found[0] == pytest.approx(found[1], abs=1e-6)
    assert found[0] >= 0


@pytest.mark.slow
@batch_norm_not_folded()
@images_convolved_alone()
@pytest.mark.usefixtures("val_without_pictures")
def test_model_of_tiles_is_calibrated_and_measured_on_tiles(
    detector, tiny_data, tmp_path, monkeypatch
):
    """As val.py evaluates it, which reads the tiles from the checkpoint, too."""
    config = {"imgsz": 64, "single_cls": False, "tile": 40}
    weights = save_checkpoint(tmp_path / "tiles.pt", detector, config=config)
    words = f"--data {tiny_data} --workers 0 --device cpu --cache-dir {tmp_path}".split()
    args = export.parse_args(["--weights", str(weights), "--int8", *words])
    writer = export.open_writer(weights, args, CPU.device, lambda _: None)
    images = export.open_dataset_images(args, weights, writer.model, lambda _: None)
    tiles = images.spread("val", 3, lambda _: None)
    whole = images.dataset.read("val", lambda _: None).whole
    assert len(images.dataset.labels["val"]) > len(whole)
    assert len(tiles) == 3
    evaluations = []
    real = export.evaluate_split

    def evaluate(*arguments, **options):
        evaluations.append(real(*arguments, **options))
        return evaluations[-1]

    monkeypatch.setattr(export, "evaluate_split", evaluate)
    images.mean_ap(ReferenceBackend(writer.reference))

    output = ["--square", "--project", str(tmp_path), "--name", "val"]
    expected = val.main(val.parse_args(["--weights", str(weights), *words, *output])[0], CPU)
    assert len(expected.detections.scores) > 100
    for column, values in vars(expected.detections).items():
        assert np.array_equal(getattr(evaluations[0].detections, column), values), column


@pytest.mark.slow
@pytest.mark.usefixtures("onnx_functions")
def test_8_bit_export_prints_the_loss(run, tmp_path, tiny_data, capsys):
    """On the data of the checkpoint, for each format."""
    names = installed("onnx", "openvino", int8=True)
    if not names:
        pytest.skip("optional packages")
    run("--include", *names, "--int8", "--calibration-images", "5", "--workers", "0")

    files = {"onnx": "m_int8.onnx", "openvino": "m_int8_openvino_model"}
    assert written(tmp_path) == {files[name] for name in names}
    output = capsys.readouterr().out
    for name in names:
        sentence = r"mAP 0\.\d{4} on the val split, 0\.\d{4} before: a loss of -?0\.\d{4}"
        assert re.search(rf"{re.escape(files[name])}: {sentence}", output)


def test_large_loss_of_8_bits_is_said_to_be_too_much():
    class Fixed:
        def mean_ap(self, backend):
            return 0.4

    said: list[str] = []
    for before in (0.405, 0.42):
        export.report_loss(Path("m_int8.onnx"), Fixed(), before, None, said.append)
    assert said[0] == "m_int8.onnx: mAP 0.4000 on the val split, 0.4050 before: a loss of 0.0050"
    assert len(said) == 3
    assert "a loss above 0.01 is too much; try" in said[2]


def test_8_bit_export_without_data_is_refused(detector, tmp_path):
    weights = save_checkpoint(tmp_path / "m.pt", detector)
    with pytest.raises(
        ValueError, match="does not name the data set that it was trained on; give --data"
    ):
        export.run_script(["--weights", str(weights), "--include", "onnx", "--int8"])


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")
def test_killed_exports_leave_no_half_written_file(weights, tmp_path):
    """A file is missing, or the complete old or new one."""
    code = "import sys; from tests.support.killed_export import main; main(sys.argv[1])"
    done = run_program(code, weights, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    found = [json.loads(line) for line in lines if line.startswith("[")]
    digest = found[-1][2]
    assert found == [
        ["half written", -signal.SIGKILL, None],
        ["written", -signal.SIGKILL, None],
        ["replaced", -signal.SIGKILL, digest],
        ["half written", -signal.SIGKILL, digest],
        ["never", 0, digest],
    ]
    assert load_backend(tmp_path / "m.torchscript", CPU.device).names
