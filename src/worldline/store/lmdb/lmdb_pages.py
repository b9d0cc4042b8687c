"""The pages of an LMDB file, as far as they hold bytes that no key has any more. No LMDB here: its file format.

LMDB never overwrites a page that a reader may see. What is deleted or replaced stays in the file: in pages that are
free now, and in the *gaps* of pages that are in use (LMDB writes a page from a buffer that it has used before, and what
was in the buffer is written along). Both are overwritten with zeros here, in place.

Why that is safe, for a caller that holds LMDB's lock of writers:

* A gap, between the last pointer of a page and its first node, or behind a large value, is read by no transaction.
* A free page is one that a transaction freed before the oldest snapshot that any reader has, and before the last
  commit. These are the pages that LMDB itself would write next.
* Overwriting changes no byte that anything reads, so it may be cut off anywhere: the file is sound at every instant.

Every page is checked against what LMDB says of it before a byte of it is written: a file that is otherwise is
`Corrupt`, and left alone. Only the layout of 64-bit systems is known; another one is refused.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator

import msgspec

from worldline.base import errors

_MAGIC = 0xBEEFC0DE
_VERSION = 1
_NO_PAGE = 2**64 - 1
_METAS = 2  # pages 0 and 1
_HEADER = struct.Struct("=QHHHH")  # number, padding, flags, end of the pointers, begin of the nodes
_META = struct.Struct("=IIQQ")  # magic, version, address, size of the map
_TREE = struct.Struct("=IHHQQQQQ")  # padding or page size, flags, depth, pages of three kinds, entries, root
_LAST = struct.Struct("=QQ")  # last page, transaction
_NODE = struct.Struct("=HHHH")  # size of the data in two halves, flags, size of the key
_NUMBER = struct.Struct("=Q")
_BRANCH, _LEAF, _OVERFLOW, _META_FLAG = 1, 2, 4, 8
_BIG = 1  # of a node: its data is on pages of its own
_PAGE_BYTES_MIN = 256
_PAGE_BYTES_MAX = 65_536
_DEPTH_MAX = 32
_RUN_PAGES = 64  # that are read, and written, at once

_Node = tuple[int, int, int, int]  # flags, begin of the key, size of the key, size of the data, or the child's page


class _Tree(msgspec.Struct, frozen=True):
    flags: int
    root: int


class File:
    """The file as the last commit left it. The caller holds the lock of writers for as long as it uses this."""

    def __init__(self, number: int) -> None:
        self._file = number
        metas = [self._meta(place) for place in range(_METAS)]
        # LMDB writes the two in turn: that of the later transaction is the valid one.
        self.page_bytes, self._free, self._main, self._last, self.txn = max(metas, key=lambda meta: meta[-1])
        if self._main.flags:
            raise errors.Corrupt("the LMDB file has keys of another kind than this store's")
        self.cleared = 0  # pages that were changed

    def _meta(self, place: int) -> tuple[int, _Tree, _Tree, int, int]:
        # The second one begins where the first page ends, and only the first one says where that is.
        size = self._page_size() if place else 0
        raw = os.pread(self._file, _PAGE_BYTES_MIN, place * size)
        try:
            number, _, flags, _, _ = _HEADER.unpack_from(raw)
            magic, version, _, _ = _META.unpack_from(raw, _HEADER.size)
            at = _HEADER.size + _META.size
            page_bytes, _, _, _, _, _, _, free = _TREE.unpack_from(raw, at)
            _, flags_main, _, _, _, _, _, main = _TREE.unpack_from(raw, at + _TREE.size)
            last, txn = _LAST.unpack_from(raw, at + 2 * _TREE.size)
        except struct.error:
            raise _strange(place) from None
        sound = number == place and flags == _META_FLAG and (magic, version) == (_MAGIC, _VERSION)
        if not sound or page_bytes & (page_bytes - 1) or not _PAGE_BYTES_MIN <= page_bytes <= _PAGE_BYTES_MAX:
            raise _strange(place)
        return page_bytes, _Tree(0, free), _Tree(flags_main, main), last, txn

    def _page_size(self) -> int:
        """Of the first meta page, which was checked."""
        (size,) = struct.unpack_from("=I", os.pread(self._file, 64, 0), _HEADER.size + _META.size)
        return int(size)

    # --- Gaps ---

    def clear_gaps(self, start: bytes, *, pages_max: int) -> bytes | None:
        """Zero the gaps of the pages of keys from `start` on, at first also those of the list of free pages. Returns
        where to continue, None at the end. A page that is written meanwhile needs no clearing here.
        """
        if not start:
            for page in self._leaves(self._free.root, b""):
                self._clear_leaf(page)
        for count, page in enumerate(self._leaves(self._main.root, start)):
            if count >= pages_max:
                _, key, size, _ = next(_nodes(page))
                return page[key : key + size]
            self._clear_leaf(page)
        return None

    def _leaves(self, number: int, start: bytes, depth: int = 0) -> Iterator[bytes]:
        """The leaves under a page, from the one that would hold `start` on. Gaps on the way to them are cleared."""
        if number == _NO_PAGE:
            return
        page = self._page(number, _BRANCH | _LEAF)
        # The low byte of the flags; `_page` has checked that it is one of the two kinds.
        if page[10] == _LEAF:
            yield page
            return
        # Pages of a damaged file may lead in a circle.
        if depth >= _DEPTH_MAX:
            raise _strange(number)
        children = [(page[key : key + size], child) for _, key, size, child in _nodes(page)]
        self._clear_gap(page)
        # The key of the first child counts as nothing: it holds all that is less than the second one's.
        first = max((at for at, (key, _) in enumerate(children) if at == 0 or key <= start), default=0)
        for at in range(first, len(children)):
            yield from self._leaves(children[at][1], start if at == first else b"", depth + 1)

    def _clear_leaf(self, page: bytes) -> None:
        big = [(key + size, length) for flags, key, size, length in _nodes(page) if flags & _BIG]
        self._clear_gap(page)  # the page is sound
        for at, length in big:
            (first,) = _NUMBER.unpack_from(page, at)
            self._zero(*self._run_of(first, length))

    def _clear_gap(self, page: bytes) -> None:
        number, _, _, lower, upper = _HEADER.unpack_from(page)
        if page[lower:upper] != bytes(upper - lower):
            begin = number * self.page_bytes
            self._zero(begin + lower, begin + upper)

    def _run_of(self, number: int, length: int) -> tuple[int, int]:
        """Where the unused end of a large value's pages is."""
        if not _METAS <= number <= self._last:
            raise _strange(number)
        raw = os.pread(self._file, _HEADER.size, number * self.page_bytes)
        if len(raw) < _HEADER.size:
            raise _strange(number)
        found, _, flags, _, _ = _HEADER.unpack(raw)
        (count,) = struct.unpack_from("=I", raw, 12)
        used = _HEADER.size + length
        if found != number or flags != _OVERFLOW or used > count * self.page_bytes or number + count - 1 > self._last:
            raise _strange(number)
        return number * self.page_bytes + used, (number + count) * self.page_bytes

    def _page(self, number: int, kinds: int) -> bytes:
        if not _METAS <= number <= self._last:
            raise _strange(number)
        page = os.pread(self._file, self.page_bytes, number * self.page_bytes)
        if len(page) != self.page_bytes:
            raise _strange(number)
        found, _, flags, lower, upper = _HEADER.unpack_from(page)
        if found != number or flags not in (_BRANCH, _LEAF) or not flags & kinds:
            raise _strange(number)
        if not _HEADER.size < lower <= upper <= self.page_bytes:
            raise _strange(number)
        return page

    # --- Free pages ---

    def free(self, oldest: int) -> list[int]:
        """The pages that were freed before the transaction `oldest`, in order."""
        found: list[int] = []
        for page in self._leaves(self._free.root, b""):
            for flags, key, size, length in _nodes(page):
                if size != _NUMBER.size:
                    raise _strange(0)
                (freed,) = _NUMBER.unpack_from(page, key)
                if freed < oldest:
                    found += self._listed(page, key + size, length, is_big=bool(flags & _BIG))
        # In order, so that neighbours are overwritten by one write, and a number says where to continue.
        found.sort()
        if found and not _METAS <= found[0] <= found[-1] <= self._last:
            raise _strange(found[-1])
        return found

    def _listed(self, page: bytes, at: int, length: int, *, is_big: bool) -> array[int]:
        """A list of pages as LMDB keeps it: their number, then each."""
        if is_big:
            (first,) = _NUMBER.unpack_from(page, at)
            end, _ = self._run_of(first, length)
            raw = os.pread(self._file, length, end - length)
        else:
            raw = page[at : at + length]
        numbers = array("Q")
        if len(raw) != length or length % numbers.itemsize:
            raise _strange(0)
        numbers.frombytes(raw)
        if not numbers or numbers[0] >= len(numbers):
            raise _strange(0)
        return numbers[1 : numbers[0] + 1]

    def clear_free(self, pages: list[int], *, after: int, pages_max: int) -> int | None:
        """Zero those of these pages that lie behind one. Returns where to continue, None at the end."""
        wanted = [number for number in pages if number > after]
        for first, count in _runs(wanted[:pages_max]):
            self._zero(first * self.page_bytes, (first + count) * self.page_bytes)
        if len(wanted) > pages_max:
            return wanted[pages_max - 1]
        self._zero((self._last + 1) * self.page_bytes, os.fstat(self._file).st_size)  # of transactions that failed
        return None

    def _zero(self, begin: int, end: int) -> None:
        """What is zero is not written: most of it is, the next time."""
        while begin < end:
            raw = os.pread(self._file, min(end - begin, _RUN_PAGES * self.page_bytes), begin)
            if not raw:
                return  # the file ends before: these pages were never written
            if raw != bytes(len(raw)):
                os.pwrite(self._file, bytes(len(raw)), begin)
                self.cleared += -(-len(raw) // self.page_bytes)
            begin += len(raw)


def _nodes(page: bytes) -> Iterator[_Node]:
    """The nodes of a branch or leaf."""
    number, _, flags, lower, upper = _HEADER.unpack_from(page)
    for (at,) in struct.iter_unpack("=H", page[_HEADER.size : lower]):
        if at < upper or at + _NODE.size > len(page):
            raise _strange(number)
        low, high, kind, size = _NODE.unpack_from(page, at)
        if at + _NODE.size + size > len(page):
            raise _strange(number)
        # In a branch, the flags are the high bits of the child's page number.
        length = low | high << 16
        yield kind, at + _NODE.size, size, length | kind << 32 if flags == _BRANCH else length


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Numbers that follow each other: the first, and how many."""
    start = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            yield numbers[start], at - start
            start = at


def _strange(number: int) -> errors.Corrupt:
    return errors.Corrupt(f"page {number} of the LMDB file is not what LMDB writes; nothing was overwritten in it")
