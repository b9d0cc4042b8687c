"""The read of a cycle: what is in the inboxes of its worlds, with the payloads.

An input that was acked before another was sent is processed before it, whichever way either comes. So nothing that was
handed over is stepped before the inbox has been read after it came, and to its end; what would have to wait for more
than one page goes through the inbox itself.

A ready hint whose world's inbox is empty, read after the hint was seen, is deleted here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.codec import printable
from worldline.kernel.authoring import message_calls
from worldline.layers import blobs as blob_layer
from worldline.layers import inbox as inboxes
from worldline.layers import ready
from worldline.layers import work as works
from worldline.model import ids, inbox, payload
from worldline.model.inbox import ReceiptStatus
from worldline.model.settings import WorkerSettings
from worldline.runtime import attempt_history
from worldline.runtime.signed_receipts import ReceiptCheck
from worldline.store import kv, transact
from worldline.worker.held_world import HeldWorld
from worldline.worker.store_clock import StoreClock
from worldline.worker.waiting_input import WaitingInput
from worldline.worker.world_turn import WorldTurn

log = printable.logger("worldline.worker")


class Intake:
    """`stuck` is told of a world with an item that is out of reach now. `receipts`: None if they need not be signed."""

    def __init__(
        self,
        engine: kv.Engine,
        env: envs.Env,
        clock: StoreClock,
        *,
        settings: WorkerSettings,
        stuck: Callable[[HeldWorld], None],
        receipts: ReceiptCheck | None,
    ) -> None:
        self._engine = engine
        self._env = env
        self._clock = clock
        self._batch_max = settings.max_inbox_batch
        self._receipts = receipts
        self._stuck = stuck

    async def read(self, turns: Sequence[WorldTurn]) -> int:
        """Unread items with their payloads; repeats of client ids answered. Returns the store's time."""
        named = [(each, handover) for each in turns for handover in each.handed if handover.client_id is not None]
        if named:
            await self._answer_repeats(named)
        reading: list[WorldTurn] = []
        empty: list[
            WorldTurn
        ] = []  # when they were last read; so they are now, if nothing was appended to the store since
        for each in turns:
            # What was handed over needs proof that the inbox is empty, or the items that come before it.
            if each.held.unread or (each.handed and not each.held.empty_version):
                reading.append(each)
            elif each.handed:
                empty.append(each)
        read = await self._read_inboxes(reading)
        changed: list[WorldTurn] = []
        for each in empty:
            # The same version as at the read that found it empty: nothing was appended to the store since.
            if each.held.empty_version == read.version:
                each.known_empty()
            else:
                changed.append(each)
        if changed:
            read = await self._read_inboxes(changed)
        # After the reads: only an inbox that was read after the hint was seen proves it superfluous.
        await self._clear_hints(turns)
        return read.time_us

    async def _read_inboxes(self, reading: Sequence[WorldTurn]) -> kv.ReadResult:
        # On trial, one input at a time is written down, so more than one item is of no use.
        ranges = [each.held.unread_range(1 if each.held.on_trial else self._batch_max) for each in reading]
        read = await self._engine.read(*ranges)
        self._clock.set(read.time_us)
        for index, each in enumerate(reading):
            page = read.page(index)
            each.held.inbox_read(page, ranges[index], read.version)
            if not page.items:
                each.found_empty()
                continue
            try:
                await self._load_page(each, page)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one inbox is no other world's concern
                each.failed(error)
        return read

    async def _load_page(self, turn: WorldTurn, page: kv.Page) -> None:
        unread = inboxes.decode(page.items)
        if self._receipts is not None:
            unread = await self._signed(self._receipts, turn.held.at, unread)
        items = await self._load_all(turn.held.blobs, await self._traced(turn.held.at, unread))
        loaded = len(items) == len(page.items)
        turn.found(items, whole=loaded and not page.more)
        if not loaded:
            turn.held.inbox_blocked()
            self._stuck(turn.held)

    async def _signed(
        self, receipts: ReceiptCheck, at: ids.Address, items: list[inboxes.UnreadItem]
    ) -> list[inboxes.UnreadItem]:
        """Make dead letters of receipts that no trusted key has signed. The runtime's own have no
        signature, and no record of work that an effect worker has tried.
        """
        doubted = [
            (index, why)
            for index, each in enumerate(items)
            if isinstance(each.item, inbox.EffectReceipt) and (why := receipts.why_not(at, each.item))
        ]
        for start in range(0, len(doubted), limits.READ_REQUESTS_MAX):
            part = doubted[start : start + limits.READ_REQUESTS_MAX]
            read = await self._engine.read(*(works.get(at, _intent(items[index])) for index, _ in part))
            for position, (index, why) in enumerate(part):
                opened = works.decode(at, _intent(items[index]), read.value(position))
                if opened is not None and opened.work.attempt and opened.work.name != message_calls.SEND:
                    items[index] = msgspec.structs.replace(items[index], item=None, error=why)
        return items

    async def _traced(self, at: ids.Address, items: list[inboxes.UnreadItem]) -> list[inboxes.UnreadItem]:
        """Receipts of effects that failed or were tried again, with the tracebacks and attempts that are kept with
        their work until then.
        """
        failed = [index for index, each in enumerate(items) if _is_told_of(each.item)]
        if not failed:
            return items
        failed = failed[: limits.READ_REQUESTS_MAX]  # of those behind, none is shown
        read = await self._engine.read(*(works.get(at, _intent(items[index])) for index in failed))
        for position, index in enumerate(failed):
            opened = works.decode(at, _intent(items[index]), read.value(position))
            if opened is None or not (opened.work.trace or opened.work.tried):
                continue
            tried = attempt_history.dump(opened.work.name, opened.intent, opened.work.tried)
            items[index] = msgspec.structs.replace(items[index], trace=opened.work.trace, tried=tried)
        return items

    async def _load_all(
        self, blobs: blob_layer.Blobs, items: Sequence[inboxes.UnreadItem]
    ) -> list[tuple[inboxes.UnreadItem, bytes]]:
        """Items with their payloads, up to the first that is out of reach now."""
        loaded: list[tuple[inboxes.UnreadItem, bytes]] = []
        for item in items:
            try:
                loaded.append(await self._load(blobs, item))
            except errors.StoreError as error:
                # Those behind it wait, too: a later input must not be processed before it.
                log.warning("an item's payload cannot be read now: %s", error)
                break
        return loaded

    async def _load(self, blobs: blob_layer.Blobs, unread: inboxes.UnreadItem) -> tuple[inboxes.UnreadItem, bytes]:
        """An item with its payload. One whose payload is missing permanently is treated as undecodable."""
        carried: payload.Payload | None = getattr(unread.item, "payload", None)
        if carried is None:
            return unread, b""
        if carried.inline is not None:
            return unread, carried.inline
        try:
            return unread, await blobs.load(carried)
        except (errors.NotFound, errors.Corrupt) as error:
            return msgspec.structs.replace(unread, item=None, error=f"its payload is missing: {error}"), b""

    async def _answer_repeats(self, named: list[tuple[WorldTurn, WaitingInput]]) -> None:
        """Client ids that were used before get their first answer again, instead of spoiling the commit of others."""
        for start in range(0, len(named), limits.READ_REQUESTS_MAX):
            part = named[start : start + limits.READ_REQUESTS_MAX]
            read = await self._engine.read(
                *(inboxes.get_seen(each.held.at, handover.client_id or "") for each, handover in part)
            )
            for index, (each, handover) in enumerate(part):
                found = read.value(index)
                if found is not None:
                    each.repeated(handover, found)

    async def _clear_hints(self, turns: Sequence[WorldTurn]) -> None:
        """Hints of worlds whose inboxes were empty. A conflict means that another process has deleted some of them; the
        next search through all hints finds the others.
        """
        batches: list[kv.Batch] = []
        for each in turns:
            if each.empty and each.hints:
                batches.append(kv.Batch())
                ready.clear(batches[-1], each.hints)
                # Before the outcome is known: after a conflict the slow search finds those that are still there.
                each.held.drop_hints(each.hints)
        if batches:
            await transact.commit(self._engine, self._env, *batches)


def _is_told_of(item: inbox.Item | None) -> bool:
    return isinstance(item, inbox.EffectReceipt) and (item.status is not ReceiptStatus.OK or item.attempt > 1)


def _intent(unread: inboxes.UnreadItem) -> ids.IntentId:
    assert isinstance(unread.item, inbox.EffectReceipt)
    return ids.IntentId(unread.item.intent)
