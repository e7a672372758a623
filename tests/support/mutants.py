"""Wrong conversions from `keras-cudnn` to `keras`, which a good test has to catch.

`TENSOR_MUTANTS` make wrong Keras tensors from right CuDNN tensors; most are errors that were made
somewhere: forgetting the re-laying, transposing it, another program's gate order, a lost bias.
`FUNCTION_MUTANTS` take the right tensors and compute another function with them: the error is in
the layer's config. A mutant's name starts with what it spoils: "kernel:", "recurrent:", "bias:",
"gates:" (kernel, recurrent kernel and bias alike), "buffer:" or "function:".

Not in the list, since they don't change the function:

- LSTM: the halves of the bias swapped, or any other split with the same sum;
- GRU: the halves of the z and r biases swapped, or merged in one half. Only their sum counts; it
  is the candidate's bias, whose recurrent half r multiplies, that gives such a mutant away.

Not in the list, since they are in it under another name:

- GRU: cuDNN's canonical gate order r z n for everything, which is "gates: z and r swapped";
- LSTM: TF1's gate order i c f o for everything, which is "gates: f and c swapped".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from equations import Activation, Array, relu

from rnnconvert import layouts

Tensors = dict[str, Array]
KERAS_GATES = {"lstm": ("i", "f", "c", "o"), "gru": ("z", "r", "n")}
LSTM, GRU, BOTH = ("lstm",), ("gru",), ("lstm", "gru")


@dataclass(frozen=True)
class Mutant:
    """A wrong conversion: `apply(cudnn_tensors, cell)` gives wrong Keras tensors."""

    name: str
    cells: tuple[str, ...]
    apply: Callable[[Mapping[str, Array], str], Tensors]


@dataclass(frozen=True)
class FunctionMutant:
    """A wrong function of the right tensors: `flags` are keywords of `keras_forward`."""

    name: str
    cells: tuple[str, ...]
    flags: Mapping[str, bool | Activation]


def right(tensors: Mapping[str, Array], cell: str) -> Tensors:
    """The right conversion, which each mutant spoils in one place."""
    return layouts.convert(tensors, "keras-cudnn", "keras", cell)


def _per_gate(matrix: Array, cell: str, change: Callable[[Array], Array]) -> Array:
    """`change` applied to the block of each gate."""
    return np.hstack([change(block) for block in np.hsplit(matrix, len(KERAS_GATES[cell]))])


def _halves(tensors: Mapping[str, Array]) -> tuple[Array, Array]:
    input_bias, recurrent_bias = np.split(tensors["bias"], 2)
    return input_bias, recurrent_bias


def _with_bias(tensors: Mapping[str, Array], cell: str, halves: tuple[Array, Array]) -> Tensors:
    """The right kernels with the bias made from these halves: a sum for LSTM, rows for GRU."""
    bias = halves[0] + halves[1] if cell == "lstm" else np.stack(halves)
    return {**right(tensors, cell), "bias": bias}


# --- kernel ---------------------------------------------------------------------------------


def kernel_untouched(tensors: Mapping[str, Array], cell: str) -> Tensors:
    """The kernel copied as it is; equal shapes invite it."""
    return {**right(tensors, cell), "kernel": tensors["kernel"]}


def kernel_inverse(tensors: Mapping[str, Array], cell: str) -> Tensors:
    """Each block transposed first and re-laid then: the conversion from Keras to cuDNN.

    The same as reading the block's buffer as (units, input_dim) in Fortran order.
    """

    def relay(block: Array) -> Array:
        return block.T.reshape(block.shape)

    return {**right(tensors, cell), "kernel": _per_gate(tensors["kernel"], cell, relay)}


def kernel_as_one(tensors: Mapping[str, Array], cell: str) -> Tensors:
    """The re-laying done on the whole kernel instead of gate by gate."""
    kernel = tensors["kernel"]
    return {**right(tensors, cell), "kernel": kernel.reshape(kernel.shape[::-1]).T}


def kernel_transposed_as_one(tensors: Mapping[str, Array], cell: str) -> Tensors:
    """The whole kernel transposed, and its rows cut to fit the shape."""
    kernel = tensors["kernel"]
    return {**right(tensors, cell), "kernel": kernel.T.reshape(kernel.shape)}


def kernel_interleaved(tensors: Mapping[str, Array], cell: str) -> Tensors:
    """The gates' columns taken in turn (i f c o i f c o ...) instead of block by block."""
    kernel = right(tensors, cell)["kernel"]
    rows, gates = len(kernel), len(KERAS_GATES[cell])
    interleaved = kernel.reshape(rows, gates, -1).transpose(0, 2, 1).reshape(rows, -1)
    return {**right(tensors, cell), "kernel": interleaved}


# --- recurrent kernel -----------------------------------------------------------------------


def recurrent_untouched(tensors: Mapping[str, Array], cell: str) -> Tensors:
    """The recurrent kernel copied as it is."""
    return {**right(tensors, cell), "recurrent_kernel": tensors["recurrent_kernel"]}


