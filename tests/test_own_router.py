"""A routing algorithm of one's own, in twenty lines: as good as ours everywhere, and clear about what it cannot do."""

import pytest
import torch

import capsroute as cr
from capsroute.layers import CapsuleLinear, Router, register_routing
from capsroute.training import Run, SilentReporter, fit


class NearestRouter(Router):
    """Children vote for the parents that their votes are nearest to; far children count less for all parents."""

    activation = "squash"
    competes_over = "parents"

    def __init__(self, iterations: int = 2, width: float = 1.0):
        super().__init__()
        self.iterations, self.width = iterations, width

    def forward(self, votes, scores=None, **options):
        c = votes.filled(1 / votes.parents)
        for iteration in range(self.iterations):
            total = votes.aggregate(c)
            if iteration < self.iterations - 1:
                c = (votes.agreement(cr.squash(total, (2, 3))) / self.width).softmax(2)
        strength = 1 + c.amax(2).mean(1)[:, None, None, None]  # not a weighted sum of votes and nothing else
        return cr.Routed(cr.squash(total * strength, (2, 3)), c)

    def uniform(self):
        return self.altered(iterations=1)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    registry = cr.layers.router._ROUTERS
    before = dict(registry)
    register_routing("nearest")(NearestRouter)
    recipe = cr.training.load_recipe(
        "quickstart",
        ["training.max_steps=60", "evaluation.pictures=false", 'model.arguments.routing={name="nearest", width=0.5}'],
    )
    yield fit(None, None, recipe, tmp_path_factory.mktemp("own") / "run", reporter=SilentReporter())
    registry.clear()
    registry.update(before)


def test_it_trains_in_a_model_by_its_name(run):
    assert run.model.class_capsules.routing.config() == {"name": "nearest", "iterations": 2, "width": 0.5}
    assert run.accuracy > 0.5
    images = torch.rand(2, 1, 8, 8)
    again = cr.training.load_run(run.folder)[1]
    assert torch.equal(again(images).scores, run.model(images).scores)


def test_it_is_evaluated_beside_its_own_uniform_control(run):
    assert set(run.result["test"]) == {"as_trained", "uniform"}
    assert "NearestRouter.takes_coefficients" in run.result["refusals"]["fast"]
    uniform = Run(run.folder).variants()["uniform"]
    images = torch.rand(2, 1, 8, 8)
    as_trained, equal = (model(images, return_coefficients=True) for model in (run.model, uniform))
    assert equal.coefficients["class_capsules"].unique().tolist() == pytest.approx([0.1])
    assert not torch.allclose(as_trained.scores, equal.scores, atol=1e-4)


def test_it_is_drawn(run, tmp_path):
    wanted, states = ["coupling_maps", "parse_tree", "routing_convergence", "by_iterations", "robustness"], {}
    cr.analysis.draw_run(
        run.folder,
        tmp_path,
        wanted,
        images=20,
        report=lambda drawn: states.update({drawn.figure.name: drawn.refusal}),
    )
    assert states == dict.fromkeys(wanted)


def test_what_it_cannot_do_is_refused_with_the_attribute_to_set(run):
    reason = "routing: 'nearest' does not say its takes_coefficients; set NearestRouter.takes_coefficients to True, or"
    for attempt in (
        lambda: cr.inference.fold(run.model, "uniform"),
        lambda: cr.inference.with_coefficients(run.model, {"class_capsules": torch.ones(32, 10)}),
        lambda: cr.inference.accumulate(run.model, cr.data.load("digits", "validation")),
    ):
        with pytest.raises(ValueError, match=reason):
            attempt()
    assert Run(run.folder).accumulate() is None


def test_without_a_control_of_its_own_the_result_says_so(run):
    class Shy(NearestRouter):
        uniform = Router.uniform

    model = cr.load_model(run.folder / "best")
    model.class_capsules.routing = Shy()
    model.class_capsules.routing.name = "shy"
    opened = Run(run.folder, model=model)
    assert list(opened.variants()) == ["as_trained"]
    assert "define Shy.uniform" in opened.refusals["uniform"]


def test_what_it_says_is_believed():
    class Sum(NearestRouter):
        name = "sum"
        takes_coefficients = True
        container_rows = "softmax"

    layer = CapsuleLinear(6, 3, 4, 4, routing=Sum())
    assert cr.inference.refusal(layer) is None
