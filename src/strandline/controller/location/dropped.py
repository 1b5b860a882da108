"""What dropped items leave, brought to its end: upstreams are released, logs taken over, shards closed.

Shards are deleted once none reads them.

The catalog's change is what drops an item, and it lists the shards that no item keeps from then on.  Closing them takes
many more changes, each idempotent, so a process that dies in between leaves a list that the next environment works off.

What upstream keeps for a source (a replication slot) goes first: the shard of the source's reader says what is its own.
An upstream that keeps something still is asked again by the next environment, since one that is gone must not delay
each tick; until then it is a problem that names what is left.  One that could not be asked, since a store did not
answer, is asked by the next tick.

The recovery logs of a dropped materialization are taken over before another one is opened: a replica that is cut off
may still run the one that was dropped, and the other one may fill the same table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from strandline.compute.tick import SideBySide
from strandline.controller.location import on_error
from strandline.controller.location.catalog import Catalog, Left
from strandline.errors import ConfigError, FencedError, StrandlineError
from strandline.instance.commands import RunIngestion
from strandline.instance.connections import Connectors
from strandline.instance.tasks import fence_task
from strandline.materialize.log import ENDED
from strandline.persist.client import PersistClient
from strandline.persist.together.transactions import Transactions
from strandline.problem import Problem, Stopped, Way

_TRIES_AGAIN: Final = Way("bring back what does not answer: each tick tries again")
_ASK_AGAIN: Final = Way("bring it back: the location asks again when it is opened")
UNRELEASED: Final = Problem(
    "dropped-source-unreleased",
    "source {item!r} was dropped, and upstream was not released: {why}",
    Stopped.NOTHING,
    (_ASK_AGAIN, Way("let upstream keep what it has", "DROP SOURCE {item:sql}")),
    "Upstream keeps what it kept for the source.",
)
REPLACED_UNRELEASED: Final = Problem(
    "replaced-source-unreleased",
    "source {item!r}, in whose place another one is, was dropped, and upstream was not released: {why}",
    Stopped.NOTHING,
    (_ASK_AGAIN,),
    "Upstream keeps what it kept for the source.",
)
LOG_LEFT: Final = Problem(
    "dropped-endpoint-open",
    "its materialization was dropped, and it is not taken over yet: {why}",
    Stopped.NOTHING,
    (_TRIES_AGAIN,),
)
SHARD_LEFT: Final = Problem(
    "dropped-shard-open",
    "it was dropped and cannot be deleted yet: {why}",
    Stopped.NOTHING,
    (_TRIES_AGAIN,),
)


@dataclass(frozen=True, slots=True)
class Released:
    """What came of asking upstreams, by the shards of the sources' readers.

    ``gone``: those that keep nothing more.  ``kept`` and ``unasked``: why some keep something still, and why others
    could not be asked.
    """

    gone: set[str] = field(default_factory=set)
    kept: dict[str, str] = field(default_factory=dict)
    unasked: dict[str, str] = field(default_factory=dict)


async def release(
    sources: Sequence[Left],
    catalog: Catalog,
    connectors: Connectors,
    client: PersistClient,
    epoch: int,
    together: SideBySide,
) -> Released:
    """Have upstreams let go what they keep for dropped ``sources``.

    Each is named by its reader's own shard.  What they keep for a source that is in the ``catalog`` now is left.  They
    are asked at the same time, so several that do not answer cost no more time than one.  Raises `FencedError` if a
    newer epoch was admitted.
    """
    found = Released()

    async def ask(left: Left) -> None:
        options = on_error.others(left.name, left.options, on_error.SourceOptions)
        command = RunIngestion(left.name, (), left.connector, options, "", left.progress)
        others = [source.progress for source in catalog.sources_of(left.connector)]
        try:
            kept = await connectors.release(command, others, client, epoch)
        except FencedError:
            raise
        except ConfigError as error:
            kept = str(error)
        except StrandlineError as error:
            found.unasked[left.progress] = str(error)
            return
        if kept:
            found.kept[left.progress] = kept
        else:
            found.gone.add(left.progress)

    await together([ask(left) for left in sources])
    return found


def unreleased(left: Left, catalog: Catalog, why: str) -> str:
    """Return the problem of a dropped source whose upstream was not released.

    Where another source has its name in the ``catalog`` now, DROP SOURCE would drop that one, and is no way out.
    """
    problem = UNRELEASED if catalog.find(left.name) is None else REPLACED_UNRELEASED
    return problem.said(item=left.name, why=why)


async def end(logs: Iterable[str], client: PersistClient) -> tuple[frozenset[str], dict[str, str]]:
    """Take the logs of dropped materializations over; return which are, and what stands in the way of each other."""
    ended: set[str] = set()
    problems: dict[str, str] = {}
    for log in logs:
        try:
            await fence_task(log, ENDED, client)
        except StrandlineError as error:
            problems[log] = LOG_LEFT.said(why=error)
        else:
            ended.add(log)
    return frozenset(ended), problems


async def close(
    shards: Iterable[str], transactions: Transactions, beyond: int
) -> tuple[frozenset[str], dict[str, str]]:
    """Close ``shards``; return which are closed, and what stands in the way of each of the others.

    ``beyond``: how far beyond the epoch of the environment one may have been written (`View.fence`).  What was a table
    takes part in no transaction from then on.  Raises `FencedError` if a newer epoch was admitted.
    """
    closed: set[str] = set()
    problems: dict[str, str] = {}
    for shard in shards:
        try:
            await transactions.close_shard(shard, beyond)
        except FencedError:
            raise
        except StrandlineError as error:
            problems[shard] = SHARD_LEFT.said(why=error)
        else:
            closed.add(shard)
    return frozenset(closed), problems
