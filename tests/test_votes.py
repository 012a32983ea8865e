"""Votes: every kind answers the same questions alike, remembers nothing, and refuses what it cannot be made of."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import capsroute as cr
from tests.kinds import KINDS, Sizes, stored

SIZES = (Sizes(2, 5, 3, 2, 3, 4), Sizes(1, 1, 1, 1, 1, 1), Sizes(3, 4, 7, 1, 9, 1), Sizes(2, 1, 4, 3, 2, 5))
ALGORITHMS = {
    "dynamic": lambda votes: cr.dynamic_routing(votes),
    "pooling": lambda votes: cr.pooling_routing(votes),
    "em": lambda votes: cr.em_routing(votes, *em_arguments(votes)),
}


def em_arguments(votes):
    ones = torch.ones(votes.batch, votes.children, dtype=votes.statistics_dtype)
    return ones, torch.zeros(votes.parents, dtype=ones.dtype), torch.zeros(votes.parents, dtype=ones.dtype)


def made(kind: str, s: Sizes, **options):
    leaves = KINDS[kind].leaves(s, **options)
    return KINDS[kind].votes(s.j, *leaves), stored(s.j, leaves)


def close(ours, theirs, tolerance=1e-12):
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


@pytest.mark.parametrize("s", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
class TestFiveQuestions:
    def test_dense(self, kind, s):
        votes, V = made(kind, s)
        close(votes.dense(), V)
        assert votes.dense().shape == (votes.batch, votes.children, votes.parents, votes.rows, votes.columns) == V.shape

    def test_agreement(self, kind, s):
        votes, V = made(kind, s)
        q = random(s.b, s.j, s.a, s.o)
        close(votes.agreement(q), (V * q[:, None]).sum((3, 4)))

    def test_aggregate(self, kind, s):
        votes, V = made(kind, s)
        c = random(s.b, s.i, s.j)
        close(votes.aggregate(c), (V * c[..., None, None]).sum(1))
        close(votes.aggregate_alike(0.3), (0.3 * V).sum(1))

    def test_norms(self, kind, s):
        votes, V = made(kind, s)
        # The square root of a rounding error of the squares is all that may remain where a vote nearly vanishes.
        close(votes.norms(), V.square().sum((3, 4)).sqrt(), 1e-7)

    def test_log_density(self, kind, s):
        votes, V = made(kind, s)
        mean, variance = random(s.b, s.j, s.a, s.o), random(s.b, s.j, s.a, s.o).exp()
        exact = (
            torch.distributions.Normal(mean, variance.sqrt()).log_prob(V.transpose(0, 1)).transpose(0, 1).sum((3, 4))
        )
        constant = 0.5 * s.a * s.o * torch.log(torch.tensor(2 * torch.pi, dtype=torch.float64))
        close(votes.log_density(mean, variance), exact + constant, 1e-10)

    @pytest.mark.parametrize("eps", [0.0, 0.3])
    def test_moments(self, kind, s, eps):
        votes, V = made(kind, s)
        weights = random(s.b, s.i, s.j).exp()
        total = weights.sum(1)[..., None, None] + eps
        mean = (weights[..., None, None] * V).sum(1) / total
        variance = (weights[..., None, None] * (V - mean[:, None]).square()).sum(1) / total
        for ours, theirs in zip(votes.moments(weights, eps), (mean, variance)):
            close(ours, theirs, 1e-10)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "bias" not in kind])
def test_lengths_of_votes_whose_squares_vanish(kind):
    """The square of 1e-20 is nothing in float32; its length is not, and neither are gradients that are as large."""
    leaves = [leaf.float() for leaf in KINDS[kind].leaves(Sizes(2, 5, 3, 2, 3, 4))]
    leaves[0] *= 1e-20

    def lengths(dtype):
        inputs = [leaf.to(dtype).requires_grad_() for leaf in leaves]
        norms = KINDS[kind].votes(3, *inputs).norms()
        return [norms.detach(), *torch.autograd.grad(1e20 * norms.sum(), inputs)]

    for ours, exact in zip(lengths(torch.float32), lengths(torch.float64)):
        assert (ours - exact).abs().max() <= 1e-4 * exact.abs().max()


@pytest.mark.parametrize("keeping", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_questions_that_are_asked_under_autocast_are_answered_in_float32(kind, keeping):
    """A router of one's own asks outside of our functions, which leave autocast."""
    s = Sizes(2, 50, 3, 2, 3, 4)
    leaves = [leaf.float() for leaf in KINDS[kind].leaves(s, dtype=torch.bfloat16)]  # which autocast leaves as they are
    q, c, C = (random(*shape).float() for shape in ((s.b, s.j, s.a, s.o), (s.b, s.i, s.j), (s.i, s.j)))

    def answers():
        votes = KINDS[kind].votes(s.j, *leaves)
        votes = votes.keeping() if keeping else votes
        sums = votes.agreement(q), votes.aggregate(c), votes.aggregate_folded(C), votes.aggregate_alike(0.3)
        return *sums, votes.norms(), votes.log_density(q, q.exp()), *votes.moments(c.exp())

    with torch.autocast("cpu", torch.bfloat16):
        cast = answers()
    for ours, theirs in zip(cast, answers(), strict=True):
        close(ours, theirs, 1e-5)


