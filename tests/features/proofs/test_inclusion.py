"""Proofs of entries: what `prove_entry` makes, the script that needs nothing of this package accepts, and it refuses
everything else. The script is run as its readers run it: by a Python without site packages.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import worldline as wl
from tests.kits import kit as kits
from tests.kits.kit import Kit
from tests.kits.sums import Add, program
from worldline.base import errors
from worldline.codec import canonical
from worldline.features.proofs import entry_proof
from worldline.kernel import user_values
from worldline.keys import snapshots as snapshot_keys
from worldline.model.journal import Kind
from worldline.store import kv

SCRIPT = Path(__file__).parents[3] / "tools" / "check_proof.py"
PYTHON = [sys.executable, "-I", "-S"]

# Tries every change of one byte, and says which were accepted. One process for all of them.
FLIPS = """
import runpy, sys
check = runpy.run_path(sys.argv[1])["check"]
text, chain = open(sys.argv[2], "rb").read(), sys.argv[3]
def holds(*given):
    try:
        check(*given)
    except (Exception, SystemExit):
        return False
    return True
assert holds(text, chain)
masks = [1 << bit for bit in range(8)] + [255]
flips = [(place, mask) for place in range(len(text)) for mask in masks]
for place, mask in flips:
    if holds(text[:place] + bytes([text[place] ^ mask]) + text[place + 1:], chain):
        print("accepted", place, mask)
for place in range(len(text)):
    if holds(text[:place] + text[place + 1:], chain) or holds(text[:place] + b" " + text[place:], chain):
        print("accepted", place, "cut or widened")
for place in range(len(chain)):
    if holds(text, chain[:place] + chr(ord(chain[place]) ^ 1) + chain[place + 1:]):
        print("accepted", place, "of the chain")
print(len(flips))
"""


def checked(file: Path, chain: str) -> tuple[int, str]:
    """The script's exit code and what it says."""
    return spoken(SCRIPT, file, chain)


