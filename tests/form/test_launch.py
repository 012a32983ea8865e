"""Launching kernels: what is kept between calls, and what happens where a tile does not fit."""

import ast
import functools
import importlib
import inspect
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Thread, current_thread
from types import SimpleNamespace

import pytest
import torch

triton = pytest.importorskip("triton")

from triton.compiler import ASTSource  # noqa: E402

import capsroute as cr  # noqa: E402
from capsroute.form.launch import OVERLAPS, Kernel, Launch, LaunchKind, LaunchSequence  # noqa: E402
from tests.form.values import ROUTES, Values, no_plan, on_path, operands  # noqa: E402


class Compiled:
    """What Triton returns: launching it again writes down with what."""

    function, packed_metadata = "function", "metadata"

    def __init__(self, launched: list):
        self.run = lambda *args: launched.append(args)


class Jit:
    """A kernel that needs one unit of shared memory a stage, on a chip that has two."""

    arg_names = ("x", "FLAG", "NS")
    room = 2

    def __init__(self):
        self.launched: list[tuple] = []
        self.compiled_with: list[dict] = []

    def __getitem__(self, grid):
        def run(*args, **options):
            self.compiled_with.append(options)
            if options["NS"] > self.room:
                raise triton.runtime.errors.OutOfResources(options["NS"], self.room, "shared memory")
            return Compiled(self.launched)

        return run


@pytest.fixture
def kernel() -> Kernel:
    made = object.__new__(Kernel)
    made.name, made.jit = "kernel", Jit()
    return made


LAUNCH = {"grid": (4, 2, 1), "tiles": 1, "splits": 1}


def test_a_pipeline_that_does_not_fit_gets_fewer_stages_and_keeps_them(kernel):
    launch, kind, x = Launch(**LAUNCH, options={"NS": 4}), LaunchKind((0,), 7), torch.zeros(1)
    for _ in range(2):
        kernel(launch, kind, x, FLAG=True)
    assert [options["NS"] for options in kernel.jit.compiled_with] == [4, 3, 2]
    # The grid and the stream come first, arguments last; what Triton wants in between is its own affair.
    [again] = kernel.jit.launched
    assert again[:4] == (4, 2, 1, 7)
    assert again[-3:] == (x, True, 2)


@pytest.mark.parametrize("stranger", ["another version", "other attributes"])
def test_a_triton_that_is_not_known_launches_by_itself(kernel, monkeypatch, stranger):
    if stranger == "another version":
        monkeypatch.setattr(triton, "__version__", "4.0.0")
    else:
        monkeypatch.delattr(Compiled, "packed_metadata")
    launch, kind, kept = Launch(**LAUNCH, options={"NS": 1}), LaunchKind((0,), 7), {}
    for _ in range(2):
        run = LaunchSequence(kept, kind, "a")
        run(kernel, launch, torch.zeros(1), FLAG=True)
        run.end()
    assert len(kernel.jit.compiled_with) == 2  # through Triton, each time
    assert kernel.jit.launched == []
    assert not kept


def test_what_does_not_fit_at_all_is_an_error(kernel):
    kernel.jit.room = 0
    with pytest.raises(triton.runtime.errors.OutOfResources):
        kernel(Launch(**LAUNCH, options={"NS": 2}), LaunchKind((0,), 7), torch.zeros(1), FLAG=True)


def test_flags_are_told_apart_by_name_in_whichever_order_they_come(kernel):
    kernel.jit.arg_names = ("x", "FLAG", "MORE", "NS")
    launch, kind, x = Launch(**LAUNCH, options={"NS": 1}), LaunchKind((0,), 7), torch.zeros(1)
    for _ in range(2):
        kernel(launch, kind, x, FLAG=True, MORE=False)
        kernel(launch, kind, x, MORE=True, FLAG=False)
    assert len(kernel.jit.compiled_with) == 2
    assert [args[-3:-1] for args in kernel.jit.launched] == [(True, False), (False, True)]


