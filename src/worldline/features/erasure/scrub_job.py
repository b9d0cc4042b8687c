"""Overwriting what was erased, where files of the engine still have it. What was not finished is owed."""

from __future__ import annotations

from worldline.base import env as envs
from worldline.codec import printable
from worldline.features.erasure import batches
from worldline.runtime.janitor_job import JanitorContext, JanitorJob
from worldline.store import kv, transact

log = printable.logger("worldline.janitor")


class ScrubJob(JanitorJob):
    """The janitor's part: what is owed, if the engine has files of its own that hold it still."""

    def __init__(self, context: JanitorContext) -> None:
        self._engine = context.engine
        self._env = context.env

    async def turn(self) -> bool:
        if not kv.can_scrub(self._engine) or not await is_owed(self._engine):
            return True
        done = await scrub(self._engine, self._env)
        if not done.complete:
            log.warning("what was erased is not overwritten yet, %s", text(done))
        return True  # also if it is owed still: it is tried again in the next round

    async def close(self) -> None:
        """Nothing is left behind: what was not finished is owed."""


async def is_owed(engine: kv.Engine) -> bool:
    """Whether something was erased since the last scrub that was complete."""
    read = await engine.read(*batches.get_scrubs())
    return batches.decode_scrubs(read.value(0), read.value(1)).is_owed


async def scrub(engine: kv.Engine, env: envs.Env) -> kv.Scrubbed:
    """Overwrite all that was erased before. What came of it is kept: a scrub that is cut off is owed still."""
    read = await engine.read(*batches.get_scrubs())
    began = batches.decode_scrubs(read.value(0), read.value(1))
    done = await kv.scrub(engine)
    if done.complete:

        async def attempt() -> transact.NothingToWrite[None] | transact.Write[None]:
            read = await engine.read(*batches.get_scrubs())
            now = batches.decode_scrubs(read.value(0), read.value(1))
            if now.done >= began.erasures:
                return transact.NothingToWrite(None)  # another process has seen as much
            batch = kv.Batch()
            # The count when the scrub began: what was erased meanwhile stays owed.
            batches.scrubbed(batch, now, erasures=began.erasures, time_us=read.time_us)
            return transact.Write(batch, lambda _: None)

        await transact.run(engine, env, attempt)
    return done


async def owe(engine: kv.Engine, env: envs.Env) -> None:
    """A collection has deleted blobs, and some may have held what was erased. Where nothing ever was, nothing is owed:
    what is replaced day by day is not overwritten.
    """

    async def attempt() -> transact.NothingToWrite[None] | transact.Write[None]:
        read = await engine.read(*batches.get_scrubs())
        found = batches.decode_scrubs(read.value(0), read.value(1))
        if not found.erasures or found.is_owed:
            return transact.NothingToWrite(None)
        batch = kv.Batch()
        batches.owe_again(batch, found)
        return transact.Write(batch, lambda _: None)

    await transact.run(engine, env, attempt)


def text(scrubbed: kv.Scrubbed) -> str:
    """Why it is not complete, for people."""
    held = ", ".join(map(str, scrubbed.held_by))
    return f"because processes read an older state of the store: {held}; it is tried again, or type `worldline scrub`"
