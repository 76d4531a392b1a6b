"""Decoding with cached keys, in PyTorch and under `jax.jit`, compared with computing all tokens at once.

The cache holds rotated keys. The ways of decoding differ only in their positions. Run: `python decoding.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.nn import functional as F

from rope_xp import RotaryEmbedding
from rope_xp.positions import consecutive, from_mask

HEADS, KV_HEADS, HEAD_DIM, WIDTH = 4, 2, 16, 48

rope = RotaryEmbedding(head_dim=HEAD_DIM, layout="half", base=10_000.0)
random = np.random.default_rng(0)
WEIGHTS = [
    random.standard_normal((WIDTH, heads * HEAD_DIM), dtype=np.float32) / WIDTH**0.5
    for heads in (HEADS, KV_HEADS, KV_HEADS)
]


def project(x):
    """Queries, keys and values of tokens (batch, seq, width): each (batch, seq, heads, dim), not yet rotated."""
    return [(x @ torch.asarray(w)).unflatten(-1, (-1, HEAD_DIM)) for w in WEIGHTS]


def attend(q, k, v, seen):
    """Attention of each query to keys where the mask `seen` is true, (queries, keys) or (batch, queries, keys)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    seen = seen if seen.ndim == 2 else seen[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True).transpose(1, 2)


def recomputed(x):
    """The result that a cache must give: causal attention of all tokens at once, at positions 0, 1, 2, ..."""
    q, k, v = project(x)
    return attend(*rope(q, k, seq_dim=1), v, torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril())


class Cache:
    """Rotated keys, and values, in a fixed number of slots."""

    def __init__(self, batch, slots):
        self.k, self.v = torch.zeros(2, batch, slots, KV_HEADS, HEAD_DIM)

    def step(self, x, positions, slots, seen):
        """Write tokens to `slots` of each row, rotated at their `positions`. They attend to the slots in `seen`."""
        q, k, v = project(x)
        q, k = rope(q, k, positions=positions, seq_dim=1)
        rows = torch.arange(len(x))[:, None]
        self.k[rows, slots], self.v[rows, slots] = k, v
        return attend(q, self.k, self.v, seen)

    def append(self, x, positions):
        """Write tokens whose slot is their position. They attend to all slots up to their own."""
        return self.step(x, positions, positions, torch.arange(self.k.shape[1]) <= positions[..., None])


def tokens(batch, seq):
    return torch.asarray(random.standard_normal((batch, seq, WIDTH), dtype=np.float32))


def static_cache():
    """A prompt, then token after token. The offset may be a tensor, so that one compiled step serves all tokens."""
    x, cache = tokens(2, 24), Cache(2, slots=32)
    y = [cache.append(x[:, :9], consecutive(9, like=x))]
    y += [cache.append(x[:, t : t + 1], consecutive(1, torch.tensor(t))) for t in range(9, 24)]
    return torch.cat(y, dim=1), recomputed(x)


def chunked_prefill():
    """A long prompt in chunks of any sizes."""
    x, cache = tokens(2, 24), Cache(2, slots=32)
    chunks = [(0, 7), (7, 20), (20, 24)]
    y = [cache.append(x[:, start:stop], consecutive(stop - start, start, like=x)) for start, stop in chunks]
    return torch.cat(y, dim=1), recomputed(x)


def ragged_batch():
    """Prompts of several lengths, padded at the right: every row continues where its own prompt ended."""
    x, cache, lengths, steps = tokens(3, 20), Cache(3, slots=32), torch.tensor([5, 1, 12]), 8
    cache.append(x[:, :12], consecutive(12, like=x).expand(3, 12))  # padding is overwritten before it is read
    y = [
        cache.append(x[torch.arange(3), lengths + step][:, None], consecutive(1, lengths + step))
        for step in range(steps)
    ]
    whole = recomputed(x)
    return torch.cat(y, dim=1), torch.stack([row[n : n + steps] for row, n in zip(whole, lengths.tolist())])


def left_padding():
    """Prompts padded at the left: the slot of a token is its column, but positions count from the row's first token."""
    lengths, columns = torch.tensor([9, 4]), torch.arange(16)
    mask, x, cache = columns >= 9 - lengths[:, None], tokens(2, 16), Cache(2, slots=16)
    seen = (columns <= columns[:, None]) & mask[:, None]
    y = [cache.step(x[:, :9], from_mask(mask[:, :9]), columns[:9], seen[:, :9])]
    for t in range(9, 16):
        now = slice(t, t + 1)
        y.append(cache.step(x[:, now], consecutive(1, lengths + t - 9), columns[now], seen[:, now]))
    alone = [recomputed(row[None, own])[0] for row, own in zip(x, mask)]
    return torch.cat(y, dim=1)[mask], torch.cat(alone)


