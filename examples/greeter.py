import asyncio

import worldline as wl

app = wl.Program("greeter")


@app.effect  # outside: at least once, answer journaled exactly once
async def shout(text: str) -> str:
    return text.upper()


@app.workflow  # inside: deterministic, durable, survives anything
async def greet(name: str) -> str:
    await wl.sleep(5)
    return await shout(f"hello {name}")


async def main() -> None:
    async with wl.open("worlds", host=app) as universe:  # a folder, or postgresql://...; host= runs worlds here
        world = await universe.ensure("alice", app)
        print(await world.run(greet("Alice"), id="hello"))  # run it again after kill -9: it resumes


asyncio.run(main())
