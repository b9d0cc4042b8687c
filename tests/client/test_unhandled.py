"""An event that nothing takes is said so: to the caller that waits for it, where it is sent, and in the host's log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

import worldline as wl
from tests.kits.kit import Kit
from worldline.base import errors
from worldline.client.world_handle import Handle
from worldline.model.journal import Kind


@dataclass(frozen=True)
class Known:
    number: int


@dataclass(frozen=True)
class Waited:
    pass


@dataclass(frozen=True)
class Unknown:
    pass


def program(*, takes_unknown: bool = False) -> wl.Program:
    app = wl.Program("p")

    @app.reducer()
    @dataclass
    class Sum:
        total: int = 0

        @wl.on
        def known(self, event: Known) -> None:
            if event.number < 0:
                raise ValueError("less than nothing")
            if event.number > 100:
                wl.emit(Known(-1))  # which fails by itself: this one is taken
            self.total += event.number

        @wl.on(inbox="orders")
        def ordered(self, event: wl.Envelope) -> None:
            self.total += 1

    if takes_unknown:

        @app.reducer()
        @dataclass
        class Other:
            count: int = 0

            @wl.on
            def unknown(self, event: Unknown) -> None:
                self.count += 1

    @app.workflow
    async def waits() -> None:
        await wl.wait(Waited)

    return app


@asynccontextmanager
async def caller(kit: Kit, where: str, app: wl.Program) -> AsyncIterator[wl.World]:
    async with kit.hosting(app) as host:
        await host.ensure("w", app)
        if where == "here":
            yield host.world("w")
        else:
            async with kit.hosting() as client:
                yield client.world("w")


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_the_caller_gets_it_raised(memory_kit: Kit, where: str, caplog: pytest.LogCaptureFixture) -> None:
    """And by the command that it names, the event is given again to code that takes it."""
    async with caller(memory_kit, where, program()) as world:
        sent = await world.send(Unknown())
        with pytest.raises(
            wl.errors.Unhandled, match="world 'w' did not process Unknown: nothing here takes an Unknown"
        ) as caught:
            await sent.applied()
        [letter] = [each async for each in world.dead()]
        assert f"`worldline dead retry w {letter.id} --store " in str(caught.value)
        [entry] = [each for each in await world.journal() if each.kind is Kind.UNDECODABLE_INPUT]
        assert caught.value.height < entry.height
        [line] = [each.getMessage() for each in caplog.records if each.name == "worldline.worker"]
        assert "event Unknown was not processed: nothing here takes an Unknown now; it is a dead letter" in line
        assert f"`worldline dead retry w {letter.id}`" in line
    async with caller(memory_kit, where, program(takes_unknown=True)) as world:
        assert await world.retry_dead() == 1
        assert [each async for each in world.dead()] == []


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_what_fails_in_its_handler_is_not_taken_either(memory_kit: Kit, where: str) -> None:
    async with caller(memory_kit, where, program()) as world:
        with pytest.raises(
            wl.errors.Unhandled, match=r"did not process Known: .*ValueError: less than nothing; it is a dead letter"
        ):
            await (await world.send(Known(-1))).applied()
        before = await (await world.send(Known(1))).applied()
        assert await (await world.send(Known(101))).applied() > before, "what its handler emits fails by itself"
        assert (await (await world.send("text", inbox="orders")).applied()) > before


async def test_where_it_is_sent_a_line_says_so_once(memory_kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    app = program()
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        for event in (Known(1), Waited(), Unknown(), Unknown()):
            _ = await world.send(event)
        for inbox in ("orders", "bills"):
            _ = await world.send("text", inbox=inbox)
        said = [each.getMessage() for each in caplog.records if each.name == "worldline"]
        assert [line.split(" was sent")[0] for line in said] == ["Unknown", "a message for inbox 'bills'"]
        assert "`worldline dead retry w --all`" in said[0]
        assert "declare a handler with @wl.on" in said[0]


async def test_a_program_that_is_not_known_here_says_nothing(memory_kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    async with memory_kit.hosting() as client:
        world = await client.ensure("w", program())
        client._connection.programs.clear()
        _ = await world.send(Unknown())
        assert [each for each in caplog.records if each.name == "worldline"] == []


async def test_a_store_that_fails_after_the_ack_does_not_fail_the_send(
    memory_kit: Kit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The look for a handler comes after the ack: an error of it made callers send what had been taken once more."""

    async def gone(_: Handle) -> str:
        raise errors.StoreUnavailable("the store cannot be reached")

    app = program()
    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        with monkeypatch.context() as patched:
            patched.setattr(Handle, "program", gone)
            with pytest.raises(wl.errors.Unhandled):
                await (await world.send(Unknown())).applied()
        assert [each for each in caplog.records if each.name == "worldline"] == []
        _ = await world.send(Unknown())
        assert [each.getMessage().split(" was sent")[0] for each in caplog.records if each.name == "worldline"] == [
            "Unknown"
        ]
