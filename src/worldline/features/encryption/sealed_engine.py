"""An engine whose values are sealed: layers above give and get plain ones, the engine below sees sealed ones.

It stands around the real engine only where a codec was given (`runtime/store_opening.py`). Which values are sealed, and
with which cipher, the vault says by the key. What an engine must be (`tests/conformance`) this is too:

* A read also asks for the records of the data keys that its answers need, in the same snapshot. So a key that was
  destroyed is of no use to any process from its next read on.
* An expectation is sealed like the value that it expects, which the same place and bytes make the same. What was read
  and is expected again remembers its stored form. Where the form cannot be told (a codec that does not repeat itself, a
  value with a stamp), it is read first; and if it is another one by then, the batch is committed again with that form:
  the first time was a certain conflict. What an earlier batch of the same call may have put has no known form, so the
  batch that expects it is committed after that one: batches are applied in the order given.
* A batch that writes values of a world expects the record of that world's key: it conflicts with the destruction of the
  key, also if that was before. A record that was only wrapped again is read again, and the batch committed again.
* Bounds of pages count plain bytes. The engine below is asked for more, and what is too much is cut off.

Keys, counters, deletes and hints go through as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from worldline.base import errors, limits, probes
from worldline.features.encryption import envelope, key_wear
from worldline.features.encryption.cipher_interface import CipherVault, KnownCipher
from worldline.store import frozen_engine, kv

TRANSLATIONS_MAX = 8  # of one batch, while records of keys or stored forms turn out to be others

_Opener = KnownCipher | errors.Error
_Forms = dict[tuple[bytes, bytes], bytes]  # stored forms, by key and plain value
_Answer = bytes | kv.Page | None


class SealedEngine:
    def __init__(self, inner: kv.Engine, vault: CipherVault) -> None:
        self.inner = inner
        self._vault = vault
        self._known: dict[bytes, KnownCipher] = {}  # by scope, as last read
        self._wear = key_wear.Wear(inner, vault)
        self.wait = inner.wait
        self.durability = inner.durability
        self.close = inner.close

    async def freeze(self) -> kv.Frozen:
        """The store as it is now, opened like the present one."""
        return SealedEngine(frozen_engine.FrozenEngine(await kv.freeze(self.inner)), self._vault)

    async def raise_stamps(self, above: kv.Stamp) -> None:
        await kv.raise_stamps(self.inner, above)

    async def scrub(self) -> kv.Scrubbed:
        return await kv.scrub(self.inner)

    # --- Reading ------------------------------------------------------------------------------------------------

    async def read(self, *requests: kv.Request) -> kv.ReadResult:
        kv.check_requests(requests)
        scope_of = self._vault.scope
        asked: list[kv.Request] = []
        wanted: dict[bytes, None] = {}
        for request in requests:
            if isinstance(request, kv.Get):
                asked.append(request)
                scope = scope_of(request.key)
            else:
                asked.append(self._wider(request))
                scope = scope_of(request.begin)
            if scope:
                wanted[scope] = None
        # A read has a bound: scopes without room here are met as unknown ones below.
        scopes = list(wanted)[: limits.READ_REQUESTS_MAX - len(requests)]
        # In the snapshot of the answers: a key that is destroyed opens nothing that is read later.
        found = await self.inner.read(*asked, *map(kv.Get, scopes))
        count = len(requests)
        openers = {scope: self._opener(scope, found.value(count + n)) for n, scope in enumerate(scopes)}
        openers |= await self._openers(self._unknown(requests, found.answers, openers))
        answers: list[_Answer] = []
        for request, answer in zip(requests, found.answers, strict=False):
            if isinstance(answer, kv.Page):
                assert isinstance(request, kv.Range)
                answers.append(self._page(request, answer, openers))
            elif answer is None or isinstance(request, kv.Range):
                answers.append(None)
            else:
                answers.append(self._open(request.key, answer, openers))
        return kv.ReadResult(answers, found.time_us, found.seen, found.version)

    def _wider(self, request: kv.Range) -> kv.Range:
        """A page of no more items has room for them also when they are sealed."""
        room = min(request.count_max, request.bytes_max) * (envelope.HEAD_BYTES + self._vault.room_bytes)
        return kv.Range(request.begin, request.end, request.count_max, request.bytes_max + room, request.reverse)

    def _page(self, request: kv.Range, page: kv.Page, openers: dict[bytes, _Opener]) -> kv.Page:
        opened = kv.fill_page(
            ((key, self._open(key, value, openers)) for key, value in page.items), request, page.stable
        )
        return kv.Page(opened.items, more=opened.more or page.more, stable=page.stable)

    def _unknown(
        self, requests: Sequence[kv.Request], answers: Sequence[_Answer], openers: dict[bytes, _Opener]
    ) -> list[bytes]:
        """The scopes that have been met without their records: of ranges over many worlds."""
        missing: dict[bytes, None] = {}
        for request, answer in zip(requests, answers, strict=False):
            if isinstance(answer, kv.Page):
                scopes: Iterable[bytes | None] = (self._vault.scope(key) for key, _ in answer.items)
            else:
                scopes = () if answer is None or isinstance(request, kv.Range) else (self._vault.scope(request.key),)
            missing |= {scope: None for scope in scopes if scope and scope not in openers}
        return list(missing)

    async def _openers(self, scopes: list[bytes]) -> dict[bytes, _Opener]:
        found: dict[bytes, _Opener] = {}
        for start in range(0, len(scopes), limits.READ_REQUESTS_MAX):
            page = scopes[start : start + limits.READ_REQUESTS_MAX]
            read = await self.inner.read(*map(kv.Get, page))
            found |= {scope: self._opener(scope, read.value(n)) for n, scope in enumerate(page)}
        return found

    def _opener(self, scope: bytes, raw: bytes | None) -> _Opener:
        """What opens the values of a scope, or why nothing does."""
        known = self._known.get(scope)
        # A cipher is used again only while the record of its key has the same bytes.
        if known is not None and known.raw == raw:
            return known
        self._known.pop(scope, None)
        try:
            found = self._vault.known(scope, raw)
        except errors.Error as error:
            return error
        if len(self._known) >= limits.DATA_KEYS_KNOWN_MAX:
            # Emptied whole: an order of use would cost something with every read.
            probes.hit("encryption.known-full")
            self._known.clear()
        self._known[scope] = found
        return found

    def _open(self, key: bytes, stored: bytes, openers: Mapping[bytes, _Opener]) -> bytes:
        scope = self._vault.scope(key)
        if scope is None:
            return stored
        opener = openers.get(scope) if scope else self._vault.known(scope, None)
        if not isinstance(opener, KnownCipher):
            return envelope.Unopened.of(stored, opener or errors.DecodeError("its data key is missing"))
        try:
            form, place, sealed, stamp = envelope.take_apart(key, stored)
            data = opener.cipher.open(place, sealed) + stamp
        except errors.DecodeError as error:
            return envelope.Unopened.of(stored, error)
        except errors.CodecFailed as error:
            return envelope.Unopened.of(stored, error)
        # It is sealed to the same bytes each time, so its stored form need not be remembered.
        if form == envelope.PUT and self._vault.repeats:
            return data
        return envelope.OpenedValue.of(data, stored)

    # --- Committing ---------------------------------------------------------------------------------------------

    async def commit(self, *batches: kv.Batch) -> list[kv.Outcome]:
        # Checked as plain values: what sealing adds must not count against the limits of the caller.
        for batch in batches:
            kv.check(batch)
        outcomes: list[kv.Outcome] = []
        for part in self._parts(batches):
            outcomes += await self._commit(part)
        return outcomes

    def _parts(self, batches: Sequence[kv.Batch]) -> list[list[kv.Batch]]:
        """Batches that can be committed at once: none expects what an earlier one of them puts, where a value may have
        several forms.
        """
        parts: list[list[kv.Batch]] = [[]]
        put: dict[bytes, None] = {}
        for batch in batches:
            if any(key in put for key, value in batch.expects.items() if value is not None):
                parts.append([])
                put = {}
            parts[-1].append(batch)
            put |= {key: None for key in batch.puts if not self._vault.has_one_form(key)}
        return parts

    async def _commit(self, batches: Sequence[kv.Batch]) -> list[kv.Outcome]:
        plans = [_Plan(batch, self._vault) for batch in batches]
        await self._wear.check(scope for plan in plans for scope in plan.needed)
        outcomes: list[kv.Outcome | None] = [None] * len(batches)
        forms = await self._stored_forms(batches)
        for _ in range(TRANSLATIONS_MAX):
            waiting = [n for n, outcome in enumerate(outcomes) if outcome is None]
            openers = await self._ready([plans[n] for n in waiting])
            sealed: list[kv.Batch] = []
            for n in waiting:
                lost = next((each for each in plans[n].needed if isinstance(openers[each], errors.Error)), None)
                if lost is None:
                    sealed.append(self._sealed(plans[n], openers, forms))
                else:  # its key was destroyed
                    outcomes[n] = kv.Conflict(((lost, None),))
            waiting = [n for n in waiting if outcomes[n] is None]
            found = await self.inner.commit(*sealed) if sealed else []
            await self._wear.look((scope for n in waiting for scope in plans[n].needed), sealed)
            for n, outcome in zip(waiting, found, strict=True):
                if isinstance(outcome, kv.Conflict):
                    outcomes[n] = await self._settled(plans[n], outcome, openers, forms)
                else:
                    outcomes[n] = outcome
            if None not in outcomes:
                return [outcome for outcome in outcomes if outcome is not None]
            probes.hit("encryption.translated-again")
            await asyncio.sleep(0)  # other tasks get their turns between two attempts
        raise errors.Conflicted(f"the keys of this store changed {TRANSLATIONS_MAX} times during one commit")

    async def _ready(self, plans: Sequence[_Plan]) -> dict[bytes, _Opener]:
        """What seals the values of these batches. Data keys that are missing are made and durable first."""
        openers: dict[bytes, _Opener] = {}
        missing: dict[bytes, None] = {}
        for plan in plans:
            for scope in plan.needed:
                known = self._known.get(scope)
                if known is None:
                    missing[scope] = None
                else:
                    openers[scope] = known
        if missing:
            await self._vault.make(list(missing))
            openers |= await self._openers(list(missing))
            for opener in openers.values():
                # A destroyed key concerns the batches that need it; any other error concerns the whole commit.
                if isinstance(opener, errors.Error) and not isinstance(opener, errors.KeyDestroyed):
                    raise opener
        return openers

    def _sealed(self, plan: _Plan, openers: dict[bytes, _Opener], forms: _Forms) -> kv.Batch:
        batch, scopes = plan.batch, plan.scopes
        if not scopes:
            return batch
        made = kv.SealedBatch()
        made.deletes, made.ranges = batch.deletes, batch.ranges
        made.counts = dict(batch.counts)  # what is sealed may be counted besides
        expects = made.expects
        for key, value in batch.expects.items():
            scope = scopes.get(key)
            expects[key] = (
                value if value is None or scope is None else self._expected(key, value, scope, openers, forms)
            )
        for key, put in batch.puts.items():
            scope = scopes.get(key)
            if scope is None:
                made.puts[key] = put
                continue
            form = envelope.PUT if put.stamp is None else envelope.STAMPED
            value = self._seal(form, key, put.value, scope, openers)
            self._wear.count(made, scope, value)
            made.puts[key] = kv.Put(key, value, put.stamp)
        for append in batch.appends:
            scope = scopes.get(append.prefix)
            if scope is not None:
                value = self._seal(envelope.APPENDED, append.prefix, append.value, scope, openers)
                self._wear.count(made, scope, value)
                append = kv.Append(append.prefix, value)  # noqa: PLW2901 - the same, sealed
            made.appends.append(append)
        for scope in plan.needed:
            opener = openers[scope]
            # A batch that changes the record of the key expects it already.
            if scope not in expects and self._vault.is_destroyable(scope):
                assert isinstance(opener, KnownCipher)
                expects[scope] = opener.raw
        return made

    def _seal(self, form: int, key: bytes, value: bytes, scope: bytes, openers: dict[bytes, _Opener]) -> bytes:
        opener = openers[scope] if scope else self._vault.known(scope, None)
        assert isinstance(opener, KnownCipher)
        return envelope.head(form) + opener.cipher.seal(envelope.place(form, key), value)

    def _expected(self, key: bytes, value: bytes, scope: bytes, openers: dict[bytes, _Opener], forms: _Forms) -> bytes:
        """The form in which the store may have this value."""
        # It can be expected all the same: as damaged bytes that are to be replaced or deleted.
        if isinstance(value, envelope.Unopened):
            return value.stored
        stored = forms.get((key, value)) if forms else None
        if stored is not None:
            return stored
        if isinstance(value, envelope.OpenedValue):
            return value.stored
        return self._seal(envelope.PUT, key, value, scope, openers)

    async def _stored_forms(self, batches: Sequence[kv.Batch]) -> _Forms:
        """How the store has the values now that are expected, where that cannot be told from the values."""
        wanted: dict[bytes, None] = {}
        for batch in batches:
            for key, value in batch.expects.items():
                if value is not None and type(value) is bytes and not self._vault.has_one_form(key):
                    wanted[key] = None
        forms: _Forms = {}
        keys = list(wanted)
        for start in range(0, len(keys), limits.READ_REQUESTS_MAX):
            page = keys[start : start + limits.READ_REQUESTS_MAX]
            found = await self.inner.read(*map(kv.Get, page))
            openers = await self._openers([scope for scope in map(self._vault.scope, page) if scope])
            for n, key in enumerate(page):
                stored = found.value(n)
                value = None if stored is None else self._open(key, stored, openers)
                if value is not None and stored is not None and not isinstance(value, envelope.Unopened):
                    forms[key, value] = stored
        return forms

    async def _settled(
        self, plan: _Plan, outcome: kv.Conflict, openers: dict[bytes, _Opener], forms: _Forms
    ) -> kv.Conflict | None:
        """The conflict in plain values; None if there is none: a record or a form was not what it had seemed."""
        expects, scopes = plan.batch.expects, plan.scopes
        unknown = dict.fromkeys(
            scope for key, _ in outcome.found if (scope := scopes.get(key)) and scope not in openers
        )
        known = openers | await self._openers(list(unknown)) if unknown else openers
        real: list[tuple[bytes, bytes | None]] = []
        for key, stored in outcome.found:
            if key not in expects:  # the record of a data key
                # Another record than was known: the next attempt reads it again.
                self._known.pop(key, None)
                continue
            value = None if stored is None else self._open(key, stored, known)
            if stored is not None and value is not None and _is_same(value, expects[key]):
                forms[key, value] = stored
            else:
                real.append((key, value))
        return kv.Conflict(tuple(real)) if real else None


class _Plan:
    """What is sealed of a batch, and with what."""

    __slots__ = ("batch", "needed", "scopes")

    def __init__(self, batch: kv.Batch, vault: CipherVault) -> None:
        self.batch = batch
        self.scopes: dict[bytes, bytes] = {}  # by key, or prefix of an append; of what is sealed
        self.needed: dict[bytes, None] = {}  # scopes whose ciphers are
        scope_of = vault.scope
        for key, value in batch.expects.items():
            scope = scope_of(key)
            if scope is not None:
                self.scopes[key] = scope
                if scope and type(value) is bytes:  # what was read remembers its stored form
                    self.needed[scope] = None
        for key in (*batch.puts, *(append.prefix for append in batch.appends)):
            scope = scope_of(key)
            if scope is not None:
                self.scopes[key] = scope
                if scope:
                    self.needed[scope] = None


def _is_same(stored: bytes, expected: bytes | None) -> bool:
    """Whether a value is the expected one, in another form. One that cannot be opened is like no other."""
    return stored == expected and not isinstance(stored, envelope.Unopened)
