"""Write an embedding as keys of a config.json of MLX, as the model class of mlx-lm reads them."""

from rope_xp.configs import engines
from rope_xp.configs.engines import Reading
from rope_xp.configs.writers import Options, joined_keys, limits
from rope_xp.configs.writers.transformers import rotated_fraction
from rope_xp.errors import wrong_value
from rope_xp.frequencies import (
    ORIGINAL,
    DynamicNTKScaling,
    LongRopeScaling,
    NTKScaling,
    ProportionalScaling,
    Scaling,
    YarnScaling,
)
from rope_xp.provenance import Provenance
from rope_xp.sections import Sections
from rope_xp.types import Embedding, Values

TARGET = "MLX"
# Model types whose classes find the layers with a window by `sliding_window_pattern`, and do not read `layer_types`.
BY_PATTERN = ("cohere2", "exaone4", "gemma3_text", "plamo3")
# The last names of keys that classes read, by what they say.
BASES = (
    *("rope_theta", "rope_local_base_freq", "swa_rope_theta", "rope_local_theta", "compress_rope_theta"),
    *("rotary_emb_base", "rope_freq_constant", "rope_embedding_base"),
)
FRACTIONS = ("partial_rotary_factor", "rotary_pct", "global_partial_rotary_factor", "rotary_dim")
WIDTHS = ("qk_rope_head_dim", "global_head_dim", "swa_head_dim", "kv_channels", "head_dim")
LAYOUTS = ("rope_traditional", "rope_interleave")
# The model type of which mlx-lm's own helper builds the rotation, for embeddings whose class is not known.
USUAL = "llama"


def mlx_keys(rope: Embedding, options: Options) -> Values:
    """The keys that the class for the model type of the file reads; without one, those of most classes."""
    table = engines.table("mlx-lm", options.engine_version)
    origin = rope._provenance
    names = _names(table, origin)
    if not names and origin.file_type:
        engines.warn(
            f"{table.name} has no class for model type {origin.file_type!r}: whether MLX reads these keys is not known"
        )
    if origin.has_own_types and origin.model_type in BY_PATTERN:
        engines.warn(
            f"{table.name} does not read layer_types for model type {origin.model_type!r}: it counts layers by "
            "sliding_window_pattern, so other layers get these keys than in the config"
        )
    if not names:
        usual = table.readings[USUAL]
        partial = set() if rope.rotary_dim == rope.head_dim else {"partial_rotary_factor"}
        usual = usual._replace(path=origin.path, keys=usual.keys | partial, fixed={"rotated": 1.0})
        return _Class(rope, table.name, usual).keys()
    classes = {name: _Class(rope, table.name, table.readings[name], f" for model type {name!r}") for name in names}
    return joined_keys("mlx", {name: each.keys() for name, each in classes.items()})


def _names(table: engines.Table, origin: Provenance) -> list[str]:
    """The entries for an embedding: of its text model and its type of layers, where the table has such."""
    for model in (f"{origin.file_type}:{origin.model_type}", origin.file_type):
        for name in (f"{model}:{origin.layer_type}", model):
            if table.of(name):
                return [name]
        layers = [name for name in table.readings if name in (f"{model}:full_attention", f"{model}:sliding_attention")]
        if layers:
            return layers
    return []


def _nested(keys: Values, path: tuple[str, ...]) -> Values:
    found: Values = {}
    for key, value in keys.items():
        *outer, last = *path, *key.split(".")
        place = found
        for name in outer:
            place = place.setdefault(name, {})
        if isinstance(value, dict):
            place.setdefault(last, {}).update(value)
        else:
            place[last] = value
    return found


