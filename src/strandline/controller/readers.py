"""Reading handles of an environment's collections, and the leases of those that hold what they hand out."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress

from strandline.algebra.schema import Schema
from strandline.controller.location.catalog import CatalogStore
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import Collected, begins_of
from strandline.controller.retention import policy_of
from strandline.errors import AsOfError, StoreError, StrandlineError, Unavailable
from strandline.frontier import Frontier, as_time
from strandline.instance.instance import unopened
from strandline.persist.client import PersistClient
from strandline.persist.handles.read import ReadHandle
from strandline.persist.shard.holds import given_up


class Readers:
    """A handle for each shard that was asked for, another one for each that is held, and one for each subscription."""

    def __init__(self, client: PersistClient, catalogs: CatalogStore, config: Config, mode: Mode) -> None:
        self._client = client
        self._catalogs = catalogs
        self._config = config
        self._mode = mode
        self._known: dict[str, ReadHandle] = {}  # by shard
        self._held: dict[str, ReadHandle] = {}
        self._following: list[ReadHandle] = []

    async def of(self, name: str) -> ReadHandle:
        """Return the reading handle of a collection.

        Raises `DefinitionError` with candidates if there is no such collection.
        """
        item = self._catalogs.current.collection(name)
        if item.shard not in self._known:
            reader = await plain(self._client, item, self.kept(item))
            if reader is None:
                raise unopened(item.name)
            self._known[item.shard] = reader
        return self._as_it_is(self._known[item.shard], item)

    async def holding(self, name: str) -> ReadHandle:
        """Return a reading handle of a collection that holds what it hands out, where this mode may hold anything.

        Raises as `of`.
        """
        if self._mode is Mode.INDEPENDENT:
            return await self.of(name)
        item = self._catalogs.current.collection(name)
        known = self._held.get(item.shard)
        if known is not None:
            try:
                await _beat(known)
            except AsOfError:  # this process slept for longer than its lease
                del self._held[item.shard]
            else:
                return self._as_it_is(known, item)
        reader = self._held[item.shard] = await self._leased(item)
        return reader

    async def following(self, name: str) -> ReadHandle:
        """Return a reading handle of a collection with a lease of its own, at where it stands: see `unfollow`.

        Raises as `of`.
        """
        reader = await self._leased(self._catalogs.current.collection(name))
        self._following.append(reader)
        return reader

    async def lasting(self, name: str, until: AsyncExitStack) -> ReadHandle:
        """Return a reading handle that reads ``until`` its end what it can read now, where this mode may hold anything.

        Raises as `of`.
        """
        if self._mode is Mode.INDEPENDENT:
            return await self.of(name)
        reader = await self.following(name)
        until.push_async_callback(self.unfollow, reader)
        return reader

    async def lasting_state(self, shard: str, schema: Schema, name: str, until: AsyncExitStack) -> ReadHandle | None:
        """Return the same for the state of a stage, called ``name`` in messages; None if there is none yet."""
        if self._mode is Mode.INDEPENDENT:
            return await self._client.reader(shard, schema, name)
        reader = await self._client.leased_reader(shard, schema, name)
        if reader is not None:
            self._following.append(reader)
            until.push_async_callback(self.unfollow, reader)
        return reader

    async def unfollow(self, reader: ReadHandle) -> None:
        """Give up the lease of a handle that `following` returned; if it cannot be given up, it ends by itself."""
        self._following.remove(reader)
        with suppress(StoreError, Unavailable):
            await reader.close()

    async def beat(self) -> None:
        """Renew the leases of the readers that hold something, and release the past that none of them may read.

        A lease on a shard that was given up ends, once nothing that it holds is being read: else it would keep for ever
        what was dropped, here or by another process.
        """
        for reader in list(self._following):
            with suppress(StrandlineError):  # one that has lost its lease meets that when it goes on
                await reader.beat()
        for shard, reader in list(self._held.items()):
            try:
                await _beat(reader)
                if given_up(reader.state) and not reader.needed:
                    del self._held[shard]
                    await reader.close()
            except AsOfError:
                self._held.pop(shard, None)
            except StrandlineError:
                continue  # the next beat may come through

    def forget(self, shard: str) -> None:
        """Forget the handle of a shard that was dropped."""
        self._known.pop(shard, None)

    async def close(self) -> None:
        """Give up all leases; one that cannot be given up ends by itself."""
        with suppress(StoreError, Unavailable):
            for reader in (*self._held.values(), *self._following):
                await reader.close()

    async def _leased(self, item: Collected) -> ReadHandle:
        reader = await leased(self._client, item, self.kept(item))
        if reader is None:
            raise unopened(item.name)
        return reader

    def _as_it_is(self, reader: ReadHandle, item: Collected) -> ReadHandle:
        """Have a handle read what its item is now: it may have columns, a name or a policy that are new."""
        reader.name, reader.schema = item.name, item.schema
        reader.kept, reader.begins = self.kept(item), begins_of(item)
        return reader

    def kept(self, item: Collected) -> str:
        """Return for how long the history of a collection is kept, as its author wrote it."""
        return policy_of(item, self._config).text


async def plain(client: PersistClient, item: Collected, kept: str = "") -> ReadHandle | None:
    """Return a handle of a collection that holds nothing; None if its shard does not exist yet."""
    return await client.reader(item.shard, item.schema, item.name, kept=kept, begins=begins_of(item))


async def leased(client: PersistClient, item: Collected, kept: str = "", lease: str | None = None) -> ReadHandle | None:
    """Return a handle of a collection with a lease, one of its own or one by its name; None as `plain`."""
    begins = begins_of(item)
    return await client.leased_reader(item.shard, item.schema, item.name, kept=kept, begins=begins, lease=lease)


async def _beat(reader: ReadHandle) -> None:
    """Show that a reader is there; what it handed out is held by the versions that it is in, whatever since is.

    How long history stays is for the environment that writes to say: a reader holds what it may be planning now.
    """
    await reader.downgrade_since(Frontier(max(0, as_time(reader.state.upper) - 1)))
