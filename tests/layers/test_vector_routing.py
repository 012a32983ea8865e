"""Vector routing: equal to the loops of Heinsen 2022, its sizes, its masks, and long inputs in pieces."""

import math

import numpy as np
import pytest
import torch

import capsroute as cr
from capsroute.layers import vector_routing
from tests.routing.magnitudes import SIZES, assert_right_in_float32
from tests.routing.oracles import dot, layer_norm, logistic, softmax

VectorRouting = cr.layers.VectorRouting


def loops(layer, x, mask=None):
    """y [j,h] and phi [i,j] of one sample x [i,d], statement by statement; mask [i,j] true where ignored."""
    p = {name: value.detach().numpy() for name, value in layer.named_parameters()}
    (n, _), J, h = x.shape, layer.num_parents, layer.out_features
    own = (lambda name, i: p[name][i]) if layer.num_children else (lambda name, i: p[name][0])
    y, phi = np.zeros((J, h)), np.zeros((n, J))
    for t in range(layer.iterations):
        for i in range(n):
            xs = x[i] / math.sqrt(n)
            f = [logistic(dot(xs, own("W_A", i)) + own("B_A", i))] * J
            R = [1 / J] * J
            if t > 0:
                logits = []
                for j in range(J):
                    normed = layer_norm(y[j]) if h > 1 else y[j]
                    predicted = (normed @ p["W_G1"]) * p["W_G2"][j] + p["B_G2"][j]
                    s = own("W_S", i)[j] * dot(x[i], predicted) + own("B_S", i)[j]
                    logits.append(math.log(logistic(s)) if mask is None or not mask[i, j] else -math.inf)
                R = softmax(logits) if max(logits) > -math.inf else [0.0] * J
            for j in range(J):
                if mask is not None and mask[i, j]:
                    f[j] = 0.0
                if layer.num_children:
                    use, ignore = p["beta_use"][i, j], p["beta_ign"][i, j]
                else:
                    use, ignore = (
                        dot(x[i], p[f"compute_beta_{name}.weight"][j]) + p[f"compute_beta_{name}.bias"][j]
                        for name in ("use", "ign")
                    )
                phi[i, j] = use * f[j] * R[j] - ignore * (f[j] - f[j] * R[j])
        for j in range(J):
            mixed = sum(phi[i, j] * x[i] / math.sqrt(n) for i in range(n))
            y[j] = (mixed * p["W_F1"][j]) @ p["W_F2"] + sum(phi[:, j]) * p["B_F2"][j]
    if layer.normalise and h > 1:
        y = np.stack([layer_norm(row) for row in y])
    return y, phi


def filled(layer, seed=0):
    """Every parameter random, biases too, in float64."""
    generator = torch.Generator().manual_seed(seed)
    layer = layer.double()
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return layer


