"""What is said and done where a cluster gives no executor, over a double of Spark's context."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest

from strandline.engine.session import executors as module
from strandline.engine.session.cluster import OfMaster
from strandline.engine.session.executors import DYNAMIC, HURRY_MS, PARTITIONS, Executors
from strandline.errors import ExecutorsGone, NoExecutor, Unavailable

PATIENCE_S: Final = 30
END_S: Final = 600
MASTER: Final = "spark://127.0.0.1:1"
"""Nothing listens there."""


class Application:
    """A context of Spark's and its session, as far as executors are concerned."""

    def __init__(self) -> None:
        self.executors, self.cores, self.jobs, self.now = 0, 2, 0, 0
        self.cancelled, self.hurried = 0, 0
        self.tags = set[str]()
        self.conf = {PARTITIONS: "2"}

    def look(self, executors: Executors, seconds: float) -> None:
        """Let time pass, and then look."""
        self.now += int(1000 * seconds)
        executors._look()

    def cancel(self, tag: str) -> None:
        """Count that jobs are cancelled, and those of calls in a hurry."""
        self.cancelled += tag == "ours"
        self.hurried += tag == "ours-hurried"

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += int(1000 * seconds)

    def opened(self) -> Executors:
        """Return its executors, at which the test alone looks."""
        ids = SimpleNamespace(size=lambda: self.executors)
        conf = SimpleNamespace(get=lambda name, otherwise: otherwise)
        scheduler = SimpleNamespace(
            getExecutorIds=lambda: ids,
            defaultParallelism=lambda: self.cores,
            conf=lambda: conf,
            applicationId=lambda: "app-1",
        )
        context = SimpleNamespace(
            _jsc=SimpleNamespace(sc=lambda: scheduler),
            master=MASTER,
            statusTracker=lambda: SimpleNamespace(getActiveJobsIds=lambda: [1] * self.jobs),
            cancelJobsWithTag=self.cancel,
            addJobTag=self.tags.add,
            removeJobTag=self.tags.discard,
            getJobTags=lambda: set(self.tags),
        )
        settings = SimpleNamespace(get=self.conf.get, set=self.conf.__setitem__)
        session: Any = SimpleNamespace(sparkContext=context, conf=settings)
        clock: Any = SimpleNamespace(now_ms=lambda: self.now, sleep=self.sleep)
        made = Executors(session, clock, patience_s=PATIENCE_S, end_s=END_S)
        made._tag, made._hurried = "ours", "ours-hurried"
        return made


def test_jobs_are_cancelled_only_once_they_have_waited_for_executors() -> None:
    """Damage: a job waits for ever, or one that was about to get its executor fails."""
    application = Application()
    executors = application.opened()
    application.jobs = 1
    application.look(executors, 0)
    application.look(executors, PATIENCE_S - 1)
    assert (application.cancelled, executors.lack) == (0, None)
    application.look(executors, 1)
    assert application.cancelled == 1
    said = executors.lack
    assert said is not None
    assert "no executor since 1970-01-01T00:00:00+00:00" in said
    assert f"the master {MASTER} does not answer" in said
    application.look(executors, 60)
    assert executors.lack == said, "a sentence that is reported once tells no time but when it began"
    application.executors = 1
    application.look(executors, 1)
    assert executors.lack is None


def test_where_no_job_waits_nothing_is_missing() -> None:
    """Damage: an application whose executors come with its jobs is called broken in each pause."""
    application = Application()
    executors = application.opened()
    application.look(executors, 0)
    application.look(executors, END_S)
    assert (application.cancelled, executors.lack) == (0, None)
    application.jobs = 1
    for seconds in (1, PATIENCE_S - 1):  # the executors that this job wants are being started
        application.look(executors, seconds)
        executors.require()
        assert (application.cancelled, executors.lack) == (0, None)
    application.look(executors, 1)
    assert application.cancelled == 1
    executors.require()


def test_the_process_ends_after_what_the_configuration_says() -> None:
    """Damage: a process that its cluster has forgotten is never started again."""
    application = Application()
    executors = application.opened()
    application.jobs = 1
    application.look(executors, 0)
    application.look(executors, END_S - 1)
    executors.require()
    application.look(executors, 1)
    with pytest.raises(ExecutorsGone, match="has waited 10 minutes and ends"):
        executors.require()


def test_a_query_has_a_partition_for_each_core_that_there_is_now() -> None:
    """Damage: an environment that was opened before its executors came works in two partitions for ever."""
    application = Application()
    executors = application.opened()
    application.executors = 1
    for cores, wanted in ((2, "2"), (64, "64"), (1000, "200"), (4, "4")):
        application.cores = cores
        application.look(executors, 1)
        assert application.conf[PARTITIONS] == wanted


