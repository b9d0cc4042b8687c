"""A to-do list that is a document: no code of its own, and it says why an action cannot be run.

    python examples/todo/todo.py

`todo.json` has the state, the computed values and the actions as data: a user interface or a model could have written
it. A standalone host runs it in this process. `worldline domain show examples/todo/todo.json` shows it.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from worldline import flow

DOCUMENT = json.loads(Path(__file__).with_name("todo.json").read_text(encoding="utf-8"))


async def act(host: flow.Host, action: str, title: str = "") -> None:
    result = await host.dispatch(action, {"title": title}) if title else await host.dispatch(action)
    said = f"{result.snapshot.computed['computed.left']} left"
    if result.error is not None:
        refusal = flow.Core().unavailable(host.domain.schema, result.snapshot, action)
        said = "; ".join(refusal.reasons) if refusal else result.error.message
    print(f"{action:6} {title or '-':8} {result.status}: {said}")


async def main() -> flow.Snapshot:
    host = flow.Host(DOCUMENT)
    await act(host, "clear")
    for title in ("tea", "milk", "bread", "jam"):
        await act(host, "add", title)
    await act(host, "finish", "milk")
    await act(host, "add", "jam")
    await act(host, "clear")
    return host.snapshot()


if __name__ == "__main__":
    asyncio.run(main())
