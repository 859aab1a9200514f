"""``sc.convert`` on networks of SpikingJelly 2.0, built as its own examples and models build them, in small sizes."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import spikecore as sc

pytestmark = pytest.mark.peers

T, B = 6, 3
#: The largest difference of gradients, relative to the largest of the network, by dtype.
GRADIENTS = {torch.float64: 1e-12, torch.float32: 2e-6}


@pytest.fixture(scope="module")
def j():
    """SpikingJelly."""
    from spikingjelly.activation_based import functional, layer, model, neuron, rnn, surrogate
    from spikingjelly.activation_based.model import ms_resnet, parametric_lif_net, spikformer

    models = SimpleNamespace(ms_resnet=ms_resnet, parametric_lif_net=parametric_lif_net, spikformer=spikformer)
    assert model is not None
    of = {"functional": functional, "layer": layer, "neuron": neuron, "rnn": rnn, "surrogate": surrogate}
    return SimpleNamespace(model=models, **of)


class Network(nn.Module):
    """Parts in a row, with a ``forward`` of its own around them."""

    def __init__(self, run, *parts):
        super().__init__()
        self.fc, self.run = nn.Sequential(*parts), run

    def forward(self, x):
        return self.run(self.fc, x)


def mean_rate(fc, x):
    return fc(x).mean(0)


def averaged_loop(fc, x):
    return sum(fc(now) for now in x) / len(x)


def last_potential(fc, x):
    for now in x:
        fc(now)
    return fc[-1].v


def without_dropout(net):
    for module in net.modules():
        if "Dropout" in type(module).__name__:
            module.p = 0.0
    return net


def lif_fc_mnist(j):
    atan = j.surrogate.ATan()
    parts = [j.layer.Flatten(), j.layer.Linear(49, 10, bias=False), j.neuron.LIFNode(tau=2.0, surrogate_function=atan)]
    return Network(averaged_loop, *parts), (1, 7, 7)


def parametric_lif_mnist(j):
    kwargs = {"init_tau": 2.0, "surrogate_function": j.surrogate.ATan(), "detach_reset": True}
    net = j.model.parametric_lif_net.MNISTNet(4, j.neuron.ParametricLIFNode, **kwargs)
    j.functional.set_step_mode(net, "m")
    return without_dropout(net), (1, 28, 28)


def dvs_gesture(j):
    kwargs = {"tau": 2.0, "decay_input": False, "v_reset": None, "surrogate_function": j.surrogate.Sigmoid(3.0)}
    net = j.model.parametric_lif_net.DVSGestureNet(2, j.neuron.LIFNode, **kwargs)
    j.functional.set_step_mode(net, "m")
    return without_dropout(net), (2, 128, 128)


def spikformer(j):
    net = j.model.spikformer.Spikformer(
        img_size_h=16,
        img_size_w=16,
        patch_size=4,
        in_channels=3,
        num_classes=5,
        embed_dims=16,
        num_heads=2,
        depths=1,
        T=T,
    )
    return net, (3, 16, 16)


def ms_resnet(j):
    net = j.model.ms_resnet.MSResNet(
        T, layers=(1, 1, 1, 1), num_classes=5, base_channels=8, spiking_neuron=j.neuron.LIFNode
    )
    return net, (3, 32, 32)


def sequential_fmnist_synapse(j):
    def spikes():
        return j.neuron.IFNode(surrogate_function=j.surrogate.ATan())

    synapse = j.layer.SynapseFilter(tau=2.0, learnable=True)
    net = Network(mean_rate, j.layer.Linear(28, 32), spikes(), synapse, j.layer.Linear(32, 10), spikes())
    j.functional.set_step_mode(net, "m")
    return net, (28,)


def sequential_fmnist_feedback(j):
    fed = j.neuron.IFNode(surrogate_function=j.surrogate.ATan(), detach_reset=True)
    recurrent = j.layer.LinearRecurrentContainer(fed, in_features=32, out_features=32, bias=True)
    last = j.neuron.IFNode(surrogate_function=j.surrogate.ATan())
    net = Network(mean_rate, j.layer.Linear(28, 32), recurrent, j.layer.Linear(32, 10), last)
    j.functional.set_step_mode(net, "m")
    return net, (28,)


def spiking_dqn(j):
    class NonSpikingLIFNode(j.neuron.SimpleLIFNode):
        def single_step_forward(self, x):
            self.neuronal_charge(x)
            return self.v

    read_out = NonSpikingLIFNode(tau=2.0, decay_input=True)
    parts = (j.layer.Linear(4, 32), j.neuron.IFNode(), j.layer.Linear(32, 2), read_out)
    return Network(last_potential, *parts), (4,)


def ppo_read_out(j):
    parts = (
        j.layer.Linear(4, 32),
        j.neuron.LIFNode(),
        j.layer.Linear(32, 2),
        j.neuron.NonSpikingLIFNode(2.0, "max-abs-mem"),
    )
    net = Network(lambda fc, x: fc(x), *parts)
    j.functional.set_step_mode(net, "m")
    return net, (4,)


def containers(j):
    stepped = j.layer.MultiStepContainer(nn.Linear(72, 16), j.neuron.QIFNode(), nn.Linear(16, 8), j.neuron.EIFNode())
    folded = j.layer.SeqToANNContainer(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.Flatten())
    mode = j.layer.StepModeContainer(True, "m", nn.Linear(8, 6), j.neuron.CUBALIFNode())
    last = j.neuron.IzhikevichNode(a=0.1, b=0.2, step_mode="m")
    return Network(mean_rate, folded, stepped, mode, j.layer.Linear(6, 8, step_mode="m"), last), (1, 6, 6)


#: Their examples and models; "-left" has a module that stays.
NETWORKS = {
    "examples/lif_fc_mnist.py": lif_fc_mnist,
    "model/parametric_lif_net.py MNISTNet": parametric_lif_mnist,
    "model/parametric_lif_net.py DVSGestureNet": dvs_gesture,
    "model/spikformer.py": spikformer,
    "model/ms_resnet.py": ms_resnet,
    "examples/rsnn_sequential_fmnist.py StatefulSynapseNet": sequential_fmnist_synapse,
    "examples/rsnn_sequential_fmnist.py FeedBackNet": sequential_fmnist_feedback,
    "examples/spiking_dqn_state.py": spiking_dqn,
    "examples/spiking_ppo.py": ppo_read_out,
    "layer containers": containers,
}
#: Which modules of these stay theirs.
LEFT = {
    "examples/rsnn_sequential_fmnist.py StatefulSynapseNet": {
        "fc.2": "SynapseFilter: no neuron here has its equations"
    },
    "examples/spiking_dqn_state.py": {"fc.3": "NonSpikingLIFNode: no neuron here has its equations"},
}


def nodes(j, net):
    kinds = (j.neuron.BaseNode, j.neuron.NonSpikingLIFNode)
    return {name: module for name, module in net.named_modules() if isinstance(module, kinds)}


def made(j, name, dtype):
    """A network, and a drive that makes its neurons fire."""
    torch.manual_seed(0)
    net, shape = NETWORKS[name](j)
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.weight.data.mul_(3.0)
    x = torch.rand(T, B, *shape, dtype=torch.float64) * 2
    return net.to(dtype), x.to(dtype)


def converted(net, name):
    if name not in LEFT:
        return sc.convert(net, strict=True)
    with pytest.warns(UserWarning, match="sc.convert left modules as they are"):
        done = sc.convert(net)
    assert done.left == LEFT[name]
    return done


def observed(j, net, x, calls=2):
    """Outputs, the spikes of every node, and gradients; calls continue from one another, as before a reset."""
    seen, x = {}, x.clone().requires_grad_()
    handles = [
        node.register_forward_hook(lambda _m, _i, out, key=key: seen.setdefault(key, []).append(out))
        for key, node in nodes(j, net).items()
    ]
    outs = [net(x) for _ in range(calls)]
    random = torch.Generator().manual_seed(1)
    loss = sum((out * torch.randn(out.shape, generator=random).to(out)).sum() for out in outs)
    wanted = {"x": x, **{key: value for key, value in net.named_parameters() if value.requires_grad}}
    grads = dict(zip(wanted, torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)))
    for handle in handles:
        handle.remove()
    j.functional.reset_net(net)
    return torch.stack(outs), seen, grads


def flat(values):
    return torch.cat([value.reshape(-1) if isinstance(value, torch.Tensor) else flat(value) for value in values])


@pytest.mark.parametrize("dtype", GRADIENTS, ids=["float64", "float32"])
@pytest.mark.parametrize("name", NETWORKS)
def test_network_is_the_same(j, name, dtype):
    """Every neuron's spikes are identical over two calls, and all gradients agree."""
    net, x = made(j, name, dtype)
    theirs = copy.deepcopy(net)
    parameters = [id(value) for value in net.parameters()]
    done = converted(net, name)
    replaced = [key for key, node in nodes(j, net).items() if hasattr(node, "neuron")]
    assert replaced
    assert set(replaced) <= set(done.replaced)
    assert sorted(parameters) == sorted(id(value) for value in net.parameters())
    want, got = observed(j, theirs, x), observed(j, net, x)
    assert torch.equal(got[0], want[0])
    fired = 0.0
    for key, outputs in want[1].items():
        if key in got[1]:  # nodes in a container that takes all steps have them at once
            assert torch.equal(flat(got[1][key]), flat(outputs)), key
        fired = max(fired, flat(outputs).double().mean().item())
    assert fired > 0.005
    names = {key.replace(".neuron.", "."): key for key in got[2]}
    assert set(names) == set(want[2])
    largest = max(value.abs().max() for value in want[2].values() if value is not None)
    for key, value in want[2].items():
        mine = got[2][names[key]]
        if value is None or mine is None:
            assert mine is value, key
            continue
        assert (mine - value).abs().max() <= GRADIENTS[dtype] * largest, key