def spoken(*words: object) -> tuple[int, str]:
    command = [*PYTHON, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


def app_with_effects() -> tuple[wl.Program, Any]:
    app = program()

    @app.effect
    async def shout(text: str) -> str:
        return text.upper()

    @app.workflow
    async def greet(text: str) -> str:
        return await shout(text)

    return app, greet


async def stocked(kit: Kit, *, text: str = "hello") -> wl.World:
    app, greet = app_with_effects()
    world = await (await kit.process(app)).universe.ensure("w", app)
    await (await world.send(Add(1))).applied(20)
    await kits.run(world, greet(text), id="r")
    await (await world.send(Add(2))).applied(20)
    return world


async def test_every_entry_is_proved(kit: Kit, tmp_path: Path) -> None:
    """The first, the last, all between, and those inside of a step; on every engine."""
    world = await stocked(kit)
    await world.snapshot()
    head = await world.head()
    entries = await kits.entries(world)
    assert any(not entry.chain for entry in entries), "a step of several entries"
    for entry in entries:
        proof = await entry_proof.prove_entry(world._handle, entry.height)
        assert (proof.step, proof.chain, len(proof.later)) == (entry.step, head.chain, head.step - entry.step)
        file = tmp_path / f"{entry.height}.json"
        file.write_text(proof.text())
        code, said = checked(file, head.chain.hex())
        assert code == 0, said
        expected = {"height": entry.height, "step": entry.step, "kind": int(entry.kind), "time_us": entry.time_us}
        assert json.loads(said.removeprefix("holds:")) == {**expected, "payload": entry.payload.hex()}


async def test_for_an_earlier_head(memory_kit: Kit, tmp_path: Path) -> None:
    """A digest that was written down before the world went on is good for ever."""
    world = await stocked(memory_kit)
    ends = [entry for entry in await kits.entries(world) if entry.chain]
    middle = ends[len(ends) // 2]
    proof = await entry_proof.prove_entry(world._handle, 1, up_to=middle.height)
    assert (proof.chain, len(proof.later)) == (middle.chain, middle.step - 1)
    file = tmp_path / "proof"
    file.write_text(proof.text())
    assert checked(file, middle.chain.hex())[0] == 0
    code, said = checked(file, ends[-1].chain.hex())
    assert code == 1
    assert said.startswith(f"the proof does not hold: it leads to the chain {middle.chain.hex()}, not to ")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("objects", [True, False])
async def test_a_payload_that_is_stored_apart_is_in_the_proof(memory_kit: Kit, tmp_path: Path, objects: bool) -> None:
    if not objects:
        memory_kit.without_objects()
    world = await stocked(memory_kit, text="x" * 40_000)
    handle = world._handle
    raw = [entry async for entry in _raw(world)]
    large = [entry for entry in raw if entry.blob]
    assert Kind.EFFECT_REQUESTED in [entry.kind for entry in large]
    assert any(entry.blob and entry.chain for entry in large), "one that ends its step"
    chain = (await world.head()).chain.hex()
    file = tmp_path / "proof"
    for entry in large:
        proof = await entry_proof.prove_entry(handle, entry.height)
        assert len(proof.payload) > 40_000
        file.write_text(proof.text())
        code, said = checked(file, chain)
        assert code == 0, said
        assert json.loads(said.removeprefix("holds:"))["payload"] == proof.payload.hex()
        for other in (proof.payload[:-1] + b"?", b""):
            forged = entry_proof.Inclusion(*_fields(proof, payload=other))
            file.write_text(forged.text())
            assert checked(file, chain) == (1, "the proof does not hold: the payload is another one\n")


async def _raw(world: wl.World) -> Any:
    """Entries as they are stored: large payloads by their addresses."""
    from worldline.runtime import world_restore  # noqa: PLC0415

    engine, at = world._universe.store.engine, await world._handle.address()
    for entry in await world_restore.read_entries(
        engine, world._universe.blobs, at, above=0, up_to=(await world.head()).height
    ):
        yield entry


def _fields(proof: entry_proof.Inclusion, **changes: Any) -> list[Any]:
    return [changes.get(name, getattr(proof, name)) for name in proof.__struct_fields__]


async def test_every_changed_byte_is_refused(memory_kit: Kit, tmp_path: Path) -> None:
    """Every bit of the file, the entry in it included; every byte cut out or put in; every digit of the digest."""
    world = await stocked(memory_kit)
    chain = (await world.head()).chain.hex()
    height = next(entry.height for entry in await kits.entries(world) if not entry.chain)
    file = tmp_path / "proof"
    file.write_text((await entry_proof.prove_entry(world._handle, height)).text())
    code, said = spoken("-c", FLIPS, SCRIPT, file, chain)
    assert (code, said) == (0, f"{9 * file.stat().st_size}\n")


async def test_another_entry_is_refused(memory_kit: Kit, tmp_path: Path) -> None:
    """Proofs that are well made, of what did not happen."""
    world = await stocked(memory_kit)
    chain = (await world.head()).chain.hex()
    proof = await entry_proof.prove_entry(world._handle, 1)
    fields = canonical.decode(proof.entries[0])
    assert isinstance(fields, list)
    assert isinstance(fields[4], bytes)
    fields[4] = fields[4].replace(user_values.dump(1)[-1:], user_values.dump(9)[-1:])
    forged: dict[str, dict[str, Any]] = {
        "another payload": {"entries": [canonical.encode(fields)]},
        "one entry more": {"entries": [*proof.entries, proof.entries[0]]},
        "no entry": {"entries": []},
        "another height": {"height": 2},
        "another place": {"place": 1},
        "a step left out": {"later": proof.later[1:]},
        "steps exchanged": {"later": [proof.later[1], proof.later[0], *proof.later[2:]]},
        "another beginning": {"previous": bytes([1]) * 32},
        "other changes": {"changes": bytes(32)},
        "a payload that it has not": {"payload": b"x"},
    }
    file = tmp_path / "proof"
    for name, changes in forged.items():
        file.write_text(entry_proof.Inclusion(*_fields(proof, **changes)).text())
        code, said = checked(file, chain)
        assert code == 1, name
        assert "holds: {" not in said
    for text in ("", "{}", "[]", proof.text().replace('"entry"', '"state"'), proof.text() + "\n"):
        file.write_text(text)
        code, said = checked(file, chain)
        assert (code, len(said.splitlines())) == (1, 1), said
    assert checked(tmp_path / "missing", chain)[0] == 1


async def test_what_cannot_be_proved(memory_kit: Kit) -> None:
    host = await memory_kit.process(app_with_effects()[0])
    world = await stocked(memory_kit)
    top = (await world.head()).height
    for height in (0, -1, top + 1):
        with pytest.raises(wl.BadInput, match=f"world 'w' has no entry {height}: its heights are 1 to {top}"):
            await entry_proof.prove_entry(world._handle, height)
    with pytest.raises(wl.BadInput, match="no entry 999"):
        await entry_proof.prove_entry(world._handle, 1, up_to=999)
    inside = next(entry.height for entry in await kits.entries(world) if not entry.chain)
    with pytest.raises(wl.BadInput, match=f"the step of height {inside} has not ended at height {inside}"):
        await entry_proof.prove_entry(world._handle, inside, up_to=inside)
    await world.snapshot()
    at = await world._handle.address()
    key, raw = (await host.engine.read(kv.Range(*snapshot_keys.snapshots(at)))).page(0).items[0]
    batch = kv.Batch()
    batch.expect(key, raw)
    batch.delete(key)
    await host.engine.commit(batch)
    with pytest.raises(
        errors.NotFound, match="height 0: its state is not kept any more: states are kept from height 8 on"
    ):
        await entry_proof.prove_entry(world._handle, 1)


def test_the_script_is_short_and_stands_alone() -> None:
    source = SCRIPT.read_text()
    assert len(source.splitlines()) <= 60
    imported = [
        name.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    ]
    assert imported
    assert all(name in sys.stdlib_module_names for name in imported)
    done = subprocess.run([*PYTHON, "-c", "import worldline"], capture_output=True, check=False)
    assert done.returncode != 0, "a Python without this package"


def test_golden_proof(tmp_path: Path) -> None:
    """Worked out by hand in `tests/layers/test_journal.py`: the step and its chain."""
    first = bytes.fromhex("8a0101010541614060404040")
    state = bytes([7]) * 32
    last = bytes.fromhex("8a020118210541624c" + b"stampstamp12".hex() + "61635820" + state.hex() + "4040")
    proof = entry_proof.Inclusion(2, 1, 1, bytes(32), [first, last], bytes([1]) * 32, [bytes([2]) * 32], b"", b"")
    file = tmp_path / "proof"
    file.write_text(proof.text())
    assert proof.text() == (
        '{\n "changes": "' + "01" * 32 + '",\n "entries": [\n  "' + first.hex() + '",\n  "' + last.hex() + '"\n ],\n'
        ' "format": "worldline-proof-1",\n "height": 2,\n "kind": "entry",\n "later": [\n  "' + "02" * 32 + '"\n ],\n'
        ' "payload": "",\n "place": 1,\n "previous": "' + "00" * 32 + '"\n}\n'
    )
    assert checked(file, "53c5df7182db3c44de5497a3fcbe4296451e21c7d773ce703c0d4c584bb434e1")[0] == 0
