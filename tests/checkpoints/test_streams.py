"""Weights that are streamed: the same files as from arrays in memory, and the same refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import snapshot

import rnnconvert
from rnnconvert.checkpoints import streamed_levels, streams
from rnnconvert.checkpoints.inspect import open_stacks
from rnnconvert.checkpoints.names import OBJECT_SUFFIX
from rnnconvert.checkpoints.verify import check_stack_layers
from rnnconvert.containers import raw_file, tiles
from rnnconvert.containers.checkpoint import (
    data_path,
    index_path,
    open_checkpoint,
    write_checkpoint,
    writer,
)
from rnnconvert.containers.safe_npz import open_arrays
from rnnconvert.errors import DifferenceError, NotConvertibleError, UnreadableInputError
from rnnconvert.layouts.opaque_shape import OpaqueShape, Region
from rnnconvert.options import Inputs, Options
from rnnconvert.report import Report

SHAPES = {
    "lstm": OpaqueShape("lstm", 2, 6, 5),
    "bidirectional lstm": OpaqueShape("lstm", 2, 4, 7, "bidirectional"),
    "gru": OpaqueShape("gru", 2, 5, 3),
    "bidirectional gru": OpaqueShape("gru", 1, 3, 4, "bidirectional"),
    "tanh": OpaqueShape("rnn_tanh", 2, 4, 3),
    "relu": OpaqueShape("rnn_relu", 1, 3, 5),
}
TARGETS = {
    "npz": ("out.npz", {"to": "npz"}),
    "tf1 names": ("out", {"to": "checkpoint"}),
    "keras names": ("out", {"to": "checkpoint", "names": "keras"}),
}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "TILE", 96)
    monkeypatch.setattr(tiles, "_RUN", 16)
    monkeypatch.setattr(tiles, "_PART", 40)
    monkeypatch.setattr(tiles, "_CROWDED", 16)  # most rows have bytes between them
    monkeypatch.setattr(tiles, "_GAP", 8)
    monkeypatch.setattr(raw_file, "_PARTS", 3)


def make(
    folder: Path, shape: OpaqueShape, dtype: str = "float32", slots: str | None = None
) -> Path:
    """A checkpoint of a buffer; with Adam's two slots of type `slots`, the biases' halves alike."""
    generator = np.random.default_rng(3)
    folder.mkdir()
    tensors = {
        "rnn/opaque_kernel": generator.normal(size=shape.size).astype(dtype),
        "other": generator.normal(size=(9, 4)).astype("float32"),
    }
    for slot in ("Adam", "Adam_1") if slots else ():
        values = generator.normal(size=shape.size)
        biases = {(r.layer, r.direction, r.kind, r.gate): r for r in shape.regions}
        for (layer, direction, kind, gate), region in biases.items():
            if kind == "recurrent_bias":
                other = biases[layer, direction, "input_bias", gate]
                values[_span(region)] = values[_span(other)]
        tensors[f"rnn/opaque_kernel/{slot}"] = values.astype(slots)
    write_checkpoint(index_path(folder / "c"), data_path(folder / "c"), tensors)
    return folder / "c"


def _span(region: Region) -> slice:
    return slice(region.offset, region.offset + region.shape[0])


def options(shape: OpaqueShape) -> dict[str, Any]:
    names = ("cell", "num_layers", "num_units", "input_size", "direction")
    return {name: getattr(shape, name) for name in names}


def contents(path: Path) -> Any:
    if path.suffix == ".npz":
        with open_arrays(path) as arrays:
            return {name: (array.dtype, array.tolist()) for name, array in arrays.items()}
    return [index_path(path).read_bytes(), data_path(path).read_bytes()]


def streamed_and_in_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, source: Path, output: str, asked: dict[str, Any]
) -> tuple[Report, Report]:
    """Convert to "a" by streams, and to "b" by arrays in memory."""
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    report = rnnconvert.convert(source, folder / "a" / output, **asked)
    monkeypatch.setattr("rnnconvert.checkpoints.convert.streams_of", lambda *_: [])
    monkeypatch.setattr("rnnconvert.checkpoints.convert.streamed", lambda *_: None)
    return report, rnnconvert.convert(source, folder / "b" / output, **asked)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.sampled(2)
def test_streamed_files_are_those_made_in_memory(tmp_path, monkeypatch, name, target):
    shape, (output, asked) = SHAPES[name], TARGETS[target]
    source = make(tmp_path / "in", shape)
    asked = {**asked, **options(shape), "verify": "weights"}
    report, other = streamed_and_in_memory(tmp_path, monkeypatch, source, output, asked)
    assert contents(tmp_path / "a" / output) == contents(tmp_path / "b" / output)
    assert report.weights_level == other.weights_level
    assert report.verdict == other.verdict


@pytest.mark.parametrize("target", ["tf1 names", "keras names"])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.sampled(2)
def test_streamed_slots_are_those_made_in_memory(tmp_path, monkeypatch, name, target):
    shape, (output, asked) = SHAPES[name], TARGETS[target]
    source = make(tmp_path / "in", shape, slots="float32")
    asked = {**asked, **options(shape), "verify": "weights"}
    report, other = streamed_and_in_memory(tmp_path, monkeypatch, source, output, asked)
    assert report.optimizer.state == "converted"
    assert report.optimizer == other.optimizer
    assert contents(tmp_path / "a" / output) == contents(tmp_path / "b" / output)
    written = open_checkpoint(tmp_path / "a" / output)
    assert sum(name.endswith("/Adam") for name in written.variables) >= 2 * len(shape.directions)


FIXTURES = Path(__file__).parents[2] / "fixtures"
REFUSED = ("peephole", "projection", "layer_norm", "disagree", "cudnn_gru_raw", "two_ways")
SOURCES = [
    *sorted(path.parent for path in (FIXTURES / "checkpoints").glob("*/*/data.npz")),
    *sorted(path.parent / "weights" for path in FIXTURES.glob("keras_checkpoints/*/*/data.npz")),
]
STORED = [case for case in SOURCES if not any(word in str(case) for word in REFUSED)]
IN_MEMORY = ("_v1", "partitioned")
"""Those whose tensors do not lie in one piece each."""
OUTPUTS = {
    "npz": {"to": "npz"},
    "h5": {"to": "h5"},
    "weights.h5": {"to": "weights"},
    "tf1": {"to": "checkpoint"},
    "keras": {"to": "checkpoint", "names": "keras"},
}


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("case", STORED, ids=lambda path: "-".join(path.parts[-3:]))
@pytest.mark.sampled(8)
def test_what_is_stored_is_written_as_from_arrays(tmp_path, monkeypatch, case, output):
    """Buffers, buffers beside cells, cells, layers of Keras: the same bytes, the same proof."""
    try:
        _, found = open_stacks(case, Options.of())
    except NotConvertibleError:
        pytest.skip("holds nothing that is converted")
    if len(found.stacks) > 1 and output in ("h5", "weights.h5"):
        pytest.skip("becomes several files")
    if output == "keras" and any(
        name.endswith(OBJECT_SUFFIX) for name in found.stacks[0].variables
    ):
        pytest.skip("such names are refused for object-based checkpoints")
    name = f"out.{output}" if "." in output or output in ("npz", "h5") else "out"
    asked = {**OUTPUTS[output], "verify": "layers"}
    report, other = streamed_and_in_memory(tmp_path, monkeypatch, case, name, asked)
    made = [
        {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()} for folder in "ab"
    ]
    assert made[0] == made[1]
    assert report.verdict == other.verdict
    assert report.weights_level == other.weights_level
    assert report.layers_level.status == other.layers_level.status


def test_what_is_stored_is_streamed():
    for case in STORED:
        checkpoint, found = open_stacks(case, Options.of())
        in_memory = any(word in str(case) for word in IN_MEMORY)
        if found.stacks:
            made = streams.streams_of(found.stacks, checkpoint, Options.of())
            assert bool(made) is not in_memory, case


def test_slots_of_another_type_than_the_buffer(tmp_path):
    """They keep it, as they do where they are cut in memory."""
    shape = SHAPES["gru"]
    source = make(tmp_path / "in", shape, "float16", slots="float32")
    asked = {"to": "checkpoint", "names": "keras", "verify": "weights", **options(shape)}
    rnnconvert.convert(source, tmp_path / "out", **asked)
    written = open_checkpoint(tmp_path / "out")
    kernel = "rnn/layer_0/forward/kernel"
    assert written.variables[kernel].dtype == "float16"
    assert written.variables[f"{kernel}/Adam"].dtype == "float32"


def test_a_wrong_tile_of_a_slot_is_found_and_nothing_written(tmp_path, monkeypatch):
    shape = SHAPES["lstm"]
    source = make(tmp_path / "in", shape, slots="float32")
    right = streams.StreamedWeights.with_bias

    def wrong(self: Any, bias: Any) -> Any:
        made = right(self, bias)
        made.found.append(tiles.MovedTensor("1 values differ"))
        return made

    monkeypatch.setattr(streams.StreamedWeights, "with_bias", wrong)
    asked = {"to": "checkpoint", "verify": "weights", **options(shape)}
    with pytest.raises(DifferenceError, match="rnn/opaque_kernel/Adam: 1 values differ"):
        rnnconvert.convert(source, tmp_path / "out", **asked)
    assert list(snapshot(tmp_path)) == ["in/c.data-00000-of-00001", "in/c.index"]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_types_of_numbers(tmp_path, dtype):
    shape = SHAPES["lstm"]
    source = make(tmp_path / "in", shape, dtype)
    report = rnnconvert.convert(
        source, tmp_path / "out.npz", to="npz", verify="weights", **options(shape)
    )
    assert report.weights_level.status == "passed"
    with open_arrays(tmp_path / "out.npz") as arrays:
        assert {array.dtype.name for array in arrays.values()} == {dtype}


def test_it_is_streamed_and_not_read_as_a_whole(tmp_path, monkeypatch):
    shape = SHAPES["bidirectional lstm"]
    source = make(tmp_path / "in", shape, slots="float32")
    read: list[str] = []
    original = rnnconvert.containers.checkpoint.Checkpoint.read

    def watched(self: Any, name: str) -> Any:
        read.append(name)
        return original(self, name)

    monkeypatch.setattr(rnnconvert.containers.checkpoint.Checkpoint, "read", watched)
    for output, asked in TARGETS.values():
        report = rnnconvert.convert(
            source, tmp_path / output, verify="layers", force=True, **asked, **options(shape)
        )
        assert report.layers_level.status == "passed"
    assert not any("opaque_kernel" in name for name in read)
    assert not any(name.endswith("kernel") for name in read)


@pytest.mark.parametrize("target", TARGETS)
def test_a_wrong_tile_is_found_and_nothing_written(tmp_path, monkeypatch, target):
    shape, (output, asked) = SHAPES["gru"], TARGETS[target]
    source = make(tmp_path / "in", shape)
    right = tiles.transpose

    def wrong(here: Any, there: Any) -> None:
        right(here, there)
        there[-1, 0] ^= 1

    monkeypatch.setattr(tiles, "transpose", wrong)
    with pytest.raises(DifferenceError, match=r"rnn layer 0: .* values differ"):
        rnnconvert.convert(source, tmp_path / output, verify="weights", **asked, **options(shape))
    assert list(snapshot(tmp_path)) == ["in/c.data-00000-of-00001", "in/c.index"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.sampled(2)
def test_the_layers_are_proved_from_the_files_as_in_memory(tmp_path, monkeypatch, name, target):
    shape, (output, asked) = SHAPES[name], TARGETS[target]
    source = make(tmp_path / "in", shape)
    monkeypatch.setattr("rnnconvert.references.tf1._AT_ONCE", 8)
    monkeypatch.setattr("rnnconvert.references.keras._AT_ONCE", 8)
    asked = {**asked, **options(shape)}
    report, other = streamed_and_in_memory(tmp_path, monkeypatch, source, output, asked)
    assert report.layers_level.status == other.layers_level.status == "passed"
    assert report.layers_level.detail == other.layers_level.detail
    assert report.layers_level.tolerance == other.layers_level.tolerance
    assert (report.verdict, report.model_level) == (other.verdict, other.model_level)


class Rolled:
    """A stored matrix whose columns are one place further on."""

    def __init__(self, stored: Any) -> None:
        self.stored, self.shape = stored, stored.shape

    def __getitem__(self, rows: slice) -> Any:
        return np.roll(self.stored[rows], 1, axis=-1)


def roll_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    right = streamed_levels.run_places
    monkeypatch.setattr(
        streamed_levels,
        "run_places",
        lambda stack, places, read, **named: right(
            stack, places, lambda name: Rolled(read(name)), **named
        ),
    )


@pytest.mark.parametrize("target", TARGETS)
def test_other_rows_in_the_file_are_seen_by_the_layers(tmp_path, monkeypatch, target):
    shape, (output, asked) = SHAPES["gru"], TARGETS[target]
    source = make(tmp_path / "in", shape)
    roll_what_was_written(monkeypatch)
    with pytest.raises(DifferenceError, match="layers: rnn"):
        rnnconvert.convert(source, tmp_path / output, verify="layers", **asked, **options(shape))
    assert list(snapshot(tmp_path)) == ["in/c.data-00000-of-00001", "in/c.index"]


@pytest.mark.parametrize("target", ["npz", "tf1 names"])
def test_rounded_biases_that_large_weights_enlarge(tmp_path, monkeypatch, target):
    """Weights of N(0, 1): more steps make it chaotic, and a wrong order is still seen."""
    shape, (output, asked) = OpaqueShape("lstm", 3, 160, 20), TARGETS[target]
    monkeypatch.setattr(tiles, "TILE", 2**20)
    monkeypatch.setattr(tiles, "_RUN", 2**12)
    monkeypatch.setattr(tiles, "_PART", 2**16)
    source = make(tmp_path / "in", shape)
    asked = {**asked, **options(shape), "verify": "layers", "force": True}
    level = rnnconvert.convert(source, tmp_path / output, timesteps=12, **asked).layers_level
    assert level.status == "passed"
    assert 1e-4 < level.max_abs <= level.tolerance <= 0.01
    chaotic = rnnconvert.convert(source, tmp_path / output, timesteps=20, **asked)
    assert chaotic.layers_level.status == "skipped"
    assert chaotic.proved == "weights"
    roll_what_was_written(monkeypatch)
    with pytest.raises(DifferenceError, match="layers: rnn"):
        rnnconvert.convert(source, tmp_path / output, timesteps=12, **asked)


@pytest.mark.parametrize(
    ("difference", "change", "rounded", "status"),
    [(1e-3, 1e-3, 0.5, "passed"), (1e-3, 1e-5, 0.5, "failed"), (1e-3, 1e-3, None, "failed"),
     (9e-2, 8e-3, 0.5, "failed"), (9e-2, 2e-1, 0.5, "skipped"), (1e-9, 2e-1, 0.5, "passed")],
)  # fmt: skip
def test_what_a_difference_of_the_layers_means(tmp_path, difference, change, rounded, status):
    _, found = open_stacks(
        make(tmp_path / "in", SHAPES["lstm"]), Options.of(**options(SHAPES["lstm"]))
    )
    (stack,) = found.stacks

    def written(of_bias: Any = None) -> Any:
        return lambda x: (
            np.ones((3, 7, 6)) + (difference if of_bias is None else difference + change)
        )

    level = check_stack_layers(
        stack, lambda x: np.ones((3, 7, 6)), written, Inputs(), rounded=rounded
    )
    assert level.status == status
    if status == "skipped":
        assert "one rounding of its biases moves an output by 0.2" in level.reason


@pytest.mark.parametrize("target", TARGETS)
def test_a_wrong_bias_is_found(tmp_path, monkeypatch, target):
    shape, (output, asked) = SHAPES["lstm"], TARGETS[target]
    source = make(tmp_path / "in", shape)
    right = streams.pack_biases

    def wrong(*arguments: Any) -> Any:
        return {name: values[::-1].copy() for name, values in right(*arguments).items()}

    monkeypatch.setattr(streams, "pack_biases", wrong)
    with pytest.raises(DifferenceError, match="rnn layer 0: the sum of the biases differs"):
        rnnconvert.convert(source, tmp_path / output, verify="weights", **asked, **options(shape))


def test_a_damaged_buffer_is_refused(tmp_path):
    shape = SHAPES["lstm"]
    source = make(tmp_path / "in", shape)
    data = data_path(source)
    content = bytearray(data.read_bytes())
    content[-5] ^= 4
    data.write_bytes(content)
    with pytest.raises(UnreadableInputError, match="wrong checksum"):
        rnnconvert.convert(
            source, tmp_path / "out.npz", to="npz", verify="weights", **options(shape)
        )


@pytest.mark.parametrize("is_damaged", [False, True])
def test_cells_beside_a_converted_stack_are_copied_and_compared(tmp_path, monkeypatch, is_damaged):
    """With TensorFlow 1's names they keep theirs; what the disk makes of the copy is seen."""
    generator = np.random.default_rng(5)
    shape = OpaqueShape("lstm", 1, 4, 3)  # the options hold for both stacks
    cell = "decoder/basic_lstm_cell"
    tensors = {
        "rnn/opaque_kernel": generator.normal(size=shape.size).astype("float32"),
        f"{cell}/kernel": generator.normal(size=(7, 16)).astype("float32"),
        f"{cell}/bias": generator.normal(size=16).astype("float32"),
    }
    (tmp_path / "in").mkdir()
    source = tmp_path / "in" / "c"
    write_checkpoint(index_path(source), data_path(source), tensors)
    asked = {**options(shape), "to": "checkpoint", "verify": "layers", "forget_bias": 1.0}
    copy = writer.copy_range

    def wrong(here: Any, there: Any, start: int, place: int, size: int, buffer: Any) -> None:
        copy(here, there, start, place, size, buffer)
        there.write(memoryview(there.array(place + 5, (1,), "u1") ^ 1), place + 5)

    if is_damaged:
        monkeypatch.setattr(writer, "copy_range", wrong)
        with pytest.raises(
            DifferenceError, match=rf"decoder layer 0: {cell}/(kernel|bias) differs"
        ):
            rnnconvert.convert(source, tmp_path / "out", **asked)
        assert list(snapshot(tmp_path)) == ["in/c.data-00000-of-00001", "in/c.index"]
        return
    report = rnnconvert.convert(source, tmp_path / "out", **asked)
    assert (report.weights_level.status, report.layers_level.status) == ("passed", "passed")
    written = open_checkpoint(tmp_path / "out")
    for name in (f"{cell}/kernel", f"{cell}/bias"):
        assert written.read(name).tobytes() == tensors[name].tobytes()
    assert "rnn/opaque_kernel" not in written.variables


def test_a_wrong_checksum_of_what_was_written_is_seen(tmp_path, monkeypatch):
    """TensorFlow would refuse such a checkpoint."""
    shape = SHAPES["lstm"]
    source = make(tmp_path / "in", shape)
    right = writer._write_numbers
    monkeypatch.setattr(writer, "_write_numbers", lambda *given: right(*given) ^ 1)
    with pytest.raises(UnreadableInputError, match=r"bias.*wrong checksum"):
        rnnconvert.convert(
            source, tmp_path / "out", to="checkpoint", verify="weights", **options(shape)
        )
    assert list(snapshot(tmp_path)) == ["in/c.data-00000-of-00001", "in/c.index"]
