"""One account, the processes that use it, and the judgement of all they did.

Two processes host it and two are mere clients; all of them make operations (`account_client.py`). On a server each host
has a way there of its own, which a test can break. When a test has done its worst, `finish` lets everything come to its
end, asks a last question, and holds what clients saw against the rule: an input that was acked before another was sent
is taken before it, an ask sees everything acked before it, and nothing is taken twice.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import signal
import time
from pathlib import Path

from tests import aio
from tests.chaos import account, account_client, audits, holders, linearizability, opening
from tests.chaos.account_client import Begun, Doings, Ended
from tests.chaos.linearizability import End, Kind, Op, Problem, Verdict
from tests.chaos.processes import Crew, Nursery, Process
from tests.servers.postgres import Server
from tests.servers.proxy import Proxy
from tests.store import postgres_kit
from worldline.api.universe_api import Universe
from worldline.layers import leases

HOSTS = ("host-1", "host-2")
CLIENTS = ("client-1", "client-2")
SENDER = "sender"  # who sends while no process hosts the account
LAST = "last"  # who asks the last question
OK_SHARE_MIN = 0.8
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
        self.universe: Universe
        self._open = False
        self._sent = 0

    async def open(self) -> None:
        """Make the store and the account, start all processes, and see them ready."""
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

    async def lease(self) -> tuple[leases.LeaseState, str | None]:
        """The account's lease, and which host has it."""
        state = await holders.state(self.universe, account.WORLD)
        return state, holders.holder(state, {name: self.lives[name] for name in HOSTS})

    async def went_on(self, name: str, *, seconds: float) -> None:
        """Wait until a process has written down something more; not for longer than this."""
        before = self._record(name).stat().st_size

        async def more() -> bool:
            return self._record(name).stat().st_size > before

        with contextlib.suppress(TimeoutError):
            await aio.until(more, seconds=seconds)

    async def send(self, count: int) -> None:
        """Additions from here, one after the other."""
        doings = Doings(self._record(SENDER))
        world = self.universe.world(account.WORLD)
        for _ in range(count):
            self._sent += 1
            id = account_client.op_id(SENDER, account_client.STORE_DOOR, self._sent)
            await doings.do([world], Begun(id, Kind.ADD, self._sent, named=False, at_ns=time.monotonic_ns()))
        doings.close()

    # --- The end ------------------------------------------------------------------------------------------------

    async def finish(self) -> str:
        """All end in order; then everything is checked. Returns what there was, in one line."""
        for process in self.lives.values():
            process.signal(signal.SIGCONT)
        await self.all_ready()
        self.crew.check()
        await asyncio.gather(*(self.lives[name].end() for name in CLIENTS))  # while there is a host to answer them
        await self.crew.end()
        await self._close()
        taken = await self._ask_last()
        ops, ended = self._history()
        counts = collections.Counter(op.end for op in ops)
        said = f"{len(taken)} taken of " + ", ".join(f"{count} {end}" for end, count in counts.items())
        stuck = {each.id for each in ended if each.stuck}
        never = [f"{op}, taken {taken.count(op.id)} times" for op in ops if op.id in stuck]
        assert not never, f"{said}; not answered in {account_client.OP_SECONDS} s: {never}"
        problems = linearizability.problems(ops, taken)
        verdict = linearizability.search(ops)
        assert not problems, f"{said}; {_told(problems, verdict)}"
        assert counts[End.OK] > OK_SHARE_MIN * len(ops), f"{said}: too little is answered for a check"
        # The journal's order explains everything, so the search must find one.
        assert verdict.order is not None, f"{said}; {verdict.states} states: {verdict.stuck} met {verdict.total}"
        await audits.check(self.crew, self.universe, self._direct, knows=[account.program], worlds=[account.WORLD])
        return f"{said}; {verdict.states} states"

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
        for name in (*HOSTS, *CLIENTS, SENDER, LAST):
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


def _told(problems: list[Problem], verdict: Verdict) -> str:
    """What is wrong by the journal, and whether clients alone could find out."""
    kinds = dict(collections.Counter(problem.wrong.value for problem in problems))
    seen = "explained" if verdict.order else "not explained" if verdict.decided else "undecided"
    first = "\n".join(f"{problem.wrong}: {problem.what}" for problem in problems[:SAID_MAX])
    return f"{kinds}; what clients saw is {seen} in {verdict.states} states\n{first}"
