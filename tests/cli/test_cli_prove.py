"""replay --prove and verify: what holds, what differs, and which byte was flipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import worldline as wl
from tests import aio
from tests.cli import cli_kit, shop
from tests.cli.cli_kit import SHOP, Said, put, run, with_universe
from worldline.codec import structs
from worldline.inspect import prove as proofs
from worldline.inspect import verify
from worldline.keys import journal as journal_keys
from worldline.keys import snapshots as snapshot_keys
from worldline.layers import journal as journals
from worldline.model import journal
from worldline.store import kv


def prove(store: Path, *words: object) -> Said:
    return run("replay", "alice", "--prove", "--store", store, "--app", SHOP, *words)


def test_everything_is_proved(stocked: Path) -> None:
    said = prove(stocked, "--json")
    assert said.code == 0
    proof = said.json
    shown = run("show", "alice", "--store", stocked, "--json").json
    assert (proof["holds"], proof["proved"], proof["steps"], proof["height"]) == (
        True, shown["step"], shown["step"], shown["height"],
    )  # fmt: skip
    assert (proof["chain"], proof["state"]) == (shown["chain"], shown["state"])
    assert proof["unverifiable_below"] is None
    assert proof["snapshots"] >= 1
    assert f"{shown['step']} of {shown['step']} steps run again, byte-identical" in prove(stocked).out


def test_up_to_a_height(stocked: Path) -> None:
    """A height inside a step means the step end below it."""
    entries = run("journal", "alice", "--above", 0, "--limit", 1000, "--store", stocked, "--json").lines
    inside = next(entry for entry in entries if "chain" not in entry)
    below = max(entry["height"] for entry in entries if "chain" in entry and entry["height"] < inside["height"])
    proof = prove(stocked, "--at", inside["height"], "--json").json
    assert proof["height"] == below
    assert proof["state"] == next(entry["state"] for entry in entries if entry["height"] == below)
    assert prove(stocked, "--at", 0, "--json").json["steps"] == 0


def test_without_prove_it_starts_at_the_latest_snapshot(stocked: Path) -> None:
    said = run("replay", "alice", "--store", stocked, "--app", SHOP, "--json").json
    assert (said["holds"], said["steps"]) == (True, 0)
    assert said["state"] == run("show", "alice", "--store", stocked, "--json").json["state"]


def test_the_first_divergence_is_named(store: Path, tmp_path: Path) -> None:
    edited = tmp_path / "edited.py"
    edited.write_text(Path(SHOP).read_text().replace('shout(f"hello {name}")', 'shout(f"hullo {name}")'))
    said = run("replay", "alice", "--prove", "--store", store, "--app", edited, "--json")
    assert said.code == 1
    difference = said.json["difference"]
    entries = run("journal", "alice", "--above", 0, "--limit", 1000, "--store", store, "--json").lines
    assert difference["height"] == next(entry["height"] for entry in entries if entry["kind"] == "effect_requested")
    assert "hello Alice" in difference["journal"]
    assert "hullo Alice" in difference["code"]
    people = run("replay", "alice", "--prove", "--store", store, "--app", edited)
    assert f"at height {difference['height']} (step {difference['step']})" in people.out


def edit_and_go_on(store: Path, tmp_path: Path, number: int) -> Path:
    """Let an edited program take the world over and do something under it."""
    edited = tmp_path / f"edited{number}.py"
    edited.write_text(Path(SHOP).read_text().replace('"slept"', f'"slept {number}"'))
    with cli_kit.dev(edited, "--store", store, cwd=tmp_path):
        words = ["account=bob", f"cents={number}", "--wait", "--store", store]
        assert run("send", "alice", "Deposited", *words).code == 0
    return edited


def test_below_a_change_of_program(store: Path, tmp_path: Path) -> None:
    before = run("show", "alice", "--store", store, "--json").json["height"]
    first = edit_and_go_on(store, tmp_path, 1)
    second = edit_and_go_on(store, tmp_path, 2)
    alone = run("replay", "alice", "--prove", "--store", store, "--app", second, "--json")
    assert alone.code == 0, alone
    proof = alone.json
    assert proof["holds"] is True
    assert proof["unverifiable"][0]["first"] == 1
    assert proof["unverifiable_below"] > before + 2
    assert 0 < proof["proved"] < proof["steps"]
    people = run("replay", "alice", "--prove", "--store", store, "--app", second).out
    assert f"unverifiable below {proof['unverifiable_below']}: " in people
    every = ["--app", second, "--app", first, "--app", SHOP]
    whole = run("replay", "alice", "--prove", "--store", store, *every, "--json").json
    assert (whole["proved"], whole["unverifiable"]) == (whole["steps"], [])
    gap = run("replay", "alice", "--prove", "--store", store, "--app", second, "--app", SHOP, "--json").json
    assert gap["unverifiable"][0]["first"] == before + 1
    assert gap["proved"] < gap["steps"]


# --- Damage ----------------------------------------------------------------------------------------------------------


def test_one_flipped_byte_in_the_file_is_named(stocked: Path, tmp_path: Path) -> None:
    """As a bad disk would do it: every copy of a stored frame in the file has one bit changed."""
    frames = with_universe(stocked, frames_of)
    for key, raw, height in frames[:: max(1, len(frames) // 4)]:
        copy = cli_kit.copy(stocked, tmp_path / f"copy{height}")
        flip_in_file(copy / "data.mdb", raw)
        for said in (prove(copy, "--json"), run("verify", "alice", "--store", copy, "--json")):
            assert said.code == 1, (key, said)
            first = next(last for _, _, last in frames if last >= said.json["height"])
            assert first == height, "the frame that was damaged"
            assert f"the frame that ends at height {height}" in said.json["damage"]


def flip_in_file(file: Path, raw: bytes) -> None:
    data = bytearray(file.read_bytes())
    places = [place for place in range(len(data)) if data.startswith(raw, place)]
    assert places
    for place in places:
        data[place + len(raw) // 2] ^= 0x10
    file.write_bytes(bytes(data))


async def frames_of(universe: wl.Universe) -> list[tuple[bytes, bytes, int]]:
    at = await universe.world("alice")._handle.address()
    page = (await universe._connection.store.engine.read(kv.Range(*journal_keys.frames(at)))).page(0)
    return [(key, raw, journal_keys.frame_height(at, key)) for key, raw in page.items]


async def forge(universe: wl.Universe) -> None:
    """An entry changed by somebody who knows how frames are made: its checksum is right, its history is not."""
    key, raw, _ = (await frames_of(universe))[0]
    first, *rest = journal_keys.unpack_frame(raw)
    entry = structs.decode(journal.Entry, first)
    forged = structs.encode(msgspec.structs.replace(entry, payload=entry.payload.replace(b"bob", b"eve")))
    await put(universe, key, raw, journal_keys.pack_frame([forged, *rest]))


async def cut_out(universe: wl.Universe) -> None:
    key, raw, _ = (await frames_of(universe))[1]
    await put(universe, key, raw, None)


async def cut_off(universe: wl.Universe) -> None:
    key, raw, _ = (await frames_of(universe))[-1]
    await put(universe, key, raw, None)


async def flip_head(universe: wl.Universe) -> None:
    """A head of another history, well made."""
    at = await universe.world("alice")._handle.address()
    raw = (await universe._connection.store.engine.read(journals.get_head(at))).value(0)
    head = msgspec.structs.replace(journals.decode_head(raw), chain=bytes(32))
    await put(universe, journal_keys.head_key(at), raw, journals.pack_head(head))


async def move_snapshot(universe: wl.Universe) -> None:
    """A snapshot said to be of another history."""
    at = await universe.world("alice")._handle.address()
    record = (await verify.records(universe._connection, at))[-1]
    changed = snapshot_keys.SNAPSHOT.pack(msgspec.structs.replace(record, chain=bytes(32)))
    await put(universe, snapshot_keys.snapshot_key(at, record.step), snapshot_keys.SNAPSHOT.pack(record), changed)


DAMAGES: list[tuple[Any, str]] = [
    (forge, "damaged at height 1: step 1: chain of step 1"),
    (cut_out, "damaged at height 2: "),
    (cut_off, "no frame holds it"),
    (flip_head, "the head does not name the journal's last entry"),
    (move_snapshot, "another history|none of the snapshots"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES, ids=[row[0].__name__ for row in DAMAGES])
def test_other_damage_is_named_too(store: Path, damage: Any, message: str) -> None:
    with_universe(store, damage)
    for said in (prove(store, "--json"), run("verify", "alice", "--store", store, "--json")):
        assert said.code == 1, said
        assert said.json["holds"] is False
        assert any(part in said.json["damage"] for part in message.split("|")), said.json
    assert run("verify", "--all", "--store", store).code == 1
    assert run("verify", "bob", "--store", store).code == 0


def test_a_snapshot_that_says_something_else(store: Path) -> None:
    """Its bytes are sound and its history is right; only running the code tells that the state is another."""

    async def swap(universe: wl.Universe) -> None:
        at = await universe.world("alice")._handle.address()
        first, *_, last = await verify.records(universe._connection, at)
        changed = snapshot_keys.SNAPSHOT.pack(msgspec.structs.replace(last, root=first.root))
        await put(universe, snapshot_keys.snapshot_key(at, last.step), snapshot_keys.SNAPSHOT.pack(last), changed)

    with_universe(store, swap)
    said = prove(store, "--json")
    assert said.code == 1
    assert said.json["difference"]["journal"].startswith("snapshot ")


def test_verify_everything(stocked: Path) -> None:
    said = run("verify", "--all", "--store", stocked, "--json")
    assert said.code == 0
    assert [line["world"] for line in said.lines] == ["carol", "bob", "alice"]
    assert all(line["holds"] for line in said.lines)
    shown = run("show", "alice", "--store", stocked, "--json").json
    assert said.lines[2]["entries"] == shown["height"]
    assert "all as written" in run("verify", "alice", "--store", stocked).out


def test_large_payloads_are_verified_and_proved(tmp_path: Path) -> None:
    """Payloads over the limit stand in the CAS: they are part of the history."""
    store = tmp_path / "s"
    name = "x" * 40_000

    async def make() -> None:
        async with wl.open(str(store), host=shop.app) as universe:
            world = await universe.ensure("alice", shop.app)
            assert len(await world.run(shop.greet(name))) > 40_000

    aio.run(make())
    assert prove(store).code == 0
    assert run("verify", "alice", "--store", store, "--json").json["blobs"] >= 2
    for file in sorted((store / "objects").rglob("*")):
        if file.is_file():
            file.write_bytes(b"y" + file.read_bytes()[1:])
    said = run("verify", "alice", "--store", store, "--json")
    assert said.code == 1
    assert "expected sha256" in said.json["damage"]


def test_a_proof_needs_the_program(stocked: Path) -> None:
    async def attempt(universe: wl.Universe) -> None:
        universe._connection.programs.clear()
        with pytest.raises(wl.BadInput, match="not loaded"):
            await proofs.prove(universe.world("alice")._handle)

    with_universe(stocked, attempt)
    assert run("replay", "alice", "--prove", "--store", stocked).code == 2
