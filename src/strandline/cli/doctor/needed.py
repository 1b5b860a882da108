"""What the definitions of a project need: libraries, values that references lead to, servers, and ports.

Everything is read from the project's files; a reference is resolved and thrown away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from strandline import extras
from strandline.cli.doctor.finding import Finding, missing, wrong
from strandline.connections.addresses import Address, Listening, Reaching, of_hosts
from strandline.connections.logins import Login, LogsIn
from strandline.controller.defining.project.settings import SETTINGS_FILE, Project, absolute
from strandline.controller.language.instances import CreateInstance
from strandline.controller.language.statements import CreateConnection, CreateMaterialization, CreateSource
from strandline.controller.location.config import NOWHERE
from strandline.controller.location.items import connections_of
from strandline.controller.location.on_error import MaterializationOptions, SourceOptions, common_to_all, others
from strandline.errors import ConfigError, DefinitionError
from strandline.options import is_reference, resolve_reference, understood
from strandline.wiring.registry import CONNECTIONS, DRIVERS, READERS, named

_resolved = partial(resolve_reference, base=Path())


@dataclass(frozen=True, slots=True)
class Needed:
    """What one item, its ``owner``, needs.

    ``logins``: who logs in with what it says.  ``references``: how many values are elsewhere.  ``faults``: what of it
    cannot be used as it is written.
    """

    owner: str
    extras: Sequence[str] = ()
    addresses: Sequence[Address] = ()
    logins: Sequence[Login] = ()
    listens: Sequence[Address] = ()
    references: int = 0
    faults: Sequence[Finding] = ()


def needed(project: Project) -> list[Needed]:
    """Return what the items of a project need, each for itself: first its settings."""
    statements = [each.statement for each in project.definitions]
    connections = {each.name.lower(): each for each in statements if isinstance(each, CreateConnection)}
    found = [_settings(project)]
    used = set[str]()
    for statement in statements:
        match statement:
            case CreateConnection(name=name, system=system, options=options):
                found.append(_needed(f"connection {name!r}", "kind of connection", CONNECTIONS, system, options))
            case CreateSource():
                found.append(_source(statement, connections))
            case CreateMaterialization():
                found.append(_materialization(statement))
            case CreateInstance(name=name, replicas=replicas):
                found += [_replica(name, each, address) for each, address in replicas.items()]
            case _:
                continue
    for each in project.definitions:
        if isinstance(each.written, CreateMaterialization):
            used.add(each.written.endpoint.lower())
    for name, endpoint in project.endpoints.items():
        if name not in used:
            options = absolute(project.root, endpoint.options)
            found.append(_needed(f"endpoint {name!r}", "endpoint", DRIVERS, endpoint.driver, options, partial_=True))
    return found


def _settings(project: Project) -> Needed:
    """Return where the writer listens, and the references among the settings; that of the location is resolved."""
    texts = {"consensus": project.consensus, **project.config, **project.config["storage"]}
    found = _referring(SETTINGS_FILE, {name: text for name, text in texts.items() if isinstance(text, str)})
    serves = (project.config.get("serve_at"), project.config.get("console_at"))
    return replace(found, listens=of_hosts(",".join(at for at in serves if at and at != NOWHERE), 0))


def _source(statement: CreateSource, connections: Mapping[str, CreateConnection]) -> Needed:
    owner = f"source {statement.name!r}"
    options: dict[str, str] = {}
    try:
        own = others(statement.name, statement.options, SourceOptions)
        for option, name in connections_of(own).items():
            del own[option]
            options |= named(connections, "connection", name.lower()).options
    except DefinitionError as error:
        return Needed(owner, faults=(_fault(error),))
    return _needed(owner, "connector", READERS, statement.connector, options | own)


def _materialization(statement: CreateMaterialization) -> Needed:
    owner = f"materialization {statement.name!r}"
    try:
        own = others(statement.name, statement.options, MaterializationOptions)
        common = common_to_all(statement.name, statement.options, MaterializationOptions)
    except DefinitionError as error:
        return Needed(owner, faults=(_fault(error),))
    splits = (extras.FLOW,) if common.splits > 1 else ()
    return _needed(owner, "endpoint", DRIVERS, statement.endpoint, own, splits)


def _replica(instance: str, name: str, address: str) -> Needed:
    return Needed(f"replica {name!r} of instance {instance!r}", addresses=of_hosts(address, 0))


def _needed(
    owner: str,
    what: str,
    kinds: Mapping[str, Any],
    name: str,
    options: Mapping[str, str],
    besides: Sequence[str] = (),
    *,
    partial_: bool = False,
) -> Needed:
    """Return what an item of the kind ``name`` needs with ``options``; ``partial_``: some of these may be to come."""
    referring = _referring(owner, options)
    try:
        kind = named(kinds, what, name)
    except DefinitionError as error:
        return Needed(owner, faults=(_fault(error),))
    try:
        resolve = None if referring.faults else _resolved  # what is not there has been said
        given = understood(owner, kind.options, options, resolve=resolve)
    except (ConfigError, DefinitionError) as error:
        faults = referring.faults or (() if partial_ else (_fault(error),))
        return Needed(owner, besides, references=referring.references, faults=faults)
    wanted = kind.needs(given) if hasattr(kind, "needs") else ()
    reaching = (
        [each for each in given.addresses() if not is_reference(each.host)] if isinstance(given, Reaching) else []
    )
    listens = given.listens() if isinstance(given, Listening) else ()
    logins = () if referring.faults or not isinstance(given, LogsIn) else (given.login(),)
    return Needed(owner, (*wanted, *besides), reaching, logins, listens, referring.references, referring.faults)


def _referring(owner: str, options: Mapping[str, str]) -> Needed:
    """Return how many references there are, and which of them lead nowhere."""
    refer = [(name, text) for name, text in options.items() if is_reference(text)]
    return Needed(owner, references=len(refer), faults=tuple(_nowhere(owner, refer)))


def _nowhere(owner: str, refer: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    for name, text in refer:
        try:
            _resolved(text)
        except ConfigError as error:
            found = f"{owner}, {name}: {error}"
            yield missing("reference", found, "set the variable, or write the file, for the user that runs this")


def _fault(error: Exception) -> Finding:
    return wrong("definition", str(error), "correct the project's file")
