"""Clauses of statements: the options of sources and connections, REFRESH, and what items of several kinds share.

A source and a connection are configured by flat options:

    (option = value, option 'value', option, …)
    [KEY (columns)] [KEY FORMAT f] [[VALUE] FORMAT f] [ENVELOPE NONE | UPSERT | DEBEZIUM]
    [INCLUDE {KEY | PARTITION | OFFSET | TIMESTAMP | HEADERS | TOPIC} [AS column], …]

A clause is another way to write options: ``key``, ``key_format``, ``format``, ``envelope``, ``include_offset`` and the
like.  So stored definitions, and the checks of a connector, are the same however an option was written.  An option that
is alone is ``true``.  Items of several kinds take the first two clauses, a view the third, and a materialization lists
what it binds:

    [IN INSTANCE name]
    [KEEP HISTORY FOR 'interval']
    REFRESH {ON COMMIT | EVERY 'interval' [ALIGNED TO 'time'] | AT 'time' | AT CREATION}, …
    collection [TO table] [KEY (columns)]

A time is a date, or a date and a time of day, as ISO 8601 writes them; without an offset it is UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from strandline.algebra.messages import Metadata, Shape
from strandline.controller.language import unsupported
from strandline.controller.language.cursor import Cursor
from strandline.controller.location.config import milliseconds
from strandline.errors import DefinitionError, Position
from strandline.frontier import TIME_MAX, Every, Refresh


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """``at``: where the name of what it is about stands; None if it comes from no text."""

    at: Position | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept(Placed):
    """``keep_history``: the interval of KEEP HISTORY FOR as it was written, which stands at ``keep_history_at``."""

    keep_history: str | None = None
    keep_history_at: Position | None = field(default=None, compare=False, repr=False)


def refresh(cursor: Cursor) -> Refresh | None:
    """Take the clause REFRESH if it comes; None: at each time.

    Raises `DefinitionError`, with its place, for a wrong interval or time, or for ON COMMIT beside another.
    """
    if not cursor.accept("REFRESH"):
        return None
    begin, everies, ats = cursor.position, list[Every](), list[int]()
    follows = at_creation = False
    while True:
        if cursor.accept("ON", "COMMIT"):
            follows = True
        elif cursor.accept("EVERY"):
            everies.append(_every(cursor))
        elif cursor.accept("AT", "CREATION"):
            at_creation = True
        elif cursor.accept("AT"):
            ats.append(_time(cursor))
        else:
            raise cursor.fail("ON COMMIT, EVERY, AT or AT CREATION")
        if not cursor.accept(","):
            break
    found = Refresh(tuple(everies), tuple(ats), at_creation)
    if follows and found != Refresh():
        raise DefinitionError("REFRESH ON COMMIT is at each time; leave out the others, or it", begin)
    return None if follows else found


def _every(cursor: Cursor) -> Every:
    at, text = cursor.position, cursor.value()
    try:
        interval = milliseconds(text)
    except ValueError as error:
        raise DefinitionError(f"REFRESH EVERY: {error}", at) from None
    if interval == 0:
        raise DefinitionError("REFRESH EVERY: an interval of 0 has no next refresh; write ON COMMIT", at)
    return Every(interval, _time(cursor) if cursor.accept("ALIGNED", "TO") else None)


def _time(cursor: Cursor) -> int:
    at, text = cursor.position, cursor.value()
    try:
        given = datetime.fromisoformat(text.strip())
        time = round((given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise DefinitionError(
            f"{text!r} is no time: write '2026-01-31 06:00:00', with an offset if not UTC", at
        ) from None
    if not 0 <= time < TIME_MAX:
        raise DefinitionError(f"{text!r} is before 1970", at)
    return time


INCLUDE: Final = "include_"
"""What the options begin with that ask for columns of metadata."""
INCLUDED: Final[Mapping[str, str]] = {each.value: each.usual for each in Metadata}
"""What can be included of a message, and the type of its column where the statement's columns do not say it."""
ENVELOPES: Final = tuple(each.value for each in Shape)


@dataclass(frozen=True, slots=True)
class Given:
    """Options as they were given, each once, and where each stands."""

    options: dict[str, str] = field(default_factory=dict)
    at: dict[str, Position] = field(default_factory=dict)

    def give(self, name: str, text: str, at: Position) -> None:
        """Add one.  Raises `DefinitionError` if it was given before."""
        if name in self.options:
            raise DefinitionError(f"option {name!r} is given twice", at)
        self.options[name], self.at[name] = text, at


@dataclass(frozen=True, slots=True)
class Bind(Placed):
    """One collection of a materialization; an empty key is to be inferred."""

    collection: str
    table: str
    key: tuple[str, ...]


