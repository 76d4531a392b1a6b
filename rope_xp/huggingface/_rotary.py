"""A rotary module of transformers, and ours in its place: what it makes of positions, proven equal beforehand."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import inspect
import re
import sys
import types
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from rope_xp._core.config import from_config
from rope_xp._core.embedding import RotaryEmbedding
from rope_xp._core.kernels.pair_rotation import Rotation
from rope_xp._core.rotation import READ_WRITE
from rope_xp.frequencies import DynamicNTKScaling, LongRopeScaling
from rope_xp.huggingface._float32_on_cpu import float32_on_cpu
from rope_xp.huggingface._kept import LAST_BITS, Aside, Guarded, Ours, agree, named
from rope_xp.positions import grid, join, normalized

# What speaks of rotation in the name of a class, and which of those are attention.
ROTARY, ATTENTION = re.compile("Rotary|RoPE|Rope|RoFormerSinusoidal"), re.compile("Attention|Layer$")

REFUSED = {
    "ClvpRotaryPositionalEmbedding": "it counts positions itself, and values turn too",
    "EfficientLoFTRRotaryEmbedding": "it takes a map of features, not positions",
    "EsmFold2RotaryEmbedding": "it takes coordinates of atoms, not positions",
    "HunYuanVLRotaryEmbedding": "it is no rotation: the channels of a pair follow different axes",
    "MistralLarge4TextRotaryEmbedding": "its frequencies are multiplied by weights",
    "MusicFlamingoRotaryEmbedding": "it takes times, which it multiplies with windows",
    "RoFormerSinusoidalPositionalEmbedding": "its tables are the weights of an embedding",
    "SeamlessM4TConformerRotaryPositionalEmbedding": "it counts positions itself, for a method and not a function",
    "VJEPA2RopeAttention": "it is no rotation: angles are laid out for halves, pairs are neighbours",
    "Wav2Vec2BertRotaryPositionalEmbedding": "it counts positions itself, for a method and not a function",
    "Wav2Vec2ConformerRotaryPositionalEmbedding": "it counts positions itself, for a method and not a function",
}


def _centers(rotary: Any, pixels: Any) -> Any:
    """Centers of patches, which training moves: by upstream's own function, and by the same random numbers."""
    centers = normalized(*_patches(rotary.config, pixels), like=pixels.float())
    if not rotary.training:
        return centers
    move = sys.modules[type(rotary.original).__module__].augment_patches_center_coordinates
    by = {name: getattr(rotary.config, f"pos_embed_{name}") for name in ("shift", "jitter", "rescale")}
    return move(centers.movedim(0, -1), **by).movedim(-1, 0)


def _patches(config: Any, pixels: Any) -> tuple[int, int]:
    size = config.patch_size
    high, wide = size if isinstance(size, (tuple, list)) else (size, size)
    return pixels.shape[-2] // high, pixels.shape[-1] // wide


def _cells(rotary: Any, hidden_states: Any) -> Any:
    """Cells of an image of one size, and a last place for all of it."""
    side = rotary.config.image_size // rotary.config.patch_size
    return join(grid(side, side, start=1, axes=(1, 0), like=hidden_states), 1)


# Classes that find positions themselves, from the config and what they are called with.
POSITIONS: dict[str, Callable[[Any, Any], Any]] = {
    "DINOv3ViTRopePositionEmbedding": _centers,
    "EomtDinov3RotaryEmbedding": _centers,
    "Sapiens2RopePositionEmbedding": _centers,
    "Llama4VisionRotaryEmbedding": _cells,
}
# Towers that say it in no name: their position axes are the last axis.
TOWERS = re.compile("Vision|ViT|MLCD")
BATCHED = ("Gemma4VisionRotaryEmbedding",)  # those whose positions are (batch, tokens, axes)
# Configs without a model_type of their own: (model_type, key of the config there, part).
OWNING_CONFIG = {
    "EvollaSaProtRotaryEmbedding": ("evolla", "protein_encoder_config", "protein_encoder"),
    "Qwen3OmniMoeCode2WavConfig": ("qwen3_omni_moe", "code2wav_config", "code2wav"),
}
# Keys that say which layers are rotated, or with which base; a rotary module has one of its own.
OF_LAYERS = ("layer_rope_theta", "no_rope_layers", "no_rope_layer_interval")

# Positions where tables are compared: below 512, where float32 phases are at most 512 * 2**-24 = 3e-5 off; and one far
# away, for pairs with a phase below 128 there, as their frequencies are rounded too, by up to 4 times that.
SHORT, FAR, SLOW = (0, 1, 511, 3, 8, 8, 127, 64, 300, 257), 2**20, 128
TABLES_APART = 5e-5
# What upstream turns into float32, and `RotaryEmbedding.sincos` does not take.
SHORT_TYPES = (torch.bool, torch.bfloat16, torch.float16)

