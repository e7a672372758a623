"""`rnnconvert report`: a saved JSON report as a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rnnconvert.cli.run import run_command
from rnnconvert.errors import UnreadableInputError, UsageError, errors_of, last_resort

if TYPE_CHECKING:
    from rnnconvert.cli.output import Output

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.command("report", context_settings=_CONTEXT)
@click.argument("report", type=click.Path(path_type=Path, readable=False), metavar="REPORT.json")
@click.option(
    "-o", "--output", "page", type=click.Path(path_type=Path, readable=False), metavar="PAGE.html",
    help="Where to write. Default: the report's name with .html.",
)  # fmt: skip
@click.option("--no-color", is_flag=True, help="No colours (as NO_COLOR does).")
@click.option("-q", "--quiet", is_flag=True, help="Show errors only.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def report_command(**arguments: Any) -> None:
    """Make a page to look at of a report that --report or --json wrote.

    The page is one file that loads nothing. A page of rnnconvert that exists is replaced, any other
    file is kept.
    """
    report = arguments.pop("report")  # run_command has an option of this name
    run_command(_write_page, {**arguments, "source": report, "as_json": False})


def _write_page(output: Output, *, source: Path, page: Path | None) -> int:
    from rnnconvert.outputs import check_page
    from rnnconvert.page.page import page_of
    from rnnconvert.publish import write_text

    target = page or source.with_suffix(".html")
    if target == source:
        raise UsageError("report and page are the same file; use -o", path=str(source))
    with errors_of(source), last_resort():
        content = page_of(_read(source))
    check_page(target, [source])
    write_text(target, content)
    if not output.quiet:
        click.echo(f"written {click.format_filename(target)}")
    return 0


def _read(path: Path) -> Any:
    """The documents of a report.

    Raises:
        UnreadableInputError: missing, or no JSON.
    """
    import json

    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UnreadableInputError("no such file") from error
    except ValueError as error:
        told = "no report: expected what --report or --json writes"
        raise UnreadableInputError(f"{told} ({error})") from error
