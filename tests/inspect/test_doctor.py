"""doctor: nothing on a healthy store; everything derived is found missing, and written anew."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

import worldline as wl
from tests import aging
from tests.cli import cli_kit, shop
from tests.cli.cli_kit import SHOP, Said, put, run, with_universe
from worldline.codec import tuples
from worldline.inspect import store_queries
from worldline.keys import cas as cas_keys
from worldline.keys import inbox as inbox_keys
from worldline.keys import leases as lease_keys
from worldline.keys import ready as ready_keys
from worldline.keys import space
from worldline.keys import work as work_keys
from worldline.keys import worlds as world_keys
from worldline.layers import cas, chunks, snapshots
from worldline.model import ids, inbox, payload
from worldline.model.work import WorkKind, WorkState
from worldline.store import kv, paging


def doctor(store: Path, *words: str) -> Said:
    return run("doctor", "--store", store, "--app", SHOP, *words)


def kinds(store: Path, *words: str) -> list[str]:
    said = doctor(store, "--json", *words)
    return sorted(finding["kind"] for finding in said.json["findings"])


async def derived(universe: wl.Universe) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for begin, end in cli_kit.derived(universe._connection.id):
        found |= {
            key: raw async for key, raw in paging.RangeItems(universe._connection.store.engine, kv.Range(begin, end))
        }
    return found


def test_a_healthy_store(stocked: Path) -> None:
    said = doctor(stocked, "--json")
    assert said.code == 0
    report = said.json
    assert (report["findings"], report["healthy"], report["worlds"]) == ([], True, 3)
    assert report["entries"] == run("show", "alice", "--store", stocked, "--json").json["height"]
    assert "nothing wrong" in doctor(stocked).out


def test_a_healthy_store_is_left_alone(store: Path) -> None:
    before = with_universe(store, derived)
    assert doctor(store, "--repair").code == 0
    assert with_universe(store, derived) == before


def test_a_store_at_work_is_healthy(store: Path, tmp_path: Path) -> None:
    with cli_kit.dev(SHOP, "--store", store, cwd=tmp_path):
        assert run("run", "bob", "nap", "--detach", "--id", "n", "--store", store).code == 0
        cli_kit.until(lambda: bool(run("timer", "list", "bob", "-q", "--store", store).out))
        assert doctor(store).code == 0


def test_without_the_program_everything_is_compared(store: Path) -> None:
    """Before, open work was compared only where the program was named."""
    assert "nothing wrong" in run("doctor", "--store", store).out
    assert with_universe(store, cli_kit.delete_derived) > 0
    said = run("doctor", "--store", store, "--json")
    assert said.code == 1
    assert sorted(each["kind"] for each in said.json["findings"]) == kinds(store) == ["missing_open"] * 4


def test_without_the_program_effects_whose_queue_is_lost_stay_as_they_are(store: Path) -> None:
    """The queue of an effect is declared in the code; timers need none."""
    with_universe(store, cli_kit.delete_derived)
    said = run("doctor", "--repair", "--store", store, "--json")
    found = [(each["what"].split()[-2], each["repaired"]) for each in said.json["findings"]]
    assert said.code == 1
    assert {name for name, repaired in found if not repaired} == {"flaky", "stuck"}
    assert {name for name, repaired in found if repaired} == {"sleep", "wait"}
    left = [each for each in said.json["findings"] if not each["repaired"]]
    assert all(each["advice"] == "to write it anew, name program 'shop' with --app FILE" for each in left)
    assert doctor(store, "--repair").code == 0
    assert kinds(store) == []


def test_every_derived_key_deleted(store: Path, tmp_path: Path) -> None:
    """Everything finishes as in the undisturbed twin."""
    for world in ("alice", "bob"):
        words = ["greet", "name=Waiting", "--detach", "--id", "w", "--store", store]
        assert run("run", world, *words).code == 0, "unread inputs: they need a ready key"
    twin = cli_kit.copy(store, tmp_path / "twin")
    before = with_universe(store, derived)
    assert with_universe(store, cli_kit.delete_derived) == len(before) == 9
    found = kinds(store)
    assert found == ["missing_open"] * 4 + ["missing_ready"] * 2
    assert doctor(store).code == 1
    repaired = doctor(store, "--repair", "--json")
    assert repaired.code == 0
    assert all(finding["repaired"] for finding in repaired.json["findings"])
    assert kinds(store) == []
    after = with_universe(store, derived)
    begin, end = work_keys.open_all(universe_of(store))
    assert [key for key in before if begin <= key < end and key not in after] == []
    ends = [finish(each, tmp_path) for each in (store, twin)]
    assert ends[0] == ends[1]
    assert ends[0]["bob"]["w"] == ("finished", "HELLO WAITING")
    assert ends[0]["alice"]["order"] == ("finished", "o1 by me")
    assert ends[0]["alice"]["nap"] == ("running", None)


def universe_of(store: Path) -> ids.UniverseId:
    async def identity(universe: wl.Universe) -> ids.UniverseId:
        return universe._connection.id

    found: ids.UniverseId = with_universe(store, identity)
    return found


def finish(store: Path, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Let a host do what can be done, then say how every run ended, and what is open."""
    with cli_kit.dev(SHOP, "--store", store, cwd=tmp_path) as host:
        assert run("send", "alice", "Approved", "by=me", "--to", "order", "--store", store, "--wait").code == 0
        for world in ("alice", "bob"):
            assert cli_kit.wait_finished(store, world, "w") == "HELLO WAITING"
        cli_kit.until(lambda: _tried(store))
        assert host.end() == 130
    assert doctor(store).code == 0
    ended: dict[str, dict[str, Any]] = {}
    for world in ("alice", "bob"):
        rows = run("runs", "list", world, "--store", store, "--json").lines
        ended[world] = {row["id"]: (row["status"], row["result"]) for row in rows}
    return ended


