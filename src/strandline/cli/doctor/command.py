"""`strandline doctor`: all checks, side by side, one line each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from strandline.cli.doctor import machine, places, servers
from strandline.cli.doctor.finding import Finding, State, missing, ok, wrong
from strandline.cli.doctor.places import Needed, needed
from strandline.cli.terminal.exits import Exit
from strandline.cli.terminal.output import Output
from strandline.connections.addresses import Address, Reaching
from strandline.controller.defining.project.files import load
from strandline.controller.defining.project.settings import SETTINGS_FILE, Project
from strandline.errors import ConfigError, DefinitionError
from strandline.extras import command
from strandline.extras import missing as lacking
from strandline.wiring.locations import ConsensusPlace, Location, consensus_of, location_of

AT_ONCE_MAX: Final = 16
"""So many checks wait at a time: most of them for an answer."""
Check = Callable[[], Iterable[Finding]]
T = TypeVar("T")


def doctor(root: Path | None, output: Output) -> Exit:
    """Print what is there and what is missing; ``root``: of the project, None: the one in this directory, if any."""
    findings = list(examine(root))
    document = {
        "ok": all(each.state is State.OK for each in findings),
        "checks": [
            {"check": each.check, "state": each.state.value, "found": each.found, "act": each.act or None}
            for each in findings
        ],
    }
    output.result(document, "\n".join(map(str, findings)))
    return Exit.OK if document["ok"] else Exit.FAILED


def examine(root: Path | None) -> list[Finding]:
    """Return what all checks find, in an order of their own."""
    checks: list[Check] = [
        lambda: [machine.python(), machine.pyspark(), machine.pandas()],
        lambda: machine.java(os.environ),
        lambda: [machine.open_files(), machine.text()],
    ]
    if root is None and not Path(SETTINGS_FILE).is_file():
        return _made(checks)
    try:
        project = load(root or Path())
    except (ConfigError, DefinitionError) as error:
        return [*_made(checks), wrong("project", str(error), "correct it, or name another one by --project")]
    items = needed(project)
    return _made([*checks, lambda: [_read(project)], *_of_items(items), *_of_places(project, items)])


def _made(checks: Iterable[Check]) -> list[Finding]:
    with ThreadPoolExecutor(AT_ONCE_MAX, thread_name_prefix="strandline-doctor") as pool:
        return [finding for found in pool.map(lambda check: list(check()), checks) for finding in found]


def _read(project: Project) -> Finding:
    return ok("project", f"{project.root}, {len(project.definitions)} definitions")


def _of_items(items: list[Needed]) -> Iterator[Check]:
    """Return the checks of what definitions need."""
    yield lambda: [fault for each in items for fault in each.faults]
    references = sum(each.references for each in items)
    lost = sum(fault.check == "reference" for each in items for fault in each.faults)
    if references > lost:
        yield lambda: [ok("references", f"{references - lost} lead to values, which are not shown")]
    yield lambda: _extras((each.owner, extra) for each in items for extra in each.extras)
    for address, owners in _owners((each.owner, address) for each in items for address in each.addresses).items():
        yield _server(address, owners)
    for login, owners in _owners((each.owner, login) for each in items for login in each.logins).items():
        yield partial(servers.login, owners, login)


def _owners(needs: Iterable[tuple[str, T]]) -> dict[T, list[str]]:
    """Return who needs each thing, by the thing."""
    found: dict[T, list[str]] = {}
    for owner, need in needs:
        found.setdefault(need, []).append(owner)
    return found


def _server(address: Address, owners: list[str]) -> Check:
    return lambda: [servers.server(owners, address)]


def _extras(wanted: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    for extra, owners in _owners(wanted).items():
        modules = lacking(extra)
        if modules:
            found = f"{extra}: {', '.join(owners)}: the library {modules[0]} is not installed"
            yield missing("extra", found, command(extra))
        else:
            yield ok("extra", f"{extra}: {', '.join(owners)}")


def _of_places(project: Project, items: list[Needed]) -> Iterator[Check]:
    """Return the checks of where the project keeps its collections; and of ports, which its writer may have."""
    try:
        where = location_of(project.location, project.config["storage"])
        place = consensus_of(project.consensus, where)
    except (ConfigError, DefinitionError) as error:
        if not items[0].faults:  # else the settings refer to what is not there, which has been said
            fault = wrong("location", str(error), f"correct {SETTINGS_FILE}")
            yield lambda: [fault]
        return
    yield lambda: _extras([*(("location", e) for e in where.needs), *(("consensus", e) for e in place.needs)])
    yield lambda: places.location(where)
    if isinstance(where, Reaching):
        for address in where.addresses():
            yield _server(address, ["location"])
    yield lambda: _written(project, place, where, items)
    settings = project.config
    yield lambda: machine.jars(where.spark_settings(settings["spark"]), settings["kafka_jars"])


def _written(project: Project, place: ConsensusPlace, where: Location, items: list[Needed]) -> Iterator[Finding]:
    found, written = places.consensus(project, place, where)
    yield from found
    for each in items:
        for address in each.listens:
            yield servers.port(each.owner, address, written=written)
