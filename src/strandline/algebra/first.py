"""The first rows in an order: what is said of rows of which only the first matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Order:
    """By the values of ``column``, as Spark compares them."""

    column: str
    descending: bool = False
    nulls_first: bool = True


@dataclass(frozen=True, slots=True)
class First:
    """Only those rows matter that are among the first ``rows`` in one of ``orders``, or tie with the last of these."""

    orders: tuple[Order, ...]
    rows: int

    def renamed(self, names: Mapping[str, str | None]) -> First | None:
        """Return the same of columns called otherwise; None if one of them has no name there.

        >>> First((Order("x"),), 3).renamed({"x": "y"})
        First(orders=(Order(column='y', descending=False, nulls_first=True),), rows=3)
        """
        orders = [
            Order(own, each.descending, each.nulls_first) for each in self.orders if (own := names.get(each.column))
        ]
        return First(tuple(orders), self.rows) if len(orders) == len(self.orders) else None
