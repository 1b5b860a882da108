"""Seals refuse everything but the bytes that were sealed."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import CorruptionError
from strandline.store.seal import FORMAT, MAGIC, SEAL_BYTES, Kind, crc32c, seal, unseal

KEY = "shards/s1/v7"
GOLDEN = "89535452010001000400000000000000ac52cb5ff985d4635e8e8764626f6479"
BODIES = {"empty": b"", "one byte": b"\x00", "4 KiB": bytes(i * 31 % 251 for i in range(4096))}


def is_refused(kind: Kind, key: str, data: bytes) -> bool:
    """Return whether `unseal` refuses, naming the object and what it expected."""
    try:
        unseal(kind, key, data)
    except CorruptionError as error:
        return key in str(error) and "expected" in str(error)
    return False


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_every_single_flipped_bit_is_refused(body: bytes) -> None:
    """Damage: one flipped bit on a disk gives wrong rows to every reader."""
    sealed = seal(Kind.ROLLUP, KEY, body)
    for bit in range(len(sealed) * 8):
        flipped = bytearray(sealed)
        flipped[bit // 8] ^= 1 << (bit % 8)
        assert is_refused(Kind.ROLLUP, KEY, bytes(flipped)), bit


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_every_truncation_is_refused(body: bytes) -> None:
    """Damage: a torn write is read as a shorter, older truth."""
    sealed = seal(Kind.DIFF, KEY, body)
    assert all(is_refused(Kind.DIFF, KEY, sealed[:size]) for size in range(len(sealed)))


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("tail", [b"\x00", b"\xff" * 7, b"\x00" * 512, None], ids=["zero", "ones", "sector", "twice"])
def test_every_extension_is_refused(body: bytes, tail: bytes | None) -> None:
    """Damage: the rest of an earlier, longer file counts as part of the object."""
    sealed = seal(Kind.RECORDS, KEY, body)
    assert is_refused(Kind.RECORDS, KEY, sealed + (sealed if tail is None else tail))


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_the_bytes_of_another_key_are_refused(body: bytes) -> None:
    """Damage: a misdirected read serves one shard's state as another's."""
    with pytest.raises(CorruptionError, match="bytes of another object"):
        unseal(Kind.DIFF, "shards/s2/v7", seal(Kind.DIFF, KEY, body))


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_another_kind_is_refused_and_both_kinds_are_named(body: bytes) -> None:
    """Damage: a rollup is applied as a diff."""
    for kind in Kind:
        for other in set(Kind) - {kind}:
            with pytest.raises(CorruptionError, match=f"expected kind {other.name.lower()}, found {kind.name.lower()}"):
                unseal(other, KEY, seal(kind, KEY, body))


def test_zeros_and_strangers_are_refused() -> None:
    """Damage: a file that a crash left full of zeros passes for an empty object."""
    assert is_refused(Kind.DIFF, KEY, b"\x00" * SEAL_BYTES)
    assert is_refused(Kind.DIFF, KEY, b"\x00" * 4096)
    assert is_refused(Kind.DIFF, KEY, b"PAR1" * 100)


@pytest.mark.parametrize(
    ("form", "kind", "expectation"),
    [(FORMAT + 1, Kind.DIFF, "another version of Strandline"), (FORMAT, 999, "expected kind diff, found 999")],
)
def test_an_intact_object_of_the_future_is_refused_by_name(form: int, kind: int, expectation: str) -> None:
    """Damage: after a downgrade the operator hunts a disk fault that is not there."""
    identity = struct.pack("<4sHHQ8s", MAGIC, form, kind, 0, b"")
    with pytest.raises(CorruptionError, match=expectation):
        unseal(Kind.DIFF, KEY, identity + struct.pack("<I", crc32c(identity)))


@given(kind=st.sampled_from(Kind), key=st.text(max_size=40), body=st.binary(max_size=2000))
def test_what_was_sealed_comes_back(kind: Kind, key: str, body: bytes) -> None:
    """Damage: the check refuses sound objects, and nothing can be opened."""
    assert unseal(kind, key, seal(kind, key, body)) == body


def test_the_stored_form_is_the_released_one() -> None:
    """Damage: an upgrade cannot read what the version before it wrote."""
    assert seal(Kind.DIFF, "k", b"body").hex() == GOLDEN
