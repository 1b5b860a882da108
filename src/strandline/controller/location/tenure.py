"""Tenure: a location has one environment that writes at a time.

The same deployment takes over re-entrantly once its former process is dead: a crashed pod restarts without an operator.
A living holder, or another deployment, is refused by name, unless the operator says ``take over``; then the older
environment is fenced at every shard.

Opening takes as long as Spark takes to start.  So a process says before that it opens the location (`announce`), and
who asks meanwhile learns of it; what counts is the catalog, whose holder is changed at the end.

Whether a holder lives is asked of the operating system when it was on this host: process id and start, counted from
the start of the machine, because a clock that is set moves all other start times.  No process can find out whether a
holder on another host lives; only its own deployment may succeed it.

Warning: so one deployment that is started on two hosts is not refused.  Each that starts fences the one before, and a
scheduler that restarts the fenced one has them take turns for ever: nothing becomes wrong, and little gets done.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec

from strandline.controller.location.catalog import KEY, Catalog, CatalogStore, Holder
from strandline.controller.location.config import Config
from strandline.errors import ConfigError, Held
from strandline.persist.handles.register import Register
from strandline.store.clock import Clock, Ids
from strandline.store.protocols import Consensus

PROC: Final = Path("/proc")
OPENING: Final = "opening"
"""The register of the process that opens the location for writing."""
TAKE_OVER: Final = "`strandline run --take-over`"
STARTED: Final = 19
"""Where the start time stands in ``/proc/PID/stat``, behind the program's name (the 22nd field of proc(5))."""


class Processes(Protocol):
    """What the operating system knows of processes on this host."""

    def host(self) -> str:
        """Return this host's name."""
        ...

    def boot(self) -> str:
        """Return which start of this machine the present one is; empty where the system does not say."""
        ...

    def own(self) -> int:
        """Return this process's id."""
        ...

    def started_ms(self, pid: int, boot: str) -> int | None:
        """Return when process ``pid`` started: ms since ``boot`` (empty: by the clock); None if there is none."""
        ...


