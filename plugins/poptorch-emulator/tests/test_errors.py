"""``poptorch.Error`` and its texts."""

from __future__ import annotations

import pytest

from poptorch_emulator import _errors as errors


class TestError:
    @pytest.mark.parametrize(
        ("make", "kind"),
        [
            (errors.py_error, "poptorch_py_error"),
            (errors.cpp_error, "poptorch_cpp_error"),
            (errors.popart_error, "popart_exception"),
        ],
    )
    def test_says_who_raised_it(self, make, kind):
        error = make("nop must take a torch.tensor argument.")
        assert type(error) is errors.Error
        assert str(error) == f"'{kind}': nop must take a torch.tensor argument."
        assert (error.type, error.message, error.location) == (kind, "nop must take a torch.tensor argument.", "")

    @pytest.mark.parametrize("kind", [errors.RecoverableError, errors.UnrecoverableError])
    def test_of_a_device_are_errors_too(self, kind):
        with pytest.raises(errors.Error):
            raise kind("IPU")

    def test_recoverable_says_what_to_do(self):
        assert errors.RecoverableError().recovery_action == ""

    def test_of_what_is_not_modelled(self):
        """The emulator's own refusals read like PopTorch's, and say that they are its own."""
        error = errors.not_modelled("max_grad_norm=1.0")
        assert str(error) == "'poptorch_py_error': max_grad_norm=1.0 is not modelled by the emulator"
        assert str(errors.not_modelled("this", "use that")).endswith("this is not modelled by the emulator: use that")
