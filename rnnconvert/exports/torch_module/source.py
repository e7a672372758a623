"""The written `model.py`: a class that torch's users can read, and the helpers that it needs."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from rnnconvert.exports.torch_module.emitter import Emitter, Value

_HEAD = '''"""A PyTorch module of a Keras model, for inference; written by rnnconvert.

    from {module} import load

    model = load("{weights}")
    {outputs} = model({inputs})

Inputs:
{shapes}
{states}"""

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
'''
_STATES = """
The last {count} inputs are states, zeros at the beginning of a sequence. The last {count} outputs
are the next ones, in the same order.
"""
_LOAD = '''def load(path):
    """The module with the weights of a .safetensors file, ready for inference."""
    model = Model(){dtype}
    model.load_state_dict(load_file(path))
    return model.eval()
'''


def source_of(
    emitter: Emitter,
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    dtypes: Sequence[str],
    weights: str,
    program: str,
    dtype: str,
    states: int = 0,
) -> str:
    """The file's text.

    Args:
        emitter: with all modules and lines.
        inputs, outputs: variables of `forward`.
        dtypes: of the inputs.
        weights: name of the file with the tensors.
        program: name of the module.
        dtype: of the tensors, e.g. "float32".
        states: how many of the inputs and of the outputs are states, the last ones.
    """
    body = "\n\n\n".join((_class(emitter, inputs, outputs), _load(dtype)))
    helpers = "".join(f"\n\n{text}\n" for text in _helpers(body))
    head = _HEAD.format(
        module=_plain(program),
        weights=_plain(weights),
        outputs=", ".join(f"y{place}" for place in range(len(outputs))),
        inputs=", ".join(value.name for value in inputs),
        shapes="\n".join(
            f"    {value.name}: {dtype}, {_shape(value)}"
            for value, dtype in zip(inputs, dtypes, strict=True)
        ),
        states=_STATES.format(count=states) if states else "",
    )
    text = f"{head}{helpers}\n\n{body}"
    return _without_unused_imports(text)


def _class(emitter: Emitter, inputs: Sequence[Value], outputs: Sequence[Value]) -> str:
    attributes = [
        f"        self.{module.name} = {module.source}  # Keras: {_comment(module.layer)}"
        for module in emitter.modules
    ]
    names = ", ".join(value.name for value in outputs)
    body = _needed(emitter.lines, {value.name for value in outputs})
    lines = [
        "class Model(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        *attributes,
        "",
        f"    def forward(self, {', '.join(value.name for value in inputs)}):",
        *(f"        {line}" for line in body),
        f"        return {names}",
    ]
    return "\n".join(lines)


def _needed(lines: Sequence[str], wanted: set[str]) -> list[str]:
    """Lines without those whose values nothing uses, such as the masks of layers that ignore them.

    Args:
        lines: assignments.
        wanted: variables that are needed in the end.
    """
    kept: list[str] = []
    for line in reversed(lines):
        found = [node for node in ast.walk(ast.parse(line)) if isinstance(node, ast.Name)]
        made = {node.id for node in found if isinstance(node.ctx, ast.Store)}
        if made & wanted:
            kept.append(line)
            wanted = wanted - made | {node.id for node in found if node.id not in made}
    return kept[::-1]


def _load(dtype: str) -> str:
    return _LOAD.format(dtype="" if dtype == "float32" else f".to(torch.{dtype})")


def _plain(name: str) -> str:
    """A file's name for the docstring: nothing that could end it."""
    return "".join(sign if sign.isalnum() or sign in "._-" else "_" for sign in name)


def _comment(name: str) -> str:
    """A layer's name for a comment: ASCII, without line ends."""
    return ascii(name[:60])


def _shape(value: Value) -> str:
    sizes = ["batch", *("any" if size is None else str(size) for size in value.shape[1:])]
    return f"({', '.join(sizes)})" if len(sizes) > 1 else "(batch,)"


# --- helpers --------------------------------------------------------------------------------


def _helpers(text: str) -> list[str]:
    """The helpers that a text uses, and those that they use, in the order of their file."""
    known = _definitions()
    needed: set[str] = set()
    pending = [text]
    while pending:
        used = _names(pending.pop()) & set(known) - needed
        needed |= used
        pending += [known[name] for name in used]
    return [known[name] for name in known if name in needed]


@cache
def _definitions() -> dict[str, str]:
    """Name to source of each function and class of `helpers.py`."""
    text = Path(__file__).with_name("helpers.py").read_text(encoding="utf-8")
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = ast.get_source_segment(text, node) or ""
    return found


def _names(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def _without_unused_imports(text: str) -> str:
    if "F" in _names(text):
        return text
    return text.replace("import torch.nn.functional as F\n", "", 1)