def test_a_sequence_is_kept_for_its_key_alone(kernel):
    launch, kind, x, kept = Launch(**LAUNCH, options={"NS": 1}), LaunchKind((0,), 7), torch.zeros(1), {}
    for key in ("a", "a", "b"):
        run = LaunchSequence(kept, kind, key)
        run(kernel, launch, x, FLAG=True)
        run(kernel, launch, x, FLAG=False)
        run.end()
    assert len(kept) == 2
    assert [args[-2] for args in kernel.jit.launched] == [True, False, True, False]  # "b" finds them with the launch


def test_a_sequence_that_was_not_ended_leaves_nothing(kernel):
    kept: dict = {}
    LaunchSequence(kept, LaunchKind((0,), 7), "a")(
        kernel, Launch(**LAUNCH, options={"NS": 1}), torch.zeros(1), FLAG=True
    )
    assert not kept


class Counted:
    """A kernel's compiler, and what it was asked to compile; a stage takes a unit of shared memory."""

    def __init__(self, name="kernel", asked=None):
        self.__name__, self.asked = name, [] if asked is None else asked

    def warmup(self, *args, grid, **options):
        self.asked.append((self.__name__, options))
        return SimpleNamespace(metadata=SimpleNamespace(shared=options["NS"]))


def test_a_call_with_uncompiled_kernels_is_made_again_once_all_are_compiled(kernel, ahead, monkeypatch):
    together: list[int] = []
    monkeypatch.setattr(ahead, "compile_together", lambda missing: together.append(len(missing)))
    launch, kind, calls = Launch(**LAUNCH, options={"NS": 1}), LaunchKind((0,), 7), []

    def function(x):
        calls.append(len(kernel.jit.compiled_with))
        kernel(launch, kind, x, FLAG=True)
        kernel(launch, kind, x, FLAG=False)
        return x + 1

    x = torch.zeros(1)
    assert ahead.together(function, (x,)) == 1
    assert together == [2]
    assert calls == [0, 0]  # nothing was compiled or launched while it collected
    assert len(kernel.jit.compiled_with) == 2
    ahead.together(function, (x,))
    assert calls == [0, 0, 2]  # ready: once
    assert len(kernel.jit.launched) == 2


def test_a_launch_that_waits_keeps_no_tensor_but_says_where_one_is_not_aligned(kernel, ahead):
    launch, kind, room = Launch(**LAUNCH, options={"NS": 1}), LaunchKind((0,), 7), torch.zeros(8)
    with ahead.dry() as missing:
        kernel(launch, kind, room, FLAG=True)
        kernel(launch, kind, room[1:], FLAG=True)
    assert [each.args[0] is torch.float32 for each in missing] == [True, False]
    assert missing[1].args[0].data_ptr() % 16 == 4


def test_a_dry_call_returns_zeros_and_leaves_what_it_was_given(ahead):
    given = torch.ones(2)
    with ahead.dry():
        new, [same, view], none = ahead.together(lambda x: (torch.full((2,), torch.nan), [x, x[1:]], None), (given,))
    assert torch.equal(new, torch.zeros(2))
    assert same is given
    assert torch.equal(given, torch.ones(2))
    assert view == 1
    assert none is None


@pytest.fixture
def chip(monkeypatch):
    """What is known of one with four units of shared memory, and the launchers that were built for it."""
    built: list = []
    utils = SimpleNamespace(get_device_properties=lambda device: {"max_shared_mem": 4})
    driver = SimpleNamespace(utils=utils, get_current_device=lambda: 0, launcher_cls=lambda *of: built.append(of))
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=driver))
    return built


