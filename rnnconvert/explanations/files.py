"""The layouts in a file: every recurrent layer with its own numbers."""

from __future__ import annotations

from collections.abc import Iterator

from rnnconvert.explanations.facts import CLASSES, formula
from rnnconvert.keras_models.inspect import Inspection
from rnnconvert.keras_models.plan import Site, SiteChange
from rnnconvert.layouts import CELLS, BiasForm, Layout, MatrixForm

_BLOCKS = {
    MatrixForm.COLUMNS: "each a gate's matrix ({units}, {rows}) transposed",
    MatrixForm.CUDNN_COLUMNS: "each the buffer of a gate's matrix ({units}, {rows})",
}
_BIASES = {
    BiasForm.MERGED: "the sum of input and recurrent bias",
    BiasForm.TWO_ROWS: "row 0 input biases, row 1 recurrent biases",
    BiasForm.CONCATENATED: "input biases, then recurrent biases",
}
_TOPICS = {"keras-cudnn": "split", "keras": "keras"}
"""The topic that explains a layout."""


def explain_file(found: Inspection) -> str:
    """What an inspected file holds, layer by layer; names are as in the file, not yet printable."""
    sites = found.plan.sites
    if not sites:
        return "no recurrent layers\n"
    lines = [line for change in sites for line in [*_site(change), ""]]
    topics = dict.fromkeys(_TOPICS[change.site.layout] for change in sites)
    more = ", ".join(f"'rnnconvert explain {topic}'" for topic in topics)
    return "\n".join([*lines, f"More: {more}", ""])


def _site(change: SiteChange) -> Iterator[str]:
    site = change.site
    name = site.class_name or CLASSES.get((site.layout, site.cell), site.cell)
    yield f"{site.path.removeprefix('model/')}: {name}, {site.direction}"
    if site.cell not in CELLS:
        yield "  convolutional: cuDNN has no such layer, nothing to relay"
        for kind, tensor in site.tensors.items():
            yield f"  {kind:18}{tensor.shape}"
        return
    yield f"  {site.cell} cell, {site.units} units on {site.input_dim} inputs"
    layout = site.stored_as(site.layout)
    for kind, tensor in site.tensors.items():
        first, *further = _content(site, layout, kind)
        yield f"  {kind:18}{tensor.shape!s:14}{first}"
        yield from (f"  {'':32}{line}" for line in further)
    yield f"  {'weights':18}{_count(site, site.layout)}"
    if change.target_layout != site.layout:
        yield f"  to be converted to {CLASSES[change.target_layout, site.cell]}:"
        kinds = {tensor.path: kind for kind, tensor in site.tensors.items()}
        for edit in change.changes:
            yield f"    {kinds[edit.source.path]:18}{edit.target.shape!s:14}{edit.edit}"
        yield f"    {'weights':18}{_count(site, change.target_layout)}"
    elif change.changes:
        yield f"  to be rescaled for Keras 3: {change.changes[0].edit} (explain hard-sigmoid)"


def _content(site: Site, layout: Layout, kind: str) -> list[str]:
    """What a tensor holds, in one line or two."""
    gates = " ".join(layout.gates)
    if kind == "bias":
        return [f"{gates}: {_BIASES[layout.bias]}"]
    rows = site.input_dim if kind == "kernel" else site.units
    count = len(layout.gates)
    blocks = f"{count} blocks ({rows}, {site.units})" if count > 1 else "1 block"
    return [f"{blocks}: {gates}", _BLOCKS[layout.matrix].format(units=site.units, rows=rows)]


def _count(site: Site, layout: str) -> str:
    gates, count = len(CELLS[site.cell].gates), site.parameters_as(layout)
    biases = count // (gates * site.units) - site.input_dim - site.units
    return f"{formula(gates, site.units, site.input_dim, biases)} = {count}"
