"""Read the arguments of Megatron-LM: the names of its command line with underscores, or the fields of its configs."""

from dataclasses import replace

from rope_xp.arrays import checks
from rope_xp.configs.families.family import INTERLEAVED, LATENT, NO_ROPE_LAYERS, TO_HALF, Axes, Family, Layers
from rope_xp.configs.families.model_types import LLAMA3
from rope_xp.configs.keys import Keys
from rope_xp.errors import wrong_value
from rope_xp.frequencies import ORIGINAL
from rope_xp.types import Values

KINDS = {"rope": "one position axis", "mrope": "several", "yarn": "YaRN", "none": "not rotated"}
LATENT_KINDS = {"rope": "no scaling", "yarn": "YaRN"}
LAYERS = Layers(listed=NO_ROPE_LAYERS)
TEXT = Family(layers=LAYERS)
LATENT_TEXT = Family(head_dim=LATENT, pairing=TO_HALF, layers=LAYERS)

# Arguments that do not change the rotation.
IRRELEVANT = (
    "add_position_embedding",
    "apply_rope_fusion",
    "fused_single_qkv_rope",
    "use_rotary_position_embeddings",
    "rope_type",
    "dsa_indexer_rope_interleaved",
)
# Arguments for one kind of rotation. Other kinds do not read them.
OF_ONE_KIND = ("use_rope_scaling", "rope_scaling_factor", "rotary_percent", "mrope_section")
OF_ONE_KIND += ("rotary_seq_len_interpolation_factor",)
# YaRN without latent attention, by the names of transformers.
YARN = {
    "factor": ("rotary_scaling_factor", "yarn_rotary_scaling_factor"),
    ORIGINAL: (f"yarn_{ORIGINAL}",),
    "beta_fast": ("yarn_beta_fast",),
    "beta_slow": ("yarn_beta_slow",),
    "mscale": ("mscale", "yarn_mscale"),
    "mscale_all_dim": ("mscale_all_dim", "yarn_mscale_all_dim"),
    "truncate": ("yarn_correction_range_round_to_int",),
}


def megatron_as_config(keys: Keys) -> tuple[Values, Family] | None:
    """GPT models of Megatron-LM, also with latent attention."""
    # Sources: `megatron/training/arguments.py`, `megatron/core/transformer/transformer_config.py` and
    # `megatron/core/models/common/embeddings`; `multi_latent_attention.py` for latent attention.
    is_latent = keys.read_flag("multi_latent_attention") is True
    kind = _kind(keys, is_latent)
    if kind == "none":
        keys.mark_as_read(*keys.mapping)
        return None
    config: Values = {
        "rope_theta": keys.read_or_assume("rotary_base", "frequencies", 10_000.0, "default of Megatron-LM"),
        "max_position_embeddings": keys.read("max_position_embeddings"),
        "num_hidden_layers": keys.read("num_layers"),
        **_rotated_layers(keys),
    }
    interleaved = keys.read_flag("rotary_interleaved")
    keys.mark_as_read(*IRRELEVANT, *OF_ONE_KIND, *(name for names in YARN.values() for name in names))
    if kind != "rope":
        _require(keys, kind, rotary_interleaved=False)
    if is_latent:
        _require(keys, "multi_latent_attention", rotary_interleaved=False, rotary_seq_len_interpolation_factor=None)
        config[LATENT] = keys.read_or_assume("qk_pos_emb_head_dim", "channels", 64, "default of Megatron-LM")
        return config | _latent_block(keys, kind), LATENT_TEXT
    config |= {
        "head_dim": keys.read("kv_channels"),
        "hidden_size": keys.read("hidden_size"),
        "num_attention_heads": keys.read("num_attention_heads"),
    }
    if kind == "mrope":
        return config | _fraction(keys) | _mrope_block(keys), replace(TEXT, axes=Axes("chunked"))
    if kind == "yarn":
        return config | _yarn_block(keys), TEXT
    family = replace(TEXT, pairing=INTERLEAVED) if interleaved else TEXT
    return config | _fraction(keys) | _scaled_block(keys), family


