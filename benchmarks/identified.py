"""Comparison of `rope_xp.huggingface.from_transformers` with `from_config`, for every rotary class of transformers.

Run: `python benchmarks/identified.py [--quick] [--only NAME]`. `from_config` reads a config with the table of families.
`from_transformers` has no table: it identifies what the installed transformers computes. Each class is compared for its
default config and, if it has scaling rules, for one with another base and YaRN. --quick takes every tenth class, and
its default config only. Both values must rotate equal arrays alike. The script prints a table by status, and fails if a
class disagrees.
"""

import logging
import re
import sys
import warnings
from collections import Counter
from importlib.metadata import version

import common
import numpy as np
import torch
from rotary_classes.cases import Case, cases
from rotary_classes.classes import found, labels, targets
from rotary_classes.observe import SHORT, TOLERANCE
from rotary_classes.reading import read_case

from rope_xp.huggingface import from_transformers

NEW = "not in the table: "
# The error of transformers if neither a model nor an attention of the config can be created.
NOT_CREATED = re.compile(
    "transformers must build a model .*: (TypeError|AttributeError|RuntimeError|ValueError: Ernie)"
)
STATUSES = {
    "agrees": "from_transformers and from_config give the same rotation",
    "explained": "from_transformers raises or differs, for a known reason",
    "new": "the table does not have the family, and from_transformers gives the value",
    "refused upstream": "transformers raises for this config",
    "disagrees": "they differ, or one of them raises",
}
# Classes that cannot be identified, or differ by design: a regular expression of their names, a part of the note, and
# the reason.
NO_POSITIONS = "the rotary module takes an image or a feature map, and computes positions itself"
COUNTS = "the rotary module counts positions itself, and a method applies its tables"
HEADS = "heads are rotated in place of positions: the model counts heads"
SEVERAL = "transformers cannot create the model of this config, and its file has several rotary classes"
EXPLAINED: tuple[tuple[str, str, str], ...] = (
    ("(GPTJ|CodeGen)Attention", "has no rotary module", "the attention holds its own table"),
    ("(DINOv3ViTRopeP|Sapiens2RopeP|EomtDinov3|EfficientLoFTR|Llama4Vision).*", "and not positions", NO_POSITIONS),
    ("(Wav2Vec2Bert|Wav2Vec2Conformer|SeamlessM4TConformer)Rotary.*", "", COUNTS),
    ("ClvpRotary.*", "", "the rotary module counts positions itself, and has no config"),
    ("EsmFold2Rotary.*", "", "the rotary module takes coordinates of atoms"),
    ("MusicFlamingoRotary.*", "", "the rotary module takes times; the value is that of the text"),
    ("RoFormerSinusoidal.*", "", "the tables are the weights of an embedding"),
    ("VJEPA2RopeAttention", "", "not a rotation, and a method applies the tables"),
    ("HunYuanVLRotaryEmbedding", "", "not a rotation: the channels of a pair follow different axes"),
    ("(Xcodec2|NeuCodec)RotaryEmbedding", "no format of positions", HEADS),
    (
        "Qwen2_5OmniDiTRotaryEmbedding",
        "differ by",
        "the attention reorders channels before it calls the apply function",
    ),
    ("Qwen3OmniMoe(Talker)?RotaryEmbedding", "rotated alike", SEVERAL),
    ("JetMoeRotaryEmbedding", "no format of positions", "queries come from experts, whose choice needs weights"),
    ("MuseGlimmerAssistantRotary.*", "no format of positions", "keys have more tokens than queries"),
    (".*", "KeyError", "the default config has no layer of this type"),
)


