"""`identify_checkpoint`: what the headers of checkpoint files say about their rotary embedding."""

import os
from dataclasses import dataclass

from rope_xp.embedding import RotaryEmbedding
from rope_xp.errors import public, wrong_type
from rope_xp.layouts import LAYOUTS
from rope_xp.reports import Report, Section, Table, short_repr


@dataclass(frozen=True)
class Checkpoint(Report):
    """What the headers of a checkpoint say, as `identify_checkpoint` returns it.

    Attributes
    ----------
    path : str
        The file that was read; of several files, the index or the first.
    format : str or None
        "Hugging Face", "Meta", "GGUF", "MLX" or "Megatron": whose names the tensors have, or the config. None
        if no name is known.
    layout : "half", "interleaved", "interleaved_to_half" or None
        Which channels of the projections form a pair. None if names and the config do not say it.
    heads, kv_heads, head_dim, hidden_size, layers : int or None
        Sizes of the text model. None if shapes and the config do not say them.
    embedding : RotaryEmbedding or None
        What the config beside the tensors describes, in the layout of the projections.
    inv_freq : tuple of float, or None
        The frequencies that the file has as a buffer, in radians per token.
    inv_freq_base : float or None
        The base that these frequencies follow from, if they are unscaled.
    inv_freq_agrees : bool or None
        Whether the buffer has the frequencies of `embedding`. None without one of the two, and if axes or heads differ.
    conclusions : tuple of (str, str)
        What was concluded, and from what.
    warnings : tuple of str
        What contradicts, and what is missing.
    """

    path: str
    format: str | None
    layout: str | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    hidden_size: int | None
    layers: int | None
    embedding: RotaryEmbedding | None
    inv_freq: tuple[float, ...] | None
    inv_freq_base: float | None
    inv_freq_agrees: bool | None
    conclusions: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]

    def sections(self) -> list[Section]:
        pairs = "" if self.layout is None else f"Layout {self.layout} pairs {LAYOUTS[self.layout]}."
        return [
            Section("", f"Checkpoint {self.path}"),
            Section("", Table(("conclusion", "from"), self.conclusions)),
            Section("", pairs),
            Section("Embedding", "" if self.embedding is None else short_repr(self.embedding)),
            Section("Warnings", self.warnings),
        ]


@public("identify_checkpoint")
def identify_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """What the headers of a checkpoint say: its format, the layout of its projections, heads and widths.

    Only headers are read: the names and shapes of tensors, the config beside them, and an old buffer of frequencies.
    Weights are not read, because their statistics do not show the layout. Shapes are compared with the config.

    Parameters
    ----------
    path : path
        A .safetensors file, an index (model.safetensors.index.json), a GGUF file, or a folder of such files. The config
        is config.json or params.json in the same folder.

    Returns
    -------
    Checkpoint
        A report. Each conclusion stands beside what it follows from.

    Raises
    ------
    FileNotFoundError
        If the file does not exist on this machine.
    ValueError
        If the file has another format, such as a pickle, or its header contradicts the format.
    TypeError
        If `path` is not a path, or a JSON file holds no object.

    Notes
    -----
    The names of tensors in transformers do not show the layout: Llama and Cohere have the same names and different
    layouts. Without config.json, `layout` is None.

    Headers of at most 100 MB are read, with at most a million values.

    References
    ----------
    safetensors, README.md; ggml, docs/gguf.md; llama.cpp, `llama_model_rope_type` in src/llama-model.cpp; meta-llama,
    llama/model.py; transformers, models/llama/convert_llama_weights_to_hf.py; Megatron-LM, `rotary_interleaved`.

    Examples
    --------
    >>> import json, tempfile
    >>> from pathlib import Path
    >>> folder = Path(tempfile.mkdtemp())
    >>> header = json.dumps({"layers.0.attention.wq.weight": {"dtype": "F32", "shape": [0, 8], "data_offsets": [0, 0]}})
    >>> _ = (folder / "consolidated.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode())
    >>> found = identify_checkpoint(folder)
    >>> found.format, found.layout
    ('Meta', 'interleaved')
    """
    from rope_xp.checkpoints.findings import findings  # most programs read no checkpoint

    if not isinstance(path, (str, os.PathLike)):
        raise wrong_type(f"path must be a string or a path; got {type(path).__name__}")
    return Checkpoint(**findings(os.fsdecode(path)))
