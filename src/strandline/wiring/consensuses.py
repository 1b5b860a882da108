"""Consensus: where states may be, an entry for each kind.

    sqlite:///path/file.db · postgresql://user@host/database?schema=name · object-store

Without a text, the location says which goes with it.  No error shows more of a text than its kind: the rest may hold a
password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Protocol
from urllib.parse import SplitResult, parse_qsl, quote, urlencode

from strandline.connections.addresses import Address, of_hosts
from strandline.controller.location.paths import path_of
from strandline.errors import ConfigError
from strandline.extras import POSTGRES, S3, require
from strandline.options import resolve_reference
from strandline.store.blob_kinds.reading import ReadingConsensus
from strandline.store.consensus import Consensus
from strandline.store.consensus_kinds import SCHEMA_DEFAULT
from strandline.store.consensus_kinds.object_consensus import ObjectConsensus
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus
from strandline.store.consensus_kinds.sqlite_reader import SQLiteReader
from strandline.store.memory import MemoryConsensus
from strandline.store.secret import Secret
from strandline.wiring.locations import CONSENSUS_FILE, InBucket, InFiles, InMemory, Location, split
from strandline.wiring.loop import outcomes

LOCAL: Final = "local"
"""What a server is called that is reached by its socket."""
PORT_DEFAULT: Final = 5432
_HOST: Final = re.compile(r"(?:\[[^\[\]]*\]|[^:\[\]]*)(?::\d*)?")


class ConsensusPlace(Protocol):
    """One kind of consensus.

    ``form`` is how its texts look, ``needs`` the extras whose libraries opening it takes.
    """

    form: ClassVar[str]
    needs: ClassVar[Sequence[str]]

    @classmethod
    def read(cls, text: str, place: SplitResult, location: Location) -> ConsensusPlace:
        """Return what ``text``, whose parts are ``place``, means.  Raises `ConfigError`, which shows none of it."""
        ...

    def shown(self, location: Location) -> str:
        """Return what to call it in a message: its kind and where it is, without users and passwords."""
        ...

    def open(self, opened: ExitStack, *, existing: bool) -> Consensus:
        """Open it; ``opened`` closes it.

        Raises `NothingStored` if it must be ``existing`` and is not, `ConfigError` or `Unavailable`.
        """
        ...

    def open_for_reading(self, opened: ExitStack) -> Consensus:
        """Open it such that no other process could notice.  Raises as `open`."""
        ...


@dataclass(frozen=True, slots=True)
class States:
    """States in memory."""

    form: ClassVar[str] = "memory://"
    needs: ClassVar[Sequence[str]] = ()

    @classmethod
    def read(cls, text: str, place: SplitResult, location: Location) -> States:
        """See `ConsensusPlace.read`."""
        if not isinstance(location, InMemory):
            raise ConfigError(f"consensus {cls.form} ends with its process: it goes with location {InMemory.form}")
        return cls()

    def shown(self, location: Location) -> str:
        """See `ConsensusPlace.shown`."""
        return "memory"

    def open(self, opened: ExitStack, *, existing: bool) -> Consensus:
        """See `ConsensusPlace.open`."""
        return MemoryConsensus()

    def open_for_reading(self, opened: ExitStack) -> Consensus:
        """See `ConsensusPlace.open_for_reading`."""
        return ReadingConsensus(self.open(opened, existing=True))


@dataclass(frozen=True, slots=True)
class InSQLite:
    """A database file."""

    path: Path
    form: ClassVar[str] = "sqlite:///path/to/file.db"
    needs: ClassVar[Sequence[str]] = ()

    @classmethod
    def read(cls, text: str, place: SplitResult, location: Location) -> InSQLite:
        """See `ConsensusPlace.read`."""
        return cls(path_of(text))

    def shown(self, location: Location) -> str:
        """See `ConsensusPlace.shown`.

        >>> InSQLite(Path("/data/consensus.db")).shown(InFiles(Path("/data")))
        'consensus.db (SQLite, inside the location)'
        """
        if isinstance(location, InFiles) and self.path == location.root / CONSENSUS_FILE:
            return f"{CONSENSUS_FILE} (SQLite, inside the location)"
        return f"sqlite://{self.path}"

    def open(self, opened: ExitStack, *, existing: bool) -> Consensus:
        """See `ConsensusPlace.open`."""
        return opened.enter_context(closing(SQLiteConsensus(self.path, existing=existing)))

    def open_for_reading(self, opened: ExitStack) -> Consensus:
        """See `ConsensusPlace.open_for_reading`."""
        return ReadingConsensus(SQLiteReader(self.path))


@dataclass(frozen=True, slots=True)
class InPostgres:
    """A schema of a database.  ``url`` may hold a password; ``server`` is what of it may be shown."""

    url: Secret
    server: str
    schema: str
    form: ClassVar[str] = "postgresql://…"
    needs: ClassVar[Sequence[str]] = (POSTGRES,)

    @classmethod
    def read(cls, text: str, place: SplitResult, location: Location) -> InPostgres:
        """See `ConsensusPlace.read`."""
        options = dict(parse_qsl(place.query, keep_blank_values=True))
        _refuse_bare_signs(place, options)
        schema = options.pop("schema", SCHEMA_DEFAULT)
        server = f"{place.netloc.rpartition('@')[2] or LOCAL}{place.path}"
        return cls(Secret(place._replace(query=urlencode(options, quote_via=quote)).geturl()), server, schema)

    def shown(self, location: Location) -> str:
        """See `ConsensusPlace.shown`.

        >>> place = consensus_of("postgresql://ann:pw@db:5432/shop?schema=s&password=pw", InMemory())
        >>> place.shown(InMemory())
        'PostgreSQL (db:5432/shop, schema s)'
        """
        return f"PostgreSQL ({self.server}, schema {self.schema})"

    def addresses(self) -> Sequence[Address]:
        """See `Reaching`; nothing of a socket of this machine."""
        hosts, _, _ = self.server.partition("/")
        return () if hosts == LOCAL else of_hosts(hosts, PORT_DEFAULT)

    def open(self, opened: ExitStack, *, existing: bool) -> Consensus:
        """See `ConsensusPlace.open`."""
        require(f"consensus {self.form}", self.needs)
        from strandline.store.consensus_kinds.postgres import PostgresConsensus

        return opened.enter_context(closing(PostgresConsensus(self.url, schema=self.schema, existing=existing)))

    def open_for_reading(self, opened: ExitStack) -> Consensus:
        """See `ConsensusPlace.open_for_reading`."""
        return ReadingConsensus(self.open(opened, existing=True))


@dataclass(frozen=True, slots=True)
class InObjectStore:
    """Beside the location's own objects."""

    bucket: InBucket
    form: ClassVar[str] = "object-store"
    needs: ClassVar[Sequence[str]] = (S3,)

    @classmethod
    def read(cls, text: str, place: SplitResult, location: Location) -> InObjectStore:
        """See `ConsensusPlace.read`."""
        if not isinstance(location, InBucket):
            raise ConfigError(f"consensus {cls.form} needs a location in an object store, such as {InBucket.form}")
        return cls(location)

    def shown(self, location: Location) -> str:
        """See `ConsensusPlace.shown`."""
        return "object-store (inside the location)"

    def open(self, opened: ExitStack, *, existing: bool) -> Consensus:
        """See `ConsensusPlace.open`."""
        require(f"consensus {self.form}", self.needs)
        from strandline.store.blob_kinds.objects import ObjectBlob

        return ObjectConsensus(ObjectBlob(self.bucket.at), together=outcomes)

    def open_for_reading(self, opened: ExitStack) -> Consensus:
        """See `ConsensusPlace.open_for_reading`."""
        return ReadingConsensus(self.open(opened, existing=True))


