"""The inbox keeps each acknowledged request once, and forgets what the collection holds."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest
from webhook_place import NOW_MS, Post

from strandline.errors import CorruptionError, FencedError, Indeterminate, SourceError
from strandline.frontier import Frontier
from strandline.persist.handles.records import Record
from strandline.sources.readers.webhook import inbox as inboxes
from strandline.sources.readers.webhook.inbox import MESSAGE_BYTES, Full, Request, Reused, Taken
from strandline.testing.simulation.kernel import run_sync


def texts(inbox, lower=0, upper=None):
    """The messages of a range."""
    return [message.decode() for _, _, message in inbox.messages(lower, inbox.next if upper is None else upper)]


def ask(*messages, key=""):
    """A request."""
    return Request(tuple(each.encode() for each in messages), key)


def test_what_was_taken_is_there_after_a_restart():
    """Damage: an acknowledged message is lost."""

    async def body():
        post = Post()
        inbox = await post.inbox()
        assert await inbox.take([ask("a", "b"), ask("c")]) == [Taken(0, 2), Taken(2, 1)]
        assert texts(await post.inbox()) == texts(inbox) == ["a", "b", "c"]
        assert [offset for offset, _, _ in inbox.messages(1, 3)] == [1, 2]

    run_sync(body())


def test_a_key_is_one_message_set(monkeypatch):
    """Damage: a sender that got no answer sends again, and its messages count twice."""

    async def body():
        post = Post()
        inbox = await post.inbox()
        assert await inbox.take([ask("a", key="k"), ask("a", key="k"), ask("b", key="k")]) == [
            Taken(0, 1),
            Taken(0, 1, again=True),
            Reused("k"),
        ]
        for each in (inbox, await post.inbox()):
            assert await each.take([ask("a", key="k")]) == [Taken(0, 1, again=True)]
            assert each.next == 1
        await inbox.forget(1)
        for each in (inbox, await post.inbox()):
            assert await each.take([ask("a", key="k"), ask("ab", key="k")]) == [Taken(0, 1, again=True), Reused("k")]
        assert await inbox.take([ask("a"), ask("a")]) == [Taken(1, 1), Taken(2, 1)], "without a key all are different"

    run_sync(body())


def test_content_differs_where_messages_are_cut_elsewhere():
    """Damage: another request is answered as if it were stored."""

    async def body():
        inbox = await Post().inbox()
        assert await inbox.take([ask("ab", "c", key="k"), ask("a", "bc", key="k")]) == [Taken(0, 2), Reused("k")]

    run_sync(body())


def test_a_key_is_forgotten_when_it_is_old_or_too_many_came(monkeypatch):
    """Damage: the shard and the memory grow with every request that there ever was."""
    monkeypatch.setattr(inboxes, "KEYS_MAX", 10)

    async def body():
        post = Post()
        inbox = await post.inbox()
        for number in range(30):
            post.clock.now += 1
            await inbox.take([ask("a", key=f"{number}")])
            await inbox.forget(inbox.next)
        for each in (inbox, await post.inbox()):
            assert len(each._seen) <= 11
            assert each._seen.keys() >= {str(number) for number in range(22, 30)}, "the newest are remembered"
        post.clock.now += post.options.remember + 1
        await inbox.take([ask("z", key="z")])
        await inbox.forget(inbox.next)
        for each in (inbox, await post.inbox()):
            assert each._seen.keys() == {"z"}

    run_sync(body())


def test_what_does_not_fit_is_refused_and_what_is_alone_always_fits():
    """Damage: a source that stands still fills the memory; or a large request is refused for ever."""

    async def body():
        post = Post()
        inbox = await post.inbox(room=3 * (MESSAGE_BYTES + 1))
        assert await inbox.take([ask("a", "b"), ask("c"), ask("d")]) == [Taken(0, 2), Taken(2, 1), Full(3 * 65)]
        assert texts(inbox) == ["a", "b", "c"]
        await inbox.forget(2)
        assert await inbox.take([ask("e", "f", "g"), ask("h")]) == [Full(65), Taken(3, 1)]
        await inbox.forget(4)
        assert inbox.waiting == 0
        assert await inbox.take([ask("x" * 1000)]) == [Taken(4, 1)]

    run_sync(body())


def test_what_is_forgotten_is_refused_and_offsets_do_not_go_back():
    """Damage: after all was ingested and the process restarted, new messages get offsets that were read already."""

    async def body():
        post = Post()
        inbox = await post.inbox()
        await inbox.take([ask("a", "b")])
        await inbox.take([ask("c")])
        await inbox.forget(1)
        assert texts(inbox) == ["a", "b", "c"], "a request is forgotten whole"
        await inbox.forget(2)
        await inbox.forget(2)
        for each in (inbox, await post.inbox()):
            assert texts(each, 2) == ["c"]
            with pytest.raises(SourceError, match="messages 1 to 3 are asked for.*holds 2 to 3"):
                texts(each, 1)
        await inbox.forget(3)
        again = await post.inbox()
        assert again.next == 3
        with pytest.raises(SourceError, match="messages 3 to 4"):
            texts(again, 3, 4)

    run_sync(body())


def test_the_shard_holds_what_waits_and_not_what_came():
    """Damage: each message takes room in the location for ever; or each restart reads them all."""

    async def body():
        post = Post()
        inbox = await post.inbox()
        most = 0
        for number in range(2_000):
            await inbox.take([ask(f"{number}")])
            if number % 5 == 4:
                await inbox.forget(inbox.next - 2)
            state = inbox._shard.state
            most = max(most, sum(part.rows for batch in state.batches for part in batch.parts))
        assert most < 600, most
        assert texts(await post.inbox(), inbox.next - 2) == ["1998", "1999"]

    run_sync(body())


def test_a_fenced_inbox_keeps_nothing():
    """Damage: what a zombie acknowledges is in no collection."""

    async def body():
        post = Post()
        zombie, successor = await post.inbox(epoch=1), await post.inbox(epoch=2)
        with pytest.raises(FencedError):
            await zombie.take([ask("a")])
        await successor.refresh()
        assert successor.next == 0
        assert await successor.take([ask("b")]) == [Taken(0, 1)]

    run_sync(body())


def test_an_append_in_doubt_is_looked_for_before_the_next():
    """Damage: a request whose append got no answer is stored a second time, under its key."""

    async def body():
        post = Post()
        inbox = await post.inbox()
        append = inbox._shard.append

        async def unanswered(*given, **options):
            inbox._shard.append = append
            await append(*given, **options)
            raise Indeterminate("no answer")

        inbox._shard.append = unanswered
        with pytest.raises(Indeterminate):
            await inbox.take([ask("a", key="k")])
        assert await inbox.take([ask("a", key="k"), ask("b")]) == [Taken(0, 1, again=True), Taken(1, 1)]
        assert texts(await post.inbox()) == ["a", "b"]

    run_sync(body())


def test_taking_and_forgetting_at_once_loses_nothing():
    """Damage: a message that comes while others are forgotten is lost, or counts twice."""

    async def body(seed):
        random, post = Random(seed), Post()
        inbox, other = await post.inbox(), await post.inbox()
        read, sent = Counter(), Counter()

        async def send(each, name):
            for number in range(20):
                text = f"{name}{number}"
                await each.take([ask(text)])
                sent[text] += 1

        async def ingest():
            done = 0
            while sum(sent.values()) < 40 or done < inbox.next:
                await inbox.refresh()
                upper = inbox.next
                read.update(texts(inbox, done, upper))
                done = upper
                await asyncio.wait_for(inbox.forget(done - random.randrange(2)), 120)
            await inbox.forget(done)

        async with asyncio.TaskGroup() as group:
            for each, name in ((inbox, "a"), (other, "b")):
                group.create_task(send(each, name))
            group.create_task(ingest())
        assert read == sent
        again = await post.inbox()
        assert (again.next, again.waiting) == (40, 0)

    for seed in range(5):
        asyncio.run(body(seed))


class Crash(BaseException):
    """The process is killed."""


class Crashing:
    """A store whose process is killed at its ``at``-th call, before or after it took effect."""

    def __init__(self, store, at, *, after):
        self._store, self._left, self._after = store, at, after

    def __getattr__(self, name):
        call = getattr(self._store, name)

        async def counted(*given, **options):
            self._left -= 1
            if self._left == 0 and not self._after:
                raise Crash
            found = await call(*given, **options)
            if self._left == 0:
                raise Crash
            return found

        return counted


@pytest.mark.parametrize("after", [False, True], ids=["before it happens", "after it happened"])
def test_a_crash_at_any_call_of_a_store_loses_and_doubles_nothing(after):
    """Damage: an acknowledged message is lost in a crash; or its repetition counts twice.

    Senders send again, with their keys, until they have an answer.  What is read before it is forgotten is what the
    collection holds; what was read and not forgotten is read again by the next incarnation, as a range is.
    """

    async def life(post, told, collection):
        """Run one incarnation to its end."""
        inbox = await post.inbox()
        for number in range(12):
            if number not in told:
                (outcome,) = await inbox.take([Request((b"%d" % number, b"-%d" % number), f"k{number}")])
                told[number] = outcome.first
            collection |= {
                offset: message for offset, _, message in inbox.messages(collection_end(collection), inbox.next)
            }
            if number % 3 == 2:
                await inbox.forget(inbox.next)
        return inbox

    def collection_end(collection):
        return max(collection, default=-1) + 1

    async def history(at):
        """Let one incarnation be killed at a call; return whether it was, and check what the next one finds."""
        post, told, collection = Post(), {}, {}
        consensus = post.consensus
        post.consensus = Crashing(consensus, at, after=after)
        killed = False
        try:
            await life(post, told, collection)
        except Crash:
            killed = True
        post.consensus = consensus
        await life(post, told, collection)
        assert sorted(collection) == list(range(24)), at
        assert {told[number]: b"%d" % number for number in told} == {o: collection[o] for o in told.values()}, at
        return killed

    async def body():
        at = 1
        while await history(at):
            at += 1
        assert at > 20

    run_sync(body())


def test_another_shards_records_are_refused():
    """Damage: an inbox over a wrong shard is empty, and offsets begin anew."""

    async def body():
        post = Post()
        shard = await post.shard()
        await shard.append([Record(b"no inbox's", 0, 1)], Frontier(0), Frontier(1))
        with pytest.raises(CorruptionError, match="what is no inbox's"):
            await post.inbox()

    run_sync(body())


def test_the_time_of_a_request_is_the_clocks():
    """Damage: `include_timestamp` holds another time."""

    async def body():
        inbox = await Post().inbox()
        await inbox.take([ask("a")])
        assert [arrival.at_ms for _, arrival, _ in inbox.messages(0, 1)] == [NOW_MS]

    run_sync(body())
