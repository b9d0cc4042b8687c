"""Domains as classes: what they are traced to, what is refused with a hint, and what type checkers see of them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import worldline as wl
from tests.flow.hosts import VirtualEnv
from tests.flow_core.documents import document, field, first, get, lit, loaded, op
from tests.typing import checking
from worldline import flow
from worldline.flow import x
from worldline.flow_core import core, fields, flow_records, validation
from worldline.flow_core.expressions import shapes

app = wl.Program("shop")


@app.effect(timeout=10)
async def charge(card: str, cents: int) -> str:
    return f"{card}:{cents}"


@dataclass
class Line:
    name: str
    cents: int
    gift: bool = False


class Order(flow.Domain, version="2.0.0"):
    """An order."""

    cents: int = 0
    lines: list[Line] = []  # noqa: RUF012
    state: Literal["open", "paid"] = "open"
    receipt: str | None = None
    refused: flow.Error | None = None
    noted: str | None = None
    note: str = ""

    @flow.computed
    def paid(self) -> bool:
        """Whether there is a receipt."""
        return x.not_null(self.receipt)

    @flow.computed
    def names(self) -> list[str]:
        return x.map_(self.lines, lambda line: x.to_upper_case(line.name))

    @flow.action
    def add(self, name: str, cents: int, gift: bool = False) -> None:
        flow.available(x.is_null(self.receipt))
        self.lines = x.append(self.lines, Line(name=name, cents=cents, gift=gift))
        with flow.when(gift):
            self.note = x.concat(self.note, name, " is a gift. ")
        with flow.otherwise():
            self.cents = self.cents + cents

    @flow.action
    def pay(self, card: str) -> None:
        """Pay the order."""
        flow.available(self.cents > 0)
        flow.perform(charge(card, self.cents), into=self.receipt, fail=self.refused)
        with flow.when(self.paid):
            self.state = "paid"

    @flow.action
    def remind(self) -> None:
        with flow.once(self.noted):
            self.note = x.concat(self.note, "!")

    @flow.action
    def drop(self) -> None:
        with flow.when((self.cents > 100) & (self.state == "open")):
            flow.fail("TOO_MUCH", x.concat("it is ", self.cents))
        flow.clear(self.receipt)
        flow.call(Order.remind)
        flow.halt("dropped")


def host() -> flow.Host:
    made = flow.Host(Order, env=VirtualEnv())
    made.register("charge", flow.answering(charge.function))
    return made


def test_a_class_is_a_valid_document() -> None:
    made = Order.document()
    assert flow.validate(made) == []
    assert (made["id"], made["version"], made["meta"]["description"]) == ("worldline:Order", "2.0.0", "An order.")
    assert made["state"]["fields"]["state"] == {
        "type": {"enum": ["open", "paid"]},
        "required": False,
        "default": "open",
    }
    assert made["state"]["fields"]["lines"]["items"]["fields"]["gift"]["default"] is False
    assert made["computed"]["fields"]["computed.paid"]["deps"] == ["receipt"]
    assert made["actions"]["pay"]["description"] == "Pay the order."
    assert made["actions"]["add"]["input"]["fields"]["gift"] == {"type": "boolean", "required": False, "default": False}
    assert Order.document() is made


def test_perform_guards_itself() -> None:
    first_step = Order.document()["actions"]["pay"]["flow"]["steps"][0]
    assert first_step["cond"] == op("and", op("isNull", get("receipt")), op("isNull", get("refused")))
    assert first_step["then"]["params"] == {
        "card": get("input.card"),
        "cents": get("cents"),
        "into": lit("receipt"),
        "fail": lit("refused"),
    }


async def test_once_runs_once_for_each_intent() -> None:
    made = flow.Host(Order, env=VirtualEnv())
    await made.act(Order.remind(), id="a")
    result = await made.act(Order.remind(), id="b")
    order = Order.read(result.snapshot)
    assert (order.note, order.noted) == ("!!", "b")


async def test_a_class_runs_in_a_host() -> None:
    made = host()
    refused = await made.act(Order.pay("tok"))
    assert refused.error is not None
    assert refused.error.code == "ACTION_UNAVAILABLE"
    await made.act(Order.add("tea", 250))
    await made.act(Order.add("card", 0, gift=True))
    result = await made.act(Order.pay("tok"))
    order = Order.read(result.snapshot)
    assert (result.status, order.receipt, order.paid, order.state) == ("complete", "tok:250", True, "paid")
    assert (order.names, order.note, order.cents) == (["TEA", "CARD"], "card is a gift. ", 250)
    dropped = await made.act(Order.remind())
    assert Order.read(dropped.snapshot).note == "card is a gift. !"


async def test_what_an_effect_raises_goes_where_fail_says() -> None:
    def broken(card: str, cents: int) -> str:
        raise ValueError("declined")

    made = flow.Host(Order, data={"cents": 5}, env=VirtualEnv())
    made.register("charge", flow.answering(broken))
    result = await made.act(Order.pay("tok"))
    assert (result.status, result.snapshot.data["refused"]) == (
        "complete",
        {"code": "ValueError", "message": "declined"},
    )


async def test_what_is_read_has_the_annotated_types() -> None:
    """Records are of their classes, also inside lists; data that does not fit them stays as it is."""
    read = Order.read(
        flow.Host(
            Order,
            data={
                "lines": [{"name": "tea", "cents": 250, "gift": True}],
                "refused": {"code": "C", "message": "no"},
            },
        ).snapshot()
    )
    assert (read.lines[0], read.refused) == (Line("tea", 250, gift=True), flow.Error("C", "no"))
    unfit = flow.Host(Order, data={"lines": [{"name": "tea", "cents": None, "gift": True}]})
    plain: list[Any] = [*Order.read(unfit.snapshot()).lines]
    assert plain == [{"name": "tea", "cents": None, "gift": True}]


async def test_fail_call_and_halt() -> None:
    made = flow.Host(Order, data={"cents": 500}, env=VirtualEnv())
    failed = await made.act(Order.drop())
    assert failed.error is not None
    assert (failed.error.message, failed.error.context) == ("it is 500", {"code": "TOO_MUCH"})
    calm = flow.Host(Order, env=VirtualEnv())
    assert Order.read((await calm.act(Order.drop())).snapshot).note == "!"


def test_an_act_is_data() -> None:
    assert Order.add("tea", 1) == flow.Act(Order, "add", {"name": "tea", "cents": 1})
    with pytest.raises(TypeError):
        Order.add("tea")  # type: ignore[call-arg]
    with pytest.raises(flow.NotJson):
        Order.pay(object())  # type: ignore[arg-type]


# --- x -------------------------------------------------------------------------------------------------

NAMES = {
    "and": "and_",
    "or": "or_",
    "not": "not_",
    "if": "if_",
    "min": "min_",
    "max": "max_",
    "abs": "abs_",
    "round": "round_",
    "pow": "pow_",
    "len": "len_",
    "slice": "slice_",
    "filter": "filter_",
    "map": "map_",
    "object": "object_",
}


def snake(kind: str) -> str:
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in NAMES.get(kind, kind))


@pytest.mark.parametrize("kind", list(shapes.KINDS))
def test_every_kind_is_a_function_that_makes_it(kind: str) -> None:
    function: Any = getattr(x, snake(kind))
    values_: list[Any] = []
    examples: dict[str, list[Any]] = {"e": [1], "e?": [2], "*": [1, 2], "{}": [], "s": ["a"], "v": [1]}
    for form in shapes.KINDS[kind].values():
        values_ += examples[form]
    if kind in ("map", "filter", "find", "every", "some"):
        values_ = [[1], lambda item: item]
    made = function(a=1) if kind == "object" else function(*values_)
    assert made.doc["kind"] == kind
    assert shapes.problem(made.doc) == ""
    assert list(made.doc)[1:] == list(shapes.KINDS[kind])


def value_of(made: Any, data: Any = None) -> Any:
    domain = loaded(
        {"go": {"flow": {"kind": "patch", "op": "set", "path": "out", "value": made.doc}}},
        {"out": field("object"), "n": field("number", 4), "list": field("array", [1, 2, 3])},
    )
    found = core.Core().compute(domain, first(domain, data), flow_records.Intent("go", "i"), flow_records.JobContext())
    assert found.status == "complete", found.snapshot.system.last_error
    return found.snapshot.data["out"]


def test_operators_make_expressions() -> None:
    n, array = x.get("n"), x.get("list")
    assert value_of(x.append([], n + 1, 1 + n, n - 1, 9 - n, n * 2, 2 * n, n / 8, 8 / n, n % 3, -n, abs(-n))) == [
        5,
        5,
        3,
        5,
        8,
        8,
        0.5,
        2,
        1,
        -4,
        4,
    ]
    assert value_of(
        x.append([], n == 4, n != 4, n > 3, n >= 5, n < 5, n <= 3, (n > 3) & (n < 4), (n > 3) | (n < 4))
    ) == [
        True,
        False,
        True,
        False,
        True,
        False,
        False,
        True,
    ]
    assert value_of(x.append([], array[0], array[1:], array[:1], {"k": n, "l": [n]})) == [
        1,
        [2, 3],
        [1],
        {"k": 4, "l": [4]},
    ]
    assert value_of(x.object_(a=array.length, b=x.object_(c=n).c, d=x.index_of("abc", "c"))) == {"a": 3, "b": 4, "d": 2}


def test_loops_take_functions() -> None:
    array = x.get("list")
    assert value_of(x.filter_(array, lambda item: item > 1)) == [2, 3]
    assert value_of(x.append([], x.find(array, lambda item: item > 1), x.some(array, lambda item: item > 2))) == [
        2,
        True,
    ]
    assert value_of(x.map_(array, lambda item: x.len_(x.map_([item], lambda inner: inner)))) == [1, 1, 1]


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (lambda n: 1 if n else 2, "flow.when"),
        (lambda n: n and 1, "x.and_"),
        (lambda n: not n, "x.not_"),
        (lambda n: n > 1 > 0, "x.and_"),
        (lambda n: list(n), "x.map_"),
        (lambda n: 1 in n, "x.includes"),
        (lambda n: len(n), "x.len_"),
        (lambda n: {n: 1}, "x.object_"),
        (lambda n: f"{n}", "x.concat"),
        (lambda n: str(n), "x.concat"),
        (lambda n: int(n), "x.to_number"),
        (lambda n: n[::2], "no step"),
        (lambda n: x.add(n, object()), "made of JSON"),
        (lambda n: x.map_(n, lambda a: x.map_(n, lambda b: a + b)), "inner loop"),
    ],
)
def test_what_python_would_decide_once_is_refused_with_a_hint(mistake: Any, hint: str) -> None:
    with pytest.raises(flow.BadDomain, match=hint):
        mistake(x.get("n"))


def late_condition(self: Any) -> None:
    flow.halt()
    flow.available(self.n > 1)


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (lambda self: setattr(self, "nothing", 1), "has no field 'nothing'"),
        (lambda self: flow.perform(flow.ask("io"), into=5), "names a field"),
        (lambda self: flow.perform(5, into=self.n), "takes a call of an effect"),  # type: ignore[arg-type]
        (lambda self: flow.perform(flow.ask("io", into=1), into=self.n), "names a target"),
        (lambda self: flow.otherwise().__enter__(), "right behind a flow.when"),
        (late_condition, "comes first"),
        (lambda self: setattr(self, "n", 1 if self.n else 2), "flow.when"),
    ],
)
def test_mistakes_in_actions_are_refused(body: Any, hint: str) -> None:
    class Wrong(flow.Domain):
        n: int = 0

        @flow.action
        def go(self) -> None:
            body(self)

    with pytest.raises(flow.BadDomain, match=hint):
        Wrong.document()


def test_types_that_no_field_has_are_refused() -> None:
    class Wrong(flow.Domain):
        n: bytes = b""

        @flow.action
        def go(self) -> None:
            flow.halt()

    with pytest.raises(flow.BadDomain, match="no type of a field"):
        Wrong.document()
    with pytest.raises(flow.BadDomain, match="at least one"):
        type("Empty", (flow.Domain,), {}).document()  # type: ignore[attr-defined]
    with pytest.raises(flow.BadDomain, match="belongs into a @flow"):
        flow.halt()


def test_a_domain_without_computed_values_is_valid() -> None:
    class Plain(flow.Domain):
        n: int = 0

        @flow.action
        def go(self) -> None:
            self.n = x.add(self.n, 1)

    assert flow.validate(Plain.document()) == []


# --- JSON Schema -------------------------------------------------------------------------------------------

SPECS: st.SearchStrategy[dict[str, Any]] = st.deferred(
    lambda: (
        st.builds(
            dict,
            type=st.sampled_from(["string", "number", "boolean", "null", "object", "array"]),
            required=st.booleans(),
        )
        | st.builds(
            dict,
            type=st.just("object"),
            required=st.booleans(),
            fields=st.dictionaries(st.sampled_from("ab"), SPECS, max_size=2),
        )
        | st.builds(dict, type=st.just("array"), required=st.booleans(), items=SPECS)
        | st.builds(dict, type=st.just({"enum": ["a", 1, True]}), required=st.booleans())
    )
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["a", "", "x"]) | st.just(0.5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(SPECS, JSON)
def test_exported_json_schema_says_what_the_field_says(spec: dict[str, Any], value: Any) -> None:
    made = document({"go": {"kind": "halt"}}, {"f": {**spec, "default": None}})
    parsed = validation.load(made).schema
    exported = flow.json_schema(parsed)
    fits = fields.misfit(parsed.state.fields["f"], value, "f") == ""
    said = jsonschema.Draft202012Validator(exported["properties"]["f"]).is_valid(value)
    assert fits == said


def test_the_whole_schema_and_inputs_are_exported() -> None:
    parsed = validation.load(Order.document()).schema
    jsonschema.Draft202012Validator.check_schema(flow.json_schema(parsed))
    data = {"cents": 1, "$host": {"errors": []}}
    assert jsonschema.Draft202012Validator(flow.json_schema(parsed)).is_valid(data)
    add = jsonschema.Draft202012Validator(flow.input_schema(parsed.actions["add"]))
    assert add.is_valid({"name": "tea", "cents": 1})
    assert not add.is_valid({"name": "tea"})
    assert not add.is_valid({"name": "tea", "cents": 1, "more": 1})


# --- Types -------------------------------------------------------------------------------------------------

SAMPLE = """
from __future__ import annotations

