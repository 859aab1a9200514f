"""The programs of docs/trainers.md: each trainer trains, resumes to the same weights, and trains in bfloat16."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch

# The trainers warn of torch's own functions, of loaders without workers, and of what else they did not find.
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]

PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"


@pytest.fixture
def section(tmp_path, monkeypatch):
    """Runs the blocks that all programs share and those of one section, in an empty folder, and gives their names."""
    monkeypatch.chdir(tmp_path)
    bodies = re.split(r"(?m)^## ", PAGE.read_text(encoding="utf-8"))
    sections = {body.partition("\n")[0]: re.findall(r"```python\n(.*?)```", body, flags=re.DOTALL) for body in bodies}

    def run(title, *modules):
        for module in modules:
            pytest.importorskip(module, reason=f"{module} is not installed (make test-peers)")
        names = {"__name__": "page"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for block in [*sections["What all of them share"], *sections[title]]:
                exec(compile(block, title, "exec"), names)
        return names

    return run


@pytest.fixture
def one_thread():
    """A forked process has none of the threads of its parent."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def at(seed, make):
    torch.manual_seed(seed)
    return make()


def assert_trained(network, start):
    weights = list(zip(network.parameters(), start.parameters()))
    assert all(weight.dtype == torch.float32 and weight.isfinite().all() for weight, _ in weights)
    assert not any(torch.equal(weight, before) for weight, before in weights)


def assert_same(network, expected):
    for weight, other in zip(network.parameters(), expected.parameters()):
        assert torch.equal(weight, other)


def test_a_loop_of_pytorch(section):
    names = section("A loop of PyTorch")
    assert_trained(names["net"], names["Net"]())


class TestLightning:
    @pytest.fixture
    def names(self, section):
        return section("Lightning", "lightning")

    def fit(self, names, epochs, seed=0, path=None, **options):
        options = {"accelerator": "cpu", "enable_checkpointing": False, **names["QUIET"], **options}
        trainer = names["lightning"].Trainer(max_epochs=epochs, **options)
        module = at(seed, names["Lit"])
        trainer.fit(module, ckpt_path=path)
        return module, trainer

    def test_a_resumed_run_ends_with_the_same_weights(self, names):
        whole, _ = self.fit(names, 2)
        half, trainer = self.fit(names, 1)
        trainer.save_checkpoint("first.ckpt")
        resumed, _ = self.fit(names, 2, seed=1, path="first.ckpt")
        assert_trained(whole, half)
        assert_same(resumed, whole)

    def test_bfloat16(self, names):
        module, _ = self.fit(names, 1, precision="bf16-mixed")
        assert_trained(module, at(0, names["Lit"]))

    def test_two_processes(self, names, one_thread):
        """Of all samples in one batch, halved, the weights are those of one process."""
        alone, _ = self.fit(names, 2)
        names["DataLoader"] = lambda data, batch_size, sampler: torch.utils.data.DataLoader(data, 8, sampler=sampler)
        module, _ = self.fit(names, 2, strategy="ddp_fork", devices=2)
        assert_trained(module, at(0, names["Lit"]))
        for weight, expected in zip(module.parameters(), alone.parameters()):
            torch.testing.assert_close(weight, expected, rtol=0, atol=1e-5)


class TestAccelerate:
    @pytest.fixture
    def names(self, section):
        return section("accelerate", "accelerate")

    def test_a_resumed_run_ends_with_the_same_weights(self, names):
        whole = names["run"](2)
        assert_trained(whole, at(0, names["Net"]))
        assert_same(names["resumed"], whole)

    def test_bfloat16(self, names):
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(True)  # one precision a process
        module = names["run"](1, precision="bf16")
        AcceleratorState._reset_state(True)
        assert_trained(module, at(0, names["Net"]))


class TestTransformers:
    @pytest.fixture
    def names(self, section):
        return section("Hugging Face Trainer", "transformers", "accelerate")

    def test_a_resumed_run_ends_with_the_same_weights(self, names):
        whole, resumed = at(0, names["ForTrainer"]), at(1, names["ForTrainer"])
        names["trainer_of"](whole, num_train_epochs=2).train()
        assert_trained(whole, at(0, names["ForTrainer"]))
        names["trainer_of"](resumed, num_train_epochs=2).train(resume_from_checkpoint="runs/checkpoint-4")
        assert_same(resumed, whole)

    def test_evaluation_and_bfloat16(self, names):
        model = at(0, names["ForTrainer"])
        trainer = names["trainer_of"](model, num_train_epochs=1, bf16=True)
        trainer.train()
        assert_trained(model, at(0, names["ForTrainer"]))
        rows = names["rows"]
        assert trainer.predict(rows).predictions.shape == (len(rows), 3)
        assert trainer.evaluate()["eval_loss"] > 0
