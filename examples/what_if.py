"""What if the model had said something else? One decision of an agent, three branches, nothing leaves them.

    python examples/what_if.py [FOLDER]

An agent answers a complaint: it looks at the order, lets a model decide, and does what the model says. Afterwards the
world is forked three times before that decision. Each fork gets the same facts that the agent had (`effects="share"`)
and another answer of the model (`script=`), and continues from there. Forks are dry: no money is paid in them, and the
model is not asked again. In the end, two of the branches are compared.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from dataclasses import dataclass

import worldline as wl

app = wl.Program("complaints")


@dataclass(frozen=True)
class Spent:
    cents: int
    customer: str


@app.reducer
@dataclass
class Budget:
    cents: int = 10_000
    mood: str = "unknown"

    @wl.on
    def spent(self, event: Spent) -> None:
        self.cents -= event.cents
        self.mood = event.customer


@app.effect
async def look_up(order: str) -> str:
    print(f"    look up {order}")
    return "a teapot for 42.00, lost on its way"


@app.effect
async def decide(facts: str) -> str:
    """The model. A real one would be asked over HTTP."""
    print(f"    the model reads: {facts}")
    return "apologise"


@app.effect
async def pay(order: str, cents: int) -> str:
    print(f"    pay {cents} cents for {order}")
    return f"payment for {order}"


@app.workflow
async def complaint(order: str) -> str:
    facts = await look_up(order)
    decision = await decide(facts)
    if decision == "apologise":
        wl.emit(Spent(0, "angry"))
        return "said sorry"
    cents = 4_200 if decision == "refund" else 1_000
    paid = await pay(order, cents)
    wl.emit(Spent(cents, "happy"))
    return f"{decision}: {paid}"


async def main(folder: str) -> None:
    async with wl.open(folder, host=app) as universe:
        world = await universe.ensure("desk", app)
        print("what happened")
        print(f"  -> {await world.run(complaint('A7'), id='A7')}")

        print("what if the model had said")
        for decision in ("apologise", "refund", "voucher"):
            branch = await world.fork(
                f"what-if-{decision}",
                before="effect decide",
                effects="share",
                script=[{"effect": "decide", "answer": decision}, {"effect": "pay", "answer": "a payment not made"}],
            )
            result = await (await branch.attach("A7")).result()
            budget = await branch.state(Budget)
            print(f"  {decision:9} -> {result}; {budget.cents} cents are left, the customer is {budget.mood}")

        refund, voucher = (universe.world(f"what-if-{decision}") for decision in ("refund", "voucher"))
        print("where the refund and the voucher differ")
        diff = await refund.diff(voucher)
        for effect in diff.effects:
            left, right = effect.left, effect.right
            if left is not None and right is not None:
                print(f"  {left.name}{left.args} = {left.answer!r} | {right.name}{right.args} = {right.answer!r}")
        for cell in diff.cells:
            for each in cell.fields:
                print(f"  {cell.reducer}.{'.'.join(map(str, each.path))}: {each.left!r} | {each.right!r}")

        print(f"the desk itself still has {(await world.state(Budget)).cents} cents")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="what-if-")))
