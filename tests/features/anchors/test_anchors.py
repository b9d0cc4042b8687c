"""Anchors: a history that goes on holds, whatever else happens to it; what was done to one that does not has a word of
its own. Signatures, and proofs between two anchors, which a script checks that needs nothing of this package.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import worldline as wl
from tests.features.compaction import compacting
from tests.features.compaction import test_journal_kept as journal_kept
from tests.features.copies.backing_up import bare
from tests.features.copies.test_world_files import stores
from tests.kits import kit as kits
from tests.kits.kit import Kit
from tests.kits.sums import AddUp, program
from worldline.base import env_os, errors
from worldline.codec import ed25519
from worldline.features.anchors import anchor_check, anchor_signature, extension_proof
from worldline.features.anchors import records as anchors
from worldline.features.copies import backup_calls
from worldline.keys import journal as journal_keys
from worldline.layers.history import history_line
from worldline.model import snapshots
from worldline.runtime import world_reader
from worldline.store import kv

SCRIPT = Path(__file__).parents[3] / "tools" / "check_anchor.py"
app = program()
Verdict = wl.ops.AnchorVerdict


async def gone_on(world: wl.World, *numbers: int) -> None:
    for number in numbers:
        await world.ask(AddUp(number), timeout=20)


async def lived(kit: Kit, *numbers: int) -> wl.World:
    world = await (await kit.process(app)).universe.create("w", app)
    await gone_on(world, *numbers)
    return world


def spoken(*words: object) -> tuple[int, str]:
    command = [sys.executable, "-I", "-S", str(SCRIPT), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


async def verdict(world: wl.World, anchor: wl.ops.Anchor) -> wl.ops.AnchorVerdict:
    return (await world.check_anchor(anchor)).verdict


# --- What is found ---------------------------------------------------------------------------------------------------


async def test_a_history_that_goes_on_holds(kit: Kit) -> None:
    """At its head, later, from the very beginning, compacted, and that of a fork below and above its beginning."""
    world = await (await kit.process(app)).universe.create("w", app)
    found = [await world.anchor()]
    for number in range(4):
        await gone_on(world, number)
        found.append(await world.anchor())
        await world.snapshot()
    assert [each.height for each in found] == sorted(each.height for each in found)
    for each in found:
        assert await verdict(world, each) is Verdict.HOLDS
        assert (await world.check_anchor(f"{each}\n")).holds, "also as the line that was kept"
    fork = await world.fork("f", at=found[2].height)
    await gone_on(fork, 5)
    own = await fork.anchor()
    await gone_on(fork, 6)
    assert await verdict(fork, own) is Verdict.HOLDS
    begins = msgspec.structs.replace(own, height=found[1].height, step=found[1].step, chain=found[1].chain)
    assert await verdict(fork, begins) is Verdict.HOLDS, "what it has of its parent"


async def test_an_older_copy_is_rolled_back_and_one_that_went_on_is_rewritten(tmp_path: Path) -> None:
    folder = str(tmp_path / "backups")
    async with stores(tmp_path, "memory", "memory") as (here, there):
        world = await lived(here, 1, 2)
        before = await world.anchor()
        await backup_calls.backup(await bare(here), folder)
        await gone_on(world, 3, 4)
        after = await world.anchor()
        await backup_calls.restore(folder, await bare(there), live=True)
        copy = (await there.process(app)).universe.world("w")
        assert await verdict(copy, before) is Verdict.HOLDS
        found = await copy.check_anchor(after)
        assert (found.verdict, found.height) == (Verdict.ROLLED_BACK, before.height)
        assert "older copy" in found.why
        await gone_on(copy, 7, 8, 9)
        found = await copy.check_anchor(after)
        assert found.verdict is Verdict.REWRITTEN
        assert f"at height {after.height} it is another history" in found.why
        assert await verdict(copy, before) is Verdict.HOLDS
        assert await verdict(world, after) is Verdict.HOLDS


async def _frames(process: kits.Process, world: wl.World, above: int) -> list[tuple[bytes, bytes]]:
    at = await world._handle.address()
    return (await process.engine.read(kv.Range(*journal_keys.frames(at, above=above)))).page(0).items


@pytest.mark.parametrize("head_too", [False, True])
async def test_a_journal_whose_end_is_gone_is_truncated(head_too: bool, tmp_path: Path) -> None:
    """The entries at its end, and the head says that they were there; or the head is an earlier one, and a saved state
    says so.
    """
    async with stores(tmp_path, "memory") as (kit,):
        process = await kit.process(app)
        world = await process.universe.create("w", app)
        await gone_on(world, 1, 2)
        at = await world._handle.address()
        early, head_raw = await world.anchor(), (await process.engine.read(kv.Get(journal_keys.head_key(at)))).value(0)
        await gone_on(world, 3, 4)
        await world.snapshot()
        await world.pause()
        late = await world.anchor()
        assert head_raw is not None
        batch = kv.Batch()
        for key, raw in await _frames(process, world, early.height):
            batch.expect(key, raw)
            batch.delete(key)
        if head_too:
            batch.put(journal_keys.head_key(at), head_raw)
        await process.engine.commit(batch)
        found = await world.check_anchor(late)
        assert found.verdict is Verdict.TRUNCATED
        assert ("is still there" if head_too else "its head says") in found.why
        if head_too:
            assert await verdict(world, early) is Verdict.HOLDS


async def test_a_head_that_was_set_back_alone_is_truncated(tmp_path: Path) -> None:
    async with stores(tmp_path, "memory") as (kit,):
        process = await kit.process(app)
        world = await process.universe.create("w", app)
        at = await world._handle.address()
        await gone_on(world, 1)
        head_raw = (await process.engine.read(kv.Get(journal_keys.head_key(at)))).value(0)
        await gone_on(world, 2)
        await process.kill()  # before it saves a state
        process = await kit.process()
        world = process.universe.world("w")
        anchor = await world.anchor()
        assert head_raw is not None
        batch = kv.Batch()
        now = (await process.engine.read(kv.Get(journal_keys.head_key(at)))).value(0)
        assert now is not None
        batch.expect(journal_keys.head_key(at), now)
        batch.put(journal_keys.head_key(at), head_raw)
        await process.engine.commit(batch)
        found = await world.check_anchor(anchor)
        assert (found.verdict, "entries above that are still there" in found.why) == (Verdict.TRUNCATED, True)


async def test_an_entry_changed_below_the_anchor_is_damage_or_another_history(tmp_path: Path) -> None:
    """A chain that does not fit what is above the anchor is no `holds`, whatever the entry at its height says."""
    async with stores(tmp_path, "memory") as (kit,):
        process = await kit.process(app)
        world = await process.universe.create("w", app)
        await gone_on(world, 1)
        anchor = await world.anchor()
        await gone_on(world, 2)
        wrong = msgspec.structs.replace(anchor, chain="ab" * 32)
        assert await verdict(world, wrong) is Verdict.REWRITTEN
        assert await verdict(world, msgspec.structs.replace(anchor, step=anchor.step - 1)) is Verdict.REWRITTEN
        inside = msgspec.structs.replace(anchor, height=anchor.height + 1, step=anchor.step)
        found = await world.check_anchor(inside)
        assert found.verdict is Verdict.REWRITTEN
        [(key, raw), *_] = await _frames(process, world, anchor.height)
        batch = kv.Batch()
        batch.expect(key, raw)
        batch.put(key, raw[:-1] + bytes([raw[-1] ^ 1]))
        await process.engine.commit(batch)
        with pytest.raises(errors.Corrupt):
            await world.check_anchor(anchor)


async def test_what_is_not_kept_any_more_is_said_and_what_is_kept_holds(memory_kit: Kit) -> None:
    program_ = compacting.program()
    process = await journal_kept.hosting(memory_kit, program_)
    first = await (await process.universe.ensure("w", program_)).anchor()
    world, gone = await journal_kept.aged(memory_kit, process, program_)
    at = await world._handle.address()
    kept = (await compacting.Stored.of(process.universe, world)).index
    [record, *_] = await kept()
    end = record.end  # type: ignore[union-attr]
    edge = wl.ops.Anchor(at.universe.hex(), at.world.hex(), "w", end.step, end.height, end.chain.hex(), 0)
    assert await verdict(world, edge) is Verdict.HOLDS, "the chain is known from where entries are kept on"
    below = msgspec.structs.replace(edge, height=gone - 1, step=end.step - 1)
    found = await world.check_anchor(below)
    assert (found.verdict, f"an anchor of height {gone} or above" in found.why) == (Verdict.NOT_KEPT, True)
    assert first.height == 0
    with pytest.raises(errors.BadInput, match="not_kept"):
        await extension_proof.prove(world._handle, below)
    assert (await extension_proof.prove(world._handle, edge)).chain == (await world.head()).chain


async def test_the_anchor_of_another_world_is_refused(memory_kit: Kit) -> None:
    universe = (await memory_kit.process(app)).universe
    one, other = await universe.create("one", app), await universe.create("other", app)
    anchor = await one.anchor()
    with pytest.raises(errors.BadInput, match="is of world 'one'"):
        await other.check_anchor(anchor)
    renamed = msgspec.structs.replace(anchor, name="other")
    with pytest.raises(errors.BadInput, match=anchor.world):
        await other.check_anchor(renamed)


async def test_a_world_that_runs_is_checked_while_it_does(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its head, its states and its entries are read one after the other: what it does meanwhile is no finding."""
    world = await lived(memory_kit, 1)
    ahead = msgspec.structs.replace(await world.anchor(), height=10**6, step=10**5)
    records, meanwhile = world_reader.records, [2]

    async def later(engine: kv.Engine, line: history_line.HistoryLine) -> list[snapshots.StateSnapshot]:
        if meanwhile:
            await gone_on(world, meanwhile.pop())
            await world.snapshot()
        return await records(engine, line)

    monkeypatch.setattr(world_reader, "records", later)
    assert await verdict(world, ahead) is Verdict.ROLLED_BACK
    assert meanwhile == []


