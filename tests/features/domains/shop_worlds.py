"""A test world of the shop: every step is done twice there, and it is proved at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import worldline as wl
from tests.features.domains.shop import Shop
from worldline import testing
from worldline.features.domains.pure import domain_cell
from worldline.testing.tested_world import TestWorld


@contextmanager
def opened(shop: Shop, *answers: Any, **options: Any) -> Iterator[TestWorld]:
    script = wl.Script().on(shop.charge, *(answers or ("r-1",)))
    with testing.world(shop.app, script, **options) as world:
        yield world
        world.prove()


def intents(world: TestWorld) -> list[str]:
    """What has left the world, by the name that it has outside."""
    return [intent.hex() for intent in world.machine.work.open]


def waiting(world: TestWorld, key: str) -> list[str]:
    return [each.id for each in domain_cell.decode(world.machine.cells["Order", key].data)[0].queue]
