"""Objects in a dict: the reference implementation, for simulation and unit tests. Nothing is durable."""

from __future__ import annotations

from worldline.base import env as envs
from worldline.base import errors
from worldline.store.objects import objects_interface as objects


class MemoryObjects:
    def __init__(self, env: envs.Env) -> None:
        self._env = env
        self._bodies: dict[str, tuple[bytes, int]] = {}

    async def put(self, name: str, body: bytes) -> None:
        objects.check_body(body)
        if objects.check_name(name) in self._bodies:
            raise errors.Exists(f"object {name} exists")
        self._bodies[name] = (body, self._env.wall_us())

    async def get(self, name: str) -> bytes:
        found = self._bodies.get(objects.check_name(name))
        if found is None:
            raise errors.NotFound(f"no object {name}")
        return found[0]

    async def list(self, prefix: str, *, after: str = "", count_max: int = 1000) -> list[objects.ListedObject]:
        objects.check_list(prefix, after, count_max)
        names = sorted(name for name in self._bodies if name.startswith(prefix) and name > after)
        return [
            objects.ListedObject(name, len(self._bodies[name][0]), self._bodies[name][1]) for name in names[:count_max]
        ]

    async def delete(self, name: str) -> None:
        self._bodies.pop(objects.check_name(name), None)

    async def close(self) -> None:
        pass
