"""Embeddings that SGLang and lmdeploy are asked to compute: every rule, for model classes that are built."""

from rope_xp import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    RotaryEmbedding,
    Sections,
    YarnScaling,
)
from rope_xp.provenance import Provenance, with_provenance

LENGTH, ORIGINAL = 512, 128
AT = {"original_max_position_embeddings": ORIGINAL}


def rules(pairs):
    """A scaling rule of each kind, for heads with this number of pairs."""
    short, long = (tuple(start + index / pairs for index in range(pairs)) for start in (1.0, 2.0))
    longrope = {"short_factor": short, "long_factor": long, "factor": 4.0, **AT}
    return {
        "none": None,
        "linear": LinearScaling(factor=3.0),
        "ntk": NTKScaling(factor=2.5),
        "dynamic": DynamicNTKScaling(factor=2.0, max_position_embeddings=LENGTH, seq_len=2 * LENGTH),
        "llama3": Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **AT),
        "yarn": YarnScaling(factor=4.0, **AT),
        "yarn with a factor": YarnScaling(factor=4.0, beta_fast=6.0, beta_slow=2.0, attention_factor=1.7, **AT),
        "yarn that is not rounded": YarnScaling(factor=4.0, truncate=False, **AT),
        "yarn of latent attention": YarnScaling(factor=4.0, mscale=1.0, mscale_all_dim=0.7, **AT),
        "longrope, short": LongRopeScaling(**longrope),
        "longrope, long": LongRopeScaling(**longrope, seq_len=2 * ORIGINAL),
        "longrope with a factor": LongRopeScaling(**longrope, attention_factor=1.3),
    }


def embeddings(model_type, plain):
    """The embeddings by name that are written for a model class, whose own embedding is `plain`."""
    pairs = plain["rotary_dim"] // 2
    third = pairs // 3
    values = {
        "head_dim": plain["head_size"],
        "rotary_dim": plain["rotary_dim"],
        "layout": plain.get("layout", "half"),
        "base": 70_000.0,
    }
    found = {name: RotaryEmbedding(**values, scaling=rule) for name, rule in rules(pairs).items()}
    found["the base of the class"] = RotaryEmbedding(**values | {"base": plain["base"]})
    for order in ("chunked", "interleaved"):
        for name, sizes in (("none", (pairs - 2 * third, third, third)), ("yarn", (pairs - 2 * third, third, third))):
            found[f"{order} sections, {name}"] = found[name].replace(sections=Sections(sizes, order=order))
    provenance = Provenance(file_type=model_type)
    return {name: with_provenance(rope, provenance) for name, rope in found.items()}
