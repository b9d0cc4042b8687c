"""Where the domain of a hypothesis machine runs: on a standalone host, or in a test world.

Both are driven by the same rules (`domain_machine.py`). At the end, the trace of a standalone host is replayed and
gives the same snapshot, byte for byte. A world comes back from its journal after every action with the same snapshot;
at the end its journal is proved, and forks of it, made where its actions ended, have the snapshots it had there.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Protocol

from worldline import flow
from worldline.base import env as envs
from worldline.base import errors, failures
from worldline.features.domains import previews
from worldline.features.domains.pure.requirements import TARGETS
from worldline.flow_core import flow_records, jobs, js_values, patches
from worldline.flow_core.analysis import reads
from worldline.flow_core.authoring.document_domain import name_of
from worldline.flow_core.compiled_document import Compiled
from worldline.kernel import user_values as stored
from worldline.kernel.authoring.calls import Effect
from worldline.kernel.authoring.program import Program
from worldline.kernel.authoring.scripts import Later, Script, ScriptProgress, Unscripted
from worldline.testing import effect_loop, tested_world

FORKS = 3  # of one life of a world: behind its last actions
KEY = "one"  # of the cell, if the domain has keys
_DRAWN = "DRAWN"  # the code of a failure that was drawn


class Answers:
    """What the effects of the current action say, as it was drawn before: the last of each stays."""

    def __init__(self) -> None:
        self._drawn: dict[tuple[str, str], list[tuple[bool, Any]]] = {}

    def begin(self, drawn: Mapping[tuple[str, str], list[tuple[bool, Any]]]) -> None:
        self._drawn = {target: list(each) for target, each in drawn.items()}

    def next(self, effect: str, params: Mapping[str, Any]) -> tuple[bool, str, Any]:
        """Whether it succeeds, the field that its answer goes to (empty: none that is known), and the answer."""
        into = params.get("into")
        target = into if isinstance(into, str) and (effect, into) in self._drawn else ""
        drawn = self._drawn[effect, target]
        # The last one stays: retries may ask more often than was drawn.
        succeeds, value = drawn.pop(0) if len(drawn) > 1 else drawn[0]
        return succeeds, target, value


class DomainSubject(Protocol):
    """The domain under test, as the rules see it."""

    @property
    def head(self) -> flow_records.Snapshot: ...
    def act(self, action: str, action_input: Any, *, id: str) -> flow_records.ErrorValue | None:
        """One intent to its end. Returns the error that it ended with."""
        ...

    def stuck(self) -> str:
        """Why it takes nothing any more; empty if it does."""
        ...

    def check(self) -> None:
        """What more must hold after an action."""
        ...

    def end(self) -> None:
        """What must hold of the whole life. Nothing comes after it."""
        ...


def maker(
    domain: Any,
    compiled: Compiled,
    program: Program | None,
    *,
    handlers: Mapping[str, flow.Handler],
    script: Script,
    data: Mapping[str, Any],
) -> Callable[[Answers], DomainSubject]:
    """What makes a subject for each life. `BadInput` for what does not go together."""
    if program is None:
        known = {**scripted(_ending(script)), **handlers}
        return lambda answers: Standalone(compiled, known, answers, data)  # one for each life: hypothesis begins many
    # Refused, not left out: a test whose handlers are never called would prove nothing.
    if handlers:
        raise errors.BadInput("handlers are for the standalone host; in a world effects are answered by a script")
    if not isinstance(domain, type | flow.Document):
        raise errors.BadInput("in a world a domain is its class, or what app.domain(document) gives")
    declared = program.domains.get(name_of(domain))
    if declared is None:
        raise errors.BadInput(f"program {program.name!r} has no flow domain {name_of(domain)!r}")
    effects = _effects(compiled)
    missing = [name for name in effects if program.find_effect(name) is None]
    if missing:
        raise errors.BadInput(f"program {program.name!r} has no effect {missing[0]!r}, which {declared.name} asks for")
    key = KEY if declared.keyed else ""
    return lambda answers: WorldSubject(domain, program, answers, key=key, effects=effects, script=script, data=data)


# --- A standalone host -----------------------------------------------------------------------------------------------


class StillEnv(envs.FixedEnv):
    """A clock that stands still: what sleeps does not wake, so no effect times out."""

    async def sleep(self, seconds: float) -> None:
        del seconds
        await asyncio.get_running_loop().create_future()


def scripted(script: Script) -> dict[str, flow.Handler]:
    """Make handlers for a standalone host that answer as a script says, for the effects that it names."""
    reading = ScriptProgress(script)

    def handler(name: str) -> flow.Handler:
        effect = script.effects[name]

        def answer(*, snapshot: flow.Snapshot, **params: Any) -> Any:
            said = reading.attempt(effect, effect.signature.pack((), params), snapshot=snapshot, drive=effect_loop.run)
            if said.after_us is None:
                return asyncio.get_running_loop().create_future()  # the effect's timeout ends it
            if not said.ok:
                raise failures.EffectFailed(said.message)
            return stored.load(effect.signature.hints.get("return", Any), said.data)

        return flow.answering(answer)

    return {name: handler(name) for name in script.answers}


def _ending(script: Script) -> Script:
    """A script without answers that never come: the host's clock stands still, so no timeout would end them."""
    for name, answers in script.answers.items():
        if any(isinstance(each, Later) and each.after_us is None for each in answers):
            raise errors.BadInput(f"script of {name}(): no time passes in this machine; answer with a TimeoutError")
    return script


