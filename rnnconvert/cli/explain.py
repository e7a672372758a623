"""`rnnconvert explain`: the layouts in words and small pictures, and those of a file.

Plain text, no colours. Imports stand where they are needed: the help must not wait for numpy.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rnnconvert.cli.run import run_command
from rnnconvert.errors import UsageError

if TYPE_CHECKING:
    from rnnconvert.cli.output import Output

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.command(context_settings=_CONTEXT)
@click.argument("topic", required=False, metavar="[TOPIC|PATH]")
@click.option("--no-color", is_flag=True, help="Accepted; the text has no colours.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def explain(**arguments: Any) -> None:
    """Explain a weight layout: gate order, shapes, number of weights.

    Without an argument the topics are listed. PATH is a Keras .h5 file; its recurrent layers are
    explained, each with its own numbers. A topic goes before a file of its name: write ./lstm for
    the file.
    """
    run_command(_explain, {**arguments, "quiet": False, "as_json": False})


def _explain(output: Output, *, topic: str | None) -> int:
    from rnnconvert.explanations import TOPICS

    if topic is None:
        click.echo(_list())
    elif topic.lower() in TOPICS:
        click.echo(TOPICS[topic.lower()].text(), nl=False)
    elif _exists(topic):
        _explain_file(Path(topic))
    else:
        raise UsageError(_unknown(topic))
    return 0


def _explain_file(path: Path) -> None:
    from rnnconvert.explanations import files
    from rnnconvert.keras_models import inspect as keras
    from rnnconvert.kinds import KERAS, kind_of

    kind = kind_of(path)
    if kind not in KERAS:
        raise UsageError(
            f"{kind.title}: explain draws Keras files; 'rnnconvert inspect' shows this one",
            path=str(path),
        )
    found = keras.inspect_keras(path, kind, hashes=False)
    for warning in (*found.plan.warnings, *found.plan.problems):
        click.echo(f"warning: {_printable(warning)}", err=True)
    click.echo(f"{_printable(str(path))}\n")
    click.echo(
        "\n".join(_printable(line) for line in files.explain_file(found).split("\n")), nl=False
    )


def _list() -> str:
    from rnnconvert.explanations import TOPICS

    width = max(map(len, TOPICS)) + 2
    lines = [f"  {name.ljust(width)}{topic.summary}" for name, topic in TOPICS.items()]
    lines += ["", "rnnconvert explain TOPIC, or a Keras .h5 file: its layers with their numbers"]
    return "\n".join(lines)


def _unknown(topic: str) -> str:
    """What to say to a word that is neither a topic nor a file."""
    from difflib import get_close_matches

    from rnnconvert.explanations import TOPICS

    near = get_close_matches(topic.lower(), TOPICS, 1)
    guess = f", did you mean {near[0]}?" if near else ";"
    return f"{_printable(topic)}: no such topic or file{guess} topics: {', '.join(TOPICS)}"


def _exists(word: str) -> bool:
    try:
        return bool(word) and Path(word).exists()
    except OSError:  # too long for a name
        return False


def _printable(text: str) -> str:
    """Text from a file or the user, without control characters."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