def _kind(keys: Keys, is_latent: bool) -> str:
    """The kind of rotation. With latent attention, `rope_type` says it, and its default is YaRN."""
    kind = keys.read("position_embedding_type")
    if keys.read_flag("use_rotary_position_embeddings"):
        kind = "rope"
    if is_latent and kind != "none":
        source = "default of Megatron-LM with latent attention, yarn"
        kind = keys.read_or_assume("rope_type", "scaling", "yarn", source)
        checks.one_of("rope_type", kind, LATENT_KINDS)
        return kind
    if kind is None:
        raise wrong_value("position_embedding_type must be given, because its default is not rotary; got none")
    checks.one_of("position_embedding_type", kind, KINDS)
    return kind


def _require(keys: Keys, kind: str, **wanted: object) -> None:
    """Arguments that this kind of rotation does not read must have their default."""
    for name, value in wanted.items():
        keys.require(name, value, f" with {kind}")


def _fraction(keys: Keys) -> Values:
    fraction = keys.read("rotary_percent")
    return {} if fraction is None else {"partial_rotary_factor": fraction}


def _rotated_layers(keys: Keys) -> Values:
    """`no_rope_freq`: each layer whose number it divides is not rotated, or a list with 1 for such layers."""
    skipped = keys.read("no_rope_freq")
    if isinstance(skipped, (list, tuple)):
        if not all(each in (0, 1) for each in skipped):
            raise wrong_value(f"no_rope_freq must be a list of 0 and 1; got {skipped}")
        return {"no_rope_layers": [1 - each for each in skipped]}
    return {"no_rope_layer_interval": 0 if skipped is None else checks.count("no_rope_freq", skipped)}


def _scaled_block(keys: Keys) -> Values:
    """Llama 3's rule, whose other parameters are constants in Megatron-LM, or division of positions."""
    divisor = keys.read("rotary_seq_len_interpolation_factor")
    if not keys.read_flag("use_rope_scaling"):
        return {} if divisor is None else {"rope_scaling": {"rope_type": "linear", "factor": divisor}}
    _require(keys, "use_rope_scaling", rotary_seq_len_interpolation_factor=None)
    factor = keys.read_or_assume("rope_scaling_factor", "scaling", 8.0, "default of Megatron-LM")
    return {"rope_scaling": {**LLAMA3, "factor": factor}}


def _mrope_block(keys: Keys) -> Values:
    if keys.read_flag("use_rope_scaling"):
        raise wrong_value("use_rope_scaling must be False with mrope; got True")
    section, divisor = keys.read("mrope_section"), keys.read("rotary_seq_len_interpolation_factor")
    if section is None:
        raise wrong_value("mrope_section must be given with mrope; got none")
    rule = {"rope_type": "default"} if divisor is None else {"rope_type": "linear", "factor": divisor}
    return {"rope_scaling": {**rule, "mrope_section": section}}


def _yarn_block(keys: Keys) -> Values:
    _require(keys, "yarn", rotary_percent=1.0, rotary_seq_len_interpolation_factor=None)
    return _block_of(keys, {name: keys.read(*names) for name, names in YARN.items()})


def _latent_block(keys: Keys, kind: str) -> Values:
    """Latent attention has other names for the parameters of YaRN."""
    if kind == "rope":
        _require(keys, "rope_type='rope'", mscale_all_dim=0.0)
        return _fraction(keys)
    _require(keys, "rope_type='yarn'", rotary_percent=1.0)
    names = (ORIGINAL, "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
    return _block_of(keys, {"factor": keys.read("rotary_scaling_factor"), **{name: keys.read(name) for name in names}})


def _block_of(keys: Keys, values: Values) -> Values:
    """A block of YaRN. The defaults of its factor differ within Megatron-LM, so that it must be given."""
    if values["factor"] is None:
        raise wrong_value("rotary_scaling_factor must be given with yarn; got none")
    if values[ORIGINAL] is None:
        keys.assume("scaling", ORIGINAL, "default of Megatron-LM")
        values[ORIGINAL] = 4096
    if not values["mscale_all_dim"] and values["mscale"] in (None, 1):
        values |= {"mscale": None, "mscale_all_dim": None}  # the attention factor of the paper
    stated = {name: value for name, value in values.items() if value is not None}
    return {"rope_scaling": {"rope_type": "deepseek_yarn", **stated}}
