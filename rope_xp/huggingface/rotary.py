"""A rotary module of transformers, and ours in its place: what it makes of positions, proven equal beforehand."""

# pyright: reportMissingImports=false

import inspect
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import torch

from rope_xp.config import from_config
from rope_xp.embedding import RotaryEmbedding
from rope_xp.frequencies import LongRopeScaling
from rope_xp.kernels.turn import Turn
from rope_xp.positions import grid, join, normalized
from rope_xp.rotation import READ_WRITE

# What speaks of rotation in the name of a class, and which of those are attention.
ROTARY, ATTENTION = re.compile("Rotary|RoPE|Rope|RoFormerSinusoidal"), re.compile("Attention|Layer$")

REFUSED = {
    "ClvpRotaryPositionalEmbedding": "it counts positions itself, and values turn too",
    "EfficientLoFTRRotaryEmbedding": "it takes a map of features, not positions",
    "EsmFold2RotaryEmbedding": "it takes coordinates of atoms, not positions",
    "HunYuanVLRotaryEmbedding": "it is no rotation: the channels of a pair follow different axes",
    "MusicFlamingoRotaryEmbedding": "it takes times, which it multiplies with windows",
    "RoFormerSinusoidalPositionalEmbedding": "its tables are the weights of an embedding",
    "SeamlessM4TConformerRotaryPositionalEmbedding": "it counts positions itself, for a method and not a function",
    "VJEPA2RopeAttention": "it is no rotation: angles are laid out for halves, pairs are neighbours",
    "Wav2Vec2BertRotaryPositionalEmbedding": "it counts positions itself, for a method and not a function",
    "Wav2Vec2ConformerRotaryPositionalEmbedding": "it counts positions itself, for a method and not a function",
}

