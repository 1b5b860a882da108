"""How a shard's state becomes bytes: diffs in Consensus, rollups in Blob, both sealed.

A state is a flat map of entries (``batch/<lower>``, ``writer/<name>``, …).  A *diff* lists the entries that a version
set and removed and names the newest rollup; a *rollup* is the full map at one seqno.  So the state at a seqno is the
newest rollup plus the diffs after it, and a reader that has version n needs only the diffs after n.

Bodies are MessagePack.  `FORMAT` is raised when an older reader would misread, to the minor release that does so:
format n is read by strandline 0.n and later.  A reader refuses a newer format, and says which version is needed.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from strandline.frontier import Frontier
from strandline.persist.shard.batch import Batch, BlobPart, Digest, InlinePart, KeyRange, Part, Staged, Window
from strandline.persist.shard.state import Certificate, Critical, Leased, Rollup, ShardState, Writer
from strandline.store.seal import Kind, refuse_future, seal, unseal, version_key

FORMAT: Final = 1

T = TypeVar("T")
Entries = Mapping[str, Any]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Diff(msgspec.Struct, frozen=True):
    """What one version changed.  ``rollup`` is the newest rollup at that version."""

    seqno: int
    set: Entries
    removed: tuple[str, ...]
    rollup: Rollup


def entries(state: ShardState) -> dict[str, Any]:
    """Return the state as a flat map; `restore` is its inverse."""
    return _small_entries(state) | {_batch_name(b): _pack_batch(b) for b in state.batches}


def _small_entries(state: ShardState) -> dict[str, Any]:
    single = {name: each.pack(getattr(state, name)) for name, each in _SINGLES.items()}
    flat = {name: value for name, value in single.items() if value is not _ABSENT}
    for group, each in _MAPS.items():
        flat |= {f"{group}/{name}": each.pack(value) for name, value in getattr(state, each.field).items()}
    return flat | {f"rollup/{rollup.seqno}": rollup.key for rollup in state.rollups}


def restore(shard: str, seqno: int, flat: Entries) -> ShardState:
    """Return the state that `entries` flattened."""
    return _changed(ShardState(shard), seqno, flat)


def difference(before: ShardState, after: ShardState) -> Diff:
    """Return what leads from one version to the next.  Identity shows what did not change, so this is cheap."""
    changed: dict[str, Any] = {}
    removed: list[str] = []
    for name, single in _SINGLES.items():
        old, new = getattr(before, name), getattr(after, name)
        if old is not new and old != new:
            value = single.pack(new)
            if value is _ABSENT:
                removed.append(name)
            else:
                changed[name] = value
    for group, each in _MAPS.items():
        was, now = getattr(before, each.field), getattr(after, each.field)
        if was is not now:
            removed += [f"{group}/{name}" for name in sorted(was.keys() - now.keys())]
            for name, value in now.items():
                known = was.get(name)
                if known is not value and known != value:
                    changed[f"{group}/{name}"] = each.pack(value)
    if before.rollups is not after.rollups:
        old, new = ({r.seqno: r.key for r in state.rollups} for state in (before, after))
        removed += [f"rollup/{seqno}" for seqno in sorted(old.keys() - new.keys())]
        changed |= {f"rollup/{seqno}": key for seqno, key in new.items() if old.get(seqno) != key}
    removed.sort()
    if before.batches is not after.batches:
        removed += _batches_changed(before.batches, after.batches, changed)
    return Diff(after.seqno, changed, tuple(removed), after.rollups[-1])


def _batches_changed(before: tuple[Batch, ...], after: tuple[Batch, ...], changed: dict[str, Any]) -> list[str]:
    """Put the batches that are not as before into ``changed``; return the names of those that are there no more."""
    same = bytes(map(operator.is_, before, after)).find(False)
    first = same if same >= 0 else min(len(before), len(after))
    gone = {_batch_name(b): b for b in before[first:]}
    for batch in after[first:]:
        name = _batch_name(batch)
        if gone.pop(name, None) is not batch:
            changed[name] = _pack_batch(batch)
    return sorted(gone)


def apply(state: ShardState, diffs: Sequence[Diff]) -> ShardState:
    """Return the state after ``diffs``, which are those of the versions that follow it, without a gap."""
    changes: dict[str, Any] = {}
    for diff in diffs:
        changes.update(dict.fromkeys(diff.removed, _ABSENT))
        changes.update(diff.set)
    return _changed(state, state.seqno + len(diffs), changes)


def _changed(state: ShardState, seqno: int, changes: Entries) -> ShardState:
    fields: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        group, slash, rest = name.partition("/")
        if slash:
            groups.setdefault(group, {})[rest] = value
        else:
            fields[name] = _SINGLES[name].unpack(value)
    for group, values in groups.items():
        if group in _MAPS:
            each = _MAPS[group]
            fields[each.field] = _merged(getattr(state, each.field), values, each.unpack)
        elif group == "batch":
            fields["batches"] = _merged_batches(state.batches, {int(lower): value for lower, value in values.items()})
        else:
            fields["rollups"] = _merged_rollups(state.rollups, {int(seqno): key for seqno, key in values.items()})
    return replace(state, seqno=seqno, **fields)


def _merged_rollups(before: tuple[Rollup, ...], changes: Mapping[int, Any]) -> tuple[Rollup, ...]:
    kept = [rollup for rollup in before if rollup.seqno not in changes]
    fresh = [Rollup(seqno, key) for seqno, key in changes.items() if key is not _ABSENT]
    return tuple(sorted(kept + fresh, key=lambda rollup: rollup.seqno))


def _merged(before: Mapping[str, T], changes: Entries, unpack: Callable[[Any], T]) -> Mapping[str, T]:
    kept = {name: value for name, value in before.items() if name not in changes}
    return kept | {name: unpack(value) for name, value in changes.items() if value is not _ABSENT}


def _merged_batches(before: tuple[Batch, ...], changes: Mapping[int, Any]) -> tuple[Batch, ...]:
    fresh = sorted((_unpack_batch(value) for value in changes.values() if value is not _ABSENT), key=_lower)
    first = min(changes)  # most changes are at the end
    untouched = bisect_left(before, first, key=_lower)
    kept = [batch for batch in before[untouched:] if _lower(batch) not in changes]
    return (*before[:untouched], *sorted(kept + fresh, key=_lower))


# ---- bytes -----------------------------------------------------------------------------------------------------------


def parts_set(diff: Diff) -> Iterator[Part]:
    """Return every part that a diff puts into the state."""
    for name, value in diff.set.items():
        match name.partition("/")[0]:
            case "batch":
                yield from map(_unpack_part, value[3])
            case "unsealed":
                yield from unpack_staged(value).parts


def encode_diff(shard: str, diff: Diff) -> bytes:
    """Return the sealed bytes of a diff."""
    body = [FORMAT, diff.seqno, dict(diff.set), list(diff.removed), diff.rollup.seqno, diff.rollup.key]
    return seal(Kind.DIFF, version_key(shard, diff.seqno), _encode(body))


def decode_diff(shard: str, seqno: int, data: bytes) -> Diff:
    """Return a diff.  Raises `CorruptionError` if the bytes are not version ``seqno`` of ``shard``."""
    body = _decode(unseal(Kind.DIFF, version_key(shard, seqno), data))
    _check_format(shard, body[0])
    return Diff(body[1], body[2], tuple(body[3]), Rollup(body[4], body[5]))


def encode_rollup(key: str, state: ShardState) -> bytes:
    """Return the sealed bytes of a rollup stored under ``key``."""
    return seal(Kind.ROLLUP, key, _encode([FORMAT, state.seqno, entries(state)]))


def decode_rollup(shard: str, key: str, data: bytes) -> tuple[int, dict[str, Any]]:
    """Return ``(seqno, entries)``.  Raises `CorruptionError` if the bytes are not the rollup ``key``."""
    body = _decode(unseal(Kind.ROLLUP, key, data))
    _check_format(shard, body[0])
    return body[1], body[2]


def _check_format(shard: str, written: int) -> None:
    if written > FORMAT:
        refuse_future(f"shard {shard!r} was written", written, FORMAT, f"strandline 0.{written} or later")


_ABSENT: Final = object()


def _lower(batch: Batch) -> int:
    assert batch.lower.at is not None, "nothing can follow the empty frontier"
    return batch.lower.at


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
        batch.errors,
        *_pack_sort(batch.sort),
    ]


def _unpack_batch(value: list[Any]) -> Batch:
    lower, upper, since, parts, rows, diffs, low, high, plain, errors, *sort = value
    return Batch(
        Frontier(lower),
        Frontier(upper),
        Frontier(since),
        tuple(_unpack_part(p) for p in parts),
        rows,
        diffs,
        Digest(low, high),
        plain,
        errors,
        _unpack_sort(sort),
    )


def _pack_sort(sort: tuple[str, ...]) -> list[Any]:
    return [list(sort)] if sort else []


def _unpack_sort(packed: list[Any]) -> tuple[str, ...]:
    return tuple(packed[0]) if packed else ()


def _pack_certificate(certificate: Certificate | None) -> Any:
    if certificate is None:
        return _ABSENT
    return [certificate.fingerprint, certificate.upper.at, certificate.digest.low, certificate.digest.high]


def _unpack_certificate(value: Any) -> Certificate | None:
    if value is _ABSENT:
        return None
    fingerprint, upper, low, high = value
    return Certificate(fingerprint, Frontier(upper), Digest(low, high))


def _pack_part(part: Part) -> list[Any]:
    match part:
        case InlinePart(data, rows):
            return [0, data, rows, *_pack_window(part.window)]
        case BlobPart(key, size, rows, footer_crc, sidecar):
            return [1, key, size, rows, footer_crc, sidecar, *_pack_window(part.window), *_pack_keys(part.keys)]


def _pack_window(window: Window | None) -> list[Any]:
    return [] if window is None else [[window.lower, window.upper.at, window.advance]]


def _pack_keys(keys: KeyRange | None) -> list[Any]:
    return [] if keys is None else [{"least": keys.least, "greatest": keys.greatest}]


def _unpack_part(value: list[Any]) -> Part:
    kind, *fields = value
    keys = KeyRange(**fields.pop()) if isinstance(fields[-1], dict) else None
    window = None
    if isinstance(fields[-1], list):
        lower, upper, advance = fields.pop()
        window = Window(lower, Frontier(upper), advance)
    if kind == 0:
        data, rows = fields
        return InlinePart(data, rows, window)
    key, size, rows, footer_crc, sidecar = fields
    return BlobPart(key, size, rows, footer_crc, sidecar, window, keys)


def pack_staged(staged: Staged) -> list[Any]:
    """Return a staged batch as plain data: how a state keeps unsealed ones, and records name committed ones."""
    low, high = staged.digest.low, staged.digest.high
    bounds = [staged.lower.at, staged.upper.at]
    parts = [_pack_part(p) for p in staged.parts]
    counts = [staged.rows, staged.diffs, low, high, staged.plain, staged.errors]
    return [*bounds, parts, *counts, *_pack_sort(staged.sort)]


def unpack_staged(value: list[Any]) -> Staged:
    """Return the batch that `pack_staged` packed."""
    lower, upper, parts, rows, diffs, low, high, plain, errors, *sort = value
    found = tuple(_unpack_part(p) for p in parts)
    counts = (rows, diffs, Digest(low, high), plain, errors)
    return Staged(Frontier(lower), Frontier(upper), found, *counts, sort=_unpack_sort(sort))


@dataclass(frozen=True, slots=True)
class _Single(Generic[T]):
    """How a field of the state that is one value is packed."""

    pack: Callable[[T], Any]
    unpack: Callable[[Any], T]


@dataclass(frozen=True, slots=True)
class _Map(Generic[T]):
    """A field of the state that maps names to values, and how a value is packed."""

    field: str
    pack: Callable[[T], Any]
    unpack: Callable[[Any], T]


_MAPS: Final[dict[str, _Map[Any]]] = {
    "unsealed": _Map("unsealed", pack_staged, unpack_staged),
    "writer": _Map("writers", lambda w: [w.token, w.upper.at, w.epoch], lambda v: Writer(v[0], Frontier(v[1]), v[2])),
    "critical": _Map("criticals", lambda c: [c.since.at, c.opaque], lambda v: Critical(Frontier(v[0]), v[1])),
    "leased": _Map("leased", lambda h: [h.since.at, h.seqno, h.beat_ms], lambda v: Leased(Frontier(v[0]), v[1], v[2])),
}


def _as_it_is(value: T) -> T:
    return value


_SCALAR: Final[_Single[Any]] = _Single(_as_it_is, _as_it_is)
_FRONTIER: Final[_Single[Frontier]] = _Single(lambda frontier: frontier.at, Frontier)
_SINGLES: Final[dict[str, _Single[Any]]] = {
    **dict.fromkeys(("walltime_ms", "epoch", "schema", "owner", "swept_ms"), _SCALAR),
    **dict.fromkeys(("since", "upper", "forgotten"), _FRONTIER),
    "schemas": _Single(list, tuple),
    "sort": _Single(lambda sort: list(sort) or _ABSENT, lambda value: () if value is _ABSENT else tuple(value)),
    "digest": _Single(lambda digest: [digest.low, digest.high], lambda value: Digest(*value)),
    "certificate": _Single(_pack_certificate, _unpack_certificate),
}
