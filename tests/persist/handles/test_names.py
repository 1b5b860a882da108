"""Names: one shard for one name, for concurrent processes too; another one after a drop."""

from __future__ import annotations

import pytest

from strandline.errors import ConfigError, CorruptionError, Indeterminate, InvalidUsage
from strandline.persist.handles.register import KEY, OWNERS, RETRIES_MAX, Named, Names, Register
from strandline.persist.together import transactions, unsealed
from strandline.store.unreliable import Outcome
from strandline.testing.doubles import CountingIds
from strandline.testing.simulation.kernel import run_sync

STRANGE = ["", ".", "..", "a/b", "A", "a", "naïve ☃", "x" * 5000, "\n\x00", "' OR 1=1 --", "a\u0300"]


def names(place, owner="a"):
    """A process's names."""
    ids = CountingIds(owner)
    return Names(Register(KEY, place.clock, ids, place.consensus), ids)


def create(place, name, owner="a", codec="rows", schema="a int"):
    """Create or load a name, in a process of its own."""
    return run_sync(names(place, owner).create_or_load(name, codec=codec, schema=schema))


def test_a_name_means_one_shard_for_everybody(place):
    """Damage: two processes write to two different collections under one name."""
    first = create(place, "flights")
    assert create(place, "flights", "b") == first
    assert create(place, "airlines", "b").shard != first.shard
    assert list(run_sync(names(place).all())) == ["airlines", "flights"]


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.LOST, Outcome.DONE_UNREPORTED, Outcome.LATE])
def test_two_processes_that_create_a_name_at_once_get_one_shard(place, outcome):
    """Damage: the loser of the race writes to a shard that no reader reads."""
    place.plan.append(outcome)
    other = []

    async def race():
        other.append(await names(place, "b").create_or_load("n", codec="rows", schema="a int"))

    place.clock.meanwhile.append(race)
    mine = create(place, "n")
    run_sync(place.consensus.land())
    assert create(place, "n", "c") == mine
    assert all(each == mine for each in other)


def test_a_name_whose_creation_is_in_doubt_is_found_or_created_by_the_retry(place):
    """Damage: after an error a name means nothing for ever, or two things."""
    place.plan.extend([Outcome.LATE, *[Outcome.LOST] * (RETRIES_MAX - 1)])
    with pytest.raises(Indeterminate):
        create(place, "n")
    run_sync(place.consensus.land())
    assert create(place, "n", "b") == Named("s-a-0", "rows", "a int")


def test_a_dropped_name_gets_another_shard(place):
    """Damage: a new collection begins with the rows of the old one."""
    first = create(place, "n")
    run_sync(names(place, "b").drop("n", first, closed=True))
    run_sync(names(place, "b").drop("n", first, closed=True))
    assert create(place, "n", "c").shard != first.shard


def test_a_name_that_was_created_anew_after_a_drop_stays(place):
    """Damage: a slow drop of the old collection takes the name from the new one, whose rows are lost."""
    first = create(place, "n")
    run_sync(names(place, "b").drop("n", first, closed=True))
    second = create(place, "n", "c")
    run_sync(names(place, "d").drop("n", first, closed=True))
    assert create(place, "n", "e") == second


@pytest.mark.parametrize("other", [{"codec": "json"}, {"schema": "b string"}])
def test_a_name_is_not_opened_as_something_else(place, other):
    """Damage: bytes of one codec are read as another's."""
    create(place, "n")
    with pytest.raises(InvalidUsage, match="'n' holds 'a int' in codec 'rows'"):
        create(place, "n", **other)


def test_any_text_is_a_name_and_no_two_are_taken_for_one(place):
    """Damage: a name escapes its directory, or two names share a shard."""
    found = {name: create(place, name, f"p{n}") for n, name in enumerate(STRANGE)}
    assert len({each.shard for each in found.values()}) == len(STRANGE)
    assert {name: create(place, name, "b") for name in STRANGE} == found


def test_names_of_a_version_that_we_do_not_know_are_refused(place):
    """Damage: unreadable names count as no names, and everything is created anew."""
    register = Register(KEY, place.clock, CountingIds("x"), place.consensus)
    run_sync(register.update(lambda _: b'{"names": [1]}'))
    with pytest.raises(CorruptionError, match="names cannot be read"):
        create(place, "n")


def test_names_of_a_newer_format_are_neither_read_nor_written_back(place):
    """Damage: an older version beside a newer one drops fields of a name that only the newer one knows."""
    register = Register(KEY, place.clock, CountingIds("x"), place.consensus)
    body = b'{"format": 2, "names": {"m": {"shard": "s1", "codec": "rows", "schema": "a int", "kept_by": "new"}}}'
    run_sync(register.update(lambda _: body))
    with pytest.raises(ConfigError, match="names are kept in format 2"):
        create(place, "n")
    assert run_sync(register.read()) == body


def test_owners_of_named_shards_are_those_that_name_shards():
    """Damage: a merge does not look up the codec of a shard, and merges its values as rows."""
    assert {unsealed.OWNER, transactions.MULTI} == OWNERS


def test_a_shard_that_was_dropped_and_not_closed_is_listed_until_it_is_closed(place):
    """Damage: a process that dies during a drop leaves a shard that no command finds."""
    of = names(place, "a")
    first = run_sync(of.create_or_load("n", codec="text", schema=""))
    run_sync(names(place, "b").drop("n", first, closed=False))
    again = run_sync(of.create_or_load("n", codec="text", schema=""))
    assert run_sync(of.dropped()) == {first.shard}
    run_sync(names(place, "c").closed(first.shard))
    run_sync(names(place, "c").closed(first.shard))
    assert run_sync(of.dropped()) == frozenset()
    assert run_sync(of.all()) == {"n": again}
