"""The golden table of stored values, and what is refused in place of them."""

from __future__ import annotations

import enum
import types
import typing
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.keys import samples
from worldline.base import errors, limits
from worldline.codec import canonical, frame, structs
from worldline.features.collection import keyspace as collection_keyspace
from worldline.features.copies import keyspace as copy_keyspace
from worldline.features.copies import records as copy_records
from worldline.features.encryption import keyspace as encryption_keyspace
from worldline.keys import chunks as chunk_keys
from worldline.keys import inbox as inbox_keys
from worldline.keys import journal as journal_keys
from worldline.keys import lineage as lineage_keys
from worldline.keys import segments as segment_keys
from worldline.keys import snapshots as snapshot_keys
from worldline.keys import space
from worldline.keys import trial as trial_keys
from worldline.keys import universes as universe_keys
from worldline.keys import work as work_keys
from worldline.model import blobs, inbox, journal, leases, world_records

# Records that their own conditions refuse are drawn and left out: of some types, most.
quick = settings(deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.filter_too_much])

GOLDEN = {
    "personal value": ("b130e51490d8825820606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f4463616461"),
    "subject": "b1317af68c0c82021b00060a24181e4000",
    "schema": "b101a8934f73820100",
    "universe name": "b1029cff07e38150101112131415161718191a1b1c1d1e1f",
    "universe meta": "b1039846524383646d61696e1b00060a24181e4000f5",
    "generation": "b104e4eb15078219012cf4",
    "marking": "b10493ec25918219012cf5",
    "collection": (
        "b129e6ec30678819012c50303132333435363738393a3b3c3d3e3f1b00060a24181e40001b00060a24181e40011b00060a24"
        "181e40025820606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f50303132333435363738393a"
        "3b3c3d3e3f50404142434445464748494a4b4c4d4e4f"
    ),
    "holds": ("b12ae49abdac8202818450303132333435363738393a3b3c3d3e3f1b00060a24181e4000666261636b75701a0496ed40"),
    "age": "b146dff0d179821a0496ed401a03938700",
    "condemned": "b12bd88e72388419012c1b00060a24181e40001a0496ed4019012d",
    "name": "b105987aac998150202122232425262728292a2b2c2d2e2f",
    "index": (
        "b106ad09ac9d8865616c69636567677265657465725820606162636465666768696a6b6c6d6e6f707172737475767778797a"
        "7b7c7d7e7f02a262657560647469657261311b00060a24181e400003f5"
    ),
    "inline blob": "b107f37c3f5d85030143616263f6f6",
    "object blob": "b1078f61be32851a0001117001f66961612f6361732f6262f6",
    "blob in chunks": "b1076e3f697e851a0001117001f6f650707172737475767778797a7b7c7d7e7f",
    "chunk": "b11eedf00ea08143616263",
    "grants": (
        "b13cbe63a3b18302818550101112131415161718191a1b1c1d1e1f6473686f706574696c6c2a657661756c7467696e626f78"
        "3a2a81870202016574696c6c2a6473686f70657661756c7467696e626f783a2a"
    ),
    "grant change": (
        "b13dadf020598502f5818550101112131415161718191a1b1c1d1e1f6473686f706574696c6c2a657661756c7467696e626f"
        "783a2a1b00060a24181e400081870202016574696c6c2a6473686f70657661756c7467696e626f783a2a"
    ),
    "settings": "b147cc7f75318402a1781870726573737572652e696e626f785f6974656d735f6d6178623530"
    "a176776f726b65722e7365676d656e745f6368616e67657364747275651b00060a24181e4000",
    "quotas": "b13ac7147bed8502840af619012c0007f604",
    "quota change": "b13b05c6addd8302840af619012c001b00060a24181e4000",
    "usage": "b13ee6560df086031a0001117002011b00060a24181e40001b00060a24181e4001",
    "upload": "b11f8b6816d8831a00f424001b00060a24181e40001a0496ed40",
    "world meta": (
        "b108c481f2588865616c69636567677265657465725820606162636465666768696a6b6c6d6e6f707172737475767778797a"
        "7b7c7d7e7f02a262657560647469657261311b00060a24181e400003f5"
    ),
    "epoch": "b109e47bcb55820550303132333435363738393a3b3c3d3e3f",
    "holder": (
        "b10abea825d68450303132333435363738393a3b3c3d3e3f50707172737475767778797a7b7c7d7e7f051b00060a24181e4000"
    ),
    "assignment": "b10b778cb3448450303132333435363738393a3b3c3d3e3f01656d6f76656402",
    "trial": (
        "b11981baa25f8f0503035820606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f020150303132"
        "333435363738393a3b3c3d3e3f50707172737475767778797a7b7c7d7e7ff5818350303132333435363738393a3b3c3d3e3f"
        "50707172737475767778797a7b7c7d7e7f0201687369676e616c20391b00060a24181e400004840358206061626364656667"
        "68696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f02782a4b65794572726f723a2027722720286b65726e656c2f77"
        "6f726b2e70793a3720696e2061727269766529"
    ),
    "lineage": (
        "b11a6d5798768f50808182838485868788898a8b8c8d8e8f65616c6963650307828350202122232425262728292a2b2c2d2e"
        "2f02058350808182838485868788898a8b8c8d8e8f030703f51b00060a24181e40005820606162636465666768696a6b6c6d"
        "6e6f707172737475767778797a7b7c7d7e7f5820000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d"
        "1e1f818450101112131415161718191a1b1c1d1e1f50202122232425262728292a2b2c2d2e2f010258206061626364656667"
        "68696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f5820000000000000000000000000000000000000000000000000"
        "00000000000000001b00060a24181e40005820000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e"
        "1f"
    ),
    "held copy": "b1373d4c9d5e8302707468652066696c6520612e776f726c641b00060a24181e4000",
    "copying": (
        "b13815956b488550303132333435363738393a3b3c3d3e3f707468652066696c6520612e776f726c641b00060a24181e4000"
        "071a0496ed40"
    ),
    "scrub": "b151bd668b3a82031b00060a24181e4000",
    "erasure": (
        "b15298298f51860250101112131415161718191a1b1c1d1e1f50202122232425262728292a2b2c2d2e2f5020212223242526"
        "2728292a2b2c2d2e2f8150707172737475767778797a7b7c7d7e7f1b00060a24181e4000"
    ),
    "deletion": "b12dc30ce26b821b00060a24181e400019012c",
    "universe deletion": "b12e05fa67eb861b00060a24181e4000646d61696ef5f519012c07",
    "pin": "b11b3b650fa9820307",
    "head": (
        "b10c31c958f38503075820606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f58200000000000"
        "0000000000000000000000000000000000000000000000000000001b00060a24181e4000"
    ),
    "genesis": (
        "b10c63ce89ae8500005820000000000000000000000000000000000000000000000000000000000000000058200000000000"
        "00000000000000000000000000000000000000000000000000000000"
    ),
    "baseline": (
        "b10e227550e38803075820606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f58200001020304"
        "05060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f19100044686173681b00060a24181e40001a"
        "0496ed40"
    ),
    "snapshot": (
        "b10f464f36398803075820606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f58200001020304"
        "05060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f19100044686173681b00060a24181e40001a"
        "0496ed40"
    ),
    "segment": (
        "b11c5bca99d688021a000111710219012c5820606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e"
        "7f191000f51a0496ed40"
    ),
    "dropped": (
        "b1403f1aaca4820285031a000111715820606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f"
        "582000000000000000000000000000000000000000000000000000000000000000001b00060a24181e4000"
    ),
    "event": "b11030127e0c85016c6f726465722e706c616365648344a1616101f604676f726465722d31657472616365",
    "correlated event": (
        "b110ec4c399986076c6f726465722e706c616365648344a1616101f604676f726465722d31657472616365676f726465722d37"
    ),
    "correlated receipt": (
        "b110bd1dd3d4870850404142434445464748494a4b4c4d4e4f018344a1616101f604026572756e2d31676f726465722d37"
    ),
    "signed receipt": (
        "b11056864eb5890950404142434445464748494a4b4c4d4e4f018344a1616101f604026572756e2d31676f726465722d3758"
        "20606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f5840000102030405060708090a0b0c0d0e"
        "0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"
    ),
    "bare event": "b1107380d6f0850161658341f6f6016060",
    "receipt": (
        "b1103e6283e3860250404142434445464748494a4b4c4d4e4f0383f65820606162636465666768696a6b6c6d6e6f70717273"
        "7475767778797a7b7c7d7e7f1a0001117004657472616365"
    ),
    "timer fired": "b110ba3af0b3840350404142434445464748494a4b4c4d4e4f1b00060a24181e4000657472616365",
    "message": (
        "b110c80981188e0450404142434445464748494a4b4c4d4e4f50101112131415161718191a1b1c1d1e1f5020212223242526"
        "2728292a2b2c2d2e2f030264706f737483f65820606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d"
        "7e7f1a00011170a26161613161626132657472616365676f726465722d31026473686f7065616c696365"
    ),
    "brought": "b14dade6e9888119012c",
    "vouched message": (
        "b110e24fb239900650404142434445464748494a4b4c4d4e4f50101112131415161718191a1b1c1d1e1f5020212223242526"
        "2728292a2b2c2d2e2f030264706f737483f65820606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d"
        "7e7f1a00011170a26161613161626132657472616365676f726465722d31026473686f7065616c6963655040414243444546"
        "4748494a4b4c4d4e4ff5"
    ),
    "control": "b110a953577884056570617573658344a1616101f604657472616365",
    "seen": (
        "b111fba1b862835820606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f1b00060a24181e40001a0496ed40"
    ),
    "dead": "b112b8c62cb48449b110676172626167656c6e6f742061207265636f7264031b00060a24181e4000",
    "trace": "b128182642f683031b00060a24181e4000828301676f726465722d316954726163656261636b8304643430343162c3bc",
    "work": (
        "b1134572b10298180102646d61696c056473656e648344a1616101f60403011b00060a24181e40001b00060a24181e400102"
        "50707172737475767778797a7b7c7d7e7f50303132333435363738393a3b3c3d3e3f1b00060a24181e4002686e6f20726f75"
        "74656574726163656954726163656261636b015820808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c"
        "9d9e9ff58150303132333435363738393a3b3c3d3e3f1b00060a24181e40038186011b00060a24181e40001b00060a24181e"
        "400150303132333435363738393a3b3c3d3e3f6772657472696564686e6f20726f757465676f726465722d37"
    ),
    "due": "b114533335698102",
    "hint": "b118bc1307ac8150202122232425262728292a2b2c2d2e2f",
    "worker": "b116de081cd98750707172737475767778797a7b7c7d7e7f091b00060a24181e40001a009896801840a1647a6f6e656161f5",
    "encryption": "b1345ab93b9e84676165732d67636d038183643230323650707172737475767778797a7b7c7d7e7ff54570726f6265",
    "data key": (
        "b1353a06b8b6866432303236583c606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f80818283"
        "8485868788898a8b8c8d8e8f909192939495969798999a9b1b00060a24181e4000008150101112131415161718191a1b1c1d"
        "1e1ff5"
    ),
    "destroyed data key": "b135f92dc1b78660401b00060a24181e40001b00060a24181e400180f4",
    "held": "b117cf111e938105",
}

