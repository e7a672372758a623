"""Every hostile file through every way that lets Keras load a file; run as a program, in a child.

`python hostile_run.py FOLDER guarded` prints one line of JSON for each attack: what each way said,
and whether anything ran. `... FOLDER bare` gives Keras the files without rnnconvert, to show that
the attacks are real: on old versions of Keras some of them run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hostile_models as hostile

import rnnconvert
from rnnconvert import ConversionError


def files(folder: Path, name: str, mark: Path) -> tuple[Path, Path]:
    config = hostile.hostile(name, mark)
    return (
        hostile.write_h5(folder / "a.h5", config),
        hostile.write_keras(folder / "a.keras", config),
    )


def _verify(path: Path) -> str:
    return str(rnnconvert.verify(path, path).model_level[0].reason)


def entries(h5: Path, zipped: Path) -> dict[str, Callable[[], object]]:
    """What each command and function of rnnconvert says that has Keras load a model."""
    from rnnconvert.keras import load_model

    output = h5.with_name("out.keras")
    return {
        "verify .h5": lambda: _verify(h5),
        "verify .keras": lambda: _verify(zipped),
        "--to keras": lambda: rnnconvert.convert(h5, output, force=True).verdict,
        "rnnconvert.keras": lambda: load_model(h5).name,
    }


def guarded(folder: Path, mark: Path) -> Iterator[dict[str, object]]:
    for name in hostile.ATTACKS:
        said = {}
        for entry, act in entries(*files(folder, name, mark)).items():
            try:
                said[entry] = f"passed: {act()}" if entry != "verify .h5" else str(act())
            except ConversionError as error:
                said[entry] = f"{type(error).__name__}: {error}"
        yield {"name": name, "said": said, "ran": mark.exists()}


def bare(folder: Path, mark: Path) -> Iterator[dict[str, object]]:
    import keras

    for name in hostile.ATTACKS:
        for path in files(folder, name, mark):
            try:
                model = keras.models.load_model(path, compile=False, safe_mode=True)
                model(keras.ops.zeros((2, hostile.STEPS, hostile.INPUTS)))
            except Exception:  # whatever it raises, what counts is whether something ran
                pass
            yield {"name": f"{name}, {path.suffix}", "ran": mark.exists()}
            mark.unlink(missing_ok=True)
            sys.modules.pop(hostile.MODULE, None)


def main() -> None:
    import keras

    folder = Path(sys.argv[1])
    mark = folder / "mark"
    hostile.write_module(folder, mark)
    sys.path.insert(0, str(folder))
    print(json.dumps({"keras": keras.__version__}))
    for line in {"guarded": guarded, "bare": bare}[sys.argv[2]](folder, mark):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
