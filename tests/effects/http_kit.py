"""What the tests of `http.request` share: a policy, names that lead where a test says, and refusals."""

from __future__ import annotations

import socket
from collections.abc import Awaitable
from typing import Any

import pytest

import worldline as wl
from tests.servers.web import Reply, Seen
from worldline.base import failures
from worldline.model.http_response import Response

LOCAL = wl.ops.Egress(allow=["127.0.0.1"])
NESTED: list[Any] = []
for _ in range(100_000):
    NESTED = [NESTED]
PLANTED = "s3" + "cret"  # so that no line of code that a traceback shows has it


class Names:
    """A resolver that answers from a table, and counts how often it was asked. The last answer of a list stays."""

    def __init__(self, **table: list[list[str]]) -> None:
        self._table = table
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        answers = self._table.get(host.split(".", maxsplit=1)[0])
        if answers is None:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return answers.pop(0) if len(answers) > 1 else answers[0]


async def refused(request: Awaitable[Response]) -> str:
    with pytest.raises(failures.Fatal) as caught:
        await request
    return f"{caught.value.code}: {caught.value}"


async def echo(seen: Seen) -> Reply:
    return Reply(201, {"x-twice": "a"}, seen.body or seen.target.encode())