OF_2_1 = {
    "collection": (
        "b129df6580ae8619012c50303132333435363738393a3b3c3d3e3f1b00060a24181e40001b00060a24181e40011b00060a24"
        "181e40025820606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f"
    ),
    "holds": ("b12a4e5cc3738202818350303132333435363738393a3b3c3d3e3f1b00060a24181e4000666261636b7570"),
    "condemned": ("b12b00cf4cc48219012c1b00060a24181e4000"),
    "upload": ("b11f2d4370ed821a00f424001b00060a24181e4000"),
    "segment": (
        "b11ce82484cb87021a000111710219012c5820606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f191000f5"
    ),
    "seen": ("b1117d690560825820606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f1b00060a24181e4000"),
    "copying": (
        "b13860ef68be8450303132333435363738393a3b3c3d3e3f707468652066696c6520612e776f726c641b00060a24181e400007"
    ),
}

KINDS = {
    "SCHEMA": 1,
    "UNIVERSE_NAME": 2,
    "UNIVERSE_META": 3,
    "GENERATION": 4,
    "NAME": 5,
    "INDEX": 6,
    "BLOB": 7,
    "WORLD_META": 8,
    "EPOCH": 9,
    "HOLDER": 10,
    "ASSIGNMENT": 11,
    "HEAD": 12,
    "JOURNAL": 13,
    "BASELINE": 14,
    "SNAPSHOT": 15,
    "INBOX": 16,
    "SEEN": 17,
    "DEAD": 18,
    "WORK": 19,
    "DUE": 20,
    "READY": 21,
    "WORKER": 22,
    "HELD": 23,
    "HINT": 24,
    "TRIAL": 25,
    "LINEAGE": 26,
    "PIN": 27,
    "SEGMENT": 28,
    "CHUNK": 30,
    "UPLOAD": 31,
    "TRACE": 40,
    "COLLECTION": 41,
    "HOLDS": 42,
    "CONDEMNED": 43,
    "DELETION": 45,
    "UNIVERSE_DELETION": 46,
    "SEALED": 48,
    "SUBJECT": 49,
    "ENCRYPTION": 52,
    "DATA_KEY": 53,
    "HELD_COPY": 55,
    "COPYING": 56,
    "QUOTAS": 58,
    "QUOTA_CHANGE": 59,
    "GRANTS": 60,
    "GRANT_CHANGE": 61,
    "USAGE": 62,
    "DROPPED": 64,
    "AGE": 70,
    "SETTINGS": 71,
    "BROUGHT": 77,
    "SCRUB": 81,
    "LEDGER": 82,
}

