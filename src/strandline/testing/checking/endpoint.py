"""An endpoint of any driver, as the contract suites want one: read back by the driver itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Any, TypeAlias

from strandline.materialize.driver import Applied, Contents, Driver, DriverSpec, Session, Validated
from strandline.materialize.protocol.task import NOTHING, Binding, Checkpoint, MaterializationSpec
from strandline.wiring.loop import LoopThread

Planted: TypeAlias = Callable[[Driver], Driver]
"""Puts a defect into a driver; `sound` puts none."""


def sound(driver: Driver) -> Driver:
    """Return the driver as it is."""
    return driver


class CheckedEndpoint:
    """An endpoint that is empty at first.  ``open`` returns one more driver to it.

    ``keeps``: it keeps a checkpoint, and so a fence.
    """

    def __init__(self, open: Callable[[], Driver], loop: LoopThread, planted: Planted = sound, *, keeps: bool) -> None:  # noqa: A002
        self.fences = keeps
        self._open = open
        self._loop = loop
        self._planted = planted
        self._keeps = keeps
        self._spec: MaterializationSpec | None = None

    def driver(self) -> Driver:
        """See `EndpointUnderTest.driver`."""
        return self._planted(_Observed(self._open(), self._observe))

    def rows(self, table: str) -> list[dict[str, Any]]:
        """See `EndpointUnderTest.rows`."""
        bindings = () if self._spec is None else self._spec.bindings
        for binding in bindings:
            if binding.resource == table:
                return self._loop.run(self._read(binding))[1]
        return []

    def checkpoint(self, name: str) -> Checkpoint | None:
        """See `EndpointUnderTest.checkpoint`."""
        if not self._keeps:
            return None
        return NOTHING if self._spec is None else self._loop.run(self._read(self._spec.bindings[0]))[0] or NOTHING

    def _observe(self, spec: MaterializationSpec) -> None:
        self._spec = spec

    async def _read(self, binding: Binding) -> tuple[Checkpoint | None, list[dict[str, Any]]]:
        assert self._spec is not None
        held = await self._open().contents(self._spec.name, binding)
        rows: list[dict[str, Any]] = []
        async with aclosing(held.tables) as tables:
            async for table in tables:
                rows += table.rename_columns(list(binding.schema.names)).to_pylist()
        return held.checkpoint, rows


class _Observed:
    """A driver whose last applied specification is noted."""

    def __init__(self, inner: Driver, observe: Callable[[MaterializationSpec], None]) -> None:
        self._inner = inner
        self._observe = observe

    async def spec(self) -> DriverSpec:
        return await self._inner.spec()

    async def validate(self, spec: MaterializationSpec) -> tuple[Validated, ...]:
        return await self._inner.validate(spec)

    async def apply(self, spec: MaterializationSpec, state: Any) -> Applied:
        applied = await self._inner.apply(spec, state)
        self._observe(spec)
        return applied

    async def preview(self, spec: MaterializationSpec) -> tuple[str, ...]:
        return await self._inner.preview(spec)

    async def open(self) -> Session:
        return await self._inner.open()

    async def contents(self, task: str, binding: Binding) -> Contents:
        return await self._inner.contents(task, binding)
