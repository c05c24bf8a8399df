"""The same two updates in PyTorch with TorchDiffEqPack, answering a driver over standard input and output.

Every line that comes is a request in JSON, every line that goes an answer: ``{"do": "dynamics", "file": .., "updates":
.., "form": ..}``. The members are batched as the authors do, and one form of the field, or of the solve, is another
``form``: the driver takes the fastest.
"""

from __future__ import annotations

import json
import sys
import time
import types
from itertools import pairwise

import numpy as np
import torch

# TorchDiffEqPack imports a plotting library and never draws.
for name in ("matplotlib", "matplotlib.pylab"):
    sys.modules.setdefault(name, types.ModuleType(name))

from TorchDiffEqPack import odesolve, odesolve_adjoint  # noqa: E402

RTOL, ATOL = 1e-3, 1e-6
OPTIONS = {
    "method": "dopri5", "h": None, "rtol": RTOL, "atol": ATOL, "print_neval": False, "neval_max": 100_000,
}  # fmt: skip
# What the package calls cubic is a straight line between two steps: only its polynomial has the method's accuracy.
WITH_GRAPH = {"interpolation_method": "polynomial", "regenerate_graph": False}


def number(time):
    """A time as a plain number, also where the package would differentiate by it."""
    return float(time.detach()) if torch.is_tensor(time) else float(time)


class Perceptron(torch.nn.Module):
    """Layers with the member axis first, weights ``[member, in, out]``; without a member axis ``[in, out]``."""

    def __init__(self, arrays, prefix, activation, device, trained):
        super().__init__()
        count = sum(name.startswith(f"{prefix}_weight_") for name in arrays)
        tensor = lambda name: torch.tensor(arrays[name], device=device)  # noqa: E731
        weights = [tensor(f"{prefix}_weight_{i}").transpose(-1, -2).contiguous() for i in range(count)]
        biases = [tensor(f"{prefix}_bias_{i}") for i in range(count)]
        biases = [bias[:, None] if bias.ndim == 2 else bias for bias in biases]
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(w, requires_grad=trained) for w in weights)
        self.biases = torch.nn.ParameterList(torch.nn.Parameter(b, requires_grad=trained) for b in biases)
        self.activation = activation
        self.form = "baddbmm"

    def forward(self, inputs):
        last = len(self.weights) - 1
        for place, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if weight.ndim == 2:
                inputs = torch.addmm(bias, inputs, weight)
            elif self.form == "baddbmm":
                inputs = torch.baddbmm(bias, inputs, weight)
            else:
                inputs = torch.einsum("mbi,mio->mbo", inputs, weight) + bias
            if place < last:
                inputs = self.activation(inputs)
        return inputs


class Scaled(torch.nn.Module):
    """The learned field in the world's units."""

    def __init__(self, arrays, device, trained):
        super().__init__()
        self.network = Perceptron(arrays, "dynamics", torch.nn.functional.elu, device, trained)
        for name in ("observation_middle", "observation_scale", "action_middle", "action_scale", "rate_scale"):
            self.register_buffer(name, torch.tensor(arrays[name], device=device))

    def rate(self, observation, action):
        seen = (observation - self.observation_middle) / self.observation_scale
        acted = (action - self.action_middle) / self.action_scale
        return self.network(torch.cat([seen, acted], -1)) * self.rate_scale


class WindowField(torch.nn.Module):
    """``ds/dtau`` of every member and window, the logged action a polynomial on every interval."""

    def __init__(self, dynamics):
        super().__init__()
        self.dynamics = dynamics
        self.evaluations = 0
        self.differentiated = 0

    def window(self, steps, paths):
        self.steps, self.paths = steps.unbind(1), paths.unbind(1)
        self.powers = torch.arange(paths.shape[2], device=paths.device, dtype=paths.dtype)

    def forward(self, time, states):
        self.evaluations += 1
        self.differentiated += torch.is_grad_enabled()
        tau = min(number(time), len(self.paths))  # a step may end behind the window: the action stays
        place = min(int(tau), len(self.paths) - 1)
        powers = torch.pow(2 * (tau - place) - 1, self.powers)
        action = torch.einsum("k,wka->wa", powers, self.paths[place])
        action = action.expand(states.shape[0], *action.shape)
        return self.dynamics.rate(states, action) * self.steps[place][:, None]


