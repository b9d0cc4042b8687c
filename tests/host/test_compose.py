"""What a store is opened with: names that lead nowhere are refused with what to do."""

from __future__ import annotations

import pytest

from worldline.base import errors
from worldline.host import compose


async def test_large_blob_without_objects_says_how_to_name_them() -> None:
    """The parameter, the option and the variable, as they are spelled."""
    none = await compose.open_objects("none://", None, create=True)  # type: ignore[arg-type]
    with pytest.raises(errors.StoreMissing) as caught:
        await none.put("a/b", b"body")
    said = "name a folder or s3://bucket/prefix with objects=, --objects or WORLDLINE_OBJECTS"
    assert str(caught.value) == f"a/b (4 bytes) cannot be stored: no object store was given; {said}"