def test_a_caller_waits_for_executors_as_long_as_a_job_would() -> None:
    """Damage: a call that has to compute holds the turn of all others while there is no executor."""
    application = Application()
    executors = application.opened()
    application.look(executors, 0)
    with pytest.raises(NoExecutor, match="no executor since"):
        asyncio.run(executors.wait())
    assert application.now == pytest.approx(1000 * PATIENCE_S, abs=1000)
    assert not executors.come_with_jobs
    application.conf[DYNAMIC] = "true"
    assert executors.come_with_jobs
    application.executors = 1
    application.look(executors, 1)
    assert not executors.come_with_jobs
    asyncio.run(executors.wait())


def test_the_jobs_of_a_call_in_a_hurry_are_cancelled_soon_and_no_others() -> None:
    """Damage: an INSERT whose executors die keeps all other callers waiting; or a blink of them fails a view's step."""
    application = Application()
    executors = application.opened()
    application.jobs = 1
    application.look(executors, 0)

    def lost(seconds: float) -> Callable[[], object]:
        def call() -> object:
            application.look(executors, seconds)
            raise Unavailable("a job was cancelled")

        return call

    with pytest.raises(Unavailable, match="a job was cancelled"):
        executors.carried_out(lost(HURRY_MS / 1000 - 1), hurried=True)
    with pytest.raises(NoExecutor, match="no executor since"):
        executors.carried_out(lost(1), hurried=True)
    with pytest.raises(Unavailable, match="a job was cancelled"):
        executors.carried_out(lost(1), hurried=False)
    assert (application.hurried, application.cancelled) == (2, 0)
    with pytest.raises(NoExecutor, match="no executor since"):
        executors.carried_out(lost(PATIENCE_S), hurried=False)
    assert (application.hurried, application.cancelled) == (2, 1)


def test_what_is_said_of_a_cancelled_job_holds_though_an_executor_has_come_since() -> None:
    """Damage: a call that would be made anew fails, because an executor came between its end and a look."""
    application = Application()
    executors = application.opened()
    application.look(executors, 0)

    def lost() -> None:
        application.look(executors, HURRY_MS / 1000)
        application.executors = 1
        application.look(executors, 1)
        raise Unavailable("a job was cancelled")

    with pytest.raises(NoExecutor, match="no executor since"):
        executors.carried_out(lost, hurried=True)


def test_a_process_that_ends_waits_for_no_executor() -> None:
    """Damage: SIGTERM seems to be ignored, since a job waits for executors that do not come."""
    application = Application()
    executors = application.opened()
    application.jobs = 1
    application.look(executors, 0)
    assert application.cancelled == 0
    executors.hasten()
    application.look(executors, 1)
    assert application.cancelled == 1
    with pytest.raises(NoExecutor):
        asyncio.run(executors.wait())


def test_a_thread_keeps_the_tags_that_its_pool_has_given_it() -> None:
    """Damage: the jobs of a thread that was in a hurry once are no longer cancelled by anyone, or too soon for ever."""
    application = Application()
    executors = application.opened()
    application.tags.add("ours")
    seen = executors.carried_out(lambda: set(application.tags), hurried=True)
    assert (seen, application.tags) == ({"ours", "ours-hurried"}, {"ours"})
    application.tags.clear()
    seen = executors.carried_out(lambda: set(application.tags), hurried=False)
    assert (seen, application.tags) == ({"ours"}, set())


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (OfMaster(MASTER, knows=True, workers=0), "has no worker"),
        (OfMaster(MASTER, knows=True, workers=2), "no worker of the master .* runs and has all cores"),
        (None, "does not answer"),
    ],
)
def test_what_is_missing_is_said_as_the_master_says_it(
    said: OfMaster | None, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: an operator restarts a process that only lacks a worker, or adds workers to one that is forgotten."""
    monkeypatch.setattr(module, "ask_masters", lambda _: said)
    application = Application()
    executors = application.opened()
    application.jobs = 1
    application.look(executors, 0)
    application.look(executors, PATIENCE_S)
    assert re.search(sentence, str(executors.lack))
    executors.require()


def test_a_process_that_the_master_has_forgotten_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a process waits for ten minutes for executors that can never come, and each caller as long as a job."""
    monkeypatch.setattr(module, "ask_masters", lambda _: OfMaster(MASTER, knows=False, workers=2))
    application = Application()
    executors = application.opened()
    application.look(executors, 0)
    executors.require()
    application.look(executors, module.ASK_MS / 1000)
    with pytest.raises(ExecutorsGone, match="no longer knows the application app-1"):
        executors.require()
    before = application.now
    with pytest.raises(NoExecutor, match="no longer knows the application app-1"):
        asyncio.run(executors.wait())
    assert application.now == before
