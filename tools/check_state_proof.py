"""Check a proof of `worldline prove WORLD --state KEY`: check_state_proof.py FILE CHAIN. docs/format.md tells more."""

import json
import struct
import sys
from binascii import unhexlify
from hashlib import sha256
from io import BytesIO


def ensure(holds, otherwise):
    if not holds:
        raise ValueError(otherwise)


def item(data):
    """The next item of a stream of CBOR."""
    kind, number = divmod(data.read(1)[0], 32)
    head = data.read(1 << number - 24) if number > 23 else b""
    number = int.from_bytes(head, "big") if head else number
    if kind == 7:
        return struct.unpack(">d", head)[0] if head else [False, True, None][number - 20]
    if kind > 3:
        found = [item(data) for _ in range(number * (kind - 3))]
        return found if kind == 4 else dict(zip(found[::2], found[1::2]))
    part = data.read(number if kind > 1 else 0)
    return [number, -1 - number, part, part.decode(errors="replace")][kind]


def check(text, chain):
    """What is proved of a row: its value is empty if there is none. Whatever is raised, the proof does not hold."""
    proof = json.loads(text)
    ensure(text == (json.dumps(proof, indent=1, sort_keys=True) + "\n").lower().encode(), "not written as a proof is")
    ensure([len(proof), proof["format"], proof["kind"]] == [9, "worldline-proof-1", "state"], "of an unknown form")
    entries, later, nodes = ([unhexlify(each) for each in proof[name]] for name in ("entries", "later", "nodes"))
    changes, key, value, found = (unhexlify(proof[name]) for name in ("changes", "key", "value", "previous"))
    digest = lambda *parts: sha256(b"".join(len(each).to_bytes(8, "big") + each for each in parts)).digest()  # noqa: E731
    for each in [digest(b"step", *entries, changes), *later]:
        found = digest(b"chain", found, each)
    ensure(found.hex() == chain, f"it leads to the chain {found.hex()}, not to {chain}")
    [said] = [entry for entry in map(item, map(BytesIO, entries)) if entry[2] == 53]  # the one that names a root
    (step, address), row = item(BytesIO(said[4])), None
    path = "01"[key[:1] == b"C"] + f"{int.from_bytes(sha256(key).digest(), 'big'):0256b}"[1:]
    for depth, data in enumerate(nodes):
        ensure(sha256(data).digest() == address, f"node {depth} is another one")
        kind, _, rows, apart, *_ = [*item(BytesIO(data)), []]
        if kind == 2:  # `rows` is a number then: which places have children; `apart` is a list of these
            places = [f"{place:b}"[1:] for place in range(2, 32) if rows >> place & 1]
            address = {path[4 * depth :].startswith(p): a for p, a in zip(places, apart[::3])}.get(True)
        else:
            far, address = iter(apart[::2]), None
            row = dict(zip(rows[::3], [next(far) if m is None else sha256(m).digest() for m in rows[1::3]])).get(key)
    ensure((address, row) == (None, sha256(value).digest() if value else None), "the nodes do not lead to this value")
    plain = item(BytesIO(item(BytesIO(value))[1] if key[:1] == b"C" else value)) if value else None
    return {"key": key.hex(), "value": value.hex(), "plain": plain, "step": step, "height": said[0]}


if __name__ == "__main__":
    sys.excepthook = lambda _, error, __: print(f"the proof does not hold: {error}", file=sys.stderr)
    print("holds:", json.dumps(check(open(sys.argv[1], "rb").read(), sys.argv[2]), default=bytes.hex))
