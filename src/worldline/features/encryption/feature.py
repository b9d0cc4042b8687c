"""What this feature brings to the core."""

from __future__ import annotations

from worldline.features.encryption import codec_opening
from worldline.features.encryption.kept_key_guard import KeptKeyGuard
from worldline.runtime.feature import Feature

ENCRYPTION = Feature(name="encryption", wrap_store=codec_opening.SEALING, status_guards=(KeptKeyGuard(),))