@pytest.mark.parametrize("name", NETWORKS)
def test_checkpoints_load_both_ways(j, name):
    """Keys and values of state_dict are as before, and a checkpoint goes into either network."""
    net, x = made(j, name, torch.float32)
    theirs = copy.deepcopy(net)
    converted(net, name)
    assert list(net.state_dict()) == list(theirs.state_dict())
    with torch.no_grad():
        for value in theirs.parameters():
            value.add_(0.01 * torch.randn(value.shape))
    net.load_state_dict(theirs.state_dict())
    assert torch.equal(observed(j, net, x)[0], observed(j, theirs, x)[0])
    theirs.load_state_dict(net.state_dict())


def test_their_tools_work_on_it(j):
    """step_mode, v, v_seq, reset_net, detach_net, set values, copies and pickles."""
    net = nn.Sequential(j.layer.Linear(4, 5), j.neuron.LIFNode(v_threshold=0.7, store_v_seq=True, step_mode="m"))
    theirs = copy.deepcopy(net)
    sc.convert(net)
    x = torch.rand(T, B, 4) * 4
    for each in (net, theirs):
        j.functional.set_step_mode(each, "m")
        each[1].v_threshold = 0.9
    assert isinstance(net[1], j.neuron.LIFNode)
    assert (net[1].v_threshold, net[1].tau, net[1].v_reset, net[1].v) == (0.9, 2.0, 0.0, 0.0)
    assert torch.equal(net(x), theirs(x))
    assert torch.equal(net[1].v_seq, theirs[1].v_seq)
    for each in (net, theirs):
        j.functional.set_step_mode(each, "s")
        j.functional.detach_net(each)
        each(x[0])
        each[1].v = each[1].v * 0.5
    assert torch.equal(net[1].v, theirs[1].v)
    twins = copy.deepcopy(net), pickle.loads(pickle.dumps(net))
    want = net(x[0])
    assert torch.equal(want, theirs(x[0]))
    for twin in twins:
        assert torch.equal(twin(x[0]), want)
    j.functional.reset_net(net)
    assert net[1].v == 0.0
    with pytest.raises(AttributeError, match="v_reset cannot be set since sc.convert: set neuron.reset and neuron.v_r"):
        net[1].v_reset = None
    with pytest.raises(AttributeError, match=r"backend cannot be set since sc.convert: call sc.set_backend\(net, name"):
        net[1].backend = "cupy"


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda net: pickle.loads(pickle.dumps(net)),
    "average": lambda net: torch.optim.swa_utils.AveragedModel(net).module,
    "copy of a copy": lambda net: copy.deepcopy(copy.deepcopy(net)),
}


