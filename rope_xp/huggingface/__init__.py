"""rope_xp inside a PyTorch model of transformers 5: `patch(model)` puts it in, `unpatch(model)` takes it out.

`from_transformers(config)` identifies what the installed transformers computes for a config.

`patch` changes one model and nothing global. It replaces each rotary module by a `Rotary` module. It also changes the
class of each module whose forward calls an apply function of transformers, such as `apply_rotary_pos_emb`. The
forward of the new class has the same code, but it calls the apply functions of rope_xp.
"""

# The modules here:
# - guard: classes that `patch` makes, attributes that cannot be edited, contexts of comparisons
# - rotary: `Rotary`, the module that replaces a rotary module
# - same_tables: which modules are rotary (`is_rotary`), and which of these are refused (`REFUSED`, or for their tables)
# - apply_functions: the apply functions of rope_xp
# - rewrite: classes whose forward calls them, also of attention that holds its own table; the refusals of these
# - probing: what an attention does to queries, as a function
# - reading_models: `from_transformers`; models on the meta device, their attentions and rotary modules
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from rope_xp.errors import missing_package, public, wrong_type, wrong_value

try:
    import torch
    import transformers
    from torch._subclasses import FakeTensor
    from torch.nn import Module
except ImportError as error:
    raise missing_package(__name__, "torch and transformers", "huggingface", error) from None
if int(transformers.__version__.partition(".")[0]) < 5:
    raise ImportError(f"rope_xp.huggingface: transformers must be 5 or newer; got {transformers.__version__}")

from rope_xp.huggingface.guard import PatchedType, class_path, forward_attributes
from rope_xp.huggingface.reading_models import from_transformers
from rope_xp.huggingface.rewrite import ClassRewriter, exact_table_class, holds_table
from rope_xp.huggingface.rotary import Rotary
from rope_xp.huggingface.same_tables import is_rotary, rotary_of

__all__ = ["from_transformers", "patch", "patched", "unpatch"]

Model = TypeVar("Model", bound=Module)


@public("patch")
def patch(model: Model) -> Model:
    """Replace the rotary modules of a transformers model, and the functions that apply their tables.

    The tables of a patched model are exact at every position. They are not rounded to the dtype of the model, and no
    cast changes them. Queries and keys are rotated in float32, both in one call. Parameters, saved buffers,
    `generate`, caches, gradients, hooks and the config stay as they are.

    `patch` first compares its tables and its apply functions with those of transformers. If a result differs, it raises
    ValueError and changes nothing.

    `patch` reads the config and the source files of the model once; later calls do not read them again. If a layer is
    added to a patched model, the new layer runs the code of transformers with the exact tables. These are float32, so a
    layer in 16 bits cannot use them. A copy of a patched model is patched. A patched model cannot be pickled as a
    whole, as `torch.save(model)` does: unpatch it first. `save_pretrained` and state dicts work. `patch` changes no
    global state, so threads may patch different models at the same time.

    The frequencies of a patched rotary module cannot be read. They, the attention factor and all other attributes
    cannot be set: this raises AttributeError. To edit them, unpatch the model first. An edit through a reference to the
    original rotary module does not change a patched model. Two models may share a rotary module; each is patched by
    itself. For a rotation of your own, use `rope_xp.RotaryEmbedding`.

    With LongRoPE and dynamic NTK the frequencies depend on the length. A call of such a model raises ValueError if the
    config has other ``rope_parameters`` than when the model was patched. A state dict with other frequencies raises
    RuntimeError; few models save their frequencies, such as ESM.

    A patched model reproduces the known bugs of the installed transformers; see ``compat`` of `rope_xp.from_config`.
    There is one exception: dynamic NTK uses the largest position of each call and does not depend on earlier calls.
    Each call then waits for the device, as it must read that position.

    Parameters
    ----------
    model : torch.nn.Module
        A model of transformers, or a part of one that contains its rotary modules.

    Returns
    -------
    torch.nn.Module
        `model` itself.

    Raises
    ------
    TypeError
        If `model` is not a `torch.nn.Module`.
    ValueError
        If the model is patched already, has no rotary module, is quantised by transformers, is wrapped in
        `DistributedDataParallel`, or has meta or fake tensors. Also if one of its modules cannot be patched. For
        example, a rotary module has hooks of PyTorch, its frequencies do not follow from its config, or a forward is
        not that of transformers. The error names the module and the reason.

    References
    ----------
    transformers, `modeling_rope_utils.py` and `models/*/modeling_*.py`.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    >>> model = patch(LlamaForCausalLM(config))
    >>> type(unpatch(model).model.rotary_emb).__name__
    'LlamaRotaryEmbedding'
    """
    _check_patchable(model)
    rotaries = {module: rotary_of(module) for module in model.modules() if is_rotary(module)}
    own_table_classes = {module: exact_table_class(module) for module in model.modules() if holds_table(module)}
    if not rotaries and not own_table_classes:
        raise wrong_value(f"model must have a rotary module; got {type(model).__name__} without one")
    if model in rotaries:
        raise wrong_value(f"model must contain the rotary module; got the rotary module {class_path(model)}")
    classes = own_table_classes | _rewritten_classes(model, rotaries)
    _check_forwards(classes)

    _replace_submodules(model, rotaries)
    for module, cls in classes.items():
        _set_class(module, cls)
    return model


