"""What lmdeploy's PyTorch engine reads: each model class is built from configs that differ in one thing.

`--source` is the folder of the unzipped wheel (`pip download --no-deps lmdeploy`). Its dependencies for CUDA are not
needed; nox's session `tests-lmdeploy` installs the others. A config is read and changed by lmdeploy's own code, as
`--hf-overrides` would; what its rotary embeddings compute is compared with and without the change.
"""

from engine_tables import _lmdeploy_models, _switches

ENGINE = "lmdeploy"
# Model types whose default config is too large to build without a device "meta", or of which no model can be built.
LEFT_OUT = ("gemma3", "gemma3_text", "hy_v3", "llama4", "qwen3_next", "qwen3_omni_moe", "qwen3_vl_moe", "shieldgemma2")
FACTS = [
    {
        "models": ["*"],
        "text": "rope_theta at the top level of an override changes nothing with transformers 5: it must be in "
        "rope_parameters.",
        "source": "run at 0.18.0: pytorch/nn/rotary_embedding.py:222-229 reads rope_parameters",
    },
    {
        "models": ["*"],
        "text": "--hf-overrides are merged with the config at every depth: a key of the file's block stays unless the "
        "override names it.",
        "source": "pytorch/config.py:300-349 at 0.18.0, and run",
    },
    {
        "models": ["*"],
        "text": "--rope-scaling-factor is taken by the command line of TurboMind and read by no Python code.",
        "source": "cli/serve.py:303, messages.py:407 and turbomind/turbomind.py:218-260 at 0.18.0 (read)",
    },
    {
        "models": ["*"],
        "text": "TurboMind takes the factor of YaRN from max_position_embeddings / original_max_position_embeddings, "
        "and reads neither truncate nor longrope.",
        "source": "turbomind/models/utils.py:140-166 at 0.18.0 (read)",
    },
    {
        "models": ["gemma3", "gemma3_text"],
        "text": "With transformers 5 only a full_attention block with a factor is read, always as linear; without "
        "a factor, as in Gemma 3 1B, the model is not built: KeyError('factor').",
        "source": "pytorch/models/gemma.py:419-439 at 0.18.0, and run",
    },
]


def readings(source):
    """The version, and what each model type of transformers reads."""
    return _lmdeploy_models.load(source), _switches.readings(_lmdeploy_models, LEFT_OUT)
