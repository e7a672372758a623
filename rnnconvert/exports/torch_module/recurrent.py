"""Recurrent layers: nn.LSTM, nn.GRU and nn.RNN, or a scripted cell where these can't say them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rnnconvert import layouts
from rnnconvert.exports.torch_module.activations import described, function, name_of
from rnnconvert.exports.torch_module.emitter import Array, Emitter, Value, arguments
from rnnconvert.layouts import RnnWeights


@dataclass(frozen=True)
class CellForm:
    """A Keras cell in torch's terms.

    Attributes:
        kind: "lstm", "gru" or "rnn".
        source: builds the module; `{more}` stands for further arguments.
        weights: of the cell.
        why_loop: why it is no module of torch's own; None where it is.
    """

    kind: str
    source: str
    weights: RnnWeights
    why_loop: str | None

    @property
    def states(self) -> int:
        return 2 if self.kind == "lstm" else 1

    def tensors(self, suffix: str = "") -> dict[str, Array]:
        """Its part of a state_dict, by torch's names."""
        weights = self.weights
        if weights.cell == "gru_reset_before":  # the same gates in another function: the loop's
            weights = replace(weights, cell="gru")
        packed = layouts.pack(layouts.find("torch", weights.cell), weights)
        return {f"{name}_l0{suffix}": array for name, array in packed.items()}


@dataclass(frozen=True)
class _Call:
    """One call of one module.

    Attributes:
        x: the variable of the sequences.
        states: variables of the initial states; empty for zeros.
        mask: variable, or None.
        wants_states: the last states are needed.
        backwards, zeros: as of `helpers.recurrent`.
    """

    x: str
    states: Sequence[str]
    mask: str | None
    wants_states: bool
    backwards: bool = False
    zeros: bool = False

    @property
    def is_plain(self) -> bool:
        return not self.states and self.mask is None and not self.backwards

    def arguments(self, module: str) -> str:
        """Of the helper function."""
        states = f", [{', '.join(self.states)}]" if self.states else ""
        mask = f", mask={self.mask}" if self.mask else ""
        backwards = ", backwards=True" if self.backwards else ""
        zeros = ", zeros=True" if self.zeros and self.mask else ""
        return f"{module}, {self.x}{states}{mask}{backwards}{zeros}"


# --- layers ---------------------------------------------------------------------------------


def emit_rnn(
    emitter: Emitter, layer: Any, x: Value, states: Sequence[Value], mask: str | None
) -> list[str]:
    """LSTM, GRU, SimpleRNN and RNN of such cells: the variables of the output and the states."""
    cells = getattr(layer.cell, "cells", None) or [layer.cell]
    forms = [_form(emitter, layer, cell) for cell in cells]
    y, lasts, rest = x.name, [], [value.name for value in states]
    for place, form in enumerate(forms):
        if form is None:
            continue
        module = _module(emitter, (id(layer), place), form, layer.name)
        if place == 1 and layer.go_backwards and mask is not None:
            mask = emitter.set(f"{mask}.flip(1)", "m")  # what the first cell gave is reversed
        call = _Call(
            y, rest[: form.states], mask, layer.return_state,
            backwards=layer.go_backwards and place == 0,
            zeros=layer.zero_output_for_mask and place == len(forms) - 1,
        )  # fmt: skip
        rest = rest[form.states :]
        y, last = _emit_call(emitter, module, form, call)
        lasts += last
    output = y if layer.return_sequences else emitter.set(f"{y}[:, -1]")
    return [output, *lasts]