async def test_a_head_of_another_chain_is_damage(memory_kit: Kit) -> None:
    """All entries are there, and lead elsewhere than the head says."""
    process = await memory_kit.process(app)
    world = await process.universe.create("w", app)
    await gone_on(world, 1)
    anchor = await world.anchor()
    await gone_on(world, 2)
    await world.pause()
    key = journal_keys.head_key(await world._handle.address())
    raw = (await process.engine.read(kv.Get(key))).value(0)
    assert raw is not None
    batch = kv.Batch()
    batch.expect(key, raw)
    wrong = msgspec.structs.replace(journal_keys.HEAD.unpack(raw), chain=bytes(32))
    batch.put(key, journal_keys.HEAD.pack(wrong))
    await process.engine.commit(batch)
    with pytest.raises(errors.DigestMismatch, match="the journal's head"):
        await world.check_anchor(anchor)


# --- Lines and signatures --------------------------------------------------------------------------------------------

PRIVATE = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")  # RFC 8032, 7.1, test 1
PUBLIC = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
GOLDEN = wl.ops.Anchor("11" * 16, "22" * 16, "alice", 3, 9, "33" * 32, 1_700_000_000_000_000)
LINE = (
    '{"chain":"' + "33" * 32 + '","format":"worldline-anchor-1","height":9,"name":"alice","step":3,'
    '"time_us":1700000000000000,"universe":"' + "11" * 16 + '","world":"' + "22" * 16 + '"}'
)
SIGNED = anchor_signature.SigningKey(PRIVATE).sign(GOLDEN)


