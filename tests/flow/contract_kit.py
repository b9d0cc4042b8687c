"""Documents, handlers and looks that the contract suite shares."""

from __future__ import annotations

from typing import Any

from tests.flow.hosts import KEY
from tests.flow_core.documents import HALT, document, field, get, lit, once, op, put, seq
from worldline import flow

FIELDS: dict[str, Any] = {
    **{name: field("object") for name in ("response", "result", "other")},
    **{name: field("boolean") for name in ("done", "step1", "step2", "step3", "complete", "checked")},
    **{name: field("string") for name in ("seed1", "seed2", "intent", "error", "note")},
    **{name: field("number") for name in ("t1", "t2", "a", "b", "c", "saw")},
    "$host": field("object", {}),
}

INCREMENT = put("count", op("add", get("count"), lit(1)))
FETCH = seq(once("response", "http", url=lit("/u"), into=lit("response")), put("done", lit(True)))
CHAIN = seq(once("step1", "one"), once("step2", "two"), put("complete", lit(True)))


def made(**actions: Any) -> dict[str, Any]:
    return document({"noop": HALT, **actions}, FIELDS)


def gives(path: str, value: Any) -> flow.Handler:
    """A handler that sets one field."""

    async def handler(call: flow.EffectCall) -> list[flow.Patch]:
        return [flow.set(path, value)]

    return handler


def raising(message: str) -> flow.Handler:
    async def handler(call: flow.EffectCall) -> list[flow.Patch]:
        raise RuntimeError(message)

    return handler


async def idle_data(desk: Any, key: str = KEY) -> dict[str, Any]:
    """The data of a key that has nothing pending any more."""
    snapshot = await desk.snapshot(key)
    assert (snapshot.system.pending_requirements, snapshot.system.status) == ((), "idle")
    assert "intentSlots" not in snapshot.data.get("$host", {}) or snapshot.data["$host"]["intentSlots"] == {}
    data: dict[str, Any] = snapshot.data
    return data


async def pending(desk: Any, key: str = KEY) -> list[str]:
    return [each.id for each in (await desk.snapshot(key)).system.pending_requirements]
