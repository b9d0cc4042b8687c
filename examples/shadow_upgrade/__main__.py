"""A shadow upgrade: what would the edited order saga do otherwise with the orders of yesterday?

    python -m examples.shadow_upgrade [FOLDER]

The shop takes its four orders (`examples/order_saga.py`) and closes. Then the edited code gets what the shop got: every
order, every answer of the payment service and the carrier, every cancellation. Nothing is charged, shipped or written.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile

import worldline as wl
from examples import order_saga
from examples.shadow_upgrade import new_saga


async def main(folder: str) -> None:
    await order_saga.main(folder)
    async with wl.open(folder) as universe:
        found = await universe.world("shop").shadow(new_saga.app)
    print(f"the edited saga, over the last {found.steps} steps")
    for effect in found.effects:
        print(f"  {effect.run}: asked for {effect.old.text if effect.old else 'nothing'}")
        print(f"      now: {effect.new.text if effect.new else 'nothing'}")
    for run in found.runs:
        print(f"  {run.run}: {run.old.status} {run.old.value!r}")
        print(f"      now: {f'waits for {run.waits}' if run.waits else f'{run.new.status} {run.new.value!r}'}")
    print("  everything else comes out the same" if not found.blocked else "  and runs would block")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="orders-")))
