"""What kernels are compiled to, for a GPU that need not be there."""

import functools
import itertools
import re
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

import capsroute as cr  # noqa: E402
from capsroute.bench.grid import COUNTS, points  # noqa: E402
from capsroute.bench.measure import DTYPES  # noqa: E402
from capsroute.form.gaussian.gradients import slopes  # noqa: E402
from capsroute.form.gaussian.plain import HEINSEN  # noqa: E402
from capsroute.form.launch import COMPILED, OVERLAPS, Kernel  # noqa: E402
from capsroute.form.launches.gaussian_votes import walk  # noqa: E402
from capsroute.form.sizes import Sizes  # noqa: E402
from tests.form.values import ROUTES, Values, on_path, operands  # noqa: E402

SMALL = ("blame", "moments_table")  # kernels, of which there is one for each set of gradients that can come


def _one_contraction(backend, u, W):
    q = torch.ones(u.shape[0], W.shape[1], u.shape[2], W.shape[3])
    return cr.form.agreement(u, W, q, backend=backend)


@pytest.fixture
def collected(ahead, monkeypatch):
    """What a training step of an algorithm would compile, forward and back: two lists. Nothing is computed."""
    from capsroute.form import dispatch

    rounds: list[list] = []
    monkeypatch.setattr(ahead, "compile_together", rounds.append)
    monkeypatch.setattr(Kernel, "_compile", lambda self, launch, args, options: (None, options))
    monkeypatch.setattr(dispatch, "INTERPRETED", True)  # kernels apply on a CPU
    monkeypatch.setattr(dispatch, "_known", {})
    monkeypatch.setattr("capsroute.routing.checks.check_no_nan", lambda *_: None)
    monkeypatch.setattr("capsroute.routing.routed.check_no_nan", lambda *_: None)

    def collect(route: Callable, tensors: Iterable[torch.Tensor], algorithm: str = "") -> tuple[list, list]:
        with on_path(algorithm):
            routed = route(*(t.requires_grad_() for t in tensors))
            forward = list(itertools.chain(*rounds))
            rounds.clear()
            (routed if isinstance(routed, torch.Tensor) else routed.poses).sum().backward()
        backward = list(itertools.chain(*rounds))
        rounds.clear()
        return forward, backward

    return collect


def _small(algorithm: str) -> tuple[Callable, list[torch.Tensor], str]:
    """A layer that the interpreter runs, its tensors, and which way it takes."""
    route = {**ROUTES, "a contraction": _one_contraction}[algorithm]
    return functools.partial(route, "auto"), operands(Values(algorithm, "plain", "plain", 0)), algorithm


SLOW = ("conv", "dynamic, in passes", "max-min, in passes")  # attention takes the passes, too


@pytest.mark.parametrize("algorithm", [*ROUTES, "a contraction"])
def test_a_training_step_compiles_its_backward_kernels_with_the_forward_ones(collected, algorithm):
    """Every kernel that a backward pass launches was collected in the forward pass."""
    forward, backward = ({_form(each) for each in missing} for missing in collected(*_small(algorithm)))
    assert forward
    late = {form for form in backward - forward if form[0] not in SMALL}
    assert not late


@pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=pytest.mark.slow if name.startswith(SLOW) else ()) for name in ROUTES]
)
def test_what_the_interpreter_runs_compiles_for_a_gpu(collected, algorithm):
    """Python lets a name be a number here and a tensor there; a compiler does not, and needs no GPU to say so."""
    forward, backward = collected(*_small(algorithm))
    different = {_form(each): each for each in forward + backward}
    for missing in different.values():
        compiled = _compiled(missing)
        _check_turn(compiled.asm["ptx"])
        assert getattr(compiled.metadata, "launch_pdl", False) == OVERLAPS.value


def test_products_are_fused_into_sums_whatever_a_triton_does_unasked(collected):
    """Triton 3.9 warns that its next version will not, and kernels would take longer."""
    assert all(each.options["enable_fp_fusion"] for each in itertools.chain(*collected(*_small("dynamic"))))


class _Generator:
    """Of no numbers."""

    device = "meta"

    def __init__(self, where: str):
        self.manual_seed = lambda seed: self


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", COUNTS)
def test_kernels_of_the_grid_compile_for_a_gpu(collected, algorithm, monkeypatch):
    """Triton 3.6 failed on a kernel where a program holds one parent, and on no other: of each kernel all that differ
    in which of its sizes are one."""
    monkeypatch.setattr(torch, "Generator", _Generator)
    monkeypatch.setattr(torch, "randn", lambda shape, **_: torch.empty(shape, device="meta"))
    different = {}
    for point in points():
        if point.case.algorithm == algorithm:
            tensors = point.case.tensors(DTYPES[point.dtype], "meta").values()
            forward, backward = collected(point.case.ours(), tensors)
            different |= {_ones(each): each for each in forward + backward}
    assert different
    for missing in different.values():
        _compiled(missing)


