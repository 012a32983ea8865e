"""The questions that the page asks of a model: what is it, what would this capsule look like, how was it routed."""

from __future__ import annotations

import copy
import threading
from typing import Any

import torch
from torch import Tensor

from capsroute.analysis import child_places, spread, trace_routing
from capsroute.analysis.heatmaps import step_maps
from capsroute.analysis.parse_tree import primary_shares
from capsroute.analysis.tracing import Traced
from capsroute.explorer.exhibit import Exhibit
from capsroute.explorer.pictures import Refused, as_message, as_mnist, to_shape
from capsroute.routing import lengths

__all__ = ["Engine"]

FOUND = 0.5  # a second object counts as found from this probability


class Engine:
    """Answers, as plain data, about the model of an exhibit.

    >>> import torch
    >>> from capsroute.explorer.engine import Engine
    >>> from capsroute.explorer.exhibit import load_exhibit
    >>> engine = Engine(load_exhibit())
    >>> sorted(engine.predict(torch.zeros(1, 28, 28)))
    ['dynamic', 'fast', 'found', 'seen']
    """

    def __init__(self, exhibit: Exhibit):
        self.exhibit, self.model = exhibit, exhibit.model
        self.places = self._find_places()
        # Whoever watches a model route sees everything it does: a copy that nobody else asks, one question at a time.
        self._watched, self._watching = copy.deepcopy(self.model), threading.Lock()
        # A first question that nobody waits for: the next ones find everything warm.
        first = self.predict(torch.zeros(self.model.input_shape))
        self.pose_numbers = len(first["found"][0]["pose"] or ())

    def describe(self) -> dict[str, Any]:
        """All that the page needs to know before anything is drawn."""
        exhibit, (channels, height, width) = self.exhibit, self.model.input_shape
        return {
            "title": exhibit.title,
            "model": self.model.name,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "classes": list(exhibit.classes),
            "shape": {"channels": channels, "height": height, "width": width},
            "objects": exhibit.objects,
            "centred": exhibit.centred,
            "decoder": self.model.decoder is not None,
            "routing": self.places is not None,
            "samples": [
                {"label": label, "image": as_message(image.float() / 255)}
                for image, label in zip(exhibit.samples, exhibit.labels)
            ],
        }

    def see(self, image: Tensor, centre: bool) -> Tensor:
        """Any image [c,h,w] as the model gets to see it; `centre` makes a drawing look like MNIST."""
        shape = self.model.input_shape
        if centre and shape[0] == 1 and shape[1] == shape[2]:
            return as_mnist(to_grey(image), shape[1])
        return image if image.shape == shape else to_shape(image, shape)

    @torch.no_grad()
    def predict(self, image: Tensor) -> dict[str, Any]:
        """Class probabilities with and without routing, and each object that is found."""
        batch = self._normalised(image)[None]
        output = self.model(batch)
        probabilities = self._probabilities(output.scores)[0]
        fast = self.exhibit.fast
        return {
            "seen": as_message(image),
            "dynamic": probabilities.tolist(),
            "fast": None if fast is None else self._probabilities(fast(batch).scores)[0].tolist(),
            "found": [self._capsule(output.poses, name) for name in self._found(probabilities)],
        }

    @torch.no_grad()
    def reconstruct(self, name: int, pose: list[float]) -> dict[str, Any]:
        """The decoder's picture of one class capsule with this pose."""
        if self.model.decoder is None:
            raise Refused("This model has no decoder.")
        classes = len(self.exhibit.classes)
        if not 0 <= name < classes or len(pose) != self.pose_numbers:
            raise Refused(f"capsule: expected a class and {self.pose_numbers} numbers, got {name!r} and {len(pose)}")
        poses = torch.zeros(1, classes, 1, self.pose_numbers)
        poses[0, name, 0] = torch.tensor(pose)
        return {"picture": as_message(self.model.decoder(poses, torch.tensor([name]))[0])}

    @torch.no_grad()
    def route(self, image: Tensor) -> dict[str, Any]:
        """Iteration by iteration: the class capsules' lengths, and over the image where each gets its votes from."""
        if self.places is None:
            raise Refused("This model's capsules do not lie in a map over the image.")
        with self._watching:
            traced = trace_routing(self._watched, self._normalised(image)[None])
        *_, last = traced.layers.values()
        iterations = len(last.steps)
        return {
            "lengths": [lengths(step.routed.poses)[0].tolist() for step in last.steps],
            "shares": [self._heat(self._share_map(traced, at)) for at in range(iterations)],
            "coefficients": self._coefficients(traced),
        }

    def _coefficients(self, traced: Traced) -> list[dict[str, Any]] | None:
        """Of networks with one routed layer: only there do coefficients lead from places to classes."""
        traces = list(traced.layers.values())
        if len(traces) != 1:
            return None
        return [self._heat(step_maps(traces[0], at)[0]) for at in range(len(traces[0].steps))]

    def _share_map(self, traced: Traced, iteration: int) -> Tensor:
        primary = next(iter(traced.layers.values())).children[0]
        shares = primary_shares(traced, iteration)[0].unflatten(1, (primary.shape[1], *primary.shape[4:]))
        return shares.sum(1).clamp_min(0)  # [class, h, w]

    def _heat(self, maps: Tensor) -> dict[str, Any]:
        """Maps [class,h,w] over the image's pixels, as bytes: 255 is `most` of a class; `box` is where they lie."""
        assert self.places is not None
        pixels = spread(maps, self.places, self.model.input_shape[1:])
        rows, columns = (~pixels[0].isnan()).nonzero().unbind(1)
        (top, bottom), (left, right) = ((int(at.min()), int(at.max()) + 1) for at in (rows, columns))
        inside = pixels[:, top:bottom, left:right]
        most = inside.amax((1, 2)).clamp_min(1e-12)
        messages = [as_message(one[None] / peak) for one, peak in zip(inside, most)]
        return {"most": most.tolist(), "box": [top, left, bottom, right], "maps": messages}

    def _find_places(self):
        if not self.model.routed_layers():
            return None
        try:
            return child_places(self.model)
        except ValueError:  # the first routed layer's children are a list
            return None

    def _normalised(self, image: Tensor) -> Tensor:
        if self.exhibit.normalise is None:
            return image
        mean, std = self.exhibit.normalise
        return (image - mean) / std

    def _probabilities(self, scores: Tensor) -> Tensor:
        if self.model.score_kind != "logit":
            return scores
        return scores.softmax(1) if self.exhibit.objects == 1 else scores.sigmoid()

    def _found(self, probabilities: Tensor) -> list[int]:
        """The most likely class, and of images with more objects the next ones if they are likely enough."""
        best = probabilities.topk(min(self.exhibit.objects, len(probabilities))).indices.tolist()
        return [name for rank, name in enumerate(best) if rank == 0 or probabilities[name] >= FOUND]

    def _capsule(self, poses: Tensor | None, name: int) -> dict[str, Any]:
        capsule: dict[str, Any] = {"class": name, "pose": None, "picture": None}
        if poses is not None:
            capsule["pose"] = poses[0, name].flatten().tolist()
            if self.model.decoder is not None:
                capsule["picture"] = as_message(self.model.decoder(poses, torch.tensor([name]))[0])
        return capsule


def to_grey(image: Tensor) -> Tensor:
    """An image [c,h,w] as [1,h,w]."""
    return to_shape(image, (1, image.shape[1], image.shape[2]))
