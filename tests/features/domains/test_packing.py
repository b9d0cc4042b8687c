"""The bytes of a cell's snapshot, made at once or of parts: those of the whole; a large field is encoded once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.flow_core.documents import document, effect, field, get, lit, op, put, seq, when
from worldline.base import errors, limits
from worldline.codec import canonical
from worldline.features.domains.pure import domain_cell, snapshot_packing
from worldline.flow_core import core, flow_records, jobs, patches, validation

LARGE = [{"name": f"item {number}", "done": False} for number in range(100)]
CONTEXT = flow_records.JobContext(now=1_000)


def whole(head: flow_records.Snapshot) -> bytes:
    return canonical.encode(flow_records.plain(head))


def lived(*, large: bool = True) -> list[flow_records.Snapshot]:
    """Snapshots of one cell: with and without an input, a requirement, an error, slots; fields that change and stay."""
    items = LARGE if large else []
    domain = validation.load(
        document(
            {
                "add": {
                    "flow": put("list", {"kind": "append", "array": get("list"), "items": [get("input.title")]}),
                    "input": {
                        "type": "object",
                        "required": True,
                        "fields": {"title": {"type": "string", "required": True}},
                    },
                },
                "ask": seq(
                    when(op("isNull", get("note")), effect("e", deep=lit({"a": [1, {"b": None}]}), into=lit("note")))
                ),
                "one": put("count", op("add", get("count"), lit(0.5))),
            },
            {"list": field("array", []), "note": field("string"), "\u00fc": field("object")},
        )
    )
    running = jobs.DomainRuntime(domain, core.Core(trace=False))
    heads = [core.created(domain, {"list": items}, CONTEXT)]

    def run(job: jobs.Job) -> None:
        heads.append(jobs.run(job, heads[-1], running, CONTEXT, jobs.unheard).head)

    for number, action in enumerate(["one", "one", "add", "one", "ask"]):
        given = {"input": {"title": "tea"}} if action == "add" else {}
        run(jobs.StartIntent(flow_records.Intent(action, f"i-{number}", **given)))
    [pending] = heads[-1].system.pending_requirements
    run(jobs.FulfillEffect("i-4", pending.id, (), jobs.Failure("EFFECT_TIMEOUT", "late")))
    run(jobs.ApplyPatches((patches.set_("\u00fc", {"x": items}), patches.set_("nowhere", 1)), "test"))
    return heads


@pytest.mark.parametrize("large", [True, False])
def test_the_bytes_are_those_of_the_whole_snapshot(large: bool) -> None:
    packer, heads = snapshot_packing.CellPacker(), lived(large=large)
    assert all((len(whole(each)) > snapshot_packing.SMALL_BYTES_MAX) is large for each in heads), (
        "each is encoded its own way"
    )
    assert [len(each.system.pending_requirements) for each in heads].count(1) == 1
    assert any(each.input is not msgspec.UNSET for each in heads)
    for head in [*heads, *reversed(heads)]:
        for _ in range(2):
            assert packer.pack(head) == whole(head)
        packer.rest()
        assert snapshot_packing.CellPacker().pack(head) == whole(head)
        cell = domain_cell.encode(domain_cell.DomainCell(fatal="why", named={"i": b"b"}), head, None, packer)
        assert canonical.decode(cell) == {"fatal": "why", "named": {"i": b"b"}, "snapshot": flow_records.plain(head)}
        assert domain_cell.decode(cell) == (domain_cell.DomainCell(fatal="why", named={"i": b"b"}), head)


def test_a_large_field_that_stays_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encode, encoded = canonical.encode, list[Any]()

    def counting(value: Any, *, around: int = 0) -> bytes:
        encoded.append(value)
        return encode(value, around=around)

    monkeypatch.setattr(canonical, "encode", counting)
    heads = lived()
    packer = snapshot_packing.CellPacker(len(whole(heads[0])))
    encoded.clear()
    for head in heads[:3]:
        packer.pack(head)
        packer.rest()
    assert len([each for each in encoded if each == LARGE]) == 1
    packer.pack(heads[3])  # one item more
    assert len([each for each in encoded if type(each) is list and len(each) > len(LARGE)]) == 1


def test_what_no_cell_can_hold_is_refused_at_the_same_depth() -> None:
    def nested(depth: int) -> flow_records.Snapshot:
        value: Any = []
        for _ in range(depth - 1):
            value = [value]
        return msgspec.structs.replace(lived()[0], data={"x": value})

    deepest = limits.CBOR_DEPTH_MAX - 3  # a field stands in the data, in the snapshot, in the cell
    cell = domain_cell.encode(domain_cell.DomainCell(), nested(deepest), None)
    assert domain_cell.decode(cell)[1] == nested(deepest)
    with pytest.raises(errors.EncodeError, match="deeper"):
        domain_cell.encode(domain_cell.DomainCell(), nested(deepest + 1), None)
    with pytest.raises(errors.TooLarge):
        domain_cell.encode(
            domain_cell.DomainCell(), nested(1), len(domain_cell.encode(domain_cell.DomainCell(), nested(1), None)) - 1
        )
