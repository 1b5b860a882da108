"""An instance's equipment: what it works with, and how it reaches upstreams, endpoints and triggers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from strandline.algebra.schema import Schema
from strandline.compute.tick import SideBySide
from strandline.errors import ConfigError
from strandline.instance.commands import RunIngestion
from strandline.materialize.driver import Driver
from strandline.options import without_login
from strandline.persist.client import PersistClient
from strandline.plane import Engine
from strandline.sources.question import Patience
from strandline.sources.reader import SourceReader


class Connectors(Protocol):
    """How sources are read."""

    def check(
        self,
        name: str,
        connector: str,
        options: Mapping[str, str],
        schema: Schema | None,
        others: Mapping[str, Mapping[str, str]],
        before: Mapping[str, str] | None = None,
    ) -> None:
        """Raise `DefinitionError` if there is no such connector, or it refuses source ``name``.

        ``schema``: None for a source that is no collection and feeds tables.  ``others``: the options of the other
        sources of this connector, by name.  ``before``: those that the source had; None: it is not there yet.
        """
        ...

    def resolve(self, name: str, connector: str, options: Mapping[str, str]) -> None:
        """Raise `ConfigError` if an option of source ``name`` refers to a value that is not there.

        Raises `DefinitionError` if it has no value that the connector takes.
        """
        ...

    def check_table(
        self, name: str, connector: str, options: Mapping[str, str], reference: str, schema: Schema
    ) -> None:
        """Raise `DefinitionError` if a source with ``options`` cannot feed table ``name`` by ``reference``."""
        ...

    async def ask(self, name: str, connector: str, options: Mapping[str, str]) -> None:
        """Ask upstream, from this process, whether there is anything that source ``name`` could read.

        Raises `DefinitionError` if it answers that there is nothing.  If it cannot be asked now, nothing is raised.
        """
        ...

    async def ask_table(
        self, name: str, connector: str, options: Mapping[str, str], reference: str, schema: Schema
    ) -> None:
        """Ask upstream whether it has what table ``name`` refers to, as ``schema`` declares it.

        Raises `DefinitionError` if it answers that it has not.  If it cannot be asked now, nothing is raised: then
        `SourceReader.snapshot` finds out.
        """
        ...

    async def ask_wider(self, source: RunIngestion, client: PersistClient, epoch: int) -> None:
        """Ask upstream whether ``source``, which is there, can read the columns that it was not commanded to before.

        Raises `DefinitionError` if it answers that it never can, what stores raise, and `FencedError` if a newer epoch
        was admitted.  If it cannot be asked now, nothing is raised.
        """
        ...

    async def taken(self, source: RunIngestion, files: Sequence[str], client: PersistClient) -> Sequence[str]:
        """Return what ``files`` are, as ``source`` has taken them.  Writes nothing.

        Raises `DefinitionError` if its connector reads no files, or it has taken no such file; and what stores raise.
        """
        ...

    async def pass_over(
        self, source: RunIngestion, file: str, client: PersistClient, epoch: int, *, withdrawn: bool = False
    ) -> None:
        """Have ``source`` go on without one of its files, called so.

        ``withdrawn``: and note that its rows are withdrawn.

        Raises `DefinitionError` if its connector reads no files, or it has taken no such file; what stores raise, and
        `FencedError` if a newer epoch was admitted.
        """
        ...

    async def beside(
        self, source: RunIngestion, files: Sequence[str], client: PersistClient, epoch: int
    ) -> SourceReader:
        """Return a reader of all files of ``source`` but ``files``, and but those that it goes on without already.

        Raises as `pass_over`.
        """
        ...

    async def kept(self, source: RunIngestion, client: PersistClient, epoch: int) -> Sequence[str]:
        """Return the files that ``source`` goes on without and whose rows it has still.  Raises as `pass_over`."""
        ...

    def alterable(self, connector: str) -> Sequence[str]:
        """Return the connector's own options that may change while a source is there.  Raises as `counts`."""
        ...

    def called(self, connector: str, reference: str) -> str:
        """Return what the table is called upstream that ``reference`` names; several references may name one table."""
        ...

    def check_connection(self, name: str, system: str, options: Mapping[str, str]) -> None:
        """Raise `DefinitionError` if there is no such kind of connection, or it refuses the options."""
        ...

    def connections(self, connector: str) -> Mapping[str, str]:
        """Return the kinds of connection that a connector uses, by the option that names each.

        Raises `DefinitionError` if there is no such connector.
        """
        ...

    def counts(self, connector: str) -> str:
        """Return what a connector's offsets are the number of, in the plural.

        Raises `DefinitionError` if there is no such connector.
        """
        ...

    def shares(self, source: RunIngestion) -> bool:
        """Return whether several processes may read ``source`` at once, and find the same there."""
        ...

    async def reader(self, source: RunIngestion, client: PersistClient, epoch: int) -> SourceReader:
        """Return a reader of ``source``, which records its progress under ``epoch``.

        Raises what stores raise, and `FencedError` if a newer epoch was admitted.
        """
        ...

    async def release(self, source: RunIngestion, others: Sequence[str], client: PersistClient, epoch: int) -> str:
        """Have upstream let go what it keeps for ``source``, which was dropped and has no outputs.  Idempotent.

        Returns what upstream keeps still, why, and what to do; empty if it keeps nothing more.

        ``others``: the readers' own shards of the sources of this connector that were not dropped.  What upstream keeps
        for one of them is left.

        Raises what stores raise, `ConfigError`, and `FencedError` if a newer epoch was admitted.
        """
        ...


class Drivers(Protocol):
    """How endpoints are written."""

    def __call__(self, endpoint: str, options: Mapping[str, str]) -> Driver:
        """Return the driver of an endpoint.  Raises `ConfigError` naming the endpoint or option that is not known."""
        ...


class Trigger(Protocol):
    """What is called after transactions."""

    async def __call__(self, body: bytes, key: str) -> str:
        """Send ``body``; return why it was not taken, for messages, or nothing.  ``key``: the same for a repetition."""
        ...


class Triggers(Protocol):
    """How triggers are called."""

    def __call__(self, url: str) -> Trigger:
        """Return the trigger of a URL, or of a reference to one.

        Raises `DefinitionError` if it is no URL, `ConfigError` if the reference leads nowhere.
        """
        ...


def no_triggers(url: str) -> Trigger:
    """Refuse a trigger: what an instance does that was given no way to call one."""
    raise ConfigError(f"{without_login(url)} cannot be called from here")


@dataclass(frozen=True)
class Equipment:
    """What an instance works with."""

    client: PersistClient
    engine: Engine
    connectors: Connectors
    drivers: Drivers
    together: SideBySide
    patience: Patience
    """How what goes on beside is begun, and how long an upstream is waited for."""
    lanes: int
    """How many stages may take long steps at a time."""
    triggers: Triggers = no_triggers
