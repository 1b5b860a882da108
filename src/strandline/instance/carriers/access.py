"""Who may connect: addresses, tokens and certificates.

An address that is not loopback needs a token and TLS at both ends.  On loopback a listener needs a token, too, unless
it says `tokenless`: any local user can connect there.

A token is held as a `Secret`.  It never crosses, and appears in no message: each end proves that it knows it
(`handshake`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from strandline.connections import addresses
from strandline.errors import ConfigError
from strandline.store.secret import Secret


@dataclass(frozen=True, slots=True)
class Address:
    """Where a replica listens.

    >>> Address.parse("127.0.0.1:7000").loopback, Address.parse("0.0.0.0:7000").loopback
    (True, False)
    >>> str(Address.parse("[::1]:0"))
    '[::1]:0'
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read ``host:port``; the host may be a name, an IPv4 address, or an IPv6 address in brackets."""
        host, colon, port = text.rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        plain = bare == host and ":" not in host
        if not (
            colon and bare and (plain or bare != host) and port.isascii() and port.isdigit() and int(port) < 1 << 16
        ):
            raise ConfigError(f"{text!r} is not an address: write HOST:PORT, an IPv6 host in brackets")
        if any(not (each.isalnum() or each in ".-:_%") for each in bare):
            raise ConfigError(f"{text!r} is not an address: its host has other characters than a name or an IP address")
        return cls(bare, int(port))

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it.  Any name but ``localhost`` counts as reachable from elsewhere."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def bound(self) -> str:
        """The address as both ends of a connection without TLS have it; ``localhost`` is 127.0.0.1 for both.

        >>> Address.parse("localhost:1").bound, Address.parse("[0:0::1]:1").bound
        ('127.0.0.1:1', '[::1]:1')
        """
        host = "127.0.0.1" if self.host == "localhost" else self.host
        with suppress(ValueError):
            host = str(ip_address(host))
        return str(Address(host, self.port))

    @property
    def local(self) -> addresses.Address:
        """The address as the operating system of this machine is asked about it."""
        return addresses.Address(self.host, self.port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """What a listener asks of those who connect, and how it proves who it is.

    ``certificate`` and ``key``: files in PEM format, both or neither.  ``tokenless``: admit without a token, which only
    loopback allows.
    """

    token: Secret | None = None
    certificate: Path | None = None
    key: Path | None = None
    tokenless: bool = False

    def check(self, address: Address) -> None:
        """Refuse settings that would let strangers connect, or would show them what crosses."""
        _check_token(self.token)
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("TLS needs both files: set `replica_certificate` and `replica_key`, or neither")
        if not address.loopback and (self.token is None or self.certificate is None):
            raise ConfigError(
                f"{address} is not loopback, so listening there needs a token and TLS: "
                "set `replica_token`, `replica_certificate` and `replica_key`, or listen on 127.0.0.1"
            )
        if self.token is None and not self.tokenless:
            raise ConfigError(
                f"listening on {address} needs a token: set `replica_token`, since any local user can connect"
            )

    def certificates(self) -> list[tuple[bytes, bytes]]:
        """Return the chain and key that the listener shows; none without TLS."""
        if self.certificate is None or self.key is None:
            return []
        return [(_read(self.certificate, "replica_certificate"), _read(self.key, "replica_key"))]


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """What a controller proves to know, and whose certificates it trusts (``authority``: a file in PEM format)."""

    token: Secret | None = None
    authority: Path | None = None

    def check(self, address: Address) -> None:
        """Refuse to send anything where strangers could read it."""
        _check_token(self.token)
        if not address.loopback and (self.token is None or self.authority is None):
            raise ConfigError(
                f"{address} is not loopback, so connecting to it needs a token and TLS: "
                "set `replica_token` and `replica_authority`"
            )

    def authorities(self) -> bytes | None:
        """Return the certificates that are trusted; None without TLS."""
        return None if self.authority is None else _read(self.authority, "replica_authority")


def _check_token(token: Secret | None) -> None:
    """Refuse a token that is damaged, such as one with a line break; the message does not show it."""
    text = "x" if token is None else token.reveal()
    if not text or not (text.isascii() and text.isprintable()) or " " in text:
        raise ConfigError("`replica_token` must be a text of printable ASCII characters without spaces, and not empty")


def _read(path: Path, setting: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"`{setting}`: {path} cannot be read ({error.strerror})") from error
