"""to_config: what is written for an engine gives the value by that engine's formulas, or the target is refused."""

import json
import warnings
from copy import deepcopy
from dataclasses import replace

import engines
import pytest
import tiny_gguf
from cases import for_each
from configs import CONFIGS, GOLDENS, ROWS, value_of, with_12_digits
from hypothesis import given
from hypothesis import strategies as st
from rules import rules

from rope_xp import (
    DynamicNTKScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    RotaryEmbedding,
    from_config,
)
from rope_xp.configs.engines import table
from rope_xp.configs.families.model_types import FAMILIES
from rope_xp.configs.writers import TARGETS
from rope_xp.configs.writers.gguf_architectures import (
    ARCHITECTURE_OF,
    LAYERS,
    LONG,
    PERMUTED,
    gguf_layout,
)
from rope_xp.frequencies import Scaling, geometric
from rope_xp.provenance import Provenance, with_provenance

# Engines compute in float64 here, from float32 numbers where a GGUF file has them: two roundings of a frequency.
EXACT, FLOAT32 = 1e-13, 2.0**-22
HALF, INTERLEAVED, TO_HALF = "half", "interleaved", "interleaved_to_half"
ORIGINAL, LLAMA_CPP = "original_max_position_embeddings", ("gguf", "llama.cpp")
# For families that llama.cpp does not have: architectures that accept every rule, and those that rotate a part.
OTHER_ARCHITECTURES = {HALF: "apertus", INTERLEAVED: "minicpm", TO_HALF: "minicpm"}
IN_PART = {HALF: "gptneox", INTERLEAVED: "granitehybrid", TO_HALF: "granitehybrid"}
# Time, height, width, and the fourth position of llama.cpp, which is 0.
POSITIONS = (70_001, 1_003, 211, 0)


# Configs whose last pairs follow the fourth position: they are written with a warning.
FOURTH_POSITION = {"qwen3-vl-2b-instruct()": (61, 62), "qwen3-vl-30b-a3b()": (61, 62)}


def rope_of(golden):
    return from_config(CONFIGS[golden["config"]], **golden["kwargs"])


ROTATED = [golden for golden in GOLDENS if golden["rotated"]]


def named(golden):
    kwargs = ",".join(f"{key}={value}" for key, value in golden["kwargs"].items())
    return f"{golden['config']}({kwargs})"


def prepared(rope, target):
    """The value of the target's checkpoints, whose projections may be permuted; and the architecture of a GGUF file.

    It is not that of a type of layers, as programs have no settings for one of several types, and its base has the name
    that most configs have.
    """
    usual = replace(rope._provenance, layer_type="", layer=None, base_key="rope_theta")
    rope = with_provenance(rope, usual)
    if target in INTERLEAVED_TARGETS and target != "gguf":
        return rope if rope.blocks > 1 else rope.replace(layout=INTERLEAVED), {}
    if target in ("mlx", "vllm"):  # without a model type: test_mlx_classes.py has what each reads
        return with_provenance(rope, Provenance()), {}
    if target not in ("gguf", "llama.cpp"):
        return rope, {}
    others = OTHER_ARCHITECTURES if rope.rotary_dim == rope.head_dim else IN_PART
    name = ARCHITECTURE_OF.get(rope._provenance.model_type, others[rope.layout])
    sections = () if rope.sections is None else rope.sections.sizes
    layout = gguf_layout(name, sections)
    same = layout in rope.layout or rope.blocks > 1
    return rope if same else rope.replace(layout=layout), {"architecture": name}


def outcome(golden, target):
    """The value, the options and what is written; or the property for which the target is refused."""
    rope, options = prepared(rope_of(golden), target)
    is_warned = target in LLAMA_CPP and named(golden) in FOURTH_POSITION
    warned = "rotates pairs 61, 62 by a fourth position, which is 0 for text; .* 0.11"
    with pytest.warns(UserWarning, match=warned) if is_warned else warnings.catch_warnings(action="ignore"):
        return rope, options, written_or_refused(rope, target, options)


def written_or_refused(rope, target, options):
    try:
        return rope.to_config(target, **options)
    except ValueError as error:
        start, _, message = str(error).partition(": ")
        assert start == "RotaryEmbedding.to_config" and "; got " in message and len(str(error)) < 600, error
        return message.split()[-1 if message.startswith("the embedding") else 0].rstrip(",")


def length_of(rope):
    return getattr(rope.scaling, "seq_len", None) or 0


