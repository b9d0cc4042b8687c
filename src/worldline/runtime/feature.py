"""What a feature brings to the core: one record, with a field for each seam.

`host/feature_list.py` has all features, in a fixed order; nothing registers by being imported. An opened store carries
the list (`store_opening.Store.features`), so that whatever is reached from a store asks the same features, in that
order. A field is empty where a feature has nothing to bring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from worldline.kernel.parts import BranchPart, DomainsPart, StepParts
from worldline.runtime.feature_checks import HistoryCheck, RecordReaders, UniverseCheck
from worldline.runtime.feature_reasons import FeatureReasons
from worldline.runtime.holder_job import MakeHolderJob
from worldline.runtime.janitor_job import JanitorContext, JanitorJob
from worldline.runtime.metric_table import MetricTable
from worldline.runtime.signed_receipts import ReceiptSigning
from worldline.runtime.store_context import JanitorRole, StoreContext
from worldline.runtime.store_wrapping import WrapStore
from worldline.runtime.universe_admission import Admission
from worldline.runtime.world_bounds import StepRules
from worldline.runtime.world_change_interface import RenameWatch, StatusGuard

MakeJanitorJob = Callable[[JanitorContext], JanitorJob]
MakeStoreJob = Callable[[StoreContext], JanitorJob]
MakeJanitorRole = Callable[[StoreContext], JanitorRole | None]


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """What one folder of `features/` brings. All but the name may be left out."""

    name: str
    holder_jobs: tuple[MakeHolderJob, ...] = ()  # beside the steps of the worlds that a process holds
    step_rules: StepRules | None = None  # what a step may not ask for; of one feature
    receipts: ReceiptSigning | None = None  # signing receipts of effects, and checking them; of one feature
    janitor_jobs: tuple[MakeJanitorJob, ...] = ()  # what it clears away in a universe
    store_jobs: tuple[MakeStoreJob, ...] = ()  # and in the store as a whole
    janitor_roles: tuple[MakeJanitorRole, ...] = ()  # loops beside the janitor; None where settings turn one off
    wrap_store: WrapStore | None = None  # encodes what is stored; one feature at most
    admissions: tuple[Admission, ...] = ()  # whether a universe takes more from outside
    status_guards: tuple[StatusGuard, ...] = ()  # what goes with another status of a world, or is against it
    rename_watches: tuple[RenameWatch, ...] = ()  # what follows when a world has another name
    measures: MetricTable = MetricTable()  # metrics of its own; it tells them as `facts.LevelsMeasured`
    checks: tuple[UniverseCheck, ...] = ()  # of `doctor`
    readers: tuple[RecordReaders, ...] = ()  # of the records that `doctor` reads
    history_checks: tuple[HistoryCheck, ...] = ()  # of `verify`
    reasons: tuple[FeatureReasons, ...] = ()  # of `why`
    commands: Mapping[str, str] = {}  # words to type, and where the command stands: imported when it is asked for
    branch_part: BranchPart | None = None  # what worlds do in a step that are forks, or go back; one feature has it
    domains_part: DomainsPart | None = None  # what flow domains do in a step; one feature has it


def parts_of(features: Iterable[Feature]) -> StepParts:
    """Put together what steps are given."""
    every = list(features)
    branch = [each.branch_part for each in every if each.branch_part is not None]
    domains = [each.domains_part for each in every if each.domains_part is not None]
    assert len(branch) == len(domains) == 1, "any stored world may need each part, and of two one would be left out"
    return StepParts.of(branch[0], domains[0])
