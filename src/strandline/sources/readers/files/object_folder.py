"""A folder in an object store: names are the keys below a prefix, and an object appears whole.

A store lists keys in order, a thousand an answer, and has no modification time of a prefix.  So a listing asks for
`LIST_MAX` keys where the last one stopped, in turn through all of them, and for those beyond the greatest key known.
Below so many keys all are listed each time.  With more, what comes in the order of its keys (``2026/11/24/0001.json``)
is seen at once, and what comes, goes or changes elsewhere when its turn comes: of a million keys, within 200 listings.

An object's tag says what it is, so no object is read to see whether it changed.  Written again with the same bytes in
one piece it has the same tag; in pieces of other sizes it has another, and is then another object.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import obstore
import xxhash
from obstore import exceptions

from strandline.errors import first_line
from strandline.sources.readers.files.folder import END_BYTES, Checked, Ends, Glob, Listing, Stamp
from strandline.store.blob_kinds.object_location import READ_RETRIES_MAX, ObjectLocation

LIST_MAX: Final = 5_000
PAGE: Final = 1_000
_ABSENT: Final = (FileNotFoundError, exceptions.NotFoundError)
_FAILURES: Final = (exceptions.BaseError, PermissionError, FileNotFoundError)


class ObjectFolder:
    """The `Folder` of the objects below ``location`` whose keys match the glob ``pattern``.

    ``spark_root``: the location as the engine names it.
    """

    looks = 0  # listings show what changed
    whole = True

    def __init__(self, location: ObjectLocation, pattern: str, spark_root: str) -> None:
        self._store = location.open(retries=READ_RETRIES_MAX)
        scheme, _, rest = location.url.partition("://")
        bucket, _, self._prefix = rest.partition("/")
        self._bucket = ObjectLocation(f"{scheme}://{bucket}", location.options).open(retries=READ_RETRIES_MAX)
        self._glob = Glob(pattern)
        self._root = spark_root
        self._names: list[str] | None = None  # in order; None before the first listing
        self._tags: dict[str, int] = {}
        self._cursor = ""
        self._fresh: dict[str, Stamp] = {}  # of the last listing

    @property
    def root(self) -> str:
        """See `Folder.root`."""
        return self._root

    async def changes(self) -> Listing:
        """See `Folder.changes`."""
        if self._names is None:
            found, _ = await self._page("", None)
            names, self._tags = sorted(found), {name: stamp.inode for name, stamp in found.items()}
            self._names, self._fresh = names, found
            return Listing(names, ())
        known, start = self._names, self._cursor
        turn, end = await self._page(start, LIST_MAX)
        tail = await self._page(known[-1], None) if end is not None and known and end < known[-1] else ({}, None)
        found = turn | tail[0]
        upto = len(known) if end is None else bisect_right(known, end)
        gone = [name for name in islice(known, bisect_right(known, start), upto) if name not in found]
        came = sorted(name for name, stamp in found.items() if self._tags.get(name) != stamp.inode)
        new = [name for name in came if name not in self._tags]
        self._names = _merged(known, gone, new)
        self._tags |= {name: stamp.inode for name, stamp in found.items()}
        for name in gone:
            del self._tags[name]
        self._cursor, self._fresh = end or "", found
        return Listing(came, gone)

    async def look(self, names: Sequence[str], *, listed: bool = False) -> dict[str, Stamp]:
        """See `Folder.look`."""
        found = {}
        for name in names:
            stamp = (self._fresh.get(name) if listed else None) or await self._head(name)
            if stamp is not None:
                found[name] = stamp
        return found

    async def ends(self, sizes: Mapping[str, int]) -> dict[str, Ends | OSError]:
        """See `Folder.ends`."""
        found: dict[str, Ends | OSError] = {}
        for name, size in sizes.items():
            try:
                length = min(END_BYTES, size)
                head = await obstore.get_range_async(self._store, name, start=0, length=length) if size else b""
                start = max(0, size - END_BYTES)
                tail = await obstore.get_range_async(self._store, name, start=start, length=length) if size else b""
                found[name] = Ends(bytes(head), bytes(tail))
            except _FAILURES as error:
                found[name] = _ours(error)
        return found

    async def check(self, sizes: Mapping[str, int]) -> dict[str, Checked | OSError]:
        """See `Folder.check`: by the object's tag."""
        found: dict[str, Checked | OSError] = {}
        for name in sizes:
            try:
                stamp = self._fresh.get(name) or await self._head(name)
            except OSError as error:
                found[name] = error
            else:
                found[name] = Checked(0 if stamp is None else stamp.inode & 0xFFFFFFFF, stamp)
        return found

    async def remove(self, names: Iterable[str], archive: str) -> dict[str, OSError | None]:
        """See `Folder.remove`; ``archive`` is a prefix of the same bucket, as a URL."""
        found: dict[str, OSError | None] = {}
        for name in names:
            try:
                if archive:
                    await self._archive(name, archive)
                await obstore.delete_async(self._store, name)
                found[name] = None
            except _ABSENT:
                found[name] = None
            except _FAILURES as error:
                found[name] = _ours(error)
        return found

    async def _archive(self, name: str, archive: str) -> None:
        """Copy an object within its bucket; the copy is whole when it has its name."""
        target = archive.partition("://")[2].partition("/")[2].strip("/")
        await obstore.copy_async(self._bucket, _joined(self._prefix, name), _joined(target, name))

    async def _page(self, after: str, most: int | None) -> tuple[dict[str, Stamp], str | None]:
        """Return the files whose keys come after ``after``, of about so many keys, and the last key if there are more.

        Raises `OSError`.
        """
        found, seen, last = dict[str, Stamp](), 0, after
        try:
            async for page in obstore.list(self._store, offset=after or None, chunk_size=PAGE):
                for entry in page:
                    last, seen = entry["path"], seen + 1
                    if self._matches(last):
                        found[last] = _stamp(entry)
                if most is not None and seen >= most:
                    return found, last
        except _FAILURES as error:
            raise _ours(error) from error
        return found, None

    def _matches(self, name: str) -> bool:
        *above, own = name.split("/")
        states = self._glob.start
        for part in above:
            states = self._glob.below(states, part)
        return self._glob.matcher(states)(own)

    async def _head(self, name: str) -> Stamp | None:
        try:
            return _stamp(await obstore.head_async(self._store, name))
        except _ABSENT:
            return None
        except _FAILURES as error:
            raise _ours(error) from error


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix else name


def _stamp(entry: Any) -> Stamp:
    mtime_ns = int(entry["last_modified"].timestamp() * 1_000) * 1_000_000
    tag = entry["e_tag"] or f"{entry['size']} {mtime_ns}"
    return Stamp(entry["size"], mtime_ns, xxhash.xxh64_intdigest(tag.encode()) >> 1)


def _merged(known: list[str], gone: Sequence[str], new: Sequence[str]) -> list[str]:
    """Return the names in order; where the new ones come last, as they mostly do, nothing is sorted."""
    kept = known
    if gone:
        left = {*gone}
        kept = [name for name in known if name not in left]
    if not new:
        return kept
    if kept and new[0] < kept[-1]:
        at = bisect_left(kept, new[0])
        return kept[:at] + sorted([*kept[at:], *new])
    return [*kept, *new]


def _ours(error: BaseException) -> OSError:
    return OSError(5, first_line(error))
