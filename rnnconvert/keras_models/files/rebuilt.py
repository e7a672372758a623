"""What is known of a Keras file that was rebuilt as an HDF5 file of Keras 2's form."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rebuilt:
    """The result of each reader that rebuilds.

    Attributes:
        keras_version: of the writer, or the oldest that it can be; None where nothing is known.
        warnings: what the HDF5 file lacks; sentences.
    """

    keras_version: str | None
    warnings: tuple[str, ...] = ()
