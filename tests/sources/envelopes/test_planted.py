"""Planted mistakes in what keyed records come to: the comparison with what the messages say must notice each."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
from msgspec.structs import replace
from tests.sources.envelopes.test_keyed import Place, meaning

from strandline.algebra.messages import GONE, ORDER
from strandline.algebra.schema import TIME
from strandline.sources import envelopes
from strandline.sources.envelopes import NewestByKey
from strandline.testing.lists import list_engine
from strandline.testing.lists.list_engine import ListEngine
from strandline.testing.upstreams.keyed_log import Said

Plant = Callable[[pytest.MonkeyPatch], None]
HISTORIES: Final = 12
KEYS: Final = ((1, "a"), (1, None), (2, "a"))


def _changed(sabotage: Callable[..., Sequence[Any]]) -> Plant:
    """Let the engine be given other records, rows or errors than there are."""
    right = list_engine.changed

    def changed(records: Any, held: Any, errors: Any, names: Any, key: Any) -> Any:
        return right(*sabotage(list(records), held, errors), names, key)

    return lambda patch: patch.setattr(list_engine, "changed", changed)


def _first_counts(records: list[Any], held: Any, errors: Any) -> Sequence[Any]:
    return [{**record, ORDER: -record[ORDER]} for record in records], held, errors


def _as_they_came(records: list[Any], held: Any, errors: Any) -> Sequence[Any]:
    return [{**record, ORDER: at} for at, record in enumerate(sorted(records, key=repr))], held, errors


def _at_one_time(records: list[Any], held: Any, errors: Any) -> Sequence[Any]:
    latest = max((record[TIME] for record in records), default=0)
    return [{**record, TIME: latest} for record in records], held, errors


def _deletion_passed_over(records: list[Any], held: Any, errors: Any) -> Sequence[Any]:
    return [record for record in records if not record[GONE]], held, errors


def _kept_of_what_was_held(patch: pytest.MonkeyPatch) -> None:
    """Take what upstream left out from before the step, though a record of the step has said it anew."""
    after, changed = envelopes._after, list_engine.changed
    held: dict[str, Any] = {}

    def step(*given: Any) -> Any:
        held.clear()
        return changed(*given)

    def wrong(record: Any, before: Any, names: Any, key: Any) -> Any:
        own = held.setdefault(repr([record[name] for name in key]), before)
        return after(record, own if before and own else before, names, key)

    patch.setattr(list_engine, "changed", step)
    patch.setattr(envelopes, "_after", wrong)


async def _nothing(*_: Any) -> None:
    return None


def _null_equals_nothing(patch: pytest.MonkeyPatch) -> None:
    right = ListEngine.lookup

    async def lookup(self: Any, old: Any, columns: Any, keys: Any, **more: Any) -> Any:
        return await right(self, old, columns, keys, **(more | {"nulls": False}))

    patch.setattr(ListEngine, "lookup", lookup)


def _half_of_the_key(patch: pytest.MonkeyPatch) -> None:
    """Take the rows of a key for those of its first column."""
    made = NewestByKey.__init__

    def init(self: Any, schema: Any, key: Any, *rest: Any) -> None:
        made(self, schema, key[:1], *rest)

    patch.setattr(NewestByKey, "__init__", init)


def _looks_at_now(patch: pytest.MonkeyPatch) -> None:
    """See what is held without its last batch, as one that refreshed too early would."""
    right = NewestByKey._of_keys

    async def of_keys(self: Any, before: Any, rows: Any) -> Any:
        return await right(self, replace(before, batches=before.batches[:-1]), rows)

    patch.setattr(NewestByKey, "_of_keys", of_keys)


DEFECTS: Final[dict[str, Plant]] = {
    "the first record of a time counts": _changed(_first_counts),
    "the last record is the last in the frame": _changed(_as_they_came),
    "the held row is not withdrawn": lambda patch: patch.setattr(NewestByKey, "_of_keys", _nothing),
    "a key with a NULL is not found": _null_equals_nothing,
    "only half of the key is compared": _half_of_the_key,
    "what stays as it was is taken from before the step": _kept_of_what_was_held,
    "an error is not withdrawn": lambda patch: patch.setattr(NewestByKey, "_errors", _nothing),
    "two times in one step are one": _changed(_at_one_time),
    "a deletion is passed over": _changed(_deletion_passed_over),
    "the newest batch is not looked at": _looks_at_now,
}


def story(seed: int) -> list[list[Said]]:
    """Return random messages, by the tick that they come before."""
    chance = random.Random(seed)

    def said() -> Said:
        key, v = chance.choice(KEYS), chance.choice("xyz")
        kind = chance.randint(0, 7)
        if kind == 7:
            return Said(None)
        note = None if kind == 3 else chance.choice(("long", "other"))
        return Said(key, v, note, gone=kind == 1, bad=kind == 2, same=kind == 3)

    return [[said() for _ in range(chance.randint(0, 5))] for _ in range(5)]


def differs(seed: int) -> bool:
    """Tell whether some time holds something else than the messages say; steps take one binding, or two."""
    history = story(seed)

    async def body() -> bool:
        place = Place()
        ingestion = await place.open()
        for time, messages in enumerate(history, start=1):
            place.upstream.say(*messages)
            await place.tick(ingestion, 1000 * time, step=(time + seed) % 2 == 0)
        await ingestion.catch_up("")
        for time in range(1, len(history) + 1):
            rows, errors = await place.at(1000 * time)
            if (rows, errors.total()) != meaning([said for messages in history[:time] for said in messages]):
                return True
        return False

    try:
        return asyncio.run(body())
    except AssertionError:
        return True  # a negative count


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the laws of the envelope pass though it breaks them."""
    DEFECTS[name](monkeypatch)
    assert any(map(differs, range(HISTORIES)))


def test_without_a_defect_nothing_is_noticed() -> None:
    """Damage: whatever is planted would seem to be found."""
    assert not any(map(differs, range(HISTORIES)))
