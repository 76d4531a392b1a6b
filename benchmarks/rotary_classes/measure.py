"""The results of all classes."""

from dataclasses import replace

import numpy as np
import torch
from common import message

from .classes import found, targets
from .deviations import NOT_ROTATIONS
from .observe import vectors
from .outcomes import outcomes
from .rows import Outcome, Result, is_known


def measure(quick, only=()):
    """Yield the result of each class, or of classes with these names or in these folders."""
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
            # Another version of transformers may have classes that need more than a config.
            rows = [Outcome(name, "default", None, "wrong" if is_known() else "unknown", {}, message(error))]
        yield Result(name, rows, reason)


def norms(folder, file, name):
    """The smallest and largest ratio of a rotated vector's norm to its norm before: 1 for a rotation."""
    target = next(targets(folder, file, name))
    run = target.run(target.default)
    run = replace(run, subject=replace(target.subject, equal_axes=False))  # with equal positions it may be a rotation
    observation = target.subject.observer(run)
    x = vectors(observation, np.random.default_rng(0).normal)
    ratio = np.linalg.norm(observation.rotate(*torch.tensor(x))[0].numpy(), axis=-1) / np.linalg.norm(x[0], axis=-1)
    return float(ratio.min()), float(ratio.max())
