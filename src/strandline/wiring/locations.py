"""Locations and consensus stores: where parts and states may be, with an entry for each kind.

    file:///data/strand or a path · memory:// · s3://bucket/prefix                         parts: the location
    sqlite:///path/file.db · postgresql://user@host/database?schema=name · object-store    states: the consensus

A text says *where*.  Secrets, and how to reach an object store, come from configuration (``storage``), where a secret
is a reference.  Without a text for the consensus, the location says which one goes with it.  No error shows more of a
text than its scheme or kind: the rest may hold a password.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Protocol
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

from strandline.connections.addresses import Address, of_hosts, of_url
from strandline.controller.location.config import Mode, path_of
from strandline.errors import ConfigError, NothingStored
from strandline.extras import POSTGRES, S3, require
from strandline.options import is_reference, refusal_of_secrets, resolve_reference, understood
from strandline.store.blob_kinds.file import FileBlob
from strandline.store.blob_kinds.object_location import ObjectLocation, StorageOptions
from strandline.store.blob_kinds.reading import ReadingConsensus
from strandline.store.clock import SystemClock
from strandline.store.consensus_kinds import SCHEMA_DEFAULT
from strandline.store.consensus_kinds.object_consensus import ObjectConsensus
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus, SQLiteReader
from strandline.store.memory import MemoryConsensus
from strandline.store.protocols import Blob, Consensus
from strandline.store.secret import Secret
from strandline.wiring.loop import outcomes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.engine.parts.part_store import Parts


BLOB: Final = "blob"
"""Where a location's objects are, below it."""
PUSH: Final = "push"
"""Where a location in files has the address of the process that sends notices of new versions."""
CONSENSUS_FILE: Final = "consensus.db"
"""Of a location in files for which nothing else is said."""


class Location(Protocol):
    """One kind of place.

    ``form`` is how its texts look, ``options`` what ``storage`` may hold (None: nothing), ``needs`` the extras whose
    libraries opening it takes.
    """

    form: ClassVar[str]
    options: ClassVar[type[StorageOptions] | None]
    needs: ClassVar[Sequence[str]]

    @classmethod
    def read(cls, text: str, place: SplitResult, storage: Mapping[str, str]) -> Location:
        """Return what ``text``, whose parts are ``place``, means; ``storage``: `StorageOptions`, references and all.

        Raises `ConfigError`, which shows nothing secret.
        """
        ...

    @property
    def shown(self) -> str:
        """What to call it in a message."""
        ...

    @property
    def consensus(self) -> str:
        """The text of the consensus that goes with it, if no other is named."""
        ...

    @property
    def push(self) -> Path | None:
        """Where the process that writes leaves its address, if other processes can look there."""
        ...

    @property
    def cache(self) -> str | None:
        """What a cache of its objects is called, if it is far enough away for one."""
        ...

    def open(self, mode: Mode, opened: ExitStack) -> tuple[Blob, Parts]:
        """Open its stores; ``opened`` closes them.  Only `Mode.FULL` makes a location that is not there.

        Raises `ConfigError` or `Unavailable`.
        """
        ...

    def spark_settings(self, settings: Mapping[str, str]) -> Mapping[str, str]:
        """Return what a new JVM needs to reach it, beside ``settings``."""
        ...

    def prepare(self, session: SparkSession) -> None:
        """Let a session of our own reach it.  Raises `ConfigError` if its application cannot."""
        ...


class _OfThisMachine:
    """What all kinds share whose parts Spark reads as files."""

    options: ClassVar[type[StorageOptions] | None] = None
    needs: ClassVar[Sequence[str]] = ()
    push: Path | None = None
    cache: str | None = None

    def spark_settings(self, settings: Mapping[str, str]) -> Mapping[str, str]:
        return settings

    def prepare(self, session: SparkSession) -> None:
        pass


@dataclass(frozen=True)
class InMemory(_OfThisMachine):
    """Parts in a temporary directory, states in memory: all of it goes with the environment."""

    form: ClassVar[str] = "memory://"
    shown: ClassVar[str] = "memory://"
    consensus: ClassVar[str] = "memory://"

    @classmethod
    def read(cls, text: str, place: SplitResult, storage: Mapping[str, str]) -> InMemory:
        """See `Location.read`."""
        return cls()

    def open(self, mode: Mode, opened: ExitStack) -> tuple[Blob, Parts]:
        """See `Location.open`."""
        from strandline.engine.parts.part_store import PartStore

        directory = tempfile.TemporaryDirectory(prefix="strandline-", ignore_cleanup_errors=True)
        root = Path(opened.enter_context(directory))
        return FileBlob(root / BLOB), PartStore(root / BLOB)


