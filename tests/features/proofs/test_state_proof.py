"""Proofs of rows: what `prove_state` makes, the script that needs nothing of this package accepts, and it refuses
everything else.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import worldline as wl
from tests.features.proofs.test_inclusion import FLIPS, app_with_effects, spoken, stocked
from tests.kits import kit as kits
from tests.kits.kit import Kit
from tests.kits.sums import Add
from worldline.base import errors
from worldline.codec import canonical
from worldline.features.proofs import calls as proof_calls
from worldline.features.proofs import entry_proof, row_proof
from worldline.features.proofs.row_proof import StateProof, WitnessEntry
from worldline.kernel import state_witness
from worldline.model import row_keys
from worldline.model.change import Row
from worldline.model.journal import Kind
from worldline.model.trie import nodes, paths, update

SCRIPT = Path(__file__).parents[3] / "tools" / "check_state_proof.py"


async def witnessed(world: wl.World) -> WitnessEntry:
    found = await row_proof.last_witnessed(world._handle)
    return found or await row_proof.witness_now(world._handle)


async def proof_of(world: wl.World, name: str) -> StateProof:
    return await row_proof.prove_state(world._handle, name, await witnessed(world))


def checked(file: Path, chain: str) -> tuple[int, str]:
    return spoken(SCRIPT, file, chain)


def holds(file: Path, proof: StateProof) -> dict[str, Any]:
    """What the script says of a proof that it accepts."""
    file.write_text(proof.text())
    code, said = checked(file, proof.entry.chain.hex())
    assert code == 0, said
    found: dict[str, Any] = json.loads(said.removeprefix("holds:"))
    return found


async def test_every_row_is_proved(kit: Kit, tmp_path: Path) -> None:
    """Cells, runs, schedules, counts: whatever the state has, on every engine. The world says its root once."""
    world = await stocked(kit)
    await world.schedule("nightly", Add(1), every=86_400)
    said = await witnessed(world)
    head = await world.head()
    rows, _ = await world._handle.rows_at(head.height)
    names = {row_keys.describe(key): key for key, _ in rows.items()}
    assert {"the status of run 'r'", "schedule 'nightly'", "the number of runs"} <= {*names}
    assert any(name.startswith("cell ") for name in names)
    for name, key in names.items():
        proof = await proof_of(world, name if not name.startswith("run ") else key.hex())
        assert (proof.key, proof.witnessed, proof.entry.chain) == (key, said, head.chain)
        row = rows.get(key)
        assert row is not None
        found = holds(tmp_path / "proof", proof)
        assert (found["key"], found["value"]) == (key.hex(), row.meaning.hex())
        assert (found["step"], found["height"]) == (said.step, said.height)
    assert await world.head() == head, "the same root was used for all"
    total = await proof_of(world, "Sum")
    assert holds(tmp_path / "proof", total)["plain"] == {"total": 3}
    ended = holds(tmp_path / "proof", await proof_of(world, "run r"))
    assert "HELLO" in bytes.fromhex(ended["value"]).decode(errors="replace")


async def test_later_heads_and_later_states(memory_kit: Kit, tmp_path: Path) -> None:
    """A proof is of one step's state. The world goes on: the head's digest proves what was, and what is."""
    world = await stocked(memory_kit)
    said = await witnessed(world)
    await (await world.send(Add(10))).applied(20)
    before = await row_proof.prove_state(world._handle, "Sum", said)
    after = await proof_of(world, "Sum")
    assert after.witnessed.step > before.witnessed.step
    assert holds(tmp_path / "proof", before)["plain"] == {"total": 3}
    assert holds(tmp_path / "proof", after)["plain"] == {"total": 13}
    other = before.entry.chain.hex()
    (tmp_path / "proof").write_text(after.text())
    assert checked(tmp_path / "proof", other)[0] == 1


async def test_what_is_not_there_is_proved_too(memory_kit: Kit, tmp_path: Path) -> None:
    world = await stocked(memory_kit)
    for name in ("Sum['x']", "run nobody", "schedule weekly"):
        proof = await proof_of(world, name)
        assert proof.row is None
        found = holds(tmp_path / "proof", proof)
        assert (found["key"], found["value"], found["plain"]) == (proof.key.hex(), "", None)
    with pytest.raises(wl.BadInput, match="no row is called 'a b'"):
        await proof_of(world, "a b")


async def test_a_large_row_and_many_rows(memory_kit: Kit, tmp_path: Path) -> None:
    """A path of several nodes; a value that is a blob of its own."""
    app, greet = app_with_effects()
    world = await (await memory_kit.process(app)).universe.ensure("w", app)
    for number in range(60):
        await kits.run(world, greet("x" * 200), id=f"r{number}")
    await kits.run(world, greet("y" * 9_000), id="large")
    for name in ("run r7", "run large", "run none", "the number of runs"):
        proof = await proof_of(world, name)
        assert len(proof.path) > 1
        assert holds(tmp_path / "proof", proof)["value"] == ("" if proof.row is None else proof.row.meaning.hex())


async def test_in_a_fork(kit: Kit, tmp_path: Path) -> None:
    """Its chain goes on from that of its parent; what it has inherited is proved by its own digest."""
    world = await stocked(kit)
    fork = await world.fork("f")
    await (await fork.send(Add(100))).applied(20)
    mine, theirs = await proof_of(fork, "Sum"), await proof_of(world, "Sum")
    assert holds(tmp_path / "proof", mine)["plain"] == {"total": 103}
    assert holds(tmp_path / "proof", theirs)["plain"] == {"total": 3}
    assert holds(tmp_path / "proof", await proof_of(fork, "run r"))["value"]
    assert (await proof_calls.prove(fork._handle, programs=[app_with_effects()[0]])).holds
    (tmp_path / "proof").write_text(mine.text())
    assert checked(tmp_path / "proof", theirs.entry.chain.hex())[0] == 1


async def test_every_changed_byte_is_refused(memory_kit: Kit, tmp_path: Path) -> None:
    app, _ = app_with_effects()
    world = await (await memory_kit.process(app)).universe.ensure("w", app)
    await (await world.send(Add(1))).applied(20)
    file = tmp_path / "proof"
    proof, absent = await proof_of(world, "Sum"), await proof_of(world, "Sum['none']")
    holds(file, proof)
    code, said = spoken("-c", FLIPS, SCRIPT, file, proof.entry.chain.hex())
    assert (code, said) == (0, f"{9 * file.stat().st_size}\n")
    holds(file, absent)
    code, said = spoken("-c", FLIPS, SCRIPT, file, absent.entry.chain.hex())
    start = absent.text().index(absent.key.hex())
    places = {int(line.split()[1]) for line in said.splitlines() if line.startswith("accepted")}
    assert places <= {*range(start, start + 2 * len(absent.key))}, "another key is not there either; nothing else holds"


async def test_forged_proofs_are_refused(memory_kit: Kit, tmp_path: Path) -> None:
    """Proofs that are well made, of what is not so."""
    world = await stocked(memory_kit, text="z" * 5_000)
    await kits.run(world, app_with_effects()[1]("z" * 3_000), id="r2")
    proof, other = await proof_of(world, "Sum"), await proof_of(world, "run r2")
    assert proof.path != other.path
    assert proof.row is not None
    chain = proof.entry.chain.hex()
    rows, _ = await world._handle.rows_at(proof.witnessed.height)
    rows.put(proof.key, Row(canonical.encode([2, canonical.encode({"total": 1_000})])))
    made = update.build(rows.items())
    asking = paths.Paths(made.root.address, [proof.key])
    nodes.answer(asking, made.new.__getitem__)
    lying = asking.path(proof.key)
    assert paths.follow(made.root.address, proof.key, lying) is not None
    event = await entry_proof.prove_entry(world._handle, 1)
    root = canonical.encode([proof.witnessed.step, made.root.address])
    fields = canonical.decode(proof.entry.entries[proof.entry.place])
    assert isinstance(fields, list)
    assert (fields[2], fields[4]) == (
        int(Kind.WITNESSED),
        canonical.encode([proof.witnessed.step, proof.witnessed.root]),
    )
    entries = list(proof.entry.entries)
    entries[proof.entry.place] = canonical.encode([*fields[:4], root, *fields[5:]])
    forged: dict[str, dict[str, Any]] = {
        "another value": {"row": Row(b"\x01")},
        "no value": {"row": None},
        "another key": {"key": row_keys.cell("Sum", "x")},
        "another row's path": {"path": other.path},
        "a path of other rows": {"path": lying, "row": rows.get(proof.key)},
        "another root": {
            "path": lying,
            "row": rows.get(proof.key),
            "entry": msgspec.structs.replace(proof.entry, entries=entries),
        },
        "another kind of entry": {"entry": event},
        "no nodes": {"path": []},
        "no nodes, no row": {"path": [], "row": None},
        "half a path": {"path": proof.path[:-1]},
        "half a path, no row": {"path": proof.path[:-1], "row": None},
        "a path that goes on": {"path": [*proof.path, proof.path[-1]]},
        "a step left out": {"entry": msgspec.structs.replace(event, later=event.later[1:])},
    }
    file = tmp_path / "proof"
    for name, changes in forged.items():
        file.write_text(msgspec.structs.replace(proof, **changes).text())
        code, said = checked(file, chain)
        assert (code, len(said.splitlines())) == (1, 1), (name, said)
        assert said.startswith("the proof does not hold: "), name
    for text in ("", "{}", "[]", proof.text().replace('"state"', '"entry"'), proof.entry.text(), proof.text() + "\n"):
        file.write_text(text)
        code, said = checked(file, chain)
        assert (code, len(said.splitlines())) == (1, 1), said
    assert checked(tmp_path / "missing", chain)[0] == 1
    assert holds(file, proof)


async def test_an_event_that_looks_like_a_root_is_none(memory_kit: Kit, tmp_path: Path) -> None:
    """What clients send has kinds of its own: the root is that of the WITNESSED entry alone."""
    world = await stocked(memory_kit)
    entries = await kits.entries(world)
    assert Kind.WITNESSED not in [each.kind for each in entries]
    proof = await proof_of(world, "Sum")
    for entry in entries:
        other = await entry_proof.prove_entry(world._handle, entry.height)
        (tmp_path / "proof").write_text(msgspec.structs.replace(proof, entry=other).text())
        assert checked(tmp_path / "proof", proof.entry.chain.hex())[0] == 1


async def test_a_world_that_does_not_run_cannot_say_its_root(memory_kit: Kit) -> None:
    world = await stocked(memory_kit)
    said = await witnessed(world)
    for change in (world.pause, world.archive):
        await change()
        assert await row_proof.last_witnessed(world._handle) == said, "what was said can be used"
        assert (await row_proof.prove_state(world._handle, "Sum", said)).row is not None
        with pytest.raises(errors.Closed, match=r"world 'w' is (paused|archived).*`worldline resume w` first"):
            await row_proof.witness_now(world._handle)


async def test_a_root_that_is_not_that_of_the_rows_is_found(memory_kit: Kit) -> None:
    world = await stocked(memory_kit)
    said = msgspec.structs.replace(await witnessed(world), root=bytes(32))
    with pytest.raises(errors.DigestMismatch, match=r"the root that step \d+ of world 'w' says .*--prove"):
        await row_proof.prove_state(world._handle, "Sum", said)


async def test_a_replay_finds_a_wrong_root(memory_kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that lies: the difference is the entry, and its field."""
    app, _ = app_with_effects()
    world = await stocked(memory_kit)
    with monkeypatch.context() as patched:
        patched.setattr(state_witness, "root_of", lambda rows: bytes(32))
        said = await witnessed(world)
    assert said.root == bytes(32)
    proof = await proof_calls.prove(world._handle, programs=[app])
    assert proof.difference is not None
    assert proof.difference.height == said.height
    assert proof.difference.journal.startswith("witnessed ")
    assert proof.difference.field.startswith("root: ")


