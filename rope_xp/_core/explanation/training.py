"""What a report can say about training with a scaling rule."""

from typing import Any

from rope_xp.frequencies import DynamicNTKScaling, Llama3Scaling, YarnScaling

# What is published about training with a rule. A config does not say it.
PUBLISHED = {
    Llama3Scaling: "Llama 3.1, which this rule is from, was trained with up to 131,072 tokens (The Llama 3 Herd of "
    "Models, section 3.4.2).",
    YarnScaling: "DeepSeek-V3 was trained with this rule, up to 131,072 tokens (arXiv:2412.19437, section 4.3). "
    "Qwen2.5 was not: its users add the rule for longer texts.",
}


def with_scaling(rope: Any, extended: int | None) -> str:
    """What training with the scaling, after training before it, has or may have shown."""
    provenance, rule = rope._provenance, rope.scaling
    stated = provenance.max_position_embeddings
    if provenance.extended:
        return "The scaling was added by extend. Only training with it shows the model more angles."
    if isinstance(rule, DynamicNTKScaling):
        return "Dynamic NTK scales only sequences that are longer than those of training."
    if stated is None:
        return "A model that was trained with this scaling has seen more angles."
    if extended is not None and stated < extended:
        return (
            f"The config states {stated:,} tokens, less than the scaling reaches. So the scaling may have been added "
            "after training, which then showed no other angles."
        )
    published = f" {PUBLISHED[type(rule)]}" if type(rule) in PUBLISHED else ""
    return (
        f"The config states {stated:,} tokens, with this scaling. If the model was trained with it, it has seen "
        f"all angles up to the longest sequence of that training.{published}"
    )
