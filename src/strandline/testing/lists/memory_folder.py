"""A folder in memory, for readers in a simulation and in tests.

Source: `strandline.sources.readers.files.folder`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import google_crc32c

from strandline.sources.readers.files.folder import END_BYTES, Checked, Ends, Stamp


class MemoryFolder:
    """A `Folder` that a test fills.  ``opened`` are the files that were read, in that order."""

    root = "/in"

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, Stamp]] = {}
        self.opened: list[str] = []
        self._inodes = 0

    def write(self, name: str, data: bytes, *, mtime_ms: int) -> None:
        """Put a new file under ``name``."""
        self._inodes += 1
        self.files[name] = (data, Stamp(len(data), mtime_ms * 1_000_000, self._inodes))

    async def list(self) -> dict[str, Stamp]:
        """See `Folder.list`."""
        return {name: stamp for name, (_, stamp) in sorted(self.files.items())}

    async def look(self, names: Sequence[str]) -> dict[str, Stamp]:
        """See `Folder.look`."""
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

    def _read(self, sizes: Mapping[str, int]) -> dict[str, bytes | OSError]:
        self.opened += sizes
        missing = FileNotFoundError(2, "No such file or directory")
        return {name: self.files[name][0][:size] if name in self.files else missing for name, size in sizes.items()}