def sliding_window():
    """The first tokens and the last ones, at positions without a gap: when a key is dropped, later keys move by one.

    StreamingLLM (arXiv:2309.17453), section 3.2. A key is moved once for each new token, and rounded
    each time.
    """
    first, slots, x, cache = 2, 12, tokens(1, 40), Cache(1, slots=12)
    y = [cache.append(x[:, :slots], consecutive(slots, like=x))[:, -1:]]
    truth = [recomputed(x[:, :slots])[:, -1:]]
    for t in range(slots, 40):
        for kept, moved in ((cache.k, rope.shift(cache.k, -1, seq_dim=1)), (cache.v, cache.v.clone())):
            kept[:, first:-1] = moved[:, first + 1 :]
        y.append(cache.append(x[:, t : t + 1], torch.tensor([slots - 1])))
        truth.append(recomputed(torch.cat([x[:, :first], x[:, t - slots + first + 1 : t + 1]], dim=1))[:, -1:])
    return torch.cat(y, dim=1), torch.cat(truth, dim=1)


def speculative_tree():
    """Drafts that branch: tokens of one depth share a position, and attend to the prompt and their own ancestors."""
    branches = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 4], [0, 2, 5]]  # from the root to each of six drafted tokens
    prompt, drafts, cache = tokens(1, 10), tokens(1, 6), Cache(1, slots=20)
    cache.append(prompt, consecutive(10, like=prompt))
    depths = torch.tensor([len(branch) - 1 for branch in branches])
    seen = (torch.arange(20) < 10).repeat(6, 1)
    for child, branch in enumerate(branches):
        seen[child, 10 + torch.tensor(branch)] = True
    y = cache.step(drafts, 10 + depths, torch.arange(10, 16), seen)
    truth = [recomputed(torch.cat([prompt, drafts[:, branch]], dim=1))[:, -1:] for branch in branches]

    accepted = branches[4]  # its keys are already rotated at their positions, and only change slots
    kept = slice(10, 10 + len(accepted))
    for cached in (cache.k, cache.v):
        cached[:, kept] = cached[:, [10 + draft for draft in accepted]]
    following = tokens(1, 1)
    y = torch.cat([y, cache.append(following, torch.tensor([kept.stop]))], dim=1)
    truth.append(recomputed(torch.cat([prompt, drafts[:, accepted], following], dim=1))[:, -1:])
    return y, torch.cat(truth, dim=1)


def reused_prefix():
    """A document that was cached at position 0, after headings of several lengths: one shift for each row.

    This is exact in the first layer, because its keys and values do not depend on other tokens.
    """
    document, question = tokens(1, 12), tokens(2, 5)
    stored = Cache(1, slots=12)
    stored.append(document, consecutive(12, like=document))
    headings, cache = [tokens(1, 3), tokens(1, 8)], Cache(2, slots=25)
    offsets = torch.tensor([3, 8])
    moved = rope.shift(stored.k.expand(2, -1, -1, -1), offsets[:, None], seq_dim=1)
    for row, heading in enumerate(headings):
        start = heading.shape[1]
        own = Cache(1, slots=start)
        own.append(heading, consecutive(start, like=heading))
        cache.k[row, : start + 12] = torch.cat([own.k[0], moved[row]])
        cache.v[row, : start + 12] = torch.cat([own.v[0], stored.v[0]])
    y = cache.append(question, consecutive(5, offsets + 12))
    whole = [torch.cat([heading, document, question[row][None]], dim=1) for row, heading in enumerate(headings)]
    return y, torch.cat([recomputed(x)[:, -5:] for x in whole])


def jitted_scan():
    """The whole loop as one JAX program: the scan carries the cache and the offset, and no shape changes."""
    x = tokens(2, 24)
    wq, wk, wv = (jnp.asarray(w).reshape(WIDTH, -1, HEAD_DIM) for w in WEIGHTS)

    def step(carry, token):  # (batch, width)
        keys, values, offset = carry
        q, k, v = (jnp.einsum("bw,whd->bhd", token, w)[:, None] for w in (wq, wk, wv))
        q, k = rope(q, k, positions=consecutive(1, offset), seq_dim=1)
        keys, values = (
            jax.lax.dynamic_update_slice_in_dim(*update, offset, axis=1) for update in ((keys, k), (values, v))
        )
        seen = jnp.arange(keys.shape[1]) <= offset
        y = jax.nn.dot_product_attention(q, keys, values, mask=seen[None, None, None])
        return (keys, values, offset + 1), y[:, 0]

    empty = jnp.zeros((2, 32, KV_HEADS, HEAD_DIM))
    _, y = jax.jit(lambda x: jax.lax.scan(step, (empty, empty, jnp.int32(0)), x))(jnp.asarray(x).swapaxes(0, 1))
    return torch.tensor(np.asarray(y)).swapaxes(0, 1), recomputed(x)


WAYS = (
    static_cache,
    chunked_prefill,
    ragged_batch,
    left_padding,
    sliding_window,
    speculative_tree,
    reused_prefix,
    jitted_scan,
)


@torch.inference_mode()
def main():
    errors = {}
    print(f"{'decoding, compared with all tokens at once':<46}{'tokens':>8}{'difference':>14}")
    for way in WAYS:
        y, truth = way()
        errors[way.__name__] = (y - truth).abs().max().item()
        print(f"{way.__name__.replace('_', ' '):<46}{y[..., 0, 0].numel():>8}{errors[way.__name__]:>14.1e}")
    return errors


if __name__ == "__main__":
    main()