def emit_bidirectional(
    emitter: Emitter, layer: Any, x: Value, states: Sequence[Value], mask: str | None
) -> list[str]:
    """A Bidirectional layer: the variables of its outputs and states."""
    parts = (layer.forward_layer, layer.backward_layer)
    forms = [_plain_form(emitter, part) for part in parts]
    given = [value.name for value in states]
    if forms[0] is None or forms[1] is None:
        return [x.name]
    if _is_native_pair(parts, forms):
        return _at_once(emitter, layer, forms, _Call(
            x.name, given, mask, layer.return_state, zeros=parts[0].zero_output_for_mask
        ))  # fmt: skip
    half = len(given) // 2
    outputs, lasts = [], []
    for part, form, own in zip(parts, forms, (given[:half], given[half:]), strict=True):
        assert form is not None
        module = _module(emitter, id(part), form, layer.name)
        call = _Call(x.name, own, mask, layer.return_state, part.go_backwards,
                     part.zero_output_for_mask)  # fmt: skip
        y, last = _emit_call(emitter, module, form, call)
        if not part.return_sequences:
            y = emitter.set(f"{y}[:, -1]")
        elif part is parts[1]:
            y = emitter.set(f"{y}.flip(1)")
        outputs.append(y)
        lasts += last
    return [*_merged(emitter, layer, outputs), *lasts]


def _emit_call(emitter: Emitter, module: str, form: CellForm, call: _Call) -> tuple[str, list[str]]:
    """All outputs, and the last states if they are wanted."""
    is_native = form.why_loop is None
    if call.is_plain and is_native and not call.wants_states:
        return emitter.set_with_rest(f"{module}({call.x})"), []
    source = f"recurrent({call.arguments(module)})"
    if not call.wants_states:
        return emitter.set_with_rest(source), []
    return emitter.set_with_states(source, form.states)


def _at_once(
    emitter: Emitter, layer: Any, forms: Sequence[CellForm | None], call: _Call
) -> list[str]:
    """Both directions by one bidirectional module of torch."""
    one, other = forms
    assert one is not None
    assert other is not None
    tensors = {**one.tensors(), **other.tensors("_reverse")}
    source = one.source.format(more=", bidirectional=True")
    module = emitter.module(id(layer), one.kind, source, tensors, layer.name, is_recurrent=True)
    if call.is_plain and not call.wants_states:
        both = emitter.set_with_rest(f"{module}({call.x})")
        if layer.return_sequences and layer.merge_mode == "concat":
            return [both]
        ahead, back, *lasts = emitter.set_all(2, f"{both}.chunk(2, 2)")
    else:
        source = f"bidirectional({call.arguments(module)})"
        ahead, back, *lasts = emitter.set_pair(source, 2 * one.states if call.wants_states else 0)
    if not layer.return_sequences:
        ahead, back = emitter.set(f"{ahead}[:, -1]"), emitter.set(f"{back}[:, 0]")
    return [*_merged(emitter, layer, [ahead, back]), *lasts]


def _merged(emitter: Emitter, layer: Any, outputs: Sequence[str]) -> list[str]:
    one, other = outputs
    forms = {
        "concat": f"torch.cat([{one}, {other}], -1)",
        "sum": f"{one} + {other}",
        "ave": f"({one} + {other}) / 2",
        "mul": f"{one} * {other}",
    }
    if layer.merge_mode is None:
        return list(outputs)
    return [emitter.set(forms[layer.merge_mode])]


def _is_native_pair(parts: Sequence[Any], forms: Sequence[CellForm | None]) -> bool:
    """Whether one bidirectional module of torch computes both."""
    one, other = forms
    return (
        one is not None
        and other is not None
        and one.why_loop is None
        and other.why_loop is None
        and one.source == other.source
        and not parts[0].go_backwards
        and parts[0].zero_output_for_mask == parts[1].zero_output_for_mask
    )


def _module(emitter: Emitter, key: Any, form: CellForm, name: str) -> str:
    if form.why_loop is not None:
        emitter.loop(f"{name}: {form.why_loop}")
    source = form.source.format(more="")
    return emitter.module(key, form.kind, source, form.tensors(), name, is_recurrent=True)


# --- cells ----------------------------------------------------------------------------------


def _plain_form(emitter: Emitter, layer: Any) -> CellForm | None:
    """Of a direction of a Bidirectional layer, which is one cell."""
    if getattr(layer.cell, "cells", None):
        emitter.problem(f"{layer.name!a}: a Bidirectional of stacked cells")
        return None
    return _form(emitter, layer, layer.cell)


