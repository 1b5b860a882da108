"""The kind ``files``: what CREATE SOURCE checks and asks, and how a reader of files is opened."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from strandline import extras
from strandline.algebra.messages import NAME_CHARS_MAX, Encoding
from strandline.algebra.schema import Schema
from strandline.errors import DefinitionError
from strandline.persist.handles.records import RecordShard
from strandline.sources.reader import ReaderKind, Surroundings
from strandline.sources.readers.files.discovery import DISCOVERY, NewColumns
from strandline.sources.readers.files.folder import Folder
from strandline.sources.readers.files.local_folder import LocalFolder
from strandline.sources.readers.files.options import (
    S3,
    FileOptions,
    OnDurable,
    object_root_and_pattern,
    root_and_pattern,
)
from strandline.sources.readers.files.reader import FileReader, absent
from strandline.sources.readers.files.sequence import FileSequence
from strandline.store.blob_kinds.object_location import ObjectLocation

_BREAK: Final = re.compile("[\r\n]")
_SHOWN: Final = 20


async def _open(options: FileOptions, given: Surroundings) -> FileReader:
    sequence = await FileSequence.open(await given.progress(), given.epoch)
    sequence.passed_over.update(_number(sequence, given.name, name) for name in given.left_out)
    if given.left_out:
        options = replace(options, retain=options.stays, on_durable=OnDurable.KEEP, archive=None)
    folder, later = await _folder(options, given), given.later.get("", ())
    columns = NewColumns(given.decoder, replace(options.decoding, later=later), given)
    return FileReader(
        given.clock, folder, sequence, given.decoder, given.schema, options, columns, later, name=given.name
    )


class _Files:
    """`OfFiles` of the numbers that a source's files have."""

    async def taken(self, progress: RecordShard, source: str, files: Sequence[str]) -> list[str]:
        """See `OfFiles`."""
        sequence = await FileSequence.open(progress, 0)
        return [str(sequence[_number(sequence, source, name)]) for name in files]

    async def pass_over(self, given: Surroundings, name: str, *, withdrawn: bool) -> None:
        """See `OfFiles`."""
        sequence = await FileSequence.open(await given.progress(), given.epoch)
        await sequence.pass_over(_number(sequence, given.name, name), withdrawn=withdrawn)

    async def kept(self, given: Surroundings) -> list[str]:
        """See `OfFiles`."""
        sequence = await FileSequence.open(await given.progress(), given.epoch)
        return [sequence[number].name for number in sorted(sequence.kept)]


def _number(sequence: FileSequence, source: str, name: str) -> int:
    number = sequence.number_of(name)
    if number is None:
        raise DefinitionError(f"source {source!r} has taken no file {name!r}; names are relative to its directory")
    return number


async def _folder(options: FileOptions, given: Surroundings) -> Folder:
    if not options.in_s3:
        return LocalFolder(*root_and_pattern(options.path), given.clock)
    url, pattern = object_root_and_pattern(options.path)
    await given.decoder.reach(url, options.storage)
    from strandline.sources.readers.files.object_folder import ObjectFolder

    return ObjectFolder(ObjectLocation(url, options.storage), pattern, f"s3a{url.removeprefix(S3)}")


def _shared(options: FileOptions) -> bool:
    """Return whether several replicas may read the files: if all find the same ones, and none is deleted or moved.

    A local path may lead elsewhere on another machine: a file that was numbered there would be missing here for ever.
    """
    return options.in_s3 and options.stays


def _needs(options: FileOptions) -> Sequence[str]:
    return (extras.S3,) if options.in_s3 else ()


def _check(options: FileOptions, schema: Schema) -> None:
    """Refuse names of columns that no file can give them."""
    form = options.decoding
    for name in schema.names:
        if form.encoding is Encoding.CSV and form.header and not form.multiline and _BREAK.search(name):
            raise DefinitionError(
                f"column {name!r} has a line break in its name, and the header of these CSV files is one line: "
                "add multiline = 'true' (a record may span lines then, the header too), or rename the column"
            )
        if form.encoding is Encoding.JSON and len(name) > NAME_CHARS_MAX:
            raise DefinitionError(
                f"the column whose name begins with {name[:_SHOWN]!r} has a name of {len(name)} characters, and the "
                f"parser of JSON takes none of more than {NAME_CHARS_MAX}: rename the column"
            )


def _altered(before: FileOptions, options: FileOptions) -> str:
    """Return why files may not have to stay from now on: those that left by themselves would be missed."""
    if before.on_durable is OnDurable.KEEP or not options.stays:
        return ""
    gone = "deleted" if before.on_durable is OnDurable.DELETE else "archived"
    return (
        f"option 'on_durable': the files that it has {gone} itself would count as vanished; set retain 'false' as "
        "well, by which files that are durable may be gone"
    )


async def _ask(options: FileOptions) -> None:
    """Refuse a local path at which there is neither a directory nor a file."""
    if not options.in_s3:
        root, _ = root_and_pattern(options.path)
        if not await asyncio.to_thread(root.is_dir):
            raise absent(str(root))


KIND: Final = ReaderKind(
    "files",
    FileOptions,
    _open,
    _check,
    ask=_ask,
    discovery=DISCOVERY,
    shared=_shared,
    needs=_needs,
    counts="files",
    of_files=_Files(),
    alterable=("archive", "on_durable", "retain", "settle"),
    altered=_altered,
)
