"""`extend`: an embedding for longer sequences by a scaling rule, and a report of the rules to choose from."""

from typing import TYPE_CHECKING, Any, Literal, Self, overload

from rope_xp._core import checks
from rope_xp._core.errors import public, wrong_type

if TYPE_CHECKING:
    from rope_xp._core.extension.choices import Choices

Rule = Literal["linear", "ntk", "dynamic", "yarn", "llama3", "longrope"]


class Extensible:
    """The method of an embedding that extends it."""

    @overload
    def extend(self, to: int, rule: None = None, *, trained_length: int | None = None) -> "Choices": ...
    @overload
    def extend(self, to: int, rule: Rule, *, trained_length: int | None = None, **options: Any) -> Self: ...
    @public("RotaryEmbedding.extend")
    def extend(
        self, to: int, rule: Rule | None = None, *, trained_length: int | None = None, **options: Any
    ) -> "Self | Choices":
        """An embedding for longer sequences by a scaling rule or, without `rule`, a report of the rules.

        The factor of the rule is ``to / trained length``. An embedding that is scaled already is not scaled twice: its
        scaling is removed first, and the trained length is that before scaling. If a model was trained with that
        scaling, it has not seen the new frequencies: the reports warn of it. All other arguments are kept, such as
        the layout, the width, sections and `xpos`. If the present scaling is of the same rule, so are its parameters
        that hold for every factor, such as `beta_fast`.

        Parameters
        ----------
        to : int
            The new length in tokens, greater than the trained length and than that with the present scaling.
        rule : "linear", "ntk", "dynamic", "yarn", "llama3" or "longrope", optional
            The rule: `LinearScaling`, `NTKScaling`, `DynamicNTKScaling` at the length `to`, `YarnScaling` (with
            `beta_fast` 32 and `beta_slow` 1), `Llama3Scaling` (with `low_freq_factor` 1 and `high_freq_factor` 4), or
            `LongRopeScaling` at the length `to`.
        trained_length : int, optional
            The length of training in tokens. The default is that of the scaling or of the config.
        **options
            Other parameters of the rule. ``"longrope"`` needs `short_factor` and `long_factor`, which a search with the
            model finds. Several papers recommend a `factor` that is greater than the ratio of the lengths.

        Returns
        -------
        RotaryEmbedding, or Choices without `rule`
            `Choices` is a report: ``str(report)``, ``report.to_markdown()`` and ``report.to_dict()``. Its `choices`
            have the extended embeddings.

        Raises
        ------
        ValueError
            If the trained length is unknown, `to` is not greater than the length that the embedding has, the rule is
            unknown, the frequencies do not follow from a base, ``"longrope"`` has no lists, or a parameter is out of
            range.
        TypeError
            If a length is not an int, or the rule has no such parameter.

        References
        ----------
        Chen et al. (2023), arXiv:2306.15595; bloc97 and emozilla (2023), described in Peng et al., YaRN (2023),
        arXiv:2309.00071, sections 3.1 and 3.3; Ding et al., LongRoPE (2024), arXiv:2402.13753; meta-llama/llama-models,
        `models/llama3/reference_impl/model.py`, `apply_scaling`.

        Examples
        --------
        >>> from rope_xp import RotaryEmbedding
        >>> rope = RotaryEmbedding(head_dim=128, layout="half", base=10_000.0)
        >>> rope.extend(to=32_768, rule="yarn", trained_length=8192).scaling
        YarnScaling(factor=4.0, original_max_position_embeddings=8192, beta_fast=32.0, beta_slow=1.0, \
attention_factor=None, mscale=None, mscale_all_dim=None, truncate=True)
        >>> choices = rope.extend(to=32_768, trained_length=8192)
        >>> [(each.rule, each.kept, each.new_angles) for each in choices.choices if each.rope]
        [('linear', 0, 0), ('ntk', 1, 13), ('dynamic', 1, 0), ('yarn', 26, 0), ('llama3', 41, 0)]
        """
        # Not needed to import rope_xp.
        from rope_xp._core.extension.choices import choices_of
        from rope_xp._core.extension.rules import METHODS, checked_lengths, extended

        trained, to = checked_lengths(self, to, trained_length)
        if rule is not None:
            checks.one_of("rule", rule, {name: method.does for name, method in METHODS.items()})
            return extended(self, rule, trained, to, options)
        if options:
            raise wrong_type(f"options must be given with a rule; got {', '.join(options)}")
        return choices_of(self, trained, to)


# Python names the class of a method in errors about missing arguments; users know only the public class.
Extensible.extend.__qualname__ = "RotaryEmbedding.extend"