def _form(emitter: Emitter, layer: Any, cell: Any) -> CellForm | None:
    import keras

    forms = {
        keras.layers.LSTMCell: _lstm_form,
        keras.layers.GRUCell: _gru_form,
        keras.layers.SimpleRNNCell: _simple_form,
    }
    known = (keras.layers.LSTM, keras.layers.GRU, keras.layers.SimpleRNN, keras.layers.RNN)
    form = forms.get(type(cell))
    if form is None or type(layer) not in known:
        what = f"{type(layer).__name__} of {type(cell).__name__}"
        emitter.problem(f"{layer.name!a} ({what})")
        return None
    if layer.stateful:
        emitter.problem(f"{layer.name!a} (stateful)")
        return None
    return form(emitter, layer, cell)


def _functions(emitter: Emitter, layer: Any, *activations: Any) -> list[str]:
    found = []
    for activation in activations:
        source = function(activation)
        if source is None:
            emitter.problem(f"{layer.name!a} (activation {described(activation)})")
        found.append(source or "")
    return found


def _lstm_form(emitter: Emitter, layer: Any, cell: Any) -> CellForm:
    weights = _weights(cell, "lstm")
    gate, activation = _functions(emitter, layer, cell.recurrent_activation, cell.activation)
    if (gate, activation) == ("torch.sigmoid", "torch.tanh"):
        return CellForm("lstm", _native("LSTM", weights), weights, None)
    source = _loop("LSTMLoop", weights, gate, activation)
    return CellForm("lstm", source, weights, _why(cell))


def _gru_form(emitter: Emitter, layer: Any, cell: Any) -> CellForm:
    weights = _weights(cell, "gru" if cell.reset_after else "gru_reset_before")
    gate, activation = _functions(emitter, layer, cell.recurrent_activation, cell.activation)
    is_usual = (gate, activation) == ("torch.sigmoid", "torch.tanh")
    if is_usual and cell.reset_after:
        return CellForm("gru", _native("GRU", weights), weights, None)
    source = _loop("GRULoop", weights, gate, activation, bool(cell.reset_after))
    why = _why(cell) if cell.reset_after else "reset_after=False, which nn.GRU can't say"
    return CellForm("gru", source, weights, why)


def _simple_form(emitter: Emitter, layer: Any, cell: Any) -> CellForm:
    name = name_of(cell.activation)
    weights = _weights(cell, "rnn_relu" if name == "relu" else "rnn_tanh")
    if name in ("tanh", "relu"):
        more = ', nonlinearity="relu"' if name == "relu" else ""
        return CellForm("rnn", _native("RNN", weights, more), weights, None)
    [activation] = _functions(emitter, layer, cell.activation)
    source = _loop("RNNLoop", weights, activation)
    return CellForm("rnn", source, weights, f"activation {described(cell.activation)}")


def _why(cell: Any) -> str:
    return (
        f"activations {described(cell.activation)} and {described(cell.recurrent_activation)}, "
        "where torch's own has tanh and sigmoid"
    )


def _native(name: str, weights: RnnWeights, more: str = "") -> str:
    bias = "" if weights.bias is not None else ", bias=False"
    sizes = f"{weights.input_dim}, {weights.units}"
    return f"nn.{name}({sizes}, batch_first=True{more}{bias}{{more}})"


def _loop(name: str, weights: RnnWeights, *named: Any) -> str:
    bias = weights.bias is not None
    return f"{name}({arguments(weights.input_dim, weights.units, *named, bias)}){{more}}"


def _weights(cell: Any, kind: str) -> RnnWeights:
    names = ("kernel", "recurrent_kernel", "bias")
    found = {
        name: np.asarray(getattr(cell, name).numpy())
        for name in names
        if getattr(cell, name, None) is not None
    }
    return layouts.unpack(layouts.find("keras", kind), found)
