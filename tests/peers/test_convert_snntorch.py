"""``sc.convert`` on networks of snnTorch 1.0, built as its own tutorials build them, in small sizes."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import spikecore as sc

pytestmark = pytest.mark.peers

T, B = 8, 4
#: The largest difference of gradients, relative to the largest of the network. snnTorch computes in float32.
GRADIENTS = 1e-6


@pytest.fixture(scope="module")
def snn():
    """The package, its surrogates and its utilities."""
    import snntorch
    from snntorch import surrogate, utils

    assert surrogate is snntorch.surrogate
    assert utils is snntorch.utils
    return snntorch


class Loop(nn.Module):
    """Layers and neurons in turn, one step after the other, with states that the loop carries; records of both."""

    def __init__(self, *parts):
        super().__init__()
        for number in range(0, len(parts), 2):
            setattr(self, f"fc{number // 2 + 1}", parts[number])
            setattr(self, f"lif{number // 2 + 1}", parts[number + 1])
        self.count = len(parts) // 2

    def forward(self, x):
        layers = [(getattr(self, f"fc{k + 1}"), getattr(self, f"lif{k + 1}")) for k in range(self.count)]
        states = [lif.reset_mem() for _, lif in layers]
        states = [state if isinstance(state, tuple) else (state,) for state in states]
        spikes, potentials = [], []
        for now in x:
            for k, (fc, lif) in enumerate(layers):
                now, *after = lif(fc(now), *states[k])
                # the neurons with feedback give their spikes first, and take them back
                states[k] = [now, *after] if len(after) < len(states[k]) else after
            spikes.append(now)
            potentials.append(after[-1])
        return torch.stack(spikes), torch.stack(potentials)


class Hidden(nn.Module):
    """An ``nn.Sequential`` of neurons that keep their states, called once a step."""

    def __init__(self, snn, *parts):
        super().__init__()
        self.net = nn.Sequential(*parts)
        self.start = snn.utils.reset

    def forward(self, x):
        self.start(self.net)
        steps = [self.net(now) for now in x]
        return tuple(torch.stack(values) for values in zip(*steps))


def lapicque(snn):
    return Loop(nn.Linear(6, 5), snn.Lapicque(R=5.1, C=5e-3, time_step=1e-3)), (6,)


def second_order(snn):
    synaptic = snn.Synaptic(alpha=0.9, beta=0.8)
    return Loop(nn.Linear(16, 20), synaptic, nn.Linear(20, 5), snn.Alpha(alpha=0.8, beta=0.7, threshold=0.5)), (16,)


def mnist(snn):
    return Loop(nn.Linear(16, 20), snn.Leaky(beta=0.95), nn.Linear(20, 5), snn.Leaky(beta=0.95)), (16,)


def convolutional(snn):
    grad = snn.surrogate.fast_sigmoid(slope=25)

    def lif(**options):
        return snn.Leaky(beta=0.5, spike_grad=grad, init_hidden=True, **options)

    first = (nn.Conv2d(1, 3, 5), nn.MaxPool2d(2), lif(), nn.Conv2d(3, 6, 3), nn.MaxPool2d(2), lif())
    return Hidden(snn, *first, nn.Flatten(), nn.Linear(6 * 2 * 2, 5), lif(output=True)), (1, 16, 16)


def membrane_regression(snn):
    betas = (torch.rand(12), torch.rand(12), torch.rand(1))
    grad = snn.surrogate.straight_through_estimator()
    first = snn.Leaky(beta=betas[0], learn_beta=True, threshold=torch.rand(12), learn_threshold=True, spike_grad=grad)
    second = snn.Leaky(beta=betas[1], learn_beta=True, spike_grad=grad)
    last = snn.Leaky(beta=betas[2], learn_beta=True, reset_mechanism="none")
    return Loop(nn.Linear(1, 12), first, nn.Linear(12, 12), second, nn.Linear(12, 1), last), (1,)


def recurrent_regression(snn):
    first = snn.RLeaky(beta=0.9, linear_features=12, learn_beta=True)
    second = snn.RLeaky(beta=0.8, all_to_all=False, V=torch.rand(12), reset_mechanism="zero")
    last = snn.Leaky(beta=0.9, reset_mechanism="none")
    return Loop(nn.Linear(4, 12), first, nn.Linear(12, 12), second, nn.Linear(12, 2), last), (4,)


def recurrent_second_order(snn):
    first = snn.RSynaptic(alpha=0.7, beta=0.8, linear_features=12)
    return Loop(nn.Linear(4, 12), first, nn.Linear(12, 3), snn.Synaptic(alpha=0.7, beta=0.8, reset_delay=False)), (4,)


def convolutional_recurrent(snn):
    first = snn.RLeaky(beta=0.6, conv2d_channels=3, kernel_size=3, reset_delay=False)
    last = snn.Leaky(beta=0.6, reset_mechanism="zero", reset_delay=False)
    return Loop(nn.Conv2d(1, 3, 3), first, nn.Sequential(nn.Flatten(), nn.Linear(48, 4)), last), (1, 6, 6)


def exoplanets(snn):
    def lif():
        options = {"learn_beta": True, "learn_threshold": True, "spike_grad": snn.surrogate.fast_sigmoid(slope=17)}
        return snn.Leaky(beta=0.8, threshold=0.7, graded_spikes_factor=1.5, learn_graded_spikes_factor=True, **options)

    return Loop(nn.Linear(16, 12), lif(), nn.Linear(12, 12), lif(), nn.Linear(12, 2), lif()), (16,)


#: Their tutorials.
NETWORKS = {
    "tutorial 2": lapicque,
    "tutorial 4": second_order,
    "tutorial 5": mnist,
    "tutorial 6": convolutional,
    "regression 1": membrane_regression,
    "regression 2": recurrent_regression,
    "recurrent second order": recurrent_second_order,
    "convolutional feedback": convolutional_recurrent,
    "exoplanet hunter": exoplanets,
}


def neurons(snn, net):
    return {name: module for name, module in net.named_modules() if isinstance(module, snn.SpikingNeuron)}


def made(snn, name):
    """A network, and a drive that makes its neurons fire."""
    torch.manual_seed(1)
    net, shape = NETWORKS[name](snn)
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            module.weight.data.mul_(2.0)
    return net, torch.rand(T, B, *shape) * 3


def observed(snn, net, x):
    """Outputs, what every neuron gave at every step, and gradients of a random function of all outputs."""
    seen, x = {}, x.clone().requires_grad_()
    handles = [
        lif.register_forward_hook(lambda _m, _i, out, key=key: seen.setdefault(key, []).append(out))
        for key, lif in neurons(snn, net).items()
    ]
    outs = net(x)
    random = torch.Generator().manual_seed(1)
    loss = sum((out * torch.randn(out.shape, generator=random)).sum() for out in outs)
    wanted = {"x": x, **{key: value for key, value in net.named_parameters() if value.requires_grad}}
    grads = dict(zip(wanted, torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)))
    for handle in handles:
        handle.remove()
    return outs, seen, grads


def flat(values):
    return torch.cat([value.reshape(-1) if isinstance(value, torch.Tensor) else flat(value) for value in values])


@pytest.mark.parametrize("name", NETWORKS)
def test_network_is_the_same(snn, name):
    """Spikes and states of every neuron are identical, and all gradients agree."""
    net, x = made(snn, name)
    theirs = copy.deepcopy(net)
    parameters = {id(value) for value in net.parameters()}
    done = sc.convert(net, strict=True)
    assert set(done.replaced) == set(neurons(snn, theirs))
    assert parameters == {id(value) for value in net.parameters()}
    want, got = observed(snn, theirs, x), observed(snn, net, x)
    rates = {}
    for key, outputs in want[1].items():
        assert torch.equal(flat(got[1][key]), flat(outputs)), key
        rates[key] = flat([out if isinstance(out, torch.Tensor) else out[0] for out in outputs]).mean().item()
    assert max(rates.values()) > 0.03
    assert all(torch.equal(*pair) for pair in zip(got[0], want[0]))
    names = {key.replace(".neuron.", "."): key for key in got[2]}
    assert set(names) == set(want[2])
    largest = max(value.abs().max() for value in want[2].values() if value is not None)
    for key, value in want[2].items():
        mine = got[2][names[key]]
        if value is None:
            assert mine is None, key
            continue
        assert (mine - value).abs().max() <= GRADIENTS * largest, key


@pytest.mark.parametrize("name", NETWORKS)
def test_checkpoints_load_both_ways(snn, name):
    """Keys of state_dict are as before, and a checkpoint goes into either network."""
    net, x = made(snn, name)
    theirs = copy.deepcopy(net)
    sc.convert(net)
    assert set(net.state_dict()) == set(theirs.state_dict())
    with torch.no_grad():
        for key, value in theirs.state_dict().items():
            if value.is_floating_point() and "graded" not in key:
                value.mul_(0.97 if "running_var" in key or value.ndim < 2 else 1.1)
    net.load_state_dict(theirs.state_dict())
    assert all(torch.equal(*pair) for pair in zip(net(x), theirs(x)))
    theirs.load_state_dict(net.state_dict())


def test_a_checkpoint_of_another_neuron_is_refused(snn):
    """Another reset, which snnTorch itself would record and not follow."""
    net = nn.ModuleDict({"lif": snn.Leaky(beta=0.9)})
    sc.convert(net)
    text = "lif.reset_mechanism_val is 1, which means neuron.reset='hard', and it is 'soft'"
    with pytest.raises(RuntimeError, match=text):
        net.load_state_dict(nn.ModuleDict({"lif": snn.Leaky(beta=0.9, reset_mechanism="zero")}).state_dict())


def test_states_are_within_reach(snn):
    """mem, reset_mem, a call that continues, utils.reset, sc.reset, sc.detach; copies and pickles."""
    net = nn.Sequential(nn.Linear(6, 5), snn.RLeaky(beta=0.9, linear_features=5, init_hidden=True))
    theirs = copy.deepcopy(net)
    sc.convert(net)
    x = torch.rand(T, B, 6) * 4
    for now in x[:4]:
        assert torch.equal(net(now), theirs(now))
    assert torch.equal(net[1].mem, theirs[1].mem)
    assert torch.equal(net[1].spk, theirs[1].spk)
    twins = copy.deepcopy(net), pickle.loads(pickle.dumps(net))
    want = theirs(x[4])
    assert torch.equal(net(x[4]), want)
    for twin in twins:
        assert torch.equal(twin(x[4]), want)
    sc.detach(net)
    assert not net[1].mem.requires_grad
    assert not net[1].spk.requires_grad
    sc.reset(net)
    theirs[1].reset_mem()  # snnTorch's utils.reset does not know a copy
    assert torch.equal(net(x[5]), theirs(x[5]))
    snn.utils.reset(net)
    assert not net[1].mem.any()
    theirs[1].reset_mem()
    assert torch.equal(net(x[6]), theirs(x[6]))


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "average"])
def test_a_copy_is_put_to_rest(snn, way):
    """By sc.reset and by sc.inference_model, while the network from which it comes goes on."""
    net = nn.Sequential(snn.Leaky(beta=0.9, init_hidden=True))
    sc.convert(net)
    x = torch.full((B, 5), 0.7)
    rest = net(x)
    copied = {
        "deepcopy": copy.deepcopy,
        "pickle": lambda net: pickle.loads(pickle.dumps(net)),
        "average": lambda net: torch.optim.swa_utils.AveragedModel(net).module,
    }[way]
    once, again = copied(net), copied(net)
    before = net[0].mem.clone()
    sc.reset(once)
    assert not once[0].mem.any()
    assert torch.equal(once(x), rest)
    assert torch.equal(sc.inference_model(again)(x), rest)
    assert torch.equal(net[0].mem, before)
    assert not torch.equal(net(x), rest)


def test_a_training_step_of_ours_begins_at_rest(snn):
    """sc.training_model reaches states that the other library keeps between calls."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.lif = nn.Linear(6, 5), snn.Leaky(beta=0.9, init_hidden=True)

        def forward(self, x):
            return torch.stack([self.lif(self.fc(now)) for now in x])

    net = Net()
    sc.convert(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    step = sc.training_model(net, lambda out, target: ((out.mean(0) - target) ** 2).mean(), optimizer)
    x = torch.rand(T, B, 6) * 2
    losses = [float(step(x, torch.ones(B, 5))[1]) for _ in range(10)]
    assert losses[-1] < losses[0]
    assert not net.lif.mem.any()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("sigmoid", {"slope": 3}),
        ("triangular", {"threshold": 0.7}),
        ("spike_rate_escape", {"beta": 0.5, "slope": 5}),
        ("SFS", {"slope": 5, "B": 0.1}),
        ("heaviside", {}),
        ("fast_sigmoid", {"slope": 10}),
        ("atan", {"alpha": 3.0}),
        ("straight_through_estimator", {}),
        (None, {}),
    ],
)
def test_surrogates_are_the_same(snn, name, arguments):
    """Every factory with a formula, with its arguments, by the gradient of a neuron; None: surrogate_disable."""
    grad = None if name is None else getattr(snn.surrogate, name)(**arguments)
    theirs = snn.Leaky(beta=0.9, spike_grad=grad, surrogate_disable=name is None, reset_mechanism="none")
    net = nn.Sequential(theirs)
    sc.convert(net, strict=True)
    x = torch.linspace(-2.0, 4.0, 601)
    grads = []
    for each in (net[0], theirs):
        leaf = x.clone().requires_grad_()
        spk, mem = each(leaf)
        grads.append(torch.autograd.grad(spk.sum() + 0.0 * mem.sum(), leaf)[0])
    if name is not None:
        assert grads[1].abs().max() > 0
    torch.testing.assert_close(*grads, rtol=1e-6, atol=1e-6)


