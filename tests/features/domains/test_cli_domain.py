"""domain show, validate, export: documents in files, classes in files and modules, and what is none of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.cli_kit import run, spawn
from tests.flow_core.documents import COUNTER, HALT, document, effect, get, lit, op, put, seq
from worldline.flow_core import document_schema
from worldline.terminal import output

CLASS = '''
from worldline import flow
from worldline.flow import x


class Order(flow.Domain):
    """An order."""

    cents: int = 0
    receipt: str | None = None

    @flow.computed
    def paid(self) -> bool:
        return x.not_null(self.receipt)

    @flow.action
    def pay(self, card: str) -> None:
        """Pay it."""
        flow.available(self.cents > 0)
        flow.perform(flow.ask("charge", card=card), into=self.receipt)


class Broken(flow.Domain):
    cents: int = 0

    @flow.action
    def pay(self) -> None:
        if self.cents > 0:
            self.cents = 1


class Circle(flow.Domain):
    cents: int = 0

    @flow.action
    def one(self) -> None:
        flow.call(Circle.two)

    @flow.action
    def two(self) -> None:
        flow.call(Circle.one)
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop_of_domains.py").write_text(CLASS)
    save(tmp_path / "counter.json", document_schema.sealed(COUNTER))
    return tmp_path


def save(file: Path, value: Any) -> Path:
    file.write_bytes(msgspec.json.encode(value))
    return file


def test_a_document_is_shown(folder: Path) -> None:
    said = run("domain", "show", "counter.json", cwd=folder)
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[3:] == [
        "fields",
        "  count  number = 0",
        "",
        "computed",
        "  computed.doubled  count * 2",
        "",
        "actions",
        "  increment()",
        "    writes count",
    ]
    found = run("domain", "show", "counter.json", "--json", cwd=folder).json
    assert found["actions"]["increment"]["writes"] == ["count"]


@pytest.mark.parametrize("target", ["shop_of_domains.py:Order", "shop_of_domains:Order"])
def test_a_class_is_shown_by_file_and_by_module(folder: Path, target: str) -> None:
    said = spawn("domain", "show", target, cwd=folder)
    assert said.code == 0, said.err
    assert said.out.splitlines()[-5:] == [
        "  pay(card: string)",
        "    Pay it.",
        "    available if cents > 0",
        "    writes receipt",
        "    asks for charge",
    ]


def test_every_problem_is_a_line(folder: Path) -> None:
    wrong = document({"go": put("nowhere", get("missing")), "call": {"kind": "call", "flow": "none"}})
    save(folder / "wrong.json", {**wrong, "hash": "0"})
    said = run("domain", "validate", "wrong.json", cwd=folder)
    assert said.code == output.NEGATIVE
    assert [line.split(":")[0] for line in said.out.splitlines()] == [
        "V-008 at hash",
        "V-003 at actions.go.flow.value",
        "V-004 at actions.call.flow",
    ]
    as_json = run("domain", "validate", "wrong.json", "--json", cwd=folder)
    assert [each["code"] for each in as_json.lines] == ["V-008", "V-003", "V-004"]
    save(folder / "shape.json", {"id": "x"})
    assert run("domain", "validate", "shape.json", cwd=folder).out.startswith("SCHEMA_ERROR")
    save(folder / "list.json", [1])
    assert run("domain", "validate", "list.json", cwd=folder).code == output.NEGATIVE
    good = run("domain", "validate", "counter.json", cwd=folder)
    assert (good.code, good.out, good.err) == (0, "", "nothing wrong\n")


def test_a_class_is_validated_too(folder: Path) -> None:
    circle = run("domain", "validate", "shop_of_domains.py:Circle", cwd=folder)
    assert circle.code == output.NEGATIVE
    assert [line.split(" ")[0] for line in circle.out.splitlines()] == ["V-005", "V-005"]
    broken = run("domain", "validate", "shop_of_domains.py:Broken", cwd=folder)
    assert (broken.code, broken.out, broken.err.count("\n")) == (output.USAGE, "", 1)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("missing.json", "missing.json cannot be read"),
        (".", "cannot be read"),
        ("text.json", "text.json is not JSON"),
        ("deep.json", "deep.json is nested deeper than"),
        ("missing.py:Order", "there is no file missing.py"),
        ("shop_of_domains.py:Nothing", "is no class that derives from flow.Domain"),
        ("shop_of_domains.py:flow", "is no class that derives from flow.Domain"),
        ("no_such_module:Order", "no_such_module cannot be imported"),
        ("divides_by_zero:Order", "divides_by_zero cannot be imported: ZeroDivisionError"),
        ("a b:Order", "there is no file a b"),
        ("wrong.json", "V-008 at hash"),
    ],
)
def test_what_is_no_domain_is_one_error(folder: Path, target: str, message: str) -> None:
    (folder / "text.json").write_text("{no")
    (folder / "deep.json").write_text("[" * 5_000 + "]" * 5_000)
    (folder / "divides_by_zero.py").write_text("1 / 0\n")
    save(folder / "wrong.json", {**document({"go": HALT}), "hash": "0"})
    said = run("domain", "show", target, cwd=folder)
    assert (said.code, said.out, said.err.count("\n")) == (output.USAGE, "", 1), said.err
    assert message in said.err
    assert message in run("domain", "show", target, "--json", cwd=folder).error["message"]


def test_forms(folder: Path) -> None:
    target = "shop_of_domains.py:Order"
    plain = run("domain", "export", target, "--json", cwd=folder).json
    assert plain == msgspec.json.decode(run("domain", "export", target, cwd=folder).out)
    save(folder / "order.json", plain)
    assert run("domain", "validate", "order.json", cwd=folder).code == 0
    schemas = run("domain", "export", target, "--json-schema", "--json", cwd=folder).json
    assert (list(schemas["data"]["properties"]), schemas["inputs"]["pay"]["required"]) == (
        ["cents", "receipt"],
        ["card"],
    )
    assert list(run("domain", "export", target, "--openapi", "--json", cwd=folder).json["paths"])[1] == "/actions/pay"
    assert run("domain", "export", target, "--mermaid", cwd=folder).out.startswith("flowchart LR\n")
    assert run("domain", "export", target, "--mermaid", "--json", cwd=folder).json["mermaid"].startswith("flowchart")


def test_tools_for_the_defaults_and_for_data(folder: Path) -> None:
    words = ("domain", "export", "shop_of_domains.py:Order", "--tools", "--json")
    none = run(*words, cwd=folder).json
    assert (none["tools"], none["unavailable"][0]["reasons"]) == ([], ["cents > 0 is false (cents = 0)"])
    data = save(folder / "data.json", {"cents": 5})
    found = run(*words, "--data", data, cwd=folder).json
    assert (found["tools"][0]["function"]["name"], found["unavailable"]) == ("pay", [])
    for shape, member in (("anthropic", "input_schema"), ("mcp", "inputSchema")):
        assert member in run(*words, "--data", data, "--shape", shape, cwd=folder).json["tools"][0]


@pytest.mark.parametrize("data", [{"cents": "5"}, {"other": 1}, [1], None])
def test_data_that_does_not_fit_is_refused(folder: Path, data: Any) -> None:
    file = save(folder / "data.json", data)
    said = run("domain", "export", "shop_of_domains.py:Order", "--tools", "--data", file, cwd=folder)
    assert said.code == output.USAGE
    assert "is no data of this domain" in said.err
    assert run("domain", "export", "counter.json", "--data", file, cwd=folder).err.startswith(
        "error: --shape and --data"
    )


def test_check_knows_documents_and_classes(folder: Path) -> None:
    twice = seq(put("count", lit(1)), put("count", get("computed.doubled")), effect("ask", into=lit("count")))
    equal = {"flow": HALT, "available": op("eq", get("count"), lit([]))}
    save(folder / "slips.json", document({"go": twice, "same": equal}))
    said = run("check", "slips.json", cwd=folder)
    assert (said.code, said.err) == (output.NEGATIVE, "")
    assert [line.partition(": ")[2].partition(": ")[0] for line in said.out.splitlines()] == [
        "actions.go.flow.steps[1].value",
        "actions.go.flow.steps[2]",
        "actions.same.available",
    ]
    as_json = run("check", "slips.json", "counter.json", "--json", cwd=folder)
    assert [(each["file"], each["rule"]) for each in as_json.lines] == [
        ("slips.json", "stale"),
        ("slips.json", "unguarded"),
        ("slips.json", "containers"),
    ]
    good = run("check", "shop_of_domains.py:Order", "counter.json", cwd=folder)
    assert (good.code, good.out, good.err) == (0, "", "nothing found\n")


def test_check_says_what_is_invalid_and_how_to_check_a_class(folder: Path) -> None:
    circle = run("check", "shop_of_domains.py:Circle", cwd=folder)
    assert (circle.code, circle.out.count("calls itself, directly or through others")) == (output.NEGATIVE, 2)
    source = run("check", "shop_of_domains.py", cwd=folder)
    assert (source.code, source.out) == (0, "")
    assert "Order is a flow domain: `worldline check shop_of_domains.py:Order` imports and checks it" in source.err
    assert run("check", "missing.json", cwd=folder).code == output.USAGE
