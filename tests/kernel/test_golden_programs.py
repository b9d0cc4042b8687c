"""Hashes and interests of programs as they are stored: files of this package may move, these must not change.

Some rules compare the names of this package's own modules as text (`interests._INSIDE`, `source._CALLS`). A file that
moves without them would change hashes, and ask runs about every event, without an error.
"""

from __future__ import annotations

import importlib

import pytest

import worldline as wl

app = wl.Program("renamed")


@app.effect(name="charge")
async def charge_once(cents: int) -> int:
    return cents


@app.workflow(name="pay")
async def pay_later(cents: int) -> int:
    """Its hash has the names that are declared, not those of the functions: which objects have one is told by text."""
    return await charge_once(cents)


# The hash, and which events each workflow waits for. None: that is unknown, so it is asked about every event.
GOLDEN: dict[tuple[str, str], tuple[str, dict[str, list[str] | None]]] = {
    ("examples.chat_room", "chat"): (
        "ed04ef711544c2f6a1d937524e29ad1ab7a0c3854bbacfaa8faa0ff2aa582b52",
        {},
    ),
    ("examples.counter", "counter"): (
        "33d22a5f282185b538074b3d08114ac917d317beb632e63921d5fc923133ed4e",
        {},
    ),
    ("examples.lost_update", "till"): (
        "1b58a6576d14ce7806bd13189cf823e67c43e3cab0bf752cc7c0a629c965c476",
        {"count_in": [], "pay_in": []},
    ),
    ("examples.order_domain", "order-domain"): (
        "d00e5976b9d3d26ddbe8b8d0f505420bab7c73f6d30a172a70f405a6673b45ff",
        {},
    ),
    ("examples.order_saga", "orders"): (
        "5b20e947258336264a2b0c9c1f4caa5108a38e0f3464765e26b2251bcbf33ec3",
        {"fulfil": []},
    ),
    ("examples.schedule", "garden"): (
        "49962f32b1b8d1c6e26bd1db1ea65889093bc90024d46e1e2063a09025ec7a16",
        {"report": []},
    ),
    ("examples.template", "shops"): (
        "83895c76d0563db9891e503b9a9340b85c7d604344c094b3dcb1184d3683f054",
        {"set_up": []},
    ),
    ("examples.what_if", "complaints"): (
        "320a6087bf08be4da4f7667540e9a70510f04724e254063cd0bcb1c2981bd6ca",
        {"complaint": []},
    ),
    ("examples.agent.support", "support"): (
        "68a3d945cea09a946abed4674ca43ec7e231c64f9f79086341745604eba5991d",
        {"agent": None},
    ),
    ("examples.shadow_upgrade.new_saga", "orders"): (
        "a9b078eec469f5180c35a27184c448a92dd38fd7d49a58d058155da3dbd8e0ed",
        {"fulfil": []},
    ),
    ("worldline.demo.demo_program", "shop"): (
        "86fc127d1f73697f2596e8c3d97e806e297f1cf4c9bbaccd04f804b223ab21cd",
        {"fulfil": []},
    ),
    ("worldline.demo.demo_program", "agency"): (
        "2978ede5ae8c24646e65a36283beb9b17e1946f652f929b6454177075de43ad1",
        {"plan_trip": ["Approved"]},
    ),
    (__name__, "renamed"): (
        "2d98055afc9ec8e861993c4bb8ae3ea8d6fc6d8ba92f9e18f3cec29e91ecd74c",
        {"pay": []},
    ),
    ("tests.kernel.shop", "shop"): (
        "2ce0c88d9b4da8f810dae3af6c5631ee0b22d2a229d733c0d895908a5b35d0f1",
        {"greet": [], "double": [], "approval": ["Approved"]},
    ),
}


@pytest.mark.parametrize(("module", "name"), GOLDEN)
def test_a_program_keeps_its_hash_and_its_interests(module: str, name: str) -> None:
    programs = (globals() if module == __name__ else vars(importlib.import_module(module))).values()
    program = next(each for each in programs if isinstance(each, wl.Program) and each.name == name)
    interests = {workflow: program.interests(workflow) for workflow in program.workflows}
    assert (program.hash.hex(), interests) == GOLDEN[module, name]
