"""Profiles: everything that is drawn before a seed runs, or asked for by name.

Every class of fault is on or off by a coin, so that none hides another, with a rate of its own; and constants are drawn
too: a bound that is never met is never tested. A profile can be named (`crashes`), and fields of it can be set
(`hosts=3`), which is how a seed that was made smaller is told from the one it came from.
"""

from __future__ import annotations

import random
from typing import Any, Literal

import msgspec

from worldline.base import errors, limits
from worldline.model.settings import (
    AdapterSettings,
    JanitorSettings,
    OrchestratorSettings,
    Settings,
    TimerSettings,
    WorkerSettings,
)
from worldline.sim.faults.boundaries import (
    BOUNDARIES,
    COLLECTING,
    COMPACTING,
    DELETING,
    FORKING,
    JUDGING,
    RARE,
    READS,
    SENDING,
)

COLD = 0.25  # of the seeds have worlds whose cells are not all in memory
# Boundaries that are looked at in other ways.
APART = (*READS, *FORKING, *COMPACTING, *DELETING, *SENDING, *COLLECTING, *JUDGING)
COMPACTED = 0.2  # of the seeds have worlds that are compacted all the time
COLLECT_MS_MAX = 10_000  # between two collections that are often
COLLECTED = 0.2  # of the seeds collect garbage all the time
ABROAD = 0.12  # of the seeds have another store that messages go to
COLD_FOCUS = 0.6  # of these look most at what happens while a cell is fetched
LEAN = 0.3  # of the seeds that look at forks look most at their first own states,
LEAN_FORKS = 3  # with so many clients that fork
LOUD = ("crash", "pause", "partition", "slow", "late", "unavailable", "conflict")  # what keeps all from getting far
SKETCHED = 0.6  # of the seeds that collect garbage put the same bytes again and again,
SKETCHES = 3  # with so many clients
FLOWS = 0.12  # of the seeds have worlds of flow domains
FORGERS = 0.1  # of the seeds have clients and worlds that forge answers and senders


class OutsideFaults(msgspec.Struct, frozen=True):
    """How the outside misbehaves, in percent of calls."""

    late: int = 0
    silent: int = 0
    wrong: int = 0
    double: int = 0


class Profile(msgspec.Struct, frozen=True):
    """Everything that is drawn before a seed runs. Rates are per thousand commits, or reads."""

    hosts: int = 2
    clients: int = 2
    split: bool = False  # every role on machines of its own
    orchestrators: int = 0
    janitors: int = 0
    focus: str = ""  # a kind of commit at which every fault is likely, whatever the coins said
    shuffle: bool = False
    latency_us: int = 2_000
    slow: int = 0
    crash: int = 0
    pause: int = 0
    partition: int = 0
    unknown: int = 0
    late: int = 0
    unavailable: int = 0
    conflict: int = 0  # an operator revokes the lease right before a commit
    objects: int = 0
    store_jump: int = 0  # the store's clock jumps; in percent of the larger events
    excursion: int = 0  # the store's clock is hours off for a while, or set back for good; in percent of its chances
    overtaken: int = 0  # a step is applied, its answer lost, its host cut off and its lease taken away
    held: int = 0  # a commit stays open for a while, or an idle transaction does, and holds `stable` back
    hints: Literal["all", "some", "none"] = "all"
    skew_us: int = 0
    drift_ppm: int = 0
    nth: int = 0  # exactly here, counted over all boundaries that are passed, and ...
    nth_fault: Literal["crash", "pause", "partition"] = "crash"  # ... this happens
    adapters: OutsideFaults = OutsideFaults()
    heal: Literal["all", "core"] = "all"
    chaos_seconds: int = 20
    lag: int = 0  # so many percent of hosts read journals late
    anonymous: int = 0  # so many lots of sends and asks without ids
    doors: int = 0  # clients that use two processes by turns
    backlog: int = 0  # inputs that wait in one inbox when the hosts start
    damaged: int = 0  # changes of steps, per thousand reads of a journal
    bodies: int = 0  # segments that are damaged before they are stored, per thousand
    fragile: int = 0  # so many lots of inputs to a program whose code changes, diverges and ends its processes
    code: Literal["", "first", "before", "at", "after", "removed"] = (
        ""  # of every other life of theirs; none: it is drawn
    )
    crash_budget: int = 3  # of the hosts that have that program
    forks: int = 0  # so many clients that fork worlds, and forks, and delete them
    abroad: int = 0  # so many clients whose worlds send to other universes, in this store and another
    sketches: int = 0  # so many clients that put the same few large texts again and again, and drop them
    flows: int = 0  # so many lots of clients that act on flow domains, whose documents change
    forgers: int = 0  # so many lots of clients that ask, and as many that forge answers and senders
    window_ms: int = 0  # of the ids that are remembered; 0: as settings have it
    hostile: int = 0  # so many lots of inputs to a program that does everything wrong
    patient: bool = False  # clients wait for an answer without a limit, instead of asking again
    in_store: bool = False  # no objects: what is large is kept in the store, in chunks that are small here
    kinds: tuple[str, ...] = ()  # of operations; none: they are drawn
    ops_max: int = 1_000  # of each client
    only: tuple[int, ...] | None = None  # of the faults that are drawn, those with these numbers happen; None: all
    settings: Settings = Settings()

    @property
    def collects(self) -> bool:
        """Whether garbage is collected all the time."""
        return bool(self.janitors) and 0 < self.settings.janitor.collect_ms <= COLLECT_MS_MAX

    @property
    def in_store_bytes_max(self) -> int:
        """As a store is opened without objects, or with them."""
        return limits.CHUNKED_BYTES_MAX if self.in_store else 0

    @property
    def slowest_us(self) -> int:
        """How long an answer takes at most when it is slow."""
        return 3 * self.settings.worker.lease_ttl_ms * 1000


