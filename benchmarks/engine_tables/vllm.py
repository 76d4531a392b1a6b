"""What vLLM reads, from its source: the registry of models, the calls of `get_rope`, and `get_rope` itself.

The source is the package without its libraries: `pip download --no-deps vllm==0.33.0`, then unzip `vllm/**/*.py` and
`vllm-*.dist-info` into a folder, and give the folder as `--source`. Model types are those of the installed transformers
and those that vLLM adds. Nothing of vLLM runs.

The readings of the model type "*" are those of `get_rope`, for any model that passes its whole block on.
"""

import ast
import warnings
from functools import cache

import transformers
from transformers.models.auto import modeling_auto

from rope_xp.configs import engines
from rope_xp.configs.families.family import Family
from rope_xp.configs.families.model_types import FAMILIES

ENGINE = "vllm"
# Keys that `get_rope` reads for all rules.
COMMON = ("partial_rotary_factor", "rope_theta", "rope_type")
# Mappings of transformers from a model type to the class of a checkpoint, the first that has it counts.
AUTO = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM")
# Model types whose config is vLLM's own (`_CONFIG_REGISTRY`) or the checkpoint's, or another name of transformers'
# model type.
ADDED = {
    "bailing_hybrid": "BailingMoeV3ForCausalLM",
    "chatglm": "ChatGLMModel",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "deepseek_vl_v2": "DeepseekVLV2ForCausalLM",
    "ernie4_5_moe_vl": "Ernie4_5_VLMoeForConditionalGeneration",
    "internlm2": "InternLM2ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "kimi_k25": "KimiK25ForConditionalGeneration",
    "minicpm": "MiniCPMForCausalLM",
    "minicpm3": "MiniCPM3ForCausalLM",
}
# The attribute with the text config, where vLLM's own config class gives it another name than the file.
TEXTS = {"deepseek_vl_v2": ["text_config"]}
# Parts of models that are no language model.
OTHER_PARTS = ("Vision", "Audio", "Speech", "Vit", "ViT", "Tower", "MTP", "Eagle")
FRACTION = "partial_rotary_factor"
# The block of transformers, for models that vLLM runs by transformers' own classes.
OF_TRANSFORMERS = {
    "default": [],
    "linear": ["factor"],
    "dynamic": ["factor"],
    "proportional": ["factor"],
    "llama3": ["factor", "high_freq_factor", "low_freq_factor", "original_max_position_embeddings"],
    "longrope": ["attention_factor", "factor", "long_factor", "original_max_position_embeddings", "short_factor"],
    "yarn": ["attention_factor", "beta_fast", "beta_slow", "factor", "mscale", "mscale_all_dim"]
    + ["original_max_position_embeddings", "truncate"],
}

FACTS = [
    {
        "models": ["*"],
        "text": "`--hf-overrides` sets numbers before the config is read, and dicts after: a top-level "
        "`rope_parameters` replaces the whole block, and without `rope_theta` the base is 10,000, or that of the "
        "model's class, such as 1,000,000 for qwen2",
        "source": "vllm/config/model.py:616-695 and vllm/model_executor/layers/rotary_embedding/__init__.py:55 at "
        "0.33.0",
    },
    {
        "models": ["*"],
        "text": "a `text_config` of the overrides is merged into the config's own, key by key; keys of the old block "
        "that are not given stay",
        "source": "vllm/config/model.py:528-570 at 0.33.0",
    },
    {
        "models": ["*"],
        "text": "dynamic NTK divides by `max_trained_positions`, whose default is `max_position_embeddings`: without "
        "it nothing is scaled. Version 0.21 does not read it, and computes factor * max_position_embeddings tokens",
        "source": "vllm/model_executor/layers/rotary_embedding/dynamic_ntk_scaling_rope.py at 0.21.0, 0.22.0 and "
        "0.33.0; vLLM pull request 41277 (first released with 0.22.0)",
    },
    {
        "models": ["deepseek_v2", "deepseek_v3", "kimi_k2"],
        "text": "every rule but `default` becomes `deepseek_yarn`, whose attention factor is a ratio of `mscale` "
        "(default 1) and `mscale_all_dim` (default 0); it reads no `attention_factor`",
        "source": "vllm/model_executor/models/deepseek_v2.py:543-563 and deepseek_scaling_rope.py at 0.33.0",
    },
    {
        "models": ["gpt_oss"],
        "text": "YaRN always, from seven keys; blocks without them fail with a KeyError, and `attention_factor` is "
        "not read",
        "source": "vllm/model_executor/models/gpt_oss.py:111 at 0.33.0",
    },
    {
        "models": ["gemma3_text"],
        "text": "one block for each type of layers; a flat block fails with KeyError('sliding_attention')",
        "source": "vllm/model_executor/models/gemma3.py:157 at 0.33.0",
    },
    {
        "models": ["glm4"],
        "text": "a block without `partial_rotary_factor` rotates half of the head",
        "source": "vllm/model_executor/models/glm4.py:82-88 at 0.33.0",
    },
]