@pytest.fixture
def launches(ahead, monkeypatch) -> list[tuple]:
    """Name, grid and arguments of what is launched, run-time and compile-time; nothing is compiled or computed."""
    from capsroute.form import dispatch

    made: list[tuple] = []

    class Noted:
        function, packed_metadata = "function", "metadata"

        def __init__(self, kernel: Kernel, args: tuple):
            self.kernel, self.compiled_for = kernel, _specialised(kernel, args)

        def run(self, *args):
            made.append((self.kernel.name, args[:3], args[9:]))
            assert _specialised(self.kernel, args[9:]) == self.compiled_for

    def compile(self, launch, args, options):
        constants = [options[name] for name in self.jit.arg_names[len(args) :]]
        made.append((self.name, launch.grid, (*args, *constants)))
        return Noted(self, (*args, *constants)), options

    monkeypatch.setattr(ahead, "INTERPRETED", True)  # compiled as they come: a call is made once
    monkeypatch.setattr(Kernel, "_compile", compile)
    monkeypatch.setattr(dispatch, "INTERPRETED", True)  # kernels apply on a CPU
    monkeypatch.setattr(dispatch, "_known", {})
    monkeypatch.setattr("capsroute.routing.checks.can_look", lambda tensor: False)
    _forget_plans()
    yield made
    _forget_plans()  # what was noted is no kernel


def _forget_plans() -> None:
    """With all that was compiled for them."""
    for name, module in sys.modules.items():
        for found in vars(module).values() if name.startswith("capsroute.form.") else ():
            if isinstance(found, functools._lru_cache_wrapper):
                found.cache_clear()


def _specialised(kernel: Kernel, args: tuple) -> list:
    """What Triton compiles a kernel for: dtypes, addresses and numbers that are multiples of 16, ones, constants."""
    found: list = []
    for parameter, arg in zip(kernel.jit.params, args):
        if isinstance(arg, torch.Tensor):
            found.append((arg.dtype, arg.data_ptr() % 16 == 0))
        elif parameter.is_constexpr:
            found.append(arg)
        else:
            found.append(type(arg))  # a launcher that was built for a whole number takes no other
            if isinstance(arg, int) and not parameter.do_not_specialize:
                found.append((arg == 1, arg % 16 == 0))
    return found


def _comparable(made: list[tuple]) -> list[tuple]:
    """Tensors by dtype, and where in which of all storages they begin."""
    storages: dict[int, int] = {}

    def place(x):
        if not isinstance(x, torch.Tensor):
            return x
        return x.dtype, storages.setdefault(x.untyped_storage().data_ptr(), len(storages)), x.storage_offset()

    return [(name, grid, tuple(map(place, args))) for name, grid, args in made]


@pytest.mark.parametrize("algorithm", ROUTES)
def test_a_step_launches_the_same_when_it_is_made_again(launches, algorithm):
    """A later launch is the next of a list: of such a step, and of kernels that were compiled for such arguments."""

    def step(u: torch.Tensor, *more: torch.Tensor) -> list[tuple]:
        launches.clear()
        leaves = [t.detach().requires_grad_() for t in (u, *more)]
        routed = ROUTES[algorithm]("auto", *leaves)
        (routed if isinstance(routed, torch.Tensor) else routed.poses).sum().backward()
        return _comparable(launches)

    given = operands(Values(algorithm, "plain", "plain", 0))
    halves = [[t.to(dtype) if t.dim() > 2 else t for t in given] for dtype in (torch.bfloat16, torch.float16)]
    turned = [given[0].mT.contiguous().mT, *given[1:]]
    shifted = [torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape) for t in given]
    steps = [step(*tensors) for tensors in (given, *halves, turned, shifted) * 2]
    assert steps[5:] == steps[:5]
    assert steps[0]
    assert steps[0] != steps[1]


def _check_apart(step: Callable[..., list[tuple]], asked: tuple[tuple, ...]) -> None:
    """Steps in turns launch what each of them launches where nothing was kept of the others."""
    alone = []
    for which in asked:
        _forget_plans()
        alone.append(step(*which))
    assert all(alone)
    _forget_plans()
    assert [step(*which) for which in asked * 2] == alone * 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("EM", "VB"),
        ("EM, in columns", "VB, in columns"),
        ("dynamic", "max-min"),
        ("dynamic, in passes", "max-min, in passes"),
        ("dynamic, votes kept", "max-min, votes kept"),
    ],
)
def test_algorithms_of_the_same_sizes_do_not_make_each_others_launches(launches, one, other):
    """Nor does a step make those of a call without gradients, which keeps less."""

    def step(algorithm: str, learns: bool = True) -> list[tuple]:
        launches.clear()
        leaves = [t.requires_grad_(learns) for t in operands(Values(algorithm, "plain", "plain", 0))]
        poses = ROUTES[algorithm]("auto", *leaves).poses
        if learns:
            poses.sum().backward()
        return _comparable(launches)

    asked = ((one, False), (one, True), (other, False), (other, True))
    with on_path(one):
        _check_apart(step, asked)


