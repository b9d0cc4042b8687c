"""The egress policy: which hosts and addresses pass, in every spelling."""

from __future__ import annotations

import ipaddress

import pytest

from worldline.base import errors, failures, limits
from worldline.effects import egress
from worldline.effects.egress import Egress


def refusal(policy: Egress, host: str, *addresses: str, port: int = 443) -> str:
    """Why a host at these addresses is refused; empty if it is not."""
    try:
        literal = egress.check_host(policy, host, port)
        found = [ipaddress.ip_address(each) for each in addresses] if literal is None else [literal]
        egress.check_addresses(policy, host, port, found)
    except failures.Fatal as error:
        return f"{error.code}: {error}"
    return ""


@pytest.mark.parametrize(
    ("allow", "host", "port", "passes"),
    [
        ([], "example.com", 443, False),
        (["example.com"], "example.com", 443, True),
        (["example.com"], "example.com", 8443, True),
        (["Example.COM."], "example.com", 443, True),
        (["example.com"], "www.example.com", 443, False),
        (["example.com"], "badexample.com", 443, False),
        (["example.com"], "example.com.evil.net", 443, False),
        (["*.example.org"], "a.example.org", 443, True),
        (["*.example.org"], "a.b.example.org", 443, True),
        (["*.example.org"], "example.org", 443, False),
        (["*.example.org"], "badexample.org", 443, False),
        (["example.com:8443"], "example.com", 8443, True),
        (["example.com:8443"], "example.com", 443, False),
        (["*:80"], "anything.net", 80, True),
        (["*:80"], "anything.net", 81, False),
        (["*"], "anything.net", 443, True),
        (["*"], "93.184.216.34", 443, True),
        (["*.example.org"], "93.184.216.34", 443, False),
        (["93.184.216.0/24"], "93.184.216.34", 443, True),
        (["93.184.216.0/24"], "93.184.217.34", 443, False),
        (["[2606:4700::1111]:443"], "2606:4700::1111", 443, True),
        (["2606:4700::1111"], "2606:4700::1111", 80, True),
        (["[2606:4700::1111]:443"], "2606:4700::1111", 80, False),
        (["*"], "ex%61mple.com", 443, False),
        (["*"], "a b", 443, False),
        (["*"], "", 443, False),
        (["*"], "a..b", 443, False),
    ],
)
def test_hosts(allow: list[str], host: str, port: int, passes: bool) -> None:
    why = refusal(Egress(allow=allow), host, "93.184.216.34", port=port)
    assert (why == "") is passes
    assert passes or why.startswith("egress_refused: ")


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("8.8.8.8", "public"),
        ("2606:4700::1111", "public"),
        ("0.0.0.0", "unspecified"),
        ("0.1.2.3", "unspecified"),
        ("::", "unspecified"),
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("::1", "loopback"),
        ("10.0.0.1", "private"),
        ("172.31.255.255", "private"),
        ("172.32.0.0", "public"),
        ("192.168.1.1", "private"),
        ("100.64.0.1", "private"),
        ("fc00::1", "private"),
        ("fec0::1", "private"),
        ("169.254.0.1", "link-local"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("169.254.169.254", "metadata"),
        ("169.254.170.2", "metadata"),
        ("100.100.100.200", "metadata"),
        ("192.0.0.192", "metadata"),
        ("fd00:ec2::254", "metadata"),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
        ("255.255.255.255", "reserved"),
        ("240.0.0.1", "reserved"),
        ("192.0.2.1", "reserved"),
        ("198.18.0.1", "reserved"),
        ("2001:db8::1", "reserved"),
        ("64:ff9b:1::1", "reserved"),
        ("4000::1", "reserved"),
    ],
)
def test_kinds_of_addresses(address: str, kind: str) -> None:
    assert egress.kind_of(ipaddress.ip_address(address)) == kind
    assert (refusal(Egress(allow=["h.net"]), "h.net", address) == "") is (kind == "public")
    private = Egress(allow=["h.net"], private=True)
    assert (refusal(private, "h.net", address) == "") is (kind in ("public", "private", "loopback"))
    # Written down, it is meant: even what `private` does not admit.
    plain = address.split("%", maxsplit=1)[0]
    assert refusal(Egress(allow=["h.net", plain]), "h.net", address) == ""


