"""How logs look: text for people, JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime
from pathlib import Path

import worldline as wl
from worldline.model import ids
from worldline.observe import log_format
from worldline.runtime import facts

AT = ids.Address(ids.UniverseId(bytes(16)), ids.WorldId(bytes(range(16))))


def record(message: str, *args: object, extra: dict[str, object] | None = None, error: bool = False) -> list[str]:
    """One warning, as each form writes it."""
    lines: list[str] = []
    for form in log_format.FORMS:
        with log_format.written(form, lines.append, always={"worker": "w1"}):
            exc_info = None
            if error:
                try:
                    raise KeyError("lost")
                except KeyError:
                    exc_info = sys.exc_info()
            logging.getLogger("worldline.worker").warning(message, *args, extra=extra, exc_info=exc_info)
    assert len(lines) == 2
    return lines


def test_a_record_with_fields() -> None:
    text, line = record("world %s\nis gone", "x", extra=facts.about(AT, step=7, name="alice"))
    said = json.loads(line)
    when = datetime.fromisoformat(said.pop("time"))
    assert when.tzinfo is not None
    assert said == {
        "level": "warning",
        "logger": "worldline.worker",
        "message": "world x\nis gone",
        "worker": "w1",
        "world": AT.world.hex(),
        "world_name": "alice",
        "step": 7,
    }
    assert text.endswith(f"WARNING worker: world x is gone  [world={AT.world.hex()} world_name=alice step=7]")
    assert "\n" not in text


def test_a_record_without_fields() -> None:
    text, line = record("all is well")
    assert sorted(json.loads(line)) == ["level", "logger", "message", "time", "worker"]
    assert text.endswith("WARNING worker: all is well")


def test_a_traceback_is_kept_on_one_json_line() -> None:
    text, line = record("it broke", error=True)
    assert "\n" not in line
    assert "KeyError: 'lost'" in json.loads(line)["error"]
    assert text.splitlines()[-1] == "KeyError: 'lost'"


def test_fields_cannot_pose_as_others() -> None:
    _, line = record("true", extra={"level": "none", "other": object(), "time": 1})
    said = json.loads(line)
    assert (said["level"], said["field_level"], said["field_time"]) == ("warning", "none", 1)
    assert "other" not in said


def test_levels_and_what_was_there_before() -> None:
    log, user = logging.getLogger("worldline"), logging.getLogger("worldline.user")
    before = log.level, log.propagate, list(log.handlers), user.level
    lines: list[str] = []
    with log_format.written("json", lines.append, level="error"):
        logging.getLogger("worldline.roles").warning("not this")
        user.info("but this")
        user.debug("not this either")
        logging.getLogger("worldline.roles").error("and this")
    logging.getLogger("worldline.roles").error("no more")
    assert [json.loads(line)["message"] for line in lines] == ["but this", "and this"]
    assert before == (log.level, log.propagate, list(log.handlers), user.level)


async def test_what_a_program_logs_says_where(tmp_path: Path) -> None:
    app = wl.Program("p")

    @app.workflow
    async def go() -> None:
        wl.log.info("on my way")

    lines: list[str] = []
    with log_format.written("json", lines.append):
        async with wl.open(str(tmp_path), host=app) as universe:
            world = await universe.ensure("w", app)
            await world.run(go(), id="r", timeout=30)
            at = await world._handle.address()
    [said] = [each for each in map(json.loads, lines) if each["logger"] == "worldline.user"]
    assert (said["message"], said["world"], said["step"]) == ("[r] on my way", at.world.hex(), 1)
