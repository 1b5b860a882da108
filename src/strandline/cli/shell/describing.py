r"""Describing: what ``\d NAME`` shows of an item: its columns, what it has to do with others, and its definition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from rich.text import Text

from strandline.cli.shell.colours import coloured
from strandline.cli.shell.commands import HELP
from strandline.cli.shell.tables import FAINT, HEAD, Look, lines
from strandline.cli.terminal.output import printable
from strandline.cli.terminal.standing import written_by
from strandline.controller.introspection.definition import named
from strandline.errors import InvalidUsage
from strandline.frontier.moments import told

Ask = Callable[[str], pa.Table]
"""Returns the rows that a statement answers with."""
_LISTS: Final = ("COLLECTIONS", "SOURCES", "MATERIALIZATIONS", "INDEXES", "CONNECTIONS", "INSTANCES")
_KIND: Final = {"SOURCES": "source", "INDEXES": "index"}


def described(name: str, ask: Ask, look: Look) -> Iterator[Text]:
    """Yield the lines about an item.  Raises `InvalidUsage` if there is none with the name."""
    lists = {what: ask(f"SHOW {what}").to_pylist() for what in _LISTS}
    wanted = name.strip("`").replace("``", "`").lower()
    kinds = {
        row["name"].lower(): (row["name"], row.get("kind") or _KIND.get(what, what.lower().removesuffix("s")))
        for what, rows in reversed(lists.items())
        for row in rows
    }
    if wanted not in kinds:
        raise InvalidUsage(f"there is no item {name!r}; \\d lists the collections")
    found, kind = kinds[wanted]
    yield Text.assemble((kind, ""), " ", (printable(found, lines=False), HEAD))
    if any(row["name"] == found for row in lists["COLLECTIONS"]):
        columns = ask(f"SHOW COLUMNS FROM {named(found)}")
        commented = columns.column("comment").null_count < columns.num_rows
        yield from lines(columns if commented else columns.drop_columns(["comment"]), look)
    views = ask("SHOW VIEWS").to_pylist()
    about = {
        "indexes": [f"{row['name']} ({row['columns']})" for row in lists["INDEXES"] if row["collection"] == found],
        "read by": [row["name"] for row in views if found in _list(row["reads"])],
        "pushed by": [row["name"] for row in lists["MATERIALIZATIONS"] if found in _list(row["collections"])],
        "used by": [row["name"] for row in lists["SOURCES"] if found in _list(row["connections"])],
    }
    for what, names in about.items():
        if names:
            yield Text.assemble((f"{what}: ", FAINT), printable(", ".join(names), lines=False))
    yield coloured(printable(ask(f"SHOW CREATE {named(found)}").column("statement")[0].as_py() + ";"))


def standing(found: Mapping[str, Any], look: Look) -> Iterator[Text]:
    """Yield the lines about how each collection is, and what stands still and why; ``found``: what `status` returns."""
    columns = ("collection", "phase", "lag", "errors", "problem")
    rows: list[tuple[Any, ...]] = [
        (name, each["phase"], told(each["lag"]), (each.get("errors") or {}).get("rows"), each.get("problem"))
        for name, each in found["collections"].items()
    ]
    known = {name.lower() for name in found["collections"]}
    rows += [(name, None, None, None, why) for name, why in found["problems"].items() if name.lower() not in known]
    yield from lines(pa.table({name: pa.array([row[n] for row in rows]) for n, name in enumerate(columns)}), look)
    for name, what in found["waiting"].items():
        yield Text.assemble((f"{printable(name, lines=False)}: ", FAINT), printable(what, lines=False))
    yield Text(f"({written_by(found)})", FAINT)


def helped() -> Iterator[Text]:
    """Yield the lines that say which commands there are."""
    for name, argument, about in HELP:
        yield Text.assemble((f" {name} {argument}".ljust(20), HEAD), about)
    yield Text(
        " A statement ends with ; and may have several lines.  Tab completes, Up recalls, Ctrl-C cancels.", FAINT
    )


def _list(text: str | None) -> list[str]:
    return text.split(", ") if text else []