# How upstream repeats the column of a pair for its two channels, and a view of one column for each pair.
FORMS: dict[str, tuple[Callable[[Any, int], Any], Callable[[Any, int], Any]]] = {
    "halves": (lambda table, _: torch.cat((table, table), -1), lambda table, _: table[..., : table.shape[-1] // 2]),
    "neighbours": (lambda table, _: table.repeat_interleave(2, -1), lambda table, _: table[..., ::2]),
    "blocks": (
        lambda table, blocks: torch.cat([half for part in table.chunk(blocks, -1) for half in (part, part)], -1),
        lambda table, blocks: torch.cat(table.chunk(2 * blocks, -1)[::2], -1),
    ),
    "once": (lambda table, _: table, lambda table, _: table),
}


class Form(NamedTuple):
    """How the tables of a rotary module look upstream, and what they are for."""

    name: str
    is_complex: bool
    rotation: Rotation
    is_last: bool  # the last channels turn, not the first
    pairs: int

    def of(self, cos: Any, sin: Any) -> Any:
        """Tables as upstream's, from those with one column for each pair."""
        cos, sin = (FORMS[self.name][0](table, self.rotation.blocks) for table in (cos, sin))
        return torch.complex(cos, sin) if self.is_complex else (cos, sin)

    def columns(self, cos: Any, sin: Any) -> tuple[Any, Any]:
        """One column for each pair, from tables as upstream's."""
        return tuple(FORMS[self.name][1](table, self.rotation.blocks) for table in (cos, sin))


# Attributes of a rotary module that its tables do not depend on.
FREE = ("training", "forward")


class Rotary(Guarded, metaclass=Ours):
    """In place of a rotary module: exact tables as upstream's, but float32, or float64 for float64 `x`.

    It holds no parameter and no buffer. The module that it replaces is not in the tree, but moves, and changes its
    dtype and mode, along with it. Its attributes are read here, but for its buffers, and none of them is set.
    """

    def __init__(self, original: Any):
        super().__init__()
        self.training = False  # until all is proven
        self.config = original.config
        self.forms: dict[str | None, Form] = {}
        self._originals = (original,)  # in a tuple it is no submodule
        self._ropes = {label: self._rope(label) for label in _labels(original)}
        self._find = POSITIONS.get(type(original).__name__)
        several = next(iter(self._ropes.values())).axes > 1
        self._axes_come_last = several and bool(TOWERS.search(type(original).__name__))
        self._longer = {label: each for label in self._ropes if (each := self._rope_of_longer(label))}
        self._blocks = {label: deepcopy(_block(self.config, label)) for label in self._longer}
        self.made: dict[str, Any] = {}  # the buffers of the original, before any cast

    @property
    def original(self) -> Any:
        return self._originals[0]

    def __getattr__(self, name: str) -> Any:
        # What else a model asks of its rotary module, such as its sections.
        if name.startswith("_") or "_originals" not in vars(self):
            return super().__getattr__(name)
        value = getattr(self.original, name)
        if isinstance(value, dict):
            return types.MappingProxyType(value)
        return tuple(value) if isinstance(value, list) else value

    def _keeper(self) -> Any:
        return vars(self).get("_originals", (self,))[0]

    def kept_names(self) -> Collection[str]:
        """The attributes of the original that decide on its tables."""
        public = [name for name in vars(self.original) if not name.startswith("_") and name not in FREE]
        return frozenset([*public, *self.original._buffers])

    def forward(self, x: Any, position_ids: Any = None, layer_type: str | None = None) -> Any:
        """What upstream's module makes, but for the dtype and the digits."""
        sin, cos = self._tables(x, self._positions(x, position_ids), layer_type)
        return self.forms[layer_type].of(cos, sin)

    def _positions(self, x: Any, position_ids: Any) -> Any:
        if self._find is not None:
            return self._find(self, x)
        if position_ids.dtype in SHORT_TYPES:
            position_ids = position_ids.float()
        return (position_ids.movedim(-1, 0) if self._axes_come_last else position_ids).to(x.device)

    def _tables(self, x: Any, positions: Any, label: str | None) -> Any:
        rope = self._ropes[label]
        length, longer = self._longer.get(label, (0, rope))
        if label in self._longer and _block(self.config, label) != self._blocks[label]:  # which upstream reads again
            raise ValueError(
                "patch: rope_parameters of a config whose rule depends on the length must stay; "
                f"got others than when {type(self.original).__name__} was patched: unpatch it first"
            )
        if isinstance(longer.scaling, DynamicNTKScaling):
            needed = int(positions.max()) + 1
            if needed > length:
                rope = longer.replace(scaling=replace(longer.scaling, seq_len=needed))
        sin, cos = rope.sincos(positions, like=x)
        if isinstance(longer.scaling, LongRopeScaling):
            both = zip(longer.sincos(positions, like=x), (sin, cos))
            sin, cos = (torch.where(positions.max() >= length, *pair) for pair in both)
        return (-sin, cos) if rope.reverse else (sin, cos)

    def _rope(self, label: str | None, seq_len: int | None = None) -> RotaryEmbedding:
        """What the config means, and where upstream is mistaken, what upstream makes of it."""
        config, part = _given(self.original)
        rope = from_config(config, part=part, layer_type=label, seq_len=seq_len, compat="transformers")
        if rope is None:
            raise ValueError("the config says that nothing turns")
        return rope

    def _rope_of_longer(self, label: str | None) -> tuple[int, RotaryEmbedding] | None:
        """A length and the rotation of longer sequences, where the rule is another."""
        scaling = self._ropes[label].scaling
        if isinstance(scaling, LongRopeScaling):
            length = scaling.original_max_position_embeddings
        elif _block(self.config, label).get("rope_type") == "dynamic":
            length = self.config.max_position_embeddings
        else:
            return None
        return length, self._rope(label, length + 1)

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


def held(module: Any) -> list[str]:
    """Under which names an object holds the forward of its class: hooks of accelerate do, and leave it behind."""
    own, method = vars(module), type(module).forward
    names = [name for name in ("forward", "_old_forward") if getattr(own.get(name), "__func__", None) is method]
    if "forward" in own and not names:
        raise ValueError("its forward is another than that of its class")
    return names


def is_of_transformers(function: Any) -> bool:
    return isinstance(function, types.FunctionType) and function.__module__.startswith("transformers.")


def rotary_of(who: str, original: Any) -> Rotary:
    """Ours in place of a rotary module, with tables that are equal to those of the original."""
    try:
        with float32_on_cpu():
            return _proven(original)
    except Exception as error:  # whatever code that nobody knows raises
        raise ValueError(
            f"{who}: every rotary module must be one that can be replaced; got {named(original)}: {error}"
        ) from error


def _proven(original: Any) -> Rotary:
    name = type(original).__name__
    if isinstance(original, Aside):
        raise ValueError("another model that is patched holds it")
    if name in REFUSED:
        raise ValueError(REFUSED[name])
    takes = tuple(inspect.signature(type(original).forward).parameters)[1:]
    if name not in POSITIONS and takes not in (("x", "position_ids"), ("x", "position_ids", "layer_type")):
        raise ValueError(f"its forward takes ({', '.join(takes)}), and not positions")
    held(original)
    if not is_of_transformers(type(original).forward):
        raise ValueError("its forward is not that of transformers")
    if not hasattr(original, "config"):
        raise ValueError("it has no config")
    if any(True for _ in original.parameters()):
        raise ValueError("it holds parameters")
    if any(hooks for key, hooks in vars(original).items() if key.endswith("_hooks")):
        raise ValueError("it has hooks")
    rotary = Rotary(original)
    made = _as_made(rotary)
    for label in rotary._ropes:
        forms = {_form_at(rotary, made, label, length) for length in _lengths(rotary, label)}
        if len(forms) > 1:
            raise ValueError("its tables change their form with the length")
        rotary.forms[label] = forms.pop()
    rotary.training = original.training
    return rotary


def _as_made(rotary: Rotary) -> Any:
    """A copy of a rotary module that a call may change, with its buffers as they are before any cast."""
    original = rotary.original
    made = type(original)(original.config).eval()
    copy = deepcopy(original, {id(original.config): original.config}).cpu().eval()
    for label in rotary._ropes:  # after a sequence of one token both are in the same state
        for module in (made, copy):
            _called(rotary, module, label, 1)
    for name, buffer in list(made.named_buffers(remove_duplicate=False)):
        if not agree(copy.get_buffer(name), buffer, LAST_BITS * buffer.abs()):
            raise ValueError(f"its {name} is not that of its config")
        copy.register_buffer(name, buffer)
        rotary.made[name] = buffer
    return copy


def _called(rotary: Rotary, module: Any, label: str | None, length: int | None) -> Any:
    """An example, the positions in it, and the tables that upstream makes of them, past hooks of accelerate."""
    x, positions = _example(rotary, rotary._ropes[label], length)
    given = [each for each in (x, positions, label) if each is not None]
    return x, positions, type(module).forward(module, *given)


def _form_at(rotary: Rotary, made: Any, label: str | None, length: int | None) -> Form:
    """How the tables of upstream look, which are equal to ours, for a sequence of some length."""
    rope: Any = rotary._ropes[label]
    x, positions, theirs = _called(rotary, made, label, length)
    is_complex = isinstance(theirs, torch.Tensor)
    if not is_complex and (not isinstance(theirs, tuple) or len(theirs) != 2):
        raise ValueError(f"its tables are a {type(theirs).__name__}, and not (cos, sin)")
    sin, cos = rotary._tables(x, rotary._positions(x, positions), label)
    tables = (theirs.real, theirs.imag) if is_complex else theirs
    slow = torch.zeros(rope.pairs)
    if length is None and rope.axes == 1 and positions is not None:
        slow = torch.tensor(rope.inv_freq).abs() * FAR < SLOW
    errors = {name: _difference(form[0], rope, slow, (cos, sin), tables) for name, form in FORMS.items()}
    name = min(errors, key=lambda name: errors[name])
    if not errors[name] <= TABLES_APART * max(1.0, rope.attention_factor):
        raise ValueError(f"its tables differ from those of its config by {errors[name]:.2g}")
    rotation = Rotation(*READ_WRITE[rope.layout], 0, rope.blocks, rope.reverse)
    if rope.first_channel not in (0, rope.head_dim - 2 * rope.pairs):
        raise ValueError("neither the first channels turn nor the last")
    return Form(name, is_complex, rotation, rope.first_channel > 0, rope.pairs)


def _difference(form: Any, rope: RotaryEmbedding, slow: Any, ours: Any, theirs: Any) -> float:
    """The largest difference at the positions of `SHORT`, and for slow pairs at the last; infinite for other widths."""
    found = []
    for own, their in zip(ours, theirs):
        own = form(own, rope.blocks)
        if own.shape[-1] != their.shape[-1] or own.numel() != their.numel():
            return float("inf")
        difference = (own - their.reshape(own.shape)).abs()
        far = difference[..., -1, :] * form(slow, rope.blocks)
        found += [difference[..., : len(SHORT), :].max(), far.max()]
    return float(torch.stack(found).max())  # which NaN does not get past


def _example(rotary: Rotary, rope: RotaryEmbedding, length: int | None) -> tuple[Any, Any]:
    """What to call a rotary module with: positions of `SHORT`, within a length, and behind them its last, or `FAR`."""
    if rotary._find is not None:
        side = getattr(rotary.config, "patch_size", 1)
        return torch.zeros(1, 3, 2 * side, 5 * side), None
    last = FAR if length is None else length - 1
    rows = [[min(place * (axis + 1) % 512, last) for place in SHORT] for axis in range(rope.axes)]
    axes = [torch.tensor([*row, last]) for row in rows]
    x = torch.zeros(1)
    if rotary._axes_come_last:
        ids = torch.stack(axes, -1)
        return x, ids[None] if type(rotary.original).__name__ in BATCHED else ids
    return x, torch.stack(axes)[:, None] if rope.axes > 1 else axes[0][None]


def _lengths(rotary: Rotary, label: str | None) -> list[int | None]:
    """The lengths at which tables are compared: up to and beyond those where rules change."""
    if label not in rotary._longer:
        return [None]
    length, longer = rotary._longer[label]
    return [length, 2 * length + 1 if isinstance(longer.scaling, DynamicNTKScaling) else length + 1]


def _labels(original: Any) -> list[str | None]:
    """The layer types by which the rotary block is nested, of those that the module has; or None alone."""
    blocks = getattr(original.config, "rope_parameters", None) or {}
    nested = [label for label, block in blocks.items() if isinstance(block, Mapping)]
    return [label for label in nested if label in getattr(original, "layer_types", nested)] or [None]


def _block(config: Any, label: str | None) -> Mapping[str, Any]:
    blocks = getattr(config, "rope_parameters", None) or {}
    return blocks if label is None else blocks[label]


def _given(original: Any) -> tuple[dict[str, Any], str | None]:
    """The config of a rotary module as `from_config` takes it, and which part of it is meant."""
    config: dict[str, Any] = {key: each for key, each in original.config.to_dict().items() if key not in OF_LAYERS}
    part = None
    within = OWNING_CONFIG.get(type(original).__name__) or OWNING_CONFIG.get(type(original.config).__name__)
    if within is not None:
        whole, key, part = within
        config = {key: config, "model_type": whole}
    return config, part
