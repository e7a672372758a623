"""Finding the recurrent layers of a file: by its config where there is one, confirmed by shapes.

Where config and shapes disagree it is an error, never a guess; all errors are collected.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rnnconvert.keras_models.config.recurrent import CONV_CLASSES, RecurrentLayer
from rnnconvert.keras_models.plan import Site, Tensor
from rnnconvert.layouts.weights import FLOAT_DTYPES

_KINDS = ("kernel", "recurrent_kernel", "bias")
_VARIABLE = re.compile(r"^(?:(.*)/)?(kernel|recurrent_kernel|bias)(_\d+)?$", re.DOTALL)
_CELL_NAMES = {4: "lstm", 3: "gru", 1: "rnn_tanh"}


@dataclass
class FoundSites:
    """The sites of a file, and what stood in the way of finding more."""

    sites: list[Site] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Candidate:
    """Variables of one parent that look like a recurrent layer's."""

    parent: str
    tensors: dict[str, Tensor]

    def carries(self, name: str) -> bool:
        return name in self.parent.split("/")


class _Mismatch(Exception):
    """Shapes that contradict what a layer should have; the text is for the user."""


def find_by_config(groups: dict[str, list[Tensor]], layers: list[RecurrentLayer]) -> FoundSites:
    """Sites of a whole-model file.

    Args:
        groups: top-level layer name to its tensors, in the file's order.
        layers: the recurrent layers of the config, in the order in which Keras saves them.
    """
    found = FoundSites()
    for group in dict.fromkeys(layer.group for layer in layers):
        if group not in groups:
            found.problems.append(f"model/{group}: the config has this layer, the weights don't")
    for group, tensors in groups.items():
        wanted = [layer for layer in layers if layer.group == group]
        candidates = _candidates(tensors)
        pairs = _assign(group, wanted, candidates, found)
        for layer, candidate in pairs:
            try:
                found.sites.append(_confirm(layer, candidate))
            except _Mismatch as error:
                found.problems.append(f"{layer.path}: {error}")
        claimed = [id(candidate) for _, candidate in pairs]
        for candidate in candidates:
            if id(candidate) not in claimed and _looks_like_cudnn(candidate):
                found.problems.append(
                    f"model/{group}: weights in CuDNN layout ({candidate.parent}/bias has "
                    f"{candidate.tensors['bias'].shape[0]} values) belong to a custom class, "
                    "whose code rnnconvert neither knows nor runs; save the model with the plain "
                    "CuDNNLSTM or CuDNNGRU class"
                )
    return found


def find_by_shapes(groups: dict[str, list[Tensor]]) -> FoundSites:
    """Sites of a weights-only file: names say what is a kernel, shapes say of which layer."""
    found = FoundSites()
    for group, tensors in groups.items():
        for candidate in _candidates(tensors):
            path = group if candidate.parent in ("", group) else f"{group}/{candidate.parent}"
            try:
                site = _classify(path, candidate)
            except _Mismatch as error:
                found.problems.append(f"{path}: {error}")
                continue
            found.sites.append(site)
    return found


def _candidates(tensors: list[Tensor]) -> list[_Candidate]:
    by_parent: dict[tuple[str, str], dict[str, Tensor]] = {}
    for tensor in tensors:
        match = _VARIABLE.match(tensor.name)
        if match:
            parent, kind, suffix = match.groups()
            by_parent.setdefault((parent or "", suffix or ""), {})[kind] = tensor
    return [
        _Candidate(parent, kinds)
        for (parent, _), kinds in by_parent.items()
        if "recurrent_kernel" in kinds and "kernel" in kinds
    ]


def _assign(
    group: str, layers: list[RecurrentLayer], candidates: list[_Candidate], found: FoundSites
) -> list[tuple[RecurrentLayer, _Candidate]]:
    """Which variables belong to which layer: by name where names are clear, else by order."""
    by_name = [[c for c in candidates if c.carries(layer.name)] for layer in layers]
    clear = all(len(matches) == 1 for matches in by_name)
    if clear and len({id(matches[0]) for matches in by_name}) == len(layers):
        return [(layer, matches[0]) for layer, matches in zip(layers, by_name, strict=True)]
    if len(candidates) == len(layers):
        return list(zip(layers, candidates, strict=True))
    found.problems.append(
        f"model/{group}: the config has {len(layers)} recurrent layers "
        f"({', '.join(layer.name for layer in layers)}), the weights {len(candidates)} "
        f"({', '.join(c.parent for c in candidates) or 'none'})"
    )
    return []


