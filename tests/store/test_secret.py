"""No way of converting a secret to text shows it."""

from __future__ import annotations

import copy
import json
import logging
import pickle  # noqa: TID251  # what is pickled is a secret that must not be
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import pytest

import strandline
from strandline.store.secret import Secret

CANARY = "canary-4711"
REVEALING = {
    "algebra/messages.py",
    "connections/lake.py",
    "connections/kafka.py",
    "connections/mariadb.py",
    "connections/postgres.py",
    "console/gate.py",
    "engine/messages/decoder.py",
    "engine/session/s3a.py",
    "instance/carriers/access.py",
    "instance/carriers/handshake.py",
    "materialize/drivers/delta/table.py",
    "materialize/drivers/kafka/client.py",
    "materialize/drivers/redis/options.py",
    "materialize/drivers/webhook/receiver.py",
    "materialize/drivers/webhook/driver.py",
    "materialize/wire/options.py",
    "materialize/wire/process/child.py",
    "serving/remote.py",
    "serving/server.py",
    "sources/readers/delta/table.py",
    "sources/readers/iceberg/table.py",
    "sources/readers/kafka/client.py",
    "sources/readers/kafka/registry.py",
    "sources/readers/kafka/options.py",
    "store/blob_kinds/object_location.py",
    "store/consensus_kinds/postgres.py",
    "store/secret.py",
}


@dataclass(frozen=True)
class Holder:
    """A dataclass with a secret among its fields."""

    name: str
    password: Secret


def test_no_text_of_a_secret_or_of_its_holder_shows_it(caplog):
    """Damage: a password appears in a log, a message or a bug report."""
    secret = Secret(CANARY)
    holder = Holder("ann", secret)
    logging.getLogger("canary").warning("%s %r", secret, holder)
    shown = [str(secret), repr(secret), f"{secret}", f"{secret!r:>40}", "%s" % secret, "{:^30}".format(secret)]  # noqa: UP031, UP032
    shown += [repr(holder), str([holder]), str({"a": secret}), caplog.text, ascii(secret)]
    try:
        raise ValueError(secret, holder)
    except ValueError as error:
        shown += traceback.TracebackException.from_exception(error, capture_locals=True).format()
    assert not [text for text in shown if CANARY in text]
    assert "•••" in str(secret)


def test_a_secret_is_written_nowhere():
    """Damage: a pickle, a JSON document or a copy of a configuration carries the password away."""
    holder = Holder("ann", Secret(CANARY))
    for write in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="neither pickled nor copied"):
            write(holder.password)
    for write in (asdict, json.dumps, msgspec.json.encode, msgspec.msgpack.encode):
        with pytest.raises(TypeError):
            write(holder)
    assert not hasattr(holder.password, "__dict__")


def test_secrets_are_compared_without_being_shown():
    """Damage: two equal places count as different, or two different ones as equal."""
    assert Secret(CANARY) == Secret(CANARY)
    assert Secret(CANARY) != Secret("another")
    assert Secret(CANARY) != CANARY
    assert len({Secret(CANARY), Secret(CANARY)}) == 1


def test_secrets_are_revealed_in_few_places():
    """Damage: no reviewer can find all places that use a password."""
    root = Path(strandline.__file__).parent
    found = {str(path.relative_to(root)) for path in root.rglob("*.py") if "reveal" in path.read_text()}
    assert found == REVEALING