import worldline as wl
from worldline import flow
from worldline.flow import x

app = wl.Program("shop")


@app.effect(timeout=10)
async def charge(card: str, cents: int) -> str:
    return card


class Order(flow.Domain):
    cents: int = 0
    receipt: str | None = None
    refused: flow.Error | None = None

    @flow.computed
    def paid(self) -> bool:
        return x.not_null(self.receipt)

    @flow.action
    def pay(self, card: str) -> None:
        flow.available(self.cents > 0)
        flow.perform(charge(card, self.cents), into=self.receipt, fail=self.refused)
        flow.perform(charge(card, self.cents), into=self.receipt, fail=self.receipt)  #: Argument "fail" to "perform"
        flow.perform(charge(card), into=self.receipt)  #: Missing positional argument "cents"
        self.cents = x.add(self.cents, 1)
        self.cents = x.concat("a", "b")  #: Incompatible types in assignment
        with flow.when(self.paid):
            self.cents = self.total  #: "Order" has no attribute "total"


async def main() -> None:
    host = flow.Host(Order)
    reveal_type(Order.pay("tok"))  #: Revealed type is "worldline.flow_core.authoring.domain_class.Act[sample.Order]"
    Order.pay(5)  #: Argument 1 to "__call__" of "Action" has incompatible type "int"; expected "str"
    result = await host.act(Order.pay("tok"))
    order = Order.read(result.snapshot)
    reveal_type(order.paid)  #: Revealed type is "bool"
    reveal_type(order.receipt)  #: Revealed type is "str | None"
"""


def test_the_builder_is_clean_under_mypy_and_mistakes_are_found(tmp_path: Path) -> None:
    found: dict[int, list[str]] = {}
    for each in checking.check({"sample": SAMPLE}, tmp_path):
        found.setdefault(each.line, []).append(each.text)
    for number, line in enumerate(SAMPLE.splitlines(), start=1):
        expected = line.partition("#: ")[2]
        texts = found.get(number, [])
        if expected:
            assert any(text.startswith(expected) for text in texts), (number, line, texts)
        else:
            assert [text for text in texts if not text.startswith(("Possible", "See", "    "))] == [], (number, line)


def test_functions_of_x_have_no_untyped_parameter() -> None:
    untyped = [
        name
        for name, function in vars(x).items()
        if inspect.isfunction(function)
        and function.__module__ == x.__name__
        and not name.startswith("_")
        and "return" not in function.__annotations__
    ]
    assert untyped == []