def readings(source):
    """The version, and what it reads for each model type."""
    if source is None:
        raise SystemExit("--source must be the folder with the unzipped wheel of vllm; got none")
    version = next(source.glob("vllm-*.dist-info")).name.split("-")[1].partition("+")[0].removesuffix(".dist")
    rules = of_get_rope(source)
    models = Models(source)
    found = {"*": {"rules": rules}}
    for model, architecture in sorted(model_types().items()):
        reading = models.reading(architecture, rules)
        if reading is None:
            continue  # vLLM does not have it
        path, text_type = text_part(model)
        if not text_type:
            if path and models.builds_any(architecture):  # the language model reads what it reads alone
                found[model] = {"path": path, "rules": {}}
            elif reading["rules"]:
                found[model] = reading
            continue
        if not reading["rules"]:  # its language model is that of the text config
            inner = model_types().get(text_type)
            reading = (inner and models.reading(inner, rules)) or {"rules": rules}
        for name in (model, text_type):
            found[name] = reading | {"path": path} if name == model or name not in model_types() else found.get(name)
    of_transformers = engines.table("transformers", transformers.__version__)
    for model, reading in found.items():
        if reading and reading["rules"] and nested(model):
            reading["nested"] = True
        own, listed = of_transformers.of(model), FAMILIES.get(model, Family()).layers.listed
        replaces_fraction = reading and (reading.pop("sets_fraction", False) or "by" in reading)
        if replaces_fraction and own is not None and own.fixed.get("rotated") == 1.0:
            reading = found[model] = without(reading, FRACTION)
        if reading and listed is not None and listed.bases:  # the class takes the base of each layer from the list
            reading = found[model] = without(reading, "rope_theta")
        if reading and rotates_whole_heads(reading):
            reading["fixed"] = {**reading.get("fixed", {}), "rotated": 1.0}
    return version, {model: reading for model, reading in found.items() if reading}


def without(reading, key):
    """A reading without a key. The rule "proportional" of transformers has a fraction of its own."""
    own = ("proportional",) if "by" in reading and key == FRACTION else ()
    rules = {rule: [each for each in keys if each != key or rule in own] for rule, keys in reading["rules"].items()}
    outside = {"keys": [each for each in reading["keys"] if each != key]} if "keys" in reading else {}
    return {name: value for name, value in (reading | {"rules": rules} | outside).items() if value != []}


def rotates_whole_heads(reading):
    """Whether no key of the block changes which share is rotated, but for the rule "proportional"."""
    rules = reading["rules"]
    # A class that writes a block of its own may pass a share that follows from other keys; that of gpt_oss does not.
    passes_block = "by" in reading or "rope_type" in rules.get("default", ()) or {*rules} == {"yarn"}
    return passes_block and not any(FRACTION in keys for rule, keys in rules.items() if rule != "proportional")


@cache
def model_types():
    """Model types and the class of their checkpoints."""
    found = {}
    for name in AUTO:
        for model, architecture in getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES").items():
            found.setdefault(model, architecture if isinstance(architecture, str) else architecture[0])
    return found | ADDED


def text_part(model):
    """The keys that lead to the text config of a model type, and its model type; empty if it has none, or any."""
    path = [*TEXTS.get(model, ())]
    if model not in transformers.CONFIG_MAPPING:
        return path, ""
    config = transformers.CONFIG_MAPPING[model]
    while key := next((key for key in ("thinker_config", "text_config") if key in config.sub_configs), None):
        if config.sub_configs[key] is config:
            break  # a config that names itself
        config = config.sub_configs[key]
        path.append(key)
        if config is transformers.AutoConfig:
            return path, ""
    return path, config.model_type if path else ""