def _tried(store: Path) -> bool:
    """Restored effects are tried again, and fail as they did before."""
    rows = run("effect", "list", "--store", store, "--json").lines
    return sorted(row["state"] for row in rows) == ["parked", "waiting"] and all(row["error"] for row in rows)


async def address(universe: wl.Universe, world: str = "alice") -> ids.Address:
    return await universe.world(world)._handle.address()


async def effect(universe: wl.Universe, state: WorkState) -> Any:
    return next(
        each
        for each in [one async for one in store_queries.open_work(universe._connection, None)]
        if each.work.state is state
    )


async def delete_open(universe: wl.Universe) -> None:
    found = await effect(universe, WorkState.PARKED)
    await put(universe, work_keys.open_key(found.at, found.intent), found.raw, None)


async def delete_due(universe: wl.Universe) -> None:
    found = await effect(universe, WorkState.WAITING)
    work = found.work
    key = work_keys.due_key(found.at, found.intent, queue=work.queue, due_us=work.due_us)
    raw = (await universe._connection.store.engine.read(kv.Get(key))).value(0)
    await put(universe, key, raw, None)


async def flip_open(universe: wl.Universe) -> None:
    found = await effect(universe, WorkState.WAITING)
    damaged = found.raw[:-1] + bytes([found.raw[-1] ^ 1])
    await put(universe, work_keys.open_key(found.at, found.intent), found.raw, damaged)


async def settle_open(universe: wl.Universe) -> None:
    """Settled, as after an answer, but there is no answer."""
    found = await effect(universe, WorkState.PARKED)
    settled = work_keys.WORK.pack(msgspec.structs.replace(found.work, state=WorkState.SETTLED, token=bytes(16)))
    await put(universe, work_keys.open_key(found.at, found.intent), found.raw, settled)


async def plant_open(universe: wl.Universe) -> None:
    found = await effect(universe, WorkState.PARKED)
    await put(universe, work_keys.open_key(found.at, ids.IntentId(bytes(16))), None, found.raw)


async def plant_open_of_nobody(universe: wl.Universe) -> None:
    found = await effect(universe, WorkState.PARKED)
    nobody = ids.Address(universe._connection.id, ids.WorldId(bytes(16)))
    await put(universe, work_keys.open_key(nobody, ids.IntentId(bytes(16))), None, found.raw)


