"""A small file system that tests can fill up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CHUNK_BYTES = 4096


@contextmanager
def mounted(root: Path, size: str) -> Iterator[Path | None]:
    """Mount a file system of ``size`` bytes in memory at ``root``; None: this user or machine does not allow it."""
    root.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(root)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        yield None
        return
    try:
        yield root
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)


def fill(root: Path) -> Path:
    """Fill the file system up, to the last block; return the file to delete to free it."""
    filler = root / "filler"
    descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(descriptor, bytes(CHUNK_BYTES))
    except OSError:
        return filler
    finally:
        os.close(descriptor)