@pytest.mark.parametrize("algorithm", ["VB", "VB, in walks", "VB, in columns", "self-routing", "self-routing, shared"])
def test_ways_back_from_other_outputs_do_not_make_each_others_launches(launches, algorithm):
    def step(*outputs: str) -> list[tuple]:
        launches.clear()
        leaves = [t.requires_grad_() for t in operands(Values(algorithm, "plain", "plain", 0))]
        routed = ROUTES[algorithm]("auto", *leaves)
        sum(getattr(routed, name).square().sum() for name in outputs).backward()
        return _comparable(launches)

    other = "variances" if algorithm.startswith("VB") else "scores"
    asked = (("poses",), ("scores",), ("poses", other), ("poses", "coefficients"))
    with on_path(algorithm):
        _check_apart(step, asked)


def test_a_way_back_with_votes_makes_no_launches_of_one_without(launches):
    """A recorded graph keeps none, and makes them again."""
    from capsroute.form.loop.calls import loop_backward, loop_forward

    u, W = operands(Values("dynamic", "plain", "plain", 0))
    made = []
    with on_path("dynamic, votes kept"):
        for keep in (True, False) * 2:
            numbers = 3, True, 0.0, 1.0, 1 / 3, False, True, None, keep
            poses, *kept = loop_forward(u, W, *numbers)
            launches.clear()
            loop_backward((torch.ones_like(poses), None), (u, W), tuple(kept), *numbers)
            made.append([name for name, _, _ in launches])
    assert made[2:] == made[:2]
    assert ["make_votes" in names for names in made] == [False, True] * 2


NUMBERS = {
    "max-min": lambda votes, n, more: cr.max_min_routing(votes, lower=n, upper=more),
    "EM": lambda votes, n, more: cr.em_routing(votes, *LAYER[2:], inverse_temperature=n, variance_floor=more),
    "Heinsen": lambda votes, n, more: cr.heinsen_routing(votes, LAYER[2], *2 * [torch.zeros(1, 3)], eps=more),
    "moments": lambda votes, n, more: votes.moments(torch.ones(2, 8, 3), more),
    "pooling": lambda votes, n, more: cr.pooling_routing(cr.IdentityVotes(LAYER[0]), sharpness=more),
}
LAYER = [torch.ones(2, 8, 1, 4), torch.ones(8, 3, 4, 4), torch.ones(2, 8), torch.zeros(3), torch.zeros(3)]


@pytest.mark.parametrize("algorithm", NUMBERS)
def test_whole_numbers_are_launched_as_any_other(launches, algorithm, monkeypatch):
    """A kernel was compiled for whole numbers where those came first, and failed with the next."""
    monkeypatch.setattr("capsroute.form.gaussian.loop.whole_walk", no_plan)  # which knows rates by another name
    for n, more in ((0, 1), (0.0, 1.0), (0.25, 0.5)):
        launches.clear()
        votes = cr.LinearVotes(*(t.clone().requires_grad_() for t in LAYER[:2]))
        NUMBERS[algorithm](votes, n, more)
        assert launches


DTYPES = (torch.float32, torch.bfloat16, torch.float64)


@pytest.mark.parametrize("question", ["moments", "log_density"])
def test_kept_launches_are_of_the_dtype_of_what_is_asked(launches, question):
    """Weights and Gaussians of another dtype were read as if they were of the first one's."""
    votes = cr.LinearVotes(*LAYER[:2])
    for dtype in DTYPES:
        launches.clear()
        pose = torch.ones(2, 3, 1, 4, dtype=dtype)
        given = (torch.ones(2, 8, 3, dtype=dtype),) if question == "moments" else (pose, pose)
        getattr(votes, question)(*given)
        assert launches


