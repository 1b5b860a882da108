"""How a file leaves a directory of this machine: it is deleted, or moved to an archive.

A move within a file system is one step.  Into another it is a copy that gets its name when it is durable, and then the
removal: a crash between leaves the file in both places, and the next move puts it in its own place again.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_COPYING: Final = ".copying"


def leave(root: Path, names: Iterable[str], archive: Path | None) -> dict[str, OSError | None]:
    """Delete the files ``names`` of ``root``, or move them to ``archive``; return what went wrong, by name."""
    found: dict[str, OSError | None] = {}
    for name in names:
        try:
            if archive is None:
                (root / name).unlink(missing_ok=True)
            else:
                _move(root / name, archive / name)
            found[name] = None
        except OSError as error:
            found[name] = error
    return found


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.replace(target)
    except FileNotFoundError:
        return  # it was moved before
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy = target.with_name(target.name + _COPYING)
        shutil.copy2(source, copy)
        _sync(copy)
        copy.replace(target)
        _sync(target.parent)
        source.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
