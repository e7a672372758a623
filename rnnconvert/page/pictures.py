"""Pictures for the page, as facts for the template: gate blocks that move, differences over time.

All lengths are in the units of an SVG's viewBox.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rnnconvert.errors import NotConvertibleError
from rnnconvert.layouts import BiasForm, Layout, MatrixForm, find

_WIDE, _GAP, _HIGH = 56, 4, 26
_TOP, _BOTTOM = 22, 92
_BIASES = ("input", "recurrent")
_BUFFER = "cudnn-opaque"
"""cuDNN's flat buffer: its blocks are those of the layout "cudnn", one behind the other."""
_WORDS = {
    MatrixForm.ROWS: "{rows} x {n}, gates below each other",
    MatrixForm.COLUMNS: "{n} x {rows}, gates side by side",
    MatrixForm.CUDNN_COLUMNS: "{n} x {rows}, each gate's {units} x {n} memory side by side",
    MatrixForm.SEPARATE: "{gates} blocks of {units} x {n}",
}
_BIAS_WORDS = {
    BiasForm.MERGED: "the sums of the input and the recurrent bias of each gate",
    BiasForm.TWO_ROWS: "two rows: input biases, recurrent biases",
    BiasForm.CONCATENATED: "input biases, then recurrent biases",
    BiasForm.TWO_TENSORS: "two tensors: input biases, recurrent biases",
    BiasForm.SEPARATE: "one block for each gate, input biases first",
}


@dataclass(frozen=True)
class GateBox:
    """One gate's block of a tensor: its letter, and the left edge of its box."""

    gate: str
    x: int


@dataclass(frozen=True)
class Arrow:
    """From the lower edge of a block to the upper edge of another."""

    x1: int
    x2: int


@dataclass(frozen=True)
class Picture:
    """Where the blocks of one tensor came from and went.

    Attributes:
        title: of the tensor.
        before, after: how it was and is stored, in words.
        text: the same as the arrows, for those who can't see them.
    """

    title: str
    before: str
    after: str
    sources: tuple[GateBox, ...]
    targets: tuple[GateBox, ...]
    arrows: tuple[Arrow, ...]
    text: str

    top, bottom, box, high = _TOP, _BOTTOM, _WIDE, _HIGH

    @property
    def width(self) -> int:
        return max(block.x for block in (*self.sources, *self.targets)) + _WIDE + _GAP

    @property
    def height(self) -> int:
        return _BOTTOM + _HIGH + _TOP


def gate_pictures(
    cell: str, source: str, target: str, sizes: tuple[int, int], *, biased: bool
) -> tuple[Picture, ...]:
    """Kernel, recurrent kernel and bias of one layer; none where a layout is not in the table.

    Args:
        cell, source, target: as in a report's layer: "cell", "from", "to".
        sizes: inputs and units.
        biased: whether the layer has a bias.
    """
    try:
        before, after = (find("cudnn" if name == _BUFFER else name, cell)
                         for name in (source, target))  # fmt: skip
    except (ValueError, NotConvertibleError):
        return ()
    inputs, units = sizes
    pictures = [
        _matrix("kernel", before, after, inputs, units),
        _matrix("recurrent kernel", before, after, units, units),
    ]
    return (*pictures, _bias(before, after)) if biased else tuple(pictures)


def _matrix(title: str, before: Layout, after: Layout, n: int, units: int) -> Picture:
    def words(layout: Layout) -> str:
        gates = len(layout.gates)
        return _WORDS[layout.matrix].format(rows=gates * units, n=n, units=units, gates=gates)

    sources, targets = _row(before.gates), _row(after.gates)
    return _picture(title, (words(before), words(after)), sources, targets)


def _bias(before: Layout, after: Layout) -> Picture:
    sources, targets = (_row(_bias_gates(layout)) for layout in (before, after))
    return _picture("bias", (_BIAS_WORDS[before.bias], _BIAS_WORDS[after.bias]), sources, targets)


def _bias_gates(layout: Layout) -> list[str]:
    """E.g. "f" of a sum, "f, recurrent" where the recurrent bias is stored by itself."""
    if layout.bias is BiasForm.MERGED:
        return list(layout.gates)
    return [f"{gate}, {half}" for half in _BIASES for gate in layout.gates]


def _row(gates: Sequence[str]) -> tuple[GateBox, ...]:
    return tuple(GateBox(gate, number * (_WIDE + _GAP)) for number, gate in enumerate(gates))


def _picture(
    title: str, words: tuple[str, str], sources: tuple[GateBox, ...], targets: tuple[GateBox, ...]
) -> Picture:
    pairs = [(a, b) for b in targets for a in sources if _same(a.gate, b.gate)]
    arrows = tuple(Arrow(a.x + _WIDE // 2, b.x + _WIDE // 2) for a, b in pairs)
    told = "; ".join(
        f"place {number}: {block.gate} from place "
        + " + ".join(str(sources.index(a) + 1) for a, b in pairs if b is block)
        for number, block in enumerate(targets, 1)
    )
    return Picture(title, *words, sources, targets, arrows, told)


def _same(one: str, other: str) -> bool:
    """Whether a block goes into another: a merged bias takes both halves, and gives to both."""
    if ", " in one and ", " in other:
        return one == other
    return one.partition(", ")[0] == other.partition(", ")[0]


# --- differences over time ------------------------------------------------------------------

_LINE_WIDTH, _LINE_HEIGHT = 160, 44
_DECADES_BELOW, _DECADES_ABOVE = 6.0, 2.0
"""What the axis shows: from a millionth of the tolerance to a hundred times it."""


@dataclass(frozen=True)
class TimeLine:
    """The difference over time on a logarithmic axis, in which the tolerance is a line.

    Attributes:
        points: of a polyline, as SVG writes them.
        tolerance: height of the tolerance.
    """

    points: str
    tolerance: float

    width, height = _LINE_WIDTH, _LINE_HEIGHT


def time_line(by_step: Sequence[float], tolerance: float) -> TimeLine | None:
    """None where there is nothing over time, or nothing is allowed."""
    if len(by_step) < 2 or not 0 < tolerance < math.inf:
        return None
    step = _LINE_WIDTH / (len(by_step) - 1)
    points = " ".join(
        f"{number * step:.1f},{_height(value / tolerance):.1f}"
        for number, value in enumerate(by_step)
    )
    return TimeLine(points, round(_height(1.0), 1))


def _height(ratio: float) -> float:
    decades = math.log10(ratio) if 0 < ratio < math.inf else math.copysign(99, ratio - 1)
    decades = min(max(decades, -_DECADES_BELOW), _DECADES_ABOVE)
    part = (decades + _DECADES_BELOW) / (_DECADES_BELOW + _DECADES_ABOVE)
    return 2 + (_LINE_HEIGHT - 4) * (1 - part)