@pytest.mark.parametrize("kind", KINDS)
class TestNothingIsRemembered:
    s = Sizes(2, 5, 3, 2, 3, 4)

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_a_call_without_gradients_does_not_spoil_the_next(self, kind, algorithm):
        leaves = [leaf.requires_grad_() for leaf in KINDS[kind].leaves(self.s)]
        votes = KINDS[kind].votes(self.s.j, *leaves)
        with torch.no_grad():
            ALGORITHMS[algorithm](votes)
            votes.agreement(random(2, 3, 2, 4)), votes.moments(random(2, 5, 3).exp())
        routed = ALGORITHMS[algorithm](votes)
        fresh = ALGORITHMS[algorithm](KINDS[kind].votes(self.s.j, *leaves))
        ours, theirs = (torch.autograd.grad(each.poses.square().sum(), leaves) for each in (routed, fresh))
        for mine, other in zip(ours, theirs):
            close(mine, other)

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_the_same_votes_can_be_differentiated_twice(self, kind, algorithm):
        if kind == "dense":
            pytest.skip("its one tensor is made when the votes are")
        leaves = [leaf.requires_grad_() for leaf in KINDS[kind].leaves(self.s)]
        votes = KINDS[kind].votes(self.s.j, *leaves)
        first, second = (torch.autograd.grad(ALGORITHMS[algorithm](votes).poses.square().sum(), leaves) for _ in "12")
        for mine, other in zip(first, second):
            close(mine, other)

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_transforms_that_change_in_place_are_seen(self, kind, algorithm):
        if kind in ("dense", "identity"):
            pytest.skip("it has no transforms")
        leaves = KINDS[kind].leaves(self.s)
        votes = KINDS[kind].votes(self.s.j, *leaves)
        ALGORITHMS[algorithm](votes)
        votes.agreement(random(2, 3, 2, 4)), votes.moments(random(2, 5, 3).exp())
        leaves[1].mul_(-2)  # an optimiser's step
        close(ALGORITHMS[algorithm](votes).poses, ALGORITHMS[algorithm](KINDS[kind].votes(self.s.j, *leaves)).poses)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("dense", "identity")])
def test_short_votes_have_good_norms_in_float32(kind):
    # Two columns of the child all but cancel: the vote is 1e-4 of |u| |W|, and its square below float32's rounding.
    s = Sizes(2, 5, 3, 1, 2, 4)
    u, W, *bias = KINDS[kind].leaves(s, dtype=torch.float32)
    u[..., 1], W[:, :, 1] = (1e-4 - 1) * u[..., 0], W[:, :, 0]
    leaves = [u, W, *(each * 0 for each in bias)]
    exact = stored(s.j, [leaf.double() for leaf in leaves]).square().sum((3, 4)).sqrt()
    ours = KINDS[kind].votes(s.j, *leaves).norms()
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), exact, rtol=2e-3, atol=0)