def test_the_script_is_short_and_stands_alone() -> None:
    source = SCRIPT.read_text()
    assert len(source.splitlines()) <= 60
    modules = [
        module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for module in ([node.module] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    ]
    assert modules
    assert all(module in sys.stdlib_module_names for module in modules)


def test_golden_proof(tmp_path: Path) -> None:
    """A step of one entry, and a leaf of one row, worked out by hand."""
    key, value = bytes.fromhex("4300035375" + "6d0000"), bytes.fromhex("820148a165746f74616c03")
    leaf = bytes.fromhex("830301" + "83" + "48" + key.hex() + "4b" + value.hex() + "40")
    root = hashlib.sha256(leaf).digest()
    said = bytes.fromhex("82075820") + root
    entry = bytes.fromhex("8a0a08183505" + f"58{len(said):02x}") + said + bytes.fromhex("40604040" + "40")
    step = _digest(b"step", entry, bytes(32))
    chain = _digest(b"chain", bytes(32), step)
    inner = entry_proof.Inclusion(10, 0, 8, bytes(32), [entry], bytes(32), [], b"", chain)
    proof = StateProof(key, Row(value), [leaf], WitnessEntry(10, 7, root), inner)
    assert proof.text() == (
        '{\n "changes": "' + "00" * 32 + '",\n "entries": [\n  "' + entry.hex() + '"\n ],\n'
        ' "format": "worldline-proof-1",\n "key": "' + key.hex() + '",\n "kind": "state",\n "later": [],\n "nodes": [\n'
        '  "' + leaf.hex() + '"\n ],\n "previous": "' + "00" * 32 + '",\n "value": "' + value.hex() + '"\n}\n'
    )
    expected = {"key": key.hex(), "value": value.hex(), "plain": {"total": 3}, "step": 7, "height": 10}
    assert holds(tmp_path / "proof", proof) == expected


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()
