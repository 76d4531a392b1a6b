"""A model without rope_xp and with it: logits, gradients, generation, padding, saved files, and bfloat16."""

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import torch

from rope_xp.huggingface import patch, patched

from .models import FAMILIES, build, padded_prompt, prompt

LOGITS = 1e-4  # the largest difference of logits of order 1, float32
# Relative to the largest gradient: 2**-24 for each of 1,000 or so numbers whose sums have an order that depends on the
# processor. In the families measured, projections of rotated arrays have 0.06 of it or more.
GRADIENTS = 1e-4


def output(model, inputs, **more):
    """Logits, or the last hidden states of a tower."""
    out = model(**inputs, **more)
    return out.logits if "logits" in out else out.last_hidden_state


logits = torch.no_grad()(output)


def gradients(model, inputs):
    model.zero_grad()
    out = output(model, inputs)
    (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None and p.numel()}


def gradient_difference(ours, theirs):
    """The largest difference, relative to the largest gradient; infinite if other parameters have gradients."""
    if ours.keys() != theirs.keys():
        return float("inf")
    scale = float(torch.stack([g.abs().max() for g in theirs.values()]).max())
    return difference(ours.values(), [theirs[name] for name in ours]) / scale


def all_logits(model, family):
    """Logits of consecutive tokens, and of two rows with different distances between tokens."""
    inputs = prompt(family)
    found = [logits(model, inputs)]
    if not family.counts_positions:
        ids = inputs["input_ids"]
        positions = torch.arange(ids.shape[1]) * torch.tensor([[1], [3]])
        if fits(model, positions):
            found.append(logits(model, inputs, attention_mask=torch.ones_like(ids), position_ids=positions))
    return found


def fits(model, positions):
    return bool(positions.max() < model.config.get_text_config().max_position_embeddings)


def difference(ours, theirs):
    """The largest difference of any numbers; NaN if any is NaN."""
    return float(torch.stack([(one - other).abs().max() for one, other in zip(ours, theirs, strict=True)]).max())


def generated(model, family):
    """Tokens generated greedily with a cache, from a prompt and from one that is padded at the left."""
    prompts = [prompt(family), padded_prompt(family)] if family.pads else [prompt(family)]
    return [model.generate(**each, max_new_tokens=12, do_sample=False, pad_token_id=0) for each in prompts]


def padded(model, family):
    """The largest difference of the last token's logits, between a row padded at the left and the row alone."""
    both = padded_prompt(family)
    where = (both["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    alone = {"input_ids": both["input_ids"][1:, 3:]}
    return difference([logits(model, both, position_ids=where)[1, -1]], [logits(model, alone)[0, -1]])


def saved_files(model):
    """The hash of each file that `save_pretrained` writes."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in Path(folder).iterdir()}


# Prompts in bfloat16: number of tokens (0: that of the family), first position, and distance between tokens.
PROMPTS = {
    "short": ((0, 0, 1), (0, 4000, 1)),
    "long": ((512, 0, 1),),
    "far": ((0, 0, 400),),  # as in a long prompt, if attention reads only a few tokens
}


def in_bfloat16(family, seeds):
    """Mean errors of bfloat16 logits against float64, without and with rope_xp, for each of `PROMPTS`."""
    found = {name: [] for name in PROMPTS}
    for seed in range(seeds):
        exact = build(family, seed)
        with torch.no_grad():
            for weight in exact.parameters():
                weight.copy_(weight.to(torch.bfloat16))
        exact.double()  # .to(torch.float64) would convert complex numbers to real ones
        theirs, ours = build(family, seed).to(torch.bfloat16), patch(build(family, seed).to(torch.bfloat16))
        for name, tokens, first, step in ((name, *each) for name, prompts in PROMPTS.items() for each in prompts):
            if (family.counts_positions and (first, step) != (0, 1)) or (family.features and tokens):
                continue
            inputs = prompt(replace(family, longest=tokens or family.longest), seed, 1, torch.float64)
            small = {key: x.to(torch.bfloat16) if x.is_floating_point() else x for key, x in inputs.items()}
            more = {}
            if not family.features:
                ids = inputs["input_ids"]
                positions = first + step * torch.arange(ids.shape[1])
                if not fits(exact, positions):
                    continue
                more["attention_mask"] = torch.ones_like(ids)  # far positions are not packed sequences
                if not family.counts_positions:
                    more["position_ids"] = positions[None]
            truth = logits(exact, inputs, **more)
            found[name].append([float((logits(each, small, **more) - truth).abs().mean()) for each in (theirs, ours)])
    return {name: dict(zip(("without", "with"), map(mean, zip(*pairs)))) for name, pairs in found.items() if pairs}


@dataclass(frozen=True)
class Row:
    """The measurements of a family."""

    family: str
    model: str
    size: float  # standard deviation of logits
    logits: float
    generation: bool | None
    padded: float | None
    gradients: float
    saved: bool
    bfloat16: Mapping[str, Mapping[str, float]]  # by prompt, "without" and "with" rope_xp

    @property
    def is_equal(self):
        close = self.logits <= LOGITS and self.gradients <= GRADIENTS and (self.padded or 0.0) <= LOGITS
        return close and self.generation is not False and self.saved


def measure(name, model, seeds):
    """Measure a model of a family without rope_xp and with it, and similar models in bfloat16."""
    family = FAMILIES[name]
    theirs, their_gradients = all_logits(model, family), gradients(model, prompt(family))
    their_files = saved_files(model)
    their_tokens = generated(model, family) if family.generates else None
    with patched(model):
        return Row(
            family=name,
            model=family.model,
            size=float(theirs[0].std()),
            logits=difference(all_logits(model, family), theirs),
            generation=all(map(torch.equal, generated(model, family), their_tokens)) if their_tokens else None,
            padded=padded(model, family) if family.pads else None,
            gradients=gradient_difference(gradients(model, prompt(family)), their_gradients),
            saved=saved_files(model) == their_files,
            bfloat16=in_bfloat16(family, seeds),
        )
