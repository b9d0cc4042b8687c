"""A certificate for `api.worldline.test`, and contexts for both ends of a connection that uses it.

The key is worth nothing: it is made for these tests and no other machine trusts its certificate.
"""

from __future__ import annotations

import ssl
from pathlib import Path

HOST = "api.worldline.test"

CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBrzCCAVagAwIBAgIUV4J+F6IsyVP/pteMBPyToSeGhTswCgYIKoZIzj0EAwIw
HTEbMBkGA1UEAwwSYXBpLndvcmxkbGluZS50ZXN0MCAXDTI2MTExNjA3NDgxNFoY
DzIxMjYxMDIzMDc0ODE0WjAdMRswGQYDVQQDDBJhcGkud29ybGRsaW5lLnRlc3Qw
WTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAARp5lXlnYbZp22RT7xbXJgwnV7iwmZ4
uVdu7pkGWfsP1c6n+uPlKE/r1UiM22XnJNdjREPxM/VYSEkQQ5K3nBQio3IwcDAd
BgNVHQ4EFgQUUE2ET+ueflsnYcvRusB4amEzdUAwHwYDVR0jBBgwFoAUUE2ET+ue
flsnYcvRusB4amEzdUAwDwYDVR0TAQH/BAUwAwEB/zAdBgNVHREEFjAUghJhcGku
d29ybGRsaW5lLnRlc3QwCgYIKoZIzj0EAwIDRwAwRAIgBEEEdVVLn8KGPbr9l7oi
Q7h2kGnqM34Ixp6dkeX/TRUCIAhOEwnjAedQI38p4jVOG0hAv9bsVe1N/zhiMm9C
2X1X
-----END CERTIFICATE-----
"""
KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgbcatC/nuRdFVRfEL
bS+qCjDN76123OXikZTD3zxSlfyhRANCAARp5lXlnYbZp22RT7xbXJgwnV7iwmZ4
uVdu7pkGWfsP1c6n+uPlKE/r1UiM22XnJNdjREPxM/VYSEkQQ5K3nBQi
-----END PRIVATE KEY-----
"""


def server_context(folder: Path) -> ssl.SSLContext:
    path = folder / "server.pem"
    path.write_text(KEY + CERTIFICATE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


def client_context() -> ssl.SSLContext:
    """Trusts this certificate and no other."""
    return ssl.create_default_context(cadata=CERTIFICATE)
