"""Position embeddings compared: one small language model with three of them, tested beyond its training length.

A byte-level transformer learns the reference text that comes with Python, three times: from the same initial weights,
on the same batches. Only the position embedding differs: sinusoids added to the input, a learned table added to the
input, or a rotary embedding of queries and keys. Each model then predicts held-out text in contexts of one, two and
four times the training length.

    python language_model.py                  # PyTorch
    python language_model.py --backend jax    # Flax NNX: the same model, hyperparameters and batches

It prints tables of bits per byte and draws the loss against the position in the context. At the training length the
rotary model is the best by far and the learned table the worst. At the first position beyond it the absolute embeddings
break, as those positions were never trained. Rotary attention depends only on distances, and most distances were
trained: its loss stays the same for some more tokens, and it is the best at twice the length. At larger positions it
fails as well. Rotating queries and keys alone does not let a model read longer texts than it was trained on.

The second part extends the trained rotary model to four times its length by each rule of `RotaryEmbedding.extend`,
first with its weights as they are, and then after a short fine-tuning at the new length. "unchanged" keeps the
frequencies, so that the effect of fine-tuning alone can be seen. LongRoPE is not among the rules: its divisors must be
searched for. Without fine-tuning, "linear" is bad at every position, and the other rules are better than "unchanged" at
large positions, but a little worse at small ones. After it, "linear" has the greatest loss and "unchanged" the second,
and the others are nearly equal. This is one small model, and the fine-tuning of the papers is longer.

The text, and so the numbers, differ between versions of Python.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import log
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

import numpy as np
from einops import rearrange, reduce
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from rope_xp import RotaryEmbedding, sinusoidal_pos_embedding

VARIANTS = ("sinusoidal", "learned", "rotary")
RULES = ("linear", "ntk", "dynamic", "yarn", "llama3")
LENGTH_FACTORS = (1, 2, 4)  # evaluation lengths, as multiples of the training length
BYTES = 256

TrainStep = Callable[[np.ndarray], float]  # tokens, "batch seq+1" -> mean loss in nats, before the update
Losses = Callable[[np.ndarray], np.ndarray]  # tokens, "batch seq+1" -> loss in nats of each prediction, "batch seq"


class Learner(NamedTuple):
    """A model, and what can be done with it. `copy` copies its weights into a model with another rotary embedding."""

    train_step: TrainStep
    losses: Losses
    copy: Callable[[RotaryEmbedding, "Hyperparameters"], "Learner"]


@dataclass(frozen=True)
class Hyperparameters:
    context: int = 128  # tokens, which are bytes
    layers: int = 2
    dim: int = 128
    heads: int = 4
    batch: int = 16
    steps: int = 400
    evaluation_windows: int = 256  # a multiple of the batch
    learning_rate: float = 4e-3  # falls linearly to 0
    epsilon: float = 1e-5  # of the layer norms
    tuning_steps: int = 40
    tuning_rate: float = 1e-3

    @property
    def longest(self) -> int:
        return max(LENGTH_FACTORS) * self.context

    def rope(self) -> RotaryEmbedding:
        return RotaryEmbedding(head_dim=self.dim // self.heads, layout="half", base=10_000.0)

    def for_tuning(self) -> "Hyperparameters":
        """Those of fine-tuning: longer contexts, with as many tokens in a batch."""
        factor, steps, rate = max(LENGTH_FACTORS), self.tuning_steps, self.tuning_rate
        return replace(self, context=self.longest, batch=self.batch // factor, steps=steps, learning_rate=rate)


QUICK = Hyperparameters(context=32, layers=1, dim=32, heads=2, steps=5, evaluation_windows=32, tuning_steps=2)


def read_text() -> tuple[np.ndarray, np.ndarray]:
    """Bytes to train on, and the last tenth to evaluate on."""
    text = np.frombuffer("\n\n".join(topics.values()).encode(), dtype=np.uint8).astype(np.int32)
    border = len(text) * 9 // 10
    return text[:border], text[border:]


def training_batches(text: np.ndarray, hyper: Hyperparameters, seed: int) -> Iterator[np.ndarray]:
    """Windows that start at random, "batch seq+1": inputs, and targets one token to the right."""
    random = np.random.default_rng(seed)
    for _ in range(hyper.steps):
        starts = random.integers(len(text) - hyper.context, size=hyper.batch)
        yield text[starts[:, None] + np.arange(hyper.context + 1)]


def evaluation_batches(text: np.ndarray, hyper: Hyperparameters, length: int) -> Iterator[np.ndarray]:
    """Windows at equal distances in the text. Long windows overlap."""
    starts = np.linspace(0, len(text) - length - 1, hyper.evaluation_windows, dtype=int)
    for batch in rearrange(starts, "(step batch) -> step batch 1", batch=hyper.batch):
        yield text[batch + np.arange(length + 1)]


# A backend is a function from a variant to the two steps of its model. Each imports its framework and defines its
# modules inside, so that the other framework need not be installed.


def torch_model(variant: str, hyper: Hyperparameters, seed: int) -> Learner:
    import torch
    import torch.nn.functional as F
    from torch import nn

    norm = partial(nn.LayerNorm, hyper.dim, eps=hyper.epsilon)
    linear = partial(nn.Linear, bias=False)
    table = partial(nn.Embedding, embedding_dim=hyper.dim)

    class Block(nn.Module):
        def __init__(self, rope):
            super().__init__()
            self.rope = rope
            self.attention_norm, self.mlp_norm = norm(), norm()
            self.qkv, self.out = linear(hyper.dim, 3 * hyper.dim), linear(hyper.dim, hyper.dim)
            self.up, self.down = linear(hyper.dim, 4 * hyper.dim), linear(4 * hyper.dim, hyper.dim)

        def forward(self, x):
            axes = "batch seq (three heads dim) -> three batch heads seq dim"
            q, k, v = rearrange(self.qkv(self.attention_norm(x)), axes, three=3, heads=hyper.heads)
            if self.rope is not None:
                q, k = self.rope(q, k, seq_dim=2)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(rearrange(mixed, "batch heads seq dim -> batch seq (heads dim)"))
            return x + self.down(F.silu(self.up(self.mlp_norm(x))))

    class Model(nn.Module):
        def __init__(self, rope):
            super().__init__()
            self.embed = table(BYTES)
            self.blocks = nn.Sequential(*[Block(rope) for _ in range(hyper.layers)])
            self.norm, self.unembed = norm(), linear(hyper.dim, BYTES)
            # Created last, so that all other weights start as in the other variants. Training reaches only the
            # rows of the training length, the first quarter; the others keep their random initial values.
            self.table = table(hyper.longest) if variant == "learned" else None

        def forward(self, tokens):
            x, positions = self.embed(tokens), torch.arange(tokens.shape[1])
            if variant == "sinusoidal":
                x = x + sinusoidal_pos_embedding(positions, hyper.dim)
            if self.table is not None:
                x = x + self.table(positions)
            return self.unembed(self.norm(self.blocks(x)))

        def losses(self, tokens):
            logits = rearrange(self(tokens[:, :-1]), "batch seq byte -> batch byte seq")
            return F.cross_entropy(logits, tokens[:, 1:], reduction="none")

    def learner(model: Model, hyper: Hyperparameters) -> Learner:
        optimizer = torch.optim.Adam(model.parameters(), hyper.learning_rate)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=hyper.steps)

        def train_step(tokens: np.ndarray) -> float:
            loss = model.losses(torch.from_numpy(tokens).long()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            return loss.item()

        @torch.no_grad()
        def losses(tokens: np.ndarray) -> np.ndarray:
            return model.losses(torch.from_numpy(tokens).long()).numpy()

        def copy(rope: RotaryEmbedding, hyper: Hyperparameters) -> Learner:
            other = Model(rope)
            other.load_state_dict(model.state_dict())
            return learner(other, hyper)

        return Learner(train_step, losses, copy)

    torch.manual_seed(seed)
    return learner(Model(hyper.rope() if variant == "rotary" else None), hyper)


def jax_model(variant: str, hyper: Hyperparameters, seed: int) -> Learner:
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

    rngs = nnx.Rngs(seed)
    # PyTorch's initial weights: uniform, of variance 1 / (3 inputs), for linear layers, and normal for tables.
    uniform, normal = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform"), nnx.initializers.normal(1.0)
    norm = partial(nnx.LayerNorm, hyper.dim, epsilon=hyper.epsilon, rngs=rngs)
    linear = partial(nnx.Linear, use_bias=False, kernel_init=uniform, rngs=rngs)
    table = partial(nnx.Embed, features=hyper.dim, embedding_init=normal, rngs=rngs)

    class Block(nnx.Module):
        def __init__(self):
            self.rope = hyper.rope() if variant == "rotary" else None
            self.attention_norm, self.mlp_norm = norm(), norm()
            self.qkv, self.out = linear(hyper.dim, 3 * hyper.dim), linear(hyper.dim, hyper.dim)
            self.up, self.down = linear(hyper.dim, 4 * hyper.dim), linear(4 * hyper.dim, hyper.dim)

        def __call__(self, x):
            axes = "batch seq (three heads dim) -> three batch seq heads dim"
            q, k, v = rearrange(self.qkv(self.attention_norm(x)), axes, three=3, heads=hyper.heads)
            if self.rope is not None:
                q, k = self.rope(q, k, seq_dim=1)
            mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(rearrange(mixed, "batch seq heads dim -> batch seq (heads dim)"))
            return x + self.down(nnx.silu(self.up(self.mlp_norm(x))))

    class Model(nnx.Module):
        def __init__(self):
            self.embed = table(BYTES)
            self.blocks = nnx.List([Block() for _ in range(hyper.layers)])
            self.norm, self.unembed = norm(), linear(hyper.dim, BYTES)
            self.table = table(hyper.longest) if variant == "learned" else None  # last, as in PyTorch

        def __call__(self, tokens):
            x, positions = self.embed(tokens), jnp.arange(tokens.shape[1])
            if variant == "sinusoidal":
                x = x + sinusoidal_pos_embedding(positions, hyper.dim)
            if self.table is not None:
                x = x + self.table(positions)
            for block in self.blocks:
                x = block(x)
            return self.unembed(self.norm(x))

        def losses(self, tokens):
            return optax.softmax_cross_entropy_with_integer_labels(self(tokens[:, :-1]), tokens[:, 1:])

    @nnx.jit
    def update(model, optimizer, tokens):
        loss, gradients = nnx.value_and_grad(lambda model: model.losses(tokens).mean())(model)
        optimizer.update(model, gradients)
        return loss

    evaluate = nnx.jit(Model.losses)  # compiles once for each length and each rotary embedding

    def learner(model: Model, hyper: Hyperparameters) -> Learner:
        rate = optax.linear_schedule(hyper.learning_rate, 0.0, hyper.steps)
        optimizer = nnx.Optimizer(model, optax.adam(rate), wrt=nnx.Param)

        def train_step(tokens: np.ndarray) -> float:
            return float(update(model, optimizer, tokens))

        def losses(tokens: np.ndarray) -> np.ndarray:
            return np.asarray(evaluate(model, tokens))

        def copy(rope: RotaryEmbedding, hyper: Hyperparameters) -> Learner:
            other = nnx.clone(model)
            for block in other.blocks:
                block.rope = rope
            return learner(other, hyper)

        return Learner(train_step, losses, copy)

    return learner(Model(), hyper)


BACKENDS = {"torch": torch_model, "jax": jax_model}


def bits_per_position(losses: Losses, text: np.ndarray, hyper: Hyperparameters, length: int) -> np.ndarray:
    """Mean loss at each position of contexts of `length`, in bits per byte."""
    nats = np.stack([losses(tokens) for tokens in evaluation_batches(text, hyper, length)])
    return reduce(nats, "step batch seq -> seq", "mean") / log(2)


def train(learner: Learner, name: str, text: np.ndarray, hyper: Hyperparameters, seed: int) -> None:
    """Train a model on random windows, with a progress bar."""
    progress = tqdm(training_batches(text, hyper, seed), desc=f"{name:>10}", total=hyper.steps)
    for tokens in progress:
        progress.set_postfix_str(f"{learner.train_step(tokens) / log(2):.2f} bits per byte", refresh=False)


def bits_by_rule(
    learner: Learner, training_text: np.ndarray, held_out: np.ndarray, hyper: Hyperparameters, seed: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Mean loss at each position of the longest contexts, in bits per byte: before and after fine-tuning, by rule."""
    curves, rope, tuning = {}, hyper.rope(), hyper.for_tuning()
    ropes = {"unchanged": rope} | {
        rule: rope.extend(to=hyper.longest, rule=rule, trained_length=hyper.context) for rule in RULES
    }
    for rule, extended in ropes.items():
        copy = learner.copy(extended, tuning)
        before = bits_per_position(copy.losses, held_out, hyper, hyper.longest)
        train(copy, rule, training_text, tuning, seed)
        curves[rule] = before, bits_per_position(copy.losses, held_out, hyper, hyper.longest)
    return curves