def nested(model):
    """Whether the default config has a block for each type of layers."""
    if model not in transformers.CONFIG_MAPPING:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            block = getattr(transformers.CONFIG_MAPPING[model]().get_text_config(), "rope_parameters", None)
        except Exception:  # a default config that its own check refuses; then the calls of `get_rope` decide
            return False
    return bool(block) and all(isinstance(each, dict) for each in block.values())


def of_get_rope(source):
    """Each rule of `get_rope` and the keys that its branch reads."""
    tree = ast.parse((source / "vllm/model_executor/layers/rotary_embedding/__init__.py").read_text())
    function = next(each for each in tree.body if getattr(each, "name", "") == "get_rope")
    branch = next(
        each for each in ast.walk(function) if isinstance(each, ast.If) and "scaling_type" in names_of(each.test)
    )
    found = {}
    while isinstance(branch, ast.If):
        rules = strings(branch.test)
        keys = {key for statement in branch.body for key in strings(statement) if key.isidentifier()}
        for rule in rules:
            found[rule] = sorted(keys | {*COMMON})
        branch = branch.orelse[0] if branch.orelse else None
    return found


@cache
def strings(tree):
    return [each.value for each in ast.walk(tree) if isinstance(each, ast.Constant) and isinstance(each.value, str)]


@cache
def source_of(tree):
    return ast.unparse(tree)


@cache
def names_of(tree):
    return {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}


def defaults_of(tree):
    """The values that a class gives to keys that the block does not have."""
    found = {}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and source_of(call.func) == "set_default_rope_theta":
            found["rope_theta"] = float(ast.literal_eval(call.keywords[0].value))
        elif isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "setdefault":
            key, value = call.args
            if source_of(key) == "'partial_rotary_factor'" and isinstance(value, ast.Constant):
                found["partial_rotary_factor"] = value.value
    return found


