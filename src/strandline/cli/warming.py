"""`strandline warm`: create, once per machine, the class archive with which Spark starts in half the time.

Classes are recorded while the project of `strandline init` runs, so that what a first step needs is among them.

See `strandline.engine.session.class_archive`.
"""

from __future__ import annotations

import os
import tempfile
import time
from decimal import Decimal
from pathlib import Path
from typing import Final

import strandline
from strandline.cli.template import create_project
from strandline.cli.terminal.opening import keep_apart
from strandline.cli.terminal.output import Output
from strandline.controller.defining.project.files import load
from strandline.engine.parts.staging import SMALL_ROWS_MAX
from strandline.engine.session import class_archive
from strandline.engine.session.start import SHORT_LIVED_JAVA, java_path, require_java

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
