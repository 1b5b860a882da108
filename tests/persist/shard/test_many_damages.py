"""Very many damaged objects of every sealed kind and of several sizes: each is refused, by name.

`test_damage.py` reads some of them through the handles; here each goes to the decoder that every read of its kind goes
through.  Every bit, every length, every sector of zeros, every exchange of two objects; of large objects, evenly many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import pytest

from strandline.errors import CorruptionError
from strandline.persist.handles.records import read_records
from strandline.persist.handles.register import Register
from strandline.persist.shard import codec
from strandline.persist.shard.batch import BlobPart
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.protocols import Versioned
from strandline.store.seal import Kind, seal, unseal, version_key
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.simulation.kernel import run_sync

pytestmark = pytest.mark.fuzz

DAMAGES_MIN = 50_000
LONG_DAMAGES_MIN = 500_000
SECTOR_BYTES = 512
SIZES = (0, 40, 4 << 10, 64 << 10)


@dataclass(frozen=True)
class Sealed:
    """An object: its name, its bytes, and how to read it."""

    name: str
    data: bytes
    read: Callable[[bytes], object]


def read_part(name: str, data: bytes) -> object:
    """Read a part of records."""
    part = BlobPart(name, len(data), 1, 0, "")
    return run_sync(read_records(MemoryBlob({name: data}), "s", (part,)))


def read_register(data: bytes) -> object:
    """Read a register at version 7."""
    held = MemoryConsensus({"s": [Versioned(7, data)]})
    return run_sync(Register("s", HandClock(), CountingIds(), held).read())


def objects() -> list[Sealed]:
    """One object of every kind and size, and an older version of each."""
    body = msgspec.msgpack.encode
    found = []
    for size in SIZES:
        for age in (b"n", b"o"):
            filler = age * size
            key = f"s/{size}"
            made: dict[Kind, tuple[str, bytes, Callable[[bytes], object]]] = {
                Kind.DIFF: (
                    version_key("s", 7),
                    body([codec.FORMAT, 7, {"owner": filler.decode()}, [], 1, "s/rollup/1"]),
                    lambda data: codec.decode_diff("s", 7, data),
                ),
                Kind.ROLLUP: (
                    key,
                    body([codec.FORMAT, 7, {"owner": filler.decode()}]),
                    lambda data, key=key: codec.decode_rollup("s", key, data),
                ),
                Kind.RECORDS: (key, body([(filler, 3, 1)]), lambda data, key=key: read_part(key, data)),
                Kind.REGISTER: (version_key("s", 7), body(("token", filler)), read_register),
            }
            for kind in Kind:
                name, content, read = made.get(
                    kind, (key, filler, lambda data, kind=kind, key=key: unseal(kind, key, data) + b"read")
                )
                found.append(Sealed(name, seal(kind, name, content), read))
    return found


def damaged(data: bytes, many: int) -> Iterator[bytes]:
    """Yield ``data`` with each bit flipped, at each length, with something after it, with each sector zeroed.

    Of each sort at most ``many``, evenly, and the bits of the seal in any case.
    """
    bits = len(data) * 8
    for bit in sorted({*range(min(bits, 28 * 8)), *range(0, bits, max(1, bits // many))}):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)
    for size in range(0, len(data), max(1, len(data) // many)):
        yield data[:size]
    for tail in (b"\x00", b"\xff", bytes(SECTOR_BYTES), data):
        yield data + tail
    for begin in range(0, len(data), SECTOR_BYTES):
        zeroed = data[:begin] + bytes(len(data[begin : begin + SECTOR_BYTES])) + data[begin + SECTOR_BYTES :]
        if zeroed != data:
            yield zeroed


def refused(sealed: Sealed, data: bytes) -> bool:
    """Return whether reading ``data`` in the object's place is refused, naming the object and what was expected."""
    try:
        sealed.read(data)
    except CorruptionError as error:
        return sealed.name in str(error) and "expected" in str(error)
    return False


def damage_all(record_property, stage: str, many: int, least: int) -> None:
    """Damage everything; insist that everything was refused, and that it was enough."""
    everything = objects()
    tried = accepted = 0
    for sealed in everything:
        assert sealed.read(sealed.data) is not None, "whatever is not damaged is read"
        others = {
            other.data for other in everything if (other.name, other.data[6:8]) != (sealed.name, sealed.data[6:8])
        }
        for data in (*damaged(sealed.data, many), *others):
            tried += 1
            accepted += not refused(sealed, data)
    verdict = "pass" if accepted == 0 and tried >= least else "miss"
    record_property("FIGURE", f"{stage}.damaged-objects tried={tried},accepted={accepted} >={least},0 {verdict}")
    assert accepted == 0
    assert tried >= least


def test_every_damaged_object_is_refused_by_name(record_property) -> None:
    """Damage: a disk that rots, a torn or misdirected write, gives wrong states, rows or decisions."""
    damage_all(record_property, "damage", 1_000, DAMAGES_MIN)


@pytest.mark.slow
def test_very_many_damaged_objects_are_refused_by_name(record_property) -> None:
    """Damage: the same, for every bit of objects of four KiB."""
    damage_all(record_property, "long", 33_500, LONG_DAMAGES_MIN)
