"""SavedModels and frozen graphs of every further Keras fixture, lowered: the recorded outputs."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from models import SHARED

import rnnconvert
from rnnconvert import NotConvertibleError

pytestmark = [pytest.mark.slow, pytest.mark.corpus]
tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

FOLDER = SHARED / "fixtures" / "keras"
NAMES = ("savedmodel_tf1", "savedmodel_tf2_fn", "savedmodel_tf2_export", "frozen.pb")
GRAPHS = sorted(path for name in NAMES for path in FOLDER.glob(f"*/*/{name}"))
UNTRACED = sorted(FOLDER.glob("*/*/savedmodel_tf2_notraces"))
needs_room = pytest.mark.skipif(not GRAPHS, reason="no folder of further data beside the checkout")


def arrays(path: Path) -> list[np.ndarray]:
    with np.load(path) as data:
        return [data[key] for key in data.files]


def load(session, path: Path) -> tuple[list[str], list[str]]:
    """A lowered model in a session of TensorFlow 1: names of its inputs and outputs."""
    if path.is_file():
        graph_def = tf.compat.v1.GraphDef.FromString(path.read_bytes())
        tf.import_graph_def(graph_def, name="")
        return [], []
    meta = tf.compat.v1.saved_model.load(session, ["serve"], str(path))
    (signature,) = [meta.signature_def["serving_default"]]
    return tuple(
        [info.name for _, info in sorted(part.items())]
        for part in (signature.inputs, signature.outputs)
    )


def nearest(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """The worst difference, in the order of outputs that fits best: signatures sort theirs."""
    return min(
        max(float(np.abs(a.astype(float) - b).max()) for a, b in zip(order, expected, strict=True))
        for order in itertools.permutations(found)
        if [a.shape for a in order] == [b.shape for b in expected]
    )


@needs_room
@pytest.mark.parametrize("source", GRAPHS, ids=lambda path: "-".join(path.parts[-3:]))
@pytest.mark.thinned(2)
def test_outputs_are_the_recorded_ones(source, tmp_path):
    output = tmp_path / ("out.pb" if source.suffix == ".pb" else "out")
    report = rnnconvert.convert(source, output)
    assert report.verdict == "equivalent"
    assert {level.status for _, level in report.levels if level.device != "gpu"} == {"passed"}
    given, expected = arrays(source.parent / "x.npz"), arrays(source.parent / "expected.npz")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        inputs, outputs = load(session, output)
        if not inputs:
            facts = json.loads((source.parent / "frozen.json").read_text())
            inputs, outputs = facts["inputs"], facts["outputs"]
        orders = [dict(zip(inputs, order, strict=True)) for order in itertools.permutations(given)]
        gaps = []
        for feeds in orders:  # a signature names its inputs in its own way
            try:
                gaps.append(nearest(session.run(outputs, feeds), expected))
            except ValueError:
                continue  # shapes that don't fit
    assert min(gaps) <= (1e-3 if source.parent.name == "half" else 1e-5)


@needs_room
@pytest.mark.parametrize("source", UNTRACED, ids=lambda path: path.parts[-2])
def test_a_model_without_functions_is_rebuilt_only(source, tmp_path):
    assert rnnconvert.inspect(source).only_rebuilds
    with pytest.raises(NotConvertibleError, match="--to keras rebuilds it"):
        rnnconvert.convert(source, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    report = rnnconvert.convert(source, tmp_path / "out.h5", verify="layers")
    assert report.verdict == "equivalent"