@dataclass(frozen=True)
class InFiles(_OfThisMachine):
    """A directory of this machine, or of a file system that all machines share."""

    root: Path
    form: ClassVar[str] = "file://…"

    @classmethod
    def read(cls, text: str, place: SplitResult, storage: Mapping[str, str]) -> InFiles:
        """See `Location.read`."""
        return cls((path_of(text) if place.scheme else Path(text)).absolute())

    @property
    def shown(self) -> str:
        """See `Location.shown`."""
        return str(self.root)

    @property
    def consensus(self) -> str:
        """See `Location.consensus`."""
        return f"sqlite{(self.root / CONSENSUS_FILE).as_uri().removeprefix('file')}"

    @property
    def push(self) -> Path | None:  # type: ignore[override]
        """See `Location.push`."""
        return self.root / PUSH

    def open(self, mode: Mode, opened: ExitStack) -> tuple[Blob, Parts]:
        """See `Location.open`."""
        from strandline.engine.parts.part_store import PartStore

        below = self.root / BLOB
        if mode is Mode.FULL:
            self._make()
            blob = FileBlob(below)
            blob.sweep(SystemClock().now_ms())
            return blob, PartStore(below)
        if not below.is_dir():
            raise NothingStored(
                f"nothing was stored at location {self.shown!r} yet; open it for writing (`strandline run`) to make it"
            )
        return FileBlob(below, existing=True), PartStore(below)

    def _make(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"location {self.shown!r} cannot be created: {error.strerror}") from error
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise ConfigError(f"location {self.shown!r} is not writable by this user")


@dataclass(frozen=True, slots=True)
class InBucket:
    """A prefix of a bucket: ``consensus/`` (conditional puts, unless another consensus is named) beside ``blob/``."""

    at: ObjectLocation
    form: ClassVar[str] = "s3://bucket/prefix"
    options: ClassVar[type[StorageOptions] | None] = StorageOptions
    needs: ClassVar[Sequence[str]] = (S3,)
    consensus: ClassVar[str] = "object-store"
    push: ClassVar[Path | None] = None

    @classmethod
    def read(cls, text: str, place: SplitResult, storage: Mapping[str, str]) -> InBucket:
        """See `Location.read`."""
        if "@" in place.netloc or place.query or place.fragment:
            raise ConfigError("location s3://…: it is a bucket and a prefix, nothing else; options go to `storage`")
        if refusal := refusal_of_secrets(storage):
            raise ConfigError(f"storage: {refusal}")
        understood("storage", StorageOptions, storage, error=ConfigError)
        options = {
            name.lower(): Secret(resolve_reference(value, base=Path())) if is_reference(value) else value
            for name, value in storage.items()  # what a reference stands for is a secret, whatever its name
        }
        return cls(ObjectLocation(f"s3://{place.netloc}{place.path.rstrip('/')}", options))

    @property
    def shown(self) -> str:
        """See `Location.shown`."""
        return self.at.url

    def addresses(self) -> Sequence[Address]:
        """See `Reaching`: a server of one's own."""
        endpoint = self.at.options.get("endpoint")
        return of_url(endpoint) if isinstance(endpoint, str) else ()

    @property
    def cache(self) -> str | None:
        """See `Location.cache`."""
        return blake2b(self.at.url.encode(), digest_size=8).hexdigest()

    def open(self, mode: Mode, opened: ExitStack) -> tuple[Blob, Parts]:
        """See `Location.open`."""
        require(f"location {self.shown}", self.needs)
        from strandline.engine.parts.part_objects import ObjectParts
        from strandline.engine.session import s3a
        from strandline.store.blob_kinds.objects import ObjectBlob

        below = replace(self.at, url=f"{self.at.url}/{BLOB}")
        return ObjectBlob(below), ObjectParts(below, s3a.root(below))

    def spark_settings(self, settings: Mapping[str, str]) -> Mapping[str, str]:
        """See `Location.spark_settings`."""
        from strandline.engine.session import s3a

        return s3a.jars(settings)

    def prepare(self, session: SparkSession) -> None:
        """See `Location.prepare`."""
        from strandline.engine.session import s3a

        s3a.prepare(session, self.at)


LOCATION_KINDS: Final[Mapping[str, type[Location]]] = {"file": InFiles, "": InFiles, "memory": InMemory, "s3": InBucket}
"""Every kind of location by the scheme of its texts."""


def location_of(text: str, storage: Mapping[str, str]) -> Location:
    """Return what a location's text means; ``storage`` are an object store's options, references and all.

    >>> location_of("memory://", {}), location_of("file:///data/strand", {})
    (InMemory(), InFiles(root=PosixPath('/data/strand')))
    >>> location_of("s3://bucket/prefix", {"region": "eu-west-1"})
    InBucket(at=ObjectLocation('s3://bucket/prefix', options: region))

    Raises `ConfigError`: the kind is not known, or something secret stands where it can be read.
    """
    place = split(text, "location")
    if place.scheme not in LOCATION_KINDS:
        forms = " or ".join(dict.fromkeys(kind.form for kind in LOCATION_KINDS.values()))
        raise ConfigError(f"a location is {forms}, and none of kind {place.scheme!r}")
    kind = LOCATION_KINDS[place.scheme]
    if storage and kind.options is None:
        raise ConfigError(f"`storage` configures an object store, and the location is {kind.form}")
    return kind.read(text, place, storage)


def split(text: str, what: str) -> SplitResult:
    """Return the parts of a URL.  Raises `ConfigError`, which does not show it."""
    try:
        return urlsplit(text)
    except ValueError:
        raise ConfigError(f"the {what} is not a URL that can be read (it is not shown here)") from None


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


CONSENSUS_KINDS: Final[Mapping[str, type[ConsensusPlace]]] = {
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
    kind = CONSENSUS_KINDS.get(place.scheme or text)
    if kind is None:
        forms = ", ".join(dict.fromkeys(each.form for each in CONSENSUS_KINDS.values()))
        raise ConfigError(f"a consensus is one of {forms}, and none of kind {place.scheme!r}")
    return kind.read(text, place, location)
