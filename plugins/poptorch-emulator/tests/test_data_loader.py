"""``poptorch.DataLoader``: what one batch holds (rule E8), and what it says about the rest."""

from __future__ import annotations

import inspect
import logging

import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, SequentialSampler, TensorDataset

import refusals
from poptorch_emulator import DataLoader, Error
from poptorch_emulator.arguments import Batching
from poptorch_emulator.enums import CommGroupType, DataLoaderMode
from poptorch_emulator.options import Options


def samples(count):
    return TensorDataset(torch.arange(count), 2.0 * torch.arange(count))


def numbers(loader):
    """The samples of each batch."""
    return [batch[0].tolist() for batch in loader]


class Stream(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(range(self.count))


class TestSignature:
    def test_is_poptorchs(self):
        parameters = inspect.signature(DataLoader.__init__).parameters
        defaults = {name: parameter.default for name, parameter in parameters.items() if name not in ("self", "kwargs")}
        empty = inspect.Parameter.empty
        assert list(defaults.items()) == [
            ("options", empty),
            ("dataset", empty),
            ("batch_size", 1),
            ("shuffle", None),
            ("num_workers", 0),
            ("drop_last", True),
            ("persistent_workers", None),
            ("auto_distributed_partitioning", True),
            ("mode", DataLoaderMode.Sync),
            ("async_options", None),
            ("rebatched_worker_size", None),
            ("batch_sampler", None),
        ]


class TestE8:
    """A batch holds the micro batches of one call, and all have one size."""

    @pytest.mark.parametrize(
        ("set_options", "size"),
        [
            (lambda o: o, 3),
            (lambda o: o.deviceIterations(2), 6),
            (lambda o: o.replicationFactor(2), 6),
            (lambda o: o.Training.gradientAccumulation(2), 6),
            (lambda o: o.replicationFactor(4).inputReplicaGrouping(2, CommGroupType.Consecutive), 6),
            (lambda o: o.deviceIterations(2).replicationFactor(2).Training.gradientAccumulation(5), 60),
        ],
    )
    def test_combined_batch_size(self, set_options, size):
        options = Options()
        set_options(options)
        loader = DataLoader(options, samples(130), batch_size=3)
        assert loader.combinedBatchSize == size == 3 * Batching(options).slices
        assert len(loader) == 130 // size
        assert numbers(loader) == [list(range(n * size, (n + 1) * size)) for n in range(130 // size)]

    def test_the_last_is_dropped(self):
        assert numbers(DataLoader(Options(), samples(5), batch_size=2)) == [[0, 1], [2, 3]]

    def test_the_last_is_kept_if_asked_for_and_said(self, caplog):
        with caplog.at_level(logging.WARNING, "poptorch"):
            loader = DataLoader(Options().deviceIterations(2), samples(5), batch_size=2, drop_last=False)
        assert caplog.messages == [
            "The number of elements in the dataset (5) is not divisible by the number of elements processed per step "
            "(4) and drop_last=False. The last tensor will have a batch size of 1. To avoid having to handle this "
            "special case switch to drop_last=True"
        ]
        assert numbers(loader) == [[0, 1, 2, 3], [4]]
        assert len(loader) == 2

    def test_options_are_frozen(self):
        options = Options()
        loader = DataLoader(options, samples(2))
        assert loader.options is options
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            options.deviceIterations(2)


class TestTorchs:
    """The rest is torch's."""

    def test_without_batching(self):
        class Batches(Dataset):
            def __len__(self):
                return 2

            def __getitem__(self, index):
                return torch.full((3,), index)

        loader = DataLoader(Options(), Batches(), batch_size=None, drop_last=False)
        assert loader.combinedBatchSize is None
        assert [batch.tolist() for batch in loader] == [[0, 0, 0], [1, 1, 1]]

    def test_workers_are_kept(self):
        """Without an argument, workers live from pass to pass, and without workers nothing does."""
        assert DataLoader(Options(), samples(2), num_workers=1).persistent_workers
        assert not DataLoader(Options(), samples(2)).persistent_workers

    def test_streams_for_several_workers(self, caplog):
        with caplog.at_level(logging.WARNING, "poptorch"):
            DataLoader(Options(), Stream(4), num_workers=2)
        assert caplog.messages[0].startswith(
            "IterableDataset used with num_workers=2 but no worker_init_fn specified: as a result the DataLoader will "
            "return 2 times each element in the dataset"
        )
        caplog.clear()
        DataLoader(Options(), Stream(4), num_workers=2, worker_init_fn=lambda number: None)
        assert caplog.messages == []


class TestBatchSampler:
    """Each of its batches is one micro batch."""

    def sampler(self, count=10, size=2):
        return BatchSampler(SequentialSampler(range(count)), size, drop_last=False)

    def test_micro_batches_are_joined(self):
        loader = DataLoader(Options().deviceIterations(2), samples(10), batch_sampler=self.sampler())
        assert numbers(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert len(loader) == 2

    def test_the_rest_is_kept_if_asked_for(self):
        options = Options().deviceIterations(2)
        loader = DataLoader(options, samples(10), batch_sampler=self.sampler(), drop_last=False)
        assert numbers(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert len(loader) == 3

    def test_what_cannot_be_joined(self):
        options = Options().deviceIterations(2)
        loader = DataLoader(options, samples(4), batch_sampler=self.sampler(4), collate_fn=lambda batch: "text")
        with pytest.raises(Error, match="batches of a batch_sampler are joined, which <class 'str'> cannot be"):
            list(loader)

    @pytest.mark.parametrize("keywords", [{"batch_size": 2}, {"shuffle": True}, {"batch_size": None}])
    def test_with_what_it_decides_itself(self, keywords):
        with pytest.raises(Error, match="`batch_sampler` option is mutually exclusive with batch_size, shuffle."):
            DataLoader(Options(), samples(4), batch_sampler=self.sampler(4), **keywords)


class TestAsynchronous:
    def test_gives_the_same_batches(self):
        options = Options().deviceIterations(2)
        asynchronous = DataLoader(
            options, samples(9), batch_size=2, mode=DataLoaderMode.Async, async_options={"buffer_size": 5}
        )
        assert numbers(asynchronous) == numbers(DataLoader(options, samples(9), batch_size=2))
        assert asynchronous.terminate() is None


test_refused = refusals.table(__file__, globals())