@pytest.mark.parametrize("step", ["s", "m"])
@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_is_put_to_rest(j, copied, step):
    """By sc.reset and by sc.inference_model, while the network from which it comes goes on."""
    net = nn.Sequential(j.neuron.LIFNode(step_mode=step))
    sc.convert(net)
    x = 3 * torch.rand(4, 2, 5, generator=torch.Generator().manual_seed(0))
    x = x if step == "m" else x[0]
    rest = net(x)
    once, again = copied(net), copied(net)
    potential = net[0].v
    sc.reset(once)
    assert once[0].v == 0.0
    assert torch.equal(once(x), rest)
    assert torch.equal(sc.inference_model(again)(x), rest)
    assert net[0].v is potential


def test_ours_works_on_it(j):
    """sc.reset, sc.detach, sc.set_backend and sc.training_model reach the state of a node."""
    torch.manual_seed(1)
    net = nn.Sequential(j.layer.Linear(4, 5), j.neuron.LIFNode())
    j.functional.set_step_mode(net, "m")
    sc.convert(net)
    sc.set_backend(net, "torch")
    x = torch.rand(T, B, 4) * 4
    first, second = net(x), net(x)
    assert net[1].v.requires_grad
    assert not torch.equal(first, second)
    sc.detach(net)
    assert not net[1].v.requires_grad
    sc.reset(net)
    assert net[1].v == 0.0
    assert torch.equal(net(x), first)
    step = sc.training_model(
        net, lambda y, target: ((y - target) ** 2).mean(), torch.optim.SGD(net.parameters(), lr=0.0)
    )
    for _ in range(2):
        assert torch.equal(step(x, torch.zeros_like(first))[0], first)