# Classes that find positions themselves, from the config and what they are called with.
POSITIONS: dict[str, Callable[[Any, Any], Any]] = {
    "DINOv3ViTRopePositionEmbedding": lambda config, pixels: normalized(*_patches(config, pixels), like=pixels.float()),
    "EomtDinov3RotaryEmbedding": lambda config, pixels: normalized(*_patches(config, pixels), like=pixels.float()),
    "Sapiens2RopePositionEmbedding": lambda config, pixels: normalized(*_patches(config, pixels), like=pixels.float()),
    "Llama4VisionRotaryEmbedding": lambda config, hidden_states: join(
        grid(*[config.image_size // config.patch_size] * 2, start=1, axes=(1, 0), like=hidden_states), 1
    ),
}
# Towers that say it in no name: their position axes are the last axis.
TOWERS = re.compile("Vision|ViT|MLCD")
BATCHED = ("Gemma4VisionRotaryEmbedding",)  # those whose positions are (batch, tokens, axes)
# Configs without a model_type of their own: (model_type, keys down to the config, part).
WITHIN = {
    "EvollaSaProtRotaryEmbedding": ("evolla", ("protein_encoder_config",), "protein_encoder"),
    "Qwen3OmniMoeCode2WavConfig": ("qwen3_omni_moe", ("code2wav_config",), "code2wav"),
}
# Keys that say which layers are rotated, or with which base; a rotary module has one of its own.
OF_LAYERS = ("layer_rope_theta", "no_rope_layers", "no_rope_layer_interval")

# Positions where tables are compared: below 512, where float32 phases are at most 512 * 2**-24 = 3e-5 off.
SHORT = (0, 1, 511, 3, 8, 8, 127, 64, 300, 257)
TOLERANCE = 5e-5

# How upstream repeats the column of a pair for its two channels.
FORMS: dict[str, Callable[[Any, int], Any]] = {
    "halves": lambda table, _: torch.cat((table, table), -1),
    "neighbours": lambda table, _: table.repeat_interleave(2, -1),
    "blocks": lambda table, blocks: torch.cat([half for part in table.chunk(blocks, -1) for half in (part, part)], -1),
    "once": lambda table, _: table,
}


class Form(NamedTuple):
    """How the tables of a rotary module look upstream, and what they are for."""

    name: str
    is_complex: bool
    turn: Turn
    is_last: bool  # the last channels turn, not the first
    pairs: int

    def of(self, cos: Any, sin: Any) -> tuple[Any, ...]:
        """Tables as upstream's, from those with one column for each pair."""
        cos, sin = (FORMS[self.name](table, self.turn.blocks) for table in (cos, sin))
        return (torch.complex(cos, sin),) if self.is_complex else (cos, sin)


class Rotary(torch.nn.Module):
    """In place of a rotary module: exact tables with one column for each pair, float32, or float64 for float64 `x`.

    It holds no parameter and no buffer. The module that it replaces is not in the tree, but moves, and changes its
    dtype and mode, along with it.
    """

    def __init__(self, original: Any):
        super().__init__()
        self.training = original.training
        self.config = original.config
        self._originals = (original,)  # in a tuple it is no submodule
        self._ropes = {label: self._rope(label) for label in _labels(self.config)}
        self._long = {}
        for label, rope in self._ropes.items():
            if isinstance(rope.scaling, LongRopeScaling):
                length = rope.scaling.original_max_position_embeddings
                self._long[label] = length, self._rope(label, length + 1)
        self._is_complex = False
        self.forms: list[Form] = []

    @property
    def original(self) -> Any:
        return self._originals[0]

    def __getattr__(self, name: str) -> Any:
        # What else a model asks of its rotary module, such as its sections.
        if name.startswith("_") or "_originals" not in vars(self):
            return super().__getattr__(name)
        return getattr(self.original, name)

    def forward(self, x: Any, position_ids: Any = None, layer_type: str | None = None) -> Any:
        """What upstream's module makes, but for the width, the dtype and the digits."""
        sin, cos = self._tables(x, self._positions(x, position_ids), layer_type)
        return torch.stack((cos, sin)) if self._is_complex else (cos, sin)

    def _positions(self, x: Any, position_ids: Any) -> Any:
        where = POSITIONS.get(type(self.original).__name__)
        if where is not None:
            return where(self.config, x)
        return (position_ids.movedim(-1, 0) if self._is_tower else position_ids).to(x.device)

    def _tables(self, x: Any, positions: Any, label: str | None) -> Any:
        rope = self._ropes[label]
        if self._follows_length(label):
            length = int(positions.max()) + 1
            rope = rope if length <= self.config.max_position_embeddings else self._rope(label, length)
        sin, cos = rope.sincos(positions, like=x)
        if label in self._long:
            length, rope = self._long[label]
            is_long = positions.max() >= length
            sin, cos = (torch.where(is_long, *both) for both in zip(rope.sincos(positions, like=x), (sin, cos)))
        return (-sin, cos) if rope.reverse else (sin, cos)

    def _rope(self, label: str | None, seq_len: int | None = None) -> RotaryEmbedding:
        """What the config means, and where upstream is mistaken, what upstream makes of it."""
        config, part = _given(self.original)
        rope = from_config(config, part=part, layer_type=label, seq_len=seq_len, compat="transformers")
        if rope is None:
            raise ValueError("the config says that nothing turns")
        return rope

    @property
    def _is_tower(self) -> bool:
        """Whether position axes come last."""
        return bool(TOWERS.search(type(self.original).__name__)) and next(iter(self._ropes.values())).axes > 1

    def _follows_length(self, label: str | None) -> bool:
        return _block(self.config, label).get("rope_type") == "dynamic"

    def _apply(self, fn: Any, recurse: bool = True) -> "Rotary":
        self.original._apply(fn, recurse)
        return super()._apply(fn, recurse)

    def _save_to_state_dict(self, *args: Any) -> None:
        self.original._save_to_state_dict(*args)

    def _load_from_state_dict(self, *args: Any) -> None:
        self.original._load_from_state_dict(*args)

    def train(self, mode: bool = True) -> "Rotary":
        self.original.train(mode)
        return super().train(mode)


def is_rotary(module: Any) -> bool:
    """Whether this is a rotary module, by the names of its classes; or attention that says it is no rotation."""
    names = [cls.__name__ for cls in type(module).__mro__ if ROTARY.search(cls.__name__)]
    return any(not ATTENTION.search(name) or name in REFUSED for name in names)


def named(module: Any) -> str:
    return f"{type(module).__module__.removeprefix('transformers.models.')}.{type(module).__name__}"


def rotary_of(who: str, original: Any) -> Rotary:
    """Ours in place of a rotary module, with tables that are equal to those of the original."""
    name = type(original).__name__
    try:
        if name in REFUSED:
            raise ValueError(REFUSED[name])
        takes = tuple(inspect.signature(original.forward).parameters)
        if name not in POSITIONS and takes not in (("x", "position_ids"), ("x", "position_ids", "layer_type")):
            raise ValueError(f"its forward takes ({', '.join(takes)}), and not positions")
        if not hasattr(original, "config"):
            raise ValueError("it has no config")
        if any(True for _ in original.parameters()):
            raise ValueError("it holds parameters")
        if original._forward_hooks or original._forward_pre_hooks:
            raise ValueError("it has hooks")
        rotary = Rotary(original)
        for label in rotary._ropes:
            rotary.forms.append(_form_of(rotary, label))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{who}: every rotary module must be one that can be replaced; got {named(original)}: {error}"
        ) from error
    rotary._is_complex = rotary.forms[0].is_complex
    return rotary


@torch.no_grad()
def _form_of(rotary: Rotary, label: str | None) -> Form:
    """How the tables of upstream look, which are equal to ours at small positions."""
    original, labels = _as_made(rotary.original), () if label is None else (label,)
    forms = {_form_at(rotary, original, labels, length) for length in _lengths(rotary, label)}
    if len(forms) > 1:
        raise ValueError("its tables change their form with the length")
    return forms.pop()


def _form_at(rotary: Rotary, original: Any, labels: tuple[str, ...], length: int | None) -> Form:
    """The same for a sequence of some length."""
    label = labels[0] if labels else None
    rope: Any = rotary._ropes[label]
    x, positions = _example(rotary, rope, length)
    theirs = original(x) if positions is None else original(x, positions, *labels)
    is_complex = isinstance(theirs, torch.Tensor)
    if not is_complex and (not isinstance(theirs, tuple) or len(theirs) != 2):
        raise ValueError(f"its tables are a {type(theirs).__name__}, and not (cos, sin)")
    sin, cos = rotary._tables(x, rotary._positions(x, positions), label)
    tables = (theirs.real, theirs.imag) if is_complex else theirs
    errors = {name: _difference(form, rope, (cos, sin), tables) for name, form in FORMS.items()}
    name = min(errors, key=lambda name: errors[name])
    if not errors[name] <= TOLERANCE * max(1.0, rope.attention_factor):
        raise ValueError(f"its tables differ from those of its config by {errors[name]:.2g}")
    turn = Turn(*READ_WRITE[rope.layout], 0, rope.blocks, rope.reverse)
    return Form(name, is_complex, turn, rope.first_channel > 0, rope.pairs)


def _difference(form: Any, rope: RotaryEmbedding, ours: Any, theirs: Any) -> float:
    """The largest difference at the positions of `SHORT`; infinite where tables are not of one width."""
    worst = 0.0
    for own, their in zip(ours, theirs):
        own = form(own, rope.blocks)
        if own.shape[-1] != their.shape[-1] or own.numel() != their.numel():
            return float("inf")
        difference = (own - their.reshape(own.shape)).abs()
        worst = max(worst, float(difference[..., : len(SHORT), :].max()))
    return worst


def _example(rotary: Rotary, rope: RotaryEmbedding, length: int | None) -> tuple[Any, Any]:
    """What to call a rotary module with: the positions of `SHORT`, and behind them one as far as a length."""
    where = POSITIONS.get(type(rotary.original).__name__)
    if where is not None:
        side = getattr(rotary.config, "patch_size", 1)
        return torch.zeros(1, 3, 2 * side, 5 * side), None
    row = torch.tensor([*SHORT, *([] if length is None else [length - 1])])
    axes = [row if length is not None else row * (axis + 1) % 509 for axis in range(rope.axes)]
    x = torch.zeros(1)
    if rotary._is_tower:
        ids = torch.stack(axes, -1)
        return x, ids[None] if type(rotary.original).__name__ in BATCHED else ids
    return x, torch.stack(axes)[:, None] if rope.axes > 1 else row[None]


def _lengths(rotary: Rotary, label: str | None) -> list[int | None]:
    """The lengths at which tables are compared: beyond those where rules change."""
    if label in rotary._long:
        return [rotary._long[label][0], rotary._long[label][0] + 1]
    if rotary._follows_length(label):
        longest = rotary.config.max_position_embeddings
        return [longest, 2 * longest + 1]
    return [None]


def _as_made(original: Any) -> Any:
    """A copy of a rotary module, which a call may change; made anew where a cast has rounded its frequencies."""
    if any(b.is_floating_point() and b.dtype.itemsize < 4 for b in original.buffers()):
        return type(original)(original.config).eval()
    return deepcopy(original, {id(original.config): original.config}).to("cpu").eval()


def _patches(config: Any, pixels: Any) -> tuple[int, int]:
    size = config.patch_size
    high, wide = size if isinstance(size, (tuple, list)) else (size, size)
    return pixels.shape[-2] // high, pixels.shape[-1] // wide


def _labels(config: Any) -> list[str | None]:
    """The layer types by which the rotary block is nested, or None alone."""
    blocks = getattr(config, "rope_parameters", None) or {}
    return [label for label, block in blocks.items() if isinstance(block, Mapping)] or [None]


def _block(config: Any, label: str | None) -> Mapping[str, Any]:
    blocks = getattr(config, "rope_parameters", None) or {}
    return blocks if label is None else blocks[label]


def _given(original: Any) -> tuple[dict[str, Any], str | None]:
    """The config of a rotary module as `from_config` takes it, and which part of it is meant."""
    config: dict[str, Any] = {key: each for key, each in original.config.to_dict().items() if key not in OF_LAYERS}
    part = None
    within = WITHIN.get(type(original).__name__) or WITHIN.get(type(original.config).__name__)
    if within is not None:
        whole, keys, part = within
        for key in keys:
            config = {key: config}
        config["model_type"] = whole
    return config, part
