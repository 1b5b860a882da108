"""Who may connect to a replica, decided before a socket is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.errors import ConfigError
from strandline.instance.carriers.access import Address, ClientAccess, ServerAccess
from strandline.store.secret import Secret

TOKEN = Secret("canary-4711")
HERE = Address("127.0.0.1", 7000)
FAR = [Address.parse(text) for text in ("0.0.0.0:7000", "[::]:7000", "10.0.0.1:7000", "replica.example:7000")]
PEM = Path("a.pem")


@pytest.mark.parametrize("text", ["127.0.0.1:0", "localhost:65535", "[::1]:7000", "replica-1.example:80"])
def test_an_address_is_read_as_it_is_written(text: str) -> None:
    """Damage: a replica listens somewhere else than its operator wrote."""
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "host", ":80", "host:", "host:http", "host:65536", "::1:80", "a/b:80", "u@h:80", "[]:80", "a b:1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """Damage: a typing error becomes a URI that means something else."""
    with pytest.raises(ConfigError, match="is not an address"):
        Address.parse(text)


def test_only_addresses_of_this_machine_are_loopback() -> None:
    """Damage: a name that resolves to a public address is served without TLS."""
    assert all(Address.parse(text).loopback for text in ("127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"))
    assert not any(address.loopback for address in FAR)


@pytest.mark.parametrize("address", FAR, ids=str)
def test_an_address_that_others_reach_needs_a_token_and_tls_at_both_ends(address: Address) -> None:
    """Damage: anyone in the network commands a replica, or reads its token and rows on the way."""
    for lacking in (
        ServerAccess(),
        ServerAccess(tokenless=True),
        ServerAccess(TOKEN),
        ServerAccess(None, PEM, PEM, tokenless=True),
    ):
        with pytest.raises(ConfigError, match="set `replica_token`, `replica_certificate` and `replica_key`"):
            lacking.check(address)
    ServerAccess(TOKEN, PEM, PEM).check(address)
    for partial in (ClientAccess(), ClientAccess(TOKEN), ClientAccess(None, PEM)):
        with pytest.raises(ConfigError, match="set `replica_token` and `replica_authority`"):
            partial.check(address)
    ClientAccess(TOKEN, PEM).check(address)


def test_on_loopback_a_token_is_left_out_only_on_purpose() -> None:
    """Damage: any local user commands a replica whose operator forgot the token."""
    with pytest.raises(ConfigError, match="set `replica_token`"):
        ServerAccess().check(HERE)
    ServerAccess(TOKEN).check(HERE)
    ServerAccess(tokenless=True).check(HERE)
    ClientAccess().check(HERE)


def test_half_of_tls_is_refused() -> None:
    """Damage: an operator who set a certificate believes in TLS that is not there."""
    for half in (ServerAccess(TOKEN, certificate=PEM), ServerAccess(TOKEN, key=PEM)):
        with pytest.raises(ConfigError, match="set `replica_certificate` and `replica_key`"):
            half.check(HERE)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Damage: the operator does not know which of three files is missing."""
    with pytest.raises(ConfigError, match=r"`replica_certificate`.*absent\.pem.*No such file"):
        ServerAccess(TOKEN, tmp_path / "absent.pem", tmp_path / "absent.pem").certificates()
    with pytest.raises(ConfigError, match=r"`replica_authority`.*absent\.pem"):
        ClientAccess(TOKEN, tmp_path / "absent.pem").authorities()


@pytest.mark.parametrize("text", ["", "with space", "line\nbreak", "ümlaut", "nul\x00"])
def test_a_token_that_is_damaged_is_refused_without_being_shown(text: str) -> None:
    """Damage: a file that ends in a line break is another token, or a refusal prints a secret."""
    for check in (ServerAccess(Secret(text)).check, ClientAccess(Secret(text)).check):
        with pytest.raises(ConfigError, match="printable ASCII") as refused:
            check(HERE)
        assert not text or text not in str(refused.value)


def test_settings_do_not_show_the_token() -> None:
    """Damage: a log line with the settings holds the token."""
    assert "canary" not in f"{ServerAccess(TOKEN)!r} {ClientAccess(TOKEN)!r}"
