"""Random views, and random histories of the tables that they read.

A view's text is a function of its seed alone, so a seed found wrong is a view to look at.  The grammar makes typed
expressions, joins, groups, windows, set operations, subqueries and common table expressions, over tables and columns
whose names are keywords, hold quotes, backticks and dots, or look like names that we generate.

Every view has one answer: what is ordered is ordered by all its columns, and numbers are such that sums are exact.

Where it is asked for, a view holds expressions that have no value for some rows (`FAILING`), and a history brings such
rows and takes them away again.  Nothing else in a view can fail.  The text of such a view can be had with one of a few
values in the place of each failure (`INSTEAD`): if all of them give one answer, no failure has a part in it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from strandline.algebra.schema import quote

INT, TEXT, DEC, BOOL, REAL, DAY, AT = "int", "string", "decimal(8,2)", "boolean", "double", "date", "timestamp"
TYPES: Final = (INT, TEXT, DEC, BOOL, REAL, DAY, AT)


@dataclass(frozen=True)
class Table:
    """A table: its name, and its columns as (name, type)."""

    name: str
    columns: tuple[tuple[str, str], ...]

    @property
    def ddl(self) -> str:
        """Its column list."""
        return ", ".join(f"{quote(name)} {type_}" for name, type_ in self.columns)


TABLES: Final = (
    Table("order", (("k", INT), ("select", INT), ("na`me", TEXT), ("price", DEC), ("ok", BOOL), ("at", AT))),
    Table("get_1", (("k", INT), ("v", INT), ("values", TEXT), ("x", REAL), ("day", DAY))),
    Table("a`b c", (("k", INT), ("user", TEXT), ("rows", INT), ("price", DEC), ("it's", BOOL))),
    Table("rows", (("key", INT), ("group", TEXT), ("n", INT), ("x", REAL))),
)

_VALUES: Final[dict[str, tuple[Any, ...]]] = {
    INT: (0, 1, 2, 3, -1, None),
    TEXT: ("a", "b", "`x`", "it's", "", None),
    DEC: (Decimal("0.05"), Decimal("1.10"), Decimal("-3.33"), Decimal("2.00"), None),
    BOOL: (True, False, None),
    REAL: (0.5, -0.25, 2.0, 0.0, None),
    DAY: (date(2026, 1, 1), date(2026, 1, 2), date(2026, 3, 1), None),
    AT: (*(datetime(2026, 1, 1, 10, tzinfo=UTC) + timedelta(minutes=m) for m in (0, 3, 7, 15)), None),
}


_BAD: Final[dict[str, tuple[Any, ...]]] = {INT: (13, 77), TEXT: ("bad", "bad's"), DEC: (Decimal("999.00"),)}
"""Values that some expression of `FAILING` has no value for; the others have one for all of `_VALUES`."""
BAD_SHARE: Final = 0.15
"""How many rows have a bad value."""


@dataclass(frozen=True)
class Failing:
    """An expression of type ``type`` over a column ``{c}`` of type ``of``, and when it has no value."""

    type: str
    of: str
    sql: str
    when: str


_TEXT_FAILS: Final = "{c} LIKE 'bad%'"
FAILING: Final = (
    Failing(INT, INT, "CAST(60 div ({c} - 13) AS INT)", "{c} = 13"),
    Failing(INT, INT, "pmod(60, {c} - 13)", "{c} = 13"),
    Failing(INT, INT, "CAST(({c} + 2147483600) div 1000000000 AS INT)", "{c} > 47"),
    Failing(INT, INT, "array(10, 20, 30, 40)[abs({c})]", "abs({c}) > 3"),
    Failing(INT, INT, "element_at(array(10, 20, 30, 40), abs({c}) + 1)", "abs({c}) > 3"),
    Failing(INT, INT, "IF({c} > 9, raise_error('too much'), {c})", "{c} > 9"),
    Failing(INT, INT, "CAST(CAST({c} * 1000 AS SMALLINT) AS INT)", "{c} NOT BETWEEN -32 AND 32"),
    Failing(INT, TEXT, "CAST(IF({c} LIKE 'bad%', {c}, '7') AS INT)", _TEXT_FAILS),
    Failing(REAL, INT, "60 / ({c} - 13)", "{c} = 13"),
    Failing(BOOL, INT, "(60 % ({c} - 13) > 3)", "{c} = 13"),
    Failing(BOOL, TEXT, "CAST(IF({c} LIKE 'bad%', {c}, 'true') AS BOOLEAN)", _TEXT_FAILS),
    Failing(TEXT, INT, "CAST(60 div ({c} - 13) AS STRING)", "{c} = 13"),
    Failing(TEXT, TEXT, "IF({c} LIKE 'bad%', raise_error({c}), {c})", _TEXT_FAILS),
    Failing(DEC, DEC, "CAST({c} * 100000 AS DECIMAL(8,2))", "abs({c}) > 9.99"),
    Failing(DAY, INT, "make_date(2026, {c} + 4, 1)", "{c} NOT BETWEEN -3 AND 8"),
    Failing(DAY, TEXT, "CAST(IF({c} LIKE 'bad%', {c}, '2026-02-01') AS DATE)", _TEXT_FAILS),
    Failing(DAY, TEXT, "to_date(IF({c} LIKE 'bad%', {c}, '2026-02-01'), 'yyyy-MM-dd')", _TEXT_FAILS),
    Failing(AT, TEXT, "CAST(IF({c} LIKE 'bad%', {c}, '2026-01-01 10:03:00') AS TIMESTAMP)", _TEXT_FAILS),
)  # fmt: skip
RISK: Final = 0.12
"""How often an expression of a view that may fail is one of `FAILING`, and how often an aggregate or a condition is."""
INSTEAD: Final[dict[str, tuple[str, ...]]] = {
    INT: ("NULL", "(-1000)", "1000"),
    TEXT: ("NULL", "''", "'zz'"),
    DEC: ("NULL", "CAST(-1000 AS DECIMAL(8,2))", "CAST(1000 AS DECIMAL(8,2))"),
    BOOL: ("NULL", "true", "false"),
    REAL: ("NULL", "(-1000D)", "1000D"),
    DAY: ("NULL", "DATE '1990-01-01'", "DATE '2030-01-01'"),
    AT: ("NULL", "TIMESTAMP '1990-01-01 00:00:00'", "TIMESTAMP '2030-01-01 00:00:00'"),
}
"""Values to put where an expression has none, by its type."""
STANDINS: Final = range(3)


class History:
    """Random insertions and deletions: ``step`` returns what comes to each table and what goes."""

    def __init__(self, seed: int, *, bad: bool = False) -> None:
        """``bad``: some rows have a bad value."""
        self._chance = random.Random(seed)
        self._bad_share = BAD_SHARE if bad else 0
        self.held: dict[str, list[dict[str, Any]]] = {table.name: [] for table in TABLES}
        self._gone: dict[str, list[dict[str, Any]]] = {table.name: [] for table in TABLES}

    def step(self, *, last: bool = False) -> dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
        """Return for each table that changes its new rows (some a second time, some back again) and those that go.

        ``last``: where rows may have a bad value, none of these comes, and all that are there go.
        """
        found = {}
        heal = last and self._bad_share > 0
        for table in TABLES:
            held, gone = self.held[table.name], self._gone[table.name]
            if not heal and held and self._chance.random() < 0.2:
                continue
            going = [
                held.pop(self._chance.randrange(len(held))) for _ in range(self._chance.randint(0, len(held)) // 2)
            ]
            coming = [self._row(table) for _ in range(self._chance.randint(1, 5))]
            coming += self._chance.sample(coming, 1) + self._chance.sample(gone, min(1, len(gone)))
            if heal:
                going += [row for row in held if _is_bad(table, row)]
                held[:] = [row for row in held if not _is_bad(table, row)]
                coming = [row for row in coming if not _is_bad(table, row)]
            held += coming
            gone[:] = going
            found[table.name] = (coming, going)
        return found

    def _row(self, table: Table) -> dict[str, Any]:
        row = {name: self._chance.choice(_VALUES[type_]) for name, type_ in table.columns}
        if self._bad_share and self._chance.random() < self._bad_share:
            name, type_ = self._chance.choice([each for each in table.columns if each[1] in _BAD])
            row[name] = self._chance.choice(_BAD[type_])
        return row


def _is_bad(table: Table, row: dict[str, Any]) -> bool:
    return any(row[name] in _BAD.get(type_, ()) for name, type_ in table.columns)


@dataclass
class Relation:
    """A relation in a FROM clause: its alias, and its columns as (name, type)."""

    alias: str
    columns: Sequence[tuple[str, str]]


@dataclass
class View:
    """A view under construction.

    ``risk``: how often an expression may fail; ``instead``: which of `INSTEAD` to put where one does (None: none).
    """

    chance: random.Random
    risk: float = 0
    instead: int | None = None
    made: Counter[str] = field(default_factory=Counter)
    aliases: int = 0

    def alias(self) -> str:
        """Return an alias that is new, and hard to tell from ours."""
        self.aliases += 1
        return self.chance.choice(["t", "l", "r", "d", "p", "x y", "get_2", "n"]) + str(self.aliases)

    def pick(self, *ways: Callable[[], Any]) -> Any:
        """Return what one of ``ways`` makes."""
        return self.chance.choice(ways)()

    # ---- what fails ----

    def risky(self) -> bool:
        """Tell whether something that fails for some rows comes next."""
        return self.risk > 0 and self.chance.random() < self.risk

    def or_instead(self, sql: str, fails: str, type_: str) -> str:
        """Return ``sql``, or what to put in its place where it ``fails``."""
        return sql if self.instead is None else f"IF({fails}, {INSTEAD[type_][self.instead]}, {sql})"

    def failing(self, type_: str, scope: Sequence[Relation]) -> str | None:
        """Return an expression of a type that fails for some rows, if there is a column for one."""
        each = self.chance.choice([one for one in FAILING if one.type == type_])
        column = self.column(each.of, scope)
        if column is None:
            return None
        self.made["may fail"] += 1
        return self.or_instead(each.sql.format(c=column), each.when.format(c=column), type_)

    def overflowing(self, scope: Sequence[Relation]) -> tuple[str, str] | None:
        """Return an aggregate that overflows where a bad value is there twice, and its type."""
        column = self.column(INT, scope)
        if column is None:
            return None
        self.made["may fail"] += 1
        terms = f"IF({column} = 77, 9223372036854775807, 0)"
        total = f"{'sum' if self.instead is None else 'try_sum'}({terms})"
        return self.or_instead(total, f"count(*) > 0 AND {total} IS NULL", INT), "bigint"

    def several(self) -> str | None:
        """Return a condition with a scalar subquery that has several rows where a bad value is there twice."""
        inner, relation = self.relation(0)
        columns = self.integers([relation])
        if not columns:
            return None
        self.made["may fail"] += 1
        one = self.chance.choice(columns)
        item = one if self.instead is None else f"IF(count(*) > 1, {INSTEAD[INT][self.instead]}, max({one}))"
        return f"coalesce((SELECT {item} FROM {inner} WHERE {one} = 77) > 3, true)"

    # ---- expressions ----

    def column(self, type_: str, scope: Sequence[Relation]) -> str | None:
        """Return a column of a type, if there is one."""
        found = [(r.alias, name) for r in scope for name, own in r.columns if own == type_]
        if not found:
            return None
        alias, name = self.chance.choice(found)
        return f"{quote(alias)}.{quote(name)}"

    def literal(self, type_: str) -> str:
        """Return a literal of a type."""
        value = self.chance.choice(_VALUES[type_][:-1])
        match type_:
            case "string":
                return "'" + value.replace("'", "\\'") + "'"
            case "date" | "timestamp":
                return (
                    f"{type_.upper()} '{value:%Y-%m-%d}'" if type_ == DAY else f"TIMESTAMP '{value:%Y-%m-%d %H:%M:%S}'"
                )
            case "boolean":
                return str(value).lower()
            case "double":
                return f"{value}D"
            case "decimal(8,2)":
                return f"CAST({value} AS DECIMAL(8,2))"
            case _:
                return str(value) if value >= 0 else f"({value})"

    def expression(self, type_: str, scope: Sequence[Relation], depth: int) -> str:
        """Return an expression of a type over the columns in ``scope``."""
        if self.risky() and (failing := self.failing(type_, scope)):
            return failing
        plain = self.column(type_, scope) if self.chance.random() < 0.85 else None
        if depth <= 0 or self.chance.random() < 0.3:
            return plain or self.literal(type_)

        def deeper(kind: str) -> str:
            return self.expression(kind, scope, depth - 1)

        general: list[Callable[[], str]] = [
            lambda: f"CASE WHEN {deeper(BOOL)} THEN {deeper(type_)} ELSE {deeper(type_)} END",
            lambda: f"coalesce({deeper(type_)}, {deeper(type_)})",
            lambda: f"nullif({deeper(type_)}, {deeper(type_)})",
            lambda: f"if({deeper(BOOL)}, {deeper(type_)}, NULL)",
            lambda: f"({deeper(type_)})",
        ]
        match type_:
            case "int":
                special = [
                    lambda: f"{deeper(INT)} + {deeper(INT)}",
                    lambda: f"{deeper(INT)} - {deeper(INT)}",
                    lambda: f"{self.column(INT, scope) or 2} * -2",
                    lambda: f"-{self.column(INT, scope) or 1}",
                    lambda: f"length({deeper(TEXT)})",
                    lambda: f"CAST({deeper(BOOL)} AS INT)",
                    lambda: f"{deeper(INT)} & 3 | 1",
                    lambda: f"pmod({deeper(INT)}, 3)",
                    lambda: f"datediff({deeper(DAY)}, {deeper(DAY)})",
                    lambda: f"array({deeper(INT)}, {deeper(INT)})[1]",
                    lambda: f"aggregate(array({deeper(INT)}, 1), 0, (acc, k) -> acc + coalesce(k, 0))",
                    lambda: f"abs({deeper(INT)})",
                    lambda: f"minute({deeper(AT)})",
                ]
            case "boolean":
                other = self.chance.choice(TYPES)
                special = [
                    lambda: f"{deeper(BOOL)} OR {deeper(BOOL)}",
                    lambda: f"{deeper(BOOL)} AND {deeper(BOOL)}",
                    lambda: f"NOT {deeper(BOOL)}",
                    lambda: f"({deeper(other)} IS NULL)",
                    lambda: f"({deeper(other)} IS NOT NULL)",
                    lambda: f"({deeper(other)} = {deeper(other)})",
                    lambda: f"({deeper(other)} <=> {deeper(other)})",
                    lambda: f"({deeper(other)} <> {deeper(other)})",
                    lambda: f"({deeper(INT)} < {deeper(INT)})",
                    lambda: f"({deeper(INT)} BETWEEN 0 AND {deeper(INT)})",
                    lambda: f"({deeper(INT)} IN (1, 2, {deeper(INT)}))",
                    lambda: f"({deeper(TEXT)} NOT IN ('a', '`x`'))",
                    lambda: f"({deeper(TEXT)} LIKE 'a%')",
                    lambda: f"exists(array({deeper(INT)}, 2), n -> n > 1)",
                ]
            case "string":
                special = [
                    lambda: f"{deeper(TEXT)} || {deeper(TEXT)}",
                    lambda: f"upper({deeper(TEXT)})",
                    lambda: f"concat_ws('`', {deeper(TEXT)}, {deeper(TEXT)})",
                    lambda: f"substring({deeper(TEXT)}, 1, 2)",
                    lambda: f"trim(BOTH 'a' FROM {deeper(TEXT)})",
                    lambda: f"CAST({deeper(INT)} AS STRING)",
                    lambda: f"replace({deeper(TEXT)}, '`', 'it\\'s')",
                    lambda: f"date_format({deeper(DAY)}, 'yyyy')",
                ]
            case "decimal(8,2)":
                special = [
                    lambda: f"CAST({deeper(DEC)} + 1 AS DECIMAL(8,2))",
                    lambda: f"CAST({deeper(INT)} AS DECIMAL(8,2))",
                ]
            case "double":
                special = [
                    lambda: f"{deeper(REAL)} + 0.5D",
                    lambda: f"-({deeper(REAL)})",
                    lambda: f"CAST({deeper(INT)} AS DOUBLE)",
                ]
            case "date":
                special = [
                    lambda: f"date_add({deeper(DAY)}, 1)",
                    lambda: f"CAST({deeper(AT)} AS DATE)",
                    lambda: f"last_day({deeper(DAY)})",
                ]
            case _:
                special = [lambda: f"{deeper(AT)} + INTERVAL 5 MINUTES", lambda: f"date_trunc('HOUR', {deeper(AT)})"]
        return self.pick(*(special * 2), *general)

    # ---- relations ----

    def relation(self, depth: int) -> tuple[str, Relation]:
        """Return the text of a relation with its alias, and what it offers."""
        alias = self.alias()
        if depth <= 0 or self.chance.random() < 0.65:
            table = self.chance.choice(TABLES)
            return f"{quote(table.name)} AS {quote(alias)}", Relation(alias, table.columns)
        sql, columns = self.query(depth - 1)
        self.made["subquery in FROM"] += 1
        return f"(\n{sql}\n) AS {quote(alias)}", Relation(alias, columns)

    def source(self, depth: int) -> tuple[str, list[Relation]]:
        """Return a FROM clause of one to three relations."""
        sql, first = self.relation(depth)
        scope = [first]
        while len(scope) < 3 and self.chance.random() < 0.4:
            text, other = self.relation(depth - 1)
            kind = self.chance.choice(
                ["JOIN", "JOIN", "JOIN", "LEFT JOIN", "FULL JOIN", "RIGHT JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"]
            )
            pairs = [(a, b) for a in self.integers(scope) for b in self.integers([other])]
            on = "{} = {}".format(*self.chance.choice(pairs)) if pairs else "true"
            if self.chance.random() < 0.3:
                on += f" {self.chance.choice(['AND', 'OR'])} {self.expression(BOOL, [*scope, other], 1)}"
            sql += f"\n{kind} {text} ON {on}"
            self.made[kind.lower()] += 1
            if kind not in ("LEFT SEMI JOIN", "LEFT ANTI JOIN"):
                scope.append(other)
        return f"FROM {sql}", scope

    def integers(self, scope: Sequence[Relation]) -> list[str]:
        """Return the columns that tables are joined by."""
        return [f"{quote(r.alias)}.{quote(name)}" for r in scope for name, type_ in r.columns if type_ == INT]

    def condition(self, scope: Sequence[Relation], depth: int) -> str:
        """Return a condition, perhaps with a subquery."""
        plain = self.expression(BOOL, scope, 2)
        if self.risky() and (several := self.several()):
            return f"({plain}) AND {several}"
        if depth <= 0 or self.chance.random() < 0.7:
            return plain
        inner, relation = self.relation(0)
        ours, theirs = self.integers(scope), self.integers([relation])
        if not ours or not theirs:
            return plain
        a, b = self.chance.choice(ours), self.chance.choice(theirs)
        self.made["subquery in WHERE"] += 1
        there = f"SELECT 1 FROM {inner} WHERE {b} = {a}"
        return self.pick(
            lambda: f"EXISTS ({there})",
            lambda: f"NOT EXISTS ({there})",
            lambda: f"NOT EXISTS ({there} AND {self.expression(BOOL, [*scope, relation], 1)})",
            lambda: f"EXISTS ({there} AND {self.chance.choice(theirs)} <> {self.chance.choice(ours)})",
            lambda: f"{a} IN (SELECT {b} FROM {inner})",
            lambda: f"{a} NOT IN (SELECT {b} FROM {inner})",
            lambda: f"{a} NOT IN (SELECT {b} FROM {inner} WHERE {b} IS NOT NULL AND {self.chance.choice(theirs)} > 0)",
            lambda: (
                f"{a} {self.chance.choice(['NOT IN', 'IN'])} (SELECT {self.chance.choice(theirs)} FROM {inner} WHERE"
                f" {b} = {self.chance.choice(ours)})"
            ),
            lambda: f"{a} > (SELECT max({b}) - 2 FROM {inner})",
            lambda: f"{a} >= (SELECT min({self.chance.choice(theirs)}) + 1 FROM {inner} WHERE {b} = {a})",
            lambda: f"(SELECT count(*) FROM {inner} WHERE {b} = {a}) < 2",
            lambda: f"({plain}) OR {a} = (SELECT max({b}) FROM {inner})",
            lambda: f"({plain}) OR EXISTS ({there})",
            lambda: f"({plain}) AND {a} IN (SELECT {b} FROM {inner})",
        )

    # ---- queries ----

    def names(self, count: int) -> list[str]:
        """Return names for outputs, all different."""
        offered = ["a", "B", "select", "x y", "c`d", "e.f", "it's", "key", "n", "count", "rows_2", "v"]
        return self.chance.sample(offered, count)

    def query(self, depth: int) -> tuple[str, list[tuple[str, str]]]:
        """Return a query and its columns."""
        way = self.chance.random()
        if depth > 0 and way < 0.15:
            return self.set_operation(depth)
        if depth > 0 and way < 0.25:
            return self.with_cte(depth)
        if way < 0.6:
            return self.grouped(depth)
        return self.rows(depth)

    def rows(self, depth: int, types: Sequence[str] | None = None) -> tuple[str, list[tuple[str, str]]]:
        """Return a SELECT of rows, perhaps DISTINCT, with windows, or the first few."""
        source, scope = self.source(depth)
        types = types or [self.chance.choice(TYPES) for _ in range(self.chance.randint(1, 4))]
        names = self.names(len(types) + 1)
        items = [
            f"{self.expression(type_, scope, 2)} AS {quote(name)}" for type_, name in zip(types, names, strict=False)
        ]
        columns = list(zip(names, types, strict=False))
        if depth > 0 and self.chance.random() < 0.12:
            inner, relation = self.relation(0)
            ours, theirs = self.integers(scope), self.integers([relation])
            if ours and theirs:
                a, b = self.chance.choice(ours), self.chance.choice(theirs)
                first = f"FROM {inner} WHERE {b} = {a} ORDER BY {self.whole_order(relation)} LIMIT"
                item = self.chance.choice(
                    [
                        f"(SELECT {self.chance.choice(theirs)} {first} 1)",
                        f"(SELECT max(z) FROM (SELECT {self.chance.choice(theirs)} AS z {first} 2))",
                        f"EXISTS (SELECT 1 FROM {inner} WHERE {b} = {a})",
                        f"(SELECT max({b}) FROM {inner} WHERE {b} <= {a})",
                        f"(SELECT max({self.chance.choice(theirs)}) FROM {inner} WHERE {b} = {a})",
                        f"(SELECT CAST(count({self.chance.choice(theirs)}) AS INT) FROM {inner} WHERE {b} = {a})",
                    ]
                )
                items[0] = f"{item} AS {quote(names[0])}"
                columns[0] = (names[0], BOOL if item.startswith("E") else INT)
                self.made["subquery in SELECT"] += 1
        where = f"\nWHERE {self.condition(scope, depth)}" if self.chance.random() < 0.5 else ""
        distinct = "DISTINCT " if self.chance.random() < 0.15 else ""
        sql = f"SELECT {distinct}{', '.join(items)}\n{source}{where}"
        if self.chance.random() < 0.12:
            return self.window(sql, columns, names[-1])
        if self.chance.random() < 0.1:
            self.made["limit"] += 1
            order = ", ".join(
                f"{quote(name)} {self.chance.choice(['ASC', 'DESC', 'DESC NULLS FIRST'])}" for name, _ in columns
            )
            return f"SELECT * FROM (\n{sql}\n) ORDER BY {order} LIMIT {self.chance.randint(1, 4)}", columns
        return sql, columns

    def whole_order(self, relation: Relation) -> str:
        """Return an order by all columns of a relation, so that a LIMIT has no choice; few of them are outputs."""
        columns = [f"{quote(relation.alias)}.{quote(name)}" for name, _ in relation.columns]
        self.chance.shuffle(columns)
        return ", ".join(f"{column} {self.chance.choice(['ASC', 'DESC', 'NULLS LAST'])}" for column in columns)

    def window(self, sql: str, columns: list[tuple[str, str]], name: str) -> tuple[str, list[tuple[str, str]]]:
        """Return a query with a window over the rows of ``sql``."""
        self.made["window"] += 1
        order = ", ".join(quote(own) for own, _ in columns)
        part = f"PARTITION BY {quote(columns[0][0])} " if self.chance.random() < 0.6 else ""
        one = quote(columns[-1][0])
        functions = [
            ("row_number()", INT, order), ("rank()", INT, one), ("dense_rank()", INT, one), ("count(*)", "bigint", one),
            (f"lag({one})", columns[-1][1], order), (f"max({one})", columns[-1][1], one),
            (f"first_value({one})", columns[-1][1], order), (f"last_value({one})", columns[-1][1], one),
            (f"count({one})", "bigint", one),
        ]  # fmt: skip
        call, type_, by = self.chance.choice(functions)
        item = f"{call} OVER ({part}ORDER BY {by}) AS {quote(name)}"
        return f"SELECT *, {item} FROM (\n{sql}\n) AS w", [*columns, (name, type_)]

    def grouped(self, depth: int) -> tuple[str, list[tuple[str, str]]]:
        """Return a GROUP BY."""
        self.made["group"] += 1
        source, scope = self.source(depth)
        keys = [self.chance.choice([INT, TEXT, BOOL, DAY]) for _ in range(self.chance.randint(0, 2))]
        aggregates = [self.aggregate(scope) for _ in range(self.chance.randint(1, 3))]
        names = self.names(len(keys) + len(aggregates))
        written = [self.expression(key, scope, 1) for key in keys]
        written = [
            sql if "`" in sql and "." in sql else (self.column(key, scope) or f"length('{n}')")
            for n, (sql, key) in enumerate(zip(written, keys, strict=True))
        ]
        types = [key if "length('" not in sql or key == INT else INT for key, sql in zip(keys, written, strict=True)]
        columns = list(zip(names, [*types, *(type_ for _, type_ in aggregates)], strict=True))
        items = [
            f"{sql} AS {quote(name)}"
            for sql, name in zip([*written, *(sql for sql, _ in aggregates)], names, strict=True)
        ]
        where = f"\nWHERE {self.condition(scope, depth)}" if self.chance.random() < 0.3 else ""
        by = ""
        if written:
            by, several = self.groups(written)
            if several and self.chance.random() < 0.5:
                mark, type_ = self.chance.choice([("grouping_id()", "bigint"), (f"grouping({written[0]})", "tinyint")])
                items[-1] = f"{mark} AS {quote(names[-1])}"
                columns[-1] = (names[-1], type_)
        having = (
            f"\nHAVING {self.chance.choice(['count(*) > 1', 'count(*) < 4', aggregates[0][0] + ' IS NOT NULL'])}"
            if self.chance.random() < 0.25
            else ""
        )
        return f"SELECT {', '.join(items)}\n{source}{where}{by}{having}", columns

    def groups(self, keys: Sequence[str]) -> tuple[str, bool]:
        """Return a GROUP BY of these keys, and whether it is by several sets of them."""
        shape, listed = self.chance.random(), ", ".join(keys)
        if shape < 0.2:
            self.made["grouping sets"] += 1
            one = self.chance.choice(keys)
            listed = self.chance.choice(
                [
                    f"ROLLUP ({listed})",
                    f"CUBE ({listed})",
                    f"GROUPING SETS (({listed}), {one})",
                    f"GROUPING SETS (({listed}), (), ({listed}))",
                    f"{one}, ROLLUP ({listed})",
                ]
            )
        return f"\nGROUP BY {'ALL' if 0.2 <= shape < 0.35 else listed}", shape < 0.2

    def aggregate(self, scope: Sequence[Relation]) -> tuple[str, str]:
        """Return an aggregate whose value does not depend on the order of rows, and its type."""
        if self.risky() and (overflowing := self.overflowing(scope)):
            return overflowing
        type_ = self.chance.choice(TYPES)
        value, flag = self.expression(type_, scope, 2), self.expression(BOOL, scope, 2)
        number, money = self.expression(INT, scope, 2), self.expression(DEC, scope, 1)
        sql, result = self.chance.choice([
            ("count(*)", "bigint"), (f"count({value})", "bigint"), (f"count({flag})", "bigint"),
            (f"count(DISTINCT {value})", "bigint"), (f"count({flag}, {value})", "bigint"),
            (f"count_if({flag})", "bigint"), (f"sum({number})", "bigint"), (f"sum({money})", "decimal(18,2)"),
            (f"avg({number})", REAL), (f"avg({money})", "decimal(12,6)"), (f"min({value})", type_),
            (f"max({value})", type_), (f"sum(DISTINCT {number})", "bigint"), (f"bool_or({flag})", BOOL),
            (f"sum({self.expression(REAL, scope, 1)})", REAL), (f"percentile({number}, 0.5)", REAL),
            (f"size(collect_set({number}))", INT), (f"bit_or({number})", INT),
        ])  # fmt: skip
        if "size(" not in sql and self.chance.random() < 0.15:
            sql += f" FILTER (WHERE {self.expression(BOOL, scope, 1)})"
        return sql, result

    def set_operation(self, depth: int) -> tuple[str, list[tuple[str, str]]]:
        """Return a UNION, EXCEPT or INTERSECT."""
        word = self.chance.choice(["UNION ALL", "UNION ALL", "UNION", "EXCEPT", "INTERSECT", "EXCEPT ALL"])
        self.made[word.lower()] += 1
        types = [self.chance.choice([INT, TEXT, BOOL]) for _ in range(self.chance.randint(1, 2))]
        (left, columns), (right, _) = self.plain(types), self.plain(types)
        return f"{left}\n{word}\n{right}", columns

    def plain(self, types: Sequence[str]) -> tuple[str, list[tuple[str, str]]]:
        """Return a SELECT of columns of these types."""
        source, scope = self.source(0)
        names = self.names(len(types))
        items = [
            f"{self.expression(type_, scope, 1)} AS {quote(name)}" for type_, name in zip(types, names, strict=True)
        ]
        return f"SELECT {', '.join(items)}\n{source}", list(zip(names, types, strict=True))

    def with_cte(self, depth: int) -> tuple[str, list[tuple[str, str]]]:
        """Return a query over a common table expression, which may have a table's name, used once or twice."""
        self.made["cte"] += 1
        name = self.chance.choice(["get_1", "c", "order", "result_1"])
        sql, columns = self.query(depth - 1)
        alias = self.alias()
        scope = [Relation(alias, columns)]
        text = f"{quote(name)} AS {quote(alias)}"
        if self.chance.random() < 0.4:
            other = self.alias()
            key = quote(columns[0][0])
            text += f" JOIN {quote(name)} AS {quote(other)} ON {quote(alias)}.{key} <=> {quote(other)}.{key}"
            scope.append(Relation(other, columns))
        types = [self.chance.choice(TYPES) for _ in range(2)]
        names = self.names(2)
        items = [f"{self.expression(type_, scope, 1)} AS {quote(own)}" for type_, own in zip(types, names, strict=True)]
        return f"WITH {quote(name)} AS (\n{sql}\n)\nSELECT {', '.join(items)} FROM {text}", list(
            zip(names, types, strict=True)
        )


def random_view(seed: int, instead: int | None = None, *, failing: bool = False) -> tuple[str, Counter[str]]:
    """Return the text of the view with this seed, and what it is made of.

    ``failing``: some of its expressions may fail.  ``instead``: which of `INSTEAD` to put where one of them does.
    """
    view = View(random.Random(seed), RISK if failing else 0, instead)
    sql, _ = view.query(2)
    return sql, view.made
