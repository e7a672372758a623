"""The command line. No decision is taken here: it parses, calls, prints and sets the exit code."""