async def plant_due(universe: wl.Universe) -> None:
    at = await address(universe)
    key = work_keys.due_key(at, ids.IntentId(bytes(16)), queue="shop/default", due_us=5)
    await put(universe, key, None, work_keys.DUE.pack(work_keys.Due(WorkKind.EFFECT)))


async def plant_bad_due(universe: wl.Universe) -> None:
    await put(universe, work_keys.due_all(universe._connection.id)[0] + tuples.pack(("x",)), None, b"x")


async def plant_ready_of_nobody(universe: wl.Universe) -> None:
    key = ready_keys.hint_key(universe._connection.id, 1, bytes(12))
    await put(universe, key, None, ready_keys.hint_value(ids.WorldId(bytes(16))))


async def plant_bad_ready(universe: wl.Universe) -> None:
    await put(universe, ready_keys.every_hint(universe._connection.id)[0] + tuples.pack(("x",)), None, b"x")


REPAIRED = [
    (delete_open, ["missing_open"]),
    (delete_due, ["missing_due"]),
    (flip_open, ["unreadable"]),
    (settle_open, ["unanswered"]),
    (plant_open, ["garbage_open"]),
    (plant_open_of_nobody, ["garbage_open"]),
    (plant_due, ["garbage_due"]),
    (plant_bad_due, ["garbage_due"]),
    (plant_ready_of_nobody, ["garbage_ready"]),
    (plant_bad_ready, ["garbage_ready"]),
]


def stuck(store: Path) -> tuple[str, int, str]:
    rows = run("effect", "list", "--store", store, "--json").lines
    row = next(row for row in rows if row["name"] == "stuck")
    return row["state"], row["attempt"], row["error"]


@pytest.mark.parametrize("damage", [delete_open, settle_open], ids=["deleted", "settled"])
def test_a_parked_effect_is_restored_as_parked(store: Path, damage: Any) -> None:
    before = stuck(store)
    assert before == ("parked", 1, "ValueError: nobody home")
    with_universe(store, damage)
    assert doctor(store, "--repair").code == 0
    assert stuck(store) == before
    assert kinds(store) == []


def test_an_effect_that_is_tried_again_is_not_restored_as_parked(store: Path) -> None:
    """The command waits in the inbox: it has happened, though the journal does not have it yet."""
    assert run("effect", "retry", with_universe(store, parked_id), "--store", store).code == 0
    with_universe(store, delete_stuck)
    assert doctor(store, "--repair").code == 0
    assert stuck(store) == ("waiting", 0, "")


def test_an_effect_parked_by_hand_is_restored_as_parked(store: Path) -> None:
    flaky = with_universe(store, waiting_id)
    assert run("effect", "park", flaky, "--store", store).code == 0
    before = run("effect", "show", flaky, "--store", store, "--json").json
    assert before["state"] == "parked"
    assert with_universe(store, cli_kit.delete_derived)
    assert doctor(store, "--repair").code == 0
    after = run("effect", "show", flaky, "--store", store, "--json").json
    assert before["trace"]
    assert before["attempts"]
    rebuilt = {**before, "trace": "", "attempts": []}
    assert {**after, "due": before["due"]} == rebuilt, "no journal has tracebacks, or attempts"


async def parked_id(universe: wl.Universe) -> str:
    return str((await effect(universe, WorkState.PARKED)).intent.hex())


async def waiting_id(universe: wl.Universe) -> str:
    found = [
        each async for each in store_queries.open_work(universe._connection, None) if each.work.kind is WorkKind.EFFECT
    ]
    return next(each.intent.hex() for each in found if each.work.name == "flaky")


async def delete_stuck(universe: wl.Universe) -> None:
    [found] = [each async for each in store_queries.open_work(universe._connection, None) if each.work.name == "stuck"]
    await put(universe, work_keys.open_key(found.at, found.intent), found.raw, None)


@pytest.mark.parametrize(("damage", "expected"), REPAIRED, ids=[row[0].__name__ for row in REPAIRED])
def test_what_is_wrong_is_found_and_repaired(store: Path, damage: Any, expected: list[str]) -> None:
    with_universe(store, damage)
    assert doctor(store).code == 1
    assert kinds(store) == expected
    said = doctor(store, "--repair")
    assert said.code == 0, said
    assert "repaired" in said.out
    assert kinds(store) == []