every_value = pytest.mark.parametrize(
    ("name", "kind", "value", "record"), samples.VALUES, ids=[row[0] for row in samples.VALUES]
)


@every_value
def test_golden(name: str, kind: space.ValueKind, value: space.ValueCodec[Any], record: Any) -> None:
    data = bytes.fromhex(GOLDEN[name])
    assert value.pack(record).hex() == GOLDEN[name]
    assert value.unpack(data) == record
    assert type(value.unpack(data)) is type(record)
    assert value.get(data) == record
    assert value.get(None) is None
    assert data[1] == kind


def test_a_trial_of_format_2_1_says_nothing_of_what_was_raised() -> None:
    old = bytes.fromhex("b119bb198827860503035820606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f0201")
    assert trial_keys.TRIAL.unpack(old) == leases.CrashTrial(5, 3, leases.HolderActivity.STEP, samples.DIGEST, 2, 1)


def test_a_lineage_of_format_2_0_does_not_say_its_head() -> None:
    old = bytes.fromhex(
        "b11a2dd402828a50808182838485868788898a8b8c8d8e8f65616c6963650307828350202122232425262728292a2b2c2d2e"
        "2f02058350808182838485868788898a8b8c8d8e8f030703f51b00060a24181e40005820606162636465666768696a6b6c6d"
        "6e6f707172737475767778797a7b7c7d7e7f5820000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d"
        "1e1f"
    )
    found: world_records.Lineage = lineage_keys.LINEAGE.unpack(old)
    assert found == msgspec.structs.replace(
        samples.LINEAGE, origins=[], chain=b"", state=b"", time_us=0, parent_snapshot_hash=b""
    )