@pytest.mark.parametrize(
    ("chips", "all_can"),
    [([], True), ([(9, 0)], True), ([(10, 0), (12, 0)], True), ([(8, 9)], False), ([(9, 0), (8, 6)], False)],
    ids=str,
)
def test_kernels_come_early_where_all_chips_know_how(chips, all_can, monkeypatch):
    from capsroute.form import launch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(chips))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(chips))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda n: chips[n])
    assert launch._overlaps() == (all_can and OVERLAPS.value)
    monkeypatch.setattr(launch, "INTERPRETED", True)
    assert not launch._overlaps()


def test_every_kernel_waits_its_turn_before_all_else():
    """Also those that no small layer asks for: what they read may not be written yet."""
    for kernel in _all_kernels():
        [function] = ast.parse(textwrap.dedent(inspect.getsource(kernel.jit.fn))).body
        first = function.body[ast.get_docstring(function) is not None]
        assert ast.unparse(first) == "in_turn()", kernel.name


def _all_kernels() -> list[Kernel]:
    importlib.import_module("capsroute.form.kernels")
    modules = [module for name, module in sys.modules.items() if name.startswith("capsroute.form.")]
    return [found for module in modules for found in vars(module).values() if isinstance(found, Kernel)]


together = pytest.mark.skipif(not hasattr(triton, "AsyncCompileMode"), reason="this Triton compiles one by one")


@together
@pytest.mark.usefixtures("chip")
def test_kernels_that_differ_are_compiled_once_each(ahead):
    jit, x = Counted(), torch.zeros(1)
    missing = [ahead.Missing(jit, (1, 1, 1), (x, 3), {"NS": stages}) for stages in (1, 1, 2)]
    assert ahead.compile_together(missing) == 2
    assert [options["NS"] for _, options in jit.asked] == [1, 2]


@pytest.mark.parametrize("jit", [SimpleNamespace(), SimpleNamespace(device_caches={0: None}, ASTSource=dict)])
@pytest.mark.usefixtures("chip")
def test_a_triton_with_other_names_compiles_in_whichever_order(ahead, jit):
    before = dict(vars(jit))
    with ahead._taking_turns(jit):
        assert vars(jit) == before


@together
@pytest.mark.usefixtures("chip")
def test_the_slowest_kernels_are_compiled_first(ahead):
    asked: list[tuple] = []
    names = ("squash_rows", "forward_pass", "sum_and_squash", "vote_gradients")
    ahead.compile_together([ahead.Missing(Counted(name, asked), (1, 1, 1), (), {"NS": 1}) for name in names])
    assert [name for name, _ in asked] == ["forward_pass", "vote_gradients", "squash_rows", "sum_and_squash"]


def test_what_is_compiled_first_is_there(ahead):
    assert set(ahead.LONGEST) <= {kernel.name for kernel in _all_kernels()}


@pytest.mark.usefixtures("chip")
def test_what_does_not_fit_is_compiled_with_fewer_stages_before_it_is_launched(ahead):
    jit = Counted()
    with ahead._Compilers(1) as pool:
        for stages in (2, 6):
            pool.each = ahead.Missing(jit, (1, 1, 1), (), {"NS": stages})
            compiled = SimpleNamespace(src="source", metadata=SimpleNamespace(shared=stages))
            assert pool.submit(lambda compiled=compiled: compiled).result() is compiled
    assert [options["NS"] for _, options in jit.asked] == [5, 4]


def test_python_works_on_one_kernel_at_a_time_and_launchers_are_built_meanwhile(ahead, chip, monkeypatch):
    """All at once, the slowest would wait for all others before its passes begin."""
    at_once, most = [], []

    def make_ir(source, *args):
        at_once.append(source)
        time.sleep(0.01)
        most.append(len(at_once))
        at_once.remove(source)

    monkeypatch.setattr(ASTSource, "make_ir", make_ir)
    jit = SimpleNamespace(device_caches={0: None}, ASTSource=ASTSource)
    with ahead._taking_turns(jit):
        sources = [object.__new__(jit.ASTSource) for _ in range(4)]
    assert jit.ASTSource is ASTSource  # what is compiled as it comes waits for nobody
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda source: source.make_ir(), sources))
    assert most == [1] * 4
    for source in sources:
        source.building.join()
    assert {id(source) for source, _ in chip} == set(map(id, sources))


