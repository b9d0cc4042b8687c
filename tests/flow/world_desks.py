"""The test world as a host of the contract suite: its clock is virtual.

What jobs do is seen by running the journal again with a recorder: steps themselves record nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import worldline as wl
from tests.flow.hosts import KEY, Handlers
from worldline import flow, testing
from worldline.features.domains.pure.requirements import AnsweredRequirement
from worldline.flow import effect_registry as calls
from worldline.flow_core import flow_records, jobs, patches
from worldline.flow_core import js_values as flow_values
from worldline.flow_core.authoring.domain_class import Act
from worldline.kernel import runs, user_values
from worldline.model import inbox
from worldline.model.inbox import ReceiptStatus

NAME = "Desk"
_STATUS = {
    jobs.EFFECT_TIMEOUT: ReceiptStatus.TIMEOUT,
    jobs.EFFECT_CANCELLED: ReceiptStatus.CANCELLED,
    jobs.EFFECT_EXECUTION_FAILED: ReceiptStatus.ERROR,
}


def declared(
    document: Mapping[str, Any], performing: dict[str, Callable[..., Any]], effects: Any
) -> tuple[wl.Program, flow.Document, dict[str, Any]]:
    """A program of one domain, and the effects that it has."""
    app = wl.Program("desk")
    found = {name: app.effect(name=name, retry=wl.Retry(attempts=1))(each) for name, each in performing.items()}
    return app, app.domain(document, keyed=True, name=NAME, effects=effects), found


def act_of(domain: flow.Document, type: str, input: Any) -> Act[Any]:
    return Act(domain, type, {} if input is flow_values.MISSING else input)


class InTestWorld:
    """A domain in a world of `worldline.testing`. Every step is done twice and compared."""

    has_runners = False

    def __init__(
        self,
        document: Mapping[str, Any],
        handlers: Handlers,
        *,
        perform: bool = True,
        effects: str = "serial",
        environment: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        names = [*handlers] if perform else types_of(document)
        app, self.domain, found = declared(document, dict.fromkeys(names, _unperformed), effects)
        script = wl.Script()
        for name, effect in found.items():
            script.on(effect, self._answering(name, handlers[name]) if perform else wl.Script.never())
        self._open = ExitStack()
        self.world = self._open.enter_context(testing.world(app, script, now=datetime(1970, 1, 1, tzinfo=UTC)))
        if environment is not None:
            self.world.env(environment())

    def _answering(self, name: str, handler: flow.Handler) -> Callable[..., Any]:
        def answer(url: Any = None, input: Any = None, n: Any = None, *, snapshot: flow.Snapshot) -> Any:
            requirement = asked(snapshot, name, url=url, input=input, n=n)
            given = handler(calls.call(requirement, snapshot))
            return answer_of(requirement, _driven(given) if inspect.isawaitable(given) else given)

        return answer

    async def act(self, type: str, input: Any = flow_values.MISSING, *, key: str = KEY, id: str = "") -> flow.Result:
        acted = self.world.act(act_of(self.domain, type, input), key=key, id=id or None)
        return flow.Result(acted.status, await self.snapshot(key), acted.error, ())

    async def submit(self, type: str, input: Any = flow_values.MISSING, *, key: str = KEY, id: str = "") -> None:
        self.world.submit(act_of(self.domain, type, input), key=key, id=id or None)

    async def idle(self) -> None:
        self.world.play(limit_us=0)

    async def advance(self, ms: int) -> None:
        self.world.advance(ms / 1_000)

    async def snapshot(self, key: str = KEY) -> flow_records.Snapshot:
        return self.world.snapshot(self.domain, key)

    async def inject(self, requirement_id: str, given: object, *, key: str = KEY) -> None:
        """The receipt of the effect that the requirement has become."""
        intent = next(
            intent
            for intent, each in self.world.machine.work.open.items()
            if each.event and AnsweredRequirement.of(each.event).requirement == requirement_id
        )
        status, data = ReceiptStatus.OK, b""
        if isinstance(given, jobs.Failure):
            status, data = _STATUS[given.code], runs.failure(given.code, given.message)
        else:
            data = user_values.dump(answer_of(self._of(requirement_id, key), given))
        self.world.step(inbox.EffectReceipt(intent, status, self.world.life.carry(data), 1), data)

    def _of(self, requirement_id: str, key: str) -> flow_records.Requirement:
        pending = self.world.snapshot(self.domain, key).system.pending_requirements
        return next(each for each in pending if each.id == requirement_id)

    async def patch(self, given: list[patches.Patch], *, key: str = KEY) -> None:
        jobs.from_handler(given)
        self.world.patch(self.domain, given, key=key)

    def events(self, key: str = KEY) -> list[flow.Event]:
        return [flow.Event(each.key, each.type, each.fields) for each in self.world.trace(key=key).events]

    async def close(self) -> None:
        self.world.prove()
        self._open.close()


async def _unperformed(url: Any = None, input: Any = None, n: Any = None, *, snapshot: flow.Snapshot) -> Any:
    raise AssertionError(f"a test world performs nothing: {url} {input} {n} {snapshot}")


def _driven(given: Awaitable[Any]) -> Any:
    """What an async handler gives that waits for nothing but its turn."""
    running: Any = given.__await__()
    while True:
        try:
            next(running)
        except StopIteration as ended:
            return ended.value


def types_of(node: Any) -> list[str]:
    """The effects that a document asks for."""
    inside = node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
    own = [node["type"]] if isinstance(node, Mapping) and node.get("kind") == "effect" else []
    return list(dict.fromkeys([*own, *(name for each in inside for name in types_of(each))]))


def asked(snapshot: flow.Snapshot, type: str, **given: Any) -> flow_records.Requirement:
    """The requirement that an effect is performed for, in the snapshot that it is given."""
    pending = snapshot.system.pending_requirements
    return next(
        each
        for each in pending
        if each.type == type and all(each.params.get(name) == value for name, value in given.items())
    )


def answer_of(requirement: flow_records.Requirement, given: Any) -> Any:
    """What a handler of the suite gives, as an effect answers it: a value if `into` names its place, else patches."""
    if "into" in requirement.params:
        (patch,) = given
        assert patch.path == requirement.params["into"]
        return patch.value
    return [flow_records.plain(each) if isinstance(each, patches.Patch) else each for each in given]