def main(argv=None):
    parser = common.option_parser(__doc__, only="a class, or a folder of models")
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")  # transformers warns about unusual configs
    logging.disable(logging.CRITICAL)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # small products: threads only wait for each other

    rows = []
    for row in outcomes(arguments.quick, arguments.only):
        rows.append(row)
        print(*row, sep=" | ", file=sys.stderr, flush=True)
    counts = Counter(row[-2] for row in rows)
    classes = {status: len({row[0] for row in rows if row[-2] == status}) for status in counts}
    summary = [
        [status, classes[status], counts[status], meaning] for status, meaning in STATUSES.items() if status in counts
    ]
    shown = [row for row in rows if row[-2] != "agrees" or arguments.only]
    tables = [
        common.Table("Status", ("status", "classes", "configs", ""), summary),
        common.Table("Not equal", ("class", "config", "case", "layer type", "status", "note"), shown),
    ]
    name = version("transformers")
    title = f"Rotary classes of transformers {name}, identified"
    print(common.markdown(title, "", {}, tables))
    common.fail_if({row[0]: [row[-1]] for row in rows if row[-2] == "disagrees"}, "classes disagree")


def outcomes(quick, only):
    """A row for each class, config, case and layer type."""
    chosen = [each for each in found() if not only or each[0] in only or each[2] in only]
    for folder, file, name in chosen[:: 10 if quick else 1]:
        try:
            every = list(targets(folder, file, name))
        except Exception as error:
            yield [name, "", "", "", "refused upstream", common.message(error)]
            continue
        for target in every:
            for case in chosen_cases(target, quick):
                yield from ([name, target.config_name, *row] for row in compared(target, case))


def chosen_cases(target, quick):
    """The default config, and one with a scaling rule."""
    yield Case("default")
    if not quick:
        try:
            pairs = {label: 0 for label in labels(target.default)}
            yield from (each for each in cases(target, pairs, True) if each.name == "yarn")
        except Exception:  # the default config fails too, and is in the table
            return


def compared(target, case):
    """A row for each layer type: its name, the status and a note."""
    try:
        config = target.config(case.changes)
        types = labels(config)
    except Exception as error:
        yield [case.name, "", "refused upstream", common.message(error)]
        return
    for label in types:
        yield [case.name, label or "", *judged(target, config, case, label)]


def judged(target, config, case, label):
    """The status of one config and layer type, and a note."""
    note = note_on(target, config, case, label)
    if not note:
        return "agrees", ""
    if note.startswith(NEW):
        return "new", note
    for pattern, text, reason in EXPLAINED:
        if re.fullmatch(pattern, target.cls.__name__) and text in note:
            return "explained", reason
    return "refused upstream" if NOT_CREATED.search(note) else "disagrees", note


def note_on(target, config, case, label):
    """Why both values are not the same; empty if they are."""
    try:
        theirs = from_transformers(config, layer_type=label)
    except ValueError as error:
        return " ".join(str(error).split())
    notes = []
    for compat in ("transformers", None):  # a newer version may have corrected a bug
        try:
            ours = read_case(target, config, case, label, compat)
        except (TypeError, ValueError) as error:
            is_new = "model_type must be one of the" in str(error)
            notes.append(f"{NEW}{theirs!r}" if is_new else common.message(error))
            continue
        difference = different(ours, theirs)
        if not difference:
            return ""
        notes.append(f"{difference}: {theirs!r:.300}; the table has {ours!r:.200}")
    return notes[0]


def different(ours, theirs):
    """How two values differ, in words; empty if they rotate alike at `SHORT` positions."""
    if ours is None:
        return "the table has no rotation"
    if (ours.head_dim, ours.axes) != (theirs.head_dim, theirs.axes):
        return (
            f"head_dim and axes are {ours.head_dim} and {ours.axes} in the table, not {theirs.head_dim}, {theirs.axes}"
        )
    rows = np.stack([np.roll(SHORT, axis) for axis in range(ours.axes)])
    positions = rows if ours.axes > 1 else rows[0]
    x = np.random.default_rng(0).uniform(-0.7, 0.7, (len(SHORT), ours.head_dim))
    y, z = (rope(x, positions=positions, seq_dim=0) for rope in (ours, theirs))
    error = np.abs(y - z).max()
    return "" if error <= TOLERANCE * max(1.0, ours.attention_factor) else f"rotated arrays differ by {error:.2g}"


if __name__ == "__main__":
    main()