def draw(seed: int) -> Profile:
    """The profile of a seed."""
    # A generator of its own: drawing one field more elsewhere changes no other seed.
    draws = random.Random(f"{seed}:profile")

    def coin(low: int, high: int) -> int:
        # Off in half of the seeds: faults that are always there hide what another one alone would break.
        return draws.randint(low, high) if draws.random() < 0.5 else 0

    drawn = Profile(
        hosts=draws.choice([1, 2, 2, 3]),
        clients=draws.choice([1, 2, 3]),
        split=draws.random() < 0.4,
        focus=draws.choice([kind for kind in BOUNDARIES if kind not in APART] + RARE + [""] * 3),
        shuffle=draws.random() < 0.5,
        latency_us=draws.choice([10, 500, 2_000, 20_000]),
        slow=coin(5, 50),
        crash=coin(2, 20),
        pause=coin(2, 15),
        partition=coin(2, 10),
        unknown=coin(10, 100),
        late=coin(5, 50),
        unavailable=coin(5, 50),
        objects=coin(100, 600),
        hints=draws.choice(["all", "some", "some", "none"]),
        skew_us=coin(1, 20_000_000),
        drift_ppm=coin(1, 5_000),
        adapters=OutsideFaults(coin(5, 20), coin(2, 10), coin(5, 20), coin(5, 20)),
        heal=draws.choice(["all", "all", "core"]),
        chaos_seconds=draws.randint(8, 20),
        settings=draw_settings(draws),
        conflict=coin(5, 40),
        store_jump=coin(10, 50),
        orchestrators=draws.choice([0, 0, 1, 2]),
        janitors=draws.choice([0, 0, 1]),
        **_draw_features(seed),
    )
    # Each feature draws from the seed by itself, so those that are added later leave older seeds as they were.
    drawn = _draw_abroad(seed, _draw_collection(seed, _draw_compaction(seed, _draw_cold(seed, drawn))))
    drawn = msgspec.structs.replace(drawn, flows=_draw_flows(seed), forgers=_draw_forgers(seed))
    return _looking_at_forks(drawn, seed) if drawn.forks else drawn


def _looking_at_forks(profile: Profile, seed: int) -> Profile:
    """Most often what goes wrong where there are forks goes wrong there. A fork has its first own state once, if it
    lives so long: where that is looked at, there are more forks, and little else goes wrong.
    """
    draws = random.Random(f"{seed}:forks")
    focus = draws.choice([FORKING[0]] * 4 + [profile.focus])
    if focus != FORKING[0] or draws.random() >= LEAN:
        return msgspec.structs.replace(profile, focus=focus)
    calm = dict.fromkeys(LOUD, 0)
    return msgspec.structs.replace(profile, **calm, focus=FORKING[-1], forks=LEAN_FORKS, chaos_seconds=20)


