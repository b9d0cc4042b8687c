"""A chat: one cell for each room and one for each person, folded from the same events.

    python examples/chat_room.py [FOLDER]

`Said` reaches the room it was said in and the person who said it. A mention is an event of its own, raised by the room
and taken by the person mentioned, in the same step.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from dataclasses import dataclass, field

import worldline as wl

app = wl.Program("chat")


@dataclass(frozen=True)
class Joined:
    room: str
    person: str


@dataclass(frozen=True)
class Say(wl.Request[int]):
    """Say something in a room; answered with its number there."""

    room: str
    person: str
    text: str


@dataclass(frozen=True)
class Said:
    person: str
    room: str
    text: str


@dataclass(frozen=True)
class Mentioned:
    person: str
    by: str
    room: str


@app.reducer(key="room")
@dataclass
class Room:
    members: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @wl.on
    def joined(self, event: Joined) -> None:
        if event.person not in self.members:
            self.members.append(event.person)
            self.lines.append(f"* {event.person} has joined")

    @wl.on
    def say(self, event: Say) -> int:
        if event.person not in self.members:
            raise wl.Refused(f"{event.person} is not in #{event.room}")
        self.lines.append(f"{event.person}: {event.text}")
        wl.emit(Said(event.person, event.room, event.text))
        for name in self.members:
            if f"@{name}" in event.text:
                wl.emit(Mentioned(name, event.person, event.room))
        return len(self.lines)


@app.reducer(key="person")
@dataclass
class Person:
    rooms: list[str] = field(default_factory=list)
    said: int = 0
    mentions: list[str] = field(default_factory=list)

    @wl.on
    def joined(self, event: Joined) -> None:
        if event.room not in self.rooms:
            self.rooms.append(event.room)

    @wl.on
    def spoke(self, event: Said) -> None:
        del event
        self.said += 1

    @wl.on
    def mentioned(self, event: Mentioned) -> None:
        self.mentions.append(f"{event.by} in #{event.room}")


async def main(folder: str) -> None:
    async with wl.open(folder, host=app) as universe:
        world = await universe.ensure("chat", app)
        for where, who in (("tea", "ada"), ("tea", "grace"), ("code", "ada"), ("code", "alan")):
            await world.send(Joined(where, who), id=f"{who} joins {where}")

        await world.ask(Say("tea", "ada", "who wants some?"))
        await world.ask(Say("tea", "grace", "me! thank you @ada"))
        await world.ask(Say("code", "alan", "@ada does it halt?"))
        try:
            await world.ask(Say("code", "grace", "let me in"))
        except wl.Refused as no:
            print(f"refused: {no}\n")

        for name in ("tea", "code"):
            room = await world.state(Room, name)
            print(f"#{name} ({', '.join(room.members)})")
            print("".join(f"  {line}\n" for line in room.lines))
        for name in ("ada", "grace", "alan"):
            person = await world.state(Person, name)
            print(
                f"{name}: in {', '.join(person.rooms)}; said {person.said}; mentioned by {person.mentions or 'no one'}"
            )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="chat-")))
