"""Options: what a reader, a driver or a store takes, declared once as a dataclass of documented fields.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Options:
        path: str = option(TEXT, "The file; created if missing.")
        settle: int = option(DURATION_MS, "Take a file that was not modified for so long.", default="1s")

`understood` turns the texts of a statement or of a project file into such a value.  `schema` says the same fields as
JSON Schema, for programs, and `lines` as a table, for people.  So there is no second list of options.

A text may be a *reference* to the place of the real value: ``env:NAME`` or ``file:PATH``.  What is stored and shown is
the reference; it is resolved where the value is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, cast

from strandline.errors import ConfigError, DefinitionError, StrandlineError

T = TypeVar("T")
O = TypeVar("O")  # noqa: E741 - a dataclass of options
E = TypeVar("E", bound=Enum)

_SECRET: Final = re.compile(r"secret|token|passw|pwd|credential|(private|api|access|account)_?key$", re.IGNORECASE)
_REFERENCE: Final = re.compile(r"(?:env|file):.")
_LOGIN: Final = re.compile(r"([a-z][a-z0-9+.-]*://)[^/?#\s]*@", re.IGNORECASE)
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m)?")
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, None: 1_000}
_NAMED_CHARACTERS: Final = {"tab": "\t", "\\t": "\t"}


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """How the text of an option becomes a value.

    ``understand`` raises `ValueError` saying what the text can be.  ``schema``: which texts it takes, as JSON Schema.
    ``may_refer``: the text may be a reference.
    """

    understand: Callable[[str], T]
    schema: Mapping[str, Any]
    may_refer: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its name, its kind, a sentence for its reader, and the text that stands for it if it is not given.

    ``default`` None: it may be left out, and then means what ``doc`` says.
    """

    name: str
    kind: Kind[Any]
    doc: str
    required: bool
    default: str | None


def option(kind: Kind[T], doc: str, *, default: str | Any | None = MISSING) -> T:
    """Declare a field of an options dataclass; without ``default`` (a text, or None) the option is required."""
    known: dict[str, Any] = {} if default is MISSING else {"default": default and kind.understand(default)}
    return cast("T", field(metadata={"kind": kind, "doc": doc, "default": default}, **known))


def options_of(declared: type[Any]) -> Iterator[Option]:
    """Yield the options that a dataclass declares, in its order."""
    for each in fields(declared):
        yield _option(each)


def _option(each: Field[Any]) -> Option:
    meta, default = each.metadata, each.metadata["default"]
    return Option(each.name, meta["kind"], meta["doc"], default is MISSING, None if default is MISSING else default)


def understood(
    owner: str,
    declared: type[O],
    texts: Mapping[str, str],
    *,
    resolve: Callable[[str], str] | None = None,
    error: type[StrandlineError] = DefinitionError,
) -> O:
    """Return the options of ``owner`` (its name in messages) that ``texts`` say; names are compared without case.

    ``resolve``: resolves references; without it they stay as they are, for a check that uses nothing.

    Raises ``error`` naming the option that is unknown or missing, or has no such value, and what it can be.
    """
    try:
        return declared(**_values(list(options_of(declared)), texts, resolve))
    except ValueError as refusal:  # also of the dataclass' own check: options that do not go together
        raise error(f"{owner}: {refusal}") from None


def _values(every: Sequence[Option], texts: Mapping[str, str], resolve: Callable[[str], str] | None) -> dict[str, Any]:
    known = {each.name: each for each in every}
    given = {name.lower(): text for name, text in texts.items()}
    takes = ", ".join(f"{each.name} (required)" if each.required else each.name for each in every) or "no options"
    for name in given:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"it takes {takes}"
            raise ValueError(f"option {name!r} is not known; {hint}")
    for each in every:
        if each.required and each.name not in given:
            raise ValueError(f"option {each.name!r} is missing; it takes {takes}")
    return {name: _value(known[name], text, resolve) for name, text in given.items()}


def _value(known: Option, text: str, resolve: Callable[[str], str] | None) -> Any:
    value = text
    if known.kind.may_refer and is_reference(text):
        if resolve is None:
            return text
        value = resolve(text)
    try:
        return known.kind.understand(value)
    except ValueError as error:  # what a reference stands for may be a secret
        raise ValueError(f"option {known.name!r} is {text!r}: {error}") from None


def schema(declared: type[Any]) -> dict[str, Any]:
    """Return the options of a dataclass as JSON Schema: an object of texts."""
    every = list(options_of(declared))
    return {
        "type": "object",
        "properties": {
            each.name: {
                "type": "string",
                **each.kind.schema,
                "description": each.doc,
                **({"default": each.default} if each.default is not None else {}),
            }
            for each in every
        },
        "required": [each.name for each in every if each.required],
        "additionalProperties": False,
    }