def test_a_data_key_of_format_2_1_follows_no_other() -> None:
    old = bytes.fromhex(
        "b135aa2d44b7846432303236583c606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f80818283"
        "8485868788898a8b8c8d8e8f909192939495969798999a9b1b00060a24181e400000"
    )
    found: encryption_keyspace.DataKey = encryption_keyspace.VALUE.unpack(old)
    assert found == encryption_keyspace.DataKey("2026", samples.counted(0x60, 60), samples.TIME_US)


def test_a_universe_of_format_2_0_is_open() -> None:
    old = bytes.fromhex("b10322e3547982646d61696e1b00060a24181e4000")
    assert universe_keys.META.unpack(old) == world_records.UniverseMeta("main", samples.TIME_US)


def test_a_trial_of_format_2_1_does_not_say_who_is_blamed() -> None:
    old = bytes.fromhex("b119bb198827860503035820606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f0201")
    assert trial_keys.TRIAL.unpack(old) == leases.CrashTrial(5, 3, leases.HolderActivity.STEP, samples.DIGEST, 2, 1)


def test_work_of_format_2_1_is_not_alone_and_blames_nobody() -> None:
    old = bytes.fromhex(
        "b1137eaed38c930102646d61696c056473656e648344a1616101f60403011b00060a24181e40001b00060a24181e40010250"
        "707172737475767778797a7b7c7d7e7f50303132333435363738393a3b3c3d3e3f1b00060a24181e4002686e6f20726f7574"
        "656574726163656954726163656261636b015820808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d"
        "9e9f"
    )
    assert work_keys.WORK.unpack(old) == msgspec.structs.replace(
        samples.WORK, alone=False, blamed=[], claimed_us=0, tried=[], correlation_id=""
    )


