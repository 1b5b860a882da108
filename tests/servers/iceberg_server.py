"""A REST catalog of Iceberg's own making, run by Java; gone when the tests are.

What it runs is the Java program beside this file, over the jars that ``tools/setup --servers`` fetches.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kafka_server import die_with_parent, java

TOKEN: Final = "a-token"
_PROGRAM: Final = Path(__file__).with_name("IcebergCatalog.java")


@dataclass(frozen=True)
class IcebergServer:
    """A running catalog, whose tables lie in ``warehouse``."""

    uri: str
    warehouse: Path

    @property
    def options(self) -> dict[str, str]:
        """How a source reaches it."""
        return {"catalog": "rest", "uri": self.uri, "token": TOKEN}


@contextmanager
def running(directory: Path, jars: Path) -> Iterator[IcebergServer]:
    """Run a catalog whose tables lie below ``directory``."""
    command = [*java(), "-cp", f"{jars}/*", str(_PROGRAM), directory.as_uri(), TOKEN]
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one call of libc, in a process with no lock of ours
        )
    try:
        port = process.stdout.readline().strip()
        assert port.isdecimal(), (directory / "log").read_text()
        yield IcebergServer(f"http://127.0.0.1:{port}", directory)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
