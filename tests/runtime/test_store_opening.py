"""What a store is opened with: names that lead nowhere are refused with what to do."""

from __future__ import annotations

import pytest

from worldline.base import errors, limits
from worldline.runtime import store_opening


async def test_large_blob_without_objects_says_how_to_name_them() -> None:
    """The parameter, the option and the variable, as they are spelled."""
    none = await store_opening.open_objects("none://", None, create=True)  # type: ignore[arg-type]
    large = bytes(limits.CHUNKED_BYTES_MAX + 1)
    said = "name a folder or s3://bucket/prefix with objects=, --objects or WORLDLINE_OBJECTS"
    with pytest.raises(errors.TooLarge) as caught:
        await none.put("a/b", large)
    assert str(caught.value) == f"blob b is 16777217 bytes; the limit is 16777216; more needs an object store: {said}"
    with pytest.raises(errors.StoreMissing) as missing:
        await none.get("a/b")
    assert str(missing.value) == f"a/b cannot be read: no object store was given; {said}"
