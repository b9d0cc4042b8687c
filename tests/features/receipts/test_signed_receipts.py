"""Receipts that adapters sign: checked at the inbox where keys are listed, and by `verify`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

import worldline as wl
from tests import aio
from tests.kits import apart
from tests.kits import kit as kits
from tests.kits.kit import Kit
from worldline.base.env import FixedEnv
from worldline.features.anchors import anchor_signature
from worldline.features.receipts import receipt_signature
from worldline.inspect import verify
from worldline.kernel import replay
from worldline.model import ids, inbox, payload
from worldline.model.inbox import ReceiptStatus
from worldline.model.journal import Kind
from worldline.model.roles import Role
from worldline.model.settings import Settings


@dataclass(frozen=True)
class Note:
    text: str


def program() -> wl.Program:
    app = wl.Program("p")

    @app.effect
    async def charge(cents: int) -> int:
        return cents

    @app.workflow
    async def pay(cents: int) -> int:
        await wl.send("w", Note("paying"))
        return await charge(cents)

    @app.workflow
    async def refused() -> str:
        try:
            await charge(1)
        except wl.errors.PolicyDenied as error:
            return error.code
        return "paid"

    return app


def key(folder: Path, seed: int) -> tuple[str, str]:
    """A key file, and its public key."""
    made = anchor_signature.new_key(FixedEnv(seed))
    file = folder / f"key-{seed}"
    made.write(file)
    return str(file), made.public


def trusting(public: str) -> Settings:
    return kits.settings(worker={"receipt_keys": public})


@asynccontextmanager
async def cluster(kit: Kit, app: wl.Program, *, adapter: Settings, worker: Settings) -> AsyncIterator[wl.World]:
    """A worker and an adapter that are processes of their own, and a client."""
    async with AsyncExitStack() as stack:
        roles = [Role.WORLDS, Role.TIMERS]
        await stack.enter_async_context(apart.host(kit, app, roles=roles, settings=worker))
        await stack.enter_async_context(apart.host(kit, app, roles=[Role.ADAPTER], settings=adapter))
        universe = await stack.enter_async_context(kit.hosting())
        yield await universe.ensure("w", app)


async def test_signed_receipts_are_taken_and_verified(kit: Kit, tmp_path: Path) -> None:
    app = program()
    file, public = key(tmp_path, 1)
    _, other = key(tmp_path, 2)
    signed = kits.settings(adapter={"receipt_key": file})
    async with cluster(kit, app, adapter=signed, worker=trusting(f"{other}, {public}")) as world:
        assert await world.run(app.workflows["pay"](5), timeout=30, correlation="order-7") == 5
        found = [replay.item_of(each) for each in await world._handle.journal() if each.kind is Kind.EFFECT_RESULT]
        [receipt] = [each for each in found if isinstance(each, inbox.SignedReceipt)]  # that of the message has none
        assert (receipt.key.hex(), receipt.correlation_id, len(found)) == (public, "order-7", 2)
        universe = world._universe
        at = await world._handle.address()
        await universe_rule(world)
        assert await world.run(app.workflows["refused"](), timeout=30) == "policy_denied"
        assert (await verify.verify(universe, at, receipt_keys=[bytes.fromhex(public)])).signed == 1
        with pytest.raises(verify.Damaged, match="which is no key that is trusted here"):
            await verify.verify(universe, at, receipt_keys=[bytes.fromhex(other)])
        await kits.prove(world, app)


async def universe_rule(world: wl.World) -> None:
    """From here on nothing is charged: the refusal is a receipt of the runtime's own."""
    await wl.Universe(world._universe).add_rule("deny", "effect", names="charge")


async def test_a_receipt_without_a_signature_is_a_dead_letter(memory_kit: Kit, tmp_path: Path) -> None:
    app = program()
    _, public = key(tmp_path, 1)
    async with cluster(memory_kit, app, adapter=kits.SETTINGS, worker=trusting(public)) as world:
        run = await world.start(app.workflows["pay"](5), id="r")

        async def is_dead() -> bool:
            return "the receipt is not signed by an effect worker" in [each.reason async for each in world.dead()]

        await aio.until(is_dead, seconds=30)
        assert await run.status() is wl.RunStatus.RUNNING
        at = await world._handle.address()
        await verify.verify(world._universe, at, receipt_keys=[bytes.fromhex(public)])  # it was never taken
        await kits.prove(world, app)


def test_what_is_signed_names_everything() -> None:
    signer = receipt_signature.Signer(bytes(range(32)))
    at = ids.Address(ids.UniverseId(b"u" * 16), ids.WorldId(b"w" * 16))
    plain = inbox.CorrelatedReceipt(b"i" * 16, ReceiptStatus.OK, payload.inline(b"\x05"), 2, "r", "order-7")
    good = signer.sign(at, plain)
    assert receipt_signature.why_not(at, good, [signer.public]) == ""
    assert receipt_signature.why_not(at, good, []) == ""
    changes: dict[str, object] = {
        "intent": b"j" * 16,
        "status": ReceiptStatus.ERROR,
        "payload": payload.inline(b"\x06"),
        "attempt": 3,
        "correlation_id": "order-8",
        "signature": bytes(64),
    }
    for name, value in changes.items():
        forged = msgspec.structs.replace(good, **{name: value})
        assert "forged or damaged" in receipt_signature.why_not(at, forged, [signer.public]), name
    elsewhere = ids.Address(at.universe, ids.WorldId(b"x" * 16))
    assert "forged" in receipt_signature.why_not(elsewhere, good, [signer.public])
    assert "not signed" in receipt_signature.why_not(at, plain, [signer.public])


async def test_keys_that_do_not_fit_are_refused(memory_kit: Kit, tmp_path: Path) -> None:
    app = program()
    file, public = key(tmp_path, 1)
    with pytest.raises(wl.BadInput, match="64 hexadecimal digits"):
        wl.ops.WorkerSettings(receipt_keys="abc")
    with pytest.raises(wl.BadInput, match=r"set adapter\.receipt_key"):
        await memory_kit.process(app, settings=trusting(public))
    both = kits.settings(worker={"receipt_keys": public}, adapter={"receipt_key": file})
    async with memory_kit.hosting(app, settings=both) as universe:
        world = await universe.ensure("w", app)
        assert await world.run(app.workflows["pay"](5), timeout=30) == 5
        found = await verify.verify(
            world._universe, await world._handle.address(), receipt_keys=[bytes.fromhex(public)]
        )
        assert found.signed == 1
