"""Read the rotary embedding from a checkpoint's config: `reading.py` has the way from a file to a value."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, overload

from rope_xp.embedding import RotaryEmbedding
from rope_xp.errors import public
from rope_xp.layouts import Layout

# For a model without a rotary embedding. With `Any` in place of None, type checkers ask for no test of the result.
MaybeNone: TypeAlias = Any


@overload
def from_config(
    config: object,
    *,
    part: str | None = None,
    layer: None = None,
    layer_type: None = None,
    seq_len: int | None = None,
    layout: Layout | None = None,
    compat: Literal["transformers"] | None = None,
    strict: bool = False,
    flags: str | Sequence[str] | None = None,
) -> RotaryEmbedding | MaybeNone: ...
@overload
def from_config(
    config: object,
    *,
    part: str | None = None,
    layer: int | None = None,
    layer_type: str | None = None,
    seq_len: int | None = None,
    layout: Layout | None = None,
    compat: Literal["transformers"] | None = None,
    strict: bool = False,
    flags: str | Sequence[str] | None = None,
) -> RotaryEmbedding | None: ...
@public("from_config")
def from_config(
    config: object,
    *,
    part: str | None = None,
    layer: int | None = None,
    layer_type: str | None = None,
    seq_len: int | None = None,
    layout: Layout | None = None,
    compat: Literal["transformers"] | None = None,
    strict: bool = False,
    flags: str | Sequence[str] | None = None,
) -> RotaryEmbedding | None:
    """The rotary embedding that a checkpoint's config describes.

    Configs are those of transformers 5 (`rope_parameters`, also nested by layer type) and all older keys
    (`rope_theta`, `rope_scaling` with `type` or `rope_type`, `rotary_pct`, `rotary_emb_base`, ...). Values that a
    config does not state follow from its `model_type`. Other formats are recognised by their keys: params.json of Meta
    and of Mistral, metadata of GGUF files, a config.json of MLX, and the arguments of Megatron-LM as a mapping.

    Parameters
    ----------
    config : path, mapping, or object with `to_dict()`
        A config.json or params.json, its folder, a GGUF file, the content of one of them, or a config of transformers.
        In a folder with both, config.json is read. For Meta's consolidated.*, which have another layout, then give the
        path of params.json.
    part : str, optional
        The part of a composite config: "text" (the default), "vision", "audio", another of its parts, or the key of a
        sub-config. "indexer" is the indexer of sparse attention (DeepSeek-V3.2, GLM-5), which has a rotation of its
        own; `describe` names it.
    layer : int, optional
        The index of a layer, if layers differ. The default is the embedding that all rotated layers have.
    layer_type : str, optional
        The type of a layer, such as "sliding_attention", in place of `layer`.
    seq_len : int, optional
        The length of the sequence in tokens, for rules that depend on it (dynamic NTK, LongRoPE). The default is a
        sequence within the original length.
    layout : "half", "interleaved" or "interleaved_to_half", optional
        It replaces the layout of the family, for checkpoints whose projections have another order, such as Meta's. If
        it is given, the model type may be unknown.
    compat : "transformers", optional
        Reproduce known bugs of transformers 5.18, or of 5.23 in families that are new there; see Notes.
    strict : bool
        Raise an error for values that the config does not state, such as a default of the family. Without it,
        `describe` marks such values. Properties that a `model_type` always has, such as the pairing, are not defaults.
    flags : str or list of str, optional
        The command line of vLLM, SGLang, lmdeploy or llama.cpp, or its arguments: the embedding is the one that this
        program computes from the config with them. See Notes.

    Returns
    -------
    RotaryEmbedding or None
        None if the layer is not rotated. Without `layer` and `layer_type`: None if no layer of the config is rotated.
        Type checkers require a test for None only with `layer` or `layer_type`.

    Raises
    ------
    ValueError
        If a key is unknown, misspelt, missing or contradicts another, a value is out of range, the family is unknown or
        has no rotary embedding (BERT), or layers differ and no layer is given. Also if a file is not JSON, has a key
        twice, or is not a regular file; if a config is too large (16 MB, 32 levels, a million values, 16,384 layers or
        channels of a head); or if a value is not stated and `strict` is true.
    TypeError
        If a value has the wrong type.
    FileNotFoundError
        If the file does not exist on this machine. A model of the Hub must be downloaded first.

    Notes
    -----
    A key with other capital letters or underscores (`Rope_Theta`) is an error. A key of another kind of position
    (`alibi`, `no_pos_emb`, `position_embedding_type`) is an error too, unless its value is false or names a rotary one.
    Some parameters of scaling rules, such as YaRN's `beta_fast`, have a default in the rule. They are not defaults of a
    family, and `strict` does not require them.

    Meta's and Mistral's checkpoints pair neighbouring channels. A GGUF file has the pairing that llama.cpp uses for its
    architecture. Its rule may be in a tensor: the mapping then has the values of `rope_freqs.weight`, or of
    `rope_factors_long.weight` and `rope_factors_short.weight`, by these names. An error says which other format it took
    the mapping for, and `describe` shows it.

    With `flags`, the program follows from the command or from the names of the arguments: `--hf-overrides` and
    `--max-model-len` (vLLM 0.33; also `--rope-scaling` and `--rope-theta` of vLLM 0.8), `--json-model-override-args`
    and `--context-length` (SGLang 0.5.23), `--hf-overrides` after `lmdeploy` (0.18), and `--rope-scaling`,
    `--rope-scale`, `--rope-freq-base`, `--rope-freq-scale`, `--yarn-*`, `--override-kv` and `-c` (llama.cpp 0.5.0).
    Other arguments of a command line are ignored, if their names cannot be about positions. `describe` has a remark on
    arguments that change nothing. The rules are those of most classes of the program: what the class of one model type
    does in another way is not known here. For llama.cpp, a config.json stands for the GGUF file made of it.

    ``compat="transformers"`` reproduces these bugs:

    - Hunyuan ignores `alpha` beyond `max_position_embeddings`. Phi-3.5-MoE never uses `long_factor`.
    - `truncate` is not read in a block that is nested by layer type.
    - `rope_scaling` replaces `rope_parameters`; if layer types differ, both are an error here, and `rope_scaling` with
      `type` is not read, except in DeepSeek-V4. Cohere2-MoE never reads it.
    - A top-level `original_max_position_embeddings` replaces that of the block. Other keys of a block replace top-level
      keys that contradict them. A default block replaces a top-level base and `partial_rotary_factor`.
    - If a block states none, Ministral 3, Higgs Audio and PE have the base 10,000, and Laguna and Zaya a fraction of 1.
    - Most families rotate the whole head and ignore `partial_rotary_factor` and `rotary_dim`. They fail if a scaling
      rule reads that fraction, which is an error here.
    - Keys of other families are not read. ModernBERT, GPT-NeoX and the sliding layers of OLMo-3 ignore `rope_theta`.
      GPT-NeoX and Bamba ignore a top-level `partial_rotary_factor`, and DBRX the base of `attn_config`.
    - All layers of one type have the base of the first such layer in Step-3.5.
    - Interleaved sections that do not fit lose pairs to the first axis. Keys outside a part are not read.
    - The position axes of Step-3.7's vision tower are (height, width), and Cohere Compass has sections [22, 22, 20] of
      alternating axes. Version 5.23 corrects both.
    - Mistral Large 4, in 5.23, has the frequencies of an untrained model. Without `compat` it is an error, because its
      checkpoint multiplies them by weights.

    Families that transformers does not have or rotate are an error, and HunYuan-VL, whose tables are no rotation there.

    References
    ----------
    transformers, `modeling_rope_utils.py` and `models/*/configuration_*.py`. meta-llama/llama-models,
    `models/llama3/args.py` and `models/llama4/args.py`. mistralai/mistral-inference, `args.py`. ggml-org/llama.cpp,
    `gguf-py/gguf/constants.py` and `src/llama-model.cpp` (`llama_model_rope_type`). ml-explore/mlx-lm,
    `models/rope_utils.py`. NVIDIA/Megatron-LM, `megatron/training/arguments.py`.

    Examples
    --------
    >>> config = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "rope_theta": 500000.0}
    >>> from_config(config)
    RotaryEmbedding(head_dim=128, layout='half', base=500000.0)
    >>> config["rope_scaling"] = {"type": "linear", "factor": 4.0}
    >>> from_config(config)
    RotaryEmbedding(head_dim=128, layout='half', base=500000.0, scaling=LinearScaling(factor=4.0))
    >>> from_config(config, flags="llama-server -m model.gguf --rope-freq-base 1000000")
    RotaryEmbedding(head_dim=128, layout='half', base=1000000.0, scaling=LinearScaling(factor=4.0))
    >>> from_config({"dim": 4096, "n_heads": 32, "rope_theta": 500000.0, "multiple_of": 1024})
    RotaryEmbedding(head_dim=128, layout='interleaved', base=500000.0)
    """
    from rope_xp.configs.reading import Selection, read_config  # and 30 modules that are not needed to import rope_xp

    return read_config(config, flags, Selection(layer, layer_type, seq_len, layout, compat, part, strict))
