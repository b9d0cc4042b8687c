"""A world in a store as a host of the contract suite: real effects, the store's own clock.

What jobs do is seen by running the journal again with a recorder.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

import worldline as wl
from tests import aio
from tests.flow.hosts import KEY, Handlers
from tests.flow.world_desks import act_of, answer_of, asked, declared
from tests.kits.kit import Kit
from worldline import flow
from worldline.codec import structs
from worldline.features.domains import calls as domain_calls
from worldline.features.domains.pure.requirements import AnsweredRequirement
from worldline.flow import effect_registry as calls
from worldline.flow_core import flow_records, jobs, patches
from worldline.flow_core import js_values as flow_values
from worldline.flow_core.authoring.action_calls import IntentAnswer, event_of


class InStore:
    """A domain in a world of a store. It is opened when it is first used."""

    has_runners = False

    def __init__(
        self,
        kit: Kit,
        document: Mapping[str, Any],
        handlers: Handlers,
        *,
        perform: bool = True,
        effects: str = "serial",
    ) -> None:
        performing = {name: self._performing(name, each) for name, each in handlers.items()} if perform else {}
        self.app, self.domain, _ = declared(document, performing, effects)
        self._kit = kit
        self._perform = perform
        self._world: wl.World | None = None
        self._events: list[wl.ops.TraceEvent] = []
        self._count = 0

    def _performing(self, name: str, handler: flow.Handler) -> Callable[..., Any]:
        async def perform(url: Any = None, input: Any = None, n: Any = None, *, snapshot: flow.Snapshot) -> Any:
            requirement = asked(snapshot, name, url=url, input=input, n=n)
            given = handler(calls.call(requirement, snapshot))
            return answer_of(requirement, await given if inspect.isawaitable(given) else given)

        return perform

    async def world(self) -> wl.World:
        if self._world is None:
            process = await self._kit.process(self.app)
            self._world = await process.universe.ensure("w", self.app)
        return self._world

    async def act(self, type: str, input: Any = flow_values.MISSING, *, key: str = KEY, id: str = "") -> flow.Result:
        world = await self.world()
        self._count += 1
        schema, data = event_of(act_of(self.domain, type, input), key=key, id=id or f"i-{self._count}", named=bool(id))
        answer, _ = await world._submitted(schema, data, key, id or None)
        said = structs.decode(IntentAnswer, answer)
        error = None if said.error is None else msgspec.convert(said.error, flow_records.ErrorValue)
        head = await self.snapshot(key) if said.state is None else flow_records.decoded(said.state)
        await self._read()
        return flow.Result(said.status, head, error, ())

    async def submit(self, type: str, input: Any = flow_values.MISSING, *, key: str = KEY, id: str = "") -> None:
        world = await self.world()
        self._count += 1
        schema, data = event_of(act_of(self.domain, type, input), key=key, id=id or f"i-{self._count}", named=bool(id))
        await aio.journaled(wl.Sent(world._universe, await world._handle.send(schema, data)))

    async def idle(self) -> None:
        """A step has run all jobs by its end; only effects are waited for."""
        if self._perform:
            await aio.until(self._has_no_work)
        await self._read()

    async def _has_no_work(self) -> bool:
        return not (await (await self.world())._handle.machine()).work.open

    async def snapshot(self, key: str = KEY) -> flow_records.Snapshot:
        world = await self.world()
        found: flow_records.Snapshot = await domain_calls.snapshot_at(world._handle, self.domain, key, at=None)
        return found

    async def inject(self, requirement_id: str, given: object, *, key: str = KEY) -> None:
        """Answer the effect that the requirement has become, by hand."""
        world = await self.world()
        machine = await world._handle.machine()
        intent = next(
            intent
            for intent, each in machine.work.open.items()
            if AnsweredRequirement.of(each.event).requirement == requirement_id
        )
        pending = (await self.snapshot(key)).system.pending_requirements
        requirement = next(each for each in pending if each.id == requirement_id)
        effect = await world.effect(intent.hex())
        await effect.park()
        if isinstance(given, jobs.Failure):
            await effect.answer(error=given.message)
        else:
            await effect.answer(answer_of(requirement, given))

    async def patch(self, given: list[patches.Patch], *, key: str = KEY) -> None:
        await (await self.world()).patch(self.domain, given, key=key)

    async def _read(self) -> None:
        self._events = (await (await self.world()).trace()).events

    def events(self, key: str = KEY) -> list[flow.Event]:
        return [flow.Event(each.key, each.type, each.fields) for each in self._events if each.key == key]

    async def close(self) -> None:
        await self._kit.aclose()
