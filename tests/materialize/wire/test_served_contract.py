"""The DuckDB driver behind a connector keeps the contract of drivers: in both codecs, in processes of its own."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.materialize.wire.served_endpoint import HERE, ROOT, ServedDuckDB, fork_server

from strandline.errors import InvalidUsage
from strandline.materialize.wire.options import CodecName
from strandline.testing.contracts.drivers.driver_contract import DriverContract, follow
from strandline.testing.contracts.drivers.world import MakeEndpoint, World, write_history


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The command of a connector that starts at once."""
    with fork_server(tmp_path_factory.mktemp("served")) as found:
        yield found


class ServedContract(DriverContract):
    """The contract, but for what no connector can say."""

    codec: CodecName

    @pytest.fixture
    def make_endpoint(self, tmp_path: Path, command: str) -> Callable[[], ServedDuckDB]:
        """Return a new file each time."""
        numbers = itertools.count()
        return lambda: ServedDuckDB(tmp_path / f"{next(numbers)}.duckdb", command, self.codec)

    # These start hundreds of processes each.
    def test_a_transaction_without_rows_is_committed_and_recovered(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: the task of an empty view starts from nothing for ever; or rows stay of a view that is empty now."""
        super().test_a_transaction_without_rows_is_committed_and_recovered(make_endpoint)

    def test_a_crash_at_any_point_loses_nothing_and_repeats_nothing(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: a row is missing or duplicated after a restart."""
        super().test_a_crash_at_any_point_loses_nothing_and_repeats_nothing(make_endpoint)

    def test_a_zombie_that_wakes_inside_a_transaction_commits_nothing(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: a process that was presumed dead overwrites its successor's rows."""
        super().test_a_zombie_that_wakes_inside_a_transaction_commits_nothing(make_endpoint)

    def test_a_backfill_that_dies_at_any_point_is_finished(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: a table stays empty, or holds rows of before and after at once."""
        super().test_a_backfill_that_dies_at_any_point_is_finished(make_endpoint)

    @pytest.mark.slow
    def test_a_crash_while_views_come_and_go_changes_nothing_else(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: after a crash rows that were to be kept are gone, or those that were to go are there."""
        super().test_a_crash_while_views_come_and_go_changes_nothing_else(make_endpoint)

    def test_names_reach_the_endpoint_as_they_are(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: a column's name runs as SQL, or two names reach one table."""
        super().test_names_reach_the_endpoint_as_they_are(make_endpoint)

    def test_a_preview_says_what_apply_would_do_and_does_none_of_it(
        self, make_endpoint: Callable[[], ServedDuckDB]
    ) -> None:
        """Damage: an operator who asks what a backfill would do has done it."""
        endpoint = make_endpoint()
        world = World(endpoint)
        write_history(world)
        with pytest.raises(InvalidUsage, match="cannot say what Apply would do"):
            asyncio.run(endpoint.driver().preview(world.spec))
        assert not endpoint.path.exists()


@pytest.mark.time_limit(1200)
class TestServedByProto(ServedContract):
    """Length and Protobuf."""

    codec = CodecName.PROTO


@pytest.mark.time_limit(1200)
class TestServedByJson(ServedContract):
    """A message a line."""

    codec = CodecName.JSON


@pytest.mark.parametrize("codec", CodecName)
def test_the_program_itself_serves(tmp_path: Path, codec: CodecName, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: what is tested is not what is run."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    endpoint = ServedDuckDB(tmp_path / "x.duckdb", f"{sys.executable} {HERE / 'served_duckdb.py'}", codec)
    asyncio.run(follow(endpoint))
