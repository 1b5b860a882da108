"""Notices apart from problems and waits, and those that an operator has acknowledged, which are shown no longer.

A message about an item is exactly one of three.  A *problem* stops the item until its operator acts, or another system
answers again.  A *wait* ends by itself: its sentence begins with `errors.WAITS`, and says for what.  A *notice* stops
nothing.  The process that meets something says it in a sentence; `states` parts these for all that show them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import Item, Kept
from strandline.errors import ConfigError, CorruptionError, StoreError, Unavailable, is_wait
from strandline.persist.handles.register import Register, decode_json
from strandline.problem import cases_of
from strandline.store.clock import Clock, Ids
from strandline.store.protocols import Consensus


@dataclass(frozen=True, slots=True)
class States:
    """What is said of items, by their names; an item of which nothing is said is in none."""

    problems: dict[str, str]
    waiting: dict[str, str]
    notices: dict[str, list[str]]


def states(
    problems: Mapping[str, str],
    notices: Mapping[str, Sequence[str]],
    seen: Callable[[str, str], bool] = lambda _, __: False,
) -> States:
    """Return what was met, by what it is: ``problems``: why items are behind; ``notices``: what else was said of them.

    ``seen``: whether a notice of an item, by its name, is acknowledged; it is left out.

    >>> found = states({"v": "it waits for 's'", "s": "no answer"}, {"m": ["it waits for noon"], "t": ["a new column"]})
    >>> found.problems, found.waiting, found.notices
    ({'s': 'no answer'}, {'v': "it waits for 's'", 'm': 'it waits for noon'}, {'t': ['a new column']})
    """
    waits = {name: [why] for name, why in problems.items() if is_wait(why)}
    for name, said in notices.items():
        if found := [each for each in said if is_wait(each)]:
            waits.setdefault(name, []).extend(found)
    told = {name: [each for each in said if not seen(name, each)] for name, said in without_waits(notices).items()}
    return States(
        {name: why for name, why in problems.items() if not is_wait(why)},
        {name: "; ".join(each) for name, each in waits.items()},
        {name: said for name, said in told.items() if said},
    )


def without_waits(notices: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the notices among what else was said of items, by their names."""
    told = {name: [each for each in said if not is_wait(each)] for name, said in notices.items()}
    return {name: said for name, said in told.items() if said}


KEY: Final = "acknowledged"
FORMAT: Final = 1


class Notice(msgspec.Struct, frozen=True, order=True):
    """What a notice is known by: the names of what is declared, and what these name; else its text.

    >>> Notice.of("a new column")
    Notice(kind='a new column', about=())
    """

    kind: str
    about: tuple[str, ...] = ()

    @classmethod
    def of(cls, said: str) -> Notice:
        """Return what the notice ``said`` is known by; where its cases are not known, that is its text."""
        cases = cases_of(said)
        if not cases:
            return cls(str(said))
        return cls("; ".join(each.name or each.cause for each in cases), tuple(a for each in cases for a in each.about))


class _Stored(msgspec.Struct, frozen=True):
    """What is acknowledged, by the shard of the item."""

    format: int = FORMAT
    notices: dict[str, list[Notice]] = {}


