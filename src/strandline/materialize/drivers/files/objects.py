"""Where the files of tables are: a directory, or a prefix of an object store.

Beside the calls of `Place` there is one that makes a commit: `publish` stores an object under a name that no object
has, whole or not at all.  In a directory that is a link to a file that is complete; in an object store a conditional
put.  It is never repeated here: after a lost answer the next look shows whether it happened.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from strandline.materialize.drivers.staged.place import LocalPlace, Place
from strandline.store.clock import Ids


class Objects(Place, Protocol):
    """A `Place` in which commits can be made."""

    def publish(self, name: str, data: bytes) -> bool:
        """Store an object iff there is none of this name; return whether it was stored.

        Raises `Unavailable` if that is not known.
        """
        ...

    def get(self, name: str) -> bytes | None:
        """Return an object, or None."""
        ...


class LocalObjects(LocalPlace):
    """A directory of this machine."""

    def __init__(self, root: Path, ids: Ids) -> None:
        super().__init__(root)
        self._at = root
        self._ids = ids

    def publish(self, name: str, data: bytes) -> bool:
        """See `Objects.publish`."""
        draft = f"{name.rpartition('/')[0]}/.{self._ids.fresh('draft')}"
        with self.create(draft) as sink:
            sink.write(data)
        try:
            os.link(self._at / draft, self._at / name)
        except FileExistsError:
            return False
        finally:
            (self._at / draft).unlink()
        descriptor = os.open((self._at / name).parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return True

    def get(self, name: str) -> bytes | None:
        """See `Objects.get`."""
        with suppress(FileNotFoundError):
            return (self._at / name).read_bytes()
        return None