def _confirm(layer: RecurrentLayer, candidate: _Candidate) -> Site:
    """The site of a layer, its shapes checked against what its class and units imply."""
    tensors = candidate.tensors
    gates = layer.gates
    if layer.class_name in CONV_CLASSES:
        return _conv_site(layer, tensors)
    input_dim, units = _matrix_sizes(tensors, gates, layer.units)
    bias = tensors.get("bias")
    wanted: set[tuple[int, ...]] = {(gates * units,)}
    if layer.is_cudnn:
        wanted = {(2 * gates * units,)}
    elif gates == 3 and layer.reset_after is None:
        wanted = {(3 * units,), (2, 3 * units)}
    elif gates == 3 and layer.reset_after:
        wanted = {(2, 3 * units)}
    if layer.use_bias is not False and bias is None and layer.use_bias is not None:
        raise _Mismatch("the config says use_bias, the weights hold no bias")
    if bias is not None and bias.shape not in wanted:
        expected = " or ".join(str(shape) for shape in sorted(wanted, key=len))
        hint = ""
        if not layer.is_cudnn and bias.shape == (2 * gates * units,):
            hint = "; these are weights of a CuDNN layer under the config of a plain one"
        raise _Mismatch(
            f"bias of a {layer.class_name} of {units} units: expected {expected}, "
            f"found {bias.shape}{hint}"
        )
    cell = {4: "lstm", 1: "rnn_tanh"}.get(gates, "gru")
    if gates == 3:
        after = layer.reset_after if bias is None else len(bias.shape) == 2 or layer.is_cudnn
        cell = "gru" if after else "gru_reset_before"
    if gates == 1 and layer.activation == "relu":
        cell = "rnn_relu"
    return Site(
        layer.path,
        cell,
        "keras-cudnn" if layer.is_cudnn else "keras",
        layer.class_name,
        units,
        input_dim,
        layer.direction,
        layer.flags,
        layer.activation,
        layer.recurrent_activation,
        {kind: tensors[kind] for kind in _KINDS if kind in tensors},
    )


def _conv_site(layer: RecurrentLayer, tensors: dict[str, Tensor]) -> Site:
    kernel = tensors["kernel"].shape
    filters = layer.units or kernel[-1] // layer.gates
    if kernel[-1] != layer.gates * filters:
        raise _Mismatch(
            f"kernel of a {layer.class_name} of {filters} filters: expected "
            f"{layer.gates * filters} columns, found {kernel[-1]}"
        )
    return Site(
        layer.path, "conv_lstm", "keras", layer.class_name, filters, kernel[-2], layer.direction,
        layer.flags, layer.activation, layer.recurrent_activation,
        {kind: tensors[kind] for kind in _KINDS if kind in tensors},
    )  # fmt: skip


def _matrix_sizes(
    tensors: dict[str, Tensor], gates: int, configured: int | None
) -> tuple[int, int]:
    """(input_dim, units) of kernel and recurrent kernel, which must agree with each other."""
    kernel, recurrent = tensors["kernel"].shape, tensors["recurrent_kernel"].shape
    units = configured or (recurrent[0] if recurrent else 0)
    if len(recurrent) != 2 or recurrent != (units, gates * units):
        raise _Mismatch(f"recurrent_kernel: expected {(units, gates * units)}, found {recurrent}")
    if len(kernel) != 2 or kernel[1] != gates * units:
        raise _Mismatch(
            f"kernel and recurrent_kernel disagree: kernel {kernel}, recurrent_kernel "
            f"{recurrent}; expected a kernel of (input_dim, {gates * units})"
        )
    for tensor in tensors.values():
        if tensor.dtype not in FLOAT_DTYPES:
            raise _Mismatch(
                f"{tensor.name}: expected float16, float32 or float64, found {tensor.dtype}"
            )
    if not kernel[0] or not units:
        raise _Mismatch(f"kernel: expected at least one input and one unit, found {kernel}")
    return kernel[0], units


def _classify(path: str, candidate: _Candidate) -> Site:
    """The site of a weights-only candidate: the bias' shape tells the layout apart."""
    tensors = candidate.tensors
    recurrent = tensors["recurrent_kernel"].shape
    if len(recurrent) > 2:
        return Site(
            path, "conv_lstm", "keras", "", recurrent[-1] // 4, tensors["kernel"].shape[-2],
            "forward", (), None, None, tensors,
        )  # fmt: skip
    gates = recurrent[1] // recurrent[0] if len(recurrent) == 2 and recurrent[0] else 0
    if gates not in _CELL_NAMES:
        raise _Mismatch(
            "recurrent_kernel: expected (units, 1, 3 or 4 times units) of a SimpleRNN, GRU or "
            f"LSTM, found {recurrent}"
        )
    input_dim, units = _matrix_sizes(tensors, gates, None)
    bias = tensors.get("bias")
    shapes: dict[tuple[int, ...], tuple[str, str]] = {
        (gates * units,): ("keras", "gru_reset_before" if gates == 3 else _CELL_NAMES[gates])
    }
    if gates > 1:
        shapes[(2 * gates * units,)] = ("keras-cudnn", _CELL_NAMES[gates])
    if gates == 3:
        shapes[(2, 3 * units)] = ("keras", "gru")
    if bias is not None and bias.shape not in shapes:
        expected = " or ".join(str(shape) for shape in shapes)
        raise _Mismatch(f"bias: expected {expected}, found {bias.shape}")
    layout, cell = ("keras", _CELL_NAMES[gates]) if bias is None else shapes[bias.shape]
    direction = "backward" if "backward_" in candidate.parent else "forward"
    cudnn = layout == "keras-cudnn"
    return Site(
        path,
        cell,
        layout,
        "",
        units,
        input_dim,
        direction,
        (),
        "tanh" if cudnn else None,
        "sigmoid" if cudnn else None,
        {kind: tensors[kind] for kind in _KINDS if kind in tensors},
    )


def _looks_like_cudnn(candidate: _Candidate) -> bool:
    try:
        return _classify("", candidate).is_cudnn
    except _Mismatch:
        return False
