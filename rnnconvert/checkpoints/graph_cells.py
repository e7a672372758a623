"""What the graph beside a checkpoint (NAME.meta) says of TF1's recurrent cells.

A cell is found by what is done with its bias, never by the names of ops, which differ from version
to version and with what runs the cell. Of an LSTM the sum that the bias is added to is split into
the gates i, j, f, o; what is added to f on its way to a Sigmoid is the forget bias; what j goes
through on its way to the product with i's Sigmoid is the activation, which c goes through as well.
The block cells say both in attributes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from rnnconvert.containers.checkpoint.dtypes import dtype_name
from rnnconvert.containers.checkpoint.files import Malformed
from rnnconvert.containers.checkpoint.wire import Message, decode_varints
from rnnconvert.containers.graph_def import VARIABLES, Graph, GraphNode, GraphValue, Use

ACTIVATIONS = {
    "Tanh": "tanh",
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Elu": "elu",
    "Selu": "selu",
    "Softplus": "softplus",
    "Softsign": "softsign",
}
"""TensorFlow's ops that are one of Keras' activations, of every version of Keras."""
LINEAR = "linear"
_ADDING = frozenset({"Add", "AddV2", "BiasAdd", "BiasAddV1"})
_CLIPPING = frozenset({"Minimum", "Maximum", "ClipByValue"})
_BLOCKS = {"LSTMBlockCell": 7, "BlockLSTM": 8}
"""Ops that are a whole LSTM, and which of their inputs is the bias."""
_BLOCK_FORGET_BIAS, _BLOCK_CLIP = 1.0, 3.0
"""Their attributes where a node leaves them out."""
_GRU_BLOCK, _GRU_BLOCK_BIAS = "GRUBlockCell", 5
_SAVING = {"SaveV2": 3, "SaveSlices": 3, "Save": 2}
"""Ops that save variables, whose second input is their names, and where their values begin."""
_HALVES = 13
_NUMBERS = {
    "float32": (5, "<f4"), "float64": (6, "<f8"), "float16": (_HALVES, "<f2"),
    "bfloat16": (_HALVES, "<u2"),
}  # fmt: skip
"""Fields of a TensorProto, and the form of their numbers."""
_ASIDE = ("Stack", "Grad", "Summary", "TensorList", "Shape", "BroadcastGradientArgs", "ZerosLike")
"""What the names of ops contain that look at a value and are no part of the cell."""
_LISTED = 3


@dataclass(frozen=True)
class CellFacts:
    """What a graph says of a cell.

    Attributes:
        forget_bias: what it adds to its forget gate; None of a cell that has no such gate, and
            where `computed` names the op that computes it.
        activation: Keras' name; None where `problem` says more.
        problem: why no layer of Keras computes what this cell computes.
    """

    forget_bias: float | None = None
    activation: str | None = None
    computed: str | None = None
    problem: str | None = None


def read_cell(graph: Graph, cell: str, names: Iterable[str]) -> CellFacts | None:
    """What is said of a cell; None where the graph says nothing of its variables.

    Args:
        cell: of `layouts.CELLS`.
        names: what the bias of the cell (of a GRU, of its candidate) may be called.
    """
    reader = {"lstm": _of_lstm, "gru_reset_before": _of_gru}.get(cell, _of_rnn)
    variables = _variables(graph, names)
    uses = [
        use for variable in variables for use in graph.uses(variable, joined=len(variables) > 1)
    ]
    found = list(dict.fromkeys(reader(graph, uses)))
    if len(found) > 1:
        problem = "the graph has several cells with these weights, and they differ: "
        return CellFacts(problem=problem + "; ".join(map(_told, found)))
    return found[0] if found else None


def _told(facts: CellFacts) -> str:
    if facts.problem:
        return facts.problem
    bias = "" if facts.forget_bias is None else f"forget_bias {facts.forget_bias}, "
    return f"{bias}activation {facts.activation}"


def _variables(graph: Graph, names: Iterable[str]) -> list[GraphValue]:
    """The variables that are saved under a name, else that have it; a partitioned one has parts."""
    wanted = set(names)
    saved = [
        source
        for name, value in _saved(graph)
        if name in wanted and (source := graph.source(value)) is not None
        if graph.node(source).op in VARIABLES
    ]
    named = [GraphValue("", name) for name in wanted if name in graph.main]
    return list(dict.fromkeys(saved or named))


def _saved(graph: Graph) -> Iterator[tuple[str, GraphValue]]:
    """Every name that a Saver saves something under, and what."""
    for function, nodes in graph.nodes.items():
        for node in nodes.values():
            first = _SAVING.get(node.op)
            if first is not None and len(node.inputs) > first:
                inputs = graph.inputs(function, node)
                yield from zip(_strings(graph, inputs[1]), inputs[first:], strict=False)


def _strings(graph: Graph, value: GraphValue) -> list[str]:
    tensor = _tensor(graph, value)
    return [] if tensor is None else [str(part, "utf-8", "replace") for part in tensor.parts(8)]


def _tensor(graph: Graph, value: GraphValue) -> Message | None:
    """The TensorProto of the constant that a value is."""
    source = graph.source(value)
    node = None if source is None else graph.node(source)
    stored = node.attribute("value") if node is not None and node.op == "Const" else None
    return None if stored is None else Message(stored.part(8))


def _number(graph: Graph, value: GraphValue) -> float | None:
    """The one number that a constant holds, as short as its type allows; None for all else."""
    tensor = _tensor(graph, value)
    dtype = None if tensor is None else dtype_name(tensor.unsigned(1))
    if tensor is None or dtype not in _NUMBERS:
        return None
    field, form = _NUMBERS[dtype]
    content = tensor.part(4)
    if not content and field == _HALVES:
        packed = tensor.part(field)
        count = sum(byte < 0x80 for byte in packed)
        content = memoryview(decode_varints(packed, count).astype("<u2").tobytes())
    content = content or tensor.part(field) or memoryview(bytes(8))  # none at all: it is 0
    if len(content) % np.dtype(form).itemsize:
        raise Malformed("a constant is cut short")
    values = np.frombuffer(content, form)
    if dtype == "bfloat16":
        values = (values.astype("<u4") << 16).view("<f4")
    distinct = {_short(value) for value in values}
    return distinct.pop() if len(distinct) == 1 else None


def _short(value: np.generic) -> float:
    """The shortest decimal number that is this value in its type: 0.8, not 0.800000011920929."""
    return float(str(value))


# --- LSTM -----------------------------------------------------------------------------------


def _of_lstm(graph: Graph, uses: Iterable[Use]) -> Iterator[CellFacts]:
    for use in uses:
        if _BLOCKS.get(use.node.op) == use.place:
            yield _of_block(use.node)
        elif _is_sum(use):
            for split in graph.uses(use.value()):
                if _is_split(split):
                    yield _Gates(graph, split).facts()


def _of_block(node: GraphNode) -> CellFacts:
    clip = _attribute(node, "cell_clip", _BLOCK_CLIP)
    peepholes = node.attribute("use_peephole")
    if peepholes is not None and peepholes.unsigned(5):
        return CellFacts(problem=f"it has peepholes ({node.name})")
    if clip > 0:
        return CellFacts(problem=f"it clips its state at {clip} (cell_clip of {node.name})")
    return CellFacts(_attribute(node, "forget_bias", _BLOCK_FORGET_BIAS), "tanh")


def _attribute(node: GraphNode, name: str, default: float) -> float:
    value = node.attribute(name)
    if value is None:
        return default
    return _short(np.frombuffer(struct.pack("<I", value.unsigned(4) & 0xFFFFFFFF), "<f4")[0])


def _is_sum(use: Use) -> bool:
    """Whether a bias is added: what it is added to comes first."""
    return use.node.op in _ADDING and use.place == 1


def _is_split(use: Use) -> bool:
    """Whether four gates are cut from a value."""
    if use.node.op == "SplitV":
        return use.place == 0 and _count(use.node) == 4
    return use.node.op == "Split" and use.place == 1 and _count(use.node) == 4


def _count(node: GraphNode) -> int:
    attribute = node.attribute("num_split")
    return 0 if attribute is None else attribute.signed(3)


class _Refused(Exception):
    """Why a cell has no counterpart."""


@dataclass(frozen=True)
class _Gates:
    """An LSTM whose gates i, j, f, o are the outputs of a split."""

    graph: Graph
    split: Use

    def facts(self) -> CellFacts:
        try:
            enters, _ = self._sigmoids(0, "input")
            forgets, added = self._sigmoids(2, "forget")
            leaves, _ = self._sigmoids(3, "output")
            inner, products = self._activated(self.split.value(1), enters)
            states = [
                use.value()
                for product in products
                for use in self.graph.uses(product)
                if use.node.op in _ADDING and self._adds_kept(use, forgets)
            ]
            if not states:
                raise _Refused("what it keeps of its state is not added to its new input")
            outer = {self._activated(state, leaves)[0] for state in states}
            if outer != {inner}:
                raise _Refused(f"it has two activations, {inner} and {', '.join(sorted(outer))}")
        except _Refused as error:
            return CellFacts(problem=f"{error} ({self.split.node.name})")
        return CellFacts(added if isinstance(added, float) else None, inner,
                         None if isinstance(added, float) else added)  # fmt: skip

    def _sigmoids(self, output: int, gate: str) -> tuple[set[GraphValue], float | str]:
        """The Sigmoids of a gate, and what is added before: a number, or the op that makes it.

        Raises:
            _Refused: no Sigmoid; or more is added to it than a number, as peepholes do.
        """
        start = self.split.value(output)
        found: set[GraphValue] = set()
        added: set[float | str] = set()
        for use in self.graph.uses(start):
            if use.node.op == "Sigmoid":
                found.add(use.value())
                added.add(0.0)
            elif use.node.op in _ADDING:
                own = {next_.value() for next_ in self.graph.uses(use.value())
                       if next_.node.op == "Sigmoid"}  # fmt: skip
                found |= own
                other = self.graph.inputs(use.function, use.node)[1 - use.place]
                number = _number(self.graph, other)
                added |= {other.node if number is None else number} if own else set()
                if not own:
                    raise _Refused(f"more than a number is added to its {gate} gate, as "
                                   "peepholes do")  # fmt: skip
        if not found:
            raise _Refused(f"its {gate} gate is not a Sigmoid but {self._ops(start)}")
        if len(added) > 1 or (gate != "forget" and added != {0.0}):
            raise _Refused(
                f"to its {gate} gate is added {', '.join(map(str, sorted(map(str, added))))}"
            )
        return found, added.pop()

    def _activated(self, value: GraphValue, gates: set[GraphValue]) -> tuple[str, list[GraphValue]]:
        """The activation that a value goes through before it is multiplied by a gate, and the
        products.

        Raises:
            _Refused: the state is clipped, or the activation is none of Keras'.
        """
        found: dict[str, list[GraphValue]] = {}
        for use in self.graph.uses(value):
            if use.node.op in ACTIVATIONS:
                products = list(self._products(use.value(), gates))
                if products:
                    found.setdefault(ACTIVATIONS[use.node.op], []).extend(products)
        products = list(self._products(value, gates))
        if products:
            found.setdefault(LINEAR, []).extend(products)
        if len(found) == 1:
            return found.popitem()
        for use in self.graph.uses(value):
            if use.node.op in _CLIPPING and not found:
                limits = [_number(self.graph, given)
                          for given in self.graph.inputs(use.function, use.node)]  # fmt: skip
                told = ", ".join(str(limit) for limit in limits if limit is not None)
                raise _Refused(f"it clips its state at {told or 'a computed value'} (cell_clip)")
        raise _Refused(f"its activation is none of {', '.join(ACTIVATIONS.values())}, {LINEAR}: "
                       f"{self._ops(value)}")  # fmt: skip

    def _products(self, value: GraphValue, gates: set[GraphValue]) -> Iterator[GraphValue]:
        """The products of a value and a gate."""
        for use in self.graph.uses(value):
            if use.node.op == "Mul":
                other = self.graph.inputs(use.function, use.node)[1 - use.place]
                if self.graph.source(other) in gates:
                    yield use.value()

    def _adds_kept(self, use: Use, forgets: set[GraphValue]) -> bool:
        """Whether the other addend is a product with the forget gate."""
        other = self.graph.source(self.graph.inputs(use.function, use.node)[1 - use.place])
        if other is None or self.graph.node(other).op != "Mul":
            return False
        factors = self.graph.inputs(other.function, self.graph.node(other))
        return any(self.graph.source(factor) in forgets for factor in factors)

    def _ops(self, value: GraphValue) -> str:
        return _listed(self.graph, value)


def _listed(graph: Graph, value: GraphValue) -> str:
    """The ops that take a value, but for those that only look at it."""
    ops = dict.fromkeys(use.node.op for use in graph.uses(value))
    own = [op for op in ops if not any(part in op for part in _ASIDE)]
    return ", ".join(own[:_LISTED]) or "nothing"


# --- GRU and BasicRNNCell -------------------------------------------------------------------


def _of_gru(graph: Graph, uses: Iterable[Use]) -> Iterator[CellFacts]:
    for use in uses:
        if use.node.op == _GRU_BLOCK and use.place == _GRU_BLOCK_BIAS:
            yield CellFacts(activation="tanh")
        elif _is_sum(use):
            yield _of_sum(graph, use.value(), is_linear=_is_gated(graph, use.value()))


def _of_rnn(graph: Graph, uses: Iterable[Use]) -> Iterator[CellFacts]:
    for use in uses:
        if _is_sum(use):
            yield _of_sum(graph, use.value())


def _is_gated(graph: Graph, candidate: GraphValue) -> bool:
    """Whether a GRU's candidate is multiplied by 1 - u as it is."""
    others = [
        graph.source(graph.inputs(use.function, use.node)[1 - use.place])
        for use in graph.uses(candidate)
        if use.node.op == "Mul"
    ]
    return any(other is not None and graph.node(other).op == "Sub" for other in others)


def _of_sum(graph: Graph, total: GraphValue, *, is_linear: bool = False) -> CellFacts:
    """A cell whose activation the sum goes through, and nothing else."""
    ops = {
        use.node.op for use in graph.uses(total) if not any(part in use.node.op for part in _ASIDE)
    }
    if len(ops) == 1 and ops <= ACTIVATIONS.keys():
        return CellFacts(activation=ACTIVATIONS[ops.pop()])
    if is_linear and ops == {"Mul"}:
        return CellFacts(activation=LINEAR)
    known = ", ".join(ACTIVATIONS.values())
    return CellFacts(
        problem=f"its activation is none of {known}: {_listed(graph, total)} ({total.node})"
    )