def lines(declared: type[Any]) -> Iterator[str]:
    """Yield the options of a dataclass as the lines of a Markdown table."""
    yield "| option | default | meaning |"
    yield "| --- | --- | --- |"
    for each in options_of(declared):
        default = (
            "required"
            if each.required
            else ""
            if each.default is None
            else f"`{each.default}`"
            if each.default
            else "empty"
        )
        takes = " · ".join(f"`{value}`" for value in each.kind.schema.get("enum", ()))
        yield f"| `{each.name}` | {default} | {each.doc}{f' One of {takes}.' if takes else ''} |"


# --- references -------------------------------------------------------------------------------------------------------
def is_reference(text: str) -> bool:
    """Return whether a text is a reference to the place of the real value."""
    return _REFERENCE.match(text) is not None


def holds_secret(name: str, text: str) -> bool:
    """Tell whether the text of an option is a secret itself, or a URL with a login, and no reference to its place.

    >>> holds_secret("password", "hunter2"), holds_secret("uri", "postgresql://me:pw@db/x")
    (True, True)
    >>> holds_secret("token", "env:TOKEN"), holds_secret("uri", "postgresql://db/x")
    (False, False)
    """
    return not is_reference(text) and bool(_SECRET.search(name) or _LOGIN.match(text))


def without_login(url: str) -> str:
    """Return a URL without the user and the password that it may have, to be shown.

    >>> without_login("postgresql://me:pw@db/x"), without_login("http://h:1")
    ('postgresql://db/x', 'http://h:1')
    """
    return _LOGIN.sub(r"\1", url, count=1)


def refusal_of_secrets(texts: Mapping[str, str]) -> str:
    """Return what to say of an option that holds a secret itself, where only a reference may stand; else nothing.

    >>> refusal_of_secrets({"path": "/x", "password": "env:PG_PASSWORD"})
    ''
    >>> refusal_of_secrets({"password": "hunter2"})
    'option password is a secret: say where it is (env:NAME or file:PATH), not what it is'
    """
    for name, text in texts.items():
        if _SECRET.search(name) and not is_reference(text):
            return f"option {name} is a secret: say where it is (env:NAME or file:PATH), not what it is"
    return ""


def file_text(path: Path) -> str:
    """Return the text of a file that someone wrote by hand, without the byte-order mark that editors of Windows write.

    Lines end with a line feed, whichever way they end in the file.  Raises `OSError` or `UnicodeDecodeError`.
    """
    return path.read_text(encoding="utf-8-sig")


def resolve_reference(text: str, *, base: Path) -> str:
    """Return what a text stands for: ``env:NAME`` and ``file:PATH`` are looked up, anything else is itself.

    Raises `ConfigError` if the variable is not set or the file cannot be read (the value is never part of the message).
    """
    kind, _, rest = text.partition(":")
    match kind:
        case "env":
            if rest not in os.environ:
                raise ConfigError(f"the configuration refers to the environment variable {rest!r}, which is not set")
            return os.environ[rest]
        case "file" if not rest.startswith("//"):
            try:
                return file_text(base / rest).strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"the configuration refers to the file {rest!r}, which cannot be read") from error
        case _:
            return text


# --- kinds ------------------------------------------------------------------------------------------------------------
def one_of(enum: type[E]) -> Kind[E]:
    """Return the kind of an option whose texts are the values of ``enum``."""
    texts = [str(each.value) for each in enum]

    def understand(text: str) -> E:
        if text.lower() not in texts:
            raise ValueError(f"it can be {', '.join(texts)}")
        return enum(text.lower())

    return Kind(understand, {"enum": texts})


def _text(text: str) -> str:
    if not text:
        raise ValueError("it must not be empty")
    return text


def _flag(text: str) -> bool:
    match text.lower():
        case "true" | "yes" | "on" | "1":
            return True
        case "false" | "no" | "off" | "0":
            return False
    raise ValueError("it can be true or false")


def _character(text: str) -> str:
    character = _NAMED_CHARACTERS.get(text.lower(), text)
    if len(character) != 1 or character in "\r\n":
        raise ValueError("it must be one character (or 'tab')")
    return character


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("it must be a number, 0 or more")
    return int(text)


def _milliseconds(text: str) -> int:
    """Return a duration in milliseconds; a bare number is seconds.

    >>> [_milliseconds(text) for text in ("0", "1.5", "250ms", "2 m")]
    [0, 1500, 250, 120000]
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError("it must be a duration such as 2s or 500ms")
    return round(float(found[1]) * _UNITS_MS[found[2]])


TEXT: Final = Kind(_text, {"minLength": 1})
PLACE: Final = Kind(_text, {"minLength": 1}, may_refer=True)
"""A text that may be a reference."""
ANY_TEXT: Final = Kind(str, {})
"""A text that may be empty."""
FLAG: Final = Kind(_flag, {"enum": ["true", "false"]})
COUNT: Final = Kind(_count, {"pattern": r"^\d+$"})
"""A whole number, 0 or more."""
CHARACTER: Final = Kind(_character, {"minLength": 1})
DURATION_MS: Final = Kind(_milliseconds, {"pattern": r"^\d+(\.\d+)?\s*(ms|s|m)?$"})
"""A duration in milliseconds."""
