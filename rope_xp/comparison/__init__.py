"""`compare` and `assert_same`: whether two rotary embeddings agree, and why not."""

from typing import Any

from rope_xp.comparison.report import Comparison
from rope_xp.errors import public
from rope_xp.types import Config, Values

__all__ = ["Comparison", "assert_same", "compare"]


@public("compare")
def compare(
    a: object,
    b: object,
    *,
    head_dim: int | None = None,
    context: int | None = None,
    tolerance: float | None = None,
    shape: str | None = None,
    like: object = None,
    positions_ignored: bool = False,
    options: Config | None = None,
) -> Comparison:
    """Whether two rotary embeddings are the same, and if not, what differs and from which position on it matters.

    Values and configs are compared by their frequencies, not by calls. A function is called, as by `identify`, to find
    the value that it computes. Then, to check, it is called at many positions and in different calls: with one token
    alone, with positions in any order that do not begin with 0, with many heads and with several batch rows that have
    positions of their own. Where it has no result, or one that depends on the call, it is not the same.

    Parameters
    ----------
    a, b : config, RotaryEmbedding, function or None
        A config is what `from_config` reads: a path, a mapping, or an object with `to_dict()`. Beside a GGUF file, it
        has the layout that llama.cpp's converter writes for it. A module of rope_xp stands for its value, and None for
        no rotation. A function ``fn(x, positions)``, or ``fn(x)``, of any library rotates `x`.
    head_dim : int, optional
        The number of channels of a head. Required if neither `a` nor `b` is a value or a config.
    context : int, optional
        The two are the same if they agree at positions 0 to ``context - 1``. The default is the extended or trained
        length of the values, the longest that is known, or else 4096. If frequencies depend on the length of a
        sequence (LongRoPE, dynamic NTK), configs are read for sequences of `context` tokens, unless `options` have a
        `seq_len` or flags with a length. Two values are read so, too, unless one of them states a length. A value that
        is compared with something else stays as it is; the default is then at most the length of its frequencies.
    tolerance : float, optional
        The change of a unit score that is accepted. The default is 1e-3, a bound for float32 phases at position 8,192.
        For a function with bfloat16 or float16 results, it is 8 roundings of that dtype, and must not be less.
    shape : str, optional
        The axes of the `x` of functions, such as ``"batch heads seq dim"``. By default several are tried.
    like : array, optional
        An array of the library, device and dtype that functions take. By default NumPy, PyTorch and JAX are tried, the
        latter two if they are imported.
    positions_ignored : bool
        Whether a function may ignore `positions` and count the rows of x. It is then called with whole sequences from
        position 0 on. By default it is not the same: it is wrong for a cached token, a padded batch and a packed one.
    options : mapping, optional
        Arguments of `from_config` for configs, such as ``{"layer": 0}``. `flags`, the arguments of an engine, belong to
        `b`, or to `a` if `b` is no config: ``compare(config, config, options={"flags": "-c 65536 --rope-scale 2"})``
        says what they change.

    Returns
    -------
    Comparison
        A report: `same`, `causes`, `first_position` and more, as text by ``str(report)``.

    Raises
    ------
    ValueError, TypeError, FileNotFoundError
        If arguments are wrong, or as `from_config` does; also if frequencies of a value are not for `context`. What a
        function raises is part of the report.

    Notes
    -----
    A unit score is the product of two vectors of length 1, of which one is rotated. `first_position` is the first
    position p at which the score of some two such vectors changes by more than 0.01 if `b` rotates in place of `a`. So
    it is the first position at which the largest singular value of the difference of both maps is above 0.01. With
    several position axes, p is the position on one of them, with 0 on the others, or on all of them. (Embeddings with
    different numbers of axes are compared on all of them, as for text.) XPos is compared both for queries and for keys,
    which it makes longer. The position is exact, with four exceptions. Phases that are not exact, and XPos, are
    compared at every position below ``2**20``, and at 8,192 positions beyond. Heads wider than 1,024 with different
    pairs are compared by the vectors of single channels. Rounded phases behind results in half precision are compared
    by the results, where the function is called. A function that nothing explains is compared at positions 0 to 31 and
    at powers of two up to 65,536. To check that a function is the same everywhere, it is called at all positions below
    32,768 and at some beyond, in calls with at most 32,768 tokens, or fewer for wide heads. No call is beyond
    `context`. `sample` names the positions, if not all.

    If `b` rotates queries and also keys, an equal offset of both changes no score. `scores_are_same` says so.

    A cause that acts only at or beyond `context`, such as float32 phases, is in `causes` even if `same` is true, but
    for results in half precision, whose roundings may hide it.

    Examples
    --------
    >>> from rope_xp import RotaryEmbedding
    >>> rope = RotaryEmbedding(head_dim=128, layout="half", base=10_000.0)
    >>> report = compare(rope, rope.replace(base=500_000.0))
    >>> report.same, report.causes, report.first_position
    (False, ('base',), 1)
    >>> for sentence in report.summary.split(". "):
    ...     print(sentence)
    The two differ
    At position 1, scores first change by more than 1 %
    At position 4,095, 48 % of attention moves to other tokens
    Likely cause: base (a: 10,000; b: 500,000).
    """
    call = {"shape": shape, "like": like}
    return _comparison({"a": a, "b": b}, options, head_dim, context, tolerance, positions_ignored, call)


@public("assert_same")
def assert_same(
    fn: object,
    rope: object,
    *,
    head_dim: int | None = None,
    context: int | None = None,
    tolerance: float | None = None,
    shape: str | None = None,
    like: object = None,
    positions_ignored: bool = False,
    options: Config | None = None,
) -> None:
    """Assert that a function computes a rotary embedding, for tests of other packages.

    Parameters
    ----------
    fn, rope : config, RotaryEmbedding, function or None
        As `a` and `b` of `compare`: the function that is tested, and what it must compute.
    head_dim, context, tolerance, shape, like, options
        As in `compare`.

    Raises
    ------
    AssertionError
        If they differ. The message says what differs, from which position on, the likely cause, and what to do.
    ValueError, TypeError, FileNotFoundError
        As `compare` does.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp import RotaryEmbedding
    >>> rope = RotaryEmbedding(head_dim=64, layout="half", base=10_000.0)
    >>> def rotate(x, positions):  # x: "seq dim"
    ...     angles = positions[:, None] * np.repeat([rope.inv_freq], 2, axis=0).reshape(-1)
    ...     return x * np.cos(angles) + np.concatenate([-x[:, 32:], x[:, :32]], axis=1) * np.sin(angles)
    >>> assert_same(rotate, rope)
    >>> assert_same(rotate, rope.replace(layout="interleaved"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    AssertionError: assert_same: the function rotate must agree with ... Likely cause: layout ...
    """
    __tracebackhide__ = True  # of pytest, which would print all of this function before the message
    given, call = {"fn": fn, "rope": rope}, {"shape": shape, "like": like}
    report = _comparison(given, options, head_dim, context, tolerance, positions_ignored, call)
    if not report.same:
        words = " ".join([report.summary, *report.advice])
        raise AssertionError(f"assert_same: {report.a} must agree with {report.b}; got: {words}")


def _comparison(given: Values, *options: Any) -> Comparison:
    from rope_xp.comparison.steps import comparison  # not needed to import rope_xp

    return comparison(given, *options)