def _refuse_bare_signs(place: SplitResult, options: Mapping[str, str]) -> None:
    """Refuse a URL of PostgreSQL that a sign in its password cuts in the wrong place: its parts would be shown."""
    hosts = place.netloc.rpartition("@")[2].split(",")
    if (
        place.fragment
        or "@" in place.path
        or any("@" in name for name in options)
        or not all(_HOST.fullmatch(host) for host in hosts)
    ):
        raise ConfigError(
            "consensus postgresql://…: its host or port cannot be read (they are not shown here); "
            "in a user or a password, write / as %2F, ? as %3F, # as %23, @ as %40"
        )


KINDS: Final[Mapping[str, type[ConsensusPlace]]] = {
    "memory": States,
    "sqlite": InSQLite,
    "postgresql": InPostgres,
    "postgres": InPostgres,
    InObjectStore.form: InObjectStore,
}
"""Every kind of consensus by the scheme of its texts, or the whole text."""


def consensus_of(text: str | None, location: Location) -> ConsensusPlace:
    """Return what a consensus' text means, and without one what goes with the location.

    >>> consensus_of(None, InFiles(Path("/data"))), consensus_of("sqlite:///other.db", InMemory())
    (InSQLite(path=PosixPath('/data/consensus.db')), InSQLite(path=PosixPath('/other.db')))
    >>> consensus_of("postgresql://ann:pw@host/db?schema=strand", InMemory())
    InPostgres(url=Secret(•••), server='host/db', schema='strand')

    Raises `ConfigError`: the kind is not known, or does not go with the location.
    """
    text = location.consensus if text is None else resolve_reference(text, base=Path())
    place = split(text, "consensus")
    kind = KINDS.get(place.scheme or text)
    if kind is None:
        forms = ", ".join(dict.fromkeys(each.form for each in KINDS.values()))
        raise ConfigError(f"a consensus is one of {forms}, and none of kind {place.scheme!r}")
    return kind.read(text, place, location)
