"""Where effects may reach out to: a policy over host names, ports and addresses. Pure: nothing is resolved here.

Nothing is allowed that is not written down. A request passes two gates:

1. Its host must be in `allow`: a name (`api.example.com`), all names below one (`*.example.org`), every name (`*`), an
   address or a network (`10.1.0.0/16`); with a port after it (`localhost:8080`), on that port alone.
2. Every address the name resolves to must be public. `private=True` admits private and loopback addresses as well; an
   address or network written in `allow` is admitted whatever it is. Link-local, multicast, reserved and the clouds'
   metadata addresses pass in no other way.

An IPv6 address that carries an IPv4 one inside (mapped, compatible, 6to4, NAT64, Teredo) must pass as both. Numeric
hosts are understood in all the forms the C library takes (decimal, hexadecimal, octal, fewer than four parts), so none
of them is mistaken for a name. The tables are spelled out here because what Python counts as private differs by patch
release.
"""

from __future__ import annotations

import ipaddress
import re
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import msgspec

from worldline.base import errors, failures, grammar, limits

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

REFUSED = "egress_refused"
PUBLIC = "public"

# The first line that holds an address names what it is; an address that no line holds is public.
_KINDS: tuple[tuple[str, str], ...] = (
    ("metadata", "169.254.169.254/32 169.254.170.2/32 169.254.170.23/32 100.100.100.200/32 192.0.0.192/32"),
    ("metadata", "fd00:ec2::/32 fd20:ce::254/128"),
    ("unspecified", "0.0.0.0/8 ::/128"),
    ("loopback", "127.0.0.0/8 ::1/128"),
    ("link-local", "169.254.0.0/16 fe80::/10"),
    ("private", "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 fc00::/7 fec0::/10"),
    ("multicast", "224.0.0.0/4 ff00::/8"),
    ("reserved", "192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4"),
    ("reserved", "64:ff9b:1::/48 100::/64 2001:2::/48 2001:10::/28 2001:20::/28 2001:db8::/32 3fff::/20 5f00::/16"),
)
_TABLE: tuple[tuple[str, Network], ...] = tuple(
    (kind, ipaddress.ip_network(text)) for kind, texts in _KINDS for text in texts.split()
)
_CARRIERS = (IPv6Network("64:ff9b::/96"), IPv6Network("::/96"))  # the last 32 bits are an IPv4 address
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_WITH_PRIVATE = ("private", "loopback")
_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*", re.ASCII)
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]*|[0-9]+", re.ASCII)


