"""A hypothesis state machine for a flow domain: any actions, with any inputs, and any answers of its effects.

The domain runs on a standalone host whose clock stands still. After every action the machine checks what must hold of
every domain: `Core.refusal` has said what would be refused, and a refused action changes nothing; no requirement is
left, the key takes more, every field fits its spec. At the end, the trace is replayed and gives the same snapshot,
byte for byte. What must hold of *this* domain is given as invariants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from worldline import flow
from worldline.base import env as envs
from worldline.base import errors, failures
from worldline.kernel import values as stored
from worldline.kernel.authoring.scripts import Later, Reading, Script
from worldline.kernel.flow import core, faults, fields, jobs, patches, paths, schema, snapshots, values
from worldline.kernel.flow.analysis import reads
from worldline.kernel.flow.compiled import Compiled
from worldline.kernel.flow.exporting import tools

_REFUSALS = (faults.UNKNOWN_ACTION, faults.INVALID_INPUT, faults.ACTION_UNAVAILABLE)
ITEMS_MAX = 4  # of a list that is drawn
TEXT_LENGTH_MAX = 20


class StillEnv(envs.FixedEnv):
    """A clock that stands still: what sleeps does not wake, so no effect times out."""

    async def sleep(self, seconds: float) -> None:
        del seconds
        await asyncio.get_running_loop().create_future()


def scripted(script: Script) -> dict[str, flow.Handler]:
    """Handlers for a standalone host that answer as a script says, for the effects that it names."""
    reading = Reading(script)

    def handler(name: str) -> flow.Handler:
        effect = script.effects[name]

        def answer(*, snapshot: flow.Snapshot, **params: Any) -> Any:
            said = reading.attempt(effect, effect.signature.pack((), params), snapshot=snapshot)
            if said.after_us is None:
                return asyncio.get_running_loop().create_future()  # the effect's timeout ends it
            if not said.ok:
                raise failures.EffectFailed(said.message)
            return stored.load(effect.signature.hints.get("return", Any), said.data)

        return flow.answering(answer)

    return {name: handler(name) for name in script.answers}


def domain_machine(
    domain: Mapping[str, Any] | Compiled | type[flow.Domain],
    *,
    invariants: Sequence[Callable[[Any], object]] = (),
    handlers: Mapping[str, flow.Handler] | None = None,
    script: Script | None = None,
    data: Mapping[str, Any] | None = None,
) -> type[Any]:
    """A hypothesis `RuleBasedStateMachine` with one rule for each action; pytest takes its `TestCase`.

    An invariant gets an instance of the class (of a document, its snapshot), and fails if it raises or gives False.
    Effects without a handler or a script answer with anything that fits their target, or fail.
    """
    hypothesis = _hypothesis()
    stateful = hypothesis.stateful
    given = domain.document() if isinstance(domain, type) else domain
    compiled = given if isinstance(given, Compiled) else flow.load(given)
    known = {**scripted(_ending(script or Script())), **(handlers or {})}
    strategies = Strategies(hypothesis.strategies)

    def begin(self: Any) -> None:
        stateful.RuleBasedStateMachine.__init__(self)
        self.subject = Subject(compiled, known, strategies, data or {})

    def teardown(self: Any) -> None:
        self.subject.end()

    def holds(self: Any) -> None:
        head = self.subject.head
        seen = domain.read(head) if isinstance(domain, type) else head
        for each in invariants:
            assert each(seen) is not False, f"{getattr(each, '__name__', each)} does not hold of {head.data}"

    members: dict[str, Any] = {"__init__": begin, "teardown": teardown, "holds": stateful.invariant()(holds)}
    for action, name in tools.tool_names(compiled.schema).items():
        spec = compiled.schema.actions[action].input
        taken = (
            strategies.of(spec) if isinstance(spec, schema.FieldSpec) else hypothesis.strategies.just(values.MISSING)
        )
        rule = stateful.rule(input=taken, answers=strategies.answers(compiled, action))
        members[f"act_{name.replace('-', '_')}"] = rule(_acting(action))
    return type("DomainMachine", (stateful.RuleBasedStateMachine,), members)


def _ending(script: Script) -> Script:
    """A script without answers that never come: the machine's clock stands still, so no timeout would end them."""
    for name, answers in script.answers.items():
        if any(isinstance(each, Later) and each.after_us is None for each in answers):
            raise errors.BadInput(f"script of {name}(): no time passes in this machine; answer with a TimeoutError")
    return script


def _acting(action: str) -> Callable[..., None]:
    def act(self: Any, input: Any, answers: Any) -> None:
        self.subject.act(action, input, answers)

    return act


def _hypothesis() -> Any:
    try:
        import hypothesis  # noqa: PLC0415 - a dependency of tests alone
        import hypothesis.stateful  # noqa: PLC0415
    except ImportError as missing:
        raise errors.BadInput("domain_machine needs hypothesis; pip install hypothesis") from missing
    return hypothesis


