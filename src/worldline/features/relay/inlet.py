"""Where relayed values go: one inbox of one world, or one event type that it takes.

A value is durable when `put` returns. Under the same id it is put once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from worldline.base import errors
from worldline.client import send_door
from worldline.client.world_handle import Handle
from worldline.codec import outside_json
from worldline.kernel import event_dispatch, user_values
from worldline.kernel.authoring.program import Program
from worldline.terminal import payload_words


class Inlet(msgspec.Struct, frozen=True):
    """`event`: values are fields of this event, checked if the program is known. Else they go to the inbox."""

    world: Handle
    inbox: str | None
    event: str | None
    program: Program | None

    async def put(self, value: Any, *, id: str | None, headers: Mapping[str, str] | None = None) -> send_door.Sending:
        schema, data = self._packed(value, headers)
        return await self.world.send(schema, data, id=id)

    def _packed(self, value: Any, headers: Mapping[str, str] | None) -> tuple[str, bytes]:
        if self.event is None:
            assert self.inbox is not None, "values go to an inbox or are an event's"
            return event_dispatch.sealed(self.inbox, user_values.dump(value), headers)
        if not isinstance(value, dict):
            raise errors.BadInput(f"the fields of {self.event} are an object, not {type(value).__name__}")
        return self.event, payload_words.event(self.program, self.event, payload_words.Given([], {}, value))


def decoded(data: bytes, what: str) -> Any:
    """JSON that can be stored. `BadInput` if it is none."""
    return outside_json.decode(data, what=what)
