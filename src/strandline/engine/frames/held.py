"""Frames handed out to users: plain DataFrames that hold what they read for as long as they live.

A frame and all that are derived from it share one session object, made for them (the same session of Spark behind it).
When the last of them is collected by Python, so is that object, and the hold is given back.  Trap: a join takes its
session from its left side alone; the right side is held as long as its own frame lives.

Once its environment is closed a frame refuses to be used, and so do the frames that its methods gave.  What was
derived otherwise (a grouping, a view) is not stopped: it reads the right rows, or fails because a part is not there.

Why private names: PySpark has no public way to say which frames descend from which; ``_session`` is what a frame and
its descendants share, in classic and Connect alike.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from functools import wraps
from inspect import ismethod
from typing import Any, Final

from pyspark.sql import DataFrame

from strandline.engine.session.causes import behind, causes
from strandline.errors import AsOfError

GONE: Final = "FAILED_READ_FILE.FILE_NOT_EXIST"
"""What Spark calls a file that was there when the read was planned."""


def hand_out(frame: DataFrame, check: Callable[[], None], give_back: Callable[[], None]) -> DataFrame:
    """Return ``frame`` for a caller: ``check`` is called before each use, ``give_back`` after the last.

    That is called once, by whichever thread collects the frame.
    """
    own: Any = held_until_unused(frame.select("*"), give_back)
    own._strandline_check = check  # noqa: SLF001  # ours
    own.__class__ = _checked(type(frame))
    found: DataFrame = own
    return found


def held_until_unused(frame: DataFrame, give_back: Callable[[], object]) -> DataFrame:
    """Return ``frame``, which nothing else has yet, and call ``give_back`` once no frame derived from it is left."""
    own: Any = frame
    own._session = copy.copy(frame.sparkSession)  # noqa: SLF001  # see above
    weakref.finalize(own._session, give_back)  # noqa: SLF001
    return frame


_kinds: Final[dict[type, type]] = {}


def _checked(kind: Any) -> Any:
    """Return the class of frames of ``kind`` that ask before they are used."""

    def asking(frame: Any, name: str) -> Any:
        if name.startswith("_"):
            return kind.__getattribute__(frame, name)
        check = object.__getattribute__(frame, "_strandline_check")
        check()
        found = kind.__getattribute__(frame, name)
        return _telling(found, check) if ismethod(found) else found

    if kind not in _kinds:
        _kinds[kind] = type(kind.__name__, (kind,), {"__getattribute__": asking, "__doc__": kind.__doc__})
    return _kinds[kind]


def _telling(method: Callable[..., Any], check: Callable[[], None]) -> Callable[..., Any]:
    """Return ``method`` of a frame.  Frames that it returns check too; a part that was deleted is an `AsOfError`."""

    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        try:
            found = method(*args, **options)
        except Exception as error:
            if _is_gone(error):
                raise AsOfError("garbage collection has deleted what this frame reads; read it again") from error
            raise
        if isinstance(found, DataFrame) and type(found) not in _kinds.values():
            own: Any = found
            own._strandline_check = check  # noqa: SLF001  # ours
            own.__class__ = _checked(type(found))
        return found

    return call


def _is_gone(error: BaseException) -> bool:
    """Tell whether a part was not there, also where PySpark raised a warning about that in its place."""
    return any(thrown.condition == GONE for each in behind(error, hidden=True) for thrown in causes(each))
