"""The users of the world of webhooks: senders, beside the ingesters of `ingesters.py`.

Casts of them make histories by a seed (`play`); a script is performed with one fault at a time (`perform`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

from strandline.errors import FencedError
from strandline.frontier import as_time
from strandline.sources.readers.webhook.inbox import Inbox, Request
from strandline.store.unreliable import Choose
from strandline.testing.simulation.exploration import Seeded
from strandline.testing.simulation.kernel import Fate, IoPoint
from worlds.ingesters import Doing, ingest, let_go, populate, stay, take_over
from worlds.tries import UNANSWERED
from worlds.webhook import WebhookWorld, message_of, numbers_of

REQUESTS: Final = 8
CALM_AFTER: Final = 600
FENCED_MAX: Final = 12
"""How often a sender meets a process that was taken over before it gives a request up."""
RESTS_MS: Final = (0, 3, 10, 30)
ZOMBIES: Final = 4
"""One in so many requests goes to a process that is not the newest."""


def request_of(name: str, number: int, *, other: bool = False) -> Request:
    """Return a sender's request with this number; every third one has no key.  ``other``: with other content."""
    base = (ord(name[-1]) * 1_000 + number * 10) * (-1 if other else 1)
    messages = tuple(message_of(base + n) for n in range(1 + number % 2))
    return Request(messages, f"{name}-{number}" if number % 3 else "")


async def send(world: WebhookWorld, name: str, epoch: int) -> None:
    """Send requests, each until it is known to be kept or refused; one without a key once only."""
    while world.done[name] < REQUESTS:
        request = request_of(name, world.done[name])
        rest_ms = RESTS_MS[world.choose("rest", len(RESTS_MS))]
        await IoPoint("sender.rest", (), lambda: None, (Fate.DONE,), delay_ms=rest_ms)
        fenced = world.marks[f"fenced {name} {world.done[name]}"]
        if fenced > FENCED_MAX or (world.attempts[request] and not request.key):
            world.done[name] += 1
        elif world.inboxes:
            await _offer(world, name, request)


async def _offer(world: WebhookWorld, name: str, request: Request) -> None:
    requests = _beside(world, name, request)
    world.begin(requests)
    try:
        outcomes = await _someone(world).take(requests)
    except FencedError:
        world.marks["fenced"] += 1
        world.marks[f"fenced {name} {world.done[name]}"] += 1
    except UNANSWERED:
        world.marks["unanswered"] += 1
    else:
        world.answered(requests, outcomes)
        world.done[name] += 1


def _beside(world: WebhookWorld, name: str, request: Request) -> list[Request]:
    """Return a request, and perhaps itself once more, an earlier one, or one that has an earlier one's key."""
    number = world.done[name]
    earlier = [n for n in range(number) if n % 3 and world.attempts[request_of(name, n)]]
    what = world.choose("beside", 6)
    if what == 0 and request.key:
        return [request, request]
    if what in {1, 2} and earlier:
        known = request_of(name, earlier[world.choose("earlier", len(earlier))])
        if what == 1:
            return [known, request]
        if world.kept >= set(numbers_of(known)):
            return [request_of(name, int(known.key.rpartition("-")[2]), other=True), request]
    return [request]


def _someone(world: WebhookWorld) -> Inbox:
    """Return the inbox of the newest process, or of any."""
    if world.choose("zombie", ZOMBIES):
        return world.inboxes[-1]
    return world.inboxes[world.choose("which", len(world.inboxes))]


CASTS: Final[tuple[Mapping[str, Doing[WebhookWorld]], ...]] = (
    {"a": ingest, "s1": send},
    {"a": ingest, "s1": send, "s2": send, "l": let_go},
    {"a": ingest, "b": ingest, "s1": send, "s2": send},
    {"a": stay, "b": take_over, "s1": send, "s2": send, "l": let_go},
)


def play(seed: int) -> WebhookWorld:
    """Make the history of ``seed``.  Raises what it breaks."""
    world = WebhookWorld(Seeded(random.Random(seed)), calm_after=CALM_AFTER)
    populate(world, CASTS[seed % len(CASTS)])
    try:
        world.run()
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise
    return world


# ---- one fault -------------------------------------------------------------------------------------------------------

STAGES: Final = ((1,), (2, 3), (4,))
"""Which requests are sent before each round of the script: one has no key."""


async def scripted(world: WebhookWorld, name: str, epoch: int) -> None:
    """Send and ingest, round after round, each time from where it is after a crash."""
    while world.done[name] < len(STAGES):
        try:
            ingestion, mine = await world.open(world.process(), epoch)
            while world.done[name] < len(STAGES):
                await _send_all(world, STAGES[world.done[name]])
                await ingestion.tick(as_time(ingestion.bound) + 1)
                await ingestion.catch_up()
                world.counted(ingestion, mine)
                if ingestion.upper == ingestion.bound:
                    world.done[name] += 1
        except UNANSWERED:
            world.marks["unanswered"] += 1


async def _send_all(world: WebhookWorld, numbers: tuple[int, ...]) -> None:
    """Send requests, those with a key even if they are acknowledged already."""
    for number in numbers:
        request = request_of("s1", number)
        if request.key or not world.attempts[request]:
            world.begin([request])
            world.answered([request], await world.inboxes[-1].take([request]))


def perform(choose: Choose, patience_max: int) -> None:
    """Play the script once.  Raises what it breaks."""
    world = WebhookWorld(choose, patience=patience_max)
    populate(world, {"a": scripted, "l": let_go})
    world.run()
    assert world.done["a"] == len(STAGES)
