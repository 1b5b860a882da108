"""`strandline init`: a small project that runs unchanged, and shows where files go."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from strandline.controller.defining.project.settings import SETTINGS_FILE
from strandline.errors import ConfigError

FILES: Final[Mapping[str, str]] = {
    SETTINGS_FILE: """
        location: data             # where collections are kept; a directory below this one
        deployment: {deployment}   # restarts of one deployment succeed each other without an operator
        tick_ms: 1000
        spark:
          spark.master: local[*]
        endpoints:
          warehouse:
            driver: duckdb
            path: warehouse.duckdb
        """,
    "tables/products.sql": """
        CREATE TABLE products (id INT, name STRING, price DECIMAL(10,2))
        """,
    "sources/orders.sql": """
        -- Every CSV file in incoming/ is taken once, whole, when it has settled.
        CREATE SOURCE orders (id INT, product INT, quantity INT, day DATE)
        USING files OPTIONS (path 'incoming/*.csv', settle '500ms')
        """,
    "views/sales.sql": """
        CREATE MATERIALIZED VIEW sales AS
        SELECT p.name AS product, o.day, count(*) AS orders, sum(o.quantity * p.price) AS amount
        FROM orders o JOIN products p ON o.product = p.id
        GROUP BY p.name, o.day
        """,
    "materializations/reports.yml": """
        into: warehouse
        collections:
          - sales
        """,
    "incoming/first.csv": """
        id,product,quantity,day
        1,1,2,2026-01-01
        2,2,1,2026-01-01
        3,1,5,2026-01-02
        """,
    "products.sql": """
        INSERT INTO products VALUES (1, 'tea', 4.50), (2, 'coffee', 6.00)
        """,
    "README.md": """
        # {deployment}

            strandline run --once                      create what the files define, and do one tick
            strandline sql -f products.sql             put rows into the table
            strandline run                             keep the view and warehouse.duckdb up to date; Ctrl-C stops it
            strandline query "SELECT * FROM sales"     works while it runs
            strandline verify sales                    compute it from scratch and compare
            strandline verify reports                  compare warehouse.duckdb with the view

        Put more CSV files into incoming/ while it runs.
        """,
}


def create_project(directory: Path) -> list[str]:
    """Write the template's files into ``directory`` and return their names.

    Raises `ConfigError` if the directory holds anything, or cannot be written.
    """
    directory = directory.absolute()
    try:
        if directory.is_dir() and any(directory.iterdir()):
            raise ConfigError(f"the directory {str(directory)!r} is not empty; a new project needs one that is")
        for name, text in FILES.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text).lstrip("\n").format(deployment=directory.name))
    except OSError as error:
        raise ConfigError(f"a project cannot be made in {str(directory)!r}: {error.strerror}") from error
    return list(FILES)
