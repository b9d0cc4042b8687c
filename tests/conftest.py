"""What all tests share: `async def` tests run in a loop of their own, and hypothesis is repeatable."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from tests import aio
from worldline.base import probes

hypothesis.settings.register_profile(
    "worldline",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("worldline")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test by `aio.run`. Fixtures that have `aclose` are closed in the same loop, last one first."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = list(inspect.signature(pyfuncitem.obj).parameters)
    aio.run(_call(pyfuncitem.obj, {name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test marked with `probe` must take the branches it names."""
    wanted = [name for mark in item.iter_markers("probe") for name in mark.args]
    if not wanted:
        yield
        return
    with probes.collect() as seen:
        yield
    assert [name for name in wanted if name not in seen] == [], "the test takes no such branch any more"


async def _call(test: Any, arguments: dict[str, Any]) -> None:
    try:
        await test(**arguments)
    finally:
        for value in reversed(arguments.values()):
            if hasattr(value, "aclose"):
                await value.aclose()
