"""Places: what the texts say that name a location and its consensus.  Nothing is opened here.

    location     file:///data/strand or a path · memory:// · s3://bucket/prefix
    consensus    sqlite:///path/file.db · postgresql://user@host/database?schema=name · object-store

A text says *where*; what is secret, and how to reach an object store, is said by configuration (``storage``), where a
secret is a reference (``env:NAME``, ``file:PATH``).  No error shows more of a text than its scheme: the rest may hold a
password.

Source: design page "the public face" (`strandline.open`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from strandline.controller.location.paths import path_of
from strandline.errors import ConfigError
from strandline.options import is_reference, refusal_of_secrets, resolve_reference, understood
from strandline.store.blob_kinds.objects import ObjectLocation, StorageOptions
from strandline.store.consensus_kinds.postgres import SCHEMA_DEFAULT
from strandline.store.secret import Secret

OBJECT_STORE: Final = "object-store"
CONSENSUS_FILE: Final = "consensus.db"
"""Of a location in files for which nothing else is said."""
_HOST: Final = re.compile(r"(?:\[[^\[\]]*\]|[^:\[\]]*)(?::\d*)?")


@dataclass(frozen=True, slots=True)
class InMemory:
    """Parts in a temporary directory, states in memory: all of it goes with the environment."""


@dataclass(frozen=True, slots=True)
class InFiles:
    """A directory of this machine, or of a file system that all machines share."""

    root: Path


Location: TypeAlias = InMemory | InFiles | ObjectLocation


@dataclass(frozen=True, slots=True)
class InSQLite:
    """A database file."""

    path: Path


@dataclass(frozen=True, slots=True)
class InPostgres:
    """A schema of a database.  ``url`` may hold a password; ``server`` is what of it may be shown."""

    url: Secret
    server: str
    schema: str


@dataclass(frozen=True, slots=True)
class InObjectStore:
    """Beside the location's own objects."""


ConsensusPlace: TypeAlias = InMemory | InSQLite | InPostgres | InObjectStore


def location_of(text: str, storage: Mapping[str, str]) -> Location:
    """Return what a location's text means; ``storage`` are an object store's options, references and all.

    >>> location_of("memory://", {}), location_of("file:///data/strand", {})
    (InMemory(), InFiles(root=PosixPath('/data/strand')))
    >>> location_of("s3://bucket/prefix", {"region": "eu-west-1"})
    ObjectLocation('s3://bucket/prefix', options: region)

    Raises `ConfigError`: the kind is not known, or something secret stands where it can be read.
    """
    scheme, place = _split(text, "location")
    if scheme == "s3":
        if "@" in place.netloc or place.query or place.fragment:
            raise ConfigError("location s3://…: it is a bucket and a prefix, nothing else; options go to `storage`")
        return ObjectLocation(f"s3://{place.netloc}{place.path.rstrip('/')}", _resolved(storage))
    if storage:
        raise ConfigError(f"`storage` configures an object store, and the location is of kind {scheme or 'file'!r}")
    match scheme:
        case "memory":
            return InMemory()
        case "file" | "":
            return InFiles((path_of(text) if scheme else Path(text)).absolute())
        case _:
            raise ConfigError(f"a location is file://…, memory:// or s3://bucket/prefix, and none of kind {scheme!r}")


def consensus_of(text: str | None, location: Location) -> ConsensusPlace:
    """Return what a consensus' text means, and without one what goes with the location.

    >>> consensus_of(None, InFiles(Path("/data"))), consensus_of("sqlite:///other.db", InMemory())
    (InSQLite(path=PosixPath('/data/consensus.db')), InSQLite(path=PosixPath('/other.db')))
    >>> consensus_of("postgresql://ann:pw@host/db?schema=strand", InMemory())
    InPostgres(url=Secret(•••), server='host/db', schema='strand')

    Raises `ConfigError`: the kind is not known, or does not go with the location.
    """
    if text is None:
        match location:
            case InMemory():
                return location
            case InFiles(root):
                return InSQLite(root / CONSENSUS_FILE)
            case ObjectLocation():
                return InObjectStore()
    text = resolve_reference(text, base=Path())
    if text == OBJECT_STORE:
        if not isinstance(location, ObjectLocation):
            raise ConfigError(
                "consensus 'object-store' needs a location in an object store, such as s3://bucket/prefix"
            )
        return InObjectStore()
    scheme, place = _split(text, "consensus")
    match scheme:
        case "sqlite":
            return InSQLite(path_of(text))
        case "postgresql" | "postgres":
            options = dict(parse_qsl(place.query, keep_blank_values=True))
            _refuse_bare_signs(place, options)
            schema = options.pop("schema", SCHEMA_DEFAULT)
            server = f"{place.netloc.rpartition('@')[2] or 'local'}{place.path}"
            return InPostgres(Secret(place._replace(query=urlencode(options)).geturl()), server, schema)
        case _:
            raise ConfigError(
                f"consensus is sqlite:///path/to/file.db, postgresql://… or object-store, and none of kind {scheme!r}"
            )


def told(location: Location) -> str:
    """Return what to call a location in a message.

    >>> told(InFiles(Path("/data"))), told(ObjectLocation("s3://bucket/prefix", {"session_token": "t"}))
    ('/data', 's3://bucket/prefix')
    """
    match location:
        case InMemory():
            return "memory://"
        case InFiles(root):
            return str(root)
        case ObjectLocation(url):
            return url


def consensus_told(place: ConsensusPlace, location: Location) -> str:
    """Return what to call a consensus in a message: its kind and where it is, without users and passwords.

    >>> consensus_told(consensus_of("postgresql://ann:pw@db:5432/shop?schema=s&password=pw", InMemory()), InMemory())
    'PostgreSQL (db:5432/shop, schema s)'
    >>> consensus_told(InSQLite(Path("/data/consensus.db")), InFiles(Path("/data")))
    'consensus.db (SQLite, inside the location)'
    """
    match place:
        case InMemory():
            return "memory"
        case InSQLite(path) if isinstance(location, InFiles) and path == location.root / CONSENSUS_FILE:
            return f"{CONSENSUS_FILE} (SQLite, inside the location)"
        case InSQLite(path):
            return f"sqlite://{path}"
        case InPostgres(_, server, schema):
            return f"PostgreSQL ({server}, schema {schema})"
        case InObjectStore():
            return f"{OBJECT_STORE} (inside the location)"


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


def _split(text: str, what: str) -> tuple[str, SplitResult]:
    try:
        place = urlsplit(text)
    except ValueError:
        raise ConfigError(f"the {what} is not a URL that can be read (it is not shown here)") from None
    return place.scheme, place


def _resolved(storage: Mapping[str, str]) -> dict[str, str | Secret]:
    """Return an object store's options; what a reference stands for is a secret, whatever its name."""
    if refusal := refusal_of_secrets(storage):
        raise ConfigError(f"storage: {refusal}")
    understood("storage", StorageOptions, storage, error=ConfigError)
    return {
        name: Secret(resolve_reference(value, base=Path())) if is_reference(value) else value
        for name, value in storage.items()
    }
