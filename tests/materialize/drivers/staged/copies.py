"""Copies of directories, for endpoints that lose what they hold."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

_COPIES = count()


def kept(root: Path) -> Callable[[], None]:
    """Copy a directory; what is returned puts the copy in its place."""
    copy = root.with_name(f"{root.name}-copy-{next(_COPIES)}")
    root.mkdir(parents=True, exist_ok=True)
    shutil.copytree(root, copy)

    def put_back() -> None:
        shutil.rmtree(root)
        shutil.copytree(copy, root)

    return put_back
