"""The options of a PostgreSQL source, and of the connections that it may take them from.

CREATE CONNECTION pg TO POSTGRES (host = 'db', database = 'bank', user = 'strandline', password = 'env:PG_PASSWORD')
CREATE SOURCE bank FROM POSTGRES (connection = pg, publication = 'bank')
CREATE TABLE accounts (id INT, balance DECIMAL(12, 2)) FROM SOURCE bank (REFERENCE 'public.accounts')
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from strandline.connections.postgres import NAME_BYTES_MAX, PostgresConnection
from strandline.options import Kind, option

SLOT_PREFIX: Final = "strandline_"
_SLOT: Final = re.compile(r"[a-z0-9_]{1,63}")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError("it must be a number, 1 or more")
    return int(text)


def _slot(text: str) -> str:
    if not _SLOT.fullmatch(text):
        raise ValueError("a slot's name has 1 to 63 lower-case letters, digits and underscores")
    return text


def _name(text: str) -> str:
    if not 0 < len(text.encode()) <= NAME_BYTES_MAX or "\0" in text:
        raise ValueError(f"a name in PostgreSQL has 1 to {NAME_BYTES_MAX} bytes")
    return text


@dataclass(frozen=True, kw_only=True)
class PostgresOptions(PostgresConnection):
    """Which changes are read, and how."""

    publication: str = option(
        Kind(_name, {"minLength": 1}), "The publication that has the tables: CREATE PUBLICATION … FOR TABLE …."
    )
    slot: str | None = option(
        Kind(_slot, {"pattern": "^[a-z0-9_]{1,63}$"}),
        "The replication slot, made if it is missing; without it, one of the source's own. No other may use it.",
        default=None,
    )
    step_changes: int = option(
        Kind(_count, {"pattern": r"^\d+$"}),
        "About how many changes a tick takes at most; a transaction is taken whole, however large it is.",
        default="200000",
    )


def slot_of(options: PostgresOptions, shard: str) -> str:
    """Return the name of the slot of a source, whose own record shard is ``shard``.

    >>> slot_of(PostgresOptions(user="u", publication="p"), "s-1") == slot_of(
    ...     PostgresOptions(user="v", publication="q"), "s-1")
    True
    """
    return options.slot or SLOT_PREFIX + blake2b(shard.encode(), digest_size=12).hexdigest()


def table_name(reference: str) -> tuple[str, str]:
    """Return schema and name of the table that ``reference`` names: 'schema.name', or a name in ``public``.

    >>> table_name("public.accounts"), table_name("accounts"), table_name("my.odd.name")
    (('public', 'accounts'), ('public', 'accounts'), ('my', 'odd.name'))
    """
    schema, dot, name = reference.partition(".")
    return (schema, name) if dot else ("public", reference)
