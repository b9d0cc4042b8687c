"""What users nest or chain as deep as they like: done by loops, or refused with an error of ours (`arch/recursion.toml`
says what bounds the rest).
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

import worldline as wl
from tests.flow_core.documents import HALT, first, get, lit, loaded, op
from worldline.base import errors, limits
from worldline.base.secret import KnownSecrets, Secret
from worldline.codec import canonical
from worldline.features.forks import lineage_tree
from worldline.flow_core import core, faults, value_paths
from worldline.flow_core.authoring import specs, terms
from worldline.inspect import entry_text, lint
from worldline.kernel import replay
from worldline.model.world_records import ForkPolicy, Lineage, Section, Status, WorldMeta

CORE = core.Core()
DEEP = 2 * sys.getrecursionlimit()


def nested(times: int = DEEP) -> list[Any]:
    value: list[Any] = []
    for _ in range(times):
        value = [value]
    return value


def forks(count: int) -> list[lineage_tree.Node]:
    """Worlds of which each was forked from the one before."""
    known: dict[bytes, tuple[WorldMeta, int, Lineage | None]] = {}
    children: dict[bytes, list[bytes]] = {}
    parent = b""
    for number in range(count):
        world = number.to_bytes(16)
        came = (
            Lineage(parent, "before", 1, 1, [Section(parent, 1, 1)], ForkPolicy.DROP, True, 0, b"") if parent else None
        )
        known[world] = WorldMeta(f"w{number}", "p", b"", Status.ACTIVE, {}, 0), 2, came
        children.setdefault(parent, []).append(world)
        parent = world
    return lineage_tree._nodes(known, children)


def test_forks_of_forks_are_shown() -> None:
    worlds = forks(DEEP)
    assert [each.name for each in lineage_tree.walk(worlds)] == [f"w{number}" for number in range(DEEP)]
    lines = lineage_tree.drawn(worlds)
    assert (len(lines), lines[2].split()[:2]) == (DEEP, ["└─", "w2"])


def test_json_that_no_reader_takes_is_not_written() -> None:
    [world] = forks(limits.JSON_DEPTH_MAX // 2)
    assert entry_text.plain(world)["branches"][0]["name"] == "w1"
    [world] = forks(DEEP)
    with pytest.raises(errors.BadInput, match="without --json"):
        entry_text.plain(world)


def test_bytes_in_bytes_are_compared() -> None:
    def made(inside: bytes) -> bytes:
        for _ in range(DEEP):
            inside = canonical.encode([inside])
        return inside

    assert " -> " in replay.first_field(made(b"a"), made(b"b"))


@dataclass
class Link:
    number: int
    next: Link | None = None


def test_a_domain_is_made_of_values_and_types_with_an_end() -> None:
    around: list[Any] = []
    around.append(around)
    for value in (nested(), around):
        with pytest.raises(terms.BadDomain, match="nested deeper"):
            terms.lifted(value)
    with pytest.raises(terms.BadDomain, match=r"state\.next: Link has itself in it"):
        specs.spec(Link, "state")


def test_a_path_is_as_long_as_values_are_deep() -> None:
    with pytest.raises(faults.Fault) as refused:
        value_paths.put({}, ("a",) * DEEP, 1)
    assert refused.value.code == faults.LIMIT_EXCEEDED


def test_a_chain_of_computed_fields_is_explained() -> None:
    computed = {"computed.f0": {"deps": ["count"], "expr": op("add", get("count"), lit(1))}}
    for number in range(1, DEEP):
        before = f"computed.f{number - 1}"
        computed[f"computed.f{number}"] = {"deps": [before], "expr": op("add", get(before), lit(1))}
    domain = loaded({"go": HALT}, computed=computed)
    found = CORE.explain(domain, first(domain, {"count": 3}), f"computed.f{DEEP - 1}")
    assert (found.value, len(found.nodes)) == (3 + DEEP, DEEP + 1)


def test_computed_fields_in_many_chains_are_explained_up_to_a_bound() -> None:
    computed = {"computed.f0": {"deps": ["count"], "expr": op("add", get("count"), lit(1))}}
    for number in range(1, 64):
        one = get(f"computed.f{number - 1}")
        other = get(f"computed.f{max(0, number - 2)}")
        deps = [f"computed.f{number - 1}", f"computed.f{max(0, number - 2)}"]
        computed[f"computed.f{number}"] = {"deps": list(dict.fromkeys(deps)), "expr": op("sub", one, other)}
    domain = loaded({"go": HALT}, computed=computed)
    with pytest.raises(faults.Fault) as refused:
        CORE.explain(domain, first(domain, {"count": 3}), "computed.f63")
    assert refused.value.code == faults.LIMIT_EXCEEDED


def test_code_as_deep_as_python_compiles_has_a_fingerprint(tmp_path: Path) -> None:
    file = tmp_path / "generated.py"
    total = " + ".join(["number"] * 1_500)
    file.write_text(
        f"import worldline as wl\n\napp = wl.Program('deep')\n\n\n@app.workflow\n"
        f"async def flow(number: int) -> int:\n    return {total}\n"
    )
    spec = importlib.util.spec_from_file_location("generated", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert cast("wl.Program", module.app).hash


@pytest.mark.parametrize(
    ("lines", "rules"),
    [
        ("a = {1}\n    a = a | {2}\n    for each in a: pass", ["set"]),
        ("a = x\n    a = a - 1\n    for each in a: pass", []),
        (f"for each in {' | '.join(['{1}'] * 1_500)}: pass", ["set"]),
        ("\n    ".join(["a0 = {1}", *(f"a{n + 1} = a{n} | x" for n in range(300)), "for each in a300: pass"]), ["set"]),
    ],
)
def test_sets_made_of_sets_are_found(lines: str, rules: list[str]) -> None:
    text = f"import worldline as wl\napp = wl.Program('p')\n@app.workflow\nasync def flow(x):\n    {lines}\n"
    assert [each.rule for each in lint.lint(text, "app.py")] == rules


def test_secrets_are_not_shown_from_below() -> None:
    known = KnownSecrets()
    known.learn(Secret("token", "a secret of some length"))
    value: Any = "a secret of some length"
    for _ in range(DEEP):
        value = [value]
    shown = known.plain(value)
    for _ in range(limits.CBOR_DEPTH_MAX + 1):
        [shown] = shown
    assert shown == "..."


def test_a_scripted_answer_may_be_later_than_later() -> None:
    app = wl.Program("late")

    @app.effect
    async def outside() -> int:
        return 1

    answer = wl.Script.later(1, "no number")
    for _ in range(DEEP):
        answer = wl.Script.later(0, answer)
    with pytest.raises(errors.Error):
        wl.Script().on(outside, answer)
