"""Backends: which there are and how they are loaded (``registry``), and which of them a neuron gets (``selection``)."""
