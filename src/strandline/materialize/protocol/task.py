"""The specification, progress and driver state of a materialization: plain values for both sides of the protocol.

A `MaterializationSpec` binds collections to resources (tables) of one endpoint.  A `Checkpoint` holds, for each
binding, the time T before which everything is in its resource: resource = collection at every time in ``[T - 1, ...)``
up to the next change.  The keys of a checkpoint are *state keys* (resource + backfill counter).  So a new binding, or
one whose counter was raised, is not in the checkpoint and starts from nothing, while the others continue.

Trap: times of one collection say nothing about another.  If a collection or a materialization is created again under
its old name, its bindings must get another `Binding.incarnation`; otherwise the old checkpoint would apply to the new
data.  Two installations may give materializations the same name, so the incarnation also holds the location's id: an
endpoint lets a materialization replace only rows of a materialization of its name and its location.

A table to be emptied and given up is bound by a key of its own kind (`given_up`).  Once that key is in a checkpoint,
any task may fill the table; the key stays there, so that an older session of this task is refused.

Source: RFC 7396 (JSON merge patch), by which the driver's state in the runtime's recovery log is changed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

import msgspec

from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.errors import CorruptionError, DefinitionError, FencedError, InvalidUsage

U32_MAX: Final = 2**32 - 1
SPLITS_MAX: Final = 64
BEFORE_SHARD: Final = "-s-"
"""Stands in an incarnation between the id of the materialization and the rest of the id of the collection's shard."""
GIVEN_UP: Final = "!"
"""Ends the state key of a binding that gives its resource up."""
_INCARNATION: Final = re.compile(r"(?:[a-z0-9-]*[a-z0-9])?(?:@[a-z0-9-]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The split's range of key hashes, both ends inclusive.

    >>> WHOLE.covers(KeyRange(0, 9)), KeyRange(0, 9).covers(WHOLE)
    (True, False)
    """

    begin: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.begin <= self.end <= U32_MAX:
            raise ValueError(f"key range [{self.begin}, {self.end}] is not within 0 <= begin <= end < 2**32")

    def __str__(self) -> str:
        return f"{self.begin:08x}-{self.end:08x}"

    def covers(self, other: KeyRange) -> bool:
        """Return whether every key hash of ``other`` is here too."""
        return self.begin <= other.begin and other.end <= self.end


WHOLE: Final = KeyRange(0, U32_MAX)


def divided(splits: int) -> tuple[KeyRange, ...]:
    """Return the key ranges of so many splits of about one size.

    >>> [str(each) for each in divided(3)]
    ['00000000-55555554', '55555555-aaaaaaa9', 'aaaaaaaa-ffffffff']
    """
    ends = [(number * (U32_MAX + 1)) // splits for number in range(splits + 1)]
    return tuple(KeyRange(begin, end - 1) for begin, end in pairwise(ends))


@dataclass(frozen=True, slots=True)
class Binding:
    """One collection, the resource that is kept equal to it, and the columns that identify its rows.

    ``incarnation`` (``[a-z0-9-]*``) identifies the data behind the names, ``backfill`` counts the requested backfills:
    if either changes, the resource is emptied and filled from the start.  Behind an ``@`` the incarnation ends with the
    id of the location that the task belongs to, if it is known.

    A ``delta`` binding is given what changed, and nothing of it is ever loaded.  With a key: the last row of each key
    that changed in a transaction, or that it is gone.  With ``diffs``, or without a key: the net changes themselves, in
    a further column ``__diff`` bigint.  ``times``: apart by time, in a further column ``__time`` bigint.

    ``reduce``: a JSON Schema as text, by whose annotations the rows of a key are reduced to one; its properties are the
    columns.  The collection is append-only then.  ``gives_up``: the resource is emptied, and left for any task to fill.
    ``task``: the materialization's name, for what messages advise; its `MaterializationSpec` says it of all its
    bindings.

    >>> from strandline.algebra.schema import Column
    >>> Binding("v", "t", ("a",), Schema((Column("a", "int"),)), backfill=2).state_key
    't.v2'
    >>> Binding("v", "t", ("a",), Schema((Column("a", "int"),)), incarnation="shard-7").state_key
    't.v0-shard-7'
    >>> Binding("v", "t", ("a",), Schema((Column("a", "int"),)), incarnation="m-1@l-1").elsewhere("t.v0-m-1@l-2")
    True
    >>> Binding("v", "t", ("a",), Schema((Column("a", "int"),)), incarnation="m-1@l-1", gives_up=True).state_key
    't.v0-m-1@l-1!'
    """

    collection: str
    resource: str
    key: tuple[str, ...]
    schema: Schema
    backfill: int = 0
    incarnation: str = ""
    delta: bool = False
    times: bool = False
    diffs: bool = False
    reduce: str = ""
    gives_up: bool = False
    task: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.key and not self.delta:
            raise DefinitionError(
                f"{self.collection!r} cannot be materialized into {self.resource!r}: its rows have no key; "
                "declare one with KEY (column, ...)"
            )
        if (self.times or self.diffs) and not self.delta:
            raise DefinitionError(
                f"{self.collection!r} into {self.resource!r}: only what is pushed as changes has times and diffs"
            )
        if self.reduce and (self.times or self.diffs or not self.key):
            raise DefinitionError(
                f"{self.collection!r} into {self.resource!r}: what is reduced has a key, and neither times nor diffs"
            )
        for name in self.key:
            if name not in self.schema.names:
                raise DefinitionError(
                    f"{self.collection!r} has no column {name!r} to be its KEY; it has {', '.join(self.schema.names)}"
                )
        if _INCARNATION.fullmatch(self.incarnation) is None:
            raise InvalidUsage(f"{self.incarnation!r} cannot be an incarnation: a-z, 0-9 and -, no - at its end")
        if len(set(self.key)) != len(self.key):
            raise DefinitionError(f"{self.collection!r}: a column is twice in KEY ({', '.join(self.key)})")

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of a row as it is stored: those of the collection, ``__time`` and ``__diff`` if it has them."""
        further = ((TIME, self.times), (DIFF, self.diffs))
        return (*self.schema, *(Column(name, "bigint") for name, wanted in further if wanted))

    @property
    def by_time(self) -> bool:
        """Whether its changes are read apart by time."""
        return self.times or bool(self.reduce)

    @property
    def state_key(self) -> str:
        """The key of this binding's progress; it changes with the data and with the counter."""
        key = "-".join((f"{self.resource}.v{self.backfill}", self.incarnation)).removesuffix("-")
        return f"{key}{GIVEN_UP}" if self.gives_up else key

    def elsewhere(self, state_key: str) -> bool:
        """Return whether a state key belongs to another location; False if one of the two locations is not known."""
        ours, theirs = location_of(self.state_key), location_of(state_key)
        return bool(ours and theirs) and ours != theirs

    def require_newest(self, held: Iterable[str]) -> None:
        """Check that the materialization has not filled the resource anew, as the state keys of an endpoint say.

        What Apply does for an older binding would be done to its successor's rows; no log stops a process that sleeps
        in the middle of an Apply.  The counter grows, too, when another collection takes the place of one.

        Raises:
            FencedError: it has: from the same data, or from another collection.
        """
        item = item_of(self.state_key)
        for state_key in held:
            backfill, _, incarnation = state_key.removesuffix(GIVEN_UP).rpartition(".v")[2].partition("-")
            replaces = item and (item, location_of(self.state_key)) == (item_of(state_key), location_of(state_key))
            same = resource_of(state_key) == self.resource and (replaces or incarnation == self.incarnation)
            if same and int(backfill) > self.backfill:
                raise FencedError(
                    f"{self.resource!r} is filled by a later session: its backfill is {backfill}, "
                    f"and this one's is {self.backfill}"
                )


@dataclass(frozen=True, slots=True)
class MaterializationSpec:
    """A task: a name, its bindings, and the endpoint's own configuration (JSON; never a secret's value).

    ``splits``: how many runtimes do it side by side.

    >>> from strandline.algebra.schema import Column
    >>> MaterializationSpec("m", (Binding("v", "t", ("a",), Schema((Column("a", "int"),))),)).bindings[0].task
    'm'
    """

    name: str
    bindings: tuple[Binding, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    splits: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.splits <= SPLITS_MAX:
            raise DefinitionError(f"materialization {self.name!r} can have 1 to {SPLITS_MAX} splits, not {self.splits}")
        if not self.bindings:
            raise DefinitionError(f"materialization {self.name!r} has no bindings")
        seen: dict[str, str] = {}
        for binding in self.bindings:
            folded = binding.resource.casefold()
            if folded in seen:
                raise DefinitionError(
                    f"materialization {self.name!r}: resources {seen[folded]!r} and {binding.resource!r} are one "
                    "(names are compared without case)"
                )
            seen[folded] = binding.resource
        object.__setattr__(self, "bindings", tuple(replace(each, task=self.name) for each in self.bindings))

    @property
    def state_keys(self) -> tuple[str, ...]:
        """The state key of each binding, in their order."""
        return tuple(b.state_key for b in self.bindings)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Per state key, the time before which everything is in the resource.  Empty: nothing is committed yet.

    >>> c = Checkpoint((("t.v0", 5), ("u.v0", 5))).advance(("t.v1", "w.v0"), 9)
    >>> c.times
    (('t.v1', 9), ('u.v0', 5), ('w.v0', 9))
    >>> c.of("t.v0"), c.time(("t.v1", "w.v0")), c.time(("t.v1", "x.v0")), Checkpoint.decode(c.encode()) == c
    (None, 9, 0, True)
    """

    times: tuple[tuple[str, int], ...] = ()

    def of(self, state_key: str) -> int | None:
        """Return the time of one binding, or None if nothing of it was committed yet."""
        return dict(self.times).get(state_key)

    def time(self, state_keys: Sequence[str]) -> int:
        """Return the time before which *all* of these are complete; 0 if one has not begun, or there is none."""
        times = dict(self.times)
        return min((times.get(key, 0) for key in state_keys), default=0)

    def advance(self, state_keys: Sequence[str], upper: int) -> Checkpoint:
        """Return the checkpoint after all of these reached ``upper``.

        Entries of other resources are kept (a binding that was removed may come back); entries of another backfill of
        the same resource are dropped, because its rows are gone.
        """
        ours = {resource_of(key) for key in state_keys}
        kept = {key: time for key, time in self.times if resource_of(key) not in ours}
        return Checkpoint(tuple(sorted({**kept, **dict.fromkeys(state_keys, upper)}.items())))

    @staticmethod
    def common(checkpoints: Iterable[Checkpoint]) -> Checkpoint:
        """Return the times on which all of these agree; there is one at least.

        >>> Checkpoint.common([Checkpoint((("t.v0", 5), ("u.v0", 5))), Checkpoint((("t.v0", 5), ("u.v0", 9)))]).times
        (('t.v0', 5),)
        """
        return Checkpoint(tuple(sorted(frozenset.intersection(*(frozenset(each.times) for each in checkpoints)))))

    def mentions(self, binding: Binding) -> bool:
        """Return whether the binding's location has filled its resource, under any backfill, and not given it up."""
        filled = (key for key, _ in self.times if resource_of(key) == binding.resource and not given_up(key))
        return any(not binding.elsewhere(key) for key in filled)

    def lacking(self, state_keys: Collection[str]) -> Checkpoint:
        """Return the checkpoint without some entries."""
        return Checkpoint(tuple((key, time) for key, time in self.times if key not in state_keys))

    def encode(self) -> str:
        """Return the JSON text that endpoints and the recovery log keep: an object of times by state key."""
        return msgspec.json.encode(dict(self.times)).decode()

    @staticmethod
    def decode(text: str) -> Checkpoint:
        """Return what `encode` wrote.  Raises `CorruptionError` for anything else."""
        try:
            return Checkpoint(tuple(sorted(_times.decode(text).items())))
        except msgspec.MsgspecError as error:
            raise CorruptionError(f"a checkpoint is not an object of times by state key ({error}): {text!r}") from error


_times: Final = msgspec.json.Decoder(dict[str, int])
NOTHING: Final = Checkpoint()


def resource_of(state_key: str) -> str:
    """Return the resource that a state key belongs to.

    >>> resource_of("a.v1.v12"), resource_of("a.v0-shard-7")
    ('a.v1', 'a')
    """
    return state_key.rpartition(".v")[0]


def item_of(state_key: str) -> str:
    """Return the id of the materialization that a state key belongs to; empty: it is not known.

    >>> item_of("a@b.v0-m-1-s-7@l-1"), item_of("a@b.v0-shard-7")
    ('m-1', '')
    """
    return state_key.rpartition(".v")[2].partition("@")[0].partition("-")[2].rpartition(BEFORE_SHARD)[0]


def location_of(state_key: str) -> str:
    """Return the id of the location that a state key belongs to; empty: it is not known.

    >>> location_of("a@b.v0-shard-7@l-1"), location_of("a@b.v0-shard-7"), location_of("a@b.v0-shard-7@l-1!")
    ('l-1', '', 'l-1')
    """
    return state_key.removesuffix(GIVEN_UP).rpartition(".v")[2].partition("@")[2]


def given_up(state_key: str) -> bool:
    """Return whether a binding has emptied its resource, and left it, once its state key is in a checkpoint.

    >>> given_up("a.v1-shard-7@l-1!"), given_up("a!.v1")
    (True, False)
    """
    return state_key.endswith(GIVEN_UP)


@dataclass(frozen=True, slots=True)
class Extent:
    """The changes of one transaction: of every binding, from its time in ``start`` up to ``upper``.

    It follows the checkpoint ``base``, and nothing changed from there to ``start``.  (``start`` is kept because since
    holds may have moved there, so earlier times may no longer be readable.)

    ``keys``: the state keys of these bindings; none in a log that an earlier version wrote.
    """

    base: Checkpoint
    start: Checkpoint
    upper: int
    keys: tuple[str, ...] = ()

    def concerns(self, state_keys: Iterable[str]) -> bool:
        """Return whether a task with these bindings has anything of it to replay: not if each is filled anew.

        >>> [Extent(NOTHING, NOTHING, 9, ("t.v0", "u.v0")).concerns(keys) for keys in (("t.v1", "u.v0"), ("t.v1",))]
        [True, False]
        """
        return not self.keys or not frozenset(self.keys).isdisjoint(state_keys)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a task, as its recovery log keeps it.

    ``checkpoint`` is the last one committed.  ``position`` is the same or later: nothing has changed between the two,
    so the endpoint is right there too, although no message was sent.  ``extent`` is the transaction whose first rows
    may have been sent; it is replayed only while ``checkpoint == extent.base``.  Afterwards it is the one that led to
    ``checkpoint``, until the endpoint has acknowledged that.

    >>> from dataclasses import replace
    >>> moved = Progress(Checkpoint((("t.v0", 9),)), Checkpoint((("t.v0", 9),)))
    >>> begun = Extent(Checkpoint((("t.v0", 3),)), Checkpoint((("t.v0", 5),)), 9)
    >>> moved.acknowledged.times, replace(moved, extent=begun).acknowledged.times
    ((('t.v0', 9),), (('t.v0', 5),))
    """

    checkpoint: Checkpoint = NOTHING
    position: Checkpoint = NOTHING
    extent: Extent | None = None

    @property
    def sent(self) -> int:
        """The last time before which changes may have been sent to the endpoint, of any binding."""
        times = [time for _, time in (*self.checkpoint.times, *self.position.times)]
        return max([0, *times, *([] if self.extent is None else [self.extent.upper])])

    @property
    def committing(self) -> bool:
        """Whether the log has committed a transaction that the endpoint may not have yet."""
        return self.extent is not None and self.extent.base != self.checkpoint

    @property
    def acknowledged(self) -> Checkpoint:
        """The times before which the endpoint has everything, as it has said: those before a commit under way."""
        return self.extent.start if self.extent is not None and self.committing else self.position


@dataclass(frozen=True, slots=True)
class StateUpdate:
    """A new state, or (``merge_patch``) a change of the current one."""

    updated: Any
    merge_patch: bool = False

    def apply(self, state: Any) -> Any:
        """Return the state after this update of ``state``.

        >>> StateUpdate({"b": {"c": None, "d": 2}}, merge_patch=True).apply({"a": 1, "b": {"c": 1}})
        {'a': 1, 'b': {'d': 2}}
        >>> StateUpdate({"b": None}).apply({"a": 1})
        {'b': None}
        """
        return merge(state, self.updated) if self.merge_patch else self.updated


def merge(target: Any, patch: Any) -> Any:
    """Return ``target`` with the JSON merge patch applied; neither is changed.

    >>> merge({"a": "b"}, {"a": ["c"]}), merge([1], {"a": {"b": None}}), merge({"a": 1}, None)
    ({'a': ['c']}, {'a': {}}, None)
    """
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


# The reference model: what an endpoint's table holds after a list of changes, computed with a dictionary.  It is never
# optimised: tests compare `stores`, the runtime and every driver with it.
def contents(
    binding: Binding, changes: Iterable[tuple[Mapping[str, Any], int]]
) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return the sum of ``(row, diff)`` changes, starting from nothing: one row per key.

    >>> from strandline.algebra.schema import Column, Schema
    >>> b = Binding("v", "t", ("k",), Schema((Column("k", "int"), Column("x", "int"))))
    >>> contents(b, [({"k": 1, "x": 1}, 1), ({"k": 1, "x": 1}, -1), ({"k": 1, "x": 2}, 1)])
    {('1',): {'k': 1, 'x': 2}}
    """
    counts: dict[str, int] = {}
    rows: dict[str, dict[str, Any]] = {}
    for row, diff in changes:
        whole = canonical(dict(row))
        rows[whole] = dict(row)
        counts[whole] = counts.get(whole, 0) + diff
    table: dict[tuple[str, ...], dict[str, Any]] = {}
    for whole, count in counts.items():
        if count == 0:
            continue
        key = tuple(canonical(rows[whole][name]) for name in binding.key)
        if count != 1 or key in table:
            raise DefinitionError(f"{binding.collection!r}: more than one row has the key {key}")
        table[key] = rows[whole]
    return table


def canonical(value: object) -> str:
    """Return a text that is the same for values that SQL calls not distinct.

    >>> canonical(-0.0) == canonical(0.0), canonical(float("nan")) == canonical(float("nan")), canonical(None)
    (True, True, 'None')
    """
    return repr(value + 0.0 if isinstance(value, float) else value)
