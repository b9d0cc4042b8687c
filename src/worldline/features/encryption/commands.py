"""Keys of encrypted stores: making a key file, which keys are in use, and changing them."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from worldline.base import env_os, errors, grammar, limits, private_files
from worldline.features.encryption import data_key_rotation, master_key_rotation, master_keys
from worldline.terminal import command_session, output
from worldline.terminal.command_session import CommandSession


@command_session.command("new-key")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--id", "key_id", metavar="ID", required=True, help="What the key is called: a month, a number.")
def new_key(desk: CommandSession, file: Path, key_id: str) -> None:
    """Add a random key to a key file.

    The file is made if there is none. The key becomes the current one: processes that are started with the file from
    now on use it.
    """
    try:
        found = master_keys.read(file) if file.exists() else master_keys.KeyFile("", {})
    except OSError as error:
        raise errors.BadInput(f"cannot read {file}: {error.strerror}") from error
    # Another key under this id would make all that the old one has wrapped unreadable.
    if key_id in found.keys:
        raise errors.Exists(f"{file} has a key {key_id!r} already; choose another id")
    made = env_os.OsEnv().random_bytes(limits.KEY_BYTES)
    changed = master_keys.KeyFile(key_id, {**found.keys, key_id: made.hex()})
    changed.codec()  # refuses a bad id  # refuses a bad id before anything is written
    private_files.write(file, msgspec.json.format(msgspec.json.encode(changed), indent=2) + b"\n", replace=True)
    said = f"{key_id} is the current key of {len(changed.keys)} in {file}; keep the file safe: data is lost without it"
    desk.out.one({"file": str(file), "current": key_id, "ids": list(changed.keys)}, [said])


@command_session.command("keys", many=True)
async def keys(desk: CommandSession, limit: int) -> None:
    """Show which master keys an encrypted store was written with."""
    async with desk.open_store() as store:
        found = await master_key_rotation.in_use(master_key_rotation.ring_of(store))
    columns = {"KEY": "id", "DATA KEYS": "data_keys", "CURRENT": "current"}
    desk.out.many(found[:limit], columns, none="no keys are in use")


@command_session.command("rotate-keys")
@click.option("--data", is_flag=True, help="New data keys, too: all values are sealed again.")
async def rotate_keys(desk: CommandSession, data: bool) -> int:
    """Move an encrypted store to its current key.

    All data keys are wrapped with the current master key, and the others are retired. First give every process a key
    file that has both; then make the new one current everywhere; then rotate. Hosts go on meanwhile. A key that is
    retired is not needed any more. With --data, each universe and world gets another data key as well, and what the old
    one has sealed is sealed anew; cut off, it is begun again.
    """
    anew: data_key_rotation.DataRotated | None = None
    async with desk.open_store() as store:
        ring = master_key_rotation.ring_of(store)
        done = await master_key_rotation.rotate(ring)
        if data:
            with desk.out.progress("values") as progress:
                anew = await data_key_rotation.rotate(ring, progress=lambda count: progress(count, count))
    lines = [f"wrapped by {ring.codec.current} now: {grammar.count(done.rewrapped, 'data key')}"]
    if done.retired:
        lines.append(f"not needed any more: {', '.join(done.retired)}")
    if done.kept:
        lines.append(f"still in use: {', '.join(done.kept)}; a process has one of them as its current key")
    said = {"current": ring.codec.current, **msgspec.structs.asdict(done)}
    if anew is not None:
        said["data"] = msgspec.structs.asdict(anew)
        changed = grammar.clause(anew.keys + anew.resumed, "data key", "was changed", "were changed")
        lines.append(f"{changed}, {grammar.count(anew.values, 'value')} sealed again")
    desk.out.one(said, lines)
    return output.NEGATIVE if done.kept else 0
