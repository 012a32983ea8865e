"""The adjusted Rand index: scikit-learn's, sample by sample, with and without the ground."""

import pytest
import torch
from sklearn.metrics import adjusted_rand_score

import capsroute as cr


@pytest.mark.parametrize(("true_parts", "found_parts"), [(4, 4), (2, 7), (1, 3), (3, 1), (1, 1)])
@pytest.mark.parametrize("ignore", [None, 0])
def test_equals_scikit_learn(true_parts, found_parts, ignore):
    generator = torch.Generator().manual_seed(true_parts * 10 + found_parts)
    true = torch.randint(0, true_parts, (5, 6, 7), generator=generator)
    found = torch.randint(0, found_parts, (5, 6, 7), generator=generator)
    found[0] = true[0] % found_parts  # one sample that agrees
    ours = cr.analysis.ari(true, found, ignore)
    for sample in range(5):
        counted = torch.ones_like(true[sample], dtype=torch.bool) if ignore is None else true[sample] != ignore
        if counted.any():
            theirs = adjusted_rand_score(true[sample][counted].numpy(), found[sample][counted].numpy())
            assert abs(ours[sample].item() - theirs) < 1e-12


def test_names_do_not_matter():
    true = torch.tensor([[0, 0, 1, 1, 2, 2]])
    assert cr.analysis.ari(true, torch.tensor([[7, 7, 3, 3, 5, 5]])).item() == 1


def test_nothing_to_divide_counts_as_one():
    assert cr.analysis.ari(torch.zeros(1, 9, dtype=torch.long), torch.arange(9).view(1, 9), ignore=0).item() == 1


def test_bad_input_is_refused_by_name():
    whole = torch.zeros(2, 4, dtype=torch.long)
    with pytest.raises(ValueError, match=r"found: expected shape \[2, 4\] as true has, got \[2, 3\]"):
        cr.analysis.ari(whole, whole[:, :3])
    with pytest.raises(ValueError, match=r"true: expected whole numbers \[b,...\], got torch.float32"):
        cr.analysis.ari(whole.float(), whole)
