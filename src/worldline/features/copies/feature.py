"""What this feature brings to the core."""

from __future__ import annotations

from worldline.runtime.feature import Feature

COPIES = Feature(name="copies")
