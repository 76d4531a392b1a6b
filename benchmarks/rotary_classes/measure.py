"""The result for each class that is found."""

from dataclasses import replace

import numpy as np
import torch

from .classes import found, message, targets
from .deviations import NOT_ROTATIONS
from .outcomes import outcomes
from .rows import Outcome, Result, is_known


def measure(quick, only=()):
    """Yield a result for each class, or for those of these names and folders."""
    for folder, file, name in found():
        if only and name not in only and folder not in only:
            continue
        reason = ""
        try:
            rows = list(outcomes(folder, file, name, quick))
            if name in NOT_ROTATIONS:
                low, high = norms(folder, file, name)
                reason = f"{NOT_ROTATIONS[name]}: lengths change by {low:.3f} to {high:.3f}"
        except ImportError as error:
            rows, reason = [], f"cannot be imported: {message(error)}"
        except Exception as error:
            # What a class of another version needs is not known.
            rows = [Outcome(name, "default", None, "wrong" if is_known() else "unknown", {}, message(error))]
        yield Result(name, rows, reason)


def norms(folder, file, name):
    """The smallest and largest factor by which a class that is no rotation changes the length of a token's vector."""
    target = next(targets(folder, file, name))
    run = target.run(target.default)
    run = replace(run, subject=replace(target.subject, equal_axes=False))  # where all are equal, it may be a rotation
    seen = target.subject.drive(run)
    x = np.random.default_rng(0).normal(size=(3, seen.heads, seen.positions.shape[-1], seen.dim)).astype(np.float32)
    ratio = np.linalg.norm(seen.rotate(*torch.tensor(x))[0].numpy(), axis=-1) / np.linalg.norm(x[0], axis=-1)
    return float(ratio.min()), float(ratio.max())
