#!/usr/bin/env python3
"""Check a proof that `worldline prove` wrote: `python3 check_proof.py FILE CHAIN`.

CHAIN is the chain digest of the world's head (`worldline show WORLD`). docs/format.md says what is computed here.
"""

import hashlib
import json
import sys


def digest(*parts):
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()


def ensure(holds, otherwise):
    if not holds:
        sys.exit(f"the proof does not hold: {otherwise}")


def unhex(*texts):
    found = [bytes.fromhex(text) for text in texts]
    ensure([each.hex() for each in found] == list(texts), "not lower-case hexadecimal")
    return found


def fields(entry):
    """The fields of an entry, which is a CBOR list of numbers, texts and bytes."""
    found, at = [], 1
    while at < len(entry):
        kind, number, at = entry[at] >> 5, entry[at] & 31, at + 1
        if number > 23:
            end = at + (1 << number - 24)
            number, at = int.from_bytes(entry[at:end], "big"), end
        found.append(entry[at : at + number] if kind else number)
        at += number if kind else 0
    return found


def check(text, chain):
    """The entry that is proved. Whatever is raised, the proof does not hold."""
    proof = json.loads(text)
    ensure(text == (json.dumps(proof, indent=1, sort_keys=True) + "\n").encode(), "not written as a proof is")
    ensure([len(proof), proof["format"], proof["kind"]] == [9, "worldline-proof-1", "entry"], "of an unknown form")
    entries, later = unhex(*proof["entries"]), unhex(*proof["later"])
    changes, payload, found = unhex(proof["changes"], proof["payload"], proof["previous"])
    for step in [digest(b"step", *entries, changes), *later]:
        found = digest(b"chain", found, step)
    ensure(found.hex() == chain, f"it leads to the chain {found.hex()}, not to {chain}")
    entry = fields(entries[proof["place"]])
    ensure(entry[0] == proof["height"], "the entry is at another height")
    ensure(entry[9] == (hashlib.sha256(payload).digest() if payload else b""), "the payload is another one")
    return dict(zip(["height", "step", "kind", "time_us", "payload"], [*entry[:4], (payload or entry[4]).hex()]))


if __name__ == "__main__":
    try:
        print("holds:", json.dumps(check(open(sys.argv[1], "rb").read(), sys.argv[2])))
    except Exception as error:
        sys.exit(f"the proof does not hold: {error!r}")