class TestShapes:
    def test_vector_poses_may_leave_out_their_one_row(self):
        V, u, W = random(2, 5, 3, 4), random(2, 5, 6), random(5, 3, 6, 4)
        assert cr.DenseVotes(V).dense().shape == (2, 5, 3, 1, 4)
        assert cr.LinearVotes(u, W).dense().shape == (2, 5, 3, 1, 4)
        assert cr.IdentityVotes(u, 2).dense().shape == (2, 5, 2, 1, 6)

    def test_dense_votes_encode_their_own_indices(self):
        # A view without permute would mix axes and keep shapes.
        V = torch.arange(2 * 3 * 4 * 5 * 6, dtype=torch.float64).view(2, 3, 4, 5, 6)
        assert torch.equal(cr.DenseVotes(V).dense(), V)
        c = torch.zeros(2, 3, 4, dtype=torch.float64)
        c[1, 2, 3] = 1
        assert torch.equal(cr.DenseVotes(V).aggregate(c)[1, 3], V[1, 2, 3])

    def test_repr_says_the_sizes(self):
        votes = cr.LinearVotes(torch.ones(2, 5, 1, 6), torch.ones(5, 3, 6, 4))
        assert repr(votes) == "LinearVotes([b,i,j,a,o] = [2, 5, 3, 1, 4], torch.float32, cpu)"

    def test_norms_of_zero_votes_have_zero_gradient(self):
        for kind in KINDS:
            s = Sizes(2, 5, 3, 2, 3, 4)
            leaves = [(leaf * 0).requires_grad_() for leaf in KINDS[kind].leaves(s)]
            norms = KINDS[kind].votes(s.j, *leaves).norms()
            assert (norms == 0).all()
            grads = torch.autograd.grad(norms.sum(), leaves)
            assert all((grad == 0).all() for grad in grads), kind


class TestBadInput:
    def test_a_nan_is_found_where_it_was_given(self):
        V = torch.zeros(2, 5, 3, 1, 4)
        V[1, 4, 2, 0, 3] = torch.nan
        with pytest.raises(
            ValueError, match=r"votes.V: expected no NaN, found one at \[1, 4, 2, 0, 3\] of shape \(2, 5,"
        ):
            cr.uniform_routing(cr.DenseVotes(V))

    @pytest.mark.parametrize(
        "bad", [torch.ones(2, 3, 4), torch.ones(2, 3, 4, 5, 6, 7), torch.ones(2, 3, 4, 5).int(), [1.0]]
    )
    def test_dense(self, bad):
        with pytest.raises(ValueError, match=r"V: expected a floating-point tensor \[b,i,j,a,o\] or \[b,i,j,o\], got "):
            cr.DenseVotes(bad)

    @pytest.mark.parametrize(
        ("u", "W", "message"),
        [
            (torch.ones(2, 5), torch.ones(5, 3, 6, 4), r"u: expected 4 axes \[b,i,a,k\], got shape \(2, 5\)"),
            (torch.ones(2, 5, 1, 6), torch.ones(3, 6, 4), r"W: expected 4 axes \[i,j,k,o\], got shape \(3, 6, 4\)"),
            (torch.ones(2, 5, 1, 6), torch.ones(4, 3, 6, 4), r"W: axis i has size 4, but u has 5"),
            (torch.ones(2, 5, 1, 6), torch.ones(5, 3, 7, 4), r"W: axis k has size 7, but u has 6"),
            (torch.ones(2, 5, 1, 6).int(), torch.ones(5, 3, 6, 4), r"u: expected a floating-point tensor"),
            ([1.0], torch.ones(5, 3, 6, 4), r"u: expected a floating-point tensor .*got \[1.0\]"),
            (torch.ones(2, 5, 1, 6), None, r"W: expected a floating-point tensor .*got None"),
            (
                torch.ones(2, 5, 1, 6).double(),
                torch.ones(5, 3, 6, 4),
                r"W: expected dtype torch.float64 as u has, got torch.float32",
            ),
            (
                torch.ones(2, 5, 1, 6),
                torch.ones(5, 3, 6, 4, device="meta"),
                r"W: expected device cpu as u has, got meta",
            ),
        ],
    )
    def test_linear(self, u, W, message):
        with pytest.raises(ValueError, match=message):
            cr.LinearVotes(u, W)

    @pytest.mark.parametrize(
        ("bias", "message"),
        [
            (torch.ones(3, 1, 4), r"bias: expected shape \(5, 3, 1, 4\) or \(1, 3, 1, 4\) .*got \(3, 1, 4\)"),
            (torch.ones(4, 3, 1, 4), r"bias: expected shape .*got \(4, 3, 1, 4\)"),
            (torch.ones(5, 3, 2, 4), r"bias: expected shape .*got \(5, 3, 2, 4\)"),
            (torch.ones(5, 3, 1, 4).double(), r"bias: expected dtype torch.float32 as u has, got torch.float64"),
            (torch.ones(5, 3, 1, 4).int(), r"bias: expected .*got torch.int32"),
            (torch.ones(5, 3, 1, 4, device="meta"), r"bias: expected device cpu as u has, got meta"),
            ([0.0], r"bias: expected .*got \[0.0\]"),
        ],
    )
    def test_bias(self, bias, message):
        with pytest.raises(ValueError, match=message):
            cr.LinearVotes(torch.ones(2, 5, 1, 6), torch.ones(5, 3, 6, 4), bias)

    @pytest.mark.parametrize("parents", [0, -1, 1.5, True, None])
    def test_identity(self, parents):
        with pytest.raises(ValueError, match=rf"parents: expected a whole number >= 1, got {parents!r}"):
            cr.IdentityVotes(torch.ones(2, 5, 4), parents)

    def test_identity_of_a_wrong_rank(self):
        with pytest.raises(ValueError, match=r"u: expected 4 axes \[b,i,a,k\], got shape \(2, 5\)"):
            cr.IdentityVotes(torch.ones(2, 5))


