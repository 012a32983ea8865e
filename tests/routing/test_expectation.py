"""What EM and Heinsen routing share."""

import io
import logging

import pytest
import torch

import capsroute as cr
from capsroute.routing.expectation import log_logistic


def test_log_logistic_is_exact_and_finite_where_the_logistic_function_vanishes():
    x = torch.linspace(-700, 700, 4001, dtype=torch.float64)
    torch.testing.assert_close(log_logistic(x), torch.nn.functional.logsigmoid(x), rtol=1e-15, atol=1e-300)
    assert torch.autograd.gradcheck(log_logistic, torch.linspace(-50, 50, 11, dtype=torch.float64, requires_grad=True))
    inf = torch.tensor([torch.inf, -torch.inf])
    assert log_logistic(inf).tolist() == [0.0, -torch.inf]


class Routing(torch.nn.Module):
    """Three children of 2x2 route to two parents whose scores end far below the -18 where a sigmoid in float32 is 0."""

    def __init__(self, algorithm: str):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.W, self.algorithm = torch.randn(3, 2, 2, 2, generator=generator), algorithm
        self.low = torch.tensor([-60.0, -20.0])

    def forward(self, u):
        votes, scores = cr.LinearVotes(u, self.W), u.flatten(2).sigmoid().sum(2) / 4
        if self.algorithm == "heinsen":
            return cr.heinsen_routing(votes, scores, self.low.expand(3, 2), torch.zeros(3, 2), 2).poses
        return cr.em_routing(votes, scores, torch.zeros(2), self.low, 2, inverse_temperature=1.0).poses


@pytest.mark.parametrize("algorithm", ["em", "heinsen"])
def test_parents_with_very_low_scores_stay_apart_in_an_onnx_graph(algorithm):
    onnxruntime = pytest.importorskip("onnxruntime")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    model, u = Routing(algorithm).eval(), torch.randn(2, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    program = torch.export.export(model, (u,)).run_decompositions(cr.form.decompositions())
    file = io.BytesIO()
    torch.onnx.export(program, (u,), dynamo=True, verbose=False).save(file)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    found = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: u.numpy()})[0])
    torch.testing.assert_close(found, model(u), rtol=1e-5, atol=1e-6)