def test_what_is_refused_says_why(snn):
    """Options and neurons that have no counterpart, by name; strict changes nothing."""

    class Mine(snn.Leaky):
        pass

    with pytest.warns(UserWarning, match="Inhibition is an unstable feature"):
        inhibited = snn.Leaky(beta=0.9, inhibition=True)
    changed = snn.Leaky(beta=0.9)
    changed.reset_mechanism = "zero"
    quantised = snn.Leaky(beta=0.9, state_quant=lambda mem: mem.round())
    graded = snn.Leaky(beta=0.9, graded_spikes_factor=2.0, reset_delay=False)
    pooled, sso = snn.SConv2dLSTM(2, 3, 3, max_pool=2), snn.Leaky(beta=0.9, spike_grad=snn.surrogate.SSO())
    late = snn.RSynaptic(alpha=0.9, beta=0.8, linear_features=4, reset_delay=False)
    parts = {
        "inhibited": inhibited,
        "changed": changed,
        "quantised": quantised,
        "graded": graded,
        "pooled": pooled,
        "sso": sso,
    }
    net = nn.ModuleDict({**parts, "late": late, "mine": Mine(beta=0.9), "fine": snn.Leaky(beta=0.9)})
    before = repr(net)
    with pytest.raises(ValueError, match="with strict=True nothing was changed\n0 replaced, 8 left"):
        sc.convert(net, strict=True)
    assert repr(net) == before
    with pytest.warns(UserWarning, match="sc.convert left modules as they are"):
        done = sc.convert(net)
    assert list(done.replaced) == ["fine"]
    for name, text in {
        "inhibited": "inhibition=True lets one neuron fire for all",
        "changed": "reset_mechanism was changed after it was made",
        "quantised": "state_quant rounds its states",
        "graded": "graded_spikes_factor is not 1, and with reset_delay=False",
        "pooled": "SConv2dLSTM: it pools mem before it fires, which no layer here does",
        "sso": "no surrogate here is its spike_grad SSO",
        "late": "with reset_delay=False snnTorch's RSynaptic",
        "mine": "Mine: a class of its own, which may compute something else than the Leaky that it inherits",
    }.items():
        assert text in done.left[name]