def test_autocast_takes_mixed_dtypes():
    u, W = torch.ones(2, 5, 1, 6, dtype=torch.bfloat16), torch.ones(5, 3, 6, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert cr.dynamic_routing(cr.LinearVotes(u, W)).poses.dtype == torch.float32


@pytest.mark.parametrize("route", [cr.dynamic_routing, cr.inverted_attention_routing], ids=lambda route: route.__name__)
def test_a_graph_can_be_recorded_of_sizes_that_are_symbols(route):
    """Checks compare such sizes and look nothing up by them: they have no hash."""
    u, W = torch.randn(2, 5, 1, 4), torch.randn(5, 3, 4, 6)
    graph = make_fx(lambda u, W: route(cr.LinearVotes(u, W)).poses, tracing_mode="symbolic")(u, W)
    torch.testing.assert_close(graph(u, W), route(cr.LinearVotes(u, W)).poses)


def test_votes_of_ones_own_that_do_not_answer_a_question_say_which():
    class Doubled(cr.Votes):
        """Twice the children's poses, for every parent."""

        def __init__(self, u, parents):
            self.u, self.dtype, self.device = u, u.dtype, u.device
            self.batch, self.children, self.rows, self.columns = u.shape
            self.parents = parents

        def dense(self):
            return 2 * self.u[:, :, None].expand(-1, -1, self.parents, -1, -1)

        def agreement(self, q):
            return (self.dense() * q[:, None]).sum((3, 4))

        def aggregate(self, c):
            return (self.dense() * c[..., None, None]).sum(1)

    votes = Doubled(torch.randn(2, 6, 1, 4), 3)
    stored = cr.DenseVotes(votes.dense())
    torch.testing.assert_close(cr.dynamic_routing(votes).poses, cr.dynamic_routing(stored).poses)
    with pytest.raises(NotImplementedError, match=r"votes: a routing asks Doubled\.\w+, which Doubled does not define"):
        cr.em_routing(votes, torch.rand(2, 6), torch.zeros(3), torch.zeros(3))