def print_rules(curves: dict[str, tuple[np.ndarray, np.ndarray]], hyper: Hyperparameters, title: str) -> None:
    """Print the mean loss in each band of positions. Bands end at the lengths of evaluation."""
    ends = [factor * hyper.context for factor in LENGTH_FACTORS]
    table = Table("rule", title=title, caption=f"tuned: after {hyper.tuning_steps} steps at {hyper.longest} bytes")
    for tuned in ("", "tuned "):
        for start, end in zip([0, *ends], ends):
            table.add_column(f"{tuned}{start}-{end - 1}", justify="right")
    for rule, both in curves.items():
        bands = [band.mean() for curve in both for band in np.split(curve, ends[:-1])]
        table.add_row(rule, *[f"{value:.2f}" for value in bands])
    Console().print(table)


def print_table(bits: dict[str, dict[int, float]], title: str) -> None:
    table = Table("position embedding", title=title)
    for length in bits[VARIANTS[0]]:
        table.add_column(f"{length} bytes", justify="right")
    for variant, by_length in bits.items():
        table.add_row(variant, *[f"{value:.2f}" for value in by_length.values()])
    Console().print(table)


def draw(panels: dict[str, dict[str, np.ndarray]], hyper: Hyperparameters, path: Path) -> None:
    """Draw loss against position, one panel for each title. A figure without pyplot needs no display."""
    width = hyper.context // 8  # positions are averaged in bins; one bin ends at the training length
    figure = Figure(figsize=(9, 4.5 * len(panels)), layout="constrained")
    for axes, (title, curves) in zip(figure.subplots(len(panels), squeeze=False).flat, panels.items()):
        for (variant, curve), marker in zip(curves.items(), "osv^Dx"):
            bins = reduce(curve, "(bins width) -> bins", "mean", width=width)
            axes.plot((np.arange(len(bins)) + 0.5) * width, bins, marker=marker, markersize=4, label=variant)
        axes.axvline(hyper.context, color="black", linestyle="--", label="training length")
        axes.set(xlabel="position in the context (bytes)", ylabel="loss (bits per byte)", title=title)
        axes.set(xlim=(0, hyper.longest), xticks=range(0, hyper.longest + 1, hyper.context))
        axes.grid(alpha=0.3)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> tuple[dict[str, dict[int, float]], dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Train, evaluate and report.

    The results are bits per byte by variant and context length, and those of `bits_by_rule`.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=BACKENDS, default="torch")
    parser.add_argument("--steps", type=int, help="training steps of each model")
    parser.add_argument("--quick", action="store_true", help="a tiny model for a few steps, as a test")
    parser.add_argument("--out", type=Path, default=Path("language_model.png"), help="where to draw the figure")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    hyper = QUICK if args.quick else Hyperparameters()
    if args.steps is not None:
        hyper = replace(hyper, steps=args.steps)
    training_text, held_out = read_text()
    bits, curves = {}, {}
    for variant in VARIANTS:
        learner = BACKENDS[args.backend](variant, hyper, args.seed)
        train(learner, variant, training_text, hyper, args.seed)
        lengths = [factor * hyper.context for factor in LENGTH_FACTORS]
        by_position = {length: bits_per_position(learner.losses, held_out, hyper, length) for length in lengths}
        bits[variant] = {length: float(curve.mean()) for length, curve in by_position.items()}
        curves[variant] = by_position[hyper.longest]

    title = f"trained on contexts of {hyper.context} bytes ({args.backend})"
    print_table(bits, f"bits per byte, {title}")
    rules = bits_by_rule(learner, training_text, held_out, hyper, args.seed)  # the last variant is rotary
    tuned = f"fine-tuned for {hyper.tuning_steps} steps on {hyper.longest} bytes"
    print_rules(rules, hyper, f"bits per byte by position, rotary model extended to {hyper.longest} bytes")
    panels = {f"language models {title}": curves}
    for number, after in enumerate(("not fine-tuned", tuned)):
        panels[f"rotary model extended to {hyper.longest} bytes, {after}"] = {
            rule: both[number] for rule, both in rules.items()
        }
    draw(panels, hyper, args.out)
    return bits, rules


if __name__ == "__main__":
    main()
