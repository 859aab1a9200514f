"""On a GPU, a training step that is replayed as a CUDA graph has the bits of the eager step."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn

import spikecore as sc
from graphed import GRAPH, batch, net, same, training


def usable(backend):
    return any(status.name == backend and status.state == "ready" for status in sc.backends(probe=True))


OPTIMIZERS = {
    "SGD": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "SGD fused": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True),
    "Adam": functools.partial(torch.optim.Adam, lr=0.01, capturable=True),
    "Adam fused": functools.partial(torch.optim.Adam, lr=0.01, capturable=True, fused=True),
    "AdamW": functools.partial(torch.optim.AdamW, lr=0.01, capturable=True),
    "RMSprop": functools.partial(torch.optim.RMSprop, lr=0.01, capturable=True),
}


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True", "ignore:.* decays 3.tau")
class TestOnAGpu:
    """Real graphs: the same bits as eager steps."""

    def both(self, optimizer, steps=20, options=None, backend="torch", schedule=None, between=None, loss=None):
        """Results, weights, optimiser and random state after eager steps, and after graphed ones on the same data."""
        runs = []
        for graphed in (False, True):
            model = net("cuda", backend)
            made = optimizer(model.parameters())
            keywords = options or {}
            chosen = sc.CudaOptions(graph=True, **keywords) if graphed else sc.TrainingOptions(**keywords)
            train, *_ = training(model, loss or sc.losses.ce_count, made, chosen)
            rates = schedule(made) if schedule else None
            torch.cuda.manual_seed(0)
            results = []
            for i in range(steps):
                if between is not None:
                    between(i, model, made)
                outputs, value = train(*batch(i, size=5 if i % 4 == 3 else 8, device="cuda"))
                results.append((outputs, value, [p.grad.clone() for p in model.parameters()]))
                if rates is not None:
                    rates.step()
            states = [list(made.state[p].values()) for p in model.parameters()]
            runs.append((results, model.state_dict(), states, torch.cuda.get_rng_state()))
        return runs, train

    @pytest.mark.parametrize("backend", ["torch", "cupy"])
    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_the_same_bits(self, optimizer, backend):
        """20 steps with a schedule, short batches, batch statistics and dropout: weights, states, gradients."""
        if not usable(backend):
            pytest.skip(f"{backend} is not usable here")
        runs, train = self.both(
            OPTIMIZERS[optimizer], backend=backend, schedule=lambda made: torch.optim.lr_scheduler.StepLR(made, 10, 0.5)
        )
        assert same(*runs)
        assert len(train._cache) == 1

    @pytest.mark.parametrize("optimizer", ["SGD fused", "Adam", "AdamW", "RMSprop"])
    def test_a_learning_rate_that_is_a_tensor(self, optimizer):
        """A schedule changes it at each step; one graph per kind of batch, and the same bits."""
        runs, train = self.both(
            lambda parameters: OPTIMIZERS[optimizer](parameters, lr=torch.tensor(0.02, device="cuda")),
            steps=24,
            schedule=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        )
        assert same(*runs)
        assert len(train._cache) == 2

    def test_interruptions(self):
        """zero_grad, an optimiser that is loaded, a mode, a moved weight: between steps all is as with eager ones."""

        def between(i, model, optimizer):
            if i % 3 == 0:
                optimizer.zero_grad()
            if i == 8:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            if i == 16:
                model[4].weight.data = model[4].weight.data.clone()
            model.train(i not in (5, 6))

        runs, train = self.both(OPTIMIZERS["Adam"], steps=30, between=between)
        assert same(*runs)
        assert train._cache

    def test_on_other_streams(self):
        """Calls from any stream: what a call returns can be used on the stream that it was made on."""
        runs = []
        streams = [torch.cuda.Stream() for _ in range(3)]
        for graphed in (False, True):
            model = net("cuda")
            train, *_ = training(model, options=GRAPH if graphed else None)
            torch.cuda.manual_seed(0)
            torch.cuda.synchronize()
            results = []
            for i in range(15):
                stream = streams[i % 3]
                stream.wait_stream(streams[(i - 1) % 3])
                with torch.cuda.stream(stream):
                    x, y = batch(i, device="cuda")
                    results.append([value * 2 for value in train(x, y)])
            torch.cuda.synchronize()
            runs.append((results, model.state_dict()))
        assert same(*runs)

    @pytest.mark.parametrize("view", ["anywhere", "part", "expanded"])
    def test_batches_that_lie_anywhere(self, view):
        """No kernel is loaded in a capture that the first steps had no use for."""
        if not usable("cupy"):
            pytest.skip("cupy is not usable here")
        look = {
            "anywhere": lambda x: torch.cat([x[0, 0, :1], x.flatten()])[1:].view(x.shape),
            "part": lambda x: torch.cat([x, x], 2)[..., 3:9],
            "expanded": lambda x: x[:1].expand(x.shape),
        }[view]
        runs = []
        for graphed in (False, True):
            torch.manual_seed(0)
            model = nn.Sequential(sc.LIF(3.25, backend="cupy"), nn.Linear(6, 3), sc.LIF(backend="cupy")).cuda()
            train, *_ = training(model, options=GRAPH if graphed else None)
            results = []
            for i in range(8):
                x, y = batch(i, device="cuda")
                results.append(train(look(x), y))
            runs.append((results, model.state_dict()))
        assert same(*runs)
        assert train._cache

    def test_carried_states(self):
        """Under carry_state graphs take the state in and give it back."""
        runs = []
        for graphed in (False, True):
            model = net("cuda")
            train, *_ = training(model, options=GRAPH if graphed else None)
            torch.cuda.manual_seed(0)
            results = []
            for block in range(2):
                with sc.carry_state(model):
                    for i in range(10 * block, 10 * block + 8):
                        result = train(*batch(i, device="cuda"))
                        results.append((result, {**model[5].state}))
            runs.append((results, model.state_dict()))
        assert same(*runs)

    def healthy(self):
        """The process draws, frees and captures as if nothing had happened."""
        before = torch.cuda.current_stream()
        torch.rand(4, device="cuda").sum().item()
        torch.cuda.empty_cache()
        assert torch.cuda.current_stream() == before
        runs, train = self.both(OPTIMIZERS["Adam"], steps=10)
        assert same(*runs)
        assert train._cache

    @pytest.mark.parametrize("how", ["a wait", "an exception"])
    def test_a_capture_that_fails(self, how):
        """Weights, optimiser and random numbers are as before, and the process goes on."""

        def loss(outputs, y):
            value = sc.losses.ce_count(outputs, y)
            if torch.cuda.is_current_stream_capturing():
                if how == "an exception":
                    raise KeyError("no such thing")
                value.item()
            return value

        model = net("cuda")
        train, _, optimizer = training(model, loss, torch.optim.Adam(model.parameters(), 0.01))
        for i in range(3):
            train(*batch(i, device="cuda"))
        before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"], torch.cuda.get_rng_state()))
        with pytest.raises(sc.backend.Unsupported, match="cannot be captured in a CUDA graph") as caught:
            train(*batch(device="cuda"))
        assert caught.value.__cause__ is not None
        assert ("KeyError" in str(caught.value)) == (how == "an exception")
        after = model.state_dict(), optimizer.state_dict()["state"], torch.cuda.get_rng_state()
        assert same(before, after)
        self.healthy()
