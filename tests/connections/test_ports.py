"""A process that cannot listen at a port says why, and who listens there."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest

from strandline.connections.addresses import Address, Refusal, cannot_listen, refusal
from strandline.console.service import _bound
from strandline.errors import ConfigError
from strandline.instance.carriers.access import Address as Place
from strandline.instance.carriers.access import ServerAccess
from strandline.instance.carriers.flight import FlightListener
from strandline.serving.server import FlightSql
from strandline.store.secret import Secret


@pytest.fixture
def taken() -> Iterator[Address]:
    """A port at which this process listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield Address("127.0.0.1", listening.getsockname()[1])


def test_a_port_that_is_taken_names_the_process_that_listens_there(taken: Address) -> None:
    """Damage: the operator searches the machine for what is in the way."""
    found = refusal(taken)
    assert found is not None
    assert found.taken
    assert found.why.startswith(f"the port is taken by process {os.getpid()} (")


def test_a_port_that_is_free_has_no_refusal(taken: Address) -> None:
    """Damage: a failure that has another reason is blamed on the port."""
    assert refusal(Address("127.0.0.1", 0)) is None
    assert cannot_listen(Address("127.0.0.1", 0), "the certificate is wrong") == "the certificate is wrong"


def test_an_address_of_another_machine_is_said() -> None:
    """Damage: another port is tried, and another, at an address where none can be had."""
    assert refusal(Address("192.0.2.1", 4000)) == Refusal("it is no address of this machine")
    assert cannot_listen(Address("192.0.2.1", 4000), "") == "it is no address of this machine; choose another address"


def test_whatever_listens_says_that_its_port_is_taken(taken: Address) -> None:
    """Damage: "Server did not start properly" is all that an operator learns."""
    said = f"the port is taken by process {os.getpid()} \\(.*\\); stop what listens there, or choose another port"
    place = f"127.0.0.1:{taken.port}"
    with pytest.raises(ConfigError, match=rf"cannot serve at grpc\+tcp://{place}: {said}"):
        FlightSql(cast("Any", None), f"grpc+tcp://{place}", token=Secret("t"))
    files = [(b"no certificate", b"no key")]
    with pytest.raises(ConfigError, match="its certificate and its key cannot be used, or not together"):
        FlightSql(cast("Any", None), "grpc+tls://127.0.0.1:0", token=Secret("t"), certificates=files)
    with pytest.raises(ConfigError, match=rf"cannot serve the console at {place} \(`console_at`\): {said}"):
        _bound(Place("127.0.0.1", taken.port or 0))

    async def listens() -> None:
        listener = FlightListener(place, cast("Any", None), ServerAccess(Secret("t")))
        with pytest.raises(ConfigError, match=f"cannot listen on {place}: {said}"):
            await listener.start()
        await listener.close()

    asyncio.run(listens())
