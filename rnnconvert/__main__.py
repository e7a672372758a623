"""`python -m rnnconvert`, and the console script: Ctrl-C is heard from the first import on."""

import sys


def main() -> None:
    """The command line."""
    try:
        from rnnconvert.cli.main import main as run
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
