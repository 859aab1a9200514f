"""Foundation of the other packages: locks and caches, descriptions of backends, bits, errors, hints for wrong names."""