class SystemProcesses:
    """`Processes` by psutil and, where there is one, Linux's ``/proc``."""

    def host(self) -> str:
        """Return this host's name."""
        return socket.gethostname()

    def boot(self) -> str:
        """Return the kernel's random name for this start of the machine; empty where it has none."""
        try:
            return (PROC / "sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return ""

    def own(self) -> int:
        """Return this process's id."""
        return os.getpid()

    def started_ms(self, pid: int, boot: str) -> int | None:
        """Return when process ``pid`` started (see `Processes`), or None if there is none (a zombie counts as none)."""
        if boot not in ("", self.boot()):
            return None  # no process outlives the machine's next start
        import psutil  # who only asks opens nothing that another process may hold

        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            if not boot:
                return int(process.create_time() * 1000)
            _, _, fields = (PROC / str(pid) / "stat").read_text().rpartition(")")
            return int(fields.split()[STARTED]) * 1000 // os.sysconf("SC_CLK_TCK")
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            return None


_abandoned: Final[set[Holder]] = set()
"""Holders that were environments of this process and are no more, though no store would take note of it."""


def abandon(holder: Holder) -> None:
    """Remember that ``holder``, an environment of this process, has ended: else its own process would keep it alive."""
    _abandoned.add(holder)


@dataclass(frozen=True, slots=True)
class Claim:
    """A process that asks to write: ``deployment`` is the same for every restart of one project."""

    deployment: str
    reentrant: bool
    take_over: bool
    opened_ms: int


def admit(catalog: Catalog, claim: Claim, processes: Processes) -> Holder:
    """Return the new holder, or refuse.

    Raises `ConfigError` naming the present holder and what the operator may do; `Held` if that is another process,
    which lives.
    """
    present = catalog.holder
    if present is not None and not claim.take_over:
        refusal = _refusal(present, claim, processes)
        if refusal:
            written = "was last" if lives(present, processes) is False else "is being"
            kind = Held if _is_another(present, processes) else ConfigError
            raise kind(f"this location {written} written by {present}, {refusal} with {TAKE_OVER}")
    pid, boot = processes.own(), processes.boot()
    started = processes.started_ms(pid, boot)
    assert started is not None, "this process is alive"
    holder = Holder(claim.deployment, processes.host(), pid, started, claim.opened_ms, claim.reentrant, boot)
    _abandoned.discard(holder)  # by a clock that was set back it may be the name of one before
    return holder


class Opening:
    """The register in which a process that opens a location for writing says so, until it has opened it."""

    def __init__(self, clock: Clock, ids: Ids, consensus: Consensus, processes: Processes) -> None:
        self._clock = clock
        self._catalogs = CatalogStore(Register(KEY, clock, ids, consensus))
        self._register = Register(OPENING, clock, ids, consensus)
        self._processes = processes

    async def announce(self, config: Config) -> Holder:
        """Say that this process opens the location; return what `withdraw` takes.

        The catalog is asked again when the process takes the location.

        Raises `ConfigError` as `admit`, and `Held` if another process of this machine opens it already.
        """
        claim = Claim(config.deployment, config.reentrant, config.take_over, self._clock.now_ms())
        ours = admit(await self._catalogs.read(), claim, self._processes)

        def step(body: bytes | None) -> bytes:
            other = _decode(body)
            if other is not None and not config.take_over and _is_another(other, self._processes):
                raise Held(f"this location is being opened by {other}, which starts; wait for it, or stop it")
            return msgspec.json.encode(ours)

        await self._register.update(step)
        return ours

    async def withdraw(self, ours: Holder) -> None:
        """Say no longer that this process opens the location.  Raises what a store raises."""
        await self._register.update(lambda body: msgspec.json.encode(None) if _decode(body) == ours else None)

    async def process(self, holder: Holder | None) -> Holder | None:
        """Return the process of this machine that opens the location now; None: none does, or it is the ``holder``."""
        found = _decode(await self._register.read())
        opens = found is not None and lives(found, self._processes) and (holder is None or not found.is_process(holder))
        return found if opens else None


def _decode(body: bytes | None) -> Holder | None:
    return None if body is None else msgspec.json.decode(body, type=Holder | None)


def released(catalog: Catalog, processes: Processes) -> Catalog:
    """Return the catalog without its holder, for an operator that has checked what the holder left.

    Raises `ConfigError` if the holder is known to be alive: then it would be fenced under its work.
    """
    present = catalog.holder
    if present is not None and lives(present, processes):
        raise ConfigError(f"this location is being written by {present}, which is alive; stop it first")
    return msgspec.structs.replace(catalog, holder=None)


def lives(holder: Holder, processes: Processes) -> bool | None:
    """Tell whether the holder runs, as far as its process does; None if that cannot be known from here."""
    if holder in _abandoned:
        return False
    if holder.host != processes.host():
        return None
    started = processes.started_ms(holder.pid, holder.boot)
    # Where it comes from the clock it may differ by rounding; another process of the same id never starts that close.
    return started is not None and abs(started - holder.process_started_ms) < 1000


def _is_another(holder: Holder, processes: Processes) -> bool:
    """Return whether a holder is known to be another process, which lives."""
    return holder.pid != processes.own() and lives(holder, processes) is True


def _refusal(present: Holder, claim: Claim, processes: Processes) -> str:
    """Return why ``present`` may not be succeeded, and what to do; empty if it may."""
    if present in _abandoned:
        return ""
    if lives(present, processes) and present.pid == processes.own():
        return "which is this process; close its environment, or take over"
    if not present.reentrant:
        return "which does not allow to be succeeded; strandline release gives it free, or take over"
    alive = lives(present, processes)
    if alive:
        return "which is alive; stop it, or take over"
    if present.deployment == claim.deployment:
        return ""
    own = f"this process is of deployment {claim.deployment!r}"
    if alive is None:
        return f"which may be alive there, and {own}; stop it, or take over"
    return f"which has ended, and {own}; set `deployment: {present.deployment}` if this is its project, or take over"
