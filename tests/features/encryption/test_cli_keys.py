"""new-key, keys, rotate-keys, erase --all; where the keys come from; other commands on an encrypted store."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from tests import aio
from tests.cli import cli_kit
from tests.cli.cli_kit import SHOP, run
from tests.features.encryption.encrypted import inner, opened
from worldline.base import private_files
from worldline.features.encryption import keyspace as encryption_keyspace
from worldline.store import kv
from worldline.terminal import output

OLD = "6f" * 32


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.json"
    file.write_bytes(msgspec.json.encode({"current": "old", "keys": {"old": OLD}}))
    file.chmod(0o600)
    return file


@pytest.fixture
def store(tmp_path: Path, keys: Path) -> Path:
    """An encrypted store with a world that has taken something, made by a process of its own."""
    made = tmp_path / "store"
    with cli_kit.dev(SHOP, "--store", made, "--keys", keys, cwd=tmp_path):
        assert run("create", "alice", "--app", SHOP, "--store", made, "--keys", keys).code == 0
        sent = run("send", "alice", "Deposited", "account=x", "cents=1", "--wait", "--store", made, "--keys", keys)
        assert sent.code == 0, sent.err
    return made


def test_a_key_file_is_made_and_grows(tmp_path: Path) -> None:
    file = tmp_path / "made.json"
    assert run("new-key", file, "--id", "a", "--json").json == {"file": str(file), "current": "a", "ids": ["a"]}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run("new-key", file, "--id", "b", "--json").json["ids"] == ["a", "b"]
    found = msgspec.json.decode(file.read_bytes())
    assert (found["current"], [len(each) for each in found["keys"].values()]) == ("b", [64, 64])
    assert found["keys"]["a"] != found["keys"]["b"]
    before = file.read_bytes()
    for words, code in (((file, "--id", "a"), output.REFUSED), ((file, "--id", "x" * 65), output.USAGE)):
        said = run("new-key", *words)
        assert said.code == code, said.err
    assert run("new-key", tmp_path / "no" / "file", "--id", "a").code == output.USAGE
    assert file.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is not JSON"),
        ("secret-key-material", "it is not JSON"),
        ('{"current": "a"}', "it has other fields"),
        ('{"current": "a", "keys": {"a": "zz-secret"}}', "is not made of hexadecimal digits"),
        ('{"current": "b", "keys": {"a": "' + OLD + '"}}', "names none of the keys"),
    ],
)
def test_a_bad_key_file_is_refused_and_never_shown(store: Path, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)
    file.chmod(0o600)
    found = run("list", "--store", store, "--keys", file)
    assert found.code == output.USAGE
    assert said in found.err
    assert "secret" not in found.err
    assert OLD not in found.err


def test_commands_find_the_keys(store: Path, keys: Path, tmp_path: Path) -> None:
    assert run("list", "--store", store, "--keys", keys, "-q").out.split() == ["alice"]
    assert run("--keys", keys, "list", "--store", store, "-q").out.split() == ["alice"]
    done = cli_kit.spawn("list", "--store", store, "-q", cwd=tmp_path, env={"WORLDLINE_KEYS": str(keys)})
    assert done.out.split() == ["alice"]
    (tmp_path / "worldline.toml").write_text('store = "store"\nkeys = "keys.json"\n')
    assert run("list", "-q", cwd=tmp_path).out.split() == ["alice"]
    for command in (("verify", "alice"), ("doctor",), ("journal", "alice"), ("state", "alice"), ("why", "alice")):
        said = run(*command, cwd=tmp_path)
        assert said.code == 0, (command, said)
    (tmp_path / "worldline.toml").unlink()
    refused = run("list", "--store", store, "--json")
    assert (refused.code, refused.error["code"]) == (output.STORE, "codec_mismatch")
    assert "--keys FILE or WORLDLINE_KEYS" in refused.error["message"]


def test_keys_are_rotated_while_a_host_runs(store: Path, keys: Path, tmp_path: Path) -> None:
    """The host is another process, started with the old key as its current one."""
    both = tmp_path / "both.json"
    private_files.write(both, keys.read_bytes(), replace=False)
    assert run("new-key", both, "--id", "new").code == 0
    behind = msgspec.json.encode({**msgspec.json.decode(both.read_bytes()), "current": "old"})
    private_files.write(tmp_path / "behind.json", behind, replace=False)
    with cli_kit.dev(SHOP, "--store", store, "--keys", tmp_path / "behind.json", cwd=tmp_path):
        said = run("rotate-keys", "--store", store, "--keys", both, "--json")
        assert said.json["rewrapped"] >= 2, said
        sent = run("send", "alice", "Deposited", "account=x", "cents=1", "--wait", "--store", store, "--keys", both)
        assert sent.code == 0, sent.err
    said = run("rotate-keys", "--store", store, "--keys", both, "--json")
    assert (said.code, said.json["kept"]) == (0, [])
    assert [each["id"] for each in run("keys", "--store", store, "--keys", both, "--json").lines] == ["new"]
    refused = run("list", "--store", store, "--keys", keys, "--json")
    assert (refused.code, refused.error["code"]) == (output.STORE, "key_missing")
    assert "'new'" in refused.error["message"]


def test_data_keys_are_changed(store: Path, keys: Path) -> None:
    words = ("--store", store, "--keys", keys)
    before = run("state", "alice", *words, "--json").out
    said = run("rotate-keys", "--data", *words)
    assert said.code == 0, said.err
    assert "data keys were changed" in said.out
    done = run("rotate-keys", "--data", *words, "--json").json["data"]
    assert (done["keys"] >= 2, done["resumed"], done["values"] > 5) == (True, 0, True)
    assert run("state", "alice", *words, "--json").out == before
    assert run("verify", "--all", *words).code == 0


def test_a_destroyed_key_that_was_put_back_is_named_and_destroyed_again(store: Path, keys: Path) -> None:
    """By someone who can write the store and has an older copy of it, and has no keys."""

    async def record(put: bytes) -> bytes:
        """The record of the world's key. Put there, if one is given."""
        async with opened(store) as universe:
            key = encryption_keyspace.world_key(await universe.world("alice")._handle.address())
            engine, _ = inner(universe._connection.store)
            found = (await engine.read(kv.Get(key))).value(0)
            assert found is not None
            batch = kv.Batch()
            batch.expect(key, found)
            batch.put(key, put)
            assert not put or isinstance((await engine.commit(batch))[0], kv.Ok)
            return found

    words = ("--store", store, "--keys", keys)
    older = aio.run(record(b""))
    state = run("state", "alice", *words, "--json").out
    assert run("erase", "alice", "--all", "--yes", *words).code == 0
    assert run("doctor", *words).code == 0
    assert aio.run(record(older)) != older
    assert run("state", "alice", *words, "--json").out == state, "which is why it is to be found"
    found = run("doctor", *words, "--json")
    assert found.code == output.NEGATIVE
    [finding] = found.json["findings"]
    assert (finding["kind"], finding["world"]) == ("key_put_back", "alice")
    said = run("doctor", *words)
    assert "its key was destroyed, and is there again" in said.out
    assert finding["advice"] in said.out
    assert run(*finding["advice"].split()[1:], "--yes", *words, "--json").json["changed"] is True
    assert run("state", "alice", *words, "--json").error["code"] == "key_destroyed"
    assert run("doctor", *words).code == 0


