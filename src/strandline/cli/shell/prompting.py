"""Prompting: the line that is typed (keys, colours, history, completion), and the loop of the shell.

The history is kept in the user's state directory for the next time; only its owner can read the file.  A statement is
not written there if it gives an option like a password a value, or holds a URL with a login; it can be recalled for as
long as the shell runs.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import termios
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.filters import completion_is_selected, has_completions
from prompt_toolkit.history import History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from rich.console import Console
from rich.text import Text
from sqlglot.tokenizer_core import Token, TokenType

from strandline.cli.shell import commands
from strandline.cli.shell.completion import ShellCompleter, StatementLexer, finished
from strandline.cli.shell.connection import Connection
from strandline.cli.shell.running import Leave, Shell
from strandline.cli.shell.tables import FAINT, HEAD
from strandline.cli.terminal.exits import Exit
from strandline.cli.terminal.opening import Opener, keep_apart
from strandline.cli.terminal.output import printable
from strandline.controller.language import cursor
from strandline.errors import DefinitionError
from strandline.options import holds_secret

KEPT_MAX: Final = 5_000
"""So many entries are read again; when there are twice as many, the older ones are dropped."""
_OWN: Final = 0o600
_SUSPECT: Final = re.compile(r"passw|secret|token|credential|api_?key|access_?key|private_?key", re.IGNORECASE)
_VALUES: Final = (TokenType.STRING, TokenType.RAW_STRING, TokenType.NUMBER)


def place(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where history is kept.

    >>> place({"XDG_STATE_HOME": "/state"}), place({"HOME": "/u", "XDG_STATE_HOME": "relative"})
    (PosixPath('/state/strandline/history'), PosixPath('/u/.local/state/strandline/history'))
    """
    state = environment.get("XDG_STATE_HOME", "")
    home = environment.get("HOME") or str(Path.home())
    root = Path(state) if state.startswith("/") else Path(home) / ".local" / "state"
    return root / "strandline" / "history"


def may_be_kept(text: str) -> bool:
    """Return whether nothing in ``text`` looks like the value of a password.

    >>> may_be_kept("SELECT token FROM t"), may_be_kept("CREATE CONNECTION c TO kafka (PassWord 'hunter2')")
    (True, False)
    >>> may_be_kept("UPDATE t SET api_key = 'x'"), may_be_kept("… (uri 'postgresql://me:pw@db/x')")
    (False, False)
    """
    try:
        tokens = cursor.tokens_of(text)
    except DefinitionError:
        return not _SUSPECT.search(text) and "://" not in text
    return not any(_told(tokens, n) for n, token in enumerate(tokens) if token.token_type in _VALUES)


def _told(tokens: list[Token], n: int) -> bool:
    """Return whether the value at ``n`` is, or may be, a secret."""
    named = n - 2 if n and tokens[n - 1].text in {"=", "==", ":", "=>"} else n - 1
    suspect = named >= 0 and _SUSPECT.search(tokens[named].text) is not None
    return suspect or holds_secret("", tokens[n].text)


class KeptHistory(History):
    """What was typed, in a file: one JSON string a line.  If it cannot be read or written, nothing is kept."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        """Return what was kept, the newest first."""
        found = self._read()
        if len(found) > 2 * KEPT_MAX:
            with suppress(OSError):
                fresh = self._path.with_suffix(".new")
                _append(fresh, found[-KEPT_MAX:])
                fresh.replace(self._path)
        return reversed(found[-KEPT_MAX:])

    def store_string(self, string: str) -> None:
        """Keep what was typed, unless it holds a secret."""
        if may_be_kept(string):
            with suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                _append(self._path, [string])

    def _read(self) -> list[str]:
        try:
            lines = self._path.read_bytes().splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            with suppress(msgspec.MsgspecError):  # half a line, of a process that was killed
                found.append(msgspec.json.decode(line, type=str))
        return found


def _append(path: Path, texts: Iterable[str]) -> None:
    """Add entries to a file that only its owner may read, whatever it was before."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, _OWN)
    with os.fdopen(descriptor, "ab") as file:
        os.fchmod(descriptor, _OWN)
        file.write(b"".join(msgspec.json.encode(text) + b"\n" for text in texts))


PROMPT: Final = "strandline> "
IN_TRANSACTION: Final = "strandline*> "
_LOCAL: Final = 3
"""Where the attributes of a terminal say what it does by itself with keys."""
_TERMINATED: Final = 128 + signal.SIGTERM


def shell(opener: Opener, root: Path) -> int:
    """Take what the user types, until the user leaves.  Return the exit status."""
    project = opener.place(root)
    if opener.spark is None:
        keep_apart()  # before anything holds on to standard output
    console = Console(highlight=False, soft_wrap=True)

    def say(text: str) -> None:
        console.print(Text(printable(text), FAINT), soft_wrap=False)

    connection = Connection(opener, project, say, threading.Event().wait)
    with ExitStack() as opened, _terminated(), _silent():
        opened.callback(connection.close)
        with console.status("connecting"):
            where = connection.open()
        console.print(Text.assemble(("Strandline", HEAD), f", {printable(where)}"))
        say(r"A statement ends with ;   \? lists the commands   \q leaves")
        running = Shell(connection, console)
        opened.callback(running.close)
        session = _session(running)
        while True:
            try:
                typed = session.prompt(IN_TRANSACTION if running.in_transaction else PROMPT)
                running.run(typed)
            except KeyboardInterrupt:
                continue  # what was typed is dropped
            except (EOFError, Leave):
                return Exit.OK


def _session(running: Shell) -> PromptSession[str]:
    return PromptSession(
        lexer=StatementLexer(),
        completer=ShellCompleter(running.names, commands.NAMES),
        complete_in_thread=True,
        complete_while_typing=False,
        history=KeptHistory(place()),
        auto_suggest=AutoSuggestFromHistory(),
        multiline=True,
        prompt_continuation=_continued,
        key_bindings=_keys(),
        enable_open_in_editor=True,
        mouse_support=False,
    )


def _continued(width: int, _: int, wrapped: int) -> str:
    """Return what stands before a further line of a statement."""
    return "" if wrapped else "-> ".rjust(width)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter", filter=~(has_completions & completion_is_selected))
    def _(event: KeyPressEvent) -> None:
        """Run what is finished, else begin a further line."""
        buffer = event.current_buffer
        if finished(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    @keys.add("enter", filter=has_completions & completion_is_selected)
    def _(event: KeyPressEvent) -> None:
        """Take the completion that is chosen."""
        event.current_buffer.complete_state = None

    return keys


@contextmanager
def _silent() -> Iterator[None]:
    """Keep the terminal from showing keys while a statement runs; the prompt shows them, with their colours."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    quiet = [*before]
    quiet[_LOCAL] &= ~termios.ECHO
    termios.tcsetattr(keyboard, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


@contextmanager
def _terminated() -> Iterator[None]:
    """Let SIGTERM end the shell as it ends other programs, once everything is closed; Ctrl-C ends a statement alone."""

    def end(*_: object) -> None:
        raise SystemExit(_TERMINATED)

    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, end),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
    }
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
