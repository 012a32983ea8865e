import pytest

from capsroute.cli.names import parse_variant


def test_the_old_name_is_taken_and_warns():
    with pytest.warns(DeprecationWarning, match="--routing dynamic is deprecated since capsroute 0.2"):
        assert parse_variant("dynamic") == "as_trained"


def test_names_are_taken_with_dashes_and_others_refused():
    assert parse_variant("as-trained") == "as_trained"
    with pytest.raises(ValueError, match="--routing: expected one of as_trained, fast, uniform, got 'all'"):
        parse_variant("all")