def test_the_line_is_what_it_was() -> None:
    assert str(GOLDEN) == LINE
    assert anchors.read(LINE.encode()) == GOLDEN
    assert anchors.read(str(SIGNED).encode()) == SIGNED
    assert (SIGNED.key, len(SIGNED.signature)) == (PUBLIC, 128)
    assert ed25519.sign(PRIVATE, b"").hex().startswith("e5564300c360ac729086e2cc806e828a")  # of the RFC


@pytest.mark.parametrize(
    "changed",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"x" * 5_000,
        b"[" * 3_000,
        LINE.replace("alice", "al\\u001bice").encode(),
        LINE.replace('"step":3', '"step":10').encode(),
        LINE.replace('"step":3', '"step":-1').encode(),
        LINE.replace("-1", "-2").encode(),
        LINE.replace(",", ", ").encode(),
        LINE.replace("33", "3A", 1).encode(),
        LINE.replace('"step":3', '"step":3,"more":1').encode(),
        LINE.replace('"step":3', '"step":3,"key":""').encode(),
        LINE.replace('"step":3', '"step":"3"').encode(),
        LINE.replace('"height":9', f'"height":{2**64}').encode(),
        str(SIGNED).replace(SIGNED.signature, "").encode(),
        b"\xff\xfe",
    ],
)
def test_other_lines_are_no_anchors(changed: bytes) -> None:
    with pytest.raises(errors.BadAnchor, match="no anchor"):
        anchors.read(changed)