def test_records_of_format_2_1_say_no_age() -> None:
    """What is forgotten after a time counts then as old as the universe, whose age begins with this format."""
    values: list[tuple[str, space.ValueCodec[Any], Any]] = [
        ("holds", collection_keyspace.HOLDS, blobs.Holds(2, [blobs.Hold(samples.WORKER, samples.TIME_US, "backup")])),
        ("condemned", collection_keyspace.CONDEMNED, blobs.Condemned(300, samples.TIME_US)),
        (
            "collection",
            collection_keyspace.COLLECTION,
            blobs.Collection(
                300, samples.WORKER, samples.TIME_US, samples.TIME_US + 1, samples.TIME_US + 2, samples.DIGEST
            ),
        ),
        ("upload", chunk_keys.UPLOAD, blobs.Upload(16_000_000, samples.TIME_US)),
        (
            "copying",
            copy_keyspace.COPYING,
            copy_records.Copying(samples.WORKER, "the file a.world", samples.TIME_US, 7),
        ),
        ("segment", segment_keys.SEGMENT, msgspec.structs.replace(samples.SEGMENT, age_us=0)),
        ("seen", inbox_keys.SEEN, inbox.SeenId(samples.DIGEST, samples.TIME_US)),
    ]
    for name, value, record in values:
        assert value.unpack(bytes.fromhex(OF_2_1[name])) == record


def test_every_kind_of_value_is_in_the_table() -> None:
    assert {name: int(kind) for name, kind in space.ValueKind.__members__.items()} == KINDS
    assert {row[1] for row in samples.VALUES} | {space.ValueKind.JOURNAL} == {*space.ValueKind} - {
        space.ValueKind.READY
    }
    assert GOLDEN.keys() == {row[0] for row in samples.VALUES}