def _draw_cold(seed: int, profile: Profile) -> Profile:
    """In some seeds almost no cell stays in memory: worlds are small here, and so is what is allowed for one."""
    draws = random.Random(f"{seed}:cold")
    if draws.random() >= COLD:
        return profile
    worker = msgspec.structs.replace(
        profile.settings.worker,
        cells_memory_max=draws.choice([1, 1, 2_000]),
        snapshot_entries=draws.choice([4, 4, 15]),  # the first snapshot tells that a world is large
    )
    focus = "cold" if draws.random() < COLD_FOCUS else profile.focus
    return msgspec.structs.replace(
        profile, focus=focus, settings=msgspec.structs.replace(profile.settings, worker=worker)
    )


def _draw_compaction(seed: int, profile: Profile) -> Profile:
    """In some seeds old entries are moved into segments, as soon as there are a few."""
    draws = random.Random(f"{seed}:compaction")
    if draws.random() >= COMPACTED:
        return profile
    worker = msgspec.structs.replace(
        profile.settings.worker,
        segment_entries=draws.choice([3, 10]),
        segment_margin=draws.choice([0, 0, 5]),
        snapshots_kept=draws.choice([1, 1, 2]),
        snapshot_entries=draws.choice([4, 8]),
    )
    focus = draws.choice(["compact", profile.focus])
    settings = msgspec.structs.replace(profile.settings, worker=worker)
    return msgspec.structs.replace(profile, focus=focus, settings=settings, bodies=draws.choice([0, 0, 200]))


def _draw_collection(seed: int, profile: Profile) -> Profile:
    """In some seeds garbage is collected all the time, most often without a grace; and there is some: states are saved
    and dropped often.
    """
    draws = random.Random(f"{seed}:collection")
    if draws.random() >= COLLECTED:
        return profile
    janitor = msgspec.structs.replace(
        profile.settings.janitor,
        round_ms=1_000,
        collect_ms=draws.choice([500, 2_000]),
        collect_grace_ms=draws.choice([0, 0, 2_000]),
        collect_rest_ms=draws.choice([1, 100]),
    )
    worker = msgspec.structs.replace(
        profile.settings.worker, segment_entries=3, segment_margin=0, snapshots_kept=1, snapshot_entries=4
    )
    settings = msgspec.structs.replace(profile.settings, janitor=janitor, worker=worker)
    focus = draws.choice([*COLLECTING, profile.focus])
    found = msgspec.structs.replace(profile, focus=focus, janitors=draws.choice([1, 2]), settings=settings)
    return _sketched(found, draws) if draws.random() < SKETCHED else found


def _sketched(profile: Profile, draws: random.Random) -> Profile:
    """Collections follow each other, and little goes wrong but with them and with deletions: who has condemned some
    bytes, or is about to delete them, is stopped, and meanwhile they are put again.
    """
    janitor = msgspec.structs.replace(profile.settings.janitor, turn_ms=100, round_ms=300, collect_ms=200)
    settings = msgspec.structs.replace(profile.settings, janitor=janitor)
    calm = dict.fromkeys((*LOUD, "overtaken"), 0)
    return msgspec.structs.replace(
        profile,
        **calm,
        focus=draws.choice(COLLECTING),
        latency_us=draws.choice([500, 5_000]),
        sketches=SKETCHES,
        chaos_seconds=20,
        settings=settings,
    )


def _draw_abroad(seed: int, profile: Profile) -> Profile:
    """In some seeds there is another store, with a universe of its own."""
    draws = random.Random(f"{seed}:abroad")
    if draws.random() >= ABROAD:
        return profile
    return msgspec.structs.replace(
        profile, abroad=draws.randint(1, 2), focus=draws.choice([SENDING[0]] * 3 + [profile.focus])
    )


