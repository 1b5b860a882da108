"""A location opened by one of Spark's processes: its options, stores and catalog, and handles of its collections.

No JVM of ours runs there.  Such a process writes only holds: a frame's lease, a stream's hold.

Options hold no secret: Spark shows them, and keeps them in its plans and logs.  A secret is a reference (``env:NAME``,
``file:PATH``), which each process that opens the location resolves for itself.
"""

from __future__ import annotations

import re
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from strandline.controller.location.catalog import KEY, Catalog, CatalogStore
from strandline.controller.location.items import Collected
from strandline.controller.readers import leased, plain
from strandline.datasource.rows.scan import HereReader
from strandline.errors import ConfigError, InvalidUsage
from strandline.instance.instance import unopened
from strandline.options import COUNT, FLAG, PLACE, TEXT, holds_secret, option, refusal_of_secrets, understood
from strandline.persist.client import PersistClient
from strandline.persist.handles.read import ReadHandle
from strandline.persist.handles.register import Register
from strandline.wiring.loop import LoopThread
from strandline.wiring.stores import Stores, stores

FORMAT: Final = "strandline"
"""The name by which Spark finds the source."""
STORAGE: Final = "storage."
"""How the options of an object store begin; the rest is as in a project's ``storage``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `spark.read` and `spark.readStream` take, beside ``storage.…``; Spark compares names without case."""

    location: str = option(TEXT, "Where the collections are kept, as in `strandline.open`.")
    consensus: str | None = option(
        PLACE, "The location's consensus, as in `strandline.open`; with a password only as `env:NAME`.", default=None
    )
    collection: str | None = option(TEXT, "The table, source or view to read.", default=None)
    columns: str | None = option(
        TEXT, "The columns to read, separated by commas; without it all of them.", default=None
    )
    where: str | None = option(
        TEXT,
        "Which rows to read: columns compared with literals, with AND, OR and NOT; without it all of them.",
        default=None,
    )
    asof: int | None = option(COUNT, "The time to read at; without it the newest complete time.", default=None)
    changes: bool = option(FLAG, "Read updates, with `__time` and `__diff`; a stream always does.", default="false")
    lower: int | None = option(COUNT, "Changes from this time on; without it from since.", default=None)
    upper: int | None = option(COUNT, "Changes before this time; without it all that is complete.", default=None)
    startingtime: int | None = option(
        COUNT, "The time of the snapshot that a stream begins with; without it the newest complete time.", default=None
    )
    stream: bool = option(FLAG, "Set by `register`: what is loaded is a stream.", default="false")
    lease: str | None = option(TEXT, "Set by `register`: the name of the frame's hold.", default=None)
    pinning: bool = option(FLAG, "Set by `register`: the frame's times are read, and no row.", default="false")
    listing: bool = option(
        FLAG, "Set by `register`: the collections' names are read, and no collection.", default="false"
    )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a location's stores are; every secret in it is a reference."""

    location: str
    consensus: str | None
    storage: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a reader is asked for, and where."""

    place: Place
    options: Options

    @property
    def collection(self) -> str:
        """The name of the collection, which every read but that of the names has."""
        assert self.options.collection is not None, "`asked` refuses a read without one"
        return self.options.collection

    @property
    def names(self) -> tuple[str, ...] | None:
        """The columns that are asked for; None: all of them.

        A name in backquotes is taken as it is, with a backquote in it doubled; any other one ends at the next comma.
        """
        wanted = self.options.columns
        return None if wanted is None else tuple(_named(wanted))


_NAMED: Final = re.compile(r"\s*(?:`((?:[^`]|``)*)`\s*|([^,]*))(?:,|$)")


def _named(wanted: str) -> Iterator[str]:
    """Yield the names in a list.

    >>> list(_named("a b, `c,``d`,`` "))
    ['a b', 'c,`d', '']
    """
    at = 0
    while at < len(wanted):
        found = _NAMED.match(wanted, at)
        assert found is not None, "the second way takes whatever is there"
        yield found[2].strip() if found[1] is None else found[1].replace("``", "`")
        at = found.end()


def asked(texts: Mapping[str, str]) -> Asked:
    """Return what Spark's options ask for.

    >>> asked({"Location": "/data", "collection": "v", "storage.region": "eu"}).place
    Place(location='/data', consensus=None, storage=(('region', 'eu'),))

    Raises:
        InvalidUsage: an option is unknown or missing, has no such value, or does not go with another one.
        ConfigError: one holds a secret itself.
    """
    lowered = {name.lower(): text for name, text in texts.items()}
    storage = {name.removeprefix(STORAGE): text for name, text in lowered.items() if name.startswith(STORAGE)}
    own = {name: text for name, text in lowered.items() if not name.startswith(STORAGE)}
    if "consensus" in own and holds_secret("consensus", own["consensus"]):
        raise ConfigError(
            "option consensus holds a login, and Spark shows options: say where it is (env:NAME or file:PATH)"
        )
    if refusal := refusal_of_secrets(storage):
        raise ConfigError(f"storage: {refusal}")
    found = understood(FORMAT, Options, own, error=InvalidUsage)
    if found.collection is None and not found.listing:
        raise InvalidUsage(f"{FORMAT}: option 'collection' is missing: it names the table, source or view to read")
    _refuse_contradictions(found)
    return Asked(Place(found.location, found.consensus, tuple(sorted(storage.items()))), found)


def refuse_in_stream(found: Options) -> None:
    """Raise `InvalidUsage` if an option is there that only a frame has."""
    for name, value in (("asOf", found.asof), ("lower", found.lower), ("upper", found.upper)):
        if value is not None:
            raise InvalidUsage(f"{FORMAT}: {name} is of a frame; a stream begins at startingTime and has no end")
    if found.where is not None:
        raise InvalidUsage(f"{FORMAT}: where is of a frame: choose a stream's rows by the frame's own .where(…)")


def _refuse_contradictions(found: Options) -> None:
    if found.stream:
        refuse_in_stream(found)
        return
    if found.changes and found.asof is not None:
        raise InvalidUsage(
            f"{FORMAT}: asOf is a time to read rows at, and changes have times of their own: leave one out"
        )
    if not found.changes and (found.lower is not None or found.upper is not None):
        raise InvalidUsage(f"{FORMAT}: lower and upper are bounds of changes: add option changes, or leave them out")
    if found.lower is not None and found.upper is not None and found.lower > found.upper:
        raise InvalidUsage(f"lower ({found.lower}) is after upper ({found.upper})")


T = TypeVar("T")
EPOCH: Final = 1
"""Of every hold of a stream: its name is in one checkpoint alone, so every reader of that checkpoint may move it."""


@dataclass(frozen=True, slots=True)
class Door:
    """An open location, for plain calls."""

    stores: Stores
    client: PersistClient
    _loop: LoopThread

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Return what ``call`` returns, or raise what it raises."""
        return self._loop.run(call)

    @property
    def counting(self) -> HereReader:
        """What counts errors."""
        return HereReader(self.stores.parts)

    async def catalog(self) -> Catalog:
        """Return the newest catalog.  Raises `ConfigError` if no environment was ever opened there."""
        have = self.stores
        catalog = await CatalogStore(Register(KEY, have.clock, have.ids, have.consensus)).read()
        if not catalog.epoch:
            raise ConfigError(f"nothing was stored at location {have.location!r} yet; open it for writing to make one")
        return catalog

    async def leased(self, item: Collected, lease: str) -> ReadHandle:
        """Return a handle under ``lease``, which may be another process's.  Raises `Unavailable`."""
        return _there(await leased(self.client, item, item.keep_history or "", lease), item)

    async def plain(self, item: Collected) -> ReadHandle:
        """Return a handle that holds nothing.  Raises `Unavailable`."""
        return _there(await plain(self.client, item, item.keep_history or ""), item)


@contextmanager
def opened(place: Place) -> Iterator[Door]:
    """Open a location that another process writes.

    Raises `ConfigError`, one sentence: it is not there, or cannot be used; `Unavailable`: a store does not answer.
    """
    with ExitStack() as opened:
        have = stores(place.location, place.consensus, dict(place.storage), opened)
        loop = LoopThread()
        opened.callback(loop.stop)
        yield Door(have, PersistClient(have.clock, have.ids, have.blob, have.consensus, grace_ms=None), loop)


def _there(handle: ReadHandle | None, item: Collected) -> ReadHandle:
    if handle is None:
        raise unopened(item.name)
    return handle
