"""URLs for people: no password in them, however it is written; without one, the URL itself."""

from __future__ import annotations

import shlex
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.base import env_os, errors
from worldline.host.feature_list import FEATURES
from worldline.runtime import store_opening
from worldline.store import urls

SECRET = "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{SECRET}@h/db",
        f"postgres://u:{SECRET}@h1:1,h2:2/db?schema=x",
        f"postgresql://:{SECRET}@h/db",
        f"postgresql://u:pa/{SECRET}@h/db",
        f"postgresql://u:{SECRET}@pa@h/db",
        f"postgresql://u:a?b#{SECRET}@h/db",
        f"postgresql://u:a b {SECRET}@h/db",
        f"postgresql://u@h/db?password={SECRET}&schema=x",
        f"postgresql://u@h/db?schema=x&sslpassword={SECRET}",
        f"postgresql://u@h/db?p%61ssword={SECRET}",
        f"POSTGRESQL://u:{SECRET}@h/db",
        f"postgresql:/u:{SECRET}@h/db",
        f"postgresql:u:{SECRET}@h/db",
        f"s3://key:{SECRET}@bucket/prefix",
        f"host=h user=u password={SECRET}",
    ],
)
def test_a_password_is_not_shown(url: str) -> None:
    assert SECRET not in urls.shown(url)
    assert urls.HIDDEN in urls.shown(url)
    assert SECRET not in repr(store_opening.Store(url, None, None, None, FEATURES))  # type: ignore[arg-type]
    with pytest.raises(errors.BadUrl, match="copied from a message"):
        urls.check_whole(urls.shown(url))


@pytest.mark.parametrize(
    "url",
    [
        "worlds",
        "./a b",
        "/srv/x=1",
        "postgresql://u@h:5432/db?schema=x",
        "postgresql://u@/db?host=/run/pg",
        "memory://",
        "s3://bucket/prefix",
        "postgresql://u@[::1]:5432/db",
        "postgresql://h/db?options=a@b",
        "/srv/a@b:c/d",
    ],
)
def test_without_a_password_it_is_itself(url: str) -> None:
    assert urls.shown(url) == url
    assert urls.check_whole(url) == url
    assert shlex.split(urls.option("store", url)) == ["--store", url], "it can be typed"


@given(st.text(min_size=1, max_size=20), st.booleans())
def test_no_password_of_any_kind(given: str, escaped: bool) -> None:
    password = f"{SECRET}{given}{SECRET}"
    written = urllib.parse.quote(password, safe="") if escaped else password
    assert SECRET not in urls.shown(f"postgresql://user:{written}@host:5432/database?schema=name")


def test_in_a_message_only_the_password_goes() -> None:
    said = f"no world 'postgresql://u:{SECRET}@h/db' here: see a@b, or x=1"
    assert urls.hidden(said) == "no world 'postgresql://u:***@h/db' here: see a@b, or x=1"


@pytest.mark.parametrize(
    "url", [f"postgresql:/u:{SECRET}@h/db", f"postgres:u:{SECRET}@h", f"host=h dbname=d password={SECRET}", "a\0b"]
)
async def test_what_is_no_url_becomes_no_folder(url: str) -> None:
    with pytest.raises(errors.BadUrl) as caught:
        await store_opening.open_store(url, features=FEATURES)
    assert SECRET not in str(caught.value)


async def test_a_hidden_password_is_said_to_be_one() -> None:
    with pytest.raises(errors.BadUrl, match=r"set WORLDLINE_STORE, or leave the password away and set PGPASSWORD"):
        await store_opening.open_engine("postgresql://u:***@h/db", env_os.OsEnv(), create=False)
