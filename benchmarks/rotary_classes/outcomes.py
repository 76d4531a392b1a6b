"""The outcome of every changed config of every class."""

import re
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from common import message

from .cases import Case, cases, stem
from .classes import ROTARY, found, labels, plain, targets
from .deviations import NOT_ROTATIONS, REFUSAL, reason_for
from .layers import LAYERED, layers
from .observe import check, observe, vectors
from .reading import FAMILIES, read_case, read_file, read_or_none
from .rows import Outcome, Result, is_known

COMPAT = "5.18."  # the versions whose bugs `compat` reproduces


def measure(quick, only=(), mapped=map):
    """Yield the result of each class, or of classes with these names or in these folders; `mapped` may run several."""
    chosen = [each for each in found() if not only or each[2] in only or each[0] in only]
    yield from mapped(partial(result, quick), chosen)


def result(quick, target):
    """The result of one class, of which `found` says where it is."""
    folder, file, name = target
    reason = ""
    try:
        rows = list(outcomes(folder, file, name, quick))
        if name in NOT_ROTATIONS:
            low, high = norms(next(targets(folder, file, name)))
            reason = f"{NOT_ROTATIONS[name]}: lengths change by {low:.3f} to {high:.3f}"
    except ImportError as error:
        rows, reason = [], f"cannot be imported: {message(error)}"
    except Exception as error:
        # Another version of transformers may have classes that need more than a config.
        rows = [Outcome(name, "default", None, "wrong" if is_known() else "unknown", {}, message(error))]
    return Result(name, rows, reason)


def norms(target):
    """The smallest and largest ratio of a rotated vector's norm to its norm before: 1 for a rotation."""
    run = target.run(target.default)
    run = replace(run, subject=replace(target.subject, equal_axes=False))  # with equal positions it may be a rotation
    observation = target.subject.observer(run)
    x = vectors(observation, np.random.default_rng(0).normal)
    ratio = np.linalg.norm(observation.rotate(*torch.tensor(x))[0].numpy(), axis=-1) / np.linalg.norm(x[0], axis=-1)
    return float(ratio.min()), float(ratio.max())


def outcomes(folder, file, name, quick):
    """Every case of one class."""
    every = list(targets(folder, file, name))
    for target in every:
        yield from outcomes_of(target, quick)
    if stem(name) in LAYERED:
        yield from layers(every[0])


def outcomes_of(target, quick):
    subject, name, default = target.subject, target.config_name, target.default
    pairs = {}
    for label in labels(default):
        try:
            observation = observe(target.run(default, label), checked=False)[0]
            pairs[label] = 0 if observation.cos is None else observation.cos.shape[-1]
        except Exception as error:
            yield Outcome(name, "default", label, "refused upstream", note=message(error))
    if not pairs:
        return
    if subject.unrotated:
        yield not_rotated(name, "not rotated", read_file(subject, target.config(needs={}).to_dict(), None))
    if not (default.model_type in FAMILIES or subject.part or target.cls.__name__ in NOT_ROTATIONS):
        yield Outcome(name, "default", None, "unknown", note=f"model_type {default.model_type!r} is not in FAMILIES")
        return
    for case in cases(target, pairs, quick):
        if not re.search(subject.skip, case.name):
            for label in pairs:
                yield outcome(target, case, label)
    yield from unstated(target)


def not_rotated(name, case, rope):
    """The outcome of a config that rotates nothing."""
    return Outcome(name, case, None, *(("agrees",) if rope is None else ("wrong", {}, f"rope_xp has {rope}")))


