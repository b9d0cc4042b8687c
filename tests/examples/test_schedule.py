from __future__ import annotations

from pathlib import Path

import pytest

from examples import schedule
from worldline import testing


async def test_the_garden_is_watered_in_its_rhythm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "EVERY_SECONDS", 0.1)
    await schedule.main(str(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("report: report at '0 9 * * 1' in Europe/Lisbon, next at ")
    assert lines[1].startswith("water: Watering every 0.1 s, next at ")
    watered = [line.split(" by ")[0] for line in lines if "watered" in line]
    assert watered == [f"  watered {times} times" for times in (3, 4, 6, 9)]
    assert lines[-2:] == ["and the report, asked for by hand, says 9", "left on the calendar: ['report']"]


def test_in_virtual_time() -> None:
    with testing.world(schedule.app) as world:
        world.send(schedule.Planted("beans"))
        world.advance(schedule.EVERY_SECONDS * 5)
        assert world.state(schedule.Garden).waterings == 5
        world.send(schedule.Planted("peas"))  # the rhythm stays
        world.crash()
        world.advance(3600)
        assert world.state(schedule.Garden) == schedule.Garden(plants=2, waterings=9)
        world.prove()
