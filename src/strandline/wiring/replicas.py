"""Replicas: how a controller reaches them, and how one listens.

Both ends must know one token: the one that the configuration names (``replica_token``), else that of a file in the
location, if it is in files.  It is made when it is first needed, for its user alone.  Off loopback both ends need TLS,
too, and a token that is configured.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from strandline.controller.location.config import Config
from strandline.errors import ConfigError
from strandline.instance.carriers.access import ClientAccess, ServerAccess
from strandline.instance.carriers.flight import FlightListener, dialer
from strandline.instance.protocol.carrier import Carrier, Dial, Serve
from strandline.options import resolve_reference
from strandline.store.clock import SystemIds
from strandline.store.secret import Secret

BESIDE: Final = "replica-token"
"""The file in a location that has its token."""


def dial_of(config: Config, home: Path | None) -> Dial:
    """Return how replicas are reached; ``home``: the directory of a location in files."""
    authority = None if config.replica_authority is None else Path(config.replica_authority)

    async def dial(address: str) -> Carrier:
        return await dialer(ClientAccess(_token(config, home), authority))(address)

    return dial


def listener(address: str, serve: Serve, config: Config, home: Path | None) -> FlightListener:
    """Return what listens at ``address`` as the configuration says.  Raises `ConfigError` if that is not safe."""
    certificate, key = [
        None if text is None else Path(text) for text in (config.replica_certificate, config.replica_key)
    ]
    return FlightListener(address, serve, ServerAccess(_token(config, home), certificate, key))


def _token(config: Config, home: Path | None) -> Secret:
    if config.replica_token is not None:
        return Secret(resolve_reference(config.replica_token, base=Path()))
    if home is None:
        raise ConfigError("replicas need a token: set replica_token (env:NAME or file:PATH) in the configuration")
    file = home / BESIDE
    if not file.exists():
        _make(file)
    if file.stat().st_uid != os.getuid() or file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{file} is readable by others; delete it, and another one is made")
    return Secret(file.read_text().strip())


def _make(file: Path) -> None:
    """Make a file with a fresh token, which no other process sees half written or replaces."""
    whole = file.with_name(f"{file.name}~{SystemIds().fresh('t')}")
    descriptor = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(SystemIds().fresh("replica"))
    with suppress(FileExistsError):
        os.link(whole, file)
    whole.unlink()
