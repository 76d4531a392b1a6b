"""What several targets cannot express, and what several write alike."""

from collections.abc import Sequence
from dataclasses import fields, replace
from math import isclose, log, sqrt
from typing import Any

from rope_xp.errors import wrong_value
from rope_xp.frequencies import LENGTH, ORIGINAL, DynamicNTKScaling, NTKScaling, Scaling, YarnScaling
from rope_xp.frequencies.by_factor import ntk_base
from rope_xp.types import Embedding, Values

# All names of the stated length. Programs take the first that they know, or the least.
LENGTH_KEYS = (LENGTH, "n_positions", "max_seq_len", "model_max_length", "seq_length", "max_sequence_length")
# YaRN without its attention factor.
YARN = ("factor", ORIGINAL, "beta_fast", "beta_slow")


def parameters(rule: Scaling, *names: str) -> Values:
    """Parameters of a rule by their names, as JSON has them: all, or those named."""
    values = {name: getattr(rule, name) for name in names or (each.name for each in fields(rule))}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def with_all_lengths(keys: Values, rope: Embedding) -> Values:
    # By each name that the config has for a length: an engine may read another one.
    if LENGTH not in keys:
        return keys
    return keys | {name: keys[LENGTH] for name in LENGTH_KEYS if name in rope._provenance.stated}


def below(path: Sequence[str], keys: Values) -> Values:
    for name in reversed(path):
        keys = {name: keys}
    return keys


def require_only(rope: Embedding, target: str, *accepted: str) -> None:
    """Raise an error if the embedding has a property that no target has, unless this one accepts it."""
    found = {
        "inv_freq": rope.base is None,
        "xpos": rope.xpos is not None,
        "reverse": rope.reverse,
        "first_channel": rope.first_channel != 0,
        "blocks": rope.blocks != 1,
    }
    names = ", ".join(name for name, is_set in found.items() if is_set and name not in accepted)
    if names:
        raise wrong_value(f"the embedding must have only what to_config writes for {target}; got {names}")


def require_text(rope: Embedding, target: str) -> None:
    path = rope._provenance.path
    if any("vision" in key or "audio" in key for key in path):
        raise wrong_value(f"part must be the text model for {target}; got {'.'.join(path)}")


def require_attention_factor(rope: Embedding) -> None:
    rule = Scaling() if rope.scaling is None else rope.scaling
    if rope.attention_factor != rule.resolved_attention_factor:
        raise wrong_value(f"attention_factor must be that of scaling; got {rope.attention_factor}")


def require_pairing(rope: Embedding, layout: str, target: str, call: str, permuted_by: str = "") -> None:
    if rope._rotation.read == layout:
        return
    permute = f"permute the projections of queries and keys with permute_projection(to={layout!r})"
    call = f"call rope.replace(layout={layout!r}).{call}"
    advice = f"{permute}, and {call}"
    if permuted_by:
        advice = f"{call}. {permuted_by} permutes the tensors; without it, {permute}"
    raise wrong_value(f"layout must be {layout!r} in {target}; got {rope.layout!r}: {advice}")


def require_whole_head(rope: Embedding, layout: str, target: str, call: str) -> None:
    """All channels must be rotated, by one position, in pairs of this layout, and the target has no other factor."""
    model_type = rope._provenance.model_type
    if rope._provenance.is_latent:
        raise wrong_value(
            f"head_dim must be that of whole heads in {target}; got {rope.head_dim}, the part of a head that the "
            f"latent attention of {model_type} rotates"
        )
    require_only(rope, target)
    require_attention_factor(rope)
    if rope.sections is not None:
        raise wrong_value(f"sections must be None in {target}; got {rope.sections}")
    if rope.rotary_dim != rope.head_dim:
        raise wrong_value(f"rotary_dim must be head_dim={rope.head_dim} in {target}; got {rope.rotary_dim}")
    require_pairing(rope, layout, target, call)


