"""Reports of divergences, as text."""

from __future__ import annotations

import msgspec
import pytest

from worldline.codec import canonical
from worldline.kernel import user_values
from worldline.kernel.execution import divergence_report
from worldline.kernel.run_operations import OpKind


class Op(msgspec.Struct, frozen=True):
    kind: OpKind
    name: str
    params: bytes = b""
    step: int = 0


def effect(name: str, **arguments: object) -> Op:
    return Op(OpKind.EFFECT, name, user_values.pack([user_values.dump(arguments), b""]))


def test_commands_name_the_world() -> None:
    """Only in the advice: what code and journal have stays as it is."""
    report = "run 'r' (f): journal: effect 'runs retry WORLD r'\n" + divergence_report.no_workflow("r", "f", "p", [])
    said = divergence_report.addressed(report, "my world")
    assert "effect 'runs retry WORLD r'" in said
    assert said.endswith("worldline runs terminate 'my world' r")


def test_the_last_that_agree_then_the_first_that_does_not() -> None:
    ops = [effect("charge", cents=number) for number in range(5)]
    ops.append(Op(OpKind.TIMER, "sleep", (60_000_000).to_bytes(8, "big"), step=12))
    wanted = effect("inform", text="we charge your card now")
    report = divergence_report.another(
        "o1", "order", ops, 5, wanted, asked_at="shop.py:41 in order(): await inform(...)"
    )
    assert report.splitlines()[:8] == [
        "run 'o1' (order), operation 6: the code asks for something else than the journal has",
        "  ...   2 more that agree",
        "     3  both:    effect 'charge' (cents=2)",
        "     4  both:    effect 'charge' (cents=3)",
        "     5  both:    effect 'charge' (cents=4)",
        "     6  journal: timer 'sleep' 60 s (step 12)",
        "        code:    effect 'inform' (text='we charge your card now')",
        "        at:      shop.py:41 in order(): await inform(...)",
    ]
    for command in ("runs retry WORLD o1", "runs reset WORLD o1 --to 6", "runs terminate WORLD o1", "wl.patched("):
        assert command in report


def test_code_that_asks_for_more_than_there_is_or_stops_before() -> None:
    ops = [effect("charge", cents=1)]
    more = divergence_report.another("r", "flow", ops, 1, effect("ship"), asked_at="")
    assert "     2  journal: nothing more\n        code:    effect 'ship' ()\n" in more
    stops = divergence_report.stops("r", "flow", ops, 0, "returns", at="shop.py:3 in flow()")
    assert "operation 1: the code returns where the journal goes on" in stops
    assert "     1  journal: effect 'charge' (cents=1)\n        code:    returns\n        at:      shop.py:3" in stops


@pytest.mark.parametrize(
    ("op", "text"),
    [
        (effect("e", many=[1, 2.5, None], deep={"a b": b"\x00"}), "(deep={'a b': b'\\x00'}, many=[1, 2.5, None])"),
        (Op(OpKind.CHILD, "c", canonical.encode({"x": True})), "(x=True)"),
        (Op(OpKind.TIMER, "sleep_until", (10**15).to_bytes(8, "big", signed=True)), "2001-09-09T01:46:40+00:00"),
        (Op(OpKind.TIMER, "wait", (1_500_000).to_bytes(8, "big")), "1.5 s"),
        (Op(OpKind.WAIT, "Go"), ""),
        (
            Op(OpKind.ASK, "bob", user_values.dump(["Add", user_values.dump({"number": 1}), "r2"])),
            "Add(number=1) to run 'r2'",
        ),
        (Op(OpKind.EFFECT, "e", b"\xff\xff"), "with 2 bytes that cannot be read"),
        (effect("e", text="y" * 1_000_000), f"(text={'y' * 80!r}... (1000000 characters))"),
        (effect("e", many=list(range(1_000))), f"(many={list(range(20))!r}"[:-1] + ", ... (1000 in all)])"),
    ],
    ids=lambda each: "",
)
def test_arguments_are_values_and_bounded(op: Op, text: str) -> None:
    assert divergence_report.arguments(op) == text
    assert len(divergence_report.describe(op)) < 400


def test_the_line_that_asks_is_named_without_its_folder() -> None:
    at = divergence_report.asking_line()  # this very line
    assert at.startswith("test_reports.py:")
    assert at.endswith(
        "in test_the_line_that_asks_is_named_without_its_folder(): "
        "at = divergence_report.asking_line()  # this very line"
    )
    names: dict[str, object] = {}
    exec(compile("def f(ask):\n    return ask()\n", "<typed>", "exec"), names)
    assert "test_reports.py" in names["f"](divergence_report.asking_line)  # type: ignore[operator]


def test_what_raises_is_named() -> None:
    with pytest.raises(ValueError, match="x") as caught:
        raise ValueError("x")
    assert divergence_report.raising_line(caught.value).endswith(
        'in test_what_raises_is_named(): raise ValueError("x")'
    )


def test_a_workflow_that_is_gone_or_takes_other_arguments() -> None:
    gone = divergence_report.no_workflow("r", "flow", "p", ["b", "a"])
    assert "program 'p' has no workflow 'flow'; it has a, b" in gone
    assert "runs terminate WORLD r" in gone
    unfit = divergence_report.unfit_arguments("r", "flow", user_values.dump({"cents": 5}), "it takes no cents")
    assert "its arguments do not fit flow(): it takes no cents" in unfit
    assert "journal: flow(cents=5)" in unfit
    assert "runs retry WORLD r" in unfit
