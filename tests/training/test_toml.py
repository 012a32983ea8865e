"""Written TOML is read back as it was."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsroute.training.toml import to_toml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

text = st.text(st.characters(codec="utf-8"), max_size=8)
scalars = st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | text
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3))


@given(st.dictionaries(text, values, max_size=4))
def test_content_survives(content):
    assert tomllib.loads(to_toml(content)) == content


def test_none_is_left_out():
    assert to_toml({"a": None, "b": 1}) == "b = 1\n"


def test_what_toml_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="content"):
        to_toml({"a": object()})
