"""TensorFlow's cuDNN RNN ops: their names and outputs, and what is found and done about them."""

from __future__ import annotations

from dataclasses import dataclass

from rnnconvert.errors import UsageError

_FORWARD = ("output", "output_h", "output_c", "reserve_space")
_BACKWARD = ("input_backprop", "input_h_backprop", "input_c_backprop", "params_backprop")

FORWARD = frozenset({"CudnnRNN", "CudnnRNNV2", "CudnnRNNV3"})
BACKWARD = frozenset({"CudnnRNNBackprop", "CudnnRNNBackpropV2", "CudnnRNNBackpropV3"})
TO_CANONICAL = frozenset({"CudnnRNNParamsToCanonical", "CudnnRNNParamsToCanonicalV2"})
FROM_CANONICAL = frozenset({"CudnnRNNCanonicalToParams", "CudnnRNNCanonicalToParamsV2"})
PARAMS_SIZE = frozenset({"CudnnRNNParamsSize"})
ALL = FORWARD | BACKWARD | TO_CANONICAL | FROM_CANONICAL | PARAMS_SIZE
"""Every cuDNN RNN op of TensorFlow. None has a CPU kernel."""


@dataclass(frozen=True)
class LoweringOptions:
    """How graphs are lowered.

    Attributes:
        ignore_dropout: lower a training op with dropout between its layers, without the dropout;
            such an op is refused otherwise, as cuDNN's random numbers can't be reproduced.
        unroll: number of time steps to unroll into plain ops without loops, for converters that
            know no loops; the input must then have that many. None keeps any length.
        input_size, num_units, num_layers: what to take where a graph does not tell. They never
            overrule what it tells.
        keep_devices: keep device strings that name a GPU. They are dropped otherwise: where there
            is none, a TensorFlow 1 session refuses such a graph, whatever its ops.
    """

    ignore_dropout: bool = False
    unroll: int | None = None
    input_size: int | None = None
    num_units: int | None = None
    num_layers: int | None = None
    keep_devices: bool = False

    def __post_init__(self) -> None:
        for name in ("unroll", "input_size", "num_units", "num_layers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name}={value}: expected at least 1")


@dataclass(frozen=True)
class CudnnOp:
    """One cuDNN RNN op as found in a graph.

    Attributes:
        name: of the node.
        function: name of the library function that holds it; "" for the main graph.
        op: the op's type, one of ALL.
        mode: "lstm", "gru", "rnn_tanh" or "rnn_relu".
        num_layers, units, input_size: None where the graph does not tell.
        direction: "unidirectional" or "bidirectional".
        input_mode: "linear_input", "skip_input" or "auto_select".
        num_proj: size of the projection, 0 for none.
        dtype: e.g. "float32".
        is_training: None for ops without the attribute.
        dropout: between layers, in training.
        time_major: layout of input and output; True for ops without the attribute.
        params: names of the variables or constants that the parameters come from.
        params_kind: "variable" or "constant" (the buffer itself), "computed" from others, or
            "unknown"; "" for ops without parameters.
        reachable: whether running the model can get there.
        gpu_twin: only reached through the GPU variant of a function that has a CPU variant too
            (plain Keras LSTM and GRU have these); the model runs anywhere as it is.
        problem: why its sizes could not be told, if so.
    """

    name: str
    function: str
    op: str
    mode: str
    num_layers: int | None
    units: int | None
    input_size: int | None
    direction: str
    input_mode: str
    num_proj: int
    dtype: str
    is_training: bool | None
    dropout: float
    time_major: bool
    params: tuple[str, ...]
    params_kind: str
    reachable: bool
    gpu_twin: bool
    problem: str | None = None

    @property
    def needs_lowering(self) -> bool:
        """The presence of an op alone says nothing: it must be reached other than as a twin."""
        return self.reachable and not self.gpu_twin

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return f"{self.name} in function {self.function}" if self.function else self.name


@dataclass(frozen=True)
class LoweredGraph:
    """What was done to a graph.

    Attributes:
        lowered: the ops that became ordinary ops.
        left: cuDNN ops that were left alone, being unreachable or in a GPU twin.
        warnings: one sentence each.
        repaired: a collection that no TensorFlow can load was put right (MetaGraphs only).
    """

    lowered: tuple[CudnnOp, ...]
    left: tuple[CudnnOp, ...]
    warnings: tuple[str, ...] = ()
    repaired: bool = False

    @property
    def changed(self) -> bool:
        return bool(self.lowered) or self.repaired


def op_output_names(op: str) -> tuple[str, ...] | None:
    """Names of an op's outputs, each one tensor; None where it has lists of tensors."""
    if op in FORWARD:
        return _FORWARD if op == "CudnnRNN" else (*_FORWARD, "host_reserved")
    if op in BACKWARD:
        return _BACKWARD
    if op in FROM_CANONICAL:
        return ("params",)
    return ("params_size",) if op in PARAMS_SIZE else None
