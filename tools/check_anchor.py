#!/usr/bin/env python3
"""Check anchors that `worldline anchor` wrote, with Python alone.

    python3 check_anchor.py ANCHOR KEY              the anchor is signed by this public key (64 hexadecimal digits)
    python3 check_anchor.py OLDER NEWER PROOF [KEY]   the newer one's history goes on from the older one's, as the proof
                                                    of `worldline prove WORLD --since OLDER` shows; both signed by KEY

Each anchor is a file of one line. docs/format.md says what is computed here; signatures are those of RFC 8032.
"""

import hashlib
import json
import sys

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P


def ensure(holds, otherwise):
    if not holds:
        sys.exit(f"does not hold: {otherwise}")


def unhex(text, size):
    found = bytes.fromhex(text)
    ensure(found.hex() == text and len(found) == size, f"{text!r} is not {size} bytes in lower-case hexadecimal")
    return found


# --- Ed25519: points are (X, Y, Z, T) with x = X/Z, y = Y/Z, xy = T/Z ---


def add(p, q):
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % P, (p[1] + p[0]) * (q[1] + q[0]) % P
    c, d = 2 * p[3] * q[3] * D % P, 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def times(number, p):
    found = (0, 1, 1, 0)
    while number:
        found = add(found, p) if number & 1 else found
        p, number = add(p, p), number >> 1
    return found


def point(data):
    y, sign = int.from_bytes(data, "little") & (1 << 255) - 1, data[31] >> 7
    ensure(y < P, "a point that is none")
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if (x * x - square) % P == 0 else x * pow(2, (P - 1) // 4, P) % P
    ensure((x * x - square) % P == 0 and not (x == 0 and sign), "a point that is none")
    x = P - x if x & 1 != sign else x
    return x, y, 1, x * y % P


BASE = point((4 * pow(5, -1, P) % P).to_bytes(32, "little"))


def is_signed(key, data, signature):
    s = int.from_bytes(signature[32:], "little")
    hashed = int.from_bytes(hashlib.sha512(signature[:32] + key + data).digest(), "little") % ORDER
    left, right = times(s, BASE), add(point(signature[:32]), times(hashed, point(key)))
    same = (left[0] * right[2] - right[0] * left[2]) % P == 0 == (left[1] * right[2] - right[1] * left[2]) % P
    return s < ORDER and same


# --- Anchors and proofs ---


def line(anchor):
    return json.dumps(anchor, sort_keys=True, separators=(",", ":"))


def read(file, key):
    """An anchor. If there is a key, it must be signed by it."""
    text = open(file, "rb").read().decode().rstrip("\n")
    found = json.loads(text)
    ensure(text == line(found) and found["format"] == "worldline-anchor-1", f"{file} is no anchor")
    if key:
        ensure(found.get("key") == key, f"{file} is not signed by {key}")
        plain = {name: value for name, value in found.items() if name != "signature"}
        signed = is_signed(unhex(key, 32), line(plain).encode(), unhex(found["signature"], 64))
        ensure(signed, f"the signature of {file} is forged")
    return found


def digest(*parts):
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()


def numbers(entry):
    """The first two fields of an entry, a CBOR list: its height and its step."""
    found, at = [], 1
    while len(found) < 2:
        kind, number, at = entry[at] >> 5, entry[at] & 31, at + 1
        if number > 23:
            end = at + (1 << number - 24)
            number, at = int.from_bytes(entry[at:end], "big"), end
        ensure(kind == 0, "not an entry")
        found.append(number)
    return found


def check(older, newer, text):
    """The newer anchor's history goes on from the older one's."""
    proof = json.loads(text)
    ensure(text == (json.dumps(proof, indent=1, sort_keys=True) + "\n").encode(), "not written as a proof is")
    ensure([len(proof), proof["format"], proof["kind"]] == [6, "worldline-proof-1", "extension"], "of an unknown form")
    for name in ("universe", "world"):
        ensure(older[name] == newer[name], "the anchors are of different worlds")
    ensure(proof["previous"] == older["chain"], "the proof begins at another history than the older anchor's")
    entries = [bytes.fromhex(each) for each in proof["entries"]]
    ensure([each.hex() for each in entries] == proof["entries"], "not lower-case hexadecimal")
    chain, steps = unhex(proof["previous"], 32), [unhex(each, 32) for each in proof["steps"]]
    for step in [*steps, digest(b"step", *entries, unhex(proof["changes"], 32))]:
        chain = digest(b"chain", chain, step)
    ensure(chain.hex() == newer["chain"], f"it leads to the chain {chain.hex()}, not to the newer anchor's")
    ensure(numbers(entries[-1]) == [newer["height"], newer["step"]], "the newer anchor is of another height")
    ensure(len(steps) + 1 == newer["step"] - older["step"], "steps are missing, or too many")


if __name__ == "__main__":
    given = sys.argv[1:]
    try:
        if len(given) == 2:
            print("holds: signed", line({**read(*given), "signature": ""}))
        else:
            before, after = (read(each, given[3] if len(given) > 3 else "") for each in given[:2])
            check(before, after, open(given[2], "rb").read())
            print(f"holds: height {after['height']} goes on from height {before['height']} of {after['name']}")
    except Exception as error:
        sys.exit(f"does not hold: {error!r}")
