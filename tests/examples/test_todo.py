from __future__ import annotations

import pytest

from examples.todo import todo
from worldline import flow
from worldline.flow_core.analysis import document_lint


async def test_a_list_that_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    head = await todo.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("error: len(items) > computed.left is false (items = [], computed.left = 0)")
    assert lines[4].endswith("error: computed.left < 3 is false (computed.left = 3)")
    assert [each["title"] for each in head.data["items"]] == ["tea", "bread", "jam"]


def test_the_document_is_clean() -> None:
    assert flow.validate(todo.DOCUMENT) == []
    assert document_lint.lint(flow.load(todo.DOCUMENT)) == []