@dataclass(frozen=True)
class Comparison:
    """One config of a class for one layer type: observations of transformers, and how rope_xp reads it.

    If `lenient`, rope_xp may raise, also with `compat`.
    """

    target: Any
    case: Case
    observations: Any
    read: Any  # a function from `compat` to the embedding of rope_xp
    without_key: Any = None  # two functions: the observation and the embedding without the key of the case
    lenient: bool = False

    def judged(self):
        """The rest of an `Outcome`.

        If rope_xp differs, the reason must be an entry of `DEVIATIONS`, a config that contradicts itself, or a key that
        transformers does not read and `describe` names.
        """
        notes, own = [], None
        for compat in (None, "transformers"):
            try:
                rope = self.read(compat)
                errors, good = check(rope, self.observations, self.target.subject.sign)
            except Exception as error:
                notes.append(message(error))
                if self.target.cls.__name__ in NOT_ROTATIONS and "model_type must be one of the" in str(error):
                    return "refused", {}, "rope_xp raises"
                continue
            if good:
                return ("agrees", errors, "", rope) if compat is None else self.deviating(rope, errors, notes, own)
            notes.append("differs by " + ", ".join(f"{key} {value:.1e}" for key, value in errors.items()))
            own = rope if compat is None else own
        if self.case.key and not version("transformers").startswith(COMPAT) and self.is_ours_without_key():
            return "deviates", {}, f"`{self.case.key}` is not read upstream"
        if self.lenient and all(REFUSAL.match(note) for note in notes):
            return "refused", {}, notes[0]
        return "wrong", {}, "; with compat: ".join(notes)

    def deviating(self, rope, errors, notes, own):
        """The rest of an `Outcome` if only `compat` makes rope_xp equal. `own` is the embedding without it."""
        case = self.case
        refusal = notes[0] if case.contradicts or self.lenient else ""
        reason = reason_for(self.target.cls.__name__, case.name, refusal)
        if not reason and case.key and self.ignores_key():
            names = [*case.changes] if own == self.without_the_key() else [case.key]  # ours may not read it either
            reason = f"`{', '.join(names)}` is not read upstream"
            remark = f"remark .* does not read .*({'|'.join(names)})"
            if own is not None and not re.search(remark, " ".join(own.describe().split())):
                return "wrong", errors, f"describe does not state that {reason}", rope
        return "deviates" if reason else "wrong", errors, reason or f"only with compat: {notes[0]}", rope

    def ignores_key(self):
        """Whether transformers computes the same without the key."""
        first, other = self.observations[0], self.without_key[0]()
        return np.array_equal(first.cos, other.cos) and np.array_equal(first.sin, other.sin)

    def without_the_key(self):
        """What rope_xp reads without the key and without `compat`; None if it is refused."""
        try:
            return self.without_key[1]()
        except ValueError:
            return None

    def is_ours_without_key(self):
        """Whether rope_xp, without the key and without `compat`, equals transformers."""
        rope = self.without_the_key()
        return rope is not None and self.ignores_key() and check(rope, self.observations, self.target.subject.sign)[1]


def outcome(target, case, label):
    """The outcome of one changed config for one layer type."""
    needs = {key: value for key, value in target.needs.items() if not (case.legacy and key == "rope_parameters")}

    def config(changes=case.changes):
        return target.config(changes, needs)

    def read(config, compat=None, case=case):
        return read_case(target, config, case, label, compat)

    without_key = (
        lambda: observe(target.run(config(case.without), label, case.calls), checked=False)[0],
        lambda: read(config(case.without), case=replace(case, changes=case.without)),
    )
    return compared(target, case, label, config, read, without_key, lenient=bool(case.key) or "without" in case.name)


def compared(target, case, label, config, read, *more, lenient):
    """The outcome of the config that `config` returns. `read` takes it and `compat`."""
    start = target.config_name, case.name, label
    try:
        made = config()
        observations = observe(target.run(made, label, case.calls))
    except Exception as error:
        return Outcome(*start, "refused upstream", {}, message(error))
    comparison = Comparison(target, case, observations, partial(read, made), *more, lenient=lenient)
    return Outcome(*start, *comparison.judged())


def unstated(target):
    """Files of the default config: without rotary keys, with its type alone, and without each single key.

    Both sides read each file. If both read the same as from the whole config, which is another case, transformers is
    not run.
    """
    subject, default, needs = target.subject, target.default, target.needs
    whole = plain(default)
    files = {
        "no rotary key": {key: value for key, value in whole.items() if key in needs or not ROTARY.search(key)},
        "nothing but its type": {key: value for key, value in whole.items() if key in needs or key == "model_type"},
        **{f"without {key}": {k: v for k, v in whole.items() if k != key} for key in whole if key != "model_type"},
    }
    for model_type in (default.model_type, *subject.model_types):
        full = {label: read_or_none(subject, whole, label) for label in labels(default)}
        for case, rest in files.items():
            start = target.config_name, case if model_type == default.model_type else f"{case}, {model_type}"
            given = rest if subject.part else {**rest, "model_type": model_type}
            try:
                config = type(default).from_dict(deepcopy(rest))
                as_default = case.startswith("without") and plain(config) == whole
                types = labels(config)
            except Exception as error:
                if ROTARY.search(case):
                    yield Outcome(*start, None, "refused upstream", {}, message(error))
                continue
            if subject.unrotated and not needs.keys() <= rest.keys():
                yield not_rotated(*start, read_file(subject, given, None))
                continue
            for label in types:
                rope = read_or_none(subject, given, label)
                if not as_default or rope is None or rope != full.get(label):
                    yield outcome_of_file(target, config, given, start[1], label)
                elif ROTARY.search(case):
                    yield Outcome(*start, label, "agrees", {}, "", rope)


def outcome_of_file(target, config, given, case, label):
    """The outcome of a file that leaves keys out."""

    def read(_, compat):
        return read_file(target.subject, given, label, compat)

    return compared(target, Case(case), label, lambda: config, read, lenient=True)
