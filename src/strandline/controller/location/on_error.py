"""The option ``on_error``: what becomes of the good rows while a collection has errors.

Of a source: ``fail`` (the default) makes every read of it, and of what is computed from it, a `CollectionError` until
the errors have left; with ``continue`` its good rows stay readable, and views over it are computed from these alone.
Of a materialization: ``wait`` (the default) stands still at the last time without errors; ``continue`` pushes the good
rows.  Errors are counted by `status` and stay readable either way.

Source: design pages "sources" (error half) and "compute" (the ok and err halves travel side by side).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from strandline.errors import DefinitionError

OPTION: Final = "on_error"
CONTINUE: Final = "continue"
SOURCE: Final = ("fail", CONTINUE)
MATERIALIZATION: Final = ("wait", CONTINUE)


def continues(options: Mapping[str, str]) -> bool:
    """Tell whether good rows go on in spite of errors."""
    return options.get(OPTION) == CONTINUE


def others(name: str, options: Mapping[str, str], allowed: tuple[str, ...]) -> dict[str, str]:
    """Return all other options, those of the connector or the endpoint.

    Raises `DefinitionError` if ``on_error`` of the item ``name`` is none of ``allowed``.

    >>> others("s", {"path": "/d", "on_error": "continue"}, SOURCE)
    {'path': '/d'}
    """
    value = options.get(OPTION, allowed[0])
    if value not in allowed:
        raise DefinitionError(f"{name!r}: option {OPTION} is {' or '.join(map(repr, allowed))}, not {value!r}")
    return {key: value for key, value in options.items() if key != OPTION}
