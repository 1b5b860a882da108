"""Damaged objects are refused by name, never read: every bit, every length, every exchange.

One object of each sealed kind that persist writes: a diff, a diff with an inline part, a rollup, a part of records, a
register's value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from strandline.errors import CorruptionError
from strandline.frontier import Frontier
from strandline.persist.handles.records import Record
from strandline.persist.handles.register import Register
from strandline.persist.shard.batch import INLINE_PART_BYTES_MAX
from strandline.store.protocols import Versioned
from strandline.store.seal import SEAL_BYTES
from strandline.testing.doubles import CountingIds
from strandline.testing.simulation.kernel import run_sync

pytestmark = pytest.mark.fuzz

BITS_MAX = 20_000
"""Of larger objects every n-th bit is flipped; of the seal and the last bytes, all."""


@dataclass
class Target:
    """An object: its bytes, how to replace them, and how to read it."""

    name: str
    data: bytes
    put: Callable[[bytes], None]
    read: Callable[[], object]


def targets(place):
    """One object of each kind, and a second one of the same kind: ``{kind: (target, other bytes, older bytes)}``."""
    client = place.client(rollup_every=3)
    log = run_sync(client.records("log", 1))
    big = b"x" * (INLINE_PART_BYTES_MAX + 1)
    for at, data in enumerate((b"small", big, big + b"y", b"last")):
        run_sync(log.append([Record(data, at, 1)], Frontier(at), Frontier(at + 1)))
    register = Register("catalog", place.clock, CountingIds(), place.consensus)
    for word in (b"older", b"newer"):
        run_sync(register.update(lambda _, word=word: word))
    run_sync(Register("other", place.clock, CountingIds("o"), place.consensus).update(lambda _: b"foreign"))
    run_sync(place.client().records("twin", 1))
    versions, objects = place.versions, place.objects

    def fresh():
        return run_sync(run_sync(place.client().records("log", 1)).contents())

    def version(key, index, read):
        held = versions[key]
        seqno = held[index].seqno

        def put(data):
            held[index] = Versioned(seqno, data)

        return Target(f"{key}/{seqno}", held[index].data, put, read)

    def stored(key, read):
        return Target(key, objects[key], lambda data: objects.__setitem__(key, data), read)

    inline = next(i for i, v in enumerate(versions["log"]) if b"last" in v.data)
    small = next(i for i, v in enumerate(versions["log"]) if b"small" in v.data)
    parts = sorted(key for key in objects if key.startswith("log/parts/"))
    rollups = [r.key for r in log.state.rollups]
    return {
        "diff": (version("log", -1, fresh), versions["twin"][-1].data, versions["log"][-2].data),
        "inline": (version("log", inline, fresh), versions["twin"][-1].data, versions["log"][small].data),
        "rollup": (
            stored(rollups[-1], fresh),
            objects[next(k for k in objects if k.startswith("twin/"))],
            objects[rollups[0]],
        ),
        "records": (stored(parts[0], fresh), objects[parts[1]], objects[parts[1]]),
        "register": (
            version("catalog", -1, lambda: run_sync(register.read())),
            versions["other"][-1].data,
            versions["catalog"][0].data,
        ),
    }


KINDS = ("diff", "inline", "rollup", "records", "register")


@pytest.fixture(params=KINDS)
def aimed(place, request):
    """One kind after the other."""
    return targets(place)[request.param]


def is_refused(target, data):
    """Replace the object by ``data``; return whether reading raises `CorruptionError` that names the object."""
    target.put(data)
    try:
        target.read()
    except CorruptionError as error:
        return target.name in str(error)
    finally:
        target.put(target.data)
    return False


def bits(data):
    """Which bits to flip."""
    count = len(data) * 8
    edge = SEAL_BYTES * 8 + 256
    step = max(1, count // BITS_MAX)
    return sorted({*range(min(edge, count)), *range(max(0, count - 256), count), *range(0, count, step)})


def test_what_is_not_damaged_is_read(aimed):
    """Damage: the tests below prove nothing, since everything is refused."""
    target, _, _ = aimed
    assert target.read()


def test_every_flipped_bit_is_refused(aimed):
    """Damage: a disk that rots gives wrong rows, or a wrong upper, to every reader."""
    target, _, _ = aimed
    assert target.data, "nothing would be flipped"
    wrong = []
    for bit in bits(target.data):
        flipped = bytearray(target.data)
        flipped[bit // 8] ^= 1 << (bit % 8)
        if not is_refused(target, bytes(flipped)):
            wrong.append(bit)
    assert wrong == []


def test_every_truncation_is_refused(aimed):
    """Damage: a torn write is an older truth."""
    target, _, _ = aimed
    sizes = sorted({*range(min(200, len(target.data))), *range(0, len(target.data), 97), len(target.data) - 1})
    assert [size for size in sizes if not is_refused(target, target.data[:size])] == []


@pytest.mark.parametrize("tail", [b"\x00", b"\xff" * 9, b"\x00" * 512])
def test_every_extension_is_refused(aimed, tail):
    """Damage: what was there before a shorter write is taken for part of the object."""
    target, _, _ = aimed
    assert is_refused(target, target.data + tail)
    assert is_refused(target, target.data + target.data)


def test_another_object_of_the_same_kind_is_refused(aimed):
    """Damage: a misdirected read serves one shard's state, rows or register as another's."""
    target, other, _ = aimed
    assert is_refused(target, other)


def test_an_older_version_in_its_place_is_refused(aimed):
    """Damage: a stale read takes a shard, or the catalog, back in time."""
    target, _, older = aimed
    assert is_refused(target, older)


def test_zeros_are_refused(aimed):
    """Damage: a block that a crash left empty reads as an empty object."""
    target, _, _ = aimed
    assert is_refused(target, bytes(len(target.data)))


def test_a_writer_commits_nothing_on_a_damaged_history(place):
    """Damage: a writer continues from the version before a damaged last version."""
    target, _, _ = targets(place)["diff"]
    before = len(place.versions["log"])
    target.put(target.data[:-1])
    with pytest.raises(CorruptionError):
        run_sync(place.client().records("log", 2))
    assert len(place.versions["log"]) == before
