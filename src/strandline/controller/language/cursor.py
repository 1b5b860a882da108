"""Cursor: what the grammar of statements is made of, on sqlglot's Spark tokens and with sqlglot's own parser below it.

Names become identifiers, expressions become excerpts: sqlglot reads an expression as a tree, which says where it ends,
and Spark is given the author's text of it.  Each refusal has a line and a column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from strandline.algebra.notation import Excerpt
from strandline.algebra.scalar import Faithful
from strandline.compute.plan.sql import MISTAKES, position
from strandline.controller.language import unsupported
from strandline.errors import DefinitionError, Position

_LITERALS: Final = (TokenType.STRING, TokenType.RAW_STRING, TokenType.NUMBER)
_TEXTS: Final = (TokenType.STRING, TokenType.RAW_STRING)
_QUOTED: Final = (TokenType.STRING, TokenType.RAW_STRING, TokenType.IDENTIFIER)
QUERY_WORDS: Final = ("SELECT", "WITH", "VALUES", "FROM", "TABLE", "(")
"""What a query can begin with."""
_CLOSING: Final = {"(": ")", "<": ">"}
"""The brackets of a type."""
_CONSTRAINTS: Final = frozenset(
    ("PRIMARY KEY", "UNIQUE", "CHECK", "DEFAULT", "REFERENCES", "FOREIGN KEY", "GENERATED", "CONSTRAINT", "MASK")
)
_PLACES: Final = frozenset(("FIRST", "AFTER"))
"""What says where a column is to stand."""


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of ``text``.

    Raises `DefinitionError` if it cannot be cut into tokens (an open quote), or is no Unicode text (a lone surrogate).
    """
    try:
        text.encode()
        return list(Faithful().tokenize(text))
    except UnicodeEncodeError as error:
        raise DefinitionError(
            f"the text cannot be read: {text[error.start]!a} is no character", position(text, error.start)
        ) from error
    except TokenError as error:
        raise DefinitionError(f"the text cannot be read: {str(error).splitlines()[0]}") from error


def comments_of(columns: str) -> dict[str, str | None]:
    """Return the comment of each column of a list that was read before; None: it has none.

    >>> comments_of("id INT COMMENT 'its number', s STRUCT<comment: STRING>")
    {'id': 'its number', 's': None}
    """
    found: dict[str, str | None] = {}
    if columns.strip():
        cursor = Cursor(columns, tokens_of(columns))
        while not found or cursor.accept(","):
            name = cursor.only_name("a column")
            found[name] = cursor.type_and_comment()
    return found