class UrlOrigin(msgspec.Struct, frozen=True):
    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = {"https": 443, "http": 80}[self.scheme]
        return f"{self.scheme}://{host}" + ("" if self.port == usual else f":{self.port}")


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that requests to one origin carry in a header: `wl.http.request(..., credential="stripe")`.

    `origin`: `https://api.stripe.com`. `secret`: its name for `wl.secret`; without it, the credential's own name.
    `form`: what stands in the header, with the secret in the place of `{}`.
    """

    origin: str
    secret: str = ""
    header: str = "Authorization"
    form: str = "Bearer {}"

    def __post_init__(self) -> None:
        self.where()
        if self.form.count("{}") != 1:
            raise errors.BadInput('Credential(form=) has one {} where the secret stands: "Bearer {}"')
        if not HEADER_NAME.fullmatch(self.header):
            raise errors.BadInput("Credential(header=) is the name of a header")

    def where(self) -> UrlOrigin:
        """Return the one origin that it goes to."""
        try:
            parts = urllib.parse.urlsplit(self.origin)
            port = parts.port
        except ValueError:
            parts, port = urllib.parse.SplitResult("", "", "", "", ""), None
        host = (parts.hostname or "").removesuffix(".")
        rest = (parts.path.strip("/"), parts.query, parts.fragment, parts.username, parts.password)
        if parts.scheme not in ("http", "https") or not host or any(rest):
            raise errors.BadInput("Credential(origin=) is a scheme, a host and a port: https://api.example.com")
        return UrlOrigin(parts.scheme, host, port or (443 if parts.scheme == "https" else 80))

    def filled(self, secret: str) -> Filled:
        """Return the header to send, with the secret in it."""
        return Filled(self.where(), self.header, self.form.replace("{}", secret))


class Filled(msgspec.Struct, frozen=True):
    """A credential with its secret in it, for one attempt."""

    origin: UrlOrigin
    header: str
    value: str

    def __repr__(self) -> str:
        return f"Filled({self.origin})"


class Egress(msgspec.Struct, frozen=True, kw_only=True):
    """What the effects of a host may reach. The default is nothing at all."""

    allow: Sequence[str] = ()
    private: bool = False
    redirects_max: int = 5
    response_bytes_max: int = limits.HTTP_RESPONSE_BYTES
    seconds_max: float = 60.0  # of one attempt, with all its redirects
    credentials: Mapping[str, Credential] = {}  # by the names that requests give
    redirect_bodies: bool = False  # whether 307 and 308 may send a body, or a POST, on to another origin

    def __post_init__(self) -> None:
        if isinstance(self.allow, str):
            raise errors.BadInput("Egress(allow=) is a list of hosts")
        # A list is what people write; what is kept must not change under us.
        msgspec.structs.force_setattr(self, "allow", tuple(self.allow))
        if not 0 < self.response_bytes_max <= limits.HTTP_RESPONSE_BYTES_MAX:
            raise errors.BadInput(f"Egress(response_bytes_max=) is at most {limits.HTTP_RESPONSE_BYTES_MAX}")
        if not 0 <= self.redirects_max <= limits.HTTP_REDIRECTS_MAX:
            raise errors.BadInput(f"Egress(redirects_max=) is at most {limits.HTTP_REDIRECTS_MAX}")
        if not self.seconds_max > 0:
            raise errors.BadInput("Egress(seconds_max=) must be above 0")
        for entry in self.allow:
            _rule(entry)
        msgspec.structs.force_setattr(self, "credentials", dict(self.credentials))
        if not all(isinstance(each, Credential) for each in self.credentials.values()):
            raise errors.BadInput(
                'Egress(credentials=) is {"stripe": wl.ops.Credential(origin="https://api.stripe.com")}'
            )

    def credential(self, name: str) -> Credential:
        """Return the credential of this name. A request that asks for one that is not declared here is refused for
        good.
        """
        found = self.credentials.get(name)
        if found is None:
            raise refused(
                f"this process has no credential {name!r}; declare it: "
                f'wl.ops.Egress(credentials={{{name!r}: wl.ops.Credential(origin="https://...")}})'
            )
        return found


class EgressRule(msgspec.Struct, frozen=True):
    """One entry of `allow`: a name, everything below a name, or a network. `port` 0: any."""

    name: str = ""
    below: bool = False
    network: Network | None = None
    port: int = 0


def check_host(policy: Egress, host: str, port: int) -> Address | None:
    """Refuse a host that is not allowed. Returns its address if it is a number; a name still has to be resolved."""
    literal = numeric(host)
    if literal is None and not _HOST.fullmatch(host):
        raise refused(f"{host!r} is not a host name")
    rules = [rule for rule in map(_rule, policy.allow) if rule.port in (0, port)]
    # Before anything is resolved: even a lookup would tell the name to a resolver.
    if not any(_names(rule, host, literal) for rule in rules):
        written = ", ".join(policy.allow) or "nothing"
        raise refused(f"{host}:{port} is not among the hosts this process may reach ({written})")
    return literal


def check_addresses(policy: Egress, host: str, port: int, addresses: Iterable[Address]) -> None:
    """Refuse a host if any of its addresses is not allowed: which of them answers is not for the name to choose."""
    networks = [rule.network for rule in map(_rule, policy.allow) if rule.network and rule.port in (0, port)]
    for address in addresses:
        if any(address in network for network in networks):
            continue
        # Both: a gateway on the way may deliver to the address inside.
        for each in (address, *embedded(address)):
            kind = kind_of(each)
            if kind != PUBLIC and not (policy.private and kind in _WITH_PRIVATE):
                raise refused(f"{host} is at {address}, {grammar.an(kind)} address that this process may not reach")


def kind_of(address: Address) -> str:
    """What sort of place an address is: public, private, loopback, link-local, multicast, metadata, reserved..."""
    plain = IPv6Address(int(address)) if isinstance(address, IPv6Address) else address  # without its zone
    for kind, network in _TABLE:
        if plain in network:
            return kind
    if isinstance(plain, IPv6Address) and plain not in _GLOBAL_UNICAST and not embedded(plain):
        return "reserved"
    return PUBLIC


def embedded(address: Address) -> list[Address]:
    """The IPv4 addresses that an IPv6 address stands for, whichever way they are put into it."""
    if isinstance(address, IPv4Address):
        return []
    found: list[Address | None] = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    # Not `::` and `::1`, which are addresses of their own and carry none.
    if int(address) > 1 and any(address in network for network in _CARRIERS):
        found.append(IPv4Address(int(address) & 0xFFFF_FFFF))
    return [each for each in found if each is not None]


def numeric(host: str) -> Address | None:
    """The address that a host is, if it is one in any form: `127.1`, `0x7f000001`, `0177.0.0.1`, `::ffff:7f00:1`."""
    if ":" in host:
        try:
            return IPv6Address(host.removeprefix("[").removesuffix("]"))
        except ipaddress.AddressValueError as error:
            raise refused(f"{host!r} is not an address: {error}") from error
    parts = host.removesuffix(".").split(".")
    if not _NUMBER.fullmatch(parts[-1]):
        return None  # a name: no top-level domain is a number
    values = [_number(part) for part in parts]
    # Refused, never taken for a name: it ends in a number, which no name does.
    if len(parts) > 4 or None in values:
        raise refused(f"{host!r} is not an address")
    *heads, tail = [value for value in values if value is not None]
    if any(head > 255 for head in heads) or tail >= 256 ** (4 - len(heads)):
        raise refused(f"{host!r} is not an address")
    whole = tail
    for index, head in enumerate(heads):
        whole += head << (24 - 8 * index)
    return IPv4Address(whole)


def parse_address(text: str) -> Address:
    """An address as a resolver gives it."""
    try:
        return ipaddress.ip_address(text)
    except ValueError as error:
        raise refused(f"the resolver answered {text!r}, which is not an address") from error


def refused(message: str) -> failures.Fatal:
    return failures.Fatal(message, code=REFUSED)


def _number(part: str) -> int | None:
    """One part of a numeric host, as `inet_aton` reads it: 0x is hexadecimal, a leading 0 octal."""
    if not _NUMBER.fullmatch(part):
        return None
    if part[:2] in ("0x", "0X"):
        return int(part[2:] or "0", 16)
    try:
        return int(part, 8) if part.startswith("0") else int(part)
    except ValueError:
        return None


def _names(rule: EgressRule, host: str, literal: Address | None) -> bool:
    if rule.network is not None:
        return literal is not None and literal in rule.network
    if rule.below and not rule.name:
        return True
    if literal is not None:
        return False
    return host.endswith("." + rule.name) if rule.below else host == rule.name


def _rule(entry: str) -> EgressRule:
    """Read one entry of `allow`. Anything that is not clearly a rule is refused, so that a slip opens nothing."""
    host, port = _split_port(entry.strip().lower())
    if host == "*":
        return EgressRule(below=True, port=port)
    if host.startswith("*."):
        return EgressRule(name=_name(host[2:], entry), below=True, port=port)
    try:
        return EgressRule(network=ipaddress.ip_network(host.removeprefix("[").removesuffix("]")), port=port)
    except ValueError:
        return EgressRule(name=_name(host, entry), port=port)


def _name(host: str, entry: str) -> str:
    name = host.removesuffix(".")
    if not _HOST.fullmatch(name) or _NUMBER.fullmatch(name.split(".")[-1]):
        raise errors.BadInput(
            f"Egress(allow=): {entry!r} is no rule; write a host, *.domain, an address or a network, without a scheme "
            "or path, with a port if only that one is meant"
        )
    return name


def _split_port(entry: str) -> tuple[str, int]:
    head, colon, tail = entry.rpartition(":")
    bare_ipv6 = ":" in head and not head.endswith("]")
    if not colon or bare_ipv6 or not tail.isdecimal():
        return entry, 0
    port = int(tail)
    if not 0 < port < 65_536:
        raise errors.BadInput(f"Egress(allow=): {entry!r} has no possible port")
    return head, port
