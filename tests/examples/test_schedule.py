from __future__ import annotations

from pathlib import Path

import pytest

from examples import schedule


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