async def flip_meta(universe: wl.Universe) -> None:
    await _flip(universe, world_keys.meta_key(await address(universe)))


async def flip_index(universe: wl.Universe) -> None:
    await _flip(universe, world_keys.index_key(await address(universe)))


async def flip_epoch(universe: wl.Universe) -> None:
    await _flip(universe, lease_keys.epoch_key(await address(universe)))


async def _flip(universe: wl.Universe, key: bytes) -> None:
    raw = (await universe._connection.store.engine.read(kv.Get(key))).value(0)
    assert raw is not None
    await put(universe, key, raw, raw[:-1] + bytes([raw[-1] ^ 1]))


async def delete_baseline_blob(universe: wl.Universe) -> None:
    at = await address(universe)
    raw = (await universe._connection.store.engine.read(snapshots.get_baseline(at))).value(0)
    key = cas_keys.blob_key(universe._connection.id, snapshots.decode_baseline(raw).root)
    await put(universe, key, (await universe._connection.store.engine.read(kv.Get(key))).value(0), None)


UNREPAIRED = [flip_meta, flip_index, flip_epoch, delete_baseline_blob]


@pytest.mark.parametrize("damage", UNREPAIRED, ids=lambda each: each.__name__)
def test_what_cannot_be_repaired(store: Path, damage: Any) -> None:
    with_universe(store, damage)
    said = doctor(store, "--repair", "--json")
    assert said.code == 1
    [finding] = said.json["findings"]
    assert (finding["kind"], finding["repaired"]) == ("damaged", False)
    assert finding["world"] == ("alice" if damage is not flip_index else with_universe(store, address).world.hex())
    assert finding["advice"]


def test_a_receipt_in_the_inbox_counts_as_an_answer(store: Path) -> None:
    """All open keys are gone, but one piece of work was answered already: it is not asked for again."""

    async def answer_and_delete(universe: wl.Universe) -> None:
        found = await effect(universe, WorkState.PARKED)
        receipt = inbox.EffectReceipt(found.intent, inbox.ReceiptStatus.OK, payload.EMPTY, 1)
        batch = kv.Batch()
        batch.expect(work_keys.open_key(found.at, found.intent), found.raw)
        batch.delete(work_keys.open_key(found.at, found.intent))
        batch.append(inbox_keys.item_prefix(found.at), inbox_keys.ITEM.pack(receipt))
        await universe._connection.store.engine.commit(batch)

    with_universe(store, answer_and_delete)
    assert kinds(store) == ["missing_ready"]


def test_pointers_of_cancelled_work_are_no_finding(store: Path, tmp_path: Path) -> None:
    """An effect that has moved its pointer and is then cancelled leaves it behind, as it may."""
    with cli_kit.dev(SHOP, "--store", store, cwd=tmp_path) as host:
        assert run("runs", "cancel", "alice", "flaky", "--yes", "--store", store).code == 0
        host.wait_for("cancelled ")
    said = doctor(store, "--json")
    assert (said.code, said.json["findings"], said.json["left_over"]) == (0, [], 1)
    assert doctor(store, "--repair", "--json").json["cleaned"] == 1
    assert doctor(store, "--json").json["left_over"] == 0


def test_a_world_that_somebody_holds_is_not_repaired(store: Path, tmp_path: Path) -> None:
    with cli_kit.dev(SHOP, "--store", store, cwd=tmp_path):
        assert run("send", "alice", "Approved", "by=me", "--to", "order", "--store", store, "--wait").code == 0
        with_universe(store, delete_open)
        said = doctor(store, "--repair", "--json")
    assert said.code == 1
    [finding] = said.json["findings"]
    assert (finding["kind"], finding["repaired"]) == ("held", False)
    assert "stop its host" in finding["advice"]


