"""cuDNN's flat parameter buffer (`opaque_kernel`, `params`): its size, its regions, both ways.

The buffer holds the matrices of all pseudo-layers, then the biases of all pseudo-layers. A
pseudo-layer is one direction of one layer, in the order layer 0 forward, layer 0 backward, layer 1
forward, ... With G gates, `units` and `out` = num_proj or units, each has, row-major:

    W  (G, units, in)     in = input_size for layer 0, else directions * out
    R  (G, units, out)
    P  (out, units)       with a projection only
    b  (2, G, units)      input biases, then recurrent biases

Gates are cuDNN's: lstm i f c o, gru r z n, rnn h, the order of `Cell.gates`. There is no padding,
and the offsets in elements are the same for every dtype. With skip_input layer 0 has no W (every
gate receives x itself), but keeps both biases.

Source: NVIDIA's library itself, asked by `cudnnGetRNNWeightSpaceSize` and `cudnnGetRNNWeightParams`
(`tests/layouts/test_opaque_cudnn.py` asks it again). The names of the hyperparameters are those of
TensorFlow's `CudnnRNN` operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from rnnconvert.errors import NotConvertibleError
from rnnconvert.layouts.cells import CELLS
from rnnconvert.layouts.opaque_fitting import listed, misfit
from rnnconvert.layouts.opaque_shape import DTYPES, KINDS, OpaqueShape, fields_of, region_name
from rnnconvert.layouts.weights import FLOAT_DTYPES, Array, RnnWeights


@dataclass(frozen=True, eq=False)
class PseudoLayer:
    """The weights of one direction of one layer, as cuDNN has them.

    Attributes:
        direction: "forward" or "backward".
        kernel: (gates, units, in); None where skip_input leaves it out.
        recurrent: (gates, units, out).
        bias: (2, gates, units), input bias then recurrent bias.
        projection: (out, units), or None.

    Raises:
        ValueError: an array has another number of axes, gates or units.
    """

    cell: str
    layer: int
    direction: str
    kernel: Array | None
    recurrent: Array
    bias: Array
    projection: Array | None = None

    def __post_init__(self) -> None:
        gates, units = len(CELLS[self.cell].gates), self.bias.shape[-1:]
        expected: dict[str, tuple[int | str, ...]] = {
            "bias": (2, gates, *units),
            "kernel": (gates, *units, "in"),
            "recurrent": (gates, *units, "out"),
            "projection": ("out", *units),
        }
        for field, axes in expected.items():
            array = getattr(self, field)
            if array is not None and not _matches(array.shape, axes):
                raise ValueError(
                    f"{field} of layer {self.layer} {self.direction} of a {self.cell}: "
                    f"expected shape {axes}, found {array.shape}"
                )

    @classmethod
    def of(cls, weights: RnnWeights, layer: int, direction: str) -> PseudoLayer:
        """Raises ValueError for weights without biases, which no buffer holds."""
        if weights.bias is None:
            raise ValueError(f"layer {layer} {direction}: no biases, which a buffer always has")
        return cls(weights.cell, layer, direction, weights.kernel, weights.recurrent, weights.bias)

    def arrays(self) -> dict[str, Array]:
        """One array per gate and kind under its name (`Region.name`); views where possible."""
        found = {}
        for field, kinds in KINDS.items():
            if (array := getattr(self, field)) is None:
                continue
            gates = (None,) if field == "projection" else CELLS[self.cell].gates
            one = array.shape[-1:] if field == "bias" else array.shape[-2:]
            rows = array.reshape(-1, *one)
            for (kind, gate), row in zip(product(kinds, gates), rows, strict=True):
                found[region_name(self.cell, self.layer, self.direction, kind, gate)] = row
        return found

    def weights(self) -> RnnWeights:
        """The canonical weights; an identity kernel per gate stands for a skipped input.

        Raises:
            NotConvertibleError: the layer has a projection.
        """
        if self.projection is not None:
            out, units = self.projection.shape
            raise NotConvertibleError(
                f"layer {self.layer} {self.direction} projects the output of an LSTM from {units} "
                f"to {out} units (num_proj={out}); an LSTM without a projection can't do that"
            )
        kernel, shape = self.kernel, self.recurrent.shape
        if kernel is None:
            kernel = np.broadcast_to(np.eye(shape[1], dtype=self.recurrent.dtype), shape)
        return RnnWeights(self.cell, kernel, self.recurrent, self.bias)


def unpack_buffer(shape: OpaqueShape, buffer: Array) -> tuple[PseudoLayer, ...]:
    """The pseudo-layers of a buffer, in its order. All arrays are views of `buffer`.

    Raises:
        ValueError: the buffer has another size (the message names hyperparameters that would fit),
            is not 1-D, or has another dtype than `DTYPES`.

    Example:
        >>> shape = OpaqueShape("gru", 1, 4, 3)
        >>> (layer,) = unpack_buffer(shape, np.arange(shape.size, dtype=np.float32))
        >>> layer.kernel.shape
        (3, 4, 3)
    """
    if buffer.ndim != 1:
        raise ValueError(f"expected a flat buffer of shape (elements,), found {buffer.shape}")
    if len(buffer) != shape.size:
        raise ValueError(misfit(shape, len(buffer)))
    _one_dtype([buffer])
    held: dict[tuple[int, str], dict[str, Array]] = {}
    offset = 0
    for layer, direction, field, size in fields_of(shape):
        end = offset + prod(size)
        held.setdefault((layer, direction), {})[field] = buffer[offset:end].reshape(size)
        offset = end
    return tuple(
        PseudoLayer(
            shape.cell, *place, own.get("kernel"), own["recurrent"], own["bias"],
            own.get("projection"),
        )
        for place, own in held.items()
    )  # fmt: skip


def pack_buffer(shape: OpaqueShape, layers: Sequence[PseudoLayer]) -> Array:
    """The buffer of these pseudo-layers, given in any order: the inverse of `unpack`.

    Raises:
        ValueError: a layer is missing or too many, or an array has another shape or dtype.

    Example:
        >>> shape = OpaqueShape("gru", 1, 4, 3)
        >>> buffer = np.arange(shape.size, dtype=np.float32)
        >>> bool((pack_buffer(shape, unpack_buffer(shape, buffer)) == buffer).all())
        True
    """
    return fill(shape, named(layers))


def named(layers: Sequence[PseudoLayer]) -> dict[str, Array]:
    """The arrays of all layers under their names; ValueError where a layer is given twice."""
    if len({(layer.layer, layer.direction) for layer in layers}) != len(layers):
        raise ValueError("a pseudo-layer is given twice")
    return {name: array for layer in layers for name, array in layer.arrays().items()}


def fill(shape: OpaqueShape, arrays: Mapping[str, Array]) -> Array:
    """The buffer with these arrays in their regions; ValueError as `require_regions`."""
    buffer = np.empty(shape.size, require_regions(shape, arrays))
    for region in shape.regions:
        buffer[region.offset : region.end].reshape(region.shape)[...] = arrays[region.name]
    return buffer


# --- checks and messages --------------------------------------------------------------------


def require_regions(shape: OpaqueShape, arrays: Mapping[str, Array]) -> np.dtype[np.generic]:
    """The dtype of all arrays; ValueError where they are not those of the regions of `shape`."""
    expected = {region.name: region.shape for region in shape.regions}
    missing = [name for name in expected if name not in arrays]
    further = [name for name in arrays if name not in expected]
    if missing or further:
        raise ValueError(
            f"{len(missing)} of {len(expected)} arrays are missing ({listed(missing) or '-'}), "
            f"{len(further)} have no place ({listed(further) or '-'})"
        )
    for name, size in expected.items():
        if arrays[name].shape != size:
            raise ValueError(f"{name}: expected shape {size}, found {arrays[name].shape}")
    return _one_dtype(arrays.values())


def _one_dtype(arrays: Iterable[Array]) -> np.dtype[np.generic]:
    """The dtype of all arrays, byte order included: nothing may be converted on the way."""
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) != 1 or not {dtype.name for dtype in dtypes} <= set(DTYPES):
        raise ValueError(
            f"expected one dtype of {', '.join(FLOAT_DTYPES)}, "
            f"found {listed(sorted(map(str, dtypes)))}"
        )
    return dtypes.pop()


def _matches(shape: tuple[int, ...], axes: tuple[int | str, ...]) -> bool:
    """Whether a shape has these axes; a named one may have any length."""
    return len(shape) == len(axes) and all(
        isinstance(axis, str) or axis == length for axis, length in zip(axes, shape, strict=True)
    )
