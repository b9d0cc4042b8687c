from __future__ import annotations

from pathlib import Path

import pytest

import worldline as wl
from examples import chat_room

SHOWN = """\
refused: grace is not in #code

#tea (ada, grace)
  * ada has joined
  * grace has joined
  ada: who wants some?
  grace: me! thank you @ada

#code (ada, alan)
  * ada has joined
  * alan has joined
  alan: @ada does it halt?

ada: in tea, code; said 1; mentioned by ['grace in #tea', 'alan in #code']
grace: in tea; said 1; mentioned by no one
alan: in code; said 1; mentioned by no one
"""


async def test_rooms_and_people_have_cells_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await chat_room.main(str(tmp_path))
    assert capsys.readouterr().out == SHOWN


async def test_a_refusal_changes_nothing(tmp_path: Path) -> None:
    async with wl.open(str(tmp_path), host=chat_room.app) as universe:
        world = await universe.ensure("chat", chat_room.app)
        await world.send(chat_room.Joined("tea", "ada"))
        before = (await world.head()).state
        with pytest.raises(wl.Refused):
            await world.ask(chat_room.Say("tea", "eve", "hello @ada"))
        assert (await world.head()).state == before
        assert await world.state(chat_room.Person, "eve") == chat_room.Person()
        assert (await world.state(chat_room.Person, "ada")).mentions == []
