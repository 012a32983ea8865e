"""What a name with options makes, and what is said of names and options that are none."""

import pytest

from capsroute.naming import check_one_of, did_you_mean, make_named, names_like, options_of


class Box:
    def __init__(self, width, height=1, open: bool = False, sides: "int" = 4, weight: float = 1.0, **more):
        self.size = (width, height)


def test_a_choice_that_is_none_is_answered_with_all_and_the_nearest():
    check_one_of("update", None, ("gru", None))
    with pytest.raises(ValueError, match=r"update: expected one of gru, None, got 'gruu'; did you mean 'gru'\?"):
        check_one_of("update", "gruu", ("gru", None))


def test_a_name_or_a_dict_of_name_and_options():
    assert make_named("shape", {"box": Box}, "box", 3).size == (3, 1)
    given = {"name": "box", "height": 5}
    assert make_named("shape", {"box": Box}, given, 3).size == (3, 5)
    assert given == {"name": "box", "height": 5}  # what the caller has stays whole
    plain = {"name": "box", "open": True, "sides": 3, "weight": 2, "height": "any"}
    assert make_named("shape", {"box": Box}, plain, 3).size == (3, "any")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("bix", r"shape: expected one of box, ball, or a Shape, got 'bix'; did you mean 'box'\?"),
        ("pyramid", "shape: expected one of box, ball, or a Shape, got 'pyramid'$"),
        ({"height": 2}, "shape: expected one of box, ball, or a Shape, got None"),
        (
            {"name": "box", "depth": 2, "breadth": 1},
            "shape: 'box' has options height, open, sides, weight, got breadth, depth",
        ),
        (None, "shape: expected one of box, ball, or a Shape, got None"),
        (["box"], r"shape: expected one of box, ball, or a Shape, got \['box'\]"),
        ({"name": "box", "open": "false"}, "shape: 'box' expects true or false as open, got 'false'"),
        ({"name": "box", "sides": 4.5}, "shape: 'box' expects a whole number as sides, got 4.5"),
        ({"name": "box", "sides": True}, "shape: 'box' expects a whole number as sides, got True"),
        ({"name": "box", "weight": "1"}, "shape: 'box' expects a number as weight, got '1'"),
        ({"name": "ball", "width": 2}, "shape: 'ball' has options none, got width"),
    ],
)
def test_what_is_wrong_is_said(given, says):
    with pytest.raises(ValueError, match=says):
        make_named("shape", {"box": Box, "ball": lambda width: None}, given, 3, also=", or a Shape")


def test_options_are_those_with_names():
    assert options_of(Box) == ["width", "height", "open", "sides", "weight"]


def test_only_a_near_name_is_meant():
    assert did_you_mean("capsnett", ["capsnet", "tsai"]) == "; did you mean 'capsnet'?"
    assert did_you_mean("zebra", ["capsnet", "tsai"]) == ""


def test_names_are_matched_by_patterns_alone():
    names = ["b1", "a2", "a1"]
    assert names_like(None, names) == ["a1", "a2", "b1"]
    assert names_like("a*", names) == ["a1", "a2"]
    with pytest.raises(TypeError, match=r"filter: expected a pattern such as 'caps\*', or None, got 3"):
        names_like(3, names)
