"""torch.compile, torch.export and torch.func on every routing function, with every kind of votes."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import capsroute as cr
from tests.algorithms import ALGORITHMS, arguments, route
from tests.kinds import KINDS, Sizes

S = Sizes(2, 5, 3, 2, 3, 4)
# Identity votes are the same for every parent: max-min would stretch the rounding in which transforms may differ.
PAIRS = [(name, kind) for name in ALGORITHMS for kind in KINDS if (name, kind) != ("max_min", "identity")]
every_pair = pytest.mark.parametrize(("name", "kind"), PAIRS, ids=["-".join(pair) for pair in PAIRS])


def traced(always: str):
    """Tracing takes seconds: each algorithm is traced with one kind of votes, and with the others on demand."""
    pairs = [pytest.param(*pair, marks=() if pair[1] == always else pytest.mark.slow) for pair in PAIRS]
    return pytest.mark.parametrize(("name", "kind"), pairs, ids=["-".join(pair) for pair in PAIRS])


def inputs(name: str, kind: str, s: Sizes = S, seed: int = 0) -> list[torch.Tensor]:
    return [*KINDS[kind].leaves(s, seed), *arguments(name, s, seed + 3)]


def function(name: str, kind: str, parents: int = S.j):
    """A function of tensors: leaves of the votes, then the algorithm's own arguments."""
    count = len(KINDS[kind].shapes(S))
    return lambda *tensors: route(name, KINDS[kind].votes(parents, *tensors[:count]), *tensors[count:])


def loss(name: str, kind: str):
    """A scalar of the same tensors in which every output counts."""
    routed = function(name, kind)
    return lambda *tensors: sum(
        (part * (position + 1)).square().sum() for position, part in enumerate(routed(*tensors))
    )


def close(ours, theirs, tolerance=1e-9):
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs):
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


@traced("per-child-never-stored")
def test_compile_without_a_graph_break(name, kind):
    torch.compiler.reset()
    tensors = [tensor.requires_grad_() for tensor in inputs(name, kind)]
    compiled = torch.compile(loss(name, kind), fullgraph=True, backend="aot_eager")
    ours, theirs = compiled(*tensors), loss(name, kind)(*tensors)
    close([ours], [theirs])
    close(torch.autograd.grad(ours, tensors), torch.autograd.grad(theirs, tensors))


@pytest.mark.parametrize(
    "name",
    [name if name in ("dynamic", "heinsen") else pytest.param(name, marks=pytest.mark.slow) for name in ALGORITHMS],
)
def test_one_compiled_graph_serves_every_batch_size(name):
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(
        function(name, "per-child-never-stored"), fullgraph=True, backend="aot_eager", dynamic=True
    )
    for batch in (11, 13, 17):  # unlike any other size, which torch.compile would take to be the same one
        tensors = inputs(name, "per-child-never-stored", S._replace(b=batch))
        close(compiled(*tensors), function(name, "per-child-never-stored")(*tensors))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
@every_pair
def test_compile_with_inductor(name, kind):
    torch.compiler.reset()
    tensors = [tensor.requires_grad_() for tensor in inputs(name, kind)]
    compiled = torch.compile(loss(name, kind), fullgraph=True)
    ours, theirs = compiled(*tensors), loss(name, kind)(*tensors)
    close([ours], [theirs])
    close(torch.autograd.grad(ours, tensors), torch.autograd.grad(theirs, tensors))


class Routing(torch.nn.Module):
    """Transforms are parameters and children are given, as in a layer."""

    def __init__(self, name: str, kind: str):
        super().__init__()
        self.run = function(name, kind)

    def forward(self, *tensors):
        return self.run(*tensors)


def exported(name: str, kind: str) -> torch.export.ExportedProgram:
    """With a dynamic batch: the first leaf has it, and so has every argument whose letters begin with b."""
    tensors, batch = inputs(name, kind), torch.export.Dim("batch", min=2, max=64)
    leaves = [{0: batch}, *({} for _ in KINDS[kind].shapes(S)[1:])]
    rest = [{0: batch} if letters[0] == "b" else {} for letters in ALGORITHMS[name][0]]
    return torch.export.export(Routing(name, kind), tuple(tensors), dynamic_shapes=((*leaves, *rest),))


@traced("shared+bias")
def test_export_with_a_free_batch(name, kind):
    program = exported(name, kind)
    plain = program.run_decompositions(cr.form.decompositions())
    assert not any("capsroute" in str(node.target) for node in plain.graph.nodes)
    for batch in (2, 5):
        tensors = inputs(name, kind, S._replace(b=batch), seed=batch)
        expected = function(name, kind)(*tensors)
        close(program.module()(*tensors), expected)
        close(plain.module()(*tensors), expected)


@every_pair
def test_operations_that_make_fx_records_are_those_of_other_values_too(name, kind):
    recorded = make_fx(function(name, kind))(*inputs(name, kind))
    others = inputs(name, kind, seed=5)
    close(recorded(*others), function(name, kind)(*others))


@every_pair
def test_func_grad(name, kind):
    tensors = inputs(name, kind)
    everything = tuple(range(len(tensors)))
    ours = torch.func.grad(loss(name, kind), argnums=everything)(*tensors)
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    close(ours, torch.autograd.grad(loss(name, kind)(*leaves), leaves))


@every_pair
def test_func_vmap_of_the_whole_call(name, kind):
    several = [inputs(name, kind, seed=seed) for seed in (0, 1, 2)]
    stacked = [torch.stack(column) for column in zip(*several)]
    ours = torch.func.vmap(function(name, kind))(*stacked)
    for row, tensors in enumerate(several):
        close([part[row] for part in ours], function(name, kind)(*tensors))


@every_pair
def test_func_gradients_per_sample(name, kind):
    # The usual use: vmap over samples of the gradient by the parameters, which every sample shares.
    tensors = inputs(name, kind)
    per_sample = [True, *(False for _ in KINDS[kind].shapes(S)[1:])]
    per_sample += [letters[0] == "b" for letters in ALGORITHMS[name][0]]

    def one(*row):
        return loss(name, kind)(*(part.unsqueeze(0) if own else part for part, own in zip(row, per_sample)))

    everything = tuple(range(len(tensors)))
    axes = tuple(0 if own else None for own in per_sample)
    ours = torch.func.vmap(torch.func.grad(one, argnums=everything), in_dims=axes)(*tensors)
    for sample in range(S.b):
        row = [part[sample] if own else part for part, own in zip(tensors, per_sample)]
        leaves = [part.clone().requires_grad_() for part in row]
        close([grad[sample] for grad in ours], torch.autograd.grad(one(*leaves), leaves))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_func_second_derivative(name):
    # grad of grad, and a Jacobian in each mode of differentiation.
    tensors = inputs(name, "per-child-never-stored")

    def of_children(u):
        return loss(name, "per-child-never-stored")(u, *tensors[1:])

    hessian = torch.func.jacrev(torch.func.jacrev(of_children))(tensors[0])
    exact = torch.autograd.functional.hessian(of_children, tensors[0])
    torch.testing.assert_close(hessian, exact, rtol=1e-8, atol=1e-8)
