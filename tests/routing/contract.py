"""What every routing algorithm is held to, whichever it is: subclass `Contract`, say which arguments it takes."""

import inspect
import math
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import capsroute as cr
from tests.kinds import KINDS, Sizes, stored
from tests.routing.cases import CASES
from tests.routing.magnitudes import SIZES, assert_right_in_float32
from tests.routing.oracles import Oracle

ODD = {
    "one child": Sizes(2, 1, 2, 1, 2, 2),
    "one parent": Sizes(1, 3, 1, 2, 2, 1),
    "primes": Sizes(2, 3, 5, 1, 2, 3),
}
sizes = st.builds(Sizes, *[st.integers(1, most) for most in (3, 6, 5, 3, 4, 4)])
# Seven subclasses share these methods, which hypothesis would otherwise call a mistake.
shared = [HealthCheck.differing_executors]
property_test = settings(max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=shared)


def assert_same(ours, theirs, tolerance: float = 1e-10, what: str = "") -> None:
    """Both are absent, or equal to the tolerance, relative and absolute; the worst element is named if they are not."""
    assert (ours is None) == (theirs is None), what
    if ours is not None:
        theirs = torch.as_tensor(theirs, dtype=ours.dtype)
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}")


def assert_routed(ours: cr.Routed, theirs, tolerance: float = 1e-10) -> None:
    for name, mine, other in zip(cr.Routed._fields, ours, theirs):
        assert_same(mine, other, tolerance, name)


