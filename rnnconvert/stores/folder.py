"""Folders of models where some are in stores: what is in them, where it goes, and what clashes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

from rnnconvert.commands.folder import (
    FoundModel,
    FoundModels,
    Wanted,
    directory_name,
    find_models,
    mirrored,
)
from rnnconvert.errors import UsageError
from rnnconvert.options import Options
from rnnconvert.stores.finding import StoredModel, find_stored
from rnnconvert.stores.urls import StoreUrl

Source: TypeAlias = Path | StoredModel
"""A model."""
Target: TypeAlias = Path | StoreUrl | None
"""Where it goes: a path or URL, a directory of one, or None for beside the model."""


@contextmanager
def find_placed(
    places: Sequence[Path | StoreUrl], wanted: Wanted, output: Target = None
) -> Iterator[FoundModels]:
    """`find_models`, where some of the places are URLs.

    Raises:
        ConversionError: there is nothing, or a store can't be used.
    """
    below = output if isinstance(output, Path) else None
    if not any(isinstance(place, StoreUrl) for place in places):
        yield find_models([place for place in places if isinstance(place, Path)], wanted, below)
        return
    with ExitStack() as stack:
        found = FoundModels()
        for place in places:
            if isinstance(place, Path):
                part = find_models([place], wanted, below)
            else:
                part = stack.enter_context(find_stored(place, wanted))
            found.add(part)
        yield found


@contextmanager
def targets_of(found: FoundModels, output: Target, options: Options) -> Iterator[list[Target]]:
    """Where the output of each model goes: see `mirrored`. In stores no directories are made.

    Raises:
        UsageError: it has to be a directory and is none.
    """
    if isinstance(output, StoreUrl):
        yield (
            [_target(model, output, options) for model in found.models]
            if (found.is_folder or len(found.models) > 1)
            else [output]
        )
        return
    if found.is_folder:
        if output is not None and output.exists() and not output.is_dir():
            raise UsageError("with a folder as input the output must be a directory",
                             path=str(output))  # fmt: skip
        with mirrored(found.models, output, options) as places:
            yield list(places)
        return
    if len(found.models) > 1 and output is not None and not output.is_dir():
        raise UsageError("with several inputs the output must be an existing directory",
                         path=str(output))  # fmt: skip
    yield [output] * len(found.models)


def _target(model: FoundModel, output: StoreUrl, options: Options) -> StoreUrl:
    directory = output.below(model.below.as_posix(), is_directory=True)
    name = directory_name(model, options)
    return directory if name is None else directory.below(name)


def refuse_stored_clashes(
    models: Sequence[FoundModel], targets: Sequence[Target], options: Options
) -> None:
    """`publish.refuse_clashes` of the outputs that go into stores.

    It goes by what names tell: nothing has been fetched yet.

    Raises:
        UsageError: two models may be written to one place, or one over another.
    """
    read = {str(each.url) for model in models if model.stored for each in model.stored.objects}
    written: set[str] = set()
    for model, target in zip(models, targets, strict=True):
        for place in sorted(_places(model, target, options), key=len):
            if place in written:
                raise UsageError(f"several inputs would or could be written as {place}")
            if place in read:
                raise UsageError(f"{place} is an input, and another one would be written there")
            written.add(place)


def _places(model: FoundModel, target: Target, options: Options) -> set[str]:
    """Where a model may be written to."""
    if isinstance(target, StoreUrl) and not target.is_directory:
        return {str(target)}
    base = target
    if target is None and model.stored is not None:
        base = model.stored.url.parent
    if options.check or model.path == Path() or not isinstance(base, StoreUrl):
        return set()
    from rnnconvert.commands.convert import possible_outputs  # a local model needs none of it

    beside = model.path.parent
    outputs = possible_outputs(model.path, None if target is None else beside, options)
    return {str(base.below(path.relative_to(beside).as_posix())) for path in outputs}
