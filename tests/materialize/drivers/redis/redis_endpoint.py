"""A Redis database for the driver contract, read as a user of Redis reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

from redis_server import PASSWORD, RedisServer
from strandline.materialize.drivers.redis.driver import RedisDriver
from strandline.materialize.drivers.redis.kind import KIND
from strandline.materialize.drivers.redis.options import Form, RedisEndpoint
from strandline.materialize.protocol.task import Checkpoint
from strandline.store.secret import Secret
from strandline.testing.contracts.drivers.fencing_contract import SCHEMA as FENCED
from strandline.testing.contracts.drivers.reduction_contract import SCHEMA as AMOUNTS
from strandline.testing.contracts.drivers.world import KEYED
from strandline.testing.hostile import HOSTILE, PATHS

READ = {"f": float, "k": int, "n": int}
"""How the texts of columns of the contract are read; all others are texts."""


class RedisDatabase:
    """One database; ``exact``: the option."""

    unholdable = ()

    def __init__(self, server: RedisServer, database: int, form: Form = Form.HASH, *, exact: bool = False) -> None:
        self.server = server
        self.form = form
        self.fences = exact
        self.options = RedisEndpoint(
            server=server.place, database=database, password=Secret(PASSWORD), format=form, exact=exact
        )
        with closing(self.client()) as client:
            client.flushdb()

    def client(self) -> Any:
        """Return a client of the database."""
        return self.server.client(self.options.database)

    def driver(self) -> RedisDriver:
        """Return one more driver to the database."""
        return RedisDriver(self.options, KIND.spec)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows whose keys begin with ``table:``, in the order of the contract's columns."""
        with closing(self.client()) as client:
            begin = f"{table}:".encode()
            keys = sorted(key for key in client.scan_iter(count=1_000) if key.startswith(begin))
            if self.form is Form.JSON:
                return [_typed(json.loads(client.get(key))) for key in keys]
            found = [{n.decode(): text.decode() for n, text in client.hgetall(key).items()} for key in keys]
        schemas = (KEYED.names, AMOUNTS.names, FENCED.names, HOSTILE)
        odd = (*HOSTILE, *PATHS)
        columns = next((names for names in schemas if all(row.keys() <= {*names, "__null"} for row in found)), odd)
        return [_typed({name: row.get(name) for name in columns}) for row in found]

    def keep(self) -> Callable[[], None]:
        """See `Loses`."""
        with closing(self.client()) as client:
            kept = {key: client.dump(key) for key in client.scan_iter(count=1_000)}

        def put_back() -> None:
            with closing(self.client()) as client:
                client.flushdb()
                for key, value in kept.items():
                    client.restore(key, 0, value)

        return put_back

    def checkpoint(self, name: str) -> Checkpoint | None:
        """Return None: the runtime's log keeps it."""
        return None


def _typed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value is None else READ.get(name, str)(value) for name, value in row.items()}
