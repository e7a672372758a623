"""Checkpoints that TensorFlow writes once for all tests of these tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import (
    SAVER_VALUES,
    SLICED_VALUES,
    VERSION_1_TYPES,
    VERSION_2_TYPES,
    every_type,
    save_by_saver,
    save_slices,
    save_v1,
    save_v2,
)


@pytest.fixture(scope="session")
def tf() -> Any:
    return pytest.importorskip("tensorflow", reason="TensorFlow writes and reads these files")


@pytest.fixture(scope="session")
def written(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of checkpoints; to be read only."""
    folder = tmp_path_factory.mktemp("written")
    save_v2(tf, folder / "types2", every_type(VERSION_2_TYPES))
    save_v1(tf, folder / "types1", every_type(VERSION_1_TYPES))
    save_slices(tf, folder, SLICED_VALUES)
    save_by_saver(tf, folder, SAVER_VALUES)
    return folder
