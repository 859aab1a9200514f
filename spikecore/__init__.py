"""One definition of a spiking neuron, written as equations; every accelerator runs it, trains it, and agrees on it."""

__version__ = "0.1.0"
