"""`strandline discover`: ask an upstream what it has, and print the statements that would read it.

It changes nothing, here or upstream.  A connection of the project is named, or a connector with its options; neither
needs an environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strandline.cli.terminal.opening import Opener
from strandline.cli.terminal.output import Output
from strandline.controller.defining.project.settings import Project, absolute
from strandline.controller.defining.proposals import Upstream, proposed
from strandline.controller.language.statements import CreateConnection
from strandline.errors import ConfigError, DefinitionError, InvalidUsage
from strandline.wiring.loop import at_once
from strandline.wiring.registry import READERS, discover, discovering


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to ask: a connection or a connector, options (``name=value``), and the name of a source of many tables."""

    name: str
    options: Sequence[str]
    source: str | None


def run(opener: Opener, root: Path, wanted: Wanted, output: Output) -> None:
    """Print what an upstream has, as statements.

    Raises `DefinitionError` if there is no such connection or connector, or it cannot say; and what upstream raises.
    """
    given = dict(_option(text) for text in wanted.options)
    connector, named, options = _upstream(_project(opener, root, wanted.name), wanted.name, given)
    found = at_once(discover(connector, absolute(root.absolute(), options)))
    source = wanted.source or f"from_{wanted.name.lower()}"
    statements = proposed(Upstream(connector, {**named, **given}, READERS[connector].tables), found, source)
    document: dict[str, Any] = {
        "connector": connector,
        "found": [
            {
                "name": each.name,
                "columns": [{"name": column.name, "type": column.type} for column in each.columns],
                "options": dict(each.options),
                "note": each.note,
            }
            for each in found
        ],
        "statements": statements,
    }
    output.result(document, "\n\n".join(statements))


def _option(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise InvalidUsage(f"{text!r} is no option; write name=value")
    return name.strip().lower(), value


def _project(opener: Opener, root: Path, name: str) -> Project | None:
    """Return the project; None where there is none and none is needed, because ``name`` is a connector."""
    try:
        return opener.project(root)
    except ConfigError:
        if name.lower() in READERS:
            return None
        raise


def _upstream(project: Project | None, name: str, given: dict[str, str]) -> tuple[str, dict[str, str], dict[str, str]]:
    """Return the connector, the options by which a source names a connection, and all that discovering takes."""
    defined = () if project is None else project.definitions
    connections = {each.statement.name.lower(): each.statement for each in defined}
    connection = connections.get(name.lower())
    if not isinstance(connection, CreateConnection):
        if name.lower() not in READERS:
            known = sorted(each.name for each in connections.values() if isinstance(each, CreateConnection))
            there = f"the project's connections are {', '.join(known)}" if known else "the project has no connection"
            raise DefinitionError(f"there is no connection and no connector {name!r}; {there}")
        return name.lower(), {}, given
    able = discovering(connection.system)
    if not able:
        raise DefinitionError(f"{name!r} is a connection to {connection.system}, and nothing can discover by it")
    connector, option = next(iter(able.items()))
    return connector, {option: connection.name}, {**connection.options, **given}
