"""The models in a store, found as those of a local folder are.

What tells a model from other files is its name and its beginning, and how it lies beside others.
So a local folder is made of the names and beginnings, and walked. A file that seems a model is
looked at again when it has been fetched.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from rnnconvert.commands.folder import FoundModel, FoundModels, Wanted, find_models
from rnnconvert.containers.sniff import is_hdf5, is_zip
from rnnconvert.errors import ConversionError, UnreadableInputError, UsageError, errors_of
from rnnconvert.kinds import MODEL_NAMES, is_saved_model, kind_of
from rnnconvert.publish import PREFIX
from rnnconvert.stores.access import StoredObject, list_beside, list_objects, object_at, starts_of
from rnnconvert.stores.names import refused_names
from rnnconvert.stores.translate import errors_renamed
from rnnconvert.stores.urls import StoreUrl

_START = 8200
"""Bytes of each object: HDF5 may begin behind 8192 of them."""
_MOST = 50_000
"""Objects that are looked at in one run."""
_AT_ONCE = 500
_SHARD = re.compile(r"-[0-9]{5}-of-[0-9]{5}")
_PART = re.compile(rf"(.+?)(?:\.index|\.meta|\.data{_SHARD.pattern}|{_SHARD.pattern})?")
STATE = "checkpoint"
NOTHING = "no such object, and none below it"


@dataclass(frozen=True)
class StoredModel:
    """A model in a store, instead of the path of a local one.

    Attributes:
        url: of its file, directory or prefix.
        objects: that it consists of, all below the directory of `url`.
        sniffed: only its beginning was looked at, so it may turn out to be no model.
        refused: why its name is no safe local path.
    """

    url: StoreUrl
    objects: tuple[StoredObject, ...] = ()
    sniffed: bool = False
    refused: str | None = None

    def __str__(self) -> str:
        return str(self.url)

    @property
    def name(self) -> str:
        return self.url.name

    @property
    def local_name(self) -> str:
        """Of its copy, beside which nothing of another model lies; a bucket has no directory."""
        return self.url.name if "/" in self.url.path else ""

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.objects)

    @property
    def names(self) -> list[PurePosixPath]:
        """Of the objects, as relative paths in the directory that `url` is in.

        Raises:
            UnreadableInputError: one of them would not stay in there.
        """
        base = len(self.url.parent.path) + 1
        found = [each.url.path[base:] for each in self.objects]
        for name, why in refused_names(found).items():
            raise UnreadableInputError(refusal(why), path=str(self.url.parent.below(name)))
        return [PurePosixPath(name) for name in found]


def refusal(why: str) -> str:
    """The sentence on an object whose name is refused."""
    return f"refused as unsafe: {why}"


@contextmanager
def find_stored(top: StoreUrl, wanted: Wanted) -> Iterator[FoundModels]:
    """The models that a URL stands for: itself, or all below it.

    Yields:
        What `find_models` finds. The paths are of beginnings, and are there meanwhile.

    Raises:
        ConversionError: there is nothing of that name, or the store can't be used.
    """
    for _, why in refused_names([top.name]).items():
        raise UnreadableInputError(refusal(why), path=str(top))
    objects = _objects_of(top)
    is_tree = all(each.url.path.startswith(f"{top.path}/") for each in objects)
    base = top if is_tree else top.parent
    wanted = replace(wanted, seems=_seems) if is_tree else Wanted(seems=_seems)
    kept = _kept(objects, base, wanted)
    if not kept:
        raise UsageError("no model is left by --include and --exclude", path=str(top))
    refused = refused_names(kept)
    good = {name: each for name, each in kept.items() if name not in refused}
    with tempfile.TemporaryDirectory(prefix=PREFIX) as scratch:
        folder = Path(scratch).resolve() / base.name
        folder.mkdir()
        _write_starts(folder, good, wanted)
        with errors_of(top), errors_renamed({str(folder): str(base)}):
            found = _find(folder, folder if is_tree else folder / top.name, wanted)
        _give_objects(found, folder, base, good)
        if is_tree:
            found.excluded += len(objects) - len(kept)
            _refuse(found, base, {n: why for n, why in refused.items() if _path(n) in wanted})
        yield found


def _find(folder: Path, path: Path, wanted: Wanted) -> FoundModels:
    """The models of a folder of beginnings; or that one of them."""
    if path == folder and not any(folder.iterdir()):
        return FoundModels(is_folder=True)
    found = find_models([path], wanted)
    if path.is_dir() and not found.is_folder:
        kind_of(path)  # says what is wrong where it is no model
    return found


def _give_objects(
    found: FoundModels, folder: Path, base: StoreUrl, objects: dict[str, StoredObject]
) -> None:
    """Let each model have the objects that it consists of."""
    for number, model in enumerate(found.models):
        name = model.path.relative_to(folder).as_posix()
        chosen = tuple(objects[key] for key in _parts(model.path, name, objects))
        stored = StoredModel(base.below(name), chosen, found.is_folder and _is_sniffed(model.path))
        if "/" not in stored.url.path and is_saved_model(model.path):
            raise UnreadableInputError("a bucket as a whole is no model: put it into a folder",
                                       path=str(base))  # fmt: skip
        found.models[number] = replace(model, stored=stored)


def _refuse(found: FoundModels, base: StoreUrl, refused: dict[str, str]) -> None:
    """Names that are refused as models that can't be read; a SavedModel with all that is in it."""
    for name, why in refused.items():
        url = base.below(name)
        whole = [number for number, model in enumerate(found.models)
                 if model.stored and is_saved_model(model.path)
                 and url.path.startswith(f"{model.stored.url.path}/")]  # fmt: skip
        for number in whole:
            model = found.models[number]
            assert model.stored is not None
            told = f"{refusal(why)} ({url})"
            found.models[number] = replace(model, stored=replace(model.stored, refused=told))
        if not whole:
            found.models.append(FoundModel(Path(), stored=StoredModel(url, refused=refusal(why))))
    found.models.sort(key=lambda model: str(model.stored))


