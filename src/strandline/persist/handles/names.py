"""Names: the shard, codec and schema of each named collection of a location.

All names are in one register, and every change is a compare-and-set of the whole register, so two processes that create
one name at once get the same shard.  A shard's id is fresh: a name that is dropped and created again means another
collection, and a process that still has the old one open sees nothing of the new one.

A name may be any text.  Paths contain the shard's id (`store.keys.segment`), never the name.

Warning: this register is for collections that programs name (streams).  The environment's catalog, another register,
names the objects that SQL defines.
"""

from __future__ import annotations

from typing import Final

import msgspec

from strandline.errors import CorruptionError, InvalidUsage
from strandline.persist.handles.register import Register, refuse_future_json
from strandline.store.clock import Ids

KEY: Final = "names"
OWNERS: Final = frozenset({"stream", "multi"})
"""The owners of the shards named here: streams, and collections that programs write together."""
FORMAT: Final = 1


class Named(msgspec.Struct, frozen=True):
    """What a name means.  ``codec`` says how rows become bytes; ``schema`` describes the rows in the codec's words."""

    shard: str
    codec: str
    schema: str


class _Names(msgspec.Struct, frozen=True):
    """``dropped``: shards whose name was dropped and that are not closed yet."""

    format: int = FORMAT
    names: dict[str, Named] = {}
    dropped: tuple[str, ...] = ()


_decoder = msgspec.json.Decoder(_Names)
_encode = msgspec.json.Encoder().encode


class Names:
    """The names of a location, kept in ``register`` (its key is `KEY`)."""

    def __init__(self, register: Register, ids: Ids) -> None:
        self._register = register
        self._ids = ids

    async def create_or_load(self, name: str, *, codec: str, schema: str) -> Named:
        """Return what ``name`` means; if it means nothing yet, a fresh shard.

        Raises:
            InvalidUsage: it was created with another codec or schema.
            Indeterminate: it may or may not have been created; ask again.
        """
        known = await self.load(name, codec=codec, schema=schema)
        if known is None:
            known = (await self._change(name, None, Named(self._ids.fresh("s"), codec, schema)))[name]
            _refuse_another(name, known, codec, schema)
        return known

    async def load(self, name: str, *, codec: str, schema: str) -> Named | None:
        """Return what ``name`` means; None: nothing.  Raises `InvalidUsage` as `create_or_load`."""
        known = (await self._read()).names.get(name)
        if known is not None:
            _refuse_another(name, known, codec, schema)
        return known

    async def drop(self, name: str, meant: Named, *, closed: bool) -> None:
        """Drop ``name`` if it still means ``meant``; a collection created since under the same name stays.

        Unless its shard is ``closed`` already, `dropped` lists it until `closed` is called for it.
        """
        await self._change(name, meant, None, left=() if closed else (meant.shard,))

    async def dropped(self) -> frozenset[str]:
        """Return the shards that were dropped and are not closed yet, for example because a process died in between."""
        return frozenset((await self._read()).dropped)

    async def closed(self, shard: str) -> None:
        """Record that ``shard``, which was dropped, is closed."""

        def step(body: bytes | None) -> bytes | None:
            before = _decode(body)
            left = tuple(other for other in before.dropped if other != shard)
            return None if left == before.dropped else _encode(msgspec.structs.replace(before, dropped=left))

        await self._register.update(step)

    async def all(self) -> dict[str, Named]:
        """Return all names, in the order of their names."""
        return dict(sorted((await self._read()).names.items()))

    async def _read(self) -> _Names:
        return _decode(await self._register.read())

    async def _change(
        self, name: str, was: Named | None, to: Named | None, *, left: tuple[str, ...] = ()
    ) -> dict[str, Named]:
        def step(body: bytes | None) -> bytes | None:
            before = _decode(body)
            names = dict(before.names)
            if names.get(name) != was:
                return None  # another process was faster, or our own change landed and its answer was lost
            names.pop(name, None)
            if to is not None:
                names[name] = to
            return _encode(_Names(names=names, dropped=(*before.dropped, *left)))

        return _decode(await self._register.update(step)).names


def _refuse_another(name: str, known: Named, codec: str, schema: str) -> None:
    if (known.codec, known.schema) != (codec, schema):
        raise InvalidUsage(
            f"{name!r} holds {known.schema!r} in codec {known.codec!r}; it cannot be opened as {schema!r} in {codec!r}"
        )


def _decode(body: bytes | None) -> _Names:
    if body is None:
        return _Names()
    refuse_future_json("the names are kept", body, FORMAT)
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError as error:
        raise CorruptionError(f"the names cannot be read by this version of strandline: {error}") from error
