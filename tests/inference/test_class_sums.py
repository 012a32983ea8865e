import math

import numpy as np
import torch

from capsroute.inference.class_sums import Containers, ground_truth_columns


def test_sixty_thousand_float32_matrices_are_summed_as_exactly_as_in_float64():
    generator = torch.Generator().manual_seed(0)
    containers, naive, stored = Containers(2, 3, 2), torch.zeros(2, 3, 2), []
    for _ in range(120):
        c = torch.rand(500, 3, 2, generator=generator) * 0.1 + 0.9
        groups = torch.arange(500) % 2
        containers.add(c, groups)
        naive.index_add_(0, groups, c)
        stored.append(c.numpy())
    stored = np.concatenate(stored)
    exact = np.array(
        [[[math.fsum(stored[g::2, i, j].astype(np.float64)) for j in range(2)] for i in range(3)] for g in range(2)]
    )
    in_float64 = np.stack([stored[g::2].astype(np.float64).cumsum(0)[-1] for g in range(2)])
    error, float64_error, float32_error = (
        np.abs(sums / exact - 1).max() for sums in (containers.sums.numpy(), in_float64, naive.double().numpy())
    )
    assert error <= max(2 * float64_error, 1e-15)
    assert error < 1e-12 < 1e-6 < float32_error


def test_positions_are_averaged_in_float64():
    c = torch.rand(4, 5, 6, 3, 2)
    containers = Containers(1, 3, 2)
    containers.add(c, torch.zeros(4, dtype=torch.int64))
    torch.testing.assert_close(containers.sums[0], c.double().mean((1, 2)).sum(0), rtol=0, atol=1e-14)


def test_an_empty_share_of_a_batch_adds_nothing():
    containers = Containers(2, 3, 2)
    containers.add(torch.zeros(0, 3, 2), torch.zeros(0, dtype=torch.int64))
    assert not containers.sums.any()


def test_ground_truth_column_of_container_j_is_column_j():
    containers = torch.arange(3 * 4 * 3).view(3, 4, 3)
    master = ground_truth_columns(containers)
    assert all(torch.equal(master[:, j], containers[j, :, j]) for j in range(3))
