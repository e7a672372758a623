"""What an RNN stack in a checkpoint is: frozen facts."""

from __future__ import annotations

from dataclasses import dataclass

from rnnconvert.checkpoints.graph_cells import CellFacts
from rnnconvert.layouts.opaque_shape import OpaqueShape
from rnnconvert.report import Assumption

DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True)
class CellPlace:
    """Tensors of one direction of one layer, as a cell of TF1 or a layer of Keras stores them.

    Attributes:
        layer: index, from 0.
        direction: one of DIRECTIONS.
        scope: what the names of its variables begin with.
        layout: "tf1:SCOPE" for a cell of `layouts.tf1_cells` (SCOPE its last part, e.g.
            "cudnn_compatible_gru_cell"), or "keras-cudnn" for Keras' split layout.
        tensors: name inside the cell, e.g. "gates/kernel", to the variable's name.
    """

    layer: int
    direction: str
    scope: str
    layout: str
    tensors: dict[str, str]


@dataclass(frozen=True)
class StackSlot:
    """A slot that an optimizer keeps for a variable of a stack, e.g. ("Adam_1", its variable)."""

    name: str
    variable: str


@dataclass(frozen=True)
class Stack:
    """One RNN of one or more layers.

    Attributes:
        scope: what it is called, e.g. "model/enc/cudnn_lstm".
        cell: a key of `layouts.CELLS`.
        num_layers, num_units, input_size, direction: cuDNN's hyperparameters; direction is
            "unidirectional" or "bidirectional".
        dtype: of the weights.
        opaque: the variable that holds cuDNN's flat buffer, None where there is none.
        places: the tensors outside the buffer, layer by layer, forward before backward; empty for
            a stack that is stored as a buffer only.
        slots: of the opaque variable, in the buffer's layout.
        forget_bias: what the cell adds to the forget gate without storing it.
        activation: what the cell computes its state by, as Keras calls it.
        told: what the graph beside the checkpoint says of its cells, where it does.
        assumptions: what the checkpoint does not tell, and changes the numbers.
        input_mode: of the buffer; with "skip_input" layer 0 has no input matrices in it.
    """

    scope: str
    cell: str
    num_layers: int
    num_units: int
    input_size: int
    direction: str
    dtype: str
    opaque: str | None
    places: tuple[CellPlace, ...]
    slots: tuple[StackSlot, ...] = ()
    forget_bias: float = 0.0
    assumptions: tuple[Assumption, ...] = ()
    input_mode: str = "linear_input"
    activation: str = "tanh"
    told: CellFacts | None = None

    @property
    def directions(self) -> tuple[str, ...]:
        return DIRECTIONS if self.direction == "bidirectional" else DIRECTIONS[:1]

    @property
    def is_cudnn(self) -> bool:
        """Whether its weights are stored as cuDNN's layers store them."""
        return self.opaque is not None or any(p.layout == "keras-cudnn" for p in self.places)

    @property
    def is_skipping(self) -> bool:
        """Whether the first layer has no input matrices; only a buffer's graph can say so."""
        return self.opaque is not None and self.shape.skips_input

    @property
    def function(self) -> str:
        """What its state is computed by, as Keras calls it."""
        return "relu" if self.cell == "rnn_relu" else self.activation

    @property
    def shape(self) -> OpaqueShape:
        """The hyperparameters of its buffer."""
        return OpaqueShape(
            self.cell,
            self.num_layers,
            self.num_units,
            self.input_size,
            self.direction,
            self.input_mode,
        )

    @property
    def variables(self) -> tuple[str, ...]:
        """Every variable that belongs to it, without slots."""
        names = [name for place in self.places for name in place.tensors.values()]
        return (*([self.opaque] if self.opaque else []), *names)

    def input_dim(self, layer: int) -> int:
        """Inputs of a layer: the stack's, or all units of the layer below."""
        return self.input_size if layer == 0 else self.num_units * len(self.directions)


@dataclass(frozen=True)
class FoundStacks:
    """The stacks of a checkpoint; any problem means that nothing may be written."""

    stacks: tuple[Stack, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
