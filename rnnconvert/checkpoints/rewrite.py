"""The variables of a converted checkpoint: canonical tensors instead of cuDNN's buffers.

The names are those that TF1's own cuDNN layers save beside their buffer, and that its CPU cells
(`CudnnCompatibleLSTMCell` and so on under `MultiRNNCell` or `stack_bidirectional_dynamic_rnn`)
restore; or, with `names="keras"`, SCOPE/layer_N/DIRECTION/{kernel,recurrent_kernel,bias}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from rnnconvert import layouts
from rnnconvert.checkpoints.load import cell_layout
from rnnconvert.checkpoints.objects import GRAPH_KEY, is_optimizer, with_cells
from rnnconvert.checkpoints.stack import CellPlace, Stack, StackSlot
from rnnconvert.containers.checkpoint import Checkpoint
from rnnconvert.containers.checkpoint.files import reading
from rnnconvert.containers.raw_file import Filled
from rnnconvert.containers.tiles import MovedTensor
from rnnconvert.layouts import RnnWeights, opaque, tf1_cells
from rnnconvert.layouts.opaque import PseudoLayer
from rnnconvert.layouts.weights import Array

_CELLS = {
    "lstm": ("cudnn_compatible_lstm_cell", tf1_cells.CUDNN_LSTM),
    "gru": ("cudnn_compatible_gru_cell", tf1_cells.CUDNN_GRU),
    "rnn_tanh": ("basic_rnn_cell", tf1_cells.RNN_TANH),
    "rnn_relu": ("basic_rnn_cell", tf1_cells.RNN_RELU),
}
_OBJECT_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


class Packable(Protocol):
    """Weights that are not in memory; see `streams.StreamedWeights`."""

    @property
    def variable(self) -> str: ...

    @property
    def found(self) -> Sequence[MovedTensor]: ...

    @property
    def bias(self) -> Array: ...

    def pack(self, place: CellPlace) -> Mapping[str, Array | Filled]: ...

    def with_bias(self, bias: Array) -> Packable: ...


ReadSlot = Callable[[Stack, StackSlot], Sequence[RnnWeights | Packable]]


@dataclass
class RewrittenVariables:
    """What a checkpoint holds of its stacks after the conversion.

    Attributes:
        tensors: name to array: canonical tensors, and slots that could be kept.
        replaced: variables of the input that are left out.
        notes: sentences on slots.
        places: for each stack's scope, where its weights are now.
        slots: those that are not in memory.
    """

    tensors: dict[str, Array | Filled] = field(default_factory=dict)
    replaced: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    places: dict[str, tuple[CellPlace, ...]] = field(default_factory=dict)
    slots: list[Packable] = field(default_factory=list)

    def add(self, place: CellPlace, weights: RnnWeights | Packable) -> None:
        for inner, array in _packed(place, weights).items():
            self.tensors[place.tensors[inner]] = array

    @property
    def slot_state(self) -> str:
        """For the report's "optimizer"."""
        if not self.notes:
            return "absent"
        return "dropped" if any("dropped" in note for note in self.notes) else "converted"


def _packed(place: CellPlace, weights: RnnWeights | Packable) -> Mapping[str, Array | Filled]:
    return pack_place(place, weights) if isinstance(weights, RnnWeights) else weights.pack(place)


def rewrite_variables(
    stacks: Sequence[Stack],
    weights: Sequence[Sequence[RnnWeights | Packable]],
    checkpoint: Checkpoint,
    names: str,
    read_slot: ReadSlot | None,
) -> RewrittenVariables:
    """The converted variables of all stacks that are stored as cuDNN stores them.

    Args:
        weights: of each stack, see `load.load_weights`.
        checkpoint: for its object graph.
        names: "tf1" or "keras".
        read_slot: gives a slot, cut as the buffer is; None drops the optimizer's slots.
    """
    result = RewrittenVariables()
    for stack, own in zip(stacks, weights, strict=True):
        places = target_places(stack, names)
        result.places[stack.scope] = places
        if not stack.is_cudnn and names == "tf1":
            continue
        result.replaced |= set(stack.variables)
        for place, canonical in zip(places, own, strict=True):
            result.add(place, canonical)
        result.replaced |= {slot.variable for slot in stack.slots}
        if read_slot is None:
            result.notes += [
                f"{slot.variable} dropped, as asked for (--optimizer drop)" for slot in stack.slots
            ]
        else:
            _add_slots(result, stack, read_slot)
    if names == "tf1":
        _put_into_objects(result, stacks, checkpoint)
    return result


def _put_into_objects(
    result: RewrittenVariables, stacks: Sequence[Stack], checkpoint: Checkpoint
) -> None:
    """The object graph along which Keras restores what were CuDNN layers, where there is one."""
    layers = [
        stack.variables
        for stack in stacks
        if stack.is_cudnn and all(name.endswith(_OBJECT_SUFFIX) for name in stack.variables)
    ]
    if not layers or GRAPH_KEY not in checkpoint.variables:
        return
    with reading(GRAPH_KEY):
        graph = with_cells(checkpoint.read(GRAPH_KEY).item(), layers)
    result.tensors[GRAPH_KEY] = np.array(graph, object)
    state = {name for name in checkpoint.variables if is_optimizer(name)}
    result.replaced |= {GRAPH_KEY, *state}
    if state:
        result.notes.append(
            f"{len(state)} variables of the optimizer dropped: they have the shapes of the CuDNN "
            "layers"
        )


