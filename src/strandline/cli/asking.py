"""Commands that ask, and `sql`, which may also write: open, ask, print."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from strandline import frontier
from strandline.algebra.notation import readable
from strandline.cli.terminal import standing
from strandline.cli.terminal.exits import Exit
from strandline.cli.terminal.lasting import changing, noted
from strandline.cli.terminal.opening import Asked, Opener
from strandline.cli.terminal.output import Output, outcome, rows_document, rows_table, table
from strandline.cli.terminal.standing import interrupted, left, left_out, parts, stands_still, waiting, written_by
from strandline.client import Progress, Updates
from strandline.controller.defining.project.settings import Project
from strandline.errors import ConfigError, DefinitionError, InvalidUsage, Position
from strandline.options import file_text
from strandline.serving import RemoteEnvironment, RemoteTransaction

if TYPE_CHECKING:
    from strandline.client import Transaction
    from strandline.controller.language import statements

TEXT_CHARS_MAX: Final = 80
"""How much of a query's text `strandline queries` prints; with ``--json`` all of it."""


def status(opener: Opener, root: Path, output: Output) -> Exit:
    """Print the status of the environment; the exit status says whether anything stands still."""
    found = _looked(opener, opener.place(root), output)
    output.result(found, written_by(found))
    if not output.json:
        for part in (*parts(found, output.console.width), *waiting(found)):
            output.console.print(part)
    return Exit.STANDS_STILL if stands_still(found) else Exit.OK


def watch(opener: Opener, root: Path, output: Output, seconds: float) -> Exit:
    """Print the status again and again, every ``seconds``, until a signal."""
    project = opener.place(root)
    standing.watch(lambda: _looked(opener, project, output), output, seconds)
    return Exit.OK


def _looked(opener: Opener, project: Project, output: Output) -> dict[str, Any]:
    with opener.reading(project, output.note) as env:
        return {"serving": None, **env.status()}  # what serves says itself where


def query(
    opener: Opener, root: Path, sql: str, as_of: int | None, output: Output, timeout: float | None = None
) -> None:
    """Print the answer to a query, which is cancelled after ``timeout`` seconds."""
    with opener.reading(opener.place(root), output.note) as env:
        _answer(env, sql, as_of, output, timeout)


def queries(opener: Opener, root: Path, output: Output) -> None:
    """Print the queries that the process that writes the location answers now."""
    with _serving(opener, root, output.note) as env:
        found = env.queries()
    if not found and not output.json:
        output.note("no query is answered now")
        return
    columns = ("number", "who", "for", "stage", "text")
    lines = (
        [
            each["number"],
            each["who"],
            frontier.told({"ms": each["ms"], "rows": None}),
            each["stage"],
            _short(each["text"]),
        ]
        for each in found
    )
    output.result({"queries": found}, table(columns, lines, [True, False, True, False, False]))


def cancel(opener: Opener, root: Path, number: int, output: Output) -> None:
    """Cancel a query of the process that writes the location.  Raises `InvalidUsage` if none has this number."""
    with _serving(opener, root, output.note) as env:
        if not env.cancel_query(number):
            raise InvalidUsage(
                f"no query has the number {number} now: `strandline queries` lists those that are answered"
            )
    output.result({"cancelled": number}, f"query {number} is cancelled")


def acknowledge(opener: Opener, root: Path, name: str | None, output: Output, *, every: bool) -> None:
    """Acknowledge the notices of an item, or of ``every`` one, and print them.

    Raises `InvalidUsage` unless it is said just once whose.
    """
    if (name is None) is not every:
        raise InvalidUsage("name an item, or give --all")
    with opener.reading(opener.place(root), output.note) as env:
        found = env.acknowledge(name)
    said = [f"{each}: {notice}" for each, told in found["acknowledged"].items() for notice in told]
    of = "" if name is None else f" of {name!r}"
    none = f"there is no notice{of} that is not acknowledged"
    output.result(found, "\n".join(f"acknowledged: {each}" for each in said) or none)


def _serving(opener: Opener, root: Path, note: Callable[[str], object]) -> RemoteEnvironment:
    """Connect to the process that writes the location.  Raises `ConfigError` if none serves there."""
    project = opener.place(root)
    found = opener.awaited(lambda: opener.living(project), note)
    if found is None:
        raise ConfigError(
            f"no process serves {project.location}, so no query is answered there: start `strandline run`"
        )
    return found


def _short(text: str) -> str:
    """Return a query in one line.

    >>> _short("SELECT 1   AS n"), len(_short("x" * 500))
    ('SELECT 1 AS n', 80)
    """
    line = " ".join(text.split())
    return line if len(line) <= TEXT_CHARS_MAX else f"{line[: TEXT_CHARS_MAX - 1]}…"