def _ones(missing) -> tuple:
    """A kernel, its dtypes, and how it is compiled, sizes apart."""
    name, _, dtypes = _form(missing)
    options = [(key, x == 1 if type(x) is int else x) for key, x in sorted(missing.options.items())]
    return name, str(options), dtypes


def _check_turn(ptx: str) -> None:
    """Where a kernel comes onto the chip early, it waits for those before it: what it reads is written, what it writes
    over is read."""
    waits = ptx.find("griddepcontrol.wait")
    assert (waits >= 0) == OVERLAPS.value
    assert waits < min(found.start() for found in re.finditer(r"(ld|st|red|atom)\.global|cp\.async", ptx))


def _votes_lie(use: torch.dtype) -> list[str]:
    """How what `slopes` sums over votes is spread over threads, with betas of a dtype."""
    s = Sizes(4, 8192, 32, 1, 16, 32)
    tensors = [use if name in ("use", "other") else torch.float32 for name in slopes.jit.arg_names[:14]]
    options = {**walk(s).options, "KIND": HEINSEN, "LAST": True, "SHARES": False}
    numbers = [1.0 if name == "eps" else 1 for name in slopes.jit.arg_names[14:25]]
    missing = SimpleNamespace(jit=slopes.jit, args=(*tensors, *numbers), options=options)
    made = _compiled(missing).asm["ttgir"]
    layouts = dict(re.findall(r"^(#\w+) = (#ttg.*)$", made, re.MULTILINE))
    [loop] = re.findall(r"scf\.for .* -> \((.*)\)", made)
    return [layouts[name] for name in re.findall(r"tensor<1x32x32xf32, (#\w+)>", loop)[:2]]


def test_betas_in_half_precision_do_not_decide_where_votes_lie():
    """Votes went through shared memory to lie as betas do: a walk back took eight times as long as one forward."""
    assert _votes_lie(torch.bfloat16) == _votes_lie(torch.float16) == _votes_lie(torch.float32)


def test_rows_of_a_pose_are_read_together(ahead):
    """For every load Triton looks at all that depends on it and all that it depends on: unrolled, 181 took 1.8 s."""
    from capsroute.form.gaussian.registers.gradients import vote_gradients

    pose = {"A": 4, "K": 4, "O": 4, "IC": 1, "JT": 32, "BIAS": True, "BETA": False, "STEP": True, "num_warps": 1}
    missing = ahead.Missing(vote_gradients.jit, (1, 1, 1), (*[torch.float32] * 11, *[2] * 7), pose)
    found = _compiled(missing)
    assert len(re.findall(r"tt\.(?:load|store) .*tensor<", found.asm["ttir"])) < 80
    assert found.metadata.shared == 0  # all stays where it is: parents in lanes, rows in a thread


def test_children_are_put_in_the_order_of_a_left_operand_once_for_all_parents(ahead):
    """Done for every parent, Triton follows three operations more of each from every load and every product."""
    from capsroute.form.launches.lists import loop_plan
    from capsroute.form.loop.passes import forward_pass

    parents = 4
    options = loop_plan(Sizes(32, 32, parents, 1, 8, 16), torch.float32, "tf32").forward.options
    args = (*[torch.float32] * 6, *[2] * 5, 0.0, 1.0, 0)
    missing = ahead.Missing(forward_pass.jit, (1, 1, 1), args, {**options, "SOFTMAX": True, "STORE": True})
    found = _compiled(missing)
    assert found.asm["ttir"].count("tt.reshape") <= 2 + 2 * parents


TYPES = {torch.float64: "*fp64", torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}


def _compiled(missing) -> Any:
    """A kernel with the types of a launch's arguments; tensors are aligned."""
    names = missing.jit.arg_names
    types = {
        name: TYPES[arg] if isinstance(arg, torch.dtype) else "fp32" if isinstance(arg, float) else "i32"
        for name, arg in zip(names, missing.args)
    }
    fixed = {name: value for name, value in missing.options.items() if name in names}
    constants = {(names.index(name),): value for name, value in fixed.items()}
    aligned = {(n,): [["tt.divisibility", 16]] for n, arg in enumerate(missing.args) if isinstance(arg, torch.dtype)}
    source = ASTSource(missing.jit, {**types, **dict.fromkeys(fixed, "constexpr")}, constants, aligned)
    options = {name: value for name, value in (COMPILED | missing.options).items() if name not in names}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def _form(missing) -> tuple:
    dtypes = tuple(arg for arg in missing.args if isinstance(arg, torch.dtype))
    return missing.jit.fn.__name__, str(sorted(missing.options.items(), key=str)), dtypes