def test_a_lineage_of_format_2_2_names_no_snapshot() -> None:
    old = bytes.fromhex(
        "b11af54e6c3b8e50808182838485868788898a8b8c8d8e8f65616c6963650307828350202122232425262728292a2b2c2d2e"
        "2f02058350808182838485868788898a8b8c8d8e8f030703f51b00060a24181e40005820606162636465666768696a6b6c6d"
        "6e6f707172737475767778797a7b7c7d7e7f5820000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d"
        "1e1f818450101112131415161718191a1b1c1d1e1f50202122232425262728292a2b2c2d2e2f010258206061626364656667"
        "68696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f5820000000000000000000000000000000000000000000000000"
        "00000000000000001b00060a24181e4000"
    )
    assert lineage_keys.LINEAGE.unpack(old) == msgspec.structs.replace(samples.LINEAGE, parent_snapshot_hash=b"")


def test_a_snapshot_of_format_2_2_says_no_age() -> None:
    for value, start in ((snapshot_keys.BASELINE, "b10e9f49a868"), (snapshot_keys.SNAPSHOT, "b10ffb75c5e0")):
        old = bytes.fromhex(
            start + "8703075820606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f58200001020304"
            "05060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f19100044686173681b00060a24181e4000"
        )
        assert value.unpack(old) == msgspec.structs.replace(samples.TAKEN, age_us=0)


def test_golden_frame() -> None:
    bare = journal.JournalEntry(8, 4, journal.Kind.EVENT, samples.TIME_US, b"\xf6")
    chunks = [structs.encode(samples.ENTRY), structs.encode(bare)]
    changes = frame.join([bytes.fromhex("00" + "84" + "02" + "416b" + "416d" + "40"), b""])
    packed = journal_keys.pack_frame(chunks, changes[:10], parts=1)
    assert packed.hex() == (
        "b10df25caed9000201000000688a070318261b00060a24181e400041f64c505152535455565758595a5b6574726163655820000000"
        "00000000000000000000000000000000000000000000000000000000005820000102030405060708090a0b0c0d0e0f101112"
        "131415161718191a1b1c1d1e1f40000000148a0804011b00060a24181e400041f64060404040"
        "00000008008402416b41"
    )
    assert journal_keys.unpack_frame(packed) == journal_keys.Frame(chunks, changes[:10], 1)
    whole = journal_keys.pack_whole([*chunks, b"changes"], entries=len(chunks))
    assert whole == journal_keys.pack_frame(chunks, frame.chunk(b"changes"))
    part = journal_keys.pack_part(changes[10:], part=1)
    assert part.hex() == "b10d" + "4a92d466" + "000001" + "6d40" + "00000000"
    assert journal_keys.unpack_frame(part) == journal_keys.Frame([], changes[10:], 1)
    for bad in (b"", b"\x00\x01", b"\x00\x01\x00", b"\x00\x01\x00\x00\x00\x00\x01"):
        with pytest.raises(errors.DecodeError, match=r"header|truncated"):
            journal_keys.unpack_frame(frame.wrap(int(space.ValueKind.JOURNAL), bad))
    assert [structs.decode(journal.JournalEntry, chunk) for chunk in chunks] == [samples.ENTRY, bare]
    for other in space.ValueKind:
        if other is not space.ValueKind.JOURNAL:
            with pytest.raises(errors.DecodeError, match="where kind 13 belongs"):
                journal_keys.unpack_frame(frame.wrap(other, b""))


@every_value
def test_a_value_under_the_wrong_key_is_refused(
    name: str, kind: space.ValueKind, value: space.ValueCodec[Any], record: Any
) -> None:
    for _, other_kind, _, other in samples.VALUES:
        if other_kind is not kind:
            packed = frame.wrap(int(other_kind), structs.encode(other))
            with pytest.raises(errors.DecodeError, match=f"kind {int(other_kind)} where kind {int(kind)} belongs"):
                value.unpack(packed)


