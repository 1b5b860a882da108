"""Tenure: a location has one environment that writes at a time.

The same deployment takes over re-entrantly once its former process is dead: a crashed pod restarts without an operator.
A living holder, or another deployment, is refused by name, unless the operator says ``take over``; then the older
environment is fenced at every shard.

Whether a holder lives is asked of the operating system when it was on this host (process id and start time); a holder
on another host is taken for alive unless it is of the same deployment (whoever starts one deployment twice on two hosts
is fenced, never wrong).

Source: design page "persist" (modes and locks).
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Protocol

import msgspec
import psutil

from strandline.environment.catalog import Catalog, Holder
from strandline.errors import ConfigError


class Processes(Protocol):
    """What the operating system knows of processes on this host."""

    def host(self) -> str:
        """Return this host's name."""
        ...

    def own(self) -> tuple[int, int]:
        """Return this process's id and start time (ms)."""
        ...

    def started_ms(self, pid: int) -> int | None:
        """Return when process ``pid`` started, or None if there is none."""
        ...


class SystemProcesses:
    """`Processes` by psutil."""

    def host(self) -> str:
        """Return this host's name."""
        return socket.gethostname()

    def own(self) -> tuple[int, int]:
        """Return this process's id and start time (ms)."""
        process = psutil.Process()
        return process.pid, int(process.create_time() * 1000)

    def started_ms(self, pid: int) -> int | None:
        """Return when process ``pid`` started, or None if there is none (a zombie counts as none)."""
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return int(process.create_time() * 1000)
        except psutil.NoSuchProcess:
            return None


@dataclass(frozen=True, slots=True)
class Claim:
    """Who wants to write: ``deployment`` is the same for every restart of one project."""

    deployment: str
    reentrant: bool
    take_over: bool
    opened_ms: int


def admit(catalog: Catalog, claim: Claim, processes: Processes) -> Holder:
    """Return the new holder, or refuse.

    Raises `ConfigError` naming the present holder and what the operator may do.
    """
    pid, started = processes.own()
    present = catalog.holder
    if present is not None and not claim.take_over:
        refusal = _refusal(present, claim, processes)
        if refusal:
            way = "stop it, or take over" if present.reentrant else "strandline release gives it free, or take over"
            raise ConfigError(f"this location is being written by {present}, {refusal}; {way} with --take-over")
    return Holder(claim.deployment, processes.host(), pid, started, claim.opened_ms, claim.reentrant)


def released(catalog: Catalog, processes: Processes) -> Catalog:
    """Return the catalog without its holder, as an operator wants it who has looked at what the holder left.

    Raises `ConfigError` if the holder is known to be alive: then it would be fenced under its work.
    """
    present = catalog.holder
    if present is not None and lives(present, processes):
        raise ConfigError(f"this location is being written by {present}, which is alive; stop it first")
    return msgspec.structs.replace(catalog, holder=None)


def lives(holder: Holder, processes: Processes) -> bool | None:
    """Tell whether the holder's process runs; None if that cannot be known from here."""
    if holder.host != processes.host():
        return None
    started = processes.started_ms(holder.pid)
    # A start time is read from the kernel's clock ticks and may differ by rounding; another process never starts that
    # close.
    return started is not None and abs(started - holder.process_started_ms) < 1000


def _refusal(present: Holder, claim: Claim, processes: Processes) -> str:
    if not present.reentrant:
        return "which does not allow to be succeeded"
    if lives(present, processes):
        return "which is alive"
    if present.deployment != claim.deployment:
        return f"and this one is of deployment {claim.deployment!r}"
    return ""
