"""The package's floors: who may import whom, and the one place for each dangerous thing.

The rules are in docs/architecture.md. They are read from the syntax trees: nothing is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[1] / "rnnconvert"

FLOORS = (
    ("errors", "progress", "hashes", "versions", "py.typed"),
    ("containers", "layouts", "references", "exchange"),
    ("kinds", "options", "report", "publish"),
    ("outputs",),
    ("verification",),
    ("keras_models.config",),
    ("keras_models.plan",),
    ("keras_models.edits",),
    ("keras_models.files",),
    ("keras",),
    ("keras_models",),
    ("checkpoints", "graphs"),
    ("commands",),
    ("exports", "stores"),
    ("explanations",),
    ("page",),
    ("cli",),
    ("__main__",),
)
"""From the ground up. A module imports from its own entry and from lower floors only."""

OWN = {
    "containers": {"errors"},
    "layouts": {"errors"},
    "references": set(),
    "options": {"errors"},
    "report": {"errors", "hashes", "versions"},
    "kinds": {"errors", "containers"},
}
"""What these import at most, whatever lies on a lower floor."""

FRAMEWORKS = {
    "tensorflow": ("exports", "graphs", "verification", "keras"),
    "keras": ("exports", "keras", "keras_models.verify", "verification"),
    "tf_keras": ("keras_models.verify",),
    "torch": ("exports", "keras", "keras_models.verify", "verification"),
    "fsspec": ("stores.access",),
    "distributed": ("cli.cluster",),
}
"""The only places that import them."""

CALLS = {
    "h5py.File": "containers.safe_h5",
    "zipfile.ZipFile": "containers.safe_zip",
    "np.load": None,
    "zipfile.is_zipfile": "containers.safe_zip",
    "eval": None,
    "exec": None,
    "compile": None,
}
"""What opens or runs a stranger's bytes, and the one module that may call it."""


class Import(NamedTuple):
    module: str
    line: int
    target: str
    inside_a_function: bool

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


@cache
def modules() -> dict[str, ast.Module]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        if name != "__init__":
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imports(name: str, node: ast.AST, *, inside_a_function: bool = False) -> Iterator[Import]:
    """Every import but those for the type checker alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.ImportFrom):
            assert not child.level, f"{name}:{child.lineno}: a relative import"
            targets = [f"{child.module}.{alias.name}" for alias in child.names]
        else:
            targets = [alias.name for alias in child.names] if isinstance(child, ast.Import) else []
        for target in targets:
            yield Import(name, child.lineno, target, inside_a_function)
        inside = inside_a_function or isinstance(child, ast.FunctionDef)
        yield from imports(name, child, inside_a_function=inside)


@cache
def all_imports() -> list[Import]:
    return [found for name, tree in modules().items() for found in imports(name, tree)]


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    return [(name, node) for name, tree in modules().items() for node in ast.walk(tree)]


@cache
def calls() -> list[tuple[str, str]]:
    return [
        (name, ast.unparse(node.func))
        for name, node in nodes()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name)
    ]


def is_in(name: str, place: str) -> bool:
    return name == place or name.startswith(f"{place}.")


def entry(name: str) -> tuple[int, str]:
    """The floor of a module, and its place there: the longest that fits."""
    fitting = [
        (len(place), number, place)
        for number, floor in enumerate(FLOORS)
        for place in floor
        if is_in(name, place)
    ]
    assert fitting, f"{name} is on no floor"
    return max(fitting)[1:]


def own_imports() -> Iterator[tuple[Import, str]]:
    """Imports of the package's own modules, with the target's name in the package."""
    for found in all_imports():
        if found.target.startswith("rnnconvert."):
            yield found, found.target.removeprefix("rnnconvert.")


def upward(found: Import, target: str) -> bool:
    (here, own), (there, other) = entry(found.module), entry(target)
    return own != other and there >= here


def test_imports_go_down_only():
    assert not [str(found) for found, target in own_imports() if upward(found, target)]


def test_this_check_can_fail():
    assert upward(Import("layouts.cells", 1, "", False), "containers.safe_h5")
    assert upward(Import("graphs.convert", 1, "", False), "checkpoints.find")
    assert upward(Import("keras_models.files.h5", 1, "", False), "keras_models.verify.levels")
    assert not upward(Import("graphs.convert", 1, "", False), "keras_models.opening")


@pytest.mark.parametrize("place", OWN)
def test_the_ground_imports_little(place):
    wrong = [
        str(found)
        for found, target in own_imports()
        if is_in(found.module, place)
        and not is_in(target, place)
        and entry(target)[1] not in OWN[place]
    ]
    assert not wrong


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frameworks_are_imported_in_their_places_only(framework):
    found = [item for item in all_imports() if item.target.split(".")[0] == framework]
    assert found, f"nothing imports {framework}: the rule is out of date"
    allowed = FRAMEWORKS[framework]
    assert not [
        str(item) for item in found if not any(is_in(item.module, place) for place in allowed)
    ]


@pytest.mark.parametrize("framework", ["torch", "tf_keras", "fsspec", "distributed"])
def test_optional_frameworks_are_imported_when_they_are_used(framework):
    found = [item for item in all_imports() if item.target.split(".")[0] == framework]
    assert not [str(item) for item in found if not item.inside_a_function]


@pytest.mark.parametrize("module", ["pickle", "marshal", "shelve", "yaml", "dill"])
def test_nothing_that_runs_code_is_imported(module):
    assert not [str(item) for item in all_imports() if item.target.split(".")[0] == module]


def test_no_archive_is_unpacked_by_its_own_names():
    assert not [
        name
        for name, node in nodes()
        if isinstance(node, ast.Attribute) and node.attr in ("extract", "extractall")
    ]


@pytest.mark.parametrize("call", CALLS)
def test_strangers_bytes_are_opened_in_one_place(call):
    callers = {name for name, function in calls() if function == call}
    assert callers == ({CALLS[call]} if CALLS[call] else set())


def test_no_two_public_functions_or_classes_of_one_name():
    """What is searched for is found once. Each target of an export has the same functions."""
    places: dict[str, list[str]] = {}
    for name, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name)
    of_targets = {"write", "runner", "runtime"}
    assert not {name: found for name, found in places.items()
                if len(found) > 1 and name not in of_targets}  # fmt: skip
    assert all(found.startswith("exports.") for name in of_targets for found in places[name])