def _draw_flows(seed: int) -> int:
    """Drawn apart: seeds without flow domains are what they are without this."""
    draws = random.Random(f"{seed}:flows")
    return draws.randint(1, 2) if draws.random() < FLOWS else 0


def _draw_forgers(seed: int) -> int:
    """Drawn apart, as flow domains are."""
    draws = random.Random(f"{seed}:forgers")
    return draws.randint(1, 2) if draws.random() < FORGERS else 0


def _draw_features(seed: int) -> dict[str, Any]:
    """Drawn apart, so that the rest of a seed's profile does not depend on how many there are."""
    draws = random.Random(f"{seed}:features")

    def coin(likely: float, low: int, high: int) -> int:
        drawn = draws.randint(low, high)
        return drawn if draws.random() < likely else 0

    return {
        "anonymous": coin(0.4, 1, 2),
        "doors": coin(0.2, 1, 2),
        "backlog": coin(0.05, 50, 200),
        "hostile": coin(0.15, 1, 1),
        "excursion": coin(0.15, 20, 60),
        "held": coin(0.3, 5, 60),
        "lag": coin(0.1, 30, 100),
        "overtaken": coin(0.4, 10, 60),
        "patient": draws.random() < 0.4,
        "in_store": draws.random() < 0.3,
        "damaged": coin(0.15, 100, 400),
        "fragile": coin(0.06, 1, 1),
        "crash_budget": draws.randint(1, 3),
        "forks": coin(0.12, 1, 1),
    }


def draw_settings(draws: random.Random) -> Settings:
    """Constants are drawn too: a bound that is never met is never tested."""
    ttl_ms = draws.choice([1_000, 3_000, 10_000])
    claim_ms = draws.choice([1_000, 3_000, 8_000])
    return Settings(
        worker=WorkerSettings(
            lease_ttl_ms=ttl_ms,
            heartbeat_ms=ttl_ms // 4,
            scan_ms=draws.choice([300, 1_000, 3_000]),
            max_inbox_batch=draws.choice([1, 3, 64]),
            max_cycle_wall_ms=draws.choice([1, 250]),
            max_worlds_per_cycle=draws.choice([1, 2, 256]),
            max_worlds_warm=draws.choice([1, 3, 1_000]),
            idle_release_ms=draws.choice([500, 3_000, 60_000]),
            snapshot_entries=draws.choice([4, 15, 60, 5_000]),
            snapshot_ms=draws.choice([2_000, 300_000]),
            snapshot_idle_ms=draws.choice([200, 2_000]),
        ),
        adapter=AdapterSettings(
            claim_ttl_ms=claim_ms,
            renew_ms=claim_ms // 3,
            scan_ms=draws.choice([300, 1_000, 3_000]),
            concurrency=draws.choice([1, 4, 256]),
            claim_batch=draws.choice([1, 64]),
        ),
        timer=TimerSettings(scan_ms=draws.choice([300, 1_000, 3_000]), batch=draws.choice([1, 512])),
        orchestrator=OrchestratorSettings(turn_ms=draws.choice([500, 2_000]), moves_max=draws.choice([1, 32])),
        janitor=JanitorSettings(
            turn_ms=300, round_ms=draws.choice([1_000, 600_000]), worlds_max=draws.choice([1, 256]), prove_ms=0
        ),
    )


# --- By name ------------------------------------------------------------------------------------------------

# The classes of faults that are no single events, and how each is when it is off.
BACKGROUND: dict[str, Any] = {
    "skew_us": 0,
    "drift_ppm": 0,
    "hints": "all",
    "adapters": OutsideFaults(),
    "shuffle": False,
    "heal": "all",
    "lag": 0,
}
# Those that are, and how often each is when it is asked for by name.
EVENTS = {
    "slow": 20,
    "crash": 10,
    "pause": 8,
    "partition": 6,
    "unknown": 50,
    "late": 25,
    "unavailable": 25,
    "conflict": 20,
    "objects": 300,
    "damaged": 200,
    "bodies": 200,
    "store_jump": 30,
    "excursion": 40,
    "held": 30,
    "overtaken": 20,
}
NAMED: dict[str, tuple[str, ...]] = {
    "calm": (),
    "crashes": ("crash",),
    "pauses": ("pause",),
    "network": ("slow", "partition", "unknown", "late", "unavailable", "hints", "lag"),
    "transactions": ("held",),
    "clocks": ("skew_us", "drift_ppm", "store_jump", "excursion"),
    "objects": ("objects", "damaged", "bodies"),
    "leases": ("pause", "conflict", "store_jump", "overtaken"),
    "outside": ("adapters",),
}
SWARM = "swarm"
ROLES = ("worker", "adapter", "timer", "orchestrator", "janitor")  # those whose settings can be set


