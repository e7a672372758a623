"""cuDNN's flat parameter buffer: which matrix lies where, for a whole RNN of several layers.

The buffer holds all matrices of all (layer, direction) pairs, then all their biases; pair p is
`layer * directions + direction`. With G gates, U units and P outputs (P = U, or the projection's
size), and `in_p` inputs (the RNN's own for the first layer, directions * P after it):

    for p:  W (G, U, in_p)   R (G, U, P)   [projection (P, U)]        row-major
    for p:  bW (G, U)        bR (G, U)

Gates: LSTM i f c o; GRU r z n; plain RNN one. No padding, the same offsets for every dtype. With
skip input the first layer has no W, but keeps its bW. cuDNN's own library answers so when asked for
the place of each matrix (cudnnGetRNNWeightParams), in versions 7.1 to 9.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}

INPUT_KERNEL = "input kernel"
RECURRENT_KERNEL = "recurrent kernel"
PROJECTION = "projection"
INPUT_BIAS = "input bias"
RECURRENT_BIAS = "recurrent bias"


@dataclass(frozen=True)
class BufferRegion:
    """A piece of the buffer: all gates of one tensor of one (layer, direction) pair.

    Attributes:
        kind: one of the constants above.
        pair: layer * directions + direction.
        shape: (rows, columns) or (length,); -1 for the RNN's input size where that is unknown.
    """

    kind: str
    pair: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class RnnShape:
    """All that fixes the layout of one RNN's parameters.

    Attributes:
        mode: a key of GATES.
        num_layers, units: at least 1.
        input_size: None where only the running graph knows it.
        bidirectional: two directions in each layer.
        skip_input: the first layer's gates see the input itself, without a matrix.
        num_proj: size of the LSTM's projection, 0 for none.
    """

    mode: str
    num_layers: int
    units: int
    input_size: int | None
    bidirectional: bool = False
    skip_input: bool = False
    num_proj: int = 0

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def pairs(self) -> int:
        """Number of (layer, direction) pairs."""
        return self.num_layers * self.directions

    @property
    def gates(self) -> int:
        return GATES[self.mode]

    @property
    def output_size(self) -> int:
        """Outputs of one direction."""
        return self.num_proj or self.units

    def regions(self) -> list[BufferRegion]:
        """The pieces of the buffer, in its order."""
        rows = self.gates * self.units
        matrices, biases = [], []
        for pair in range(self.pairs):
            first_layer = pair < self.directions
            if not (first_layer and self.skip_input):
                width = self.directions * self.output_size
                if first_layer:
                    width = -1 if self.input_size is None else self.input_size
                matrices.append(BufferRegion(INPUT_KERNEL, pair, (rows, width)))
            matrices.append(BufferRegion(RECURRENT_KERNEL, pair, (rows, self.output_size)))
            if self.num_proj:
                matrices.append(BufferRegion(PROJECTION, pair, (self.num_proj, self.units)))
            biases.append(BufferRegion(INPUT_BIAS, pair, (rows,)))
            biases.append(BufferRegion(RECURRENT_BIAS, pair, (rows,)))
        return matrices + biases

    def size(self) -> int:
        """Length of the buffer; the input size must be known (or not matter: skip input)."""
        if self.input_size is None and not self.skip_input:
            raise ValueError("the buffer's length needs the input size")
        rows = self.gates * self.units
        inputs = 0 if self.skip_input else self.directions * rows * (self.input_size or 0)
        inputs += (self.pairs - self.directions) * rows * self.directions * self.output_size
        of_each = rows * self.output_size + self.num_proj * self.units + 2 * rows
        return inputs + self.pairs * of_each


def solve(shape: RnnShape, unknown: str, length: int) -> RnnShape | None:
    """The RnnShape with this buffer length, by the one field that is unknown; None if none fits.

    Args:
        shape: its field `unknown` is ignored.
        unknown: "num_layers", "units" or "input_size". The length grows with each of them.
        length: of the buffer.
    """

    def size(value: int) -> int:
        return replace(shape, **{unknown: value}).size()  # type: ignore[arg-type]

    # Each of the three is at least counted by the biases, so none exceeds the buffer's length; the
    # search itself stays far below it, as the length grows at least linearly.
    low, high = 1, 1
    while size(high) < length:
        low, high = high, 2 * high
    value = bisect_left(range(high + 1), length, lo=low, key=size)
    if size(value) != length:
        return None
    return replace(shape, **{unknown: value})  # type: ignore[arg-type]
