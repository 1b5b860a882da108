"""One Redis database, as this driver asks it: in pipelines, and with errors as ours.

Every call blocks for a bounded time, and is idempotent, so that a caller that got no answer may repeat it.  Nothing is
repeated here: the runtime opens a new session, which replays the transaction.

Source: https://redis.io/docs/latest/commands/, https://redis-py.readthedocs.io/en/stable/.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from strandline.errors import ConfigError, DefinitionError, StrandlineError, Unavailable, first_line
from strandline.materialize.drivers.redis.options import RedisEndpoint

ANSWER_SECONDS_MAX: Final = 10
"""A server that says nothing for so long is unavailable."""
COMMANDS_AT_ONCE: Final = 1_000
"""So many commands are one transaction (MULTI); a server does nothing else meanwhile."""

Command: TypeAlias = tuple[Any, ...]
Change: TypeAlias = tuple[Command, ...]
"""What must not be seen half done."""


class Server:
    """See the module.  It connects when it is first asked."""

    def __init__(self, options: RedisEndpoint) -> None:
        host, port = options.place
        self.name = f"Redis at {options.server}"
        self._client: Any = redis.Redis(
            host=host,
            port=port,
            db=options.database,
            username=options.user,
            password=None if options.password is None else options.password.reveal(),
            ssl=options.tls,
            ssl_ca_data=options.tls_ca,
            socket_timeout=ANSWER_SECONDS_MAX,
            socket_connect_timeout=ANSWER_SECONDS_MAX,
            retry=Retry(NoBackoff(), 0),
            client_name="strandline",
        )

    def ask(self, *command: Any) -> Any:
        """Return the answer to one command.

        Raises:
            Unavailable: the server does not answer, or cannot write now; try again later.
            ConfigError: it does not let this user do it.
            DefinitionError: it refuses it for good.
        """
        with self._errors():
            return self._client.execute_command(*command)

    def change(self, changes: Iterable[Change]) -> None:
        """Run changes, about `COMMANDS_AT_ONCE` commands together or none of these.  Raises as `ask`."""
        together: list[Command] = []
        for change in changes:
            together += change
            if len(together) >= COMMANDS_AT_ONCE:
                self._run(together, atomic=True)
                together = []
        self._run(together, atomic=True)

    def look(self, commands: Sequence[Command]) -> list[Any]:
        """Return the answers to commands that change nothing.  Raises as `ask`."""
        found: list[Any] = []
        for start in range(0, len(commands), COMMANDS_AT_ONCE):
            found += self._run(commands[start : start + COMMANDS_AT_ONCE], atomic=False)
        return found

    def keys(self, pattern: bytes) -> Iterator[list[bytes]]:
        """Yield all keys that match, some at a time; one may come twice.  Raises as `ask`."""
        cursor: Any = 0
        while True:
            cursor, found = self.ask("SCAN", cursor, "MATCH", pattern, "COUNT", COMMANDS_AT_ONCE)
            if found:
                yield found
            if int(cursor) == 0:
                return

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    def _run(self, commands: Sequence[Command], *, atomic: bool) -> list[Any]:
        if not commands:
            return []
        with self._errors(), self._client.pipeline(transaction=atomic) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            answers: list[Any] = pipeline.execute()
            return answers

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (exceptions.RedisError, OSError) as error:
            raise self._ours(error) from error

    def _ours(self, error: Exception) -> StrandlineError:
        said = first_line(error)
        match error:
            case exceptions.AuthenticationError() | exceptions.NoPermissionError():
                return ConfigError(f"{self.name} does not let Strandline in: {said}")
            case exceptions.OutOfMemoryError():
                return Unavailable(f"{self.name} takes nothing more: {said}; raise its maxmemory")
            case exceptions.ConnectionError() | exceptions.TimeoutError() | OSError():
                return Unavailable(f"{self.name} does not answer: {said}")
            case exceptions.ResponseError() if "WRONGTYPE" in said:
                return DefinitionError(
                    f"{self.name}: a key of this materialization holds something else, which another program wrote: "
                    f"delete it; `strandline backfill` fills the resource again ({said})"
                )
        return Unavailable(f"{self.name} refuses a command: {said}")
