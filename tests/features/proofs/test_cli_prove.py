"""replay --prove and verify: what holds, what differs, and which byte was flipped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import worldline as wl
from tests import aio
from tests.cli import cli_kit, shop
from tests.cli.cli_kit import SHOP, Said, put, run, with_universe
from worldline.codec import structs
from worldline.features.proofs import calls as proofs
from worldline.inspect import verify
from worldline.keys import chunks as chunk_keys
from worldline.keys import journal as journal_keys
from worldline.keys import snapshots as snapshot_keys
from worldline.keys import space
from worldline.layers import journal as journals
from worldline.layers.history import history_line
from worldline.model import blobs, journal
from worldline.model.settings import Settings, WorkerSettings
from worldline.store import kv
from worldline.terminal import command_session


def prove(store: Path, *words: object) -> Said:
    return run("replay", "alice", "--prove", "--store", store, "--app", SHOP, *words)


def test_everything_is_proved(stocked: Path) -> None:
    said = prove(stocked, "--json")
    assert said.code == 0
    proof = said.json
    shown = run("show", "alice", "--store", stocked, "--json").json
    assert (proof["holds"], proof["proved"], proof["steps"], proof["height"]) == (
        True,
        shown["step"],
        shown["step"],
        shown["height"],
    )
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
    beyond = prove(stocked, "--at", 999)
    assert (beyond.code, beyond.out) == (2, "")
    assert beyond.err.startswith("error: no height 999: the journal's head is at height")


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
    assert difference["field"] == "arguments[0].text: 'hello Alice' -> 'hullo Alice'"
    people = run("replay", "alice", "--prove", "--store", store, "--app", edited)
    assert f"at height {difference['height']} (step {difference['step']})" in people.out


def test_a_state_that_differs_is_named_by_row_and_field(store: Path, tmp_path: Path) -> None:
    """Before, two digests of the state were all that was said."""
    edited = tmp_path / "edited.py"
    edited.write_text(Path(SHOP).read_text().replace("self.cents += event.cents", "self.cents += event.cents + 1"))
    said = run("replay", "alice", "--prove", "--store", store, "--app", edited, "--json")
    assert said.code == 1
    difference = said.json["difference"]
    entries = run("journal", "alice", "--above", 0, "--limit", 1000, "--store", store, "--json").lines
    first = next(entry for entry in entries if entry.get("event") == "Deposited")
    assert (difference["height"], difference["step"]) == (first["height"], first["step"])
    cents = first["data"]["cents"]
    assert difference["field"] == f"cell Account['bob']: value.cents: {cents} -> {cents + 1}"
    people = run("replay", "alice", "--prove", "--store", store, "--app", edited).out
    assert f"\n  field:   {difference['field']}\n" in people


def test_from_any_baseline(tmp_path: Path) -> None:
    """What is below is not run: code that differs there is not found, and above it is."""
    folder = tmp_path / "s"

    async def make() -> list[int]:
        heights = []
        kept = Settings(worker=WorkerSettings(snapshots_kept=0))  # all of them
        async with wl.open(str(folder), host=shop.app, settings=kept) as universe:
            world = await universe.ensure("alice", shop.app)
            for name in ("Ann", "Bob", "Cid"):
                await world.run(shop.greet(name))
                await (await world.send(shop.Deposited("bob", 1))).applied(20)
                await world.snapshot()
                heights.append((await world.head()).height)
            await (await world.send(shop.Deposited("bob", 1))).applied(20)
        return heights

    first, second, third = aio.run(make())
    head = run("show", "alice", "--store", folder, "--json").json
    steps = {}
    for since in (0, first, first + 1, second, third):
        said = run("replay", "alice", "--prove", "--from", since, "--store", folder, "--app", SHOP, "--json").json
        assert (said["holds"], said["height"], said["chain"]) == (True, head["height"], head["chain"])
        assert said["proved"] == said["steps"]
        steps[since] = said["steps"]
    assert steps[0] == head["step"] > steps[first] == steps[first + 1] > steps[second] > steps[third] == 1
    edited = tmp_path / "edited.py"
    edited.write_text(Path(SHOP).read_text().replace('f"hello {name}"', 'f"hello {name}" if name != "Ann" else "-"'))
    words = ["--store", folder, "--app", edited, "--json"]
    assert run("replay", "alice", "--prove", *words).code == 1
    assert run("replay", "alice", "--prove", "--from", first, *words).code == 0
    assert run("replay", "alice", "--from", first, *words).json["steps"] == steps[first]
    with_universe(folder, forget_first_snapshot)
    assert run("replay", "alice", "--prove", "--from", 0, *words).error["message"] == (
        f"no snapshot at or below height 0 is kept; the earliest is at {first}"
    )


async def forget_first_snapshot(universe: wl.Universe) -> None:
    at = await universe.world("alice")._handle.address()
    page = (await universe._connection.store.engine.read(kv.Range(*snapshot_keys.snapshots(at)))).page(0)
    await put(universe, *page.items[0], None)


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


def test_behind_code_that_is_not_loaded_no_snapshot_is_needed(store: Path, tmp_path: Path) -> None:
    """Before, the proof went on only where a snapshot had been taken at the change of program."""
    edit_and_go_on(store, tmp_path, 1)
    second = edit_and_go_on(store, tmp_path, 2)
    entries = run("journal", "alice", "--above", 0, "--limit", 1000, "--store", store, "--json").lines
    changed = [entry["height"] for entry in entries if entry["kind"] == "program_changed"]
    with_universe(store, forget_snapshots)
    proof = run("replay", "alice", "--prove", "--store", store, "--app", second, "--json").json
    assert (proof["holds"], proof["height"]) == (True, entries[-1]["height"])
    step = next(entry["step"] for entry in entries if entry["height"] == changed[-1])
    assert proof["unverifiable_below"] == min(entry["height"] for entry in entries if entry["step"] == step)
    assert proof["proved"] == entries[-1]["step"] - step + 1, "the change itself is proved as well"


async def forget_snapshots(universe: wl.Universe) -> None:
    """All but the first and the last."""
    at = await universe.world("alice")._handle.address()
    page = (await universe._connection.store.engine.read(kv.Range(*snapshot_keys.snapshots(at)))).page(0)
    for key, raw in page.items[1:-1]:
        await put(universe, key, raw, None)


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
    frame = journal_keys.unpack_frame(raw)
    first, *rest = frame.entries
    entry = structs.decode(journal.JournalEntry, first)
    forged = structs.encode(msgspec.structs.replace(entry, payload=entry.payload.replace(b"bob", b"eve")))
    await put(universe, key, raw, journal_keys.pack_frame([forged, *rest], frame.changes))


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
    record = (await verify.records(universe._connection, history_line.HistoryLine(at)))[-1]
    changed = snapshot_keys.SNAPSHOT.pack(msgspec.structs.replace(record, chain=bytes(32)))
    await put(universe, snapshot_keys.snapshot_key(at, record.step), snapshot_keys.SNAPSHOT.pack(record), changed)


DAMAGES: list[tuple[Any, str]] = [
    (forge, "damaged at height 1: chain of step 1, which ends at height"),
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
        first, *_, last = await verify.records(universe._connection, history_line.HistoryLine(at))
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


@pytest.mark.parametrize("named", [False, True])
def test_large_payloads_are_verified_and_proved(tmp_path: Path, named: bool) -> None:
    """Payloads over the limit stand in the CAS, in the store or as objects: they are part of the history."""
    store, objects = tmp_path / "s", tmp_path / "objects"
    name = "x" * 40_000
    words = ["--objects", objects] if named else []

    async def make() -> None:
        async with wl.open(str(store), host=shop.app, objects=str(objects) if named else None) as universe:
            world = await universe.ensure("alice", shop.app)
            assert len(await world.run(shop.greet(name))) > 40_000

    aio.run(make())
    assert prove(store, *words).code == 0
    assert run("verify", "alice", "--store", store, "--json", *words).json["blobs"] >= 2
    files = [file for file in sorted(objects.rglob("*")) if file.is_file()]
    assert bool(files) == named
    for file in files:
        file.write_bytes(b"y" + file.read_bytes()[1:])
    if not named:
        with_universe(store, damage_chunks)
    said = run("verify", "alice", "--store", store, "--json", *words)
    assert said.code == 1
    assert "expected sha256" in said.json["damage"]


async def damage_chunks(universe: wl.Universe) -> None:
    prefix = space.universe(universe._connection.id) + space.part(space.InUniverse.CHUNK)
    for key, raw in (await universe._connection.store.engine.read(kv.Range(prefix, prefix + b"\xff"))).page(0).items:
        data = chunk_keys.CHUNK.unpack(raw).data
        await put(universe, key, raw, chunk_keys.CHUNK.pack(blobs.BlobChunk(bytes([data[0] ^ 1]) + data[1:])))


def test_a_proof_needs_the_program(stocked: Path) -> None:
    async def attempt(universe: wl.Universe) -> None:
        universe._connection.programs.clear()
        with pytest.raises(wl.BadInput, match="not loaded"):
            await proofs.prove(universe.world("alice")._handle)

    with_universe(stocked, attempt)
    assert run("replay", "alice", "--prove", "--store", stocked).code == 2


# --- Proofs of entries -----------------------------------------------------------------------------------------------


def test_a_proof_of_an_entry_is_a_file(stocked: Path, tmp_path: Path) -> None:
    shown = run("show", "alice", "--store", stocked, "--json").json
    file = tmp_path / "proof.json"
    said = run("prove", "alice", 2, "--out", file, "--store", stocked)
    assert said.code == 0, said
    assert said.out.splitlines()[1] == f"chain {shown['chain']}"
    assert said.out.startswith(f"height 2 of alice: its step and the digests of {shown['step'] - 2} later ones written")
    assert run("prove", "alice", 2, "--store", stocked).out == file.read_text(), "without --out it is the answer"
    as_json = run("prove", "alice", 2, "--out", file, "--store", stocked, "--json").json
    assert as_json == {"world": "alice", "height": 2, "step": 2, "chain": shown["chain"], "file": str(file)}
    script = Path(__file__).parents[3] / "tools" / "check_proof.py"
    command = [sys.executable, "-I", "-S", str(script), str(file), shown["chain"]]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (checked.returncode, checked.stdout[:21]) == (0, 'holds: {"height": 2, ')
    early = run("prove", "alice", 1, "--at", 1, "--out", file, "--store", stocked, "--json").json
    first = run("journal", "alice", "--above", 0, "--limit", 1, "--store", stocked, "--json").json
    assert early["chain"] == first["chain"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["alice", 99_999], 2, "world 'alice' has no entry 99999: its heights are 1 to "),
        (["alice", 0], 2, "Invalid value for '[HEIGHT]'"),
        (["alice"], 2, "name a HEIGHT, to prove an entry, or --state KEY, to prove a row of the state"),
        (["alice", 1, "--state", "Account"], 2, "name a HEIGHT, to prove an entry, or --state KEY"),
        (["alice", "--state", "Account", "--at", 1], 2, "a row is proved as it is now: --at goes with a HEIGHT"),
        (["alice", "--state", "a b"], 2, "no row is called 'a b': name a cell (\"Reducer['key']\""),
        (["alcie", 1], 3, "no world 'alcie' in universe 'default'; did you mean 'alice'?"),
        (["alice", 1, "--out", "/no/such/folder/file"], 2, "/no/such/folder/file cannot be written: No such file"),
    ],
)
def test_one_line_for_what_cannot_be_proved(stocked: Path, words: list[Any], code: int, message: str) -> None:
    said = run("prove", *words, "--store", stocked)
    assert (said.code, said.out) == (code, "")
    assert said.err.startswith(f"error: {message}")
    assert len(said.err.splitlines()) == 1


# --- Proofs of rows --------------------------------------------------------------------------------------------------


def test_a_proof_of_a_row_is_a_file(store: Path, tmp_path: Path) -> None:
    """The world has to run, until it has said its root."""
    script = Path(__file__).parents[3] / "tools" / "check_state_proof.py"
    file = tmp_path / "proof.json"
    words = ["prove", "alice", "--state", "Account['bob']", "--out", file, "--store", store]
    with cli_kit.dev(SHOP, "--store", store, cwd=tmp_path):
        said = run(*words)
    assert said.code == 0, said
    shown = run("show", "alice", "--store", store, "--json").json
    first, second = said.out.splitlines()
    assert first.startswith("the state of alice at the end of step ")
    assert first.endswith(f" has cell Account['bob']: proof written to {file}")
    assert second == f"chain {shown['chain']}"
    as_json = run(*words, "--json").json
    assert (as_json["row"], as_json["present"], as_json["chain"]) == ("cell Account['bob']", True, shown["chain"])
    assert (as_json["step"], as_json["height"]) == (shown["step"] - 1, shown["height"] - 1)
    assert run(*words[:4], "--store", store).out == file.read_text(), "without --out it is the answer"
    command = [sys.executable, "-I", "-S", str(script), str(file), shown["chain"]]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (checked.returncode, checked.stdout[:7]) == (0, "holds: "), checked
    assert msgspec.json.decode(checked.stdout[7:])["plain"] == {"cents": 5}
    absent = run("prove", "alice", "--state", "Account[nobody]", "--out", file, "--store", store)
    assert absent.code == 0
    assert " does not have cell Account['nobody']: proof written to " in absent.out
    line = run("journal", "alice", "--above", as_json["height"] - 1, "--limit", 1, "--store", store).out
    assert "witnessed" in line
    assert f"of_step={as_json['step']} root={as_json['root']}" in line
    assert prove(store).code == 0


@pytest.mark.parametrize(
    ("change", "words", "code", "message"),
    [
        ([], [], 6, "no process hosts world 'alice' (program 'shop'): what was sent is durable"),
        ([], ["--timeout", 0.1], 6, "no process hosts world 'alice' (program 'shop'): what was sent is durable"),
        (["pause"], [], 4, "world 'alice' is paused, and has to make a step to say what its state is"),
        (["archive"], [], 4, "world 'alice' is archived, and has to make a step to say what its state is"),
    ],
)
def test_a_world_that_does_not_run_says_no_root(
    store: Path, monkeypatch: pytest.MonkeyPatch, change: list[str], words: list[Any], code: int, message: str
) -> None:
    monkeypatch.setattr(command_session, "NOT_HOSTED_AFTER_SECONDS", 0.3)
    for each in change:
        assert run(each, "alice", "--store", store).code == 0
    said = run("prove", "alice", "--state", "Account['bob']", *words, "--store", store)
    assert (said.code, said.out) == (code, ""), said
    assert said.err.startswith(f"error: {message}")
    assert len(said.err.splitlines()) == 1
