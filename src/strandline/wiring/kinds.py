"""Kinds by name: which there are is known at once, and each one's module is imported when it is first chosen.

So a question that concerns no endpoint loads no endpoint's library.  Trap: `values` and `items` import all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

K = TypeVar("K")


class Kinds(MutableMapping[str, K]):
    """The kinds whose modules are in ``places``, by name; one that is set takes the place of an imported one.

    ``find`` returns the kind of a name from its module; default: the module's ``KIND``.
    """

    def __init__(
        self, places: Mapping[str, str], find: Callable[[str, ModuleType], Any] = lambda _, module: module.KIND
    ) -> None:
        self._places = dict(places)
        self._find = find
        self._known: dict[str, K] = {}

    def __getitem__(self, name: str) -> K:
        """Return the kind ``name``."""
        if name not in self._known:
            self._known[name] = self._find(name, import_module(self._places[name]))
        return self._known[name]

    def __setitem__(self, name: str, kind: K) -> None:
        """Have ``kind`` go by ``name``."""
        self._known[name] = kind

    def __delitem__(self, name: str) -> None:
        """Forget what was set as ``name``."""
        del self._known[name]

    def __contains__(self, name: object) -> bool:
        """Return whether there is such a kind, without importing it."""
        return name in self._places or name in self._known

    def __iter__(self) -> Iterator[str]:
        """Yield the names, in the order in which they are written down."""
        return iter(dict.fromkeys((*self._places, *self._known)))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._places.keys() | self._known.keys())
