"""Running: what the shell does with typed text: statements, commands, answers, errors.

A call that takes long is made beside the terminal, so that Ctrl-C reaches the shell.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import pyarrow as pa
from rich.console import Console
from rich.status import Status
from rich.text import Text

from strandline import frontier
from strandline.cli.shell import commands
from strandline.cli.shell.commands import Command, described, helped, standing
from strandline.cli.shell.completion import ESCAPE, Names, coloured, pointed, typed
from strandline.cli.shell.connection import Connection
from strandline.cli.shell.tables import FAINT, Look, Scroll, counted, lines
from strandline.cli.terminal.exits import sentence
from strandline.cli.terminal.opening import Asked
from strandline.cli.terminal.output import outcome, printable, verb
from strandline.cli.terminal.standing import left
from strandline.client import Cancel, Outcome, ended_by
from strandline.controller.defining.project.files import resolved
from strandline.controller.language import statements
from strandline.controller.language.altering import AlterMaterializationViews
from strandline.controller.language.showing import Show, Shown, Subscribe
from strandline.errors import ConfigError, DefinitionError, InvalidUsage, StrandlineError, Unavailable
from strandline.instance.carriers.exchange import start_thread
from strandline.options import file_text
from strandline.serving import RemoteEnvironment, RemoteTransaction

if TYPE_CHECKING:
    from strandline.client import Transaction


T = TypeVar("T")
E_co = TypeVar("E_co", covariant=True)

_LOOK_S: Final = 0.1
"""So often the shell looks whether Ctrl-C was pressed."""
_LOOKS: Final = 10
"""After so many looks the call is shown to run."""
LET_GO_S: Final = 1.5
"""For so long a call that was cancelled may take to end; after that it is left alone."""


class Stream(Protocol[E_co]):
    """What comes as it comes, until it is closed."""

    def __iter__(self) -> Iterator[E_co]:
        """Yield it."""
        ...

    def close(self) -> None:
        """End it."""
        ...


@dataclass(frozen=True, slots=True)
class _Came(Generic[T]):
    """Something has come."""

    value: T


@dataclass(frozen=True, slots=True)
class _Ended:
    """Nothing more comes; ``error``: because of that."""

    error: BaseException | None


def interruptible(
    call: Callable[[], T], cancel: Callable[[], object], shown: Callable[[], AbstractContextManager[object]]
) -> T:
    """Make ``call`` in a thread of its own, and return what it returns.  ``shown`` is entered if it takes a while.

    Ctrl-C calls ``cancel``, and raises `KeyboardInterrupt` when the call has ended, or will not.
    """
    outcome, looks = Outcome(call), 0
    start_thread(outcome.make, "shell")
    try:
        with ExitStack() as entered:
            while True:
                try:
                    return outcome.result(_LOOK_S)
                except queue.Empty:
                    looks += 1
                    if looks == _LOOKS:
                        entered.enter_context(shown())
    except KeyboardInterrupt:
        _let_go(cancel, outcome)
        raise


def within(seconds: float, call: Callable[[], T]) -> T:
    """Make ``call`` in a thread of its own, and return what it returns; one that takes longer is left alone.

    A process waits at its end for the threads of a pool, and a server that was killed may never answer a call.

    Raises what the call raises; `Unavailable` if it takes longer than ``seconds``.
    """
    outcome = Outcome(call)
    start_thread(outcome.make, "shell")
    try:
        return outcome.result(seconds)
    except queue.Empty:
        raise Unavailable(f"there was no answer within {seconds:g} s") from None


def followed(stream: Stream[T]) -> Iterator[T]:
    """Yield what comes, until Ctrl-C, which ends the stream.  Raises what the stream raises."""
    found: queue.SimpleQueue[_Came[T] | _Ended] = queue.SimpleQueue()

    def read() -> None:
        try:
            for each in stream:
                found.put(_Came(each))
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            found.put(_Ended(error))
        else:
            found.put(_Ended(None))

    start_thread(read, "shell")
    with closing(stream), suppress(KeyboardInterrupt):
        while True:
            try:
                event = found.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            match event:
                case _Came(value):
                    yield value
                case _Ended(None):
                    return
                case _Ended(BaseException() as error):
                    raise error


def _let_go(cancel: Callable[[], object], outcome: Outcome[T]) -> None:
    cancelling = Outcome(cancel)
    start_thread(cancelling.make, "shell")
    with suppress(Exception, KeyboardInterrupt):  # how it ends is of no interest now
        outcome.result(LET_GO_S)


LIMIT: Final = 100
"""So many rows of an answer are shown at first."""
WATCH_S: Final = 2.0
KNOWN_S: Final = 3.0
"""So long the names for a completion may take; then there are none."""
_INSIDE: Final = "in a transaction already: COMMIT or ROLLBACK ends it"
UNFOLDED: Final = 100_000
"""The width of a file."""
TICK_S: Final = 60.0
"""For so long a statement waits for views to follow, where this shell is the process that writes."""
_WRONG: Final = "bold red"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user has set."""

    expanded: bool = False
    timing: bool = False
    limit: int | None = LIMIT


