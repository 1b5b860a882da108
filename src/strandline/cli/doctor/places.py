"""Where a project keeps its collections: whether this user can write there, with room, and who does so now.

Whether a directory can be written is found out by a file without a name in it, which is gone at once.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from strandline.cli.doctor.finding import Finding, missing, ok, wrong
from strandline.cli.doctor.servers import answers
from strandline.connections.addresses import Reaching
from strandline.controller.defining.project.settings import Project
from strandline.controller.location.catalog import KEY, CatalogStore
from strandline.controller.location.config import Mode
from strandline.controller.location.tenure import Claim, SystemProcesses, admit, lives
from strandline.errors import ConfigError, NothingStored, StrandlineError
from strandline.extras import missing as lacking
from strandline.persist.handles.location import another_consensus, read_mark
from strandline.persist.handles.register import Register
from strandline.store.system import SystemClock, SystemIds
from strandline.wiring.consensuses import ConsensusPlace, InObjectStore, InSQLite, States
from strandline.wiring.locations import BLOB, InFiles, Location
from strandline.wiring.loop import at_once

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
