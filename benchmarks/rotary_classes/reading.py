"""Embeddings of rope_xp from configs. Only this file imports the package's tables of families."""

import rope_xp
from rope_xp.configs.families.model_types import FAMILIES as FAMILIES
from rope_xp.configs.parts import PARTS


def as_file(subject, given):
    """The config of a file, and the part to read: a config without a model_type is put into its composite config."""
    given, part = {key: value for key, value in given.items() if key not in subject.without}, None
    if subject.part:
        whole, part = subject.part.split("/")
        path, _ = PARTS[whole][part]
        for key in reversed(path.split(".")):
            given = {key: given}
        given["model_type"] = whole
    return given, part


def read_file(subject, given, label, compat=None, seq_len=None):
    """The embedding of rope_xp, or its error is raised."""
    file, part = as_file(subject, given)
    return rope_xp.from_config(file, part=part, layer_type=label, seq_len=seq_len, compat=compat)


def read_case(target, config, case, label, compat=None):
    """The embedding from a changed config, as its object writes it or as in a file of older versions."""
    given = config.to_dict()
    if case.legacy:
        silent = ("rope_parameters", "rope_theta", "rope_scaling", "layer_rope_theta", *case.silent)
        needs = {} if callable(target.subject.needs) else target.needs
        given = {k: v for k, v in (target.default.to_dict() | needs).items() if k not in silent} | case.changes
    by_length = case.name.startswith(("dynamic", "longrope"))
    return read_file(target.subject, given, label, compat, case.seq_len or len(case.calls[-1]) if by_length else None)


def read_or_none(subject, given, label):
    """The embedding of rope_xp, or None if it raises."""
    try:
        return read_file(subject, given, label)
    except (TypeError, ValueError):
        return None