def test_a_signature_is_of_one_anchor_by_one_key() -> None:
    other = anchor_signature.new_key(env_os.OsEnv())
    anchor_signature.check_signature(SIGNED)
    anchor_signature.check_signature(SIGNED, PUBLIC)
    anchor_signature.check_signature(GOLDEN)
    for forged in (
        *(
            msgspec.structs.replace(SIGNED, **change)
            for change in (
                {"height": 10},
                {"chain": "44" * 32},
                {"step": 2},
                {"time_us": 0},
                {"name": "bob"},
                {"world": "55" * 16},
                {"universe": "55" * 16},
                {"key": other.public},
                {"signature": "00" * 64},
            )
        ),
    ):
        with pytest.raises(errors.BadAnchor, match="forged or damaged"):
            anchor_signature.check_signature(forged)
        assert not _script_takes(forged, forged.key)
    with pytest.raises(errors.BadAnchor, match="another key"):
        anchor_signature.check_signature(other.sign(GOLDEN), PUBLIC)
    with pytest.raises(errors.BadAnchor, match="is not signed"):
        anchor_signature.check_signature(GOLDEN, PUBLIC)
    with pytest.raises(errors.BadInput, match="64 hexadecimal"):
        anchor_signature.check_signature(SIGNED, "12")


def _script_takes(anchor: wl.ops.Anchor, key: str) -> bool:
    """What the script says, without a process for each."""
    namespace: dict[str, Any] = {"__name__": "script"}
    exec(compile(SCRIPT.read_text(), str(SCRIPT), "exec"), namespace)
    data = anchors.signed_bytes(anchor, anchor.key)
    try:
        return bool(namespace["is_signed"](bytes.fromhex(key), data, bytes.fromhex(anchor.signature)))
    except SystemExit:
        return False


def test_the_script_checks_signatures_as_the_library_does(tmp_path: Path) -> None:
    for _ in range(8):
        key = anchor_signature.new_key(env_os.OsEnv())
        assert _script_takes(key.sign(GOLDEN), key.public)
        assert not _script_takes(key.sign(GOLDEN), PUBLIC)
    file = tmp_path / "anchor"
    file.write_text(f"{SIGNED}\n")
    code, said = spoken(file, PUBLIC)
    assert (code, "holds: signed" in said) == (0, True), said
    file.write_text(f"{msgspec.structs.replace(SIGNED, height=8, step=3)}\n")
    assert "forged" in spoken(file, PUBLIC)[1]
    assert spoken(file, "00" * 32)[0] == 1