def require_half(rope: Embedding, target: str) -> None:
    if rope.layout != "half":
        raise wrong_value(f"layout must be 'half' with LongRoPE in {target}; got {rope.layout!r}")


def require_plain_softmax(rope: Embedding, target: str, without: str = "latent attention") -> None:
    if rope.softmax_scale != 1.0:
        raise wrong_value(f"softmax_scale must be 1 in {target} without {without}; got {rope.softmax_scale}")


def require_usual_softmax(rope: Embedding, target: str, may_scale: bool = True) -> None:
    """The softmax may be scaled for latent attention alone, and only if the class of the engine `may_scale` it."""
    model_type = rope._provenance.model_type
    if model_type and not (may_scale and rope._provenance.is_latent):
        require_plain_softmax(rope, target, without="a class that scales it")


def unread(engine: str, key: str, model_type: str) -> ValueError:
    return wrong_value(f"{engine} must read {key} for model type {model_type!r}; got a class that does not")


def unsupported(rule: Scaling, target: str) -> ValueError:
    return wrong_value(f"scaling must be a rule that {target} has; got {rule.describe()}")


def base_and_rule(rope: Any, target: str, *own: type[Scaling]) -> tuple[float, Scaling | None]:
    """The base and the rule for a program that has no rule for a larger base, but those that are its `own`."""
    rule = rope.scaling
    if isinstance(rule, own):
        return rope.base, rule
    if isinstance(rule, DynamicNTKScaling):
        if rule.seq_len is None:
            raise wrong_value(
                f"scaling must not depend on the length of the sequence for {target}, or seq_len must be given; "
                f"got {rule.describe()}"
            )
        rule = NTKScaling(factor=rule._ntk_factor)
    if isinstance(rule, NTKScaling):
        return ntk_base(rope.base, rule.factor, rope.rotary_dim), None
    return rope.base, None if type(rule) is Scaling else rule


def require_length_of_config(rule: DynamicNTKScaling, target: str) -> None:
    """Dynamic NTK must be for the length that a program computes from the config, for all sequences."""
    if rule.seq_len != rule.factor * rule.max_position_embeddings:
        raise wrong_value(
            f"seq_len of scaling must be factor * max_position_embeddings in {target}, which has the same frequencies "
            f"for all lengths; got {rule.describe()}"
        )


def longrope_factor(length: int, original: int) -> float:
    return sqrt(1.0 + log(length / original) / log(original)) if length > original else 1.0


def require_truncated(rule: YarnScaling, target: str) -> None:
    if not rule.truncate:
        raise wrong_value(f"truncate must be True in {target}; got False")


def require_rounded_ramp(rope: Any, rule: YarnScaling, target: str) -> None:
    """The ends of YaRN's ramp must not differ from whole pairs, to which the target rounds them."""
    rounded = replace(rule, truncate=True).frequencies(rope.base, rope.rotary_dim)
    if rounded != rule.frequencies(rope.base, rope.rotary_dim):
        require_truncated(rule, target)


def mscales(rope: Embedding, rule: YarnScaling, target: str) -> dict[str, float]:
    """DeepSeek's `mscale` and `mscale_all_dim`, from which targets compute the attention factor."""
    all_dims = (rule.mscale_all_dim or 0.0) if rope.softmax_scale != 1.0 else 0.0
    wanted = rope.attention_factor * rule.get_mscale(all_dims)
    if isclose(wanted, rule.get_mscale(1.0), rel_tol=1e-15) and not all_dims:
        return {}  # the attention factor of the paper: their defaults, 1 and 0
    if rule.factor == 1.0:
        raise wrong_value(f"attention_factor must be 1 with factor=1 in {target}; got {rope.attention_factor}")
    if rule.attention_factor is None and rule.mscale and rule.mscale_all_dim == all_dims:
        return {"mscale": rule.mscale, "mscale_all_dim": all_dims}
    return {"mscale": (wanted - 1.0) / (0.1 * log(rule.factor)), "mscale_all_dim": all_dims}
