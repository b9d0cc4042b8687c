"""`wl.log`: lines with fields, the same inside and outside of workflows; nothing that is logged can do any harm."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Never

import pytest

import worldline as wl
from worldline import testing
from worldline.model.journal import Kind
from worldline.observe import log_format


class Kept(logging.Handler):
    """Keeps records, and raises what goes wrong with their text."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        record.getMessage()
        self.records.append(record)


@pytest.fixture
def kept() -> Iterator[Kept]:
    log, handler = logging.getLogger("worldline.user"), Kept()
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.removeHandler(handler)
    log.setLevel(before)


class Broken:
    def __init__(self) -> None:
        self.asked = 0

    def __str__(self) -> Never:
        self.asked += 1
        raise SystemExit("no text")

    __repr__ = __str__


class Liar(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __format__ = __str__  # type: ignore[assignment]


LINES: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    (("reserved",), {"claim": "c1", "count": 2}, "reserved claim=c1 count=2"),
    (("b before a",), {"b": 1, "a": None}, "b before a b=1 a=None"),
    (("100 %",), {"share": "100 %"}, "100 % share='100 %'"),
    (("%s of %d", "one", 3), {"left": 2.5}, "one of 3 left=2.5"),
    (("%(a)s", {"a": 1}), {}, "1"),
    (("%d", "one"), {"a": True}, "%d 'one' a=True"),
    (("%s %s", 1), {}, "%s %s 1"),
    (("too many", 1), {}, "too many 1"),
    (("%s", Broken()), {}, "%s <Broken>"),
    ((Broken(),), {"a": Broken()}, "<Broken> a=<Broken>"),
    ((Liar("told"),), {"a": Liar("also")}, "<Liar> a=also"),
    (("lines",), {"a": "one\ntwo", "b": "", "c": [1, "x"]}, "lines a='one\\ntwo' b='' c=[1, 'x']"),
    (("names",), {"msg": 1, "level": 2, "self": 3, "name": 4, "args": 5}, "names msg=1 level=2 self=3 name=4 args=5"),
    (("large",), {"number": 2**80}, f"large number={2**80}"),
]


@pytest.mark.parametrize(("args", "fields", "said"), LINES)
def test_a_line_shows_its_fields(kept: Kept, args: Any, fields: Any, said: str) -> None:
    wl.log.info(*args, **fields)
    assert [record.getMessage() for record in kept.records] == [said]

    app = wl.Program("logs")

    @app.workflow
    async def talks() -> None:
        wl.log.info(*args, **fields)
        await wl.sleep(1)

    with testing.world(app) as world:
        world.start(talks(), id="t")
        world.crash()
        world.advance(2)
        world.prove()
    assert [record.getMessage() for record in kept.records] == [said, f"[t] {said}"]


def test_fields_are_attributes_of_the_record(kept: Kept) -> None:
    wl.log.info(
        "a", claim="c", count=1, name="mine", world="w", other=[1], message="m", extra={"levelno": 7, "more": 8}
    )
    [record] = kept.records
    found = {name: getattr(record, name) for name in ("claim", "count", "name_", "world_", "other", "message_", "more")}
    assert found == {
        "claim": "c",
        "count": 1,
        "name_": "mine",
        "world_": "w",
        "other": "[1]",
        "message_": "m",
        "more": 8,
    }
    assert (record.name, record.levelno, vars(record)["levelno_"]) == ("worldline.user", logging.INFO, 7)


def test_a_line_says_where_it_was_logged(kept: Kept) -> None:
    wl.log.info("here")
    wl.log.log(logging.INFO, "here")
    wl.log.exception("here", stacklevel=2)
    assert [record.funcName for record in kept.records[:2]] == ["test_a_line_says_where_it_was_logged"] * 2
    assert kept.records[2].funcName != "test_a_line_says_where_it_was_logged"


def test_an_exception_is_logged_with_its_traceback(kept: Kept) -> None:
    try:
        raise ValueError("why")
    except ValueError:
        wl.log.exception("failed", claim=1)
    [record] = kept.records
    assert record.exc_info is not None
    assert log_format.Text().format(record).endswith("ValueError: why")


def test_silence_looks_at_nothing(kept: Kept) -> None:
    """Each argument is made into text when the line is written, and never when the run is rebuilt."""
    app = wl.Program("logs")
    asked: list[int] = []

    @app.workflow
    async def talks() -> None:
        broken = Broken()
        wl.log.info(broken, claim=broken)
        asked.append(broken.asked)
        await wl.sleep(1)

    with testing.world(app, twice=False) as world:
        world.start(talks())
        world.crash()
        world.advance(2)
    assert asked == [2, 0]
    assert len(kept.records) == 1


@dataclass(frozen=True)
class Said:
    pass


class Emits:
    """Its text raises an event, which must not depend on whether the line is written."""

    def __str__(self) -> str:
        wl.emit(Said())
        return "said"

    __repr__ = __str__


def test_making_text_changes_nothing(kept: Kept) -> None:
    app = wl.Program("logs")

    @app.workflow
    async def talks() -> None:
        wl.log.info("%s", Emits())
        await wl.sleep(1)

    with testing.world(app) as world:
        world.run(talks(), id="t")
        assert [entry.kind for entry in world.journal() if entry.kind is Kind.EVENT_RAISED] == []
        world.prove()
    assert [record.getMessage() for record in kept.records] == ["[t] %s <Emits>"]


def test_text_form_says_fields_once() -> None:
    lines: list[str] = []
    with log_format.written("text", lines.append):
        wl.log.info("reserved", claim="c1")
    assert lines[0].endswith("INFO user: reserved claim=c1")