def of(text: str, seed: int) -> Profile:
    """The profile that a text asks for: a name, fields that are set, or both: `crashes,hosts=3`."""
    return changed(draw(seed), text)


def changed(profile: Profile, text: str) -> Profile:
    """A profile with what a text asks for."""
    for number, part in enumerate(each for each in text.split(",") if each):
        name, equals, value = part.partition("=")
        if equals:
            profile = _set(profile, name, value)
        elif number == 0 and name in NAMED:
            profile = _only_classes(profile, NAMED[name])
        elif number or name != SWARM:
            known = ", ".join([SWARM, *NAMED])
            raise errors.BadInput(f"no profile {name!r}; there are {known}, and FIELD=VALUE to change one")
    return profile


def _only_classes(profile: Profile, classes: tuple[str, ...]) -> Profile:
    wanted: dict[str, Any] = {name: off for name, off in BACKGROUND.items() if name not in classes}
    for name, rate in EVENTS.items():
        # Asked for by name: a coin that came out off must not leave it out.
        wanted[name] = (getattr(profile, name) or rate) if name in classes else 0
    return msgspec.structs.replace(profile, **wanted, focus="")


def _set(profile: Profile, name: str, value: str) -> Profile:
    if "." in name:
        return _set_constant(profile, name, value)
    fields = {field.name: field.type for field in msgspec.structs.fields(Profile)}
    if name not in fields or name == "settings":
        raise errors.BadInput(f"a profile has no {name!r}; it has {', '.join(each for each in fields)}")
    given: Any = value
    try:
        if name == "only":
            given = [int(each) for each in value.split("+") if each]
        elif name == "kinds":
            given = value.split("+")
        elif name == "adapters":
            given = dict(zip(OutsideFaults.__struct_fields__, map(int, value.split("+")), strict=True))
        converted = msgspec.convert(given, fields[name], strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise errors.BadInput(f"{name}={value} does not fit a profile: {error}") from error
    return msgspec.structs.replace(profile, **{name: converted})


def _set_constant(profile: Profile, name: str, value: str) -> Profile:
    """One of the settings of a role: `worker.scan_ms=300`."""
    role, _, field = name.partition(".")
    its = getattr(profile.settings, role) if role in ROLES else None
    if its is None or not isinstance(getattr(its, field, None), int):
        raise errors.BadInput(f"there is no setting {name!r} that is a number")
    try:
        its = msgspec.structs.replace(its, **{field: int(value)})
    except ValueError as error:
        raise errors.BadInput(f"{name}={value} does not fit a profile: {error}") from error
    return msgspec.structs.replace(profile, settings=msgspec.structs.replace(profile.settings, **{role: its}))


def difference(profile: Profile, base: Profile) -> str:
    """The fields in which a profile differs, so that `of` makes it of the same seed again."""
    parts = []
    for field in Profile.__struct_fields__:
        value = getattr(profile, field)
        if field != "settings" and value != getattr(base, field):  # settings are told field by field below
            parts.append(f"{field}={_text(value)}")
    return ",".join(parts + _constants(profile.settings, base.settings))


def _constants(settings: Settings, base: Settings) -> list[str]:
    parts = []
    for role in ROLES:
        its, other = getattr(settings, role), getattr(base, role)
        fields = [each for each in its.__struct_fields__ if getattr(its, each) != getattr(other, each)]
        parts += [f"{role}.{field}={getattr(its, field)}" for field in fields]
    return parts


def _text(value: Any) -> str:
    if isinstance(value, OutsideFaults):
        return "+".join(str(each) for each in msgspec.structs.astuple(value))
    if isinstance(value, tuple):
        return "+".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
