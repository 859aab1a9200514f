"""Wrong declarations of a neuron and wrong results of its dynamics are refused by name."""

from __future__ import annotations

import pytest
import torch

import spikecore as sc
from spikecore.lang import TraceError


def values(*shape, seed=0):
    """Normal values in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class TestDeclaration:
    """A class that cannot be right is refused where it is written."""

    @staticmethod
    def declare(**attributes):
        """A neuron class with these attributes."""
        return type("Mine", (sc.Neuron,), attributes)

    @pytest.mark.parametrize(
        ("attributes", "text"),
        [
            ({"states": "v"}, r"Mine\.states='v' must hold names; for one name write \('v',\)"),
            ({"inputs": "x"}, r"Mine\.inputs='x' must hold names; for one name write \('x',\)"),
            ({"states": ("v",)}, r"Mine\.states=\('v',\) must be a dict of name: initial value"),
            ({"params": ["tau"]}, r"Mine\.params=\['tau'\] must be a dict of name: default value"),
            ({"states": {"my v": 0.0}}, r"Mine\.states has 'my v', which is no usable name; use a plain identifier"),
            ({"states": {"_v": 0.0}}, r"Mine\.states has '_v', which is no usable name"),
            ({"params": {"lambda": 1.0}}, r"Mine\.params has 'lambda', which is no usable name"),
            (
                {"params": {"tau": torch.nn.Parameter(torch.ones(()))}},
                r"Mine\.params has an nn\.Parameter as the default of 'tau', which .* learn=\('tau',\) to the neuron",
            ),
            ({"inputs": (1,)}, r"Mine\.inputs has 1, which is no usable name"),
            ({"states": {"v": None}}, r"Mine\.states has 'v' start at None; give a number or the name of a parameter"),
            ({"states": {"v": True}}, r"Mine\.states has 'v' start at True"),
            ({"states": {"v": torch.zeros(1)}}, r"Mine\.states has 'v' start at tensor"),
            ({"params": {"step": 1.0}}, r"Mine\.params has 'step', which every neuron uses already; choose another"),
            ({"params": {"run": 1.0}}, r"Mine\.params has 'run', which every neuron uses already"),
            ({"params": {"training": 1.0}}, r"Mine\.params has 'training', which every neuron uses already"),
            (
                {"params": {"gain": 1.0}, "gain": lambda self: 1},
                r"Mine\.params has 'gain', which the class has",
            ),
            (
                {"params": {"gain": 1.0}, "gain": property(id)},
                r"Mine\.params has 'gain', which the class has",
            ),
            (
                {"states": {"v": 0.0}, "params": {"v": 1.0}},
                r"Mine has 'v' more than once among inputs, states and params",
            ),
            ({"inputs": ("v",), "states": {"v": 0.0}}, r"Mine has 'v' more than once among"),
            ({"inputs": ("x", "_y")}, r"Mine\.inputs has '_y', which is no usable name"),
            ({"states": {"v": 0.0}, "reset_states": "v"}, r"Mine\.reset_states='v' must be a tuple of names of states"),
            ({"states": {"v": 0.0}, "reset_states": ("u",)}, r"Mine\.reset_states=\('u',\) must be a tuple of names"),
        ],
    )
    def test_refused(self, attributes, text):
        """Names that are no names, or taken; values that are no values; a single name where names belong."""
        with pytest.raises(TypeError, match=f"^{text}"):
            self.declare(**attributes)

    def test_a_setting_of_a_parent_is_no_parameter(self):
        """A class below one that has a keyword cannot have a parameter of that name."""
        with pytest.raises(TypeError, match=r"Mine\.params has 'reset', which the class has as a method or a setting"):
            type("Mine", (sc.LIF,), {"params": {**sc.LIF.params, "reset": 1.0}})

    def test_inputs_may_be_called_like_methods_of_a_tuple(self):
        """Inputs come as a named tuple, whose own methods stand behind its fields."""
        names = ("count", "index", "real", "T")
        cls = self.declare(
            inputs=names, dynamics=lambda self, x, s, p: (x.count + 2.0 * x.index + 3.0 * x.real + 4.0 * x.T, {})
        )
        values = [torch.rand(2, 3) for _ in names]
        expected = values[0] + 2.0 * values[1] + 3.0 * values[2] + 4.0 * values[3]
        torch.testing.assert_close(cls()(*values), expected)

    @pytest.mark.parametrize(
        ("returned", "text"),
        [
            (lambda x, s: x, r"Mine\.dynamics must return \(output, next states as a dict\).*; it returned"),
            (
                lambda x, s: (x, {}),
                r"Mine\.dynamics returns no next value for state 'v'; return one for each",
            ),
            (
                lambda x, s: (x, {"v": x, "w": x}),
                r"a next value for 'w', which is no state; its states are: v",
            ),
            (lambda x, s: (x > 0, {"v": x}), r"output 0 of Mine is a comparison"),
            (lambda x, s: (x, {"v": x > 0}), r"the next v of Mine is a comparison"),
            (lambda x, s: ((), {"v": x}), r"it returned no output"),
            (lambda x, s: (x, {"v": s.u}), r"Mine has no state 'u' in Mine.dynamics; its states are: v"),
            (lambda x, s: (x, {"v": torch.zeros(1)}), r"a Tensor is not part of the language as the next v of Mine"),
        ],
    )
    def test_wrong_return(self, returned, text):
        """What ``dynamics`` must return is said, with what it returned."""
        cls = self.declare(states={"v": 0.0}, dynamics=lambda self, x, s, p: returned(x, s))
        with pytest.raises(TraceError, match=text):
            cls()(torch.zeros(1, 1))

    def test_unknown_parameter(self):
        """A parameter that was not declared is named, with those that were."""
        cls = self.declare(params={"tau": 1.0}, dynamics=lambda self, x, s, p: (x / p.tua, {}))
        with pytest.raises(TraceError, match="Mine has no parameter 'tua' in Mine.dynamics; its parameters are: tau"):
            cls()(torch.zeros(1, 1))

    def test_initial_value_names_a_parameter(self):
        """An initial value that names nothing is named itself."""
        cls = self.declare(states={"v": "v_rest"}, dynamics=lambda self, x, s, p: (x, {"v": x}))
        with pytest.raises(TraceError, match="initial value of state 'v' is 'v_rest', which is no parameter; .*: none"):
            cls()(torch.zeros(1, 1))

    def test_missing_attribute(self):
        """A missing attribute in ``dynamics`` is said by its own name, not as a missing program."""
        cls = self.declare(dynamics=lambda self, x, s, p: (x * self.gain, {}))
        with pytest.raises(TraceError, match=r"^Mine\.dynamics: 'Mine' object has no attribute 'gain'$"):
            cls()(torch.zeros(1, 1))

    def test_without_dynamics(self):
        """A class that forgot its equations."""
        with pytest.raises(NotImplementedError, match=r"^Mine must define dynamics\(self, x, s, p\)$"):
            self.declare()()(torch.zeros(1, 1))