class Standalone:
    def __init__(
        self, compiled: Compiled, known: Mapping[str, flow.Handler], answers: Answers, data: Mapping[str, Any]
    ) -> None:
        self._answers = answers
        self._events: list[flow.Event] = []
        self._runner = asyncio.Runner()
        self._host = flow.Host(compiled, data=data, env=StillEnv(), trace=self._events.append)
        for name in _effects(compiled):
            self._host.register(name, known.get(name, self._drawn))
        self._first = self._host.snapshot()

    @property
    def head(self) -> flow_records.Snapshot:
        return self._host.snapshot()

    def act(self, action: str, action_input: Any, *, id: str) -> flow_records.ErrorValue | None:
        async def dispatched() -> flow.Result:
            return await self._host.dispatch(action, action_input, id=id)

        return self._runner.run(dispatched()).error

    def stuck(self) -> str:
        return self._host.fatal()

    def check(self) -> None: ...

    def end(self) -> None:
        """The trace gives the same snapshot again."""
        self._runner.run(self._host.close())
        self._runner.close()
        # From the first snapshot, by the events alone: whatever the host knows besides them would show as a difference.
        again = flow.replay(self._host.domain, self._first, self._events)
        assert flow_records.encoded(again) == flow_records.encoded(self.head), (
            "a replay of the trace comes out otherwise"
        )

    def _drawn(self, call: flow.EffectCall) -> list[patches.Patch]:
        """An effect without a handler: anything that fits its target, or a failure."""
        succeeds, target, value = self._answers.next(str(call.requirement["type"]), call.params)
        if succeeds:
            return [patches.set_(target, value)] if target else []
        fail = call.params.get("fail")
        if not isinstance(fail, str):
            raise failures.EffectFailed("drawn")
        return [patches.set_(fail, {"code": _DRAWN, "message": "drawn"})]


# --- A test world ----------------------------------------------------------------------------------------------------


class WorldSubject:
    def __init__(
        self,
        domain: Any,
        program: Program,
        answers: Answers,
        *,
        key: str,
        effects: list[str],
        script: Script,
        data: Mapping[str, Any],
    ) -> None:
        self._domain = domain
        self._key = key
        self._answers = answers
        self._ends: list[tuple[int, bytes]] = []  # the height of each action's end, and the snapshot there
        said = Script()
        for name, given in script.answers.items():
            said.on(script.effects[name], *given)
        for name in effects:
            effect = program.find_effect(name)
            assert effect is not None, "the program was checked"
            if name not in script.answers:
                said.on(effect, functools.partial(self._drawn, effect))
        self._open = ExitStack()
        self._world = self._open.enter_context(tested_world.world(program, said))
        if data:
            self._world.patch(domain, [patches.set_(name, value) for name, value in data.items()], key=key)

    @property
    def head(self) -> flow_records.Snapshot:
        return self._world.snapshot(self._domain, self._key)

    def act(self, action: str, action_input: Any, *, id: str) -> flow_records.ErrorValue | None:
        act: flow.Act[Any] = flow.Act(self._domain, action, {} if action_input is js_values.MISSING else action_input)
        try:
            return self._world.act(act, key=self._key, id=id).error
        except errors.DecodeError as unfit:  # in production the effect would be parked, and the intent with it
            raise AssertionError(f"{action}: an effect does not take what it is called with: {unfit}") from unfit

    def stuck(self) -> str:
        return previews.stuck(self._world.machine, name_of(self._domain), self._key)

    def check(self) -> None:
        """The journal is enough: a world without its memory has the same snapshot."""
        before = flow_records.encoded(self.head)
        self._world.crash()  # after every action: a defect shows beside the action that made it
        assert flow_records.encoded(self.head) == before, "the world comes back from its journal with another snapshot"
        self._ends.append((self._world.head.height, before))

    def end(self) -> None:
        with self._open:
            self._world.prove()
            # A few: each fork costs a fold of the journal, and hypothesis lives many lives.
            for height, before in self._ends[-FORKS:]:
                fork = self._world.fork(at=height)
                found = flow_records.encoded(fork.snapshot(self._domain, self._key))
                assert found == before, f"a fork at height {height} has another snapshot"

    def _drawn(self, effect: Effect[..., Any], *args: Any, **kwargs: Any) -> Any:
        """An effect without a script: anything that fits both its target and its own type, or a failure."""
        succeeds, _, value = self._answers.next(effect.name, self._params(effect, (args, kwargs)))
        kind = effect.signature.hints.get("return", Any)
        try:
            # The value fits the target's field, but perhaps not the effect's own type: then the effect would have
            # failed.
            return stored.load(kind, stored.dump(value)) if succeeds else _failed()
        except errors.DecodeError:
            return _failed()

    def _params(self, effect: Effect[..., Any], called: tuple[tuple[Any, ...], dict[str, Any]]) -> Mapping[str, Any]:
        """The parameters of the requirement that the effect is called for, with those that stay inside."""
        for each in self.head.system.pending_requirements:
            # The effect gets the parameters without those that say where its answer goes.
            given = {name: value for name, value in each.params.items() if name not in TARGETS}
            if each.type == effect.name and effect.signature.unpack(stored.dump(given)) == called:
                return each.params
        raise Unscripted(f"{effect.name}() is called for no requirement that is pending")


def _failed() -> Any:
    raise failures.Fatal("drawn", code=_DRAWN)


def _effects(compiled: Compiled) -> list[str]:
    from_actions = (reads.effects(each) for each in compiled.schema.actions.values())
    return [name for name in dict.fromkeys(n for names in from_actions for n in names) if name != jobs.SYSTEM_GET]
