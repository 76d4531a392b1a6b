"""What is written for vLLM, by the kept tables of its source. `nox -s tests-vllm` runs it in vLLM."""

import json
import warnings
from math import log

import pytest

from rope_xp import DynamicNTKScaling, LinearScaling, NTKScaling, RotaryEmbedding, Sections, YarnScaling, from_config

PLAIN = {"hidden_size": 512, "num_attention_heads": 8, "max_position_embeddings": 4096, "rope_theta": 1e6}
SECTIONS = Sections(sizes=(8, 12, 12), order="chunked")


def written(rope, **options):
    return json.loads(rope.to_config("vllm", **options)[1])


def test_a_flat_file_of_a_composite_gets_the_text_config():
    """An override of its outer `rope_parameters` changes nothing."""
    rope = from_config(
        PLAIN | {"model_type": "qwen2_vl", "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}}
    )
    keys = written(rope)
    assert [*keys] == ["text_config"]
    assert keys["text_config"]["rope_parameters"]["mrope_section"] == [8, 12, 12]


def test_dynamic_ntk_follows_the_version():
    rule = DynamicNTKScaling(factor=2.0, max_position_embeddings=4096, seq_len=8192)
    rope = RotaryEmbedding(head_dim=64, layout="half", base=1e4, scaling=rule)
    new, old = written(rope), written(rope, engine_version="0.21.0")
    assert new["rope_parameters"]["max_trained_positions"] == 4096 and new["max_position_embeddings"] == 8192
    assert "max_trained_positions" not in old["rope_parameters"] and old["max_position_embeddings"] == 4096
    other = rope.replace(scaling=DynamicNTKScaling(factor=2.0, max_position_embeddings=4096, seq_len=9000))
    assert written(other)["max_position_embeddings"] == 9000
    with pytest.raises(ValueError, match="seq_len of scaling must be factor"):
        other.to_config("vllm", engine_version="0.21.0")
    unknown = rope.replace(scaling=DynamicNTKScaling(factor=2.0, max_position_embeddings=4096))
    with pytest.raises(ValueError, match="seq_len of scaling must be given"):
        unknown.to_config("vllm")


def test_sections_are_written_only_where_they_are_read():
    rope = RotaryEmbedding(head_dim=64, layout="half", base=1e4, sections=SECTIONS)
    assert "mrope_section" in written(rope)["rope_parameters"]
    with pytest.raises(ValueError, match=r"vllm .* must read mrope_section with rope_type 'linear'; got"):
        rope.replace(scaling=LinearScaling(factor=2.0)).to_config("vllm")
    block = written(rope.replace(scaling=NTKScaling(factor=4.0)))["rope_parameters"]
    assert block["rope_type"] == "default" and block["rope_theta"] == pytest.approx(1e4 * 4 ** (64 / 62))


@pytest.mark.parametrize("factor", [None, 1.0, 1.25])
def test_the_attention_factor_before_vllm_read_attention_factor(factor):
    """0.21 multiplies `attn_factor` by what follows from the factor, unless `apply_yarn_scaling` is false."""
    yarn = YarnScaling(factor=4.0, original_max_position_embeddings=4096, attention_factor=factor)
    rope = RotaryEmbedding(head_dim=64, layout="half", base=1e4, scaling=yarn)
    block = written(rope, engine_version="0.21.0")["rope_parameters"]
    stated = {key: block[key] for key in ("attn_factor", "apply_yarn_scaling", "attention_factor") if key in block}
    assert stated == ({} if factor is None else {"attn_factor": factor, "apply_yarn_scaling": False})


def test_a_factor_of_one_is_one_with_latent_attention():
    """`deepseek_yarn` reads only `mscale` and `mscale_all_dim`, whose defaults give 0.1 log(factor) + 1."""
    yarn = YarnScaling(factor=36.0, original_max_position_embeddings=8192, attention_factor=1.0)
    block = written(RotaryEmbedding(head_dim=64, layout="interleaved", base=1e4, scaling=yarn))["rope_parameters"]
    assert block["attention_factor"] == 1.0 and block["mscale"] == block["mscale_all_dim"] == 1.0
    assert 0.1 * log(36.0) + 1.0 == pytest.approx(1.358, abs=1e-3)


def test_types_of_layers_need_a_block_each():
    gemma = PLAIN | {"model_type": "gemma3_text", "head_dim": 64, "sliding_window_pattern": 6, "num_hidden_layers": 6}
    with pytest.raises(ValueError, match="must have one block for each type of layers for model type 'gemma3_text'"):
        from_config(gemma, layer=0).to_config("vllm")


def test_gpt_oss_reads_yarn_alone():
    yarn = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
    rope = from_config(PLAIN | {"model_type": "gpt_oss", "head_dim": 64, "rope_scaling": yarn})
    assert written(rope)["rope_parameters"]["rope_type"] == "yarn"
    for block, message in (
        ({"rope_type": "linear", "factor": 32.0}, r"'gpt_oss', must read rope_type 'linear'; got"),
        (yarn | {"attention_factor": 1.5}, r"must read attention_factor=1\.5"),
    ):
        with pytest.raises(ValueError, match=message):
            from_config(PLAIN | {"model_type": "gpt_oss", "head_dim": 64, "rope_scaling": block}).to_config("vllm")


def test_unknown_model_types_are_a_warning():
    with pytest.warns(UserWarning, match="for model type 'mine' is not known"):
        from_config(PLAIN | {"model_type": "mine"}, layout="half").to_config("vllm")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_config(PLAIN | {"model_type": "llama"}).to_config("vllm")
