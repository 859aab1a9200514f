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


def clif(o, c, p, x, s):
    """A complementary potential that spikes raise, and that deepens the reset."""
    h = s["v"] * (1 - 1 / p.tau) + x
    z = o.fire(h - p.threshold)
    formed = s["m"] * o.sigmoid(h / p.tau)
    reset = o.cut(z) if c.get("detach_reset") else z
    return z, {"v": h - reset * (p.threshold + o.sigmoid(formed + reset)), "m": formed + z}


def glif(o, c, p, x, s):
    """Gates between two forms of leak, input and reset."""
    g = {name[2:]: o.sigmoid(value) for name, value in vars(p).items()}
    kept = (1 - g["alpha"] * (1 - g["tau"])) * s["v"]
    leaked = kept - (1 - g["alpha"]) * g["leak"]
    taken = s["z"] * (g["gamma"] * kept + (1 - g["gamma"]) * g["drop"])
    v = leaked + (1 - g["beta"] * (1 - g["conductance"])) * x - taken
    z = o.fire(v - g["threshold"])
    return z, {"v": v, "z": o.cut(z) if c.get("detach_reset") else z}


def tclif(o, c, p, x, s):
    """A dendrite that charges the soma, which inhibits it."""
    d = s["d"] - o.sigmoid(p.c1) * s["v"] + x
    h = s["v"] + o.sigmoid(p.c2) * d
    z = o.fire(h - p.threshold)
    reset = o.cut(z) if c.get("detach_reset") else z
    if c["reset"] == "soft":
        return z, {"d": d - p.gamma * reset, "v": h - p.threshold * reset}
    return z, {"d": d, "v": reset * p.v_reset + (1 - reset) * h if c["reset"] == "hard" else h}


def seadlif(o, c, p, x, s):
    """The adaptation takes the potential after the reset, which carries no gradient."""
    keep_u, keep_w = o.exp(-1 / p.tau_u), o.exp(-1 / p.tau_w)
    h = keep_u * s["v"] + (1 - keep_u) * (x - s["w"])
    z = o.fire(h - p.threshold)
    v = h * (1 - o.cut(z))
    return z, {"v": v, "w": keep_w * s["w"] + (1 - keep_w) * p.q * (p.a * v + p.b * z)}


def brf(o, c, p, x, s):
    """A damped oscillator in steps of Euler's method; a spike raises threshold and damping."""
    damping = (-1 + (1 - (p.dt * p.omega) ** 2) ** 0.5) / p.dt - p.b - s["q"]
    v = s["v"] + p.dt * (damping * s["v"] - p.omega * s["y"] + x)
    y = s["y"] + p.dt * (p.omega * s["v"] + damping * s["y"])
    z = o.fire(v - (p.threshold + s["q"]), strict=True)
    return z, {"v": v, "y": y, "q": p.gamma * s["q"] + (o.cut(z) if c.get("detach_reset") else z)}


def ternary_lif(o, c, p, x, s):
    """Leaky charge, and a threshold on either side."""
    leak = (s["v"] - p.v_reset) / p.tau
    h = s["v"] - leak + (x / p.tau if c.get("decay_input", True) else x)
    up, down = o.fire(h - p.threshold), o.fire(-h - p.threshold)
    z, fired = up - down, up + down
    if c.get("detach_reset"):
        return z, {"v": _ternary_reset(c, p, h, o.cut(z), o.cut(fired))}
    return z, {"v": _ternary_reset(c, p, h, z, fired)}


def _ternary_reset(c, p, h, z, fired):
    """The potential after a spike of either sign."""
    return {"hard": fired * p.v_reset + (1 - fired) * h, "soft": h - z * p.threshold, "none": h}[c["reset"]]
