"""Opening a universe. With `host=`, the process also runs worlds of those programs; without, it is a client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any

from worldline.api.universe_api import Universe
from worldline.base import env as envs
from worldline.client import connection
from worldline.effects import secret_sources
from worldline.effects.egress import Egress
from worldline.features.encryption import codec_opening
from worldline.kernel.authoring.program import Program
from worldline.model.settings import Settings
from worldline.observe import sinks as observers


class _Opening(AbstractAsyncContextManager[Universe]):
    """A block with a universe. Used without `async with`, it says so."""

    def __init__(self, opened: AbstractAsyncContextManager[Universe]) -> None:
        self._opened = opened

    async def __aenter__(self) -> Universe:
        return await self._opened.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._opened.__aexit__(kind, error, trace)

    # Called for missing attributes only: using what `open` gives without a block says what to write.
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"a universe is open in a block: `async with wl.open(...) as universe: universe.{name}...`"
        )


def open(
    url: str,
    /,
    *,
    host: Program | Sequence[Program] = (),
    programs: Program | Sequence[Program] = (),
    universe: str = connection.DEFAULT_UNIVERSE,
    objects: str | None = None,
    create: bool | None = None,
    settings: Settings | None = None,
    env: envs.Env | None = None,
    egress: Egress | None = None,
    sinks: observers.Sinks | None = None,
    metrics: str | None = None,
    peers: Mapping[str, str] | None = None,
    codec: codec_opening.AnyCodec | None = None,
    secrets: secret_sources.Given | None = None,
) -> AbstractAsyncContextManager[Universe]:
    """Open a universe: a folder, or `postgresql://...`. `host=` runs worlds of these programs here.

    Large values are kept in the store itself, up to 16 MiB each; `objects` names a folder or `s3://bucket/prefix` that
    takes them instead. `programs=` are programs whose worlds are hosted elsewhere: with them, a client reads states as
    objects of its own classes; without, as plain data. A store is created if this process hosts, or if `create` says
    so. `egress` says which hosts `wl.http.request` may reach from here: none, unless they are named. `sinks` are
    functions that are told what this process does; `metrics` is HOST:PORT where Prometheus finds the same as numbers.
    `peers` names other stores by their URLs, `{"billing": "postgresql://..."}`: messages to `billing:universe/world` go
    there. `codec` encrypts users' data on its way into the store: `wl.ops.AesGcm(keys=..., current=...)`, or an object
    of your own; a store is opened with the codec that it was made with. `secrets` says where `wl.secret` finds secrets:
    a folder with a file for each, a mapping, or a function of a name; without it, the environment
    (`WORLDLINE_SECRET_NAME`), and the folder that `WORLDLINE_SECRETS` names.
    """
    opened = connection.open(
        url,
        host=host,
        programs=programs,
        universe=universe,
        objects=objects,
        create=create,
        settings=settings,
        env=env,
        egress=egress,
        sinks=sinks,
        metrics=metrics,
        peers=peers,
        codec=codec,
        secrets=secrets,
    )
    return _Opening(_universe_of(opened))  # wrapped, so that a use without a block says what to write


@asynccontextmanager
async def _universe_of(opened: AbstractAsyncContextManager[connection.Connection]) -> AsyncIterator[Universe]:
    async with opened as link:
        yield Universe(link)
