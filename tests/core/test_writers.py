"""to_config: what is written for an engine gives the value by that engine's formulas, or the target is refused."""

import json
import warnings
from copy import deepcopy
from dataclasses import replace

import engines
import gguf
import numpy as np
import pytest
from configs import CONFIGS, GOLDENS, ROWS, value_of, with_12_digits

from rope_xp import (
    DynamicNTKScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    RotaryEmbedding,
    YarnScaling,
    from_config,
)
from rope_xp.configs import writers
from rope_xp.configs.engines import table
from rope_xp.configs.families.model_types import FAMILIES
from rope_xp.configs.writers import TARGETS, Options, with_length
from rope_xp.configs.writers.gguf_architectures import ARCHITECTURE_OF, LAYERS, LONG, PERMUTED, gguf_layout
from rope_xp.frequencies import Scaling, geometric
from rope_xp.provenance import Provenance, with_provenance

# Engines compute in float64 here, from float32 numbers where a GGUF file has them: two roundings of a frequency.
EXACT, FLOAT32 = 1e-13, 2.0**-22
HALF, INTERLEAVED, TO_HALF = "half", "interleaved", "interleaved_to_half"
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

    It is not that of a type of layers, as programs have no settings for one of several types.
    """
    rope = with_provenance(rope, replace(rope._provenance, layer_type=""))
    if target == "meta":
        return rope if rope.blocks > 1 else rope.replace(layout=INTERLEAVED), {}
    if target in ("mlx", "vllm"):  # without a model type: test_mlx_classes.py has what each reads
        return with_provenance(rope, Provenance()), {}
    if target not in ("gguf", "llama.cpp"):
        return rope, {}
    others = OTHER_ARCHITECTURES if rope.rotary_dim == rope.head_dim else IN_PART
    name = ARCHITECTURE_OF.get(rope._provenance.model_type, others[rope.layout])
    sections = () if rope.sections is None else rope.sections.sizes
    layout = gguf_layout({"general.architecture": name, f"{name}.rope.dimension_sections": sections})
    same = layout in rope.layout or rope.blocks > 1
    return rope if same else rope.replace(layout=layout), {"architecture": name}


def outcome(golden, target):
    """The value, the options and what is written; or the property for which the target is refused."""
    rope, options = prepared(rope_of(golden), target)
    try:
        if target in ("gguf", "llama.cpp") and named(golden) in FOURTH_POSITION:
            with pytest.warns(
                UserWarning, match="rotates pairs 61, 62 by a fourth position, which is 0 for text; .* 0.11"
            ):
                return rope, options, rope.to_config(target, **options)
        with warnings.catch_warnings():  # that it is not known whether an engine reads the keys
            warnings.simplefilter("ignore", UserWarning)
            return rope, options, rope.to_config(target, **options)
    except ValueError as error:
        start, _, message = str(error).partition(": ")
        assert start == "RotaryEmbedding.to_config" and "; got " in message and len(str(error)) < 600, error
        return rope, options, message.split()[-1 if message.startswith("the embedding") else 0].rstrip(",")


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


# Targets with keys of transformers are read back, and tests/engines runs transformers. LM Studio has a test below.
COMPUTED = [target for target in TARGETS if target not in ("transformers", "transformers4", "axolotl", "lmstudio")]


@pytest.mark.parametrize("target", COMPUTED)
def test_engines_compute_the_value(target):
    outcomes = {named(golden): outcome(golden, target) for golden in ROTATED}
    refused = {name: written for name, (*_, written) in outcomes.items() if isinstance(written, str)}
    rows = rows_of(target, refused)
    lines = "\n".join(f" {json.dumps(row)}," for row in rows)
    recorded = [row for row in ROWS["refused goldens"] if row["target"] == target]
    assert rows == recorded, f'the rows of "refused goldens" in rows.json must be\n{lines}'
    for golden in ROTATED:
        if named(golden) not in refused:
            assert_the_engine_computes_it(golden, target, *outcomes[named(golden)])


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


def assert_the_engine_computes_it(golden, target, rope, options, written):
    tolerance = FLOAT32 if target in ("gguf", "llama.cpp") else EXACT
    (angles, *factors), (wanted, *others) = computed(rope, target, options, written), expected(rope)
    if target in ("gguf", "llama.cpp"):
        for pair in FOURTH_POSITION.get(named(golden), ()):
            assert angles[pair] == 0.0
            wanted[pair] = 0.0
    assert angles == pytest.approx(wanted, rel=tolerance, abs=1e-24)
    assert factors == pytest.approx(others, rel=tolerance)


def test_layers_that_differ_need_a_place_each():
    """Programs with one setting for all layers refuse that of one type, and so do flags that leave other types."""
    config = CONFIGS["gemma-3-1b-it"]
    for layers in ({"layer_type": "sliding_attention"}, {"layer": 0}, {"layer": 5}, {"layer_type": "full_attention"}):
        rope = from_config(config, **layers)
        is_full = layers in ({"layer": 5}, {"layer_type": "full_attention"})
        for target, writer in TARGETS.items():
            for each in (rope, rope.replace(base=5000.0)):
                if writer.layers == "all" or (writer.layers == "full_attention" and not is_full):
                    wanted = (
                        "all layers must have the same embedding" if writer.layers == "all" else "layer_type must be"
                    )
                    with pytest.raises(ValueError, match=wanted):
                        each.to_config(target)
                elif target == "vllm":
                    with pytest.raises(ValueError, match="must have one block for each type of layers"):
                        each.to_config(target)
                else:
                    each.to_config(target)
    assert from_config(CONFIGS["qwen3-8b-yarn"], layer=3)._provenance.layer_type == ""


def test_keys_of_types_of_layers_are_joined_where_they_do_not_differ():
    keys = {"a": 1, "text_config": {"b": 2, "rope_parameters": {"full": {"c": 3}}}, "rope_scaling": {"factor": 2.0}}
    other = {"a": 1, "text_config": {"d": 4, "rope_parameters": {"sliding": {"c": 5}}}, "e": 6}
    joined = {"b": 2, "rope_parameters": {"full": {"c": 3}, "sliding": {"c": 5}}, "d": 4}
    assert writers.joined_keys("x", {"one": keys, "other": other}) == {**keys, "text_config": joined, "e": 6}
    for different in ({"a": 2}, {"rope_scaling": {"type": "linear"}}, {"a": {}}, {"text_config": {"b": 3}}):
        with pytest.raises(ValueError, match="layers must differ only in keys that x has for each of their types; got"):
            writers.joined_keys("x", {"one": keys, "other": different})


def test_refused_goldens_are_of_targets_that_are_computed():
    assert {row["target"] for row in ROWS["refused goldens"]} <= {*COMPUTED}


def read_back(rope, target, keys):
    """The keys as a whole config, read."""
    heads = {"num_attention_heads": 8, "hidden_size": 8 * rope.head_dim}
    if target == "meta":
        keys = {"dim": 8 * rope.head_dim, "n_heads": 8, **keys}
    elif target == "megatron":
        keys = {**heads, **keys}
    elif target == "mlx":
        latent = {"qk_rope_head_dim": rope.head_dim, "rope_interleave": rope.layout != HALF}
        model = {"model_type": "deepseek_v3", **latent} if rope.softmax_scale != 1.0 else {"model_type": "llama"}
        keys = {**heads, **model, **keys}
        if rope.sections is not None:
            keys = {**keys, "model_type": "qwen2_vl_text", "rope_traditional": False}
        if "deepseek_v3" in model.values():
            del keys["head_dim"], keys["rope_traditional"]
    seq_len = getattr(rope.scaling, "seq_len", None)
    return from_config(json.loads(json.dumps(keys)), seq_len=seq_len)


def assert_equal(found, rope, tolerance):
    assert found.head_dim == rope.head_dim and found.rotary_dim == rope.rotary_dim
    assert found.layout.removesuffix("_to_half") == rope.layout.removesuffix("_to_half")
    for one, other in zip(expected(found), expected(rope), strict=True):
        assert one == pytest.approx(other, rel=tolerance, abs=1e-24)


@pytest.mark.parametrize("target", ["gguf", "mlx", "megatron", "meta"])
def test_keys_are_read_back(target):
    for golden in ROTATED:
        assert_its_keys_are_read_back(golden, target)


def assert_its_keys_are_read_back(golden, target):
    rope, _, keys = outcome(golden, target)
    if isinstance(keys, str):
        return
    if target == "mlx" and rope.sections is not None:
        rope = rope.replace(layout=HALF)  # no family of transformers has this layout in the keys of MLX
    found = read_back(rope, target, keys)
    assert_equal(found, rope, FLOAT32 if target == "gguf" else EXACT)
    if target != "gguf" and rope.scaling is not None and not isinstance(rope.scaling, NTKScaling | DynamicNTKScaling):
        assert type(found.scaling) is type(rope.scaling)


# Orders of axes that depend on the family in a config of transformers, and are not written.
OF_FAMILY = ("spatial_first", "even_odd")


@pytest.mark.filterwarnings("ignore:.* is not known:UserWarning")
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "text_config"])
@pytest.mark.parametrize("target", ["transformers", "vllm"])
def test_rope_parameters_are_read_back(target, nested):
    """Those of transformers, and `--hf-overrides` of vLLM, in a config of a model that nobody knows."""
    for golden in ROTATED:
        assert_its_block_is_read_back(golden, target, nested)


def assert_its_block_is_read_back(golden, target, nested):
    rope = rope_of(golden)
    if target == "vllm":
        rope = with_provenance(rope, Provenance())
        if isinstance(rope.scaling, DynamicNTKScaling):
            return  # with a key that only vLLM has: test_flags.py reads it back
    try:
        written = rope.to_config(target)
    except ValueError:
        return  # "refused goldens" has those of vLLM
    keys = json.loads(written[1]) if target == "vllm" else {"rope_parameters": written}
    config = {"model_type": "mine", "head_dim": rope.head_dim, **json.loads(json.dumps(keys))}
    length = getattr(rope.scaling, "max_position_embeddings", None)
    config |= {} if length is None else {"max_position_embeddings": length}
    config = {"model_type": "mine_too", "text_config": config} if nested else config
    found = from_config(config, layout=rope.layout, seq_len=getattr(rope.scaling, "seq_len", None))
    if rope.sections is not None and rope.sections.order in OF_FAMILY:
        found = found.replace(sections=rope.sections)
    if rope.softmax_scale != 1.0:  # only families with latent attention have it
        rope = rope.replace(scaling=found.scaling)
    assert_equal(found, rope, EXACT)


@pytest.mark.filterwarnings("ignore:.* is not known:UserWarning")
def test_keys_of_transformers_4_replace_those_of_the_file():
    for golden in ROTATED:
        assert_its_keys_of_transformers_4_are_read_back(golden)


def assert_its_keys_of_transformers_4_are_read_back(golden):
    rope = rope_of(golden)
    try:
        written = json.loads(json.dumps(rope.to_config("transformers4")))
    except ValueError:
        return  # tests/engines shows that transformers 4 would compute another embedding
    found = rope._provenance
    known = not found.format and table("transformers", "4.57.6").of(found.model_type)
    config = deepcopy(CONFIGS[golden["config"]]) if known else {"model_type": "mine", "head_dim": rope.head_dim}
    place = config
    for name in found.path:
        place, written = place[name] if known else place, written[name]
    place.pop("rope_parameters", None)
    place.update(written)
    options = {"layout": rope.layout, "seq_len": getattr(rope.scaling, "seq_len", None)}
    read = from_config(config, **golden["kwargs"] if known else options)
    if rope.sections is not None and rope.sections.order in OF_FAMILY:
        read = read.replace(sections=rope.sections)
    if rope.softmax_scale == 1.0:
        assert_equal(read, rope, EXACT)
    else:
        assert (read.inv_freq, read.attention_factor) == (rope.inv_freq, rope.attention_factor)


@pytest.mark.filterwarnings("ignore:.* is not known:UserWarning")
def test_axolotl_gets_the_block_of_transformers():
    for golden in ROTATED:
        assert_axolotl_gets_its_block(golden)


def assert_axolotl_gets_its_block(golden):
    rope, _, written = outcome(golden, "axolotl")
    if isinstance(written, str):
        block = outcome(golden, "transformers")[2]
        assert isinstance(block, str) or rope._provenance.path or rope._provenance.layer_type
    else:
        assert written == {"overrides_of_model_config": {"rope_parameters": rope.to_config("transformers")}}


WRITTEN_BY = {int: "add_uint32", float: "add_float32", str: "add_string", list: "add_array"}
FILES = [golden for golden in ROTATED if golden["config"] in ("llama-3.1-8b", "deepseek-v3", "phi-3.5-mini-instruct")]


@pytest.mark.parametrize("golden", FILES, ids=named)
def test_a_gguf_file_with_the_metadata_is_read(golden, tmp_path):
    rope, options, metadata = outcome(golden, "gguf")
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", options["architecture"])
    for key, value in metadata.items():
        if key.endswith(".weight"):
            writer.add_tensor(key, np.asarray(value, np.float32))
        elif key != "general.architecture":
            getattr(writer, WRITTEN_BY[type(value)])(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = from_config(tmp_path / "model.gguf", seq_len=getattr(rope.scaling, "seq_len", None))
    assert_equal(found, rope, FLOAT32)
    assert type(found.scaling) is type(rope.scaling)


def test_weights_that_the_converter_permutes_are_not_permuted_twice():
    differ = {
        name
        for model_type, name in ARCHITECTURE_OF.items()
        if (gguf_layout({"general.architecture": name}), FAMILIES[model_type].pairing.layout) == (INTERLEAVED, HALF)
    }
    assert differ == {*PERMUTED}


def half(head_dim=128, base=10_000.0, **options):
    return RotaryEmbedding(**{"layout": HALF, "head_dim": head_dim, "base": base, **options})


YARN = {"factor": 4.0, "original_max_position_embeddings": 4096}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
LONGROPE = {"short_factor": (1.0, 1.1), "long_factor": (1.5, 4.0), "original_max_position_embeddings": 4096}
QWEN, PHI = ({"architecture": name} for name in ("qwen2", "phi3"))
PAIRED = {"layout": INTERLEAVED}


@pytest.mark.filterwarnings("ignore:.* is not known:UserWarning")
def test_what_is_written():
    """All keys and arguments, also those that make no difference to an engine that reads no more than others do."""
    for row in ROWS["written"]:
        rope = value_of(row["rope"]) if "rope" in row else from_config(row["config"], **row.get("options", {}))
        if "replace" in row:
            rope = rope.replace(**{name: value_of(value) for name, value in row["replace"].items()})
        target, arguments = row["target"], row.get("arguments", {})
        if "refused" in row:
            with pytest.raises(ValueError) as raised:
                rope.to_config(target, **arguments)
            assert str(raised.value).startswith(f"RotaryEmbedding.to_config: {row['refused']}; got "), row
            continue
        found = rope.to_config(target, **arguments)
        if "length" in row:
            found = with_length(target, found, row["length"], rope, Options(**arguments))
        if isinstance(found, list):
            found = [json.loads(each) if each.startswith("{") else each for each in found]
        assert with_12_digits(json.dumps(found)) == with_12_digits(json.dumps(row["written"])), row


class HalfYarn(Scaling):
    """A user's own rule, with the name of another."""

    rope_type = "yarn"

    def frequencies(self, base, rotary_dim):
        return tuple(w / 2 for w in geometric(base, rotary_dim))


