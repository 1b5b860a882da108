"""`strandline init`, a small project that runs unchanged; and `strandline warm`, which makes Spark start faster.

`strandline warm` creates, once per machine, the class archive with which Spark starts in half the time
(`strandline.engine.session.class_archive`).  Classes are recorded while the project of `strandline init` runs, so that
the classes of a first step are among them.
"""

from __future__ import annotations

import os
import tempfile
import textwrap
import time
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Final

import strandline
from strandline.cli.terminal.opening import keep_apart
from strandline.cli.terminal.output import Output
from strandline.controller.defining.project.files import load
from strandline.controller.defining.project.settings import SETTINGS_FILE
from strandline.engine.parts.staging import SMALL_ROWS_MAX
from strandline.engine.session import class_archive
from strandline.engine.session.start import SHORT_LIVED_JAVA, java_path, require_java
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


MANY: Final = 2 * SMALL_ROWS_MAX


def warm(output: Output, *, again: bool) -> None:
    """Create the archive if it is missing or ``again`` is set, and print where it is.

    Raises `ConfigError` if no suitable Java is found, or the Python environment is not writable.
    """
    java = java_path(os.environ)
    require_java(java)
    assert java is not None
    archive = class_archive.place(java)
    begun = time.monotonic()
    made = again or not class_archive.is_whole(archive)
    if made:
        keep_apart()
        with (
            class_archive.recording(archive) as options,
            tempfile.TemporaryDirectory(prefix="strandline-") as directory,
        ):
            _run(Path(directory), options)
    seconds = round(time.monotonic() - begun, 1)
    document = {"archive": str(archive), "made": made, "bytes": archive.stat().st_size, "seconds": seconds}
    output.result(document, f"{'made' if made else 'there already:'} {archive}")


def _run(root: Path, options: str) -> None:
    """Run the small project: with a few orders, with so many that Spark writes and reads parts, with a few again."""
    create_project(root)
    project = load(root)
    config = {
        **project.config,
        "spark": {**project.config["spark"], "spark.driver.extraJavaOptions": f"{options} {SHORT_LIVED_JAVA}"},
    }
    with strandline.open(project.location, config=config) as env:
        env.apply(project)
        env.insert(
            "products",
            [{"id": 1, "name": "tea", "price": Decimal("4.50")}, {"id": 2, "name": "coffee", "price": Decimal("6.00")}],
        )
        for name, count in (("few", 3), ("many", MANY), ("again", 3)):
            orders = root / "incoming" / f"{name}.csv"
            lines = (f"{i},{i % 3},{i % 7},2026-01-{i % 28 + 1:02}" for i in range(count))
            orders.write_text("\n".join(["id,product,quantity,day", *lines, ""]))
            os.utime(orders, (0, 0))  # so that it has settled
            env.tick()
