"""A project's places and needs: whether its collections can be written there, and what its definitions need.

A check of a place says whether this user can write there, with room, and which process does so now.  Whether a
directory can be written is found out by a file without a name in it, which is gone at once.

Definitions need libraries, values that references lead to, servers, and ports.  The needs are read from the project's
files alone; a reference is resolved and thrown away.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from strandline import extras
from strandline.cli.doctor.finding import Finding, missing, ok, wrong
from strandline.cli.doctor.servers import answers
from strandline.connections.addresses import Address, Listening, Reaching, of_hosts
from strandline.connections.logins import Login, LogsIn
from strandline.controller.defining.project.settings import SETTINGS_FILE, Project, absolute
from strandline.controller.language.instances import CreateInstance
from strandline.controller.language.statements import CreateConnection, CreateMaterialization, CreateSource
from strandline.controller.location.catalog import KEY, CatalogStore
from strandline.controller.location.config import NOWHERE, Mode
from strandline.controller.location.items import connections_of
from strandline.controller.location.on_error import MaterializationOptions, SourceOptions, common_to_all, others
from strandline.controller.location.tenure import Claim, SystemProcesses, admit, lives
from strandline.errors import ConfigError, DefinitionError, NothingStored, StrandlineError
from strandline.extras import missing as lacking
from strandline.options import is_reference, resolve_reference, understood
from strandline.persist.handles.location import another_consensus, read_mark
from strandline.persist.handles.register import Register
from strandline.store.clock import SystemClock, SystemIds
from strandline.wiring.locations import BLOB, ConsensusPlace, InFiles, InObjectStore, InSQLite, Location, States
from strandline.wiring.loop import at_once
from strandline.wiring.registry import CONNECTIONS, DRIVERS, READERS, named

FREE_BYTES_MIN: Final = 1 << 30
CLOCK_BEHIND_MS_MAX: Final = 60_000


def location(where: Location) -> Iterator[Finding]:
    """Check the place of parts: a directory by writing; of others only where they are is known here."""
    if not isinstance(where, InFiles):
        yield ok("location", where.shown)
        return
    there = _nearest(where.root)
    for directory in (each for each in (there, where.root / BLOB) if each.exists()):
        if why := _unwritable(directory):
            of = f"in {str(directory)!r}" if directory != there or there == where.root else "here"
            what = "cannot be written" if there == where.root else "cannot be created"
            found = f"{str(where.root)!r} {what} {of} by this user ({why})"
            yield wrong("location", found, "give this user the directory, or name another location")
            return
    yield ok("location", str(where.root) if there == where.root else f"{where.root} (the first run makes it)")
    yield _room(there)


def _nearest(root: Path) -> Path:
    """Return the directory itself, or the nearest above it that is there."""
    return next(each for each in (root, *root.parents) if each.exists())


def _unwritable(directory: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=directory):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _room(directory: Path) -> Finding:
    free = shutil.disk_usage(directory).free
    said = f"{free / (1 << 30):.1f} GiB are free"
    if free < FREE_BYTES_MIN:
        return wrong("disk", f"{said} where the location is", "make room: at least 1 GiB")
    return ok("disk", said)


def consensus(project: Project, place: ConsensusPlace, where: Location) -> tuple[list[Finding], bool]:
    """Check the place of states, and who writes the location; return whether a process does, as far as is known."""
    shown = place.shown(where)
    if isinstance(place, States | InObjectStore) or any(lacking(extra) for extra in place.needs):
        return [ok("consensus", f"{shown} (not asked)")], False
    if isinstance(place, InSQLite) and not place.path.exists():
        return [_absent(shown, where)], False
    for address in place.addresses() if isinstance(place, Reaching) else ():
        if why := answers(address):
            found = f"{shown}: nothing answers at {address} ({why})"
            return [missing("consensus", found, "start it, or correct its address")], False
    try:
        with ExitStack() as opened:
            catalogs = CatalogStore(Register(KEY, SystemClock(), SystemIds(), place.open_for_reading(opened)))
            writer, written = _writer(project, catalogs)
    except NothingStored:
        return [_absent(shown, where)], False
    except StrandlineError as error:
        return [wrong("consensus", str(error), "see docs/stores.md")], False
    return [ok("consensus", shown), writer, *_clock(place)], written


def _absent(shown: str, where: Location) -> Finding:
    """Return what it means that there is no consensus: the first run makes it, unless the location was made before."""
    with ExitStack() as opened:
        try:
            mark = at_once(read_mark(where.open(Mode.READ, opened)[0], SystemClock()))
        except StrandlineError:
            mark = None  # nothing is there; or what is wrong with the location is said elsewhere
    if mark is None:
        return ok("consensus", f"{shown}: the first run makes it")
    return wrong("consensus", str(another_consensus(where.shown, shown, mark)), "see docs/stores.md")


def _writer(project: Project, catalogs: CatalogStore) -> tuple[Finding, bool]:
    catalog, processes = at_once(catalogs.read()), SystemProcesses()
    holder = catalog.holder
    if holder is None:
        return ok("writer", "no process writes the location"), False
    if lives(holder, processes):
        return ok("writer", f"the location is written by {holder}"), True
    claim = Claim(project.config["deployment"], project.config["reentrant"], take_over=False, opened_ms=0)
    try:
        admit(catalog, claim, processes)
    except ConfigError as error:
        return wrong("writer", str(error), "make sure that it has ended before you take over"), False
    return ok("writer", f"{holder} wrote the location last; `strandline run` succeeds it"), False


def _clock(place: ConsensusPlace) -> Iterator[Finding]:
    if isinstance(place, InSQLite):
        behind = int(place.path.stat().st_mtime * 1000) - SystemClock().now_ms()
        if behind > CLOCK_BEHIND_MS_MAX:
            found = f"the location was written {behind / 1000:.0f} s in the future of this machine's clock"
            yield wrong("clock", found, "set the clock: times of the location go on from the later one")


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