def _objects_of(top: StoreUrl) -> list[StoredObject]:
    """All objects below a URL; else the object itself, and what may belong to it.

    Raises:
        UnreadableInputError: there is none of them.
    """
    alone = None if top.is_directory else object_at(top)
    if alone is not None and PurePosixPath(top.name).suffix in MODEL_NAMES:
        return [alone]  # needs no permission to list
    found = list_objects(top) if alone is None else []
    if not found and not top.is_directory and "/" in top.path:
        match = _PART.fullmatch(top.name)
        beginning = "" if top.name == STATE or match is None else match[1]
        found = list_beside(top, beginning)
        if alone is None and not any(_is_of(each.url.name, beginning) for each in found):
            found = []
    if not found:
        raise UnreadableInputError(NOTHING, path=str(top))
    return found


def _is_of(name: str, prefix: str) -> bool:
    """Whether a file of that name may be a part of a checkpoint."""
    rest = name[len(prefix) :]
    return name.startswith(prefix) and (rest[:1] in ("", ".") or bool(_SHARD.fullmatch(rest)))


def _kept(
    objects: Sequence[StoredObject], base: StoreUrl, wanted: Wanted
) -> dict[str, StoredObject]:
    """The objects that are not excluded, by their names below `base`."""
    named = {each.url.path[len(base.path) + 1 :]: each for each in objects}
    kept = {name: each for name, each in named.items() if not _is_excluded(name, wanted)}
    if len(kept) > _MOST:
        raise UsageError(f"more than {_MOST:,} objects: name a part of them, or use --exclude",
                         path=str(base))  # fmt: skip
    return kept


def _is_excluded(name: str, wanted: Wanted) -> bool:
    return any(wanted.is_excluded(part) for part in (_path(name), *_path(name).parents))


def _path(name: str) -> Path:
    return Path(*PurePosixPath(name).parts)


def _write_starts(folder: Path, objects: dict[str, StoredObject], wanted: Wanted) -> None:
    """Beginnings of objects, under names that are known to be safe.

    What is not asked for is empty there: its name may tell that it is a part of a larger model.
    """
    read = [name for name in objects if _path(name) in wanted or _path(name).name == STATE]
    for name in objects.keys() - set(read):
        _write(folder / name, b"")
    for number in range(0, len(read), _AT_ONCE):
        names = read[number : number + _AT_ONCE]
        starts = starts_of([objects[name] for name in names], _START)
        for name, start in zip(names, starts, strict=True):
            _write(folder / name, start)


def _write(place: Path, content: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)


def _is_sniffed(path: Path) -> bool:
    return path.is_file() and (is_hdf5(path) or is_zip(path))


def _seems(path: Path) -> bool:
    """`kinds.seems_model`, by the beginning of a file alone."""
    return _is_sniffed(path) or path.suffix in MODEL_NAMES


def _parts(path: Path, name: str, objects: dict[str, StoredObject]) -> list[str]:
    """The names of the objects of a model: a directory, the files of a checkpoint, or a file."""
    from rnnconvert.containers.checkpoint import find_checkpoint  # a local model needs none of it

    if is_saved_model(path):
        return [key for key in objects if name == "." or key.startswith(f"{name}/")]
    prefix, own = PurePosixPath(name), [name]
    if path.is_dir():
        own = [(prefix / STATE).as_posix()]
    try:
        checkpoint = find_checkpoint(path)
    except ConversionError:  # damaged, which is told in its turn
        checkpoint = None
    if checkpoint is not None:
        first = checkpoint.prefix.relative_to(path if path.is_dir() else path.parent)
        prefix = prefix / first if path.is_dir() else prefix.parent / first
        own += [key for key in objects if PurePosixPath(key).parent == prefix.parent
                and _is_of(PurePosixPath(key).name, prefix.name)]  # fmt: skip
    return [key for key in dict.fromkeys(own) if key in objects]