def recurrent_as_one(tensors: Mapping[str, Array], cell: str) -> Tensors:
    """The whole recurrent kernel transposed, and its rows cut to fit the shape."""
    recurrent = tensors["recurrent_kernel"]
    return {**right(tensors, cell), "recurrent_kernel": recurrent.T.reshape(recurrent.shape)}


# --- both -----------------------------------------------------------------------------------


def nothing_but_bias(tensors: Mapping[str, Array], cell: str) -> Tensors:
    """Only the bias converted: the least that makes the shapes fit."""
    return {**kernel_untouched(tensors, cell), "recurrent_kernel": tensors["recurrent_kernel"]}


def recurrent_first(tensors: Mapping[str, Array], cell: str) -> Tensors:
    """The flat buffer cut in the wrong order: recurrent matrices first, then the kernel's."""
    kernel, recurrent = tensors["kernel"], tensors["recurrent_kernel"]
    buffer = np.concatenate([kernel.ravel(), recurrent.ravel()])
    cut = {
        "recurrent_kernel": buffer[: recurrent.size].reshape(recurrent.shape),
        "kernel": buffer[recurrent.size :].reshape(kernel.shape),
    }
    return right({**tensors, **cut}, cell)


# --- gate order -----------------------------------------------------------------------------

PARTS = {
    "kernel": ("kernel",),
    "recurrent": ("recurrent_kernel",),
    "bias": ("bias",),
    "gates": ("kernel", "recurrent_kernel", "bias"),
    "kernel and recurrent": ("kernel", "recurrent_kernel"),
}


def reorder(tensors: Mapping[str, Array], cell: str, *, part: str, order: str) -> Tensors:
    """The gates of one part of the Keras tensors stored in another order."""
    converted = right(tensors, cell)
    places = [KERAS_GATES[cell].index(gate) for gate in order]
    for name in PARTS[part]:
        blocks = np.split(converted[name], len(places), axis=-1)
        converted[name] = np.concatenate([blocks[place] for place in places], axis=-1)
    return converted


def _swaps() -> tuple[Mutant, ...]:
    """Two gates exchanged, in one tensor or in all."""
    orders = {"lstm": ("fico", "ifoc", "icfo"), "gru": ("rzn", "znr")}
    mutants = []
    for cell, cell_orders in orders.items():
        for order in cell_orders:
            gates = KERAS_GATES[cell]
            first, second = (gate for gate, new in zip(gates, order, strict=True) if gate != new)
            for part in ("kernel", "recurrent", "bias", "gates"):
                name = f"{part}: {first} and {second} swapped"
                mutants.append(Mutant(name, (cell,), partial(reorder, part=part, order=order)))
    return tuple(mutants)


# --- bias -----------------------------------------------------------------------------------


def bias_lost(tensors: Mapping[str, Array], cell: str) -> Tensors:
    """As a file of `use_bias=False` would read."""
    zeros = np.zeros_like(_halves(tensors)[0])
    return _with_bias(tensors, cell, (zeros, zeros))


def bias_recurrent_half_lost(tensors: Mapping[str, Array], cell: str) -> Tensors:
    """The first half of the bias kept: the right length for an LSTM."""
    input_bias, recurrent_bias = _halves(tensors)
    return _with_bias(tensors, cell, (input_bias, np.zeros_like(recurrent_bias)))


def bias_input_half_lost(tensors: Mapping[str, Array], cell: str) -> Tensors:
    input_bias, recurrent_bias = _halves(tensors)
    return _with_bias(tensors, cell, (np.zeros_like(input_bias), recurrent_bias))


def bias_first_half_twice(tensors: Mapping[str, Array], cell: str) -> Tensors:
    """Right for a file whose halves are equal, as after a restore from a merged bias."""
    input_bias, _ = _halves(tensors)
    return _with_bias(tensors, cell, (input_bias, input_bias))


def bias_second_half_twice(tensors: Mapping[str, Array], cell: str) -> Tensors:
    _, recurrent_bias = _halves(tensors)
    return _with_bias(tensors, cell, (recurrent_bias, recurrent_bias))


def bias_averaged(tensors: Mapping[str, Array], cell: str) -> Tensors:
    """The mean of the halves instead of their sum."""
    input_bias, recurrent_bias = _halves(tensors)
    return _with_bias(tensors, cell, (0.5 * input_bias, 0.5 * recurrent_bias))


def bias_subtracted(tensors: Mapping[str, Array], cell: str) -> Tensors:
    input_bias, recurrent_bias = _halves(tensors)
    return _with_bias(tensors, cell, (input_bias, -recurrent_bias))


def bias_halves_swapped(tensors: Mapping[str, Array], cell: str) -> Tensors:
    input_bias, recurrent_bias = _halves(tensors)
    return _with_bias(tensors, cell, (recurrent_bias, input_bias))


def bias_merged(tensors: Mapping[str, Array], cell: str) -> Tensors:
    """The sum of the halves in the input row, as if the GRU merged like the LSTM."""
    input_bias, recurrent_bias = _halves(tensors)
    return _with_bias(tensors, cell, (input_bias + recurrent_bias, np.zeros_like(recurrent_bias)))


