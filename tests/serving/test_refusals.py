"""What a client reads when it is not let in, connects wrongly, or makes a call that there is not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import adbc_driver_flightsql
import adbc_driver_flightsql.dbapi as adbc
import pyarrow as pa
import pytest
from pyarrow import flight
from tests.instance.carriers.test_flight import certificate
from tests.serving.conftest import SECRET

import strandline
from strandline.errors import ConfigError, DefinitionError, InvalidUsage, StrandlineError, Unavailable
from strandline.serving import RemoteEnvironment
from strandline.serving.desk import Desk
from strandline.serving.server import FlightSql
from strandline.store.secret import Secret

NOISE = re.compile(r"Traceback|File \"|gRPC|Detail:|ipv4:|UNKNOWN|context:|error, with message")
"""What pyarrow and gRPC add to a sentence."""


def _wrong(*_: Any) -> Any:
    raise DefinitionError("there is no relation 'x'")


def _broken(*_: Any) -> Any:
    raise KeyError("a fault")


DESK = cast("Desk", SimpleNamespace(tables=list, asked=_wrong, prepare=_wrong, begin=_broken, status=_wrong))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where a server listens that wants a token; it has no environment."""
    server = FlightSql(DESK, "grpc+tcp://127.0.0.1:0", token=Secret(SECRET))
    yield f"grpc+tcp://127.0.0.1:{server.port}"
    server.close()


def refused(where: str, **how: Any) -> StrandlineError:
    """Connect, make a call, and return what our client raises: one sentence without noise."""
    with pytest.raises(StrandlineError) as raised, strandline.connect(where, **how) as env:
        env.status()
    assert not NOISE.search(str(raised.value)), str(raised.value)
    return raised.value


@pytest.mark.parametrize(
    ("token", "why"),
    [(None, "no token was shown"), ("another", "the token that was shown is another one")],
)
def test_a_wrong_token_differs_from_none(address: str, token: str | None, why: str) -> None:
    """Damage: who forgot the token searches for a mistake in it, and who has a wrong one for where to give it."""
    error = refused(address, token=token)
    assert isinstance(error, ConfigError)
    assert str(error).endswith(
        f"does not let this process in: {why}; this server wants its own (authorization: Bearer …)"
    )
    header = (
        {} if token is None else {adbc_driver_flightsql.DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {token}"}
    )
    with (
        pytest.raises(adbc.ProgrammingError, match=why),
        adbc.connect(address, db_kwargs=header, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT 1")


@pytest.mark.parametrize(
    "where",
    ["http://127.0.0.1:8080", "grpc://127.0.0.1:1", "grpc+foo://127.0.0.1:1", "s3://bucket/prefix", "memory://"],
)
def test_a_wrong_scheme_is_named(where: str) -> None:
    """Damage: "No client transport implementation"; or a location is looked for that the caller did not mean."""
    scheme = where.partition(":")[0]
    with pytest.raises(ConfigError, match=rf"^{re.escape(scheme)}:// is nowhere to connect to: .*grpc\+tls://…"):
        strandline.connect(where)


def test_a_wrong_scheme_shows_no_password() -> None:
    """Damage: a password is in a log, because a URL of another system was given."""
    with pytest.raises(ConfigError) as raised:
        strandline.connect("postgresql://ann:hunter2@db/shop")
    assert "hunter2" not in str(raised.value)


def test_a_port_out_of_range_is_no_address() -> None:
    """Damage: an error of pyarrow, which no caller catches."""
    with pytest.raises(ConfigError, match="is not an address"):
        strandline.connect("grpc+tls://db.example:70000")


def test_who_does_not_answer_is_said_in_a_sentence(tmp_path: Path) -> None:
    """Damage: what gRPC went through is all that a person reads."""
    for where in ("grpc+tcp://127.0.0.1:1", f"grpc+unix://{tmp_path}/nothing.sock"):
        error = refused(where)
        assert isinstance(error, Unavailable)
        assert str(error).endswith("does not answer: nothing listens there; is `strandline run` running?")


def test_tls_at_one_end_alone_is_said(address: str, tmp_path: Path) -> None:
    """Damage: an operator reads of handshakes, and learns neither which end has TLS nor what to write."""
    proof, key = certificate(tmp_path / "server")
    other, _ = certificate(tmp_path / "other")
    secure = FlightSql(
        DESK, "grpc+tls://127.0.0.1:0", token=Secret(SECRET), certificates=[(proof.read_bytes(), key.read_bytes())]
    )
    there = f"127.0.0.1:{secure.port}"
    try:
        assert "serves without TLS" in str(refused(address.replace("+tcp", "+tls"), token=SECRET))
        assert "or wants TLS (grpc+tls://…)" in str(refused(f"grpc+tcp://{there}", token=SECRET))
        for authority in (None, str(other)):
            strange = refused(f"grpc+tls://{there}", token=SECRET, authority=authority)
            assert "a certificate that this process does not trust: name its `authority`" in str(strange)
        assert isinstance(refused(f"grpc+tls://{there}", token=SECRET, authority=str(proof)), InvalidUsage), (
            "it is let in"
        )
    finally:
        secure.close()


def test_an_authority_that_is_none_is_named(tmp_path: Path) -> None:
    """Damage: "empty address list" is said of a file without a certificate."""
    (tmp_path / "no.pem").write_text("no certificate")
    for name, why in (("no.pem", r"it holds no certificate \(PEM\)"), ("absent.pem", "No such file or directory")):
        with pytest.raises(ConfigError, match=rf"`authority`: {tmp_path}/{name} cannot be used: {why}"):
            strandline.connect("grpc+tls://127.0.0.1:1", authority=str(tmp_path / name))


def test_no_call_is_answered_with_a_traceback(address: str) -> None:
    """Damage: a client reads paths and code of the server in place of what it did wrong."""
    how = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {SECRET}".encode())])
    command = flight.FlightDescriptor.for_command(b"\xff")
    calls = {
        "a path": lambda client: client.get_flight_info(flight.FlightDescriptor.for_path("a"), how),
        "a schema of a path": lambda client: client.get_schema(flight.FlightDescriptor.for_path("a"), how),
        "a broken command": lambda client: client.get_flight_info(command, how),
        "no action": lambda client: list(client.do_action(flight.Action("x", b""), how)),
        "a fault": lambda client: list(client.do_action(flight.Action("strandline.call", b"{}"), how)),
        "a list": lambda client: list(client.list_flights(b"", how)),
        "an exchange": lambda client: client.do_exchange(command, how)[1].read_all(),
        "no ticket": lambda client: client.do_get(flight.Ticket(b"\xff"), how).read_all(),
    }
    with flight.FlightClient(address) as client:
        for what, call in calls.items():
            with pytest.raises((flight.FlightError, pa.ArrowException)) as raised:
                call(client)
            assert "Traceback" not in str(raised.value), what
            assert "File " not in str(raised.value), what
            assert str(raised.value).strip()[:1].isalpha(), what


def test_a_text_for_a_list_of_names_is_refused_before_anything_is_asked() -> None:
    """Damage: a file is looked for by each letter of its name; or each letter of an item's name is to be dropped."""
    with RemoteEnvironment("grpc://127.0.0.1:1") as env:
        with pytest.raises(InvalidUsage, match=r"files must be a list of names, and this is a str: 'a\.csv'"):
            env.withdraw("s", "a.csv")
        with pytest.raises(InvalidUsage, match=r"drop must be a list of names, and this is a str: 'all'"):
            env.deploy("here", drop="all")
