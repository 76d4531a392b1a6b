"""Writes javascripts/presets.json: the settings of the interactive page that public configs give."""

import json
from dataclasses import fields
from pathlib import Path

import mkdocs_gen_files

from rope_xp import from_config
from rope_xp.explanation import with_scaling
from rope_xp.spectrum import is_scaled

CONFIGS = Path(__file__).parents[2] / "tests/goldens/configs.json"
LENGTHS = {"original_max_position_embeddings", "max_position_embeddings", "seq_len"}
# The first one is shown when the page opens.
SHOWN = [
    ("llama-3.1-8b", None),
    ("llama-2-7b", None),
    ("qwen2.5-7b-instruct-yarn", None),
    ("deepseek-v3", None),
    ("gpt-oss-20b", None),
    ("gemma-3-12b-it", "full_attention"),
    ("gemma-3-12b-it", "sliding_attention"),
    ("gemma-4-e2b-it", "full_attention"),
    ("phi-3.5-mini-instruct", None),
    ("phi-2", None),
    ("internlm2-7b", None),
    ("longchat-7b-v1.5-32k", None),
    ("hunyuan-a13b-instruct", None),
]


def note(rope, found, stated):
    """What the config's length stands for, if the embedding is scaled."""
    if found.trained_length is None:
        return f"The config states {stated:,} tokens. It does not say whether this is before or with scaling."
    return with_scaling(rope, found.extended_length) if is_scaled(rope) else ""


def setting(name, layer_type):
    """The setting of a config, and a note about its lengths."""
    config = json.loads(CONFIGS.read_text())[name]["config"]
    rope = from_config(config, layer_type=layer_type)
    found = rope.explain()
    stated = config.get("text_config", config)["max_position_embeddings"]
    rule = {each.name: getattr(rope.scaling, each.name) for each in fields(rope.scaling)} if rope.scaling else {}
    return {
        "name": name if layer_type is None else f"{name} {layer_type}",
        "note": note(rope, found, stated),
        "setting": {
            "rule": rope.scaling.rope_type if rope.scaling else "default",
            "base": rope.base,
            "head_dim": rope.head_dim,
            "rotary_dim": rope.rotary_dim,
            "layout": rope.layout,
            "trained": found.trained_length or stated,
            "target": found.extended_length or stated,
            **{field: value for field, value in rule.items() if field not in LENGTHS},
        },
    }


def main():
    with mkdocs_gen_files.open("javascripts/presets.json", "w") as file:
        json.dump([setting(*each) for each in SHOWN], file)


main()