def inputs(b, i, d, seed=1):
    return torch.randn(b, i, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


CASES = {
    "one of everything": (1, 1, 1, 1, 1),
    "one child": (2, 1, 5, 3, 4),
    "one parent": (2, 7, 1, 3, 4),
    "scalars out: no layer norm": (2, 6, 3, 4, 1),
    "primes, all different": (2, 11, 5, 3, 7),
    "equal sizes": (3, 3, 3, 3, 3),
}


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("why", CASES)
@pytest.mark.parametrize("options", [{}, {"iterations": 1}, {"iterations": 3, "normalise": False}], ids=str)
def test_equals_the_loops(why, options, free):
    b, i, j, d, h = CASES[why]
    layer, x = filled(VectorRouting(None if free else i, j, d, h, **options)), inputs(b, i, d)
    routed = layer(x, return_coefficients=True)
    for sample in range(b):
        y, phi = loops(layer, x[sample].numpy())
        torch.testing.assert_close(routed.poses[sample, :, 0], torch.as_tensor(y), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(routed.coefficients[sample], torch.as_tensor(phi), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("free", [False, True])
def test_masks_equal_the_loops(free):
    layer, x = filled(VectorRouting(None if free else 6, 3, 4, 5, iterations=3)), inputs(2, 6, 4)
    mask = torch.rand(6, 3, generator=torch.Generator().manual_seed(3)) < 0.4
    mask[0] = True  # a child that no parent may use
    routed = layer(x, mask=mask, return_coefficients=True)
    for sample in range(2):
        y, phi = loops(layer, x[sample].numpy(), mask.numpy())
        torch.testing.assert_close(routed.poses[sample, :, 0], torch.as_tensor(y), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(routed.coefficients[sample], torch.as_tensor(phi), rtol=1e-10, atol=1e-10)
    assert (routed.coefficients[:, mask] == 0).all()
    per_sample = layer(x, mask=mask.expand(2, -1, -1)).poses
    torch.testing.assert_close(per_sample, routed.poses, rtol=0, atol=0)


@pytest.mark.parametrize("free", [False, True])
def test_first_and_second_derivative(free):
    layer = filled(VectorRouting(None if free else 4, 3, 2, 3))
    x = inputs(2, 4, 2).requires_grad_()
    names = [name for name, _ in layer.named_parameters()]

    def outputs(x, *parameters):
        values = dict(zip(names, parameters))
        return torch.func.functional_call(layer, values, (x,)).poses

    tensors = [x, *(parameter.detach().requires_grad_() for parameter in layer.parameters())]
    assert torch.autograd.gradcheck(outputs, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(outputs, tensors, fast_mode=True)


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_pieces_give_what_the_whole_gives(monkeypatch, free, padded):
    layer, x = filled(VectorRouting(None if free else 13, 3, 4, 5)), inputs(2, 13, 4).requires_grad_()
    padding = torch.arange(13).expand(2, -1) < torch.tensor([[9], [13]]) if padded else None
    tensors = [x, *layer.parameters()]
    weights = inputs(2, 3, 5, seed=4).unsqueeze(2)

    def run():
        poses = layer(x, padding=padding).poses
        return poses, torch.autograd.grad((poses * weights).sum(), tensors)

    (whole, gradients), _ = run(), monkeypatch.setattr(vector_routing, "PIECE", 24)
    pieces, in_pieces = run()
    torch.testing.assert_close(pieces, whole, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(in_pieces, gradients, rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        torch.testing.assert_close(layer(x, padding=padding).poses, whole, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_values_and_gradients_are_right_in_float32_at_every_magnitude(size, free):
    # Where betas are linear in the children, vectors are as long as their squares before the layer norm.
    layer, x = filled(VectorRouting(None if free else 6, 3, 4, 5)), inputs(2, 6, 4)
    values = {name: parameter.float() for name, parameter in layer.named_parameters()}

    def outputs(x, *parameters):
        return [torch.func.functional_call(layer, dict(zip(values, parameters)), (x,)).poses]

    assert_right_in_float32(outputs, [(size * x).float(), *values.values()], 1e-4)


@pytest.mark.parametrize("iterations", [1, 3])
def test_gradients_of_long_inputs_are_the_same_twice_and_without_the_inputs_own(monkeypatch, iterations):
    monkeypatch.setattr(vector_routing, "PIECE", 24)
    layer, x = filled(VectorRouting(None, 3, 4, 5, iterations=iterations)), inputs(2, 13, 4).requires_grad_()
    mask = torch.rand(13, 3, generator=torch.Generator().manual_seed(3)) < 0.3
    loss = layer(x, mask=mask).poses[:, 0].sum()
    own = list(layer.parameters())
    once, twice = (torch.autograd.grad(loss, [x, *own], retain_graph=True, allow_unused=True) for _ in range(2))
    torch.testing.assert_close(once, twice, rtol=0, atol=0)
    frozen = torch.autograd.grad(layer(x.detach(), mask=mask).poses[:, 0].sum(), own, allow_unused=True)
    torch.testing.assert_close(frozen, once[1:], rtol=1e-11, atol=1e-11)
    monkeypatch.setattr(vector_routing, "PIECE", 1 << 20)
    whole = torch.autograd.grad(layer(x, mask=mask).poses[:, 0].sum(), [x, *own], allow_unused=True)
    for mine, other in zip(once, whole):
        torch.testing.assert_close(
            torch.zeros(()) if mine is None else mine.sum(),
            torch.zeros(()) if other is None else other.sum(),
            check_dtype=False,
        )
    torch.testing.assert_close(once[0], whole[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("of", ["inputs", "both"])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("free", [False, True])
def test_second_derivatives_of_long_inputs(monkeypatch, free, iterations, normalise, of):
    """Of inputs alone, without a norm, they pass by the last iteration."""
    monkeypatch.setattr(vector_routing, "PIECE", 12)
    layer = filled(VectorRouting(None if free else 5, 2, 3, 3, iterations, normalise)).requires_grad_(False)
    x, padding = inputs(2, 5, 3).requires_grad_(), torch.arange(5).expand(2, -1) < torch.tensor([[4], [5]])
    names = dict(layer.named_parameters()) if of == "both" else {}
    own = [parameter.detach().clone().requires_grad_() for parameter in names.values()]

    def poses(x, *own):
        return torch.func.functional_call(layer, dict(zip(names, own)), (x,), {"padding": padding}).poses

    assert torch.autograd.gradgradcheck(poses, [x, *own], fast_mode=True)


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("of", ["inputs", "parameters"])
def test_gradients_of_long_inputs_sample_by_sample(monkeypatch, free, of):
    layer, x = filled(cr.layers.VectorRouting(None if free else 7, 3, 4, 5)), inputs(2, 7, 4)
    parameters = {name: parameter.detach() for name, parameter in layer.named_parameters()}

    def per_sample():
        def one(parameters, row):
            return torch.func.functional_call(layer, parameters, (row[None],)).poses.square().sum()

        found = torch.func.vmap(torch.func.grad(one, argnums=int(of == "inputs")), in_dims=(None, 0))(parameters, x)
        return found if of == "parameters" else {"inputs": found}

    whole, _ = per_sample(), monkeypatch.setattr(vector_routing, "PIECE", 6)
    torch.testing.assert_close(per_sample(), whole)


@pytest.mark.parametrize("padded", [False, True])
def test_more_children_than_float16_can_count(padded):
    torch.manual_seed(0)
    layer, x = cr.layers.VectorRouting(None, 2, 3, 4), 0.1 * torch.randn(1, 70_000, 3)
    padding = torch.ones(1, 70_000, dtype=torch.bool) if padded else None
    expected = layer(x).poses
    torch.testing.assert_close(layer.half()(x.half(), padding=padding).poses.float(), expected, rtol=0.02, atol=0.02)


def test_long_inputs_store_nothing_of_children_times_parents():
    # What autograd keeps: nothing as large as the credits of all children, where pieces are smaller.
    layer = VectorRouting(None, 128, 2, 4)
    x = torch.randn(1, 1 << 17, 2, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        layer(x).poses.sum()
    assert max(kept) <= max(x.numel(), 128 * 128)


def test_padding_is_as_if_children_were_not_there():
    layer, x = filled(VectorRouting(None, 3, 4, 5)), inputs(2, 7, 4)
    padding = torch.arange(7).expand(2, -1) < 4
    spoilt = x.clone()
    spoilt[:, 4:] = math.nan
    torch.testing.assert_close(layer(spoilt, padding=padding).poses, layer(x[:, :4]).poses, rtol=1e-12, atol=1e-12)


def test_a_child_that_is_half_there_counts_half():
    layer, x = filled(VectorRouting(None, 3, 4, 5, iterations=1)), inputs(1, 2, 4)
    with torch.no_grad():
        layer.W_A.zero_()  # so that n, in which halves count too, changes no credit
    shares = torch.tensor([[1.0, 1.0], [1.0, 0.5], [1.0, 0.0]], dtype=torch.float64)
    whole, half, none = layer(x.expand(3, -1, -1), padding=shares, return_coefficients=True).coefficients
    torch.testing.assert_close(half, (whole + none) / 2, rtol=1e-12, atol=1e-12)
    assert (none[1] == 0).all()


def test_no_child_at_all_gives_zero_and_no_nan():
    layer, x = filled(VectorRouting(None, 3, 4, 5)), inputs(2, 7, 4).requires_grad_()
    padding = torch.arange(7).expand(2, -1) < torch.tensor([[0], [7]])
    for given in ({"padding": padding}, {"mask": ~padding.unsqueeze(2).expand(-1, -1, 3)}):
        routed = layer(x, return_coefficients=True, **given)
        assert (routed.poses[0] == 0).all()
        gradients = torch.autograd.grad(routed.poses.square().sum(), [x, *layer.parameters()], allow_unused=True)
        assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)
    assert (layer(x[:, :0]).poses == 0).all()


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize(("children", "parents"), [(1, 3), (5, 1), (1, 1)])
def test_one_child_or_one_parent_has_finite_gradients(children, parents, free):
    layer = filled(VectorRouting(None if free else children, parents, 4, 5, iterations=3)).float()
    x = inputs(2, children, 4).float().requires_grad_()
    poses = layer(x).poses
    assert poses.isfinite().all()
    gradients = torch.autograd.grad(poses.pow(3).sum(), [x, *layer.parameters()], allow_unused=True)
    assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)
    assert gradients[0].abs().max() > 0


def test_zero_activations_everywhere_give_zero_and_no_nan():
    layer, x = filled(VectorRouting(None, 3, 4, 5)), inputs(2, 7, 4).requires_grad_()
    with torch.no_grad():
        layer.W_A.zero_()
        layer.B_A.fill_(-1e4)  # a gate that is shut
    poses = layer(x).poses
    assert (poses == 0).all()
    gradients = torch.autograd.grad(poses.sum(), [x, *layer.parameters()], allow_unused=True)
    assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)


def test_a_sample_does_not_see_its_batch():
    layer, x = filled(VectorRouting(5, 3, 4, 5)), inputs(4, 5, 4)
    torch.testing.assert_close(layer(x[2:3]).poses, layer(x).poses[2:3], rtol=1e-12, atol=1e-12)


def test_parameters_have_the_papers_names_and_shapes():
    fixed = {name: tuple(value.shape) for name, value in VectorRouting(7, 5, 3, 4).named_parameters()}
    assert fixed == {
        "W_A": (7, 3), "B_A": (7,), "W_F1": (5, 3), "W_F2": (3, 4), "B_F2": (5, 4), "W_G1": (4, 3), "W_G2": (5, 3),
        "B_G2": (5, 3), "W_S": (7, 5), "B_S": (7, 5), "beta_use": (7, 5), "beta_ign": (7, 5),
    }  # fmt: skip
    free = {name: tuple(value.shape) for name, value in VectorRouting(None, 5, 3, 4).named_parameters()}
    assert {name: free[name] for name in ("W_A", "B_A", "W_S", "B_S")} == {
        "W_A": (1, 3), "B_A": (1,), "W_S": (1, 5), "B_S": (1, 5),
    }  # fmt: skip
    assert free["compute_beta_use.weight"] == free["compute_beta_ign.weight"] == (5, 3)
    assert "beta_use" not in free


def test_the_published_stack_has_its_size():
    # Any number -> 64 -> 64 -> 5 classes of one number, from 1024 features, less what normalises 25 depths of them.
    stack = [VectorRouting(None, 64, 1024, 1024), VectorRouting(64, 64, 1024, 1024), VectorRouting(64, 5, 1024, 1)]
    total = sum(parameter.numel() for layer in stack for parameter in layer.parameters())
    assert total + 2 * 25 * 1024 == 5_068_422


def test_credit_is_a_product_of_scaled_layers():
    first, second = inputs(2, 6, 4), inputs(2, 4, 3, seed=2)
    scaled = [phi / (phi.flatten(1).std(1)[:, None, None] + 1e-5) for phi in (first, second)]
    expected = torch.einsum("bij,bjk->bik", *scaled)
    torch.testing.assert_close(cr.layers.credit([first, second]), expected, rtol=1e-12, atol=1e-12)
    assert cr.layers.credit([torch.ones(2, 1, 1)]).isfinite().all()
    with pytest.raises(ValueError, match="coefficients: expected those of at least one layer"):
        cr.layers.credit([])


def test_layers_that_do_not_follow_each_other_have_no_credit():
    with pytest.raises(ValueError, match=r"coefficients: expected \(2, 3, ...\) as layer 1, got \(2, 4, 5\)"):
        cr.layers.credit([torch.ones(2, 7, 3), torch.ones(2, 4, 5)])


def test_credit_of_an_empty_batch_is_empty():
    assert cr.layers.credit([torch.zeros(0, 7, 3), torch.zeros(0, 3, 2)]).shape == (0, 7, 2)


def test_compile_and_export():
    layer, x = filled(VectorRouting(5, 3, 4, 5)), inputs(2, 5, 4)
    compiled = torch.compile(lambda x: layer(x).poses, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x).poses)

    class Poses(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x).poses

    torch.testing.assert_close(torch.export.export(Poses(), (x,)).module()(x), layer(x).poses)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"inputs": torch.ones(2, 5, 3)}, r"inputs: expected \[b,i,4\], got \[2, 5, 3\]"),
        (
            {"inputs": torch.ones(2, 5, 4).half()},
            r"inputs: expected torch.float\d+ on cpu, .* got torch.float16",
        ),
        ({"inputs": torch.ones(2, 6, 4)}, r"inputs: expected 5 children, got 6"),
        (
            {"mask": torch.ones(3, 5, dtype=torch.bool)},
            r"mask: expected bool \(5, 3\) \[i,j\] .*got torch.bool \(3, 5\)",
        ),
        ({"mask": torch.ones(5, 3)}, r"mask: expected bool .*got torch.float32"),
        ({"padding": torch.ones(2, 6)}, r"padding: expected \[b,i\] = \[2, 5\], got \[2, 6\]"),
    ],
)
def test_bad_input_is_refused_by_name(given, message):
    with pytest.raises(ValueError, match=message):
        VectorRouting(5, 3, 4, 5)(**{"inputs": torch.ones(2, 5, 4), **given})


@pytest.mark.parametrize("name", ["parents", "in_features", "out_features", "iterations"])
def test_sizes_below_one_are_refused_by_name(name):
    with pytest.raises(ValueError, match=rf"{name}: expected a whole number >= 1, got 0"):
        VectorRouting(**{"children": 5, "parents": 3, "in_features": 4, "out_features": 5, name: 0})


def test_padding_that_is_added_to_logits_is_refused():
    layer = VectorRouting(None, 2, 4, 4)
    with pytest.raises(ValueError, match=r"padding: expected probabilities in \[0, 1\], got -1000000000.0 at \[0, 2\]"):
        layer(torch.randn(1, 3, 4), padding=torch.tensor([[0.0, 0.0, -1e9]]))
