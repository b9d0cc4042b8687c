"""Where secrets come from: variables, files, tables, functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from worldline.base import errors, limits
from worldline.effects import secret_sources


def test_a_variable_comes_before_a_file_and_a_file_is_read_anew(tmp_path: Path) -> None:
    (tmp_path / "mail").write_text("from a file\n")
    (tmp_path / "two-words").write_bytes(b"line one\r\nline two\r\n")
    variables = {"WORLDLINE_SECRET_STRIPE": "from the environment", "WORLDLINE_SECRET_EMPTY": ""}
    source = secret_sources.chosen(tmp_path, variables)
    assert [source.find(name) for name in ("stripe", "mail", "empty", "none")] == [
        "from the environment",
        "from a file",
        None,
        None,
    ]
    assert source.find("two-words") == "line one\r\nline two"
    variables["WORLDLINE_SECRET_TWO_WORDS"] = "by variable"
    assert source.find("two-words") == "by variable"
    (tmp_path / "mail").write_text("another one")
    assert source.find("mail") == "another one"
    assert source.hint("mail") == (
        f"write it to {tmp_path}/mail, or start the process that performs effects with WORLDLINE_SECRET_MAIL=..."
    )


def test_the_environment_names_the_folder(tmp_path: Path) -> None:
    (tmp_path / "mail").write_text("from a file")
    assert secret_sources.chosen(None, {"WORLDLINE_SECRETS": str(tmp_path)}).find("mail") == "from a file"
    alone = secret_sources.chosen(None, {})
    assert alone.find("mail") is None
    assert "WORLDLINE_SECRETS=..." in alone.hint("mail")


def test_files_that_cannot_be_read_show_nothing_of_what_is_in_them(tmp_path: Path) -> None:
    source = secret_sources.chosen(str(tmp_path), {})
    (tmp_path / "binary").write_bytes(b"planted\xff")
    with pytest.raises(errors.BadInput, match="is not UTF-8 text") as caught:
        source.find("binary")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    (tmp_path / "folder").mkdir()
    with pytest.raises(errors.BadInput, match="cannot be read from"):
        source.find("folder")
    (tmp_path / "huge").write_bytes(b"x" * (8 * limits.SECRET_CHARACTERS_MAX))
    assert len(source.find("huge") or "") <= 4 * limits.SECRET_CHARACTERS_MAX + 1


def test_tables_and_functions() -> None:
    table = secret_sources.chosen({"stripe": "value"}, {"WORLDLINE_SECRET_MAIL": "x"})
    assert (table.find("stripe"), table.find("mail")) == ("value", None)
    assert "add 'mail'" in table.hint("mail")
    function = secret_sources.chosen({"stripe": "value"}.get, {})
    assert (function.find("stripe"), function.find("mail")) == ("value", None)
    assert "'mail'" in function.hint("mail")
    bad: Any
    for bad in (5, {"Bad Name": "value"}):
        with pytest.raises(errors.BadInput):
            secret_sources.chosen(bad, {})
