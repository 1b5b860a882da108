"""Orders and their lines as in TPC-H, that come and, with ``keep``, leave again.

    CREATE SOURCE shop FROM TPCH (every = '10ms', keep = '15000')
    CREATE TABLE orders (o_orderkey BIGINT, …) FROM SOURCE shop (REFERENCE 'orders')

Event n is the order n, from 1 on, with one to seven lines.  These are the refresh functions RF1 and RF2 of the
benchmark: an insertion of an order, and the deletion of an old one.  Values lie as its specification says, but for
texts, which are short; the tables that never change are not here (``tpchgen-cli`` writes them).

Source: the TPC-H specification, sections 2.5 and 4.2.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from strandline.algebra.schema import Column, Schema
from strandline.options import COUNT, option
from strandline.sources.readers.generators.reader import Integers, LoadOptions, below, kind_of

LINES_MAX: Final = 7
CUSTOMERS: Final = 15_000
PARTS: Final = 20_000
SUPPLIERS: Final = 1_000
FIRST_DAY: Final = 8_035
"""1992-01-01, in days since 1970; order dates lie in the `DAYS` from it on."""
DAYS: Final = 2_406
TODAY: Final = 9_298
"""1995-06-17: what is received by it was perhaps returned, what is shipped after it is open."""
PRIORITIES: Final = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
MODES: Final = ("REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB")
_MONEY: Final = "decimal(12,2)"
_TABLES: Final[Mapping[str, Schema]] = {
    "orders": Schema(
        (
            *(Column("o_orderkey", "bigint"), Column("o_custkey", "bigint"), Column("o_orderstatus", "string")),
            *(Column("o_totalprice", _MONEY), Column("o_orderdate", "date"), Column("o_orderpriority", "string")),
        )
    ),
    "lineitem": Schema(
        (
            *(Column("l_orderkey", "bigint"), Column("l_partkey", "bigint"), Column("l_suppkey", "bigint")),
            *(Column("l_linenumber", "int"), Column("l_quantity", _MONEY), Column("l_extendedprice", _MONEY)),
            *(Column("l_discount", _MONEY), Column("l_tax", _MONEY), Column("l_returnflag", "string")),
            *(Column("l_linestatus", "string"), Column("l_shipdate", "date"), Column("l_commitdate", "date")),
            *(Column("l_receiptdate", "date"), Column("l_shipmode", "string")),
        )
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OrdersOptions(LoadOptions):
    """How many orders there are at a time."""

    keep: int | None = option(COUNT, "Only the newest so many orders stay; without it all stay.", default=None)

    def __post_init__(self) -> None:
        """Raise `ValueError` if nothing would ever come, or ever stay."""
        LoadOptions.__post_init__(self)
        if self.keep == 0:
            raise ValueError("keep is 0: then no order ever stays")


@dataclass(frozen=True, slots=True)
class Orders:
    """See `Load`."""

    seed: int
    kept: int | None
    tables: ClassVar[Mapping[str, Schema]] = _TABLES

    def rows(self, table: str, first: int, last: int, begun_ms: int) -> pa.Table:
        """See `Load.rows`."""
        orders = np.arange(first + 1, last + 1, dtype=np.int64)
        lines = self._lines(orders)
        if table == "lineitem":
            return lines
        return self._orders(orders, lines)

    def _orders(self, orders: Integers, lines: pa.Table) -> pa.Table:
        of_order = lines["l_orderkey"].to_numpy() - (orders[0] if len(orders) else 0)
        charged = (
            _cents(lines["l_extendedprice"]) * (100 - _cents(lines["l_discount"])) * (100 + _cents(lines["l_tax"]))
        )
        totals = np.zeros(len(orders), np.int64)
        np.add.at(totals, of_order, charged // 10_000)
        still_open = np.zeros(len(orders), np.int64)
        np.add.at(still_open, of_order, np.asarray(lines["l_linestatus"].to_numpy() == "O").astype(np.int64))
        all_of_it = np.bincount(of_order, minlength=len(orders))
        status = np.where(still_open == 0, "F", np.where(still_open == all_of_it, "O", "P"))
        priority = below(self.seed, "priority", orders, len(PRIORITIES))
        return pa.table(
            {
                "o_orderkey": orders,
                "o_custkey": 1 + below(self.seed, "customer", orders, CUSTOMERS),
                "o_orderstatus": pa.array(status.tolist(), pa.string()),
                "o_totalprice": _money(totals),
                "o_orderdate": _days(self._ordered(orders)),
                "o_orderpriority": _named(priority, PRIORITIES),
            }
        )

    def _lines(self, orders: Integers) -> pa.Table:
        counts = 1 + below(self.seed, "lines", orders, LINES_MAX)
        of_order = np.repeat(orders, counts)
        number = 1 + np.arange(len(of_order), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
        lines = of_order * (LINES_MAX + 1) + number
        part = 1 + below(self.seed, "part", lines, PARTS)
        quantity = 1 + below(self.seed, "quantity", lines, 50)
        ordered = self._ordered(of_order)
        shipped = ordered + 1 + below(self.seed, "shipped", lines, 121)
        received = shipped + 1 + below(self.seed, "received", lines, 30)
        back = below(self.seed, "returned", lines, 2) == 0
        flag = np.where(received > TODAY, "N", np.where(back, "R", "A"))
        return pa.table(
            {
                "l_orderkey": of_order,
                "l_partkey": part,
                "l_suppkey": 1 + below(self.seed, "supplier", lines, SUPPLIERS),
                "l_linenumber": number.astype(np.int32),
                "l_quantity": _money(quantity * 100),
                "l_extendedprice": _money(quantity * (90_000 + (part // 10) % 20_001 + 100 * (part % 1_000))),
                "l_discount": _money(below(self.seed, "discount", lines, 11)),
                "l_tax": _money(below(self.seed, "tax", lines, 9)),
                "l_returnflag": pa.array(flag.tolist(), pa.string()),
                "l_linestatus": pa.array(np.where(shipped > TODAY, "O", "F").tolist(), pa.string()),
                "l_shipdate": _days(shipped),
                "l_commitdate": _days(ordered + 30 + below(self.seed, "committed", lines, 61)),
                "l_receiptdate": _days(received),
                "l_shipmode": _named(below(self.seed, "mode", lines, len(MODES)), MODES),
            }
        )

    def _ordered(self, orders: Integers) -> Integers:
        return FIRST_DAY + below(self.seed, "ordered", orders, DAYS)


def _money(cents: Integers) -> pa.Array:
    """Return amounts of ``cents`` with two digits after the point."""
    return pa.array([f"{n // 100}.{n % 100:02}" for n in cents.tolist()], pa.string()).cast(pa.decimal128(12, 2))


def _cents(amounts: pa.ChunkedArray) -> Integers:
    return np.array([int(amount.scaleb(2)) for amount in amounts.to_pylist()], np.int64)


def _days(days: Integers) -> pa.Array:
    return pa.array(days.astype(np.int32), pa.int32()).cast(pa.date32())


def _named(numbers: Integers, names: tuple[str, ...]) -> pa.Array:
    return pa.array([names[n] for n in numbers.tolist()], pa.string())


KIND: Final = kind_of("tpch", OrdersOptions, lambda options: Orders(options.seed, options.keep))
