"""verify --receipt-key: whether one of these keys has signed the receipt of every effect."""

from __future__ import annotations

from pathlib import Path

import pytest

import worldline as wl
from tests import aio
from tests.cli import shop
from tests.cli.cli_kit import run


def new_key(file: Path) -> str:
    """Returns the public key."""
    public: str = run("anchor", "--new-key", file, "--json").json["public"]
    return public


def greet(store: Path, world: str, key: Path | None) -> None:
    """A world whose one effect was performed by an adapter that signs with this key."""

    async def make() -> None:
        settings = wl.Settings(adapter=wl.ops.AdapterSettings(receipt_key="" if key is None else str(key)))
        async with wl.open(str(store), host=shop.app, settings=settings) as universe:
            made = await universe.ensure(world, shop.app)
            assert await made.run(shop.greet("ann"), timeout=20) == "HELLO ANN"

    aio.run(make())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_receipts_of_trusted_keys_alone_hold(store: Path, tmp_path: Path) -> None:
    first, second = new_key(tmp_path / "first"), new_key(tmp_path / "second")
    greet(store, "w", tmp_path / "first")
    for keys in ([], [first], [second, first]):
        chosen = [word for each in keys for word in ("--receipt-key", each)]
        said = run("verify", "w", *chosen, "--store", store)
        assert (said.code, "; 1 receipt signed" in said.out) == (0, True), said
        assert run("verify", "w", *chosen, "--store", store, "--json").json["signed"] == 1
    said = run("verify", "w", "--receipt-key", second, "--store", store)
    assert said.code == 1
    assert f"the receipt is signed by {first}, which is no key that is trusted here" in said.out + said.err
    assert run("verify", "--all", "--receipt-key", second, "--store", store).code == 1


def test_a_receipt_that_is_not_signed_does_not_hold(store: Path, tmp_path: Path) -> None:
    public = new_key(tmp_path / "key")
    greet(store, "w", None)
    assert run("verify", "w", "--store", store).code == 0, "nothing was asked of it"
    said = run("verify", "w", "--receipt-key", public, "--store", store)
    assert (said.code, "not signed" in said.out + said.err) == (1, True), said


@pytest.mark.parametrize("wrong", ["", " ", "beef", "z" * 64])
def test_what_is_no_key_is_refused(store: Path, wrong: str) -> None:
    greet(store, "w", None)
    said = run("verify", "w", "--receipt-key", wrong, "--store", store)
    assert (said.code, "64 hexadecimal digits" in said.err) == (2, True), said


def test_a_file_is_not_checked_for_keys_in_silence(store: Path, tmp_path: Path) -> None:
    public = new_key(tmp_path / "key")
    greet(store, "w", None)
    assert run("export", "w", tmp_path / "file", "--store", store).code == 0
    assert run("verify", "--file", tmp_path / "file").code == 0
    said = run("verify", "--file", tmp_path / "file", "--receipt-key", public)
    assert (said.code, "--receipt-key is for worlds of a store" in said.err) == (2, True), said
