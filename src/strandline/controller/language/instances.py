"""Statements about instances (where items run, and in which processes) and indexes (collections kept in memory).

    CREATE [OR REPLACE] INSTANCE [IF NOT EXISTS] name REPLICAS (name 'host:port', …)
    ALTER INSTANCE name ADD REPLICA name 'host:port'
    ALTER INSTANCE name DROP REPLICA name
    CREATE INDEX [IF NOT EXISTS] name ON collection (columns) [IN INSTANCE name]

The names of replicas are compared without case, and kept in lower case.  ``REPLICAS ()`` is an instance without any.
The columns of an index are those by which its rows are found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address

from strandline.controller.language import clauses
from strandline.controller.language.clauses import Placed
from strandline.controller.language.cursor import Cursor
from strandline.errors import ConfigError, DefinitionError, Position
from strandline.instance.carriers.access import Address


@dataclass(frozen=True, slots=True)
class CreateInstance(Placed):
    """CREATE INSTANCE: ``replicas`` are addresses by name; ``replaces``: also where there is one, whose items stay."""

    name: str
    replicas: dict[str, str]
    if_not_exists: bool = False
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class AddReplica(Placed):
    """ALTER INSTANCE … ADD REPLICA; the replica's name stands at ``replica_at``."""

    name: str
    replica: str
    address: str
    replica_at: Position | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class DropReplica(Placed):
    """ALTER INSTANCE … DROP REPLICA; the replica's name stands at ``replica_at``."""

    name: str
    replica: str
    replica_at: Position | None = field(default=None, compare=False, repr=False)


def create_instance(cursor: Cursor, *, quiet: bool, replaces: bool) -> CreateInstance:
    """Take what comes behind CREATE INSTANCE.

    Raises `DefinitionError`, with its place, for what is no address, or a replica or an address that is there twice.
    """
    at, name = cursor.position, cursor.only_name()
    cursor.take("REPLICAS")
    cursor.take("(")
    replicas: dict[str, str] = {}
    while not cursor.accept(")"):
        if replicas:
            cursor.take(",")
        replica_at, replica = cursor.position, cursor.only_name("a replica").lower()
        address = _address(cursor)
        if refusal := refusal_of(replicas, replica, address):
            raise DefinitionError(refusal, replica_at)
        replicas[replica] = address
    return CreateInstance(name, replicas, quiet, replaces, at=at)


def alter(cursor: Cursor) -> AddReplica | DropReplica:
    """Take ALTER INSTANCE.  Raises `DefinitionError` as `create_instance`."""
    cursor.take("ALTER", "INSTANCE")
    at, name = cursor.position, cursor.only_name()
    if cursor.accept("ADD", "REPLICA"):
        replica_at, replica = cursor.position, cursor.only_name("a replica").lower()
        return AddReplica(name, replica, _address(cursor), replica_at, at=at)
    if cursor.accept("DROP", "REPLICA"):
        replica_at, replica = cursor.position, cursor.only_name("a replica").lower()
        return DropReplica(name, replica, replica_at, at=at)
    raise cursor.fail("ADD REPLICA or DROP REPLICA")


def refusal_of(replicas: Mapping[str, str], replica: str, address: str) -> str:
    """Return why ``replica`` cannot be beside ``replicas``; empty if it can.

    >>> refusal_of({"a": "h:1"}, "b", "h:2"), refusal_of({"a": "h:1"}, "a", "h:2")
    ('', "replica 'a' is named twice")
    """
    if replica in replicas:
        return f"replica {replica!r} is named twice"
    same = _at(replicas, address)
    return "" if same is None else f"replica {replica!r} has the address of {same!r}; each replica is another process"


def refusal_beside(others: Mapping[str, Mapping[str, str]], replicas: Mapping[str, str]) -> str:
    """Return why an instance cannot have ``replicas`` beside the ``others``, by name; empty if it can.

    >>> refusal_beside({"x": {"a": "localhost:1"}}, {"b": "127.0.0.1:1"})
    "replica 'b' has the address of replica 'a' of instance 'x'; each replica is another process"
    """
    for replica, address in replicas.items():
        for name, there in others.items():
            if (same := _at(there, address)) is not None:
                whose = f"replica {same!r} of instance {name!r}"
                return f"replica {replica!r} has the address of {whose}; each replica is another process"
    return ""


def _at(replicas: Mapping[str, str], address: str) -> str | None:
    """Return which of ``replicas`` is at ``address``."""
    wanted = _place(address)
    return next((name for name, there in replicas.items() if _place(there) == wanted), None)


def _place(text: str) -> tuple[str, int]:
    """Return an address so that two ways to write one are equal.

    >>> {_place(text) for text in ("localhost:1", "LOCALHOST:01", "127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1")}
    {('127.0.0.1', 1)}
    >>> _place("H:1"), _place("127.0.0.2:1")
    (('h', 1), ('127.0.0.2', 1))
    """
    address = Address.parse(text)
    host = address.host.lower()
    try:
        found = ip_address(host)
    except ValueError:
        return ("127.0.0.1" if host == "localhost" else host), address.port
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return ("127.0.0.1" if isinstance(found, IPv6Address) and found.is_loopback else str(found)), address.port


def refusal_of_address(text: str) -> str:
    """Return why no replica can be reached at ``text``; empty if one can.

    >>> refusal_of_address("localhost:7071"), refusal_of_address("[::1]:7071")
    ('', '')
    >>> refusal_of_address("localhost")
    "'localhost' is no address of a replica: write 'host:port', with a port from 1 to 65535"
    """
    try:
        found = Address.parse(text)
    except ConfigError:
        found = None
    if found is not None and found.port:
        return ""
    return f"{text!r} is no address of a replica: write 'host:port', with a port from 1 to 65535"


def _address(cursor: Cursor) -> str:
    at, text = cursor.position, cursor.value()
    if refusal := refusal_of_address(text):
        raise DefinitionError(refusal, at)
    return text


@dataclass(frozen=True, slots=True)
class CreateIndex(Placed):
    """CREATE INDEX: ``columns`` of ``collection``, each of which stands at its place in ``columns_at``.

    ``instance``: the one whose replicas hold it; empty: the process of the environment does.
    """

    name: str
    collection: str
    columns: tuple[str, ...]
    instance: str = ""
    if_not_exists: bool = False
    collection_at: Position | None = field(default=None, compare=False, repr=False)
    columns_at: tuple[Position, ...] = field(default=(), compare=False, repr=False)
    instance_at: Position | None = field(default=None, compare=False, repr=False)


def create_index(cursor: Cursor, *, quiet: bool) -> CreateIndex:
    """Take what comes behind CREATE INDEX."""
    at, name = cursor.position, cursor.only_name()
    cursor.take("ON")
    collection_at, collection = cursor.position, cursor.only_name("a collection")
    columns = cursor.names()
    instance, instance_at = clauses.instance(cursor)
    return CreateIndex(
        name,
        collection,
        tuple(column for column, _ in columns),
        instance,
        quiet,
        collection_at,
        tuple(column_at for _, column_at in columns),
        instance_at,
        at=at,
    )