def test_wrong_calls_and_settings_are_errors(snn):
    """States where the neuron keeps them, too many, unknown ones; attributes that would change nothing."""
    net = nn.ModuleList([snn.Leaky(beta=0.9, init_hidden=True), snn.Leaky(beta=0.9)])
    sc.convert(net)
    hidden, plain = net
    x = torch.rand(2, 3)
    with pytest.raises(TypeError, match="`mem` should not be passed as an argument while `init_hidden=True`"):
        hidden(x, x)
    with pytest.raises(TypeError, match="takes an input and 1 states, got 2 states"):
        plain(x, x, x)
    with pytest.raises(TypeError, match="has no state 'syn'; states: mem"):
        plain(x, syn=x)
    for name, text in (("spike_grad", "set neuron.surrogate"), ("reset_mechanism", "set neuron.reset, 'soft'")):
        with pytest.raises(AttributeError, match=f"Leaky.{name} cannot be set since sc.convert: {text}"):
            setattr(plain, name, "zero")
    plain.beta = torch.tensor(0.5)
    assert float(plain.neuron.beta) == float(plain.beta) == 0.5


def test_a_step_warns_of_hidden_states_alone(snn):
    """A neuron that is given its state at each call has none of its own."""
    sc.inference_model(nn.Sequential(nn.Linear(3, 3), snn.Leaky(beta=0.9)))
    net = nn.Sequential(nn.Linear(3, 3), snn.Leaky(beta=0.9, init_hidden=True))
    with pytest.warns(UserWarning, match=r"^the state of 1 \(Leaky\), of another library, goes on"):
        sc.inference_model(net)
    sc.convert(net)
    sc.inference_model(net)


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
def test_a_converted_network_is_exported(snn):
    """The program has plain operations, its loop over time unrolled."""
    net, x = made(snn, "tutorial 5")
    sc.convert(net)
    with torch.no_grad():
        want = net(x[:3])
    with pytest.warns(UserWarning, match="were assigned during export"):  # states, which torch puts back
        program = torch.export.export(net, (x[:3],))
    assert not [node for node in program.graph.nodes if "spikecore" in str(node.target)]
    assert all(torch.equal(*pair) for pair in zip(program.module()(x[:3]), want))