def binding(cursor: Cursor) -> Bind:
    """Take a collection, with TO and KEY if they come; its table is called like the collection if TO does not say."""
    at, collection = cursor.position, cursor.only_name()
    table = cursor.name() if cursor.accept("TO") else collection
    key = tuple(name for name, _ in cursor.names()) if cursor.accept("KEY") else ()
    return Bind(collection, table, key, at=at)


def options(cursor: Cursor) -> Given:
    """Take ``(option = value, …)``, of which there may be none."""

    def value() -> str:
        said = cursor.accept("=") or cursor.peek() not in {",", ")"}
        return cursor.option_value() if said else "true"

    return _given(cursor, value)


def options_named(cursor: Cursor) -> Given:
    """Take ``(option, …)``, without values, of which there may be none."""

    def nothing() -> str:
        if cursor.peek() not in {",", ")"}:
            raise cursor.fail("names of options alone")
        return ""

    return _given(cursor, nothing)


def _given(cursor: Cursor, value: Callable[[], str]) -> Given:
    """Take options in brackets; ``value`` takes what follows the name of one."""
    given = Given()
    cursor.take("(")
    while not cursor.accept(")"):
        if given.options:
            cursor.take(",")
        at, name = cursor.position, cursor.name("an option").lower()
        given.give(name, value(), at)
    return given


def optional(cursor: Cursor) -> Given:
    """Take options if there are any."""
    return options(cursor) if cursor.peek() == "(" else Given()


def behind_word(cursor: Cursor) -> Given:
    """Take ``OPTIONS (…)`` if it comes."""
    return options(cursor) if cursor.accept("OPTIONS") else Given()


def of_source(cursor: Cursor, given: Given) -> None:
    """Take the clauses that come, in any order, each once, and add the options that they mean."""
    while read := next((read for words, read in _CLAUSES if _next(cursor, words)), None):
        read(cursor, given)
    cursor.refuse("CREATE SOURCE", unsupported.SOURCE_CLAUSES)


def instance(cursor: Cursor) -> tuple[str, Position | None]:
    """Take IN INSTANCE if it comes; return the instance's name, "" if none is named, and where it stands."""
    if not cursor.accept("IN"):
        return "", None
    cursor.take("INSTANCE")
    at = cursor.position
    return cursor.only_name("an instance"), at


def history(cursor: Cursor) -> tuple[str | None, Position | None]:
    """Take KEEP HISTORY FOR if it comes; return its interval as it was written, and where it stands."""
    if not cursor.accept("KEEP", "HISTORY", "FOR"):
        return None, None
    at = cursor.position
    return cursor.value(), at


def _next(cursor: Cursor, words: tuple[str, ...]) -> bool:
    return all(cursor.peek(n) == word for n, word in enumerate(words))


def _key(cursor: Cursor, given: Given) -> None:
    at = cursor.position
    cursor.take("KEY")
    names = cursor.names()
    for name, where in names:
        if "," in name:
            raise DefinitionError(f"{name!r} cannot be a column of a key: it has a comma in its name", where)
    given.give("key", ",".join(name for name, _ in names), at)


def _key_format(cursor: Cursor, given: Given) -> None:
    at = cursor.position
    cursor.take("KEY", "FORMAT")
    given.give("key_format", cursor.option_value().lower(), at)


def _format(cursor: Cursor, given: Given) -> None:
    at = cursor.position
    cursor.accept("VALUE")
    cursor.take("FORMAT")
    given.give("format", cursor.option_value().lower(), at)


def _envelope(cursor: Cursor, given: Given) -> None:
    at = cursor.position
    cursor.take("ENVELOPE")
    if cursor.peek().lower() not in ENVELOPES:
        raise cursor.fail("NONE, UPSERT or DEBEZIUM")
    given.give("envelope", cursor.option_value().lower(), at)


def _include(cursor: Cursor, given: Given) -> None:
    cursor.take("INCLUDE")
    while True:
        at, what = cursor.position, cursor.peek().lower()
        if what not in INCLUDED:
            raise cursor.fail("KEY, PARTITION, OFFSET, TIMESTAMP, HEADERS or TOPIC")
        cursor.take(what.upper())
        given.give(f"{INCLUDE}{what}", cursor.only_name("a column") if cursor.accept("AS") else what, at)
        if not cursor.accept(","):
            return


_CLAUSES: Final[tuple[tuple[tuple[str, ...], Callable[[Cursor, Given], None]], ...]] = (
    (("KEY", "FORMAT"), _key_format),
    (("KEY",), _key),
    (("FORMAT",), _format),
    (("VALUE", "FORMAT"), _format),
    (("ENVELOPE",), _envelope),
    (("INCLUDE",), _include),
)
