"""The driver from which docs/drivers.md has authors begin keeps the contract; `driver check` says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from docs.template_driver import JsonDriver

from strandline.cli.endpoints import driver_check
from strandline.cli.terminal.output import Output
from strandline.errors import ConfigError, InvalidUsage
from strandline.testing import checking
from strandline.testing.checking import Outcome, Result, check
from strandline.testing.endpoints import Endpoint, MemoryDriver, StagingSession

TEMPLATE = Path(__file__).resolve().parents[2] / "docs" / "template_driver.py"


@pytest.fixture
def opening(tmp_path: Path) -> Callable[[int], Callable[[], JsonDriver]]:
    """Return how a driver of the template is opened."""
    return lambda number: lambda: JsonDriver(tmp_path / f"{number}.json")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """Return what `check` says of the template."""
    place = tmp_path_factory.mktemp("template")
    return list(check(lambda number: lambda: JsonDriver(place / f"{number}.json")))


def test_the_template_keeps_the_contract(results: list[Result]) -> None:
    """Damage: who begins from it begins with a fault."""
    assert [each for each in results if not each.good] == []
    sound = {each.scenario for each in results if not each.defect and each.outcome is Outcome.PASSED}
    assert sound == set(checking.SCENARIOS)


def test_each_defect_fails_a_scenario(results: list[Result]) -> None:
    """Damage: `driver check` says of a driver that loses rows that all is well."""
    planted = [each for each in results if each.defect]
    assert sum(each.outcome is Outcome.FAILED for each in planted) >= 9
    assert all(each.why for each in planted if each.outcome is Outcome.SKIPPED)


def test_the_template_is_short() -> None:
    """Damage: an author reads for an hour before the first row is stored."""
    assert len(TEMPLATE.read_text().splitlines()) <= 150


def test_an_endpoint_that_keeps_no_checkpoint_is_checked_too() -> None:
    """Damage: `driver check` is of no use to authors whose endpoint has no transactions."""
    places: dict[int, Endpoint] = {}
    opening = lambda number: lambda: MemoryDriver(places.setdefault(number, Endpoint()), StagingSession)  # noqa: E731
    results = list(check(opening))
    assert [each for each in results if not each.good] == []
    assert {each.scenario for each in results if each.outcome is Outcome.SKIPPED and not each.defect} == {
        "backfill",
        "backfill_everywhere",
        "zombie_everywhere",
    }


def test_a_driver_that_fails_is_named_with_its_scenario(
    opening: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a driver is found good that is not."""

    async def follow(endpoint: object) -> None:
        raise AssertionError("the rows differ")

    monkeypatch.setitem(checking.SCENARIOS, "follow", checking._Step(follow))
    first = next(iter(check(opening)))  # type: ignore[arg-type]
    assert (first.scenario, first.outcome, first.why, first.good) == (
        "follow",
        Outcome.FAILED,
        "the rows differ",
        False,
    )


@pytest.mark.parametrize(
    ("endpoint", "config", "said"),
    [
        ("duckdb", '{"path": "/tmp/a.duckdb"}', "put {n} into the option"),
        ("duckdb", "[]", "--config is no JSON object of texts"),
        ("docs.template_driver:NOTHING", '{"path": "{n}"}', "cannot be imported"),
        ("docs.template_driver:json", '{"path": "{n}"}', "is no strandline.materialize.driver.DriverKind"),
    ],
)
def test_what_cannot_be_checked_is_refused(endpoint: str, config: str, said: str) -> None:
    """Damage: an author's typing error is taken for a fault of the driver."""
    with pytest.raises((InvalidUsage, ConfigError), match=said.replace("{", r"\{")):
        driver_check(endpoint, config, Output(json=True))
