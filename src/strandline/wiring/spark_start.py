"""The data plane of a location, Spark, started when it is first needed; and the authority of remembered answers.

Spark takes seconds to start, and many questions need none of it: status, how a view is maintained, what a shard holds.
So a process that only reads gets its plane from the first call that needs Spark.  A coroutine waits for that in a
thread, so that leases and notices beside it are not held up; any other call blocks its caller.

An analyst remembers Spark's answers.  They are valid for one *authority*: a text of everything that they follow from.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from hashlib import blake2b
from importlib import metadata
from inspect import isasyncgenfunction, iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from strandline.compute.plan.scalars.context import TypeAnalyst
from strandline.compute.plan.scalars.remembered import Answers, RememberedAnalyst

if TYPE_CHECKING:
    from strandline.engine.files.decoder import SparkFiles
    from strandline.engine.messages.decoder import SparkMessages
    from strandline.engine.parts.part_store import Parts
    from strandline.engine.session.functions import Functions
    from strandline.engine.spark import SparkEngine


ASKING: Final = ("algebra", "engine/frames", "engine/session", "engine/sql")
"""The rooms whose code asks Spark, and reads what it answers."""
_HOUSE: Final = Path(__file__).parent.parent


def authority(settings: Mapping[str, str], functions: Functions) -> str:
    """Return a text that differs wherever Spark might answer otherwise about a query, or we might ask otherwise.

    ``settings``: Spark's version, and those of its settings that change answers.
    """
    told = blake2b(json.dumps([dict(settings), functions.types], sort_keys=True).encode(), digest_size=16)
    return asker() + told.hexdigest()


def asker() -> str:
    """Return what every authority of this code begins with: how we ask, and which PySpark is asked."""
    told = blake2b(metadata.version("pyspark").encode(), digest_size=16)
    for room in ASKING:
        for source in sorted((_HOUSE / room).glob("*.py")):
            told.update(source.name.encode() + source.read_bytes())
    return told.hexdigest()


@dataclass(frozen=True, slots=True)
class Plane:
    """What answers by one session; ``analyst`` remembers ``answers``."""

    engine: SparkEngine
    analyst: TypeAnalyst
    answers: Answers
    files: SparkFiles
    messages: SparkMessages


def late(make: Callable[[ExitStack], Plane], parts: Parts, functions: Collection[str], opened: ExitStack) -> Plane:
    """Return a plane that ``make`` makes when a call first needs it; ``opened`` closes it then.

    ``parts``: where its parts are, which are checked without it; ``functions``: the names that views may call.  A call
    raises what ``make`` raises, and the next one tries again.
    """
    answers = Answers(trusted=asker())
    making = _Making(make, opened.enter_context(ExitStack()), answers)
    analyst = _Late(making, "analyst", functions=frozenset(each.lower() for each in functions))
    engine = _Late(making, "engine", lambda: _early(parts))
    files, messages = _Late(making, "files"), _Late(making, "messages")
    return Plane(
        cast("SparkEngine", engine),
        RememberedAnalyst(cast("TypeAnalyst", analyst), answers),
        answers,
        cast("SparkFiles", files),
        cast("SparkMessages", messages),
    )


class _Making:
    """A plane that is made once, by the first call that needs it."""

    def __init__(self, make: Callable[[ExitStack], Plane], opened: ExitStack, answers: Answers) -> None:
        self._make = make
        self._opened = opened
        self._answers = answers
        self._lock = threading.Lock()
        self.made: Plane | None = None

    def now(self) -> Plane:
        """Return the plane, made."""
        with self._lock:
            if self.made is None:
                with ExitStack() as opened:
                    made = self._make(opened)
                    self._opened.push(opened.pop_all())
                self._answers.ask(made.answers.authority)
                self.made = made
            return self.made


class _Late:
    """The part of a plane that is called ``name`` there, by its calls.

    ``known`` is what it has without being made; what ``early`` makes may answer before that.
    """

    def __init__(self, making: _Making, name: str, early: Callable[[], object] = object, **known: object) -> None:
        self._making = making
        self._name = name
        self._early = early
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self._making.made is None:
            how = getattr(_kind(self._name), name, None)
            if iscoroutinefunction(how):
                return self._later(name)
            if isasyncgenfunction(how):
                return self._streamed(name)
        return getattr(getattr(self._making.now(), self._name), name)

    def _later(self, name: str) -> Callable[..., Any]:
        async def call(*given: Any, **named: Any) -> Any:
            early = getattr(self._early(), name, None)
            if early is not None and (found := await early(*given, **named)) is not None:
                return found
            made = await asyncio.to_thread(self._making.now)
            return await getattr(getattr(made, self._name), name)(*given, **named)

        return call

    def _streamed(self, name: str) -> Callable[..., AsyncGenerator[Any, None]]:
        async def call(*given: Any, **named: Any) -> AsyncGenerator[Any, None]:
            made = await asyncio.to_thread(self._making.now)
            async with aclosing(getattr(getattr(made, self._name), name)(*given, **named)) as items:
                async for item in items:
                    yield item

        return call


def _early(parts: Parts) -> object:
    from strandline.engine.early import Early

    return Early(parts)


def _kind(name: str) -> type:
    """Return the class of the part of a plane that is called ``name``; it imports Spark's Python."""
    from strandline.engine.files.decoder import SparkFiles
    from strandline.engine.messages.decoder import SparkMessages
    from strandline.engine.spark import SparkEngine

    return {"engine": SparkEngine, "files": SparkFiles, "messages": SparkMessages}.get(name, RememberedAnalyst)
