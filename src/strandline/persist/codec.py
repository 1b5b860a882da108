"""How a shard's state becomes bytes: diffs in Consensus, rollups in Blob, both sealed.

A state is a flat map of entries (``batch/<lower>``, ``writer/<name>``, …).  A *diff* lists the entries that a version set and removed
and names the newest rollup; a *rollup* is the full map at one seqno.  So the state at a seqno is the newest rollup plus the diffs after it,
and a reader that has version n needs only the diffs after n.

Bodies are MessagePack.  `FORMAT` is raised when an older reader would misread; a reader refuses a newer format by name.

Source: design page "persist" (Consensus holds diffs; Blob holds rollups; every diff names the newest rollup).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from strandline.errors import CorruptionError
from strandline.frontier.antichain import Frontier
from strandline.persist.batch import Batch, BlobPart, Digest, InlinePart, Part
from strandline.persist.state import Certificate, Critical, Rollup, ShardState, Writer
from strandline.store.seal import Kind, seal, unseal

FORMAT: Final = 1

Entries = Mapping[str, Any]

_SCALARS: Final = ("walltime_ms", "epoch", "schema", "owner")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


@dataclass(frozen=True, slots=True)
class Diff:
    """What one version changed.  ``rollup`` is the newest rollup at that version."""

    seqno: int
    set: Entries
    removed: tuple[str, ...]
    rollup: Rollup


def entries(state: ShardState) -> dict[str, Any]:
    """Return the state as a flat map; `restore` is its inverse."""
    return _small_entries(state) | {_batch_name(b): _pack_batch(b) for b in state.batches}


def _small_entries(state: ShardState) -> dict[str, Any]:
    flat: dict[str, Any] = {name: getattr(state, name) for name in _SCALARS}
    flat["since"] = state.since.at
    flat["upper"] = state.upper.at
    flat["digest"] = [state.digest.low, state.digest.high]
    for name, writer in state.writers.items():
        flat[f"writer/{name}"] = [writer.token, writer.upper.at, writer.epoch, writer.walltime_ms]
    for name, critical in state.criticals.items():
        flat[f"critical/{name}"] = [critical.since.at, critical.opaque]
    if state.certificate is not None:
        c = state.certificate
        flat["certificate"] = [c.fingerprint, c.upper.at, c.digest.low, c.digest.high]
    for rollup in state.rollups:
        flat[f"rollup/{rollup.seqno}"] = rollup.key
    return flat


def restore(shard: str, seqno: int, flat: Entries) -> ShardState:
    """Return the state that `entries` flattened."""
    batches, writers, criticals, rollups = [], {}, {}, []
    for name, value in flat.items():
        match name.partition("/"):
            case ("batch", "/", _):
                batches.append(_unpack_batch(value))
            case ("writer", "/", rest):
                writers[rest] = Writer(value[0], Frontier(value[1]), value[2], value[3])
            case ("critical", "/", rest):
                criticals[rest] = Critical(Frontier(value[0]), value[1])
            case ("rollup", "/", rest):
                rollups.append(Rollup(int(rest), value))
            case _:
                pass  # scalars, read below
    certificate = None
    if "certificate" in flat:
        fingerprint, upper, low, high = flat["certificate"]
        certificate = Certificate(fingerprint, Frontier(upper), Digest(low, high))
    return ShardState(
        shard=shard,
        seqno=seqno,
        since=Frontier(flat["since"]),
        upper=Frontier(flat["upper"]),
        digest=Digest(*flat["digest"]),
        batches=tuple(sorted(batches, key=lambda b: -1 if b.lower.at is None else b.lower.at)),
        writers=writers,
        criticals=criticals,
        certificate=certificate,
        rollups=tuple(sorted(rollups, key=lambda r: r.seqno)),
        **{name: flat[name] for name in _SCALARS},
    )


def difference(before: ShardState, after: ShardState) -> Diff:
    """Return what leads from one version to the next.  Unchanged batches are told by identity, so this is cheap."""
    small_before, small_after = _small_entries(before), _small_entries(after)
    changed = {name: value for name, value in small_after.items() if small_before.get(name, _ABSENT) != value}
    removed = [name for name in small_before if name not in small_after]
    known = {_batch_name(b): b for b in before.batches}
    for batch in after.batches:
        name = _batch_name(batch)
        if known.pop(name, None) is not batch:
            changed[name] = _pack_batch(batch)
    return Diff(after.seqno, changed, (*sorted(removed), *sorted(known)), after.rollups[-1])


def apply(flat: Entries, diff: Diff) -> dict[str, Any]:
    """Return the entries one version later."""
    later = {name: value for name, value in flat.items() if name not in diff.removed}
    later.update(diff.set)
    return later


# ---- bytes -----------------------------------------------------------------------------------------------------------


def version_key(shard: str, seqno: int) -> str:
    """What a diff is sealed for: a version read under another key or seqno is refused."""
    return f"{shard}/{seqno}"


def encode_diff(shard: str, diff: Diff) -> bytes:
    """Return the sealed bytes of a diff."""
    body = [FORMAT, diff.seqno, dict(diff.set), list(diff.removed), diff.rollup.seqno, diff.rollup.key]
    return seal(Kind.DIFF, version_key(shard, diff.seqno), _encode(body))


def decode_diff(shard: str, seqno: int, data: bytes) -> Diff:
    """Return a diff.  Raises `CorruptionError` if the bytes are not version ``seqno`` of ``shard``."""
    body = _decode(unseal(Kind.DIFF, version_key(shard, seqno), data))
    _refuse_future(shard, body[0])
    return Diff(body[1], body[2], tuple(body[3]), Rollup(body[4], body[5]))


def encode_rollup(key: str, state: ShardState) -> bytes:
    """Return the sealed bytes of a rollup stored under ``key``."""
    return seal(Kind.ROLLUP, key, _encode([FORMAT, state.seqno, entries(state)]))


def decode_rollup(shard: str, key: str, data: bytes) -> tuple[int, dict[str, Any]]:
    """Return ``(seqno, entries)``.  Raises `CorruptionError` if the bytes are not the rollup ``key``."""
    body = _decode(unseal(Kind.ROLLUP, key, data))
    _refuse_future(shard, body[0])
    return body[1], body[2]


def _refuse_future(shard: str, written: int) -> None:
    if written > FORMAT:
        raise CorruptionError(
            f"shard {shard!r} was written in format {written}; this version reads up to {FORMAT}: use a newer strandline"
        )


_ABSENT: Final = object()


def _batch_name(batch: Batch) -> str:
    return f"batch/{batch.lower.at}"


def _pack_batch(batch: Batch) -> list[Any]:
    return [
        batch.lower.at,
        batch.upper.at,
        batch.since.at,
        [_pack_part(p) for p in batch.parts],
        batch.rows,
        batch.diffs,
        batch.digest.low,
        batch.digest.high,
        batch.plain,
    ]


def _unpack_batch(value: list[Any]) -> Batch:
    lower, upper, since, parts, rows, diffs, low, high, plain = value
    return Batch(
        Frontier(lower),
        Frontier(upper),
        Frontier(since),
        tuple(_unpack_part(p) for p in parts),
        rows,
        diffs,
        Digest(low, high),
        plain,
    )


def _pack_part(part: Part) -> list[Any]:
    match part:
        case InlinePart(data, rows):
            return [0, data, rows]
        case BlobPart(key, size, rows, footer_crc, sidecar):
            return [1, key, size, rows, footer_crc, sidecar]


def _unpack_part(value: list[Any]) -> Part:
    if value[0] == 0:
        return InlinePart(value[1], value[2])
    return BlobPart(*value[1:])


def pack_parts(parts: tuple[Part, ...]) -> list[Any]:
    """Return parts as plain data (for records that name staged batches)."""
    return [_pack_part(p) for p in parts]


def unpack_parts(value: list[Any]) -> tuple[Part, ...]:
    """Return the parts that `pack_parts` packed."""
    return tuple(_unpack_part(p) for p in value)