def test_several_values_lie_along_the_last_dimension(snn):
    """Values broadcast there, on images too; and whole numbers are numbers."""
    theirs = snn.Leaky(beta=torch.rand(5), threshold=1, reset_mechanism="zero")
    net = nn.Sequential(theirs)
    sc.convert(net)
    x, states = torch.rand(T, B, 5, 4, 5) * 2, [None, None]
    for now in x:
        got, states[0] = net[0](now, states[0])
        want, states[1] = theirs(now, states[1])
        assert torch.equal(got, want)
        assert torch.equal(*states)
    assert 0.1 < want.mean() < 0.9


LEARNT = {"learn_beta": True, "learn_threshold": True}
#: Neurons with what they can learn, and with what they keep fixed.
ORDERS = {
    "Leaky": lambda snn: snn.Leaky(0.9, threshold=1.5, learn_graded_spikes_factor=True, **LEARNT),
    "Leaky, fixed": lambda snn: snn.Leaky(0.9),
    "Synaptic": lambda snn: snn.Synaptic(0.9, 0.8, learn_alpha=True, **LEARNT),
    "Alpha": lambda snn: snn.Alpha(0.9, 0.8, **LEARNT),
    "RLeaky": lambda snn: snn.RLeaky(0.9, all_to_all=False, V=0.5, **LEARNT),
    "RSynaptic": lambda snn: snn.RSynaptic(0.9, 0.8, linear_features=3, learn_alpha=True, **LEARNT),
}


