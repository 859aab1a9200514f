"""One step of neurons of other packages and papers, in plain arithmetic, for tests/unit/neurons/test_neurons.py.

``o`` has the functions of NumPy or torch, ``c`` the configuration, ``p`` the parameters, ``s`` the states.
"""


def _delayed(o, c, p, u, v_before):
    """snnTorch's reset by the spike of the step before, found from the potential it left."""
    r = o.cut(o.fire(v_before - p.threshold, strict=True))
    return {"soft": u - r * p.threshold, "hard": (1 - r) * u, "none": u}[c["reset"]], r


def synaptic_leaky(o, c, p, x, s):
    """snnTorch's Synaptic."""
    i = o.clip(p.alpha) * s["i"] + x
    u, r = _delayed(o, c, p, o.clip(p.beta) * s["v"] + i, s["v"])
    z = o.fire(u - p.threshold, strict=True)
    if c.get("reset_delay", True) or c["reset"] == "none":
        return z, {"i": i, "v": u}
    late = (o.cut(z) if c.get("detach_reset") else z) - r
    return z, {"i": i, "v": u - late * p.threshold if c["reset"] == "soft" else u - late * u}


def alpha(o, c, p, x, s):
    """snnTorch's Alpha."""
    a, b = o.clip(p.alpha), o.clip(p.beta)
    r = o.cut(o.fire(s["v"] - p.threshold, strict=True))
    exc, inh = a * s["i_exc"] + x, b * s["i_inh"] - x
    u = (o.log(a) / (o.log(b) - o.log(a)) + 1) * (exc + inh)
    if c["reset"] == "hard":
        exc, inh, u = (1 - r) * exc, (1 - r) * inh, (1 - r) * u
    elif c["reset"] == "soft":
        exc, inh, u = exc - r * p.threshold, (1 - r) * inh, u + r * s["i_inh"]
    return o.fire(u - p.threshold, strict=True), {"i_exc": exc, "i_inh": inh, "v": u}


def lapicque(o, c, p, x, s):
    """A circuit of a resistance and a capacity; the step is Euler's."""
    u = s["v"] + p.time_step * (x * p.R - s["v"]) / (p.R * p.C)
    u, _ = _delayed(o, c, p, u, s["v"])
    return o.fire(u - p.threshold, strict=True), {"v": u}
