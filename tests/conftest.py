"""What all tests share: `async def` tests have a loop of their own, hypothesis is repeatable, long tests come first."""

from __future__ import annotations

import gc
import inspect
import signal
import sys
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from xdist.remote import Producer

from tests import aio, scheduling
from worldline.base import probes

hypothesis.settings.register_profile(
    "worldline",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("worldline")

# What a shell starts in the background ignores Ctrl-C, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> scheduling.Scheduling:
    return scheduling.Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: scheduling.rank(item.nodeid))


def pytest_collection_finish() -> None:
    """Thousands of tests and all that they import live until the end: no garbage collection need look at them again.

    And nothing that is imported from here on is kept compiled: tests write a file, load it, edit it and load it again,
    all within the second by which Python tells whether a file has changed.
    """
    sys.dont_write_bytecode = True
    gc.collect()
    gc.freeze()


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