@public("unpatch")
def unpatch(model: Model) -> Model:
    """Take rope_xp out of a model: put back every module and every forward that `patch` replaced.

    Hooks and submodules that were registered on the `Rotary` modules are lost. If only a part of a model is unpatched,
    without its rotary module, the functions of transformers apply the exact tables there. These are float32 or float64,
    so a part in 16 bits cannot use them.

    The original frequencies and tables are put back bit for bit. All casts since `patch` are applied to them. They keep
    their values after ``to_empty``, and stay in memory if the model is on the meta device. If the original rotary
    module was edited since `patch`, through a reference from before, the edit stays.

    Parameters
    ----------
    model : torch.nn.Module
        A patched model, or a part or a copy of one.

    Returns
    -------
    torch.nn.Module
        `model` itself.

    Raises
    ------
    TypeError
        If `model` is not a `torch.nn.Module`.
    ValueError
        If the model is not patched. Also if the forward or the class of one of its modules has been replaced or
        wrapped since `patch`; ``fully_shard`` of an attention module does this. The error names the module, and nothing
        is changed. Hooks of accelerate are allowed, and are kept.

    Examples
    --------
    >>> import torch
    >>> unpatch(torch.nn.Linear(2, 2))
    Traceback (most recent call last):
        ...
    ValueError: unpatch: model must be patched; got Linear, which is not
    """
    _check_module(model)
    if not _is_patched(model):
        raise wrong_value(f"model must be patched; got {type(model).__name__}, which is not")
    patched_modules = [
        module for module in model.modules() if isinstance(type(module), PatchedType) and not isinstance(module, Rotary)
    ]
    _check_forwards(patched_modules)
    for module in patched_modules:
        if "forward" not in vars(type(module)):
            raise wrong_value(f"every module must have the class that patch gave it; got {class_path(module)}")

    _replace_submodules(model, {module: module.original for module in model.modules() if isinstance(module, Rotary)})
    for module in patched_modules:
        _set_class(module, type(module).__bases__[0])
    return model


@contextmanager
def patched(model: Model) -> Iterator[Model]:
    """Patch a model for the duration of a ``with`` block, and unpatch it afterwards, also after an error.

    A model that was unpatched inside the block stays unpatched. Errors are those of `patch` and `unpatch`.

    Parameters
    ----------
    model : torch.nn.Module

    Yields
    ------
    torch.nn.Module
        `model` itself.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaModel
    >>> config = LlamaConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    >>> with patched(LlamaModel(config)) as model:
    ...     type(model.rotary_emb).__name__
    'Rotary'
    """
    patch(model)
    try:
        yield model
    finally:
        if _is_patched(model):
            unpatch(model)


def _rewritten_classes(model: Module, rotaries: dict[Module, Rotary]) -> dict[Module, type]:
    """For each module whose forward calls an apply function, the class that calls those of rope_xp."""
    rewriter = ClassRewriter(rotaries.values())
    others = [module for module in model.modules() if module not in rotaries and not holds_table(module)]
    classes = {module: rewriter.class_of(module) for module in others}
    rewriter.check_tables_are_applied()
    return {module: cls for module, cls in classes.items() if cls is not type(module)}


def _replace_submodules(model: Module, replacements: Mapping[Module, Module]) -> None:
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and child in replacements:
                parent._modules[name] = replacements[child]


def _check_module(model: object) -> None:
    if not isinstance(model, Module):
        raise wrong_type(f"model must be a torch.nn.Module; got {type(model).__name__}")


def _check_patchable(model: Module) -> None:
    _check_module(model)
    if _is_patched(model):
        raise wrong_value(f"model must not be patched already; got a patched {type(model).__name__}: unpatch it first")
    if any(tensor.is_meta or isinstance(tensor, FakeTensor) for tensor in [*model.parameters(), *model.buffers()]):
        raise wrong_value("model must have its tensors in memory; got meta or fake tensors")
    for module in model.modules():
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):  # it keeps a list of the buffers
            raise wrong_value(f"model must be patched before {type(module).__name__} wraps it; got a wrapped model")
        config = getattr(module, "config", None)
        if getattr(module, "hf_quantizer", None) or getattr(config, "quantization_config", None):
            raise wrong_value(f"model must not be quantised; got {type(module).__name__} with a quantizer")


def _is_patched(model: Module) -> bool:
    return any(isinstance(type(module), PatchedType) for module in model.modules())


def _check_forwards(modules: Iterable[Module]) -> None:
    for module in modules:
        try:
            forward_attributes(module)
        except ValueError as error:
            raise wrong_value(
                f"every module must have the forward of its class; got {class_path(module)}: {error}"
            ) from None


def _set_class(module: Module, cls: type) -> None:
    """Change the class of a module, and the references to the forward that the module itself holds."""
    for name in forward_attributes(module):
        vars(module)[name] = types.MethodType(cls.forward, module)
    module.__class__ = cls
