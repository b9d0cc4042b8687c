"""A program about people: personal values in events, cells, arguments, results, answers and messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import worldline as wl

SECRET = "ada.lovelace@example.org"
LOUD = SECRET.upper()
LARGE = SECRET * 2_000  # larger than an entry takes


@dataclass(frozen=True)
class Joined:
    user: str
    mail: wl.Personal[str]
    notes: tuple[wl.Personal[dict[str, str]], ...] = ()


@dataclass(frozen=True)
class Renamed:
    user: str
    name: str


@dataclass(frozen=True)
class Shouted:
    user: str


@dataclass(frozen=True)
class MailOf(wl.Request[wl.Personal[str] | None]):
    user: str


@dataclass(frozen=True)
class Go:
    text: str = ""


def program() -> tuple[wl.Program, dict[str, Any]]:
    app = wl.Program("people")

    @app.reducer(key="user")
    @dataclass
    class Person:
        name: str = ""
        mail: wl.Personal[str] | None = None
        loud: list[wl.Personal[str]] = field(default_factory=list)
        erased: int = 0

        @wl.on
        def join(self, event: Joined) -> None:
            self.mail = event.mail

        @wl.on
        def rename(self, event: Renamed) -> None:
            self.name = event.name

        @wl.on
        def shout(self, event: Shouted) -> None:
            assert self.mail is not None
            try:
                self.loud.append(wl.Personal(self.mail.value.upper(), of=event.user))
            except wl.errors.Erased:
                self.erased += 1

        @wl.on
        def ask(self, event: MailOf) -> wl.Personal[str] | None:
            return self.mail

    @app.effect
    async def deliver(to: wl.Personal[str], text: str) -> wl.Personal[str]:
        return wl.Personal(f"{text} to {to.value}", of="ada")

    @app.workflow
    async def greet(user: str, to: wl.Personal[str]) -> wl.Personal[str]:
        said = await deliver(to, f"hello {user}")
        await wl.wait(Go)
        return wl.Personal(said.value + "!", of=user)

    @app.effect
    async def make(user: str, count: int) -> list[wl.Personal[int]]:
        return [wl.Personal(number, of=user) for number in range(count)]

    @app.workflow
    async def hoard(user: str, count: int) -> list[wl.Personal[int]]:
        found: list[wl.Personal[int]] = []
        while len(found) < count:
            found += await make(user, min(500, count - len(found)))
        return found

    @app.workflow
    async def pass_on(world: str, user: str, mail: wl.Personal[str]) -> None:
        await wl.send(world, Joined(user, mail))

    @app.workflow
    async def tell(world: str, user: str, mail: wl.Personal[str]) -> str:
        await wl.gather(pass_on(world, user, mail), pass_on(world, user, wl.Personal(mail.value, of=user)))
        found = await wl.ask(world, MailOf(user))
        assert found is not None
        return f"{len(found.value)} characters"

    return app, {"Person": Person, "greet": greet, "hoard": hoard, "tell": tell, "pass_on": pass_on, "deliver": deliver}


def ada(mail: str = SECRET) -> Joined:
    return Joined("ada", wl.Personal(mail, of="ada"), (wl.Personal({"why": mail}, of="ada"),))


async def live(world: wl.World, names: dict[str, Any]) -> None:
    """Everything that personal values can be in."""
    await world.send(ada(), id="first")
    await world.send(Joined("bob", wl.Personal("bob@example.org", of="bob")))
    await world.send(Joined("ada", wl.Personal(LARGE, of="ada")))
    await world.send(Renamed("ada", "Ada"))
    await world.send(ada())
    await (await world.send(Shouted("ada"))).applied(30)
    run = await world.start(names["greet"]("ada", wl.Personal(SECRET, of="ada")), id="greeting")
    await world.send(Go(), to="greeting")
    await run.result(30)
    assert (await world.ask(MailOf("ada"), timeout=30)) is not None
