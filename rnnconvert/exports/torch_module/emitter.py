"""What is collected while a model is walked through: modules, their tensors, and lines of source.

Nothing of a model file becomes source but numbers: every identifier is made here, and names of
layers stand in comments, as ASCII literals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Value:
    """A tensor of the written program.

    Attributes:
        name: the variable.
        shape: as Keras has it, None for open sizes.
        mask: the variable of its mask, if it has one.
    """

    name: str
    shape: tuple[int | None, ...]
    mask: str | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(frozen=True)
class Module:
    """One attribute of the written class.

    Attributes:
        name: of the attribute.
        source: the expression that builds it.
        layer: the Keras layer's name.
        is_recurrent: it is an nn.LSTM, GRU, RNN, or a loop in their place.
    """

    name: str
    source: str
    layer: str
    is_recurrent: bool = False


@dataclass
class Emitter:
    """The program as far as it is written.

    Attributes:
        modules: in the order of first use.
        tensors: the state_dict.
        lines: of `forward`.
        problems: what has no torch form, one sentence each.
        loops: recurrent layers that are no nn.LSTM, GRU or RNN, with the reason.
    """

    modules: list[Module] = field(default_factory=list)
    tensors: dict[str, Array] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    _known: dict[Any, str] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def module(
        self,
        key: Any,
        kind: str,
        source: str,
        tensors: Mapping[str, Array],
        layer: str,
        *,
        is_recurrent: bool = False,
    ) -> str:
        """The attribute for a layer, made at its first use, e.g. "self.lstm_1".

        Args:
            key: of the layer, or of a part of it: the same one gets the same attribute.
            kind: what its name begins with.
            source: the expression that builds the module.
            tensors: its part of the state_dict.
            layer: the Keras layer's name.
            is_recurrent: see `Module`.
        """
        if key not in self._known:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            name = f"{kind}_{self._counts[kind]}"
            self._known[key] = name
            self.modules.append(Module(name, source, layer, is_recurrent))
            self.tensors |= {f"{name}.{part}": np.asarray(array) for part, array in tensors.items()}
        return f"self.{self._known[key]}"

    def set(self, expression: str, prefix: str = "x") -> str:
        """A line that assigns an expression to a new variable; its name."""
        name = self._next(prefix)
        self.lines.append(f"{name} = {expression}")
        return name

    def set_all(self, count: int, expression: str, prefix: str = "x") -> list[str]:
        """A line that assigns several values at once; the names."""
        names = [self._next(prefix) for _ in range(count)]
        self.lines.append(f"{', '.join(names)} = {expression}")
        return names

    def set_with_rest(self, expression: str) -> str:
        """A line that takes the first of two values; its name."""
        name = self._next("x")
        self.lines.append(f"{name}, _ = {expression}")
        return name

    def set_with_states(self, expression: str, count: int) -> tuple[str, list[str]]:
        """A line that takes outputs, and states as a list of their own."""
        name = self._next("x")
        states = [self._next("s") for _ in range(count)]
        self.lines.append(f"{name}, [{', '.join(states)}] = {expression}")
        return name, states

    def set_pair(self, expression: str, count: int) -> list[str]:
        """A line that takes the outputs of two directions, and `count` states, if any."""
        pair = [self._next("x"), self._next("x")]
        states = [self._next("s") for _ in range(count)]
        rest = f"[{', '.join(states)}]" if states else "_"
        self.lines.append(f"{', '.join(pair)}, {rest} = {expression}")
        return [*pair, *states]

    def reserve(self, names: Sequence[str]) -> None:
        """Variables that no line may take."""
        self._taken |= set(names)

    def _next(self, prefix: str) -> str:
        while True:
            self._counts[prefix] = self._counts.get(prefix, 0) + 1
            name = f"{prefix}{self._counts[prefix]}"
            if name not in self._taken:
                return name

    def loop(self, text: str) -> None:
        """A recurrent layer that became a scripted cell."""
        if text not in self.loops:
            self.loops.append(text)

    def problem(self, text: str) -> None:
        """Something that has no torch form; all are told together."""
        if text not in self.problems:
            self.problems.append(text)


def number(value: Any) -> str:
    """A number as Python source."""
    if isinstance(value, bool | np.bool_):
        return repr(bool(value))
    if isinstance(value, int | np.integer):
        return repr(int(value))
    found = float(value)
    return repr(found) if np.isfinite(found) else f'float("{found}")'


def tuple_of(values: Sequence[Any]) -> str:
    """Numbers as the source of a tuple."""
    inside = ", ".join(number(value) for value in values)
    return f"({inside},)" if len(values) == 1 else f"({inside})"


def arguments(*positional: Any, **named: Any) -> str:
    """Arguments of a call as source; named ones that are None are left out."""
    parts = [value if isinstance(value, str) else _source(value) for value in positional]
    parts += [f"{name}={_source(value)}" for name, value in named.items() if value is not None]
    return ", ".join(parts)


def _source(value: Any) -> str:
    if isinstance(value, tuple | list):
        return tuple_of(value)
    return number(value)
