"""rope_xp inside a PyTorch model of transformers 5: `patch(model)` puts it in, `unpatch(model)` takes it out.

Nothing global is touched: a rotary module gives way to one of ours in its parent, and an object whose forward names an
apply function of transformers becomes one of a class like its own, with a forward of the same code and ours under that
name. What meets our tables all the same, such as a layer that joins later, finds them as upstream's, but in float32,
which a layer of 16 bits does not take.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

try:
    import torch
    import transformers
    from torch._subclasses import FakeTensor
except ImportError as missing:
    raise ImportError(
        "rope_xp.huggingface: torch and transformers must be installed (pip install 'rope-xp[huggingface]'); "
        f"got {missing}"
    ) from None
if int(transformers.__version__.partition(".")[0]) < 5:
    raise ImportError(f"rope_xp.huggingface: transformers must be 5 or newer; got {transformers.__version__}")

from rope_xp.huggingface._gptj import TABLE, class_of, has_tables_inside
from rope_xp.huggingface._kept import Aside, Keeper, Ours, aside, check_kept, keep, named
from rope_xp.huggingface._methods import Methods
from rope_xp.huggingface._rotary import Rotary, held, is_rotary, rotary_of

__all__ = ["patch", "patched", "unpatch"]

Model = TypeVar("Model", bound=torch.nn.Module)


def patch(model: Model) -> Model:
    """Put rope_xp inside a model of transformers: its rotary modules, and the functions that apply their tables.

    Tables are then exact at every position, and are neither rounded to the dtype of the model nor cast with it; q and k
    turn in float32, both at once. Parameters, saved buffers, `generate`, caches, gradients, hooks and the config stay
    as they are. Before anything is changed, the tables of every rotary module and every apply function are compared
    with transformers' own; if one of them differs, nothing is changed.

    The config, and what a forward made again finds in its file, are read now and not in later calls; a layer that
    joins later turns by the same tables in transformers' own way, if it is not of 16 bits. A copy is patched as its
    model is. To be pickled whole, as `torch.save` of a model does, it must be unpatched; `save_pretrained` and a state
    dict need nothing. Threads may patch models of their own at the same time: `patch` changes nothing of the process.

    What a rotary module holds stays as it is until `unpatch`: its frequencies are not there to be read, and setting
    them, its attention factor or another attribute raises AttributeError. To edit them, unpatch the model first; a
    rotation of your own is `rope_xp.RotaryEmbedding`. A call raises ValueError where the rule depends on the length,
    as LongRoPE and dynamic NTK do, and the config has other ``rope_parameters`` than when the model was patched. A
    state dict with other frequencies, which only ESM has, raises RuntimeError.

    What transformers does by mistake is done here too, see ``compat`` of `rope_xp.from_config`. One thing is not:
    dynamic NTK follows the longest position of each call and remembers nothing; to see it, each call waits for the
    device.

    Parameters
    ----------
    model : torch.nn.Module
        A model of transformers, or a part of one that holds its rotary modules.

    Returns
    -------
    torch.nn.Module
        `model` itself.

    Raises
    ------
    TypeError
        If `model` is no module.
    ValueError
        If it is patched already, has no rotary module, is quantised by transformers, wrapped for data parallelism, on
        the meta device or made of fake tensors; or if a part of it cannot be patched, which is named with the reason:
        such as a rotary module with hooks of PyTorch, with frequencies that are not those of its config or in another
        model that is patched, or a forward that is not transformers' own.

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
    who = "patch"
    _check(who, model)
    rotaries = {module: rotary_of(who, module) for module in model.modules() if is_rotary(module)}
    inside = {module: class_of(who, module) for module in model.modules() if has_tables_inside(module)}
    if not rotaries and not inside:
        raise ValueError(f"{who}: model must have a rotary module; got {type(model).__name__} without one")
    if model in rotaries:
        raise ValueError(f"{who}: model must be what holds the rotary module; got {named(model)} itself")
    methods = Methods(who, rotaries.values())
    others = [module for module in model.modules() if module not in rotaries and module not in inside]
    classes = inside | {module: methods.class_of(module) for module in others}
    methods.check_all_are_applied()
    classes = {module: cls for module, cls in classes.items() if cls is not type(module)}
    _check_forwards(who, classes)

    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child in rotaries:
                parent._modules[name] = rotaries[child]
    for module, cls in classes.items():
        _make(module, cls)
    for module in inside:
        keep(module, [TABLE], {})
    for module, rotary in rotaries.items():
        _make(module, aside(type(module)))
        keep(module, rotary.kept_names(), rotary.made)
    return model


