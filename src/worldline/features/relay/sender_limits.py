"""Which senders may have a connection to the webhook server, and how often a request. Before anything is known of a
sender there is only its address: an address has a share of the places and a rate of its own, so one that floods is in
its own way first. After its signature was checked, a sender has the rate of its secret, which other senders cannot use
up.

The newest connection always gets in while an older one only waits for data: honest requests arrive at once, and what is
held open for its own sake is what is dropped. An IPv6 sender counts as its network of 64 bits, which one site has.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math

import msgspec

from worldline.base import env as envs
from worldline.base import errors, limits
from worldline.base.bounded_map import BoundedMap


class Rate:
    """So many a second on average, and as many at once after a rest."""

    def __init__(self, env: envs.Env, per_second: float) -> None:
        if not per_second > 0:
            raise errors.BadInput("a rate is a number above 0")
        self._env = env
        self._gap_us = 1_000_000 / per_second
        self._full_us = max(1_000_000.0, self._gap_us)
        self._next_us = -math.inf  # when the next one would be on schedule: a clock may begin at 0

    def allows(self) -> bool:
        """Whether one more is within the rate. It counts only if it is."""
        now_us = self._env.monotonic_us()
        # What was not used is saved up for a second at most, or for one request of a slow rate.
        start_us = max(self._next_us, now_us - self._full_us + self._gap_us)
        if start_us > now_us:
            return False
        self._next_us = start_us + self._gap_us
        return True


class Rates:
    """A rate for each address, of those that were seen last."""

    def __init__(self, env: envs.Env, per_second: float) -> None:
        self._env = env
        self._per_second = per_second
        # In the order in which they were seen last.
        self._of: BoundedMap[str, Rate] = BoundedMap(limits.WEBHOOK_ADDRESSES_MAX)
        Rate(env, per_second)  # refused here, and not at the first request

    def allows(self, address: str) -> bool:
        rate = self._of.get(address) or Rate(self._env, self._per_second)
        self._of[address] = rate
        return rate.allows()


class ConnectionSlot(msgspec.Struct, eq=False):
    """One connection. `clock` runs while the server waits for the client; then it may be dropped for another."""

    address: str
    clock: asyncio.Timeout | None = None
    dropped: bool = False

    def wait(self, clock: asyncio.Timeout) -> None:
        self.clock = clock

    def work(self) -> None:
        """From here on it is the server's own work that takes the time."""
        self.clock = None

    def drop(self) -> None:
        assert self.clock is not None, "only a connection that waits is dropped"
        self.dropped = True
        # Its timeout fires now: the task of the connection answers, and closes it.
        self.clock.reschedule(asyncio.get_running_loop().time())
        self.clock = None


class OpenConnections:
    """The connections there are. `shared` addresses, those of proxies, stand for many senders and have no share."""

    def __init__(self, shared: tuple[str, ...] = ()) -> None:
        self._shared = shared
        self._of: dict[str, dict[ConnectionSlot, None]] = {}  # for each address, the oldest first
        self._count = 0

    def enter(self, address: str) -> ConnectionSlot | None:
        """A place for a new connection. None: all are in use by requests that are being answered."""
        own = self._of.get(address, {})
        if len(own) >= limits.WEBHOOK_ADDRESS_CONNECTIONS_MAX and address not in self._shared:
            if not self._drop_one(own):
                return None
        # From the address with the most connections on: one that floods loses its own first.
        elif self._count >= limits.WEBHOOK_CONNECTIONS_MAX and not any(
            self._drop_one(each) for each in sorted(self._of.values(), key=len, reverse=True)
        ):
            return None
        place = ConnectionSlot(address)
        self._of.setdefault(address, {})[place] = None
        self._count += 1
        return place

    def leave(self, place: ConnectionSlot) -> None:
        own = self._of.get(place.address, {})
        if place not in own:
            return  # it was dropped
        del own[place]
        self._count -= 1
        if not own:
            del self._of[place.address]

    def _drop_one(self, own: dict[ConnectionSlot, None]) -> bool:
        """Drop the oldest that waits for its client."""
        for place in own:
            if place.clock is not None:
                place.drop()
                # Its place is free at once, and not when its task has ended.
                self.leave(place)
                return True
        return False


def address_of(peer: object) -> str:
    """What stands for a sender: its IPv4 address, or the /64 network of its IPv6 address."""
    host = peer[0] if isinstance(peer, tuple) and peer else ""
    return normal(str(host)) or "unknown"


def normal(text: str) -> str:
    """One text for each sender, however its address is written. Empty if it is none."""
    try:
        address = ipaddress.ip_address(text.strip().partition("%")[0].strip("[]"))
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    # One sender, whether the server listens on both kinds of addresses or on one.
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))


def forwarded_for(header: str, peer: str) -> str:
    """The sender that a trusted proxy names: the last one in its header. Those before it the sender wrote."""
    return normal(header.rpartition(",")[2]) or peer
