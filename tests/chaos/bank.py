"""One account, the processes that use it, and the judgement of all they did.

Two processes host it and two are mere clients; all of them make operations (`account_client.py`). On a server each host
has a way there of its own, which a test can break. When a test has done its worst, `finish` lets everything come to its
end, asks a last question, and holds what clients saw against the rule: an input that was acked before another was sent
is taken before it, an ask sees everything acked before it, and nothing is taken twice.
"""

from __future__ import annotations

import asyncio
import collections
import signal
import time
from pathlib import Path

from tests.chaos import account, account_client, audits, holders, linearizability, opening
from tests.chaos.account_client import Begun, Doings, Ended
from tests.chaos.linearizability import Kind, Op
from tests.chaos.processes import Crew, Nursery, Process
from tests.servers.postgres import Server
from tests.servers.proxy import Proxy
from tests.store import postgres_kit
from worldline.control import sdk
from worldline.layers import leases

HOSTS = ("host-1", "host-2")
CLIENTS = ("client-1", "client-2")
LAST = "last"  # who asks the last question
SAID_MAX = 5


class Bank:
    """`server`: None for a store in a folder."""

    def __init__(self, nursery: Nursery, folder: Path, *, seed: str, server: Server | None) -> None:
        self._server = server
        self._schema = postgres_kit.fresh_schema()
        self._direct = str(folder / "store") if server is None else server.url(schema=self._schema)
        self._seed = seed
        self.crew = Crew(nursery, self._direct, folder / "crew")
        self.lives: dict[str, Process] = {}
        self.proxies: dict[str, Proxy] = {}
        self.universe: sdk.Universe
        self._open = False

    async def open(self) -> None:
        """Make the store and the account, start everybody, and see them work."""
        self.universe = await opening.recorded(self._direct, self.crew.objects, knows=[account.program])
        self._open = True
        await self.universe.create(account.WORLD, account.program)
        if self._server is not None:
            for name in HOSTS:
                self.proxies[name] = await Proxy(self._server.port).start()
        for name in (*HOSTS, *CLIENTS):
            self.begin(name)
        await self.all_ready()

    def begin(self, name: str) -> None:
        """A new life of one of them."""
        words = [account_client.WORD, "--record", str(self._record(name)), "--seed", self._seed]
        if name in HOSTS:
            words.append("--hosts")
        url = ""
        if name in self.proxies:
            assert self._server is not None
            url = self._server.url(schema=self._schema, port=self.proxies[name].port)
        self.lives[name] = self.crew.start(name, *words, url=url)

    def _record(self, name: str) -> Path:
        return self.crew.folder / f"{name}.operations"

    async def all_ready(self) -> None:
        await asyncio.gather(*(process.wait_ready() for process in self.lives.values()))

    async def lease(self) -> tuple[leases.State, str | None]:
        """The account's lease, and which host has it."""
        state = await holders.state(self.universe, account.WORLD)
        return state, holders.holder(state, {name: self.lives[name] for name in HOSTS})

    # --- The end ------------------------------------------------------------------------------------------------

    async def finish(self) -> str:
        """All end in order; then everything is checked. Returns what there was, in one line."""
        for process in self.lives.values():
            process.signal(signal.SIGCONT)
        await self.all_ready()
        self.crew.check()
        await self.crew.end()
        await self._close()
        taken = await self._ask_last()
        ops, ended = self._history()
        counts = collections.Counter(op.end.value for op in ops)
        said = f"{len(taken)} taken; {dict(counts)}"
        stuck = [each for each in ended if each.stuck]
        assert not stuck, f"{said}; never answered: {stuck}"
        said += f"; {_judge(ops, taken)}"
        await audits.check(
            self.crew, self.universe, self._direct, knows=[account.program], worlds=[account.WORLD]
        )  # fmt: skip
        return said

    async def _ask_last(self) -> list[str]:
        """From a calm host, which takes everything that is left. Returns what the account has taken."""
        universe = await opening.recorded(self._direct, self.crew.objects, host=LAST, hosts=[account.program])
        try:
            world = universe.world(account.WORLD)
            doings = Doings(self._record(LAST))
            await doings.do([world], Begun(f"{LAST} 1", Kind.TOTAL, 0, named=False, at_ns=time.monotonic_ns()))
            doings.close()
            return await account.taken(world)
        finally:
            await opening.close(universe)

    def _history(self) -> tuple[list[Op], list[Ended]]:
        ops: list[Op] = []
        ended: list[Ended] = []
        for name in (*HOSTS, *CLIENTS, LAST):
            its_ops, its_ends = account_client.read(self._record(name))
            ops += its_ops
            ended += its_ends
        return ops, ended

    async def aclose(self) -> None:
        """Whatever happened, nothing is left running."""
        self.crew.close()
        for proxy in self.proxies.values():
            await proxy.aclose()
        await self._close()

    async def _close(self) -> None:
        if self._open:
            self._open = False
            await opening.close(self.universe)


def _judge(ops: list[Op], taken: list[str]) -> str:
    """By the journal's order, and by what clients could see. The first is exact, so the second must agree."""
    problems = linearizability.problems(ops, taken)
    verdict = linearizability.search(ops)
    if problems:
        kinds = dict(collections.Counter(problem.wrong.value for problem in problems))
        seen = "yes" if verdict.decided else f"not found out in {verdict.states} states"
        if verdict.order is not None:
            seen = "no"
        told = "\n".join(f"{problem.wrong}: {problem.what}" for problem in problems[:SAID_MAX])
        raise AssertionError(f"{len(taken)} taken, wrong: {kinds}; clients could see it: {seen}\n{told}")
    assert verdict.order is not None, f"no order in {verdict.states} states: {verdict.stuck} met {verdict.total}"
    return f"{verdict.states} states"
