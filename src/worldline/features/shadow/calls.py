"""Trying other code on a stored world, in a thread of its own that can be left behind.

The code is given a time for each step. If one does not return within it, the report says where it was, the thread is
interrupted, and left behind if it does not end; it keeps no process alive. Nothing is written, and no effect is called.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TypeVar

from worldline.base import env as envs
from worldline.base import errors
from worldline.features.shadow import step_window
from worldline.features.shadow.pure import upgrade_check
from worldline.features.shadow.pure.recording import Recording
from worldline.features.shadow.pure.shadow_report import ShadowReport
from worldline.kernel import user_errors
from worldline.kernel.authoring.program import Program
from worldline.kernel.parts import StepParts
from worldline.kernel.personal.vault_interface import Vault
from worldline.layers import blobs as blob_layer
from worldline.layers import worlds
from worldline.model.world_records import Status
from worldline.runtime import step_prover, world_reader
from worldline.runtime.personal import store_vault as vaults
from worldline.store import kv
from worldline.worker.kernel_executor import KernelExecutor, KernelOverdue

STEP_US = 10_000_000  # that a step may take
LOOK_SECONDS = 0.05
LOOKS_AFTER = 20  # for a thread that was given up to end

T = TypeVar("T")


async def try_out(
    engine: kv.Engine,
    blobs: blob_layer.Blobs,
    env: envs.Env,
    world: worlds.WorldRecord,
    program: Program,
    *,
    parts: StepParts,
    last: int | None = None,
    or_fewer: bool = False,
    step_us: int | None = None,
) -> ShadowReport:
    """What would differ if the world had run under this program for its last so many steps. `BadInput` if they cannot
    be read any more. `or_fewer`: then those that can.
    """
    name = world.meta.name
    if not isinstance(program, Program):
        raise errors.BadInput(f"a program is needed to try world {name!r} with, not {program!r}")
    if program.name != world.meta.program:
        raise errors.BadInput(f"world {name!r} is of program {world.meta.program!r}, not of {program.name!r}")
    if world.meta.status is Status.DELETED:
        raise errors.NotFound(f"world {name!r} is deleted")
    if last is not None and (type(last) is not int or last < 1):
        raise errors.BadInput(f"last is a number of steps from 1 on, not {last!r}")
    stored = await step_window.read(engine, blobs, world.at, name=name, last=last, or_fewer=or_fewer)
    executor = KernelExecutor()
    step_us = STEP_US if step_us is None else step_us
    try:
        recording = await _wait(executor, executor.submit(stored.recording), env, step_us)
        try:
            vault = await vaults.vault_of(engine, env, await world_reader.line_of(engine, world.at))
            return await _wait(
                executor, executor.submit(_tried, executor, program, recording, parts, vault), env, step_us
            )
        except KernelOverdue as overdue:
            return _hung(program, recording, overdue.place, step_us)
    finally:
        # A thread that was interrupted needs a moment to end; what does not end then is left behind.
        for _ in range(LOOKS_AFTER):
            executor.look(env.monotonic_us(), step_us)
            if not executor.left:
                break
            await asyncio.sleep(LOOK_SECONDS)
        executor.shutdown(wait=False)


def _tried(
    executor: KernelExecutor, program: Program, recording: Recording, parts: StepParts, vault: Vault
) -> ShadowReport:
    """In the thread."""
    try:
        return upgrade_check.would_differ(program, recording, executor.begin_part, parts, vault)
    except Exception:
        raise
    # The code may call `sys.exit`: that ends the trial, and not this process.
    except BaseException as error:
        if user_errors.let_pass(error):
            raise
        raise errors.StepFailed(f"the code ends the process: {user_errors.message_of(error)}") from error


def _hung(program: Program, recording: Recording, place: str, step_us: int) -> ShadowReport:
    why = f"the code does not return: it was in {place} for more than {step_us / 1_000_000:g} s"
    return upgrade_check.of(program, recording, step_prover.program_of(recording.rows_after), stopped=why)


async def _wait(executor: KernelExecutor, job: Future[T], env: envs.Env, step_us: int) -> T:
    """What comes of a job, which is looked after meanwhile."""
    done = asyncio.wrap_future(job)
    while not (await asyncio.wait([done], timeout=LOOK_SECONDS))[0]:
        # A look notices a step that takes too long, and interrupts it.
        executor.look(env.monotonic_us(), step_us)
    return done.result()
