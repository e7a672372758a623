"""What an input becomes: as `--to` says, else the output's name, else as it was.

Keras HDF5 files are whole models or weights only, and so decide in `keras_h5`.
"""

from __future__ import annotations

from pathlib import Path

from rnnconvert.errors import NotConvertibleError, UsageError
from rnnconvert.kinds import EXTENSIONS, KERAS_FILES, Kind
from rnnconvert.options import Options

_STACKS = ("checkpoint", "h5", "keras", "weights", "npz")
_TARGETS = {
    Kind.KERAS: ("keras", "h5", "weights"),
    Kind.KERAS_1: ("h5", "keras", "weights"),
    Kind.THEANO: ("h5", "keras", "weights"),
    Kind.KERAS_WEIGHTS: ("weights",),
    Kind.SAVED_MODEL: ("savedmodel", *KERAS_FILES),
    Kind.GRAPH: ("graph",),
    Kind.META_GRAPH: ("graph", *_STACKS),
    Kind.CHECKPOINT: _STACKS,
}
"""The first is the kind's own."""


def target_of(kind: Kind, output: Path | None, options: Options) -> str:
    """The container to write.

    Raises:
        UsageError: this kind of input does not become what is asked for.
        NotConvertibleError: the inverse was asked for, of an input that can't hold CuDNN layers.
    """
    known = _TARGETS[kind]
    if options.is_inverse:
        if kind is not Kind.CHECKPOINT:
            raise NotConvertibleError(
                f"keras-to-cudnn converts Keras .h5 files and checkpoints; this is {kind.title}"
            )
        known = ("checkpoint",)
    to = options.to
    if to is None and output is not None:
        to = EXTENSIONS.get(output.suffix)
        of_keras_3 = kind in (Kind.CHECKPOINT, Kind.META_GRAPH) and output.name.endswith(
            ".weights.h5"
        )
        if to == "h5" and (known == ("weights",) or of_keras_3):
            to = "weights"
    to = to or known[0]
    if to not in known:
        raise UsageError(f"--to {to}: {kind.title} becomes one of {', '.join(known)}")
    return to
