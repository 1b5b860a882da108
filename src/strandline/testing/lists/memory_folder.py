"""A folder in memory, for readers in a simulation and in tests.

See `strandline.sources.readers.files.folder`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import google_crc32c

from strandline.sources.readers.files.folder import END_BYTES, Checked, Ends, Listing, Stamp


class MemoryFolder:
    """A `Folder` that a test fills.

    ``opened`` are the files that were read, in that order; ``looked`` those that were looked at; ``left`` those that
    were removed, with the archive.
    """

    root = "/in"
    looks = 1_000
    whole = False

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, Stamp]] = {}
        self.opened: list[str] = []
        self.looked: list[str] = []
        self.left: list[tuple[str, str]] = []
        self._inodes = 0
        self._listed: dict[str, int] = {}

    def again(self) -> MemoryFolder:
        """Return the same folder as another process sees it: at its first listing all files come."""
        other = MemoryFolder()
        other.files, other.opened, other.looked, other.left = self.files, self.opened, self.looked, self.left
        return other

    def write(self, name: str, data: bytes, *, mtime_ms: int) -> None:
        """Put a new file under ``name``."""
        self._inodes += 1
        self.files[name] = (data, Stamp(len(data), mtime_ms * 1_000_000, self._inodes))

    async def changes(self) -> Listing:
        """See `Folder.changes`."""
        before, self._listed = self._listed, {name: stamp.inode for name, (_, stamp) in self.files.items()}
        came = sorted(name for name, inode in self._listed.items() if before.get(name) != inode)
        return Listing(came, [name for name in before if name not in self._listed])

    async def look(self, names: Sequence[str], *, listed: bool = False) -> dict[str, Stamp]:
        """See `Folder.look`."""
        self.looked += names
        return {name: self.files[name][1] for name in names if name in self.files}

    async def ends(self, sizes: Mapping[str, int]) -> dict[str, Ends | OSError]:
        """See `Folder.ends`."""
        return {
            name: data if isinstance(data, OSError) else Ends(data[:END_BYTES], data[-END_BYTES:])
            for name, data in self._read(sizes).items()
        }

    async def check(self, sizes: Mapping[str, int]) -> dict[str, Checked | OSError]:
        """See `Folder.check`."""
        return {
            name: data if isinstance(data, OSError) else Checked(google_crc32c.value(data), self.files[name][1])
            for name, data in self._read(sizes).items()
        }

    async def remove(self, names: Iterable[str], archive: str) -> dict[str, OSError | None]:
        """See `Folder.remove`."""
        done = list(names)
        self.left += [(name, archive) for name in done if self.files.pop(name, None) is not None]
        return dict.fromkeys(done)

    def _read(self, sizes: Mapping[str, int]) -> dict[str, bytes | OSError]:
        self.opened += sizes
        missing = FileNotFoundError(2, "No such file or directory")
        return {name: self.files[name][0][:size] if name in self.files else missing for name, size in sizes.items()}
