"""All features that bring something to the core, in the order in which it asks them."""

from __future__ import annotations

from worldline.features.abroad.feature import ABROAD
from worldline.features.anchors.feature import ANCHORS
from worldline.features.collection.feature import COLLECTION
from worldline.features.compaction.feature import COMPACTION
from worldline.features.copies.feature import COPIES
from worldline.features.deletion.feature import DELETION
from worldline.features.diff.feature import DIFF
from worldline.features.domains.feature import DOMAINS
from worldline.features.encryption.feature import ENCRYPTION
from worldline.features.erasure.feature import ERASURE
from worldline.features.forks.feature import FORKS
from worldline.features.policy.feature import POLICY
from worldline.features.proofs.feature import PROOFS
from worldline.features.quotas.feature import QUOTAS
from worldline.features.receipts.feature import RECEIPTS
from worldline.features.relay.feature import RELAY
from worldline.features.shadow.feature import SHADOW
from worldline.runtime.feature import Feature, parts_of

FEATURES: tuple[Feature, ...] = (
    QUOTAS,
    POLICY,
    RECEIPTS,
    ENCRYPTION,
    COPIES,
    DELETION,
    ERASURE,
    COLLECTION,
    COMPACTION,
    PROOFS,
    FORKS,
    DOMAINS,
    ABROAD,
    ANCHORS,
    DIFF,
    RELAY,
    SHADOW,
)

PARTS = parts_of(FEATURES)  # for machines that no store is behind: of tests, and of journals in files