@every_value
def test_damage_is_refused(name: str, kind: space.ValueKind, value: space.ValueCodec[Any], record: Any) -> None:
    data = bytes.fromhex(GOLDEN[name])
    for size in range(len(data)):
        with pytest.raises(errors.DecodeError):
            value.unpack(data[:size])
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(errors.DecodeError):
            value.unpack(bytes(damaged))
    for tail in (b"\x00", data):
        with pytest.raises(errors.DecodeError):
            value.unpack(data + tail)


@every_value
def test_other_records_in_a_good_envelope_are_refused(
    name: str, kind: space.ValueKind, value: space.ValueCodec[Any], record: Any
) -> None:
    """Sound checksum, canonical bytes, wrong content: a field more, a field less, a field of another type."""
    plain = canonical.decode(structs.encode(record))
    assert isinstance(plain, list)
    defaults = sum(field.default is not msgspec.NODEFAULT for field in msgspec.structs.fields(record))
    defaults += sum(field.default_factory is not msgspec.NODEFAULT for field in msgspec.structs.fields(record))
    wrong: list[Any] = [None, 1, "text", b"bytes", {}, [*plain, 0], [*plain, None]]
    wrong += [plain[:size] for size in range(len(plain) - defaults)]
    wrong += [[*plain[:index], 1.5, *plain[index + 1 :]] for index in range(len(plain))]
    wrong += [[*plain[:index], {"": 1}, *plain[index + 1 :]] for index in range(len(plain))]
    for other in wrong:
        with pytest.raises(errors.DecodeError):
            value.unpack(frame.wrap(int(kind), canonical.encode(other)))


@every_value
def test_whatever_is_accepted_is_the_only_form(
    name: str, kind: space.ValueKind, value: space.ValueCodec[Any], record: Any
) -> None:
    """One field replaced by anything: refused, or a record with exactly these bytes.

    Not the tag: with another one, the fields that follow may be those of a shorter record.
    """
    plain = canonical.decode(structs.encode(record))
    assert isinstance(plain, list)
    other: Any
    for index in range(int(record.__struct_config__.tag is not None), len(plain)):
        for other in (None, True, False, 0, 1, -1, 2**64 - 1, 1.0, "", "1", "YWJj", b"", b"1", bytes(32), [], [1], {}):
            body = canonical.encode([*plain[:index], other, *plain[index + 1 :]])
            try:
                found = structs.encode(value.unpack(frame.wrap(int(kind), body)))
            except errors.DecodeError:
                continue
            assert found == body


def stored_types() -> list[type[msgspec.Struct]]:
    """Every record that is stored, those inside others too."""
    met: dict[type[msgspec.Struct], None] = {}
    waiting: list[Any] = [type(row[3]) for row in samples.VALUES] + [journal.JournalEntry]
    while waiting:
        kind = waiting.pop()
        waiting += typing.get_args(kind)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in met:
            met[kind] = None
            waiting += typing.get_type_hints(kind).values()
    return list(met)


@pytest.mark.parametrize("kind", stored_types(), ids=lambda kind: kind.__name__)
def test_stored_records_are_frozen_arrays_without_unknown_fields(kind: type[msgspec.Struct]) -> None:
    config = kind.__struct_config__
    assert (config.frozen, config.array_like, config.forbid_unknown_fields) == (True, True, True)


def anything_of(kind: Any) -> st.SearchStrategy[Any]:
    """Records of a type, drawn from its annotations; those its own conditions refuse are left out."""
    match kind:
        case type() if issubclass(kind, msgspec.Struct):
            return records_of(kind)
        case type() if issubclass(kind, enum.Enum):
            return st.sampled_from(kind)
    if isinstance(kind, types.UnionType):
        return st.one_of([anything_of(each) for each in typing.get_args(kind)])
    if typing.get_origin(kind) is dict:
        return st.dictionaries(anything_of(str), anything_of(str), max_size=3)
    if typing.get_origin(kind) is list:
        return st.lists(anything_of(typing.get_args(kind)[0]), max_size=3)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(0, 2**64 - 1),
        str: st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        bytes: st.sampled_from([b"", b"a", bytes(12), bytes(16), bytes(range(32))]),
        bool: st.booleans(),
        types.NoneType: st.none(),
    }
    return plain[kind]


