"""Two directories change places in one step, where the operating system can do that."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

_HERE = -100
"""AT_FDCWD of Linux: paths count from the current directory."""
_EXCHANGE = 2
"""RENAME_EXCHANGE of Linux and RENAME_SWAP of macOS."""
_CAN_NOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)
"""What a kernel or a file system answers that knows no exchange."""


def exchange(one: Path, other: Path) -> bool:
    """Let two directories of one file system change places; a kill leaves both as they were or are.

    Returns:
        Whether it was done; False where the system can't.

    Raises:
        OSError: it could not be done, for another reason.
    """
    rename = _rename()
    if rename is None:
        return False
    if rename(os.fsencode(one), os.fsencode(other)) == 0:
        return True
    import ctypes

    number = ctypes.get_errno()
    if number in _CAN_NOT:
        return False
    raise OSError(number, os.strerror(number), str(other))


def _rename() -> Any:
    """The system's call, taking two paths, or None."""
    if sys.platform not in ("linux", "darwin"):
        return None
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    call = getattr(library, "renameat2" if sys.platform == "linux" else "renamex_np", None)
    if call is None:
        return None
    if sys.platform == "linux":
        return lambda one, other: call(_HERE, one, _HERE, other, _EXCHANGE)
    return lambda one, other: call(one, other, _EXCHANGE)