class Models:
    """The classes of vLLM's models, and the calls of `get_rope` that each reaches."""

    def __init__(self, source):
        self.source = source
        registry = ast.parse((source / "vllm/model_executor/models/registry.py").read_text())
        self.registry = {}
        for each in registry.body:
            if isinstance(each, (ast.Assign, ast.AnnAssign)) and isinstance(each.value, ast.Dict):
                for key, value in zip(each.value.keys, each.value.values):
                    if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple) and len(value.elts) == 2:
                        self.registry.setdefault(key.value, tuple(map(ast.literal_eval, value.elts)))

    def file(self, module):
        """The file of a module: a name in the folder of models, or a whole one."""
        path = module if module.startswith("vllm.") else f"vllm.model_executor.models.{module}"
        base = self.source / path.replace(".", "/")
        return base.with_suffix(".py") if base.with_suffix(".py").exists() else base / "__init__.py"

    @cache  # noqa: B019 - one object for each run
    def module(self, file):
        """The classes and functions of a file, and where its imported names lie."""
        tree = ast.parse(file.read_text()) if file.exists() else ast.Module([], [])
        here = [*file.relative_to(self.source).with_suffix("").parts]
        imported = {}
        for each in ast.walk(tree):
            if isinstance(each, ast.ImportFrom):
                base = here[: len(here) - each.level] if each.level else []
                path = ".".join([*base, *([each.module] if each.module else [])])
                if path.startswith(("vllm.model_executor.models", "vllm.models")):
                    imported.update({name.asname or name.name: (path, name.name) for name in each.names})
        return {each.name: each for each in tree.body if isinstance(each, (ast.ClassDef, ast.FunctionDef))}, imported

    def reached(self, module, name):
        """The classes of the language model that a class uses, itself first."""
        waiting, found, seen = [(self.file(module), name)], {}, set()
        while waiting:
            file, name = waiting.pop(0)
            if (file, name) in seen or any(part in name for part in OTHER_PARTS):
                continue
            seen.add((file, name))  # modules may import a name from each other
            defined, imported = self.module(file)
            if name in imported:
                path, original = imported[name]
                waiting.append((self.file(path), original))
                continue
            if name not in defined:
                continue
            found[file, name] = defined[name]
            waiting += [(file, each) for each in sorted(names_of(defined[name]))]
            waiting += [
                (self.file(self.registry[each][0]), self.registry[each][1])
                for each in strings(defined[name])
                if each.endswith("ForCausalLM") and each in self.registry
            ]
        return found

    def builds_any(self, architecture):
        """Whether an architecture leaves the choice of its language model to the text config."""
        module, name = self.registry[architecture]
        tree = self.module(self.file(module))[0].get(name)
        return tree is not None and "init_vllm_registered_model" in names_of(tree)

    def reading(self, architecture, rules):
        """What an architecture reads; None if vLLM does not have it."""
        if architecture not in self.registry:
            return None
        module, name = self.registry[architecture]
        if module == "transformers":
            common = [*COMMON, "mrope_interleaved", "mrope_section"]
            return {"rules": {rule: sorted([*keys, *common]) for rule, keys in OF_TRANSFORMERS.items()}, "by": module}
        reached = self.reached(module, name)
        calls = [
            (file, tree, call)
            for (file, _), tree in reached.items()
            for call in ast.walk(tree)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "get_rope"
        ]
        if not calls:
            return {"rules": {}}
        # A class of its own module replaces that of the module from which it inherits.
        calls = [each for each in calls if each[0] == self.file(module)] or calls
        # DeepSeek's first model, of the same file, has no latent attention.
        calls = [each for each in calls if "deepseek_yarn" in strings(each[1])] or calls
        found, fixed, by_layer, partial = {}, set(), False, False
        for _, tree, call in calls:
            values = {each.arg: each.value for each in call.keywords}
            block = ast.unparse(values["rope_parameters"]) if "rope_parameters" in values else ""
            style = values.get("is_neox_style", ast.Constant(True))
            fixed.add({True: "half", False: "interleaved"}.get(getattr(style, "value", None)))
            inner = self.block_of(tree, values.get("rope_parameters"))
            by_layer |= "rope_parameters[layer_type]" in block + source_of(tree)
            partial |= "partial_rotary_factor" in strings(tree)
            found |= self.rules_of(inner, tree, rules)
        files = {file for file, _, _ in calls}
        defaults = [defaults_of(tree) for (file, _), tree in reached.items() if file in files]
        reading = {"rules": found}
        if any(defaults):
            reading["defaults"] = {key: value for each in defaults for key, value in each.items()}
        if len(fixed) == 1 and None not in fixed:
            reading["fixed"] = {"layout": fixed.pop()}
        if by_layer:
            reading["nested"] = True
        if partial:
            reading["keys"] = [FRACTION]
        sets = f"config.rope_parameters['{FRACTION}'] = "
        if any(sets in ast.unparse(tree) for _, tree, _ in calls):
            reading["sets_fraction"] = True
        return reading

    @staticmethod
    def block_of(tree, value):
        """The dict that a class writes by hand as its block; None if the block is that of the config."""
        if isinstance(value, ast.Name):
            assigned = [
                each.value
                for each in ast.walk(tree)
                if isinstance(each, (ast.Assign, ast.AnnAssign))
                and ast.unparse(each.targets[0] if isinstance(each, ast.Assign) else each.target) == value.id
            ]
            if any(
                "config.rope_parameters" in ast.unparse(each) for each in assigned if not isinstance(each, ast.Dict)
            ):
                return None  # the config's block for some of the layers
            value = next((each for each in assigned if isinstance(each, ast.Dict)), None)
        return value if isinstance(value, ast.Dict) and None not in value.keys else None

    @staticmethod
    def rules_of(block, tree, rules):
        """The rules and keys that a call passes on."""
        if block is not None:
            values = {key.value: value for key, value in zip(block.keys, block.values)}
            rule = values.get("rope_type", ast.Constant("default"))
            read = [key for key, value in values.items() if key in strings(value) or "rope_theta" in ast.unparse(value)]
            return {getattr(rule, "value", "default"): sorted(read)}
        if "deepseek_yarn" in strings(tree):  # every rule becomes this one
            keys = sorted({*rules["deepseek_yarn"], "attention_factor"} - {"is_deepseek_v4", "partial_rotary_factor"})
            return {"default": [*COMMON], "deepseek_yarn": keys}
        return rules