@pytest.mark.parametrize(
    "address",
    [
        "::ffff:127.0.0.1",  # mapped
        "::ffff:169.254.169.254",
        "::7f00:1",  # compatible
        "::ffff:0:0",
        "64:ff9b::10.0.0.1",  # NAT64
        "2002:7f00:1::",  # 6to4
        "2002:a9fe:a9fe::1",
        "2001:0:7f00:1:0:ffff:f7f7:f7f7",  # Teredo: a loopback server, a public client
        "2001:0:808:808:0:ffff:80ff:fffe",  # Teredo: a public server, a loopback client
    ],
)
def test_an_address_inside_another_is_checked_too(address: str) -> None:
    assert refusal(Egress(allow=["h.net"]), "h.net", address)


@pytest.mark.parametrize("address", ["::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1"])
def test_a_public_address_inside_another_passes(address: str) -> None:
    assert refusal(Egress(allow=["h.net"]), "h.net", address) == ""


def test_every_address_counts() -> None:
    policy = Egress(allow=["h.net"])
    assert refusal(policy, "h.net", "8.8.8.8", "1.1.1.1") == ""
    assert "10.0.0.7" in refusal(policy, "h.net", "8.8.8.8", "10.0.0.7")
    assert "10.0.0.7" in refusal(policy, "h.net", "10.0.0.7", "8.8.8.8")


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001", "127.0.0.1."],
)
def test_numbers_in_every_form_are_addresses(host: str) -> None:
    assert egress.numeric(host) == ipaddress.ip_address("127.0.0.1")
    assert "loopback" in refusal(Egress(allow=["*"]), host)
    assert refusal(Egress(allow=["127.0.0.1"]), host) == ""


@pytest.mark.parametrize(
    "host", ["256.1.1.1", "1.2.3.4.5", "08.1.1.1", "4294967296", "1.2.65536", "a.1", "::zz", "1..2"]
)
def test_what_only_looks_like_an_address_is_refused(host: str) -> None:
    assert refusal(Egress(allow=["*"], private=True), host)


@pytest.mark.parametrize("host", ["::1", "::ffff:7f00:1", "0:0:0:0:0:ffff:127.0.0.1"])
def test_literal_ipv6(host: str) -> None:
    assert "loopback" in refusal(Egress(allow=["*"]), host)


@pytest.mark.parametrize("host", ["example.com", "3com.com", "1.example", "0x7f.example"])
def test_names_are_not_numbers(host: str) -> None:
    assert egress.numeric(host) is None


@pytest.mark.parametrize(
    "entry",
    ["https://example.com", "example.com/path", "", "*.", "**.com", "a b", "10.0.0.1/8", "300.1.1.1", "h:0", "h:x"],
)
def test_a_slip_in_the_policy_is_an_error(entry: str) -> None:
    with pytest.raises(errors.BadInput):
        Egress(allow=[entry])


def test_a_policy_is_checked_when_it_is_made() -> None:
    with pytest.raises(errors.BadInput, match="list"):
        Egress(allow="example.com")
    with pytest.raises(errors.BadInput, match="response_bytes_max"):
        Egress(response_bytes_max=limits.HTTP_RESPONSE_BYTES_MAX + 1)
    with pytest.raises(errors.BadInput, match="redirects_max"):
        Egress(redirects_max=limits.HTTP_REDIRECTS_MAX + 1)
    with pytest.raises(errors.BadInput, match="seconds_max"):
        Egress(seconds_max=0)