class ImaginedField(torch.nn.Module):
    """Model, policy and the reward integral in one state."""

    def __init__(self, dynamics, policy, arrays, device):
        super().__init__()
        self.dynamics, self.policy = dynamics, policy
        self.middle = torch.tensor(arrays["policy_middle"], device=device)
        self.reach = torch.tensor(arrays["policy_reach"], device=device)
        self.velocity_cost, self.action_cost = float(arrays["velocity_cost"]), float(arrays["action_cost"])
        self.discount_time = float(arrays["discount_time"])
        self.evaluations = 0
        self.differentiated = 0

    def forward(self, time, states):
        self.evaluations += 1
        self.differentiated += torch.is_grad_enabled()
        observation = states[..., :-1]
        flat = observation.reshape(-1, observation.shape[-1])
        action = (self.middle + self.reach * torch.tanh(self.policy(flat))).reshape(*states.shape[:2], -1)
        x, v, cos, sin, omega = observation.unbind(-1)
        distance = x * x + sin * sin + (cos - 1) ** 2 + self.velocity_cost * (v * v + omega * omega)
        reward = torch.exp(-distance) - self.action_cost * (action * action).sum(-1)
        reward = float(np.exp(-number(time) / self.discount_time)) * reward
        return torch.cat([self.dynamics.rate(observation, action), reward[..., None]], -1)


def solved(field, start, times, solve):
    """States at the times behind the first: one solve with a graph, or one checkpointed solve (ACA) to each time."""
    if solve == "graph":
        options = {**OPTIONS, **WITH_GRAPH, "t0": times[0], "t1": times[-1], "t_eval": list(times[1:])}
        states = odesolve(field, start, options)
        return states if torch.is_tensor(states) else torch.stack(list(states))
    states = [start]
    for left, right in pairwise(times):
        states.append(odesolve_adjoint(field, states[-1], {**OPTIONS, "t0": left, "t1": right}))
    return torch.stack(states[1:])


class Dynamics:
    """ENODE updates on prepared batches."""

    def __init__(self, file, device):
        self.arrays = dict(np.load(file))
        self.device = device
        tensor = lambda name: torch.tensor(self.arrays[name], device=device)  # noqa: E731
        self.starts, self.targets, self.steps, self.paths = map(tensor, ("starts", "targets", "steps", "paths"))
        self.fresh("baddbmm")

    def fresh(self, form):
        """The weights that came, and an optimiser without moments."""
        dynamics = Scaled(self.arrays, self.device, True)
        dynamics.network.form = form
        self.field = WindowField(dynamics)
        self.log_noise = torch.nn.Parameter(torch.tensor(self.arrays["log_noise"], device=self.device))
        rate, speed = float(self.arrays["rate"]), float(self.arrays["noise_speed"])
        groups = [{"params": list(dynamics.parameters())}, {"params": [self.log_noise], "lr": rate * speed}]
        self.optimiser = torch.optim.Adam(groups, lr=rate)

    def states(self, batch, solve):
        self.field.window(self.steps[batch], self.paths[batch])
        members = self.arrays["dynamics_weight_0"].shape[0]
        start = self.starts[batch].expand(members, *self.starts.shape[1:])
        times = [float(i) for i in range(self.steps.shape[2] + 1)]
        return solved(self.field, start, times, solve)

    def update(self, batch, solve):
        states = self.states(batch, solve)
        targets = self.targets[batch].permute(1, 0, 2)[:, None]
        wrong = (states - targets) / self.field.dynamics.observation_scale
        likelihood = -0.5 * (wrong / self.log_noise.exp()) ** 2 - self.log_noise - 0.5 * np.log(2 * np.pi)
        loss = -likelihood.sum(-1).mean()
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        return loss.detach()


