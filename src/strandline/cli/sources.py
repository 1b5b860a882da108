"""Commands about sources: `strandline source skip`, `source retry`, `anew`, and `strandline discover`.

`discover` asks an upstream what it has, and prints the statements that would read it.  It changes nothing, here or
upstream.  It takes a connection of the project, or a connector with its options; neither needs an environment.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strandline.cli.terminal.exits import Exit
from strandline.cli.terminal.lasting import changing
from strandline.cli.terminal.opening import Opener
from strandline.cli.terminal.output import Output
from strandline.controller.defining.project.settings import Project, absolute
from strandline.controller.defining.proposals import Upstream, proposed
from strandline.controller.language.statements import CreateConnection
from strandline.errors import ConfigError, DefinitionError, InvalidUsage
from strandline.instance.error_half import described
from strandline.wiring.loop import at_once
from strandline.wiring.registry import READERS, discover, discovering


def skip(
    opener: Opener,
    root: Path,
    name: str,
    as_of: int | None,
    files: Sequence[str],
    output: Output,
    *,
    apply: bool,
    withdraw: bool,
) -> None:
    """Print the undecodable records of a source; with ``apply`` dismiss them.  Or go on without ``files``."""
    if as_of is not None and (files or withdraw):
        raise InvalidUsage("--as-of is of records that could not be decoded, and --file of a whole file")
    if files or withdraw:
        _skip_files(opener, root, name, files, output, apply=apply, withdraw=withdraw)
        return
    project = opener.place(root)
    with changing(opener, project, output) if apply else opener.reading(project, output.note) as env:
        found = env.skip(name, as_of, apply=apply)
    output.result(found, "\n".join(_lines(found)))


def _skip_files(
    opener: Opener, root: Path, name: str, files: Sequence[str], output: Output, *, apply: bool, withdraw: bool
) -> None:
    """Say what the files are that a source is to go on without; with ``apply`` have it go on."""
    project = opener.place(root)
    with changing(opener, project, output) if apply else opener.reading(project, output.note) as env:
        found = env.withdraw(name, files, apply=apply) if withdraw else env.skip(name, file=files, apply=apply)
    without = f"{found['source']} goes on without {', '.join(map(repr, files))} ({'; '.join(found['was'])})"
    stays = "its rows are withdrawn" if withdraw else "what is durable of it stays"
    rest = f"{stays}, and nothing more of it is read"
    if not apply:
        rest += ", if they can be told from those of other files" if withdraw else ""
        output.result(found, f"nothing is changed; with --apply, {without}: {rest}")
        return
    errors = f"its lines that could not be decoded stay errors: `strandline source skip {shlex.quote(name)}` lists them"
    rows = f"; {found['withdrawn']} row(s) were withdrawn; {errors}" if withdraw else ""
    output.result(found, f"{without}: {rest}{rows}")


def anew(opener: Opener, root: Path, name: str, output: Output, *, apply: bool) -> None:
    """Print the statements that define an item again, with all that reads it; with ``apply`` do them."""
    project = opener.place(root)
    with changing(opener, project, output) if apply else opener.reading(project, output.note) as env:
        found = env.anew(name, apply=apply)
    script = "".join(f"{each};\n" for each in found["statements"])
    if apply:
        output.result(found, f"{', '.join(found['items'])}: defined again; the next tick makes {found['name']} anew")
    else:
        output.result(found, f"{script}\nnothing is changed; with --apply, what has these names is defined again so")


def retry(opener: Opener, root: Path, name: str, output: Output) -> Exit:
    """Open a source anew, and print how it stands after that."""
    with changing(opener, opener.place(root), output) as env:
        found = env.retry(name)
    source, problem = found["source"], found["problem"]
    said = f"{source} goes on" if problem is None else f"{source} was opened anew, and still has a problem: {problem}"
    output.result(found, said)
    return Exit.OK if problem is None else Exit.FAILED


def _lines(found: dict[str, Any]) -> list[str]:
    source, as_of, count = found["source"], found["as_of"], found["rows"]
    if not count:
        return [f"{source} has no undecodable records at {as_of}: there is nothing to dismiss"]
    records = "1 undecodable record" if count == 1 else f"{count} undecodable records"
    lines = [f"{source} has {records} at {as_of}:", *(described(error) for error in found["first"])]
    if count > len(found["first"]):
        lines.append(f"the others are in {source}_errors")
    if found["applied"] and found["dismissed_at"] is None:
        return [*lines, "they have left already: nothing is changed"]
    if found["dismissed_at"] is None:
        command = f"strandline source skip {shlex.quote(source)} --as-of {as_of} --apply"
        return [*lines, f"nothing is changed; `{command}` dismisses them"]
    return [*lines, f"dismissed at {found['dismissed_at']}: views and endpoints follow with the next tick"]


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
