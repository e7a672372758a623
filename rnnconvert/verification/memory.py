"""How much memory is free, and how much this process has taken."""

from __future__ import annotations

import os
from pathlib import Path

from rnnconvert.verification.frameworks import CannotRun


def require_memory(*paths: Path) -> None:
    """Two large models must fit: better a named skip than a machine that swaps.

    Raises:
        CannotRun: they do not fit.
    """
    needed = 1.5 * sum(path.stat().st_size for path in paths if path.is_file())
    available = available_memory()
    if available is not None and needed > available:
        raise CannotRun(
            f"both models need about {needed / 2**30:.1f} GB of memory, "
            f"{available / 2**30:.1f} GB are free"
        )


def available_memory() -> int | None:
    """Bytes that are free; None where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def resident_memory() -> int:
    """Bytes of memory that this process holds; 0 where the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