class Cursor(Faithful.Parser):
    """Walks over the tokens of one statement."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        super().__init__(dialect=Faithful)
        self.reset()
        self.sql = text
        self._chunks = [tokens]
        self._advance_chunk()

    # ---- where it is -------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether all tokens are read."""
        return not self._curr

    @property
    def position(self) -> Position:
        """Where the next token is; at the end, where one would be."""
        return position(self.sql, self._curr.start if self._curr else self._end)

    @property
    def _end(self) -> int:
        return self._tokens[-1].end + 1 if self._tokens else len(self.sql.rstrip())

    def peek(self, ahead: int = 0) -> str:
        """Return a word or sign that comes, in capitals; of what is quoted, nothing."""
        n = self._index + ahead
        if n >= self._tokens_size or self._tokens[n].token_type in _QUOTED:
            return ""
        return self._tokens[n].text.upper()

    def quoted(self, ahead: int = 0) -> bool:
        """Return whether something in quotes comes: a name, or a text."""
        n = self._index + ahead
        return n < self._tokens_size and self._tokens[n].token_type in _QUOTED

    def fail(self, wanted: str) -> DefinitionError:
        """Return the error about the next token: ``wanted`` is what should be there."""
        found = repr(self._curr.text) if self._curr else "the end"
        return DefinitionError(f"expected {wanted}, found {found}", self.position)

    def unsupported(self, what: str, instead: str) -> DefinitionError:
        """Return the error about ``what``, which begins at the next token and is refused by its name."""
        return DefinitionError(unsupported.refusal(what, instead), self.position)

    def refuse(self, statement: str, clauses: Mapping[str, str]) -> None:
        """Refuse by name a clause that ``statement`` has elsewhere, if it is next."""
        word = self.peek().split(" ")[0]  # some tokens are two words: ORDER BY
        if word in clauses:
            raise self.unsupported(f"{statement} … {word}", clauses[word])

    # ---- words, names, values ----------------------------------------------------------------------------------------

    def accept(self, *words: str) -> bool:
        """Take ``words`` if all of them are next."""
        if all(self.peek(n) == word for n, word in enumerate(words)):
            self._advance(len(words))
            return True
        return False

    def take(self, *words: str) -> None:
        """Take ``words``, or refuse."""
        if not self.accept(*words):
            raise self.fail(" ".join(words))

    def name(self, what: str = "a name") -> str:
        """Take an identifier of one part."""
        token = self._curr
        word = token.token_type not in _QUOTED and (token.text[:1].isalpha() or token.text[:1] == "_")
        if self.done or not (word or token.token_type is TokenType.IDENTIFIER):
            raise self.fail(what)
        self._advance()
        return str(token.text)

    def only_name(self, what: str = "a name") -> str:
        """Take an identifier after which no other part comes: there are no schemas and no catalogs."""
        at, name = self.position, self.name(what)
        if not name:
            raise DefinitionError(f"{what} has at least one character", at)
        if self.peek() == ".":
            raise DefinitionError(
                f"a name has one part here; if the dot belongs to it, write it in backquotes: `{name}.…`", self.position
            )
        return name

    def names(self) -> tuple[tuple[str, Position], ...]:
        """Take ``(name, …)``, each name once."""
        self.take("(")
        found: dict[str, tuple[str, Position]] = {}
        while True:
            at, name = self.position, self.only_name("a column")
            if name.lower() in found:
                raise DefinitionError(f"column {name!r} is given twice", at)
            found[name.lower()] = (name, at)
            if not self.accept(","):
                self.take(")")
                return tuple(found.values())

    def value(self) -> str:
        """Take a string or a number."""
        if self.done or self._curr.token_type not in _LITERALS:
            raise self.fail("a quoted value")
        self._advance()
        return str(self._prev.text)

    def option_value(self) -> str:
        """Take the value of an option: a string, a number, or a word, which is its own text."""
        if not self.done and self._curr.token_type in _LITERALS:
            return self.value()
        return self.only_name("a value")

    # ---- what Spark reads --------------------------------------------------------------------------------------------

    def scalar(self, what: str) -> Excerpt:
        """Take one scalar expression."""
        begin = self._curr
        if not begin or self.peek() in {",", ")"}:
            raise self.fail(what)
        try:
            tree = self._parse_disjunction()
        except MISTAKES:
            tree = None
        if tree is None:
            raise self.fail(f"{what} that can be read")
        return Excerpt(self._find_sql(begin, self._prev), position(self.sql, begin.start))

    def rest(self, what: str) -> Excerpt:
        """Take everything up to the end."""
        if self.done:
            raise self.fail(what)
        begin = self._curr
        self._advance(self._tokens_size - self._index)
        return Excerpt(self._find_sql(begin, self._prev), position(self.sql, begin.start))

    def columns(self) -> Excerpt:
        """Take ``(name type, …)``: Spark reads the types.  What would not be kept, as a constraint, is refused."""
        self.take("(")
        found = self.bare_columns()
        if self.done:
            raise self.fail("')'")
        self.take(")")
        return found

    def bare_columns(self) -> Excerpt:
        """Take ``name type, …``, as `columns` between its brackets."""
        begin = self._curr
        while True:
            if self.peek() == "CONSTRAINT" or self._table_constraint:
                raise self._not_kept(self.peek())
            self.only_name("a column")
            self.type_and_comment()
            if not self.accept(","):
                return Excerpt(self._find_sql(begin, self._prev), position(self.sql, begin.start))

    @property
    def _table_constraint(self) -> bool:
        word, next_ = self.peek(), self.peek(1)
        return word in {"PRIMARY KEY", "FOREIGN KEY"} or (word in {"UNIQUE", "CHECK"} and next_ == "(")

    def type_and_comment(self) -> str | None:
        """Take the definition of one column behind its name; return its comment, if it has one."""
        closing: list[str] = []
        comment: str | None = None
        if self._ends():
            raise self.fail("a type")
        while closing or not self._ends():
            if self.done:
                raise self.fail(repr(closing[-1]))
            word = self.peek()
            if word == "NOT" and self.peek(1) == "NULL":
                raise self._not_kept("NOT NULL")
            if word == "COMMENT" and self._next and self._next.token_type in _TEXTS:
                if closing:
                    raise self.unsupported("COMMENT", "a part of a type has none: write it behind the column")
                comment = str(self._next.text)
            if word in _CONSTRAINTS and not closing:
                raise self._not_kept(word)
            if word in _PLACES and not closing:
                raise self.unsupported(word, "columns stand in the order in which they are written, new ones behind")
            if word in _CLOSING:
                closing.append(_CLOSING[word])
            elif closing and word == closing[-1]:
                closing.pop()
            self._advance()
        return comment

    def _ends(self) -> bool:
        return self.done or self.peek() in {",", ")"}

    def _not_kept(self, what: str) -> DefinitionError:
        return DefinitionError(f"{what} is not supported: nothing would check it; leave it out", self.position)
