"""The flow domains of a world: acting, and asking what may be done. `World` has these methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from worldline.base import errors
from worldline.client import time_limits
from worldline.client.world_handle import Handle
from worldline.codec import digest, structs
from worldline.features.domains import halted_acts, previews, stored_trace
from worldline.features.domains.previews import Explained, Preview
from worldline.features.domains.pure import domain_cell, part
from worldline.features.domains.pure.job_trace import Trace
from worldline.flow_core import flow_records, jobs
from worldline.flow_core.authoring.action_calls import Acted, IntentAnswer, acted_of, checked, event_of
from worldline.flow_core.authoring.document_domain import name_of
from worldline.flow_core.authoring.domain_class import Act, Action
from worldline.flow_core.exporting.tools import Shape, Tools
from worldline.flow_core.patches import Patch
from worldline.kernel.authoring.calls import Seconds
from worldline.kernel.rows.row_records import UNREAD
from worldline.model import ids

S = TypeVar("S")


class Acts:
    """What of a world concerns its flow domains."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def act(
        self, act: Act[S], /, *, key: str = "", id: str | None = None, timeout: Seconds | None = None
    ) -> Acted[S]:
        """Do an action and wait for its end: `await world.act(Order.pay("tok"), key="o-7")`.

        The end may be an error of the action; that is no exception. The same id is the same intent, and gives the same
        end; with another input it is refused. `TimeoutError` if it takes longer: it goes on, and the same id finds it.
        `NotRetained` if that was so long ago that its answer is not kept any more. It waits on if an effect of it is
        parked, and the log says so, with the command to type.
        """
        checked(act)
        if id is not None:
            ids.check_chosen(id, "an intent's id")
        intent = id or self._handle.connection.store.env.random_bytes(16).hex()
        schema, data = event_of(act, key=key, id=intent, named=id is not None)
        if timeout is None:
            return await self._acted(act, await self._submitted(schema, data, key, id, intent), key)

        def late(limit: str) -> str:
            return time_limits.of_request(self._handle, schema, id, limit)

        async with time_limits.Within(timeout, late):
            return await self._acted(act, await self._submitted(schema, data, key, id, intent), key)

    async def _acted(self, act: Act[S], answered: tuple[bytes, int], key: str) -> Acted[S]:
        """The end of an intent, by its answer and the height at which that stands."""
        said = structs.decode(IntentAnswer, answered[0])
        if said.state is None:
            behind = await self._handle.step_end(answered[1])
            return acted_of(act, said, await snapshot_at(self._handle, act.domain, key, at=behind))
        return acted_of(act, said, flow_records.received(said.state))

    async def _submitted(
        self, schema: str, data: bytes, key: str, id: str | None, drawn: str = ""
    ) -> tuple[bytes, int]:
        """A chosen id is taken once, as every client id is, in the cell that it is for; one that was drawn is the
        caller's correlation, too.
        """
        domain, _, _ = schema.partition(".")
        halts = halted_acts.ActWatch(self._handle, halted_acts.AwaitedIntent(schema, domain, key, id or drawn))
        if id is None:
            return await self._handle.ask_at(schema, data, correlation=drawn, halts=halts)
        # An id is unique in its cell alone, so the domain and the key are part of it.
        once = digest.hash_parts(b"act", domain.encode(), key.encode(), id.encode()).hex()
        try:
            return await self._handle.ask_at(schema, data, id=f"act:{once}", halts=halts)
        except errors.IdReused:
            raise errors.IdReused(id) from None  # with the id that the caller has chosen

    async def explain(self, what: Act[Any] | Action[Any, ...], /, *, key: str = "") -> Explained:
        """Say whether an action may be done now, and if not, why: `Order.pay`, or with its input `Order.pay("tok")`."""
        return previews.explain(await self._handle.machine(), what, key, now_us=self._now_us())

    async def preview(self, act: Act[S], /, *, key: str = "") -> Preview[S]:
        """Say what an action would do now, up to its first effect. The world does not change."""
        return previews.preview(await self._handle.machine(), checked(act), key, now_us=self._now_us())

    async def tools(self, domain: Any, /, *, key: str = "", shape: Shape = "openai") -> Tools:
        """Offer the actions of a domain as tools for a model, in the shape "openai", "anthropic" or "mcp": those that
        may be called now, and why not the others. `flow.Act(domain, *tools.call(name, arguments))` is what it has
        chosen.
        """
        return previews.tools(await self._handle.machine(), domain, key, shape=shape, now_us=self._now_us())

    async def abandon(self, domain: Any, id: str, /, *, key: str = "") -> None:
        """End an intent that is on its way, with an error. Its effects are given up. `NotFound` if there is none."""
        await self._handle.command(part.ABANDON, part.AbandonIntent(name_of(domain), key, id))

    async def patch(self, domain: Any, given: Sequence[Patch], /, *, key: str = "", source: str = "patch") -> None:
        """Change the data of a domain from outside, as a job of its own. What does not fit is an error in the
        snapshot; `flow.BadPatch` for what is no patch.
        """
        plain = flow_records.plain_list(jobs.from_handler(given))
        await self._handle.command(part.PATCH, part.PatchCell(name_of(domain), key, plain, source))

    async def env(self, env: Mapping[str, Any], /) -> None:
        """Set what flows read as their environment from here on (`env.NAME`). It is journaled: no secrets."""
        await self._handle.command(part.ENV, part.SetEnv(dict(env)))

    async def trace(
        self,
        *,
        domain: Any = None,
        key: str | None = None,
        intent: str | None = None,
        above: int | None = None,
        up_to: int | None = None,
        graphs: bool = False,
    ) -> Trace:
        """Say what the jobs of flow domains did, as events of the Host contract: of the steps that end in (above,
        up_to], else of the last thousand entries; of one domain, cell or intent, if that is said. `graphs`: with Core's
        own trace of every compute. The steps are run again, so the trace is what happened, or `Diverged`; a world that
        has more than flow domains needs its program. `NotRetained` below what is kept.
        """
        wanted = stored_trace.wanted_of(domain, key, intent, graphs=graphs)
        return await stored_trace.trace(self._handle, wanted, above=above, up_to=up_to)

    def _now_us(self) -> int:
        return self._handle.connection.store.env.wall_us()


async def snapshot_at(world: Handle, domain: Any, key: str, *, at: int | None) -> flow_records.Snapshot:
    """The snapshot of a cell, now or at a height; of one that there is not yet, the first that it would have."""
    live = None if at is None else await world.live_cell(name_of(domain), key, at=at)
    if live is not None and live.value is not UNREAD:
        return flow_records.copied(live.value[1])
    data = await world.cell(name_of(domain), key, at=at)
    if data is not None:
        return domain_cell.decode(data)[1]
    machine = await world.machine(at=at)
    return previews.snapshot_of(machine, domain, key, now_us=world.connection.store.env.wall_us())