class Leave(Exception):
    """The user wants to leave."""


class Shell:
    """See the module.  ``console``: the terminal."""

    def __init__(self, connection: Connection, console: Console) -> None:
        self.names = Names(self._known)
        self._connection = connection
        self._console = console
        self._settings = Settings()
        self._transaction: Transaction | RemoteTransaction | None = None
        self._began_in: Asked | None = None
        self._last = ""
        self._file = ExitStack()
        self._target: Console | None = None

    @property
    def in_transaction(self) -> bool:
        """Whether BEGIN was said, and neither COMMIT nor ROLLBACK yet."""
        return self._transaction is not None

    def run(self, text: str) -> bool:
        """Do what was typed, up to the first error, which is shown; return whether there was none.

        Raises `Leave` if the user wants to leave.
        """
        try:
            for each in typed(text):
                begun = perf_counter()
                if each.startswith(ESCAPE):
                    self._command(commands.read(each))
                    continue
                if self._statement(each) and self._settings.timing:
                    self._say(f"took {_duration(perf_counter() - begun)}", FAINT)
        except KeyboardInterrupt:
            self._say("cancelled", FAINT)
        except Leave:
            raise
        except Exception as error:  # noqa: BLE001 - the shell goes on
            self._wrong(error, text)
        else:
            return True
        return False

    def close(self) -> None:
        """End what is open; a transaction is not committed."""
        if self._transaction is not None:
            self._say("the transaction was not committed")
            if isinstance(self._transaction, RemoteTransaction):
                self._attempted(self._transaction.roll_back)
        self._file.close()

    # ---- statements --------------------------------------------------------------------------------------------------

    def _statement(self, text: str) -> bool:
        """Do a statement; return whether how long it took says anything."""
        statement = resolved(self._connection.project, statements.parse(text))
        match statement:
            case statements.Query() | Show():
                self._last = text
                self._question(text, statement)
            case Subscribe(what):
                self._follow(what)
            case statements.Bracket(word):
                self._bracket(word)
            case _:
                self._change(text, statement)
        return not isinstance(statement, Subscribe)

    def _question(self, text: str, statement: statements.Statement) -> None:
        rows, time = self._asked(lambda env, cancel: env.answer(text, cancel=cancel))
        if isinstance(statement, Show) and statement.what is Shown.CREATE:
            self._print([coloured(printable(f"{each};")) for each in rows.column("statement").to_pylist()])
            return
        self._answer(rows, time)

    def _answer(self, rows: pa.Table, time: int | None) -> None:
        look = self._look()
        self._print(lines(rows, look))
        at = "" if time is None else f", true at {frontier.clock(time)}"
        self._say(f"({counted(rows, look)}{at})", FAINT)

    def _change(self, text: str, statement: statements.Statement) -> None:
        if isinstance(self._transaction, RemoteTransaction):
            self._waited(partial(self._transaction.execute, text))
            self._say(f"{verb(type(statement).__name__)}: part of the transaction")
            return
        if self._transaction is not None:
            self._waited(partial(self._transaction.execute, statement))
            self._say(f"{verb(type(statement).__name__)}: part of the transaction")
            return
        env = self._connection.ready(changes=True)
        try:
            if isinstance(env, RemoteEnvironment):
                time = self._waited(partial(env.execute, text))
            else:
                time = self._waited(partial(env.execute, statement))
        finally:
            self.names.forget()
        self._done(statement, time)

    def _done(self, statement: object, time: int | None) -> None:
        replaces = isinstance(statement, statements.CreateView) and statement.replaces
        at = None if time is None else frontier.clock(time)
        self._say(outcome(type(statement).__name__, at, replaces=replaces))
        self._follow_up()
        if isinstance(statement, AlterMaterializationViews):
            for text in left(self._waited(self._connection.env.status), statement.name):
                self._say(text)

    def _follow_up(self) -> None:
        """Have views follow, where no other process sees to it."""
        env = self._connection.env
        if not isinstance(env, RemoteEnvironment):
            self._waited(partial(env.tick, timeout=TICK_S))

    def _bracket(self, word: str) -> None:
        if (word == "BEGIN") == self.in_transaction:
            raise InvalidUsage(f"{word} {_INSIDE if self.in_transaction else 'outside any transaction'}")
        if word == "BEGIN":
            env = self._connection.ready(changes=True)
            begin: Callable[[], Transaction | RemoteTransaction] = env.begin
            self._transaction, self._began_in = self._waited(begin), env
            self._say("BEGIN: queries see the tables without its changes until COMMIT", FAINT)
            return
        self._ready(changes=True)
        transaction = self._transaction
        if transaction is None:
            raise Unavailable("nothing was committed: the process that had the transaction has ended")
        if word == "COMMIT":
            time = self._committed(transaction)
            self._say("COMMIT: nothing was changed" if time is None else f"COMMIT: committed at {frontier.clock(time)}")
            self._follow_up()
            return
        self._transaction = None
        if isinstance(transaction, RemoteTransaction):
            self._attempted(transaction.roll_back)
        self._say("ROLLBACK: nothing was changed")

    def _follow(self, what: str) -> None:
        env, scroll = self._ready(changes=False), Scroll(self._console.width)
        self._say("what is there, and then each change; Ctrl-C ends it", FAINT)
        try:
            for event in followed(env.subscribe(what)):
                self._print(scroll.lines(event))
        except Unavailable as error:
            if not self._connection.lost(error):
                raise

    # ---- commands ----------------------------------------------------------------------------------------------------

    def _command(self, command: Command) -> None:
        settings = self._settings
        match command:
            case Command(name, "") if name in commands.LISTS:
                self._answer(self._shown(f"SHOW {commands.LISTS[name]}"), None)
            case Command(name, argument) if name in commands.LISTS:
                self._print(described(argument, self._shown, self._look()))
            case Command(r"\status"):
                self._print(standing(self._asked(lambda env, _: env.status()), self._look()))
            case Command(r"\watch"):
                self._watch(commands.seconds(command, WATCH_S))
            case Command(r"\x"):
                self._settings = replace(settings, expanded=commands.switched(command, settings.expanded))
                self._say(f"one value a line: {_on(self._settings.expanded)}", FAINT)
            case Command(r"\timing"):
                self._settings = replace(settings, timing=commands.switched(command, settings.timing))
                self._say(f"timing: {_on(self._settings.timing)}", FAINT)
            case Command(r"\limit", ""):
                self._say(f"limit: {_limit(settings.limit)}", FAINT)
            case Command(r"\limit"):
                self._settings = replace(settings, limit=commands.limited(command))
                self._say(f"limit: {_limit(self._settings.limit)}", FAINT)
            case Command(r"\i", file):
                self._run_file(file)
            case Command(r"\o", file):
                self._write_to(file)
            case Command(r"\?"):
                self._print(helped())
            case _:
                raise Leave

    def _watch(self, seconds: float) -> None:
        if not self._last:
            raise InvalidUsage(r"\watch runs the last query again, and there is none yet")
        wait = threading.Event().wait
        while True:
            self._console.clear()
            self._say(f"every {seconds:g} s, until Ctrl-C: {' '.join(self._last.split())}", FAINT)
            self._answer(*self._asked(lambda env, cancel: env.answer(self._last, cancel=cancel)))
            wait(seconds)

    def _run_file(self, file: str) -> None:
        try:
            text = file_text(Path(file).expanduser())
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the file {file!r} cannot be read: {sentence(error)}") from error
        if not self.run(text):
            raise InvalidUsage(f"{file}: the statements behind the one that failed were not run")

    def _write_to(self, file: str) -> None:
        self._file.close()
        self._target = None
        if not file:
            self._say("answers are shown here", FAINT)
            return
        try:
            opened = self._file.enter_context(Path(file).expanduser().open("w"))
        except OSError as error:
            raise ConfigError(f"the file {file!r} cannot be written: {sentence(error)}") from error
        self._target = Console(file=opened, width=UNFOLDED, highlight=False, soft_wrap=True)
        self._say(rf"answers go to {file}, until \o", FAINT)

    # ---- asking ------------------------------------------------------------------------------------------------------

    def _asked(self, call: Callable[[Asked, Cancel], T]) -> T:
        """Make a call that changes nothing; if the process that writes has ended, make it again when it is back."""
        while True:
            env, cancel = self._ready(changes=False), Cancel()
            try:
                return interruptible(partial(call, env, cancel), cancel, self._waits)
            except StrandlineError as error:
                if not self._connection.lost(error):
                    raise
                self._forget_transaction()
            self._connection.come_back()

    def _shown(self, text: str) -> pa.Table:
        return self._asked(lambda env, cancel: env.answer(text, cancel=cancel))[0]

    def _waited(self, call: Callable[[], T]) -> T:
        """Make a call that cannot be taken back; Ctrl-C ends what it only asks, as Spark for the plan of a view."""
        cancel = Cancel()

        def made() -> T:
            with ended_by(cancel):
                return call()

        try:
            return interruptible(made, cancel, self._waits)
        except KeyboardInterrupt:
            self._say("it was sent, and may still be done: look before you repeat it")
            raise
        except StrandlineError as error:
            if self._connection.lost(error):
                self._forget_transaction()
                raise Unavailable("whether the statement was done is not known: look before you repeat it") from error
            raise

    def _committed(self, transaction: Transaction | RemoteTransaction) -> int | None:
        """Commit, and end the transaction; one that could not be committed now can be committed again."""
        try:
            time = self._waited(transaction.commit)
        except Unavailable:
            raise
        except BaseException:
            self._transaction = None
            raise
        self._transaction = None
        return time

    def _ready(self, *, changes: bool) -> Asked:
        """Return what is to be asked now; a transaction of a process that was started again meanwhile is forgotten."""
        env = self._connection.ready(changes=changes)
        if self._transaction is not None and env is not self._began_in:
            self._forget_transaction()
        return env

    def _forget_transaction(self) -> None:
        if isinstance(self._transaction, RemoteTransaction):
            self._transaction = None
            self._say("the transaction went with it: nothing of it was committed")

    def _waits(self) -> Status:
        return self._console.status("running; Ctrl-C cancels it")

    def _known(self, text: str) -> Sequence[Sequence[str]]:
        """Return what SHOW answers, for completion; nothing if it cannot be asked."""
        try:
            rows, _ = within(KNOWN_S, partial(self._connection.env.answer, text))
        except Exception:  # noqa: BLE001 - the next statement says why
            return []
        return [tuple(row.values()) for row in rows.to_pylist()]

    def _attempted(self, call: Callable[[], object]) -> None:
        try:
            self._waited(call)
        except StrandlineError:
            return  # it is gone by itself

    # ---- showing -----------------------------------------------------------------------------------------------------

    def _look(self) -> Look:
        if self._target is not None:
            return Look(UNFOLDED, None, self._settings.expanded)
        return Look(self._console.width, self._settings.limit, self._settings.expanded)

    def _print(self, shown: Iterable[Text]) -> None:
        target = self._target or self._console
        for line in shown:
            target.print(line)

    def _say(self, text: str, style: str = "") -> None:
        self._console.print(Text(printable(text), style), soft_wrap=False)

    def _wrong(self, error: Exception, text: str) -> None:
        at = error.position if isinstance(error, DefinitionError) else None
        said = error.message if isinstance(error, DefinitionError) else sentence(error)
        self._console.print(Text.assemble(("error: ", _WRONG), printable(said)), soft_wrap=False)
        if at is not None and at.line <= text.count("\n") + 1:
            line, mark = pointed(text, at, self._console.width)
            self._console.print(Text(line))
            self._console.print(Text(mark, _WRONG))


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _on(switch: bool) -> str:
    return "on" if switch else "off"


def _limit(limit: int | None) -> str:
    return "all rows are shown" if limit is None else f"{limit:,} rows are shown"
