"""What clients need of a host in their own process. `host/process.py` is one; `api/wiring.py` puts it beside them."""

from __future__ import annotations

from typing import Protocol

from worldline.layers.blobs import Blobs
from worldline.model import ids
from worldline.runtime import facts, live_hub, peer_stores
from worldline.worker import world_worker


class LocalHost(Protocol):
    """A host that was started by its owner, and is closed there."""

    @property
    def runs_worlds(self) -> bool:
        """Whether there is a world worker among its roles."""

    @property
    def worlds(self) -> world_worker.WorldWorker:
        """Only if it runs worlds."""

    @property
    def live(self) -> live_hub.Hub: ...

    @property
    def peers(self) -> peer_stores.Peers:
        """The host closes them."""

    @property
    def telemetry(self) -> facts.Telemetry: ...

    def blobs(self, universe: ids.UniverseId, /) -> Blobs:
        """Where the large values of a universe are."""

    def check(self) -> None:
        """Raise the bug that stopped a role, if one did."""

    def levels(self) -> dict[str, float]:
        """The gauges of the metrics, as they are now."""