def computed(rope, target, options, written):
    """The angles at `POSITIONS`, and the two factors, by the formulas of the engine."""
    if target == "gguf":
        return engines.ggml(written, POSITIONS, length_of(rope))
    if target == "llama.cpp":
        return engines.ggml(file_of(rope, options["architecture"], written), POSITIONS, length_of(rope))
    if target == "vllm":
        block = json.loads(written[1])["rope_parameters"]
        fraction = 1.0 if block["rope_type"] == "proportional" else block.get("partial_rotary_factor", 1.0)
        found = engines.vllm(written, int(rope.head_dim * fraction), rope.softmax_scale != 1.0, length_of(rope))
    elif target in ("sglang", "lmdeploy"):
        found = engines.served(written, rope.head_dim, rope.softmax_scale != 1.0, length_of(rope))
    elif target == "mlx":
        found = engines.mlx(written, length_of(rope))
    else:
        found = getattr(engines, target.replace("-", "_"))(written, rope.head_dim)
    return on_axes(rope, found[0]), *found[1:]


def file_of(rope, name, flags):
    """A GGUF file without scaling, and the arguments."""
    file = {"general.architecture": name, f"{name}.rope.dimension_count": rope.rotary_dim}
    if rope.sections is not None:
        file[f"{name}.rope.dimension_sections"] = [*rope.sections.sizes, 0][:4]
    return engines.with_flags(name, file, flags)


def on_axes(rope, freqs):
    """The angles of pairs whose position axes the model assigns."""
    if rope.sections is None:
        return [POSITIONS[0] * w for w in freqs]
    return [POSITIONS[column.axis] * freqs[column.index] for column in rope.sections.columns()]


def expected(rope):
    rows = [rope.inv_freq] if rope.axes == 1 else rope.inv_freq
    angles = [sum(position * w for position, w in zip(POSITIONS, column)) for column in zip(*rows)]
    return angles, rope.attention_factor, rope.softmax_scale


def read_back(rope, target, keys, nested=False):
    """What is written, in a whole config, which is of a family that nobody knows where it says nothing of one."""
    heads, choice = {"num_attention_heads": 8, "hidden_size": 8 * rope.head_dim}, {}
    latent = {"model_type": "deepseek_v3", "qk_rope_head_dim": rope.head_dim, "rope_interleave": rope.layout != HALF}
    is_latent = rope.softmax_scale != 1.0
    if target == "meta":
        keys = {"dim": 8 * rope.head_dim, "n_heads": 8, **keys}
    elif target == "megatron":
        keys = {**heads, **keys}
    elif target == "mlx":
        keys = {**heads, **(latent if is_latent else {"model_type": "llama"}), **keys}
        if rope.sections is not None:
            keys = {**keys, "model_type": "qwen2_vl_text", "rope_traditional": False}
        if is_latent:
            del keys["head_dim"], keys["rope_traditional"]
    elif target == "gguf":
        keys = {**keys, f"{keys['general.architecture']}.attention.head_count": 8}
    else:
        for name in rope._provenance.path if target == "transformers4" else ():
            keys = keys[name]
        keys = json.loads(keys[1]) if target == "vllm" else keys
        keys = {"rope_parameters": keys} if target == "transformers" else keys
        length = getattr(rope.scaling, "max_position_embeddings", None if target != "transformers4" else 2**17)
        mine = heads | latent if is_latent else {"model_type": "mine", "head_dim": rope.head_dim}
        keys = {**mine, "max_position_embeddings": length, **keys}
        keys, choice = {"model_type": "mine_too", "text_config": keys} if nested else keys, {"layout": rope.layout}
    found = from_config(json.loads(json.dumps(keys)), seq_len=length_of(rope) or None, **choice)
    # An order of axes that depends on the family in a config of transformers is not written.
    is_own = rope.sections is not None and rope.sections.order in ("spatial_first", "even_odd")
    return found.replace(sections=rope.sections) if is_own else found


def assert_equal(found, rope, tolerance):
    assert found.head_dim == rope.head_dim and found.rotary_dim == rope.rotary_dim
    assert found.layout.removesuffix("_to_half") == rope.layout.removesuffix("_to_half")
    for one, other in zip(expected(found), expected(rope), strict=True):
        assert one == pytest.approx(other, rel=tolerance, abs=1e-24)


@st.composite
def values(draw):
    whole = draw(st.booleans())  # numbers that Megatron can have
    factor = float(draw(st.integers(2, 40))) if whole else draw(st.floats(1.1, 40.0))
    base = float(draw(st.integers(2000, 10**7))) if whole else draw(st.floats(500.0, 1e7))
    head_dim, length = 4 * draw(st.integers(2, 32)), 2 ** draw(st.integers(8, 15))
    rotary_dim = head_dim if draw(st.integers(0, 3)) else head_dim // 2
    scaling, _ = draw(rules(base, rotary_dim, factor, length))
    layout = draw(st.sampled_from([HALF, INTERLEAVED, TO_HALF]))
    return RotaryEmbedding(head_dim=head_dim, rotary_dim=rotary_dim, layout=layout, base=base, scaling=scaling)


