"""Names of outputs: Keras 3 goes by them, so a name that it would not load gets a warning."""

from __future__ import annotations

import pytest
from helpers import make_model_h5


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("m.h5", "m.portable.h5"),
        ("m.hdf5", "m.portable.hdf5"),
        ("a b.c", "a b.c.portable.h5"),
        ("m", "m.portable.h5"),
        ("w.weights.h5", "w.weights.portable.h5"),
    ],
)
@pytest.mark.sampled(2)
def test_default_names(cli, tmp_path, source, output):
    make_model_h5(tmp_path / source, whole="weights" not in source)
    result = cli("cudnn-to-keras", source)
    assert (result.code, result.err) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source, output])


@pytest.mark.parametrize(
    ("arguments", "warning"),
    [
        (["-o", "out"], "Keras 3 loads this file only under a name that ends in .h5 or .hdf5"),
        (
            ["--to", "weights", "-o", "out.weights.h5"],
            "Keras 3 takes a name that ends in .weights.h5 for its own format; use another",
        ),
    ],
)
def test_names_that_keras3_does_not_load(cli, tmp_path, arguments, warning):
    make_model_h5(tmp_path / "m.h5")
    result = cli("cudnn-to-keras", "m.h5", *arguments)
    assert (result.code, result.err) == (0, f"warning: {warning}\n")