class _Class:
    """A model class of mlx-lm that is to compute an embedding."""

    def __init__(self, rope: Embedding, engine: str, reading: Reading, model: str = "") -> None:
        self.rope, self.engine, self.reading, self.model = rope, engine, reading, model

    def keys(self) -> Values:
        rope, reading = self.rope, self.reading
        path = rope._provenance.path
        if path != reading.path and (path or not reading.flat):
            wanted, own = (".".join(each) or "the file itself" for each in (path, reading.path))
            raise self.unread(f"read keys in {wanted}", f"a class that reads them in {own}")
        if reading.fixed.get("rotated") == 0.0:
            raise self.unread("rotate", "a class that does not")
        limits.require_only(rope, f"a config of {TARGET}", *({"reverse"} & reading.fixed.keys()))
        # MLX computes dynamic NTK for each length, as the rule does.
        own = (DynamicNTKScaling, *([NTKScaling] if "ntk" in reading.rules else []))
        base, rule = limits.base_and_rule(rope, TARGET, *own)
        fractions = {**dict.fromkeys(FRACTIONS, rotated_fraction(rope)), "rotary_dim": rope.rotary_dim}
        keys = (
            self.stated("base", base, {name: base for name in BASES})
            | self.stated("layout", rope._rotation.read, {name: rope.layout != "half" for name in LAYOUTS})
            | self.stated("rotated", rope.rotary_dim / rope.head_dim, fractions)
            | self.stated("", None, {name: rope.head_dim for name in WIDTHS})
        )
        if reading.fixed.get("reverse", False) != rope.reverse:
            raise self.unread("turn in the same direction", "a class that does not")
        return _nested(keys | self.block(rule), path)

    def unread(self, requirement: str, found: str) -> ValueError:
        return wrong_value(f"{self.engine} must {requirement}{self.model}; got {found}")

    def stated(self, what: str, value: str | float | None, by_name: Values) -> Values:
        """The key that the class reads for a value. A class that reads none must have the value without."""
        read = {key.rpartition(".")[2]: key for key in self.reading.keys}
        name = next((name for name in by_name if name in read), None)
        if name is not None:
            return {read[name]: by_name[name]}
        usual = self.reading.fixed.get(what)
        if usual != value:
            found = "does not" if usual is None else f"always has {usual}, not {value}"
            raise self.unread(f"read {next(iter(by_name))}", f"a class that {found}")
        return {}

    def block(self, rule: Scaling | None) -> Values:
        rope, reading = self.rope, self.reading
        limits.require_attention_factor(rope)
        if rope.sections is not None:
            return self.placed("mrope", _of_sections(rope.sections, rule))
        if "ntk" in reading.rules and (rule is None or isinstance(rule, NTKScaling)):  # such classes want a block
            alpha = 1.0 if rule is None else rule.factor
            return self.placed("ntk", {"type": "dynamic", "alpha": alpha, "factor": 1.0})
        if rule is None:
            return {reading.block: {"rope_type": "default"}} if reading.block.startswith("rope_parameters") else {}
        if not rule.is_standard:
            raise limits.unsupported(rule, TARGET)
        if rule.rope_type not in reading.rules:
            where = reading.block or "rope_scaling"
            read = f"reads {', '.join(sorted(reading.rules))}" if reading.rules else "does not"
            raise self.unread(f"read {where} with rule {rule.rope_type!r}", f"a class that {read}")
        if isinstance(rule, LongRopeScaling):
            return self.placed("longrope", self.of_longrope(rule))
        if isinstance(rule, YarnScaling):
            if rope.softmax_scale != reading.fixed.get("softmax_scale", rope.softmax_scale):
                raise self.unread(
                    "scale scores by mscale_all_dim", f"a class that does not, not by {rope.softmax_scale}"
                )
            return self.placed("yarn", _of_yarn(rope, rule))
        if isinstance(rule, ProportionalScaling) and rope.rotary_dim != rope.head_dim:
            raise wrong_value(f"rotary_dim must be head_dim with {rule}; got {rope.rotary_dim}")
        values = {name: value for name, value in limits.parameters(rule).items() if name != "seq_len"}
        return self.placed(rule.rope_type, {"type": rule.rope_type, **values})

    def placed(self, rule: str, values: Values) -> Values:
        """The block with the keys that the class reads, and the keys that it reads outside."""
        reading = self.reading
        if rule not in reading.rules:
            raise self.unread(f"read {reading.block or 'rope_scaling'} with rule {rule!r}", "a class that does not")
        read, name = reading.rules[rule], values.pop("type")
        types = {"type": name} if "type" in read else {"rope_type": name}
        inside = {key: value for key, value in values.items() if key in read}
        outside = {key: value for key, value in values.items() if key in reading.keys and key not in read}
        return {reading.block: types | inside, **outside}

    def of_longrope(self, rule: LongRopeScaling) -> Values:
        rope, original = self.rope, rule.original_max_position_embeddings
        if not rule.is_long:
            raise wrong_value(
                f"seq_len of scaling must be greater than {original} in {TARGET}, which always uses "
                f"long_factor; got {rule.seq_len}"
            )
        limits.require_half(rope, TARGET)
        values = {"type": "longrope", **limits.parameters(rule, "short_factor", "long_factor", ORIGINAL)}
        if "long_mscale" in self.reading.rules["longrope"]:
            return values | dict.fromkeys(("short_mscale", "long_mscale"), rope.attention_factor)
        length = round((rule.factor or 1.0) * original)
        if rope.attention_factor != limits.longrope_factor(length, original):
            raise wrong_value(
                f"attention_factor must be that of a whole max_position_embeddings and {original}, as {TARGET} "
                f"computes it; got {rope.attention_factor}, with factor {rule.factor}"
            )
        return values | {"max_position_embeddings": length}


def _of_sections(sections: Sections, rule: Scaling | None) -> Values:
    if sections.order != "chunked" or sections.axes != 3 or rule is not None:
        raise wrong_value(
            f"sections must be three in order 'chunked' and without scaling in {TARGET}; got {sections}, {rule}"
        )
    return {"type": "mrope", "mrope_section": list(sections.sizes)}


def _of_yarn(rope: Embedding, rule: YarnScaling) -> Values:
    limits.require_rounded_ramp(rope, rule, TARGET)
    return {"type": "yarn", **limits.parameters(rule, *limits.YARN), **limits.mscales(rope, rule, TARGET)}
