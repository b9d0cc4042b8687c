"""A hypothesis state machine for a flow domain: any actions, with any inputs, and any answers of its effects.

The rules are the same wherever the domain runs (`domain_subjects.py`). After every action they check what must hold of
every domain: `Core.refusal` has said what would be refused, and a refused action changes nothing; no requirement is
left, the cell takes more, every field fits its spec. What more must hold of a standalone host or of a world, its
subject knows. What must hold of *this* domain is given as invariants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from worldline import flow
from worldline.base import errors
from worldline.flow_core import core, document_schema, faults, fields, flow_records, jobs, js_values, value_paths
from worldline.flow_core.analysis import reads
from worldline.flow_core.compiled_document import Compiled
from worldline.flow_core.exporting import tools
from worldline.kernel.authoring.program import Program
from worldline.kernel.authoring.scripts import Script
from worldline.testing import domain_subjects as subjects

_REFUSALS = (faults.UNKNOWN_ACTION, faults.INVALID_INPUT, faults.ACTION_UNAVAILABLE)
ITEMS_MAX = 4  # of a list that is drawn
TEXT_LENGTH_MAX = 20


def domain_machine(
    domain: Mapping[str, Any] | Compiled | type[flow.Domain] | flow.Document,
    *,
    program: Program | None = None,
    invariants: Sequence[Callable[[Any], object]] = (),
    handlers: Mapping[str, flow.Handler] | None = None,
    script: Script | None = None,
    data: Mapping[str, Any] | None = None,
) -> type[Any]:
    """Make a hypothesis `RuleBasedStateMachine` with one rule for each action; pytest takes its `TestCase`.

    The domain runs on a standalone host whose clock stands still; with `program`, in a test world of that program,
    which declares it. An invariant gets an instance of the class (of a document, its snapshot), and fails if it raises
    or gives False. Effects without a handler or a script answer with anything that fits their target, or fail. `data`:
    what it begins with.
    """
    hypothesis = _hypothesis()  # first: without it, the rest of this function raises something that does not name it
    stateful = hypothesis.stateful
    given = domain.document() if isinstance(domain, type | flow.Document) else domain
    compiled = given if isinstance(given, Compiled) else flow.load(given)
    make = subjects.maker(
        domain, compiled, program, handlers=handlers or {}, script=script or Script(), data=data or {}
    )
    strategies = Strategies(hypothesis.strategies)

    def begin(self: Any) -> None:
        stateful.RuleBasedStateMachine.__init__(self)
        answers = subjects.Answers()
        self.domain_rules = Rules(compiled, make(answers), answers)

    def teardown(self: Any) -> None:
        self.domain_rules.end()

    def holds(self: Any) -> None:
        head = self.domain_rules.head
        seen = domain.read(head) if isinstance(domain, type) else head
        for each in invariants:
            assert each(seen) is not False, f"{getattr(each, '__name__', each)} does not hold of {head.data}"

    members: dict[str, Any] = {"__init__": begin, "teardown": teardown, "holds": stateful.invariant()(holds)}
    for action, name in tools.tool_names(compiled.schema).items():
        spec = compiled.schema.actions[action].input
        taken = (
            strategies.of(spec)
            if isinstance(spec, document_schema.FieldSpec)
            else hypothesis.strategies.just(js_values.MISSING)
        )
        rule = stateful.rule(input=taken, answers=strategies.answers(compiled, action))
        members[f"act_{name.replace('-', '_')}"] = rule(_acting(action))
    return type("DomainMachine", (stateful.RuleBasedStateMachine,), members)


def _acting(action: str) -> Callable[..., None]:
    def act(self: Any, input: Any, answers: Any) -> None:
        self.domain_rules.act(action, input, answers)

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

    def of(self, spec: document_schema.FieldSpec) -> Any:
        st, kind = self._st, spec.type
        if isinstance(kind, document_schema.Enum):
            return st.sampled_from(kind.enum or [None])  # null fits every field
        if kind == "array":
            items = self.of(spec.items) if isinstance(spec.items, document_schema.FieldSpec) else st.just(None)
            return st.lists(items, max_size=ITEMS_MAX)
        if kind == "object":
            if not isinstance(spec.fields, dict):
                return st.just({})
            parts = {name: self.of(each) for name, each in spec.fields.items()}
            # What is optional may be absent: that, too, is an input.
            needed = {name: each for name, each in parts.items() if spec.fields[name].required}
            return st.fixed_dictionaries(needed, optional={name: parts[name] for name in parts if name not in needed})
        # Data of a domain is JSON, which has no NaN and no infinity.
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
                field = fields.lookup(compiled.fields, value_paths.split(target)) if target else None
                value = self._st.none() if field is None else self.of(field)
                drawn[(name, target)] = self._st.lists(
                    self._st.tuples(self._st.booleans(), value), min_size=1, max_size=ITEMS_MAX
                )
        return self._st.fixed_dictionaries(drawn)


class Rules:
    """What must hold of any domain after any action, whatever hosts it."""

    def __init__(self, compiled: Compiled, subject: subjects.DomainSubject, answers: subjects.Answers) -> None:
        self._compiled = compiled
        self._subject = subject
        self._answers = answers
        self._count = 0

    @property
    def head(self) -> flow_records.Snapshot:
        return self._subject.head

    def act(self, action: str, action_input: Any, answers: Any) -> None:
        """One intent to its end, and what must hold of any."""
        self._answers.begin(answers)
        self._count += 1
        before = self.head  # the refusal is asked for on the state before, and compared with what the action then does
        refusal = core.Core().refusal(
            self._compiled, before, flow_records.Intent(action, str(self._count), action_input)
        )
        error = self._subject.act(action, action_input, id=str(self._count))
        if refusal is not None:
            assert error is not None, f"{action} was to be refused with {refusal.code}"
            assert error.code == refusal.code, f"{action}: {error.code}, not {refusal.code}"
            # The part that the host keeps is left out: an action is judged by the data of the domain.
            assert _own(self.head) == _own(before), f"{action} was refused and has changed the data"
        elif error is not None:
            assert error.code not in _REFUSALS, f"{action} was not to be refused with {error.code}"
        self._check(action)
        self._subject.check()

    def end(self) -> None:
        self._subject.end()

    def _check(self, action: str) -> None:
        assert self._subject.stuck() == "", self._subject.stuck()
        assert self.head.system.pending_requirements == (), f"{action} has left a requirement"
        assert not jobs.is_busy(self.head), f"{action} has ended and is not forgotten"
        for name, spec in self._compiled.fields.items():
            wrong = fields.misfit(spec, self.head.data[name], name) if name in self.head.data else ""
            assert wrong == "", wrong


def _own(head: flow_records.Snapshot) -> dict[str, Any]:
    return {name: each for name, each in head.data.items() if name != flow_records.HOST}