def test_a_signing_key_is_in_a_file_for_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "anchor.key"
    made = anchor_signature.SigningKey(PRIVATE)
    made.write(file)
    assert anchor_signature.SigningKey.from_file(file).sign(GOLDEN) == SIGNED
    assert PRIVATE.hex() not in repr(made)
    with pytest.raises(errors.Exists):
        made.write(file)
    file.chmod(0o644)
    with pytest.raises(errors.BadInput, match="chmod 600"):
        anchor_signature.SigningKey.from_file(file)
    file.chmod(0o600)
    for bad in ("", "{}", '{"private": "zz", "public": ""}', json.dumps({"private": "00" * 32, "public": PUBLIC})):
        file.write_text(bad)
        with pytest.raises(errors.BadInput) as caught:
            anchor_signature.SigningKey.from_file(file)
        assert "zz" not in str(caught.value)


# --- Proofs between two ----------------------------------------------------------------------------------------------


async def test_a_proof_shows_that_one_anchor_goes_on_from_another(tmp_path: Path) -> None:
    key = anchor_signature.new_key(env_os.OsEnv())
    async with stores(tmp_path, "memory") as (kit,):
        world = await lived(kit, 1, 2)
        older = await world.anchor(sign=key)
        await gone_on(world, 3)
        between = await world.anchor(sign=key)
        await gone_on(world, 4, 5)
        newer = await world.anchor(sign=key)
        proof = await extension_proof.prove(world._handle, older)
        assert proof.chain.hex() == newer.chain
        short = await extension_proof.prove(world._handle, older, up_to=between.height)
        assert short.chain.hex() == between.chain
        with pytest.raises(errors.BadInput, match="nothing to prove"):
            await extension_proof.prove(world._handle, newer)
    files = {"older": older, "between": between, "newer": newer}
    for name, anchor in files.items():
        (tmp_path / name).write_text(f"{anchor}\n")
    (tmp_path / "proof").write_text(proof.text())
    (tmp_path / "short").write_text(short.text())
    place = {name: tmp_path / name for name in ("older", "between", "newer", "proof", "short")}
    assert spoken(place["older"], place["newer"], place["proof"], key.public)[0] == 0
    assert spoken(place["older"], place["between"], place["short"])[0] == 0
    for wrong in (("older", "between", "proof"), ("between", "newer", "proof"), ("newer", "older", "proof")):
        assert spoken(*(place[each] for each in wrong))[0] == 1
    assert spoken(place["older"], place["newer"], place["proof"], PUBLIC)[0] == 1


async def test_no_other_proof_or_anchor_is_taken(memory_kit: Kit) -> None:
    namespace: dict[str, Any] = {"__name__": "script"}
    exec(compile(_text(SCRIPT), str(SCRIPT), "exec"), namespace)
    world = await lived(memory_kit, 1)
    older = await world.anchor()
    await gone_on(world, 2, 3)
    newer = await world.anchor()
    text = (await extension_proof.prove(world._handle, older)).text()
    before, after = json.loads(str(older)), json.loads(str(newer))

    def takes(first: dict[str, Any], second: dict[str, Any], proof: bytes) -> bool:
        try:
            namespace["check"](first, second, proof)
        except (Exception, SystemExit):  # noqa: BLE001 - as the script itself does
            return False
        return True

    assert takes(before, after, text.encode())
    for change in ({"height": newer.height + 1}, {"step": newer.step + 1}, {"chain": "00" * 32}, {"world": "00" * 16}):
        assert not takes(before, {**after, **change}, text.encode())
    for change in ({"step": older.step + 1}, {"chain": "00" * 32}, {"universe": "00" * 16}):
        assert not takes({**before, **change}, after, text.encode())
    data = text.encode()
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        assert not takes(before, after, changed), place
    proof = json.loads(text)
    proof["steps"] = proof["steps"][1:]
    assert not takes(before, after, (json.dumps(proof, indent=1, sort_keys=True) + "\n").encode())


def _text(file: Path) -> str:
    return file.read_text()


async def test_anchors_of_a_world_are_in_order(memory_kit: Kit) -> None:
    universe = (await memory_kit.process(app)).universe
    one, other = await universe.create("one", app), await universe.create("other", app)
    early = await one.anchor()
    await gone_on(one, 1)
    late = await one.anchor()
    mixed = [late, await other.anchor(), early]
    assert anchor_check.of_world(mixed, await one._handle.address()) == [early, late]
