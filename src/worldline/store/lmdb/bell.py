"""A bell: how one thread wakes another that sleeps in a read or in an event loop's selector.

`call_soon_threadsafe` does the same with more work on both sides; on a fast disk that difference is a tenth of a
commit. An event counter where the system has one, else a pipe: both are level-triggered file descriptors, both count
rings that were not heard yet, and one `hear` takes them all.

A bell carries no data and keeps no order. Put the message where the sleeper looks for it before ringing.
"""

from __future__ import annotations

import os
import sys

# What an event counter wants to be written: the number 1 in eight bytes of the machine's order. A pipe takes any bytes.
_RING = (1).to_bytes(8, sys.byteorder)
_HEAR_BYTES = 512  # of a pipe, many rings at once; a counter tells all of its in eight


class Bell:
    def __init__(self, *, counter: bool = hasattr(os, "eventfd")) -> None:
        if counter:
            self._read_end = self._write_end = os.eventfd(0, os.EFD_CLOEXEC)
        else:
            self._read_end, self._write_end = os.pipe()

    def fileno(self) -> int:
        """Readable while there is a ring that was not heard."""
        return self._read_end

    def ring(self) -> None:
        os.write(self._write_end, _RING)

    def hear(self) -> None:
        """Wait for a ring, and take all there are."""
        os.read(self._read_end, _HEAR_BYTES)

    def close(self) -> None:
        """Only when no thread can ring or hear it any more: the number may be another file's next."""
        os.close(self._read_end)
        if self._write_end != self._read_end:
            os.close(self._write_end)
