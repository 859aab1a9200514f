"""The dense network of ``mnist.py`` written with snnTorch and with SpikingJelly, for the table of results.

    python examples/mnist_peers.py --library snntorch --data FOLDER       # pip install snntorch==1.0.0
    python examples/mnist_peers.py --library spikingjelly --data FOLDER   # pip install spikingjelly==2.0.0

Sizes, steps, batches, epochs, optimiser and data are those of ``mnist.py``. Neurons, read-out, loss and learning rate
are those of each library's tutorial on MNIST: snnTorch loops over time and adds the cross entropies of the membrane
potentials of all steps; SpikingJelly takes all steps at once, and the mean square error of the firing rates.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Callable, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common import data, results
from common.files import DataError
from common.options import EPOCHS, SEED, Defaults, any_seed, at_least

STEPS, BATCH, HIDDEN = 4, 120, 512
#: Images to what is counted for each class, ``[T, B, 10]``; images and labels to the loss.
Library = Tuple[nn.Module, Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]


def snntorch() -> Library:
    """Leaky neurons in a loop over time."""
    import snntorch as snn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.lif1 = nn.Linear(784, HIDDEN), snn.Leaky(beta=0.95)
            self.fc2, self.lif2 = nn.Linear(HIDDEN, 10), snn.Leaky(beta=0.95)

        def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
            mem1, mem2 = self.lif1.init_leaky(), self.lif2.init_leaky()
            spikes, potentials = [], []
            for _ in range(STEPS):
                spk1, mem1 = self.lif1(self.fc1(x), mem1)
                spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
                spikes.append(spk2)
                potentials.append(mem2)
            return torch.stack(spikes), torch.stack(potentials)

    net = Net()

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return sum(F.cross_entropy(mem, labels) for mem in net(images.flatten(1))[1])

    return net, lambda images: net(images.flatten(1))[0], loss


def spikingjelly() -> Library:
    """LIF nodes in multi-step mode."""
    from spikingjelly.activation_based import functional, layer, neuron, surrogate

    def lif() -> Any:
        return neuron.LIFNode(tau=2.0, surrogate_function=surrogate.ATan())

    net = nn.Sequential(layer.Flatten(), layer.Linear(784, HIDDEN), lif(), layer.Linear(HIDDEN, 10), lif())
    functional.set_step_mode(net, "m")

    def predict(images: Tensor) -> Tensor:
        functional.reset_net(net)
        return net(images.expand(STEPS, *images.shape))

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return F.mse_loss(predict(images).mean(0), F.one_hot(labels, 10).float())

    return net, predict, loss


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description="MNIST with other libraries.", formatter_class=Defaults)
    parser.add_argument("--library", choices=("snntorch", "spikingjelly"), required=True, help="what is run")
    parser.add_argument("--data", type=Path, metavar="FOLDER", default=Path("data/mnist"), help="of MNIST's files")
    parser.add_argument("--epochs", type=at_least(1), default=10, help=EPOCHS)
    parser.add_argument("--seed", type=any_seed, default=0, help=SEED)
    parser.add_argument("--device", default="cpu", help="torch device, for example cuda")
    results.add_option(parser)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    try:
        sets = data.mnist(options.data, way_out="Name the folder of these files with --data")
    except DataError as error:
        parser.error(str(error))
    (images, labels), tests = ([t.to(options.device) for t in part.tensors] for part in (sets.training, sets.test))
    make, lr = {"snntorch": (snntorch, 5e-4), "spikingjelly": (spikingjelly, 1e-3)}[options.library]
    net, predict, loss = make()
    net.to(options.device)
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
    order = torch.Generator().manual_seed(options.seed)
    run = results.Run(net, "MNIST", options, options.library)
    for _ in range(options.epochs):
        for rows in torch.randperm(len(images), generator=order).to(options.device).split(BATCH):
            optimizer.zero_grad()
            loss(images[rows], labels[rows]).backward()
            optimizer.step()
        schedule.step()
        with torch.no_grad():
            run.epoch(results.accuracy(predict, *tests))
    run.finish()


if __name__ == "__main__":
    main()