# Targets with keys of transformers have no formula: tests/engines runs transformers. The two others have few keys.
CHECKED = [target for target in TARGETS if target not in ("axolotl", "lmstudio")]
COMPUTED = [target for target in CHECKED if not target.startswith("transformers")]
INTERLEAVED_TARGETS = ("meta", "gguf")
READ_BACK = ("transformers", "transformers4", "vllm", "gguf", "mlx", "megatron", "meta")  # by `from_config`
OF_ANY_FAMILY = ("transformers", "transformers4", "vllm")


def assert_is_written(rope, target, options, written, tolerance, still=()):
    """The engine computes the value, but for pairs that stay still, and it is read back."""
    if target in COMPUTED:
        (angles, *factors), (wanted, *others) = computed(rope, target, options, written), expected(rope)
        for pair in still:
            assert angles[pair] == 0.0
            wanted[pair] = 0.0
        assert angles == pytest.approx(wanted, rel=tolerance, abs=1e-24)
        assert factors == pytest.approx(others, rel=tolerance)
    # vLLM has a key of its own for dynamic NTK, and some families have theirs in transformers 4.
    has_own_keys = target == "vllm" and isinstance(rope.scaling, DynamicNTKScaling)
    has_own_keys |= target == "transformers4" and in_transformers_4(rope)
    for nested in (False, True)[: 1 + (target in OF_ANY_FAMILY)] if target in READ_BACK and not has_own_keys else ():
        # No family of transformers has this layout in the keys of MLX.
        wanted = rope.replace(layout=HALF) if target == "mlx" and rope.sections is not None else rope
        found = read_back(wanted, target, written, nested)
        assert_equal(found, wanted, tolerance)
        is_base = isinstance(rope.scaling, NTKScaling)  # which classes that are not known read as a larger base
        assert found == wanted or target != "transformers" or wanted.first_channel or is_base
        if target != "gguf" and not isinstance(rope.scaling, NTKScaling | DynamicNTKScaling):
            assert type(found.scaling) is type(rope.scaling)


@pytest.mark.parametrize("target", CHECKED)
def test_what_is_written_for_goldens(target):
    outcomes = {named(golden): outcome(golden, target) for golden in ROTATED}
    refused = {name: written for name, (*_, written) in outcomes.items() if isinstance(written, str)}
    rows = rows_of(target, refused)
    lines = "\n".join(f" {json.dumps(row)}," for row in rows)
    assert {row["target"] for row in ROWS["refused goldens"]} <= {*COMPUTED}
    recorded = [row for row in ROWS["refused goldens"] if row["target"] == target]
    assert rows == recorded or target not in COMPUTED, f'rows of "refused goldens" in rows.json must be\n{lines}'
    for name in outcomes.keys() - refused:
        (rope, *others), of_file = outcomes[name], target in LLAMA_CPP
        still = FOURTH_POSITION.get(name, ()) if of_file else ()
        assert_is_written(rope, target, *others, FLOAT32 if of_file else EXACT, still)


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("target", CHECKED)
@given(rope=values())
def test_what_is_written_for_random_values(target, rope):
    if target == "meta":
        rule = None if isinstance(rope.scaling, LongRopeScaling) else rope.scaling  # whose lists may be too short
        rope = rope.replace(rotary_dim=rope.head_dim, scaling=rule)
    rope, options = prepared(rope, target)
    written = written_or_refused(rope, target, options)
    if not isinstance(written, str):
        tolerance = {"gguf": 2 * FLOAT32, "llama.cpp": 2 * FLOAT32, "lmdeploy": 1e-7}.get(target, 10 * EXACT)
        assert_is_written(rope, target, options, written, tolerance)


def rows_of(target, refused):
    """What a target cannot express, by the property. A name without brackets stands for all goldens of a config."""
    of_config, goldens = {}, {}
    for golden in ROTATED:
        of_config.setdefault(golden["config"], set()).add(refused.get(named(golden)))
    for golden in ROTATED:
        name = named(golden) if len(of_config[golden["config"]]) > 1 else golden["config"]
        goldens.setdefault(refused.get(named(golden)), {})[name] = None
    goldens.pop(None, None)
    return [{"target": target, "property": words, "goldens": [*names]} for words, names in goldens.items()]


def in_transformers_4(rope):
    own = rope._provenance
    return not own.format and table("transformers", "4.57.6").of(own.model_type) is not None


