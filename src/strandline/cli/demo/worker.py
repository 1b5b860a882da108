"""The demo's main loop, in its own process: opens the project, handles requests, answers when they are durable.

One JSON document a line, requests on standard input, answers on standard output, in turn.  Every request may be
repeated after a kill: a tick brings everything up to date whatever happened before, an insert carries a token, and the
statements are idempotent.

The worker ends when standard input ends.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from strandline.cli.terminal.opening import Opener
from strandline.client import Environment
from strandline.errors import StrandlineError


class Tick(msgspec.Struct, frozen=True, tag="tick"):
    """Tick once."""


class Execute(msgspec.Struct, frozen=True, tag="execute"):
    """Run a statement."""

    sql: str


class Insert(msgspec.Struct, frozen=True, tag="insert"):
    """Insert rows into a table, once for each token."""

    table: str
    rows: list[dict[str, str]]
    token: str


Request: TypeAlias = Tick | Execute | Insert


class Answer(msgspec.Struct, frozen=True):
    """A request is done (or the worker is ready): its time, its duration, and the counts so far."""

    time: int | None
    seconds: float
    progress: dict[str, Any] = {}
    error: str = ""


def main(arguments: Sequence[str]) -> int:
    """Serve the project in the directory that the one argument names."""
    opener = Opener()
    project = opener.project(Path(arguments[0]))
    begun = time.monotonic()
    with opener.writing(project) as env:
        env.apply(project)
        _say(Answer(None, time.monotonic() - begun, env.progress()))
        for line in sys.stdin:
            _say(_served(env, msgspec.json.decode(line, type=Request)))
    return 0


def _served(env: Environment, request: Request) -> Answer:
    begun = time.monotonic()
    try:
        complete = _do(env, request)
    except StrandlineError as error:
        return Answer(None, time.monotonic() - begun, error=str(error))
    return Answer(complete, time.monotonic() - begun, env.progress())


def _do(env: Environment, request: Request) -> int | None:
    match request:
        case Tick():
            return env.tick()
        case Execute(sql):
            return env.execute(sql)
        case Insert(table, rows, token):
            return env.insert(table, rows, token=token)


def _say(answer: Answer) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
