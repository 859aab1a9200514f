"""What needs nothing else of spikecore: locks and caches, batches, bits, errors, files, autocast, modes of torch."""
