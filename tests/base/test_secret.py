"""Values of secrets in texts and data: found in every form in which they turn up, also where a text was cut."""

from __future__ import annotations

import base64
import copy
import json
import pickle
import threading
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.base import limits
from worldline.base.secret import KnownSecrets, Secret

VALUE = 'sk_live/4+"x\\y é'


def known(*values: str) -> KnownSecrets:
    made = KnownSecrets()
    for number, value in enumerate(values):
        made.learn(Secret(f"s{number}", value))
    return made


def test_a_secret_shows_its_name() -> None:
    one = Secret("stripe", VALUE)
    assert one.reveal() == VALUE
    assert {repr(one), str(one), f"{one}", f"{one!r}", f"{[one]}"[1:-1], "%s" % one} == {"<secret stripe>"}  # noqa: UP031
    assert f"{one:>20}" == "     <secret stripe>"
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="<secret stripe> is not copied"):
            copied(one)
    assert not hasattr(one, "__dict__")


FORMS = {
    "plain": VALUE,
    "repr": repr(VALUE),
    "json": json.dumps(VALUE),
    "json as text": json.dumps(VALUE, ensure_ascii=False),
    "in a URL": urllib.parse.quote(VALUE, safe=""),
    "in a query": urllib.parse.urlencode({"key": VALUE}),
    "base64": base64.b64encode(VALUE.encode()).decode(),
    "base64 of URLs": base64.urlsafe_b64encode(VALUE.encode()).decode(),
    "hex": VALUE.encode().hex(),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_hidden(form: str) -> None:
    hidden = known(VALUE)
    said = hidden.text(f"a {FORMS[form]} b {FORMS[form]} c")
    assert said.count("<secret s0>") == 2
    assert (said[:2], said[-2:]) == ("a ", " c")
    assert hidden.inside(b"\x01" + FORMS[form].encode() + b"\x02") == "s0"
    assert hidden.plain({FORMS[form]: [(FORMS[form],), FORMS[form].encode(), 5, None]}) != {}
    assert "sk_live" not in str(hidden.plain({FORMS[form]: [(FORMS[form],), FORMS[form].encode(), 5]}))


def test_what_is_no_secret_stays_as_it_is() -> None:
    hidden = known(VALUE)
    data = {"a": [1, ("b", b"c", None, 2.5)], "d": True}
    assert hidden.plain(data) == data
    assert hidden.text("nothing in it") == "nothing in it"
    assert hidden.inside(b"nothing") == ""
    assert not KnownSecrets()
    assert KnownSecrets().text(VALUE) == VALUE
    odd = object()
    assert hidden.plain(odd) is odd


def test_a_secret_inside_another_and_the_lines_of_a_key() -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEAAoIB\n-----END PRIVATE KEY-----\n"
    hidden = known("abcdef", "abcdefghij", key)
    assert hidden.text("abcdefghij abcdef") == "<secret s1> <secret s0>"
    assert hidden.text("at AQEFAASCBKcwggSjAgEAAoIB!") == "at <secret s2>!"
    assert hidden.text("-----END PRIVATE KEY----- is how it ends") == "-----END PRIVATE KEY----- is how it ends"


@given(st.integers(6, 15), st.integers(6, 15))
def test_what_is_left_of_a_secret_where_a_text_was_cut_goes_too(head: int, tail: int) -> None:
    value = "0123456789abcdef"
    said = known(value).text(f"x {value[:head]}\n...\n{value[-tail:]} y {value[:head]}")
    assert said == "x <secret s0>\n...\n<secret s0> y <secret s0>"


def test_so_many_are_known_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SECRETS_KNOWN_MAX", 2)
    hidden = known("value-a", "value-b", "value-c")
    assert hidden.text("value-a value-b value-c") == "value-a <secret s1> <secret s2>"
    hidden.forget(["value-b", "value-c", "value-d"])
    assert not hidden


def test_threads_learn_at_the_same_time() -> None:
    hidden = KnownSecrets()
    threads = [
        threading.Thread(target=lambda n=n: [hidden.learn(Secret(f"s{n}", f"value-{n}-{i}.")) for i in range(20)])
        for n in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    said = hidden.text(" ".join(f"value-{n}-{i}." for n in range(4) for i in range(20)))
    assert "value" not in said
