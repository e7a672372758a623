"""Weights that cuDNN's layers save as the outputs of an op.

TF 1.2 saves the outputs of
`CudnnRNNParamsToCanonical`, and so does TF 1.3 but for LSTM and GRU in one direction: NAME:0 to
NAME:n-1 are matrices (units, inputs), NAME:n to NAME:2n-1 biases (units,), in the buffer's order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product

from rnnconvert.checkpoints.groups import Candidate, common_scope
from rnnconvert.checkpoints.stack import CellPlace, Stack
from rnnconvert.containers.checkpoint import VariableInfo
from rnnconvert.layouts import CELLS
from rnnconvert.layouts.opaque_shape import CUDNN_CELLS, DIRECTIONS, OpaqueShape
from rnnconvert.layouts.weights import FLOAT_DTYPES
from rnnconvert.options import StackOptions

OP_OUTPUTS = "cudnn"
_OP_OUTPUT = re.compile(r"(?P<op>(?:.*/)?CudnnRNNParamsToCanonical(?:_[0-9]+)?):(?P<index>[0-9]+)")


# --- outputs of CudnnRNNParamsToCanonical ---------------------------------------------------


def op_output_stacks(
    variables: Mapping[str, VariableInfo], options: StackOptions
) -> tuple[Candidate, ...]:
    """The stacks that TF 1.2 and 1.3 save as the outputs of an op."""
    ops: dict[str, dict[int, VariableInfo]] = {}
    for name, info in variables.items():
        match = _OP_OUTPUT.fullmatch(name)
        if match and len(match["index"]) < 6:
            ops.setdefault(match["op"], {})[int(match["index"])] = info
    return tuple(_op_candidate(op, outputs, options) for op, outputs in ops.items())


def _op_candidate(op: str, outputs: Mapping[int, VariableInfo], options: StackOptions) -> Candidate:
    infos = [outputs[index] for index in sorted(outputs)]
    dtypes = {info.dtype for info in infos}
    if len(infos) != max(outputs) + 1 or len(dtypes) != 1 or not dtypes <= set(FLOAT_DTYPES):
        return Candidate(op, problem=f"{op}: outputs are missing, or they have several dtypes")
    shapes = list(_shapes([info.shape for info in infos]))
    wanted = [shape for shape in shapes if _agrees(shape, options)]
    if len(wanted) > 1 and {shape.cell for shape in wanted} == {"rnn_tanh", "rnn_relu"}:
        wanted = [shape for shape in wanted if shape.cell == "rnn_tanh"]  # `find` decides
    if len(wanted) != 1:
        fits = "; ".join(str(shape) for shape in wanted or shapes) or "nothing"
        return Candidate(
            op,
            problem=f"{op}: the shapes of its outputs :0 to :{max(outputs)} fit {fits}; say which "
            "by --cell, --layers and --direction",
        )
    shape = wanted[0]
    stack = Stack(
        op, shape.cell, shape.num_layers, shape.num_units, shape.input_size, shape.direction,
        dtypes.pop(), None, tuple(_op_places(op, shape, infos)),
    )  # fmt: skip
    return Candidate(op, stack, prefix=common_scope([op]), full_scope=op)


def _agrees(shape: OpaqueShape, options: StackOptions) -> bool:
    told = {name: getattr(options, name) for name in ("cell", "num_layers", "direction")}
    return all(value in (None, getattr(shape, name)) for name, value in told.items())


def _shapes(shapes: list[tuple[int, ...]]) -> Iterator[OpaqueShape]:
    """All hyperparameters with which the op has outputs of these shapes."""
    count, odd = divmod(len(shapes), 2)
    if odd or not count or len(shapes[0]) != 2 or not all(shapes[0]):
        return
    units, inputs = shapes[0]
    for cell, direction in product(CUDNN_CELLS, DIRECTIONS):
        layers, rest = divmod(count, 2 * len(CELLS[cell].gates) * len(DIRECTIONS[direction]))
        if rest or not layers:
            continue
        shape = OpaqueShape(cell, layers, units, inputs, direction)
        matrices = [size for part in _inputs(shape) for size in part]
        if shapes == [(units, size) for size in matrices] + [(units,)] * count:
            yield shape


def _inputs(shape: OpaqueShape) -> Iterator[list[int]]:
    """For each pseudo-layer, the columns of its matrices."""
    gates, sides = len(shape.gates), len(shape.directions)
    for layer in range(shape.num_layers):
        width = sides * shape.num_units if layer else shape.input_size
        for _ in range(sides):
            yield [width] * gates + [shape.num_units] * gates


def _op_places(op: str, shape: OpaqueShape, infos: list[VariableInfo]) -> Iterator[CellPlace]:
    per_layer, count = 2 * len(shape.gates), len(infos) // 2
    kinds = [f"{kind}_{gate}" for kind in ("W", "R", "bW", "bR") for gate in shape.gates]
    for number, (layer, direction) in enumerate(product(range(shape.num_layers), shape.directions)):
        first = number * per_layer
        own = [*infos[first : first + per_layer], *infos[count + first : count + first + per_layer]]
        tensors = {kind: info.name for kind, info in zip(kinds, own, strict=True)}
        yield CellPlace(layer, direction, op, OP_OUTPUTS, tensors)