def unpatch(model: Model) -> Model:
    """Take rope_xp out of a model: every object and every forward that `patch` replaced is put back.

    What was registered on the rotary modules meanwhile goes away with them. A part without its rotary module goes on
    with exact tables, float32 or float64, which transformers' own functions apply; one of 16 bits does not take them.

    Frequencies and tables are put back as transformers would have them after all casts, to the last bit, also where
    ``to_empty`` has left memory without numbers. This is proven first: they are compared with copies on the host.

    Parameters
    ----------
    model : torch.nn.Module
        A patched model, a part or a copy of one.

    Returns
    -------
    torch.nn.Module
        `model` itself.

    Raises
    ------
    TypeError
        If `model` is no module.
    ValueError
        If it is not patched, or if the forward or the class of a part of it has been replaced or wrapped since, as
        ``fully_shard`` of attention by itself does. If the frequencies of a part are on the meta device, or have been
        edited through a reference from before `patch`. The part is named, and nothing is changed then. Hooks of
        accelerate stay.

    Examples
    --------
    >>> import torch
    >>> unpatch(torch.nn.Linear(2, 2))
    Traceback (most recent call last):
        ...
    ValueError: unpatch: model must be patched; got Linear that is not
    """
    who = "unpatch"
    _module(who, model)
    if not _is_patched(model):
        raise ValueError(f"{who}: model must be patched; got {type(model).__name__} that is not")
    remade = [module for module in model.modules() if _is_ours(module) and not isinstance(module, Rotary)]
    _check_forwards(who, remade)
    for module in remade:
        if "forward" not in vars(type(module)):
            raise ValueError(f"{who}: every part must have the class that patch gave it; got {named(module)}")
    originals = [module.original for module in model.modules() if isinstance(module, Rotary)]
    keepers = [*originals, *(module for module in remade if isinstance(module, Keeper))]
    check_kept(who, keepers)

    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if isinstance(child, Rotary):
                parent._modules[name] = child.original
    for module in [*originals, *remade]:
        _make(module, type(module).__base__)
    for module in keepers:
        del vars(module)["_kept"]
    return model


@contextmanager
def patched(model: Model) -> Iterator[Model]:
    """`patch` on the way in and, where it is still patched, `unpatch` on the way out, also after an error.

    Parameters
    ----------
    model : torch.nn.Module

    Yields
    ------
    torch.nn.Module
        `model` itself.

    Raises
    ------
    TypeError, ValueError
        As `patch` does.

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


def _module(who: str, model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{who}: model must be a torch.nn.Module; got {type(model).__name__}")


def _check(who: str, model: Any) -> None:
    """A model whose tables can be compared, and that nobody has patched or changed."""
    _module(who, model)
    if _is_patched(model):
        raise ValueError(f"{who}: model must not be patched already; got {type(model).__name__} that is: unpatch it")
    if any(tensor.is_meta or isinstance(tensor, FakeTensor) for tensor in [*model.parameters(), *model.buffers()]):
        raise ValueError(f"{who}: model must have its numbers in memory; got tensors on the meta device, or fake ones")
    for module in model.modules():
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):  # which has counted the buffers
            raise ValueError(f"{who}: model must be patched before {type(module).__name__} wraps it; got it wrapped")
        config = getattr(module, "config", None)
        if getattr(module, "hf_quantizer", None) or getattr(config, "quantization_config", None):
            raise ValueError(f"{who}: model must not be quantised; got {type(module).__name__} with a quantizer")


def _is_patched(model: torch.nn.Module) -> bool:
    return any(_is_ours(module) for module in model.modules())


def _is_ours(module: torch.nn.Module) -> bool:
    return isinstance(type(module), Ours) and not isinstance(module, Aside)


def _check_forwards(who: str, modules: Iterable[Any]) -> None:
    """Objects whose forward nobody else has replaced, or wrapped, but for hooks of accelerate."""
    for module in modules:
        try:
            held(module)
        except ValueError as error:
            raise ValueError(
                f"{who}: every part must have the forward of its class; got {named(module)}: {error}"
            ) from None


def _make(module: Any, cls: Any) -> None:
    """Make an object one of another class, and what it holds of its forward itself likewise."""
    for name in held(module):
        vars(module)[name] = types.MethodType(cls.forward, module)
    module.__class__ = cls