def subscribe(opener: Opener, root: Path, name: str, as_of: int | None, until: int | None, output: Output) -> None:
    """Print the contents of a collection at ``as_of``, then each change before ``until``, as they become complete.

    With ``--json`` each update is a document with ``__time`` and ``__diff``, and so is each progress: ``upper``.
    """
    with (
        opener.beside(opener.place(root), output.note) as env,  # it outlives the process that writes
        closing(env.subscribe(name, as_of, until)) as events,
        suppress(KeyboardInterrupt),
        interrupted(),
    ):
        for event in events:
            match event:
                case Updates(rows):
                    for row in readable(rows).to_pylist():
                        shown = ", ".join(f"{key} {value}" for key, value in row.items() if not key.startswith("__"))
                        output.result(row, f"{row['__time']} {row['__diff']:+}: {shown}")
                case Progress(upper):
                    text = "it is closed: nothing more comes" if upper is None else f"complete before {upper}"
                    output.result({"upper": upper}, text)


def explain(opener: Opener, root: Path, name: str, output: Output) -> None:
    """Print how a view is maintained."""
    with opener.reading(opener.place(root), output.note) as env:
        found = env.explain(name)
    document = {"name": name, "incremental": found.incremental, "reasons": found.reasons, "stages": found.stages}
    output.result(document, str(found))


def script(opener: Opener, root: Path, file: Path, output: Output) -> None:
    """Run the statements of a file.  A script that only reads does not block the writer."""
    from strandline.controller.defining.project.files import resolved  # they bring the parser of SQL
    from strandline.controller.language import statements
    from strandline.controller.language.altering import AlterMaterializationViews
    from strandline.controller.language.showing import Show

    project = opener.place(root)
    text = _text(file)
    parsed = [(each, resolved(project, statements.parse(each))) for each in statements.placed(text)]
    writes = any(not isinstance(statement, statements.Question) for _, statement in parsed)
    _refuse_loose_ends(parsed)
    if not parsed:
        output.note(f"there is no statement in {str(file)!r}")
        return
    with changing(opener, project, output) if writes else opener.reading(project, output.note) as env:
        transaction: Transaction | RemoteTransaction | None = None
        for each, statement in parsed:
            match statement:
                case statements.Query() | Show():
                    _answer(env, each, None, output)
                case statements.Bracket("BEGIN"):
                    transaction = env.begin()
                case statements.Bracket(word):
                    if transaction is not None and word == "COMMIT":
                        _said("Transaction", transaction.commit(), output)
                    transaction = None
                case _ if isinstance(transaction, RemoteTransaction):
                    transaction.execute(each)
                case _ if transaction is not None:
                    transaction.execute(statement)
                case _:
                    with noted(_short(each), output):
                        time = env.execute(each) if isinstance(env, RemoteEnvironment) else env.execute(statement)
                    replaces = isinstance(statement, statements.CreateView) and statement.replaces
                    _said(type(statement).__name__, time, output, replaces=replaces)
                    if isinstance(statement, AlterMaterializationViews):
                        for text in left(env.status(), statement.name):
                            output.note(text)


def _refuse_loose_ends(parsed: Sequence[tuple[str, statements.Statement]]) -> None:
    """Refuse a script with unmatched BEGIN, COMMIT or ROLLBACK, before any of it runs."""
    from strandline.controller.language import statements

    begun: Position | None = None
    for _, statement in parsed:
        if isinstance(statement, statements.Bracket):
            at = statement.at
            assert at is not None, "it was read from the script"
            if (statement.word == "BEGIN") == (begun is not None):
                where = "outside any transaction" if begun is None else f"inside the transaction of {begun}"
                raise DefinitionError(f"{statement.word} {where}", at)
            begun = at if begun is None else None
    if begun is not None:
        raise DefinitionError("this transaction has neither COMMIT nor ROLLBACK", begun)


def _said(name: str, timestamp: int | None, output: Output, *, replaces: bool = False) -> None:
    output.result({"statement": name, "timestamp": timestamp}, outcome(name, timestamp, replaces=replaces))


def _answer(env: Asked, sql: str, as_of: int | None, output: Output, timeout: float | None = None) -> None:
    rows, time = env.answer(sql, as_of, timeout=timeout)
    output.result({"as_of": time, **rows_document(rows)}, rows_table(rows))
    if time is not None and not output.json:
        output.note(f"true at {frontier.shown(time)}")
    if time is not None:
        for warning in left_out(env.status(), sql):
            output.note(f"strandline: {warning}")


def _text(file: Path) -> str:
    if str(file) == "-":
        return sys.stdin.read().removeprefix("\ufeff")
    try:
        return file_text(file)
    except OSError as error:
        raise ConfigError(f"the file {str(file)!r} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the file {str(file)!r} is not text in UTF-8 (byte {error.start + 1})") from error