def test_code_that_did_not_write_the_journal(store: Path, tmp_path: Path) -> None:
    """What is stored is looked at without the code; whether the code would do it again is what a proof says."""
    edited = tmp_path / "edited.py"
    edited.write_text(Path(SHOP).read_text().replace("self.cents += event.cents", "self.cents += 1"))

    async def go_on(universe: wl.Universe) -> None:
        await universe.world("alice").send(shop.Deposited("bob", 7))

    with cli_kit.dev(SHOP, "--store", store, cwd=tmp_path) as host:
        with_universe(store, go_on)
        host.wait_for('alice Deposited {"cents":7,"account":"bob"}')
        host.end(signal.SIGKILL)
    said = run("doctor", "--store", store, "--app", edited, "--json")
    assert (said.code, said.json["findings"]) == (0, [])


def test_all_universes_are_looked_at(store: Path) -> None:
    assert run("create", "x", "--universe", "lab", "--store", store, "--app", SHOP).code == 0
    said = doctor(store, "--json")
    assert [(line["universe"], line["worlds"]) for line in said.lines] == [("default", 3), ("lab", 1)]
    assert [line["universe"] for line in doctor(store, "--json", "--universe", "lab").lines] == ["lab"]


def test_temporary_objects_of_dead_uploads_are_told_and_swept(store: Path) -> None:
    """Old ones of this universe: not what an upload may still be writing, and not what belongs to another universe."""
    universe = with_universe(store, universe_id).hex()
    folder = store / "objects" / universe / "cas" / "ab"
    folder.mkdir(parents=True)
    (store / "objects" / "another").mkdir()
    old, young, other = folder / ".tmp-1-0", folder / ".tmp-1-1", store / "objects" / "another" / ".tmp-1-2"
    for path in (old, young, other):
        path.write_bytes(b"torn")
    for path in (old, other):
        os.utime(path, (1_000, 1_000))
    said = doctor(store)
    assert said.code == 0
    assert "1 upload whose process died before it was whole, harmless: `worldline doctor --repair`" in said.out
    assert old.exists()
    report = doctor(store, "--json", "--repair").json
    assert (report["uploads"], report["uploads_cleaned"], report["healthy"]) == (1, 1, True)
    assert (old.exists(), young.exists(), other.exists()) == (False, True, True)
    assert "upload" not in doctor(store).out


def test_chunks_of_dead_uploads_are_told_and_swept(store: Path) -> None:
    """Old ones: not what an upload may still be writing, and no blob that is whole."""
    of = with_universe(store, half_written)
    said = doctor(store)
    assert (said.code, with_universe(store, chunk_count)) == (0, 97)
    assert "1 upload whose process died before it was whole, harmless: `worldline doctor --repair`" in said.out
    report = doctor(store, "--json", "--repair").json
    assert (report["uploads"], report["uploads_cleaned"], report["healthy"]) == (1, 1, True)
    assert with_universe(store, chunk_count) == 65, "the young upload, and the blob"
    assert "upload" not in doctor(store).out

    async def read(universe: wl.Universe) -> int:
        return len(await universe._connection.blobs.get(of))

    assert with_universe(store, read) == chunks.PART + 1


async def half_written(universe: wl.Universe) -> bytes:
    """A blob, and two uploads of which one part is there: an old one and one that began just now."""
    connection = universe._connection
    engine = connection.store.engine
    now = await aging.older(engine, connection.id, 10_000_000_000)
    for number, age_us in enumerate((now.age_us - 3_700_000_000, now.age_us - 3_500_000_000)):
        data = bytes([number]) * (2 * chunks.PART)
        batch = kv.Batch()
        chunks.begin(batch, connection.id, cas.address(data), bytes(16), data, time_us=0, age_us=age_us)
        await engine.commit(batch)
    return await connection.blobs.put(b"x" * (chunks.PART + 1))


async def chunk_count(universe: wl.Universe) -> int:
    prefix = space.universe(universe._connection.id) + space.part(space.InUniverse.CHUNK)
    every = kv.Range(prefix, prefix + b"\xff")
    return len([key async for key, _ in paging.RangeItems(universe._connection.store.engine, every)])


async def universe_id(universe: wl.Universe) -> bytes:
    return universe._connection.id
