"""What the role processes host: the simulator's programs, with a file for their outside."""

from __future__ import annotations

import os
from pathlib import Path

from tests.campaign.load import programs
from tests.chaos import child, ledger

counters, bank, orders, agents = programs.PROGRAMS
programs.OUTSIDE.set(ledger.Ledger(Path(os.environ[child.LEDGER]), os.environ[child.LABEL]))
