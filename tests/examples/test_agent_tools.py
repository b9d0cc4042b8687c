from __future__ import annotations

import pytest

import worldline as wl
from examples import agent_tools
from worldline import flow
from worldline.flow_core.analysis import document_lint


async def test_the_agent_does_what_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    head = await agent_tools.main()
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.endswith(": complete")] == [
        "add: complete",
        "pay: complete",
        "ship: complete",
    ]
    assert '  not ship: state = "paid" is false (state = "open")' in said
    assert head.data["receipt"] == "visa-350"


async def test_a_choice_that_was_not_offered_is_refused() -> None:
    host = flow.Host(agent_tools.Order)
    with pytest.raises(wl.BadInput, match="ship cannot be called now"):
        await agent_tools.converse(host, lambda _: ("ship", {}))


def test_the_order_is_clean() -> None:
    assert document_lint.lint(flow.load(agent_tools.Order.document())) == []
