"""Which location this is: one id, kept in Consensus and in Blob, so that only the two that belong together are opened.

Objects without the Consensus that names them look like a location that nobody has used, and so does a Consensus beside
other objects.  Whoever opened such a pair would get an empty twin of what is there, and write into it.

Consensus decides the id (a register), then Blob gets it (an object at a fixed key, the *mark*), then Consensus notes
that Blob has it.  So a crash between two of these writes is told from a wrong pair: only a Consensus that has not noted
the mark yet may be without one.  The mark also says in words which Consensus it belongs to.  It is read in messages
alone: hosts may change their names, ids do not.

A location of an earlier version has neither id nor mark.  It is taken as it is, unless Consensus is empty and Blob is
not, and is marked when it is next opened for writing.

Warning: Blob decides no races.  Two processes that make one location at the same moment with different Consensuses may
both begin; the one whose mark was written over is refused when it is opened again.

Source: design pages "persist" (nothing durable names a missing part) and "the public face" (`strandline.open`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from strandline.errors import ConfigError, CorruptionError, Unavailable
from strandline.persist.metrics import Metrics
from strandline.persist.patience import PatientBlob
from strandline.persist.register import Register, refuse_future
from strandline.store.blob import Blob
from strandline.store.clock import Clock, Ids
from strandline.store.consensus import Consensus
from strandline.store.seal import Kind, seal, unseal

KEY: Final = "location"
"""Of the register in Consensus, and of the mark in Blob."""
FORMAT: Final = 1


class Mark(msgspec.Struct, frozen=True):
    """What Blob says: the location's id, and in words which Consensus it was made with; nothing of it is secret."""

    id: str
    consensus: str
    format: int = FORMAT


class _Decided(msgspec.Struct, frozen=True):
    """What Consensus says: the location's id, and whether the mark is known to be in Blob."""

    id: str
    marked: bool = False
    format: int = FORMAT


_decode_mark = msgspec.json.Decoder(Mark).decode
_decode_decided = msgspec.json.Decoder(_Decided).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Pair:
    """A Blob and a Consensus that were named together, and what to call them in a message."""

    blob: Blob
    consensus: Consensus
    blob_name: str
    consensus_name: str


async def read_mark(blob: Blob, clock: Clock) -> Mark | None:
    """Return the mark of a location, or None.

    Ask Blob itself and no cache of it: a location that was deleted and made anew has its mark at the same key.

    Raises:
        ConfigError: the mark was written by a later version.
        CorruptionError: there is an object at its place that is no mark.
    """
    data = await PatientBlob(blob, clock, Metrics()).get(KEY)
    if data is None:
        return None
    body = unseal(Kind.MARK, KEY, data)
    refuse_future("the location's mark is", body, FORMAT)
    try:
        return _decode_mark(body)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"blob {KEY!r} is not the mark of a location: {error}") from error


async def agree(pair: Pair, clock: Clock, ids: Ids, *, writes: bool) -> None:
    """Return if the two of ``pair`` belong together; with ``writes`` mark them, if they are not marked yet.

    Raises:
        ConfigError: they do not; the message says what the location was made with.
        Unavailable: a store does not answer.
    """
    register = Register(KEY, clock, ids, pair.consensus)
    # Others may be marking it now, in the order id, mark, note: what they do between two reads must not look wrong.
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
            f"location {pair.blob_name} holds objects, and consensus {pair.consensus_name} knows nothing of them: "
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
        mark = await read_mark(pair.blob, clock)  # another may have been faster, or have written over it
        _refuse_another(pair, mark, decided)
    await register.update(_noted)


def another_consensus(pair_name: str, given: str, mark: Mark) -> ConfigError:
    """Return what to raise where the location ``pair_name`` has ``mark``, and ``given`` is not its Consensus."""
    return ConfigError(
        f"location {pair_name} was made with consensus {mark.consensus}, and is opened with consensus {given}, "
        "which knows nothing of it: open it with the consensus that it was made with"
    )


def _refuse_another(pair: Pair, mark: Mark | None, decided: _Decided | None) -> None:
    if mark is None:
        raise Unavailable(f"location {pair.blob_name} does not show its mark yet; open it again")
    if decided is None or decided.id != mark.id:
        raise another_consensus(pair.blob_name, pair.consensus_name, mark)


async def _has_unknown_objects(pair: Pair) -> bool:
    """Tell whether Blob holds objects while Consensus is empty, before and after it was asked for them."""
    keys = pair.consensus.list_keys
    return not await keys() and bool(await pair.blob.list("")) and not await keys()


def _noted(body: bytes | None) -> bytes | None:
    decided = _decided(body)
    assert decided is not None, "an id that was decided stays"
    return None if decided.marked else _encode(msgspec.structs.replace(decided, marked=True))


def _decided(body: bytes | None) -> _Decided | None:
    if body is None:
        return None
    refuse_future("the location's id is", body, FORMAT)
    try:
        return _decode_decided(body)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"register {KEY!r} does not hold a location's id: {error}") from error
