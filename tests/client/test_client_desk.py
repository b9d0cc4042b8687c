"""Where clients seal personal values: what has none is delivered at once, and nothing of the store is read for it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from worldline.client import client_desk
from worldline.client.world_handle import Handle
from worldline.kernel import user_values
from worldline.kernel.personal import personal_value
from worldline.kernel.personal.personal_value import Personal

NO_WORLD = cast("Handle", None)  # whatever is read of it fails


class Delivery:
    def __init__(self) -> None:
        self.written = 0
        self.delivered: list[bytes] = []

    def write(self, value: Any) -> bytes:
        self.written += 1
        return user_values.dump(value)

    async def deliver(self, data: bytes) -> int:
        self.delivered.append(data)
        return len(self.delivered)


@pytest.mark.parametrize("seen", [False, True], ids=["no personal values here", "some in this process"])
async def test_a_plain_value_is_written_and_delivered_once(seen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(personal_value.use, "seen", seen)
    delivery = Delivery()
    count = await client_desk.deliver_sealed(NO_WORLD, lambda: delivery.write([1, "x"]), delivery.deliver, id=None)
    assert (count, delivery.written, delivery.delivered) == (1, 1, [user_values.dump([1, "x"])])


async def test_a_personal_value_needs_the_store_before_it_is_delivered() -> None:
    delivery = Delivery()
    value = Personal("ann", of="ann")
    with pytest.raises(AttributeError, match="connection"):
        await client_desk.deliver_sealed(NO_WORLD, lambda: delivery.write(value), delivery.deliver, id=None)
    assert delivery.delivered == []
