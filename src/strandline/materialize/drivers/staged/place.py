"""Place: the files of one table, by their names below its directory.  Every call blocks.

A file is written once and never changed, so it needs no lock; it counts only when a commit names it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, cast

import pyarrow.fs as pa_fs

from strandline.errors import DefinitionError

PART_LENGTH_MAX: Final = 255
"""So many bytes a file system lets a directory's name have."""
DIRECTORY_TRIES: Final = 10
_ESCAPE: Final = "!"


class Place(Protocol):
    """Where the files of a table are.  A name that is not there is a `FileNotFoundError`."""

    def create(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Write a new file; after the context's end without an error it is there, whole and durable."""
        ...

    def open(self, name: str) -> AbstractContextManager[Any]:
        """Read a file: what Arrow takes as a source."""
        ...

    def size(self, name: str) -> int:
        """Return the size of a file."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""
        ...

    def below(self, directory: str) -> list[str]:
        """Return the names of the files in a directory; none if there is no such directory."""
        ...


def path_part(name: str) -> str:
    """Return a name as a directory's: another one for each name, and never hidden.

    >>> path_part("Orders"), path_part("a/b"), path_part("_x"), path_part("é"), path_part("..")
    ('Orders', 'a!2fb', '!5fx', '!c3!a9', '!2e.')

    Raises:
        DefinitionError: it is empty, is no text that can be encoded, or is too long.
    """
    try:
        pieces = [char if _plain(char) else "".join(f"{_ESCAPE}{b:02x}" for b in char.encode()) for char in name]
    except UnicodeEncodeError as error:
        raise DefinitionError(f"the name {name!r} is not text: it holds half of a surrogate pair") from error
    if pieces and pieces[0] in {"_", "."}:
        pieces[0] = f"{_ESCAPE}{ord(pieces[0]):02x}"
    part = "".join(pieces)
    if not 0 < len(part) <= PART_LENGTH_MAX:
        raise DefinitionError(f"the name {name!r} cannot be a directory's: it is empty or too long; choose another one")
    return part


def _plain(char: str) -> bool:
    return char.isascii() and (char.isalnum() or char in "_-.=")


class LocalPlace:
    """A directory of this machine.  What is written survives a power cut."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """See `Place.create`."""
        path = self._root / name
        made = [each for each in (path.parent, *path.parent.parents) if not each.exists()]
        with _new(path) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        for directory in (path.parent, *(each.parent for each in made)):
            descriptor = os.open(directory, os.O_RDONLY)
            try:
                os.fsync(descriptor)  # the name is in the directory
            finally:
                os.close(descriptor)

    def open(self, name: str) -> AbstractContextManager[Any]:
        """See `Place.open`."""
        return (self._root / name).open("rb")

    def size(self, name: str) -> int:
        """See `Place.size`."""
        return (self._root / name).stat().st_size

    def remove(self, name: str) -> None:
        """See `Place.remove`."""
        path = self._root / name
        path.unlink(missing_ok=True)
        if path.parent != self._root:
            try:
                path.parent.rmdir()
            except OSError:
                return  # other files are in it, or another session has removed it

    def below(self, directory: str) -> list[str]:
        """See `Place.below`."""
        try:
            return sorted(f"{directory}/{each.name}" for each in (self._root / directory).iterdir() if each.is_file())
        except FileNotFoundError:
            return []


def _new(path: Path) -> BinaryIO:
    """Open a new file, though another session may remove its directory as long as that is empty."""
    for _ in range(DIRECTORY_TRIES):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return path.open("xb")
        except FileNotFoundError:
            continue
    return path.open("xb")


class ArrowPlace:
    """A directory in a file system of Arrow's, in which a file appears when it is closed."""

    def __init__(self, files: pa_fs.FileSystem) -> None:
        self._files = files

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """See `Place.create`."""
        with self._files.open_output_stream(name) as stream:
            yield cast("BinaryIO", stream)

    def open(self, name: str) -> AbstractContextManager[Any]:
        """See `Place.open`."""
        return cast("AbstractContextManager[Any]", self._files.open_input_file(name))

    def size(self, name: str) -> int:
        """See `Place.size`."""
        found = self._files.get_file_info(name)
        if not found.is_file:
            raise FileNotFoundError(name)
        return int(found.size)

    def remove(self, name: str) -> None:
        """See `Place.remove`."""
        try:
            self._files.delete_file(name)
        except FileNotFoundError:
            return

    def below(self, directory: str) -> list[str]:
        """See `Place.below`."""
        found = self._files.get_file_info(pa_fs.FileSelector(directory, allow_not_found=True))
        return sorted(f"{directory}/{each.base_name}" for each in found if each.is_file)
