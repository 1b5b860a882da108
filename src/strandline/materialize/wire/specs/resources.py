"""The configuration of a connector's resource: where in it the name of a table or topic stands.

A connector's schema marks the place of the name by ``x-collection-name: true``, and that of the switch for changes by
``x-delta-updates: true``.  What the user says besides is put in first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from strandline.errors import ConfigError
from strandline.materialize.protocol.task import Binding

_NAME: Final = "x-collection-name"
_DELTA: Final = "x-delta-updates"
_HARD_DELETE: Final = "hardDelete"


def resource_config(schema: Mapping[str, Any], given: Mapping[str, Any], binding: Binding) -> dict[str, Any]:
    """Return the configuration of a binding's resource.

    >>> from strandline.algebra.schema import Column, Schema
    >>> b = Binding("c", "T", ("k",), Schema((Column("k", "int"),)))
    >>> resource_config({"properties": {"table": {"type": "string", "x-collection-name": True}}}, {"schema": "s"}, b)
    {'schema': 's', 'table': 'T'}

    Raises:
        ConfigError: the schema does not say where the name stands.
    """
    places = dict(_marked(schema))
    if _NAME not in places:
        raise ConfigError(
            f"the connector does not say where in its resource's configuration a name stands ({_NAME}): "
            "it cannot be used without Flow"
        )
    config = _set(given, places[_NAME], binding.resource)
    return _set(config, places[_DELTA], True) if binding.delta and _DELTA in places else config


def endpoint_config(schema: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of the endpoint: what is given, and that deleted rows are to be gone.

    Many connectors keep a deleted row and mark it, unless an option says otherwise; then the resource would not equal
    the collection.

    >>> endpoint_config({"properties": {"hardDelete": {"type": "boolean"}}}, {"a": 1})
    {'a': 1, 'hardDelete': True}
    """
    switch = schema.get("properties", {}).get(_HARD_DELETE, {})
    return {**given, _HARD_DELETE: True} if switch.get("type") == "boolean" and _HARD_DELETE not in given else {**given}


def _marked(schema: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, inner in schema.get("properties", {}).items():
        if isinstance(inner, Mapping):
            yield from ((mark, (*path, name)) for mark in (_NAME, _DELTA) if inner.get(mark) is True)
            yield from _marked(inner, (*path, name))


def _set(config: Mapping[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    name, *rest = path
    inner = config.get(name)
    return {**config, name: _set(inner if isinstance(inner, Mapping) else {}, tuple(rest), value) if rest else value}