@pytest.mark.usefixtures("chip")
def test_a_launcher_that_is_being_built_is_not_built_beside(ahead, monkeypatch):
    made: list[str] = []

    def build(source, metadata):
        made.append("begin")
        time.sleep(0.05)
        made.append("end")

    monkeypatch.setattr(ASTSource, "make_ir", lambda source: None)
    monkeypatch.setattr(triton.runtime.driver.active, "launcher_cls", build)
    source = object.__new__(ahead._InTurn)
    source.make_ir()
    ahead._with_launcher(lambda: SimpleNamespace(src=source, metadata="metadata"), None)
    assert made == ["begin", "end"] * 2


def test_launchers_are_built_in_the_threads_that_compile(ahead, monkeypatch):
    """At the launch they would be built one after another."""
    built = []
    driver = SimpleNamespace(active=SimpleNamespace(launcher_cls=lambda *of: built.append((of, current_thread().name))))
    monkeypatch.setattr(triton.runtime, "driver", driver)
    compiled = SimpleNamespace(src="source", metadata="metadata")
    with ahead._Compilers(1, "compiler") as pool:
        assert pool.submit(lambda: compiled).result() is compiled
    assert built == [(("source", "metadata"), "compiler_0")]


def test_where_triton_cannot_compile_ahead_kernels_wait_for_their_launch(ahead, monkeypatch):
    monkeypatch.delattr(triton, "AsyncCompileMode", raising=False)
    jit, x = Counted(), torch.zeros(1)
    missing = [ahead.Missing(jit, (1, 1, 1), (x, 3), {"NS": stages}) for stages in (1, 1, 2)]
    assert ahead.compile_together(missing) == 2
    assert jit.asked == []


def test_a_dry_run_is_of_its_own_thread_which_runs_backward_passes_too(kernel, ahead):
    """Zeros in another thread's step would be a wrong step of training."""
    launch, kind, x = Launch(**LAUNCH, options={"NS": 1}), LaunchKind((0,), 7), torch.ones(1)
    with ahead.dry() as missing:
        assert not torch._C._is_multithreading_enabled()  # so much can be seen without a GPU
        other = Thread(target=lambda: ahead.together(lambda x: kernel(launch, kind, x, FLAG=True), (x,)))
        other.start()
        other.join()
        ahead.together(lambda x: kernel(launch, kind, x, FLAG=False), (x,))
    assert torch._C._is_multithreading_enabled()
    assert [each.options["FLAG"] for each in missing] == [False]
    assert len(kernel.jit.compiled_with) == 1


@pytest.mark.usefixtures("many_products")
def test_a_kept_list_of_launches_is_of_its_scale(monkeypatch):
    """A scale of one leaves out a launch: a list that was kept without it lacked one for the next scale."""
    ran: list[tuple] = []
    monkeypatch.setattr("capsroute.form.dispatch.INTERPRETED", True)  # kernels apply on a CPU; nothing is launched
    monkeypatch.setattr("capsroute.form.ahead.INTERPRETED", True)
    monkeypatch.setattr(Kernel, "_compile", lambda self, launch, args, options: (Compiled(ran), options))
    attention = importlib.import_module("capsroute.form.attention.calls")
    u, W, parents = torch.randn(3, 2, 4, 4), torch.randn(2, 2, 4, 4), torch.randn(3, 2, 4, 4)
    made = []
    for scale in (1.0, 0.5, 1.0, 0.5):
        ran.clear()
        attention.attention_backward((parents,), (u, W, parents), (), scale, (1, 1, 0), False)
        made.append(len(ran))
    assert made[3] == made[2] + 1  # in the first round they are compiled, and run by that
