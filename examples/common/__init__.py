"""What the training programs of this folder share: options, data sets, the training loop, checkpoints, pictures.

A program is a network, a loss and options of its own; ``common.loop.main`` does the rest. Python finds this package
because a script's folder comes first in ``sys.path``. It needs the extra ``train`` (``pip install '.[train]'``).
"""
