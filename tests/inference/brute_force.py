"""Accumulation as the paper describes it (Zhao 2019, section 5), storing every matrix, in numpy and plain loops."""

import numpy as np
import torch


def stored_coefficients(model, batches, name, iterations=None):
    """All coefficient matrices [n,i,j] (positions averaged), labels [n] and scores [n,classes], in float64."""
    layer = model.routed_layers()[name]
    usual = layer.routing.iterations
    matrices, labels, scores = [], [], []
    for images, batch_labels in batches:
        with torch.no_grad():
            scores.append(model(images).scores.double().numpy())
            layer.routing.iterations = iterations or usual
            c = model(images, return_coefficients=True).coefficients[name].double().numpy()
            layer.routing.iterations = usual
        matrices.append(c.mean((1, 2)) if c.ndim == 5 else c)
        labels.append(batch_labels.numpy())
    return np.concatenate(matrices), np.concatenate(labels), np.concatenate(scores)


def max_min_rows(matrix):
    low, high = matrix.min(1, keepdims=True), matrix.max(1, keepdims=True)
    return (matrix - low) / (high - low)


def softmax_rows(matrix):
    weights = np.exp(matrix)
    return weights / weights.sum(1, keepdims=True)


def master_of_class_layer(matrices, labels, normalise, keep=None):
    keep = np.ones(len(labels), bool) if keep is None else keep
    master = np.zeros(matrices.shape[1:])
    for label in range(matrices.shape[2]):
        own = [c for c, y, k in zip(matrices, labels, keep) if y == label and k]
        container = normalise(sum(own) / len(own))
        master[:, label] = container[:, label]
    return master


def master_of_ground_truth_columns(matrices, labels, normalise):
    container = np.zeros(matrices.shape[1:])
    for label in range(matrices.shape[2]):
        own = [c[:, label] for c, y in zip(matrices, labels) if y == label]
        container[:, label] = sum(own) / len(own)
    return normalise(container)


def correlation(x, y):
    return np.corrcoef(x, y)[0, 1]
