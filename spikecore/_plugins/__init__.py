"""Which backends there are, how they are loaded, and which of them a neuron gets."""
