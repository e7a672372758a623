"""The weights in cuDNN's flat parameter buffer as named arrays, one per gate and kind.

Names are those of `opaque.Region.name`, like lstm/layer_0/forward/input_kernel/i; names and shapes
together tell all hyperparameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rnnconvert.errors import UsageError
from rnnconvert.layouts.cells import CELLS
from rnnconvert.layouts.opaque import PseudoLayer, fill, named, require_regions, unpack_buffer
from rnnconvert.layouts.opaque_fitting import changes, listed
from rnnconvert.layouts.opaque_shape import CUDNN_CELLS, OpaqueShape
from rnnconvert.layouts.weights import Array

_NAME = re.compile(
    f"({'|'.join(CUDNN_CELLS)})/layer_([0-9]+)/(forward|backward)/"
    "(?:(?:input|recurrent)_(?:kernel|bias)/[a-z]|projection)"
)


def to_arrays(shape: OpaqueShape, layers: Sequence[PseudoLayer]) -> dict[str, Array]:
    """One array per region under its name (`Region.name`); all are views of the layers' arrays.

    Raises:
        ValueError: as `opaque.pack`.

    Example:
        >>> shape = OpaqueShape("rnn_tanh", 1, 4, 3)
        >>> list(to_arrays(shape, unpack_buffer(shape, np.zeros(shape.size))))[0]
        'rnn_tanh/layer_0/forward/input_kernel/h'
    """
    arrays = named(layers)
    require_regions(shape, arrays)
    return arrays


def from_arrays(
    arrays: Mapping[str, Array], shape: OpaqueShape | None = None
) -> tuple[OpaqueShape, tuple[PseudoLayer, ...]]:
    """The pseudo-layers of arrays named as by `to_arrays`, and their hyperparameters.

    The hyperparameters follow from names and shapes alone.

    Raises:
        UsageError: `shape` is given, and its layout is another one.
        ValueError: arrays are missing or too many, or their shapes or dtypes contradict each other.

    Example:
        >>> shape = OpaqueShape("gru", 1, 4, 3)
        >>> arrays = to_arrays(shape, unpack_buffer(shape, np.zeros(shape.size)))
        >>> from_arrays(arrays)[0] == shape
        True
    """
    found = shape_of(arrays)
    if shape is not None and shape.resolved != found:
        raise UsageError(
            f"the arrays are those of {found}; the options say otherwise: "
            + listed(changes(found, shape.resolved))
        )
    return found, unpack_buffer(found, fill(found, arrays))


def shape_of(arrays: Mapping[str, Array]) -> OpaqueShape:
    """The hyperparameters that names and shapes of canonical arrays tell, resolved.

    Raises:
        ValueError: names of another kind or of several cells, or impossible shapes.

    Example:
        >>> shape = OpaqueShape("gru", 2, 4, 3, "bidirectional")
        >>> shape_of(to_arrays(shape, unpack_buffer(shape, np.zeros(shape.size)))) == shape
        True
    """
    parsed = {name: _NAME.fullmatch(name) for name in arrays}
    unknown = [name for name, match in parsed.items() if match is None]
    cells, layers, directions = (
        sorted({match[group] for match in parsed.values() if match}) for group in (1, 2, 3)
    )
    if unknown or len(cells) != 1:
        raise ValueError(
            "expected arrays of one cell with names like lstm/layer_0/forward/input_kernel/i, "
            f"found {listed(unknown or cells) or 'none'}"
        )
    first = f"{cells[0]}/layer_0/forward"
    gate = CELLS[cells[0]].gates[0]

    def axes(name: str, count: int) -> tuple[int, ...]:
        """The shape of an array, zeros where there is none."""
        found = arrays[name].shape if name in arrays else (0,) * count
        if len(found) != count:
            raise ValueError(f"{name}: expected {count} axes, found shape {found}")
        return found

    (units,) = axes(f"{first}/input_bias/{gate}", 1)
    (_, inputs) = axes(f"{first}/input_kernel/{gate}", 2)
    (projection, _) = axes(f"{first}/projection", 2)
    try:
        return OpaqueShape(
            cells[0], len(layers), units, inputs or units,
            direction="bidirectional" if "backward" in directions else "unidirectional",
            input_mode="linear_input" if inputs else "skip_input", num_proj=projection,
        )  # fmt: skip
    except UsageError as error:  # not the fault of the options: the arrays say so
        raise ValueError(f"arrays are missing or have impossible shapes: {error}") from error
