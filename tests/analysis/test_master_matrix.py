import torch

import capsroute as cr


def test_children_run_to_the_right_and_parents_down():
    C = torch.rand(5, 3, dtype=torch.float64)
    master = cr.inference.MasterCoefficients({"first": torch.rand(4, 2).double(), "last": C}, torch.ones(3).long())
    numbers = cr.analysis.master_matrix(master)
    assert numbers.layer == "last"
    assert torch.equal(cr.analysis.master_matrix(master, "first").coefficients, master["first"])
    (image,) = cr.analysis.draw_master_matrix(numbers).axes[0].get_images()
    assert torch.equal(torch.as_tensor(image.get_array().data), C.T)
