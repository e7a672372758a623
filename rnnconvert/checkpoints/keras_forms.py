"""Weights of Keras' layers in checkpoints: of its CuDNN layers, and what `save_weights` writes.

A layer has `kernel`, `recurrent_kernel` and `bias`. Their shapes tell LSTM, GRU and SimpleRNN
apart, the bias' size tells CuDNNLSTM and CuDNNGRU from the plain layers, and a GRU that resets
after the matmul, whose biases are (2, 3*units), from one that resets before it, which has one.

Plain layers are taken from object-based checkpoints only, which tf.keras writes by `save_weights`:
in others the variables of any class may be called so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rnnconvert.checkpoints.groups import Candidate
from rnnconvert.checkpoints.names import OBJECT_SUFFIX
from rnnconvert.checkpoints.stack import CellPlace, Stack
from rnnconvert.containers.checkpoint import VariableInfo
from rnnconvert.layouts.weights import FLOAT_DTYPES
from rnnconvert.options import StackOptions
from rnnconvert.report import Assumption

KERAS_CUDNN = "keras-cudnn"
KERAS = "keras"
_TENSORS = ("kernel", "recurrent_kernel", "bias")
_PLAIN = {4: "lstm", 3: "gru_reset_before", 1: "rnn_tanh"}
"""Cells by the number of their gates, whose bias is one for all of the input and the state."""
_CUDNN = {4: "lstm", 3: "gru"}
_SLOT = ".OPTIMIZER_SLOT"
_CELL = "/cell"


class _Other(Exception):
    """Why these are the weights of no layer that is converted."""


def keras_stacks(
    variables: Mapping[str, VariableInfo], options: StackOptions
) -> tuple[Candidate, ...]:
    """One stack of one layer for each recurrent layer of Keras, each direction for itself.

    Args:
        variables: by their own names.
    """
    found: list[Candidate] = []
    for name in variables:
        for suffix in (OBJECT_SUFFIX, ""):
            if name.endswith(f"/recurrent_kernel{suffix}"):
                scope = name.removesuffix(f"/recurrent_kernel{suffix}")
                found += _candidates(scope, suffix, variables, options)
                break
    return tuple(found)


def _candidates(
    scope: str, suffix: str, variables: Mapping[str, VariableInfo], options: StackOptions
) -> Iterator[Candidate]:
    """The stack, or why there is none; nothing where these are no weights of Keras' layers."""
    infos = {
        inner: variables[f"{scope}/{inner}{suffix}"]
        for inner in _TENSORS
        if f"{scope}/{inner}{suffix}" in variables
    }
    layer = scope.removesuffix(_CELL)
    try:
        layout, cell, units = _layout(infos, is_object_based=bool(suffix))
        others = _others(scope, suffix, variables)
        if layout == KERAS and others:
            raise _Other(f"has further variables ({', '.join(others)}), as no layer of Keras has")
    except _Other as error:
        if suffix:
            yield Candidate(layer, problem=f"{layer}: {error}")
        return
    tensors = {inner: info.name for inner, info in infos.items()}
    stack = Stack(
        layer, cell, 1, units, infos["kernel"].shape[0], "unidirectional",
        infos["kernel"].dtype, None, (CellPlace(0, "forward", scope, layout, tensors),),
        activation=(options.activation or "tanh") if layout == KERAS else "tanh",
        assumptions=tuple(_assumed(cell, options)) if layout == KERAS else (),
    )  # fmt: skip
    yield Candidate(layer, stack, full_scope=scope)


def _layout(infos: Mapping[str, VariableInfo], *, is_object_based: bool) -> tuple[str, str, int]:
    """The layout, the cell and the units.

    Raises:
        _Other: shapes or types say that this is no layer of Keras.
    """
    kernel, recurrent = infos.get("kernel"), infos["recurrent_kernel"]
    if kernel is None or len(kernel.shape) != 2 or len(recurrent.shape) != 2:
        raise _Other("the kernels of its cell are no two matrices, as in a ConvLSTM")
    units, columns = recurrent.shape
    gates = columns // units if units else 0
    dtypes = {info.dtype for info in infos.values()}
    if len(dtypes) != 1 or not dtypes <= set(FLOAT_DTYPES) or not all(kernel.shape):
        raise _Other(f"its variables are of the types {', '.join(sorted(dtypes))}")
    bias = infos["bias"].shape if "bias" in infos else None
    if kernel.shape[1] == columns == gates * units and gates in _PLAIN:
        if gates in _CUDNN and bias == (2 * columns,):
            return KERAS_CUDNN, _CUDNN[gates], units
        if is_object_based and gates == 3 and bias == (2, columns):
            return KERAS, "gru", units
        if is_object_based and gates == 3 and bias is None:
            raise _Other(
                "a GRU without biases: whether it resets before or after the matmul can't be told"
            )
        if is_object_based and bias in ((columns,), None):
            return KERAS, _PLAIN[gates], units
    shapes = ", ".join(f"{inner} {list(info.shape)}" for inner, info in infos.items())
    raise _Other(f"its variables have the shapes of no LSTM, GRU or SimpleRNN: {shapes}")


def _others(scope: str, suffix: str, variables: Mapping[str, VariableInfo]) -> list[str]:
    """Names inside a cell's scope beside the kernels and the bias."""
    inside = [
        name.removeprefix(f"{scope}/").removesuffix(suffix)
        for name in variables
        if name.startswith(f"{scope}/") and _SLOT not in name
    ]
    return [name for name in inside if name not in _TENSORS]


def _assumed(cell: str, options: StackOptions) -> Iterator[Assumption]:
    """What `save_weights` does not store."""
    if options.activation is None:
        why = "Keras' default; a checkpoint does not store it, --activation gives it"
        yield Assumption("activation", "tanh", why)
    if cell != "rnn_tanh":
        why = (
            "the default of TensorFlow 2's Keras; a checkpoint does not store it (in TensorFlow 1 "
            "it was hard_sigmoid: then take --to npz and build the layer with it)"
        )
        yield Assumption("recurrent_activation", "sigmoid", why)
