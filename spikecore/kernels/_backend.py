"""Interface of a kernel backend: two launches, and optionally the text of its kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, Optional, Union

from torch import Tensor

from spikecore.backend import Backend, Runner, Spec
from spikecore.kernels import spike_products
from spikecore.kernels._layout import CorrectionLaunch, Launch, StatisticsLaunch
from spikecore.kernels._plan import BackwardPlan, ForwardPlan, every_gradient
from spikecore.kernels._recurrent import FedRunner
from spikecore.kernels._runner import KernelRunner
from spikecore.lang import Program


class KernelBackend(Backend):
    """A backend that supplies two launches and inherits the rest.

    A subclass writes :meth:`forward` and :meth:`backward`. Each is called once per plan and returns a function that
    launches the compiled kernel on raw tensors, of which none is empty. A tensor of one step is dense in memory, N
    numbers. A tensor of all steps is dense step by step: inputs and cotangents have ``stride(0)`` numbers from one
    step to the next, 0 where one step stands for all; what a launch fills has N. All share one order of neurons,
    whatever their shape.

    Where ``owns_outputs`` is true a launch gets no tensors to fill and returns its results (see
    :mod:`spikecore.kernels._layout`). All tensors then come and go flat: ``[T, N]`` of all steps, ``[N]`` of one.
    """

    #: Backward recomputes states in chunks of this many steps from checkpoints that forward writes; 0 for none. See
    #: :meth:`chunk_of`, too.
    chunk: int = 0
    #: True if launches return their results, as those of array compilers do.
    owns_outputs: bool = False
    #: For each plan, so many different sizes get a kernel of their own, whose ``plan.geometry`` has them; calls of all
    #: others share the one without. 0 for one kernel that runs with any sizes.
    sizes: int = 0
    #: True if launches take tensors of all steps whose rows lie apart: ``[B, T, ...]`` seen as ``[T, B, ...]``. The
    #: geometry of such a call has ``rows``. All tensors of all steps then have strides of their own, those that are
    #: filled, too: ``stride(0)`` from step to step and ``stride(rows[1])`` from row to row.
    rows: bool = False
    #: True if a launch of :meth:`feeds_back` takes outputs that come back to several inputs through one matrix.
    feeds_gates: bool = False
    #: True if launches read inputs that broadcast where they lie (``plan.broadcast``, ``geometry.period``); else these
    #: are copied for them, with a number for each neuron.
    reads_periods: bool = False
    #: True if backward launches sum the gradients of such inputs (``plan.summed``); torch does it where they do not.
    sums_periods: bool = False
    #: True if launches take inputs, and fill gradients of inputs, that lie side by side (``plan.side_by_side``,
    #: ``geometry.period``). Where something comes back to several inputs, each step then is one product.
    side_by_side: bool = False
    #: True if :meth:`split` reads all numbers once, so that the gradient of a float32 weight is quicker by parts.
    quick_split: bool = False

    def chunk_of(self, program: Program, spec: Spec) -> int:
        """``chunk`` for calls of this program under this spec, where it is not the same for all."""
        return self.chunk

    def forward(self, plan: ForwardPlan) -> Launch:
        """A function ``launch(geometry, inputs, state, params, outputs, final, trace, checkpoints)`` that fills the
        last four: outputs of all steps, final states, recorded states of all steps, and for each state of
        ``plan.saved`` its values before every chunk but the first.

        With ``owns_outputs``, ``launch(geometry, inputs, state, params) -> (outputs, final, trace, checkpoints)``.
        """
        raise NotImplementedError(f"{type(self).__name__} must define forward(plan)")

    def backward(self, plan: BackwardPlan) -> Launch:
        """A function ``launch(geometry, inputs, state, params, checkpoints, grad_outputs, grad_final, grad_trace,
        grad_inputs, grad_state) -> grad_params`` that fills the two before the arrow. The checkpoints are those of
        ``plan.saved``.

        The tensors are those that the plan names. A parameter's gradient is in the dtype of arithmetic: for a scalar
        any number of partial sums; for a channel parameter its ``channels`` sums, or a multiple of
        ``inner * channels`` numbers, of which number ``k`` is a part of the sum for channel ``k // inner % channels``;
        for a full one one number per neuron. Parts are added in a fixed order afterwards. Behind the parameters come
        the gradients of the inputs in ``plan.summed``, of arithmetic: partial sums ``[T, k * p]`` with the input's
        number ``p`` of ``geometry.periods``.

        With ``owns_outputs``, ``launch(geometry, inputs, state, params, checkpoints, grad_outputs, grad_final,
        grad_trace) -> (grad_inputs, grad_state, grad_params)``.
        """
        raise NotImplementedError(f"{type(self).__name__} must define backward(plan)")

    def feeds_back(self, program: Program, spec: Spec, width: int) -> bool:
        """True if launches take all steps of a call with ``spec.feedback``, of neurons ``[..., width]``.

        For any other such call there is one launch for each step, of a plan without feedback, and the products between
        them are torch's. Where this is true, plans with ``spec.feedback`` come for calls in which the weight has
        ``spec.dtype``, and their launches differ in this:

        - the weight ``[width, width]`` stands behind the parameters, and in a forward launch the bias if there is one.
          Column ``j`` is what neuron ``j`` gives to each neuron. With :attr:`feeds_gates` and k numbers in
          ``feedback.inputs`` it is ``[k * width, width]``, the bias ``[k * width]``, with the rows of each input in
          this order.
        - forward: with ``plan.has_initial_state`` the last output before the call stands behind the states; without,
          it is 0. The final states are the program's. With ``plan.checkpoints`` the first of the group of that name,
          one for each of ``feedback.inputs``, are ``[T, *N]``, to be filled with these inputs of the program,
          ``x[t] + r[t]``; behind them stand those of ``plan.saved``, where :meth:`chunk_of` is not 0 for a spec with
          feedback.
        - backward: ``inputs`` are these; of the checkpoints those of inputs are None. ``grad_outputs`` is there always,
          with a stride of 0 where none arrives, and to it comes what goes back through the weight. ``grad_state`` is of
          the program's. With ``feedback.bias`` and one input a launch may give, behind the parts of the parameters'
          gradients, the sum of ``x[t] + r[t]``'s gradient over the steps, ``[*N]`` of arithmetic: otherwise torch adds
          it up for the bias.
        - with ``feedback.detach`` there is no backward launch with feedback, and ``plan.saved`` is empty: backward is
          that of a call without feedback, whose input is ``x[t] + r[t]``.
        - with ``feedback.delays`` the delays stand behind weight and bias: ``[width + 1]`` of arithmetic, one for each
          neuron, and how many steps may still come back, ``longest + 1``. Neuron ``j`` gives ``y[t - 1 - delay[j]]`` at
          step ``t``. Forward: in front of the output that comes back lie so many steps more in memory, the outputs
          before the call, and no last output is read. Backward: behind the gradients of the states stands a ring of
          ``longest + 1`` steps ``[*N]`` of arithmetic, zeros, for what goes back through the weight at later steps.
        - a tensor of one step is contiguous, neurons of one row of the batch side by side.
        """
        return False

    def statistics(self, spec: Spec) -> Optional[StatisticsLaunch]:
        """A function ``launch(geometry, x, eps, running) -> (mean, 1 / sqrt(variance + eps))``, ``[C]`` each, for batch
        normalisation in training; None, as here, where PyTorch's own operations or :meth:`backward` are to find them.

        ``x`` is stored, ``[T, *N]`` with dense steps; ``geometry.channels`` has one pair. ``running``, where it is not
        None, are running mean and variance ``[C]`` in any dtype, a count ``[]`` of int64 or None, and a factor: the
        launch moves the first two by the factor, the variance towards the unbiased one, and adds 1 to the count. It may
        return None for sizes that it does not take, with nothing moved.
        """
        return None

    def correction(self, spec: Spec) -> Optional[CorrectionLaunch]:
        """A function ``launch(geometry, x, grad, channels)`` that finishes the gradient of an input that batch
        normalisation in training takes, or None, as here, for a second backward launch that computes all steps again.

        ``grad`` is stored, ``[T, *N]``, dense: the gradient by a backward launch for which mean and standard deviation
        are given. The function adds in place, per channel, ``-(x - mean) * (s * rstd * grad_weight / n) - s *
        grad_bias / n`` with ``s = rstd * weight`` and n numbers of a channel. ``channels`` are mean, rstd, weight,
        grad_weight and grad_bias, ``[C]`` of arithmetic; ``x`` and ``geometry`` are as for :meth:`statistics`.
        """
        return None

    def split(self, x: Tensor, count: int) -> Tensor:
        """Numbers ``x [K, H]`` of float32, contiguous, as ``count`` parts of bfloat16, 8 bits each: ``[K, count, P]``,
        where P is H rounded up to a multiple of 8, with zeros behind the H numbers of a row. The part with the highest
        bits is the last one; it is cut off, not rounded. Three parts have all bits of a number above 2^-133.

        Here by several operations of torch, each of which reads and writes all numbers.
        """
        return spike_products.split(x, count)

    def text(self, plan: Union[ForwardPlan, BackwardPlan]) -> str:
        """The source text of a kernel, for people."""
        raise NotImplementedError(f"{type(self).__name__} has no text to show")

    def source(self, program: Program, spec: Spec) -> Dict[str, str]:
        """The text of the kernels that a call at rest takes, with all gradients of inputs and learnt parameters."""
        forward = ForwardPlan(program, spec, final=spec.final)
        backward = replace(every_gradient(program, spec, False), trace=(), final=False)
        return {"forward": self.text(forward), "backward": self.text(backward)}

    def compile(self, program: Program, spec: Spec) -> Runner:
        """A runner that launches kernels, compiled when they are first needed."""
        return KernelRunner(self, program, spec) if spec.feedback is None else FedRunner(self, program, spec)