def bias_split_evenly(tensors: Mapping[str, Array], cell: str) -> Tensors:
    """The sum of the halves, halved: what a merging checkpoint leaves of a GRU's candidate."""
    input_bias, recurrent_bias = _halves(tensors)
    half = 0.5 * (input_bias + recurrent_bias)
    return _with_bias(tensors, cell, (half, half))


def bias_pairs(tensors: Mapping[str, Array], cell: str) -> Tensors:
    """reshape(-1, 2) instead of reshape(2, -1): input and recurrent bias number by number."""
    pairs = tensors["bias"].reshape(-1, 2)
    return _with_bias(tensors, cell, (pairs[:, 0], pairs[:, 1]))


def bias_gate_by_gate(tensors: Mapping[str, Array], cell: str) -> Tensors:
    """Input and recurrent bias gate by gate instead of all input biases first."""
    pairs = tensors["bias"].reshape(len(KERAS_GATES[cell]), 2, -1)
    return _with_bias(tensors, cell, (pairs[:, 0].ravel(), pairs[:, 1].ravel()))


def forget_bias_again(tensors: Mapping[str, Array], cell: str) -> Tensors:
    """1 added to the forget gate's bias, as for a TF1 cell, whose file doesn't hold it."""
    converted = right(tensors, cell)
    units = len(converted["recurrent_kernel"])
    forget = np.arange(4 * units) // units == KERAS_GATES["lstm"].index("f")
    return {**converted, "bias": converted["bias"] + forget}


TENSOR_MUTANTS: tuple[Mutant, ...] = (
    Mutant("kernel: untouched", BOTH, kernel_untouched),
    Mutant("kernel: re-laid by the inverse conversion", BOTH, kernel_inverse),
    Mutant("kernel: re-laid as one matrix", BOTH, kernel_as_one),
    Mutant("kernel: transposed as one matrix", BOTH, kernel_transposed_as_one),
    Mutant("kernel: gates interleaved", BOTH, kernel_interleaved),
    Mutant("recurrent: untouched", BOTH, recurrent_untouched),
    Mutant("recurrent: transposed as one matrix", BOTH, recurrent_as_one),
    Mutant("buffer: nothing but the bias converted", BOTH, nothing_but_bias),
    Mutant("buffer: recurrent matrices first", BOTH, recurrent_first),
    *_swaps(),
    Mutant("gates: ONNX' order i o f c", LSTM, partial(reorder, part="gates", order="iofc")),
    Mutant("gates: candidate first", GRU, partial(reorder, part="gates", order="nzr")),
    Mutant(
        "buffer: kernel and recurrent kernel in cuDNN's order r z n",
        GRU,
        partial(reorder, part="kernel and recurrent", order="rzn"),
    ),
    Mutant("bias: lost", BOTH, bias_lost),
    Mutant("bias: recurrent half lost", BOTH, bias_recurrent_half_lost),
    Mutant("bias: input half lost", BOTH, bias_input_half_lost),
    Mutant("bias: first half twice", BOTH, bias_first_half_twice),
    Mutant("bias: second half twice", BOTH, bias_second_half_twice),
    Mutant("bias: averaged", BOTH, bias_averaged),
    Mutant("bias: recurrent half subtracted", BOTH, bias_subtracted),
    Mutant("bias: halves number by number", BOTH, bias_pairs),
    Mutant("bias: halves gate by gate", BOTH, bias_gate_by_gate),
    Mutant("bias: halves swapped", GRU, bias_halves_swapped),
    Mutant("bias: merged into the input half", GRU, bias_merged),
    Mutant("bias: merged and split evenly", GRU, bias_split_evenly),
    Mutant("buffer: forget bias added again", LSTM, forget_bias_again),
)


# --- function -------------------------------------------------------------------------------


def hard_sigmoid_keras2(x: Array) -> Array:
    return np.clip(0.2 * x + 0.5, 0.0, 1.0)


def hard_sigmoid_keras3(x: Array) -> Array:
    return np.clip(x / 6.0 + 0.5, 0.0, 1.0)


FUNCTION_MUTANTS: tuple[FunctionMutant, ...] = (
    FunctionMutant(
        "function: Keras 2 hard_sigmoid", BOTH, {"recurrent_activation": hard_sigmoid_keras2}
    ),
    FunctionMutant(
        "function: Keras 3 hard_sigmoid", BOTH, {"recurrent_activation": hard_sigmoid_keras3}
    ),
    FunctionMutant("function: relu instead of tanh", BOTH, {"activation": relu}),
    FunctionMutant("function: reset before the matmul", GRU, {"reset_after": False}),
    FunctionMutant("function: z is the candidate's share", GRU, {"keep_share": False}),
    FunctionMutant("function: the other direction in time", BOTH, {"go_backwards": True}),
    FunctionMutant("function: initial state ignored", BOTH, {"use_initial_state": False}),
)
