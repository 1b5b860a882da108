"""Python functions that views may call: which are taken, and how a session learns them.

A function of the caller's is taken as what it is marked as: Spark's `udf` says whether it is deterministic.  Its code
is not part of a view's definition.  So a function that changes what it returns wants another name, or its views made
anew.  What it raises for a row is an error of the query as a whole: Spark cannot try it row by row.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.util import PythonEvalType

from strandline.engine.session.reach import BARRED
from strandline.errors import ConfigError

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_OF_ROWS: Final = frozenset(
    {
        PythonEvalType.SQL_BATCHED_UDF,
        PythonEvalType.SQL_ARROW_BATCHED_UDF,
        PythonEvalType.SQL_SCALAR_ARROW_UDF,
        PythonEvalType.SQL_SCALAR_PANDAS_UDF,
    }
)
"""What gives one value for each row, from this row alone."""
_LIBRARIES: Final[Mapping[int, tuple[str, ...]]] = {
    PythonEvalType.SQL_BATCHED_UDF: (),
    PythonEvalType.SQL_ARROW_BATCHED_UDF: ("pyarrow",),
    PythonEvalType.SQL_SCALAR_ARROW_UDF: ("pyarrow",),
    PythonEvalType.SQL_SCALAR_PANDAS_UDF: ("pyarrow", "pandas"),
}
"""What Spark's Python on executors imports to give each kind its rows."""
assert _LIBRARIES.keys() == _OF_ROWS


class Functions:
    """The functions by name, lower-case.  Each session that reads texts of views has to `learn` them."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        """Take a function for each name: a ``udf``, or its place (``MODULE:NAME``, MODULE a module or a file).

        Raises `ConfigError` naming the function, for one that cannot be found or that views cannot call.
        """
        self._own = {name.lower(): _checked(name, _found(name, each)) for name, each in (given or {}).items()}

    @property
    def names(self) -> frozenset[str]:
        """What views may call, lower-case."""
        return frozenset(self._own)

    @property
    def types(self) -> dict[str, str]:
        """What each of them returns, by its name: all of a function that the analysis of a text depends on."""
        return {name: function.returnType.simpleString() for name, function in sorted(self._own.items())}

    def code(self, name: str) -> Any:
        """Return what executors call for the function ``name``."""
        return self._own[name].func

    def libraries(self, name: str) -> Sequence[str]:
        """Return what executors need besides the code of the function ``name``."""
        return _LIBRARIES[self._own[name].evalType]

    def learn(self, session: SparkSession) -> None:
        """Let the queries of ``session`` call the functions.

        Raises `ConfigError` for one that has the name of a function of Spark's.
        """
        for name, function in self._own.items():
            if name in BARRED or session.catalog.functionExists(name):
                raise ConfigError(f"the function {name!r} has the name of a function of Spark's: give it another")
            session.udf.register(name, function)


def _found(name: str, given: Any) -> Any:
    """Return the function that ``given`` is, or says the place of."""
    if not isinstance(given, str):
        return given
    where, _, attribute = given.rpartition(":")
    if not where:
        raise ConfigError(f"the function {name!r} is {given!r}; it can be MODULE:NAME or FILE.py:NAME")
    try:
        return getattr(_module(where), attribute)
    except Exception as error:  # whatever the code of this module raises
        raise ConfigError(f"the function {name!r} is not found in {where!r}: {error}") from error


def _module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    spec = importlib.util.spec_from_file_location(f"strandline_functions_{Path(where).stem}", where)
    assert spec is not None, "a path that ends in .py has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[module.__name__] = module
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # the workers could not import it
    return module


def _checked(name: str, function: Any) -> Any:
    """Return ``function``; raise `ConfigError` if a view cannot call it by ``name``."""
    if not _NAME.fullmatch(name.lower()):
        raise ConfigError(f"the function {name!r} has no name that a query can call: letters, digits and _ make one")
    kind = getattr(function, "evalType", None)
    if kind is None:
        raise ConfigError(f"the function {name!r} is no udf: wrap it in pyspark.sql.functions.udf, with its type")
    if kind not in _OF_ROWS:
        raise ConfigError(f"the function {name!r} does not give one value for each row; views call only such functions")
    if not function.deterministic:
        raise ConfigError(
            f"the function {name!r} is marked as nondeterministic: a view that calls it would have no definite value; "
            "store its value in a column of the source"
        )
    return function