def records_of(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    fields = st.fixed_dictionaries({name: anything_of(hint) for name, hint in hints.items()})
    return fields.map(lambda drawn: built(kind, drawn)).filter(lambda record: record is not None)


def built(kind: type[msgspec.Struct], drawn: dict[str, Any]) -> Any:
    """The record, repaired where its own conditions tie fields together; None if it cannot be."""
    if drawn.get("inline") is not None:
        drawn = {**drawn, "size": len(drawn["inline"]), "ref": None, "object": None}
    if "height" in drawn:
        drawn = {**drawn, "height": drawn["height"] | 1, "step": 1}
    for name in ("chain", "state", "root", "digest", "ref"):
        if isinstance(drawn.get(name), bytes):
            drawn = {**drawn, name: bytes(range(limits.DIGEST_BYTES))}
    if kind is inbox.SignedReceipt:
        drawn = {**drawn, "key": bytes(32), "signature": bytes(64)}
    if "stamp" in drawn:
        drawn = {**drawn, "stamp": bytes(limits.STAMP_BYTES)}
    if kind.__name__ in ("Section", "Origin"):
        drawn |= dict.fromkeys({"world", "universe"} & {*drawn}, bytes(limits.ID_BYTES))
    if kind.__name__ == "LedgerEntry":
        drawn = {**drawn, "universe": bytes(limits.ID_BYTES)}
    if kind.__name__ == "Lineage":
        sections = sorted(drawn["sections"], key=lambda each: each.height) or [world_records.Section(bytes(16), 1, 1)]
        height = sections[-1].height
        origins = sorted((each for each in drawn["origins"] if each.height <= height), key=lambda each: each.height)
        drawn = {**drawn, "parent": bytes(limits.ID_BYTES), "sections": sections, "height": height, "origins": origins}
    if kind.__name__ == "Segment":
        first_step, first_height = sorted((drawn["first_step"] // 2 | 1, drawn["first_height"] // 2 | 1))
        more_steps, more = sorted((drawn["last_step"], drawn["last_height"]))
        drawn |= {
            "first_step": first_step,
            "last_step": first_step + more_steps // 4,
            "first_height": first_height,
            "last_height": first_height + more // 4,
            "size": drawn["size"] | 1,
        }
    if kind.__name__ in ("Copying", "Collection"):
        drawn |= dict.fromkeys({"token", "collector", "worker", "incarnation"} & {*drawn}, bytes(limits.ID_BYTES))
    if kind.__name__ == "Age":
        drawn = {"age_us": 1 + drawn["age_us"] // 2 + drawn["step_us"] // 2, "step_us": drawn["step_us"] // 2}
    if kind.__name__ in ("NameRecord", "UniverseName"):
        drawn = dict.fromkeys(drawn, bytes(limits.ID_BYTES))
    try:
        return kind(**{name: value for name, value in drawn.items() if name in kind.__struct_fields__})
    except ValueError:
        return None


@pytest.mark.parametrize("kind", stored_types(), ids=lambda kind: kind.__name__)
def test_every_record_comes_back(kind: type[msgspec.Struct]) -> None:
    @quick
    @given(records_of(kind))
    def check(record: msgspec.Struct) -> None:
        data = structs.encode(record)
        again = structs.decode(kind, data)
        assert again == record
        assert structs.encode(again) == data

    check()


def test_grants_from_before_there_were_rules_are_read() -> None:
    raw = bytes.fromhex(
        "b13c354b93f38202818550101112131415161718191a1b1c1d1e1f6473686f706574696c6c2a657661756c7467696e626f783a2a"
    )
    assert universe_keys.GRANTS.unpack(raw) == world_records.Grants(2, [samples.GRANT])
