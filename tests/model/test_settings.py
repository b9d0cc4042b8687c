"""Settings that no role could work with are refused where they are made, with the field, the value and the range."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import worldline as wl
from worldline import ops
from worldline.base import errors, limits
from worldline.model import settings

PARTS = (
    settings.WorkerSettings,
    settings.AdapterSettings,
    settings.TimerSettings,
    settings.OrchestratorSettings,
    settings.JanitorSettings,
    settings.PressureSettings,
    settings.CacheSettings,
    settings.Settings,
)
OR_ZERO = (
    "host_wait_ms",
    "blocked_wait_ms",
    "max_cycle_wall_ms",
    "moves_max",
    "inbox_items_max",
    "open_effects_max",
    "waiting_world_max",
    "waiting_max",
    "sample_ms",
    "prove_ms",
    "backlog_ms",
    "segment_entries",
    "segment_margin",
    "journal_kept_ms",
    "snapshots_kept",
    "snapshots_kept_ms",
    "collect_ms",
    "collect_grace_ms",
    "usage_ms",
    "reserved",
)

NUMBERS = [
    (part, field.name)
    for part in PARTS
    for field in msgspec.structs.fields(part)
    if type(getattr(part(), field.name)) is int
]


def refused(part: type[Any], **values: Any) -> str:
    with pytest.raises(errors.BadInput) as caught:
        part(**values)
    with pytest.raises(errors.BadInput):
        msgspec.structs.replace(part(), **values)
    return str(caught.value)


def test_each_part_is_public() -> None:
    """Who writes `wl.Settings(timer=...)` needs its class: the whole at the top, its parts in `worldline.ops`."""
    parts = {type(getattr(settings.Settings(), field.name)) for field in msgspec.structs.fields(settings.Settings)}
    made = {each for each in parts if issubclass(each, msgspec.Struct)} | {settings.Settings}
    assert made == {*PARTS}
    assert {getattr(wl if each is settings.Settings else ops, each.__name__) for each in made} == made


def test_defaults_are_fine() -> None:
    assert settings.Settings() == settings.Settings(worker=settings.WorkerSettings())


@pytest.mark.parametrize(("part", "name"), NUMBERS, ids=[f"{part.__name__}.{name}" for part, name in NUMBERS])
def test_numbers_out_of_range(part: type[Any], name: str) -> None:
    low = (
        limits.CACHE_BYTES_MIN if name == "bytes_max" else 0 if name in OR_ZERO else 2 if name.endswith("ttl_ms") else 1
    )
    for value in (low - 1, -5, 10**18, 1.5, "10", None, True):
        why = refused(part, **{name: value})
        assert why.startswith(f"{part.__name__}.{name} is {value!r}; use a whole number from {low} to "), why


def test_yes_or_no() -> None:
    for value in (1, 0, "yes", None):
        why = refused(settings.WorkerSettings, segment_changes=value)
        assert why == f"WorkerSettings.segment_changes is {value!r}; use True or False"


RELATED: list[tuple[type[Any], dict[str, int], str]] = [
    (
        settings.WorkerSettings,
        {"heartbeat_ms": 20_000},
        "WorkerSettings.heartbeat_ms is 20000; use a whole number from 1 to 5000, half of lease_ttl_ms",
    ),
    (
        settings.WorkerSettings,
        {"lease_ttl_ms": 1_000, "heartbeat_ms": 501},
        "WorkerSettings.heartbeat_ms is 501; use a whole number from 1 to 500, half of lease_ttl_ms",
    ),
    (
        settings.AdapterSettings,
        {"claim_ttl_ms": 9_999},
        "AdapterSettings.renew_ms is 5000; use a whole number from 1 to 4999, half of claim_ttl_ms",
    ),
]


@pytest.mark.parametrize(("part", "values", "why"), RELATED)
def test_heartbeats_and_renewals_come_twice_within_their_ttl(part: type[Any], values: dict[str, int], why: str) -> None:
    assert refused(part, **values) == why


def test_shortest_ttls() -> None:
    settings.WorkerSettings(lease_ttl_ms=2, heartbeat_ms=1)
    settings.AdapterSettings(claim_ttl_ms=2, renew_ms=1)


@pytest.mark.parametrize("name", OR_ZERO)
def test_zero_where_it_means_something(name: str) -> None:
    part: Any
    [part] = [part for part, field in NUMBERS if field == name]
    assert getattr(part(**{name: 0}), name) == 0


OTHERS: list[tuple[type[Any], dict[str, Any], str]] = [
    (settings.WorkerSettings, {"labels": ["a"]}, "WorkerSettings.labels is ['a']; use a dict of names and values"),
    (settings.WorkerSettings, {"labels": {"zone": 1}}, "WorkerSettings.labels has 'zone': 1; names and values are"),
    (settings.WorkerSettings, {"labels": {" zone": "a"}}, "a label's name must be printable text"),
    (settings.Settings, {"worker": {"scan_ms": 5}}, "Settings.worker is a dict; use WorkerSettings(...)"),
    (
        settings.Settings,
        {"timer": settings.JanitorSettings()},
        "Settings.timer is a JanitorSettings; use TimerSettings",
    ),
]


@pytest.mark.parametrize(("part", "values", "why"), OTHERS)
def test_other_values(part: type[Any], values: dict[str, Any], why: str) -> None:
    assert refused(part, **values).startswith(why)


@pytest.mark.parametrize("given", [{}, settings.WorkerSettings(), 5])
async def test_open_takes_settings_alone(given: Any) -> None:
    with pytest.raises(errors.BadInput, match=r"settings is an? \w+; use .*Settings\(\.\.\.\)"):
        async with wl.open("memory://", settings=given):
            pass


async def test_open_with_settings_that_cannot_work(tmp_path: Any) -> None:
    """Refused before anything is opened or made."""
    with pytest.raises(errors.BadInput, match="lease_ttl_ms is 0"):
        async with wl.open(
            str(tmp_path / "store"), settings=settings.Settings(worker=settings.WorkerSettings(lease_ttl_ms=0))
        ):
            pass
    assert list(tmp_path.iterdir()) == []