def test_keys_of_transformers_4_replace_those_of_the_file():
    """What it refuses, transformers 4 would compute otherwise: tests/engines."""
    for golden in ROTATED:
        rope, _, written = outcome(golden, "transformers4")
        if isinstance(written, str) or not in_transformers_4(rope):
            continue
        config = place = deepcopy(CONFIGS[golden["config"]])
        for name in rope._provenance.path:
            place, written = place[name], written[name]
        place.pop("rope_parameters", None)
        place.update(json.loads(json.dumps(written)))
        assert_equal(from_config(config, **golden["kwargs"]), rope, EXACT)


@pytest.mark.filterwarnings("ignore:.* is not known:UserWarning")
def test_axolotl_gets_the_block_of_transformers():
    for golden in ROTATED:
        rope, _, written = outcome(golden, "axolotl")
        if isinstance(written, str):
            block = outcome(golden, "transformers")[2]
            assert isinstance(block, str) or rope._provenance.path or rope._provenance.layer_type
        else:
            keys = dict(written["overrides_of_model_config"])
            assert keys.pop("rope_parameters") == rope.to_config("transformers")
            # What is read outside the block for these rules.
            outside = {DynamicNTKScaling: ["max_position_embeddings"], LongRopeScaling: [ORIGINAL]}
            assert [*keys] == outside.get(type(rope.scaling), [])
            assert all(value == getattr(rope.scaling, key) for key, value in keys.items())


@for_each(
    "golden", [each for each in ROTATED if each["config"] in ("llama-3.1-8b", "deepseek-v3", "phi-3.5-mini-instruct")]
)
def test_a_gguf_file_with_the_metadata_is_read(golden, tmp_path):
    rope, options, metadata = outcome(golden, "gguf")
    file = tiny_gguf.written(tmp_path / "model.gguf", metadata=metadata, **options)
    found = from_config(file, seq_len=length_of(rope) or None)
    assert_equal(found, rope, FLOAT32)
    assert type(found.scaling) is type(rope.scaling)


def test_weights_that_the_converter_permutes_are_not_permuted_twice():
    differ = {
        name
        for model_type, name in ARCHITECTURE_OF.items()
        if (gguf_layout(name), FAMILIES[model_type].pairing.layout) == (INTERLEAVED, HALF)
    }
    assert differ == {*PERMUTED}


def half(head_dim=128, base=10_000.0, **options):
    return RotaryEmbedding(**{"layout": HALF, "head_dim": head_dim, "base": base, **options})


LONGROPE = {"short_factor": (1.0, 1.1), "long_factor": (1.5, 4.0), "original_max_position_embeddings": 4096}
QWEN, PHI = ({"architecture": name} for name in ("qwen2", "phi3"))


def test_what_is_written_for_a_length():
    for row in ROWS["written for a length"]:
        rope = value_of(row["rope"]) if "rope" in row else from_config(row["config"])
        target, arguments = row["target"], row.get("arguments", {})
        found = rope.to_config(target, **arguments, context=row["length"])
        if isinstance(found, list):
            found = [json.loads(each) if each.startswith("{") else each for each in found]
        assert with_12_digits(json.dumps(found)) == with_12_digits(json.dumps(row["written"])), row


class HalfYarn(Scaling):
    """A user's own rule, with the name of another."""

    rope_type = "yarn"

    def frequencies(self, base, rotary_dim):
        return tuple(w / 2 for w in geometric(base, rotary_dim))


class HalfLlama3(Llama3Scaling):
    """A user's own rule, derived from another."""

    def frequencies(self, base, rotary_dim):
        return tuple(w / 2 for w in super().frequencies(base, rotary_dim))


@pytest.mark.parametrize("target", TARGETS)
def test_a_rule_of_a_user_is_not_written_as_another(target):
    layout = "interleaved" if target in INTERLEAVED_TARGETS else "half"
    derived = half(
        layout=layout,
        scaling=HalfLlama3(
            factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=4096
        ),
    )
    with pytest.raises(ValueError, match="alone; got HalfLlama3, derived from Llama3Scaling"):
        derived.to_config(target)
    own = half(layout=layout, scaling=HalfYarn())
    if target == "gguf":
        assert own.to_config(target, architecture="llama")["rope_freqs.weight"] == [2.0] * own.pairs
        return
    with pytest.raises(ValueError, match=r"RotaryEmbedding\.to_config: scaling must be "):
        own.to_config(target)


def test_architectures_of_families_are_rotary():
    for name in {*ARCHITECTURE_OF.values(), *LAYERS}:
        assert gguf_layout(name) is not None
    assert LONG in RotaryEmbedding(
        head_dim=4, layout=HALF, base=1e4, scaling=LongRopeScaling(**LONGROPE, factor=4.0)
    ).to_config("gguf", **PHI)
