"""What needs nothing else of spikecore: locks and caches, batches, bits, errors, files, and what surrounds a call."""
