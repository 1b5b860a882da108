"""Strandline: SQL views kept exactly right on Spark, pushed exactly once into the systems people read from.

    import strandline

    with strandline.open("file:///data/strand") as env:
        env.execute("CREATE TABLE orders (id INT, amount DECIMAL(10,2))")
        env.execute("CREATE MATERIALIZED VIEW total AS SELECT count(*) AS n, sum(amount) AS amount FROM orders")
        env.insert("orders", [{"id": 1, "amount": 5}])
        env.tick()
        env.query("SELECT * FROM total").show()

The names here are the public face; they may grow, not change.  Errors are in `strandline.errors`.
"""

from strandline.client import (
    Collection,
    Environment,
    Progress,
    Transaction,
    Updates,
    open,  # noqa: A004  # the public name
)
from strandline.controller.asking.verification import Verification
from strandline.serving import connect

__all__ = ["Collection", "Environment", "Progress", "Transaction", "Updates", "Verification", "connect", "open"]
