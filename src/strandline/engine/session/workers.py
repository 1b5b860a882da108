"""The Python of executors: whether it can run our functions, and how it receives Strandline itself.

Executors of a cluster start the program that ``spark.pyspark.python`` names, on their own machines.  It has to be of
our minor version, which is Spark's own rule, and to have the libraries that our code imports, of which several are
compiled.  Strandline itself is plain Python, so Spark hands it to executors that do not have it.

One small job per question asks, since nothing else can know.
"""

from __future__ import annotations

import re
import sys
import threading
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from pyspark import SparkFiles, cloudpickle
from pyspark.sql import SparkSession

from strandline.engine.session.cluster import PYTHON_KEY

DECODERS: Final = (
    "strandline.engine.files.avro",
    "strandline.engine.files.parquet_files",
    "strandline.engine.messages.records",
)
"""What executors import to decode files and messages."""
_NO_PYTHON: Final = re.compile(r'Cannot run program "([^"]*)"')
_OTHER_PYTHON: Final = re.compile(r"\[PYTHON_VERSION_MISMATCH\]\s*([^\n]*)")
_HOUSE: Final = Path(__file__).parents[2]
"""The package, all of which is sent."""
CarriedOut: TypeAlias = Callable[[Callable[[], str | None]], str | None]


class Workers:
    """The Python of the executors of one application.  Its calls block; each question is asked once."""

    def __init__(self, session: SparkSession, carried_out: CarriedOut) -> None:
        """``carried_out``: makes a call whose jobs are ours, and raises its failures as our errors."""
        self._session = session
        self._carried_out = carried_out
        self._turn = threading.Lock()
        self._found: dict[object, str | None] = {}
        self._sent = False

    def lack_of_decoders(self) -> str | None:
        """Return what executors lack to decode files and messages in Python, in a clause; None: nothing.

        Raises `Unavailable` if Spark cannot carry out a job.
        """
        with self._turn:
            if "decoders" not in self._found:
                lack = self._asked(_importing(DECODERS))
                if lack is not None and "'strandline" in lack:
                    self._send()
                    lack = self._asked(_importing(DECODERS))
                self._found["decoders"] = lack
            return self._found["decoders"]

    def lack_of(self, name: str, function: Any, libraries: Sequence[str]) -> str | None:
        """Return what executors lack to run ``function``, a caller's; None: nothing.  Raises as `lack_of_decoders`.

        ``libraries``: what Spark's own worker imports for functions of this kind.
        """
        with self._turn:
            if name not in self._found:
                pickled = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
                self._found[name] = self._asked(_importing(tuple(libraries))) or self._asked(_loading(pickled))
            return self._found[name]

    def _asked(self, ask: Callable[[Any], str]) -> str | None:
        """Return what ``ask`` says on an executor, or why it cannot be asked there."""
        return self._carried_out(partial(self._said, ask))

    def _said(self, ask: Callable[[Any], str]) -> str | None:
        try:
            (said,) = self._session.sparkContext.parallelize([0], 1).map(ask).collect()
        except Exception as error:
            lack = _lack(str(error))
            if lack is None:
                raise
            return lack
        return said or None

    def _send(self) -> None:
        """Have Spark hand Strandline to executors."""
        if self._sent:
            return
        # Executors may ask for it as long as the application runs, and it goes with the application's own files.
        directory = Path(SparkFiles.getRootDirectory(), "sent")
        directory.mkdir(exist_ok=True)
        archive = directory / "strandline.zip"
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as written:
            for file in sorted(_HOUSE.rglob("*.py")):
                written.write(file, file.relative_to(_HOUSE.parent))
        self._session.sparkContext.addPyFile(str(archive))
        self._sent = True


def _lack(text: str) -> str | None:
    """Return what an error of Spark says of executors' Python; None: it is about something else."""
    if found := _NO_PYTHON.search(text):
        return f"there is no Python {found[1]!r} (an executor's program is named by {PYTHON_KEY})"
    if found := _OTHER_PYTHON.search(text):
        return f"their Python is another than {sys.version_info[0]}.{sys.version_info[1]}: {found[1]}"
    return None


def _importing(names: tuple[str, ...]) -> Callable[[Any], str]:
    """Return a function that imports modules on an executor; it is sent as it is, since nothing of ours is there."""

    def ask(_: Any) -> str:
        for name in names:
            try:
                __import__(name)
            except ImportError as error:
                return f"their Python says: {error}"
        return ""

    return ask


def _loading(pickled: bytes) -> Callable[[Any], str]:
    """Return a function that reads a caller's function on an executor."""

    def ask(_: Any) -> str:
        from pyspark import cloudpickle

        try:
            cloudpickle.loads(pickled)
        except Exception as error:  # noqa: BLE001 - it runs the code of the function's module
            return f"their Python says: {error}"
        return ""

    return ask