def test_a_world_is_erased(store: Path, keys: Path) -> None:
    words = ("--store", store, "--keys", keys)
    assert run("erase", "alice", "--all", *words).code == output.USAGE, "no terminal, and no --yes"
    assert run("erase", "alice", "--all", "--yes", *words, "--json").json["changed"] is True
    assert run("erase", "alice", "--all", "--yes", *words, "--json").json["changed"] is False
    found = run("state", "alice", *words, "--json")
    assert (found.code, found.error["code"]) == (output.STORE, "key_destroyed")
    assert run("erase", "alice", "--all", "--key", "k", *words).code == output.USAGE
    assert "its state was erased" in run("why", "alice", *words).out
    assert run("resume", "alice", *words, "--json").error["code"] == "key_destroyed"
    assert run("verify", "--all", *words, "--json").lines == [{"world": "alice", "holds": True, "erased": True}]
    assert run("doctor", *words).code == 0
    assert run("list", "-q", *words).out.split() == ["alice"]
    assert run("delete", "alice", "--yes", *words).code == 0
    assert run("list", "-q", *words).out.split() == []


def test_a_plain_store_has_no_keys(tmp_path: Path) -> None:
    with cli_kit.dev(SHOP, "--store", tmp_path / "store", cwd=tmp_path):
        pass
    for command in (("keys",), ("rotate-keys",)):
        said = run(*command, "--store", tmp_path / "store", "--json")
        assert (said.code, said.error["code"]) == (output.STORE, "codec_mismatch")


def test_a_key_file_that_others_can_read_is_refused(store: Path, keys: Path) -> None:
    keys.chmod(0o644)
    for words in (("list", "--store", store, "--keys", keys), ("new-key", keys, "--id", "more")):
        said = run(*words)
        assert said.code == output.USAGE
        assert f"chmod 600 {keys}" in said.err
        assert OLD not in said.err
    keys.chmod(0o600)
    assert run("list", "--store", store, "--keys", keys, "-q").out.split() == ["alice"]
