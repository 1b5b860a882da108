"""Connectors: what CREATE SOURCE may name, and the readers behind it.  This version has files.

Source: design page "sources" (files).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strandline.controller.location.on_error import OPTION
from strandline.errors import DefinitionError
from strandline.instance.commands import RunIngestion
from strandline.persist.client import PersistClient
from strandline.sources.file_options import FileOptions, parse
from strandline.sources.file_sequence import FileSequence
from strandline.sources.files import FileDecoder, FileReader
from strandline.sources.local_folder import LocalFolder
from strandline.sources.reader import SourceReader
from strandline.store.clock import Clock


@dataclass(frozen=True, slots=True)
class FileConnectors:
    """`Connectors` of directories; ``decoder`` turns files into rows."""

    clock: Clock
    decoder: FileDecoder

    def check(self, name: str, connector: str, options: Mapping[str, str]) -> None:
        """See `Connectors.check`."""
        if connector != "files":
            raise DefinitionError(f"there is no connector {connector!r}; this version has 'files'")
        if "path" not in options:
            raise DefinitionError(f"source {name!r}: option 'path' is missing")
        _parsed(options)

    async def reader(self, source: RunIngestion, client: PersistClient, epoch: int) -> SourceReader:
        """See `Connectors.reader`."""
        sequence = await FileSequence.open(await client.records(source.progress, epoch), epoch)
        options = _parsed(source.options)
        folder = LocalFolder(options.root, options.pattern)
        return FileReader(self.clock, folder, sequence, self.decoder, source.output.schema, options)


def _parsed(options: Mapping[str, str]) -> FileOptions:
    return parse(options["path"], {name: value for name, value in options.items() if name not in ("path", OPTION)})