@pytest.mark.parametrize("target", TARGETS)
def test_a_rule_of_a_user_is_not_written_by_its_name(target):
    own = half(layout="interleaved" if target in ("meta", "gguf") else "half", scaling=HalfYarn())
    if target == "gguf":
        assert own.to_config(target, architecture="llama")["rope_freqs.weight"] == [2.0] * own.pairs
        return
    with pytest.raises(ValueError, match=r"RotaryEmbedding\.to_config: scaling must be "):
        own.to_config(target)


# Values that no golden has: a target, a value, and arguments of `to_config`.
STATED = YarnScaling(**YARN, attention_factor=1.2, mscale_all_dim=0.7)
OTHERS = [
    ("mlx", {"layout": TO_HALF, "scaling": STATED}, {}),
    ("megatron", {"layout": TO_HALF, "scaling": STATED}, {}),
    ("llama.cpp", {"scaling": YarnScaling(**YARN, attention_factor=1.2, beta_fast=16.0)}, QWEN),
    ("vllm", {"scaling": YarnScaling(**YARN, attention_factor=1.2, truncate=False)}, {}),
    (
        "gguf",
        {**PAIRED, "scaling": Llama3Scaling(**LLAMA3 | {"factor": 3.0}), "rotary_dim": 64},
        {"architecture": "granitehybrid"},
    ),
]


@pytest.mark.parametrize("target, options, arguments", OTHERS, ids=str)
def test_engines_compute_other_values(target, options, arguments):
    rope = half(**options)
    tolerance = FLOAT32 if target in ("gguf", "llama.cpp") else EXACT
    for found, wanted in zip(
        computed(rope, target, arguments, rope.to_config(target, **arguments)), expected(rope), strict=True
    ):
        assert found == pytest.approx(wanted, rel=tolerance)


FLAGS = "--rope-freq-base 1000000 --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 32768"


def test_the_model_card_of_qwen():
    config = CONFIGS["qwen2.5-7b-instruct-yarn"]
    assert " ".join(from_config(config).to_config("llama.cpp")) == FLAGS


def test_architectures_of_families_are_rotary():
    for name in {*ARCHITECTURE_OF.values(), *LAYERS}:
        assert gguf_layout({"general.architecture": name}) is not None
    assert LONG in RotaryEmbedding(
        head_dim=4, layout=HALF, base=1e4, scaling=LongRopeScaling(**LONGROPE, factor=4.0)
    ).to_config("gguf", **PHI)