@pytest.mark.parametrize("name", ORDERS)
def test_a_saved_optimiser_finds_its_parameters(snn, name):
    """Their order stays, by which a state of an optimiser that was saved before is read after; so do the keys."""
    net = nn.Sequential(ORDERS[name](snn), nn.Linear(3, 3))
    before, keys = [*net.parameters()], [*net.state_dict()]
    values = copy.deepcopy(net.state_dict())
    sc.convert(net)
    assert list(map(id, net.parameters())) == list(map(id, before))
    assert [*net.state_dict()] == keys
    net.load_state_dict({key: value * 0.5 if value.is_floating_point() else value for key, value in values.items()})
    for key, value in net.state_dict().items():
        torch.testing.assert_close(value, values[key] * 0.5 if value.is_floating_point() else values[key])


def test_a_factor_of_spikes_counts_after_the_conversion(snn):
    """It counts where it was filled, set or loaded."""
    net = nn.Sequential(snn.Leaky(beta=0.5))
    theirs = copy.deepcopy(net)
    sc.convert(net)
    x = torch.tensor([[0.5, 3.0]])
    for factor, put in (
        (2.0, lambda lif: lif.graded_spikes_factor.fill_(2.0)),
        (3.0, lambda lif: setattr(lif, "graded_spikes_factor", torch.tensor(3.0))),
        (4.0, lambda lif: lif.load_state_dict(snn.Leaky(beta=0.5, graded_spikes_factor=4.0).state_dict())),
    ):
        for each in (net, theirs):
            put(each[0])
        spikes = net[0](x)[0]
        assert spikes.tolist() == [[0.0, factor]]
        assert torch.equal(spikes, theirs[0](x)[0])


def test_states_of_older_versions_are_left_out(snn):
    """snnTorch 0.8 had them in its state_dict."""
    net = nn.Sequential(snn.Synaptic(0.9, 0.8))
    state = net.state_dict()
    sc.convert(net)
    net.load_state_dict({**state, "0.syn": torch.rand(2, 3), "0.mem": torch.rand(2, 3)})
    assert net[0].mem.numel() == 0