class Strategies:
    """Values that fit a field, as hypothesis draws them."""

    def __init__(self, st: Any) -> None:
        self._st = st

    def of(self, spec: schema.FieldSpec) -> Any:
        st, kind = self._st, spec.type
        if isinstance(kind, schema.Enum):
            return st.sampled_from(kind.enum or [None])  # null fits every field
        if kind == "array":
            items = self.of(spec.items) if isinstance(spec.items, schema.FieldSpec) else st.just(None)
            return st.lists(items, max_size=ITEMS_MAX)
        if kind == "object":
            if not isinstance(spec.fields, dict):
                return st.just({})
            parts = {name: self.of(each) for name, each in spec.fields.items()}
            needed = {name: each for name, each in parts.items() if spec.fields[name].required}
            return st.fixed_dictionaries(needed, optional={name: parts[name] for name in parts if name not in needed})
        floats = st.floats(allow_nan=False, allow_infinity=False)
        plain = {
            "number": st.one_of(st.integers(-1_000, 1_000), floats),
            "string": st.text(max_size=TEXT_LENGTH_MAX),
            "boolean": st.booleans(),
            "null": st.none(),
        }
        return plain[kind]

    def answers(self, compiled: Compiled, action: str) -> Any:
        """What the effects of an action say, by type and target: `(True, value)`, or `(False, None)` for a failure.

        They are drawn before the action begins, the last of each stays; hypothesis cannot interrupt a host to draw.
        """
        drawn = {}
        for spec in reads.called(compiled.schema, action):
            for name, target in [*((each, "") for each in reads.effects(spec)), *reads.answers(spec)]:
                field = fields.lookup(compiled.fields, paths.split(target)) if target else None
                value = self._st.none() if field is None else self.of(field)
                drawn[(name, target)] = self._st.lists(
                    self._st.tuples(self._st.booleans(), value), min_size=1, max_size=ITEMS_MAX
                )
        return self._st.fixed_dictionaries(drawn)


class Subject:
    """The domain under test: a host, its trace, and what the current rule draws answers from."""

    def __init__(
        self, compiled: Compiled, known: Mapping[str, flow.Handler], strategies: Strategies, data: Mapping[str, Any]
    ) -> None:
        self._compiled = compiled
        self._strategies = strategies
        self._answers: dict[tuple[str, str], list[tuple[bool, Any]]] = {}
        self._events: list[flow.Event] = []
        self._runner = asyncio.Runner()
        self._host = flow.Host(compiled, data=data, env=StillEnv(), trace=self._events.append)
        for name in _effects(compiled):
            self._host.register(name, known.get(name, self._drawn))
        self._first = self._host.snapshot()
        self._count = 0

    @property
    def head(self) -> snapshots.Snapshot:
        return self._host.snapshot()

    def act(self, action: str, given: Any, answers: Any) -> None:
        """One intent to its end, and what must hold of any."""
        self._answers = {target: list(each) for target, each in answers.items()}
        self._count += 1
        before = self.head
        refusal = core.Core().refusal(self._compiled, before, snapshots.Intent(action, str(self._count), given))
        result = self._runner.run(self._dispatch(action, given))
        if refusal is not None:
            assert result.error is not None, f"{action} was to be refused with {refusal.code}"
            assert result.error.code == refusal.code, f"{action}: {result.error.code}, not {refusal.code}"
            assert _own(result.snapshot) == _own(before), f"{action} was refused and has changed the data"
        elif result.error is not None:
            assert result.error.code not in _REFUSALS, f"{action} was not to be refused with {result.error.code}"
        self._check(action)

    def end(self) -> None:
        """The trace gives the same snapshot again."""
        self._runner.run(self._host.close())
        self._runner.close()
        again = flow.replay(self._host.domain, self._first, self._events)
        assert snapshots.encoded(again) == snapshots.encoded(self.head), "a replay of the trace comes out otherwise"

    async def _dispatch(self, action: str, given: Any) -> flow.Result:
        return await self._host.dispatch(action, given, id=str(self._count))

    def _check(self, action: str) -> None:
        assert self._host.fatal() == "", self._host.fatal()
        assert self.head.system.pending_requirements == (), f"{action} has left a requirement"
        assert not jobs.is_busy(self.head), f"{action} has ended and is not forgotten"
        for name, spec in self._compiled.fields.items():
            wrong = fields.misfit(spec, self.head.data[name], name) if name in self.head.data else ""
            assert wrong == "", wrong

    def _drawn(self, call: flow.EffectCall) -> list[patches.Patch]:
        """An effect without a handler: anything that fits its target, or a failure."""
        name, into, fail = str(call.requirement["type"]), call.params.get("into"), call.params.get("fail")
        target = into if isinstance(into, str) and (name, into) in self._answers else ""
        drawn = self._answers[name, target]
        succeeds, value = drawn.pop(0) if len(drawn) > 1 else drawn[0]
        if not succeeds:
            if not isinstance(fail, str):
                raise failures.EffectFailed("drawn")
            return [patches.set_(fail, {"code": "DRAWN", "message": "drawn"})]
        return [patches.set_(target, value)] if target else []


def _own(head: snapshots.Snapshot) -> dict[str, Any]:
    return {name: each for name, each in head.data.items() if name != snapshots.HOST}


def _effects(compiled: Compiled) -> list[str]:
    from_actions = (reads.effects(each) for each in compiled.schema.actions.values())
    return [name for name in dict.fromkeys(n for names in from_actions for n in names) if name != jobs.SYSTEM_GET]