def test_a_step_warns_of_a_network_that_is_not_converted(j):
    """Their state goes on from step to step; sc.reset and the steps reach that of converted neurons alone."""
    net = nn.Sequential(j.layer.Linear(4, 5), j.neuron.LIFNode(), j.layer.Dropout(0.5))
    said = r"^the state of 1 \(LIFNode\), 2 \(Dropout\), of another library, goes on.*sc\.convert\(net\) before"
    with pytest.warns(UserWarning, match=said):
        sc.training_model(net, sc.losses.ce_count, torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.warns(UserWarning, match=said):
        sc.inference_model(net)
    sc.convert(net)
    sc.inference_model(net)


def test_it_is_explained_as_it_is_called(j):
    """All steps at once."""
    torch.manual_seed(0)
    net = nn.Sequential(j.layer.Linear(4, 5), j.neuron.LIFNode())
    j.functional.set_step_mode(net, "m")
    sc.convert(net)
    done = sc.explain(net, torch.rand(T, B, 4) * 8, backend="torch")
    assert "step='single'" not in repr(net)
    assert [(layer.name, layer.steps) for layer in done.layers] == [("0", T), ("1.neuron", T)]


def test_a_silent_layer_is_looked_at_over_time(j):
    """The potential is that of all steps, as the converted neuron carries it."""
    net = nn.Sequential(j.neuron.LIFNode(v_threshold=2.0, step_mode="m"))
    sc.convert(net)
    x = torch.full((8, 2, 3), 1.5)
    found = sc.explain(net, x, training=False)
    v = sc.LIF(threshold=2.0).run(x, record=("v",))[2]["v"]
    assert found.layers[0].ranges["v"] == (float(v.min()), float(v.max()))
    assert "never fired" in found.advice[0]


def test_the_mask_of_a_dropout_is_reset_with_the_neurons(j):
    """By sc.reset, and by each step of sc.training_model; it is drawn as before, and stays until then."""
    torch.manual_seed(1)
    net = nn.Sequential(j.layer.Conv2d(1, 6, 3), j.neuron.IFNode(), j.layer.Dropout(0.5), j.layer.Dropout2d(0.5))
    j.functional.set_step_mode(net, "m")
    theirs, x = copy.deepcopy(net), torch.rand(T, B, 1, 5, 5) * 4
    assert [*sc.convert(net, strict=True).replaced] == ["1", "2", "3"]
    for seed in (1, 2):
        torch.manual_seed(seed)
        want = [theirs(x), theirs(x)]
        torch.manual_seed(seed)
        assert all(torch.equal(net(x), each) for each in want)
        j.functional.reset_net(theirs)
        sc.reset(net)
        assert net[2].mask is None is net[3].mask
    step = sc.training_model(net, lambda y, _: y.mean(), torch.optim.SGD(net.parameters(), lr=0.0))
    for batch in (B, B - 1):  # a mask that stayed would not fit
        step(x[:, :batch], None)
    net[2].p = 0.25
    assert net[2].neuron.p == 0.25


def test_the_report_says_what_a_call_takes(j):
    """All steps or one, whatever the neuron within does."""
    net = nn.Sequential(j.neuron.LIFNode(step_mode="m"), j.neuron.IFNode())
    lines = sc.convert(net).replaced
    assert lines["0"].startswith("LIFNode -> LIF(tau=2")
    assert lines["0"].endswith("; step_mode='m': a call takes all steps")
    assert lines["1"].endswith("; step_mode='s': a call takes one step")
    assert "step='single'" not in lines["0"]


def test_the_report_is_no_network(j):
    """``net = sc.convert(net)`` loses the network, which the sentence says."""
    net = sc.convert(nn.Sequential(j.neuron.IFNode()))
    with pytest.raises(TypeError, match=r"a Conversion is no network; sc.convert\(net\) changes net in place"):
        net(torch.rand(2, 3))
    with pytest.raises(AttributeError, match=r"Conversion has no attribute 'parameters'; sc.convert\(net\) changes"):
        net.parameters()


def test_a_memory_of_another_batch_starts_again(j):
    """The memory is as theirs: the last, smaller batch of an epoch needs no reset."""
    net = nn.Sequential(j.layer.Linear(4, 5), j.neuron.IFNode())
    sc.convert(net)
    x = torch.rand(B, 4) * 4
    net(x)
    got = net(x[:1])
    j.functional.reset_net(net)
    assert torch.equal(net(x[:1]), got)


def test_what_is_refused_says_why(j):
    """A surrogate that is no number, one that is not known, a precision, a class of the user's."""

    class Mine(j.neuron.LIFNode):
        pass

    class Box(j.surrogate.Sigmoid):
        pass

    smooth = j.neuron.LIFNode(surrogate_function=j.surrogate.Sigmoid(spiking=False))
    net = nn.ModuleDict({"smooth": smooth, "mine": Mine(), "box": j.neuron.IFNode(surrogate_function=Box())})
    net["psn"], net["lstm"] = j.neuron.PSN(4), j.rnn.SpikingLSTM(2, 3, 2)
    net["gru"] = j.rnn.SpikingGRU(2, 3, 1, True, 0, False, False, j.surrogate.Erf(), j.surrogate.ATan())
    before = repr(net)
    with pytest.raises(ValueError, match="with strict=True nothing was changed\n0 replaced, 9 left"):
        sc.convert(net, strict=True)
    assert repr(net) == before
    with pytest.warns(UserWarning, match="sc.convert left modules"):
        left = sc.convert(net).left
    assert "spiking=False, which makes the output smooth" in left["smooth"]
    assert "which may compute something else than the LIFNode that it inherits" in left["mine"]
    assert "no surrogate here is its Box" in left["box"]
    assert left["psn"] == "PSN: sc.layers.PSN has its equations and takes its state_dict, put it there"
    assert "it has num_layers=2 and bidirectional=False" in left["lstm"]
    assert "a cell takes one step, and SpikingLSTM here all" in left["lstm.cells.1"]
    assert "its gates have two surrogates" in left["gru"]


def test_converting_twice_changes_nothing(j):
    """A converted neuron stays."""
    net = nn.Sequential(j.neuron.LIFNode(), j.layer.MultiStepContainer(j.neuron.IFNode()))
    sc.convert(net)
    before = repr(net)
    done = sc.convert(net)
    assert (done.replaced, done.left, repr(net)) == ({}, {}, before)


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
def test_a_converted_network_is_exported(j):
    """The program has plain operations, from rest; with a state that it carries it is refused."""
    net, x = made(j, "model/parametric_lif_net.py MNISTNet", torch.float32)
    sc.convert(net.eval())
    with torch.no_grad():
        want = net(x[:2])
    with pytest.raises(RuntimeError, match="carries a state, which would be a constant of the exported program"):
        torch.export.export(net, (x[:2],))
    j.functional.reset_net(net)
    with pytest.warns(UserWarning, match="were assigned during export"):  # memories, which torch puts back
        program = torch.export.export(net, (x[:2],))
    assert all(node.v == 0.0 for node in nodes(j, net).values())
    assert not [node for node in program.graph.nodes if "spikecore" in str(node.target)]
    assert torch.equal(program.module()(x[:2]), want)


def test_a_number_that_was_set_is_reset(j):
    """``node.v = 0.5`` counts in the next call, survives sc.detach and copies, and ends with either library's reset."""
    x = torch.full((2,), 0.8)
    for reset in (sc.reset, j.functional.reset_net):
        theirs = nn.Sequential(j.neuron.LIFNode(), j.neuron.IzhikevichNode())
        ours = copy.deepcopy(theirs)
        sc.convert(ours)
        for net in (theirs, ours):
            net[0].v, net[1].w = 0.5, 0.25
        assert ours[0].neuron.state == {"v": torch.tensor(0.5)}
        sc.detach(ours)
        assert (ours[0].v, ours[1].v, ours[1].w) == (0.5, 0.0, 0.25)
        for net in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            assert torch.equal(net(x), theirs(x))
            assert all(torch.equal(net[at].v, theirs[at].v) for at in (0, 1))
            j.functional.reset_net(theirs)
            theirs[0].v, theirs[1].w = 0.5, 0.25
        ours[0].v, ours[1].w = 0.5, 0.25
        reset(ours)
        j.functional.reset_net(theirs)
        assert (ours[0].v, ours[1].w) == (theirs[0].v, theirs[1].w) == (0.0, 0.0)
        assert ours[0].neuron.state is None
        assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize("value", [None, "0.5", [0.5]])
def test_a_state_that_is_no_number_is_refused(j, value):
    """Where it is set: in the next call it was an error of float()."""
    net = nn.Sequential(j.neuron.LIFNode())
    sc.convert(net)
    with pytest.raises(TypeError, match="LIFNode.v is a state, a tensor or a number, got .*; to put it to rest, call"):
        net[0].v = value
    assert net[0].v == 0.0


def test_what_a_checkpoint_lacks_has_the_names_of_old(j):
    """Not those of the neuron within, which stand in no state_dict."""
    net = nn.Sequential(j.layer.Linear(2, 3), j.neuron.ParametricLIFNode())
    sc.convert(net)
    state = net.state_dict()
    lacking = {key: value for key, value in state.items() if key != "1.w"}
    for entries, text in (
        (lacking, r'Missing key\(s\) in state_dict: "1.w"'),
        ({**state, "1.foo": state["1.w"]}, r'Unexpected key\(s\) in state_dict: "1.foo"'),
        ({**state, "1.w": torch.zeros(3)}, r"\t1.w has shape \[3\], and w is one learnt value"),
    ):
        with pytest.raises(RuntimeError, match=text):
            net.load_state_dict(entries)
    assert net.load_state_dict(lacking, strict=False).missing_keys == ["1.w"]
    assert copy.deepcopy(net)[1].load_state_dict({}, strict=False).missing_keys == ["w"]


class Hidden(nn.Module):
    """Neurons where nn.Module does not look, one that is in both places, and one that is a part alone."""

    def __init__(self, make):
        super().__init__()
        self.seen, self.alone = make(), make()
        self.layers, self.inner = [make(), nn.Linear(2, 2), self.seen], nn.ModuleDict({"a": nn.Identity()})
        self.inner["a"].of = {"x": [(make(),)]}
        self.layers.append(self.layers)  # a list that holds itself
        self.__dict__["past"] = nn.Sequential(make())


def test_neurons_in_plain_containers_are_listed(j):
    """They were in neither list, although they run as before and sc.reset does not reach them."""
    net = Hidden(j.neuron.LIFNode)
    with pytest.raises(ValueError, match=r"with strict=True nothing was changed\n0 replaced, 4 left"):
        sc.convert(net, strict=True)
    with pytest.warns(UserWarning, match=r"layers\[0\]: left: LIFNode: nn.Module does not see modules in a plain list"):
        done = sc.convert(net)
    assert list(done.replaced) == ["alone"]
    assert list(done.left) == ["layers[0]", "layers[2]", "past.0", "inner.a.of['x'][0][0]"]
    assert net.layers[2] is net.seen
    assert "make inner.a.of an nn.ModuleDict" in done.left["inner.a.of['x'][0][0]"]
    assert "past was set past nn.Module" in done.left["past.0"]
    alone = nn.Sequential(nn.Identity())
    alone.neurons = (j.neuron.IFNode(),)
    with pytest.warns(UserWarning, match=r"neurons\[0\]: left: IFNode: .* plain tuple"):
        assert not sc.convert(alone).replaced


def test_a_module_stays_as_it_is_where_it_is_no_part(j):
    """Another one stands in its place in the network; a network that is a neuron has no such place."""
    node = j.neuron.LIFNode()
    net = nn.Sequential(node)
    sc.convert(net)
    net(torch.ones(1, 3))
    assert isinstance(net[0], j.neuron.LIFNode)
    assert type(node) is j.neuron.LIFNode
    assert (node.v, hasattr(node, "neuron")) == (0.0, False)
    with pytest.raises(ValueError, match=r"net is itself a LIFNode, .*; give a network that contains it, net = nn.Seq"):
        sc.convert(node)


class Half(nn.Module):
    def forward(self, w):
        return w / 2


def test_parametrized_neurons(j):
    """Left with the reason before sc.convert, and registered on module.neuron behind it."""
    from torch.nn.utils import parametrize

    net = nn.Sequential(j.layer.Linear(2, 3), j.neuron.ParametricLIFNode(init_tau=3.0))
    plain = copy.deepcopy(net)
    parametrize.register_parametrization(net[1], "w", Half())
    with pytest.warns(UserWarning, match=r"1: left: .*: it is parametrized .* register the parametrization there"):
        sc.convert(net)
    sc.convert(plain)
    parametrize.register_parametrization(plain[1].neuron, "w", Half())
    x = torch.rand(4, 2)
    assert torch.equal(plain(x), net(x))
    assert torch.equal(plain[1].v, net[1].v)
    assert torch.equal(plain[1].w, net[1].w)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_a_state_that_is_carried_is_not_exported(j, strict):
    """It is refused as a neuron of ours is: it would be a constant of the program, with which every call begins."""
    net, x = nn.Sequential(nn.Linear(4, 5), j.neuron.LIFNode()), torch.rand(3, 4) * 4
    sc.convert(net)
    with torch.no_grad():
        want = net(x)
        with pytest.raises(RuntimeError, match="carries a state, which would be a constant of the exported program"):
            torch.export.export(net, (x,), strict=strict)
        sc.reset(net)
        program = torch.export.export(net, (x,), strict=strict).module()
        assert torch.equal(program(x), want)
        assert torch.equal(program(x), want)
        sc.reset(net)
        net[1].v = 0.5
        with pytest.raises(RuntimeError, match="carries a state, which would be a constant of the exported program"):
            torch.export.export(net, (x,), strict=strict)


def test_numbers_that_were_made_parameters_keep_their_names(j):
    """``v_threshold`` is the neuron's ``threshold``, and in state_dict what it was, both ways and in errors."""
    net = nn.Sequential(j.layer.Linear(2, 3), j.neuron.CUBALIFNode())
    for name in ("v_threshold", "c_decay"):
        value = getattr(net[1], name)
        delattr(net[1], name)
        setattr(net[1], name, nn.Parameter(torch.tensor(float(value))))
    state = copy.deepcopy(net.state_dict())
    sc.convert(net)
    assert sorted(net.state_dict()) == sorted(state)
    other = {key: value + 0.125 for key, value in state.items()}
    net.load_state_dict(other)
    assert (net[1].neuron.threshold.item(), net[1].neuron.alpha.item()) == (
        other["1.v_threshold"].item(),
        other["1.c_decay"].item(),
    )
    assert net[1].v_threshold is net[1].neuron.threshold
    del other["1.c_decay"]
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "1.c_decay"'):
        net.load_state_dict(other)
    net(torch.rand(4, 2) * 5).sum().backward()
    assert net[1].v_threshold.grad is not None


def test_handles_of_hooks_from_before_remove_them(j):
    """Hooks of calls run in the new module, and the handles that the user has take them away again."""
    net = nn.Sequential(nn.Linear(4, 3), j.neuron.LIFNode(step_mode="m"))
    calls = []
    handles = [
        net[1].register_forward_pre_hook(lambda *_: calls.append("before")),
        net[1].register_forward_hook(lambda *_: calls.append("behind"), with_kwargs=True),
        net[1].register_full_backward_hook(lambda *_: calls.append("backward")),
    ]
    sc.convert(net)
    net(torch.rand(T, B, 4)).sum().backward()
    assert calls == ["before", "behind", "backward"]
    for handle in handles:
        handle.remove()
    j.functional.reset_net(net)
    net(torch.rand(T, B, 4)).sum().backward()
    assert len(calls) == 3