def rewrite_inverse(
    stacks: Sequence[Stack], weights: Sequence[Sequence[RnnWeights]]
) -> RewrittenVariables:
    """Buffers for all stacks that have none, and the canonical tensors that TF1 saves beside one.

    The name is that of TF1's layers, SCOPE/opaque_kernel. Biases that were one are halved.

    Args:
        weights: of each stack, see `load.load_weights`.
    """
    result = RewrittenVariables()
    for stack, own in zip(stacks, weights, strict=True):
        if stack.is_cudnn:
            continue
        result.places[stack.scope] = places = _new_places(stack, "tf1")
        result.replaced |= set(stack.variables)
        layers = []
        for place, canonical in zip(places, own, strict=True):
            result.add(place, canonical)
            layers.append(PseudoLayer.of(canonical, place.layer, place.direction))
        result.tensors[f"{stack.scope}/opaque_kernel"] = opaque.pack_buffer(stack.shape, layers)
    return result


def target_places(stack: Stack, names: str) -> tuple[CellPlace, ...]:
    """Where the weights of a stack are after the conversion, layer by layer."""
    if names == "tf1" and stack.places:
        if all(place.layout == "keras-cudnn" for place in stack.places):
            return tuple(replace(place, layout="keras") for place in stack.places)
        if all(place.layout.startswith(("tf1:", "keras")) for place in stack.places):
            return stack.places
    return _new_places(stack, names)


def _new_places(stack: Stack, names: str) -> tuple[CellPlace, ...]:
    return tuple(
        _place(stack, layer, direction, names)
        for layer in range(stack.num_layers)
        for direction in stack.directions
    )


def _place(stack: Stack, layer: int, direction: str, names: str) -> CellPlace:
    if names == "keras":
        scope = f"{stack.scope}/layer_{layer}/{direction}"
        kinds = ("kernel", "recurrent_kernel", "bias")
        return CellPlace(layer, direction, scope, "keras", {k: f"{scope}/{k}" for k in kinds})
    cell, layout = _CELLS[stack.cell]
    inner = f"rnn/multi_rnn_cell/cell_{layer}"
    if stack.direction == "bidirectional":
        side = "fw" if direction == "forward" else "bw"
        inner = f"stack_bidirectional_rnn/cell_{layer}/bidirectional_rnn/{side}"
    scope = f"{stack.scope}/{inner}/{cell}"
    inside = [name for block in layout.blocks for name in (block.kernel, block.bias)]
    return CellPlace(layer, direction, scope, f"tf1:{cell}", {k: f"{scope}/{k}" for k in inside})


def pack_place(place: CellPlace, weights: RnnWeights) -> dict[str, Array]:
    """The tensors of a place, by their names inside it."""
    if place.layout == "keras":
        return layouts.pack(layouts.find("keras", weights.cell), weights)
    return tf1_cells.pack_tf1(cell_layout(weights.cell, place), weights)


def unpack_place(place: CellPlace, stack: Stack, tensors: Mapping[str, Array]) -> RnnWeights:
    """The inverse of `pack_place`; merged biases come back as halves.

    A place that the stack had before keeps its forget bias, a new one has its class' own.
    """
    if place.layout == "keras":
        return layouts.unpack(layouts.find("keras", stack.cell), tensors)
    forget_bias = stack.forget_bias if place in stack.places else None
    return tf1_cells.unpack_tf1(cell_layout(stack.cell, place), tensors, forget_bias)


# --- slots ----------------------------------------------------------------------------------


def _add_slots(result: RewrittenVariables, stack: Stack, read_slot: ReadSlot) -> None:
    """Cut the slots like the buffer; all of them or none, for an optimizer needs them together.

    A merged bias takes the slot of its halves, where they agree.
    """
    tensors: dict[str, Array | Filled] = {}
    streamed: list[Packable] = []
    places = result.places[stack.scope]
    for slot in stack.slots:
        linear = slot.name == "ExponentialMovingAverage"  # the average of a sum of averages
        for place, own in zip(places, read_slot(stack, slot), strict=True):
            assert own.bias is not None
            bias = own.bias if linear else _merged_slot(stack.cell, own.bias)
            reason = None
            if bias is None:
                reason = (
                    "input and recurrent biases have different slots, so there is no exact slot "
                    "for their sum"
                )
            elif any(name.endswith(_OBJECT_SUFFIX) for name in place.tensors.values()):
                reason = "slots of an object-based checkpoint have other names"
            if bias is None or reason:
                result.notes.append(f"slots of {stack.opaque} dropped: {slot.variable}: {reason}")
                return
            if isinstance(own, RnnWeights):
                own = replace(own, bias=bias)
            else:
                own = own.with_bias(bias)
                streamed.append(own)
            for inner, array in _packed(place, own).items():
                tensors[f"{place.tensors[inner]}/{slot.name}"] = array
    result.tensors.update(tensors)
    result.slots += streamed
    result.notes += [f"{slot.variable} unpacked like its buffer" for slot in stack.slots]


def _merged_slot(cell: str, slot: Array) -> Array | None:
    """A bias' slot in which what will be merged is there once; None where halves disagree.

    The gradient of both halves is the same, so their slots agree to rounding. The layouts add the
    halves of a merged bias, so one of them is set to zero.
    """
    bias = slot.copy()
    for index, gate in enumerate(layouts.CELLS[cell].gates):
        if cell == "gru" and gate == "n":
            continue
        one, other = bias[:, index].astype(np.float64)
        scale = max(float(np.abs(one).max(initial=0)), 1e-30)
        if np.abs(one - other).max(initial=0) > 1e-5 * scale:
            return None
        bias[1, index] = 0
    return bias
