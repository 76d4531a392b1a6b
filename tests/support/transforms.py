"""What PyTorch's transforms make of a function of an array."""

from functools import partial

import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint


def dual(f, tangent=torch.cos):
    def call(x):
        with forward_ad.dual_level():
            return tuple(forward_ad.unpack_dual(f(forward_ad.make_dual(x, tangent(x)))))

    return call


def backward(f):
    def call(x):
        loss(f)(x.requires_grad_()).backward()
        return x.grad

    return call


def loss(f):
    return lambda x: f(x).pow(3).sum()


# Those that `gradcheck` does not run.
TRANSFORMS = {
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (x.cos(),)),
    "hessian": lambda f: torch.func.hessian(loss(f)),
    "jacfwd of jacfwd": lambda f: torch.func.jacfwd(torch.func.jacfwd(loss(f))),
    "vmap in chunks": lambda f: lambda x: torch.func.vmap(f, chunk_size=2)(torch.stack([x, 2 * x, 3 * x])),
    "vmap of the last axis": lambda f: lambda x: torch.func.vmap(f, in_dims=-1)(torch.stack([x, 2 * x], dim=-1)),
    "vmap of vmap": lambda f: (
        lambda x: torch.vmap(torch.vmap(f, in_dims=1))(torch.stack([x, 2 * x], 1).expand(2, 5, 2, 3, 14))
    ),
    "vmap of grad": lambda f: lambda x: torch.func.vmap(torch.func.grad(loss(f)))(torch.stack([x, 2 * x])),
    "grad of vmap": lambda f: torch.func.grad(lambda x: torch.func.vmap(f)(torch.stack([x, 2 * x])).pow(3).sum()),
    "jvp of vmap": lambda f: lambda x: torch.func.jvp(torch.func.vmap(f), (x[None],), (x[None].cos(),)),
    "jvp of grad": lambda f: lambda x: torch.func.jvp(torch.func.grad(loss(f)), (x,), (x.cos(),)),
    "linearize": lambda f: lambda x: torch.func.linearize(f, x)[1](x.cos()),
    "functionalize of grad": lambda f: torch.func.functionalize(torch.func.grad(loss(f))),
    "dual numbers through a gradient": lambda f: dual(torch.func.grad(loss(f))),
    "checkpoint": lambda f: backward(partial(checkpoint, f, use_reentrant=False)),
    "reentrant checkpoint": lambda f: backward(partial(checkpoint, f, use_reentrant=True)),
    # Autograd takes zeros without memory for a tangent that is zero.
    "dual numbers of a zero": lambda f: lambda x: dual(f, lambda x: torch._efficientzerotensor(x.shape))(x)[0],
}
