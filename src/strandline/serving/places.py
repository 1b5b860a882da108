"""Places: where the process that writes a location serves, and how others learn it.

Of a location in files: a Unix socket in a directory of the location that only its user may enter, and beside it a file
that says where all servers are.  A path that is too long for a socket is replaced by one below the directory for
temporary files.  A further address is the operator's to choose (``serve_at``), and to tell others.

    {"flight_sql": ["grpc+unix:///data/strand/serving/flight.sock"], "pid": 4711, "http": "http://127.0.0.1:40123"}
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

from strandline.client import Environment
from strandline.controller.location.config import Config
from strandline.errors import ConfigError
from strandline.instance.carriers.access import Address
from strandline.options import resolve_reference
from strandline.serving.calls import ADDRESSES, DIRECTORY, Addresses, published
from strandline.serving.desk import Desk, Resolve, as_it_is
from strandline.serving.server import FlightSql
from strandline.store.secret import Secret
from strandline.store.system import SystemClock, SystemIds

_SOCKET: Final = "flight.sock"
_PATH_BYTES_MAX: Final = 100
"""A path of a socket has 107 bytes at most (Linux; 103 elsewhere)."""
_OWN: Final = 0o700


@dataclass(frozen=True, slots=True)
class Door:
    """An address to listen at, beside the socket.  ``certificate`` and ``key``: files (PEM), both or neither."""

    address: str
    token: Secret | None = None
    certificate: Path | None = None
    key: Path | None = None

    @property
    def place(self) -> str:
        """Where Flight SQL listens.  Raises as `checked`."""
        at = self.checked()
        return f"grpc+tls://{at}" if self.certificate is not None else f"grpc+tcp://{at.bound}"

    def checked(self, *, tokenless: bool = False) -> Address:
        """Return the address, if listening there lets no stranger in and shows none what crosses.

        ``tokenless``: on loopback it may do without a token.  Raises `ConfigError` if it may not listen there.
        """
        at = Address.parse(self.address)
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("TLS needs both files: set `serve_certificate` and `serve_key`, or neither")
        if self.token is None and not (tokenless and at.loopback):
            raise ConfigError(f"serving at {at} needs a token, since others can connect there: set `serve_token`")
        if not at.loopback and self.certificate is None:
            raise ConfigError(
                f"{at} is not loopback, so serving there needs TLS: set `serve_certificate` and `serve_key`, "
                "or serve at 127.0.0.1"
            )
        return at

    @classmethod
    def of(cls, config: Config) -> Door | None:
        """Return what the configuration names; None: nothing.  Raises `ConfigError` if its token is not there."""
        return None if config.serve_at is None else cls.at(config.serve_at, config)

    @classmethod
    def at(cls, address: str, config: Config) -> Door:
        """Return a door at another address, with the token and the files that the configuration names."""
        token = None if config.serve_token is None else Secret(resolve_reference(config.serve_token, base=Path()))
        files = [None if each is None else Path(each) for each in (config.serve_certificate, config.serve_key)]
        return cls(address, token, *files)

    def certificates(self) -> list[tuple[bytes, bytes]] | None:
        """Return the chain and key to show; None without TLS."""
        if self.certificate is None or self.key is None:
            return None
        try:
            return [(self.certificate.read_bytes(), self.key.read_bytes())]
        except OSError as error:
            raise ConfigError(
                f"`serve_certificate`, `serve_key`: {error.filename} cannot be read ({error.strerror})"
            ) from error


@dataclass(frozen=True, slots=True)
class Serving:
    """A desk that is open, and where."""

    desk: Desk
    flight_sql: tuple[str, ...]
    announce: Callable[[str], None]
    """Says that the console is served, too, and where."""


@contextmanager
def serve(
    env: Environment, door: Door | None, hurry: Callable[[], None], resolve: Resolve = as_it_is
) -> Iterator[Serving]:
    """Serve ``env`` as long as the context lasts.

    ``door``: a further address, beside the socket of a location in files; ``hurry``, ``resolve``: as for `Desk`.

    Raises `ConfigError` if one of the places cannot be had.
    """
    desk = Desk(env, SystemClock(), SystemIds(), hurry, resolve)
    root = env.directory
    with ExitStack() as opened:
        places = []
        if root is not None:
            places.append(_socket(desk, root, opened))
        if door is not None:
            server = FlightSql(desk, door.place, token=door.token, certificates=door.certificates())
            opened.callback(server.close)
            at = Address.parse(door.address)
            places.append(f"{door.place.partition('://')[0]}://{Address(at.host, server.port)}")

        def publish(http: str | None = None) -> None:
            addresses = Addresses(places, os.getpid(), http)
            desk.served = addresses.told
            if root is not None:
                _publish(root, addresses)

        if root is not None:
            opened.callback(_withdraw, root)
        publish()
        yield Serving(desk, tuple(places), publish)


def _socket(desk: Desk, root: Path, opened: ExitStack) -> str:
    """Listen at a socket in the location; below the directory for temporary files where it can have none."""
    there = _private(root / DIRECTORY) / _SOCKET
    if len(os.fsencode(there)) <= _PATH_BYTES_MAX:
        with suppress(ConfigError):  # a file system without sockets
            return _listening(desk, there, opened)
    digest = blake2b(os.fsencode(root.absolute()), digest_size=8).hexdigest()
    directory = _private(Path(tempfile.gettempdir(), f"strandline-serving-{os.getuid()}"))
    return _listening(desk, directory / f"{digest}.sock", opened)


def _listening(desk: Desk, path: Path, opened: ExitStack) -> str:
    path.unlink(missing_ok=True)  # of a process that was killed: the location is ours now
    place = f"grpc+unix://{path}"
    server = FlightSql(desk, place)
    opened.callback(path.unlink, missing_ok=True)
    opened.callback(server.close)
    return place


def _private(directory: Path) -> Path:
    """Return a directory, made if need be, that only its user may enter."""
    try:
        directory.mkdir(mode=_OWN, parents=True, exist_ok=True)
        if directory.stat().st_uid != os.getuid():
            raise ConfigError(f"{directory} is another user's, so nothing is served there: remove it")
        directory.chmod(_OWN)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be made, to serve there: {error.strerror}") from error
    return directory


def _publish(root: Path, addresses: Addresses) -> None:
    path = root / DIRECTORY / ADDRESSES
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(addresses))
    fresh.replace(path)


def _withdraw(root: Path) -> None:
    found = published(root)
    if found is not None and found.pid == os.getpid():  # else a successor's
        with suppress(OSError):
            (root / DIRECTORY / ADDRESSES).unlink()
