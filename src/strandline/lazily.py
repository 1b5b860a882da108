"""Public names of a package that are imported when they are first used (PEP 562).

A type checker reads the same names under ``TYPE_CHECKING`` in the package.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def names(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of ``package``: ``places`` says from which module each of its names is.

    >>> names("strandline.lazily", {"Path": "pathlib"})("Path").__name__
    'Path'
    """

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(places[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return find
