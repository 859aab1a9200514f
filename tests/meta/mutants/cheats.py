"""Dispatch: programs told apart by the wrong thing, work that another backend does, refusals."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import torch

import spikecore as sc
from mutants.registry import mutant
from mutants.tape import Tape, Taped
from mutants.use import at, call, drawn, lif, of
from spikecore import Unsupported
from spikecore._plugins.registry import default_registry
from spikecore.testing._loopback import Loop, Loopback


def reference():
    """The backend of torch."""
    return default_registry().get("torch", "a mutant")


@contextmanager
def broken(backend: str):
    """The reference computes nothing, unless it is the one that is asked."""
    owner = type(reference())
    own = owner.compile

    def refused(self, program, spec):
        def runner(*args):
            raise RuntimeError("torch's backend was asked in another's place")

        return own(self, program, spec) if backend == "torch" else runner

    owner.compile = refused
    try:
        yield
    finally:
        owner.compile = own


def alone(make, shape=(5, 4, 3, 2), **options):
    """The user measures a backend on a machine whose torch backend is broken."""
    used = call(make, shape, **options)

    def program(backend: str) -> object:
        with broken(backend):
            return used(backend)

    return program


def two_programs(backend: str) -> object:
    """Two neurons of the same name and other equations."""

    def made(factor):
        class Mine(sc.Neuron):
            states = {"v": 0.0}

            def dynamics(self, x, s, p):
                return x * factor, {"v": s.v}

        return Mine(backend=backend)

    x = drawn((4, 3))
    return [made(factor)(x) for factor in (1.0, 2.0)]


def two_lengths(backend: str) -> object:
    """A run of 17 steps, then one of 40."""
    return [call(lif(), (steps, 3), loss=())(backend) for steps in (17, 40)]


@mutant("custom/same-name", "custom/configured", shows=two_programs)
class CompiledByName(Loopback):
    """Programs are told apart by the neuron's name."""

    def compile(self, program, spec):
        self.made = getattr(self, "made", {})
        return self.made.setdefault((program.name, spec), super().compile(program, spec))


@mutant(
    "forward/lif-hard",
    "gradient/lif-hard",
    "exact/if-soft",
    "bits/lif-hard",
    says=("compute in its place",),
    raises=True,
    shows=alone(lif(tau=2.11)),
)
class DeadDispatch(Loopback):
    """Nothing of this backend is ever used: torch computes."""

    def compile(self, program, spec):
        return reference().compile(program, spec)


@mutant("forward/lif-hard-float16", says=("never fall back",), raises=True, shows=alone(lif(), dtype=torch.float16))
class FallsBackInFloat16(Loopback):
    """torch computes where this backend cannot."""

    def compile(self, program, spec):
        if spec.dtype != torch.float16:
            return super().compile(program, spec)
        return reference().compile(program, spec)


@mutant("state/long-17", says=("compute in its place",), raises=True, shows=alone(lif(), (20, 3)))
class FallsBackWhenLong(Loopback):
    """torch computes what is longer than 16 steps."""

    def compile(self, program, spec):
        return super().compile(program, spec) if spec.steps is not None else reference().compile(program, spec)


@mutant("gradient/lif-hard", says=("compute in its place",), raises=True, shows=alone(lif()))
class BackwardOfTheReference(Tape):
    """Backward is torch's: forward runs again there."""

    def backward(self, ctx, grads):
        inputs, states, values = self.split(self.kept(ctx)[0])
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in (*inputs, *states, *values)]
            given = self.split(leaves)
            runner = reference().compile(self.program, replace(self.spec, final=True))
            outputs, final, trace = runner(tuple(given[0]), tuple(given[1]), tuple(given[2]), ctx.record)
            pairs = [(r, g) for r, g in zip((*outputs, *final, *trace), grads) if g is not None and r.requires_grad]
            found = torch.autograd.grad([r for r, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True)
        return list(found)


@mutant("parameters/gradient-lif-hard", says=("compute in its place",), raises=True, shows=alone(lif(learn=("tau",))))
class FallsBackToLearn(Taped):
    """torch computes where parameters are learnt."""

    def compile(self, program, spec):
        return reference().compile(program, spec) if spec.learn else super().compile(program, spec)


@mutant("language/atan", says=("refused",), raises=True, shows=at(sc.ops.atan, (0.5,)))
class RefusesWhatItDeclares(Loopback):
    """atan cannot be lowered, and no capability says so."""

    def compile(self, program, spec):
        if any(node.op == "atan" for node in program.nodes):
            raise Unsupported("backend 'mutant' has no atan")
        return super().compile(program, spec)


@mutant(
    "state/long-3*",
    shows=lambda backend: [f(backend) for f in (call(lif(), (17, 3), loss=()), call(lif(), (40, 3), loss=()))],
)
class CompiledForOneLength(Loopback):
    """What is compiled for the first long run has its number of steps."""

    class Fixed(Loop):
        """Knows a number of steps."""

        def __call__(self, inputs, state, params, record):
            self.steps = getattr(self, "steps", len(inputs[0]))
            if self.spec.steps is None and len(inputs[0]) > self.steps:
                rest = torch.zeros_like(inputs[0][self.steps :])
                inputs = tuple(torch.cat([x[: self.steps], rest]) for x in inputs)
            return super().__call__(inputs, state, params, record)

    loop = Fixed


@mutant("*gradient?glif", shows=lambda backend: [call(of(sc.GLIF, learn=n))(backend) for n in ((), ("w_tau",))])
class CompiledWithoutLearn(Loopback):
    """Runners are told apart by program and dtype, not by what is learnt."""

    def compile(self, program, spec):
        self.made = getattr(self, "made", {})
        key = (program, spec.dtype, spec.steps)
        return self.made.setdefault(key, _Frozen(program, spec))


class _Frozen(Loop):
    """Gives gradients for what it was compiled for."""

    def __call__(self, inputs, state, params, record):
        names = self.program.params
        params = tuple(
            p.detach() if isinstance(p, torch.Tensor) and n not in self.spec.learn else p for n, p in zip(names, params)
        )
        return super().__call__(inputs, state, params, record)