class Contract:
    function: Callable[..., cr.Routed]
    oracle: Callable[..., Oracle]
    options: ClassVar = ({},)  # keyword arguments to try, besides none
    # Where an argument has one entry per sample, child and parent: letters of its axes, e.g. {"scores": "bi"}.
    letters: ClassVar[dict[str, str]] = {}
    coefficients_sum_over: str | None = None  # the letter of the axis over which coefficients sum to one
    kinds = tuple(KINDS)
    looser: ClassVar[dict[str, float]] = {}  # the tolerance, by kind of votes, where 1e-10 is out of reach
    shortest = 0.0  # the least magnitude of votes of which float32 makes the same as float64; results are finite below

    def pytest_generate_tests(self, metafunc):
        if "option" in metafunc.fixturenames:
            metafunc.parametrize(
                "option",
                self.options,
                ids=lambda option: ",".join(f"{k}={getattr(v, '__name__', v)}" for k, v in option.items()),
            )
        if "case" in metafunc.fixturenames:
            metafunc.parametrize("case", CASES, ids=lambda case: case.why)
        if "kind" in metafunc.fixturenames:
            metafunc.parametrize("kind", self.kinds)

    def arguments(self, s: Sizes, seed: int = 1) -> dict[str, torch.Tensor]:
        """Random tensor arguments in float64, in the order of `letters`."""
        generator = torch.Generator().manual_seed(seed)
        return {
            name: self.draw(name, torch.randn([getattr(s, x) for x in axes], generator=generator, dtype=torch.float64))
            for name, axes in self.letters.items()
        }

    def draw(self, name: str, normal: torch.Tensor) -> torch.Tensor:
        """An argument made of normal numbers; subclasses bring it into its range."""
        return normal

    def route(self, votes: cr.Votes, arguments: dict[str, torch.Tensor] | None = None, **option) -> cr.Routed:
        return type(self).function(votes, **(arguments or {}), **option)

    def loops(self, V: torch.Tensor, arguments: dict[str, torch.Tensor], **option) -> Oracle:
        per_sample = [value.numpy() for name, value in arguments.items() if self.letters[name][0] == "b"]
        rest = {name: value.numpy() for name, value in arguments.items() if self.letters[name][0] != "b"}
        return type(self).oracle(V.numpy(), *per_sample, **rest, **option)

    # Values

    def test_equals_the_loops(self, case, option):
        V, arguments = case.stored_votes(), self.arguments(case.sizes)
        assert_routed(self.route(cr.DenseVotes(V), arguments, **option), self.loops(V, arguments, **option))

    def test_every_kind_of_votes_equals_the_loops(self, kind, option):
        for s in (Sizes(2, 5, 3, 2, 3, 4), Sizes(3, 4, 7, 1, 9, 1)):
            leaves, arguments = KINDS[kind].leaves(s), self.arguments(s)
            ours = self.route(KINDS[kind].votes(s.j, *leaves), arguments, **option)
            theirs = self.loops(stored(s.j, leaves), arguments, **option)
            assert_routed(ours, theirs, self.looser.get(kind, 1e-10))

    # Derivatives

    @pytest.mark.parametrize("shape", ODD)
    def test_first_and_second_derivative(self, kind, shape):
        s = ODD[shape]
        leaves, arguments = KINDS[kind].leaves(s), self.arguments(s)
        names, inputs = list(arguments), [*leaves, *arguments.values()]
        inputs = [tensor.requires_grad_() for tensor in inputs]

        def outputs(*tensors):
            votes = KINDS[kind].votes(s.j, *tensors[: len(leaves)])
            routed = self.route(votes, dict(zip(names, tensors[len(leaves) :])))
            return tuple(part for part in routed if part is not None and part.requires_grad)

        assert torch.autograd.gradcheck(outputs, inputs, fast_mode=True)
        assert torch.autograd.gradgradcheck(outputs, inputs, fast_mode=True)

    # Symmetries

    @given(s=sizes, seed=st.integers(0, 999))
    @property_test
    def test_a_sample_does_not_see_its_batch(self, s, seed):
        s = s._replace(b=4)
        (V,), arguments = KINDS["dense"].leaves(s, seed), self.arguments(s, seed)
        together = self.route(cr.DenseVotes(V), arguments)
        alone = {name: value[2:3] if self.letters[name][0] == "b" else value for name, value in arguments.items()}
        row = [None if part is None else part[2:3] for part in together]
        assert_routed(self.route(cr.DenseVotes(V[2:3]), alone), row)

    @given(s=sizes, seed=st.integers(0, 999), data=st.data())
    @property_test
    def test_order_of_children_does_not_matter(self, s, seed, data):
        self.check_permuted("i", data.draw(st.permutations(range(s.i))), s, seed)

    @given(s=sizes, seed=st.integers(0, 999), data=st.data())
    @property_test
    def test_order_of_parents_is_the_order_of_results(self, s, seed, data):
        self.check_permuted("j", data.draw(st.permutations(range(s.j))), s, seed)

    def check_permuted(self, letter: str, order: list[int], s: Sizes, seed: int) -> None:
        def permuted(tensor, letters):
            axis = letters.find(letter)
            return tensor if tensor is None or axis < 0 else tensor.index_select(axis, torch.tensor(order))

        (V,), arguments = KINDS["dense"].leaves(s, seed), self.arguments(s, seed)
        before = self.route(cr.DenseVotes(V), arguments)
        moved = {name: permuted(value, self.letters[name]) for name, value in arguments.items()}
        after = self.route(cr.DenseVotes(permuted(V, "bijao")), moved)
        assert_routed(after, [permuted(part, letters) for part, letters in zip(before, ("bjao", "bij", "bj", "bjao"))])

    @given(s=sizes, seed=st.integers(0, 999))
    @property_test
    def test_coefficients_sum_to_one_over_the_right_axis(self, s, seed):
        if self.coefficients_sum_over is None:
            pytest.skip("its coefficients are independent probabilities, or given")
        (V,) = KINDS["dense"].leaves(s, seed)
        c = self.route(cr.DenseVotes(V), self.arguments(s, seed)).coefficients
        total = c.sum("bij".index(self.coefficients_sum_over))
        assert_same(total, torch.ones_like(total), 1e-12)
        assert (c >= 0).all()

    # What a call leaves behind, and what it keeps

    def test_nothing_is_carried_from_one_call_to_the_next(self, kind):
        s = Sizes(2, 5, 3, 2, 3, 4)
        votes, arguments = KINDS[kind].votes(s.j, *KINDS[kind].leaves(s)), self.arguments(s)
        first = self.route(votes, arguments)
        other = KINDS[kind].votes(s.j, *KINDS[kind].leaves(s, seed=7))
        self.route(other, self.arguments(s, seed=8))
        assert_routed(self.route(votes, arguments), first, 0.0)

    def test_inputs_are_left_as_they_were(self, kind):
        s = Sizes(2, 5, 3, 2, 3, 4)
        leaves, arguments = KINDS[kind].leaves(s), self.arguments(s)
        before = [tensor.clone() for tensor in (*leaves, *arguments.values())]
        self.route(KINDS[kind].votes(s.j, *leaves), arguments)
        assert all(torch.equal(x, y) for x, y in zip(before, (*leaves, *arguments.values())))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_half_precision_votes_keep_float32_statistics(self, kind, dtype):
        s = Sizes(2, 5, 3, 2, 3, 4)
        leaves, arguments = KINDS[kind].leaves(s, dtype=dtype), self.arguments(s)
        arguments = {name: value.float() for name, value in arguments.items()}
        half = self.route(KINDS[kind].votes(s.j, *leaves), arguments)
        wide = self.route(KINDS[kind].votes(s.j, *[leaf.float() for leaf in leaves]), arguments)
        assert all(part is None or part.dtype == torch.float32 for part in half)
        assert_routed(half, wide, 1e-5)

    def test_autocast_keeps_float32_statistics(self, kind):
        s = Sizes(2, 5, 3, 2, 3, 4)
        leaves, arguments = KINDS[kind].leaves(s, dtype=torch.bfloat16), self.arguments(s)
        arguments = {name: value.float() for name, value in arguments.items()}
        leaves = [leaf.float() for leaf in leaves]  # exactly representable, so autocast to bfloat16 loses nothing
        plain = self.route(KINDS[kind].votes(s.j, *leaves), arguments)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = self.route(KINDS[kind].votes(s.j, *leaves), arguments)
        assert all(part is None or part.dtype == torch.float32 for part in cast)
        assert_routed(cast, plain, 1e-5)

    # Legal and strange

    @pytest.mark.parametrize("empty", ["b", "i"])
    def test_an_empty_batch_and_no_children_are_legal(self, kind, empty):
        s = Sizes(2, 5, 3, 2, 3, 4)._replace(**{empty: 0})
        leaves, arguments = KINDS[kind].leaves(s), self.arguments(s)
        inputs = [tensor.requires_grad_() for tensor in (*leaves, *arguments.values())]
        routed = self.route(KINDS[kind].votes(s.j, *leaves), arguments)
        assert routed.poses.shape == (s.b, s.j, s.a, s.o)
        assert routed.coefficients.shape == (s.b, s.i, s.j)
        assert all(part is None or part.isfinite().all() for part in routed)
        grads = torch.autograd.grad(routed.poses.sum(), inputs, allow_unused=True)
        assert all(grad is None or grad.isfinite().all() for grad in grads)

    def test_gradients_are_finite_in_every_case(self, case):
        V, arguments = case.stored_votes().float(), self.arguments(case.sizes)
        inputs = [V.requires_grad_(), *(value.float().requires_grad_() for value in arguments.values())]
        routed = self.route(cr.DenseVotes(V), dict(zip(arguments, inputs[1:])))
        outputs = [part.sum() for part in routed if part is not None and part.requires_grad]
        for grad in torch.autograd.grad(sum(outputs), inputs, allow_unused=True):
            assert grad is None or grad.isfinite().all()

    @pytest.mark.parametrize("size", [*SIZES, "mixed"])
    def test_values_and_gradients_are_right_in_float32_at_every_magnitude(self, kind, size):
        if kind == "identity" and self.coefficients_sum_over == "j":
            pytest.skip("all parents get the same votes: their gradients are huge, and cancel")
        s = Sizes(2, 5, 3, 2, 3, 4)
        leaves, arguments = KINDS[kind].leaves(s, dtype=torch.float32), self.arguments(s)
        mixed, short = size == "mixed", size != "mixed" and size < self.shortest
        leaves[0] *= torch.logspace(-20, 15, s.i).view(-1, *[1] * (leaves[0].dim() - 2)) if mixed else size

        def outputs(*inputs):
            votes = KINDS[kind].votes(s.j, *inputs[: len(leaves)])
            routed = self.route(votes, dict(zip(arguments, inputs[len(leaves) :])))
            return [part for part in (routed.poses, routed.scores, routed.variances) if part is not None]

        assert_right_in_float32(outputs, [*leaves, *arguments.values()], math.inf if mixed or short else 1e-3)

    # Bad input

    def test_nan_votes_are_refused_by_name(self, kind):
        s = Sizes(2, 5, 3, 2, 3, 4)
        leaves, arguments = KINDS[kind].leaves(s), self.arguments(s)
        for spoilt in range(len(leaves)):
            broken = [leaf.clone() for leaf in leaves]
            broken[spoilt].view(-1)[-1] = torch.nan
            with pytest.raises(ValueError, match=r"votes\.\w+: expected no NaN, found one at \["):
                self.route(KINDS[kind].votes(s.j, *broken), arguments)

    def test_tensors_are_not_votes(self):
        with pytest.raises(ValueError, match=r"votes: expected DenseVotes, LinearVotes or IdentityVotes, got Tensor"):
            self.route(torch.ones(2, 5, 3, 2, 4), self.arguments(Sizes(2, 5, 3, 2, 3, 4)))

    def test_each_tensor_argument_is_checked_for_shape_dtype_device_and_nan(self):
        s = Sizes(2, 5, 3, 2, 3, 4)
        votes, arguments = cr.DenseVotes(*KINDS["dense"].leaves(s)), self.arguments(s)
        for name, value in arguments.items():
            for bad, expected in (
                (value[..., :-1], rf"{name}: expected shape .*got \("),
                (value.unsqueeze(0), rf"{name}: expected shape .*got \("),
                (value.long(), rf"{name}: expected a floating-point tensor.*got torch.int64"),
                (value.to("meta"), rf"{name}: expected .*cpu.*got .*meta"),
                (value * torch.nan, rf"{name}: expected no NaN, found one at \[0"),
                (value.tolist(), rf"{name}: expected .*got \["),
            ):
                with pytest.raises(ValueError, match=expected):
                    self.route(votes, {**arguments, name: bad})

    def test_iterations_below_one_are_refused(self):
        if "iterations" not in inspect.signature(type(self).function).parameters:
            pytest.skip("it does not iterate")
        s = Sizes(2, 5, 3, 2, 3, 4)
        votes, arguments = cr.DenseVotes(*KINDS["dense"].leaves(s)), self.arguments(s)
        for bad in (0, -1, 1.5, True, None):
            with pytest.raises(ValueError, match=rf"iterations: expected a whole number >= 1, got {bad!r}"):
                self.route(votes, arguments, iterations=bad)
