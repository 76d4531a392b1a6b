"""What SGLang reads: each model class is built on the device "meta" from configs that differ in one thing.

`--source` is the folder of the unzipped wheel (`pip download --no-deps sglang`). Its dependencies for CUDA are not
needed; nox's session `tests-sglang` installs the others. A config is read and changed by SGLang's own code, as
`--json-model-override-args` would; what reaches `get_rope` is compared with and without the change.
"""

from engine_tables import _sglang_models, _switches

ENGINE = "sglang"
# Model types whose text model has a rotary class of its own, beside `get_rope` or without it, or an indexer that is
# rotated otherwise: the script cannot tell them apart.
OWN = ("beam", "gemma3", "gemma3_text", "gigachat3_5", "glm_image", "glm_moe_dsa", "shieldgemma2")
# What is not fixed, although no override changes it: mllama4.py permutes the weights when they are loaded, and
# minimax_m2.py:673 reads `rotary_dim` of the config.
NOT_FIXED = {"llama4": "layout", "llama4_text": "layout", "minimax_m2": "rotated"}
FACTS = [
    {
        "models": ["*"],
        "text": "rope_theta at the top level of an override changes nothing: it must be in rope_parameters.",
        "source": "run at 0.5.23: utils/hf_transformers/config.py:409-422 sets an attribute that classes do not read",
    },
    {
        "models": ["*"],
        "text": "An override of rope_parameters or rope_scaling at the top level is merged with the block of the file; "
        "below text_config it replaces the block.",
        "source": "utils/hf_transformers/config.py:413-422 at 0.5.23, and run",
    },
    {
        "models": ["*"],
        "text": "--context-length scales nothing, and more than factor * max_position_embeddings (without an original "
        "length in the block) is an error, unless SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN is set.",
        "source": "configs/model_config.py:1291-1319 and utils/hf_transformers/common.py:677 at 0.5.23",
    },
    {
        "models": ["*"],
        "text": "Dynamic NTK has one base for all lengths, that of factor * max_position_embeddings.",
        "source": "layers/rotary_embedding/rope_variant.py at 0.5.23, and run",
    },
]


def readings(source):
    """The version, and what each model type of transformers and of SGLang reads."""
    version = _sglang_models.load(source)
    found = _switches.readings(_sglang_models, OWN)
    for model_type, name in NOT_FIXED.items():
        found[model_type]["fixed"].pop(name, None)
    return version, found
