"""`python -m rnnconvert`, and the console script: Ctrl-C is heard from the first import on."""

import os
import sys

# Large products run in threads of our own; those of numpy's BLAS would only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def start() -> None:
    """The command line, in a process that may crash without an exit code of its own."""
    try:
        from rnnconvert.cli.supervise import open_closed_streams, supervised

        open_closed_streams()
    except KeyboardInterrupt:
        interrupted()
    supervised(program)


def program() -> None:
    """The command line, in this process."""
    try:
        from rnnconvert.cli.supervise import collect_rarely

        collect_rarely()
        from rnnconvert.cli.main import main
    except KeyboardInterrupt:
        interrupted()
    main()


def interrupted() -> None:
    """Tell that nothing was begun."""
    print("interrupted; nothing was written", file=sys.stderr)
    sys.exit(130)


if __name__ == "__main__":
    start()
