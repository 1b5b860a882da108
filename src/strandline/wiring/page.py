"""The page of all options, docs/options.md, as readers, drivers and stores declare them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from strandline.controller.location.on_error import MaterializationOptions, SourceOptions
from strandline.options import lines
from strandline.sources.reader import ReaderKind
from strandline.wiring.locations import KINDS as LOCATIONS
from strandline.wiring.registry import CONNECTIONS, DRIVERS, READERS


def page() -> str:
    """Return every option of every source, endpoint and store, as the Markdown of docs/options.md."""
    parts = [
        _HEAD,
        "## Sources\n\nEvery source takes these:\n",
        *lines(SourceOptions),
        *(part for kind in READERS.values() for part in _reader_lines(kind)),
        *(
            part
            for kind in CONNECTIONS.values()
            for part in (f"\n## Connections `TO {kind.name}`\n", *lines(kind.options))
        ),
        "\n## Materializations\n\nEvery materialization takes these:\n",
        *lines(MaterializationOptions),
    ]
    for driver_kind in DRIVERS.values():
        parts += [f"\n### `INTO {driver_kind.name}` ({driver_kind.documentation_url})\n", *lines(driver_kind.options)]
        parts += ["\nOf each table:\n", *lines(driver_kind.resource)]
    for location in dict.fromkeys(LOCATIONS.values()):
        if location.options is not None:
            parts += [f"\n## `storage` of a location `{location.form}`\n", *lines(location.options)]
    return "\n".join(parts)


def _reader_lines(kind: ReaderKind[Any]) -> Iterator[str]:
    yield f"\n### `USING {kind.name}`\n"
    for option, connection in kind.connections.items():
        yield f"`{option}` names a connection `TO {connection.name}`, which gives that one's options.\n"
    if kind.tables:
        yield "It has tables: the source has no columns, and `CREATE TABLE … FROM SOURCE` makes a collection of each.\n"
    yield from lines(kind.options)


_HEAD: Final = """# Options

`strandline options` prints this page, from what readers, drivers and stores declare; a test compares. An option is a
text. Where its meaning says so, it may be a reference to the place of the real value: `env:NAME` or `file:PATH`. A
secret must be one.
"""
