"""The registry's client learns schemas by their ids, once, and says which id it could not learn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import registry_server
from registry_server import PASSWORD, USER, RegistryServer
from strandline.errors import ConfigError, Unavailable
from strandline.sources.readers.kafka.options import RegistryConnection
from strandline.sources.readers.kafka.registry import Registry
from strandline.store.secret import Secret


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    """A registry that knows nothing yet."""
    with registry_server.running() as running:
        yield running


def client(server: RegistryServer, **options: Any) -> Registry:
    """Return a client of the registry."""
    return Registry(RegistryConnection(registry_url=server.url, **options))


def test_what_an_id_means_is_asked_once(server: RegistryServer) -> None:
    """Damage: each step of a source waits for as many requests as there are schemas."""
    first, second = server.register("t-value", '"string"'), server.register("t-value", '"long"')
    registry = client(server)
    assert asyncio.run(registry.schemas([first, second])) == {first: '"string"', second: '"long"'}
    assert asyncio.run(registry.schemas([second, 9])) == {second: '"long"'}
    assert [path.split("?")[0] for path in server.asked] == ["/schemas/ids/1", "/schemas/ids/2", "/schemas/ids/9"]
    server.schemas[9] = '"int"'
    assert asyncio.run(registry.schemas([9])) == {9: '"int"'}, "it may come later"


def test_a_subject_has_all_its_versions(server: RegistryServer) -> None:
    """Damage: old messages of a topic cannot be read once its schema has changed."""
    ids = [server.register("a/b-value", schema) for schema in ('"string"', '"long"', '"int"')]
    registry = client(server)
    assert asyncio.run(registry.of_subject("a/b-value")) == dict(zip(ids, ('"string"', '"long"', '"int"'), strict=True))
    assert asyncio.run(registry.of_subject("c-value")) == {}
    assert asyncio.run(registry.subjects()) == ["a/b-value"]
    assert asyncio.run(registry.newest("a/b-value")) == '"int"'
    assert asyncio.run(registry.newest("c-value")) is None


def test_a_registry_that_fails_is_asked_later_and_the_error_names_the_id(server: RegistryServer) -> None:
    """Damage: messages become errors for ever because a registry was restarted."""
    number = server.register("t-value", '"string"')
    registry = client(server)
    server.broken = 500
    with pytest.raises(Unavailable, match=rf"127.0.0.1:{server.port} refuses the schema 1: status 500, out of order"):
        asyncio.run(registry.schemas([number]))
    server.broken = 404
    with pytest.raises(Unavailable, match="refuses the schema 1: status 404"):
        asyncio.run(registry.schemas([number]))
    server.broken = None
    assert asyncio.run(registry.schemas([number])) == {number: '"string"'}
    gone = Registry(RegistryConnection(registry_url="http://127.0.0.1:9"))
    with pytest.raises(Unavailable, match="does not answer for the schema 1"):
        asyncio.run(gone.schemas([number]))


def test_a_registry_that_wants_a_password_gets_it_and_messages_do_not(server: RegistryServer) -> None:
    """Damage: a password is shown, or not sent at all."""
    server.guarded = True
    number = server.register("t-value", '"string"')
    with pytest.raises(Unavailable, match="401"):
        asyncio.run(client(server).schemas([number]))
    wrong = {"registry_user": USER, "registry_password": Secret("a wrong one")}
    with pytest.raises(Unavailable) as refused:
        asyncio.run(client(server, **wrong).schemas([number]))
    assert "a wrong one" not in str(refused.value)
    right = {"registry_user": USER, "registry_password": Secret(PASSWORD)}
    assert asyncio.run(client(server, **right).schemas([number])) == {number: '"string"'}


@pytest.mark.parametrize(
    "url", ["ftp://x", "registry:8081", "http://user:pw@x", "http://x:port", "http:///x", "http://x:0"]
)
def test_a_url_that_is_none_is_refused_and_not_shown(url: str) -> None:
    """Damage: a password in a URL is printed."""
    with pytest.raises(ConfigError, match="registry_url is http://host:port") as refused:
        Registry(RegistryConnection(registry_url=url))
    assert url not in str(refused.value)


def test_a_registry_gets_a_token(server: RegistryServer) -> None:
    """Damage: a registry that is guarded by tokens cannot be used."""
    sent = client(server, registry_token=Secret("t0ken"))._headers()
    assert sent["Authorization"] == "Bearer t0ken"
