"""The one retry loop, against every fate a commit can have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.conformance import batches
from tests.conformance.faults import After, Faulty, Lost, Step, Through, Unreachable
from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.store import kv, memory_engine, transact


class Bench:
    """A memory store behind a script, and an environment whose sleeping takes no time."""

    def __init__(self, *script: Step, forever: bool = False) -> None:
        self.env = envs.FixedEnv()
        self.store = memory_engine.MemoryEngine(self.env)
        self.engine = Faulty(self.store, script, forever=forever)

    async def commit(self, *calls: kv.Batch) -> list[transact.Certain]:
        return await transact.commit(self.engine, self.env, *calls)

    def slept_ms(self) -> int:
        return self.env.monotonic_us() // 1000


def _item(name: bytes) -> kv.Batch:
    """An enqueued item: its id is the guard and remembers the stamp of the first of two appends."""
    batch = kv.Batch()
    batch.absent(b"id/" + name)
    first = batch.append(b"log/", name)
    batch.append(b"log/", name + b" again")
    batch.put(b"id/" + name, b"digest of " + name, stamp=first)
    batch.add(b"count", 1)
    return batch


async def _check_once(bench: Bench, name: bytes, outcome: transact.Certain) -> None:
    """The item is there exactly once, and the outcome has its stamps."""
    assert isinstance(outcome, kv.Ok)
    log = await batches.scan(bench.store, b"log/")
    mine = {key: value for key, value in log.items() if value in (name, name + b" again")}
    assert list(mine.values()) == [name, name + b" again"]
    assert list(mine) == [b"log/" + stamp for stamp in outcome.stamps]
    assert await batches.get(bench.store, b"id/" + name) == b"digest of " + name + outcome.stamps[0]
    assert await batches.counter(bench.store, b"count") == len(log) // 2


# How often each is committed in all, and the script.
RESOLVED: list[tuple[str, int, list[Step]]] = [
    ("nothing lost", 1, []),
    ("lost before it was applied", 2, [Lost(applied=False)]),
    ("lost after it was applied", 2, [Lost(applied=True)]),
    ("lost, and arrives after the repeat", 2, [Lost(late=True)]),
    ("lost twice, applied first", 3, [Lost(applied=True), Lost(applied=True)]),
    ("lost twice, applied second", 3, [Lost(applied=False), Lost(applied=True)]),
    ("lost many times", 21, [Lost(applied=False)] * 20),
    ("lost, applied, then unreachable", 4, [Lost(applied=True), Unreachable(), Unreachable()]),
    ("lost, not applied, then unreachable", 3, [Lost(applied=False), Unreachable()]),
]


@pytest.mark.parametrize(("calls", "script"), [case[1:] for case in RESOLVED], ids=[case[0] for case in RESOLVED])
async def test_a_lost_answer_is_found_out(calls: int, script: list[Step]) -> None:
    bench = Bench(*script)
    [outcome] = await bench.commit(_item(b"a"))
    await _check_once(bench, b"a", outcome)
    assert bench.engine.calls == calls


RIVALS: list[tuple[str, list[Step]]] = [
    ("lost and a rival was first", [After([batches.create(b"id/a", b"rival")], Lost())]),
    ("lost, then a rival came", [Lost(), After([batches.create(b"id/a", b"rival")])]),
    ("a rival and nothing lost", [After([batches.create(b"id/a", b"rival")])]),
]


@pytest.mark.parametrize("script", [case[1] for case in RIVALS], ids=[case[0] for case in RIVALS])
async def test_another_writers_bytes_are_a_conflict(script: list[Step]) -> None:
    bench = Bench(*script)
    lost = any(isinstance(step, Lost) or (isinstance(step, After) and isinstance(step.then, Lost)) for step in script)
    assert await bench.commit(_item(b"a")) == [kv.Conflict(((b"id/a", b"rival"),), repeated=lost)]
    assert await batches.scan(bench.store, b"log/") == {}


@pytest.mark.probe("transact.lost-or-overtaken")
async def test_what_was_applied_and_then_overwritten_is_a_conflict_that_says_so() -> None:
    """The writer has lost the key either way, and must read again: this conflict does not tell what happened before."""
    bench = Bench(Lost(applied=True), After([batches.replace(b"head", b"1", b"2")]))
    await batches.ok(bench.store, batches.create(b"head", b"0"))
    [outcome] = await bench.commit(batches.replace(b"head", b"0", b"1"))
    assert outcome == kv.Conflict(((b"head", b"2"),), repeated=True)


async def test_the_same_bytes_are_no_proof_before_anything_was_lost() -> None:
    """A first conflict is a conflict, whatever it shows: nobody has sent this batch yet."""
    bench = Bench(After([batches.create(b"key", b"same")]))
    assert await bench.commit(batches.create(b"key", b"same")) == [kv.Conflict(((b"key", b"same"),))]


@pytest.mark.probe("transact.applied-before")
async def test_each_kind_of_guard_shows_its_own_success() -> None:
    bench = Bench(Lost(applied=True))
    await batches.fill(bench.store, {b"due": b"1", b"range": b"2", b"head": b"3", b"epoch": b"4"})
    batch = batches.replace(b"head", b"3", b"5")
    batch.expect(b"due", b"1")
    batch.delete(b"due")
    batch.expect(b"range", b"2")
    batch.delete_range(b"range", b"rangf")
    batch.expect(b"epoch", b"4")
    assert await bench.commit(batch) == [kv.Ok(())]
    assert bench.engine.calls == 2


async def test_stamps_that_nothing_recorded_are_not_made_up() -> None:
    batch = batches.create(b"key", b"1")
    batch.append(b"log/", b"x")
    bench = Bench(Lost(applied=True))
    assert await bench.commit(batch) == [kv.Ok(())]


@pytest.mark.parametrize("index", [0, 1, 2])
async def test_stamps_are_recovered_from_any_one_of_them(index: int) -> None:
    batch = batches.create(b"guard", b"1")
    for number in range(3):
        batch.append(b"log/", b"%d" % number)
    batch.absent(b"a")
    batch.put(b"a", b"", stamp=index)
    bench = Bench(Lost(applied=True))
    # Batches before it in the same call move the ordinals on.
    _, outcome = await bench.commit(_item(b"other"), batch)
    assert isinstance(outcome, kv.Ok)
    log = await batches.scan(bench.store, b"log/")
    assert [log[b"log/" + stamp] for stamp in outcome.stamps] == [b"0", b"1", b"2"]


async def test_only_what_is_uncertain_is_committed_again() -> None:
    """One call, three fates: answered, in conflict, lost. Only the last is asked for again."""
    bench = Bench(Lost(applied=True, only=(2,)), Through())
    await batches.ok(bench.store, batches.create(b"id/taken", b"rival"))
    first, taken, applied = await bench.commit(_item(b"first"), _item(b"taken"), _item(b"applied"))
    assert taken == kv.Conflict(((b"id/taken", b"rival"),))
    await _check_once(bench, b"first", first)
    await _check_once(bench, b"applied", applied)
    assert bench.engine.calls == 2


async def test_what_was_answered_stays_answered() -> None:
    """By the time the lost one is asked for again, somebody has moved what the answered one wrote."""
    bench = Bench(Lost(only=(1,)), After([batches.replace(b"head", b"1", b"2")]))
    assert await bench.commit(batches.create(b"head", b"1"), batches.create(b"lost", b"1")) == [kv.Ok(()), kv.Ok(())]
    assert await batches.get(bench.store, b"head") == b"2"


async def test_outcomes_keep_their_places_when_some_are_found_later() -> None:
    rival = batches.create(b"id/c", b"rival")
    bench = Bench(Lost(only=(0, 2, 4)), After([rival], Lost(applied=True, only=(0,))))
    outcomes = await bench.commit(*(_item(name) for name in (b"a", b"b", b"c", b"d", b"e")))
    assert outcomes[2] == kv.Conflict(((b"id/c", b"rival"),), repeated=True)
    for place, name in ((0, b"a"), (1, b"b"), (3, b"d"), (4, b"e")):
        await _check_once(bench, name, outcomes[place])
    assert bench.engine.calls == 3


async def test_a_store_that_cannot_be_reached_at_first_says_so() -> None:
    for error in (errors.StoreUnavailable, errors.StoreFull, errors.StoreFailed):
        bench = Bench(Unreachable(error))
        with pytest.raises(error):
            await bench.commit(_item(b"a"))
        assert bench.engine.calls == 1
        assert await batches.scan(bench.store, b"id/") == {}


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.probe("transact.unreachable-while-unknown")
async def test_looking_for_an_answer_is_bounded(applied: bool) -> None:
    bench = Bench(Lost(applied=applied), Unreachable(), forever=True)
    with pytest.raises(errors.StoreUncertain):
        await bench.commit(_item(b"a"))
    assert bench.engine.calls == limits.UNKNOWN_ATTEMPTS_MAX
    assert limits.UNKNOWN_ATTEMPTS_MAX <= bench.slept_ms() <= limits.UNKNOWN_ATTEMPTS_MAX * limits.RETRY_MOST_MS


async def test_nothing_to_commit() -> None:
    bench = Bench()
    assert await bench.commit() == []


Attempt = Callable[[], Awaitable[transact.NothingToWrite[int] | transact.Write[int]]]


async def _counting(bench: Bench, *, done_at: int = 1_000_000) -> Attempt:
    """An attempt that adds one to a number, or is done when it has got that far."""
    await batches.ok(bench.store, batches.create(b"n", b"0"))

    async def attempt() -> transact.NothingToWrite[int] | transact.Write[int]:
        value = await batches.get(bench.engine, b"n")
        assert value is not None
        if int(value) >= done_at:
            return transact.NothingToWrite(int(value))
        return transact.Write(batches.replace(b"n", value, b"%d" % (int(value) + 1)), lambda _: int(value) + 1)

    return attempt


def _rivals(count: int) -> list[Step]:
    """Each commit of the first `count` finds that somebody has counted on since it read."""
    return [After([batches.replace(b"n", b"%d" % index, b"%d" % (index + 1))]) for index in range(count)]


@pytest.mark.parametrize("conflicts", [0, 1, 5, limits.TRANSACT_ATTEMPTS_MAX - 1])
async def test_a_run_tries_again_from_a_new_read_after_each_conflict(conflicts: int) -> None:
    bench = Bench(*_rivals(conflicts))
    attempt = await _counting(bench)
    assert await transact.run(bench.engine, bench.env, attempt) == conflicts + 1
    assert await batches.get(bench.store, b"n") == b"%d" % (conflicts + 1)
    assert bench.engine.calls == conflicts + 1
    assert (bench.slept_ms() > 0) == (conflicts > 0)


async def test_a_run_is_done_without_a_commit_when_there_is_nothing_to_write() -> None:
    bench = Bench(*_rivals(10))
    attempt = await _counting(bench, done_at=3)
    assert await transact.run(bench.engine, bench.env, attempt) == 3
    assert bench.engine.calls == 3
    assert await transact.run(bench.engine, bench.env, attempt) == 3
    assert bench.engine.calls == 3


async def test_a_run_gives_up_against_endless_rivals() -> None:
    bench = Bench(*_rivals(limits.TRANSACT_ATTEMPTS_MAX))
    attempt = await _counting(bench)
    with pytest.raises(errors.Conflicted):
        await transact.run(bench.engine, bench.env, attempt)
    assert bench.engine.calls == limits.TRANSACT_ATTEMPTS_MAX
    assert await batches.get(bench.store, b"n") == b"%d" % limits.TRANSACT_ATTEMPTS_MAX


@pytest.mark.parametrize("script", [[Lost(applied=True)], [Lost()], [Lost(late=True)]], ids=["applied", "not", "late"])
async def test_a_run_whose_answer_is_lost_counts_once(script: list[Step]) -> None:
    bench = Bench(*script)
    attempt = await _counting(bench)
    assert await transact.run(bench.engine, bench.env, attempt) == 1
    assert await batches.get(bench.store, b"n") == b"1"


@pytest.mark.parametrize("script", [[], [Lost(applied=True)], [Lost()]], ids=["answered", "lost", "lost before"])
async def test_one_batch_was_applied_or_met_a_conflict(script: list[Step]) -> None:
    bench = Bench(*script)
    assert await transact.applied(bench.engine, bench.env, batches.create(b"n", b"0"))
    assert not await transact.applied(bench.engine, bench.env, batches.create(b"n", b"1"))
    assert await batches.get(bench.store, b"n") == b"0"


async def test_without_batches_the_engine_is_not_called() -> None:
    bench = Bench()
    assert await bench.commit() == []
    assert bench.engine.calls == 0


async def test_a_runs_result_is_made_from_its_own_stamps() -> None:
    bench = Bench(Lost(applied=True))

    async def attempt() -> transact.NothingToWrite[bytes] | transact.Write[bytes]:
        return transact.Write(_item(b"a"), lambda done: done.stamps[1])

    stamp = await transact.run(bench.engine, bench.env, attempt)
    assert await batches.get(bench.store, b"log/" + stamp) == b"a again"


async def test_errors_of_an_attempt_and_of_the_store_come_through_a_run() -> None:
    async def lost() -> transact.NothingToWrite[int] | transact.Write[int]:
        raise errors.Fenced("the lease moved on")

    bench = Bench(Unreachable(errors.StoreFull))
    with pytest.raises(errors.Fenced):
        await transact.run(bench.engine, bench.env, lost)
    attempt = await _counting(bench)
    with pytest.raises(errors.StoreFull):
        await transact.run(bench.engine, bench.env, attempt)
