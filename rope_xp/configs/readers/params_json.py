"""Read the params.json of Meta's and of Mistral's checkpoints. Both pair neighbouring channels."""

from rope_xp.configs.families.family import INTERLEAVED, LATENT, NO_ROPE_LAYERS, Axes, Family, Layers
from rope_xp.configs.families.model_types import LLAMA3
from rope_xp.configs.keys import Keys, require_spelling
from rope_xp.errors import wrong_value
from rope_xp.frequencies import ORIGINAL
from rope_xp.types import Config, Values

# Keys that only Llama 4 has.
LLAMA4_KEYS = {"moe_args", "nope_layer_interval", "attention_chunk_size", "use_qk_norm", "rope_high_freq_factor"}

TEXT = Family(pairing=INTERLEAVED, layers=Layers(listed=NO_ROPE_LAYERS))
LATENT_TEXT = Family(head_dim=LATENT, pairing=INTERLEAVED)
# The encoder of Pixtral: the even frequencies are for the height, the odd ones for the width.
VISION = Family(pairing=INTERLEAVED, axes=Axes("even_odd", 2))


def meta_as_config(keys: Keys) -> tuple[Values, Family]:
    """Llama 1 to 4 and CodeLlama."""
    # Sources: meta-llama/llama-models, `models/llama3/args.py`, `models/llama3/model.py` (`apply_scaling`) and the same
    # of `models/llama4`; meta-llama/llama, `llama/model.py` (`precompute_freqs_cis`).
    is_llama4 = any(keys.mapping.get(key) is not None for key in LLAMA4_KEYS)
    scaled = keys.read_flag("use_scaled_rope")
    is_llama3 = is_llama4 or scaled is not None  # Llama 1 and 2 have neither the key nor a base
    source = "default of Llama 3 and 4" if is_llama3 else "default of Llama 1 and 2"
    config = {
        **_sizes(keys),
        "rope_theta": keys.read_or_assume("rope_theta", "frequencies", 500_000.0 if is_llama3 else 10_000.0, source),
        "max_position_embeddings": keys.read("max_seq_len"),
        "no_rope_layer_interval": keys.read_count("nope_layer_interval") or 0,
    }
    if scaled:
        config["rope_scaling"] = _llama3_block(keys, is_llama4)
    # Nothing reads them if `use_scaled_rope` is false.
    keys.mark_as_read("rope_scaling_factor", "rope_high_freq_factor")
    return config, TEXT


def _llama3_block(keys: Keys, is_llama4: bool) -> Values:
    name = "Llama 4" if is_llama4 else "Llama 3"
    factor, high = (16.0, 1.0) if is_llama4 else (8.0, 4.0)
    if not is_llama4 and keys.read("rope_scaling_factor") is None:
        keys.remarks.append(
            "Meta's program for Llama 3 always has the factor 8; the configs of Llama 3.2 in transformers have 32"
        )
    factor = keys.read_or_assume("rope_scaling_factor", "scaling", factor, f"constant of {name}")
    given = keys.read("rope_high_freq_factor")
    return {**LLAMA3, "factor": factor, "high_freq_factor": high if given is None else given}


def mistral_as_config(keys: Keys) -> tuple[Values, Family]:
    """Text models of Mistral."""
    # Sources: mistralai/mistral-inference, `args.py`, `rope.py` and `transformer.py`. vLLM,
    # `transformers_utils/configs/mistral.py`: `yarn`, and `llama_4_scaling`, which is a temperature of queries.
    latent = keys.read_count("qk_rope_head_dim")
    config = {
        **({LATENT: latent} if latent else _sizes(keys)),
        "rope_theta": _base_of_mistral(keys),
        "max_position_embeddings": keys.read_first("max_position_embeddings", "max_seq_len"),
    }
    require_spelling(keys.name, keys.mapping, ["yarn"], shortest=4)  # without it, nothing would be scaled
    yarn = keys.read_mapping("yarn")
    if yarn.mapping:
        config["rope_scaling"] = _yarn_block(keys, yarn, is_latent=bool(latent))
    return config, LATENT_TEXT if latent else TEXT


def _base_of_mistral(keys: Keys) -> object:
    """The base. The first models state none: 10,000 with a sliding window, and 1,000,000 without."""
    windows = [keys.read(name) for name in ("sliding_window", "_sliding_window")]
    if not any(windows):
        return keys.read_or_assume("rope_theta", "frequencies", 1_000_000.0, "default of mistral-inference")
    if keys.read("rope_theta") is None:
        keys.remarks.append(
            "since version 1.0.4, mistral-inference has the default base 1,000,000 with a sliding window"
        )
    source = "default of mistral-inference with a sliding window"
    return keys.read_or_assume("rope_theta", "frequencies", 10_000.0, source)


def _yarn_block(keys: Keys, yarn: Keys, is_latent: bool) -> Values:
    """`beta` and `alpha` are YaRN's `beta_fast` and `beta_slow`. Without `apply_scale`, the attention factor is 1."""
    block = {"rope_type": "yarn", "factor": yarn.read("factor"), ORIGINAL: yarn.read(ORIGINAL)}
    for name, value in block.items():
        if value is None:
            raise wrong_value(f"{name} must be in yarn; got {dict(yarn.mapping)}")
    block |= {"beta_fast": yarn.read("beta"), "beta_slow": yarn.read("alpha")}
    apply_scale = yarn.read_flag("apply_scale")
    if apply_scale is None:
        keys.assume("attention factor", "apply_scale", "default of vLLM, true")
    elif not apply_scale:
        block["attention_factor"] = 1.0
    if is_latent and apply_scale is not False:
        block |= {"mscale": 1.0, "mscale_all_dim": 1.0}
    yarn.require_all_read()
    return block


def pixtral_as_config(keys: Keys) -> tuple[Values, Family]:
    encoder = keys.read_mapping("vision_encoder")
    if not encoder.mapping:
        raise wrong_value("vision_encoder must be given for part='vision'; got none")
    keys.mark_as_read("rope_theta", "yarn", "max_position_embeddings")  # they are about the text
    names = ("head_dim", "hidden_size", "num_attention_heads")
    config = {name: encoder.read(name) for name in names}
    base = encoder.read("rope_theta")
    if base is None:
        keys.assume("frequencies", "rope_theta", "default of mistral-inference")
    encoder.require_all_read(lambda key, value: "rope" in str(key))
    return {**config, "rope_theta": 10_000.0 if base is None else base}, VISION


def _sizes(keys: Keys) -> Config:
    """The width of a head. Without `head_dim`, it is the quotient of the width and the heads."""
    names = {"head_dim": "head_dim", "dim": "hidden_size", "n_heads": "num_attention_heads"}
    return {known: keys.read(name) for name, known in names.items()} | {"num_hidden_layers": keys.read("n_layers")}
