"""Bad operands: the error names the operand, what was given and what was expected."""

import pytest
import torch

import capsroute as cr
from tests.form.contractions.cases import NAMES, ORDER, arguments, operands
from tests.kinds import Sizes

SIZES = Sizes(2, 5, 3, 2, 4, 6)


def refused(name: str, letter: str, bad, message: str) -> None:
    parts = {**operands(SIZES, False), letter: bad}
    with pytest.raises(ValueError, match=message):
        getattr(cr.form, name)(*arguments(name, parts, False))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("position", range(3))
def test_every_operand_is_checked(name, position):
    letter = ORDER[name][position]
    good = operands(SIZES, False)[letter]
    refused(name, letter, good.long(), rf"{letter}: expected a floating-point tensor .*got torch.int64 tensor of shape")
    refused(name, letter, good.tolist(), rf"{letter}: expected a floating-point tensor .*got \[\[")
    refused(name, letter, good.unsqueeze(0), rf"{letter}: expected \d axes .*got shape \(1, ")
    refused(name, letter, good.to("meta"), r"\w: expected device (cpu|meta) as \w has, got (cpu|meta)")


@pytest.mark.parametrize("name", NAMES)
def test_sizes_must_agree_letter_by_letter(name):
    for letter in ORDER[name]:
        good = operands(SIZES, False)[letter]
        for axis in range(good.dim()):
            shape = list(good.shape)
            shape[axis] += 7
            alone = sum(axes(letter)[axis] in axes(other) for other in ORDER[name]) == 1
            if not alone:
                refused(
                    name, letter, torch.ones(shape, dtype=torch.float64), r"\w: axis \w has size \d+, but \w has \d+"
                )


def axes(letter: str) -> str:
    return {"c": "bij", "u": "biak", "W": "ijko", "q": "bjao"}[letter]
