"""What transformers reads, 4 or 5: the installed one, or one in a folder.

`pip install --target FOLDER transformers==4.57.6`, then `python benchmarks/engines.py transformers --source FOLDER`.

Each model type gets a tiny model with random weights, and its config.json is changed, one key at a time: a key is read
if queries are then rotated in another way. Rules that raise an error, or change nothing, are not computed.
"""

import json
import math
import sys

ENGINE = "transformers"
ORIGINAL = "original_max_position_embeddings"
# Numbers below this are rounding: keys that are read change the rotation of 61 tokens by far more.
ROUNDING = 1e-4
YARN = {"factor": 4.0, ORIGINAL: 4096}
SHORT, LONG = ([1 + pair / step for pair in range(64)] for step in (10, 3))
# The block of each rule, and what is changed in it. Some keys count only with others, which are there in both.
RULES = {
    "linear": [({"factor": 4.0}, {"factor": 8.0})],
    "dynamic": [({"factor": 4.0}, {"factor": 8.0}), ({"factor": 1.0, "alpha": 2.0}, {"alpha": 4.0})],
    "yarn": [
        (YARN, {"factor": 8.0}),
        (YARN, {ORIGINAL: 16384}),
        (YARN, {"beta_fast": 2.0}),
        (YARN, {"beta_slow": 24.0}),
        (YARN, {"truncate": False}),
        (YARN, {"attention_factor": 1.5}),
        ({**YARN, "mscale_all_dim": 0.5}, {"mscale": 1.5}),
        ({**YARN, "mscale": 0.5}, {"mscale_all_dim": 1.5}),
    ],
    "llama3": [
        ({"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 64}, change)
        for change in ({"factor": 4.0}, {"low_freq_factor": 2.0}, {"high_freq_factor": 8.0}, {ORIGINAL: 32})
    ],
    "longrope": [
        ({"factor": 4.0, ORIGINAL: length, "short_factor": SHORT, "long_factor": LONG}, change)
        for length, change in (
            (256, {"short_factor": LONG}),
            (16, {"long_factor": SHORT}),
            (16, {"factor": 16.0}),
            (16, {ORIGINAL: 256}),
            (16, {"attention_factor": 1.25}),
        )
    ]
    + [
        (
            {ORIGINAL: length, "short_factor": SHORT, "long_factor": LONG, "short_mscale": 1.0, "long_mscale": 1.0},
            change,
        )
        for length, change in (
            (256, {"short_factor": LONG}),
            (16, {"long_factor": SHORT}),
            (256, {"short_mscale": 1.5}),
            (16, {"long_mscale": 1.5}),
            (16, {ORIGINAL: 256}),
        )
    ],
    "proportional": [
        ({"factor": 2.0, "partial_rotary_factor": 0.5}, {"factor": 4.0}),
        ({"factor": 2.0, "partial_rotary_factor": 0.5}, {"partial_rotary_factor": 0.25}),
    ],
}
# Some classes of transformers 4 name the rule "type", and accept exactly these keys.
FACTORS = ("type", "short_factor", "long_factor")
ACCEPTED = {
    "linear": [("type", "factor")],
    "dynamic": [("type", "factor")],
    "longrope": [FACTORS, (*FACTORS, "short_mscale", "long_mscale", ORIGINAL)],
}
# Model types whose default block has keys that a block of one rule replaces. Their classes then fail, or differ.
LEFT_OUT = ("deepseek_v4", "gemma4_text", "gemma4_unified_text", "granite_swa", "granitemoe_swa", "ministral3")
LEFT_OUT += ("embedding_gemma2_text", "lfm3")
# Keys outside the block, and what they are changed to: any that the config has, or that standard code reads.
BASES = ("rope_theta", "rotary_emb_base", "rope_local_base_freq", "global_rope_theta", "local_rope_theta")
OTHERS = {"partial_rotary_factor": (0.25, 0.75), "rotary_pct": (0.5,), "rotary_dim": (8,), "rope_interleave": (False,)}
FACTS = [
    {
        "models": ["hunyuan_v1_dense", "hunyuan_v1_moe", "minimax", "ministral", "mixtral"],
        "text": "dynamic NTK, YaRN and LongRoPE raise an error in transformers 4 and 5 if the file has no head_dim, "
        "or null",
        "source": "modeling_rope_utils.py at 4.57.6, 5.18.0 and 5.23.0: getattr(config, 'head_dim', ...) is None; run "
        "in 5.18.0 and 5.23.0",
        "need_head_dim": ["dynamic", "yarn", "longrope"],
    },
    {
        "models": ["mistral"],
        "text": "dynamic NTK, YaRN and LongRoPE raise an error in transformers 4, and not in 5, if the file has no "
        "head_dim, or null",
        "source": "modeling_rope_utils.py at 4.57.6: getattr(config, 'head_dim', ...) is None; run",
        "need_head_dim": ["dynamic", "yarn", "longrope"],
        "before": "5",
    },
    {
        "models": [],
        "text": "transformers 4 takes the original length of LongRoPE from a key at the top level, and the factor from "
        "max_position_embeddings divided by it",
        "source": "modeling_rope_utils.py at 4.57.6: _compute_longrope_parameters, longrope_frequency_update",
    },
    {
        "models": [],
        "text": "transformers 4 takes the original length of dynamic NTK from max_position_embeddings",
        "source": "modeling_rope_utils.py at 4.57.6: _compute_dynamic_ntk_parameters",
    },
]


def readings(source):
    """The version, and what each model type reads. Model types that cannot be built are printed."""
    if source is not None:
        sys.path.insert(0, str(source))
    import torch
    import transformers

    from engine_tables import _tiny_models as tiny

    torch.set_num_threads(1)
    found, problems = {}, {}
    for model_type in tiny.model_types():
        if model_type in LEFT_OUT:
            continue
        try:
            found[model_type] = reading(tiny, tiny.keys_of(model_type))
            print(model_type, flush=True)
        except Exception as error:  # classes raise anything
            problems[model_type] = f"{type(error).__name__}: {error}".splitlines()[0]
    for model_type, problem in problems.items():
        print(f"{model_type} is left out: {problem:.120}")
    return transformers.__version__, {name: each for name, each in found.items() if each is not None}


def reading(tiny, keys):
    """What one model type reads; by the types of its layers, if they read different keys."""
    found = {}

    def calls(changed):
        """The calls of a changed config.json; none if the model raises an error."""
        text = json.dumps(changed, sort_keys=True)
        if text not in found:
            try:
                found[text] = [(call.kind, tiny.rotated(call), call.softmax) for call in tiny.calls(changed)]
            except Exception:  # classes raise anything for keys that they do not know
                found[text] = []
        return found[text]

    kinds = sorted({call.kind for call in tiny.calls(keys)})
    if not kinds:
        return None
    entries = {kind: _of_kind(tiny, keys, kind, calls) for kind in kinds}
    of_most = entries.pop("full_attention", None) or entries.pop(kinds[-1])
    others = {kind: entry for kind, entry in entries.items() if entry != of_most}
    return of_most | ({"layers": others} if others else {})


def _of_kind(tiny, keys, kind, calls):
    """What the layers of a kind read."""

    def rotation(changes, block=None):
        """How queries are rotated; None if the model raises an error."""
        changed = {**keys, **changes}
        if block is not None:
            changed = with_block(tiny, changed, block)
        return [rotated for of, rotated, _ in calls(changed) if of == kind] or None

    sections = _sections_of(keys)
    base = {} if tiny.IS_4 and not sections else {"rope_type": "default", "rope_theta": 10_000.0, **sections}
    start = rotation({}, base or None)
    if start is None:
        base, start = {}, rotation({})
    entry = {"keys": [], "rules": {}, "fixed": {"layout": layout_of(tiny, keys, kind)}}
    for name, values in {**dict.fromkeys(BASES, (100.0,)), **OTHERS}.items():
        changed = [rotation({name: value}, base or None) for value in values]
        changed += [] if tiny.IS_4 or not base else [rotation({}, {**base, name: value}) for value in values]
        if any(differ(start, each) for each in changed):
            entry["keys"].append(name)
    one_axis = [sum(sections.get("mrope_section", ())), 0, 0]  # pairs of high frequencies change, too
    others = {"mrope_section": one_axis, "mrope_interleaved": True} if sections else {}
    for name, value in others.items():
        if differ(start, rotation({}, {**base, name: value})):
            entry["keys"].append(name)
    for rule, probes in RULES.items():
        for name in ("rope_type", "type") if tiny.IS_4 else ("rope_type",):
            if rule not in entry["rules"] and (read := _of_rule(rotation, base, start, rule, probes, name)):
                entry["rules"][rule] = read
                entry["fixed"] |= {"rule_key": "type"} if name == "type" else {}
    if "mrope_section" in entry["keys"]:
        entry["fixed"]["order"] = order_of(tiny, keys, kind)
    if scales_softmax(tiny, keys, base, calls):
        entry["fixed"]["softmax_scale"] = "mscale_all_dim"
    entry["keys"].sort()
    if not {*BASES} & {*entry["keys"]}:
        entry["fixed"]["base"] = base_of(tiny, keys, kind)
    if not {"partial_rotary_factor", "rotary_pct", "rotary_dim"} & {*entry["keys"]}:
        entry["fixed"]["rotated"] = rotated_of(tiny, keys, kind)
    return entry


def _sections_of(keys):
    block = keys.get("rope_parameters") or keys.get("rope_scaling") or {}
    return {name: value for name, value in block.items() if name.startswith("mrope")}


def _of_rule(rotation, base, start, rule, probes, name):
    """The keys that a rule reads, where `name` is the key of its name; none if it is not computed."""
    read = set()
    for block, change in probes:
        # The length of training: transformers 4 reads it outside the block for two of the rules.
        outside = {"max_position_embeddings": 32} if rule == "dynamic" and "alpha" not in block else {}
        outside |= {ORIGINAL: block[ORIGINAL]} if rule == "longrope" else {}
        given = {**{key: base[key] for key in base if key != "rope_type"}, name: rule, **block}
        before, given = _accepted(rotation, outside, given, rule, name)
        if before is None or ("alpha" not in change and not differ(start, before)):
            continue
        if differ(before, rotation(outside, {**given, **_first(change, len(given.get("short_factor", ())))})) or (
            ORIGINAL in change and differ(before, rotation({**outside, **change}, given))
        ):
            read |= {*change}
    return sorted(read)


def _accepted(rotation, outside, block, rule, name):
    """How queries are rotated with the first form of a block that the class accepts, and this form."""
    for keys in ACCEPTED.get(rule, ()) if name == "type" else (None,):
        for pairs in (16, 8, 4) if rule == "longrope" else (0,):
            given = {key: value for key, value in block.items() if keys is None or key in keys}
            given |= {key: 1.0 for key in keys or () if key not in given and key.endswith("mscale")}
            given = _first(given, pairs)
            if (found := rotation(outside, given)) is not None:
                return found, given
    return None, block


def _first(block, pairs):
    """A block whose lists have as many factors as there are pairs."""
    return {key: value[:pairs] if key in ("short_factor", "long_factor") else value for key, value in block.items()}


def with_block(tiny, keys, block):
    """A config.json with a rotary block: in transformers 5 with the same one for each type of layers."""
    if tiny.IS_4:
        return {**keys, "rope_scaling": block or None}
    now = keys.get("rope_parameters") or {}
    nested = [name for name, value in now.items() if isinstance(value, dict)]
    return {**keys, "rope_parameters": {name: dict(block) for name in nested} if nested else block}


def differ(one, other):
    """Whether two rotations differ. An error is no rotation."""
    if one is None or other is None or len(one) != len(other):
        return False
    if any(a.shape != b.shape for a, b in zip(one, other)):
        return True
    return any(float((a - b).abs().max()) > ROUNDING for a, b in zip(one, other))


def _unit(tiny, keys, kind, channel):
    """What becomes of a query with a single channel, "tokens dim"."""
    import torch

    call = next(call for call in tiny.calls(keys) if call.kind == kind)
    x = torch.zeros(call.shape)
    x[..., channel] = 1.0
    with torch.no_grad():
        return call.again(x).movedim(call.seq_dim, 0).reshape(tiny.TOKENS, -1, call.shape[-1])[:, 0]


def layout_of(tiny, keys, kind):
    """How channels are paired, from what becomes of the second one."""
    found = (_unit(tiny, keys, kind, 1).abs().amax(0) > ROUNDING).nonzero().flatten().tolist()
    if found[:2] == [0, 1]:
        return "interleaved"
    return "half" if found[0] == 1 else "interleaved_to_half"


def rotated_of(tiny, keys, kind):
    """The fraction of the head that is rotated."""
    call = next(call for call in tiny.calls(keys) if call.kind == kind)
    changed = (tiny.rotated(call) - tiny.probe(call.shape)).abs() > 1e-7
    return round(int(changed.flatten(0, -2).any(0).sum()) / tiny.HEAD, 6)


def base_of(tiny, keys, kind):
    """The base, from the angle of the pair of the third channel at the second token."""
    rows, pair = _unit(tiny, keys, kind, 2), 2 if layout_of(tiny, keys, kind) == "half" else 1
    angle = math.acos(min(1.0, float(rows[1, 2] / rows[0, 2])))
    width = int(rotated_of(tiny, keys, kind) * tiny.HEAD)
    return float(f"{angle ** (-width / (2 * pair)):.3g}") if angle else 0.0


def order_of(tiny, keys, kind):
    """The order of sections, from the position axis of the second pair at the second token."""
    channel = 1 if layout_of(tiny, keys, kind) == "half" else 2
    rows = _unit(tiny, keys, kind, channel)
    base = (keys.get("rope_parameters") or keys)["rope_theta"]
    rotated = rotated_of(tiny, keys, kind) * tiny.HEAD
    angles = base ** (-2 / rotated) * tiny.AXES[:, 1]
    errors = [abs(math.cos(angle) - float(rows[1, channel])) for angle in angles]
    return "chunked" if errors.index(min(errors)) == 0 else "interleaved"


def scales_softmax(tiny, keys, base, calls):
    """Whether YaRN's `mscale_all_dim` changes the scale of the softmax."""
    found = []
    for value in (0.5, 1.5):
        block = {**base, "rope_type": "yarn", **YARN, "mscale": 1.0, "mscale_all_dim": value}
        found.append([scale for _, _, scale in calls(with_block(tiny, keys, block))])
    return found[0] != found[1]
