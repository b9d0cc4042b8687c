"""What a command ends with. 0: yes, or done."""

from __future__ import annotations

from typing import Final

NEGATIVE: Final = 1  # a negative answer, or a failure that is none of the others
USAGE: Final = 2
NOT_FOUND: Final = 3
REFUSED: Final = 4  # refused, or in conflict with others
STORE: Final = 5  # the store is out of reach, or what is stored is corrupt
TIMEOUT: Final = 6  # or no worker runs the world
INTERRUPTED: Final = 130
