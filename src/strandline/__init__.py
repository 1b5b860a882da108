"""Strandline: SQL views kept exactly right on Spark, pushed exactly once into the systems people read from.

    import strandline

    with strandline.open("file:///data/strand") as env:
        env.execute("CREATE TABLE orders (id INT, amount DECIMAL(10,2))")
        env.execute("CREATE MATERIALIZED VIEW total AS SELECT count(*) AS n, sum(amount) AS amount FROM orders")
        env.insert("orders", [{"id": 1, "amount": 5}])
        env.tick()
        env.query("SELECT * FROM total").show()

The names here are the public face; they may grow, not change.  Errors are in `strandline.errors`.  What a name needs is
imported when the name is first used, so that importing this package costs almost nothing.
"""

from typing import TYPE_CHECKING

from strandline import errors as errors
from strandline import lazily

if TYPE_CHECKING:
    from strandline.client import (
        Collection,
        Environment,
        Progress,
        Transaction,
        Updates,
        open,  # noqa: A004  # the public name
    )
    from strandline.controller.asking.verification import Verification
    from strandline.datasource import register
    from strandline.serving import connect

__all__ = [
    "Collection",
    "Environment",
    "Progress",
    "Transaction",
    "Updates",
    "Verification",
    "connect",
    "open",
    "register",
]

__getattr__ = lazily.names(
    __name__,
    {
        **dict.fromkeys(
            ("Collection", "Environment", "Progress", "Transaction", "Updates", "open"), "strandline.client"
        ),
        "Verification": "strandline.controller.asking.verification",
        "connect": "strandline.serving",
        "register": "strandline.datasource",
    },
)


def __dir__() -> list[str]:
    """Return the public names, used already or not, and what else is here."""
    return sorted({*globals(), *__all__})
