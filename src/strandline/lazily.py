"""Public names of a package that are imported when they are first used (PEP 562).

A type checker reads the same names under ``TYPE_CHECKING`` in the package.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def names(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of ``package``: ``places`` says from which module or package each of its names is.

    >>> names("strandline.lazily", {"Path": "pathlib"})("Path").__name__
    'Path'
    >>> names("strandline.lazily", {"scanner": "json"})("scanner").__name__
    'json.scanner'
    """

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        place = import_module(places[name])
        found = getattr(place, name) if hasattr(place, name) else import_module(f"{places[name]}.{name}")
        setattr(sys.modules[package], name, found)
        return found

    return find
