"""How much attention moves to other tokens if one embedding rotates in place of another."""

import numpy as np

from rope_xp.identification.maps import Map

# One random query for each of `HEADS` heads, at the last position, and random keys at the last positions: `TOKENS` of
# them, or fewer of wide heads. The seed makes the result the same each time.
HEADS, TOKENS, SEED = 32, 4096, 0
MAX_NUMBERS = 2**21


def attention_moved(a: Map, b: Map, scales: tuple[float, float], context: int) -> float:
    """The share of attention that is on other tokens with `b` than with `a`, from 0 to 1: the mean of all heads.

    Parameters
    ----------
    a, b : Map
        What rotates queries and keys.
    scales : (float, float)
        The softmax scale of each, as a multiple of the usual one.
    context : int
        The queries are at position ``context - 1``, in tokens.
    """
    random = np.random.default_rng(SEED)
    head_dim = a.head_dim or b.head_dim or 0
    positions = np.arange(max(context - tokens_of(head_dim), 0), context)
    q, k = (random.standard_normal((rows, head_dim)) for rows in (HEADS, len(positions)))
    one, other = (_weights(each, scale, q, k, positions) for each, scale in zip((a, b), scales))
    return float(np.abs(one - other).sum(axis=1).mean() / 2)


def tokens_of(head_dim: int) -> int:
    """The number of keys, at most."""
    return max(min(TOKENS, MAX_NUMBERS // max(head_dim, 1)), 1)


def _weights(each: Map, scale: float, q: np.ndarray, k: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """The weights "heads tokens" of attention."""
    # XPos makes keys as much shorter as it makes queries longer. Scores do not depend on its centre.
    each = each._replace(centre=int(positions[-1]))
    of_keys = each if each.growth is None else each._replace(growth=-each.growth)
    rotated_q = each.rotated(q, np.full(len(q), positions[-1]))
    scores = rotated_q @ of_keys.rotated(k, positions).T * scale / np.sqrt(q.shape[1])
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)