class Agent:
    """Actor-critic updates on prepared starts and horizons, every start through every member."""

    def __init__(self, file, device):
        self.arrays = dict(np.load(file))
        self.device = device
        self.starts = torch.tensor(self.arrays["starts"], device=device)
        self.times = self.arrays["times"].tolist()
        self.weights = torch.tensor(self.arrays["weights"], device=device)
        self.fresh("baddbmm")

    def fresh(self, form):
        """The weights that came, and optimisers without moments."""
        dynamics = Scaled(self.arrays, self.device, False)
        dynamics.network.form = form
        policy = Perceptron(self.arrays, "policy", torch.relu, self.device, True)
        self.field = ImaginedField(dynamics, policy, self.arrays, self.device)
        self.critic = Perceptron(self.arrays, "critic", torch.tanh, self.device, True)
        self.target = Perceptron(self.arrays, "critic", torch.tanh, self.device, False)
        self.critic_fixed = Perceptron(self.arrays, "critic", torch.tanh, self.device, False)
        rate = float(self.arrays["rate"])
        self.actor_optimiser = torch.optim.Adam(policy.parameters(), lr=rate)
        self.critic_optimiser = torch.optim.Adam(self.critic.parameters(), lr=rate)

    def states(self, batch, solve):
        members = self.arrays["dynamics_weight_0"].shape[0]
        starts = self.starts[batch].expand(members, *self.starts.shape[1:])
        begin = torch.cat([starts, torch.zeros_like(starts[..., :1])], -1)
        return solved(self.field, begin, self.times[batch], solve)

    def update(self, batch, solve):
        imagined = self.states(batch, solve)
        discount = torch.exp(-torch.tensor(self.times[batch][1:], device=self.device) / self.field.discount_time)
        end = imagined[-1]
        # The actor's critic is the current one, its gradient goes to the states alone.
        for fixed, current in zip(self.critic_fixed.parameters(), self.critic.parameters(), strict=True):
            fixed.data.copy_(current.data)
        ahead = self.critic_fixed(end[..., :-1].reshape(-1, end.shape[-1] - 1))[:, 0]
        loss = -(end[..., -1].reshape(-1) + discount[-1] * ahead).mean()
        self.actor_optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.actor_optimiser.step()
        with torch.no_grad():
            ahead = self.target(imagined[..., :-1].reshape(-1, end.shape[-1] - 1)).reshape(imagined.shape[:-1])
            values = imagined[..., -1] + discount[:, None, None] * ahead
            target = (values * self.weights[batch][1:, None, None]).sum(0).mean(0)
        wrong = ((self.critic(self.starts[batch])[:, 0] - target) ** 2).mean()
        self.critic_optimiser.zero_grad(set_to_none=True)
        wrong.backward()
        self.critic_optimiser.step()
        return loss.detach()


def burst(task, request):
    """So many updates from the weights that came, one batch after the other."""
    task.fresh(request.get("form", "baddbmm"))
    solve = request.get("solve", "graph")
    losses, seconds = [], []
    for batch in range(request["updates"]):
        synchronise(task.device)
        begin = time.perf_counter()
        losses.append(task.update(batch, solve))
        synchronise(task.device)
        seconds.append(time.perf_counter() - begin)
    return {
        "seconds": seconds, "losses": [float(loss) for loss in losses],
        "evaluations": task.field.evaluations / request["updates"],
        "differentiated": task.field.differentiated / request["updates"],
    }  # fmt: skip


def states(task, request):
    """The states of the first batch, for the comparison with a tight solve."""
    task.fresh("baddbmm")
    with torch.no_grad():
        answer = task.states(0, request.get("solve", "graph"))
    np.save(request["into"], answer.cpu().numpy())
    return {}


def ceiling(request):
    """Arithmetic rate of plain batched products of these shapes, in GFLOP/s."""
    members, rows, size, device = request["members"], request["rows"], 200, request["device"]
    weight = torch.randn(members, size, size, device=device) / size**0.5
    inputs = torch.randn(members, rows, size, device=device)
    times = []
    for _ in range(request.get("repeats", 20)):
        synchronise(device)
        begin = time.perf_counter()
        for _ in range(50):
            torch.bmm(inputs, weight)
        synchronise(device)
        times.append(time.perf_counter() - begin)
    return {"gflops": 50 * 2 * members * rows * size * size / min(times) / 1e9}


def synchronise(device):
    if device != "cpu":
        torch.cuda.synchronize()


def answer(request, tasks):
    kind = request["do"]
    if kind == "versions":
        return {"torch": torch.__version__, "threads": torch.get_num_threads()}
    if kind == "ceiling":
        return ceiling(request)
    key = request["task"], request["file"]
    if key not in tasks:
        tasks[key] = {"dynamics": Dynamics, "agent": Agent}[key[0]](key[1], request.get("device", "cpu"))
    return {"burst": burst, "states": states}[kind](tasks[key], request)


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    tasks = {}
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), tasks)), flush=True)


if __name__ == "__main__":
    main()
