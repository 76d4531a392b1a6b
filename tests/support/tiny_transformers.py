"""Tiny models of transformers, of which `benchmarks/tiny_models` has the families."""

from contextlib import contextmanager

import torch
from tiny_models.compare import logits
from tiny_models.models import FAMILIES, build, prompt


def made(name):
    """A model, its inputs, and its logits."""
    model, inputs = build(FAMILIES[name]), prompt(FAMILIES[name])
    return model, inputs, logits(model, inputs)


def off(model, inputs, right, **more):
    """How far logits of a model are from others."""
    return float((logits(model, inputs, **more) - right).abs().max())


@contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