class Acknowledged:
    """What is acknowledged, as it is durable, and as this process has read it last.

    A notice is known by what it is and what it names (`Notice`), so it stays acknowledged while a figure in its text
    changes.  It is shown again once the same kind of thing happens anew: with other names, or after it was over.  It is
    over if the process that writes has reported it and no longer reports anything of its kind, while the item goes on
    as it was.  A notice that is absent for another reason, as after a restart or while the item has a problem, may come
    back, and is acknowledged then too.

    Acknowledged notices are a value of the location, by the item's shard: an item that is dropped and created again
    under its name is another item.  Any process may acknowledge; the process that writes reads them at each tick at
    which there are notices.
    """

    def __init__(self, clock: Clock, ids: Ids, consensus: Consensus) -> None:
        self._register = Register(KEY, clock, ids, consensus)
        self._known: Mapping[str, AbstractSet[Notice]] = {}
        self._said: Mapping[str, tuple[Item, AbstractSet[str]]] = {}  # the kinds that were said at the last tick
        self._over: set[tuple[str, Notice]] = set()  # what is over, and still kept

    async def read(self) -> None:
        """Read what is durable; what this version cannot read acknowledges nothing.  Raises what a store raises."""
        try:
            self._known = _decode(await self._register.read())
        except (ConfigError, CorruptionError):
            self._known = {}

    def seen(self, item: Item | None, said: str) -> bool:
        """Return whether a notice of ``item`` is acknowledged, as far as this process has read."""
        there = self._known.get(_id(item), frozenset())
        # A process that received the text alone has acknowledged the text.
        return bool(there) and (Notice.of(said) in there or Notice(str(said)) in there)

    async def add(self, catalog: Catalog, notices: Mapping[str, Sequence[str]]) -> None:
        """Acknowledge ``notices``, by the item's name; forget those of items that are not in ``catalog``.

        Raises what a store raises; `ConfigError` if a newer version has written them, and `CorruptionError` if they are
        damaged: they stay as they are.
        """
        new = {_id(catalog.find(name)): {Notice.of(each) for each in said} for name, said in notices.items()}
        there = {_id(item) for item in catalog.items.values()}

        def step(body: bytes | None) -> bytes | None:
            known = _decode(body)
            if all(said <= known.get(each, frozenset()) for each, said in new.items()):
                return None
            return _encode(
                {
                    each: known.get(each, frozenset()) | new.get(each, set())
                    for each in sorted({*known, *new})
                    if each in there
                }
            )

        self._over -= {(each, one) for each, said in new.items() for one in said}
        self._known = _decode(await self._register.update(step))

    async def follow(self, catalog: Catalog, notices: Mapping[str, Sequence[str]], stopped: AbstractSet[str]) -> None:
        """Learn at a tick what others have acknowledged, and forget what is over; ``stopped``: what has a problem.

        No store is asked while there is no notice.  If it does not answer, or what it has cannot be
        read, the next tick asks again.
        """
        said = {
            name: (item, frozenset(Notice.of(each).kind for each in told))
            for name, told in without_waits(notices).items()
            if name not in stopped and (item := catalog.find(name)) is not None
        }
        gone = {
            _id(item): kinds - said.get(name, (item, frozenset()))[1]
            for name, (item, kinds) in self._said.items()
            if name not in stopped and catalog.find(name) == item
        }
        self._said = said
        with suppress(StoreError, Unavailable, ConfigError, CorruptionError):
            if said or self._over or any(gone.values()):
                await self.read()
                self._over |= {
                    (each, one)
                    for each, kinds in gone.items()
                    for one in self._known.get(each, ())
                    if one.kind in kinds
                }
            if self._over:
                await self._forget()

    async def _forget(self) -> None:
        def step(body: bytes | None) -> bytes | None:
            known = _decode(body)
            kept = {each: {one for one in all_of if (each, one) not in self._over} for each, all_of in known.items()}
            return None if kept == known else _encode(kept)

        self._known = _decode(await self._register.update(step))
        self._over.clear()


def _id(item: Item | None) -> str:
    """Return what an item is kept by; empty: it says no notices."""
    return item.shards[0] if isinstance(item, Kept) else ""


def _encode(known: Mapping[str, AbstractSet[Notice]]) -> bytes:
    kept = {each: sorted(notices) for each, notices in sorted(known.items()) if each and notices}
    return msgspec.json.encode(_Stored(notices=kept))


def _decode(body: bytes | None) -> dict[str, AbstractSet[Notice]]:
    kept = _Stored() if body is None else decode_json("what is acknowledged", body, _decoder, FORMAT)
    return {each: frozenset(notices) for each, notices in kept.notices.items()}


_decoder: Final = msgspec.json.Decoder(_Stored)
