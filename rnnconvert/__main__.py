"""`python -m rnnconvert` is the program `rnnconvert`."""

from rnnconvert.cli.main import main

if __name__ == "__main__":
    main()
