"""The identity of a location: one id in Consensus and in Blob, so that only a matching pair is opened.

A Blob with the wrong Consensus looks like an unused location.  A process that opened such a pair would see an empty
location and write into it.

Consensus decides the id (a register), then Blob gets it (an object at a fixed key, the *mark*), then Consensus notes
that Blob has it.  So a crash between two of these writes differs from a wrong pair: the mark may be missing only while
Consensus has not noted it.  The mark also holds a readable name of its Consensus.  Only messages use that name, because
host names may change and ids do not.

A location of an earlier version has neither id nor mark.  It is accepted, unless Consensus is empty and Blob is not,
and the next opening for writing marks it.

Warning: Blob does not arbitrate races.  Two processes that create one location at the same moment with different
Consensuses may both start; the one whose mark was overwritten is refused at its next opening.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from strandline.errors import ConfigError, CorruptionError, Unavailable
from strandline.persist.handles.register import Register, refuse_future_json
from strandline.persist.shard.patience import Metrics, PatientBlob
from strandline.store.clock import Clock, Ids
from strandline.store.protocols import Blob, Consensus
from strandline.store.seal import Kind, seal, unseal

KEY: Final = "location"
"""The key of the register in Consensus, and of the mark in Blob."""
FORMAT: Final = 1


class Mark(msgspec.Struct, frozen=True):
    """The mark in Blob: the location's id, and a readable name of its Consensus.  Nothing in it is secret."""

    id: str
    consensus: str
    format: int = FORMAT


class _Decided(msgspec.Struct, frozen=True):
    """The value in Consensus: the location's id, and whether the mark is known to be in Blob."""

    id: str
    marked: bool = False
    format: int = FORMAT


_decode_mark = msgspec.json.Decoder(Mark).decode
_decode_decided = msgspec.json.Decoder(_Decided).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Pair:
    """A Blob and a Consensus that were configured together, and their names for messages."""

    blob: Blob
    consensus: Consensus
    blob_name: str
    consensus_name: str


async def read_mark(blob: Blob, clock: Clock) -> Mark | None:
    """Return the mark of a location, or None.

    Pass the store itself, not a cache of it: a location that was deleted and created anew has its mark at the same key.

    Raises:
        ConfigError: the mark was written by a later version.
        CorruptionError: there is an object at its place that is no mark.
    """
    data = await PatientBlob(blob, clock, Metrics()).get(KEY)
    if data is None:
        return None
    body = unseal(Kind.MARK, KEY, data)
    refuse_future_json("the location's mark is", body, FORMAT)
    try:
        return _decode_mark(body)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"blob {KEY!r} is not the mark of a location: {error}") from error


async def agree(pair: Pair, clock: Clock, ids: Ids, *, writes: bool) -> None:
    """Check that the two stores of ``pair`` belong together; with ``writes``, mark them if they are unmarked.

    Raises:
        ConfigError: they do not; the message names the Consensus that the location was made with.
        Unavailable: a store does not answer.
    """
    register = Register(KEY, clock, ids, pair.consensus)
    # Another process may be marking it now, in the order id, mark, note.  Reading id, mark, id keeps that from looking
    # like a wrong pair.
    noted = _decided(await register.read())
    mark = await read_mark(pair.blob, clock)
    decided = noted if mark is None else _decided(await register.read())
    if mark is not None:
        _refuse_another(pair, mark, decided)
    elif noted is not None and noted.marked:
        raise ConfigError(
            f"consensus {pair.consensus_name} belongs to another location: location {pair.blob_name} has none of its "
            "objects; open the location that it was made with, or give this one a consensus of its own"
        )
    elif noted is None and await _has_unknown_objects(pair):
        raise ConfigError(
            f"location {pair.blob_name} holds objects, and consensus {pair.consensus_name} has no record of them: "
            "open it with the consensus that it was made with"
        )
    if not writes or (mark is not None and decided is not None and decided.marked):
        return

    def decide(body: bytes | None) -> bytes | None:
        return None if body is not None else _encode(_Decided(ids.fresh("l")))

    decided = _decided(await register.update(decide))
    assert decided is not None, "it was decided by this call or before it"
    if mark is None:
        body = _encode(Mark(decided.id, pair.consensus_name))
        await PatientBlob(pair.blob, clock, Metrics()).set(KEY, seal(Kind.MARK, KEY, body))
        mark = await read_mark(pair.blob, clock)  # another process may have been faster, or have overwritten it
        _refuse_another(pair, mark, decided)
    await register.update(_noted)


def another_consensus(pair_name: str, given: str, mark: Mark) -> ConfigError:
    """Return what to raise where the location ``pair_name`` has ``mark``, and ``given`` is not its Consensus.

    Where both have one name, the Consensus itself is gone, and at its place is nothing or a new one.
    """
    if given == mark.consensus:
        return ConfigError(
            f"location {pair_name} has lost its consensus, {given}: what is there has no record of the location's "
            "objects; restore both from one backup, or give a new location to begin anew (what was stored in this one "
            "cannot be read without its consensus)"
        )
    return ConfigError(
        f"location {pair_name} was made with consensus {mark.consensus}, and is opened with consensus {given}, "
        "which has no record of it: open it with the consensus that it was made with"
    )


def _refuse_another(pair: Pair, mark: Mark | None, decided: _Decided | None) -> None:
    if mark is None:
        raise Unavailable(f"location {pair.blob_name} does not show its mark yet; open it again")
    if decided is None or decided.id != mark.id:
        raise another_consensus(pair.blob_name, pair.consensus_name, mark)


async def _has_unknown_objects(pair: Pair) -> bool:
    """Return whether Blob holds objects while Consensus is empty both before and after Blob is listed."""
    keys = pair.consensus.list_keys
    return not await keys() and bool(await pair.blob.list("")) and not await keys()


def _noted(body: bytes | None) -> bytes | None:
    decided = _decided(body)
    assert decided is not None, "an id that was decided stays"
    return None if decided.marked else _encode(msgspec.structs.replace(decided, marked=True))


def _decided(body: bytes | None) -> _Decided | None:
    if body is None:
        return None
    refuse_future_json("the location's id is", body, FORMAT)
    try:
        return _decode_decided(body)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"register {KEY!r} does not hold a location's id: {error}") from error
