"""A layer whose tensors have several dtypes is given the tolerance of what was rounded."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import LSTM_KERNEL, make_model_h5, replace_dataset

import rnnconvert


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_a_bias_that_is_coarser_or_finer_than_its_kernel(tmp_path, dtype):
    """Its two halves are added in its own dtype; found by a mutant whose kernel was replaced."""
    path = make_model_h5(tmp_path / "m.h5", cells=["lstm"], names=["cu_lstm"], units=[6])
    values = np.random.default_rng(3).normal(size=(5, 24)).astype(dtype)
    replace_dataset(path, LSTM_KERNEL, values)
    report = rnnconvert.convert(path, tmp_path / "out.h5", verify="layers")
    layers = report.to_dict()["verification"]["layers"]
    assert layers["status"] == "passed"
    assert 0 < layers["max_abs"] < layers["tolerance"] < 1e-4
