"""Locations: where parts and states may be, an entry for each kind.

    file:///data/strand or a path · memory:// · s3://bucket/prefix

A text says *where*; what is secret, and how to reach an object store, is said by configuration (``storage``), where a
secret is a reference.  No error shows more of a text than its scheme: the rest may hold a password.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Protocol
from urllib.parse import SplitResult, urlsplit

from strandline.connections.addresses import Address, of_url
from strandline.controller.location.config import Mode
from strandline.controller.location.paths import path_of
from strandline.errors import ConfigError, NothingStored
from strandline.extras import S3, require
from strandline.options import is_reference, refusal_of_secrets, resolve_reference, understood
from strandline.store.blob import Blob
from strandline.store.blob_kinds.file import FileBlob
from strandline.store.blob_kinds.object_location import ObjectLocation, StorageOptions
from strandline.store.secret import Secret
from strandline.store.system import SystemClock

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


KINDS: Final[Mapping[str, type[Location]]] = {"file": InFiles, "": InFiles, "memory": InMemory, "s3": InBucket}
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
    if place.scheme not in KINDS:
        forms = " or ".join(dict.fromkeys(kind.form for kind in KINDS.values()))
        raise ConfigError(f"a location is {forms}, and none of kind {place.scheme!r}")
    kind = KINDS[place.scheme]
    if storage and kind.options is None:
        raise ConfigError(f"`storage` configures an object store, and the location is {kind.form}")
    return kind.read(text, place, storage)


def split(text: str, what: str) -> SplitResult:
    """Return the parts of a URL.  Raises `ConfigError`, which does not show it."""
    try:
        return urlsplit(text)
    except ValueError:
        raise ConfigError(f"the {what} is not a URL that can be read (it is not shown here)") from None
