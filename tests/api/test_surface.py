"""What users have of the SDK, and nothing else: all other attributes are private."""

from __future__ import annotations

from typing import Any

import pytest

import worldline as wl
from tests.kits.kit import Kit
from tests.kits.sums import Add, program

UNIVERSE = [
    "add_rule",
    "allow",
    "allowed",
    "allowed_changes",
    "collect",
    "create",
    "dead",
    "delete_ref",
    "deny",
    "drop_rule",
    "ensure",
    "id",
    "import_world",
    "metrics_port",
    "name",
    "policy_changes",
    "quota",
    "quota_changes",
    "refs",
    "rename",
    "rules",
    "set_quota",
    "set_ref",
    "store_settings",
    "stored_settings",
    "why_not",
    "world",
    "worlds",
]
WORLD = [
    "abandon",
    "act",
    "anchor",
    "archive",
    "ask",
    "attach",
    "change",
    "check_anchor",
    "dead",
    "delete",
    "describe",
    "diff",
    "drain_dead",
    "effect",
    "effects",
    "env",
    "erase",
    "explain",
    "export",
    "follow",
    "fork",
    "head",
    "journal",
    "lineage",
    "name",
    "patch",
    "pause",
    "preview",
    "resume",
    "retry_dead",
    "revert",
    "run",
    "runs",
    "schedule",
    "schedules",
    "send",
    "shadow",
    "snapshot",
    "snapshots",
    "start",
    "state",
    "tools",
    "trace",
    "trigger",
    "unschedule",
]
RUN = ["answer", "attempts", "cancel", "id", "reset", "result", "retry", "status", "terminate", "workflow"]
SENT = ["already_enqueued", "applied", "id", "stamp"]


def public(thing: Any) -> list[str]:
    return sorted(name for name in {*dir(type(thing)), *vars(thing)} if not name.startswith("_"))


async def test_only_what_is_documented_is_public(memory_kit: Kit) -> None:
    app = program()

    @app.workflow
    async def go() -> int:
        return 1

    async with memory_kit.hosting(app) as universe:
        world = await universe.ensure("w", app)
        run = await world.start(go(), id="r")
        sent = await world.send(Add(1))
        assert [public(each) for each in (universe, world, run, sent)] == [UNIVERSE, WORLD, RUN, SENT]


@pytest.mark.parametrize("name", wl.__all__)
def test_what_is_exported_is_there(name: str) -> None:
    assert getattr(wl, name) is not None
