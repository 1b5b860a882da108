"""The registry: every reader that CREATE SOURCE may name, and every driver that CREATE MATERIALIZATION may name.

A reader or a driver is an entry in its own file; here is one line for each.  All names are known at once, and the
module of a kind is imported when the kind is first chosen, so a question that concerns no endpoint loads no endpoint's
library.  Trap: `values` and `items` import all of them.

`page` writes docs/options.md from the options that readers, drivers and stores declare.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from strandline.algebra.schema import Schema, quote
from strandline.controller.location.on_error import MaterializationOptions, SourceOptions
from strandline.errors import ConfigError, DefinitionError, SourceError, Unavailable
from strandline.extras import require
from strandline.instance.commands import Output, RunIngestion
from strandline.materialize.driver import Driver, DriverKind
from strandline.options import lines, resolve_reference, understood
from strandline.persist.client import PersistClient
from strandline.plane import Engine
from strandline.sources.kinds import ConnectionKind, Discovered
from strandline.sources.reader import FileDecoder, MessageDecoder, OfFiles, ReaderKind, SourceReader, Surroundings
from strandline.store.clock import Clock
from strandline.wiring.locations import LOCATION_KINDS as LOCATIONS

if TYPE_CHECKING:
    from strandline.materialize.drivers.webhook.receiver import WebhookTrigger


K = TypeVar("K")


class Kinds(MutableMapping[str, K]):
    """The kinds whose modules are in ``places``, by name; one that is set takes the place of an imported one.

    ``find`` returns the kind of a name from its module; default: the module's ``KIND``.
    """

    def __init__(
        self, places: Mapping[str, str], find: Callable[[str, ModuleType], Any] = lambda _, module: module.KIND
    ) -> None:
        self._places = dict(places)
        self._find = find
        self._known: dict[str, K] = {}

    def __getitem__(self, name: str) -> K:
        """Return the kind ``name``."""
        if name not in self._known:
            self._known[name] = self._find(name, import_module(self._places[name]))
        return self._known[name]

    def __setitem__(self, name: str, kind: K) -> None:
        """Have ``kind`` go by ``name``."""
        self._known[name] = kind

    def __delitem__(self, name: str) -> None:
        """Forget what was set as ``name``."""
        del self._known[name]

    def __contains__(self, name: object) -> bool:
        """Return whether there is such a kind, without importing it."""
        return name in self._places or name in self._known

    def __iter__(self) -> Iterator[str]:
        """Yield the names, in the order in which they are written down."""
        return iter(dict.fromkeys((*self._places, *self._known)))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._places.keys() | self._known.keys())


READERS: Final[Kinds[ReaderKind[Any]]] = Kinds(
    {
        "files": "strandline.sources.readers.files.kind",
        "clock": "strandline.sources.readers.clock",
        "kafka": "strandline.sources.readers.kafka.kind",
        "postgres": "strandline.sources.readers.postgres.kind",
        "webhook": "strandline.sources.readers.webhook.reader",
        "delta": "strandline.sources.readers.delta.kind",
        "iceberg": "strandline.sources.readers.iceberg.kind",
        "auction": "strandline.sources.readers.generators.auction",
        "bank": "strandline.sources.readers.generators.bank",
        "counter": "strandline.sources.readers.generators.counter",
        "tpch": "strandline.sources.readers.generators.tpch",
    }
)
CONNECTIONS: Final[Kinds[ConnectionKind]] = Kinds(
    {
        "kafka": "strandline.sources.readers.kafka.kind",
        "registry": "strandline.sources.readers.kafka.kind",
        "postgres": "strandline.sources.readers.postgres.kind",
        "iceberg": "strandline.sources.readers.iceberg.kind",
    },
    lambda name, module: next(kind for kind in module.KIND.connections.values() if kind.name == name),
)
"""Every kind of connection: those that a reader uses."""
DRIVERS: Final[Kinds[DriverKind[Any]]] = Kinds(
    {
        "duckdb": "strandline.materialize.drivers.duckdb.kind",
        "postgres": "strandline.materialize.drivers.postgres.kind",
        "sqlite": "strandline.materialize.drivers.sqlite.kind",
        "mariadb": "strandline.materialize.drivers.mariadb.kind",
        "kafka": "strandline.materialize.drivers.kafka.kind",
        "redis": "strandline.materialize.drivers.redis.kind",
        "webhook": "strandline.materialize.drivers.webhook.driver",
        "delta": "strandline.materialize.drivers.delta.kind",
        "files": "strandline.materialize.drivers.files.kind",
        "iceberg": "strandline.materialize.drivers.iceberg.kind",
        "connector": "strandline.materialize.wire.kind",
    }
)

_resolved = partial(resolve_reference, base=Path())


def named(kinds: Mapping[str, K], what: str, name: str) -> K:
    """Return the entry ``name``.  Raises `DefinitionError` naming the entries that there are.

    >>> named({"a": 1}, "connector", "b")
    Traceback (most recent call last):
        ...
    strandline.errors.DefinitionError: there is no connector 'b'; there is 'a'
    """
    if name not in kinds:
        raise DefinitionError(f"there is no {what} {name!r}; there is {', '.join(map(repr, kinds))}")
    return kinds[name]


ALSO: Final = {"csv": "files", "parquet": "files", "postgresql": "postgres"}
"""Endpoints by other names that the documents use."""


def described(name: str) -> DriverKind[Any]:
    """Return the endpoint called ``name``, in any case, or by a name of `ALSO`.  Raises as `named`.

    >>> described("Parquet").name
    'files'
    """
    return named(DRIVERS, "endpoint", ALSO.get(name.lower(), name.lower()))


@dataclass(frozen=True, slots=True)
class Readers:
    """`Connectors` of all `READERS`."""

    clock: Clock
    engine: Engine
    decoder: FileDecoder
    messages: MessageDecoder

    def check(
        self,
        name: str,
        connector: str,
        options: Mapping[str, str],
        schema: Schema | None,
        others: Mapping[str, Mapping[str, str]],
        before: Mapping[str, str] | None = None,
    ) -> None:
        """See `Connectors.check`."""
        kind = named(READERS, "connector", connector)
        if schema is None and not kind.tables:
            raise DefinitionError(
                f"source {name!r} needs columns: CREATE SOURCE {name} (column type, …) FROM {connector} …"
            )
        if schema is not None and kind.tables:
            raise DefinitionError(
                f"source {name!r} has no columns: {connector} has many tables; CREATE SOURCE {name} FROM {connector} "
                f"(…), then CREATE TABLE t (column type, …) FROM SOURCE {name} (REFERENCE '…') for each"
            )
        given = understood(f"source {name!r}", kind.options, options)
        require(f"source {name!r}", kind.needs(given))
        if schema is not None:
            kind.check(given, schema)
        if (
            kind.altered is not None
            and before is not None
            and (why := kind.altered(understood(f"source {name!r}", kind.options, before), given))
        ):
            raise DefinitionError(f"source {name!r} cannot go on so: {why}")
        if kind.clash is None:
            return
        for other, texts in others.items():
            if why := kind.clash(given, understood(f"source {other!r}", kind.options, texts)):
                raise DefinitionError(f"source {name!r} cannot be beside source {other!r}: {why}")

    def resolve(self, name: str, connector: str, options: Mapping[str, str]) -> None:
        """See `Connectors.resolve`."""
        understood(f"source {name!r}", named(READERS, "connector", connector).options, options, resolve=_resolved)

    def check_table(
        self, name: str, connector: str, options: Mapping[str, str], reference: str, schema: Schema
    ) -> None:
        """See `Connectors.check_table`."""
        kind = named(READERS, "connector", connector)
        kind.check_table(understood(f"the source of table {name!r}", kind.options, options), reference, schema)

    async def ask(self, name: str, connector: str, options: Mapping[str, str]) -> None:
        """See `Connectors.ask`."""
        kind = named(READERS, "connector", connector)
        if kind.ask is not None:
            await _asked(f"source {name!r}", kind, options, kind.ask)

    async def ask_table(
        self, name: str, connector: str, options: Mapping[str, str], reference: str, schema: Schema
    ) -> None:
        """See `Connectors.ask_table`."""
        kind = named(READERS, "connector", connector)
        if (ask := kind.ask_table) is not None:
            await _asked(f"the source of table {name!r}", kind, options, lambda given: ask(given, reference, schema))

    async def ask_wider(self, source: RunIngestion, client: PersistClient, epoch: int) -> None:
        """See `Connectors.ask_wider`."""
        kind = named(READERS, "connector", source.connector)
        if (ask := kind.ask_wider) is not None:
            around = self._given(source, client, epoch)
            await _asked(f"source {source.name!r}", kind, source.options, lambda given: ask(given, around))

    async def taken(self, source: RunIngestion, files: Sequence[str], client: PersistClient) -> Sequence[str]:
        """See `Connectors.taken`."""
        of_files = _files_alone(source)
        if (progress := await client.recorded(source.progress)) is None:
            raise DefinitionError(f"source {source.name!r} has taken no file yet, since it was never opened")
        return await of_files.taken(progress, source.name, files)

    async def pass_over(
        self, source: RunIngestion, file: str, client: PersistClient, epoch: int, *, withdrawn: bool = False
    ) -> None:
        """See `Connectors.pass_over`."""
        await _files_alone(source).pass_over(self._given(source, client, epoch), file, withdrawn=withdrawn)

    async def beside(
        self, source: RunIngestion, files: Sequence[str], client: PersistClient, epoch: int
    ) -> SourceReader:
        """See `Connectors.beside`."""
        _files_alone(source)
        return await self._opened(source, replace(self._given(source, client, epoch), left_out=files))

    async def kept(self, source: RunIngestion, client: PersistClient, epoch: int) -> Sequence[str]:
        """See `Connectors.kept`."""
        return await _files_alone(source).kept(self._given(source, client, epoch))

    def alterable(self, connector: str) -> Sequence[str]:
        """See `Connectors.alterable`."""
        return named(READERS, "connector", connector).alterable

    def called(self, connector: str, reference: str) -> str:
        """See `Connectors.called`."""
        return named(READERS, "connector", connector).called(reference)

    def check_connection(self, name: str, system: str, options: Mapping[str, str]) -> None:
        """See `Connectors.check_connection`."""
        understood(f"connection {name!r}", named(CONNECTIONS, "kind of connection", system).options, options)

    def counts(self, connector: str) -> str:
        """See `Connectors.counts`."""
        return named(READERS, "connector", connector).counts

    def shares(self, source: RunIngestion) -> bool:
        """See `Connectors.shares`."""
        kind = named(READERS, "connector", source.connector)
        return kind.shared(understood(f"source {source.name!r}", kind.options, source.options))

    def connections(self, connector: str) -> Mapping[str, str]:
        """See `Connectors.connections`."""
        used = named(READERS, "connector", connector).connections
        return {option: kind.name for option, kind in used.items()}

    async def reader(self, source: RunIngestion, client: PersistClient, epoch: int) -> SourceReader:
        """See `Connectors.reader`."""
        return await self._opened(source, self._given(source, client, epoch))

    async def _opened(self, source: RunIngestion, given: Surroundings) -> SourceReader:
        kind = named(READERS, "connector", source.connector)
        options = understood(f"source {source.name!r}", kind.options, source.options, resolve=_resolved)
        require(f"source {source.name!r}", kind.needs(options))
        return await kind.open(options, given)

    async def release(self, source: RunIngestion, others: Sequence[str], client: PersistClient, epoch: int) -> str:
        """See `Connectors.release`."""
        kind = named(READERS, "connector", source.connector)
        if kind.release is None:
            return ""
        options = understood(f"source {source.name!r}", kind.options, source.options, resolve=_resolved)
        require(f"source {source.name!r}", kind.needs(options))
        theirs = [partial(client.records, shard, epoch) for shard in others]
        return await kind.release(options, self._given(source, client, epoch), theirs)

    def _given(self, source: RunIngestion, client: PersistClient, epoch: int) -> Surroundings:
        schemas = {output.table: output.collection.schema for output in source.outputs}
        progress = partial(client.records, source.progress, epoch)
        evolving = frozenset(output.table for output in source.outputs if output.evolves)
        altering = {output.table: _altering(output) for output in source.outputs}
        later = {output.table: output.later for output in source.outputs}
        called = {output.table: output.collection.name for output in source.outputs}
        here = self.clock, schemas, self.engine, self.decoder, self.messages
        return Surroundings(*here, epoch, progress, evolving, altering, later, source.name, called)


async def _asked(
    what: str, kind: ReaderKind[Any], options: Mapping[str, str], ask: Callable[[Any], Awaitable[None]]
) -> None:
    """Ask upstream; that it cannot be asked now is no answer."""
    try:
        given = understood(what, kind.options, options, resolve=_resolved)
    except (ConfigError, DefinitionError):
        return  # a reference, to a password perhaps, leads nowhere yet
    require(what, kind.needs(given))
    try:
        await ask(given)
    except SourceError as error:
        raise DefinitionError(str(error)) from error
    except Unavailable:
        return


def _files_alone(source: RunIngestion) -> OfFiles:
    """Return how a source goes on without some of its files.  Raises `DefinitionError` if it reads none."""
    kind = named(READERS, "connector", source.connector)
    if kind.of_files is None:
        raise DefinitionError(f"source {source.name!r} reads no files that it could go on without")
    return kind.of_files


def _altering(output: Output) -> str:
    """Return how the statement begins that changes an output."""
    return f"ALTER {'TABLE' if output.table else 'SOURCE'} {quote(output.collection.name)}"


async def discover(connector: str, options: Mapping[str, str]) -> Sequence[Discovered]:
    """Return what an upstream has to read.

    Raises `DefinitionError` if there is no such connector, it cannot say, or an option is not known; and what the
    upstream raises.
    """
    kind = named(READERS, "connector", connector)
    if kind.discovery is None:
        raise DefinitionError(f"{connector} cannot say what there is to read; {', '.join(discovering())} can")
    require(f"discover {connector}", kind.discovery.needs)
    given = understood(f"discover {connector}", kind.discovery.options, options, resolve=_resolved)
    return list(await kind.discovery.find(given))


def discovering(system: str | None = None) -> dict[str, str]:
    """Return the connectors that can say what there is to read, by which option each takes a connection to ``system``.

    None: all of them, whatever they connect by.

    >>> discovering()["files"], discovering("nowhere")
    ('', {})
    """
    found = {}
    for name, kind in READERS.items():
        takes = [option for option, each in kind.connections.items() if each.name == system]
        if kind.discovery is not None and (takes or system is None):
            found[name] = next(iter(takes), "")
    return found


def driver(clock: Clock, endpoint: str, options: Mapping[str, str]) -> Driver:
    """Return the driver for an endpoint; options that are references are resolved here, and nowhere before.

    Raises `DefinitionError` naming the endpoint or the option that is not known.
    """
    return opened(named(DRIVERS, "endpoint", endpoint), options, clock)


def opened(kind: DriverKind[Any], options: Mapping[str, str], clock: Clock) -> Driver:
    """Return a driver of a kind.

    Raises `DefinitionError` naming the option that is not known; `ConfigError` naming the library that is missing.
    """
    given = understood(f"endpoint {kind.name}", kind.options, options, resolve=_resolved)
    require(f"endpoint {kind.name}", kind.needs(given))
    return kind.open(given, clock)


def trigger(url: str) -> WebhookTrigger:
    """Return the trigger of a URL, or of a reference to one.  Raises `DefinitionError` if it is no URL."""
    from strandline.materialize.drivers.webhook.receiver import WebhookTrigger

    resolved = _resolved(url)
    try:
        return WebhookTrigger(resolved)
    except ValueError:
        raise DefinitionError("option 'trigger' must be a URL, as https://example.org/hook, or refer to one") from None


def page() -> str:
    """Return every option of every source, endpoint and store, as the Markdown of docs/options.md."""
    parts = [
        _HEAD,
        "## Sources\n\nEvery source takes these:\n",
        *lines(SourceOptions),
        *(part for kind in READERS.values() for part in _reader_lines(kind)),
        *(
            part
            for kind in CONNECTIONS.values()
            for part in (f"\n## Connections `TO {kind.name}`\n", *lines(kind.options))
        ),
        "\n## Materializations\n\nEvery materialization takes these:\n",
        *lines(MaterializationOptions),
    ]
    for driver_kind in DRIVERS.values():
        parts += [f"\n### `INTO {driver_kind.name}` ({driver_kind.documentation_url})\n", *lines(driver_kind.options)]
        parts += ["\nOf each table:\n", *lines(driver_kind.resource)]
    for location in dict.fromkeys(LOCATIONS.values()):
        if location.options is not None:
            parts += [f"\n## `storage` of a location `{location.form}`\n", *lines(location.options)]
    return "\n".join(parts)


def _reader_lines(kind: ReaderKind[Any]) -> Iterator[str]:
    yield f"\n### `USING {kind.name}`\n"
    for option, connection in kind.connections.items():
        yield f"`{option}` names a connection `TO {connection.name}`, which gives that one's options.\n"
    if kind.tables:
        yield "It has tables: the source has no columns, and `CREATE TABLE … FROM SOURCE` makes a collection of each.\n"
    yield from lines(kind.options)


_HEAD: Final = """# Options

`strandline options` prints this page, from what readers, drivers and stores declare; a test compares. An option is a
text. Where its meaning says so, it may be a reference to the place of the real value: `env:NAME` or `file:PATH`. A
secret must be one.
"""
