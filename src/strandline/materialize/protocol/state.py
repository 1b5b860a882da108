"""Driver state: a driver's JSON document in the runtime's recovery log, replaced whole or by merge patch.

Source: RFC 7396 (JSON merge patch).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StateUpdate:
    """A new state, or (``merge_patch``) a change of the current one."""

    updated: Any
    merge_patch: bool = False

    def apply(self, state: Any) -> Any:
        """Return the state after this update of ``state``.

        >>> StateUpdate({"b": {"c": None, "d": 2}}, merge_patch=True).apply({"a": 1, "b": {"c": 1}})
        {'a': 1, 'b': {'d': 2}}
        >>> StateUpdate({"b": None}).apply({"a": 1})
        {'b': None}
        """
        return merge(state, self.updated) if self.merge_patch else self.updated


def merge(target: Any, patch: Any) -> Any:
    """Return ``target`` with the JSON merge patch applied; neither is changed.

    >>> merge({"a": "b"}, {"a": ["c"]}), merge([1], {"a": {"b": None}}), merge({"a": 1}, None)
    ({'a': ['c']}, {'a': {}}, None)
    """
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged
