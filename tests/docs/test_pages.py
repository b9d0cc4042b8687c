"""The Python code of pages besides the guide is executed too, with what stands around it in a reader's program."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import worldline as wl
from examples import lost_update
from tests.docs import pages
from worldline.testing import simulate

README = pages.ROOT / "README.md"
CLI = pages.ROOT / "docs" / "cli.md"
METRICS = pages.ROOT / "docs" / "metrics.md"


def test_no_other_page_has_code() -> None:
    """Of those for users: the guide's are executed by `test_guide.py`, these three here."""
    found = [README, *(pages.ROOT / "docs").rglob("*.md")]
    outside = {page for page in found if pages.GUIDE not in page.parents and pages.source(page).strip()}
    assert outside == {README, CLI, METRICS}


@pytest.fixture
def readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[ModuleType]:
    """All its code as one file, run in an empty folder. Nothing is changed in it but how long it sleeps."""
    text = pages.source(README)
    assert text.count("wl.sleep(5)") == 1
    (tmp_path / "readme.py").write_text(text.replace("wl.sleep(5)", "wl.sleep(0.01)"))
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("readme", tmp_path / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["readme"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        assert capsys.readouterr().out == "HELLO ALICE\n"
        yield module
    finally:
        del sys.modules["readme"]


def test_the_readme_is_true(readme: Any, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(readme.main())
    assert capsys.readouterr().out == "HELLO ALICE\n", "the recorded result"

    async def further() -> None:
        async with wl.open("worlds", host=readme.app) as universe:
            alice, bank = universe.world("alice"), await universe.ensure("bank", readme.app)
            await bank.send(readme.Deposited("bob", 500))
            assert await bank.ask(readme.Withdraw("bob", 5)) == 495
            with pytest.raises(wl.Refused, match="insufficient funds"):
                await bank.ask(readme.Withdraw("bob", 496))
            assert (await bank.state(readme.Account, "bob")).cents == 495
            different = await readme.what_if(alice)
            assert not different.same
            assert "HI" in repr(different)

    asyncio.run(further())


def test_the_scenario_of_the_command_line_is_true() -> None:
    written: dict[str, Any] = {"app": lost_update.app, "Till": lost_update.Till, "Paid": lost_update.Paid}
    exec(compile(pages.source(CLI), CLI.name, "exec"), written)
    simulate(written["scenario"], program=lost_update.app, seeds=2)


@dataclass(frozen=True)
class Unknown:
    pass


class Noted:
    """What a user's own service is called with, by the names of its methods."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.calls.append((name, *given))


async def test_the_sinks_of_the_metrics_page_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    statsd, pager, archive = Noted(), Noted(), Noted()
    text = pages.source(METRICS)
    assert text.count("    ...\n") == 1
    text = text.replace("    ...\n", "    await use(universe)\n")

    async def use(universe: wl.Universe) -> None:
        till = await universe.ensure("till", lost_update.app)
        await till.run(lost_update.pay_in(250), id="r")
        with pytest.raises(wl.errors.Unhandled):
            await (await till.send(Unknown())).applied()

    code = compile(text, METRICS.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names = {"wl": wl, "app": lost_update.app, "statsd": statsd, "pager": pager, "archive": archive, "use": use}
    running = eval(code, names)
    assert inspect.iscoroutine(running)
    await running
    assert "worldline_steps_total" in {call[1] for call in statsd.calls}
    assert {call[0] for call in archive.calls} == {"write", "note"}
    assert {"started", "lease_acquired", "closed"} <= {call[1] for call in pager.calls}
