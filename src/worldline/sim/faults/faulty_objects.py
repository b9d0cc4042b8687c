"""Objects that fail now and then: refused, written without saying so, cut short or damaged on the way back."""

from __future__ import annotations

from worldline.base import errors
from worldline.sim.faults.faulty_store import Faults
from worldline.store.objects import objects_interface as objects

FLIPS_MAX = 2  # damage on the way does not come for ever; damage at rest is another matter


class FaultyObjects:
    """The bodies of a store, as every host sees them."""

    def __init__(self, bodies: objects.Objects, faults: Faults) -> None:
        self._bodies = bodies
        self._faults = faults
        self._flips: dict[str, int] = {}  # in a row, of each object

    async def put(self, name: str, body: bytes) -> None:
        """Either the object is there afterwards and the answer is lost, or it is not."""
        if self._hit(self._faults.profile.objects // 4, "objects out of reach", "put"):
            if self._faults.pick(0, 1):  # the answer is lost either way, and the caller cannot know which
                await self._bodies.put(name, body)
            raise errors.StoreUnavailable("no answer from the objects")
        await self._bodies.put(name, body)

    async def get(self, name: str) -> bytes:
        body = await self._bodies.get(name)
        if not self._hit(self._faults.profile.objects, "object damaged on the way", "get"):
            self._flips[name] = 0
            return body
        if self._faults.pick(0, 1, 1, 1) and body and self._flips.get(name, 0) < FLIPS_MAX:
            self._flips[name] = self._flips.get(name, 0) + 1
            return bytes([body[0] ^ 1]) + body[1:] if self._faults.pick(0, 1) else body[: len(body) // 2]
        self._flips[name] = 0
        raise errors.StoreUnavailable("no answer from the objects")

    async def list(self, prefix: str, *, after: str = "", count_max: int = 1000) -> list[objects.ListedObject]:
        return await self._bodies.list(prefix, after=after, count_max=count_max)

    async def delete(self, name: str) -> None:
        await self._bodies.delete(name)

    async def close(self) -> None:
        """The bodies outlive the hosts that use them."""

    def _hit(self, rate: int, fault: str, where: str) -> bool:
        return self._faults.hit(rate, self._faults.loop.host_of(None), fault, where)
